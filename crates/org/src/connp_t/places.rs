//! `made`: places for connections, the threads that come to them, and who looks after a place
//! whose thread the host refuses.

use super::cell::Keep;
use super::presence::Tell;
use super::thread::ConnpT;
use crate::{Kd, Making, Org};
use core::sync::atomic::{Ordering, fence};
use perimeter_stack::Ctx;
use perimeter_sync::{Event, Platform};

/// What is counted of it, for [`Family::counts`](crate::spec::Family).
pub(super) const COUNTS: &[&str] = &["threads_made", "threads_ended", "threads_refused"];
const MADE: usize = 0;
pub(super) const ENDED: usize = 1;
const REFUSED: usize = 2;

impl<C: Keep> ConnpT<C> {
    /// A message has been left for place `to`, which nobody looks after: its thread is made.
    #[cold]
    fn call(&self, to: usize) {
        let (owner, permanent) = (&self.owners[to], &self.owners[self.core(to)]);
        match self.make.get().map_or(Making::Refused, |make| make(to)) {
            Making::Made => {}
            // Whoever waits does what was left, as after any thread that has ended with the stack.
            Making::Over => self.retire(to),
            Making::Refused => {
                permanent.adopted.fetch_add(1, Ordering::SeqCst);
                owner.presence.leave_to_permanent();
                permanent.bell.set();
                // Against `retire`, which says that it has gone and then looks what it had been
                // left.
                fence(Ordering::SeqCst);
                self.p.checkpoint();
                if permanent.gone.load(Ordering::SeqCst) {
                    self.retire(to);
                }
            }
        }
    }

    /// [`ConnpT::wake`] for a place.
    pub(super) fn tell(&self, to: usize) {
        let owner = &self.owners[to];
        match owner.presence.call(&self.p) {
            Tell::Own => owner.bell.set(),
            Tell::Permanent => self.owners[self.core(to)].bell.set(),
            Tell::Nobody => self.call(to),
        }
    }

    /// Whether nothing waits for an owner, nobody is at work for it, and it has no connection, as
    /// was last told.
    pub(super) fn is_deserted(&self, index: usize) -> bool {
        let owner = &self.owners[index];
        owner.inbox.is_empty() && !owner.group.is_owned() && owner.live.load(Ordering::Acquire) == 0
    }

    /// One turn of what an owner has to do; how much that was.
    pub(super) fn turn(&self, index: usize, cx: &mut Ctx<Kd<C::P>>) -> usize {
        let owner = &self.owners[index];
        if index >= self.permanent {
            match owner.presence.begin() {
                Some(Tell::Own) => cx.count_own(MADE, 1),
                Some(_) => cx.count_own(REFUSED, 1),
                None => {}
            }
        }
        let Some(mut group) = owner.group.try_own() else {
            return 0;
        };
        let n = group.turn(self, cx);
        let _ = owner.publish(&self.p, &group);
        n
    }

    /// Whoever looks after `place` has found nothing to do there; whether it does not any more,
    /// as the place has no connection.
    pub(super) fn leave_place(&self, place: usize) -> bool {
        let owner = &self.owners[place];
        let idle = owner.group.try_own().is_some_and(|group| group.is_idle());
        idle && owner.presence.go(&self.p, || !owner.inbox.is_empty())
    }

    /// Whether a permanent thread looks after places, too.
    #[inline]
    pub(super) fn adopts(&self, worker: usize) -> bool {
        self.permanent < self.owners.len() && self.owners[worker].adopted.load(Ordering::SeqCst) > 0
    }

    /// Those.
    pub(super) fn adopted(&self, worker: usize) -> impl Iterator<Item = usize> {
        let places = self.permanent..self.owners.len();
        places.filter(move |place| {
            self.core(*place) == worker && self.owners[*place].presence.is_adopted()
        })
    }

    /// What is to be done for them.
    #[cold]
    pub(super) fn work_for_others(&self, worker: usize, cx: &mut Ctx<Kd<C::P>>) -> usize {
        let mut done = 0;
        for place in self.adopted(worker) {
            let n = self.turn(place, cx);
            if n == 0 && self.leave_place(place) {
                self.owners[worker].adopted.fetch_sub(1, Ordering::SeqCst);
            }
            done += n;
        }
        done
    }
}

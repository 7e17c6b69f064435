//! Frames that go to the thread that answers them: [`perimeter_stack::steer`].

use super::Instance;
use crate::Org;
use perimeter_base::Time;
use perimeter_stack::port::RxSide;
use perimeter_stack::steer::{ENOUGH, Given, Steering};
use perimeter_stack::{BURST, Count, Ctx};
use perimeter_sync::Lock;

impl<O: Org> Instance<O> {
    /// Hands those frames of the burst over that who serves other queues is to have, and wakes them. The
    /// calling thread serves `queues`; the burst came by interface `iface`.
    pub(super) fn steer(&self, cx: &mut Ctx<O::K>, rx: &mut RxSide, iface: u16, queues: &[u16]) {
        let (Some(steering), Some(ways)) = (&self.sh.steering, &mut rx.ways) else {
            return;
        };
        let before = cx.frames.len();
        let given = steering.sift(ways, iface, queues, &mut cx.frames);
        if given.is_empty() {
            return;
        }
        let gone = before - cx.frames.len();
        cx.count(Count::RxSteered, gone as u64);
        for t in given {
            // Who does not sleep is at work, or away.
            let awake = !self.sleepers[usize::from(t)].rouse(Time::ZERO);
            let away = awake && self.attended(t).is_none();
            if away || steering.waiting(t) > ENOUGH {
                cx.deferred.backlogs.push(t);
            }
        }
    }

    /// Takes a burst that others have left for who serves queue `q`, whose device the calling thread
    /// holds; how many frames that was.
    #[inline]
    pub(super) fn take_steered(&self, cx: &mut Ctx<O::K>, q: u16) -> usize {
        match &self.sh.steering {
            Some(steering) if self.waits(q) => self.take_waiting(cx, steering, q),
            _ => 0,
        }
    }

    fn take_waiting(&self, cx: &mut Ctx<O::K>, steering: &Steering<O::K>, q: u16) -> usize {
        let Some(iface) = steering.take(q, BURST, &mut cx.frames) else {
            return 0;
        };
        let n = cx.frames.len();
        self.process(cx, iface);
        steering.processed(q, n);
        n
    }

    /// Whether frames wait for who serves queue `q`.
    #[inline]
    pub(super) fn waits(&self, q: u16) -> bool {
        self.sh.steering.as_ref().is_some_and(|s| s.waiting(q) > 0)
    }

    /// Sees to backlogs that hold more than enough, or that nobody attends to: whoever filled them works
    /// for the others then, so that what comes does not wait for ever and takes no more memory.
    #[cold]
    pub(super) fn relieve(&self, cx: &mut Ctx<O::K>, backlogs: Given) {
        let Some(steering) = &self.sh.steering else {
            return;
        };
        for q in backlogs {
            let mut left = steering.waiting(q);
            while left > 0 {
                // One burst at a time, as who serves the queue may be at it, too.
                let _rx = self.sh.rx[usize::from(q)].queue.lock();
                match self.take_steered(cx, q) {
                    0 => break,
                    n => left = left.saturating_sub(n),
                }
            }
        }
    }
}

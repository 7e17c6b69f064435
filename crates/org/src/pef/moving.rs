//! TCP of a live connection moves to another squeue (SO_SETSQP).
//!
//! The connection's name, its link and what applications reach of it stay where they were made; its
//! TCP state departs from one squeue and arrives at another, as a message, at a moment at which
//! none of its packets is between perimeters. A packet or a call that comes to the squeue where TCP
//! was follows it: it is left where TCP has gone to, behind those that came before it. While the
//! state is a message, whoever lists connections does not see it.

use super::cell::Member;
use super::counted::MOVED;
use super::flows::Found;
use super::framework::{Env, Inner, Job, Msg, Pef};
use super::home::Home;
use crate::squeue::queue::{Entered, SqueueEntry};
use core::sync::atomic::Ordering;
use perimeter_stack::SockId;
use perimeter_sync::Platform;

/// Has `f` run under the squeue that has the connection, wherever it has gone meanwhile.
pub(super) fn at_home<P: Platform>(
    id: SockId,
    f: impl FnOnce(&Pef<P>, &mut Env<'_, P>, u16, &mut Inner<P>) + Send + 'static,
) -> Job<P> {
    Box::new(move |pef, env, q, inner| match pef.elsewhere(q, id) {
        Some(home) => pef.post(env, home, Msg::Job(at_home(id, f))),
        None => f(pef, env, q, inner),
    })
}

impl<P: Platform> Pef<P> {
    fn home_if_moved(&self, id: SockId) -> Option<&Home> {
        if !self.moved.load(Ordering::Acquire) {
            return None;
        }
        Some(&self.tables(id).links.get(id.slot())?.home)
    }

    /// The squeue that has the TCP state of a connection, or is about to.
    #[inline]
    pub(super) fn home(&self, id: SockId) -> u16 {
        self.home_if_moved(id).map_or(id.shard(), Home::at)
    }

    /// The squeue that has, or will have, what belongs to a flow.
    pub(super) fn squeue_of(&self, found: &Found) -> u16 {
        match found.soon {
            true => found.id.shard(),
            false => self.home(found.id),
        }
    }

    /// Where who is under squeue `here` must turn to for a connection, unless it is here. That may be
    /// `here`, if it is about to arrive.
    #[inline]
    pub(super) fn elsewhere(&self, here: u16, id: SockId) -> Option<u16> {
        let home = self.home_if_moved(id)?;
        (!home.is(here)).then(|| home.at())
    }

    /// Has a connection move, from outside any perimeter.
    pub(super) fn ask_to_move(&self, id: SockId) {
        let squeue = &self.squeues[usize::from(self.home(id))];
        if let Entered::Busy(door) = squeue.enter(SqueueEntry::Fill) {
            let _ = door.put(Msg::Job(moving(id)));
        }
    }

    /// The last packet of a connection that is to move has arrived.
    #[cold]
    pub(super) fn go_on_moving(&self, env: &mut Env<'_, P>, id: SockId) {
        self.post(env, self.home(id), Msg::Job(moving(id)));
    }

    /// Sends a connection's TCP state to the squeue that it is designated, if none of its packets is
    /// under way; else who brings the last of them calls again.
    fn depart(&self, env: &mut Env<'_, P>, (here, inner): (u16, &mut Inner<P>), id: SockId) {
        let Some(link) = self.tables(id).links.get(id.slot()) else {
            return;
        };
        let Some(to) = link.destination(id, here) else {
            return;
        };
        // A stack that stops visits each squeue once.
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Some(conn) = inner.shard.depart(id) else {
            return;
        };
        env.cx.count_own(MOVED, 1);
        self.post(env, to, Msg::Job(arrival(id, conn)));
        link.home.departed(here, to);
    }
}

/// Moves a connection, if it can be moved.
fn moving<P: Platform>(id: SockId) -> Job<P> {
    at_home(id, move |pef, env, here, inner| {
        pef.depart(env, (here, inner), id);
    })
}

/// A connection arrives.
fn arrival<P: Platform>(id: SockId, conn: Member<P>) -> Job<P> {
    Box::new(move |pef, env, here, inner| {
        inner.shard.arrive(&mut env.cx, conn);
        if let Some(link) = pef.tables(id).links.get(id.slot()) {
            link.home.arrived(here);
        }
        // It may have been designated yet another meanwhile.
        pef.depart(env, (here, inner), id);
    })
}

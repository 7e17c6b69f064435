//! Where connections live: three locks that stay where they are, whoever moves in.

use super::Kd;
use crate::place::{Part, no_rcv, no_snd};
use perimeter_stack::Conn;
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};

/// The parts of one connection, each behind its lock.
pub(super) struct Place<P: Platform> {
    pub(super) tcb: P::Lock<Option<TcbSide<Kd<P>>>>,
    pub(super) snd: P::Lock<Part<SndSide<Kd<P>>>>,
    pub(super) rcv: P::Lock<Part<RcvSide<Kd<P>>>>,
}

impl<P: Platform> Place<P> {
    pub(super) fn new(p: &P) -> Place<P> {
        Place {
            tcb: p.lock(LockClass::Connection, None),
            snd: p.lock(LockClass::Sndbuf, Part::closed(no_snd())),
            rcv: p.lock(LockClass::Rcvbuf, Part::closed(no_rcv())),
        }
    }

    /// A connection moves in. The table is held, so nobody else looks for this place; a late
    /// holder of its predecessor's name may still be at one of the locks.
    pub(super) fn fill(&self, conn: Conn<Kd<P>>) {
        let generation = conn.tcb.meta.id.generation();
        let mut tcb = self.tcb.lock();
        *self.snd.lock() = Part {
            generation,
            value: conn.snd,
        };
        *self.rcv.lock() = Part {
            generation,
            value: conn.rcv,
        };
        *tcb = Some(conn.tcb);
    }

    pub(super) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Connection, self.tcb.stats());
        add(LockClass::Sndbuf, self.snd.stats());
        add(LockClass::Rcvbuf, self.rcv.stats());
    }
}

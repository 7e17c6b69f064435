//! The locks of connections: they stay where they are, one connection after the other has them.

use crate::Kd;
use crate::outer::{Guard, Opened, Outer, no_rcv, no_snd};
use core::ops::{Deref, DerefMut};
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};

/// The locks of one connection, with what they guard.
pub(super) enum ConnLocks<P: Platform> {
    /// `locks=fine`: three locks.
    Fine(Fine<P>),
    /// `locks=coarse`: one.
    Coarse(P::Lock<Whole<P>>),
}

/// The parts of a connection, each behind its lock.
pub(super) struct Fine<P: Platform> {
    pub(super) tcb: P::Lock<Option<TcbSide<Kd<P>>>>,
    pub(super) snd: P::Lock<Outer<SndSide<Kd<P>>>>,
    pub(super) rcv: P::Lock<Outer<RcvSide<Kd<P>>>>,
}

/// The parts of a connection behind one lock.
pub(crate) struct Whole<P: Platform> {
    pub(super) tcb: Option<TcbSide<Kd<P>>>,
    pub(super) snd: Outer<SndSide<Kd<P>>>,
    pub(super) rcv: Outer<RcvSide<Kd<P>>>,
}

impl<P: Platform> ConnLocks<P> {
    pub(super) fn new(p: &P, coarse: bool) -> ConnLocks<P> {
        let (snd, rcv) = (Outer::closed(no_snd()), Outer::closed(no_rcv()));
        if coarse {
            let tcb = None;
            return ConnLocks::Coarse(p.lock(LockClass::Connection, Whole { tcb, snd, rcv }));
        }
        ConnLocks::Fine(Fine {
            tcb: p.lock(LockClass::Connection, None),
            snd: p.lock(LockClass::Sndbuf, snd),
            rcv: p.lock(LockClass::Rcvbuf, rcv),
        })
    }

    pub(super) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        match self {
            ConnLocks::Fine(f) => {
                add(LockClass::Connection, f.tcb.stats());
                add(LockClass::Sndbuf, f.snd.stats());
                add(LockClass::Rcvbuf, f.rcv.stats());
            }
            ConnLocks::Coarse(c) => add(LockClass::Connection, c.stats()),
        }
    }
}

/// A buffer's side: the send or the receive side.
pub(crate) trait Buffer<P: Platform>: Send + 'static {
    fn of(w: &Whole<P>) -> &Outer<Self>
    where
        Self: Sized;
    fn of_mut(w: &mut Whole<P>) -> &mut Outer<Self>
    where
        Self: Sized;
}

impl<P: Platform> Buffer<P> for SndSide<Kd<P>> {
    fn of(w: &Whole<P>) -> &Outer<Self> {
        &w.snd
    }

    fn of_mut(w: &mut Whole<P>) -> &mut Outer<Self> {
        &mut w.snd
    }
}

impl<P: Platform> Buffer<P> for RcvSide<Kd<P>> {
    fn of(w: &Whole<P>) -> &Outer<Self> {
        &w.rcv
    }

    fn of_mut(w: &mut Whole<P>) -> &mut Outer<Self> {
        &mut w.rcv
    }
}

/// Access to a buffer's side from outside: by its own lock or by the one lock that there is.
pub(crate) enum Reach<'a, P: Platform, T: Buffer<P>> {
    Near(Opened<'a, P, T>),
    Through(Guard<'a, P, Whole<P>>),
}

impl<'a, P: Platform, T: Buffer<P>> Reach<'a, P, T> {
    /// By the one lock, if `generation` may use the side.
    pub(super) fn through(
        whole: Guard<'a, P, Whole<P>>,
        generation: u32,
    ) -> Option<Reach<'a, P, T>> {
        (T::of(&whole).generation == generation).then_some(Reach::Through(whole))
    }
}

impl<P: Platform, T: Buffer<P>> Deref for Reach<'_, P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Reach::Near(part) => part,
            Reach::Through(whole) => &T::of(whole).value,
        }
    }
}

impl<P: Platform, T: Buffer<P>> DerefMut for Reach<'_, P, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Reach::Near(part) => part,
            Reach::Through(whole) => &mut T::of_mut(whole).value,
        }
    }
}

//! Which squeue has a connection's TCP state, and the places that such states left behind.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use perimeter_sync::{Lock, LockClass, Platform};

/// The squeue that has a connection's TCP state.
#[derive(Default)]
pub(super) struct Home {
    /// Its number; with [`UNDER_WAY`] the state is a message that waits there.
    squeue: AtomicU32,
    /// TCP is designated another.
    wanted: AtomicBool,
}

const UNDER_WAY: u32 = 1 << 16;

impl Home {
    /// A new connection was made under `squeue`.
    pub(super) fn begin(&self, squeue: u16) {
        self.squeue.store(squeue.into(), Ordering::Release);
        self.wanted.store(false, Ordering::Release);
    }

    /// Whether the state is there.
    pub(super) fn is(&self, squeue: u16) -> bool {
        self.squeue.load(Ordering::Acquire) == squeue.into()
    }

    /// Whether it is to move.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Says whether it is to move.
    pub(super) fn want(&self, yes: bool) {
        self.wanted.store(yes, Ordering::SeqCst);
    }

    /// Where it is, or is on its way to.
    pub(super) fn at(&self) -> u16 {
        self.squeue.load(Ordering::Acquire) as u16
    }

    /// It was left as a message with squeue `to`, and may have arrived already. Its packets go there
    /// only from now on, so that none of them is there before it.
    pub(super) fn departed(&self, from: u16, to: u16) {
        let (from, to) = (u32::from(from), u32::from(to) | UNDER_WAY);
        let (order, or) = (Ordering::AcqRel, Ordering::Acquire);
        // It fails when it has arrived.
        let _ = self.squeue.compare_exchange(from, to, order, or);
    }

    pub(super) fn arrived(&self, squeue: u16) {
        self.squeue.store(squeue.into(), Ordering::Release);
    }
}

/// Slots of one squeue whose connections had moved away and are over: nobody has them.
pub(super) struct Vacated<P: Platform> {
    some: AtomicBool,
    slots: P::Lock<Vec<u32>>,
}

impl<P: Platform> Vacated<P> {
    pub(super) fn new(p: &P) -> Vacated<P> {
        Vacated {
            some: AtomicBool::new(false),
            slots: p.lock(LockClass::Leaf, Vec::new()),
        }
    }

    pub(super) fn put(&self, slot: u32) {
        let mut slots = self.slots.lock();
        slots.push(slot);
        self.some.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Option<u32> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        let mut slots = self.slots.lock();
        let slot = slots.pop();
        self.some.store(!slots.is_empty(), Ordering::Release);
        slot
    }
}

//! The interrupt line of a receive queue.
//!
//! The consumer arms it with the time until which it will sleep anyway; a producer that places a
//! frame due earlier raises it, once. Arming and raising are a store–load handshake: each side
//! writes its own word (the ring's index, the armed time), passes a full fence, and reads the
//! other's. So either the producer sees the line armed or the consumer sees the frame.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass, Platform};

use crate::device::{RxStatus, Waker};

/// How interrupts are held back.
#[derive(Copy, Clone, Default)]
pub(crate) struct Moderation {
    /// How long after the first frame one comes, ns.
    pub(crate) delay: u64,
    /// The shortest time between two, ns.
    pub(crate) gap: u64,
}

pub(crate) struct Irq<P: Platform> {
    /// 0: not armed. Otherwise the consumer sleeps until this time at most. Written by the
    /// consumer (arming, disarming) and, from armed to 0 only, by the producer that raises.
    armed: AtomicU64,
    /// How interrupts are held back.
    moderation: Moderation,
    /// When an interrupt came last. Written by the consumer.
    came: AtomicU64,
    /// When the next comes, as the consumer saw it when it armed the line. Written by the consumer.
    coming: AtomicU64,
    /// False: pure polling, nobody is ever called.
    enabled: bool,
    waker: P::Lock<Option<Waker>>,
}

impl<P: Platform> Irq<P> {
    pub(crate) fn new(platform: &P, enabled: bool, moderation: Moderation) -> Irq<P> {
        Irq {
            armed: AtomicU64::new(0),
            moderation,
            came: AtomicU64::new(0),
            coming: AtomicU64::new(u64::MAX),
            enabled,
            waker: platform.lock(LockClass::Leaf, None),
        }
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        *self.waker.lock() = Some(waker);
    }

    pub(crate) fn disarm(&self) {
        if self.enabled {
            self.armed.store(0, Ordering::Relaxed);
        }
    }

    /// When the interrupt for a frame due at `due` comes.
    fn comes(&self, due: Time) -> Time {
        let Moderation { delay, gap } = self.moderation;
        let at = due.plus(delay);
        match gap {
            0 => at,
            _ => at.max(Time(self.came.load(Ordering::Relaxed)).plus(gap)),
        }
    }

    /// Arms, unless `next` (the earliest due time of what is under way) says that something is
    /// there. `next` is called again after arming.
    pub(crate) fn arm(&self, now: Time, mut next: impl FnMut() -> Time) -> RxStatus {
        let due = next();
        if due <= now {
            return RxStatus::Ready;
        }
        if !self.enabled {
            return RxStatus::Armed(due);
        }
        let coming = self.coming.load(Ordering::Relaxed);
        if coming <= now.0 {
            self.came.store(coming, Ordering::Relaxed);
        }
        let mut until = self.comes(due);
        self.armed.store(until.0.max(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let due = next();
        if due <= now {
            self.disarm();
            return RxStatus::Ready;
        }
        // Placed meanwhile, too early for its producer to see the line armed.
        until = until.min(self.comes(due));
        self.coming.store(until.0, Ordering::Relaxed);
        RxStatus::Armed(until)
    }

    /// Tells the consumer of a frame due at `due`, if it would sleep past that. The caller has
    /// placed the frame and holds no lock of class [`LockClass::Leaf`].
    pub(crate) fn raise(&self, due: Time) {
        if !self.enabled {
            return;
        }
        fence(Ordering::SeqCst);
        self.raise_fenced(due);
    }

    /// As [`Irq::raise`], after a sequentially consistent fence of the caller's.
    #[inline]
    pub(crate) fn raise_fenced(&self, due: Time) {
        let until = self.armed.load(Ordering::Relaxed);
        if until != 0 && self.comes(due).0 < until {
            self.call();
        }
    }

    #[cold]
    fn call(&self) {
        if self.armed.swap(0, Ordering::Relaxed) != 0 {
            let waker = self.waker.lock().clone();
            if let Some(waker) = waker {
                waker();
            }
        }
    }
}

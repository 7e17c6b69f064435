//! Threads that sleep until a device has something.

use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_sync::atomic::{AtomicU64, fence};
use perimeter_sync::{Event, Lock, LockClass, Platform};
use std::sync::Arc;

/// Nobody sleeps.
const NOBODY: u64 = 0;

/// Somebody may sleep for ever.
const UNKNOWN: u64 = u64::MAX;

/// Who sleeps until a receive queue has something, or a transmit queue at home there wants its
/// doorbell.
pub(super) struct Sleepers<P: Platform> {
    list: P::Lock<Vec<Arc<P::Event>>>,
    /// By when one of them is awake, ns; [`NOBODY`], [`UNKNOWN`].
    looks_at: AtomicU64,
}

impl<P: Platform> Sleepers<P> {
    pub(super) fn new(p: &P) -> Sleepers<P> {
        Sleepers {
            list: p.lock(LockClass::Leaf, Vec::new()),
            looks_at: AtomicU64::new(NOBODY),
        }
    }

    /// The calling thread is about to sleep on `event`. It looks at the devices after that.
    pub(super) fn add(&self, event: &Arc<P::Event>) {
        let mut list = self.list.lock();
        list.push(event.clone());
        self.looks_at.store(UNKNOWN, Ordering::SeqCst);
        drop(list);
        fence(Ordering::SeqCst);
    }

    /// The thread sleeps until then at the latest.
    pub(super) fn sleeps(&self, until: Time) {
        self.looks_at.store(until.0, Ordering::SeqCst);
    }

    /// The thread is awake.
    pub(super) fn remove(&self, event: &Arc<P::Event>) {
        let mut list = self.list.lock();
        list.retain(|e| !Arc::ptr_eq(e, event));
        let left = if list.is_empty() { NOBODY } else { UNKNOWN };
        self.looks_at.store(left, Ordering::SeqCst);
    }

    /// Wakes all; whether there were any.
    pub(super) fn wake_all(&self) -> bool {
        let woken = {
            let mut list = self.list.lock();
            self.looks_at.store(NOBODY, Ordering::SeqCst);
            core::mem::take(&mut *list)
        };
        for e in &woken {
            e.set();
        }
        !woken.is_empty()
    }

    /// Something is due at `at`, and can be seen by now. Wakes them if all sleep for longer. False:
    /// nobody sleeps.
    pub(super) fn rouse(&self, at: Time) -> bool {
        fence(Ordering::SeqCst);
        let looks_at = self.looks_at.load(Ordering::SeqCst);
        match looks_at {
            NOBODY => false,
            _ => at.0 >= looks_at || self.wake_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_sync::Native;

    #[test]
    fn who_sleeps_for_longer_is_woken() {
        let p = Native::default();
        let s = Sleepers::new(&p);
        let [a, b] = [(); 2].map(|()| Arc::new(p.event()));
        assert!(!s.rouse(Time(1)) && !s.wake_all());
        s.add(&a);
        assert!(s.rouse(Time(1)) && a.take(), "how long is not known yet");
        s.add(&a);
        s.sleeps(Time(5));
        assert!(s.rouse(Time(5)) && !a.take());
        s.add(&b);
        s.remove(&b);
        assert!(
            s.rouse(Time(5)) && a.take(),
            "how long is not known any more"
        );
        assert!(!s.rouse(Time(5)) && !b.take());
        s.remove(&a);
        assert!(!s.rouse(Time::ZERO));
    }
}

//! Which of the threads that sleep in a stack see to its timers.

use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_sync::atomic::{AtomicU64, fence};
use perimeter_sync::{Event, Lock, LockClass, Platform};
use std::sync::Arc;

/// How many threads see to the timers while they sleep. If all of 64 did, a timer would wake them
/// all, and each that sleeps or wakes would write what all others read.
const KEEPERS: usize = 4;

/// The place of who dozes, behind the keepers'.
const DOZER: usize = KEEPERS;

/// Nobody is at this place.
const FREE: u64 = u64::MAX;

/// Who has this place is about to sleep, and looks at the timers first.
const LOOKING: u64 = u64::MAX - 1;

/// The threads that sleep in a stack. The first [`KEEPERS`] of them are *keepers*: they sleep until
/// the next timer is due at the latest. The others sleep for their devices alone, as threads that are
/// awake see to timers before they sleep; where an application's threads serve the devices, and may
/// stay away, one dozes beside them.
///
/// No timer is missed. A keeper looks at the timers after it has taken its place, and who arms one
/// looks at the places after that: one of them sees the other. A timer that is due before any keeper
/// looks wakes one.
pub(super) struct Keepers<P: Platform> {
    /// When each looks, ns; [`FREE`], [`LOOKING`].
    looks_at: Places,
    /// Whom to wake.
    events: [P::Lock<Option<Arc<P::Event>>>; KEEPERS + 1],
}

/// On lines of their own: those who come while there are keepers enough only read them.
#[repr(align(128))]
struct Places([AtomicU64; KEEPERS + 1]);

/// A place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Keeper(usize);

impl<P: Platform> Keepers<P> {
    pub(super) fn new(p: &P) -> Keepers<P> {
        Keepers {
            looks_at: Places(core::array::from_fn(|_| AtomicU64::new(FREE))),
            events: core::array::from_fn(|_| p.lock(LockClass::Leaf, None)),
        }
    }

    /// The calling thread is about to sleep on `event`; its place, if it is to be a keeper. It looks at
    /// the timers after that.
    pub(super) fn join(&self, p: &P, event: &Arc<P::Event>) -> Option<Keeper> {
        (0..KEEPERS).find_map(|n| self.take(n, p, event))
    }

    /// The calling thread is about to doze on `event`, which only one does. It looks at the timers after
    /// that.
    pub(super) fn doze(&self, p: &P, event: &Arc<P::Event>) -> Option<Keeper> {
        self.take(DOZER, p, event)
    }

    fn take(&self, n: usize, p: &P, event: &Arc<P::Event>) -> Option<Keeper> {
        let place = &self.looks_at.0[n];
        if place.load(Ordering::Relaxed) != FREE {
            return None;
        }
        p.checkpoint();
        let (order, or) = (Ordering::SeqCst, Ordering::Relaxed);
        place.compare_exchange(FREE, LOOKING, order, or).ok()?;
        *self.events[n].lock() = Some(event.clone());
        fence(Ordering::SeqCst);
        Some(Keeper(n))
    }

    /// The keeper sleeps until then at the latest.
    pub(super) fn sleeps(&self, keeper: &Keeper, until: Time) {
        self.looks_at.0[keeper.0].store(until.0.min(LOOKING), Ordering::SeqCst);
    }

    /// The keeper is awake.
    pub(super) fn leave(&self, keeper: Keeper) {
        *self.events[keeper.0].lock() = None;
        self.looks_at.0[keeper.0].store(FREE, Ordering::SeqCst);
    }

    /// A timer was armed for `timer`, and can be seen by now. If no keeper looks by then, wakes the one
    /// that looks first; where there is none, who dozes. But nobody if the first of all timers is `due`
    /// later: then the armed one is left to the thread that owns it.
    pub(super) fn rouse(&self, timer: Time, due: impl FnOnce() -> Time) {
        fence(Ordering::SeqCst);
        let look = |n: usize| (self.looks_at.0[n].load(Ordering::SeqCst), n);
        let first = (0..KEEPERS).map(look).min().filter(|(at, _)| *at != FREE);
        let (at, n) = first.unwrap_or_else(|| look(DOZER));
        if timer.0 < at && at != FREE && due().0 < at {
            self.wake(n);
        }
    }

    /// Something is due at `at` that no keeper sees to. Wakes who dozes for longer.
    pub(super) fn rouse_dozer(&self, at: Time) {
        fence(Ordering::SeqCst);
        let looks_at = self.looks_at.0[DOZER].load(Ordering::SeqCst);
        if at.0 < looks_at && looks_at != FREE {
            self.wake(DOZER);
        }
    }

    #[cold]
    fn wake(&self, n: usize) {
        // Who has left meanwhile looks before it sleeps again.
        let event = self.events[n].lock().clone();
        if let Some(e) = event {
            e.set();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_sync::Native;

    #[test]
    fn a_timer_wakes_one_of_four_or_who_dozes() {
        let p = Native::default();
        let k = Keepers::new(&p);
        let events: Vec<_> = (0..6).map(|_| Arc::new(p.event())).collect();
        let woken = || -> Vec<usize> { (0..6).filter(|n| events[*n].take()).collect() };
        let arm = |at| {
            k.rouse(Time(at), || Time(at));
            woken()
        };
        // Nobody sleeps.
        assert_eq!(arm(1), []);
        let dozer = k.doze(&p, &events[5]).unwrap();
        k.sleeps(&dozer, Time(50));
        assert_eq!(arm(50), []);
        assert_eq!(arm(49), [5]);
        let mut keepers: Vec<_> = (0..4).map(|n| k.join(&p, &events[n]).unwrap()).collect();
        assert_eq!(k.join(&p, &events[4]), None, "there are enough");
        // All are looking.
        assert_eq!(arm(100).len(), 1);
        for (n, keeper) in keepers.iter().enumerate() {
            k.sleeps(keeper, Time(100 - n as u64));
        }
        assert_eq!(arm(97), []);
        assert_eq!(arm(96), [3]);
        // One that its own thread sees to.
        k.rouse(Time(1), || Time(97));
        assert_eq!(woken(), []);
        k.leave(keepers.pop().unwrap());
        assert_eq!(arm(97), [2]);
        assert!(k.join(&p, &events[4]).is_some(), "there is a place again");
        assert_eq!(arm(97), [2], "who looks is not sooner");
        k.sleeps(&Keeper(3), Time::NEVER);
        for keeper in keepers {
            k.leave(keeper);
        }
        assert_eq!(arm(1000), [4], "though it sleeps for ever");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use perimeter_sync::model::Model;

    /// Somebody arms a timer while a keeper wakes and sleeps again: in the end it sleeps no longer than
    /// until that is due, or has been woken.
    #[test]
    fn no_timer_is_missed() {
        loom::model(|| {
            let timer = Arc::new(AtomicU64::new(10));
            let k = Arc::new(Keepers::new(&Model));
            let event = Arc::new(Model.event());
            let keeper = k.join(&Model, &event).unwrap();
            k.sleeps(&keeper, Time(10));
            let (theirs, places) = (timer.clone(), k.clone());
            let other = thread::spawn(move || {
                theirs.store(5, Ordering::SeqCst);
                places.rouse(Time(5), || Time(theirs.load(Ordering::SeqCst)));
            });
            k.leave(keeper);
            event.take();
            let keeper = k.join(&Model, &event).unwrap();
            let until = timer.load(Ordering::SeqCst);
            k.sleeps(&keeper, Time(until));
            other.join().unwrap();
            assert!(until == 5 || event.take());
        });
    }
}

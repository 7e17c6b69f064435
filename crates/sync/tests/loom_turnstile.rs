//! All interleavings of the turnstile's lock: it excludes, orders what it protects, and wakes
//! everybody who sleeps. Loom reports a lost wake as a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_turnstile`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use perimeter_sync::native::turnstile::{Core, Host, Turn};

/// The kernel as the state machine may see it: a futex is a look at the word and a sleep, in one
/// step as seen by a wake.
#[derive(Default)]
struct Model {
    desk: Mutex<()>,
    futex: (Mutex<()>, Condvar),
}

impl Host for Model {
    type Spin = u8;

    /// One more look, then to sleep.
    fn spin(&self, spin: &mut u8, owner: u32) -> bool {
        assert!(owner != 0);
        *spin += 1;
        if *spin < 2 {
            thread::yield_now();
        }
        *spin < 2
    }

    fn at_desk<R>(&self, _: &Core, f: impl FnOnce() -> (Turn, R)) -> R {
        let _desk = self.desk.lock().unwrap();
        f().1
    }

    fn sleep(&self, word: &AtomicU32, expected: u32) {
        let guard = self.futex.0.lock().unwrap();
        // One sleep, not a loop: the state machine must bear returns without a reason.
        if word.load(Ordering::SeqCst) == expected {
            drop(self.futex.1.wait(guard).unwrap());
        }
    }

    fn wake_all(&self, _: &AtomicU32) {
        drop(self.futex.0.lock().unwrap());
        self.futex.1.notify_all();
    }
}

/// A lock and plain data that only it orders.
#[derive(Default)]
struct World {
    lock: Core,
    host: Model,
    data: UnsafeCell<usize>,
}

// SAFETY: loom checks every access to the cell; that is the test.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn turn(&self, me: u32) {
        if !self.lock.try_lock(me) {
            self.lock.lock_contended(&self.host, me);
        }
        // SAFETY: loom checks it.
        self.data.with_mut(|p| unsafe { *p += 1 });
        self.lock.unlock(&self.host, me);
    }
}

/// `threads` threads beside this one, each of which takes the lock `turns` times.
fn model(threads: u32, turns: usize, preemptions: usize) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(preemptions);
    b.check(move || {
        let w = Arc::new(World::default());
        let others: Vec<_> = (0..threads)
            .map(|i| {
                let w = w.clone();
                thread::spawn(move || (0..turns).for_each(|_| w.turn(2 + i)))
            })
            .collect();
        (0..turns).for_each(|_| w.turn(1));
        for t in others {
            t.join().unwrap();
        }
        // SAFETY: loom checks it.
        let sum = w.data.with(|p| unsafe { *p });
        assert_eq!(sum, (threads as usize + 1) * turns);
    });
}

#[test]
fn two_threads_meet_twice() {
    model(1, 2, 3);
}

#[test]
fn two_sleep_for_the_third() {
    model(2, 1, 2);
}

//! All interleavings of the event's states: `set` against `wait`, `wait_fds`, and the change
//! from one to the other. Loom reports a lost wake as a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_event`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use perimeter_sync::Woken;
use perimeter_sync::native::event::{Core, Kernel, Polled};

/// The kernel as the state machine may see it: a futex is a look at the word and a sleep, in one
/// step as seen by a wake; an eventfd is a token that stays.
#[derive(Default)]
struct Model {
    futex: (Mutex<()>, Condvar),
    poll: (Mutex<Ready>, Condvar),
    /// System calls by `set`.
    calls: AtomicUsize,
}

#[derive(Default)]
struct Ready {
    token: bool,
    fd: bool,
}

/// Whether the wait has a deadline, one that has passed by the time it sleeps.
type Passes = bool;

impl Kernel for Model {
    type Deadline = Passes;
    type Fds = ();

    fn sleep(&self, word: &AtomicU32, expected: u32, deadline: Passes) -> bool {
        let guard = self.futex.0.lock().unwrap();
        if deadline {
            return false;
        }
        // One sleep, not a loop: the state machine must bear returns without a reason.
        if word.load(Ordering::SeqCst) == expected {
            drop(self.futex.1.wait(guard).unwrap());
        }
        true
    }

    fn wake(&self, _: &AtomicU32) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        drop(self.futex.0.lock().unwrap());
        self.futex.1.notify_one();
    }

    fn poll(&self, (): &(), deadline: Passes) -> Polled {
        let mut ready = self.poll.0.lock().unwrap();
        while !ready.token && !ready.fd {
            if deadline {
                return Polled::Timeout;
            }
            ready = self.poll.1.wait(ready).unwrap();
        }
        ready.token = false;
        if ready.fd {
            Polled::Readable
        } else {
            Polled::Look
        }
    }

    fn signal(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.poll.0.lock().unwrap().token = true;
        self.poll.1.notify_one();
    }
}

/// An event and plain data that only it orders.
struct World {
    event: Core<Model>,
    data: UnsafeCell<usize>,
}

// SAFETY: loom checks every access to the cell; that is the test.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            event: Core::new(Model::default()),
            data: UnsafeCell::new(0),
        })
    }

    fn write_and_set(&self) {
        // SAFETY: loom checks it.
        self.data.with_mut(|p| unsafe { *p += 1 });
        self.event.set();
    }

    fn read(&self) -> usize {
        // SAFETY: loom checks it.
        self.data.with(|p| unsafe { *p })
    }
}

/// Exhaustive up to this many preemptions, beyond what the threads do by themselves.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(3);
    b.check(f);
}

#[test]
fn a_set_ends_a_wait_and_orders_data() {
    model(|| {
        let w = World::new();
        let setter = {
            let w = w.clone();
            thread::spawn(move || w.write_and_set())
        };
        assert!(w.event.wait(false));
        assert_eq!(w.read(), 1);
        assert!(!w.event.take(), "once");
        setter.join().unwrap();
    });
}

#[test]
fn a_set_ends_a_wait_for_descriptors() {
    model(|| {
        let w = World::new();
        let setter = {
            let w = w.clone();
            thread::spawn(move || w.write_and_set())
        };
        assert_eq!(w.event.wait_fds(&(), false), Woken::Set);
        assert_eq!(w.read(), 1);
        setter.join().unwrap();
    });
}

/// A setter that is slow between its swap and its system call meets the waiter's next wait, of
/// the same manner or the other: the late wake may end nothing, and the next set must.
#[test]
fn late_wakes_disturb_no_later_wait() {
    for (first_fds, second_fds) in [(false, false), (false, true), (true, false), (true, true)] {
        model(move || {
            let w = World::new();
            let wait = |fds: bool| {
                if fds {
                    assert_eq!(w.event.wait_fds(&(), false), Woken::Set);
                } else {
                    assert!(w.event.wait(false));
                }
            };
            let set = || {
                let w = w.clone();
                thread::spawn(move || w.event.set())
            };
            let first = set();
            wait(first_fds);
            let second = set();
            wait(second_fds);
            assert!(!w.event.take());
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}

/// A deadline and a set at once: the set is either seen by this wait or kept for the next.
#[test]
fn a_set_at_the_deadline_is_not_lost() {
    for fds in [false, true] {
        model(move || {
            let w = World::new();
            let setter = {
                let w = w.clone();
                thread::spawn(move || w.event.set())
            };
            let seen = if fds {
                match w.event.wait_fds(&(), true) {
                    Woken::Set => true,
                    Woken::Timeout => false,
                    Woken::Readable => panic!("no descriptor is"),
                }
            } else {
                w.event.wait(true)
            };
            setter.join().unwrap();
            assert_eq!(w.event.take(), !seen);
        });
    }
}

/// A descriptor becomes readable while the event is set: either may be told; the set is kept.
#[test]
fn a_set_beside_a_descriptor_is_not_lost() {
    model(|| {
        let w = World::new();
        let setter = {
            let w = w.clone();
            thread::spawn(move || w.event.set())
        };
        let device = {
            let w = w.clone();
            thread::spawn(move || {
                let kernel = w.event.kernel();
                kernel.poll.0.lock().unwrap().fd = true;
                kernel.poll.1.notify_one();
            })
        };
        let seen = w.event.wait_fds(&(), false) == Woken::Set;
        setter.join().unwrap();
        device.join().unwrap();
        assert_eq!(w.event.take(), !seen);
        // Whatever token is left, a wait for the next set is right.
        w.event.set();
        assert_eq!(w.event.wait_fds(&(), false), Woken::Set);
    });
}

/// A token left by a set that was consumed without it (the descriptor ended that wait) is not
/// taken for the next set: that one's data would be read before it is written.
#[test]
fn a_stale_token_is_not_a_set() {
    model(|| {
        let w = World::new();
        w.event.kernel().poll.0.lock().unwrap().fd = true;
        let early = {
            let w = w.clone();
            thread::spawn(move || w.event.set())
        };
        let seen = w.event.wait_fds(&(), false) == Woken::Set;
        early.join().unwrap();
        assert_eq!(w.event.take(), !seen);
        w.event.kernel().poll.0.lock().unwrap().fd = false;
        let late = {
            let w = w.clone();
            thread::spawn(move || w.write_and_set())
        };
        assert_eq!(w.event.wait_fds(&(), false), Woken::Set);
        assert_eq!(w.read(), 1);
        late.join().unwrap();
    });
}

#[test]
fn no_system_call_without_a_sleeper() {
    model(|| {
        let w = World::new();
        let other = {
            let w = w.clone();
            thread::spawn(move || w.event.set())
        };
        w.event.set();
        other.join().unwrap();
        assert!(w.event.wait(false));
        assert!(!w.event.wait(true));
        assert_eq!(w.event.kernel().calls.load(Ordering::Relaxed), 0);
    });
}

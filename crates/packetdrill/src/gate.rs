//! Which thread may run while the virtual clock stands still, and who is asleep.
//!
//! packetdrill has two threads: the *driver*, which reads the script and injects packets, and a
//! second one that makes the calls a script marks as blocking. When something wakes that second
//! thread, the clock must not move on before it has left the call *and* read the time, since
//! packetdrill compares that time with the script. So whoever moves the clock settles after
//! whatever may have woken somebody. That is the driver, except that the second thread waits for
//! the time of its next call by itself, while the driver waits for it.
//!
//! Everybody here sleeps in the kernel: packetdrill takes a call for blocked when `/proc` shows
//! its thread asleep, and it runs both under `SCHED_RR`.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use perimeter_base::Time;

/// Longest real time that anybody waits for a woken thread. Reached only if that thread dies
/// or leaves a call without reading the clock; the script then goes on, less exact.
const SETTLE_AT_MOST: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub struct Gate {
    driver: ThreadId,
    state: Mutex<State>,
    /// Sleepers wait here for a new generation.
    woken: Condvar,
    /// Who moves the clock waits here for quiet.
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    /// Counts what may have changed the outcome of a call.
    generation: u64,
    /// Calls of other threads that have begun and not ended.
    inside: usize,
    /// Those of them that sleep here.
    asleep: usize,
    /// When sleepers want to be woken at the latest.
    deadlines: Vec<Time>,
    /// Threads that left a call and haven't read the clock since.
    unstamped: Vec<ThreadId>,
}

/// A call of a thread other than the driver, from its start to its end.
pub struct Inside<'a> {
    gate: &'a Gate,
}

impl Gate {
    /// A gate whose driver is the calling thread.
    pub fn new() -> Gate {
        Gate {
            driver: thread::current().id(),
            state: Mutex::default(),
            woken: Condvar::new(),
            quiet: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread is the driver.
    pub fn is_driver(&self) -> bool {
        thread::current().id() == self.driver
    }

    /// Marks the start of a call; `None` for the driver, for whom nobody waits.
    pub fn enter(&self) -> Option<Inside<'_>> {
        if self.is_driver() {
            return None;
        }
        let mut state = self.lock();
        state.unstamped.retain(|&t| t != thread::current().id());
        state.inside += 1;
        self.quiet.notify_all();
        Some(Inside { gate: self })
    }

    /// The calling thread reads the clock: true if this is the first time after its call, for
    /// which the clock has been held.
    pub fn stamp(&self) -> bool {
        let mut state = self.lock();
        let Some(at) = (state.unstamped.iter()).position(|&t| t == thread::current().id()) else {
            return false;
        };
        state.unstamped.swap_remove(at);
        self.quiet.notify_all();
        true
    }

    /// To be read before trying what [`Gate::sleep`] then waits for.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Sleeps until something has happened since `seen` was read, `deadline` on the virtual clock
    /// included. For threads inside a call.
    pub fn sleep(&self, seen: u64, deadline: Option<Time>) {
        let mut state = self.lock();
        if state.generation != seen {
            return;
        }
        state.asleep += 1;
        state.deadlines.extend(deadline);
        self.quiet.notify_all();
        // Who changes the generation also sets `asleep` back: from that moment this thread counts
        // as running, although it hasn't got the processor yet.
        while state.generation == seen {
            state = self
                .woken
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Something may have changed: wakes all sleepers.
    pub fn stir(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.asleep = 0;
        state.deadlines.clear();
        drop(state);
        self.woken.notify_all();
    }

    /// The earliest time at which a sleeper wants to be woken.
    pub fn next_deadline(&self) -> Option<Time> {
        self.lock().deadlines.iter().min().copied()
    }

    /// Waits until all calls sleep or have ended with the clock read; not for use inside one.
    /// `asleep_elsewhere` of them sleep inside the backend.
    pub fn settle(&self, asleep_elsewhere: usize) {
        let until = Instant::now() + SETTLE_AT_MOST;
        let mut state = self.lock();
        while state.inside > state.asleep + asleep_elsewhere || !state.unstamped.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.unstamped.clear();
                return;
            }
            state = self
                .quiet
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Gives another thread `real` time to enter a call, and says whether one is inside.
    pub fn await_entry(&self, real: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .quiet
            .wait_timeout_while(state, real, |state| state.inside == 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.inside > 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.inside -= 1;
        state.unstamped.push(thread::current().id());
        self.gate.quiet.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn settling_waits_for_the_clock_to_be_read() {
        let gate = Arc::new(Gate::new());
        let stamped = Arc::new(AtomicBool::new(false));
        let (tx, rx) = std::sync::mpsc::channel();
        let caller = {
            let (gate, stamped) = (gate.clone(), stamped.clone());
            thread::spawn(move || {
                let inside = gate.enter();
                let seen = gate.generation();
                tx.send(()).unwrap();
                gate.sleep(seen, Some(Time(7)));
                drop(inside);
                thread::sleep(Duration::from_millis(30));
                stamped.store(true, Ordering::SeqCst);
                assert!(gate.stamp());
            })
        };
        rx.recv().unwrap();
        gate.settle(0);
        assert_eq!(gate.next_deadline(), Some(Time(7)));
        assert!(!stamped.load(Ordering::SeqCst));
        gate.stir();
        gate.settle(0);
        assert!(stamped.load(Ordering::SeqCst));
        assert_eq!(gate.next_deadline(), None);
        caller.join().unwrap();
    }

    #[test]
    fn a_change_between_the_try_and_the_sleep_is_not_lost() {
        let gate = Gate::new();
        let seen = gate.generation();
        gate.stir();
        gate.sleep(seen, None);
    }
}

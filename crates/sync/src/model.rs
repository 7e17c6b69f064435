//! The platform of the loom models: the code of `stack` and `org` runs on it as it is, and loom
//! goes through all interleavings of its threads.
//!
//! A lock is loom's, an event a flag under one. Time stands still: a wait with a deadline returns
//! at once if nothing is set, which is one of the ways that it may go. There is no lane, so
//! nothing that is kept for each thread can be part of a model.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex, MutexGuard};
use perimeter_base::Time;
use std::os::fd::RawFd;

use crate::class::{LockClass, LockStats, Touched, Work};
use crate::platform::{Event, Lock, Platform, Thread, Woken};
use crate::policy::{Lending, Priority};

/// The handle.
#[derive(Copy, Clone, Debug, Default)]
pub struct Model;

/// A lock.
pub struct ModelLock<T> {
    value: Mutex<T>,
    class: LockClass,
    /// How often it was asked for its counts: others may come in between while it is.
    asked: AtomicUsize,
}

impl<T: Send + 'static> Lock<T> for ModelLock<T> {
    type Guard<'a> = MutexGuard<'a, T>;

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().expect("no thread of a model panics")
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Loom looks for interleavings where threads touch the same thing: so it tries this one
        // also while another thread is in `stats`.
        let _ = self.asked.load(Ordering::Relaxed);
        self.value.try_lock().ok()
    }

    fn stats(&self) -> LockStats {
        let _held = self.lock();
        self.asked.fetch_add(1, Ordering::Relaxed);
        LockStats::default()
    }

    fn class(&self) -> LockClass {
        self.class
    }
}

/// An event.
pub struct ModelEvent {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Event for ModelEvent {
    fn set(&self) {
        *self.set.lock().expect("no thread of a model panics") = true;
        self.changed.notify_one();
    }

    fn wait(&self, deadline: Time) -> bool {
        let mut set = self.set.lock().expect("no thread of a model panics");
        while !*set && deadline == Time::NEVER {
            set = self.changed.wait(set).expect("no thread of a model panics");
        }
        core::mem::take(&mut set)
    }

    fn take(&self) -> bool {
        core::mem::take(&mut self.set.lock().expect("no thread of a model panics"))
    }

    fn wait_fds(&self, _: &[RawFd], deadline: Time) -> Woken {
        if self.wait(deadline) {
            Woken::Set
        } else {
            Woken::Timeout
        }
    }
}

/// A started thread.
pub struct ModelThread(loom::thread::JoinHandle<()>);

impl Thread for ModelThread {
    fn join(self) -> Result<(), String> {
        self.0.join().map_err(|_| "it panicked".to_string())
    }
}

impl Platform for Model {
    type Lock<T: Send + 'static> = ModelLock<T>;
    type Event = ModelEvent;
    type Thread = ModelThread;
    type Tag = ();

    fn now(&self) -> Time {
        Time::ZERO
    }

    fn charge(&self, _: Work, _: u64) {}

    fn touch(&self, (): &(), _: Touched, _: usize, _: bool) {}

    fn arrived(&self, (): &(), (): &(), _: usize) {}

    fn cores(&self) -> usize {
        2
    }

    fn core(&self) -> usize {
        0
    }

    /// # Panics
    /// Always: loom's threads have no numbers that are given out again as those of the machine.
    fn lane(&self) -> usize {
        panic!("models have no lanes")
    }

    fn lock<T: Send + 'static>(&self, class: LockClass, value: T) -> ModelLock<T> {
        ModelLock {
            value: Mutex::new(value),
            class,
            asked: AtomicUsize::new(0),
        }
    }

    fn event(&self) -> ModelEvent {
        ModelEvent {
            set: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn spawn_at(
        &self,
        _: Priority,
        _: &str,
        _: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> ModelThread {
        ModelThread(loom::thread::spawn(body))
    }

    fn lending(&self) -> Lending {
        Lending::None
    }

    fn yield_now(&self) {
        loom::thread::yield_now();
    }

    fn pause(&self) {
        loom::thread::yield_now();
    }

    fn sleep_until(&self, _: Time) {
        loom::thread::yield_now();
    }

    fn secret(&self) -> [u64; 2] {
        [0; 2]
    }
}

/// Whether some interleaving of `f` fails: for models with a bug planted.
pub fn fails(preemptions: usize, f: impl Fn() + Sync + Send + 'static) -> bool {
    // A thread of its own: a model that has failed leaves loom's state behind.
    let run = std::thread::spawn(move || check(preemptions, f));
    run.join().is_err()
}

/// Goes through all interleavings of `f` with up to `preemptions` preemptions, beyond what the
/// threads do by themselves.
///
/// # Panics
/// If one fails.
pub fn holds(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    check(preemptions, f);
}

fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(preemptions);
    b.check(f);
}

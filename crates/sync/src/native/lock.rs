//! The machine's lock: parking_lot's, with counts inside.

use core::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use core::panic::Location;

use parking_lot::{Mutex, MutexGuard};

use super::clock::Ticks;
use crate::class::{LockClass, LockStats};
#[cfg(debug_assertions)]
use crate::order;
use crate::platform::Lock;

/// Every how many acquisitions the hold time is measured, on average.
const SAMPLE: u32 = 64;

/// A counted lock. On its own cache lines: locks often stand in arrays, and a false neighbour
/// would be measured as contention.
#[derive(Debug)]
#[repr(align(64))]
pub struct NativeLock<T> {
    inner: Mutex<Inner<T>>,
    class: LockClass,
}

/// Written under the lock only, so plain integers do.
#[derive(Debug)]
struct Counts {
    acquisitions: u64,
    contended: u64,
    wait_ticks: u64,
    /// Sum over the sampled acquisitions.
    hold_ticks: u64,
    sampled: u64,
    /// Acquisitions until the next sample.
    until_sample: u32,
    /// State of the generator of sampling distances.
    random: u32,
}

#[derive(Debug)]
struct Inner<T> {
    counts: Counts,
    value: T,
}

/// Access to what a [`NativeLock`] protects.
#[derive(Debug)]
pub struct NativeGuard<'a, T> {
    inner: MutexGuard<'a, Inner<T>>,
    /// The counter at the acquisition if this one is sampled, else 0.
    since: u64,
    #[cfg(debug_assertions)]
    class: LockClass,
}

impl Counts {
    const fn new() -> Counts {
        Counts {
            acquisitions: 0,
            contended: 0,
            wait_ticks: 0,
            hold_ticks: 0,
            sampled: 0,
            until_sample: 1,
            random: 0x9e37_79b9,
        }
    }

    /// Counts one acquisition; the counter's value if it is to be sampled, else 0.
    #[inline(always)]
    fn acquired(&mut self) -> u64 {
        self.acquisitions += 1;
        self.until_sample -= 1;
        if self.until_sample == 0 {
            return self.start_sample();
        }
        0
    }

    /// Draws the distance to the next sample from 1..=127: a fixed one would beat with the
    /// protocol's own rhythm (so many acquisitions a segment) and always see the same of them.
    #[cold]
    fn start_sample(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.until_sample = 1 + self.random % (2 * SAMPLE - 1);
        Ticks::get().raw().max(1)
    }

    fn stats(&self) -> LockStats {
        let ticks = Ticks::get();
        let hold = u128::from(ticks.to_ns(self.hold_ticks)) * u128::from(self.acquisitions)
            / u128::from(self.sampled.max(1));
        LockStats {
            acquisitions: self.acquisitions,
            contended: self.contended,
            wait_ns: ticks.to_ns(self.wait_ticks),
            hold_ns: u64::try_from(hold).unwrap_or(u64::MAX),
        }
    }
}

impl<T: Send + 'static> NativeLock<T> {
    /// A lock around `value`.
    pub const fn new(class: LockClass, value: T) -> NativeLock<T> {
        NativeLock {
            inner: Mutex::new(Inner {
                counts: Counts::new(),
                value,
            }),
            class,
        }
    }

    #[cold]
    fn lock_contended(&self) -> NativeGuard<'_, T> {
        let ticks = Ticks::get();
        let start = ticks.raw();
        let mut inner = self.inner.lock();
        inner.counts.contended += 1;
        inner.counts.wait_ticks += ticks.between(start, ticks.raw());
        self.guard(inner)
    }

    #[inline(always)]
    fn guard<'a>(&'a self, mut inner: MutexGuard<'a, Inner<T>>) -> NativeGuard<'a, T> {
        let since = inner.counts.acquired();
        NativeGuard {
            inner,
            since,
            #[cfg(debug_assertions)]
            class: self.class,
        }
    }
}

impl<T: Send + 'static> Lock<T> for NativeLock<T> {
    type Guard<'a> = NativeGuard<'a, T>;

    /// # Panics
    /// In debug builds, if the class is out of order.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn lock(&self) -> NativeGuard<'_, T> {
        #[cfg(debug_assertions)]
        order::check(self.class, Location::caller());
        let guard = match self.inner.try_lock() {
            Some(inner) => self.guard(inner),
            None => self.lock_contended(),
        };
        #[cfg(debug_assertions)]
        order::taken(self.class, Location::caller());
        guard
    }

    /// # Panics
    /// In debug builds, if the class is out of order.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn try_lock(&self) -> Option<NativeGuard<'_, T>> {
        #[cfg(debug_assertions)]
        order::check(self.class, Location::caller());
        let guard = self.guard(self.inner.try_lock()?);
        #[cfg(debug_assertions)]
        order::taken(self.class, Location::caller());
        Some(guard)
    }

    /// # Panics
    /// In debug builds, if the class is out of order.
    #[cfg_attr(debug_assertions, track_caller)]
    fn stats(&self) -> LockStats {
        #[cfg(debug_assertions)]
        order::check(self.class, Location::caller());
        self.inner.lock().counts.stats()
    }

    fn class(&self) -> LockClass {
        self.class
    }
}

impl<T> Deref for NativeGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner.value
    }
}

impl<T> DerefMut for NativeGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner.value
    }
}

impl<T> NativeGuard<'_, T> {
    #[cold]
    fn end_sample(&mut self) {
        let ticks = Ticks::get();
        let held = ticks.between(self.since, ticks.raw());
        let counts = &mut self.inner.counts;
        counts.hold_ticks += held;
        counts.sampled += 1;
    }
}

impl<T> Drop for NativeGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.since != 0 {
            self.end_sample();
        }
        // The field releases the lock after this.
        #[cfg(debug_assertions)]
        order::released(self.class);
    }
}

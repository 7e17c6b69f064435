//! The machine's lock: parking_lot's, or the turnstile's of 2006, with counts inside.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use core::panic::Location;

use parking_lot::RawMutex;
use parking_lot::lock_api::{GuardNoSend, RawMutex as _};

use super::clock::Ticks;
use super::meter::Which;
use super::turnstile;
use crate::class::{LockClass, LockStats};
#[cfg(debug_assertions)]
use crate::order;
use crate::platform::Lock;
use crate::policy::LockPolicy;

/// Every how many acquisitions the hold time is measured, on average.
const SAMPLE: u32 = 64;

/// A counted lock. On its own cache lines: locks often stand in arrays, and a false neighbour
/// would be measured as contention.
#[repr(align(64))]
pub struct NativeLock<T> {
    raw: Raw,
    class: LockClass,
    profiled: Which,
    inner: UnsafeCell<Inner<T>>,
}

// SAFETY: `inner` is reached under the raw lock only.
unsafe impl<T: Send> Send for NativeLock<T> {}
// SAFETY: as above; the value goes from thread to thread, hence `T: Send`.
unsafe impl<T: Send> Sync for NativeLock<T> {}

/// What excludes.
enum Raw {
    Modern(RawMutex),
    Turnstile(turnstile::Core),
}

impl Raw {
    #[inline(always)]
    fn try_lock(&self) -> bool {
        match self {
            Raw::Modern(m) => m.try_lock().is_some(),
            Raw::Turnstile(t) => t.try_lock(here().me()),
        }
    }

    fn lock(&self) {
        match self {
            Raw::Modern(m) => drop(m.lock()),
            Raw::Turnstile(t) => t.lock_contended(&here(), here().me()),
        }
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread has it.
    #[inline(always)]
    unsafe fn unlock(&self) {
        match self {
            // SAFETY: by the contract; the state of an acquisition is a mark without content.
            Raw::Modern(m) => unsafe { m.unlock(GuardNoSend::new()) },
            Raw::Turnstile(t) => t.unlock(&here(), here().me()),
        }
    }
}

#[inline]
fn here() -> turnstile::Linux {
    turnstile::Linux(crate::lane::current())
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
pub struct NativeGuard<'a, T> {
    lock: &'a NativeLock<T>,
    /// The counter at the acquisition if this one is sampled, else 0.
    since: u64,
    /// Released by the thread that took it.
    here: PhantomData<*const ()>,
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
    fn acquired(&mut self, profiled: Which) -> u64 {
        self.acquisitions += 1;
        self.until_sample -= 1;
        if self.until_sample == 0 {
            return self.start_sample(profiled);
        }
        0
    }

    /// Draws the distance to the next sample from 1..=127: a fixed one would beat with the
    /// protocol's own rhythm (so many acquisitions a segment) and always see the same of them.
    /// Of a profiled lock every acquisition is a sample.
    #[cold]
    fn start_sample(&mut self, profiled: Which) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.until_sample = match profiled.any() {
            true => 1,
            false => 1 + self.random % (2 * SAMPLE - 1),
        };
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
    pub(super) fn new(
        policy: LockPolicy,
        profiled: Which,
        class: LockClass,
        value: T,
    ) -> NativeLock<T> {
        NativeLock {
            raw: match policy {
                LockPolicy::Modern => Raw::Modern(RawMutex::INIT),
                LockPolicy::Turnstile => Raw::Turnstile(turnstile::Core::default()),
            },
            class,
            profiled,
            inner: UnsafeCell::new(Inner {
                counts: Counts::new(),
                value,
            }),
        }
    }

    #[cold]
    fn lock_contended(&self) -> NativeGuard<'_, T> {
        let ticks = Ticks::get();
        let start = ticks.raw();
        self.raw.lock();
        let waited = ticks.between(start, ticks.raw());
        // SAFETY: the lock has just been taken, and no guard made yet.
        let counts = unsafe { &mut (*self.inner.get()).counts };
        counts.contended += 1;
        counts.wait_ticks += waited;
        if let Some(m) = self.profiled.meter() {
            m.waited(self.class, ticks.to_ns(waited));
        }
        self.guard()
    }

    /// The guard of the lock that has just been taken.
    #[inline(always)]
    fn guard(&self) -> NativeGuard<'_, T> {
        // SAFETY: the lock has just been taken, and no guard made yet.
        let since = unsafe { (*self.inner.get()).counts.acquired(self.profiled) };
        NativeGuard {
            lock: self,
            since,
            here: PhantomData,
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
        let guard = match self.raw.try_lock() {
            true => self.guard(),
            false => self.lock_contended(),
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
        let guard = self.raw.try_lock().then(|| self.guard())?;
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
        self.raw.lock();
        // SAFETY: under the lock.
        let stats = unsafe { (*self.inner.get()).counts.stats() };
        // SAFETY: taken above.
        unsafe { self.raw.unlock() };
        stats
    }

    fn class(&self) -> LockClass {
        self.class
    }
}

impl<T> Deref for NativeGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: under the lock, of which this is the only guard.
        unsafe { &(*self.lock.inner.get()).value }
    }
}

impl<T> DerefMut for NativeGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut (*self.lock.inner.get()).value }
    }
}

impl<T> NativeGuard<'_, T> {
    #[inline(always)]
    fn release(&mut self) {
        #[cfg(debug_assertions)]
        order::released(self.lock.class);
        // SAFETY: the guard was made by this thread when it took the lock, and ends here.
        unsafe { self.lock.raw.unlock() };
    }

    /// Ends a sampled acquisition. What goes into no count under the lock is noted when it is
    /// free again, so that nobody waits for that.
    #[cold]
    fn release_sampled(&mut self) {
        let ticks = Ticks::get();
        let held = ticks.between(self.since, ticks.raw());
        // SAFETY: under the lock, of which this is the only guard, mutably borrowed.
        let counts = unsafe { &mut (*self.lock.inner.get()).counts };
        counts.hold_ticks += held;
        counts.sampled += 1;
        let (class, profiled) = (self.lock.class, self.lock.profiled);
        self.release();
        if let Some(m) = profiled.meter() {
            m.held(class, ticks.to_ns(held));
        }
    }
}

impl<T> Drop for NativeGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.since {
            0 => self.release(),
            _ => self.release_sampled(),
        }
    }
}

//! Atomics and cells that the loom models can replace.

pub(crate) use atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Atomics that the models replace by loom's: for what threads share in the crates above.
#[cfg(loom)]
pub mod atomic {
    pub use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Atomics that the models replace by loom's: for what threads share in the crates above.
#[cfg(not(loom))]
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// A mutex that the models replace by loom's: for short sections that hold nothing of a perimeter
/// and in which nothing is called.
pub mod mutex {
    #[cfg(loom)]
    pub use loom::sync::Mutex;
    #[cfg(not(loom))]
    pub use std::sync::Mutex;
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// The interface of loom's cell over the real one.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A place that is filled once, and read by any thread from then on.
#[cfg(not(loom))]
pub(crate) use std::sync::OnceLock as Once;

/// The same for models: what `OnceLock` promises of memory order, where nobody waits and one
/// thread at a time, which other means see to, fills it.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Once<T> {
    filled: AtomicUsize,
    value: core::cell::UnsafeCell<Option<T>>,
    /// Stands for `value`: loom checks that whoever reads it has seen it filled.
    access: UnsafeCell<()>,
}

// SAFETY: as `OnceLock`: `value` is written before `filled` says so and read only after that.
#[cfg(loom)]
unsafe impl<T: Send + Sync> Sync for Once<T> {}

#[cfg(loom)]
impl<T> Once<T> {
    pub(crate) fn new() -> Once<T> {
        Once {
            filled: AtomicUsize::new(0),
            value: core::cell::UnsafeCell::new(None),
            access: UnsafeCell::new(()),
        }
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        if self.filled.load(Ordering::Acquire) != 0 {
            return Err(value);
        }
        self.access.with_mut(|_| {
            // SAFETY: nobody reads it before `filled` is stored, and one thread fills it: loom
            // fails the model otherwise, by `access`.
            unsafe { *self.value.get() = Some(value) };
        });
        self.filled.store(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        if self.filled.load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: filled, and never written again.
        self.access
            .with(|_| unsafe { (*self.value.get()).as_ref() })
    }
}

/// A lock that is no scheduling point of virtual cores: for what is rare.
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no model panics in there")
    }
}

/// Waits a little for another thread that is in the middle of something short: pauses at first,
/// and gives the core away when that does not help (it may be preempted there).
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(0)
    }

    #[cfg(not(loom))]
    #[cold]
    pub(crate) fn wait(&mut self) {
        if self.0 < 6 {
            for _ in 0..1 << self.0 {
                core::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }

    #[cfg(loom)]
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        loom::thread::yield_now();
    }
}

/// Aligned to 128 bytes: a cache line, and its neighbour that x86-64 prefetches with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

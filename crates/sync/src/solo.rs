//! Locks for organizations of one thread: a flag that only its owner may touch.
//!
//! `up` has no second thread, so its locks need no atomic read-modify-write; but a library can't
//! trust its caller to keep to one thread. Each lock is bound to the lane that uses it first, and
//! compares lanes at every use: one load relative to the thread pointer and one comparison.

use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use core::panic::Location;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::class::{LockClass, LockStats};
use crate::platform::{Lock, Locks, Platform, Solo};

/// This file, for [`sources`](crate::sources).
pub(crate) const FILE: &str = file!();

/// An organization of one thread was entered from another thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WrongThreadError {
    /// The owner's lane.
    pub owner: usize,
    /// The caller's lane.
    pub caller: usize,
}

impl core::fmt::Display for WrongThreadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "this stack belongs to one thread (lane {}) and was called from another (lane {}); \
             an organization with locks, such as `up:shared`, takes calls from all",
            self.owner, self.caller
        )
    }
}

impl std::error::Error for WrongThreadError {}

const UNBOUND: usize = usize::MAX;

/// The thread that something belongs to: the first that enters.
#[derive(Debug)]
struct Owner(AtomicUsize);

impl Owner {
    const fn new() -> Owner {
        Owner(AtomicUsize::new(UNBOUND))
    }

    /// Whether the calling thread, of `lane`, is the owner; makes it so if there is none.
    #[inline(always)]
    fn check(&self, lane: usize) -> Result<(), WrongThreadError> {
        // Relaxed: the value can equal the caller's lane only if this thread stored it, or one
        // that had the lane before and whose actions happen before (`Platform::lane`).
        if self.0.load(Ordering::Relaxed) == lane {
            return Ok(());
        }
        self.bind(lane)
    }

    /// The first use, or a stranger's.
    #[cold]
    #[inline(never)]
    fn bind(&self, lane: usize) -> Result<(), WrongThreadError> {
        match self
            .0
            .compare_exchange(UNBOUND, lane, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(owner) if owner == lane => Ok(()),
            Err(owner) => Err(WrongThreadError {
                owner,
                caller: lane,
            }),
        }
    }
}

/// Keeps other threads than the first out, with an error rather than [`SoloLock`]'s panic: what
/// a facade asks before it enters an organization of one thread. The owner's number is no other
/// thread's while the gate is there, so that whoever comes when the owner has ended is a stranger,
/// too.
#[derive(Debug)]
pub struct OwnerGate<P: Platform> {
    platform: P,
    owner: Owner,
}

impl<P: Platform> OwnerGate<P> {
    /// A gate without owner.
    pub fn new(platform: P) -> Self {
        OwnerGate {
            platform,
            owner: Owner::new(),
        }
    }

    /// Makes the calling thread the owner if there is none yet.
    ///
    /// # Errors
    /// [`WrongThreadError`] if another thread is, or was.
    #[inline]
    pub fn enter(&self) -> Result<(), WrongThreadError> {
        let lane = self.platform.lane();
        if self.owner.0.load(Ordering::Relaxed) == lane {
            return Ok(());
        }
        self.bind(lane)
    }

    #[cold]
    fn bind(&self, lane: usize) -> Result<(), WrongThreadError> {
        // Before it is the owner's, as it is given back with the gate if it is.
        self.platform.keep_lane();
        let bound = self.owner.bind(lane);
        if bound.is_err() {
            self.platform.release_lane(lane);
        }
        bound
    }

    /// Whether the calling thread is the owner; never makes it so.
    pub fn is_owner(&self) -> bool {
        self.owner.0.load(Ordering::Relaxed) == self.platform.lane()
    }

    /// The lane of the owner, if there is one.
    pub fn owner(&self) -> Option<usize> {
        let lane = self.owner.0.load(Ordering::Relaxed);
        (lane != UNBOUND).then_some(lane)
    }

    /// Whether a thread has entered already.
    pub fn is_bound(&self) -> bool {
        self.owner.0.load(Ordering::Relaxed) != UNBOUND
    }
}

impl<P: Platform> Drop for OwnerGate<P> {
    fn drop(&mut self) {
        if let Some(lane) = self.owner() {
            self.platform.release_lane(lane);
        }
    }
}

/// A lock that only one thread may use: the first that does.
///
/// # Panics
/// Taking it from another thread, and taking it again while it is held: with one thread that
/// would wait for ever.
#[derive(Debug)]
pub struct SoloLock<P, T> {
    platform: P,
    owner: Owner,
    /// Touched by the owner only.
    held: Cell<bool>,
    /// Written by the owner only, with load and store; read by anybody.
    acquisitions: AtomicU64,
    class: LockClass,
    value: UnsafeCell<T>,
}

// SAFETY: `held` and `value` are touched only after `owner.check`, that is by the one live
// thread whose lane is stored. `Platform` is sealed, and its lanes are unique among live threads
// with an edge from a number's old thread to its next one; so all touches are ordered. The value
// may be made, used and dropped by different threads, hence `T: Send`; `&T` goes out through the
// guard only, which can't leave its thread.
unsafe impl<P: Platform, T: Send> Sync for SoloLock<P, T> {}

/// Access to what a [`SoloLock`] protects. Stays on its thread.
#[derive(Debug)]
pub struct SoloGuard<'a, P: Platform, T> {
    lock: &'a SoloLock<P, T>,
    /// Neither `Send` nor `Sync`: dropped on another thread it would clear the flag there.
    here: PhantomData<*const ()>,
}

impl<P: Platform, T: Send + 'static> SoloLock<P, T> {
    /// A lock around `value`, without owner.
    pub fn new(platform: P, class: LockClass, value: T) -> Self {
        SoloLock {
            platform,
            owner: Owner::new(),
            held: Cell::new(false),
            acquisitions: AtomicU64::new(0),
            class,
            value: UnsafeCell::new(value),
        }
    }

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn acquire(&self) -> Option<SoloGuard<'_, P, T>> {
        if let Err(e) = self.owner.check(self.platform.lane()) {
            stranger(self.class, e);
        }
        if self.held.get() {
            return None;
        }
        #[cfg(debug_assertions)]
        self.platform.note_lock(self.class, Location::caller());
        self.held.set(true);
        let n = self.acquisitions.load(Ordering::Relaxed);
        self.acquisitions.store(n + 1, Ordering::Relaxed);
        Some(SoloGuard {
            lock: self,
            here: PhantomData,
        })
    }
}

#[cold]
#[inline(never)]
fn stranger(class: LockClass, e: WrongThreadError) -> ! {
    panic!("`{}`: {e}", class.name());
}

#[cold]
#[inline(never)]
#[track_caller]
fn reentered(class: LockClass) -> ! {
    panic!(
        "`{}` is already held by this, its only thread",
        class.name()
    );
}

impl<P: Platform, T: Send + 'static> Lock<T> for SoloLock<P, T> {
    type Guard<'a> = SoloGuard<'a, P, T>;

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn lock(&self) -> SoloGuard<'_, P, T> {
        match self.acquire() {
            Some(guard) => guard,
            None => reentered(self.class),
        }
    }

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn try_lock(&self) -> Option<SoloGuard<'_, P, T>> {
        self.acquire()
    }

    /// Acquisitions only: one thread does not wait, and without a clock read hold times are not
    /// known. May be called from any thread.
    fn stats(&self) -> LockStats {
        LockStats {
            acquisitions: self.acquisitions.load(Ordering::Relaxed),
            ..LockStats::default()
        }
    }

    fn class(&self) -> LockClass {
        self.class
    }
}

impl<P: Platform> Locks<P> for Solo {
    type Of<T: Send + 'static> = SoloLock<P, T>;

    const SHARED: bool = false;

    fn new<T: Send + 'static>(platform: &P, class: LockClass, value: T) -> SoloLock<P, T> {
        SoloLock::new(platform.clone(), class, value)
    }
}

impl<P: Platform, T> Deref for SoloGuard<'_, P, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (`held`), on the only thread that may have one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<P: Platform, T> DerefMut for SoloGuard<'_, P, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` excludes other references from this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<P: Platform, T> Drop for SoloGuard<'_, P, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.held.set(false);
        #[cfg(debug_assertions)]
        self.lock.platform.note_unlock(self.lock.class);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! A mutex whose owner the kernel gives the priority of the most urgent waiter (futex(2),
//! `FUTEX_LOCK_PI`): for what priorities are settled under, which must not itself be a place
//! where an urgent thread waits for one that is kept from its core.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use super::mark;

/// The word is 0 or the owner's number in the kernel; while somebody waits the kernel sets a
/// bit more, so that the owner's compare-and-swap fails and it calls the kernel.
pub(super) struct PiMutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached under the lock only, from thread to thread.
unsafe impl<T: Send> Sync for PiMutex<T> {}

/// Access to the value.
pub(super) struct PiGuard<'a, T> {
    mutex: &'a PiMutex<T>,
    tid: u32,
}

fn tid() -> u32 {
    let known = mark::tid(crate::lane::current());
    // SAFETY: no arguments.
    known.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_gettid) } as i32) as u32
}

impl<T> PiMutex<T> {
    pub(super) const fn new(value: T) -> PiMutex<T> {
        PiMutex {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    fn futex(&self, op: i32) -> bool {
        // SAFETY: the word lives as long as the borrow; no timeout.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex,
                core::ptr::from_ref(&self.word),
                op | libc::FUTEX_PRIVATE_FLAG,
                0,
                core::ptr::null::<libc::timespec>(),
            )
        };
        rc == 0
    }

    pub(super) fn lock(&self) -> PiGuard<'_, T> {
        let tid = tid();
        let free = || {
            self.word
                .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        // The kernel refuses now and then for reasons that pass.
        while !free() && !self.futex(libc::FUTEX_LOCK_PI) {
            std::thread::yield_now();
        }
        // Against what the last owner wrote, when the kernel has handed the lock over.
        core::sync::atomic::fence(Ordering::Acquire);
        PiGuard { mutex: self, tid }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    fn drop(&mut self) {
        let word = &self.mutex.word;
        let quiet = word.compare_exchange(self.tid, 0, Ordering::Release, Ordering::Relaxed);
        if quiet.is_err() {
            core::sync::atomic::fence(Ordering::Release);
            self.mutex.futex(libc::FUTEX_UNLOCK_PI);
        }
    }
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: under the lock, of which this is the only guard.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.mutex.value.get() }
    }
}

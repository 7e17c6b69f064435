//! Which process this is, for the price of a load: a forked child finds another number than its
//! parent, without a system call and without a handler at `fork`.
//!
//! The number lies in a page that the kernel hands to a child zeroed (`MADV_WIPEONFORK`, Linux
//! 4.14 and later). Where that can't be had, forks are not noticed. A child of `vfork` shares its
//! parent's memory and counts as the parent until it calls `exec`.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Once;

/// Where the number lies; null before the first [`register`].
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static MADE: Once = Once::new();
/// In place of the page where there is none.
static PLAIN: AtomicU64 = AtomicU64::new(0);
/// The last number given out. A child inherits it, so its own numbers are new.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of this process, which gets one if it has none yet: never 0.
pub fn register() -> u64 {
    MADE.call_once(|| PAGE.store(page(), Ordering::Release));
    let place = place();
    let number = place.load(Ordering::Relaxed);
    if number != 0 {
        return number;
    }
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match place.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(theirs) => theirs,
    }
}

/// The number of this process; 0 if it has none, as in a child that has not called
/// [`register`] itself.
#[inline]
pub fn current() -> u64 {
    place().load(Ordering::Relaxed)
}

#[inline]
fn place() -> &'static AtomicU64 {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return &PLAIN;
    }
    // SAFETY: `page` made it: memory that is valid, aligned and zeroed, is never unmapped, and
    // is only ever used as this atomic number. The kernel zeroes it in a child, where no other
    // thread runs yet.
    unsafe { &*page }
}

/// A page of its own that a child finds zeroed; null if the kernel refuses.
fn page() -> *mut AtomicU64 {
    const LEN: usize = 4096;
    // SAFETY: a new anonymous mapping, which touches no memory that is in use.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the mapping of above, whole; nobody else knows of it.
    if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; it is not used afterwards.
        unsafe { libc::munmap(page, LEN) };
        return ptr::null_mut();
    }
    page.cast()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_finds_another_number() {
        let ours = register();
        assert_eq!((register(), current()), (ours, ours));
        // SAFETY: the child calls nothing but loads, a compare-exchange and `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let wiped = current() == 0;
            let fresh = register();
            let new = fresh != 0 && fresh != ours && current() == fresh;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!(wiped && new))) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert_eq!(current(), ours);
    }
}

//! futex(2): sleeping while a word has a value.

use crate::shim::AtomicU32;

/// Sleeps while `word` is `expected`, until woken or for `timeout`; may return for no reason.
/// Which it was is for the caller to find out, from the word and the clock.
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout: Option<&libc::timespec>) {
    // SAFETY: the word lives as long as the borrow; the timeout is null or valid for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            core::ptr::from_ref(word),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout.map_or(core::ptr::null(), core::ptr::from_ref),
        );
    }
}

/// Wakes up to `sleepers` of those who sleep on `word`.
pub(super) fn wake(word: &AtomicU32, sleepers: i32) {
    // SAFETY: the word is only an address to the kernel.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            core::ptr::from_ref(word),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            sleepers,
        );
    }
}

//! How many bytes writers' data is copied, for tests: each thread for itself. Without the feature
//! `testing` all of this is compiled away.

#[cfg(feature = "testing")]
use core::cell::Cell;

#[cfg(feature = "testing")]
thread_local! {
    static COPIED: Cell<usize> = const { Cell::new(0) };
}

/// `bytes` bytes of an application's data are copied on their way into a send buffer.
#[inline(always)]
pub fn note(bytes: usize) {
    #[cfg(feature = "testing")]
    COPIED.set(COPIED.get() + bytes);
    #[cfg(not(feature = "testing"))]
    let _ = bytes;
}

/// How many were on this thread since the last time that somebody asked there. A virtual machine is
/// one thread.
#[cfg(feature = "testing")]
pub fn take() -> usize {
    COPIED.take()
}

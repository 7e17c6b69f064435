//! Bugs that tests plant, to see that the models find them. Not for use: without the feature
//! `testing` all of this is constant and compiled away.

#[cfg(feature = "testing")]
use core::sync::atomic::{AtomicU8, Ordering};

/// A bug of the kind that loses wake-ups.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// None.
    Nothing = 0,
    /// A thread goes to sleep on a poller without another look at the ready list.
    PollerSleepsUnlooked,
    /// An entry that has gone stale leaves the ready list, but counts as being on it.
    PollerForgetsEntry,
    /// A call blocks without another look at the readiness.
    CallSleepsUnlooked,
}

#[cfg(feature = "testing")]
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in every stack of this process.
#[cfg(feature = "testing")]
pub fn plant(bug: Bug) {
    PLANTED.store(bug as u8, Ordering::Relaxed);
}

/// Whether the bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    #[cfg(feature = "testing")]
    return PLANTED.load(Ordering::Relaxed) == bug as u8;
    #[cfg(not(feature = "testing"))]
    return {
        let _ = bug;
        false
    };
}

//! Bugs that the models must find: one that can't fail proves little.

use core::sync::atomic::{AtomicU8, Ordering};

/// What is wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Nothing.
    None,
    /// Completion does not order what was read before it.
    CompletesUnordered,
    /// A buffer that is dropped frees pages that descriptors refer to.
    DropsAtOnce,
    /// A lease goes without telling by which position its payload was placed.
    LeaseForgetsTicket,
    /// A frame comes home without what was done to it before.
    FrameReturnsUnordered,
    /// A region goes without what was done to its frames before.
    RegionGoesUnordered,
}

static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants one; [`Bug::None`] takes it out. It is the whole process's.
pub fn plant(bug: Bug) {
    PLANTED.store(bug as u8, Ordering::Relaxed);
}

pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

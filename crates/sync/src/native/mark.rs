//! What other threads may want to know about a thread: whether it is parked, and its number in
//! the kernel.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::lane::{self, LaneTable};
use crate::shim::Padded;

#[derive(Debug)]
struct Mark {
    parked: AtomicBool,
    tid: AtomicI32,
}

static MARKS: LaneTable<Padded<Mark>> = LaneTable::new();

fn mark(lane: usize) -> Option<&'static Mark> {
    let fresh = || {
        Padded(Mark {
            parked: AtomicBool::new(false),
            tid: AtomicI32::new(0),
        })
    };
    MARKS.get(lane, fresh).map(|m| &m.0)
}

/// The calling thread has been given `lane`.
pub(crate) fn arrived(lane: usize) {
    if let Some(m) = mark(lane) {
        // SAFETY: no arguments.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) };
        m.tid.store(tid as i32, Ordering::Relaxed);
        m.parked.store(false, Ordering::Relaxed);
    }
}

/// The kernel's number of a live thread; `None` where it is not known (lanes beyond
/// [`lane::LANES`]).
pub(super) fn tid(lane: usize) -> Option<i32> {
    let tid = mark(lane)?.tid.load(Ordering::Relaxed);
    (tid != 0).then_some(tid)
}

/// Whether a thread has marked itself parked. That it has not says little: the kernel may have
/// taken its core away.
pub(super) fn is_parked(lane: usize) -> bool {
    mark(lane).is_some_and(|m| m.parked.load(Ordering::Relaxed))
}

/// Marks the calling thread as parked while it lives.
pub(super) struct Parked(Option<&'static Mark>);

impl Parked {
    pub(super) fn new() -> Parked {
        let m = mark(lane::current());
        if let Some(m) = m {
            m.parked.store(true, Ordering::Relaxed);
        }
        Parked(m)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some(m) = self.0 {
            m.parked.store(false, Ordering::Relaxed);
        }
    }
}

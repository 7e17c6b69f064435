//! A host between a start and a crash.

use perimeter::Stack;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Unwinds threads of a host that has crashed.
struct Crashed;

/// A host from a start to a crash.
#[derive(Default)]
pub(super) struct Life {
    over: AtomicBool,
    stack: OnceLock<Stack>,
}

impl Life {
    /// Ends it; everything that its threads call fails from now on.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(stack) = self.stack.get() {
            stack.stop();
        }
    }

    /// Its stack, once there is one.
    pub(super) fn stack(&self) -> Option<&Stack> {
        self.stack.get()
    }

    /// Gives it its stack; `None`: it has ended before.
    pub(super) fn begin(&self, stack: Stack) -> Option<Stack> {
        let stack = self.stack.get_or_init(|| stack).clone();
        if self.is_over() {
            self.end();
            return None;
        }
        Some(stack)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends the calling thread if the host has crashed.
    pub(super) fn live(&self) {
        if self.is_over() {
            resume_unwind(Box::new(Crashed));
        }
    }

    /// Runs a call, from which nobody returns if the host crashes meanwhile.
    pub(super) fn during<R>(&self, call: impl FnOnce() -> R) -> R {
        self.live();
        let out = call();
        self.live();
        out
    }
}

/// What `f` yields; `None` if its host has crashed meanwhile. Other panics go on.
pub(super) fn uncrashed<R>(f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(r) => Some(r),
        Err(panic) if panic.is::<Crashed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

//! The atomics of the completion rule and the lock around its lists: loom's in its models, and
//! without std a lock that spins. No list is held for longer than it takes to add to it, or to
//! take out what has become free.

use alloc::vec::Vec;
use core::ops::DerefMut;

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
pub(crate) use {
    alloc::sync::Arc,
    core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(all(not(loom), not(feature = "std")))]
use spin::mutex::SpinMutex as Mutex;
#[cfg(all(not(loom), feature = "std"))]
use std::sync::Mutex;

/// A list behind a lock.
#[derive(Debug)]
pub(crate) struct List<T>(Mutex<Vec<T>>);

impl<T> List<T> {
    pub(crate) fn new() -> List<T> {
        List(Mutex::new(Vec::new()))
    }

    pub(crate) fn lock(&self) -> impl DerefMut<Target = Vec<T>> {
        #[cfg(any(loom, feature = "std"))]
        // Whoever panicked has left a list that is whole.
        return self.0.lock().unwrap_or_else(|e| e.into_inner());
        #[cfg(all(not(loom), not(feature = "std")))]
        return self.0.lock();
    }
}

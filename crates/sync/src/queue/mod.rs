//! Bounded queues between threads. No lock, no allocation after creation.
//!
//! On virtual cores each operation is a scheduling point before and after, and atomic between:
//! the rings' own interleavings are the business of the loom models (`tests/loom_queue.rs`,
//! `tests/loom_fanin.rs`, `tests/loom_inbox.rs`).

#[doc(hidden)]
pub mod fanin;
#[doc(hidden)]
pub mod mpsc;
pub mod spill;
#[doc(hidden)]
pub mod spsc;

pub use fanin::{Fanin, FaninConsumer};
pub use spill::Spill;

use crate::class::Touched;
use crate::platform::Platform;

/// This file, for [`sources`](crate::sources).
pub(crate) const FILE: &str = file!();

/// A bounded queue that any number of threads push to, in one order that all agree on:
/// linearizable, hence FIFO for each producer. Meant for one consumer at a time; which thread
/// that is may change (as the drainer of an squeue does), and two at once are harmless.
#[derive(Debug)]
pub struct Mpsc<P: Platform, T> {
    platform: P,
    ring: mpsc::Ring<T>,
    /// What waits.
    lines: P::Tag,
}

impl<P: Platform, T: Send> Mpsc<P, T> {
    /// A queue of exactly `capacity` places.
    ///
    /// # Panics
    /// If `capacity` is zero or beyond a quarter of the address space.
    pub fn new(platform: P, capacity: usize) -> Self {
        Mpsc {
            lines: P::Tag::default(),
            platform,
            ring: mpsc::Ring::new(capacity),
        }
    }

    /// Appends `value`.
    ///
    /// # Errors
    /// Gives `value` back when the queue is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        self.platform.checkpoint();
        let done = self.platform.queueing(|| self.ring.push(value));
        self.platform.touch(&self.lines, Touched::Message, 1, true);
        self.platform.checkpoint();
        done
    }

    /// Takes the oldest value; `None` when the queue is empty.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        self.platform.checkpoint();
        let value = self.platform.queueing(|| self.ring.pop());
        self.platform
            .touch(&self.lines, Touched::Message, 1, value.is_some());
        self.platform.checkpoint();
        value
    }

    /// Moves up to `max` of the oldest values to the end of `out`, as one operation: cheaper
    /// than as many [`Mpsc::pop`]. How many it were; 0 only when the queue is empty or `max` 0.
    #[inline]
    pub fn pop_many(&self, out: &mut Vec<T>, max: usize) -> usize {
        self.platform.checkpoint();
        let n = self.platform.queueing(|| self.ring.pop_many(out, max));
        self.platform
            .touch(&self.lines, Touched::Message, n.max(1), n > 0);
        self.platform.checkpoint();
        n
    }

    /// How many values wait, at one moment during the call; an estimate under heavy use.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether no value waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values there is room for.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! A list behind a bounded queue: what finds no room there waits here, in order.
//!
//! Apart from the platform and from the queue, for the loom models (`tests/loom_inbox.rs`).

use std::collections::VecDeque;

use crate::platform::Lock;
use crate::shim::{AtomicUsize, Ordering};

/// A list under a lock: the platform's, or a model's.
pub trait List<T> {
    /// Runs `f` on the list, with the lock held.
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R;
}

impl<T: Send + 'static, L: Lock<VecDeque<T>>> List<T> for L {
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        f(&mut self.lock())
    }
}

/// The list, and how long it is. While it is not empty the queue takes nothing, so that no
/// sender's value overtakes an earlier one of its own. One consumer at a time.
#[derive(Debug)]
pub struct Spill<L> {
    list: L,
    /// Length of the list, written under its lock.
    len: AtomicUsize,
}

impl<L> Spill<L> {
    /// With an empty list.
    pub fn new(list: L) -> Spill<L> {
        Spill {
            list,
            len: AtomicUsize::new(0),
        }
    }

    /// How long the list is.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    /// Whether nothing is in the list.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The list itself.
    pub fn list(&self) -> &L {
        &self.list
    }

    /// Appends `value`: by `push` to the queue, unless something waits in the list, else to the
    /// list.
    ///
    /// # Errors
    /// Gives `value` back when there is no room in the queue, and `refuse` says of it and of the
    /// list's length that it is not to wait there.
    #[inline]
    pub fn put<T>(
        &self,
        value: T,
        push: impl FnOnce(T) -> Result<(), T>,
        refuse: impl FnOnce(&T, usize) -> bool,
    ) -> Result<(), T>
    where
        L: List<T>,
    {
        let waiting = self.len();
        let refused = if waiting > 0 { Err(value) } else { push(value) };
        let Err(value) = refused else {
            return Ok(());
        };
        if refuse(&value, waiting) {
            return Err(value);
        }
        self.list.with(|list| {
            list.push_back(value);
            self.len.store(list.len(), Ordering::SeqCst);
        });
        Ok(())
    }

    /// Moves up to `max` of the oldest values to the end of `out`; how many. `pop` moves up to
    /// `max` out of the queue; `between` is called where another thread may come in.
    #[inline]
    pub fn take<T>(
        &self,
        mut pop: impl FnMut(&mut Vec<T>) -> usize,
        between: impl FnOnce(),
        out: &mut Vec<T>,
        max: usize,
    ) -> usize
    where
        L: List<T>,
    {
        let n = pop(out);
        if n > 0 {
            return n;
        }
        between();
        if self.is_empty() {
            return 0;
        }
        self.list.with(|list| {
            // Who left something here may have filled the queue just before.
            let n = pop(out);
            if n > 0 {
                return n;
            }
            let n = list.len().min(max);
            out.extend(list.drain(..n));
            self.len.store(list.len(), Ordering::SeqCst);
            n
        })
    }
}

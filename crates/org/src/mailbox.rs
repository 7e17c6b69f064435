//! Questions to a stack of one thread, from other threads.
//!
//! Such a stack takes no call from elsewhere; so whoever wants to know something leaves a
//! question, and the stack's own thread answers it the next time that it looks at its devices.
//! While there is no question, looking costs that thread one load.

use crate::answer::question;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass, Platform};

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

type Answer<T> = Box<dyn FnOnce(&T) + Send>;

struct Question<T> {
    number: u64,
    answer: Answer<T>,
}

/// Questions about a `T` that wait for the stack's thread.
pub(crate) struct Mailbox<P: Platform, T: 'static> {
    /// Whether there are any; a hint that is read without the lock.
    any: AtomicBool,
    next: AtomicU64,
    waiting: P::Lock<Vec<Question<T>>>,
    /// Pollers to be woken, each once.
    wakes: P::Lock<Vec<u32>>,
}

impl<P: Platform, T> Mailbox<P, T> {
    pub(crate) fn new(p: &P) -> Mailbox<P, T> {
        Mailbox {
            any: AtomicBool::new(false),
            next: AtomicU64::new(0),
            waiting: p.lock(LockClass::Leaf, Vec::new()),
            wakes: p.lock(LockClass::Leaf, Vec::new()),
        }
    }

    /// Whether somebody waits for an answer. Acquire, against the store in [`Mailbox::ask`]: who
    /// goes to sleep announces itself first and then looks here, who asks looks for sleepers
    /// afterwards; both under the sleepers' lock, so one of them sees the other.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The stack's thread answers; it is to wake the pollers that it is given.
    #[cold]
    pub(crate) fn answer(&self, of: &T) -> Vec<u32> {
        let waiting = {
            let mut list = self.waiting.lock();
            self.any.store(false, Ordering::Release);
            core::mem::take(&mut *list)
        };
        for q in waiting {
            (q.answer)(of);
        }
        core::mem::take(&mut *self.wakes.lock())
    }

    /// A poller is to be woken; however often that is asked for meanwhile, it is left once.
    pub(crate) fn wake(&self, poller: u32) {
        {
            let mut wakes = self.wakes.lock();
            if wakes.contains(&poller) {
                return;
            }
            wakes.push(poller);
        }
        // Under the lock of the questions, as in `leave`: `answer` takes the hint back there.
        let _waiting = self.waiting.lock();
        self.any.store(true, Ordering::Release);
    }

    /// Leaves `f` to be done, and does not wait; its number.
    pub(crate) fn leave(&self, f: impl FnOnce(&T) + Send + 'static) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer: Answer<T> = Box::new(f);
        let mut list = self.waiting.lock();
        list.push(Question { number, answer });
        self.any.store(true, Ordering::Release);
        number
    }

    /// Leaves the question `f` and waits for its answer until `deadline`; `wake` wakes the
    /// stack's thread if it is parked. `None`: it did not come by.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        p: &P,
        f: impl FnOnce(&T) -> R + Send + 'static,
        wake: impl FnOnce(),
        deadline: Time,
    ) -> Option<R> {
        let (pending, answer) = question(p);
        let number = self.leave(move |of| answer.give(f(of)));
        wake();
        let out = pending.by(deadline);
        // Too late is too late: a question that nobody took is taken back, so that none pile up.
        let back = {
            let mut list = self.waiting.lock();
            let at = list.iter().position(|q| q.number == number);
            at.map(|at| list.remove(at))
        };
        // Not under the lock: an answer that is dropped tells who waits for it.
        drop(back);
        out
    }
}

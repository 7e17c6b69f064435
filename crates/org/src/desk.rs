//! Questions to a stack of one thread, from other threads.
//!
//! Such a stack takes no call from elsewhere; so whoever wants to know something leaves a
//! question, and the stack's own thread answers it the next time that it looks at its devices.
//! While there is no question, looking costs that thread one load.

use crate::Org;
use crate::instance::Instance;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_sync::{Event, Lock, LockClass, Platform};
use std::sync::Arc;

type Pf<O> = <<O as Org>::K as perimeter_stack::Kind>::P;
type Locked<O, T> = <Pf<O> as Platform>::Lock<T>;

type Answer<O> = Box<dyn FnOnce(&Instance<O>) + Send>;

struct Question<O: Org> {
    number: u64,
    answer: Answer<O>,
}

/// Questions that wait for the stack's thread.
pub(crate) struct Desk<O: Org> {
    /// Whether there are any; a hint that is read without the lock.
    any: AtomicBool,
    next: AtomicU64,
    waiting: Locked<O, Vec<Question<O>>>,
}

impl<O: Org> Desk<O> {
    pub(crate) fn new(p: &Pf<O>) -> Desk<O> {
        Desk {
            any: AtomicBool::new(false),
            next: AtomicU64::new(0),
            waiting: p.lock(LockClass::Leaf, Vec::new()),
        }
    }

    /// Whether somebody waits for an answer. Acquire, against the store in [`Desk::ask`]: who
    /// goes to sleep announces itself first and then looks here, who asks looks for sleepers
    /// afterwards; both under the sleepers' lock, so one of them sees the other.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The stack's thread answers.
    #[cold]
    pub(crate) fn answer(&self, i: &Instance<O>) {
        let waiting = {
            let mut list = self.waiting.lock();
            self.any.store(false, Ordering::Release);
            core::mem::take(&mut *list)
        };
        for q in waiting {
            (q.answer)(i);
        }
    }

    /// Leaves the question `f` and waits for its answer until `deadline`; `wake` wakes the
    /// stack's thread if it is parked. `None`: it did not come by.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        p: &Pf<O>,
        f: impl FnOnce(&Instance<O>) -> R + Send + 'static,
        wake: impl FnOnce(),
        deadline: Time,
    ) -> Option<R> {
        let slot: Arc<Locked<O, Option<R>>> = Arc::new(p.lock(LockClass::Leaf, None));
        let event = Arc::new(p.event());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (theirs, told) = (slot.clone(), event.clone());
        let answer: Answer<O> = Box::new(move |i| {
            let r = f(i);
            *theirs.lock() = Some(r);
            told.set();
        });
        {
            let mut list = self.waiting.lock();
            list.push(Question { number, answer });
            self.any.store(true, Ordering::Release);
        }
        wake();
        event.wait(deadline);
        // Too late is too late: a question that nobody took is taken back, so that none pile up.
        self.waiting.lock().retain(|q| q.number != number);
        slot.lock().take()
    }
}

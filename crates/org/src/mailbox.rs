//! Questions to a stack of one thread, from other threads.
//!
//! Such a stack takes no call from elsewhere; so whoever wants to know something leaves a
//! question, and the stack's own thread answers it the next time that it looks at its devices.
//! While there is no question, looking costs that thread one load.

use crate::Org;
use crate::answer::question;
use crate::engine::{Running, Stats};
use crate::instance::Instance;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use perimeter_base::Time;
use perimeter_stack::port::TxPort;
use perimeter_sync::{Lock, LockClass, LockStats, Platform};

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

type Pf<O> = <<O as Org>::K as perimeter_stack::Kind>::P;
type Locked<O, T> = <Pf<O> as Platform>::Lock<T>;

type Answer<O> = Box<dyn FnOnce(&Instance<O>) + Send>;

struct Question<O: Org> {
    number: u64,
    answer: Answer<O>,
}

/// Questions that wait for the stack's thread.
pub(crate) struct Mailbox<O: Org> {
    /// Whether there are any; a hint that is read without the lock.
    any: AtomicBool,
    next: AtomicU64,
    waiting: Locked<O, Vec<Question<O>>>,
    /// Pollers to be woken, each once.
    wakes: Locked<O, Vec<u32>>,
}

impl<O: Org> Mailbox<O> {
    pub(crate) fn new(p: &Pf<O>) -> Mailbox<O> {
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
        let wakes = core::mem::take(&mut *self.wakes.lock());
        for p in wakes.iter().filter_map(|n| i.sh.pollers.get(*n)) {
            p.wake();
        }
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

    /// Leaves `f` to be done, and does not wait.
    pub(crate) fn leave(&self, f: impl FnOnce(&Instance<O>) + Send + 'static) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer: Answer<O> = Box::new(f);
        let mut list = self.waiting.lock();
        list.push(Question { number, answer });
        self.any.store(true, Ordering::Release);
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
        let (reply, given) = question(p);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer: Answer<O> = Box::new(move |i| given.give(f(i)));
        {
            let mut list = self.waiting.lock();
            list.push(Question { number, answer });
            self.any.store(true, Ordering::Release);
        }
        wake();
        let out = reply.by(deadline);
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

impl<O: Org> Running<O> {
    /// Whether the calling thread may look at what is behind locks, which it also may when the
    /// stack has stopped.
    pub(crate) fn may_look(&self) -> bool {
        !self.i.sh.life.forked() && !self.i.sh.life.failed() && self.i.admit().is_ok()
    }

    /// Looks at what is behind locks, or has it looked at by the thread that may; `None`: nobody
    /// did within a second.
    pub(crate) fn look_inside<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Instance<O>) -> R + Send + 'static,
    ) -> Option<R> {
        if self.may_look() {
            return Some(f(&self.i));
        }
        if !self.i.sh.life.on() {
            return None;
        }
        let deadline = self.i.sh.p.now() + Duration::from_secs(1);
        self.i.anywhere(deadline, f)
    }
}

impl<O: Org> Instance<O> {
    /// The part of [`Stats`] that is behind locks.
    pub(crate) fn behind_locks(&self) -> Stats {
        let mut stats = Stats::default();
        let mut add = |class: LockClass, s: LockStats| {
            stats.locks.entry(class.name()).or_default().add(s);
        };
        self.org.lock_stats(&mut add);
        self.sh.lock_stats(&mut add);
        stats.locks.retain(|_, s| s.acquisitions > 0);
        let rx = self.sh.rx.iter().map(|r| r.queue.lock().peer_ns());
        let tx = self.sh.tx.iter().map(TxPort::peer_ns);
        stats.peer_ns = rx.chain(tx).sum();
        stats.connections = self.org.live();
        stats
    }
}

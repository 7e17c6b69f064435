//! Calls and posts that another thread runs: first in, first out.

use crate::Kd;
use perimeter_base::Time;
use perimeter_stack::Ctx;
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Touched, Work};
use std::collections::VecDeque;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Owns all that it needs: whoever sent it may have given up.
pub(super) type Message<P, O> = Box<dyn FnOnce(&O, &mut Ctx<Kd<P>>) + Send>;

/// Messages that run on an `O`.
pub(super) struct Messages<P: Platform, O: 'static> {
    p: P,
    queue: P::Lock<VecDeque<Message<P, O>>>,
    /// Where the organization's thread parks.
    bell: P::Event,
    /// Cache lines of the messages that wait.
    lines: P::Tag,
}

impl<P: Platform, O> Messages<P, O> {
    pub(super) fn new(p: &P) -> Messages<P, O> {
        Messages {
            p: p.clone(),
            lines: P::Tag::default(),
            queue: p.lock(LockClass::Leaf, VecDeque::new()),
            bell: p.event(),
        }
    }

    pub(super) fn put(&self, m: Message<P, O>) {
        let mut queue = self.queue.lock();
        self.p.charge(Work::HandOver, 1);
        self.p.touch(&self.lines, Touched::Message, 1, true);
        queue.push_back(m);
        drop(queue);
        self.bell.set();
    }

    /// Runs what waits now, and returns how many that were. What is added meanwhile is left for
    /// the next time.
    pub(super) fn run(&self, org: &O, cx: &mut Ctx<Kd<P>>) -> usize {
        let waiting = core::mem::take(&mut *self.queue.lock());
        let n = waiting.len();
        self.p.touch(&self.lines, Touched::Message, n, true);
        for message in waiting {
            message(org, cx);
        }
        n
    }

    pub(super) fn park(&self, deadline: Time) {
        self.bell.wait(deadline);
    }

    /// The stack has ended: the thread looks for itself.
    pub(super) fn wake(&self) {
        self.bell.set();
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    pub(super) fn stats(&self) -> LockStats {
        self.queue.stats()
    }
}

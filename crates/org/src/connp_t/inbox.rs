//! What waits for a protocol thread: first in, first out.

use perimeter_sync::{Fanin, FaninConsumer, Lock, LockClass, LockStats, Mpsc, Platform, Spill};
use std::collections::VecDeque;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Messages that may wait for a thread, beyond which packets are dropped.
const QUEUE: usize = 4096;

/// The same for a thread that has one connection, or few.
pub(super) const ALONE: usize = 512;

/// Messages that may wait for a thread in the ring of one sender.
const RING: usize = 256;

/// What an inbox takes.
pub(super) trait Letter: Send + 'static {
    /// Whether it is refused where there is no room.
    fn is_packet(&self) -> bool;
}

/// Messages that wait for one thread. Whoever finds no room leaves packets out, as a full
/// interface queue does; all else goes to a list behind, so that no sender ever waits for room:
/// two threads that send to each other could wait for ever.
pub(super) struct Inbox<P: Platform, M: Letter> {
    p: P,
    queue: Queue<P, M>,
    spill: Spill<P::Lock<VecDeque<M>>>,
}

/// In which order.
enum Queue<P: Platform, M: Letter> {
    /// One queue: the same for all senders.
    All(Mpsc<P, M>),
    /// A ring for each sender: the order holds for each of them.
    Each(Fanin<P, M>),
}

/// The receiving end, which the thread owns.
pub(super) struct Outlet<M: Letter>(Option<FaninConsumer<M>>);

impl<P: Platform, M: Letter> Inbox<P, M> {
    /// An inbox that any number of threads send to; `rings`: each by its own ring; `alone`: for a
    /// thread that has one connection, or few.
    pub(super) fn new(p: &P, rings: bool, alone: bool) -> (Inbox<P, M>, Outlet<M>) {
        let (queue, outlet) = if rings {
            let (queue, outlet) = Fanin::new(p.clone(), RING);
            (Queue::Each(queue), Some(outlet))
        } else {
            let places = if alone { ALONE } else { QUEUE };
            (Queue::All(Mpsc::new(p.clone(), places)), None)
        };
        let inbox = Inbox {
            p: p.clone(),
            queue,
            spill: Spill::new(p.lock(LockClass::Leaf, VecDeque::new())),
        };
        (inbox, Outlet(outlet))
    }

    /// Appends a message. Packets that find no room are given back.
    pub(super) fn put(&self, msg: M) -> Result<(), M> {
        self.p.checkpoint();
        let push = |msg| match &self.queue {
            Queue::All(q) => q.push(msg),
            Queue::Each(q) => q.push(msg),
        };
        let room = match self.queue {
            Queue::All(_) => 0,
            Queue::Each(_) => QUEUE,
        };
        self.spill
            .put(msg, push, |msg, spilled| msg.is_packet() && spilled >= room)
    }

    fn pop(&self, from: &mut Outlet<M>, out: &mut Vec<M>, max: usize) -> usize {
        match (&self.queue, &mut from.0) {
            (Queue::Each(q), Some(outlet)) => q.pop_many(outlet, out, max),
            (Queue::All(q), _) => q.pop_many(out, max),
            (Queue::Each(_), None) => 0,
        }
    }

    /// Moves up to `max` of the oldest messages to the end of `out`; how many.
    pub(super) fn take(&self, from: &mut Outlet<M>, out: &mut Vec<M>, max: usize) -> usize {
        let pop = |out: &mut Vec<M>| self.pop(from, out, max);
        self.spill.take(pop, || self.p.checkpoint(), out, max)
    }

    /// Whether the calling thread has over half a ring full of messages waiting here.
    pub(super) fn is_crowded(&self) -> bool {
        match &self.queue {
            Queue::All(_) => false,
            Queue::Each(q) => q.is_crowded(),
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let empty = match &self.queue {
            Queue::All(q) => q.is_empty(),
            Queue::Each(q) => q.is_empty(),
        };
        empty && self.spill.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        let queued = match &self.queue {
            Queue::All(q) => q.len(),
            Queue::Each(q) => q.len(),
        };
        queued + self.spill.len()
    }

    pub(super) fn stats(&self) -> LockStats {
        self.spill.list().stats()
    }
}

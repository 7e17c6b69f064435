//! What waits for a protocol thread: first in, first out.

use super::cell::Keep;
use super::message::Msg;
use core::sync::atomic::{AtomicUsize, Ordering};
use perimeter_sync::{Fanin, FaninConsumer, Lock, LockClass, LockStats, Mpsc, Platform};
use std::collections::VecDeque;

/// Messages that may wait for a thread, beyond which packets are dropped.
const QUEUE: usize = 4096;

/// The same for a thread that has one connection, or few.
pub(super) const ALONE: usize = 512;

/// Messages that may wait for a thread in the ring of one sender.
const RING: usize = 256;

/// Messages that wait for one thread. Whoever finds no room leaves packets out, as a full
/// interface queue does; all else goes to a list behind, so that no sender ever waits for room:
/// two threads that send to each other could wait for ever.
pub(super) struct Inbox<C: Keep> {
    p: C::P,
    queue: Queue<C>,
    spill: <C::P as Platform>::Lock<VecDeque<Msg<C>>>,
    /// Length of `spill`, written under its lock. While it is not 0 the queue takes nothing, so
    /// that nothing overtakes.
    spilled: AtomicUsize,
}

/// In which order.
enum Queue<C: Keep> {
    /// One queue: the same for all senders.
    All(Mpsc<C::P, Msg<C>>),
    /// A ring for each sender: the order holds for each of them.
    Each(Fanin<C::P, Msg<C>>),
}

/// The receiving end, which the thread owns.
pub(super) struct Outlet<C: Keep>(Option<FaninConsumer<Msg<C>>>);

impl<C: Keep> Inbox<C> {
    /// An inbox that any number of threads send to; `rings`: each by its own ring; `alone`: for a
    /// thread that has one connection, or few.
    pub(super) fn new(p: &C::P, rings: bool, alone: bool) -> (Inbox<C>, Outlet<C>) {
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
            spill: p.lock(LockClass::Leaf, VecDeque::new()),
            spilled: AtomicUsize::new(0),
        };
        (inbox, Outlet(outlet))
    }

    /// Appends a message. Packets that find no room are given back.
    pub(super) fn put(&self, msg: Msg<C>) -> Result<(), Msg<C>> {
        let spilled = self.spilled();
        let refused = if spilled > 0 {
            Err(msg)
        } else {
            match &self.queue {
                Queue::All(q) => q.push(msg),
                Queue::Each(q) => q.push(msg),
            }
        };
        let Err(msg) = refused else {
            return Ok(());
        };
        let room = match self.queue {
            Queue::All(_) => 0,
            Queue::Each(_) => QUEUE,
        };
        if matches!(msg, Msg::Packet(_) | Msg::Burst(_)) && spilled >= room {
            return Err(msg);
        }
        let mut spill = self.spill.lock();
        spill.push_back(msg);
        self.spilled.store(spill.len(), Ordering::SeqCst);
        Ok(())
    }

    fn spilled(&self) -> usize {
        self.p.checkpoint();
        self.spilled.load(Ordering::SeqCst)
    }

    fn pop(&self, from: &mut Outlet<C>, out: &mut Vec<Msg<C>>, max: usize) -> usize {
        match (&self.queue, &mut from.0) {
            (Queue::Each(q), Some(outlet)) => q.pop_many(outlet, out, max),
            (Queue::All(q), _) => q.pop_many(out, max),
            (Queue::Each(_), None) => 0,
        }
    }

    /// Moves up to `max` of the oldest messages to the end of `out`; how many.
    pub(super) fn take(&self, from: &mut Outlet<C>, out: &mut Vec<Msg<C>>, max: usize) -> usize {
        let n = self.pop(from, out, max);
        if n > 0 || self.spilled() == 0 {
            return n;
        }
        let mut spill = self.spill.lock();
        // Who left something here may have filled the queue just before.
        let n = self.pop(from, out, max);
        if n > 0 {
            return n;
        }
        let n = spill.len().min(max);
        out.extend(spill.drain(..n));
        self.spilled.store(spill.len(), Ordering::SeqCst);
        n
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
        empty && self.spilled.load(Ordering::SeqCst) == 0
    }

    pub(super) fn len(&self) -> usize {
        let queued = match &self.queue {
            Queue::All(q) => q.len(),
            Queue::Each(q) => q.len(),
        };
        queued + self.spilled.load(Ordering::SeqCst)
    }

    pub(super) fn stats(&self) -> LockStats {
        self.spill.stats()
    }
}

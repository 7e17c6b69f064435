//! Soft rings: packets on their way from an inbound thread to the worker that runs IP for them.

use perimeter_base::Time;
use perimeter_stack::Seg;
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Touched, Work};
use std::collections::VecDeque;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Packets in a ring at most; what comes when it is full is dropped, as by a NIC.
const ROOM: usize = 16_384;

/// One ring and its worker's place to park.
pub(crate) struct Ring<P: Platform> {
    p: P,
    queue: P::Lock<Packets>,
    bell: P::Event,
    /// Cache lines of the packets that wait.
    lines: P::Tag,
}

#[derive(Default)]
struct Packets {
    waiting: VecDeque<Seg>,
    /// Taken by the worker and not yet run.
    taken: usize,
    asleep: bool,
}

impl<P: Platform> Ring<P> {
    pub(crate) fn new(p: &P) -> Ring<P> {
        Ring {
            p: p.clone(),
            lines: P::Tag::default(),
            queue: p.lock(LockClass::Leaf, Packets::default()),
            bell: p.event(),
        }
    }

    /// Appends packets in their order; returns how many there was no room for.
    pub(crate) fn put<'a>(&self, segs: impl Iterator<Item = &'a mut Seg>) -> u64 {
        let mut dropped = 0;
        let mut queue = self.queue.lock();
        for seg in segs {
            if queue.waiting.len() < ROOM {
                self.p.charge(Work::HandOver, 1);
                self.p.touch(&self.lines, Touched::Message, 1, true);
                queue.waiting.push_back(core::mem::take(seg));
            } else {
                dropped += 1;
            }
        }
        if queue.asleep {
            queue.asleep = false;
            drop(queue);
            self.bell.set();
        }
        dropped
    }

    /// Moves up to `max` packets to `out`. Those taken before are done.
    pub(crate) fn take(&self, out: &mut Vec<Seg>, max: usize) {
        let mut queue = self.queue.lock();
        let n = max.min(queue.waiting.len());
        self.p.touch(&self.lines, Touched::Message, n, true);
        out.extend(queue.waiting.drain(..n));
        queue.taken = n;
    }

    /// Parks the worker until packets come, or `deadline`.
    pub(crate) fn park(&self, deadline: Time) {
        {
            let mut queue = self.queue.lock();
            if !queue.waiting.is_empty() {
                return;
            }
            queue.asleep = true;
        }
        self.bell.wait(deadline);
        self.queue.lock().asleep = false;
    }

    /// The stack has ended: the worker looks for itself.
    pub(crate) fn wake(&self) {
        self.bell.set();
    }

    /// Packets that were not run yet.
    pub(crate) fn len(&self) -> usize {
        let queue = self.queue.lock();
        queue.waiting.len() + queue.taken
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.queue.stats()
    }
}

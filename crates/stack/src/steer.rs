//! Receive flow steering: frames of messages go to the thread that answers them.
//!
//! A device spreads flows over its queues by their hash, or has one queue, and knows nothing of who
//! reads them. So the state of a connection goes from the core that polls to the core that answers, and
//! back, with each message. Steering hands the frames over instead, before anything has looked at what
//! they carry, as Linux does (receive flow steering, RFS). It happens before the perimeter, so no
//! organization knows of it.
//!
//! Who writes a message notes the receive queue that its thread serves, in a table by the flow's hash
//! which all threads share ([`Steering::note`]). Who polls a queue looks there for each frame, and puts
//! those of other queues' writers into their backlogs ([`Steering::sift`]). Who serves such a queue takes
//! them from there ([`Steering::take`]) before it polls the device.
//!
//! A flow's frames stay in order. Where a flow goes now is noted in a table that belongs to the polled
//! queue alone, and is changed only once what it was given to has processed everything of it. Two flows
//! with one place in these tables go the same way.
//!
//! Streams stay with who polls them: their output follows their acknowledgments, and so takes place at
//! the device's own queue, where no other thread is.

use crate::kind::{Kind, Lk, lock};
use core::cell::Cell;
use perimeter_link::RxFrame;
use perimeter_sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use perimeter_sync::{Lock, LockClass};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Places in the tables.
const PLACES: usize = 1 << 15;

/// How many frames may wait in a backlog before who adds to it helps.
pub const ENOUGH: usize = 8 * crate::BURST;

/// No queue: a thread that serves none.
pub const NO_QUEUE: u16 = u16::MAX;

/// Queues that were given frames.
pub type Given = SmallVec<[u16; 4]>;

/// Where frames go, and those on their way.
pub struct Steering<K: Kind> {
    /// By a flow's hash: one more than the queue that its writer serves; 0: none.
    wanted: Box<[AtomicU16]>,
    /// By receive queue.
    backlogs: Box<[Backlog<K>]>,
}

/// Frames that other queues' pollers have put aside for who serves this one.
#[repr(align(128))]
struct Backlog<K: Kind> {
    waiting: Lk<K, Waiting>,
    /// How many wait; written under the lock, read without it as a hint.
    len: AtomicUsize,
    done: Done,
}

/// How many were processed ever; written while this queue's device is held. On lines of its own, as who
/// polls another queue reads it.
#[repr(align(128))]
struct Done(AtomicU64);

#[derive(Default)]
struct Waiting {
    /// With the interfaces that they came by.
    frames: VecDeque<(u16, RxFrame)>,
    /// How many were put here ever.
    put: u64,
}

/// Where a flow goes: to a queue, whose backlog got its last frame as number `last` (modulo 2^48: more
/// frames than ever come). For the polled queue itself that is the number of the burst.
#[derive(Copy, Clone)]
struct Way(u64);

/// Its frames of this burst are not in the backlog yet.
const UNDER_WAY: u64 = u64::MAX >> 16;

impl Way {
    #[inline]
    fn new(queue: u16, last: u64) -> Way {
        Way(last << 16 | u64::from(queue))
    }

    #[inline]
    fn queue(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    fn last(self) -> u64 {
        self.0 >> 16
    }
}

/// Where flows go that come by one queue: of who holds its device.
pub struct Ways {
    queue: u16,
    ways: Box<[Way]>,
    /// How many bursts came ever.
    burst: u64,
    /// The frames of this burst that go to other queues, by queue.
    out: Vec<Vec<RxFrame>>,
}

impl Ways {
    /// Of frames that come by `queue`, one of queues 0 to `queues` - 1.
    pub fn new(queue: u16, queues: u16) -> Ways {
        Ways {
            queue,
            ways: vec![Way::new(queue, 0); PLACES].into_boxed_slice(),
            burst: 0,
            out: (0..queues).map(|_| Vec::new()).collect(),
        }
    }
}

#[inline]
fn place(hash: u32) -> usize {
    hash as usize % PLACES
}

impl<K: Kind> Steering<K> {
    /// Among receive queues 0 to `queues` - 1.
    pub fn new(p: &K::P, queues: u16) -> Steering<K> {
        let backlog = |_| Backlog {
            waiting: lock::<K, _>(p, LockClass::Leaf, Waiting::default()),
            len: AtomicUsize::new(0),
            done: Done(AtomicU64::new(0)),
        };
        Steering {
            wanted: (0..PLACES).map(|_| AtomicU16::new(0)).collect(),
            backlogs: (0..queues).map(backlog).collect(),
        }
    }

    /// Who serves `queue` ([`NO_QUEUE`]: none) is to have the frames of flows with that hash.
    #[inline]
    pub fn note(&self, hash: u32, queue: u16) {
        let wanted = &self.wanted[place(hash)];
        // The loopback's queue has no backlog either.
        let queue = match usize::from(queue) < self.backlogs.len() {
            true => queue + 1,
            false => 0,
        };
        // Written when it changes only: all who poll read it.
        if wanted.load(Ordering::Relaxed) != queue {
            wanted.store(queue, Ordering::Relaxed);
        }
    }

    /// How many frames wait for who serves queue `q`; none ever for the loopback's.
    #[inline]
    pub fn waiting(&self, q: u16) -> usize {
        let backlog = self.backlogs.get(usize::from(q));
        backlog.map_or(0, |b| b.len.load(Ordering::Acquire))
    }

    /// Puts those of `frames` that other queues are to have, which came by interface `iface`, into their
    /// backlogs; those queues. The calling thread serves `own` and holds the device whose `polled` are;
    /// all that it has taken from there before is processed.
    pub fn sift(
        &self,
        polled: &mut Ways,
        iface: u16,
        own: &[u16],
        frames: &mut Vec<RxFrame>,
    ) -> Given {
        let Ways {
            queue,
            ways,
            burst,
            out,
        } = polled;
        let q = *queue;
        *burst += 1;
        let to = Cell::new(q);
        let leaves = |f: &mut RxFrame| {
            to.set(f.hash.map_or(q, |hash| {
                let way = &mut ways[place(hash)];
                *way = self.turn(*way, (q, *burst), self.wanted(hash, q, own));
                way.queue()
            }));
            to.get() != q
        };
        let mut given = Given::new();
        for f in frames.extract_if(.., leaves) {
            if out[usize::from(to.get())].is_empty() {
                given.push(to.get());
            }
            out[usize::from(to.get())].push(f);
        }
        for &t in &given {
            self.give(t, iface, &mut out[usize::from(t)], ways);
        }
        given
    }

    /// The queue that is to have frames of that hash, polled from `q` by who serves `own`.
    #[inline]
    fn wanted(&self, hash: u32, q: u16, own: &[u16]) -> u16 {
        match self.wanted[place(hash)].load(Ordering::Relaxed) {
            0 => q,
            n if own.contains(&(n - 1)) => q,
            n => n - 1,
        }
    }

    /// The way of a frame in that burst of queue `q`, where it was `way` before: to queue `wanted`, if
    /// everything of its flow was processed where it went before.
    #[inline]
    fn turn(&self, way: Way, (q, burst): (u16, u64), wanted: u16) -> Way {
        let mut to = way.queue();
        if to != wanted && self.settled(way, (q, burst)) {
            to = wanted;
        }
        Way::new(to, if to == q { burst } else { UNDER_WAY })
    }

    /// Whether all that went that way before this burst, and in it, was processed.
    fn settled(&self, way: Way, (q, burst): (u16, u64)) -> bool {
        match way.queue() {
            to if to == q => way.last() != burst,
            to => {
                let done = &self.backlogs[usize::from(to)].done.0;
                done.load(Ordering::Acquire) >= way.last()
            }
        }
    }

    /// Puts `frames` into the backlog of queue `t`.
    fn give(&self, t: u16, iface: u16, frames: &mut Vec<RxFrame>, ways: &mut [Way]) {
        let backlog = &self.backlogs[usize::from(t)];
        let mut waiting = backlog.waiting.lock();
        waiting.put += frames.len() as u64;
        let last = waiting.put;
        for f in frames.drain(..) {
            if let Some(hash) = f.hash {
                ways[place(hash)] = Way::new(t, last);
            }
            waiting.frames.push_back((iface, f));
        }
        backlog.len.store(waiting.frames.len(), Ordering::Release);
    }

    /// Takes up to `most` frames that wait for who serves queue `q`, all of one interface, and says
    /// which; the calling thread holds the device of `q`, and says when they are processed
    /// ([`Steering::processed`]).
    pub fn take(&self, q: u16, most: usize, frames: &mut Vec<RxFrame>) -> Option<u16> {
        let backlog = &self.backlogs[usize::from(q)];
        let mut waiting = backlog.waiting.lock();
        let iface = waiting.frames.front()?.0;
        for _ in 0..most {
            let Some((_, f)) = waiting.frames.pop_front_if(|f| f.0 == iface) else {
                break;
            };
            frames.push(f);
        }
        backlog.len.store(waiting.frames.len(), Ordering::Release);
        Some(iface)
    }

    /// `n` frames that were taken from the backlog of queue `q` have reached the perimeters.
    pub fn processed(&self, q: u16, n: usize) {
        let done = &self.backlogs[usize::from(q)].done.0;
        // Only who holds the queue's device writes it.
        done.store(done.load(Ordering::Relaxed) + n as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use perimeter_base::PktBuf;
    use perimeter_sync::Native;

    /// Two queues, of which the first is polled.
    struct Two {
        s: Steering<OneThread>,
        ways: Ways,
    }

    impl Two {
        fn new() -> Two {
            Two {
                s: Steering::new(&Native::default(), 2),
                ways: Ways::new(0, 2),
            }
        }

        /// Frames of those flows come by queue 0; which of them are run there.
        fn come(&mut self, flows: &[u32]) -> Vec<u32> {
            self.come_to(&[0], flows)
        }

        /// As [`Two::come`], where the thread serves `own`.
        fn come_to(&mut self, own: &[u16], flows: &[u32]) -> Vec<u32> {
            let frame = |f: &u32| RxFrame {
                buf: PktBuf::default(),
                hash: Some(*f),
                csum_ok: true,
                segment_size: 0,
            };
            let mut frames = flows.iter().map(frame).collect();
            let given = self.s.sift(&mut self.ways, 7, own, &mut frames);
            let left: Vec<u32> = frames.iter().filter_map(|f| f.hash).collect();
            assert_eq!(!given.is_empty(), left.len() < flows.len());
            left
        }

        /// Takes what waits for queue 1.
        fn take(&self) -> Vec<u32> {
            let mut frames = Vec::new();
            let iface = self.s.take(1, usize::MAX, &mut frames);
            assert!(iface.is_none_or(|i| i == 7));
            frames.iter().filter_map(|f| f.hash).collect()
        }
    }

    #[test]
    fn frames_go_to_who_answers_them() {
        let mut t = Two::new();
        assert_eq!(t.come(&[1, 2, 1]), [1, 2, 1]);
        t.s.note(1, 1);
        t.s.note(2, 0);
        assert_eq!(t.come(&[1, 2, 3, 1]), [2, 3]);
        assert_eq!(t.s.waiting(1), 2);
        assert_eq!(t.take(), [1, 1]);
        assert_eq!((t.s.waiting(1), t.take()), (0, vec![]));
        t.s.processed(1, 2);
        // Who serves none of them has nothing brought.
        t.s.note(3, 2);
        t.s.note(4, NO_QUEUE);
        assert_eq!(t.come(&[3, 4]), [3, 4]);
        // A thread that serves both queues runs all.
        assert_eq!(t.come_to(&[0, 1], &[1, 2]), [1, 2]);
        assert_eq!(t.come(&[1, 2]), [2]);
    }

    #[test]
    fn a_flow_turns_once_all_of_it_was_processed() {
        let mut t = Two::new();
        t.s.note(1, 1);
        assert_eq!(t.come(&[1, 1]), []);
        t.s.note(1, NO_QUEUE);
        assert_eq!(t.come(&[1]), [], "two of it wait");
        assert_eq!(t.take(), [1, 1, 1]);
        t.s.processed(1, 2);
        assert_eq!(t.come(&[1]), [], "one of it is under way");
        t.s.processed(1, 1);
        assert_eq!(t.take(), [1]);
        t.s.processed(1, 1);
        assert_eq!(t.come(&[1]), [1]);
        // Nor does it leave in a burst of which some is to be run here.
        let burst = (0, t.ways.burst);
        let way = Way::new(0, t.ways.burst);
        assert_eq!(t.s.turn(way, burst, 1).queue(), 0);
        assert_eq!(t.s.turn(way, (0, burst.1 + 1), 1).queue(), 1);
    }

    #[test]
    fn one_interface_at_a_time() {
        let mut t = Two::new();
        t.s.note(1, 1);
        assert_eq!(t.come(&[1]), []);
        let mut ways = Ways::new(0, 2);
        let mut frames = vec![RxFrame {
            buf: PktBuf::default(),
            hash: Some(1),
            csum_ok: true,
            segment_size: 0,
        }];
        t.s.sift(&mut ways, 8, &[0], &mut frames);
        let mut out = Vec::new();
        assert_eq!((t.s.take(1, 9, &mut out), out.len()), (Some(7), 1));
        assert_eq!((t.s.take(1, 9, &mut out), out.len()), (Some(8), 2));
        assert_eq!(t.s.take(1, 9, &mut out), None);
    }
}

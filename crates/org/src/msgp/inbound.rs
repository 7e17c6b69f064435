//! Inbound work that is not done by who took the packet from the device: one bounded queue that
//! all NIC threads fill, and workers behind it.

use super::coupled::Core;
use crate::Kd;
use perimeter_base::Time;
use perimeter_stack::planted::{Bug, planted};
use perimeter_stack::{BURST, Count, Ctx, Seg, SharedState, Sleeper};
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Touched, Work};
use std::collections::VecDeque;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Segments that the shared queue holds; what does not fit is dropped and counted.
pub const QUEUE: usize = 1024;

/// Flows are told apart by this many hash values when tickets are drawn.
const LANES: usize = 256;

/// The queue, its workers, and the order of those.
pub(super) struct Inbound<P: Platform> {
    queue: P::Lock<Queue>,
    /// Where the workers park.
    bells: Box<[P::Event]>,
    /// `None`: one worker, which keeps the order by itself.
    lanes: Option<Box<[P::Lock<Lane>]>>,
    /// Cache lines of the segments that wait.
    lines: P::Tag,
}

struct Queue {
    segs: VecDeque<Seg>,
    /// Next ticket of each lane.
    tickets: Box<[u64]>,
    /// Workers that found nothing.
    idle: Vec<usize>,
    /// The stack is being dropped, and its workers with it.
    over: bool,
}

/// Why a segment is not in the queue.
enum Refused {
    /// There are no workers any more.
    Over,
    /// There is no room.
    Full,
}

/// Whose turn it is among the segments of one hash value.
#[derive(Default)]
struct Lane {
    turn: u64,
    /// Tickets whose turn is not yet, with the workers that hold them.
    waiting: Vec<(u64, usize)>,
}

/// A segment's place in its lane. Dropping it lets the next one in.
struct Turn<'a, P: Platform> {
    inbound: &'a Inbound<P>,
    lane: usize,
}

impl<P: Platform> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        let Some(lanes) = &self.inbound.lanes else {
            return;
        };
        let next = {
            let mut lane = lanes[self.lane].lock();
            lane.turn += 1;
            let turn = lane.turn;
            let next = lane.waiting.iter().position(|(ticket, _)| *ticket == turn);
            next.map(|i| lane.waiting.swap_remove(i).1)
        };
        if let Some(worker) = next {
            self.inbound.bells[worker].set();
        }
    }
}

impl<P: Platform> Inbound<P> {
    /// `ordered`: several workers, and tickets keep the order.
    pub(super) fn new(p: &P, workers: usize, ordered: bool) -> Inbound<P> {
        let lanes = if ordered { LANES } else { 0 };
        let queue = Queue {
            segs: VecDeque::new(),
            tickets: vec![0; lanes].into(),
            idle: Vec::new(),
            over: false,
        };
        let lane = |_| p.lock(LockClass::Leaf, Lane::default());
        Inbound {
            queue: p.lock(LockClass::Leaf, queue),
            bells: (0..workers).map(|_| p.event()).collect(),
            lanes: ordered.then(|| (0..lanes).map(lane).collect()),
            lines: P::Tag::default(),
        }
    }

    /// Puts a segment in the queue and wakes a worker that has nothing to do. When the workers
    /// are gone it is run here: the peer is to learn that its connection is, too.
    pub(super) fn put(&self, core: &Core<P>, cx: &mut Ctx<Kd<P>>, seg: &mut Seg) {
        match cx.sh.p.queueing(|| self.append(cx.sh, seg)) {
            Ok(None) => {}
            Ok(Some(worker)) => self.bells[worker].set(),
            Err(Refused::Over) => core.input(cx, seg, || ()),
            Err(Refused::Full) => {
                cx.count(Count::NetisrFull, 1);
                seg.release(&mut cx.pool);
            }
        }
    }

    /// Puts a segment in the queue; the worker to be woken, if one has nothing to do.
    fn append(&self, sh: &SharedState<Kd<P>>, seg: &mut Seg) -> Result<Option<usize>, Refused> {
        let mut queue = self.queue.lock();
        if queue.over {
            return Err(Refused::Over);
        }
        if queue.segs.len() >= QUEUE {
            return Err(Refused::Full);
        }
        sh.p.charge(Work::HandOver, 1);
        sh.p.touch(&self.lines, Touched::Message, 1, true);
        queue.segs.push_back(core::mem::take(seg));
        Ok(queue.idle.pop())
    }

    /// The next segment with its ticket, drawn together; `None`: the worker is idle now.
    fn take(&self, p: &P, worker: usize) -> Option<(Seg, u64)> {
        let mut queue = self.queue.lock();
        let Some(seg) = queue.segs.pop_front() else {
            if !queue.idle.contains(&worker) {
                queue.idle.push(worker);
            }
            return None;
        };
        p.touch(&self.lines, Touched::Message, 1, true);
        // After waking by itself.
        queue.idle.retain(|w| *w != worker);
        let mut ticket = 0;
        if self.lanes.is_some() {
            let next = &mut queue.tickets[seg.hash as usize % LANES];
            ticket = *next;
            *next += 1;
        }
        Some((seg, ticket))
    }

    /// Waits until it is the ticket's turn. No lock is held: who comes before needs them.
    ///
    /// It comes: all earlier tickets are with workers on their way into TCP, none of which waits
    /// for a later one.
    fn turn(&self, sh: &SharedState<Kd<P>>, worker: usize, hash: u32, ticket: u64) -> Turn<'_, P> {
        let lane = hash as usize % LANES;
        if let Some(lanes) = &self.lanes
            && !planted(Bug::TicketsIgnored)
        {
            let mut listed = false;
            loop {
                {
                    let mut l = lanes[lane].lock();
                    if l.turn == ticket {
                        l.waiting.retain(|(t, _)| *t != ticket);
                        break;
                    }
                    if !listed {
                        l.waiting.push((ticket, worker));
                        listed = true;
                    }
                }
                // The bell may ring for a segment instead; then it rings again for this.
                let until = sh.p.now() + sh.config.service;
                sh.asleep(Sleeper::Server, || self.bells[worker].wait(until));
            }
        }
        Turn {
            inbound: self,
            lane,
        }
    }

    /// Runs what waits: a burst of it by the one worker, which rings the doorbells afterwards;
    /// one segment where each has a thread of its own.
    pub(super) fn work(&self, worker: usize, core: &Core<P>, cx: &mut Ctx<Kd<P>>) -> usize {
        let most = if self.lanes.is_some() { 1 } else { BURST };
        for n in 0..most {
            let taken = cx.sh.p.queueing(|| self.take(&cx.sh.p, worker));
            let Some((mut seg, ticket)) = taken else {
                return n;
            };
            let turn = self.turn(cx.sh, worker, seg.hash, ticket);
            core.input(cx, &mut seg, || drop(turn));
        }
        most
    }

    /// Runs all that waits, in any order, and queues no more: the stack is being dropped, and the
    /// workers may have gone already.
    pub(super) fn run_out(&self, core: &Core<P>, cx: &mut Ctx<Kd<P>>) {
        let left = {
            let mut queue = self.queue.lock();
            queue.over = true;
            core::mem::take(&mut queue.segs)
        };
        for mut seg in left {
            core.input(cx, &mut seg, || ());
        }
    }

    pub(super) fn park(&self, worker: usize, deadline: Time) {
        self.bells[worker].wait(deadline);
    }

    /// The stack has ended: the workers look for themselves.
    pub(super) fn wake_workers(&self) {
        self.bells.iter().for_each(Event::set);
    }

    pub(super) fn workers(&self) -> usize {
        self.bells.len()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().segs.len()
    }

    pub(super) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Leaf, self.queue.stats());
        for lane in self.lanes.iter().flatten() {
            add(LockClass::Leaf, lane.stats());
        }
    }
}

//! Queues of the memory NIC.

use core::sync::atomic::{Ordering, fence};
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_sync::{Beacon, Lock, Platform, Touched, Work};
use std::sync::Arc;

use super::datagrams::Sender;
use super::flow::FlowShared;
use super::item::{Delayed, Item, What, merged, run};
use super::peer::Peer;
use super::stats::Published;
use super::{NicConfig, Port, Shared};
use crate::device::{RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use crate::pattern::Pattern;

/// What comes from one transmit queue.
struct Inbound<P: Platform> {
    frames: rtrb::Consumer<Item>,
    /// Theirs.
    lines: Arc<P::Tag>,
    timers: rtrb::Consumer<Delayed>,
    flows: Arc<[FlowShared]>,
}

#[repr(align(128))]
pub(super) struct MemRx<P: Platform> {
    platform: P,
    config: Arc<NicConfig>,
    shared: Arc<Shared>,
    /// Whoever sends datagrams to this queue.
    datagrams: Option<Sender>,
    ports: Arc<[Port<P>]>,
    index: usize,
    inbound: Vec<Inbound<P>>,
    /// Where polling starts, so that no transmit queue starves another.
    turn: usize,
    pattern: &'static Pattern,
    peer_ns: u64,
}

impl<P: Platform> MemRx<P> {
    pub(super) fn new(
        platform: &P,
        config: Arc<NicConfig>,
        shared: &Arc<Shared>,
        ports: Arc<[Port<P>]>,
        index: usize,
    ) -> MemRx<P> {
        MemRx {
            platform: platform.clone(),
            datagrams: Sender::new(&config, shared, index),
            shared: shared.clone(),
            config,
            ports,
            index,
            inbound: Vec::new(),
            turn: 0,
            pattern: Pattern::get(),
            peer_ns: 0,
        }
    }

    pub(super) fn add(
        &mut self,
        frames: rtrb::Consumer<Item>,
        timers: rtrb::Consumer<Delayed>,
        flows: Arc<[FlowShared]>,
        lines: Arc<P::Tag>,
    ) {
        self.inbound.push(Inbound {
            frames,
            lines,
            timers,
            flows,
        });
    }

    /// When the earliest frame or timer under way is due.
    fn next_due(&mut self) -> Time {
        let port = &self.ports[self.index];
        let sender = self.datagrams.as_ref();
        let mut due = sender.map_or(Time::NEVER, |s| s.due(&self.shared.released));
        if port.mailbox.len.load(Ordering::Acquire) != 0 {
            let frames = port.mailbox.frames.lock();
            due = due.min(frames.front().map_or(Time::NEVER, |f| f.0));
        }
        for i in &mut self.inbound {
            if let Ok(item) = i.frames.peek() {
                due = due.min(item.due);
            }
            // Also one that has nothing to acknowledge any more: until it is due its flow relies
            // on it for the next lone segment.
            if let Ok(timer) = i.timers.peek() {
                due = due.min(timer.due);
            }
        }
        due
    }

    fn mailbox(&mut self, now: Time, out: &mut Vec<RxFrame>, max: usize) {
        let mailbox = &self.ports[self.index].mailbox;
        if mailbox.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut frames = mailbox.frames.lock();
        while out.len() < max && frames.front().is_some_and(|f| f.0 <= now) {
            if let Some((_, hash, buf)) = frames.pop_front() {
                out.push(frame(buf, Some(hash)));
            }
        }
        mailbox.len.store(frames.len(), Ordering::Release);
    }

    /// Moves what one transmit queue has sent.
    fn drain(
        &mut self,
        turn: usize,
        now: Time,
        pool: &mut PktPool,
        out: &mut Vec<RxFrame>,
        max: usize,
    ) {
        let (nic, v6) = (&*self.config, self.config.v6);
        let inbound = &mut self.inbound[turn];
        let room = max.saturating_sub(out.len());
        let most = match nic.merges {
            true => inbound.frames.slots(),
            false => room.min(inbound.frames.slots()),
        };
        let mut came = 0;
        if let Ok(mut chunk) = inbound.frames.read_chunk(most) {
            let (first, second) = chunk.as_mut_slices();
            let mut ready = true;
            for items in [first, second] {
                let due = items.iter().take_while(|item| item.due <= now).count();
                if !ready {
                    break;
                }
                let items = &mut items[..due];
                let taken = match nic.merges {
                    true => merge(items, pool, out, max, nic, self.pattern),
                    false => arrive(items, pool, out, nic, self.pattern),
                };
                came += taken;
                ready = taken == items.len() && due == items.len();
            }
            chunk.commit(came);
        }
        let p = &self.platform;
        p.touch(&inbound.lines, Touched::PeerFrame, came, true);
        while out.len() < max {
            match inbound.timers.peek() {
                Ok(timer) if timer.due <= now => {}
                _ => break,
            }
            let Ok(timer) = inbound.timers.pop() else {
                break;
            };
            let word = word_of(&inbound.flows, &timer);
            if word == 0 {
                continue;
            }
            let shared = &inbound.flows[timer.flow as usize];
            shared.fired.store(word, Ordering::Release);
            let mut seg = timer.seg;
            seg.seq = shared.snd_nxt.load(Ordering::Acquire);
            seg.ack = (word >> 32) as u32;
            seg.tsecr = word as u32;
            seg.tsval = (now.0 / 1_000_000) as u32;
            let mut buf = pool.take(seg.room(v6));
            seg.build(&mut buf, nic, self.pattern);
            out.push(frame(buf, Some(timer.hash)));
        }
    }
}

/// Frames from the ring. Each is built from where its item lies there, in a buffer that already has
/// its place in `out`: copied right after it was built, it would be loaded in wider words than it
/// was stored in, which a processor can't forward. Returns how many items it took: all.
fn arrive(
    items: &mut [Item],
    pool: &mut PktPool,
    out: &mut Vec<RxFrame>,
    nic: &NicConfig,
    pattern: &Pattern,
) -> usize {
    let from = out.len();
    out.extend(items.iter_mut().map(|item| match &mut item.what {
        What::Seg(seg) => frame(pool.take(seg.room(nic.v6)), Some(item.hash)),
        What::Raw(buf) => frame(core::mem::take(buf), item.hashed.then_some(item.hash)),
    }));
    for (item, frame) in items.iter().zip(&mut out[from..]) {
        if let What::Seg(seg) = &item.what {
            seg.build(&mut frame.buf, nic, pattern);
        }
    }
    items.len()
}

/// As [`arrive`], of a NIC that merges, until `out` has `max` frames; how many items it took.
fn merge(
    items: &mut [Item],
    pool: &mut PktPool,
    out: &mut Vec<RxFrame>,
    max: usize,
    nic: &NicConfig,
    pattern: &Pattern,
) -> usize {
    let mut taken = 0;
    while taken < items.len() && out.len() < max {
        let items = &mut items[taken..];
        let n = run(items);
        taken += n;
        if n == 1 {
            arrive(&mut items[..1], pool, out, nic, pattern);
            continue;
        }
        let buf = merged(&items[..n], pool, nic, pattern);
        out.push(RxFrame {
            segment_size: items[0].payload(),
            ..frame(buf, Some(items[0].hash))
        });
    }
    taken
}

/// A frame as the NIC hands it over: one segment, its checksums verified.
#[inline(always)]
fn frame(buf: PktBuf, hash: Option<u32>) -> RxFrame {
    RxFrame {
        buf,
        hash,
        csum_ok: true,
        segment_size: 0,
    }
}

/// What a timer would acknowledge: 0 if nothing, or if its flow is gone.
fn word_of(flows: &[FlowShared], timer: &Delayed) -> u64 {
    let shared = &flows[timer.flow as usize];
    if shared.generation.load(Ordering::Acquire) != timer.generation {
        return 0;
    }
    let word = shared.lone.load(Ordering::Acquire);
    if shared.fired.load(Ordering::Relaxed) == word {
        return 0;
    }
    word
}

impl<P: Platform> RxQueue for MemRx<P> {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        self.ports[self.index].irq.disarm();
        let before = out.len();
        let max = before.saturating_add(max);
        self.platform.checkpoint();
        if self.next_due() > now {
            return 0;
        }
        let start = self.platform.now();
        self.platform.beacon(Beacon::PeerBegins);
        self.mailbox(now, out, max);
        let queues = self.inbound.len();
        for i in 0..queues {
            self.drain((self.turn + i) % queues, now, pool, out, max);
        }
        self.turn = (self.turn + 1) % queues;
        if let Some(sender) = &mut self.datagrams {
            sender.send(now, &self.shared, pool, out, max);
        }
        let n = out.len() - before;
        let made = out.iter().skip(before).map(|f| f.buf.len() as u64).sum();
        let mut frames = out.iter().skip(before).map(|f| f.buf.as_slice());
        self.platform.beacon(Beacon::DeviceWrote(&mut frames));
        self.platform.beacon(Beacon::PeerEnds);
        self.platform.charge(Work::Peer, n as u64);
        self.platform.charge(Work::PeerBytes, made);
        self.peer_ns += self.platform.now().nanos_since(start);
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let ports = self.ports.clone();
        ports[self.index].irq.arm(now, || self.next_due())
    }

    fn set_waker(&mut self, waker: Waker) {
        self.ports[self.index].irq.set_waker(waker);
    }

    fn peer_ns(&self) -> u64 {
        self.peer_ns
    }
}

#[repr(align(128))]
pub(super) struct MemTx<P: Platform> {
    platform: P,
    peer: Peer,
    /// Of the frames on their way to each receive queue, and of each flow.
    lines: Vec<Arc<P::Tag>>,
    flow_lines: Box<[P::Tag]>,
    ports: Arc<[Port<P>]>,
    published: Arc<[Published]>,
    index: usize,
    ready_at: Time,
    /// The last doorbell left frames.
    left: bool,
    peer_ns: u64,
}

/// How long a doorbell that found a ring full suggests to wait, ns: what a receive queue needs
/// for some hundred frames.
const FULL_WAIT: u64 = 5_000;

impl<P: Platform> MemTx<P> {
    pub(super) fn new(
        platform: &P,
        (peer, lines): (Peer, Vec<Arc<P::Tag>>),
        ports: Arc<[Port<P>]>,
        published: Arc<[Published]>,
        index: usize,
    ) -> MemTx<P> {
        MemTx {
            platform: platform.clone(),
            flow_lines: peer
                .flows
                .shared
                .iter()
                .map(|_| P::Tag::default())
                .collect(),
            peer,
            lines,
            ports,
            published,
            index,
            ready_at: Time::ZERO,
            left: false,
            peer_ns: 0,
        }
    }
}

impl<P: Platform> TxQueue for MemTx<P> {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let start = self.platform.now();
        self.platform.checkpoint();
        self.platform.beacon(Beacon::PeerBegins);
        let waited = self.left && self.peer.shared.tx_pacer.is_limited();
        let (p, flows) = (&self.platform, &self.flow_lines);
        let met = |flow: u32| p.touch(&flows[flow as usize], Touched::PeerFlow, 1, true);
        let n = self.peer.burst(now, waited, ring.pending(), met);
        for (lane, lines) in self.peer.lanes.iter().zip(&self.lines) {
            p.touch(lines, Touched::PeerFrame, lane.placed, true);
        }
        if n == ring.len() {
            ring.clear();
            self.ready_at = match self.peer.waits() {
                true => now.plus(FULL_WAIT),
                false => Time::ZERO,
            };
        } else {
            ring.consume(n);
            self.ready_at = if self.peer.shared.tx_pacer.is_limited() {
                self.peer.shared.tx_pacer.ready_at().max(now.plus(1))
            } else {
                now.plus(FULL_WAIT)
            };
        }
        self.left = !ring.is_empty();
        let published = &self.published[self.index];
        published.publish(&self.peer.counts);
        published
            .flows
            .store(self.peer.flows.len() as u64, Ordering::Relaxed);
        self.platform.beacon(Beacon::PeerEnds);
        self.platform.charge(Work::Peer, n as u64);
        if self.peer.config.interrupts {
            // One fence for all receive queues: see `irq`.
            fence(Ordering::SeqCst);
            for (lane, port) in self.peer.lanes.iter().zip(self.ports.iter()) {
                if lane.earliest != Time::NEVER {
                    port.irq.raise_fenced(lane.earliest);
                }
            }
        }
        self.peer_ns += self.platform.now().nanos_since(start);
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn peer_ns(&self) -> u64 {
        self.peer_ns
    }
}

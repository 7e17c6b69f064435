//! Two devices back to back: what one sends, the other receives.
//!
//! A frame is copied once, at the doorbell, into a buffer that the receiving side has posted, as
//! a NIC's DMA would. Large segments may be handed on instead, as a veth pair hands on pages.
//! Each direction has a latency, a rate and faults of its own.

use perimeter_base::buf::{POOLED_LARGE, roomy};
use perimeter_base::{Bytes, PktBuf, PktPool, Time, TxDesc, TxRing};
use perimeter_sync::{Lock, LockClass, Platform, Work};
use perimeter_wire::MacAddr;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::csum;
use crate::device::{
    Capabilities, Device, LARGEST, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
use crate::fault::{FaultConfig, FaultCounters, FaultCounts, Faults, Packet};
use crate::irq::{Irq, Moderation};
use crate::pace::{FIFO_NS, OVERHEAD, Pacer};
use crate::rss::Rss;

/// One end of a wire.
///
/// ```
/// use perimeter_link::fault::FaultConfig;
/// use perimeter_link::wire::{EndConfig, WireConfig};
///
/// // One packet in a hundred is lost on the way from the second end to the first.
/// let lossy = EndConfig::new(2).with_faults(FaultConfig::default().with_seed(7).with_loss(0.01));
/// let config = WireConfig::default().with_ends([EndConfig::new(1), lossy]);
/// assert!(config.ends[0].faults.is_clean() && !config.ends[1].faults.is_clean());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndConfig {
    /// Name, for people.
    pub name: String,
    /// Link-layer address.
    pub mac: MacAddr,
    /// Receive queues, at least 1.
    pub rx_queues: usize,
    /// Transmit queues, at least 1.
    pub tx_queues: usize,
    /// Frames that wait in a receive queue at most; more are dropped, as by a NIC whose ring is
    /// full.
    pub rx_ring: usize,
    /// What this end's *outgoing* frames meet.
    pub faults: FaultConfig,
}

impl EndConfig {
    /// End number `index`: one queue each way, no faults.
    pub fn new(index: usize) -> EndConfig {
        EndConfig {
            name: format!("wire{index}"),
            mac: MacAddr([0x02, 0x50, 0x4d, 1, 0, index as u8]),
            rx_queues: 1,
            tx_queues: 1,
            rx_ring: 4096,
            faults: FaultConfig::default(),
        }
    }
}

perimeter_base::setters! {
    EndConfig {
        with_name(name: impl Into<String>),
        with_mac(mac: MacAddr),
        with_rx_queues(rx_queues: usize),
        with_tx_queues(tx_queues: usize),
        with_rx_ring(rx_ring: usize),
        with_faults(faults: FaultConfig),
    }
}

/// A wire between two stacks.
///
/// ```
/// use perimeter_link::wire::WireConfig;
///
/// // A line of 10 Mb/s to the other side of an ocean.
/// let line = WireConfig::default().with_gbps(Some(0.01)).with_latency_ns(40_000_000);
/// assert_eq!((line.mtu, line.ends[0].name.as_str()), (1500, "wire1"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WireConfig {
    /// The two ends.
    pub ends: [EndConfig; 2],
    /// Largest IP packet, bytes; at least 68.
    pub mtu: u32,
    /// What frames start with.
    pub medium: Medium,
    /// One way, ns.
    pub latency_ns: u64,
    /// Rate of each direction, Gb/s; `None`: unlimited.
    pub gbps: Option<f64>,
    /// Checksums are offloaded: completed by the device if there are faults, else neither
    /// computed nor verified by anybody.
    pub checksum_offload: bool,
    /// Large segments of TCP pass uncut, as between two ends of a veth pair. Needs checksum offload;
    /// an end whose frames meet faults has none, as these are done to segments. The receiving
    /// stack should take large segments, too.
    pub large: bool,
    /// Large segments are not copied: the receiver gets the memory that the sender's application or
    /// stack has put them in, and both keep it as long as they need it.
    pub hand_on: bool,
    /// Call wakers. False: pure polling.
    pub interrupts: bool,
    /// The interrupt comes this long after the first frame, ns.
    pub interrupt_delay_ns: u64,
}

impl Default for WireConfig {
    fn default() -> WireConfig {
        WireConfig {
            ends: [EndConfig::new(1), EndConfig::new(2)],
            mtu: 1500,
            medium: Medium::Ethernet,
            latency_ns: 5_000,
            gbps: None,
            checksum_offload: true,
            large: false,
            hand_on: false,
            interrupts: true,
            interrupt_delay_ns: 0,
        }
    }
}

perimeter_base::setters! {
    WireConfig {
        with_ends(ends: [EndConfig; 2]),
        with_mtu(mtu: u32),
        with_medium(medium: Medium),
        with_latency_ns(latency_ns: u64),
        with_gbps(gbps: Option<f64>),
        with_checksum_offload(checksum_offload: bool),
        with_large(large: bool),
        with_hand_on(hand_on: bool),
        with_interrupts(interrupts: bool),
        with_interrupt_delay_ns(interrupt_delay_ns: u64),
    }
}

impl WireConfig {
    /// Length of the longest frame, bytes.
    fn longest(&self) -> usize {
        self.mtu as usize + ETHERNET
    }
}

/// Memory that is handed on with a frame. In place, as who frees what another core has allocated
/// waits for that core's allocator.
type Pages = SmallVec<[Bytes; 4]>;

/// Frames on their way to one receive queue, in order of arrival.
#[derive(Default)]
struct Flight {
    frames: VecDeque<(Time, RxFrame)>,
    /// What is handed on with those that are large, if the wire hands on: as many.
    pages: VecDeque<Pages>,
    /// Buffers that the receiver has posted.
    posted: Vec<PktBuf>,
    /// The same for large segments that are copied.
    posted_large: Vec<PktBuf>,
    dropped: u64,
}

impl Flight {
    fn add(&mut self, due: Time, frame: RxFrame, pages: Option<Pages>, limit: usize) {
        if self.frames.len() >= limit {
            self.dropped += 1;
            if frame.segment_size == 0 {
                self.posted.push(frame.buf);
            } else if frame.buf.capacity() == POOLED_LARGE {
                self.posted_large.push(frame.buf);
            }
            return;
        }
        // Nearly always at the end; reordered frames go where their time says.
        let mut at = self.frames.len();
        while at > 0 && self.frames[at - 1].0 > due {
            at -= 1;
        }
        if let Some(pages) = pages {
            let large = |(_, f): &&(Time, RxFrame)| f.segment_size > 0;
            let behind = self.frames.range(at..).filter(large).count();
            self.pages.insert(self.pages.len() - behind, pages);
        }
        self.frames.insert(at, (due, frame));
    }
}

// The two ends belong to different cores: what one of them writes for each frame shares no cache
// lines, nor pairs of them, with what is the other's.
#[repr(align(128))]
struct Port<P: Platform> {
    flight: P::Lock<Flight>,
    irq: Irq<P>,
}

/// One direction, as its transmit queues share it.
#[repr(align(128))]
struct Direction<P: Platform> {
    ports: Arc<[Port<P>]>,
    pacer: Pacer,
    rss: Rss,
    /// Shared by the direction's queues, so that a seed means one sequence of faults.
    faults: Option<P::Lock<Faults>>,
    counters: Arc<FaultCounters>,
}

/// One end of a wire. A [`Device`].
///
/// ```
/// use perimeter_link::Device;
/// use perimeter_link::wire::{End, WireConfig, pair};
/// use perimeter_sync::Native;
///
/// let ([a, b], _): ([End<Native>; 2], _) = pair(&Native::default(), WireConfig::default());
/// let names = [&a, &b].map(|end| end.capabilities().name);
/// assert_eq!(names, ["wire1", "wire2"]);
/// ```
pub struct End<P: Platform> {
    platform: P,
    config: Arc<WireConfig>,
    side: usize,
    out: Arc<Direction<P>>,
    inbound: Arc<[Port<P>]>,
}

/// What happened on one direction of a wire. Cheap to clone.
///
/// ```
/// use perimeter_link::wire::{WireConfig, pair};
/// use perimeter_sync::Native;
///
/// let ([a, b], [from_a, _]) = pair(&Native::default(), WireConfig::default());
/// // What a test asks when it is over: has everything arrived, and what was lost?
/// assert_eq!((from_a.in_flight(), from_a.overflows()), (0, 0));
/// println!("{:?}", from_a.faults());
/// assert!(!from_a.alone());
/// drop((a, b));
/// assert!(from_a.alone(), "both ends have gone");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WireHandle<P: Platform> {
    out: Arc<Direction<P>>,
}

impl<P: Platform> Clone for WireHandle<P> {
    fn clone(&self) -> Self {
        WireHandle {
            out: self.out.clone(),
        }
    }
}

impl<P: Platform> WireHandle<P> {
    /// What the faults did.
    pub fn faults(&self) -> FaultCounts {
        self.out.counters.read()
    }

    /// Frames dropped because a receive queue was full.
    pub fn overflows(&self) -> u64 {
        let dropped = |p: &Port<P>| p.flight.lock().dropped;
        self.out.ports.iter().map(dropped).sum()
    }

    /// Whether nothing refers to this direction but this handle: its sender has gone, and there
    /// is no other handle of it.
    pub fn alone(&self) -> bool {
        Arc::strong_count(&self.out) == 1
    }

    /// Frames under way or waiting to be polled.
    pub fn in_flight(&self) -> usize {
        let waiting = |p: &Port<P>| p.flight.lock().frames.len();
        self.out.ports.iter().map(waiting).sum()
    }
}

/// Two ends and, for each, the handle of the direction that it sends on.
///
/// ```
/// use perimeter_link::wire::{WireConfig, pair};
/// use perimeter_link::{Device, Medium};
/// use perimeter_sync::Native;
///
/// // Each end goes to a stack as its interface.
/// let config = WireConfig::default().with_mtu(9000).with_medium(Medium::Ip);
/// let ([a, b], [from_a, from_b]) = pair(&Native::default(), config);
/// assert_eq!((a.capabilities().mtu, b.capabilities().medium), (9000, Medium::Ip));
/// assert_eq!(from_a.in_flight() + from_b.in_flight(), 0);
/// ```
pub fn pair<P: Platform>(platform: &P, config: WireConfig) -> ([End<P>; 2], [WireHandle<P>; 2]) {
    let mut config = config;
    config.mtu = config.mtu.max(68);
    for end in &mut config.ends {
        end.rx_queues = end.rx_queues.clamp(1, 64);
        end.tx_queues = end.tx_queues.clamp(1, 64);
    }
    let config = Arc::new(config);
    let moderation = Moderation {
        delay: config.interrupt_delay_ns,
        gap: 0,
    };
    let ports = |side: usize| -> Arc<[Port<P>]> {
        (0..config.ends[side].rx_queues)
            .map(|_| Port {
                flight: platform.lock(LockClass::Leaf, Flight::default()),
                irq: Irq::new(platform, config.interrupts, moderation),
            })
            .collect()
    };
    let ports = [ports(0), ports(1)];
    let direction = |side: usize| {
        let faults = &config.ends[side].faults;
        Arc::new(Direction {
            ports: ports[1 - side].clone(),
            pacer: Pacer::new(config.gbps),
            rss: Rss::even(ports[1 - side].len()),
            faults: (!faults.is_clean())
                .then(|| platform.lock(LockClass::Leaf, Faults::new(faults.clone()))),
            counters: Arc::new(FaultCounters::default()),
        })
    };
    let out = [direction(0), direction(1)];
    let handles = [0, 1].map(|side: usize| WireHandle {
        out: out[side].clone(),
    });
    let ends = [0, 1].map(|side: usize| End {
        platform: platform.clone(),
        config: config.clone(),
        side,
        out: out[side].clone(),
        inbound: ports[side].clone(),
    });
    (ends, handles)
}

impl<P: Platform> Device for End<P> {
    fn capabilities(&self) -> Capabilities {
        let end = &self.config.ends[self.side];
        let ethernet = self.config.medium == Medium::Ethernet;
        Capabilities {
            name: end.name.clone(),
            medium: self.config.medium,
            mac: if ethernet {
                end.mac
            } else {
                MacAddr::default()
            },
            mtu: self.config.mtu,
            tx_checksum: self.config.checksum_offload,
            large: match self.config.large && self.config.checksum_offload {
                true if end.faults.is_clean() => LARGEST,
                _ => 0,
            },
            large_datagrams: 0,
            hands_on: self.config.hand_on,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let rx = (0..self.inbound.len()).map(|index| {
            Box::new(EndRx {
                platform: self.platform.clone(),
                ports: self.inbound.clone(),
                index,
                longest: self.config.longest(),
            }) as Box<dyn RxQueue>
        });
        let tx = (0..self.config.ends[self.side].tx_queues).map(|_| {
            Box::new(EndTx {
                platform: self.platform.clone(),
                config: self.config.clone(),
                limit: self.config.ends[1 - self.side].rx_ring.max(1),
                out: self.out.clone(),
                placed: self.out.ports.iter().map(|_| Placed::default()).collect(),
                unseen: 0,
                packets: Vec::new(),
                spare: Vec::new(),
                spare_large: Vec::new(),
                ready_at: Time::ZERO,
                clock: Time::ZERO,
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

#[repr(align(128))]
struct EndRx<P: Platform> {
    platform: P,
    ports: Arc<[Port<P>]>,
    index: usize,
    /// Length of the longest frame, bytes: the buffers that it posts have room for that.
    longest: usize,
}

/// Length of an Ethernet header, bytes.
const ETHERNET: usize = 14;

/// Frames of a doorbell that are placed in a receive queue at a time: the queue's lock and its lines
/// go between two cores once for all of them.
const BATCH: usize = 32;

/// Buffers that a receive queue keeps posted beyond what is under way.
const POSTED: usize = 512;

/// As many of those for large segments.
const POSTED_LARGE: usize = 32;

impl<P: Platform> RxQueue for EndRx<P> {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let port = &self.ports[self.index];
        port.irq.disarm();
        let mut flight = port.flight.lock();
        let mut n = 0;
        while n < max && flight.frames.front().is_some_and(|f| f.0 <= now) {
            let Some((_, mut frame)) = flight.frames.pop_front() else {
                break;
            };
            let large = frame.segment_size > 0;
            if let Some(pages) = flight.pages.pop_front_if(|_| large)
                && !pages.is_empty()
            {
                let head = Bytes::copy_from_slice(frame.buf.as_slice());
                let shared = PktBuf::shared(head, pages.into_vec());
                pool.put(std::mem::replace(&mut frame.buf, shared));
            }
            // A buffer for a buffer.
            if frame.buf.capacity() == POOLED_LARGE && large {
                if flight.posted_large.len() < POSTED_LARGE {
                    flight.posted_large.push(pool.take(POOLED_LARGE));
                }
            } else if flight.posted.len() < POSTED {
                flight.posted.push(pool.take(self.longest));
            }
            out.push(frame);
            n += 1;
        }
        drop(flight);
        self.platform.charge(Work::Peer, n as u64);
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let port = &self.ports[self.index];
        port.irq.arm(now, || {
            let flight = port.flight.lock();
            flight.frames.front().map_or(Time::NEVER, |f| f.0)
        })
    }

    fn set_waker(&mut self, waker: Waker) {
        self.ports[self.index].irq.set_waker(waker);
    }
}

/// Frames for one receive queue that its receiver does not see yet, and what is handed on with the
/// large ones.
#[derive(Default)]
#[repr(align(128))]
struct Placed(Vec<(Time, RxFrame)>, VecDeque<Pages>);

#[repr(align(128))]
struct EndTx<P: Platform> {
    platform: P,
    config: Arc<WireConfig>,
    limit: usize,
    out: Arc<Direction<P>>,
    /// Per receive queue, of this doorbell.
    placed: Vec<Placed>,
    /// How many those are.
    unseen: usize,
    /// What the faults made of one frame.
    packets: Vec<Packet>,
    spare: Vec<PktBuf>,
    spare_large: Vec<PktBuf>,
    ready_at: Time,
    /// The latest time that a doorbell was told.
    clock: Time,
}

impl<P: Platform> EndTx<P> {
    /// Copies a frame, or hands on the `pages` that its payload is in, and sends what the faults
    /// make of it. `now`: when its last bit leaves.
    fn send(&mut self, now: Time, d: &TxDesc, pages: Vec<Bytes>) {
        if self.unseen >= BATCH {
            self.hand_over();
        }
        let due = now.plus(self.config.latency_ns);
        if d.offload.segment_size > 0 {
            let buf = if pages.is_empty() {
                self.large_copy(d)
            } else {
                let mut head = self.buffer(d.headers().len());
                head.raw_mut()[..d.headers().len()].copy_from_slice(d.headers());
                head
            };
            let q = self.place(due, buf, self.hash(d), (true, d.offload.segment_size));
            if self.config.hand_on {
                self.placed[q].1.push_back(pages.into_iter().collect());
            }
            return;
        }
        let mut buf = self.buffer(d.frame_len());
        if self.out.faults.is_none() {
            // Placed first, copied then. Its memory's lines are the other core's: whoever moves
            // the buffer behind the copy waits until those stores are done.
            let q = self.place(due, buf, self.hash(d), (d.offload.csum_start != 0, 0));
            if let Some((_, frame)) = self.placed[q].0.last_mut() {
                csum::copy_out(d, frame.buf.raw_mut());
            }
            return;
        }
        csum::copy_out(d, buf.raw_mut());
        csum::complete(buf.as_mut_slice(), d.offload);
        self.meet_faults(Packet { due, buf });
    }

    /// A buffer for `len` bytes, posted by the receiver if there is one.
    fn buffer(&mut self, len: usize) -> PktBuf {
        let mut buf = match self.spare.pop() {
            Some(b) if b.capacity() >= len => b,
            _ => PktBuf::with_capacity(roomy(len.max(self.config.longest()))),
        };
        buf.set_window(0, len);
        buf
    }

    /// A copy of a large segment: in a buffer that the receiver has posted, or in one of its own
    /// size where that is far from theirs.
    fn large_copy(&mut self, d: &TxDesc) -> PktBuf {
        let len = d.frame_len();
        if roomy(len) != POOLED_LARGE {
            let mut frame = Vec::with_capacity(len);
            csum::gather(d, &mut frame);
            return PktBuf::from_vec(frame);
        }
        let posted = self.spare_large.pop();
        let mut buf = posted.unwrap_or_else(|| PktBuf::with_capacity(POOLED_LARGE));
        buf.set_window(0, len);
        csum::copy_out(d, buf.raw_mut());
        buf
    }

    /// Sends what the faults make of a frame.
    fn meet_faults(&mut self, packet: Packet) {
        let out = self.out.clone();
        let Some(faults) = &out.faults else { return };
        let mut packets = std::mem::take(&mut self.packets);
        let mut faults = faults.lock();
        faults.pass(packet, self.config.medium, &out.counters, &mut packets);
        drop(faults);
        for p in packets.drain(..) {
            let hash = self.hash_of(p.buf.as_slice());
            self.place(p.due, p.buf, hash, (false, 0));
        }
        self.packets = packets;
    }

    fn hash_of(&self, frame: &[u8]) -> Option<u32> {
        match self.config.medium {
            Medium::Ethernet => self.out.rss.hash_ethernet(frame),
            Medium::Ip => self.out.rss.hash_ip(frame),
        }
    }

    /// The hash of a frame's flow. Its headers are nearly always all in the descriptor.
    fn hash(&self, d: &TxDesc) -> Option<u32> {
        self.hash_of(d.headers()).or_else(|| {
            let mut frame = Vec::new();
            csum::gather(d, &mut frame);
            self.hash_of(&frame)
        })
    }

    /// Puts a frame where [`EndTx::hand_over`] finds it, with its checksum and segment size; the
    /// queue's number.
    fn place(
        &mut self,
        due: Time,
        buf: PktBuf,
        hash: Option<u32>,
        (csum_ok, segment_size): (bool, u16),
    ) -> usize {
        let q = hash.map_or(0, |h| self.out.rss.queue(h));
        self.placed[q].0.push((
            due,
            RxFrame {
                buf,
                hash,
                csum_ok,
                segment_size,
            },
        ));
        self.unseen += 1;
        q
    }

    /// Lets the receivers see the frames, and takes buffers that they have posted for the next.
    fn hand_over(&mut self) {
        self.unseen = 0;
        for (port, Placed(placed, pages)) in self.out.ports.iter().zip(&mut self.placed) {
            let Some(earliest) = placed.iter().map(|(due, _)| *due).min() else {
                continue;
            };
            let mut flight = port.flight.lock();
            for (due, frame) in placed.drain(..) {
                let large = frame.segment_size > 0;
                let pages = pages.pop_front_if(|_| large);
                flight.add(due, frame, pages, self.limit);
            }
            let wanted = BATCH.saturating_sub(self.spare.len());
            let keep = flight.posted.len().saturating_sub(wanted);
            self.spare.extend(flight.posted.drain(keep..));
            if self.spare_large.is_empty() {
                self.spare_large.append(&mut flight.posted_large);
            }
            drop(flight);
            port.irq.raise(earliest);
        }
    }
}

impl<P: Platform> TxQueue for EndTx<P> {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        // Threads read the clock before they get here, and may get here in another order: an
        // earlier time must not let these frames overtake those of the last doorbell.
        let now = now.max(self.clock);
        self.clock = now;
        let mut n = 0;
        let limited = self.out.pacer.is_limited();
        let waited = self.ready_at != Time::ZERO;
        while n < ring.len() {
            let mut at = now;
            if limited {
                let bytes = ring.pending()[n].frame_len() + OVERHEAD;
                match self.out.pacer.send(now, waited, bytes, FIFO_NS) {
                    Some(t) => at = t,
                    None => break,
                }
            }
            let pages = match self.config.hand_on {
                true => ring.take_pages(n),
                false => Vec::new(),
            };
            self.send(at, &ring.pending()[n], pages);
            n += 1;
        }
        if n == ring.len() {
            ring.clear();
            self.ready_at = Time::ZERO;
        } else {
            ring.consume(n);
            self.ready_at = self.out.pacer.ready_at().max(now.plus(1));
        }
        self.platform.charge(Work::Peer, n as u64);
        self.hand_over();
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        // Beside this direction only the receiving end holds its ports.
        Arc::strong_count(&self.out.ports) > 1
    }
}

//! The memory NIC with an ideal peer.
//!
//! The peer plays every address of a subnet but the stack's own. It runs inside the transmit
//! doorbell, on the sender's core, and its time is measured by bracketing bursts with clock
//! reads ([`crate::TxQueue::peer_ns`]). Connections are private to the transmit queue that
//! carries them: **all segments of a connection must leave by one transmit queue**. Frames
//! travel to the receive queues through single-producer rings, one per pair of queues; there is
//! no lock on the way and, without pacing, no atomic read-modify-write.
//!
//! What the peer leaves out, being ideal: retransmission timers (its own segments are sent
//! again only after duplicate ACKs or when the stack repeats something), congestion control,
//! and the stack's payload, which is not read unless it is verified.

pub mod datagrams;
mod flow;
mod item;
mod peer;
mod queue;
mod slow;
mod stats;
mod subnet;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicUsize, Ordering};
use perimeter_base::{PktBuf, Time};
use perimeter_sync::{Lock, LockClass, Platform};
use perimeter_wire::{FlowKey, MacAddr, SegOut, Seq, TcpFlags, TcpOptions};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::{Capabilities, Device, Medium, Queues, RxQueue, TxQueue};
use crate::irq::{Irq, Moderation};
use crate::pace::Pacer;
use crate::pattern::Pattern;
use crate::rss::Rss;

pub use datagrams::DatagramConfig;
use datagrams::Released;
pub use flow::FlowReport;
use flow::{Flows, Key};
use peer::{Lane, Peer};
use queue::{MemRx, MemTx};
pub use stats::PeerCounts;
pub use subnet::PREFIX6;

/// On which connections the peer sends data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// None: it is a sink.
    #[default]
    Never,
    /// All.
    Always,
    /// Those with one of these ports at the peer's end.
    Ports(RangeInclusive<u16>),
}

/// Requests that the peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Bytes of a request, at least 1.
    pub request: u32,
    /// Bytes of the response that follows each whole request.
    pub response: u32,
}

/// How the ideal peer behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerConfig {
    /// From a frame's doorbell to the arrival of its answer, ns.
    pub rtt_ns: u64,
    /// Acknowledge at once every this many full-sized segments. 2 is what RFC 9293, section
    /// 3.8.6.3, asks for; more are stretch ACKs.
    pub ack_every: u32,
    /// Until less than that is acknowledged, ns: at most 500 ms (RFC 9293, section 3.8.6.3).
    pub delayed_ack_ns: u64,
    /// Receive window, bytes; at most 2^30. It never shrinks, as the peer reads at once.
    pub window: u32,
    /// Accept and use timestamps (RFC 7323).
    pub timestamps: bool,
    /// Accept and use SACK (RFC 2018).
    pub sack: bool,
    /// Which connections the peer sends data on: the stream of [`Pattern`], as fast as windows
    /// allow.
    pub source: Source,
    /// Bytes that a source keeps in flight at most, besides the stack's window.
    pub source_window: u32,
    /// Instead of sending as fast as windows allow, a source answers requests. Makes every
    /// connection a source.
    pub answers: Option<Answers>,
    /// Most payload of a segment that a source sends, bytes, at least 1: what it would write at a
    /// time without delay. The connection's maximum segment size holds besides.
    pub source_segment: u32,
    /// A source closes after this many bytes; `None`: it goes on until the stack closes.
    pub source_bytes: Option<u64>,
    /// Compare one in this many data segments with the stream, checksums included. 0: none.
    pub verify_every: u32,
    /// Connections per transmit queue at most.
    pub max_flows: usize,
    /// Ports that refuse connections.
    pub refuse: Option<RangeInclusive<u16>>,
    /// Datagrams of UDP that it takes and sends; `None`: it has no socket for any.
    pub datagrams: Option<DatagramConfig>,
}

impl Default for PeerConfig {
    fn default() -> PeerConfig {
        PeerConfig {
            rtt_ns: 50_000,
            ack_every: 2,
            delayed_ack_ns: 40_000_000,
            window: 1 << 20,
            timestamps: true,
            sack: true,
            source: Source::Never,
            source_window: 256 << 10,
            answers: None,
            source_segment: u32::MAX,
            source_bytes: None,
            verify_every: 0,
            max_flows: 32_768,
            refuse: None,
            datagrams: None,
        }
    }
}

perimeter_base::setters! {
    PeerConfig {
        with_rtt_ns(rtt_ns: u64),
        with_ack_every(ack_every: u32),
        with_delayed_ack_ns(delayed_ack_ns: u64),
        with_window(window: u32),
        with_timestamps(timestamps: bool),
        with_sack(sack: bool),
        with_source(source: Source),
        with_source_window(source_window: u32),
        with_answers(answers: Option<Answers>),
        with_source_segment(source_segment: u32),
        with_source_bytes(source_bytes: Option<u64>),
        with_verify_every(verify_every: u32),
        with_max_flows(max_flows: usize),
        with_refuse(refuse: Option<RangeInclusive<u16>>),
        with_datagrams(datagrams: Option<DatagramConfig>),
    }
}

impl PeerConfig {
    fn sources(&self, port: u16) -> bool {
        match &self.source {
            _ if self.answers.is_some() => true,
            Source::Never => false,
            Source::Always => true,
            Source::Ports(ports) => ports.contains(&port),
        }
    }

    fn refuses(&self, port: u16) -> bool {
        self.refuse.as_ref().is_some_and(|r| r.contains(&port))
    }
}

/// A memory NIC and what is behind it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicConfig {
    /// Name, for people.
    pub name: String,
    /// Link-layer address of the NIC.
    pub mac: MacAddr,
    /// Link-layer address of the peer.
    pub peer_mac: MacAddr,
    /// The stack's address: the one of the subnet that the peer does not play.
    pub host: Ipv4Addr,
    /// Prefix length of the subnet around `host`.
    pub prefix: u8,
    /// The subnet is one of IPv6, and nothing in it speaks IPv4: its addresses are [`PREFIX6`]
    /// with those that `host` and `prefix` say in the last 32 bits. [`NicConfig::address`] is the
    /// stack's then.
    pub v6: bool,
    /// Largest IP packet, bytes: 68 (over IPv6 1280) to 9216, else clamped.
    pub mtu: u32,
    /// Receive queues: 1 to 64, else clamped.
    pub rx_queues: usize,
    /// Transmit queues: 1 to 64, else clamped.
    pub tx_queues: usize,
    /// RSS redirection table; `None`: even.
    pub rss_table: Option<Vec<u16>>,
    /// Rate of each direction, Gb/s; `None`: unlimited.
    pub gbps: Option<f64>,
    /// Full frames that it takes from the stack's ring ahead of the wire if it has a rate, as devices do
    /// that fetch descriptors by themselves: the stack is told when half of them have left, and not
    /// frame by frame. 0: what its FIFO holds, 10 µs.
    pub descriptors: usize,
    /// Call wakers. False: pure polling.
    pub interrupts: bool,
    /// The interrupt comes this long after the first frame, ns.
    pub interrupt_delay_ns: u64,
    /// The shortest time between two interrupts, ns, as NICs have that throttle them. The first frame
    /// after a pause interrupts at once.
    pub interrupt_gap_ns: u64,
    /// Frames that a ring between two queues holds: at least 256, else raised.
    pub ring: usize,
    /// Complete transport checksums.
    pub tx_checksum: bool,
    /// The longest payload that it cuts into segments, or datagrams, octets; 0: it can't cut.
    pub large: u32,
    /// It merges segments of a flow that have arrived one after the other into one frame, as NICs with
    /// hardware GRO (generic receive offload) do.
    pub merges: bool,
    /// The other end.
    pub peer: PeerConfig,
}

perimeter_base::setters! {
    NicConfig {
        with_name(name: impl Into<String>),
        with_mac(mac: MacAddr),
        with_peer_mac(peer_mac: MacAddr),
        with_host(host: Ipv4Addr),
        with_prefix(prefix: u8),
        with_v6(v6: bool),
        with_mtu(mtu: u32),
        with_rx_queues(rx_queues: usize),
        with_tx_queues(tx_queues: usize),
        with_rss_table(rss_table: Option<Vec<u16>>),
        with_gbps(gbps: Option<f64>),
        with_descriptors(descriptors: usize),
        with_interrupts(interrupts: bool),
        with_interrupt_delay_ns(interrupt_delay_ns: u64),
        with_interrupt_gap_ns(interrupt_gap_ns: u64),
        with_ring(ring: usize),
        with_tx_checksum(tx_checksum: bool),
        with_large(large: u32),
        with_merges(merges: bool),
        with_peer(peer: PeerConfig),
    }
}

impl NicConfig {
    /// NIC number `index` (0 to 253, else taken modulo 254) of a machine, all defaults: MTU
    /// 1500, one queue each way, the stack at `10.index+1.0.1/16`.
    pub fn new(index: usize) -> NicConfig {
        let n = (index % 254 + 1) as u8;
        NicConfig {
            name: format!("mem{index}"),
            mac: MacAddr([0x02, 0x50, 0x4d, 0, 0, n]),
            peer_mac: MacAddr([0x02, 0x50, 0x4d, 0, 1, n]),
            host: Ipv4Addr::new(10, n, 0, 1),
            prefix: 16,
            v6: false,
            mtu: 1500,
            rx_queues: 1,
            tx_queues: 1,
            rss_table: None,
            gbps: None,
            descriptors: 0,
            interrupts: true,
            interrupt_delay_ns: 0,
            interrupt_gap_ns: 0,
            ring: 1024,
            tx_checksum: true,
            large: crate::device::LARGEST,
            merges: false,
            peer: PeerConfig::default(),
        }
    }

    /// Whether the peer plays this address.
    fn plays(&self, addr: Ipv4Addr) -> bool {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(self.prefix.min(32)))
            .unwrap_or(0);
        let (a, h) = (addr.to_bits(), self.host.to_bits());
        a != h && (a ^ h) & mask == 0 && !addr.is_broadcast() && a | mask != u32::MAX
    }

    /// The peer's maximum segment size, options not counted.
    fn mss(&self) -> u32 {
        self.mtu - self.ip_header() as u32 - 20
    }

    fn sane(mut self) -> NicConfig {
        // What every link of the family carries (RFC 791, RFC 8200).
        let least = if self.v6 { 1280 } else { 68 };
        self.mtu = self.mtu.clamp(least, crate::pattern::MAX_SLICE as u32);
        self.rx_queues = self.rx_queues.clamp(1, 64);
        self.tx_queues = self.tx_queues.clamp(1, 64);
        self.ring = self.ring.max(256);
        self.peer.window = self.peer.window.clamp(1, 1 << 30);
        self.peer.ack_every = self.peer.ack_every.clamp(1, 1 << 14);
        self.peer.max_flows = self.peer.max_flows.max(1);
        self
    }
}

/// What all queues of a NIC share, all of it constant but the pacers.
struct Shared {
    rss: Rss,
    tx_pacer: Pacer,
    rx_pacer: Pacer,
    released: Released,
}

/// The flow of a key, from the peer's point of view.
fn flow_key(config: &NicConfig, key: Key) -> FlowKey {
    FlowKey {
        local: config.ip(key.peer),
        remote: config.ip(key.host),
        local_port: (key.ports >> 16) as u16,
        remote_port: key.ports as u16,
    }
}

impl Shared {
    fn hash(&self, config: &NicConfig, key: Key) -> u32 {
        self.rss.hash_flow(&flow_key(config, key))
    }
}

/// Frames from outside the doorbells, to one receive queue.
struct Mailbox<P: Platform> {
    /// How many there are, so that an empty one costs a load.
    len: AtomicUsize,
    frames: P::Lock<VecDeque<(Time, u32, PktBuf)>>,
}

/// The receive side of one queue, as others see it.
#[repr(align(128))]
struct Port<P: Platform> {
    irq: Irq<P>,
    mailbox: Mailbox<P>,
}

/// The memory NIC. A [`Device`].
pub struct Nic<P: Platform> {
    platform: P,
    config: Arc<NicConfig>,
    shared: Arc<Shared>,
    ports: Arc<[Port<P>]>,
    published: Arc<[stats::Published]>,
    flows: Vec<Flows>,
    secret: u64,
}

/// Tells the peer what to do and reads what it has seen. Cheap to clone.
pub struct PeerHandle<P: Platform> {
    platform: P,
    config: Arc<NicConfig>,
    shared: Arc<Shared>,
    ports: Arc<[Port<P>]>,
    published: Arc<[stats::Published]>,
    flows: Arc<[Arc<[flow::FlowShared]>]>,
    secret: u64,
}

impl<P: Platform> Clone for PeerHandle<P> {
    fn clone(&self) -> Self {
        PeerHandle {
            platform: self.platform.clone(),
            config: self.config.clone(),
            shared: self.shared.clone(),
            ports: self.ports.clone(),
            published: self.published.clone(),
            flows: self.flows.clone(),
            secret: self.secret,
        }
    }
}

impl<P: Platform> Nic<P> {
    /// A NIC, and the handle of its peer.
    pub fn new(platform: &P, config: NicConfig) -> (Nic<P>, PeerHandle<P>) {
        let config = config.sane();
        let rss = match &config.rss_table {
            Some(table) => Rss::with_table(table.clone(), config.rx_queues),
            None => Rss::even(config.rx_queues),
        };
        let shared = Arc::new(Shared {
            rss,
            tx_pacer: Pacer::new(config.gbps)
                .with_descriptors(config.descriptors, config.mtu as usize),
            rx_pacer: Pacer::new(config.gbps),
            released: Released::default(),
        });
        let moderation = Moderation {
            delay: config.interrupt_delay_ns,
            gap: config.interrupt_gap_ns,
        };
        let port = |_| Port {
            irq: Irq::new(platform, config.interrupts, moderation),
            mailbox: Mailbox {
                len: AtomicUsize::new(0),
                frames: platform.lock(LockClass::Leaf, VecDeque::new()),
            },
        };
        let ports: Arc<[Port<P>]> = (0..config.rx_queues).map(port).collect();
        let queues = 0..config.tx_queues;
        let published: Arc<[_]> = queues.clone().map(|_| <_>::default()).collect();
        let flows: Vec<Flows> = queues.map(|_| Flows::new(config.peer.max_flows)).collect();
        let secret = platform.secret()[0];
        let config = Arc::new(config);
        let handle = PeerHandle {
            platform: platform.clone(),
            config: config.clone(),
            shared: shared.clone(),
            ports: ports.clone(),
            published: published.clone(),
            flows: flows.iter().map(|f| f.shared.clone()).collect(),
            secret,
        };
        let nic = Nic {
            platform: platform.clone(),
            config,
            shared,
            ports,
            published,
            flows,
            secret,
        };
        (nic, handle)
    }

    fn peer(&self, flows: Flows, lanes: Vec<Lane>) -> Peer {
        let wanted = self.config.peer.window;
        let wscale = (0u8..14).find(|&s| wanted >> s <= 65_535).unwrap_or(14);
        Peer {
            config: self.config.clone(),
            shared: self.shared.clone(),
            pattern: Pattern::get(),
            flows,
            lanes,
            counts: PeerCounts::default(),
            touched: Vec::new(),
            blocked: VecDeque::new(),
            waiting: VecDeque::new(),
            scratch: Vec::new(),
            verify_in: 1,
            window: (wanted >> wscale) as u16,
            wscale,
            secret: self.secret,
        }
    }
}

impl<P: Platform> Device for Nic<P> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.config.name.clone(),
            medium: Medium::Ethernet,
            mac: self.config.mac,
            mtu: self.config.mtu,
            tx_checksum: self.config.tx_checksum,
            large: self.config.large,
            large_datagrams: self.config.large,
            hands_on: false,
        }
    }

    fn open(mut self: Box<Self>) -> Queues {
        let mut rx: Vec<MemRx<P>> = (0..self.config.rx_queues)
            .map(|q| {
                MemRx::new(
                    &self.platform,
                    self.config.clone(),
                    &self.shared,
                    self.ports.clone(),
                    q,
                )
            })
            .collect();
        let mut tx: Vec<Box<dyn TxQueue>> = Vec::new();
        for (t, flows) in std::mem::take(&mut self.flows).into_iter().enumerate() {
            let (mut lanes, mut lines) = (Vec::new(), Vec::new());
            for queue in &mut rx {
                let (frames, inbound) = rtrb::RingBuffer::new(self.config.ring);
                let timers = flows.shared.len().min(65_536);
                let (delayed, timers) = rtrb::RingBuffer::new(timers);
                let line = Arc::new(P::Tag::default());
                queue.add(inbound, timers, flows.shared.clone(), line.clone());
                lines.push(line);
                lanes.push(Lane {
                    room: 0,
                    frames,
                    delayed,
                    earliest: Time::NEVER,
                    placed: 0,
                });
            }
            let peer = self.peer(flows, lanes);
            tx.push(Box::new(MemTx::new(
                &self.platform,
                (peer, lines),
                self.ports.clone(),
                self.published.clone(),
                t,
            )));
        }
        let rx = rx.into_iter().map(|q| Box::new(q) as Box<dyn RxQueue>);
        (rx.collect(), tx)
    }
}

impl<P: Platform> PeerHandle<P> {
    /// The configuration, after clamping.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// The peer's counters.
    pub fn counts(&self) -> PeerCounts {
        let mut total = PeerCounts::default();
        for p in self.published.iter() {
            total.add(&p.read());
        }
        total
    }

    /// The connections that exist now, with what they have moved.
    pub fn flows(&self) -> Vec<FlowReport> {
        let mut out = Vec::new();
        for shared in self.flows.iter() {
            flow::report(shared, &self.config, &mut out);
        }
        out
    }

    /// The sockets of the stack are there: the peer sends its datagrams from now on, if it is
    /// configured to.
    pub fn release_datagrams(&self) {
        self.shared.released.on.store(true, Ordering::Relaxed);
        for port in self.ports.iter() {
            port.irq.raise(Time::ZERO);
        }
    }

    /// How many datagrams the peer has sent.
    pub fn datagrams_sent(&self) -> u64 {
        self.shared.released.sent.load(Ordering::Relaxed)
    }

    /// How many connections exist, SYN-RECEIVED and TIME-WAIT included, as of each queue's last
    /// doorbell.
    pub fn live(&self) -> u64 {
        let live = |p: &stats::Published| p.flows.load(Ordering::Relaxed);
        self.published.iter().map(live).sum()
    }

    /// Opens a connection towards the stack: from `from`, an address that the peer plays, to
    /// `to`. Sends one SYN, arriving half a round trip from `now`; if it gets lost, call again.
    /// Whether the connection came about shows in [`PeerHandle::flows`].
    ///
    /// # Errors
    /// If `from` is not the peer's to use, or `to` is not of the subnet's family.
    pub fn connect(
        &self,
        now: Time,
        from: impl Into<SocketAddr>,
        to: impl Into<SocketAddr>,
    ) -> Result<(), NotOurs> {
        let (from, to) = (from.into(), to.into());
        let peer = self.config.bits(from.ip());
        let peer = peer.filter(|_| self.config.plays_ip(from.ip()));
        let key = Key {
            host: self.config.bits(to.ip()).ok_or(NotOurs(to.ip()))?,
            peer: peer.ok_or(NotOurs(from.ip()))?,
            ports: u32::from(from.port()) << 16 | u32::from(to.port()),
        };
        let cfg = &self.config.peer;
        let wscale = (0u8..14).find(|&s| cfg.window >> s <= 65_535).unwrap_or(14);
        let syn = SegOut {
            seq: Seq(key.iss(self.secret)),
            flags: TcpFlags::SYN,
            window: cfg.window.min(65_535) as u16,
            opts: TcpOptions {
                mss: Some(self.config.mss() as u16),
                wscale: Some(wscale),
                sack_permitted: cfg.sack,
                ts: cfg.timestamps.then_some(((now.0 / 1_000_000) as u32, 0)),
                ..TcpOptions::default()
            },
            ..SegOut::default()
        };
        let bytes = slow::frame_of(&self.config, key, &syn);
        let hash = self.shared.hash(&self.config, key);
        let port = &self.ports[self.shared.rss.queue(hash)];
        let due = now.plus(cfg.rtt_ns / 2);
        let mut buf = PktBuf::with_capacity(perimeter_base::buf::POOLED);
        buf.append(&bytes);
        {
            let mut frames = port.mailbox.frames.lock();
            frames.push_back((due, hash, buf));
            port.mailbox.len.store(frames.len(), Ordering::Release);
        }
        port.irq.raise(due);
        Ok(())
    }
}

/// The peer does not play this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not an address of the ideal peer: it must be in the NIC's subnet and not the stack's own"
)]
pub struct NotOurs(pub IpAddr);

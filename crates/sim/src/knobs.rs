//! Settings of wire and stacks that a scenario draws from its seed.

use crate::scenario::{Capacity, Family, Mix, Scenario, Workload};
use perimeter::{CcKind, Config, Inbound, Ipv6Config, Offload, TcpConfig};
use perimeter_link::rng::SplitMix64;
use perimeter_link::wire::{EndConfig, WireConfig};
use std::time::Duration;

/// How often a stack looks around by itself when only wake-ups are to move a run on.
pub const RARELY: Duration = Duration::from_secs(60);

/// Memory that fragments may pin where that is scarce, bytes: one source may have a quarter, less
/// than the longest datagram needs.
const SCARCE: usize = 256 << 10;

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Knobs {
    seed: u64,
    latency_ns: u64,
    interrupt_delay_ns: u64,
    /// Rate of the wire, Gb/s.
    pub gbps: Option<f64>,
    checksum_offload: bool,
    /// Of the wire.
    pub mtu: u32,
    /// Receive queues of each interface.
    pub rx_queues: usize,
    rx_ring: usize,
    /// Descriptors of a transmit ring.
    pub tx_ring: usize,
    service: Duration,
    /// Nothing but wake-ups moves this run on: nothing is lost that a timer would repair, and
    /// the stack looks around by itself so rarely that a lost wake-up is a hang.
    pub strict: bool,
    /// Fragments that nobody sent come among the others.
    pub junk: bool,
    /// Memory that fragments may pin, bytes, and whether that is less than datagrams need.
    pub fragments: usize,
    pub scarce: bool,
    headers: u32,
    dad_transmits: u8,
    /// What a stack's buffers may pin before memory is short, bytes; `u64::MAX`: as much as they
    /// like.
    pub memory: u64,
    /// Connections that wait to be accepted.
    pub backlog: u32,
}

impl Knobs {
    /// The settings of a scenario.
    pub fn new(sc: &Scenario) -> Knobs {
        let mut rng = SplitMix64::new(sc.seed ^ 0x6b6e_6f62);
        let mut one_in = |n: u64| rng.below(n) == 0;
        let small = sc.capacity != Capacity::Normal;
        let latency_ns = if one_in(4) { 2_000_000 } else { 5_000 };
        let mut knobs = Knobs {
            seed: sc.seed,
            latency_ns,
            interrupt_delay_ns: if one_in(4) { 20_000 } else { 0 },
            gbps: one_in(4).then_some(if one_in(2) { 0.05 } else { 1.0 }),
            checksum_offload: !one_in(4),
            mtu: if one_in(6) { 576 } else { 1500 },
            rx_queues: if one_in(2) { 2 } else { 1 },
            rx_ring: if small && one_in(2) { 16 } else { 4096 },
            tx_ring: if small { 8 } else { 1024 },
            // Timers of connections wake the stack by themselves; this only bounds how late.
            service: Duration::from_millis(if one_in(4) { 5 } else { 60 }),
            memory: if small && one_in(3) { 12_000 } else { u64::MAX },
            backlog: if small { 1 } else { 128 },
            strict: false,
            // The headers of a segment without options.
            headers: 40,
            junk: sc.workload == Workload::Datagrams
                && sc.mix != Mix::None
                && SplitMix64::new(sc.seed ^ 0x6a75_6e6b).below(2) == 0,
            scarce: SplitMix64::new(sc.seed ^ 0x7363_6172).below(3) == 0,
            fragments: Config::default().fragments,
            dad_transmits: 0,
        };
        if knobs.scarce {
            knobs.fragments = SCARCE;
        }
        if sc.family == Family::V6 {
            // IPv6 has no links of less (RFC 8200, section 5).
            (knobs.mtu, knobs.headers) = (knobs.mtu.max(1280), 60);
            let probed = SplitMix64::new(sc.seed ^ 0x0064_6164).below(2) == 0;
            // A tiny run is over before the second that the probes take.
            knobs.dad_transmits = u8::from(probed && sc.capacity != Capacity::Tiny);
        }
        if sc.capacity == Capacity::Tiny {
            knobs.tiny(sc)
        } else {
            knobs
        }
    }

    fn tiny(mut self, sc: &Scenario) -> Knobs {
        let mut rng = SplitMix64::new(sc.seed ^ 0x7469_6e79);
        let mut one_in = |n: u64| rng.below(n) == 0;
        // In exploration time moves when nobody can run: what takes time on the wire arrives at
        // sleepers only.
        self.latency_ns = if one_in(2) { 0 } else { 5_000 };
        self.interrupt_delay_ns = 0;
        self.gbps = None;
        let calm = sc.mix == Mix::None && sc.early_timer_one_in == 0;
        self.strict = calm && sc.inbound == Inbound::Thread && !one_in(3);
        if self.strict {
            (self.service, self.memory, self.rx_ring) = (RARELY, u64::MAX, 4096);
            (self.scarce, self.fragments) = (false, Config::default().fragments);
            // A SYN that finds the queue full comes again by a timer.
            self.backlog = 8;
        }
        self
    }

    /// The wire between the interfaces number `nic`.
    pub fn wire(&self, sc: &Scenario, nic: usize) -> WireConfig {
        let mut rng = SplitMix64::new(self.seed ^ (0xfa << 32) ^ nic as u64);
        let mut end = |side: usize| {
            let mut e = EndConfig::new(2 * nic + side);
            e.faults = sc.mix.faults(rng.next());
            (e.rx_queues, e.tx_queues) = (self.rx_queues, self.rx_queues);
            e.rx_ring = self.rx_ring;
            e
        };
        // Uncut, where nothing happens to frames; copied or handed on.
        let large = sc.offload == Offload::Device;
        let hand_on = large && SplitMix64::new(self.seed ^ 0x6861_6e64).below(2) == 0;
        WireConfig::default()
            .with_ends([end(0), end(1)])
            .with_latency_ns(self.latency_ns)
            .with_interrupt_delay_ns(self.interrupt_delay_ns)
            .with_gbps(self.gbps)
            .with_checksum_offload(self.checksum_offload)
            .with_large(large)
            .with_hand_on(hand_on)
            .with_mtu(self.mtu)
    }

    /// The settings of one end's stack.
    pub fn config(&self, sc: &Scenario, client: bool) -> Config {
        let stretch_acks = SplitMix64::new(self.seed ^ 0x7374_7265).below(4) != 0;
        let steering = SplitMix64::new(self.seed ^ 0x7374_6565).below(4) != 0;
        let snd_lowat = match SplitMix64::new(self.seed ^ 0x6c6f_7761).below(4) {
            0 => 1,
            1 => 2048,
            _ => Config::default().snd_lowat,
        };
        let mut c = Config::default()
            .with_tcp(self.tcp(sc, client))
            .with_service(self.service)
            .with_syn_buckets(16)
            .with_tx_ring(self.tx_ring)
            .with_snd_lowat(snd_lowat)
            .with_offload(sc.offload)
            .with_stretch_acks(stretch_acks)
            .with_steering(steering)
            .with_ipv6(Ipv6Config::default().with_dad_transmits(self.dad_transmits));
        if sc.workload == Workload::Datagrams {
            c.fragments = self.fragments;
            return c;
        }
        if self.memory != u64::MAX {
            // Connections count for being there, and memory is short at half of the limit.
            let there = sc.connections() * perimeter_stack::memory::CONNECTION;
            c.memory = 2 * (self.memory + there as u64);
        }
        c
    }

    /// Whether connections of one end hold small segments back.
    pub fn nagle(&self, sc: &Scenario, client: bool) -> bool {
        !self.tcp(sc, client).nodelay
    }

    fn tcp(&self, sc: &Scenario, client: bool) -> TcpConfig {
        let mut rng = SplitMix64::new(self.seed ^ 0x0074_6370 ^ u64::from(client) << 40);
        let mut one_in = |n: u64| rng.below(n) == 0;
        let mut c = TcpConfig::default()
            .with_snd_buf(64 * 1024)
            .with_rcv_buf(64 * 1024)
            .with_sack(!one_in(4))
            .with_timestamps(!one_in(4))
            .with_window_scale(!one_in(6))
            .with_nodelay(one_in(3))
            .with_congestion(if one_in(4) {
                CcKind::NewReno
            } else {
                CcKind::Cubic
            })
            // Shorter than their defaults, so that virtual time passes in fewer looks around.
            .with_time_wait(Duration::from_secs(5))
            .with_fin_wait_2(Duration::from_secs(30))
            .with_rto_max(Duration::from_secs(2))
            // Loss of 10 % each way must not look like an outage.
            .with_syn_retries(30)
            .with_data_retries(60)
            .with_orphan_retries(60);
        if sc.capacity == Capacity::Tiny {
            (c.time_wait, c.fin_wait_2) = (Duration::from_millis(20), Duration::from_secs(10));
        }
        if sc.capacity != Capacity::Normal {
            let segment = self.mtu - self.headers;
            let mut room = || segment * if one_in(2) { 2 } else { 3 };
            (c.snd_buf, c.rcv_buf, c.rcv_buf_max) = (room(), room(), 3 * segment);
        }
        c
    }
}

//! A peer that knows the connections and means harm: segments that are nearly right, ICMP that
//! quotes what was sent, frames of random bytes, while the application calls at random with odd
//! settings, and time passes. Nothing panics, and when everything was dropped nothing is left.
//!
//! A slice of it for each organization; `PERIMETER_HOSTILE` multiplies the runs.

use crate::common::organizations;
use crate::packet::{ipv4, tcp};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Keepalive, OrgSpec, Stack, TcpConfig, TcpListener, TcpStream, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::{Icmpv4, PROTO_ICMP, SackBlocks, Seq, TcpFlags, TcpHdr, TcpOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// What one run does.
const STEPS: usize = 1_200;
/// Runs of each organization.
const RUNS: u64 = 2;
/// Connections that the peer remembers, and sockets that the application holds.
const MOST: usize = 24;

/// A generator of choices (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// What the peer knows of a connection.
#[derive(Clone)]
struct Flow {
    /// The peer's port and the stack's.
    ports: (u16, u16),
    /// The peer's next number, and what it has of the stack's.
    next: u32,
    have: u32,
    /// The stack's last timestamp.
    stamp: u32,
    /// The last packet of the stack.
    last: Vec<u8>,
}

struct Fuzz {
    dice: Dice,
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
    listener: Option<TcpListener>,
    streams: Vec<TcpStream>,
    flows: Vec<Flow>,
    /// Segments that the stack has sent.
    heard: usize,
    accepted: usize,
}

impl Fuzz {
    /// Settings at the ends of what is taken. What bounds how long a connection without a peer lives is kept
    /// short, for the end of the run.
    fn config(&mut self) -> TcpConfig {
        let d = &mut self.dice;
        let rto_min = Duration::from_millis(d.of(&[1, 200]));
        self.s
            .tcp_config()
            .with_mss(d.of(&[48, 536, 1460, 65_495]))
            .with_window_scale(d.one_in(2))
            .with_timestamps(d.one_in(2))
            .with_sack(d.one_in(2))
            .with_rcv_buf(d.of(&[1_024, 2_000, 65_536, 1 << 20]))
            .with_snd_buf(d.of(&[1_024, 2_000, 65_536, 1 << 20]))
            .with_initial_window(d.of(&[1, 10, 1_000]))
            .with_rto_min(rto_min)
            .with_rto_max(rto_min.max(Duration::from_millis(d.of(&[1, 500, 1_000]))))
            .with_delayed_ack(Duration::from_millis(d.of(&[0, 40, 500])))
            .with_nodelay(d.one_in(2))
            .with_cork(d.one_in(4))
            .with_keepalive(d.one_in(3).then(|| {
                Keepalive::default()
                    .with_idle(Duration::from_millis(300))
                    .with_interval(Duration::from_millis(100))
                    .with_probes(2)
            }))
            .with_user_timeout(d.one_in(3).then(|| Duration::from_millis(700)))
            .with_syn_retries(d.of(&[0, 1, 2]))
            .with_data_retries(d.of(&[0, 1, 3]))
            .with_orphan_retries(d.of(&[0, 1, 3]))
            .with_time_wait(Duration::from_millis(d.of(&[0, 100, 2_000])))
            .with_fin_wait_2(Duration::from_millis(d.of(&[0, 100, 2_000])))
            .with_max_reassembly_bytes(d.of(&[0, 3_000, 1 << 20]))
    }

    /// Time passes, and the peer listens.
    fn pass(&mut self, ns: u64) {
        let end = self.p.now().plus(ns);
        loop {
            self.s.drive().unwrap();
            self.listen();
            if self.p.now() >= end {
                return;
            }
            let left = end.nanos_since(self.p.now());
            self.p.sleep_until(self.p.now().plus(left.min(20_000_000)));
        }
    }

    /// Learns from what the stack has sent.
    fn listen(&mut self) {
        while let Some(sent) = self.wire.next() {
            let Some(segment) = sent.bytes.get(20..).filter(|_| sent.bytes[9] == 6) else {
                continue;
            };
            let (hdr, len) = TcpHdr::parse(segment).expect("the stack's own segments are right");
            self.heard += 1;
            let ports = (hdr.dst_port, hdr.src_port);
            let syn = u32::from(hdr.flags.contains(TcpFlags::SYN));
            let fin = u32::from(hdr.flags.contains(TcpFlags::FIN));
            let n = (segment.len() - len) as u32 + syn + fin;
            let place = self.flows.iter().position(|f| f.ports == ports);
            let place = place.unwrap_or_else(|| {
                if self.flows.len() >= MOST {
                    self.flows.remove(0);
                }
                self.flows.push(Flow {
                    ports,
                    next: hdr.ack.0,
                    have: hdr.seq.0,
                    stamp: 0,
                    last: Vec::new(),
                });
                self.flows.len() - 1
            });
            let f = &mut self.flows[place];
            if syn > 0 || hdr.seq.0.wrapping_add(n).wrapping_sub(f.have) as i32 > 0 {
                f.have = hdr.seq.0.wrapping_add(n);
            }
            if hdr.flags.contains(TcpFlags::ACK) {
                f.next = hdr.ack.0;
            }
            f.stamp = hdr.opts.ts.map_or(f.stamp, |(value, _)| value);
            f.last = sent.bytes;
        }
    }

    fn inject(&self, bytes: &[u8]) {
        self.wire.inject(self.p.now(), bytes);
    }

    /// A number at or near `right`.
    fn near(&mut self, right: u32) -> u32 {
        let d = &mut self.dice;
        let away = match d.below(12) {
            0..=6 => 0,
            7 => 1,
            8 => u32::MAX,
            9 => d.below(3_000) as u32,
            10 => (d.below(70_000) as u32).wrapping_neg(),
            _ => d.next() as u32,
        };
        right.wrapping_add(away)
    }

    fn segment(&mut self) {
        if self.flows.is_empty() {
            return self.syn();
        }
        let n = self.dice.below(self.flows.len());
        let f = self.flows[n].clone();
        let (seq, ack) = (self.near(f.next), self.near(f.have));
        let mut flags = TcpFlags::ACK;
        let more = [
            (TcpFlags::FIN, 10),
            (TcpFlags::SYN, 20),
            (TcpFlags::RST, 25),
            (TcpFlags::PSH, 3),
            (TcpFlags::URG, 15),
        ];
        for (flag, often) in more {
            if self.dice.one_in(often) {
                flags |= flag;
            }
        }
        // The answer to a SYN of the stack's own.
        let syn = TcpHdr::parse(f.last.get(20..).unwrap_or_default());
        if syn.is_ok_and(|(h, _)| h.flags == TcpFlags::SYN) && !self.dice.one_in(3) {
            flags = TcpFlags::SYN | TcpFlags::ACK;
        }
        if self.dice.one_in(30) {
            flags = self.dice.of(&[TcpFlags::RST, TcpFlags::SYN, TcpFlags::FIN]);
        }
        let stamp = self.near(f.stamp);
        let mut blocks = SackBlocks::default();
        for _ in 0..self.dice.below(4) {
            let from = self.near(f.have.wrapping_sub(3_000));
            let to = self.near(from.wrapping_add(1_400));
            blocks.push(Seq(from), Seq(to));
        }
        let d = &mut self.dice;
        let opts = TcpOptions {
            mss: d.one_in(20).then(|| d.next() as u16),
            wscale: d.one_in(20).then(|| d.next() as u8),
            sack_permitted: d.one_in(10),
            ts: (!d.one_in(4)).then(|| (1_000_000 + d.below(1_000) as u32, stamp)),
            sack: if d.one_in(3) {
                blocks
            } else {
                SackBlocks::default()
            },
        };
        let len = d.of(&[0, 0, 0, 1, 10, 536, 1_400]);
        let hdr = TcpHdr {
            src_port: f.ports.0,
            dst_port: f.ports.1,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: d.of(&[0, 1, 100, 8_000, 65_535]),
            urgent: d.next() as u16,
            opts,
        };
        let payload = d.bytes(len);
        let frame = tcp(&hdr, &payload);
        self.inject(&frame);
        if self.dice.one_in(5) {
            self.inject(&frame);
        }
    }

    fn syn(&mut self) {
        let d = &mut self.dice;
        let hdr = TcpHdr {
            src_port: 2_000 + d.below(40) as u16,
            dst_port: if d.one_in(10) { 81 } else { 80 },
            seq: Seq(d.next() as u32),
            flags: TcpFlags::SYN,
            window: d.of(&[0, 1, 60_000]),
            opts: TcpOptions {
                mss: d.of(&[None, Some(0), Some(1), Some(536), Some(1460)]),
                wscale: d.of(&[None, Some(0), Some(7), Some(14), Some(255)]),
                sack_permitted: d.one_in(2),
                ts: d.one_in(2).then_some((1_000_000, 0)),
                ..TcpOptions::default()
            },
            ..TcpHdr::default()
        };
        let frame = tcp(&hdr, b"");
        self.inject(&frame);
    }

    fn icmp(&mut self) {
        let n = self.dice.below(self.flows.len().max(1));
        let Some(f) = self.flows.get(n) else { return };
        let mut quote = f.last.clone();
        quote.truncate(20 + self.dice.of(&[0, 4, 8, 20]));
        if self.dice.one_in(3) && !quote.is_empty() {
            let at = self.dice.below(quote.len());
            quote[at] ^= 1 << self.dice.below(8);
        }
        let mut msg = vec![0; 8 + quote.len()];
        let unreachable = Icmpv4::Unreachable {
            code: self.dice.below(16) as u8,
            next_hop_mtu: self.dice.of(&[0, 68, 552, 1_000, 65_535]),
        };
        unreachable.emit(&quote, &mut msg);
        self.inject(&ipv4(PROTO_ICMP, &msg));
    }

    fn noise(&mut self) {
        let n = self.dice.below(self.flows.len().max(1));
        let damaged = self.flows.get(n).map(|f| f.last.clone());
        let mut frame = match damaged.filter(|_| self.dice.one_in(2)) {
            Some(frame) => frame,
            None => {
                let n = self.dice.below(200);
                self.dice.bytes(n)
            }
        };
        if let Some(b) = frame.get_mut(0)
            && self.dice.one_in(2)
        {
            *b = 0x45;
        }
        self.inject(&frame);
    }

    /// A call of the application; what it answers is its own affair.
    fn call(&mut self) {
        let config = self.config();
        let d = &mut self.dice;
        if self.streams.len() < MOST && d.one_in(3) {
            if let Some(Ok((s, _))) = self.listener.as_ref().map(TcpListener::accept) {
                self.accepted += 1;
                s.set_nonblocking(true).unwrap();
                self.streams.push(s);
            } else if d.one_in(2) {
                let port = 3_000 + d.below(20) as u16;
                let to = (crate::packet::THEM, port).into();
                if let Ok(s) = self.s.connect_with(None, to, &config) {
                    s.set_nonblocking(true).unwrap();
                    self.streams.push(s);
                }
            }
            return;
        }
        let Some(n) = self.streams.len().checked_sub(1) else {
            return;
        };
        let n = d.below(n + 1);
        let mut buf = [0; 3_000];
        let s = &self.streams[n];
        let len = d.below(buf.len());
        match d.below(16) {
            0..=3 => drop({ s }.write(&buf[..len])),
            4..=6 => drop({ s }.read(&mut buf[..len])),
            7 => drop(s.peek(&mut buf[..len])),
            8 => drop(s.shutdown(d.of(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]))),
            9 => drop(s.set_nodelay(d.one_in(2))),
            10 => drop(s.set_cork(d.one_in(2))),
            11 => drop(s.set_recv_buffer_size(d.of(&[0, 1, 5_000, 1 << 20, u32::MAX]))),
            12 => drop(s.set_send_buffer_size(d.of(&[0, 1, 5_000, 1 << 20, u32::MAX]))),
            13 => drop((s.info(), s.take_error(), s.peer_addr())),
            14 => drop(s.abort()),
            _ => drop(self.streams.swap_remove(n)),
        }
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..=8 => self.segment(),
            9 => self.syn(),
            10 => self.icmp(),
            11 => self.noise(),
            12..=16 => self.call(),
            _ => {
                let ns = self.dice.of(&[1_000, 100_000, 3_000_000, 50_000_000]);
                self.pass(ns);
            }
        }
    }

    /// Everything is dropped, the peer is silent: nothing is left.
    fn end(&mut self, what: &str) {
        self.streams.clear();
        self.listener = None;
        let held = |s: &Stack| {
            let stats = s.stats();
            stats.count("memory_charged") - stats.count("memory_released")
        };
        for _ in 0..600 {
            self.pass(100_000_000);
            if self.s.connections().is_empty() && held(&self.s) == 0 {
                return;
            }
        }
        let left = self.s.connections();
        let (n, bytes) = (left.len(), held(&self.s));
        panic!(
            "{what}: {n} connections, {bytes} bytes are left: {:?}",
            left.first()
        );
    }
}

fn fuzz(org: OrgSpec, seed: u64) {
    let what = format!("{org}, seed {seed}");
    let config = VirtualConfig::default()
        .with_cores(1)
        .with_seed(seed)
        .with_max_steps(50_000_000);
    let name = what.clone();
    let result = Virtual::run(config, move |p| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let s = s.build().unwrap();
        let mut f = Fuzz {
            dice: Dice(seed),
            p,
            wire,
            listener: None,
            streams: Vec::new(),
            flows: Vec::new(),
            heard: 0,
            accepted: 0,
            s,
        };
        let config = f.config();
        let l = f.s.listen_with("10.0.0.1:80", 8, config).unwrap();
        l.set_nonblocking(true).unwrap();
        f.listener = Some(l);
        for _ in 0..STEPS {
            f.step();
        }
        // Else it would not get through to what it is for.
        assert!(f.heard > 50, "{what}: the stack sent {} segments", f.heard);
        assert!(f.accepted > 0, "{what}: no connection was accepted");
        f.end(&what);
        f.s.stop();
    });
    result.unwrap_or_else(|f| panic!("{name}: {f}"));
}

#[test]
fn a_peer_that_knows_the_connection_does_no_harm() {
    let times = std::env::var("PERIMETER_HOSTILE").ok();
    let times: u64 = times.and_then(|n| n.parse().ok()).unwrap_or(1);
    for org in organizations() {
        for seed in 0..RUNS * times {
            fuzz(org.clone(), 888_000 + seed);
        }
    }
}

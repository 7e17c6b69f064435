//! Floods of SYNs from addresses that never answer, while others connect from near and far: all
//! of these get through, memory stays bounded and is given back, and what strangers make up makes
//! no connection.

use crate::common::organizations;
use crate::packet::{US, ipv4_between};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Config, OrgSpec, Stack, SynCookies, TcpStream, Virtual};
use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::checksum::tcp_checksum_v4;
use perimeter_wire::{PROTO_TCP, Seq, TcpFlags, TcpHdr, TcpOptions};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;

const FRIEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 80;

/// A stack whose network is this test.
struct Lab {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
}

fn under(org: OrgSpec, config: Config, body: impl FnOnce(&Lab) + Send + 'static) {
    let name = org.to_string();
    let cfg = VirtualConfig::default()
        .with_cores(2)
        .with_max_steps(200_000_000);
    let run = Virtual::run(cfg, move |p| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        let s = s.config(config).interface(device, &["10.0.0.1/8"]);
        let s = s.unwrap().build().unwrap();
        body(&Lab { p, s, wire });
    });
    run.unwrap_or_else(|f| panic!("{name}: {f}"));
}

fn config(cookies: SynCookies) -> Config {
    Config::default().with_syn_cookies(cookies)
}

/// A segment from `from` to the stack's port.
fn segment(from: (Ipv4Addr, u16), hdr: &TcpHdr, payload: &[u8]) -> Vec<u8> {
    let hdr = TcpHdr {
        src_port: from.1,
        dst_port: PORT,
        window: 60_000,
        ..*hdr
    };
    let mut seg = vec![0; hdr.header_len()];
    hdr.emit(&mut seg);
    seg.extend_from_slice(payload);
    seg[16..18].fill(0);
    let sum = tcp_checksum_v4(from.0, US, &seg);
    seg[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4_between((from.0, US), PROTO_TCP, &seg)
}

fn header(flags: TcpFlags, seq: u32, ack: u32) -> TcpHdr {
    TcpHdr {
        flags,
        seq: Seq(seq),
        ack: Seq(ack),
        ..TcpHdr::default()
    }
}

fn destination(packet: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19])
}

/// The `n`-th stranger, whom nobody ever meets again.
fn stranger(n: u32) -> (Ipv4Addr, u16) {
    let [_, a, b, c] = n.to_be_bytes();
    (
        Ipv4Addr::new(10, 64 | (a & 0x3f), b, c),
        1_024 + (n % 50_000) as u16,
    )
}

impl Lab {
    fn inject(&self, bytes: &[u8]) {
        assert!(self.wire.inject(self.p.now(), bytes));
    }

    fn step(&self, ns: u64) {
        self.p.sleep_until(self.p.now().plus(ns));
        // A burst is less than what comes in a millisecond of the whole flood.
        while self.s.drive().unwrap() > 0 {}
    }

    /// Time passes; what the stack sends goes nowhere. How many packets that were.
    fn lose(&self, ms: u64, step_ms: u64) -> usize {
        let (end, mut n) = (self.p.now().plus(ms * 1_000_000), 0);
        while self.p.now() < end {
            self.step(step_ms * 1_000_000);
            n += std::iter::from_fn(|| self.wire.next()).count();
        }
        n
    }

    fn syn(&self, from: (Ipv4Addr, u16), seq: u32) {
        let opts = TcpOptions {
            mss: Some(1460),
            wscale: Some(7),
            sack_permitted: true,
            ts: Some((1, 0)),
            ..TcpOptions::default()
        };
        let hdr = TcpHdr {
            opts,
            ..header(TcpFlags::SYN, seq, 0)
        };
        self.inject(&segment(from, &hdr, b""));
    }

    /// The handshake's first half; the acknowledgment that would complete it.
    fn shake(&self, from: (Ipv4Addr, u16)) -> TcpHdr {
        self.syn(from, 1_000);
        for _ in 0..50 {
            self.step(200_000);
            while let Some(p) = self.wire.next() {
                let (hdr, _) = TcpHdr::parse(&p.bytes[20..]).unwrap();
                if destination(&p.bytes) == from.0 && hdr.dst_port == from.1 {
                    assert_eq!(hdr.flags, TcpFlags::SYN | TcpFlags::ACK);
                    let (val, _) = hdr.opts.ts.unwrap();
                    let mut ack = header(TcpFlags::ACK, 1_001, (hdr.seq + 1).0);
                    ack.opts.ts = Some((2, val));
                    return ack;
                }
            }
        }
        panic!("no SYN-ACK");
    }
}

/// A far host that means it, and the way there and back.
struct Far {
    stack: Stack,
    wire: ScriptHandle<Virtual>,
    half_ns: u64,
    to_us: VecDeque<(Time, Vec<u8>)>,
    to_far: VecDeque<(Time, Vec<u8>)>,
}

impl Far {
    fn new(lab: &Lab, rtt_ms: u64) -> Far {
        let (device, wire) = script(&lab.p, "far", 1500);
        let s = Stack::builder().on_virtual(lab.p.clone());
        let s = s.org(OrgSpec::default()).interface(device, &["10.0.0.2/8"]);
        Far {
            stack: s.unwrap().build().unwrap(),
            wire,
            half_ns: rtt_ms * 500_000,
            to_us: VecDeque::new(),
            to_far: VecDeque::new(),
        }
    }

    /// Carries what is under way; what is for strangers is lost.
    fn carry(&mut self, lab: &Lab) {
        let (now, half_ns) = (lab.p.now(), self.half_ns);
        while let Some(p) = lab.wire.next() {
            if destination(&p.bytes) == FRIEND {
                self.to_far.push_back((now.plus(half_ns), p.bytes));
            }
        }
        while let Some(p) = self.wire.next() {
            self.to_us.push_back((now.plus(half_ns), p.bytes));
        }
        while self.to_us.front().is_some_and(|p| p.0 <= now) {
            lab.inject(&self.to_us.pop_front().unwrap().1);
        }
        while self.to_far.front().is_some_and(|p| p.0 <= now) {
            let (_, bytes) = self.to_far.pop_front().unwrap();
            assert!(self.wire.inject(now, &bytes));
        }
        self.stack.drive().unwrap();
    }
}

/// How many of 20 far connections come to be, and carry a word there and back, during a flood of
/// so many SYNs a second. The flood and the cache are a `scale`th of what they stand for: what
/// counts is how soon the one fills the other.
fn survivors(lab: &Lab, per_second: u64, rtt_ms: u64, scale: u64) -> usize {
    const ALL: usize = 20;
    let l = lab.s.listen(("10.0.0.1", PORT)).unwrap();
    l.set_nonblocking(true).unwrap();
    let mut far = Far::new(lab, rtt_ms);
    let (mut theirs, mut ours): (Vec<TcpStream>, Vec<TcpStream>) = (Vec::new(), Vec::new());
    let mut answered = vec![false; ALL];
    let (mut flood, mut sent) = (0, 0);
    let start = lab.p.now();
    // The cache is full after 154 ms or less; the last connects at 600, and three round trips
    // are enough for each.
    let end = start.plus((620 + 4 * rtt_ms) * 1_000_000);
    while lab.p.now() < end {
        let ms = lab.p.now().nanos_since(start) / 1_000_000;
        while flood < ms * per_second / scale / 1_000 {
            lab.syn(stranger(flood as u32), flood as u32);
            flood += 1;
        }
        if theirs.len() < ALL && ms >= 200 + 20 * theirs.len() as u64 {
            let s = far.stack.start_connect((US, PORT).into()).unwrap();
            s.set_nonblocking(true).unwrap();
            theirs.push(s);
        }
        far.carry(lab);
        lab.step(1_000_000);
        while let Ok((s, from)) = l.accept() {
            assert_eq!(from.ip(), FRIEND);
            s.set_nonblocking(true).unwrap();
            ours.push(s);
        }
        let mut buf = [0; 64];
        for s in &mut ours {
            if let Ok(n) = s.read(&mut buf)
                && n > 0
            {
                assert_eq!(s.write(&buf[..n]).unwrap(), n);
            }
        }
        for (s, answered) in theirs.iter_mut().zip(&mut answered).skip(sent) {
            if *answered {
                continue;
            }
            match s.read(&mut buf) {
                Ok(5) => *answered = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let _ = s.write(b"hello").map(|_| ());
                }
                _ => {}
            }
        }
        sent = answered.iter().take_while(|a| **a).count();
    }
    assert!(flood > per_second / scale / 2, "{flood}");
    answered.iter().filter(|a| **a).count()
}

fn scaled(cookies: SynCookies, scale: u64) -> Config {
    config(cookies).with_syn_buckets(512 / scale as usize)
}

/// The attack that was measured: 100,000 and 200,000 SYNs a second and 20, 80 and 200 ms of round
/// trip, all of it a sixteenth.
#[test]
fn far_handshakes_survive_a_flood() {
    for org in organizations() {
        for per_second in [100_000, 200_000] {
            for rtt_ms in [20, 80, 200] {
                let config = scaled(SynCookies::WhenFull, 16);
                under(org.clone(), config, move |lab| {
                    let n = survivors(lab, per_second, rtt_ms, 16);
                    assert_eq!(n, 20, "{per_second} SYNs/s, {rtt_ms} ms");
                    assert!(lab.s.stats().count("syn_cookies_accepted") > 0);
                });
            }
        }
    }
}

/// The same in full, and what became of it without cookies.
#[test]
fn far_handshakes_survive_a_whole_flood() {
    for (cookies, all) in [(SynCookies::WhenFull, true), (SynCookies::Off, false)] {
        under("up".parse().unwrap(), scaled(cookies, 1), move |lab| {
            let n = survivors(lab, 200_000, 200, 1);
            assert!(if all { n == 20 } else { n < 5 }, "{cookies:?}: {n}");
        });
    }
}

/// The caches of a stack's tables are one cache divided, charged to the stack, and given back.
#[test]
fn caches_are_divided_charged_and_given_back() {
    let more = ["connp-l:128", "connp-t:16", "squeue:8"];
    let more = more.iter().map(|o| o.parse().unwrap());
    for org in organizations().into_iter().chain(more) {
        under(org, config(SynCookies::WhenFull), |lab| {
            let l = lab.s.listen(("10.0.0.1", PORT)).unwrap();
            assert_eq!(lab.s.stats().memory, 0);
            for n in 0..40_000 {
                lab.syn(stranger(n), n);
                if n % 64 == 63 {
                    lab.lose(1, 1);
                }
            }
            let stats = lab.s.stats();
            let (sent, memory) = (stats.count("syn_cookies_sent"), stats.memory);
            // A squeue of many is one listener's, with its share of the cache.
            assert!(memory > 100 << 10 && memory < 4 << 20, "{memory}");
            assert!(sent >= 24_000, "{sent}");
            lab.lose(70_000, 100);
            assert_eq!(lab.s.stats().memory, 0);
            for n in 0..2_000 {
                lab.syn(stranger(n), n);
                if n % 64 == 63 {
                    lab.lose(1, 1);
                }
            }
            drop(l);
            assert_eq!(lab.s.stats().memory, 0, "after the listener");
        });
    }
}

#[test]
fn what_is_made_up_makes_no_connection() {
    for org in organizations() {
        under(org, config(SynCookies::Always), |lab| {
            let l = lab.s.listen(("10.0.0.1", PORT)).unwrap();
            l.set_nonblocking(true).unwrap();
            let mut x = 0x2545_f491_4f6c_dd1d_u64;
            let mut random = || {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 16) as u32
            };
            // Every table has sent one, and expects it.
            for n in 0..64 {
                lab.syn(stranger(n), n);
            }
            lab.lose(5, 1);
            for n in 0..10_000u32 {
                let mut hdr = header(TcpFlags::ACK, random(), random());
                hdr.opts.ts = (n % 2 == 0).then(|| (random(), random()));
                lab.inject(&segment(stranger(n % 64), &hdr, b"data"));
                if n % 64 == 63 {
                    lab.lose(1, 1);
                }
            }
            lab.lose(5, 1);
            let stats = lab.s.stats();
            assert_eq!(stats.connections, 0);
            assert_eq!(stats.count("syn_cookies_refused"), 10_000);
            assert_eq!(stats.count("syn_cookies_accepted"), 0);
            assert!(l.accept().is_err());
        });
    }
}

/// A full accept queue: what completes a handshake makes no connection, until there is room.
#[test]
fn a_full_accept_queue_bounds_what_cookies_make() {
    for org in organizations() {
        under(org, config(SynCookies::Always), |lab| {
            let l = lab.s.listen_with(("10.0.0.1", PORT), 4, lab.s.tcp_config());
            let l = l.unwrap();
            l.set_nonblocking(true).unwrap();
            let acks: Vec<_> = (0..100).map(|n| lab.shake(stranger(n))).collect();
            assert_eq!(lab.s.stats().connections, 0, "nothing is kept");
            for (n, ack) in acks.iter().enumerate() {
                lab.inject(&segment(stranger(n as u32), ack, b""));
                lab.lose(1, 1);
            }
            // A worker may still have the last one.
            lab.lose(5, 1);
            assert_eq!(lab.s.stats().connections, 4);
            let mut all: Vec<_> = std::iter::from_fn(|| l.accept().ok()).collect();
            assert_eq!(all.len(), 4);
            // Those who were not heard speak up, and are understood.
            for n in 50..53 {
                lab.inject(&segment(stranger(n), &acks[n as usize], b"hello"));
                lab.lose(2, 1);
            }
            for n in 50..53 {
                let (mut s, from) = l.accept().unwrap();
                s.set_nonblocking(true).unwrap();
                assert_eq!(from, stranger(n).into());
                let mut buf = [0; 16];
                assert_eq!(s.read(&mut buf).unwrap(), 5);
                let info = s.info().unwrap().tcp;
                assert_eq!(info.snd_wscale, Some(7), "from the timestamp");
                all.push((s, from));
            }
            // Once a minute or two has passed, it is too late.
            lab.lose(140_000, 500);
            lab.shake(stranger(200));
            lab.inject(&segment(stranger(60), &acks[60], b"hello"));
            lab.lose(2, 1);
            assert!(l.accept().is_err());
            assert_eq!(lab.s.stats().count("syn_cookies_accepted"), 7);
            // A listener's cookies are its own.
            let ack = lab.shake(stranger(300));
            drop(l);
            let l = lab.s.listen(("10.0.0.1", PORT)).unwrap();
            l.set_nonblocking(true).unwrap();
            lab.shake(stranger(301));
            lab.inject(&segment(stranger(300), &ack, b"hello"));
            lab.lose(2, 1);
            assert!(l.accept().is_err());
        });
    }
}

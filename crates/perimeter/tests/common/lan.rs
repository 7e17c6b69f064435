//! An Ethernet of which the test plays every station but one, frame by frame.
#![allow(dead_code, reason = "each test crate uses a part of this")]

use perimeter::link::wire::{WireConfig, pair};
use perimeter::link::{Device, RxFrame, RxQueue, TxQueue};
use perimeter::{Config, OrgSpec, Platform, Stack, Virtual};
use perimeter_base::{PktBuf, PktPool, TxRing};
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::checksum::{checksum, tcp_checksum_v4};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, ETHERTYPE_ARP, ETHERTYPE_IPV4, EtherHdr, Frame, Icmpv4, Ipv4Hdr,
    MacAddr, PROTO_ICMP, PROTO_TCP, Seq, TcpFlags, TcpHdr,
};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The stack's address.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The gateway of its default route, and the station there.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
pub const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 254]);
/// A station that means ill.
pub const EVIL_MAC: MacAddr = MacAddr([2, 0x66, 0x66, 0, 0, 1]);
/// A host behind the gateway.
pub const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

/// A stack at [`US`], whose network is this test.
pub struct Lan {
    pub p: Virtual,
    pub s: Stack,
    /// The stack's station.
    pub mac: MacAddr,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ring: TxRing,
    pool: PktPool,
    frames: Vec<RxFrame>,
    /// What the stack has sent and nobody has looked at.
    pub sent: Vec<Vec<u8>>,
}

/// Runs `body` under every organization, with a prefix of that length around [`US`].
pub fn under_all(prefix: u8, body: fn(&mut Lan)) {
    for org in OrgSpec::tested() {
        let name = org.to_string();
        let cfg = VirtualConfig::default()
            .with_cores(1)
            .with_max_steps(40_000_000);
        let result = Virtual::run(cfg, move |p| body(&mut Lan::new(p, org, prefix)));
        result.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

/// Runs `body` under every organization, on a stack with these settings, addresses and routes.
pub fn under_all_with(
    config: &Config,
    addrs: &'static [&'static str],
    routes: &'static [(&'static str, &'static str)],
    body: fn(&mut Lan),
) {
    for org in OrgSpec::tested() {
        let name = org.to_string();
        let cfg = VirtualConfig::default()
            .with_cores(1)
            .with_max_steps(40_000_000);
        let config = config.clone();
        let result = Virtual::run(cfg, move |p| {
            body(&mut Lan::with(p, org, config, addrs, routes));
        });
        result.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

impl Lan {
    fn new(p: Virtual, org: OrgSpec, prefix: u8) -> Lan {
        let gateway = GATEWAY.to_string();
        let route = [("0.0.0.0/0", &*gateway)];
        Lan::with(
            p,
            org,
            Config::default(),
            &[&format!("{US}/{prefix}")],
            &route,
        )
    }

    fn with(
        p: Virtual,
        org: OrgSpec,
        config: Config,
        addrs: &[&str],
        routes: &[(&str, &str)],
    ) -> Lan {
        let wire = WireConfig::default();
        let ([ours, theirs], _) = pair(&p, wire);
        let mac = ours.capabilities().mac;
        let s = Stack::builder()
            .on_virtual(p.clone())
            .org(org)
            .config(config);
        let mut s = s.interface(ours, addrs).unwrap();
        for (dst, via) in routes {
            s = s.route(dst, Some(via), 0).unwrap();
        }
        let (mut rx, mut tx) = Box::new(theirs).open();
        Lan {
            s: s.build().unwrap(),
            p,
            mac,
            rx: rx.remove(0),
            tx: tx.remove(0),
            ring: TxRing::new(256),
            pool: PktPool::default(),
            frames: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Puts a frame on the wire.
    pub fn send(&mut self, frame: &[u8]) {
        let mut d = self.ring.push().expect("rung each time");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(frame));
        self.tx.doorbell(self.p.now(), &mut self.ring);
    }

    /// Lets the stack work for that long, and takes what it sends.
    pub fn pass(&mut self, d: Duration) {
        self.pass_by(200_000, d);
    }

    /// As [`Lan::ms`], in large steps: where it does not matter when exactly something happens.
    pub fn idle(&mut self, ms: u64) {
        self.pass_by(20_000_000, Duration::from_millis(ms));
    }

    fn pass_by(&mut self, step_ns: u64, d: Duration) {
        let end = self.p.now() + d;
        loop {
            self.s.drive().unwrap();
            let step = self.p.now().plus(step_ns).min(end);
            self.p.sleep_until(step);
            while self
                .rx
                .poll(self.p.now(), &mut self.pool, &mut self.frames, 64)
                > 0
            {
                let frames = self.frames.drain(..);
                self.sent.extend(frames.map(|f| f.buf.as_slice().to_vec()));
            }
            if self.p.now() >= end {
                return;
            }
        }
    }

    pub fn ms(&mut self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    /// What was sent since the last look.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.sent)
    }

    /// The ARP packets among what was sent since the last look, with the stations that they were
    /// sent to.
    pub fn arps(&mut self) -> Vec<(MacAddr, ArpPacket)> {
        arps(&self.take())
    }

    /// The TCP segments among what was sent since the last look.
    pub fn segments(&mut self) -> Vec<Out> {
        segments(&self.take())
    }

    /// Answers the stack's request for the gateway, which is made by connecting to a host behind
    /// it; the stream, and the SYN.
    pub fn meet_gateway(&mut self) -> (perimeter::TcpStream, Out) {
        let c = self.connect_far();
        self.ms(5);
        let asked = self.arps();
        assert!(
            asked
                .iter()
                .any(|(to, a)| to.is_broadcast() && a.target_ip == GATEWAY),
            "{asked:?}"
        );
        self.send(&arp(
            ArpOp::Reply,
            (GATEWAY_MAC, GATEWAY),
            (self.mac, US),
            self.mac,
        ));
        self.ms(5);
        let syn = self.segments().remove(0);
        assert_eq!(syn.to, GATEWAY_MAC);
        (c, syn)
    }

    /// As [`Lan::meet_gateway`], and the host behind it takes the connection.
    pub fn meet_far(&mut self) -> (perimeter::TcpStream, Out) {
        let (c, syn) = self.meet_gateway();
        let ack = syn.hdr.seq.0.wrapping_add(1);
        self.far_answers(&syn.hdr, TcpFlags::SYN | TcpFlags::ACK, 5, ack);
        self.ms(5);
        (c, syn)
    }

    pub fn connect_far(&self) -> perimeter::TcpStream {
        let c = self.s.start_connect((FAR, 80).into()).unwrap();
        c.set_nonblocking(true).unwrap();
        c
    }

    /// The far host's answer to a segment of the stack's, by the gateway.
    pub fn far_answers(&mut self, to: &TcpHdr, flags: TcpFlags, seq: u32, ack: u32) {
        let hdr = TcpHdr {
            src_port: to.dst_port,
            dst_port: to.src_port,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 60_000,
            ..TcpHdr::default()
        };
        let frame = tcp((GATEWAY_MAC, FAR), (self.mac, US), &hdr, b"", &[]);
        self.send(&frame);
    }

    pub fn count(&self, name: &str) -> u64 {
        self.s.stats().count(name)
    }
}

/// A segment that the stack sent.
#[derive(Debug)]
pub struct Out {
    /// The station that it was sent to.
    pub to: MacAddr,
    /// The host.
    pub dst: Ipv4Addr,
    pub ident: u16,
    pub hdr: TcpHdr,
    pub payload: Vec<u8>,
}

pub fn arps(frames: &[Vec<u8>]) -> Vec<(MacAddr, ArpPacket)> {
    let arp = |f: &Vec<u8>| match Frame::parse_ethernet(f, Csum::Trust) {
        Ok(Frame::Arp(a)) => Some((EtherHdr::parse(f).unwrap().dst, a)),
        _ => None,
    };
    frames.iter().filter_map(arp).collect()
}

pub fn segments(frames: &[Vec<u8>]) -> Vec<Out> {
    let tcp = |f: &Vec<u8>| match Frame::parse_ethernet(f, Csum::Trust) {
        Ok(Frame::Tcp(t)) => {
            let ip = Ipv4Hdr::parse(&f[EtherHdr::LEN..], false).unwrap();
            let at = t.payload_off as usize;
            Some(Out {
                to: EtherHdr::parse(f).unwrap().dst,
                dst: ip.dst,
                ident: ip.ident,
                hdr: t.hdr,
                payload: f[at..at + t.payload_len as usize].to_vec(),
            })
        }
        _ => None,
    };
    frames.iter().filter_map(tcp).collect()
}

/// How many echo replies there are.
pub fn echoes(frames: &[Vec<u8>]) -> usize {
    let is = |f: &&Vec<u8>| match Frame::parse_ethernet(f, Csum::Trust) {
        Ok(Frame::Icmp { msg, .. }) => matches!(msg, Icmpv4::EchoReply { .. }),
        _ => false,
    };
    frames.iter().filter(is).count()
}

/// An ARP packet of `sender` about `target`, in a frame to `to`.
pub fn arp(
    op: ArpOp,
    sender: (MacAddr, Ipv4Addr),
    target: (MacAddr, Ipv4Addr),
    to: MacAddr,
) -> Vec<u8> {
    let packet = ArpPacket {
        op,
        sender_mac: sender.0,
        sender_ip: sender.1,
        target_mac: target.0,
        target_ip: target.1,
    };
    let eth = EtherHdr {
        dst: to,
        src: sender.0,
        ethertype: ETHERTYPE_ARP,
    };
    let mut out = vec![0; EtherHdr::LEN + ArpPacket::LEN];
    let n = eth.emit(&mut out);
    packet.emit(&mut out[n..]);
    out
}

/// A datagram in a frame. `options`: of IP, a multiple of four bytes.
pub fn ip(
    from: (MacAddr, Ipv4Addr),
    to: (MacAddr, Ipv4Addr),
    protocol: u8,
    body: &[u8],
    options: &[u8],
) -> Vec<u8> {
    let eth = EtherHdr {
        dst: to.0,
        src: from.0,
        ethertype: ETHERTYPE_IPV4,
    };
    let hdr = Ipv4Hdr {
        src: from.1,
        dst: to.1,
        protocol,
        ttl: 64,
        tos: 0,
        ident: 0,
        total_len: (20 + options.len() + body.len()) as u16,
        header_len: 20,
        dont_fragment: true,
        more_fragments: false,
        frag_offset: 0,
    };
    let mut out = vec![0; EtherHdr::LEN + 20];
    let n = eth.emit(&mut out);
    hdr.emit(&mut out[n..]);
    out.extend_from_slice(options);
    out[n] = 0x45 + (options.len() / 4) as u8;
    out[n + 10..n + 12].fill(0);
    let sum = checksum(&out[n..]);
    out[n + 10..n + 12].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(body);
    out
}

/// A TCP segment in a frame.
pub fn tcp(
    from: (MacAddr, Ipv4Addr),
    to: (MacAddr, Ipv4Addr),
    hdr: &TcpHdr,
    payload: &[u8],
    options: &[u8],
) -> Vec<u8> {
    let mut seg = vec![0; hdr.header_len()];
    hdr.emit(&mut seg);
    seg.extend_from_slice(payload);
    seg[16..18].fill(0);
    let sum = tcp_checksum_v4(from.1, to.1, &seg);
    seg[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(from, to, PROTO_TCP, &seg, options)
}

/// An echo request in a frame.
pub fn ping(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr), options: &[u8]) -> Vec<u8> {
    let mut msg = vec![0; 8 + 5];
    Icmpv4::EchoRequest { ident: 1, seq: 2 }.emit(b"hello", &mut msg);
    ip(from, to, PROTO_ICMP, &msg, options)
}

/// A header with these ports and flags.
pub fn header(ports: (u16, u16), flags: TcpFlags, seq: u32, ack: u32) -> TcpHdr {
    TcpHdr {
        src_port: ports.0,
        dst_port: ports.1,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 60_000,
        ..TcpHdr::default()
    }
}

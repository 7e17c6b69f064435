//! Frames as an attacker makes them: right, or wrong in a chosen way. Not built with the stack's
//! own code, which is what they are to try.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A link-layer address.
pub type Mac = [u8; 6];

/// TCP's flags.
pub mod flag {
    /// No more data.
    pub const FIN: u8 = 1;
    /// Synchronise.
    pub const SYN: u8 = 2;
    /// Reset.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 16;
}

/// The options of an ordinary SYN: MSS 1460, SACK, timestamps, window scale 7.
pub const SYN_OPTIONS: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

/// A TCP segment, without what is computed.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Link-layer source and destination.
    pub macs: (Mac, Mac),
    /// Source.
    pub src: (Ipv4Addr, u16),
    /// Destination.
    pub dst: (Ipv4Addr, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// [`flag`]s.
    pub flags: u8,
    /// Window as it stands in the header.
    pub window: u16,
    /// Options, a multiple of four bytes.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

fn sum(mut acc: u32, bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(2);
    for w in &mut words {
        acc += u32::from(u16::from_be_bytes([w[0], w[1]]));
    }
    if let [last] = words.remainder() {
        acc += u32::from(*last) << 8;
    }
    acc
}

fn fold(mut acc: u32) -> [u8; 2] {
    while acc > 0xffff {
        acc = (acc & 0xffff) + (acc >> 16);
    }
    (!(acc as u16)).to_be_bytes()
}

/// Starts a frame: Ethernet's header.
pub fn ethernet(out: &mut Vec<u8>, (src, dst): (Mac, Mac), kind: u16) {
    out.clear();
    out.extend_from_slice(&dst);
    out.extend_from_slice(&src);
    out.extend_from_slice(&kind.to_be_bytes());
}

/// What an IPv4 header says beside addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    /// Protocol number.
    pub protocol: u8,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset.
    pub fragment: u16,
}

/// A whole frame with an IPv4 datagram.
pub fn ipv4(
    out: &mut Vec<u8>,
    macs: (Mac, Mac),
    (src, dst): (Ipv4Addr, Ipv4Addr),
    ip: Ip,
    payload: &[u8],
) {
    ethernet(out, macs, 0x0800);
    out.extend_from_slice(&[0x45, 0]);
    out.extend_from_slice(&((20 + payload.len()) as u16).to_be_bytes());
    out.extend_from_slice(&ip.id.to_be_bytes());
    out.extend_from_slice(&ip.fragment.to_be_bytes());
    out.extend_from_slice(&[64, ip.protocol, 0, 0]);
    out.extend_from_slice(&src.octets());
    out.extend_from_slice(&dst.octets());
    let c = fold(sum(0, &out[14..34]));
    out[24..26].copy_from_slice(&c);
    out.extend_from_slice(payload);
}

/// A whole frame with a TCP segment, checksums right.
pub fn tcp(out: &mut Vec<u8>, s: &Segment<'_>) {
    let mut t = Vec::with_capacity(60 + s.payload.len());
    t.extend_from_slice(&s.src.1.to_be_bytes());
    t.extend_from_slice(&s.dst.1.to_be_bytes());
    t.extend_from_slice(&s.seq.to_be_bytes());
    t.extend_from_slice(&s.ack.to_be_bytes());
    t.push((((20 + s.options.len()) / 4) << 4) as u8);
    t.push(s.flags);
    t.extend_from_slice(&s.window.to_be_bytes());
    t.extend_from_slice(&[0; 4]);
    t.extend_from_slice(s.options);
    t.extend_from_slice(s.payload);
    let acc = sum(6 + t.len() as u32, &s.src.0.octets());
    let c = fold(sum(sum(acc, &s.dst.0.octets()), &t));
    t[16..18].copy_from_slice(&c);
    let ip = Ip {
        protocol: 6,
        id: s.seq as u16,
        fragment: 0x4000,
    };
    ipv4(out, s.macs, (s.src.0, s.dst.0), ip, &t);
}

/// A whole frame with an echo request.
pub fn echo(out: &mut Vec<u8>, macs: (Mac, Mac), ends: (Ipv4Addr, Ipv4Addr), data: &[u8]) {
    let mut m = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    m.extend_from_slice(data);
    icmp(out, macs, ends, m);
}

/// A whole frame with an ICMP message, whose checksum is made.
pub fn icmp(out: &mut Vec<u8>, macs: (Mac, Mac), ends: (Ipv4Addr, Ipv4Addr), mut message: Vec<u8>) {
    let c = fold(sum(0, &message));
    message[2..4].copy_from_slice(&c);
    let ip = Ip {
        protocol: 1,
        id: 7,
        fragment: 0,
    };
    ipv4(out, macs, ends, ip, &message);
}

/// Makes the checksum of a frame's IPv4 header again.
pub fn header_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let c = fold(sum(0, &frame[14..34]));
    frame[24..26].copy_from_slice(&c);
}

/// What an IPv6 header says.
#[derive(Clone, Copy, Debug)]
pub struct Ip6 {
    /// Next header.
    pub next: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source and destination.
    pub ends: (Ipv6Addr, Ipv6Addr),
}

/// A whole frame with an IPv6 datagram.
pub fn ipv6(out: &mut Vec<u8>, macs: (Mac, Mac), ip: Ip6, payload: &[u8]) {
    ethernet(out, macs, 0x86dd);
    out.extend_from_slice(&[0x60, 0, 0, 0]);
    out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    out.extend_from_slice(&[ip.next, ip.hop_limit]);
    out.extend_from_slice(&ip.ends.0.octets());
    out.extend_from_slice(&ip.ends.1.octets());
    out.extend_from_slice(payload);
}

/// What an ICMPv6 message says beside its body.
#[derive(Clone, Copy, Debug)]
pub struct Icmp6 {
    /// Type and code.
    pub kind: (u8, u8),
    /// Hop limit: neighbour discovery wants 255.
    pub hop_limit: u8,
    /// Source and destination.
    pub ends: (Ipv6Addr, Ipv6Addr),
}

/// A whole frame with an ICMPv6 message; `body` is what follows its checksum.
pub fn icmp6(out: &mut Vec<u8>, macs: (Mac, Mac), msg: Icmp6, body: &[u8]) {
    let mut m = vec![msg.kind.0, msg.kind.1, 0, 0];
    m.extend_from_slice(body);
    let acc = sum(58 + m.len() as u32, &msg.ends.0.octets());
    let c = fold(sum(sum(acc, &msg.ends.1.octets()), &m));
    m[2..4].copy_from_slice(&c);
    let ip = Ip6 {
        next: 58,
        hop_limit: msg.hop_limit,
        ends: msg.ends,
    };
    ipv6(out, macs, ip, &m);
}

/// What an ARP message says.
#[derive(Clone, Copy, Debug)]
pub struct Arp {
    /// 1 asks, 2 answers.
    pub op: u16,
    /// Who speaks.
    pub sender: (Mac, Ipv4Addr),
    /// Whom it is about.
    pub target: (Mac, Ipv4Addr),
}

/// A whole frame with an ARP message.
pub fn arp(out: &mut Vec<u8>, macs: (Mac, Mac), a: &Arp) {
    ethernet(out, macs, 0x0806);
    out.extend_from_slice(&[0, 1, 8, 0, 6, 4]);
    out.extend_from_slice(&a.op.to_be_bytes());
    for (mac, ip) in [a.sender, a.target] {
        out.extend_from_slice(&mac);
        out.extend_from_slice(&ip.octets());
    }
    out.resize(60, 0);
}

/// A TCP segment as a raw client reads it.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// Source.
    pub src: (Ipv4Addr, u16),
    /// Destination.
    pub dst: (Ipv4Addr, u16),
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// [`flag`]s.
    pub flags: u8,
    /// The sender's timestamp, if there is the option.
    pub timestamp: Option<u32>,
    /// Payload.
    pub payload: &'a [u8],
}

/// Reads an Ethernet frame with TCP over IPv4; its checksum may be left to the device.
pub fn read_tcp(frame: &[u8]) -> Option<Heard<'_>> {
    let ip = frame.get(14..)?;
    if frame[12..14] != [8, 0] || *ip.first()? >> 4 != 4 || *ip.get(9)? != 6 {
        return None;
    }
    let head = usize::from(ip[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let t = ip.get(head..total)?;
    let u16_at = |i: usize| Some(u16::from_be_bytes(t.get(i..i + 2)?.try_into().ok()?));
    let u32_at = |i: usize| Some(u32::from_be_bytes(t.get(i..i + 4)?.try_into().ok()?));
    let addr = |i: usize| {
        Some(Ipv4Addr::from(u32::from_be_bytes(
            ip.get(i..i + 4)?.try_into().ok()?,
        )))
    };
    let data = usize::from(*t.get(12)? >> 4) * 4;
    Some(Heard {
        src: (addr(12)?, u16_at(0)?),
        dst: (addr(16)?, u16_at(2)?),
        seq: u32_at(4)?,
        ack: u32_at(8)?,
        flags: *t.get(13)?,
        timestamp: timestamp(t.get(20..data)?),
        payload: t.get(data..)?,
    })
}

fn timestamp(mut options: &[u8]) -> Option<u32> {
    loop {
        match options {
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([*a, *b, *c, *d])),
            [0, ..] | [] | [_] => return None,
            [1, rest @ ..] => options = rest,
            [_, n, ..] => options = options.get(usize::from((*n).max(2))..)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut out = Vec::new();
        let s = Segment {
            macs: ([2; 6], [4; 6]),
            src: (Ipv4Addr::new(10, 0, 0, 1), 5),
            dst: (Ipv4Addr::new(10, 0, 0, 2), 6),
            seq: 7,
            ack: 8,
            flags: flag::SYN,
            window: 9,
            options: &SYN_OPTIONS,
            payload: b"odd",
        };
        tcp(&mut out, &s);
        // A right checksum makes the sum over header and data zero.
        assert_eq!(fold(sum(0, &out[14..34])), [0, 0]);
        let pseudo = sum(6 + (out.len() as u32 - 34), &out[26..34]);
        assert_eq!(fold(sum(pseudo, &out[34..])), [0, 0]);
        let h = read_tcp(&out).expect("TCP");
        assert_eq!((h.src, h.dst, h.seq, h.ack), (s.src, s.dst, 7, 8));
        assert_eq!(
            (h.flags, h.timestamp, h.payload),
            (flag::SYN, Some(1), &b"odd"[..])
        );
        for n in 0..out.len() {
            assert!(read_tcp(&out[..n]).is_none(), "{n}");
        }
    }

    #[test]
    fn checksums_of_ipv6_are_right() {
        let mut out = Vec::new();
        let ends = (
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
            Ipv6Addr::LOCALHOST,
        );
        let msg = Icmp6 {
            kind: (128, 0),
            hop_limit: 255,
            ends,
        };
        icmp6(&mut out, ([2; 6], [4; 6]), msg, b"odd");
        assert_eq!(out.len(), 14 + 40 + 7);
        // A right checksum makes the sum over pseudo-header and message zero.
        assert_eq!(fold(sum(sum(58 + 7, &out[22..54]), &out[54..])), [0, 0]);
    }
}

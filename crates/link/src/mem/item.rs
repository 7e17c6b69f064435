//! What travels from the peer to a receive queue: one cache line per frame.
//!
//! Segments travel as the fields that differ; the receive queue builds the frame in a buffer of
//! the stack's pool, as a NIC writes a frame into a buffer that the driver posted.

use perimeter_base::{PktBuf, PktPool, Time};
use perimeter_wire::{LARGEST_PAYLOAD, checksum};

use super::NicConfig;
use super::peer::{ACK, PSH};
use super::subnet::{PREFIX6_OCTETS, PREFIX6_SUM};
use crate::pattern::Pattern;

/// A TCP segment without options but timestamps. Addresses (over IPv6 their last 32 bits) and
/// ports are numbers in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seg {
    pub src: u32,
    pub dst: u32,
    /// Source port in the upper half.
    pub ports: u32,
    pub seq: u32,
    pub ack: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub window: u16,
    /// Bytes of the stream's pattern that follow the header, from `phase` on.
    pub len: u16,
    pub phase: u16,
    pub flags: u8,
    pub ts: bool,
}

/// What a frame is made of.
#[derive(Debug)]
pub(crate) enum What {
    Seg(Seg),
    /// Any other frame, whole.
    Raw(PktBuf),
}

/// A frame under way.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Item {
    /// When it arrives.
    pub due: Time,
    /// Flow hash of a [`What::Seg`]; of a raw frame if the flag says so.
    pub hash: u32,
    pub hashed: bool,
    pub what: What,
}

const _: () = assert!(size_of::<Item>() == 64);

impl Item {
    fn seg(&self) -> Option<&Seg> {
        match &self.what {
            What::Seg(seg) => Some(seg),
            What::Raw(_) => None,
        }
    }

    /// Bytes of the stream that it carries.
    pub(crate) fn payload(&self) -> u16 {
        self.seg().map_or(0, |s| s.len)
    }
}

/// A delayed acknowledgment: sent when due unless the flow has acknowledged by itself.
#[derive(Debug)]
pub(crate) struct Delayed {
    pub due: Time,
    pub flow: u32,
    /// Generation of the flow's slot.
    pub generation: u32,
    pub hash: u32,
    pub seg: Seg,
}

/// Length of Ethernet and IPv4 headers, and of TCP's without options.
const PLAIN: usize = 14 + 20 + 20;
/// How much longer IPv6's header is.
const LONGER: usize = 20;

impl Seg {
    /// Room that the frame needs, bytes.
    #[inline]
    pub fn room(&self, v6: bool) -> usize {
        PLAIN + if v6 { LONGER } else { 0 } + 12 + usize::from(self.len)
    }

    /// Writes the frame to `buf` and sets its window; all checksums are complete. `buf` has
    /// room for the headers; payload that does not fit is cut off.
    #[inline]
    pub fn build(&self, buf: &mut PktBuf, nic: &NicConfig, pattern: &Pattern) {
        let head = self.headers(nic.v6);
        let payload = usize::from(self.len).min(buf.capacity().saturating_sub(head));
        let sum = match payload {
            0 => 0,
            _ => pattern.sum(usize::from(self.phase), payload),
        };
        if !self.build_headers(buf.raw_mut(), nic, payload, sum) {
            return;
        }
        if payload != 0 {
            let bytes = pattern.at(usize::from(self.phase), payload);
            buf.raw_mut()[head..head + bytes.len()].copy_from_slice(bytes);
        }
        buf.set_window(0, head + payload);
    }

    /// Length of the headers.
    #[inline]
    fn headers(&self, v6: bool) -> usize {
        PLAIN + if v6 { LONGER } else { 0 } + if self.ts { 12 } else { 0 }
    }

    /// Writes the headers of a frame of `payload` bytes, whose sum is `sum`; whether they had room.
    #[inline]
    fn build_headers(&self, raw: &mut [u8], nic: &NicConfig, payload: usize, sum: u32) -> bool {
        let tcp_len = if self.ts { 32 } else { 20 };
        let tcp = if nic.v6 { 34 + LONGER } else { 34 };
        let addresses = half_sum(self.src) + half_sum(self.dst);
        let pseudo = match nic.v6 {
            true => addresses + 2 * PREFIX6_SUM,
            false => addresses,
        };
        if raw.len() < tcp + 32 {
            return false;
        }
        raw[..6].copy_from_slice(&nic.mac.0);
        raw[6..12].copy_from_slice(&nic.peer_mac.0);
        match nic.v6 {
            true => self.ipv6(raw, tcp_len + payload),
            false => self.ipv4(raw, tcp_len + payload, addresses),
        }
        if let Some(h) = raw[tcp..].first_chunk_mut() {
            self.tcp(h, (tcp_len, payload), pseudo + sum);
        }
        true
    }

    /// Writes type and header of a datagram with `len` bytes of payload; `addresses` is their sum.
    #[inline]
    fn ipv4(&self, raw: &mut [u8], len: usize, addresses: u32) {
        let Some(h) = raw.first_chunk_mut::<34>() else {
            return;
        };
        let total = (20 + len) as u32;
        // Version 4, five words, no service class; DF and no identification (RFC 6864,
        // section 4.1, an atomic datagram); TTL 64, TCP.
        let sum = 0x4500 + total + 0x4000 + 0x4006 + addresses;
        h[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        h[16..18].copy_from_slice(&(total as u16).to_be_bytes());
        h[18..24].copy_from_slice(&[0, 0, 0x40, 0, 64, 6]);
        h[24..26].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
        h[26..30].copy_from_slice(&self.src.to_be_bytes());
        h[30..34].copy_from_slice(&self.dst.to_be_bytes());
    }

    /// The same over IPv6: no class, no flow label, hop limit 64.
    #[inline]
    fn ipv6(&self, raw: &mut [u8], len: usize) {
        let Some(h) = raw.first_chunk_mut::<54>() else {
            return;
        };
        h[12..18].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        h[18..20].copy_from_slice(&(len as u16).to_be_bytes());
        h[20..22].copy_from_slice(&[6, 64]);
        h[22..34].copy_from_slice(&PREFIX6_OCTETS);
        h[34..38].copy_from_slice(&self.src.to_be_bytes());
        h[38..50].copy_from_slice(&PREFIX6_OCTETS);
        h[50..54].copy_from_slice(&self.dst.to_be_bytes());
    }

    /// Writes the header of TCP; `sum` is that of the addresses and the payload.
    #[inline]
    fn tcp(&self, h: &mut [u8; 32], (tcp_len, payload): (usize, usize), mut sum: u32) {
        h[..4].copy_from_slice(&self.ports.to_be_bytes());
        h[4..8].copy_from_slice(&self.seq.to_be_bytes());
        h[8..12].copy_from_slice(&self.ack.to_be_bytes());
        let offset_flags = (tcp_len as u32 / 4) << 12 | u32::from(self.flags);
        h[12..14].copy_from_slice(&(offset_flags as u16).to_be_bytes());
        h[14..16].copy_from_slice(&self.window.to_be_bytes());
        sum += 6 + (tcp_len + payload) as u32;
        sum += half_sum(self.ports) + half_sum(self.seq) + half_sum(self.ack);
        sum += offset_flags + u32::from(self.window);
        if self.ts {
            h[20..24].copy_from_slice(&[1, 1, 8, 10]);
            h[24..28].copy_from_slice(&self.tsval.to_be_bytes());
            h[28..].copy_from_slice(&self.tsecr.to_be_bytes());
            sum += 0x0101 + 0x080a + half_sum(self.tsval) + half_sum(self.tsecr);
        }
        h[16..18].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
        h[18..20].fill(0);
    }

    /// Bytes on the wire: the frame and Ethernet's preamble, check sequence and gap.
    #[inline]
    pub fn wire_len(&self, v6: bool) -> usize {
        let options = if self.ts { 0 } else { 12 };
        self.room(v6) - options + crate::pace::OVERHEAD
    }
}

/// Sum of the two halves.
#[inline]
const fn half_sum(v: u32) -> u32 {
    (v >> 16) + (v & 0xffff)
}

/// How many of `items` a NIC makes one frame of, from the first on: full segments of one flow that
/// follow each other and are otherwise alike. The last may be shorter, and may push. 1: it stays as it
/// is.
pub(crate) fn run(items: &[Item]) -> usize {
    let Some(first) = items.first().and_then(Item::seg) else {
        return 1;
    };
    let (mut n, mut octets, mut last) = (1, u32::from(first.len), first);
    for next in items.iter().skip(1).map_while(Item::seg) {
        let full = last.flags == ACK && last.len == first.len;
        let fits =
            (1..=first.len).contains(&next.len) && octets + u32::from(next.len) <= LARGEST_PAYLOAD;
        let alike = Seg {
            seq: first.seq.wrapping_add(octets),
            len: next.len,
            phase: next.phase,
            flags: ACK | next.flags & PSH,
            ..*first
        };
        if !full || !fits || *next != alike {
            break;
        }
        (n, octets, last) = (n + 1, octets + u32::from(next.len), next);
    }
    n
}

/// The frame that a [`run`] of segments makes; all checksums are complete.
pub(crate) fn merged(
    items: &[Item],
    pool: &mut PktPool,
    nic: &NicConfig,
    pattern: &Pattern,
) -> PktBuf {
    let segs = || items.iter().filter_map(Item::seg);
    let Some(mut all) = segs().next().copied() else {
        return PktBuf::default();
    };
    let payload: usize = segs().map(|s| usize::from(s.len)).sum();
    let head = all.headers(nic.v6);
    let mut buf = pool.take(head + payload);
    let (mut at, mut sum) = (head, 0);
    for seg in segs() {
        let bytes = pattern.at(usize::from(seg.phase), usize::from(seg.len));
        buf.raw_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        let its = pattern.sum(usize::from(seg.phase), bytes.len());
        // Bytes that begin at an odd place count in the other half of each word.
        sum += match (at - head).is_multiple_of(2) {
            true => its,
            false => checksum::fold(its).swap_bytes().into(),
        };
        at += bytes.len();
        all.flags |= seg.flags;
    }
    if all.build_headers(buf.raw_mut(), nic, payload, sum) {
        buf.set_window(0, head + payload);
    }
    buf
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_wire::{Csum, FlowKey, Frame};

    #[test]
    fn built_frames_parse_with_checksums() {
        let pattern = Pattern::get();
        for (ts, len, phase) in [
            (true, 0, 0),
            (false, 0, 0),
            (true, 1448, 4001),
            (false, 1, 17),
            (true, 999, 1),
        ] {
            let seg = Seg {
                src: 0x0a00_0002,
                dst: 0x0aff_ff01,
                ports: 0x0050_ffff,
                seq: 0xffff_fff0,
                ack: 0x8000_0001,
                tsval: 0xdead_beef,
                tsecr: 7,
                window: 0xfff0,
                len,
                phase,
                flags: 0x18,
                ts,
            };
            for nic in [NicConfig::new(0), NicConfig::new(0).over_ipv6()] {
                let mut buf = PktBuf::with_capacity(2048);
                seg.build(&mut buf, &nic, pattern);
                assert_eq!(
                    seg.wire_len(nic.v6),
                    buf.as_slice().len() + crate::pace::OVERHEAD
                );
                let frame = Frame::parse_ethernet(buf.as_slice(), Csum::Verify).expect("valid");
                let Frame::Tcp(t) = frame else {
                    panic!("not TCP")
                };
                assert_eq!(t.hdr.seq.0, seg.seq);
                assert_eq!(t.hdr.ack.0, seg.ack);
                assert_eq!(t.hdr.opts.ts, ts.then_some((seg.tsval, seg.tsecr)));
                assert_eq!((t.hdr.src_port, t.hdr.dst_port), (0x50, 0xffff));
                let key = FlowKey {
                    local: nic.ip(seg.dst),
                    remote: nic.ip(seg.src),
                    local_port: 0xffff,
                    remote_port: 0x50,
                };
                assert_eq!(t.key, key);
                let at = t.payload_off as usize;
                assert_eq!(
                    &buf.as_slice()[at..],
                    pattern.at(usize::from(phase), usize::from(len))
                );
            }
        }
    }
}

//! The header in front of each frame that is exchanged with the host's kernel: what is left to do
//! to the frame, by whoever takes it (checksum, cutting).

use perimeter_base::{PktBuf, PktPool, TxDesc};
use perimeter_wire::checksum;
use std::collections::VecDeque;

use crate::device::{Medium, RxFrame};

/// `struct virtio_net_hdr` without the number of buffers, in the machine's byte order (VIRTIO
/// 1.2, section 5.1.6): flags, GSO type, header length, GSO size, checksum start and offset.
pub(crate) const VNET: usize = 10;

/// The longest frame that is not cut, with this header and an Ethernet header with a VLAN tag.
pub(crate) const LONGEST: usize = VNET + 18 + 65_535;

/// The checksum is partial: complete it from `csum_start`.
const NEEDS_CSUM: u8 = 1;
/// The checksum has been verified.
const DATA_VALID: u8 = 2;

/// How the kernel is to cut a frame, or has not cut it: not at all, as TCP over IPv4, over IPv6, or
/// into datagrams of UDP over either.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;

/// Flag among the types: the segments carry ECN's marks as RFC 3168 has it.
const GSO_ECN: u8 = 0x80;

/// What the kernel says of a received frame.
pub(crate) struct Received {
    /// The transport checksum is right, or partial and the frame has been on no wire.
    pub csum_ok: bool,
    /// Octets of TCP in each segment but the last; 0: the frame is one segment.
    pub segment_size: u16,
    /// Octets of payload of each datagram of UDP but the last, of several that were sent in one call
    /// or merged; 0: the frame has none or one.
    pub datagram_size: u16,
    /// The frame stands for several of another kind.
    pub other_merged: bool,
}

/// Reads the header.
pub(crate) fn read(vnet: &[u8; VNET]) -> Received {
    let size = u16::from_ne_bytes([vnet[4], vnet[5]]);
    let kind = vnet[1] & !GSO_ECN;
    let tcp = matches!(kind, GSO_TCPV4 | GSO_TCPV6);
    let udp = kind == GSO_UDP_L4 && size > 0;
    Received {
        csum_ok: vnet[0] & (NEEDS_CSUM | DATA_VALID) != 0,
        segment_size: if tcp { size } else { 0 },
        datagram_size: if udp { size } else { 0 },
        other_merged: !tcp && !udp && kind != GSO_NONE,
    }
}

/// How a frame with these headers is cut.
fn kind(headers: &[u8], medium: Medium) -> u8 {
    let ip = match medium {
        Medium::Ethernet => headers.get(14..),
        Medium::Ip => Some(headers),
    };
    let ip = ip.unwrap_or(&[]);
    let v6 = ip.first().is_some_and(|b| b >> 4 == 6);
    match ip.get(if v6 { 6 } else { 9 }) {
        Some(17) => GSO_UDP_L4,
        _ if v6 => GSO_TCPV6,
        _ => GSO_TCPV4,
    }
}

/// The header for a frame to send.
pub(crate) fn of(d: &TxDesc, medium: Medium) -> [u8; VNET] {
    let mut vnet = [0u8; VNET];
    if d.offload.csum_start != 0 {
        vnet[0] = NEEDS_CSUM;
        vnet[6..8].copy_from_slice(&u16::from(d.offload.csum_start).to_ne_bytes());
        vnet[8..10].copy_from_slice(&u16::from(d.offload.csum_offset).to_ne_bytes());
    }
    if d.offload.segment_size != 0 {
        vnet[1] = kind(d.headers(), medium);
        vnet[2..4].copy_from_slice(&u16::from(d.hdr_len).to_ne_bytes());
        vnet[4..6].copy_from_slice(&d.offload.segment_size.to_ne_bytes());
    }
    vnet
}

/// Datagrams of UDP that a frame stood for, and that wait to be handed over one by one.
#[derive(Default)]
pub(crate) struct Datagrams(VecDeque<PktBuf>);

impl Datagrams {
    /// Cuts a frame, whose checksums are right or partial, into datagrams with `size` octets of
    /// payload each, the last perhaps with fewer; false if it is no such frame.
    pub(crate) fn cut(
        &mut self,
        frame: &[u8],
        medium: Medium,
        size: u16,
        pool: &mut PktPool,
    ) -> bool {
        const UDP: usize = 8;
        let (ip, size) = (
            if medium == Medium::Ethernet { 14 } else { 0 },
            usize::from(size),
        );
        let (v6, header) = match frame.get(ip) {
            Some(b) if b >> 4 == 6 => (true, 40),
            Some(b) if b >> 4 == 4 => (false, usize::from(b & 15) * 4),
            _ => return false,
        };
        let head = ip + header + UDP;
        let protocol = frame.get(ip + if v6 { 6 } else { 9 });
        if protocol != Some(&17) || header < 20 || frame.len() <= head || size == 0 {
            return false;
        }
        let (headers, payload) = frame.split_at(head);
        let ident = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
        for (n, part) in payload.chunks(size).enumerate() {
            let mut buf = pool.take(head + part.len());
            let out = &mut buf.raw_mut()[..head + part.len()];
            out[..head].copy_from_slice(headers);
            out[head..].copy_from_slice(part);
            // A frame is below 64 KiB, so these fit.
            let (udp, whole) = (
                (UDP + part.len()) as u16,
                (header + UDP + part.len()) as u16,
            );
            out[head - 4..head - 2].copy_from_slice(&udp.to_be_bytes());
            if v6 {
                out[ip + 4..ip + 6].copy_from_slice(&udp.to_be_bytes());
            } else {
                out[ip + 2..ip + 4].copy_from_slice(&whole.to_be_bytes());
                let ident = ident.wrapping_add(n as u16);
                out[ip + 4..ip + 6].copy_from_slice(&ident.to_be_bytes());
                out[ip + 10..ip + 12].fill(0);
                let sum = !checksum::fold(checksum::sum(&out[ip..ip + header], 0));
                out[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            }
            let len = out.len();
            buf.set_window(0, len);
            self.0.push_back(buf);
        }
        true
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> Option<RxFrame> {
        Some(RxFrame {
            buf: self.0.pop_front()?,
            hash: None,
            // The kernel has the sum of all of them, and answers for it.
            csum_ok: true,
            segment_size: 0,
        })
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A frame of which `buf` has as much as it can hold, and `large` what is behind that, each where it
/// belongs, comes together in `buf`. Another buffer of [`LONGEST`] takes the place of `large`.
pub(crate) fn join(buf: &mut PktBuf, large: &mut PktBuf, pool: &mut PktPool) {
    let head = buf.capacity();
    large.raw_mut()[..head].copy_from_slice(buf.raw_mut());
    core::mem::swap(buf, large);
    let another = pool.take(LONGEST);
    pool.put(core::mem::replace(large, another));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_merged_is_told_apart() {
        let header = |flags, kind, size: u16| {
            let [a, b] = size.to_ne_bytes();
            read(&[flags, kind, 0, 0, a, b, 0, 0, 0, 0])
        };
        let plain = header(0, GSO_NONE, 7);
        assert!(!plain.csum_ok && plain.segment_size == 0 && !plain.other_merged);
        for kind in [GSO_TCPV4, GSO_TCPV6, GSO_TCPV4 | GSO_ECN] {
            let tcp = header(NEEDS_CSUM, kind, 1448);
            assert!(tcp.csum_ok && tcp.segment_size == 1448 && !tcp.other_merged);
        }
        // UDP, cut into fragments (3) or datagrams (5).
        let udp = header(DATA_VALID, 3, 1400);
        assert!(udp.csum_ok && udp.segment_size == 0 && udp.other_merged);
        let udp = header(NEEDS_CSUM, GSO_UDP_L4, 1400);
        assert!(udp.csum_ok && udp.segment_size == 0 && !udp.other_merged);
        assert_eq!(udp.datagram_size, 1400);
        assert!(header(0, GSO_UDP_L4, 0).other_merged);
    }

    /// A frame of UDP over IPv4 with options, or IPv6, with so much payload.
    fn udp(v6: bool, payload: usize) -> Vec<u8> {
        let mut f = vec![0u8; 14];
        if v6 {
            f.extend([0x60, 0, 0, 0, 0, 0, 17, 64]);
            f.extend([7; 32]);
        } else {
            f.extend([0x46, 0, 0, 0, 0xff, 0xff, 0, 0, 64, 17, 0, 0]);
            f.extend([10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1]);
        }
        f.extend([0, 7, 0, 9, 0, 0, 0, 0]);
        f.extend((0..payload).map(|i| i as u8));
        f
    }

    #[test]
    fn datagrams_are_cut_as_they_were_sent() {
        let mut pool = PktPool::new(4);
        for v6 in [false, true] {
            let header = if v6 { 40 } else { 24 };
            let mut all = Datagrams::default();
            assert!(all.cut(&udp(v6, 3500), Medium::Ethernet, 1400, &mut pool));
            let mut at = 0;
            for (n, len) in [1400, 1400, 700].into_iter().enumerate() {
                let f = all.next().expect("another");
                assert!(f.csum_ok && f.segment_size == 0);
                let b = f.buf.as_slice();
                assert_eq!(b.len(), 14 + header + 8 + len);
                let word = |at: usize| usize::from(u16::from_be_bytes([b[at], b[at + 1]]));
                assert_eq!(word(14 + header + 4), 8 + len);
                assert_eq!(b[14 + header + 8], at as u8);
                at += len;
                if v6 {
                    assert_eq!(word(18), 8 + len);
                } else {
                    assert_eq!(word(16), header + 8 + len);
                    assert_eq!(word(18), (0xffff + n) & 0xffff);
                    let sum = checksum::fold(checksum::sum(&b[14..14 + header], 0));
                    assert_eq!(sum, 0xffff);
                }
            }
            assert!(all.is_empty() && all.next().is_none());
            // As TUN has it; what is no such frame does not panic.
            let whole = udp(v6, 20);
            assert!(all.cut(&whole[14..], Medium::Ip, 30, &mut pool));
            assert_eq!(all.next().expect("one").buf.as_slice().len(), header + 28);
            for n in 0..14 + header + 9 {
                let cut = all.cut(&whole[..n], Medium::Ethernet, 10, &mut pool);
                assert!(!cut, "{n}");
            }
            assert!(all.is_empty());
        }
    }

    #[test]
    fn how_to_cut_is_told_by_the_headers() {
        assert_eq!(kind(&udp(false, 0), Medium::Ethernet), GSO_UDP_L4);
        assert_eq!(kind(&udp(true, 0), Medium::Ethernet), GSO_UDP_L4);
        let mut tcp = udp(true, 0);
        tcp[20] = 6;
        assert_eq!(kind(&tcp, Medium::Ethernet), GSO_TCPV6);
        assert_eq!(kind(&tcp[14..], Medium::Ip), GSO_TCPV6);
        let mut tcp = udp(false, 0);
        tcp[23] = 6;
        assert_eq!(kind(&tcp, Medium::Ethernet), GSO_TCPV4);
        assert_eq!(kind(&tcp[14..], Medium::Ip), GSO_TCPV4);
    }

    #[test]
    fn a_long_frame_is_put_together() {
        let mut pool = PktPool::new(64);
        let (mut buf, mut large) = (pool.take(1514), pool.take(LONGEST));
        let all: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
        let head = buf.capacity();
        buf.raw_mut().copy_from_slice(&all[..head]);
        large.raw_mut()[head..all.len()].copy_from_slice(&all[head..]);
        join(&mut buf, &mut large, &mut pool);
        buf.set_window(0, all.len());
        assert_eq!(buf.as_slice(), all);
        assert!(large.capacity() >= LONGEST);
        assert_eq!(pool.len(), 1, "the usual buffer is back");
    }
}

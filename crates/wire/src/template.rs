//! The headers of a connection, prepared once and patched per segment.

use core::net::{IpAddr, Ipv6Addr};

use crate::checksum::{self, fold};
use crate::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EtherHdr, MacAddr};
use crate::flow::FlowKey;
use crate::ip::{FLAG_DF, Ipv4Hdr, MAX_DATAGRAM, PROTO_TCP};
use crate::ipv6::{Ipv6Hdr, without_zone};
use crate::seq::Seq;
use crate::tcp::{
    MAX_TCP_HEADER, MIN_TCP_HEADER, TS_PREFIX, TS_TCP_HEADER, TcpFlags, TcpHdr, TcpOptions,
    data_offset,
};

/// Room for the headers of any segment: 14 bytes of Ethernet, 40 of IP (IPv6's,
/// the longer), 60 of TCP, and 4 that are spare.
pub const MAX_HEADERS: usize = 118;

/// The most payload that fits one datagram of TCP, whatever its IP version and options, octets.
pub const LARGEST_PAYLOAD: u32 = MAX_DATAGRAM - (Ipv6Hdr::LEN + MAX_TCP_HEADER) as u32;

/// Offset of the IP header in the template.
const IP: usize = EtherHdr::LEN;
/// Offset of the TCP header in the template.
const TCP: usize = IP + Ipv4Hdr::LEN;
/// Length of the template.
const LEN: usize = TCP + MIN_TCP_HEADER;

/// What TCP says about a segment to send; the ports come from the template.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SegOut {
    /// SEG.SEQ.
    pub seq: Seq,
    /// SEG.ACK.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// SEG.WND as in the header, already scaled down.
    pub window: u16,
    /// SEG.UP, the urgent pointer.
    pub urgent: u16,
    /// Options; see [`TcpOptions`] for which segments carry which.
    pub opts: TcpOptions,
}

impl SegOut {
    /// The header with ports, as a parser reads it.
    pub fn to_hdr(&self, src_port: u16, dst_port: u16) -> TcpHdr {
        TcpHdr {
            src_port,
            dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: self.urgent,
            opts: self.opts,
        }
    }

    /// Length in bytes of the TCP header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        MIN_TCP_HEADER + self.opts.wire_len(self.flags.contains(TcpFlags::SYN))
    }
}

/// Ethernet, IP and TCP headers of one connection. [`Template::emit`] copies
/// them and patches only what changes from segment to segment. One cache line, for either family:
/// of IPv6, whose headers are longer, only what differs from connection to connection is kept.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Template {
    /// IPv4: the headers with zeros where segments differ: IP length, identification
    /// and checksum; all of TCP but the ports. IPv6: the stations, the header's first word,
    /// addresses, ports, and the hop limit, in this order.
    bytes: [u8; LEN],
    /// IPv4: folded sum of the IP header's words.
    ip_sum: u16,
    /// Folded sum of the pseudo-header but for the length.
    pseudo_sum: u16,
    kind: Kind,
    /// Where the TCP header starts in a frame.
    tcp_start: u8,
}

/// The family of the headers, and whether one of Ethernet is in front of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    EthernetIpv4,
    Ipv4,
    EthernetIpv6,
    Ipv6,
}

/// Where things are in an IPv6 template, behind two stations.
mod v6 {
    pub(super) const WORD: usize = 12;
    pub(super) const SRC: usize = WORD + 4;
    pub(super) const DST: usize = SRC + 16;
    pub(super) const PORTS: usize = DST + 16;
    pub(super) const HOPS: usize = PORTS + 4;
}

const _: () = assert!(size_of::<Template>() == 64);

impl Template {
    /// A template for segments from `key.local` to `key.remote`, of whichever family. `l2` is the
    /// source and destination station, or `None` for devices without a link-layer header.
    /// `hop_limit` is IPv4's time to live. `flow_label` is IPv6's, 20 bits (RFC 6437); without
    /// effect for IPv4, whose datagrams are never fragmented.
    ///
    /// # Panics
    /// If the addresses are of two families.
    pub fn new(
        l2: Option<(MacAddr, MacAddr)>,
        key: &FlowKey,
        hop_limit: u8,
        flow_label: u32,
    ) -> Template {
        match (key.local, key.remote) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Self::new_v6(l2, (src, dst), key, hop_limit, flow_label)
            }
            _ => Self::new_v4(l2, key, hop_limit, 0, true),
        }
    }

    /// Zones of link-local addresses are left out.
    fn new_v6(
        l2: Option<(MacAddr, MacAddr)>,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        key: &FlowKey,
        hop_limit: u8,
        flow_label: u32,
    ) -> Template {
        let mut bytes = [0; LEN];
        if let Some((src, dst)) = l2 {
            bytes[..6].copy_from_slice(&dst.0);
            bytes[6..12].copy_from_slice(&src.0);
        }
        let word = 6 << 28 | flow_label & 0xf_ffff;
        bytes[v6::WORD..v6::SRC].copy_from_slice(&word.to_be_bytes());
        bytes[v6::SRC..v6::DST].copy_from_slice(&without_zone(src).octets());
        bytes[v6::DST..v6::PORTS].copy_from_slice(&without_zone(dst).octets());
        bytes[v6::PORTS..v6::PORTS + 2].copy_from_slice(&key.local_port.to_be_bytes());
        bytes[v6::PORTS + 2..v6::HOPS].copy_from_slice(&key.remote_port.to_be_bytes());
        bytes[v6::HOPS] = hop_limit;
        let (kind, l2_len) = match l2 {
            Some(_) => (Kind::EthernetIpv6, IP),
            None => (Kind::Ipv6, 0),
        };
        Template {
            bytes,
            ip_sum: 0,
            pseudo_sum: fold(checksum::pseudo_v6(src, dst, PROTO_TCP, 0)),
            kind,
            tcp_start: (l2_len + Ipv6Hdr::LEN) as u8,
        }
    }

    /// A template for segments from `key.local` to `key.remote`. `l2` is the
    /// source and destination station, or `None` for devices without a
    /// link-layer header. `tos` holds DSCP and ECN, `ttl` is in hops.
    ///
    /// # Panics
    /// If the addresses are not IPv4.
    pub fn new_v4(
        l2: Option<(MacAddr, MacAddr)>,
        key: &FlowKey,
        ttl: u8,
        tos: u8,
        dont_fragment: bool,
    ) -> Template {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (key.local, key.remote) else {
            panic!("an IPv4 template needs IPv4 addresses, not {key}");
        };
        let mut bytes = [0; LEN];
        if let Some((src, dst)) = l2 {
            let ethertype = ETHERTYPE_IPV4;
            EtherHdr {
                dst,
                src,
                ethertype,
            }
            .emit(&mut bytes);
        }
        let flags = if dont_fragment { FLAG_DF } else { 0 };
        let ip = &mut bytes[IP..TCP];
        ip[0] = 0x45;
        ip[1] = tos;
        ip[6..8].copy_from_slice(&flags.to_be_bytes());
        ip[8] = ttl;
        ip[9] = PROTO_TCP;
        ip[12..16].copy_from_slice(&src.octets());
        ip[16..20].copy_from_slice(&dst.octets());
        let ip_sum = fold(checksum::sum(ip, 0));
        bytes[TCP..TCP + 2].copy_from_slice(&key.local_port.to_be_bytes());
        bytes[TCP + 2..TCP + 4].copy_from_slice(&key.remote_port.to_be_bytes());
        Template {
            bytes,
            ip_sum,
            pseudo_sum: fold(checksum::pseudo_v4(src, dst, PROTO_TCP, 0)),
            kind: match l2 {
                Some(_) => Kind::EthernetIpv4,
                None => Kind::Ipv4,
            },
            tcp_start: if l2.is_some() { TCP } else { TCP - IP } as u8,
        }
    }

    /// Replaces the destination station, when the neighbour's address changes.
    /// Without effect on a template without a link-layer header.
    pub fn set_l2_dst(&mut self, dst: MacAddr) {
        if self.l2_len() > 0 {
            self.bytes[..6].copy_from_slice(&dst.0);
        }
    }

    /// Replaces the type of service, or traffic class, for a changed DSCP or ECN codepoint.
    pub fn set_tos(&mut self, tos: u8) {
        if matches!(self.kind, Kind::EthernetIpv6 | Kind::Ipv6) {
            let b = &mut self.bytes[v6::WORD..v6::WORD + 2];
            b[0] = 0x60 | tos >> 4;
            b[1] = tos << 4 | b[1] & 0x0f;
            return;
        }
        self.bytes[IP + 1] = tos;
        self.ip_sum = fold(checksum::sum(&self.bytes[IP..TCP], 0));
    }

    /// The time to live, or hop limit.
    pub fn ttl(&self) -> u8 {
        match self.kind {
            Kind::EthernetIpv6 | Kind::Ipv6 => self.bytes[v6::HOPS],
            Kind::EthernetIpv4 | Kind::Ipv4 => self.bytes[IP + 8],
        }
    }

    /// Changes the time to live, or hop limit.
    pub fn set_ttl(&mut self, ttl: u8) {
        if matches!(self.kind, Kind::EthernetIpv6 | Kind::Ipv6) {
            self.bytes[v6::HOPS] = ttl;
            return;
        }
        self.bytes[IP + 8] = ttl;
        self.ip_sum = fold(checksum::sum(&self.bytes[IP..TCP], 0));
    }

    /// Length of the link-layer header in bytes: 14 or 0.
    #[inline]
    pub fn l2_len(&self) -> usize {
        match self.kind {
            Kind::EthernetIpv4 | Kind::EthernetIpv6 => IP,
            Kind::Ipv4 | Kind::Ipv6 => 0,
        }
    }

    /// Where the TCP header starts, in bytes.
    #[inline]
    pub fn tcp_start(&self) -> usize {
        usize::from(self.tcp_start)
    }

    /// Writes all headers of a segment to the start of `out` and returns their
    /// length in bytes; what follows in `out` is undefined. `ident` is IPv4's
    /// identification, which IPv6 has not, `payload_len` the length of the data in bytes.
    ///
    /// The IP checksum is complete. The TCP checksum field holds the sum of the
    /// pseudo-header, folded and not complemented, as checksum offload wants
    /// it; [`finish_checksum`] completes it in software.
    ///
    /// Headers and data must not exceed 65535 bytes from the IP header on: this
    /// is checked in debug builds, in others the lengths are cut to 16 bits.
    #[inline]
    pub fn emit(
        &self,
        out: &mut [u8; MAX_HEADERS],
        ident: u16,
        seg: &SegOut,
        payload_len: u32,
    ) -> usize {
        // Instances of their own, so that every offset is a constant in each.
        match self.kind {
            Kind::EthernetIpv4 => self.emit_at::<IP>(out, ident, seg, payload_len),
            Kind::Ipv4 => self.emit_at::<0>(out, ident, seg, payload_len),
            Kind::EthernetIpv6 | Kind::Ipv6 => self.emit_v6(out, seg, payload_len),
        }
    }

    #[inline(never)]
    fn emit_v6(&self, out: &mut [u8; MAX_HEADERS], seg: &SegOut, payload_len: u32) -> usize {
        match self.kind {
            Kind::EthernetIpv6 => self.emit_v6_at::<IP>(out, seg, payload_len),
            _ => self.emit_v6_at::<0>(out, seg, payload_len),
        }
    }

    #[inline(always)]
    fn emit_v6_at<const L2: usize>(
        &self,
        out: &mut [u8; MAX_HEADERS],
        seg: &SegOut,
        payload_len: u32,
    ) -> usize {
        let tcp = L2 + Ipv6Hdr::LEN;
        let (head, rest) = out.split_at_mut(tcp);
        if L2 > 0 {
            head[..v6::WORD].copy_from_slice(&self.bytes[..v6::WORD]);
            head[v6::WORD..L2].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
        }
        let (h, area) = rest.split_at_mut(MIN_TCP_HEADER);
        let tcp_len = MIN_TCP_HEADER + options(seg, area);
        let segment_len = tcp_len as u32 + payload_len;
        debug_assert!(
            segment_len <= 0xffff,
            "a segment of {segment_len} bytes exceeds IPv6's length field"
        );
        let segment_len = segment_len as u16;
        let ip = &mut head[L2..];
        ip[..4].copy_from_slice(&self.bytes[v6::WORD..v6::SRC]);
        ip[4..6].copy_from_slice(&segment_len.to_be_bytes());
        ip[6..8].copy_from_slice(&[PROTO_TCP, self.bytes[v6::HOPS]]);
        ip[8..].copy_from_slice(&self.bytes[v6::SRC..v6::PORTS]);
        h[..4].copy_from_slice(&self.bytes[v6::PORTS..v6::HOPS]);
        let pseudo = fold(u32::from(self.pseudo_sum) + u32::from(segment_len));
        patch(h, seg, tcp_len, pseudo);
        tcp + tcp_len
    }

    #[inline]
    fn emit_at<const L2: usize>(
        &self,
        out: &mut [u8; MAX_HEADERS],
        ident: u16,
        seg: &SegOut,
        payload_len: u32,
    ) -> usize {
        let tcp = L2 + Ipv4Hdr::LEN;
        let opts = tcp + MIN_TCP_HEADER;
        out[..opts].copy_from_slice(&self.bytes[IP - L2..]);
        let tcp_len = MIN_TCP_HEADER + options(seg, &mut out[opts..]);
        let segment_len = tcp_len as u32 + payload_len;
        let total_len = Ipv4Hdr::LEN as u32 + segment_len;
        debug_assert!(
            total_len <= 0xffff,
            "datagram of {total_len} bytes exceeds IPv4's length field"
        );
        let (segment_len, total_len) = (segment_len as u16, total_len as u16);
        let ip_check = !fold(u32::from(self.ip_sum) + u32::from(total_len) + u32::from(ident));
        let pseudo = fold(u32::from(self.pseudo_sum) + u32::from(segment_len));

        let ip = &mut out[L2..tcp];
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[4..6].copy_from_slice(&ident.to_be_bytes());
        ip[10..12].copy_from_slice(&ip_check.to_be_bytes());
        patch(&mut out[tcp..opts], seg, tcp_len, pseudo);
        L2 + Ipv4Hdr::LEN + tcp_len
    }
}

/// Writes the fixed part of a TCP header but for the ports.
#[inline(always)]
fn patch(h: &mut [u8], seg: &SegOut, tcp_len: usize, check: u16) {
    h[4..8].copy_from_slice(&seg.seq.0.to_be_bytes());
    h[8..12].copy_from_slice(&seg.ack.0.to_be_bytes());
    h[12] = data_offset(tcp_len);
    h[13] = seg.flags.0;
    h[14..16].copy_from_slice(&seg.window.to_be_bytes());
    h[16..18].copy_from_slice(&check.to_be_bytes());
    h[18..20].copy_from_slice(&seg.urgent.to_be_bytes());
}

/// Writes the options of a segment and returns their length.
#[inline(always)]
fn options(seg: &SegOut, out: &mut [u8]) -> usize {
    let syn = seg.flags.contains(TcpFlags::SYN);
    if let Some((tsval, tsecr)) = seg.opts.plain_ts(syn) {
        let area = &mut out[..TS_TCP_HEADER - MIN_TCP_HEADER];
        area[..4].copy_from_slice(&TS_PREFIX);
        area[4..8].copy_from_slice(&tsval.to_be_bytes());
        area[8..].copy_from_slice(&tsecr.to_be_bytes());
        TS_TCP_HEADER - MIN_TCP_HEADER
    } else {
        emit_options(&seg.opts, syn, out)
    }
}

/// Options other than the plain timestamp: handshakes and selective
/// acknowledgments. Apart, to keep the common emission small.
#[inline(never)]
fn emit_options(opts: &TcpOptions, syn: bool, out: &mut [u8]) -> usize {
    opts.emit(syn, out)
}

/// Completes in software the TCP checksum that [`Template::emit`] prepared.
/// `headers` are the headers as emitted and nothing more; `l2_len` is
/// [`Template::l2_len`]; `payload` are the parts of the data in order, of any
/// lengths.
///
/// # Panics
/// If `headers` is too short to hold IP and TCP headers.
pub fn finish_checksum<'a>(
    headers: &mut [u8],
    l2_len: usize,
    payload: impl IntoIterator<Item = &'a [u8]>,
) {
    let start = match headers[l2_len] >> 4 {
        // Without extension headers, as it was emitted.
        6 => l2_len + Ipv6Hdr::LEN,
        _ => l2_len + usize::from(headers[l2_len] & 0x0f) * 4,
    };
    let tcp = &mut headers[start..];
    // The field itself is summed too: it holds the pseudo-header. TCP headers
    // have even length, so the data starts at an even offset.
    let check = !fold(checksum::sum_parts(payload, checksum::sum(tcp, 0)));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
}

/// As [`finish_checksum`] for a frame whose data follows its headers. `frame`
/// was emitted by a template; padding beyond IP's length is left out.
///
/// # Panics
/// If `frame` is shorter than its headers.
pub fn finish_checksum_in_frame(frame: &mut [u8], l2_len: usize) {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let total = match frame[l2_len] >> 4 {
        6 => Ipv6Hdr::LEN + word(l2_len + 4),
        _ => word(l2_len + 2),
    };
    let end = frame.len().min(l2_len + total);
    finish_checksum(&mut frame[..end], l2_len, []);
}

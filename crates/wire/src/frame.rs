//! One parse for the receive path: from the bytes of a frame to what the stack
//! acts on.

use core::net::IpAddr;
use core::ops::Range;

use crate::arp::ArpPacket;
use crate::checksum;
use crate::error::WireError;
use crate::eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EtherHdr};
use crate::flow::FlowKey;
use crate::icmp::Icmpv4;
use crate::icmp6::Icmpv6;
use crate::ip::{IpHdr, Ipv4Hdr, PROTO_ICMP, PROTO_TCP};
use crate::ipv6::{Ipv6Hdr, PROTO_ICMPV6};
use crate::tcp::{self, TcpHdr, TcpOptions};

/// Who checks checksums.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Csum {
    /// The parser: IP header and TCP.
    Verify,
    /// The device did, or the frame never left this machine: neither is looked
    /// at.
    Trust,
}

/// A TCP segment in a frame, its lengths and, if asked for, checksums checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpFrame {
    /// The flow from the receiver's point of view: `local` is the destination.
    pub key: FlowKey,
    /// The TCP header.
    pub hdr: TcpHdr,
    /// Offset of the data in bytes from the start of the frame.
    pub payload_off: u32,
    /// Length of the data in bytes; `payload_off + payload_len` is within the
    /// frame.
    pub payload_len: u32,
    /// Type of service, with ECN in the lower two bits.
    pub tos: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Options were cut off at an impossible length; to be counted as
    /// [`WireError::BadOption`].
    pub bad_options: bool,
}

/// Reads an IPv4 datagram that carries TCP. `ip_packet` starts at the IP header
/// and may go on beyond the datagram (Ethernet pads short frames); `l2_len` is
/// the number of bytes before it in the frame and only shifts
/// [`TcpFrame::payload_off`].
///
/// # Errors
/// What [`Ipv4Hdr::parse`] and [`TcpHdr::parse`] return,
/// [`WireError::NotTcp`], [`WireError::Fragment`], and with [`Csum::Verify`]
/// [`WireError::BadTcpChecksum`].
#[inline]
pub fn parse_ipv4_tcp(ip_packet: &[u8], l2_len: usize, csum: Csum) -> Result<TcpFrame, WireError> {
    let mut frame = TcpFrame::default();
    parse_ipv4_tcp_into(ip_packet, l2_len, csum, &mut frame)?;
    Ok(frame)
}

/// As [`parse_ipv4_tcp`], writing the result to `out`, for a burst whose frames
/// are kept in an array: moving a freshly written [`TcpFrame`] costs more than
/// making it, for the processor can't forward narrow stores to wide loads.
/// `out` is unchanged on an error.
///
/// # Errors
/// As [`parse_ipv4_tcp`].
#[inline(always)]
pub fn parse_ipv4_tcp_into(
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    let ip = Ipv4Hdr::parse(ip_packet, csum == Csum::Verify)?;
    if ip.protocol != PROTO_TCP {
        return Err(WireError::NotTcp);
    }
    parse_tcp(&ip, ip_packet, l2_len, csum, out)
}

/// Reads a datagram of either family that carries TCP, as [`parse_ipv4_tcp_into`] and
/// [`parse_ipv6_tcp_into`] do. `out` is unchanged on an error.
///
/// # Errors
/// What those two return; [`WireError::BadVersion`] for what is of neither family.
#[inline]
pub fn parse_tcp_into(
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    match ip_packet.first().map(|b| b >> 4) {
        Some(6) => parse_ipv6_tcp_into(ip_packet, l2_len, csum, out),
        _ => parse_ipv4_tcp_into(ip_packet, l2_len, csum, out),
    }
}

/// Reads the TCP segment of a datagram whose header is already read.
#[inline(always)]
fn parse_tcp(
    ip: &Ipv4Hdr,
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    if ip.is_fragment() {
        return Err(WireError::Fragment);
    }
    let segment = &ip_packet[usize::from(ip.header_len)..usize::from(ip.total_len)];
    let (fixed, area) = tcp::split(segment)?;
    if csum == Csum::Verify && !checksum::verify_tcp_v4(ip.src, ip.dst, segment) {
        return Err(WireError::BadTcpChecksum);
    }
    let ends = (IpAddr::V4(ip.dst), IpAddr::V4(ip.src));
    let before = l2_len as u32 + u32::from(ip.header_len);
    read_segment((fixed, area), ends, (before, segment.len() as u32), out);
    out.tos = ip.tos;
    out.ttl = ip.ttl;
    Ok(())
}

/// Reads an IPv6 datagram that carries TCP, as [`parse_ipv4_tcp_into`] does one of IPv4. `out` is
/// unchanged on an error.
///
/// # Errors
/// What [`Ipv6Hdr::parse`] and [`TcpHdr::parse`] return, [`WireError::NotTcp`],
/// [`WireError::Fragment`], and with [`Csum::Verify`] [`WireError::BadTcpChecksum`].
#[inline(always)]
pub fn parse_ipv6_tcp_into(
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    let h = Ipv6Hdr::octets(ip_packet)?;
    match h[6] {
        PROTO_TCP => {
            let segment = Ipv6Hdr::LEN..Ipv6Hdr::total(h) as usize;
            parse_tcp6(h, ip_packet, segment, l2_len, csum, out)
        }
        _ => parse_extended_tcp6(ip_packet, l2_len, csum, out),
    }
}

/// As [`parse_ipv6_tcp_into`], for a segment behind extension headers.
#[cold]
fn parse_extended_tcp6(
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    let ip = Ipv6Hdr::parse(ip_packet)?;
    if ip.fragment.is_some() {
        return Err(WireError::Fragment);
    }
    if ip.protocol != PROTO_TCP {
        return Err(WireError::NotTcp);
    }
    let segment = usize::from(ip.header_len)..ip.total_len as usize;
    parse_tcp6(
        Ipv6Hdr::octets(ip_packet)?,
        ip_packet,
        segment,
        l2_len,
        csum,
        out,
    )
}

/// Reads the TCP segment of a datagram of IPv6: its header, and where in it the segment is.
#[inline(always)]
fn parse_tcp6(
    h: &[u8; Ipv6Hdr::LEN],
    ip_packet: &[u8],
    segment: Range<usize>,
    l2_len: usize,
    csum: Csum,
    out: &mut TcpFrame,
) -> Result<(), WireError> {
    let before = (l2_len + segment.start) as u32;
    let segment = ip_packet.get(segment).ok_or(WireError::BadTotalLen)?;
    let (fixed, area) = tcp::split(segment)?;
    let (src, dst) = Ipv6Hdr::addresses(h);
    if csum == Csum::Verify && !checksum::verify_tcp_v6(src, dst, segment) {
        return Err(WireError::BadTcpChecksum);
    }
    let ends = (IpAddr::V6(dst), IpAddr::V6(src));
    read_segment((fixed, area), ends, (before, segment.len() as u32), out);
    out.tos = h[0] << 4 | h[1] >> 4;
    out.ttl = h[7];
    Ok(())
}

/// Reads the segment of `len` bytes, `before` bytes behind the frame's start, whose header is in
/// two parts.
#[inline(always)]
fn read_segment(
    (fixed, area): (&[u8; tcp::MIN_TCP_HEADER], &[u8]),
    (local, remote): (IpAddr, IpAddr),
    (before, len): (u32, u32),
    out: &mut TcpFrame,
) {
    let header_len = (fixed.len() + area.len()) as u32;
    out.hdr.read_fixed(fixed);
    out.key = FlowKey {
        local,
        remote,
        local_port: out.hdr.dst_port,
        remote_port: out.hdr.src_port,
    };
    out.payload_off = before + header_len;
    out.payload_len = len - header_len;
    match TcpOptions::parse_light(area) {
        Some(ts) => {
            out.bad_options = false;
            out.hdr.opts.set_only_ts(ts);
        }
        None => {
            out.bad_options = out.hdr.opts.read_area(area, tcp::is_syn(fixed));
        }
    }
}

impl Default for TcpFrame {
    /// An empty segment between unspecified addresses, to fill an array for
    /// [`parse_ipv4_tcp_into`].
    fn default() -> TcpFrame {
        TcpFrame {
            key: FlowKey::UNSPECIFIED,
            hdr: TcpHdr::default(),
            payload_off: 0,
            payload_len: 0,
            tos: 0,
            ttl: 0,
            bad_options: false,
        }
    }
}

/// Whether a frame, or a datagram if it has no Ethernet header, claims to carry that protocol over
/// IPv4; the parser checks the claim.
#[inline(always)]
pub fn carries(bytes: &[u8], ethernet: bool, protocol: u8) -> bool {
    const PROTOCOL: usize = 9;
    if ethernet {
        bytes.len() > EtherHdr::LEN + PROTOCOL
            && bytes[12..14] == ETHERTYPE_IPV4.to_be_bytes()
            && bytes[EtherHdr::LEN + PROTOCOL] == protocol
    } else {
        bytes.len() > PROTOCOL && bytes[0] >> 4 == 4 && bytes[PROTOCOL] == protocol
    }
}

/// As [`carries`], over IPv6, directly behind its header.
#[inline(always)]
pub fn carries_v6(bytes: &[u8], ethernet: bool, protocol: u8) -> bool {
    const NEXT_HEADER: usize = 6;
    if ethernet {
        bytes.len() > EtherHdr::LEN + NEXT_HEADER
            && bytes[12..14] == ETHERTYPE_IPV6.to_be_bytes()
            && bytes[EtherHdr::LEN + NEXT_HEADER] == protocol
    } else {
        bytes.len() > NEXT_HEADER && bytes[0] >> 4 == 6 && bytes[NEXT_HEADER] == protocol
    }
}

/// Any frame that a host of this stack meets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A TCP segment.
    Tcp(TcpFrame),
    /// An ICMPv4 message, its checksum verified if asked for.
    Icmp {
        /// Header of the datagram.
        ip: Ipv4Hdr,
        /// Header of the message.
        msg: Icmpv4,
        /// What follows the header of the message.
        body: &'a [u8],
    },
    /// An ICMPv6 message, its checksum verified.
    Icmp6 {
        /// Header of the datagram.
        ip: Ipv6Hdr,
        /// Header of the message.
        msg: Icmpv6,
        /// What follows the header of the message.
        body: &'a [u8],
    },
    /// An ARP packet.
    Arp(ArpPacket),
    /// A datagram of another protocol.
    Ip {
        /// Header of the datagram.
        ip: IpHdr,
        /// Payload of the datagram.
        payload: &'a [u8],
    },
    /// Another network layer, by its EtherType: a VLAN tag, and so on.
    Other(u16),
}

impl<'a> Frame<'a> {
    /// Reads an Ethernet frame, without its frame check sequence.
    ///
    /// # Errors
    /// Those of the parser of the protocol that it carries. ICMP checksums are
    /// always verified: no device checks them.
    #[inline]
    pub fn parse_ethernet(frame: &'a [u8], csum: Csum) -> Result<Frame<'a>, WireError> {
        let eth = EtherHdr::parse(frame)?;
        let rest = &frame[EtherHdr::LEN..];
        match eth.ethertype {
            ETHERTYPE_IPV4 => Self::parse_ipv4(rest, EtherHdr::LEN, csum),
            ETHERTYPE_IPV6 => Self::parse_ipv6(rest, EtherHdr::LEN, csum),
            ETHERTYPE_ARP => ArpPacket::parse(rest).map(Frame::Arp),
            other => Ok(Frame::Other(other)),
        }
    }

    /// Reads an IP datagram, for devices without a link-layer header; `l2_len`
    /// as for [`parse_ipv4_tcp`].
    ///
    /// # Errors
    /// As [`Frame::parse_ethernet`]; [`WireError::BadVersion`] for what is no IP at all.
    #[inline]
    pub fn parse_ip(
        ip_packet: &'a [u8],
        l2_len: usize,
        csum: Csum,
    ) -> Result<Frame<'a>, WireError> {
        match ip_packet.first() {
            Some(first) if first >> 4 == 6 => Self::parse_ipv6(ip_packet, l2_len, csum),
            _ => Self::parse_ipv4(ip_packet, l2_len, csum),
        }
    }

    /// A datagram of IPv6. Fragments are refused.
    fn parse_ipv6(ip_packet: &'a [u8], l2_len: usize, csum: Csum) -> Result<Frame<'a>, WireError> {
        let ip = Ipv6Hdr::parse(ip_packet)?;
        if ip.fragment.is_some() {
            return Err(WireError::Fragment);
        }
        let payload = &ip_packet[usize::from(ip.header_len)..ip.total_len as usize];
        match ip.protocol {
            PROTO_TCP => {
                let mut frame = TcpFrame::default();
                parse_ipv6_tcp_into(ip_packet, l2_len, csum, &mut frame)?;
                Ok(Frame::Tcp(frame))
            }
            PROTO_ICMPV6 => {
                let (msg, body) = Icmpv6::parse(ip.src, ip.dst, payload)?;
                Ok(Frame::Icmp6 { ip, msg, body })
            }
            _ => Ok(Frame::Ip {
                ip: ip.into(),
                payload,
            }),
        }
    }

    #[inline]
    fn parse_ipv4(ip_packet: &'a [u8], l2_len: usize, csum: Csum) -> Result<Frame<'a>, WireError> {
        let ip = Ipv4Hdr::parse(ip_packet, csum == Csum::Verify)?;
        if ip.protocol == PROTO_TCP {
            let mut frame = TcpFrame::default();
            parse_tcp(&ip, ip_packet, l2_len, csum, &mut frame)?;
            return Ok(Frame::Tcp(frame));
        }
        if ip.is_fragment() {
            return Err(WireError::Fragment);
        }
        let payload = &ip_packet[usize::from(ip.header_len)..usize::from(ip.total_len)];
        if ip.protocol == PROTO_ICMP {
            let (msg, body) = Icmpv4::parse(payload)?;
            return Ok(Frame::Icmp { ip, msg, body });
        }
        Ok(Frame::Ip {
            ip: ip.into(),
            payload,
        })
    }
}

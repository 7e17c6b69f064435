//! One parse for the receive path: from the bytes of a frame to what the stack
//! acts on.

use core::net::IpAddr;

use crate::arp::ArpPacket;
use crate::checksum;
use crate::error::WireError;
use crate::eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, EtherHdr};
use crate::flow::FlowKey;
use crate::icmp::Icmpv4;
use crate::ip::{Ipv4Hdr, PROTO_ICMP, PROTO_TCP};
use crate::tcp::TcpHdr;

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
    let ip = Ipv4Hdr::parse(ip_packet, csum == Csum::Verify)?;
    if ip.protocol != PROTO_TCP {
        return Err(WireError::NotTcp);
    }
    parse_tcp(&ip, ip_packet, l2_len, csum)
}

/// The rest of [`parse_ipv4_tcp`] for a header that is already read.
#[inline]
fn parse_tcp(
    ip: &Ipv4Hdr,
    ip_packet: &[u8],
    l2_len: usize,
    csum: Csum,
) -> Result<TcpFrame, WireError> {
    if ip.is_fragment() {
        return Err(WireError::Fragment);
    }
    let segment = &ip_packet[usize::from(ip.header_len)..usize::from(ip.total_len)];
    let tcp = TcpHdr::parse_noting(segment)?;
    if csum == Csum::Verify && !checksum::verify_tcp_v4(ip.src, ip.dst, segment) {
        return Err(WireError::BadTcpChecksum);
    }
    Ok(TcpFrame {
        key: FlowKey {
            local: IpAddr::V4(ip.dst),
            remote: IpAddr::V4(ip.src),
            local_port: tcp.hdr.dst_port,
            remote_port: tcp.hdr.src_port,
        },
        hdr: tcp.hdr,
        payload_off: l2_len as u32 + u32::from(ip.header_len) + u32::from(tcp.header_len),
        payload_len: (segment.len() - usize::from(tcp.header_len)) as u32,
        tos: ip.tos,
        ttl: ip.ttl,
        bad_options: tcp.bad_options,
    })
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
    /// An ARP packet.
    Arp(ArpPacket),
    /// An IPv4 datagram of another protocol.
    Ipv4 {
        /// Header of the datagram.
        ip: Ipv4Hdr,
        /// Payload of the datagram.
        payload: &'a [u8],
    },
    /// Another network layer, by its EtherType: IPv6, a VLAN tag, and so on.
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
            ETHERTYPE_IPV4 => Self::parse_ip(rest, EtherHdr::LEN, csum),
            ETHERTYPE_ARP => ArpPacket::parse(rest).map(Frame::Arp),
            other => Ok(Frame::Other(other)),
        }
    }

    /// Reads an IP datagram, for devices without a link-layer header; `l2_len`
    /// as for [`parse_ipv4_tcp`].
    ///
    /// # Errors
    /// As [`Frame::parse_ethernet`]; [`WireError::NotIpv4`] for IPv6 and
    /// [`WireError::BadVersion`] for what is no IP at all.
    #[inline]
    pub fn parse_ip(
        ip_packet: &'a [u8],
        l2_len: usize,
        csum: Csum,
    ) -> Result<Frame<'a>, WireError> {
        let ip = match Ipv4Hdr::parse(ip_packet, csum == Csum::Verify) {
            Err(WireError::BadVersion) if ip_packet[0] >> 4 == 6 => {
                return Err(WireError::NotIpv4);
            }
            other => other?,
        };
        if ip.protocol == PROTO_TCP {
            return parse_tcp(&ip, ip_packet, l2_len, csum).map(Frame::Tcp);
        }
        if ip.is_fragment() {
            return Err(WireError::Fragment);
        }
        let payload = &ip_packet[usize::from(ip.header_len)..usize::from(ip.total_len)];
        if ip.protocol == PROTO_ICMP {
            let (msg, body) = Icmpv4::parse(payload)?;
            return Ok(Frame::Icmp { ip, msg, body });
        }
        Ok(Frame::Ipv4 { ip, payload })
    }
}

//! UDP: its header (RFC 768), the checksum over either family (RFC 8200, section 8.1), and
//! prepared headers for what one socket sends to one peer.

use core::net::IpAddr;

use crate::checksum::{self, fold};
use crate::error::WireError;
use crate::eth::{EtherHdr, MacAddr};
use crate::ip::{IpHdr, Ipv4Hdr, PROTO_UDP};
use crate::template::MAX_HEADERS;

/// Length in bytes of an IPv6 header without extensions.
const IPV6_LEN: usize = 40;
/// Offset of the checksum field in the header.
const CHECK: usize = 6;

/// The header of a datagram.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UdpHdr {
    /// Source port; 0: the sender wants no answer.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and data in bytes.
    pub len: u16,
    /// The checksum as it stands; 0: the sender has made none, which only IPv4 allows.
    pub check: u16,
}

impl UdpHdr {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;
    /// Offset of the checksum in the header, for devices that complete it.
    pub const CHECKSUM_AT: u8 = CHECK as u8;

    /// Reads the header at the start of an IP payload. What follows the datagram's length is no
    /// part of it.
    ///
    /// # Errors
    /// [`WireError::Truncated`]; [`WireError::BadUdpLen`] for a length below 8 or beyond the
    /// payload, so also for the 0 of a jumbogram (RFC 2675), which this stack takes none of.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<UdpHdr, WireError> {
        let &[a, b, c, d, e, f, g, h] = payload
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        let hdr = UdpHdr {
            src_port: u16::from_be_bytes([a, b]),
            dst_port: u16::from_be_bytes([c, d]),
            len: u16::from_be_bytes([e, f]),
            check: u16::from_be_bytes([g, h]),
        };
        let len = usize::from(hdr.len);
        if len < Self::LEN || len > payload.len() {
            return Err(WireError::BadUdpLen);
        }
        Ok(hdr)
    }

    /// Checks the checksum. `datagram` is header and data, as long as [`UdpHdr::len`] says.
    ///
    /// # Errors
    /// [`WireError::BadUdpChecksum`]: it is wrong, or there is none over IPv6 (RFC 8200, section
    /// 8.1: such datagrams are discarded).
    pub fn verify(&self, src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Result<(), WireError> {
        if self.check == 0 {
            return match dst {
                IpAddr::V4(_) => Ok(()),
                IpAddr::V6(_) => Err(WireError::BadUdpChecksum),
            };
        }
        match fold(checksum::sum(datagram, pseudo(src, dst, datagram.len()))) {
            0xffff => Ok(()),
            _ => Err(WireError::BadUdpChecksum),
        }
    }

    /// Writes the header to the start of `out`, as it is, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let words = [self.src_port, self.dst_port, self.len, self.check];
        for (at, word) in out[..Self::LEN].chunks_exact_mut(2).zip(words) {
            at.copy_from_slice(&word.to_be_bytes());
        }
        Self::LEN
    }
}

/// Partial of the pseudo-header of a datagram of `len` bytes. Addresses of two families have none
/// that could be right.
fn pseudo(src: IpAddr, dst: IpAddr, len: usize) -> u32 {
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => checksum::pseudo_v4(s, d, PROTO_UDP, len as u16),
        (IpAddr::V6(s), IpAddr::V6(d)) => checksum::pseudo_v6(s, d, PROTO_UDP, len as u32),
        _ => 0,
    }
}

/// What stands in the checksum field for a sum: a computed 0 is sent as its other form, as 0 says
/// that there is none (RFC 768).
#[inline]
pub const fn udp_check(partial: u32) -> u16 {
    match !fold(partial) {
        0 => 0xffff,
        check => check,
    }
}

/// Completes the checksum of a datagram in memory: `datagram` is header and data.
///
/// # Panics
/// If `datagram` is shorter than the header.
pub fn finish_udp(src: IpAddr, dst: IpAddr, datagram: &mut [u8]) {
    datagram[CHECK..CHECK + 2].fill(0);
    let check = udp_check(checksum::sum(datagram, pseudo(src, dst, datagram.len())));
    datagram[CHECK..CHECK + 2].copy_from_slice(&check.to_be_bytes());
}

/// Ethernet, IP and UDP headers of what goes from one socket to one peer.
/// [`UdpTemplate::emit`] copies them and patches only what changes from datagram to datagram.
#[derive(Clone, Debug)]
pub struct UdpTemplate {
    /// The headers, from Ethernet's on, with zeros where datagrams differ.
    bytes: [u8; EtherHdr::LEN + IPV6_LEN + UdpHdr::LEN],
    /// Where the UDP header starts in `bytes`.
    udp: u8,
    ethernet: bool,
    v6: bool,
    /// Folded sum of IPv4's header.
    ip_sum: u16,
    /// Folded sum of the pseudo-header but for the length.
    pseudo_sum: u16,
}

impl UdpTemplate {
    /// Headers from `ip.src` and the first port to `ip.dst` and the second. `l2` is the source and
    /// destination station, or `None` for devices without a link-layer header; `flow_label` is
    /// IPv6's, of 20 bits.
    ///
    /// # Panics
    /// If the addresses are of two families.
    pub fn new(
        l2: Option<(MacAddr, MacAddr)>,
        ip: &IpHdr,
        (src_port, dst_port): (u16, u16),
        flow_label: u32,
    ) -> UdpTemplate {
        let mut bytes = [0; EtherHdr::LEN + IPV6_LEN + UdpHdr::LEN];
        if let Some((src, dst)) = l2 {
            let ethertype = ip.ethertype();
            EtherHdr {
                dst,
                src,
                ethertype,
            }
            .emit(&mut bytes);
        }
        let v6 = ip.dst.is_ipv6();
        let udp = EtherHdr::LEN + IpHdr::len_to(ip.dst);
        let mut ip = *ip;
        ip.protocol = PROTO_UDP;
        ip.total_len = 0;
        ip.emit(&mut bytes[EtherHdr::LEN..]);
        if v6 {
            let first = &mut bytes[EtherHdr::LEN..EtherHdr::LEN + 4];
            let label = 6 << 28 | u32::from(ip.tos) << 20 | flow_label & 0xf_ffff;
            first.copy_from_slice(&label.to_be_bytes());
        }
        let mut ip_sum = 0;
        if !v6 {
            let hdr = &mut bytes[EtherHdr::LEN..udp];
            hdr[10..12].fill(0);
            ip_sum = fold(checksum::sum(hdr, 0));
        }
        UdpHdr {
            src_port,
            dst_port,
            len: 0,
            check: 0,
        }
        .emit(&mut bytes[udp..]);
        UdpTemplate {
            bytes,
            udp: udp as u8,
            ethernet: l2.is_some(),
            v6,
            ip_sum,
            pseudo_sum: fold(pseudo(ip.src, ip.dst, 0)),
        }
    }

    /// Length of all headers in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.udp_start() + UdpHdr::LEN
    }

    /// Never: there are always headers.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where the UDP header starts in a frame, in bytes: where its checksum begins.
    #[inline]
    pub fn udp_start(&self) -> usize {
        usize::from(self.udp) - if self.ethernet { 0 } else { EtherHdr::LEN }
    }

    /// Length of the headers of IP and UDP in bytes.
    #[inline]
    pub fn ip_len(&self) -> usize {
        usize::from(self.udp) - EtherHdr::LEN + UdpHdr::LEN
    }

    /// Writes the headers of a datagram with `payload_len` bytes of data to the start of `out` and
    /// returns their length. IPv4's checksum is complete; UDP's holds the sum of the
    /// pseudo-header, folded and not complemented, as checksum offload wants it.
    ///
    /// The datagram must not exceed 65535 bytes: this is checked in debug builds, in others the
    /// lengths are cut to 16 bits.
    #[inline]
    pub fn emit(&self, out: &mut [u8; MAX_HEADERS], ident: u16, payload_len: u32) -> usize {
        let from = if self.ethernet { 0 } else { EtherHdr::LEN };
        let len = self.len();
        out[..len].copy_from_slice(&self.bytes[from..from + len]);
        let udp_len = UdpHdr::LEN as u32 + payload_len;
        let udp = len - UdpHdr::LEN;
        let ip = EtherHdr::LEN - from;
        if self.v6 {
            debug_assert!(udp_len <= 0xffff, "a datagram of {udp_len} bytes");
            out[ip + 4..ip + 6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        } else {
            let total = Ipv4Hdr::LEN as u32 + udp_len;
            debug_assert!(total <= 0xffff, "a datagram of {total} bytes");
            let check = !fold(u32::from(self.ip_sum) + (total & 0xffff) + u32::from(ident));
            out[ip + 2..ip + 4].copy_from_slice(&(total as u16).to_be_bytes());
            out[ip + 4..ip + 6].copy_from_slice(&ident.to_be_bytes());
            out[ip + 10..ip + 12].copy_from_slice(&check.to_be_bytes());
        }
        let partial = fold(u32::from(self.pseudo_sum) + (udp_len & 0xffff));
        out[udp + 4..udp + 6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        out[udp + CHECK..udp + 8].copy_from_slice(&partial.to_be_bytes());
        len
    }
}

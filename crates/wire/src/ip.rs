//! IP headers: those of IPv4 (RFC 791), and what both families say. Those of IPv6 are in
//! [`crate::ipv6`].

use core::net::{IpAddr, Ipv4Addr};

use crate::checksum;
use crate::error::WireError;
use crate::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::ipv6::Ipv6Hdr;

/// Protocol number of ICMPv4.
pub const PROTO_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

/// "Don't fragment" in the flags and fragment offset field.
pub(crate) const FLAG_DF: u16 = 0x4000;
/// "More fragments" in the flags and fragment offset field.
const FLAG_MF: u16 = 0x2000;
/// Mask of the fragment offset, in units of 8 bytes.
const OFFSET_MASK: u16 = 0x1fff;

/// No host's address: what stands where none has been seen yet.
pub const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The longest datagram of either family, octets (IPv6: without a jumbo payload).
pub const MAX_DATAGRAM: u32 = 65_535;

/// What the header of a whole datagram says, of whichever family.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct IpHdr {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Time to live, in hops.
    pub hop_limit: u8,
    /// Type of service, or traffic class: DSCP in the upper six bits, ECN (RFC 3168) in the lower
    /// two.
    pub tos: u8,
    /// Length of the header in bytes, options and extension headers included. [`IpHdr::emit`]
    /// writes none.
    pub header_len: u16,
    /// Length of the datagram in bytes, header included: up to 65,535 (IPv4) or 65,575 (IPv6).
    pub total_len: u32,
}

impl IpHdr {
    /// Length in bytes of the header, without options, of a datagram to that address.
    #[inline]
    pub const fn len_to(dst: IpAddr) -> usize {
        match dst {
            IpAddr::V4(_) => Ipv4Hdr::LEN,
            IpAddr::V6(_) => Ipv6Hdr::LEN,
        }
    }

    /// Source and destination.
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        (self.src, self.dst)
    }

    /// What Ethernet calls the family.
    pub fn ethertype(&self) -> u16 {
        match self.dst {
            IpAddr::V4(_) => ETHERTYPE_IPV4,
            IpAddr::V6(_) => ETHERTYPE_IPV6,
        }
    }

    /// Writes the header to the start of `out` and returns its length. The datagram is never
    /// fragmented, so its identification is 0 (RFC 6864, section 4.1), its flow label too.
    ///
    /// Zones of link-local addresses are left out ([`crate::ipv6::with_zone`]).
    ///
    /// # Panics
    /// If `out` is shorter than that, or the addresses are of two families.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Hdr {
                src,
                dst,
                protocol: self.protocol,
                ttl: self.hop_limit,
                tos: self.tos,
                ident: 0,
                total_len: self.total_len as u16,
                header_len: Ipv4Hdr::LEN as u8,
                dont_fragment: true,
                more_fragments: false,
                frag_offset: 0,
            }
            .emit(out),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ipv6Hdr {
                src,
                dst,
                protocol: self.protocol,
                hop_limit: self.hop_limit,
                traffic_class: self.tos,
                flow_label: 0,
                header_len: Ipv6Hdr::LEN as u16,
                total_len: self.total_len,
                fragment: None,
            }
            .emit(out),
            (src, dst) => panic!("{src} and {dst} are of two families"),
        }
    }
}

impl From<Ipv4Hdr> for IpHdr {
    fn from(h: Ipv4Hdr) -> IpHdr {
        IpHdr {
            src: IpAddr::V4(h.src),
            dst: IpAddr::V4(h.dst),
            protocol: h.protocol,
            hop_limit: h.ttl,
            tos: h.tos,
            header_len: h.header_len.into(),
            total_len: h.total_len.into(),
        }
    }
}

/// An IPv4 header. Options are skipped on parsing, source routes excepted, and never emitted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ipv4Hdr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Type of service: DSCP in the upper six bits, ECN (RFC 3168) in the
    /// lower two.
    pub tos: u8,
    /// Identification, shared by the fragments of a datagram.
    pub ident: u16,
    /// Length of the datagram in bytes, header included.
    pub total_len: u16,
    /// Length of the header in bytes, options included: 20 to 60 as parsed.
    /// [`Ipv4Hdr::emit`] always writes 20 bytes.
    pub header_len: u8,
    /// Routers must not fragment the datagram.
    pub dont_fragment: bool,
    /// More fragments of the datagram follow.
    pub more_fragments: bool,
    /// Offset of the payload in the original datagram, in bytes; a multiple
    /// of 8.
    pub frag_offset: u16,
}

impl Ipv4Hdr {
    /// Length in bytes of a header without options.
    pub const LEN: usize = 20;

    /// Reads the header at the start of `bytes`, which may go on beyond the
    /// datagram (Ethernet pads short frames).
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::BadVersion`],
    /// [`WireError::BadHeaderLen`], [`WireError::BadTotalLen`],
    /// [`WireError::SourceRoute`], and with `verify_checksum`
    /// [`WireError::BadIpChecksum`]. When it succeeds,
    /// `20 <= header_len <= total_len <= bytes.len()`.
    #[inline(always)]
    pub fn parse(bytes: &[u8], verify_checksum: bool) -> Result<Ipv4Hdr, WireError> {
        let hdr = Self::parse_quoted(bytes)?;
        if hdr.total_len < u16::from(hdr.header_len) || usize::from(hdr.total_len) > bytes.len() {
            return Err(WireError::BadTotalLen);
        }
        match hdr.header_len == Self::LEN as u8 {
            true if verify_checksum && !plain_checksum_ok(bytes) => Err(WireError::BadIpChecksum),
            true => Ok(hdr),
            false => {
                let header = &bytes[..usize::from(hdr.header_len)];
                check_options(header, verify_checksum).map(|()| hdr)
            }
        }
    }

    /// Reads a header whose datagram may be cut short, as ICMP quotes it (RFC
    /// 792). The total length is not checked against `bytes` and the checksum
    /// is not verified: routers and middleboxes change fields of quotes.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::BadVersion`],
    /// [`WireError::BadHeaderLen`]. When it succeeds,
    /// `20 <= header_len <= bytes.len()`.
    #[inline]
    pub fn parse_quoted(bytes: &[u8]) -> Result<Ipv4Hdr, WireError> {
        let h = bytes
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        if h[0] >> 4 != 4 {
            return Err(WireError::BadVersion);
        }
        let header_len = (h[0] & 0x0f) * 4;
        if usize::from(header_len) < Self::LEN || usize::from(header_len) > bytes.len() {
            return Err(WireError::BadHeaderLen);
        }
        let fragment = u16::from_be_bytes([h[6], h[7]]);
        Ok(Ipv4Hdr {
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
            protocol: h[9],
            ttl: h[8],
            tos: h[1],
            ident: u16::from_be_bytes([h[4], h[5]]),
            total_len: u16::from_be_bytes([h[2], h[3]]),
            header_len,
            dont_fragment: fragment & FLAG_DF != 0,
            more_fragments: fragment & FLAG_MF != 0,
            frag_offset: (fragment & OFFSET_MASK) * 8,
        })
    }

    /// Whether this is one fragment of a datagram and not a whole one.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.frag_offset != 0
    }

    /// Length of the payload in bytes; zero if the lengths contradict.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        self.total_len.saturating_sub(u16::from(self.header_len))
    }

    /// Writes a header without options, its checksum filled in, to the start of
    /// `out` and returns its length, 20. `total_len` is written as it is; the
    /// lower three bits of `frag_offset` are lost.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv4Hdr::LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN];
        let mut fragment = self.frag_offset / 8;
        if self.dont_fragment {
            fragment |= FLAG_DF;
        }
        if self.more_fragments {
            fragment |= FLAG_MF;
        }
        out[0] = 0x45;
        out[1] = self.tos;
        out[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        out[4..6].copy_from_slice(&self.ident.to_be_bytes());
        out[6..8].copy_from_slice(&fragment.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let check = checksum::checksum(out);
        out[10..12].copy_from_slice(&check.to_be_bytes());
        Self::LEN
    }
}

/// Whether the checksum of a header without options, which `bytes` start with, verifies.
#[inline(always)]
fn plain_checksum_ok(bytes: &[u8]) -> bool {
    let header = bytes.first_chunk::<{ Ipv4Hdr::LEN }>();
    header.is_some_and(|h| checksum::fold(checksum::sum_fixed(h)) == 0xffff)
}

/// Completes [`Ipv4Hdr::parse`] for a header with options, which is all of `header`.
#[cold]
fn check_options(header: &[u8], verify_checksum: bool) -> Result<(), WireError> {
    if verify_checksum && checksum::fold(checksum::sum(header, 0)) != 0xffff {
        return Err(WireError::BadIpChecksum);
    }
    match source_routed(&header[Ipv4Hdr::LEN..]) {
        true => Err(WireError::SourceRoute),
        false => Ok(()),
    }
}

/// Whether a source route (loose, 131, or strict, 137) is among these options. Those behind an
/// option whose length is impossible can't be told and are not looked for.
fn source_routed(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (131 | 137, _) => return true,
            (&END, _) => return false,
            (&NOTHING, _) => rest,
            (_, [len, ..]) if *len >= 2 => options.get(usize::from(*len)..).unwrap_or_default(),
            _ => return false,
        };
    }
    false
}

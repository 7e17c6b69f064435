//! IPv6 headers (RFC 8200), their extension headers, and the rules of addresses that wire formats
//! depend on.

use core::net::{IpAddr, Ipv6Addr};

use crate::error::WireError;
use crate::eth::MacAddr;
use crate::ip::IpHdr;

/// Protocol number of ICMPv6.
pub const PROTO_ICMPV6: u8 = 58;
/// Next header value: nothing follows (RFC 8200, section 4.7).
pub const PROTO_NONE: u8 = 59;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// The most extension headers that are walked.
pub const MAX_EXTENSIONS: usize = 8;
/// The most octets that extension headers may take together.
pub const MAX_EXTENSION_OCTETS: usize = 256;

/// Code of a parameter problem: a field of a header is wrong (RFC 4443, section 3.4).
const CODE_FIELD: u8 = 0;
/// Code of a parameter problem: the next header is not known.
const CODE_NEXT_HEADER: u8 = 1;
/// Code of a parameter problem: an option is not known.
const CODE_OPTION: u8 = 2;

/// The address of all nodes of the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The address of all routers of the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Where a fragment belongs (RFC 8200, section 4.5).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ipv6Fragment {
    /// Offset of what follows the fragment header in the original datagram's fragmentable part,
    /// octets; a multiple of 8.
    pub offset: u16,
    /// More fragments of the datagram follow.
    pub more: bool,
    /// Identification, shared by the fragments of a datagram.
    pub ident: u32,
}

/// An IPv6 header, its extension headers walked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ipv6Hdr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Protocol number of the payload: what the last extension header says, or this one if there
    /// are none. Of a fragment what its fragment header says, which may be an extension header.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: DSCP in the upper six bits, ECN (RFC 3168) in the lower two.
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Length of the header in octets, extension headers included: 40 to 296.
    pub header_len: u16,
    /// Length of the datagram in octets, header included: up to 65,575.
    pub total_len: u32,
    /// The datagram is a fragment. One that is all of its datagram is none (RFC 6946).
    pub fragment: Option<Ipv6Fragment>,
}

/// What the sender of a datagram is to be told of it (RFC 4443, section 3.4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The code of the parameter problem.
    pub code: u8,
    /// Offset of what is wrong in the datagram, octets.
    pub pointer: u32,
}

/// Why a chain of extension headers is refused.
type Refused = (WireError, Option<Problem>);

/// Where a chain of extension headers ends.
struct End {
    protocol: u8,
    at: usize,
    fragment: Option<Ipv6Fragment>,
}

impl Ipv6Hdr {
    /// Length in octets of a header without extension headers.
    pub const LEN: usize = 40;

    /// Reads the header at the start of `bytes`, which may go on beyond the datagram, and walks
    /// its extension headers: at most [`MAX_EXTENSIONS`] of [`MAX_EXTENSION_OCTETS`] together.
    /// Jumbograms (RFC 2675) are refused.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::BadVersion`], [`WireError::BadTotalLen`]; of
    /// extension headers [`WireError::BadExtension`], [`WireError::LongChain`],
    /// [`WireError::UnknownOption`], and [`WireError::SourceRoute`] for a routing header with
    /// segments left (RFC 5095). When it succeeds,
    /// `40 <= header_len <= total_len <= bytes.len()`.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Ipv6Hdr, WireError> {
        let mut hdr = Self::fixed(bytes)?;
        if hdr.total_len as usize > bytes.len() {
            return Err(WireError::BadTotalLen);
        }
        if is_extension(hdr.protocol) {
            hdr.extend(&bytes[..hdr.total_len as usize])?;
        }
        Ok(hdr)
    }

    /// Reads a header whose datagram may be cut short, as ICMPv6 quotes it. Extension headers are
    /// walked as far as they are there.
    ///
    /// # Errors
    /// As [`Ipv6Hdr::parse`], but for [`WireError::BadTotalLen`].
    pub fn parse_quoted(bytes: &[u8]) -> Result<Ipv6Hdr, WireError> {
        let mut hdr = Self::fixed(bytes)?;
        if is_extension(hdr.protocol) {
            hdr.extend(bytes)?;
        }
        Ok(hdr)
    }

    /// Reads the header alone; that the datagram is all there is for the caller to check.
    ///
    /// # Errors
    /// [`WireError::Truncated`] and [`WireError::BadVersion`].
    #[inline(always)]
    pub fn fixed(bytes: &[u8]) -> Result<Ipv6Hdr, WireError> {
        let h = Self::octets(bytes)?;
        let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        let (src, dst) = Self::addresses(h);
        Ok(Ipv6Hdr {
            src,
            dst,
            protocol: h[6],
            hop_limit: h[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            header_len: Self::LEN as u16,
            total_len: Self::total(h),
            fragment: None,
        })
    }

    /// The octets of the header alone, for who reads some of its fields straight to their places:
    /// a header that was written down field by field is not there yet when it is moved as a whole.
    #[inline(always)]
    pub(crate) fn octets(bytes: &[u8]) -> Result<&[u8; Self::LEN], WireError> {
        match bytes.first_chunk() {
            Some(h) if h[0] >> 4 == 6 => Ok(h),
            Some(_) => Err(WireError::BadVersion),
            None => Err(WireError::Truncated),
        }
    }

    /// Source and destination.
    #[inline(always)]
    pub(crate) fn addresses(h: &[u8; Self::LEN]) -> (Ipv6Addr, Ipv6Addr) {
        let addr = |at: usize| {
            // At once: octet by octet both took 140 instructions.
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            Ipv6Addr::from_octets(octets)
        };
        (addr(8), addr(24))
    }

    /// The length of the datagram, header included.
    #[inline(always)]
    pub(crate) fn total(h: &[u8; Self::LEN]) -> u32 {
        Self::LEN as u32 + u32::from(u16::from_be_bytes([h[4], h[5]]))
    }

    /// Walks the extension headers of the datagram, which is all of `bytes`.
    #[cold]
    fn extend(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let end = walk(bytes, self.protocol, self.dst).map_err(|(e, _)| e)?;
        self.protocol = end.protocol;
        self.header_len = end.at as u16;
        self.fragment = end.fragment;
        Ok(())
    }

    /// Source and destination of what begins with a header.
    pub fn ends(bytes: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr)> {
        Self::fixed(bytes).ok().map(|hdr| (hdr.src, hdr.dst))
    }

    /// What the sender of a datagram is to be told that [`Ipv6Hdr::parse`] has refused. `None`:
    /// nothing, or it was not refused for its extension headers.
    pub fn problem(bytes: &[u8]) -> Option<Problem> {
        let hdr = Self::fixed(bytes).ok()?;
        let bytes = bytes.get(..hdr.total_len as usize)?;
        walk(bytes, hdr.protocol, hdr.dst).err()?.1
    }

    /// Length of the payload in octets; zero if the lengths contradict.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        self.total_len.saturating_sub(u32::from(self.header_len))
    }

    /// Writes a header without extension headers to the start of `out` and returns its length, 40.
    /// Zones of link-local addresses are left out.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&first.to_be_bytes());
        let payload = self.total_len.saturating_sub(Self::LEN as u32) as u16;
        out[4..6].copy_from_slice(&payload.to_be_bytes());
        out[6..8].copy_from_slice(&[self.protocol, self.hop_limit]);
        out[8..24].copy_from_slice(&without_zone(self.src).octets());
        out[24..].copy_from_slice(&without_zone(self.dst).octets());
        Self::LEN
    }
}

impl From<Ipv6Hdr> for IpHdr {
    fn from(h: Ipv6Hdr) -> IpHdr {
        IpHdr {
            src: IpAddr::V6(h.src),
            dst: IpAddr::V6(h.dst),
            protocol: h.protocol,
            hop_limit: h.hop_limit,
            tos: h.traffic_class,
            header_len: h.header_len,
            total_len: h.total_len,
        }
    }
}

/// Whether that next header is an extension header that is walked. Security headers (50, 51) and
/// others end the walk, as protocols that nobody here speaks.
#[inline(always)]
fn is_extension(next: u8) -> bool {
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

/// Walks the extension headers of a datagram to `dst`, the first of which is of type `next`.
fn walk(bytes: &[u8], next: u8, dst: Ipv6Addr) -> Result<End, Refused> {
    let (mut next, mut at) = (next, Ipv6Hdr::LEN);
    // Where the type of the header at `at` is said.
    let mut said = 6;
    let tell = |code, at: usize| {
        let pointer = at as u32;
        (!dst.is_multicast()).then_some(Problem { code, pointer })
    };
    let mut walked = 0;
    while is_extension(next) {
        walked += 1;
        let head = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        let head = head.ok_or((WireError::BadExtension, None))?;
        let len = match next {
            FRAGMENT => 8,
            _ => 8 * (usize::from(head[1]) + 1),
        };
        if walked > MAX_EXTENSIONS || at + len - Ipv6Hdr::LEN > MAX_EXTENSION_OCTETS {
            return Err((WireError::LongChain, None));
        }
        let header = bytes.get(at..at + len);
        let header = header.ok_or((WireError::BadExtension, None))?;
        match next {
            // Only the first one may be this (RFC 8200, section 4.1).
            HOP_BY_HOP if at != Ipv6Hdr::LEN => {
                return Err((WireError::BadExtension, tell(CODE_NEXT_HEADER, said)));
            }
            HOP_BY_HOP | DESTINATION => options(header, at, dst)?,
            // Without segments left it says nothing to us; with some, whatever its type, it asks
            // for what is not done here (RFC 8200, section 4.4; RFC 5095).
            ROUTING if head[3] != 0 => {
                return Err((WireError::SourceRoute, tell(CODE_FIELD, at + 2)));
            }
            FRAGMENT => {
                let word = u16::from_be_bytes([head[2], head[3]]);
                let fragment = Ipv6Fragment {
                    offset: word & !7,
                    more: word & 1 != 0,
                    ident: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
                };
                if fragment.offset != 0 || fragment.more {
                    return Ok(End {
                        protocol: head[0],
                        at: at + len,
                        fragment: Some(fragment),
                    });
                }
            }
            _ => {}
        }
        said = at;
        next = head[0];
        at += len;
    }
    Ok(End {
        protocol: next,
        at,
        fragment: None,
    })
}

/// Goes through the options of the extension header at offset `at` of a datagram to `dst`. What is
/// to be done with those that are not known is in the two high bits of their types (RFC 8200,
/// section 4.2).
fn options(header: &[u8], at: usize, dst: Ipv6Addr) -> Result<(), Refused> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    let mut i = 2;
    while let Some(&kind) = header.get(i) {
        if kind == PAD1 {
            i += 1;
            continue;
        }
        let len = header.get(i + 1).map(|&len| usize::from(len));
        let end = len.map(|len| i + 2 + len).filter(|&e| e <= header.len());
        let end = end.ok_or((WireError::BadExtension, None))?;
        let told = match (kind, kind >> 6) {
            (PADN | ROUTER_ALERT, _) | (_, 0) => {
                i = end;
                continue;
            }
            (_, 1) => false,
            (_, 2) => true,
            _ => !dst.is_multicast(),
        };
        let problem = Problem {
            code: CODE_OPTION,
            pointer: (at + i) as u32,
        };
        return Err((WireError::UnknownOption, told.then_some(problem)));
    }
    Ok(())
}

/// Whether this is a link-local unicast address, fe80::/10 (RFC 4291, section 2.5.6).
#[inline]
pub const fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.to_bits() >> 118 == 0xfe80 >> 6
}

/// The octets of a link-local address that hold its zone while it is in this host.
const ZONE: u128 = 0xffff << 96;

/// The address with the zone (RFC 4007) of the interface that it is on. Within this stack a
/// link-local address carries the number of its zone, from 1, in its octets 2 and 3, so that equal
/// addresses on two links are two addresses; on the wire these octets are zero (RFC 4291, section
/// 2.5.6), and whatever writes an address to the wire, hashes or sums it, leaves the zone out.
/// Other addresses stay as they are.
#[inline]
pub const fn with_zone(ip: Ipv6Addr, zone: u16) -> Ipv6Addr {
    if is_link_local(ip) {
        Ipv6Addr::from_bits(ip.to_bits() & !ZONE | (zone as u128) << 96)
    } else {
        ip
    }
}

/// The address as it is on the wire.
#[inline]
pub const fn without_zone(ip: Ipv6Addr) -> Ipv6Addr {
    with_zone(ip, 0)
}

/// The zone that a link-local address carries; 0: none, or another address.
#[inline]
pub const fn zone(ip: Ipv6Addr) -> u16 {
    if is_link_local(ip) {
        (ip.to_bits() >> 96) as u16
    } else {
        0
    }
}

/// The address of the group of those whose address may be `ip` (RFC 4291, section 2.7.1).
pub const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(GROUP | ip.to_bits() & 0xff_ffff)
}

/// The group of stations that a multicast address is sent to (RFC 2464, section 7).
pub const fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

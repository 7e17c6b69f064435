//! ICMPv4 messages (RFC 792; RFC 1191 for the next-hop MTU).

use core::net::Ipv4Addr;

use crate::checksum;
use crate::error::WireError;
use crate::flow::FlowKey;
use crate::ip::{IpHdr, Ipv4Hdr, PROTO_TCP, PROTO_UDP};
use crate::ipv6::Ipv6Hdr;
use crate::seq::Seq;

/// The header of an ICMPv4 message. What follows it is, for an echo, data to
/// be returned, and for an error, a quote of the datagram that caused it: see
/// [`IcmpQuote`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Icmpv4 {
    /// Asks for an echo of the data that follow.
    EchoRequest {
        /// Chosen by the asker, one per process as a rule.
        ident: u16,
        /// Chosen by the asker, one per request as a rule.
        seq: u16,
    },
    /// Returns the data of an echo request.
    EchoReply {
        /// From the request.
        ident: u16,
        /// From the request.
        seq: u16,
    },
    /// The quoted datagram could not be delivered.
    Unreachable {
        /// Why: 0 net, 1 host, 2 protocol, 3 port, 4 fragmentation needed, and
        /// others (RFC 1122, section 3.2.2.1).
        code: u8,
        /// With code 4, the MTU of the next hop in bytes, or 0 from a router
        /// older than RFC 1191. As read from the wire, so not to be trusted.
        next_hop_mtu: u16,
    },
    /// A better first hop exists for the quoted datagram.
    Redirect {
        /// Which traffic is meant: 0 net, 1 host, 2 and 3 with type of service.
        code: u8,
        /// The better hop.
        gateway: Ipv4Addr,
    },
    /// The quoted datagram ran out of time.
    TimeExceeded {
        /// 0 time to live, 1 reassembly.
        code: u8,
    },
    /// A field of the quoted datagram was not understood.
    ParameterProblem {
        /// 0: `pointer` is valid; 1 a required option is missing (RFC 1108).
        code: u8,
        /// Offset of the field in the quoted datagram.
        pointer: u8,
    },
    /// Any other message.
    Other {
        /// The type field.
        kind: u8,
        /// The code field.
        code: u8,
        /// The second word of the header.
        word: u32,
    },
}

/// Code of [`Icmpv4::Unreachable`]: fragmentation needed and DF set.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;

impl Icmpv4 {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Reads a message: `bytes` is the whole payload of the IP datagram, for
    /// the checksum covers it all. Returns the header and the bytes after it.
    ///
    /// # Errors
    /// [`WireError::Truncated`] or [`WireError::BadIcmpChecksum`].
    pub fn parse(bytes: &[u8]) -> Result<(Icmpv4, &[u8]), WireError> {
        let (&[kind, code, _, _, a, b, c, d], body) = bytes
            .split_first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        if checksum::checksum(bytes) != 0 {
            return Err(WireError::BadIcmpChecksum);
        }
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let msg = match (kind, code) {
            (0, 0) => Icmpv4::EchoReply {
                ident: high,
                seq: low,
            },
            (8, 0) => Icmpv4::EchoRequest {
                ident: high,
                seq: low,
            },
            (3, _) => Icmpv4::Unreachable {
                code,
                next_hop_mtu: low,
            },
            (5, _) => Icmpv4::Redirect {
                code,
                gateway: Ipv4Addr::new(a, b, c, d),
            },
            (11, _) => Icmpv4::TimeExceeded { code },
            (12, _) => Icmpv4::ParameterProblem { code, pointer: a },
            _ => Icmpv4::Other {
                kind,
                code,
                word: u32::from_be_bytes([a, b, c, d]),
            },
        };
        Ok((msg, body))
    }

    /// Whether the message reports on a datagram that it quotes. No error may
    /// be sent in answer to one (RFC 1122, section 3.2.2).
    pub fn is_error(&self) -> bool {
        match self {
            Icmpv4::Unreachable { .. }
            | Icmpv4::Redirect { .. }
            | Icmpv4::TimeExceeded { .. }
            | Icmpv4::ParameterProblem { .. } => true,
            // Source quench, deprecated by RFC 6633, quotes a datagram too.
            Icmpv4::Other { kind, .. } => *kind == 4,
            Icmpv4::EchoRequest { .. } | Icmpv4::EchoReply { .. } => false,
        }
    }

    /// Writes the header and `body` with their checksum to the start of `out`
    /// and returns their length. The unused parts of a header are zero.
    ///
    /// # Panics
    /// If `out` is shorter than [`Icmpv4::LEN`] plus the body.
    pub fn emit(&self, body: &[u8], out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN + body.len()];
        let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let (kind, code, word) = match *self {
            Icmpv4::EchoReply { ident, seq } => (0, 0, pair(ident, seq)),
            Icmpv4::EchoRequest { ident, seq } => (8, 0, pair(ident, seq)),
            Icmpv4::Unreachable { code, next_hop_mtu } => (3, code, pair(0, next_hop_mtu)),
            Icmpv4::Redirect { code, gateway } => (5, code, gateway.to_bits()),
            Icmpv4::TimeExceeded { code } => (11, code, 0),
            Icmpv4::ParameterProblem { code, pointer } => (12, code, u32::from(pointer) << 24),
            Icmpv4::Other { kind, code, word } => (kind, code, word),
        };
        out[..4].copy_from_slice(&[kind, code, 0, 0]);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        out[8..].copy_from_slice(body);
        let check = checksum::checksum(out);
        out[2..4].copy_from_slice(&check.to_be_bytes());
        out.len()
    }
}

/// The datagram that an ICMP error of either family quotes: its IP header and the first eight
/// bytes of its payload, which hold TCP's ports and sequence number.
///
/// The quote comes from whoever sent the ICMP message. RFC 5927 tells what to
/// check before believing it: for TCP, that `seq` is within what is in flight.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct IcmpQuote {
    /// Header of the quoted datagram, of either family; lengths as quoted, not verified.
    pub ip: IpHdr,
    /// Source port of the quoted segment.
    pub src_port: u16,
    /// Destination port of the quoted segment.
    pub dst_port: u16,
    /// Sequence number of the quoted segment; of no meaning for UDP.
    pub seq: Seq,
}

impl IcmpQuote {
    /// Reads the quote that follows the header of an ICMP error.
    ///
    /// # Errors
    /// What [`Ipv4Hdr::parse_quoted`] and [`Ipv6Hdr::parse_quoted`] return; [`WireError::Fragment`] for a
    /// fragment other than the first, which has no ports;
    /// [`WireError::NotTcp`] for protocols other than TCP and UDP;
    /// [`WireError::Truncated`] if the eight bytes are not all there.
    pub fn parse(body: &[u8]) -> Result<IcmpQuote, WireError> {
        let (ip, offset) = match body.first() {
            Some(first) if first >> 4 == 6 => {
                let ip = Ipv6Hdr::parse_quoted(body)?;
                (IpHdr::from(ip), ip.fragment.map_or(0, |f| f.offset))
            }
            _ => {
                let ip = Ipv4Hdr::parse_quoted(body)?;
                (IpHdr::from(ip), ip.frag_offset)
            }
        };
        if offset != 0 {
            return Err(WireError::Fragment);
        }
        if !matches!(ip.protocol, PROTO_TCP | PROTO_UDP) {
            return Err(WireError::NotTcp);
        }
        let &[s0, s1, d0, d1, n0, n1, n2, n3] = body
            .get(usize::from(ip.header_len)..)
            .and_then(|rest| rest.first_chunk::<8>())
            .ok_or(WireError::Truncated)?;
        Ok(IcmpQuote {
            ip,
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: Seq(u32::from_be_bytes([n0, n1, n2, n3])),
        })
    }

    /// The flow of the quoted datagram from the point of view of its sender,
    /// which is this host if the quote is genuine.
    pub fn key(&self) -> FlowKey {
        FlowKey {
            local: self.ip.src,
            remote: self.ip.dst,
            local_port: self.src_port,
            remote_port: self.dst_port,
        }
    }
}

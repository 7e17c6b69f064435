//! ICMPv6 messages (RFC 4443). Those of neighbour discovery are read by [`crate::ndp`].

use core::net::Ipv6Addr;

use crate::checksum;
use crate::error::WireError;
use crate::ipv6::PROTO_ICMPV6;

/// The header of an ICMPv6 message. What follows it is, for an echo, data to be returned, and for
/// an error, a quote of the datagram that caused it: see [`crate::IcmpQuote`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Icmpv6 {
    /// The quoted datagram could not be delivered.
    Unreachable {
        /// Why: 0 no route, 1 prohibited, 2 beyond the scope of the source, 3 address, 4 port, 5
        /// and 6 policy and rejected route.
        code: u8,
    },
    /// The quoted datagram is larger than the next hop's MTU.
    TooBig {
        /// That MTU, octets. As read from the wire, so not to be trusted.
        mtu: u32,
    },
    /// The quoted datagram ran out of time.
    TimeExceeded {
        /// 0 hop limit, 1 reassembly.
        code: u8,
    },
    /// A field of the quoted datagram was not understood.
    ParameterProblem {
        /// 0 field, 1 next header, 2 option.
        code: u8,
        /// Offset of the field in the quoted datagram.
        pointer: u32,
    },
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

impl Icmpv6 {
    /// Length of the header in octets.
    pub const LEN: usize = 8;

    /// Reads a message from `src` to `dst`: `bytes` is the whole payload of the IP datagram, for
    /// the checksum covers it all. Returns the header and the octets after it.
    ///
    /// # Errors
    /// [`WireError::Truncated`] or [`WireError::BadIcmpChecksum`].
    pub fn parse(src: Ipv6Addr, dst: Ipv6Addr, bytes: &[u8]) -> Result<(Icmpv6, &[u8]), WireError> {
        let (&[kind, code, _, _, a, b, c, d], body) = bytes
            .split_first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        let pseudo = checksum::pseudo_v6(src, dst, PROTO_ICMPV6, bytes.len() as u32);
        if checksum::fold(checksum::sum(bytes, pseudo)) != 0xffff {
            return Err(WireError::BadIcmpChecksum);
        }
        let (ident, seq) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let word = u32::from_be_bytes([a, b, c, d]);
        let msg = match (kind, code) {
            (1, _) => Icmpv6::Unreachable { code },
            (2, _) => Icmpv6::TooBig { mtu: word },
            (3, _) => Icmpv6::TimeExceeded { code },
            (4, _) => Icmpv6::ParameterProblem {
                code,
                pointer: word,
            },
            (128, 0) => Icmpv6::EchoRequest { ident, seq },
            (129, 0) => Icmpv6::EchoReply { ident, seq },
            _ => Icmpv6::Other { kind, code, word },
        };
        Ok((msg, body))
    }

    /// Whether the message reports on a datagram that it quotes. No error may be sent in answer to
    /// one, nor to a redirect (RFC 4443, section 2.4, (e)).
    pub fn is_error(&self) -> bool {
        match self {
            Icmpv6::Unreachable { .. }
            | Icmpv6::TooBig { .. }
            | Icmpv6::TimeExceeded { .. }
            | Icmpv6::ParameterProblem { .. } => true,
            Icmpv6::EchoRequest { .. } | Icmpv6::EchoReply { .. } => false,
            Icmpv6::Other { kind, .. } => *kind < 128 || *kind == 137,
        }
    }

    /// Writes the header and `body` with their checksum, from `src` to `dst`, to the start of
    /// `out` and returns their length. The unused parts of a header are zero.
    ///
    /// # Panics
    /// If `out` is shorter than [`Icmpv6::LEN`] plus the body.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, body: &[u8], out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN + body.len()];
        let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let (kind, code, word) = match *self {
            Icmpv6::Unreachable { code } => (1, code, 0),
            Icmpv6::TooBig { mtu } => (2, 0, mtu),
            Icmpv6::TimeExceeded { code } => (3, code, 0),
            Icmpv6::ParameterProblem { code, pointer } => (4, code, pointer),
            Icmpv6::EchoRequest { ident, seq } => (128, 0, pair(ident, seq)),
            Icmpv6::EchoReply { ident, seq } => (129, 0, pair(ident, seq)),
            Icmpv6::Other { kind, code, word } => (kind, code, word),
        };
        out[..4].copy_from_slice(&[kind, code, 0, 0]);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        out[8..].copy_from_slice(body);
        seal(src, dst, out);
        out.len()
    }
}

/// Fills in the checksum of the message `out`, whose field for it is zero.
pub(crate) fn seal(src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) {
    let pseudo = checksum::pseudo_v6(src, dst, PROTO_ICMPV6, out.len() as u32);
    let check = !checksum::fold(checksum::sum(out, pseudo));
    out[2..4].copy_from_slice(&check.to_be_bytes());
}

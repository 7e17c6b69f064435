//! Reasons for which a packet is rejected.

use core::fmt;

/// Why a parser rejected some bytes.
///
/// The variants are dense from zero, so that a receiver can count drops by
/// reason in an array of [`WireError::COUNT`] counters indexed by
/// [`WireError::index`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum WireError {
    /// Fewer bytes than the fixed part of the header needs.
    Truncated,
    /// The IP version field is not the expected one.
    BadVersion,
    /// The IPv4 header length is below 20 bytes or beyond the datagram.
    BadHeaderLen,
    /// The total length is below the header length or beyond the frame.
    BadTotalLen,
    /// The IPv4 header checksum does not verify (RFC 791).
    BadIpChecksum,
    /// The TCP checksum does not verify (RFC 9293, section 3.1).
    BadTcpChecksum,
    /// The ICMP checksum does not verify (RFC 792, RFC 4443).
    BadIcmpChecksum,
    /// The TCP data offset is below 5 words or beyond the segment.
    BadDataOffset,
    /// A TCP option length is impossible. Parsing goes on without the rest of
    /// the options, so no parser returns this: it is the counter for
    /// [`ParsedTcp::bad_options`](crate::ParsedTcp::bad_options).
    BadOption,
    /// A fragment; reassembly is not done.
    Fragment,
    /// The IP payload is not TCP.
    NotTcp,
    /// An ARP packet that is not Ethernet/IPv4 or has an unknown operation.
    BadArp,
    /// A datagram with a source route (IPv6: a routing header with segments left), which is not to be trusted: answers
    /// would go the way that a stranger chose (RFC 7126, section 4.3; RFC 5095).
    SourceRoute,
    /// The UDP length is below 8 bytes or beyond the datagram (RFC 768).
    BadUdpLen,
    /// The UDP checksum does not verify, or is missing over IPv6 (RFC 8200, section 8.1).
    BadUdpChecksum,
    /// An IPv6 extension header that is cut short, out of place or has an impossible length (RFC
    /// 8200, section 4).
    BadExtension,
    /// More IPv6 extension headers, or longer ones, than are walked.
    LongChain,
    /// An option of an IPv6 extension header that is not known and asks to be refused then (RFC
    /// 8200, section 4.2).
    UnknownOption,
    /// A message of neighbour discovery that is not valid, or has come through a router (RFC 4861,
    /// sections 6.1, 7.1 and 8.1).
    BadNdp,
}

impl WireError {
    /// Every reason, in the order of [`WireError::index`].
    pub const ALL: [WireError; 19] = [
        WireError::Truncated,
        WireError::BadVersion,
        WireError::BadHeaderLen,
        WireError::BadTotalLen,
        WireError::BadIpChecksum,
        WireError::BadTcpChecksum,
        WireError::BadIcmpChecksum,
        WireError::BadDataOffset,
        WireError::BadOption,
        WireError::Fragment,
        WireError::NotTcp,
        WireError::BadArp,
        WireError::SourceRoute,
        WireError::BadUdpLen,
        WireError::BadUdpChecksum,
        WireError::BadExtension,
        WireError::LongChain,
        WireError::UnknownOption,
        WireError::BadNdp,
    ];

    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Position of this reason among [`WireError::ALL`], below
    /// [`WireError::COUNT`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A stable identifier in snake case, for counters and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            WireError::Truncated => "truncated",
            WireError::BadVersion => "bad_version",
            WireError::BadHeaderLen => "bad_header_len",
            WireError::BadTotalLen => "bad_total_len",
            WireError::BadIpChecksum => "bad_ip_checksum",
            WireError::BadTcpChecksum => "bad_tcp_checksum",
            WireError::BadIcmpChecksum => "bad_icmp_checksum",
            WireError::BadDataOffset => "bad_data_offset",
            WireError::BadOption => "bad_option",
            WireError::Fragment => "fragment",
            WireError::NotTcp => "not_tcp",
            WireError::BadArp => "bad_arp",
            WireError::SourceRoute => "source_route",
            WireError::BadUdpLen => "bad_udp_len",
            WireError::BadUdpChecksum => "bad_udp_checksum",
            WireError::BadExtension => "bad_extension_header",
            WireError::LongChain => "extension_header_chain",
            WireError::UnknownOption => "unknown_ipv6_option",
            WireError::BadNdp => "bad_ndp",
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::Truncated => "packet shorter than its header",
            WireError::BadVersion => "IP version field is wrong",
            WireError::BadHeaderLen => "IP header length is impossible",
            WireError::BadTotalLen => "IP total length does not fit the packet",
            WireError::BadIpChecksum => "IP header checksum is wrong",
            WireError::BadTcpChecksum => "TCP checksum is wrong",
            WireError::BadIcmpChecksum => "ICMP checksum is wrong",
            WireError::BadDataOffset => "TCP data offset is impossible",
            WireError::BadOption => "TCP option length is impossible",
            WireError::Fragment => "IP fragment",
            WireError::NotTcp => "not a TCP segment",
            WireError::BadArp => "not an Ethernet/IPv4 ARP request or reply",
            WireError::SourceRoute => "IP datagram with a source route",
            WireError::BadUdpLen => "UDP length is impossible",
            WireError::BadUdpChecksum => "UDP checksum is wrong or missing",
            WireError::BadExtension => "IPv6 extension header is malformed or out of place",
            WireError::LongChain => "too many or too long IPv6 extension headers",
            WireError::UnknownOption => "unknown IPv6 option that is to be refused",
            WireError::BadNdp => "message of neighbour discovery is not valid",
        })
    }
}

impl core::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_names_distinct() {
        for (i, e) in WireError::ALL.iter().enumerate() {
            assert_eq!(e.index(), i);
        }
        let mut names: Vec<_> = WireError::ALL.iter().map(|e| e.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WireError::COUNT);
    }
}

//! Multicast listener reports (MLDv2, RFC 3810).

use core::net::Ipv6Addr;

use crate::icmp6::seal;
use crate::ipv6::{Ipv6Hdr, PROTO_ICMPV6};

/// Where reports go (RFC 3810, section 5.2.14).
pub const MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

const REPORT: u8 = 143;
const QUERY: u8 = 130;

/// What a record says of a group, without sources (RFC 3810, section 5.2.12).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Record {
    /// An answer to a query: the group is listened to.
    Listens = 2,
    /// The group is no longer listened to.
    Leaves = 3,
    /// The group is listened to from now on.
    Joins = 4,
}

/// Whether an ICMPv6 message of that type asks which groups are listened to.
pub fn is_query(kind: u8) -> bool {
    kind == QUERY
}

/// Octets in front of the records: the header, the hop-by-hop options with the router alert (RFC
/// 2711), and the message's own header.
const HEAD: usize = Ipv6Hdr::LEN + 8 + 8;
/// Octets of a record.
const RECORD: usize = 20;

/// Length of a report on so many groups, IP's header included.
pub const fn report_len(groups: usize) -> usize {
    HEAD + RECORD * groups
}

/// Writes a whole datagram from `src`, a link-local address or the unspecified one, that reports
/// on `groups`, to the start of `out` and returns its length, which is that of [`report_len`].
///
/// # Panics
/// If `out` is shorter than that, or it exceeds a datagram's length.
pub fn report(src: Ipv6Addr, groups: &[(Record, Ipv6Addr)], out: &mut [u8]) -> usize {
    let out = &mut out[..report_len(groups.len())];
    let total_len = u32::try_from(out.len()).expect("few groups");
    Ipv6Hdr {
        src,
        dst: MLD_ROUTERS,
        protocol: 0,
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
        header_len: Ipv6Hdr::LEN as u16,
        total_len,
        fragment: None,
    }
    .emit(out);
    let (_, out) = out.split_at_mut(Ipv6Hdr::LEN);
    out[..8].copy_from_slice(&[PROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
    let message = &mut out[8..];
    message[..6].copy_from_slice(&[REPORT, 0, 0, 0, 0, 0]);
    let n = u16::try_from(groups.len()).expect("few groups");
    message[6..8].copy_from_slice(&n.to_be_bytes());
    for (record, (what, group)) in message[8..].chunks_exact_mut(RECORD).zip(groups) {
        record[..4].copy_from_slice(&[*what as u8, 0, 0, 0]);
        record[4..].copy_from_slice(&group.octets());
    }
    seal(src, MLD_ROUTERS, message);
    report_len(groups.len())
}

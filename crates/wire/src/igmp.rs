//! Group membership reports of IPv4 (IGMPv3, RFC 3376), and the queries that ask for them.

use core::net::Ipv4Addr;

use crate::checksum::checksum;
use crate::error::WireError;
use crate::eth::MacAddr;
use crate::mld::Record;

/// Protocol number of IGMP.
pub const PROTO_IGMP: u8 = 2;
/// Where reports go (RFC 3376, section 4.2.14).
pub const IGMP_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// All hosts of the link: everybody listens to it, and nobody reports so.
pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

const QUERY: u8 = 0x11;
const REPORT: u8 = 0x22;
/// IP's header with the router alert (RFC 2113).
const IP: usize = 24;
/// The message's own header, and a record.
const HEAD: usize = 8;
const RECORD: usize = 8;
/// Precedence "internetwork control" (RFC 3376, section 4).
const TOS: u8 = 0xc0;

/// The station that stands for a group (RFC 1112, section 6.4).
pub const fn group_mac_v4(group: Ipv4Addr) -> MacAddr {
    let [_, b, c, d] = group.octets();
    MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

/// A query, of whichever version.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct IgmpQuery {
    /// The group that is asked about; unspecified: all.
    pub group: Ipv4Addr,
    /// Within how long the answer is to come, in tenths of a second.
    pub within: u32,
}

impl IgmpQuery {
    /// Reads a message; `None`: it is another.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::BadIcmpChecksum`], whose sum is the same.
    pub fn parse(bytes: &[u8]) -> Result<Option<IgmpQuery>, WireError> {
        let &[kind, code, _, _, a, b, c, d] =
            bytes.first_chunk::<HEAD>().ok_or(WireError::Truncated)?;
        if checksum(bytes) != 0 {
            return Err(WireError::BadIcmpChecksum);
        }
        if kind != QUERY {
            return Ok(None);
        }
        // RFC 3376, section 4.1.1; version 1 says nothing and means ten seconds.
        let within = match code {
            0 => 100,
            n if n < 128 || bytes.len() == HEAD => n.into(),
            n => (u32::from(n & 0x0f) | 0x10) << ((n >> 4 & 7) + 3),
        };
        Ok(Some(IgmpQuery {
            group: Ipv4Addr::new(a, b, c, d),
            within,
        }))
    }
}

/// Length of a report on so many groups, IP's header included.
pub const fn report_len(groups: usize) -> usize {
    IP + HEAD + RECORD * groups
}

/// Writes a whole datagram from `src` that reports on `groups` to the start of `out` and returns
/// its length, which is that of [`report_len`].
///
/// # Panics
/// If `out` is shorter than that, or it exceeds a datagram's length.
pub fn report(src: Ipv4Addr, groups: &[(Record, Ipv4Addr)], out: &mut [u8]) -> usize {
    let len = report_len(groups.len());
    let out = &mut out[..len];
    out.fill(0);
    let total = u16::try_from(len).expect("few groups");
    out[..2].copy_from_slice(&[0x46, TOS]);
    out[2..4].copy_from_slice(&total.to_be_bytes());
    out[6] = 0x40;
    out[8..10].copy_from_slice(&[1, PROTO_IGMP]);
    out[12..16].copy_from_slice(&src.octets());
    out[16..20].copy_from_slice(&IGMP_ROUTERS.octets());
    out[20..24].copy_from_slice(&[0x94, 4, 0, 0]);
    let check = checksum(&out[..IP]);
    out[10..12].copy_from_slice(&check.to_be_bytes());
    let msg = &mut out[IP..];
    msg[0] = REPORT;
    msg[6..8].copy_from_slice(&(groups.len() as u16).to_be_bytes());
    for (record, (what, group)) in msg[HEAD..].chunks_exact_mut(RECORD).zip(groups) {
        record[0] = *what as u8;
        record[4..].copy_from_slice(&group.octets());
    }
    let check = checksum(msg);
    msg[2..4].copy_from_slice(&check.to_be_bytes());
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Ipv4Hdr;

    #[test]
    fn a_report_is_a_datagram_with_a_router_alert() {
        let (src, group) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3));
        let mut out = [0; 64];
        let n = report(
            src,
            &[(Record::Joins, group), (Record::Leaves, ALL_HOSTS)],
            &mut out,
        );
        assert_eq!(n, report_len(2));
        let hdr = Ipv4Hdr::parse(&out[..n], true).unwrap();
        assert_eq!((hdr.ttl, hdr.protocol, hdr.tos), (1, PROTO_IGMP, 0xc0));
        assert_eq!((hdr.src, hdr.dst, hdr.header_len), (src, IGMP_ROUTERS, 24));
        assert_eq!(checksum(&out[24..n]), 0);
        assert_eq!(out[24], 0x22);
        assert_eq!(out[32..40], [4, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(out[40..48], [3, 0, 0, 0, 224, 0, 0, 1]);
        assert_eq!(IgmpQuery::parse(&out[24..n]), Ok(None));
    }

    #[test]
    fn queries_of_every_version() {
        let sealed = |mut bytes: Vec<u8>| {
            let check = checksum(&bytes);
            bytes[2..4].copy_from_slice(&check.to_be_bytes());
            bytes
        };
        let query = |code, len: usize| {
            let mut bytes = vec![0x11, code, 0, 0, 239, 1, 2, 3];
            bytes.resize(len, 0);
            IgmpQuery::parse(&sealed(bytes)).unwrap().unwrap()
        };
        assert_eq!(query(0, 8).within, 100);
        assert_eq!(query(100, 8).within, 100);
        assert_eq!(query(200, 8).within, 200);
        assert_eq!(query(100, 12).within, 100);
        assert_eq!(query(0x80, 12).within, 128);
        assert_eq!(query(0xff, 12).within, 31 << 10);
        assert_eq!(query(0, 12).group, Ipv4Addr::new(239, 1, 2, 3));
        let bad = vec![0x11, 0, 1, 1, 0, 0, 0, 0];
        assert_eq!(IgmpQuery::parse(&bad), Err(WireError::BadIcmpChecksum));
        for n in 0..8 {
            assert_eq!(IgmpQuery::parse(&bad[..n]), Err(WireError::Truncated));
        }
        assert_eq!(
            group_mac_v4(Ipv4Addr::new(239, 129, 2, 3)).0,
            [1, 0, 0x5e, 1, 2, 3]
        );
    }
}

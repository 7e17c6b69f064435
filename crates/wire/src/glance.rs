//! The flow of a datagram at a glance, for a classifier that asks before IP has looked at it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::flow::FlowKey;
use crate::ip::PROTO_TCP;

/// The ports' place in a header of TCP, octets.
const PORTS: usize = 4;

/// The flow that a datagram claims to be of, from the receiver's point of view, if it is TCP
/// directly behind a header without options and no fragment, as nearly all are. Nothing else about
/// it is checked: [`parse_tcp_into`](crate::parse_tcp_into) does that later.
#[must_use]
#[inline]
pub fn glance(datagram: &[u8]) -> Option<FlowKey> {
    match datagram.first()? {
        0x45 => glance_v4(datagram),
        first if first >> 4 == 6 => glance_v6(datagram),
        _ => None,
    }
}

#[inline]
fn glance_v4(datagram: &[u8]) -> Option<FlowKey> {
    const HEADER: usize = 20;
    // More fragments follow, or an offset.
    const FRAGMENT: u16 = 0x3fff;
    let h = datagram.first_chunk::<{ HEADER + PORTS }>()?;
    let fragment = u16::from_be_bytes([h[6], h[7]]) & FRAGMENT != 0;
    if h[9] != PROTO_TCP || fragment {
        return None;
    }
    let addr = |at: usize| IpAddr::V4(Ipv4Addr::new(h[at], h[at + 1], h[at + 2], h[at + 3]));
    let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    Some(FlowKey {
        local: addr(16),
        remote: addr(12),
        local_port: port(HEADER + 2),
        remote_port: port(HEADER),
    })
}

#[inline]
fn glance_v6(datagram: &[u8]) -> Option<FlowKey> {
    const HEADER: usize = 40;
    let h = datagram.first_chunk::<{ HEADER + PORTS }>()?;
    if h[6] != PROTO_TCP {
        return None;
    }
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&h[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from_octets(octets))
    };
    let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    Some(FlowKey {
        local: addr(24),
        remote: addr(8),
        local_port: port(HEADER + 2),
        remote_port: port(HEADER),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Csum, TcpFrame, parse_tcp_into};
    use proptest::prelude::*;

    fn parsed(datagram: &[u8]) -> Option<FlowKey> {
        let mut frame = TcpFrame::default();
        let done = parse_tcp_into(datagram, 0, Csum::Trust, &mut frame);
        done.is_ok().then_some(frame.key)
    }

    /// A datagram of TCP between hosts, of either family.
    fn tcp(v6: bool) -> Vec<u8> {
        let mut d = match v6 {
            false => vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, PROTO_TCP, 0, 0],
            true => vec![0x60, 0, 0, 0, 0, 20, PROTO_TCP, 64],
        };
        let addresses = if v6 { 32 } else { 8 };
        d.extend(1..=addresses);
        d.extend([0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10]);
        d.extend([1, 0, 0, 0, 0, 0]);
        d
    }

    #[test]
    fn it_sees_what_the_parser_finds() {
        for v6 in [false, true] {
            let d = tcp(v6);
            let key = glance(&d).unwrap();
            assert_eq!((key.local_port, key.remote_port), (80, 0x1234));
            assert_eq!(parsed(&d), Some(key));
        }
    }

    #[test]
    fn what_is_not_plain_is_left_alone() {
        for v6 in [false, true] {
            let whole = tcp(v6);
            let ports = if v6 { 44 } else { 24 };
            for n in 0..ports {
                assert_eq!(glance(&whole[..n]), None, "{n} octets");
            }
            let mut udp = whole.clone();
            udp[if v6 { 6 } else { 9 }] = 17;
            assert_eq!(glance(&udp), None);
        }
        for (at, octet) in [(0, 0x46), (0, 0x55), (6, 0x20), (7, 1), (6, 0x1f)] {
            let mut d = tcp(false);
            d[at] = octet;
            assert_eq!(glance(&d), None, "octet {at} is {octet:#x}");
        }
    }

    proptest! {
        /// Whatever comes: where both have an opinion it is the same one.
        #[test]
        fn it_never_differs_from_the_parser(mut d in prop::collection::vec(any::<u8>(), 0..80), v6: bool) {
            for (to, from) in d.iter_mut().zip(tcp(v6).into_iter().take(7)) {
                *to = from;
            }
            if let (Some(glanced), Some(parsed)) = (glance(&d), parsed(&d)) {
                prop_assert_eq!(glanced, parsed);
            }
        }
    }
}

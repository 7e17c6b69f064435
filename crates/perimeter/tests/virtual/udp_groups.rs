//! Datagrams to several at once, under every organization: to a group, and to all hosts of a link.

use crate::common::{Family, kind, under_all};
use crate::udp::{bind, everywhere, ips, receive, would_block};
use perimeter::{Stack, UdpConfig, UdpSocket};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// What goes to a group comes to those who have joined, to each a copy, also here; what goes to all
/// hosts needs to be wanted by who sends.
#[test]
fn groups() {
    everywhere(
        |_| {},
        |w| {
            let [_, _, any] = ips(&w);
            let port = w.port();
            let group: IpAddr = match any {
                IpAddr::V4(_) => Ipv4Addr::new(239, 1, 2, 3).into(),
                IpAddr::V6(_) => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 0x123).into(),
            };
            let join = |s: &UdpSocket, join: bool| match (group, join) {
                (IpAddr::V4(g), true) => s.join_multicast_v4(&g, &Ipv4Addr::UNSPECIFIED),
                (IpAddr::V4(g), false) => s.leave_multicast_v4(&g, &Ipv4Addr::UNSPECIFIED),
                (IpAddr::V6(g), true) => s.join_multicast_v6(&g, 0),
                (IpAddr::V6(g), false) => s.leave_multicast_v6(&g, 0),
            };
            let shared = UdpConfig::default().with_reuse_address(true);
            let open = |s: &Stack| {
                let s = s.bind_udp_with((any, port), &shared).unwrap();
                s.set_nonblocking(true).unwrap();
                s
            };
            let ours = [open(&w.s), open(&w.s), open(&w.s)];
            let theirs = bind(&w.peer, (any, w.port()));
            let local = bind(&w.s, (any, w.port()));
            let to = SocketAddr::new(group, port);
            join(&ours[0], true).unwrap();
            join(&ours[1], true).unwrap();
            assert_eq!(kind(join(&ours[1], true)), Some(ErrorKind::AddrInUse));
            assert_eq!(
                kind(join(&ours[2], false)),
                Some(ErrorKind::AddrNotAvailable)
            );
            for (from, word) in [(&theirs, b"from there"), (&local, b"from here.")] {
                from.send_to(word, to).unwrap();
                for s in &ours[..2] {
                    assert_eq!(receive(&w, s).unwrap().0, word);
                }
                assert!(would_block(ours[2].recv(&mut [0; 20])));
            }
            local.set_multicast_loop_v4(false).unwrap();
            local.send_to(b"elsewhere", to).unwrap();
            join(&ours[0], false).unwrap();
            theirs.send_to(b"again", to).unwrap();
            assert_eq!(receive(&w, &ours[1]).unwrap().0, b"again");
            drop(ours);
            theirs.send_to(b"nobody", to).unwrap();
            w.pass(Duration::from_millis(50));
            let stats = w.s.stats();
            assert!(stats.count("drop_not_ours") >= 1);
            assert_eq!(stats.count("tx_icmp_unreachable"), 0);
            if group.is_ipv4() {
                assert_eq!(stats.count("tx_group_reports"), 2, "in and out");
                w.pass(Duration::from_secs(2));
                assert_eq!(w.s.stats().count("tx_group_reports"), 3, "once more");
            }
        },
    );
}

#[test]
fn all_hosts_of_a_link() {
    under_all(
        |s| s.family = Family::V4,
        |w| {
            let [us, _, any] = ips(&w);
            let port = w.port();
            let wild = bind(&w.s, (any, port));
            let bound = bind(&w.s, (us, w.port()));
            let theirs = bind(&w.peer, (any, w.port()));
            let addrs = [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)];
            for to in addrs {
                let refused = kind(theirs.send_to(b"all", (to, port)));
                assert_eq!(refused, Some(ErrorKind::PermissionDenied));
            }
            theirs.set_broadcast(true).unwrap();
            for to in addrs {
                theirs.send_to(b"all", (to, port)).unwrap();
                assert_eq!(receive(&w, &wild).unwrap().0, b"all");
                theirs.send_to(b"all", (to, port + 1)).unwrap();
            }
            w.pass(Duration::from_millis(20));
            assert!(would_block(bound.recv(&mut [0; 9])), "it has one address");
            assert_eq!(w.s.stats().count("tx_icmp_unreachable"), 0);
        },
    );
}

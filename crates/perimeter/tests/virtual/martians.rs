//! What IP must not take: frames for other stations, frames to groups, sources that no host has,
//! source routes, a host's own address from outside (LAND), and echo as an amplifier (smurf). Each
//! is dropped before anything looks at it, and counted by its reason.

use crate::lan::*;
use perimeter_wire::{ArpOp, MacAddr, TcpFlags};
use std::net::Ipv4Addr;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const HOST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const LSRR: [u8; 8] = [131, 7, 4, 10, 0, 0, 7, 0];
const SSRR: [u8; 8] = [1, 137, 7, 4, 10, 0, 0, 7];

/// A SYN from `from` in a frame to `to`, to a port that somebody listens on.
fn syn(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr), options: &[u8]) -> Vec<u8> {
    tcp(
        from,
        to,
        &header((999, 80), TcpFlags::SYN, 1, 0),
        b"",
        options,
    )
}

/// Sends `frame` and wants it dropped for that reason, and nothing sent.
fn refused(lan: &mut Lan, what: &str, frame: &[u8], reason: &str) {
    let org = lan.s.organization().to_string();
    lan.take();
    let before = lan.count(reason);
    lan.send(frame);
    lan.ms(3);
    let sent = lan.take();
    assert!(sent.is_empty(), "{org}: {what} was answered: {sent:02x?}");
    assert_eq!(lan.count(reason), before + 1, "{org}: {what}: {reason}");
}

#[test]
fn what_no_host_may_send_is_dropped_by_reason() {
    under_all(24, |lan| {
        let _listener = lan.s.listen("0.0.0.0:80").unwrap();
        let (us, host) = ((lan.mac, US), (HOST_MAC, HOST));
        // What is right is answered.
        lan.send(&arp(
            ArpOp::Request,
            host,
            (MacAddr([0; 6]), US),
            MacAddr::BROADCAST,
        ));
        lan.ms(3);
        assert_eq!(lan.arps().len(), 1);
        lan.send(&syn(host, us, &[]));
        lan.ms(3);
        assert_eq!(lan.segments().len(), 1, "{}", lan.s.organization());
        lan.send(&ping(host, us, &[]));
        lan.ms(3);
        assert_eq!(echoes(&lan.take()), 1);
        // Another station's frames.
        let theirs = (MacAddr([2, 9, 9, 9, 9, 9]), US);
        refused(
            lan,
            "foreign SYN",
            &syn(host, theirs, &[]),
            "drop_other_station",
        );
        refused(
            lan,
            "foreign echo",
            &ping(host, theirs, &[]),
            "drop_other_station",
        );
        let asks = arp(ArpOp::Request, host, (MacAddr([0; 6]), US), theirs.0);
        refused(lan, "foreign ARP", &asks, "drop_other_station");
        // Frames to all stations, or a group of them.
        for group in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
            let all = (group, US);
            refused(
                lan,
                "SYN to a group",
                &syn(host, all, &[]),
                "drop_group_frame",
            );
            refused(
                lan,
                "echo to a group",
                &ping(host, all, &[]),
                "drop_group_frame",
            );
        }
        let everybody = (MacAddr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255));
        refused(
            lan,
            "smurf",
            &ping(host, everybody, &[]),
            "drop_group_frame",
        );
        let everybody = (lan.mac, Ipv4Addr::new(10, 0, 0, 255));
        refused(
            lan,
            "directed broadcast",
            &ping(host, everybody, &[]),
            "drop_not_ours",
        );
        // Sources.
        for src in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "240.0.0.1",
            "255.255.255.254",
        ] {
            let from = (HOST_MAC, src.parse().unwrap());
            refused(lan, src, &syn(from, us, &[]), "drop_martian_source");
            refused(lan, src, &ping(from, us, &[]), "drop_martian_source");
        }
        for src in [
            "10.0.0.255",
            "255.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
        ] {
            let from = (HOST_MAC, src.parse().unwrap());
            refused(lan, src, &syn(from, us, &[]), "drop_bad_address");
            refused(lan, src, &ping(from, us, &[]), "drop_bad_address");
        }
        // LAND: from ourselves, whatever the ports.
        refused(
            lan,
            "LAND echo",
            &ping((HOST_MAC, US), us, &[]),
            "drop_bad_address",
        );
        refused(
            lan,
            "LAND",
            &syn((HOST_MAC, US), us, &[]),
            "drop_bad_address",
        );
        let same = header((80, 80), TcpFlags::SYN, 1, 0);
        let same = tcp((HOST_MAC, US), us, &same, b"", &[]);
        refused(lan, "LAND with one port", &same, "drop_bad_address");
        // Source routes; what has other options, or none left after a bad one, is taken.
        for route in [&LSRR[..], &SSRR] {
            refused(
                lan,
                "routed SYN",
                &syn(host, us, route),
                "drop_source_route",
            );
            refused(
                lan,
                "routed echo",
                &ping(host, us, route),
                "drop_source_route",
            );
        }
        for (n, option) in [[148, 4, 0, 0], [7, 3, 4, 0], [1, 1, 1, 0], [0, 131, 7, 4]]
            .iter()
            .enumerate()
        {
            let hdr = header((2000 + n as u16, 80), TcpFlags::SYN, 1, 0);
            lan.send(&tcp(host, us, &hdr, b"", option));
            lan.ms(3);
            assert_eq!(
                lan.segments().len(),
                1,
                "{}: {option:?}",
                lan.s.organization()
            );
        }
        assert_eq!(lan.s.connections().len(), 0);
    });
}

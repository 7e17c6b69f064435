//! Neighbours under attack: strangers make no entries and no requests, what is confirmed is not
//! overwritten but asked, and nobody pushes out what is in use.

use crate::lan::*;
use perimeter_wire::{ArpOp, ArpPacket, MacAddr, TcpFlags};
use std::io::{Read, Write};
use std::net::Ipv4Addr;

const NOBODY: MacAddr = MacAddr([0; 6]);

/// Host number `n` of the /16, and a station of its own.
fn host(n: usize) -> (MacAddr, Ipv4Addr) {
    let (high, low) = ((n >> 8) as u8 + 1, n as u8);
    (
        MacAddr([2, 7, 0, 0, high, low]),
        Ipv4Addr::new(10, 0, high, low),
    )
}

fn requests(arps: &[(MacAddr, ArpPacket)]) -> usize {
    arps.iter().filter(|(_, a)| a.op == ArpOp::Request).count()
}

#[test]
fn strangers_on_link_make_no_requests_and_are_answered_where_they_are() {
    under_all(16, |lan| {
        let listener = lan.s.listen("0.0.0.0:80").unwrap();
        listener.set_nonblocking(true).unwrap();
        let us = (lan.mac, US);
        let (mut asked, mut answered) = (0, 0);
        for n in 0..3_000 {
            let hdr = header((1024, 80), TcpFlags::SYN, n as u32, 0);
            lan.send(&tcp(host(n), us, &hdr, b"", &[]));
            if n % 50 == 0 {
                lan.ms(1);
                let sent = lan.take();
                asked += requests(&arps(&sent));
                for s in segments(&sent) {
                    assert!(s.hdr.flags.contains(TcpFlags::SYN | TcpFlags::ACK));
                    let high = usize::from(s.dst.octets()[2]) - 1;
                    assert_eq!(s.to, host(high << 8 | usize::from(s.dst.octets()[3])).0);
                    answered += 1;
                }
            }
        }
        // The SYN-ACKs are sent again, to nobody who is known.
        lan.ms(3_500);
        asked += requests(&lan.arps());
        let org = lan.s.organization().to_string();
        assert_eq!(asked, 0, "{org}: requests");
        assert!(answered > 2_500, "{org}: {answered} SYN-ACKs");
        // An honest stranger gets a connection. Its station is asked for then, and only then.
        let honest = host(50_000);
        let mut hdr = header((5000, 80), TcpFlags::SYN, 100, 0);
        lan.send(&tcp(honest, us, &hdr, b"", &[]));
        lan.ms(2);
        let synack = lan.segments().remove(0);
        hdr = header(
            (5000, 80),
            TcpFlags::ACK,
            101,
            synack.hdr.seq.0.wrapping_add(1),
        );
        lan.send(&tcp(honest, us, &hdr, b"question", &[]));
        lan.ms(2);
        let (conn, _) = listener.accept().unwrap();
        conn.set_nonblocking(true).unwrap();
        let mut buf = [0; 20];
        assert_eq!((&conn).read(&mut buf).unwrap(), 8);
        (&conn).write_all(b"answer").unwrap();
        lan.ms(2);
        let sent = lan.take();
        assert_eq!(requests(&arps(&sent)), 1, "{org}");
        lan.send(&arp(ArpOp::Reply, honest, us, us.0));
        lan.ms(300);
        let answer = lan.segments();
        assert!(
            answer
                .iter()
                .any(|s| s.payload == b"answer" && s.to == honest.0),
            "{org}"
        );
    });
}

#[test]
fn a_lost_syn_ack_is_sent_again_to_a_stranger_on_link() {
    under_all(16, |lan| {
        let org = lan.s.organization().to_string();
        let listener = lan.s.listen("0.0.0.0:80").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (us, stranger) = ((lan.mac, US), host(7));
        let syn = header((5000, 80), TcpFlags::SYN, 100, 0);
        lan.send(&tcp(stranger, us, &syn, b"", &[]));
        lan.ms(2);
        assert_eq!(lan.segments().len(), 1, "{org}: it is lost");
        for _ in 0..2 {
            lan.ms(2_100);
            let sent = lan.take();
            assert_eq!(requests(&arps(&sent)), 0, "{org}");
            let again = segments(&sent);
            assert_eq!(again.len(), 1, "{org}: sent again");
            assert_eq!(again[0].to, stranger.0, "{org}");
            assert!(again[0].hdr.flags.contains(TcpFlags::SYN | TcpFlags::ACK));
        }
        // The end of the handshake is told there, too.
        drop(listener);
        lan.ms(2);
        let sent = lan.take();
        let told = segments(&sent);
        assert_eq!((told.len(), requests(&arps(&sent))), (1, 0), "{org}");
        assert_eq!(told[0].to, stranger.0, "{org}");
        assert!(told[0].hdr.flags.contains(TcpFlags::RST | TcpFlags::ACK));
        assert_eq!(told[0].hdr.ack.0, 101, "{org}");
    });
}

#[test]
fn resets_for_strangers_are_few_and_make_no_requests() {
    under_all(16, |lan| {
        let us = (lan.mac, US);
        for n in 0..4_000 {
            let hdr = header((1024, 81), TcpFlags::ACK, n as u32, 77);
            lan.send(&tcp(host(n), us, &hdr, b"", &[]));
            if n % 100 == 0 {
                lan.pass(std::time::Duration::from_micros(200));
            }
        }
        lan.ms(40);
        let sent = lan.take();
        let org = lan.s.organization().to_string();
        assert_eq!(requests(&arps(&sent)), 0, "{org}");
        let resets = segments(&sent);
        assert!(resets.iter().all(|s| s.hdr.flags.contains(TcpFlags::RST)));
        // 4,000 within some 50 ms, by one thread or a few, which have a limit each.
        let dropped = lan.count("drop_reset_limit");
        assert!(resets.len() > 200 && dropped > 900, "{org}: {dropped}");
        assert_eq!(dropped as usize + resets.len(), 4_000, "{org}");
        // A second later there are more to be had.
        lan.ms(1_000);
        lan.send(&tcp(
            host(1),
            us,
            &header((1, 2), TcpFlags::ACK, 1, 1),
            b"",
            &[],
        ));
        lan.ms(2);
        assert_eq!(lan.segments().len(), 1, "{org}");
    });
}

#[test]
fn echo_replies_are_few() {
    under_all(24, |lan| {
        for n in 0..4_000 {
            let them = (MacAddr([2, 7, 0, 0, 0, 7]), Ipv4Addr::new(10, 0, 0, 7));
            lan.send(&ping(them, (lan.mac, US), &[]));
            if n % 100 == 0 {
                lan.pass(std::time::Duration::from_micros(200));
            }
        }
        lan.ms(40);
        let replies = echoes(&lan.take());
        let org = lan.s.organization().to_string();
        let dropped = lan.count("drop_echo_limit");
        assert!(replies > 200 && dropped > 900, "{org}: {replies}");
        assert_eq!(dropped as usize + replies, 4_000, "{org}");
    });
}

#[test]
fn those_who_ask_for_us_do_not_push_out_the_gateway() {
    under_all(16, |lan| {
        let (_c, _) = lan.meet_gateway();
        for n in 0..3_000 {
            lan.send(&arp(
                ArpOp::Request,
                host(n),
                (NOBODY, US),
                MacAddr::BROADCAST,
            ));
            if n % 50 == 0 {
                lan.ms(1);
            }
        }
        lan.ms(5);
        lan.take();
        let _second = lan.connect_far();
        lan.ms(5);
        let sent = lan.take();
        let org = lan.s.organization().to_string();
        assert_eq!(requests(&arps(&sent)), 0, "{org}");
        assert!(segments(&sent).iter().any(|s| s.to == GATEWAY_MAC), "{org}");
    });
}

/// Connecting to many hosts that are not there does not push out one that is, and asks for them at a
/// bounded rate.
#[test]
fn those_who_do_not_answer_push_out_nobody_who_does() {
    under_all(16, |lan| {
        let (_c, _) = lan.meet_gateway();
        let alive = host(40_000);
        let first = lan.s.start_connect((alive.1, 80).into()).unwrap();
        lan.ms(2);
        lan.send(&arp(ArpOp::Reply, alive, (lan.mac, US), lan.mac));
        lan.ms(2);
        lan.take();
        let mut all = vec![first];
        for n in 0..3_000 {
            all.push(lan.s.start_connect((host(n).1, 80).into()).unwrap());
        }
        lan.ms(5);
        let org = lan.s.organization().to_string();
        let asked = requests(&lan.arps());
        assert!((100..=1_100).contains(&asked), "{org}: {asked} requests");
        all.push(lan.s.start_connect((alive.1, 81).into()).unwrap());
        all.push(lan.connect_far());
        lan.ms(2);
        let sent = segments(&lan.take());
        assert!(
            sent.iter().any(|s| s.to == alive.0 && s.hdr.dst_port == 81),
            "{org}"
        );
        assert!(sent.iter().any(|s| s.to == GATEWAY_MAC), "{org}");
        for c in all {
            c.abort().unwrap();
        }
    });
}

/// Each way in which one frame says that the gateway is elsewhere now.
fn lies(us: (MacAddr, Ipv4Addr)) -> [(&'static str, Vec<u8>); 4] {
    let evil = (EVIL_MAC, GATEWAY);
    let all = MacAddr::BROADCAST;
    let somebody = (NOBODY, Ipv4Addr::new(10, 0, 0, 77));
    [
        ("gratuitous", arp(ArpOp::Reply, evil, evil, all)),
        ("reply", arp(ArpOp::Reply, evil, us, us.0)),
        (
            "request for us",
            arp(ArpOp::Request, evil, (NOBODY, US), all),
        ),
        (
            "request for another",
            arp(ArpOp::Request, evil, somebody, all),
        ),
    ]
}

#[test]
fn a_lie_about_the_gateway_makes_it_asked_not_forgotten() {
    under_all(24, |lan| {
        let us = (lan.mac, US);
        let (c, syn) = lan.meet_far();
        let org = lan.s.organization().to_string();
        let mut seq = syn.hdr.seq.0.wrapping_add(1);
        // It was asked just now, and is so once a second at most.
        lan.ms(1_100);
        for (what, lie) in lies(us) {
            lan.take();
            lan.send(&lie);
            lan.ms(3);
            (&c).write_all(b"hello").unwrap();
            lan.ms(3);
            let sent = lan.take();
            let data = segments(&sent);
            assert!(!data.is_empty(), "{org}: {what}");
            assert!(
                data.iter().all(|s| s.to == GATEWAY_MAC),
                "{org}: {what}: taken over"
            );
            // It is asked, itself and alone.
            let asked = arps(&sent);
            let asked = asked.iter().filter(|(_, a)| a.op == ArpOp::Request);
            let asked: Vec<_> = asked.map(|(to, a)| (*to, a.target_ip)).collect();
            assert_eq!(asked, [(GATEWAY_MAC, GATEWAY)], "{org}: {what}");
            // A hundred more lies, and it is asked once a second at most.
            for _ in 0..100 {
                lan.send(&lie);
            }
            lan.ms(3);
            assert_eq!(requests(&lan.arps()), 0, "{org}: {what}");
            lan.send(&arp(ArpOp::Reply, (GATEWAY_MAC, GATEWAY), us, us.0));
            seq = seq.wrapping_add(5);
            lan.far_answers(&syn.hdr, TcpFlags::ACK, 6, seq);
            lan.ms(5_000);
            assert_eq!(requests(&lan.arps()), 0, "{org}: {what}: it had answered");
        }
        assert!(lan.count("arp_doubts") >= 4, "{org}");
    });
}

/// A gateway that has really moved: the old station does not answer, and the new one takes its
/// place within a few seconds.
#[test]
fn a_gateway_that_moved_is_found() {
    under_all(24, |lan| {
        let us = (lan.mac, US);
        let (c, _) = lan.meet_far();
        lan.take();
        let org = lan.s.organization().to_string();
        let moved = (MacAddr([2, 0, 0, 0, 1, 254]), GATEWAY);
        lan.send(&arp(ArpOp::Reply, moved, moved, MacAddr::BROADCAST));
        let mut unicast = 0;
        let mut found = false;
        for _ in 0..60 {
            lan.ms(100);
            for (to, a) in lan.arps() {
                if a.target_ip != GATEWAY || a.op != ArpOp::Request {
                    continue;
                }
                if to.is_broadcast() {
                    lan.send(&arp(ArpOp::Reply, moved, us, us.0));
                    found = true;
                } else {
                    assert_eq!(to, GATEWAY_MAC, "{org}");
                    unicast += 1;
                }
            }
        }
        assert!(found, "{org}: nobody was asked");
        assert_eq!(unicast, 3, "{org}");
        (&c).write_all(b"hello").unwrap();
        lan.ms(3);
        let data = lan.segments();
        assert!(
            data.iter().all(|s| s.to == moved.0) && !data.is_empty(),
            "{org}"
        );
    });
}

/// RFC 5227, section 2.4: our own address is defended once in ten seconds, and kept.
#[test]
fn our_own_address_is_defended() {
    under_all(24, |lan| {
        let org = lan.s.organization().to_string();
        for (wait, defended) in [(10, 1), (10, 0), (11_000, 1)] {
            lan.ms(wait);
            lan.take();
            let evil = (EVIL_MAC, US);
            lan.send(&arp(ArpOp::Reply, evil, evil, MacAddr::BROADCAST));
            lan.ms(3);
            let said = lan.arps();
            assert_eq!(said.len(), defended, "{org}: {said:?}");
            for (to, a) in said {
                let announced = (a.sender_mac, a.sender_ip, a.target_ip);
                assert_eq!(
                    (to, announced),
                    (MacAddr::BROADCAST, (lan.mac, US, US)),
                    "{org}"
                );
            }
        }
        assert_eq!(lan.count("arp_conflicts"), 3, "{org}");
        // A probe for our address (RFC 5227, section 2.1.1) is answered, so it is not taken.
        let prober = (EVIL_MAC, Ipv4Addr::UNSPECIFIED);
        lan.send(&arp(
            ArpOp::Request,
            prober,
            (NOBODY, US),
            MacAddr::BROADCAST,
        ));
        lan.ms(3);
        let said = lan.arps();
        assert_eq!((said.len(), said[0].0), (1, EVIL_MAC), "{org}");
    });
}

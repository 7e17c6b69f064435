//! What routers of a link may say of it: better first hops, where somebody asks for that, and hops
//! and times; and when neighbours are asked whether they are still there.

use crate::discovery::{
    FAR, FRIEND, FRIEND_MAC, OTHER_MAC, OTHER_ROUTER, ROUTER, US, advert, answer, ask, asked,
    autoconf, connect, frame, meet, segments, under_all,
};
use crate::lan::{EVIL_MAC, GATEWAY_MAC, Lan, under_all_with};
use perimeter::{Config, Ipv6Config, TcpStream};
use perimeter_wire::ipv6::{ALL_NODES, group_mac, solicited_node};
use perimeter_wire::{
    Icmpv6, Ipv6Hdr, MacAddr, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP, TcpFlags, TcpFrame, checksum,
};
use std::io::Write;
use std::net::Ipv6Addr;

/// Another host behind the router.
const FARTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 8);
const ON: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xf0);

/// A message of ICMPv6 in a frame, its checksum made.
fn icmp(
    from: (MacAddr, Ipv6Addr),
    to: (MacAddr, Ipv6Addr),
    hops: u8,
    mut body: Vec<u8>,
) -> Vec<u8> {
    let pseudo = checksum::pseudo_v6(from.1, to.1, PROTO_ICMPV6, body.len() as u32);
    let check = !checksum::fold(checksum::sum(&body, pseudo));
    body[2..4].copy_from_slice(&check.to_be_bytes());
    frame(from, to, (PROTO_ICMPV6, hops), &body)
}

/// `from` says that `target` is a better first hop to `dst`.
fn redirect(
    from: (MacAddr, Ipv6Addr),
    to: (MacAddr, Ipv6Addr),
    (dst, target): (Ipv6Addr, Ipv6Addr),
) -> Vec<u8> {
    icmp(from, to, 255, redirect_body(dst, target, &[]))
}

fn redirect_body(dst: Ipv6Addr, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    let head = [137, 0, 0, 0, 0, 0, 0, 0];
    [&head[..], &target.octets(), &dst.octets(), options].concat()
}

/// A router says: hop limit, how long neighbours are believed and the time between requests, ms.
fn says(from: (MacAddr, Ipv6Addr), hops: u8, reachable: u32, retransmit: u32) -> Vec<u8> {
    let mut body = vec![134, 0, 0, 0, hops, 0, 7, 8];
    body.extend(reachable.to_be_bytes());
    body.extend(retransmit.to_be_bytes());
    icmp(from, (group_mac(ALL_NODES), ALL_NODES), 255, body)
}

fn following() -> Config {
    Config::default().with_ipv6(Ipv6Config::default().with_accept_redirects(true))
}

/// Runs `body` on a stack that follows redirects, whose way out is [`ROUTER`].
fn under_all_following(body: fn(&mut Lan)) {
    under_all_with(
        &following(),
        &["2001:db8::1/64"],
        &[("::/0", "fe80::fe")],
        body,
    );
}

/// The far end of a connection by the gateway answers what was sent to it.
fn acknowledge(lan: &mut Lan, via: MacAddr, what: &TcpFrame) {
    lan.send(&answer((via, lan.mac), what, 8, TcpFlags::ACK));
    lan.ms(3);
    lan.take();
}

/// Sends an octet; by which station, and whom it has asked for meanwhile.
fn sends(lan: &mut Lan, c: &TcpStream) -> (TcpFrame, MacAddr, Vec<(MacAddr, Ipv6Addr)>) {
    (&*c).write_all(b"x").unwrap();
    lan.ms(3);
    let sent = lan.take();
    let (to, seg) = *segments(&sent).last().expect("a segment");
    (seg, to, asked(&sent))
}

/// The hop limits of what was sent of that protocol, but for messages to neighbours.
fn hops(frames: &[Vec<u8>], of: u8) -> Vec<u8> {
    let all = frames.iter().filter_map(|f| Ipv6Hdr::parse(&f[14..]).ok());
    all.filter(|ip| ip.protocol == of && ip.hop_limit != 255)
        .map(|ip| ip.hop_limit)
        .collect()
}

/// To which station the first segment to `dst` goes.
fn first_hop(lan: &mut Lan, dst: Ipv6Addr) -> MacAddr {
    lan.take();
    let c = connect(lan, dst);
    lan.ms(3);
    let to = segments(&lan.take())[0].0;
    c.abort().unwrap();
    lan.ms(3);
    lan.take();
    to
}

/// RFC 4861, section 8.3: what goes to that destination, and nothing else, takes the better hop, as
/// soon as that has answered; and the old one again when it does not answer any more.
#[test]
fn a_better_first_hop_is_taken() {
    under_all_following(|lan| {
        let org = lan.s.organization().to_string();
        let (c, _) = meet(lan);
        let (gateway, us) = ((GATEWAY_MAC, ROUTER), (lan.mac, US));
        lan.send(&redirect(gateway, us, (FAR, OTHER_ROUTER)));
        lan.ms(3);
        let wanted = group_mac(solicited_node(OTHER_ROUTER));
        assert_eq!(asked(&lan.take()), [(wanted, OTHER_ROUTER)], "{org}");
        let (seg, via, _) = sends(lan, &c);
        assert_eq!(via, GATEWAY_MAC, "{org}: it has not answered yet");
        acknowledge(lan, GATEWAY_MAC, &seg);
        let other = (OTHER_MAC, OTHER_ROUTER);
        lan.send(&advert(other, us, OTHER_ROUTER));
        lan.ms(3);
        let (seg, via, _) = sends(lan, &c);
        assert_eq!(via, OTHER_MAC, "{org}");
        acknowledge(lan, OTHER_MAC, &seg);
        assert_eq!(first_hop(lan, FAR), OTHER_MAC, "{org}");
        assert_eq!(first_hop(lan, FARTHER), GATEWAY_MAC, "{org}");
        assert_eq!(lan.count("rx_redirects"), 1, "{org}");
        // It goes, and does not say so.
        lan.idle(6_000);
        lan.take();
        (&c).write_all(b"y").unwrap();
        let mut back = false;
        for _ in 0..200 {
            lan.ms(100);
            let sent = lan.take();
            if asked(&sent).contains(&(GATEWAY_MAC, ROUTER)) {
                lan.send(&advert(gateway, us, ROUTER));
            }
            back |= segments(&sent).iter().any(|s| s.0 == GATEWAY_MAC);
        }
        assert!(back, "{org}: it is sent there for ever");
        assert_eq!(lan.count("neighbours_lost"), 1, "{org}");
        assert_eq!(first_hop(lan, FAR), GATEWAY_MAC, "{org}");
    });
}

/// A destination that a router says is a neighbour is asked for itself, and may ask for us.
#[test]
fn a_destination_that_is_a_neighbour() {
    under_all_following(|lan| {
        let org = lan.s.organization().to_string();
        let (_c, _) = meet(lan);
        let (gateway, us) = ((GATEWAY_MAC, ROUTER), (lan.mac, US));
        let near = (MacAddr([2, 0, 0, 0, 0, 8]), FARTHER);
        lan.send(&ask(near, US, None));
        lan.ms(3);
        assert_eq!(lan.count("drop_bad_address"), 1, "{org}: a stranger yet");
        lan.send(&redirect(gateway, us, (FARTHER, FARTHER)));
        lan.ms(3);
        let wanted = group_mac(solicited_node(FARTHER));
        assert_eq!(asked(&lan.take()), [(wanted, FARTHER)], "{org}");
        lan.send(&ask(near, US, None));
        lan.ms(3);
        assert_eq!(lan.count("drop_bad_address"), 1, "{org}");
        assert_eq!(first_hop(lan, FARTHER), near.0, "{org}");
        // After ten minutes the router is asked what it thinks.
        lan.idle(601_000);
        lan.send(&advert(gateway, us, ROUTER));
        assert_eq!(first_hop(lan, FARTHER), GATEWAY_MAC, "{org}");
    });
}

/// None is followed where nobody has asked for that, nor by a router.
#[test]
fn redirects_that_nobody_asked_for() {
    let body: fn(&mut Lan) = |lan| {
        let org = lan.s.organization().to_string();
        let (c, _) = meet(lan);
        let (gateway, us) = ((GATEWAY_MAC, ROUTER), (lan.mac, US));
        lan.send(&ask((OTHER_MAC, FRIEND), US, None));
        lan.ms(3);
        lan.take();
        lan.send(&redirect(gateway, us, (FAR, FAR)));
        lan.send(&redirect(gateway, us, (FAR, OTHER_ROUTER)));
        lan.ms(3);
        assert!(asked(&lan.take()).is_empty(), "{org}");
        assert_eq!(sends(lan, &c).1, GATEWAY_MAC, "{org}");
        assert_eq!(lan.count("drop_redirect"), 2, "{org}");
        assert_eq!(lan.count("rx_redirects"), 0, "{org}");
    };
    under_all(body);
    let config = following().with_forwarding(true);
    under_all_with(&config, &["2001:db8::1/64"], &[("::/0", "fe80::fe")], body);
}

/// RFC 4861, section 8.1, and what strangers say in great number.
#[test]
fn forged_redirects() {
    under_all_following(|lan| {
        let org = lan.s.organization().to_string();
        let (c, _) = meet(lan);
        let (gateway, us) = ((GATEWAY_MAC, ROUTER), (lan.mac, US));
        let evil = (EVIL_MAC, OTHER_ROUTER);
        // It is known and answers.
        lan.send(&ask(evil, US, None));
        lan.ms(3);
        lan.take();
        let other = |body: Vec<u8>| icmp(gateway, us, 255, body);
        let mut code = redirect_body(FAR, OTHER_ROUTER, &[]);
        code[1] = 1;
        let group = (group_mac(ALL_NODES), ALL_NODES);
        // Not valid, by the message alone.
        let bad = [
            icmp(
                (EVIL_MAC, FRIEND),
                us,
                255,
                redirect_body(FAR, OTHER_ROUTER, &[]),
            ),
            icmp(gateway, us, 254, redirect_body(FAR, OTHER_ROUTER, &[])),
            other(code),
            other(redirect_body(FAR, FRIEND, &[])),
            other(redirect_body(ALL_NODES, OTHER_ROUTER, &[])),
            other(redirect_body(FAR, ALL_NODES, &[])),
            other(redirect_body(FAR, OTHER_ROUTER, &[2, 0, 2, 0, 0, 0, 0, 9])),
            other(redirect_body(FAR, OTHER_ROUTER, &[2, 9, 2, 0, 0, 0, 0, 9])),
            other(redirect_body(FAR, OTHER_ROUTER, &[])[..39].to_vec()),
        ];
        // Not from the first hop, not to us, about neighbours, ourselves and nobody.
        let refused = [
            redirect(evil, us, (FAR, OTHER_ROUTER)),
            redirect((EVIL_MAC, ON), us, (FAR, OTHER_ROUTER)),
            redirect(gateway, group, (FAR, OTHER_ROUTER)),
            redirect(gateway, (lan.mac, FRIEND), (FAR, OTHER_ROUTER)),
            redirect(gateway, us, (FRIEND, OTHER_ROUTER)),
            redirect(gateway, us, (OTHER_ROUTER, ON)),
            redirect(gateway, us, (US, OTHER_ROUTER)),
            redirect(gateway, us, (Ipv6Addr::LOCALHOST, OTHER_ROUTER)),
            redirect(gateway, us, (FAR, ROUTER)),
        ];
        for (n, what) in bad.iter().chain(&refused).enumerate() {
            lan.send(what);
            lan.ms(3);
            assert!(asked(&lan.take()).is_empty(), "{org}: {n}");
            let (seg, via, _) = sends(lan, &c);
            assert_eq!(via, GATEWAY_MAC, "{org}: {n}");
            acknowledge(lan, GATEWAY_MAC, &seg);
        }
        assert_eq!(lan.count("drop_bad_ndp"), bad.len() as u64, "{org}");
        assert_eq!(lan.count("drop_redirect"), refused.len() as u64, "{org}");
        assert_eq!(lan.count("rx_redirects"), 0, "{org}");
        // In the router's name, to a station that is not there: nothing is lost by it. There is
        // room for some, and some a second.
        for n in 0..1_000 {
            let dst = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 1, n);
            lan.send(&redirect((EVIL_MAC, ROUTER), us, (dst, ON)));
            if n % 50 == 0 {
                lan.ms(1);
            }
        }
        lan.send(&redirect((EVIL_MAC, ROUTER), us, (FAR, ON)));
        lan.ms(3);
        let taken = lan.count("rx_redirects");
        assert!((64..70).contains(&taken), "{org}: {taken}");
        assert_eq!(asked(&lan.take()).len(), 1, "{org}: once a second");
        assert_eq!(sends(lan, &c).1, GATEWAY_MAC, "{org}");
        let last = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 1, 20);
        assert_eq!(first_hop(lan, last), GATEWAY_MAC, "{org}");
    });
}

/// RFC 4861, section 6.3.4: what a router says of hops and times holds for what has none of its own.
#[test]
fn hops_and_times_from_routers() {
    under_all_with(&autoconf(), &["2001:db8::1/64"], &[], |lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_300);
        let here = (GATEWAY_MAC, ROUTER);
        lan.send(&says(here, 200, 0, 3_000));
        let (c, _) = meet(lan);
        let tcp = |lan: &mut Lan| {
            (&c).write_all(b"x").unwrap();
            lan.ms(3);
            let (sent, all) = (hops(&lan.sent, PROTO_TCP), segments(&lan.take()));
            acknowledge(lan, GATEWAY_MAC, &all[0].1);
            sent
        };
        assert_eq!(tcp(lan), [200], "{org}");
        assert_eq!(c.ttl().unwrap(), 200, "{org}");
        let u = lan.s.bind_udp((US, 0)).unwrap();
        let udp = |lan: &mut Lan| {
            u.send_to(b"x", (FAR, 9)).unwrap();
            lan.ms(3);
            hops(&lan.take(), PROTO_UDP)
        };
        assert_eq!(udp(lan), [200], "{org}");
        let mut ping = [0; 8];
        Icmpv6::EchoRequest { ident: 1, seq: 2 }.emit(FAR, US, b"", &mut ping);
        lan.send(&frame(
            (GATEWAY_MAC, FAR),
            (lan.mac, US),
            (PROTO_ICMPV6, 64),
            &ping,
        ));
        lan.ms(3);
        assert_eq!(hops(&lan.take(), PROTO_ICMPV6), [200], "{org}");
        // One's own stays, and the others follow the router, but not to where nothing arrives.
        u.set_ttl(9).unwrap();
        for (said, want) in [(100, 100), (1, 100), (0, 100), (70, 70)] {
            lan.idle(1_100);
            lan.send(&says(here, said, 0, 0));
            lan.ms(3);
            lan.take();
            assert_eq!(tcp(lan), [want], "{org}: {said}");
            assert_eq!(udp(lan), [9], "{org}");
        }
        c.abort().unwrap();
        // A neighbour that is not there is asked for every three seconds.
        lan.take();
        let nobody = connect(lan, FRIEND);
        lan.idle(500);
        for want in [1, 0, 0, 1, 0, 0, 1] {
            let all = asked(&lan.take());
            let found = all.iter().filter(|(_, whom)| *whom == FRIEND);
            assert_eq!(found.count(), want, "{org}");
            lan.idle(1_000);
        }
        drop(nobody);
    });
}

/// Nobody has asked for what routers say: it changes nothing.
#[test]
fn hops_without_autoconf() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        lan.send(&says((GATEWAY_MAC, ROUTER), 200, 10_000, 10_000));
        let (c, _) = meet(lan);
        assert_eq!(c.ttl().unwrap(), 64, "{org}");
        assert_eq!(lan.count("rx_router_advertisements"), 0, "{org}");
    });
}

/// RFC 4861, section 7.3: a neighbour that was not heard for long and is used is asked 5 s later,
/// itself and alone, unless somebody has heard of what was sent to it.
#[test]
fn a_stale_neighbour_is_asked_later_or_not_at_all() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_200);
        lan.send(&ask((FRIEND_MAC, FRIEND), US, None));
        lan.idle(61_000);
        lan.take();
        // Nobody hears anything of a datagram.
        let u = lan.s.bind_udp((US, 0)).unwrap();
        u.send_to(b"x", (FRIEND, 9)).unwrap();
        lan.idle(4_900);
        assert!(asked(&lan.take()).is_empty(), "{org}: it is given time");
        lan.idle(200);
        assert_eq!(asked(&lan.take()), [(FRIEND_MAC, FRIEND)], "{org}");
        lan.send(&advert((FRIEND_MAC, FRIEND), (lan.mac, US), FRIEND));
        lan.idle(61_000);
        lan.take();
        // A handshake shows that it is there: from both ends.
        for active in [true, false] {
            let l = lan.s.listen((US, 81)).unwrap();
            let c = match active {
                true => Some(connect(lan, FRIEND)),
                false => None,
            };
            if c.is_none() {
                lan.send(&syn_from_friend(lan.mac));
            }
            lan.ms(3);
            let (to, first) = segments(&lan.take())[0];
            assert_eq!(to, FRIEND_MAC, "{org}");
            let flags = match active {
                true => TcpFlags::SYN | TcpFlags::ACK,
                false => TcpFlags::ACK,
            };
            let via = (FRIEND_MAC, lan.mac);
            lan.send(&answer(via, &first, 8 - u32::from(active), flags));
            lan.ms(3);
            let c = c.unwrap_or_else(|| l.accept().unwrap().0);
            let (seg, to, _) = sends(lan, &c);
            assert_eq!(to, FRIEND_MAC, "{org}");
            lan.send(&answer(via, &seg, 8, TcpFlags::ACK));
            lan.idle(12_000);
            assert!(asked(&lan.take()).is_empty(), "{org}: {active}");
            c.abort().unwrap();
            lan.idle(61_000);
            lan.take();
        }
    });
}

fn syn_from_friend(us: MacAddr) -> Vec<u8> {
    use perimeter_wire::{FlowKey, MAX_HEADERS, SegOut, Seq, Template, finish_checksum_in_frame};
    let key = FlowKey {
        local: FRIEND.into(),
        remote: US.into(),
        local_port: 5000,
        remote_port: 81,
    };
    let seg = SegOut {
        seq: Seq(7),
        flags: TcpFlags::SYN,
        window: 60_000,
        ..SegOut::default()
    };
    let mut out = [0; MAX_HEADERS];
    let n = Template::new(Some((FRIEND_MAC, us)), &key, 64, 0).emit(&mut out, 0, &seg, 0);
    finish_checksum_in_frame(&mut out[..n], 14);
    out[..n].to_vec()
}

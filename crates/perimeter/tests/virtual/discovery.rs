//! Neighbour discovery: who has which address, and what a stranger on the link can't do with it;
//! routers and the addresses that they make possible; headers that are not what they should be.

use crate::common::kind;
use crate::lan::{EVIL_MAC, GATEWAY_MAC, Lan, under_all_with};
use perimeter::{Config, Ipv6Config};
use perimeter_wire::ipv6::{ALL_NODES, ALL_ROUTERS, group_mac, solicited_node};
use perimeter_wire::{
    Csum, EtherHdr, FlowKey, Frame, Icmpv6, Ipv6Hdr, MAX_HEADERS, MacAddr, Ndp, PROTO_ICMPV6,
    SegOut, Seq, TcpFlags, TcpFrame, Template, checksum, finish_checksum_in_frame,
};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const fn ip(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
}

pub const US: Ipv6Addr = ip(1);
pub const FRIEND: Ipv6Addr = ip(2);
pub const FRIEND_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// A host behind the router.
pub const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 7);
pub const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
pub const OTHER_ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfd);
pub const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 253]);
const NOBODY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

/// A datagram in a frame; `first`: the next header of IP's.
pub fn frame(
    (src_mac, src): (MacAddr, Ipv6Addr),
    (dst_mac, dst): (MacAddr, Ipv6Addr),
    (first, hop_limit): (u8, u8),
    body: &[u8],
) -> Vec<u8> {
    let mut out = vec![0; EtherHdr::LEN + Ipv6Hdr::LEN];
    let eth = EtherHdr {
        dst: dst_mac,
        src: src_mac,
        ethertype: 0x86dd,
    };
    let n = eth.emit(&mut out);
    Ipv6Hdr {
        src,
        dst,
        protocol: first,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        header_len: 40,
        total_len: 40 + body.len() as u32,
        fragment: None,
    }
    .emit(&mut out[n..]);
    out.extend_from_slice(body);
    out
}

fn ndp(from: (MacAddr, Ipv6Addr), to: (MacAddr, Ipv6Addr), msg: &Ndp) -> Vec<u8> {
    let mut body = [0; Ndp::MAX_EMITTED];
    let n = msg.emit(from.1, to.1, &mut body).unwrap();
    frame(from, to, (PROTO_ICMPV6, 255), &body[..n])
}

/// `from` says that it has `target`.
pub fn advert(from: (MacAddr, Ipv6Addr), to: (MacAddr, Ipv6Addr), target: Ipv6Addr) -> Vec<u8> {
    let msg = Ndp::NeighborAdvertisement {
        target,
        router: false,
        solicited: !to.1.is_multicast(),
        overrides: true,
        station: Some(from.0),
    };
    ndp(from, to, &msg)
}

/// `from` asks who has `target`.
pub fn ask(from: (MacAddr, Ipv6Addr), target: Ipv6Addr, nonce: Option<[u8; 6]>) -> Vec<u8> {
    let group = solicited_node(target);
    let msg = Ndp::NeighborSolicitation {
        target,
        source: (!from.1.is_unspecified()).then_some(from.0),
        nonce,
    };
    ndp(from, (group_mac(group), group), &msg)
}

/// A router advertisement: lifetime of the router, MTU, and the lifetimes of a prefix.
fn router(
    from: (MacAddr, Ipv6Addr),
    lifetime: u16,
    mtu: u32,
    prefix: Option<(Ipv6Addr, u32, u32)>,
) -> Vec<u8> {
    let mut body = vec![134, 0, 0, 0, 64, 0];
    body.extend(lifetime.to_be_bytes());
    body.extend([0; 8]);
    body.extend([1, 1]);
    body.extend(from.0.0);
    body.extend([5, 1, 0, 0]);
    body.extend(mtu.to_be_bytes());
    if let Some((prefix, valid, preferred)) = prefix {
        body.extend([3, 4, 64, 0xc0]);
        body.extend(valid.to_be_bytes());
        body.extend(preferred.to_be_bytes());
        body.extend([0; 4]);
        body.extend(prefix.octets());
    }
    let pseudo = checksum::pseudo_v6(from.1, ALL_NODES, PROTO_ICMPV6, body.len() as u32);
    let check = !checksum::fold(checksum::sum(&body, pseudo));
    body[2..4].copy_from_slice(&check.to_be_bytes());
    let all = (group_mac(ALL_NODES), ALL_NODES);
    frame(from, all, (PROTO_ICMPV6, 255), &body)
}

/// What the stack has said about neighbours: to which station, from and to which address, what.
pub fn said(frames: &[Vec<u8>]) -> Vec<(MacAddr, Ipv6Addr, Ipv6Addr, Ndp)> {
    let one = |f: &Vec<u8>| match Frame::parse_ethernet(f, Csum::Verify) {
        Ok(Frame::Icmp6 { ip, msg, body }) => match msg {
            Icmpv6::Other { kind, code, word } if Ndp::is(kind) => {
                let ends = (ip.src, ip.dst, ip.hop_limit);
                let msg = Ndp::parse(ends, (kind, code, word), body).expect("valid");
                Some((EtherHdr::parse(f).unwrap().dst, ip.src, ip.dst, msg))
            }
            _ => None,
        },
        _ => None,
    };
    frames.iter().filter_map(one).collect()
}

/// Whom it has asked for, and at which station.
pub fn asked(frames: &[Vec<u8>]) -> Vec<(MacAddr, Ipv6Addr)> {
    let all = said(frames).into_iter();
    all.filter_map(|(to, src, _, msg)| match msg {
        Ndp::NeighborSolicitation { target, .. } if !src.is_unspecified() => Some((to, target)),
        _ => None,
    })
    .collect()
}

/// The segments that it has sent, and to which station.
pub fn segments(frames: &[Vec<u8>]) -> Vec<(MacAddr, TcpFrame)> {
    let one = |f: &Vec<u8>| match Frame::parse_ethernet(f, Csum::Trust) {
        Ok(Frame::Tcp(t)) => Some((EtherHdr::parse(f).unwrap().dst, t)),
        _ => None,
    };
    frames.iter().filter_map(one).collect()
}

/// The answer to a segment.
pub fn answer(via: (MacAddr, MacAddr), to: &TcpFrame, seq: u32, flags: TcpFlags) -> Vec<u8> {
    // The key is the receiver's: of who answers.
    let template = Template::new(Some(via), &to.key, 64, 0);
    let seg = SegOut {
        seq: Seq(seq),
        ack: to.hdr.seq + to.payload_len + u32::from(to.hdr.flags.contains(TcpFlags::SYN)),
        flags,
        window: 60_000,
        ..SegOut::default()
    };
    let mut out = [0; MAX_HEADERS];
    let n = template.emit(&mut out, 0, &seg, 0);
    finish_checksum_in_frame(&mut out[..n], 14);
    out[..n].to_vec()
}

pub fn connect(lan: &Lan, to: Ipv6Addr) -> perimeter::TcpStream {
    let c = lan.s.start_connect((to, 80).into()).unwrap();
    c.set_nonblocking(true).unwrap();
    c
}

pub fn under_all(body: fn(&mut Lan)) {
    let addrs: &[&str] = &["2001:db8::1/64"];
    under_all_with(&Config::default(), addrs, &[("::/0", "fe80::fe")], body);
}

/// RFC 4862, section 5.4: an address is asked for before it is used; what is to be sent from it
/// waits for a second. RFC 4861, section 7.2: then the neighbour is asked for by its group.
#[test]
fn an_address_is_probed_and_a_neighbour_solicited() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        let c = connect(lan, FRIEND);
        lan.idle(900);
        let group = solicited_node(US);
        let probes = said(&lan.take());
        assert!(
            matches!(
                probes[..],
                [(to, NOBODY, dst, Ndp::NeighborSolicitation { target: US, source: None, nonce: Some(_) })]
                    if to == group_mac(group) && dst == group
            ),
            "{org}: {probes:?}"
        );
        lan.idle(400);
        let frames = lan.take();
        let wanted = group_mac(solicited_node(FRIEND));
        assert_eq!(asked(&frames), [(wanted, FRIEND)], "{org}");
        assert!(segments(&frames).is_empty(), "{org}");
        lan.send(&advert((FRIEND_MAC, FRIEND), (lan.mac, US), FRIEND));
        lan.ms(3);
        let frames = lan.take();
        let (to, syn) = segments(&frames)[0];
        assert_eq!((to, syn.hdr.flags), (FRIEND_MAC, TcpFlags::SYN), "{org}");
        assert_eq!(syn.hdr.opts.mss, Some(1440));
        let ip = Ipv6Hdr::parse(&frames[0][14..]).unwrap();
        assert_ne!(ip.flow_label, 0, "{org}");
        lan.send(&answer(
            (FRIEND_MAC, lan.mac),
            &syn,
            7,
            TcpFlags::SYN | TcpFlags::ACK,
        ));
        lan.ms(3);
        (&c).write_all(b"hello").unwrap();
        lan.ms(3);
        assert_eq!(
            segments(&lan.take()).last().unwrap().1.payload_len,
            5,
            "{org}"
        );

        // Who asks for us is answered, and need not be asked for.
        let third = (MacAddr([2, 0, 0, 0, 0, 3]), ip6(3));
        lan.send(&ask(third, US, None));
        lan.ms(3);
        let answers = said(&lan.take());
        let want = Ndp::NeighborAdvertisement {
            target: US,
            router: false,
            solicited: true,
            overrides: true,
            station: Some(lan.mac),
        };
        assert_eq!(answers, [(third.0, US, third.1, want)], "{org}");
        let _c = connect(lan, third.1);
        lan.ms(3);
        let frames = lan.take();
        assert_eq!(segments(&frames)[0].0, third.0, "{org}");
        // A probe for our address: everybody hears that it is ours.
        lan.send(&ask((EVIL_MAC, NOBODY), US, Some([9; 6])));
        lan.ms(3);
        let answers = said(&lan.take());
        assert_eq!((answers.len(), answers[0].2), (1, ALL_NODES), "{org}");
    });
}

fn ip6(n: u16) -> Ipv6Addr {
    ip(n)
}

/// Somebody else has the address, or looks for it at the same time: it is theirs.
#[test]
fn a_duplicate_is_not_used() {
    let claim: fn(&mut Lan) = |lan| {
        let all = (group_mac(ALL_NODES), ALL_NODES);
        taken(lan, &advert((FRIEND_MAC, US), all, US));
    };
    let probe: fn(&mut Lan) = |lan| taken(lan, &ask((FRIEND_MAC, NOBODY), US, Some([9; 6])));
    for body in [claim, probe] {
        under_all(body);
    }
}

/// What becomes of the address when `claim` arrives while it is tentative.
fn taken(lan: &mut Lan, claim: &[u8]) {
    let org = lan.s.organization().to_string();
    let c = connect(lan, FRIEND);
    lan.ms(300);
    // What we sent ourselves, come back by another station, is no claim of anybody's.
    let sent = lan.take();
    let probe = sent
        .iter()
        .find(|f| !said(core::slice::from_ref(f)).is_empty());
    let mut echo = probe.unwrap().clone();
    echo[6..12].copy_from_slice(&FRIEND_MAC.0);
    lan.send(&echo);
    lan.ms(10);
    assert!(lan.s.duplicate_addresses().is_empty(), "{org}");
    lan.send(claim);
    lan.ms(10);
    assert_eq!(lan.s.duplicate_addresses(), [(0, IpAddr::V6(US))], "{org}");
    assert_eq!(lan.count("ndp_duplicate_addresses"), 1, "{org}");
    assert_eq!(lan.s.addresses(), [vec![]], "{org}");
    lan.idle(3_000);
    let e = c.take_error().unwrap().map(|e| e.kind());
    assert_eq!(e, Some(ErrorKind::HostUnreachable), "{org}");
    assert!(segments(&lan.take()).is_empty(), "{org}");
    let again = lan.s.start_connect((FRIEND, 80).into());
    assert_eq!(kind(again), Some(ErrorKind::NetworkUnreachable), "{org}");
}

/// The stack knows its gateway, and has a connection by it.
pub fn meet(lan: &mut Lan) -> (perimeter::TcpStream, TcpFrame) {
    lan.idle(1_200);
    let c = connect(lan, FAR);
    lan.ms(3);
    lan.send(&advert((GATEWAY_MAC, ROUTER), (lan.mac, US), ROUTER));
    lan.ms(3);
    let sent = lan.take();
    let (to, syn) = segments(&sent)[0];
    assert_eq!(to, GATEWAY_MAC);
    let org = lan.s.organization();
    assert_eq!(syn.hdr.flags, TcpFlags::SYN, "{org}");
    lan.send(&answer(
        (GATEWAY_MAC, lan.mac),
        &syn,
        7,
        TcpFlags::SYN | TcpFlags::ACK,
    ));
    lan.ms(3);
    lan.take();
    (c, syn)
}

/// What strangers say, and how many there are, neither grows the table of neighbours nor pushes
/// out those that are in use; a lie about one makes it asked, not forgotten.
#[test]
fn forged_advertisements_and_solicitations() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        let (c, syn) = meet(lan);
        for n in 0..1_200u16 {
            let who = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 1, 0, 0, n);
            let mac = MacAddr([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
            lan.send(&ask((mac, who), US, None));
            lan.send(&advert((mac, who), (lan.mac, US), who));
            if n % 50 == 0 {
                lan.ms(1);
            }
        }
        lan.idle(1_100);
        lan.take();
        (&c).write_all(b"hello").unwrap();
        lan.ms(3);
        let sent = lan.take();
        assert_eq!(segments(&sent)[0].0, GATEWAY_MAC, "{org}");
        assert!(asked(&sent).is_empty(), "{org}: {:?}", asked(&sent));
        assert!(lan.count("drop_ndp_limit") > 500, "{org}");
        let far = answer(
            (GATEWAY_MAC, lan.mac),
            &segments(&sent)[0].1,
            8,
            TcpFlags::ACK,
        );
        lan.send(&far);
        lan.ms(3);
        lan.take();

        lan.send(&advert((EVIL_MAC, ROUTER), (lan.mac, US), ROUTER));
        lan.ms(3);
        (&c).write_all(b"hello").unwrap();
        lan.ms(3);
        let sent = lan.take();
        assert_eq!(segments(&sent)[0].0, GATEWAY_MAC, "{org}: taken over");
        assert_eq!(asked(&sent), [(GATEWAY_MAC, ROUTER)], "{org}");
        // As the kernel answers one that was asked alone: without saying its station again.
        let msg = Ndp::NeighborAdvertisement {
            target: ROUTER,
            router: true,
            solicited: true,
            overrides: false,
            station: None,
        };
        lan.send(&ndp((GATEWAY_MAC, ROUTER), (lan.mac, US), &msg));
        lan.idle(3_000);
        assert!(asked(&lan.take()).is_empty(), "{org}: it had answered");
        assert_eq!(lan.count("arp_doubts"), 1, "{org}");
        // Our own address is defended.
        let all = (group_mac(ALL_NODES), ALL_NODES);
        lan.send(&advert((EVIL_MAC, US), all, US));
        lan.ms(3);
        assert_eq!(lan.count("ndp_conflicts"), 1, "{org}");
        let answers = said(&lan.take());
        assert!(
            matches!(answers[..], [(_, US, ALL_NODES, _)]),
            "{org}: {answers:?}"
        );
        // What has come through a router is no word of a neighbour's.
        let mut far = advert((EVIL_MAC, ROUTER), (lan.mac, US), ROUTER);
        far[14 + 7] = 254;
        lan.send(&far);
        lan.ms(3);
        assert_eq!(lan.count("drop_bad_ndp"), 1, "{org}");
        let _ = syn;
    });
}

pub fn autoconf() -> Config {
    Config::default().with_ipv6(
        Ipv6Config::default()
            .with_autoconf(true)
            .with_stable_secret(Some([7, 9])),
    )
}

/// RFC 4861, section 6.3, and RFC 4862, section 5.5: an interface without an address finds some,
/// and a way out, and loses them when they are over.
#[test]
fn addresses_and_gateways_from_routers() {
    under_all_with(&autoconf(), &[], &[], |lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_300);
        let sent = said(&lan.take());
        let asks = sent
            .iter()
            .filter(|s| matches!(s.3, Ndp::RouterSolicitation { source: Some(_) }));
        let asks: Vec<_> = asks.collect();
        assert_eq!((asks.len(), asks[0].2), (1, ALL_ROUTERS), "{org}: {sent:?}");
        let own = asks[0].1;
        assert!(own.is_unicast_link_local(), "{org}: {own}");
        let prefix = ip(0);
        let here = (GATEWAY_MAC, ROUTER);
        lan.send(&router(here, 1800, 1400, Some((prefix, 20_000, 10_000))));
        lan.idle(1_200);
        let addrs = lan.s.addresses().remove(0);
        assert_eq!(addrs.len(), 2, "{org}: {addrs:?}");
        assert!(
            addrs[1].contains(prefix.into()) && addrs[1].prefix == 64,
            "{org}"
        );
        // The same secret, the same address, whatever the organization.
        let (IpAddr::V6(link), IpAddr::V6(global)) = (addrs[0].addr, addrs[1].addr) else {
            panic!("{addrs:?}")
        };
        assert_eq!(link, own);
        assert_ne!(link.to_bits() as u64, global.to_bits() as u64, "{org}");
        lan.take();
        let c = connect(lan, FAR);
        lan.ms(3);
        assert_eq!(c.local_addr().unwrap().ip(), IpAddr::V6(global), "{org}");
        lan.send(&advert(here, (lan.mac, global), ROUTER));
        lan.ms(3);
        let (to, syn) = segments(&lan.take())[0];
        assert_eq!((to, syn.hdr.opts.mss), (GATEWAY_MAC, Some(1340)), "{org}");

        // A router can't end an address at once; two hours are left. It can end being one.
        lan.send(&router(here, 0, 1400, Some((prefix, 1, 1))));
        lan.ms(3);
        assert_eq!(lan.s.addresses()[0].len(), 2, "{org}");
        let none = lan.s.start_connect((FAR, 80).into());
        assert_eq!(kind(none), Some(ErrorKind::NetworkUnreachable), "{org}");
        // One that was to be short is: first it is not preferred any more, then gone.
        let short = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0);
        lan.send(&router(here, 9, 1400, Some((short, 20, 10))));
        lan.idle(2_000);
        let from = |lan: &Lan| connect(lan, FAR).local_addr().unwrap().ip();
        let brief = lan.s.addresses()[0][2].addr;
        lan.send(&router(here, 30, 1400, None));
        assert_eq!(lan.s.addresses()[0].len(), 3, "{org}");
        lan.idle(10_000);
        assert_eq!(lan.s.addresses()[0].len(), 3, "{org}");
        assert_ne!(from(lan), brief, "{org}: deprecated");
        lan.idle(10_000);
        assert_eq!(lan.s.addresses()[0].len(), 2, "{org}");
        assert_eq!(lan.count("rx_router_advertisements"), 4, "{org}");
    });
}

/// Routers that lie are many: what they make the stack remember is bounded.
#[test]
fn many_routers_and_prefixes() {
    under_all_with(&autoconf(), &[], &[], |lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_300);
        for n in 0..500u16 {
            let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
            let prefix = Ipv6Addr::new(0xfd00, n, 0, 0, 0, 0, 0, 0);
            let lie = router((EVIL_MAC, from), 9000, 1400, Some((prefix, 9_000, 9_000)));
            lan.send(&lie);
            if n % 50 == 0 {
                lan.ms(1);
            }
        }
        lan.idle(1_500);
        assert_eq!(lan.s.addresses()[0].len(), 9, "{org}");
        assert_eq!(lan.count("rx_router_advertisements"), 500, "{org}");
    });
}

/// A router does not answer any more: connections by it are taken to the other one.
#[test]
fn a_router_is_lost() {
    under_all_with(&autoconf(), &["2001:db8::1/64"], &[], |lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_300);
        for from in [(GATEWAY_MAC, ROUTER), (OTHER_MAC, OTHER_ROUTER)] {
            lan.send(&router(from, 1800, 1500, None));
        }
        let (c, _) = meet(lan);
        lan.idle(6_000);
        lan.take();
        (&c).write_all(b"hello").unwrap();
        let mut alone = 0;
        for _ in 0..400 {
            lan.ms(100);
            let sent = lan.take();
            for (to, target) in asked(&sent) {
                alone += usize::from(to == GATEWAY_MAC);
                if target == OTHER_ROUTER {
                    let other = (OTHER_MAC, OTHER_ROUTER);
                    lan.send(&advert(other, (lan.mac, US), OTHER_ROUTER));
                }
            }
            if segments(&sent).iter().any(|s| s.0 == OTHER_MAC) {
                assert_eq!(alone, 3, "{org}");
                assert_eq!(lan.count("neighbours_lost"), 1, "{org}");
                return;
            }
        }
        panic!("{org}: the other router is not used");
    });
}

/// A neighbour that has gone is forgotten, and whoever then connects to it is told.
#[test]
fn a_neighbour_is_gone() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_200);
        lan.send(&ask((FRIEND_MAC, FRIEND), US, None));
        lan.idle(70_000);
        lan.take();
        let c = connect(lan, FRIEND);
        lan.ms(3);
        // Used as it is known, and asked.
        let sent = lan.take();
        assert_eq!(segments(&sent)[0].0, FRIEND_MAC, "{org}");
        // Used as it is known; asked as soon as TCP says that nothing comes back, before 5 s are over.
        assert!(asked(&sent).is_empty(), "{org}");
        lan.idle(4_000);
        assert_eq!(asked(&lan.take())[0], (FRIEND_MAC, FRIEND), "{org}");
        lan.idle(12_000);
        assert_eq!(lan.count("neighbours_lost"), 1, "{org}");
        lan.idle(20_000);
        let e = c.take_error().unwrap().map(|e| e.kind());
        assert_eq!(e, Some(ErrorKind::HostUnreachable), "{org}");
    });
}

/// Extension headers are walked, within bounds; what asks to be refused is, and its sender told;
/// echo requests are answered, not too often, and none to a group.
#[test]
fn headers_and_echoes() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        lan.idle(1_200);
        let (me, friend) = ((lan.mac, US), (FRIEND_MAC, FRIEND));
        lan.send(&ask(friend, US, None));
        lan.ms(3);
        lan.take();
        let ping = |dst: Ipv6Addr| {
            let mut body = [0; 8 + 5];
            Icmpv6::EchoRequest { ident: 1, seq: 2 }.emit(FRIEND, dst, b"hello", &mut body);
            body
        };
        let answers = |lan: &mut Lan| -> Vec<Icmpv6> {
            lan.ms(3);
            let sent = lan.take();
            let one = |f: &Vec<u8>| match Frame::parse_ethernet(f, Csum::Verify) {
                Ok(Frame::Icmp6 { msg, .. }) => Some(msg),
                _ => None,
            };
            sent.iter().filter_map(one).collect()
        };
        let echo = [Icmpv6::EchoReply { ident: 1, seq: 2 }];
        lan.send(&frame(friend, me, (58, 64), &ping(US)));
        assert_eq!(answers(lan), echo, "{org}");
        let behind = |kind: u8, of: u8| {
            let mut all = vec![58, 0, kind, 4, 0, 0, 0, 0];
            if of == 43 {
                (all[2], all[3]) = (0, 1);
            }
            all.extend(ping(US));
            all
        };
        lan.send(&frame(friend, me, (60, 64), &behind(1, 60)));
        assert_eq!(answers(lan), echo, "{org}");
        let problem = |code, pointer| vec![Icmpv6::ParameterProblem { code, pointer }];
        for (first, kind, counter, want) in [
            (60, 0x9e, "drop_unknown_ipv6_option", problem(2, 42)),
            (60, 0x5e, "drop_unknown_ipv6_option", vec![]),
            (43, 0, "drop_source_route", problem(0, 42)),
        ] {
            let before = lan.count(counter);
            lan.send(&frame(friend, me, (first, 64), &behind(kind, first)));
            assert_eq!(answers(lan), want, "{org}: {first} {kind}");
            assert_eq!(lan.count(counter), before + 1, "{org}");
        }
        let endless: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(100);
        lan.send(&frame(friend, me, (60, 64), &endless));
        assert_eq!(answers(lan), []);
        assert_eq!(lan.count("drop_extension_header_chain"), 1, "{org}");
        let all = (group_mac(ALL_NODES), ALL_NODES);
        lan.send(&frame(friend, all, (58, 64), &ping(ALL_NODES)));
        lan.send(&frame(
            friend,
            (group_mac(ALL_NODES), US),
            (58, 64),
            &ping(US),
        ));
        assert_eq!(answers(lan), []);
        assert_eq!(lan.count("drop_group_frame"), 2, "{org}");
        // From ourselves, from a group, from nobody, and from a link-local address with something
        // where this host keeps its zone.
        for src in [US, ALL_NODES, Ipv6Addr::LOCALHOST, ROUTER] {
            let mut body = [0; 8];
            Icmpv6::EchoRequest { ident: 1, seq: 2 }.emit(src, US, b"", &mut body);
            let mut bad = frame((FRIEND_MAC, src), me, (58, 64), &body);
            if src == ROUTER {
                bad[14 + 8 + 3] = 9;
            }
            lan.send(&bad);
        }
        assert_eq!(answers(lan), []);
        assert_eq!(lan.count("drop_martian_source"), 1, "{org}");
        for _ in 0..10 {
            for _ in 0..100 {
                lan.send(&frame(friend, me, (58, 64), &ping(US)));
            }
            lan.ms(1);
        }
        assert!(lan.count("drop_echo_limit") > 500, "{org}");
        // A connection over a header that nobody needs.
        let l = lan.s.listen(SocketAddr::from((US, 80))).unwrap();
        let key = FlowKey {
            local: FRIEND.into(),
            remote: US.into(),
            local_port: 9,
            remote_port: 80,
        };
        let seg = SegOut {
            flags: TcpFlags::SYN,
            window: 9_000,
            ..SegOut::default()
        };
        let mut out = [0; MAX_HEADERS];
        let n = Template::new(None, &key, 64, 0).emit(&mut out, 0, &seg, 0);
        finish_checksum_in_frame(&mut out[..n], 0);
        let mut body = vec![6, 0, 1, 4, 0, 0, 0, 0];
        body.extend(&out[40..n]);
        lan.take();
        lan.send(&frame(friend, me, (60, 64), &body));
        lan.ms(3);
        let sent = lan.take();
        let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
        assert_eq!(segments(&sent)[0].1.hdr.flags, syn_ack, "{org}");
        drop(l);
    });
}

/// ICMPv6 errors end an attempt, and a path's MTU is believed down to IPv6's least (RFC 8201).
#[test]
fn errors_for_connections() {
    under_all(|lan| {
        let org = lan.s.organization().to_string();
        let (c, syn) = meet(lan);
        (&c).write_all(&[7; 4000]).unwrap();
        lan.ms(3);
        let sent = lan.take();
        let full = segments(&sent)[0].1;
        assert_eq!(full.payload_len, 536.max(full.payload_len), "{org}");
        let _ = syn;
        let quote = sent.iter().find(|f| f.len() > 500).unwrap()[14..].to_vec();
        let error = |lan: &mut Lan, msg: Icmpv6, quote: &[u8]| {
            let mut body = vec![0; 8 + quote.len()];
            msg.emit(FAR, US, quote, &mut body);
            let to = (lan.mac, US);
            lan.send(&frame((GATEWAY_MAC, FAR), to, (58, 64), &body));
            lan.ms(3);
        };
        error(
            lan,
            Icmpv6::TooBig { mtu: 600 },
            &quote[..1000.min(quote.len())],
        );
        let after = lan.take();
        let mss = c.info().unwrap().tcp.snd_mss;
        assert_eq!(
            mss,
            1220.min(full.payload_len),
            "{org}: {} sent",
            after.len()
        );
        // One that was never sent is not ours.
        let mut other = quote.clone();
        other[40 + 4] ^= 0x40;
        error(lan, Icmpv6::Unreachable { code: 3 }, &other);
        // And an attempt that is refused by the way.
        let d = connect(lan, FAR);
        lan.ms(3);
        let sent = lan.take();
        let quote = sent.last().unwrap()[14..].to_vec();
        error(lan, Icmpv6::Unreachable { code: 0 }, &quote);
        let e = d.take_error().unwrap().map(|e| e.kind());
        assert_eq!(e, Some(ErrorKind::NetworkUnreachable), "{org}");
        assert!(c.take_error().unwrap().is_none(), "{org}");
    });
}

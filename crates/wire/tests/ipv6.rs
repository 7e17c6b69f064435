//! IPv6: headers and their extensions, ICMPv6, neighbour discovery and listener reports; in
//! tables, over random input, and against the crate etherparse.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{Icmpv6Header, Icmpv6Type, IpNumber, Ipv6FlowLabel, Ipv6Header, TcpHeader};
use perimeter_wire::ipv6::{self, MAX_EXTENSION_OCTETS, Problem};
use perimeter_wire::mld::{self, Record};
use perimeter_wire::{
    Csum, EtherHdr, FlowKey, Frame, IcmpQuote, Icmpv6, IpHdr, Ipv6Fragment, Ipv6Hdr, MAX_HEADERS,
    MacAddr, Ndp, PROTO_ICMPV6, PROTO_TCP, SegOut, Seq, TcpFlags, TcpFrame, TcpOptions, Template,
    Toeplitz, WireError, carries_v6, checksum, finish_checksum, finish_checksum_in_frame,
    parse_ipv6_tcp_into,
};
use proptest::collection::vec;
use proptest::prelude::*;

const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const L2: (MacAddr, MacAddr) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));

/// A datagram from [`SRC`] to `dst` whose header says `next`, with `rest` behind it.
fn datagram(dst: Ipv6Addr, next: u8, rest: &[u8]) -> Vec<u8> {
    let hdr = Ipv6Hdr {
        src: SRC,
        dst,
        protocol: next,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        header_len: 40,
        total_len: 40 + rest.len() as u32,
        fragment: None,
    };
    let mut out = vec![0; 40];
    hdr.emit(&mut out);
    out.extend(rest);
    out
}

/// An extension header of the shortest length with an option in it, whose data is zeros.
fn with_option(next: u8, kind: u8) -> Vec<u8> {
    vec![next, 0, kind, 4, 0, 0, 0, 0]
}

/// A routing header.
fn routing(next: u8, kind: u8, left: u8) -> Vec<u8> {
    vec![next, 0, kind, left, 0, 0, 0, 0]
}

fn fragment(next: u8, offset: u16, more: bool) -> Vec<u8> {
    let [a, b] = (offset | u16::from(more)).to_be_bytes();
    vec![next, 0, a, b, 1, 2, 3, 4]
}

/// RFC 8200, section 4: what each extension header does, and where the walk ends.
#[test]
fn extension_headers() {
    type Read = (u8, u16, Option<Ipv6Fragment>);
    let whole =
        |protocol, header_len| -> Result<Read, WireError> { Ok((protocol, header_len, None)) };
    let part = |offset, more| {
        let ident = 0x0102_0304;
        Some(Ipv6Fragment {
            offset,
            more,
            ident,
        })
    };
    let pad = |next: u8| with_option(next, 1);
    let long = |next: u8, words: u8| {
        let mut h = vec![0; 8 * (usize::from(words) + 1)];
        (h[0], h[1]) = (next, words);
        h
    };
    let chain = |n: usize| {
        let mut all: Vec<u8> = (1..n).flat_map(|_| pad(60)).collect();
        all.extend(pad(6));
        all
    };
    type Row = (&'static str, u8, Vec<u8>, Result<Read, WireError>);
    let table: Vec<Row> = vec![
        ("none", 6, vec![], whole(6, 40)),
        ("hop by hop", 0, pad(6), whole(6, 48)),
        (
            "hop by hop, Pad1 only",
            0,
            vec![6, 0, 0, 0, 0, 0, 0, 0],
            whole(6, 48),
        ),
        (
            "router alert",
            0,
            vec![58, 0, 5, 2, 0, 0, 1, 0],
            whole(58, 48),
        ),
        ("two", 0, [pad(60), pad(17)].concat(), whole(17, 56)),
        (
            "hop by hop behind another",
            60,
            [pad(0), pad(6)].concat(),
            Err(WireError::BadExtension),
        ),
        ("no next header", 60, pad(59), whole(59, 48)),
        (
            "routing without segments left",
            43,
            routing(6, 0, 0),
            whole(6, 48),
        ),
        (
            "routing of type 0",
            43,
            routing(6, 0, 1),
            Err(WireError::SourceRoute),
        ),
        (
            "routing of type 4",
            43,
            routing(6, 4, 1),
            Err(WireError::SourceRoute),
        ),
        ("security ends the walk", 60, pad(50), whole(50, 48)),
        ("atomic fragment", 44, fragment(6, 0, false), whole(6, 48)),
        (
            "atomic fragment, then options",
            44,
            [fragment(60, 0, false), pad(6)].concat(),
            whole(6, 56),
        ),
        (
            "first fragment",
            44,
            fragment(6, 0, true),
            Ok((6, 48, part(0, true))),
        ),
        (
            "last fragment",
            44,
            fragment(60, 1480, false),
            Ok((60, 48, part(1480, false))),
        ),
        (
            "unknown option to skip",
            60,
            with_option(6, 0x1e),
            whole(6, 48),
        ),
        (
            "unknown option to drop",
            60,
            with_option(6, 0x5e),
            Err(WireError::UnknownOption),
        ),
        (
            "unknown option to tell",
            60,
            with_option(6, 0x9e),
            Err(WireError::UnknownOption),
        ),
        (
            "jumbo payload",
            0,
            with_option(6, 0xc2),
            Err(WireError::UnknownOption),
        ),
        ("cut short", 60, vec![6, 0, 1], Err(WireError::BadExtension)),
        (
            "longer than the datagram",
            60,
            vec![6, 1, 1, 4, 0, 0, 0, 0],
            Err(WireError::BadExtension),
        ),
        (
            "an option beyond its header",
            60,
            vec![6, 0, 1, 5, 0, 0, 0, 0],
            Err(WireError::BadExtension),
        ),
        (
            "an option without length",
            60,
            vec![6, 0, 1, 3, 0, 0, 0, 1],
            Err(WireError::BadExtension),
        ),
        ("eight", 60, chain(8), whole(6, 40 + 64)),
        ("nine", 60, chain(9), Err(WireError::LongChain)),
        (
            "as long as may be",
            60,
            long(6, 31),
            whole(6, 40 + MAX_EXTENSION_OCTETS as u16),
        ),
        (
            "longer",
            60,
            [long(60, 30), pad(60), pad(6)].concat(),
            Err(WireError::LongChain),
        ),
    ];
    for (what, next, rest, want) in table {
        let bytes = datagram(DST, next, &rest);
        let read = Ipv6Hdr::parse(&bytes);
        if let Ok(hdr) = read {
            assert_eq!(hdr.total_len as usize, bytes.len(), "{what}");
        }
        let read = read.map(|h| (h.protocol, h.header_len, h.fragment));
        assert_eq!(read, want, "{what}");
    }
}

/// What the sender is told (RFC 4443, section 3.4), and that groups are not told on but where the
/// option says so.
#[test]
fn parameter_problems() {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let at = |code, pointer| Some(Problem { code, pointer });
    let behind = [with_option(60, 1), with_option(6, 0xc9)].concat();
    let misplaced = [with_option(0, 1), with_option(6, 1)].concat();
    for (next, rest, host, all) in [
        (6, vec![], None, None),
        (60, with_option(6, 0x40), None, None),
        (60, with_option(6, 0x80), at(2, 42), at(2, 42)),
        (60, with_option(6, 0xc0), at(2, 42), None),
        (60, behind, at(2, 50), None),
        (43, routing(6, 0, 1), at(0, 42), None),
        (60, misplaced, at(1, 40), None),
        (60, vec![6, 0, 1], None, None),
    ] {
        let (one, many) = (datagram(DST, next, &rest), datagram(group, next, &rest));
        assert_eq!(Ipv6Hdr::problem(&one), host, "{next} {rest:?}");
        assert_eq!(Ipv6Hdr::problem(&many), all, "{next} {rest:?}");
        assert_eq!(Ipv6Hdr::problem(&one[..one.len().min(39)]), None);
    }
}

#[test]
fn fixed_headers() {
    let good = datagram(DST, 17, b"abc");
    let hdr = Ipv6Hdr::parse(&good).unwrap();
    assert_eq!((hdr.src, hdr.dst, hdr.protocol), (SRC, DST, 17));
    assert_eq!((hdr.total_len, hdr.payload_len()), (43, 3));
    for cut in 0..40 {
        assert_eq!(Ipv6Hdr::parse(&good[..cut]), Err(WireError::Truncated));
    }
    assert_eq!(Ipv6Hdr::parse(&good[..42]), Err(WireError::BadTotalLen));
    let mut other = good.clone();
    other[0] = 0x45;
    assert_eq!(Ipv6Hdr::parse(&other), Err(WireError::BadVersion));
    // Padding of Ethernet is no part of it.
    let padded = [good.clone(), vec![0; 9]].concat();
    assert_eq!(Ipv6Hdr::parse(&padded), Ok(hdr));
    assert!(matches!(
        Frame::parse_ip(&padded, 0, Csum::Verify),
        Ok(Frame::Ip { ip, payload: b"abc" }) if ip == IpHdr::from(hdr)
    ));
    // The longest that the length field can say.
    let longest = datagram(DST, 17, &vec![0; 65_535]);
    assert_eq!(Ipv6Hdr::parse(&longest).unwrap().total_len, 65_575);
}

/// RFC 4007 and RFC 4291: a link-local address carries its zone inside this host only.
#[test]
fn zones_stay_at_home() {
    let addr: Ipv6Addr = "fe80::1:2:3:4".parse().unwrap();
    let here = ipv6::with_zone(addr, 7);
    assert_eq!(here, "fe80:7::1:2:3:4".parse::<Ipv6Addr>().unwrap());
    assert_eq!((ipv6::zone(here), ipv6::without_zone(here)), (7, addr));
    assert_eq!(ipv6::with_zone(here, 9), ipv6::with_zone(addr, 9));
    for other in ["2001:db8:7::1", "::1", "ff02::1", "fec0::1", "::"] {
        let ip: Ipv6Addr = other.parse().unwrap();
        assert_eq!((ipv6::with_zone(ip, 7), ipv6::zone(ip)), (ip, 0));
    }
    assert!(ipv6::is_link_local("febf::".parse().unwrap()));
    let group = ipv6::solicited_node("2001:db8::12:3456".parse().unwrap());
    assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    assert_eq!(ipv6::group_mac(group).to_string(), "33:33:ff:12:34:56");

    // Neither what is sent, nor sums, nor hashes know of it.
    let key = |local| FlowKey {
        local: IpAddr::V6(local),
        remote: IpAddr::V6(DST),
        local_port: 1,
        remote_port: 2,
    };
    let hash = Toeplitz::default();
    assert_eq!(hash.hash(&key(addr)), hash.hash(&key(here)));
    let seg = SegOut::default();
    let emitted = |local| {
        let mut out = [0; MAX_HEADERS];
        Template::new(None, &key(local), 64, 0).emit(&mut out, 0, &seg, 0);
        out
    };
    assert_eq!(emitted(addr), emitted(here));
    let sum = |src| checksum::pseudo_v6(src, DST, 6, 20);
    assert_eq!(sum(addr), sum(here));
}

/// What a neighbour solicitation looks like (RFC 4861, section 4.3), and that everything that
/// makes a message void does.
#[test]
fn neighbour_discovery() {
    let group = ipv6::solicited_node(DST);
    let ask = Ndp::NeighborSolicitation {
        target: DST,
        source: Some(L2.0),
        nonce: None,
    };
    let mut out = [0xee; Ndp::MAX_EMITTED];
    let n = ask.emit(SRC, group, &mut out).unwrap();
    assert_eq!((n, &out[..2], &out[4..8]), (32, &[135, 0][..], &[0; 4][..]));
    assert_eq!(&out[24..32], &[1, 1, 2, 0, 0, 0, 0, 1]);
    let (msg, body) = Icmpv6::parse(SRC, group, &out[..n]).unwrap();
    let Icmpv6::Other { kind, code, word } = msg else {
        panic!("{msg:?}")
    };
    assert!(Ndp::is(kind) && !msg.is_error());
    let good = (SRC, group, 255);
    let read = |ends, head, body: &[u8]| Ndp::parse(ends, head, body);
    assert_eq!(read(good, (kind, code, word), body), Ok(ask));
    let bad = Err(WireError::BadNdp);
    assert_eq!(
        read((SRC, group, 254), (kind, 0, word), body),
        bad,
        "by a router"
    );
    assert_eq!(read(good, (kind, 1, word), body), bad, "a code");
    assert_eq!(read(good, (kind, 0, word), &body[..15]), bad, "no target");
    assert_eq!(
        read(good, (kind, 0, word), &body[..20]),
        bad,
        "half an option"
    );
    let mut none = body.to_vec();
    none[17] = 0;
    assert_eq!(
        read(good, (kind, 0, word), &none),
        bad,
        "an option of length 0"
    );
    let mut many = body.to_vec();
    many[0] = 0xff;
    assert_eq!(
        read(good, (kind, 0, word), &many),
        bad,
        "a group is no target"
    );
    // A probe (RFC 4862) comes from nobody, goes to the group and says no station.
    let nobody = Ipv6Addr::UNSPECIFIED;
    assert_eq!(read((nobody, group, 255), (kind, 0, word), body), bad);
    let probe = Ndp::NeighborSolicitation {
        target: DST,
        source: None,
        nonce: Some([7; 6]),
    };
    let n = probe.emit(nobody, group, &mut out).unwrap();
    let body = &out[8..n];
    assert_eq!(read((nobody, group, 255), (kind, 0, 0), body), Ok(probe));
    assert_eq!(read((nobody, DST, 255), (kind, 0, 0), body), bad);

    let tell = Ndp::NeighborAdvertisement {
        target: DST,
        router: false,
        solicited: true,
        overrides: true,
        station: Some(L2.1),
    };
    let n = tell.emit(DST, SRC, &mut out).unwrap();
    assert_eq!((n, &out[4..8]), (32, &[0x60, 0, 0, 0][..]));
    let body = &out[8..n];
    assert_eq!(read((DST, SRC, 255), (136, 0, 0x6000_0000), body), Ok(tell));
    assert_eq!(read((DST, group, 255), (136, 0, 0x6000_0000), body), bad);
}

#[test]
fn router_advertisements() {
    let router: Ipv6Addr = "fe80::1".parse().unwrap();
    let mut body = vec![0, 0, 0x75, 0x30, 0, 0, 3, 0xe8];
    body.extend([1, 1, 2, 0, 0, 0, 0, 1]);
    body.extend([5, 1, 0, 0, 0, 0, 5, 0x14]);
    // What is not known is skipped; RDNSS.
    body.extend([25, 1, 0, 0, 0, 0, 0, 9]);
    let prefix = |len: u8, flags: u8| {
        let mut o = vec![3, 4, len, flags];
        o.extend(3600u32.to_be_bytes());
        o.extend(u32::MAX.to_be_bytes());
        o.extend([0; 4]);
        o.extend("2001:db8:7::".parse::<Ipv6Addr>().unwrap().octets());
        o
    };
    body.extend(prefix(64, 0xc0));
    body.extend(prefix(129, 0xc0));
    for _ in 0..20 {
        body.extend(prefix(48, 0x80));
    }
    let head = (134, 0, 64 << 24 | 1800);
    let read = |src, body: &[u8]| Ndp::parse((src, ipv6::ALL_NODES, 255), head, body);
    let Ok(Ndp::RouterAdvertisement(ra)) = read(router, &body) else {
        panic!("{:?}", read(router, &body))
    };
    assert_eq!((ra.hop_limit, ra.lifetime), (64, 1800));
    assert_eq!((ra.reachable, ra.retransmit), (30_000, 1000));
    assert_eq!((ra.source, ra.mtu), (Some(L2.0), Some(1300)));
    let prefixes: Vec<_> = ra.prefixes().collect();
    assert_eq!(prefixes.len(), 8, "those behind are left out");
    let first = prefixes[0];
    assert_eq!(
        (first.len, first.on_link, first.autonomous),
        (64, true, true)
    );
    assert_eq!((first.valid, first.preferred), (3600, u32::MAX));
    assert!(!prefixes[1].autonomous);
    // Only a router of this link says such things.
    assert_eq!(read(SRC, &body), Err(WireError::BadNdp));
    assert_eq!(read(router, &body[..7]), Err(WireError::BadNdp));
}

/// RFC 4861, section 8.1: everything that makes a redirect void, and what does not.
#[test]
fn redirects() {
    let at = |s: &str| s.parse::<Ipv6Addr>().unwrap();
    let (router, better) = (at("fe80::1"), at("fe80::2"));
    let body = |target: Ipv6Addr, dst: Ipv6Addr, options: &[u8]| {
        [&target.octets()[..], &dst.octets(), options].concat()
    };
    let read = |src, hops, code, body: &[u8]| Ndp::parse((src, SRC, hops), (137, code, 0), body);
    // The station of the better hop, and the head of the datagram that went astray.
    let station = [2, 1, 2, 0, 0, 0, 0, 9];
    let quote = [4, 2, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 0, 6, 64];
    let options = [&station[..], &quote].concat();
    for (target, dst) in [(better, DST), (DST, DST), (better, better)] {
        let msg = Ndp::Redirect {
            target,
            destination: dst,
        };
        for options in [&[][..], &station, &options] {
            let got = read(router, 255, 0, &body(target, dst, options));
            assert_eq!(got, Ok(msg), "{target} {dst}");
        }
    }
    let good = body(better, DST, &options);
    let zero = body(better, DST, &[2, 0, 2, 0, 0, 0, 0, 9]);
    let long = body(better, DST, &[2, 2, 2, 0, 0, 0, 0, 9]);
    for (src, hops, code, body, why) in [
        (SRC, 255, 0, &good[..], "from no link-local address"),
        (at("::"), 255, 0, &good, "from nobody"),
        (router, 254, 0, &good, "by a router"),
        (router, 255, 1, &good, "a code"),
        (router, 255, 0, &good[..31], "no destination"),
        (router, 255, 0, &good[..36], "half an option"),
        (router, 255, 0, &zero, "an option of length 0"),
        (router, 255, 0, &long, "an option beyond the end"),
        (router, 255, 0, &body(better, at("ff02::9"), &[]), "a group"),
        (router, 255, 0, &body(at("ff02::9"), DST, &[]), "by a group"),
        (
            router,
            255,
            0,
            &body(SRC, DST, &[]),
            "neither a router nor it",
        ),
    ] {
        assert_eq!(read(src, hops, code, body), Err(WireError::BadNdp), "{why}");
    }
}

#[test]
fn quotes() {
    let seg = [0, 80, 0x12, 0x34, 0, 0, 0, 9];
    let quote = IcmpQuote::parse(&datagram(DST, PROTO_TCP, &seg)).unwrap();
    let key = FlowKey {
        local: IpAddr::V6(SRC),
        remote: IpAddr::V6(DST),
        local_port: 80,
        remote_port: 0x1234,
    };
    assert_eq!((quote.key(), quote.seq), (key, Seq(9)));
    // Extension headers are walked, and the length is what was sent, not what is quoted.
    let mut behind = datagram(DST, 60, &[with_option(6, 1), seg.to_vec()].concat());
    behind[4..6].copy_from_slice(&1400u16.to_be_bytes());
    assert_eq!(IcmpQuote::parse(&behind).unwrap().key(), key);
    for (rest, next, error) in [
        (seg[..7].to_vec(), 6, WireError::Truncated),
        (seg.to_vec(), 58, WireError::NotTcp),
        (
            [fragment(6, 8, false), seg.to_vec()].concat(),
            44,
            WireError::Fragment,
        ),
    ] {
        assert_eq!(IcmpQuote::parse(&datagram(DST, next, &rest)), Err(error));
    }
    let first = [fragment(6, 0, true), seg.to_vec()].concat();
    assert_eq!(
        IcmpQuote::parse(&datagram(DST, 44, &first)).unwrap().key(),
        key
    );
}

/// RFC 3810, section 5.2.
#[test]
fn listener_reports() {
    let group = ipv6::solicited_node(DST);
    let from = "fe80::7".parse().unwrap();
    let mut out = [0xee; mld::report_len(2)];
    let groups = [(Record::Joins, group), (Record::Leaves, ipv6::ALL_ROUTERS)];
    assert_eq!(mld::report(from, &groups, &mut out), 96);
    let ip = Ipv6Hdr::parse(&out).unwrap();
    assert_eq!((ip.src, ip.dst, ip.hop_limit), (from, mld::MLD_ROUTERS, 1));
    assert_eq!((ip.protocol, ip.header_len), (PROTO_ICMPV6, 48));
    let (msg, body) = Icmpv6::parse(ip.src, ip.dst, &out[48..]).unwrap();
    assert_eq!(
        msg,
        Icmpv6::Other {
            kind: 143,
            code: 0,
            word: 2
        }
    );
    assert_eq!(body[..4], [4, 0, 0, 0]);
    assert_eq!(body[4..20], group.octets());
    assert_eq!(body[20..24], [3, 0, 0, 0]);
    assert!(mld::is_query(130) && !mld::is_query(143));
}

prop_compose! {
    fn seg()(
        numbers in any::<[u32; 2]>(), flags: u8, window: u16, urgent: u16,
        ts in any::<Option<(u32, u32)>>(), mss in proptest::option::of(1u16..),
    ) -> SegOut {
        SegOut {
            seq: Seq(numbers[0]),
            ack: Seq(numbers[1]),
            flags: TcpFlags(flags),
            window,
            urgent,
            opts: TcpOptions { ts, mss, ..TcpOptions::default() },
        }
    }
}

fn key() -> impl Strategy<Value = FlowKey> {
    any::<(Ipv6Addr, Ipv6Addr, u16, u16)>().prop_map(|(l, r, local_port, remote_port)| FlowKey {
        local: IpAddr::V6(ipv6::without_zone(l)),
        remote: IpAddr::V6(ipv6::without_zone(r)),
        local_port,
        remote_port,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Of what a template writes, the oracle and we read the same.
    #[test]
    fn templates(
        key in key(), seg in seg(), data in vec(any::<u8>(), 0..80), hops: u8, tos: u8,
        label in 0u32..1 << 20, ethernet: bool,
    ) {
        let mut template = Template::new(ethernet.then_some(L2), &key, !hops, label);
        template.set_tos(tos);
        template.set_ttl(hops);
        assert_eq!(template.ttl(), hops);
        let l2_len = template.l2_len();
        prop_assert_eq!((l2_len, template.tcp_start()), if ethernet { (14, 54) } else { (0, 40) });
        let mut out = [0xa5; MAX_HEADERS];
        let len = template.emit(&mut out, 1, &seg, data.len() as u32);
        let mut headers = out[..len].to_vec();
        finish_checksum(&mut headers, l2_len, [&data[..]]);
        let mut frame = out[..len].to_vec();
        frame.extend(&data);
        frame.extend([0; 5]);
        finish_checksum_in_frame(&mut frame, l2_len);
        prop_assert_eq!(&frame[..len], &headers[..]);
        if ethernet {
            let eth = EtherHdr::parse(&frame).unwrap();
            prop_assert_eq!((eth.src, eth.dst, eth.ethertype), (L2.0, L2.1, 0x86dd));
        }
        prop_assert!(carries_v6(&frame, ethernet, 6) && !carries_v6(&frame, ethernet, 17));
        let packet = &frame[l2_len..];

        let (ip, rest) = Ipv6Header::from_slice(packet).unwrap();
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (key.local, key.remote) else { unreachable!() };
        prop_assert_eq!((ip.source, ip.destination), (src.octets(), dst.octets()));
        prop_assert_eq!((ip.hop_limit, ip.traffic_class), (hops, tos));
        prop_assert_eq!((ip.flow_label.value(), ip.next_header), (label, IpNumber::TCP));
        prop_assert_eq!(usize::from(ip.payload_length), len - l2_len - 40 + data.len());
        let (tcp, rest) = TcpHeader::from_slice(rest).unwrap();
        prop_assert_eq!(&rest[..data.len()], &data[..]);
        prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(&ip, &data).unwrap());
        prop_assert_eq!((tcp.source_port, tcp.destination_port), (key.local_port, key.remote_port));
        prop_assert_eq!((tcp.sequence_number, tcp.window_size), (seg.seq.0, seg.window));

        let mut read = TcpFrame::default();
        prop_assert_eq!(parse_ipv6_tcp_into(packet, l2_len, Csum::Verify, &mut read), Ok(()));
        prop_assert_eq!(read.key, key.reversed());
        prop_assert_eq!((read.tos, read.ttl), (tos, hops));
        let at = read.payload_off as usize;
        prop_assert_eq!(&frame[at..at + read.payload_len as usize], &data[..]);
        let mut want = seg.to_hdr(key.local_port, key.remote_port);
        if !seg.flags.contains(TcpFlags::SYN) {
            want.opts.mss = None;
        }
        prop_assert_eq!(read.hdr, want);
        let parsed = Frame::parse_ip(packet, l2_len, Csum::Verify);
        prop_assert_eq!(parsed, Ok(Frame::Tcp(read)));
        frame[at - 1] ^= 0x10;
        let bad = parse_ipv6_tcp_into(&frame[l2_len..], l2_len, Csum::Verify, &mut read);
        prop_assert_eq!(bad, Err(WireError::BadTcpChecksum));
    }

    #[test]
    fn headers_both_ways(
        src: Ipv6Addr, dst: Ipv6Addr, protocol in 61u8..130, hop_limit: u8, class: u8,
        label in 0u32..1 << 20, payload in vec(any::<u8>(), 0..40),
    ) {
        let (src, dst) = (ipv6::without_zone(src), ipv6::without_zone(dst));
        let mut theirs = Ipv6Header {
            flow_label: Ipv6FlowLabel::try_new(label).unwrap(),
            payload_length: payload.len() as u16,
            next_header: IpNumber(protocol),
            hop_limit,
            source: src.octets(),
            destination: dst.octets(),
            ..Ipv6Header::default()
        };
        theirs.traffic_class = class;
        let mut bytes = theirs.to_bytes().to_vec();
        bytes.extend(&payload);
        let ours = Ipv6Hdr::parse(&bytes).unwrap();
        prop_assert_eq!(ours, Ipv6Hdr {
            src, dst, protocol, hop_limit, traffic_class: class, flow_label: label,
            header_len: 40, total_len: bytes.len() as u32, fragment: None,
        });
        let mut again = [0; 40];
        ours.emit(&mut again);
        prop_assert_eq!(&again[..], &bytes[..40]);
    }

    #[test]
    fn icmp_both_ways(
        src: Ipv6Addr, dst: Ipv6Addr, ident: u16, seq: u16, mtu: u32, which in 0usize..4,
        body in vec(any::<u8>(), 0..40),
    ) {
        let (src, dst) = (ipv6::without_zone(src), ipv6::without_zone(dst));
        let echo = etherparse::IcmpEchoHeader { id: ident, seq };
        let (theirs, ours) = [
            (Icmpv6Type::EchoRequest(echo), Icmpv6::EchoRequest { ident, seq }),
            (Icmpv6Type::EchoReply(echo), Icmpv6::EchoReply { ident, seq }),
            (Icmpv6Type::PacketTooBig { mtu }, Icmpv6::TooBig { mtu }),
            (
                Icmpv6Type::DestinationUnreachable(etherparse::icmpv6::DestUnreachableCode::Port),
                Icmpv6::Unreachable { code: 4 },
            ),
        ][which];
        let header = Icmpv6Header::with_checksum(theirs, src.octets(), dst.octets(), &body).unwrap();
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(&body);
        prop_assert_eq!(Icmpv6::parse(src, dst, &bytes), Ok((ours, &body[..])));
        let mut again = vec![0; bytes.len()];
        prop_assert_eq!(ours.emit(src, dst, &body, &mut again), bytes.len());
        prop_assert_eq!(&again, &bytes);
        again[2] ^= 1;
        prop_assert_eq!(Icmpv6::parse(src, dst, &again), Err(WireError::BadIcmpChecksum));
    }

    /// No bytes behind a plausible start make a parser panic, and lengths lie within.
    #[test]
    fn damaged_datagrams_never_panic(
        next in prop_oneof![Just(0u8), Just(43), Just(44), Just(60), Just(6), Just(58), any::<u8>()],
        rest in vec(prop_oneof![Just(0u8), Just(60), Just(44), Just(1), any::<u8>()], 0..300),
        cut in 0usize..340,
    ) {
        let mut bytes = datagram(DST, next, &rest);
        let _ = Ipv6Hdr::problem(&bytes);
        if let Ok(h) = Ipv6Hdr::parse(&bytes) {
            prop_assert!((40..=296).contains(&h.header_len));
            prop_assert!(u32::from(h.header_len) <= h.total_len);
            prop_assert!(h.total_len as usize <= bytes.len());
            prop_assert_eq!(Ipv6Hdr::problem(&bytes), None);
        }
        for csum in [Csum::Trust, Csum::Verify] {
            let _ = Frame::parse_ip(&bytes, 0, csum);
        }
        let _ = IcmpQuote::parse(&bytes);
        for kind in 130..140 {
            let _ = Ndp::parse((SRC, DST, 255), (kind, 0, 0), &rest);
            let link = "fe80::1".parse().unwrap();
            let _ = Ndp::parse((link, DST, 255), (kind, 0, 0), &rest);
        }
        bytes.truncate(cut);
        let _ = (Ipv6Hdr::parse(&bytes).is_ok(), IcmpQuote::parse(&bytes).is_ok());
    }
}

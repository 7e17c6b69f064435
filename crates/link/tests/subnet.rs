//! The ideal peer over IPv6, and its datagrams.

mod common;

use common::{Host, key, refer};
use core::net::{IpAddr, Ipv6Addr};
use perimeter_base::desc::Offload;
use perimeter_link::RxStatus;
use perimeter_link::mem::datagrams::{fill, right};
use perimeter_link::mem::{DatagramConfig, NicConfig, Source};
use perimeter_link::pattern::Pattern;
use perimeter_wire::ipv6::{group_mac, solicited_node};
use perimeter_wire::{
    Csum, ETHERTYPE_IPV6, EtherHdr, Frame, Icmpv6, IpHdr, Ipv6Hdr, MacAddr, Ndp, PROTO_ICMPV6,
    PROTO_UDP, UdpHdr, UdpTemplate,
};

fn stream(from: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Pattern::get().fill(from, &mut v);
    v
}

/// The same peer over IPv6: stations by neighbour discovery, echoes, and both ways of a connection,
/// with payload and checksums compared, also of a segment that the NIC cuts.
#[test]
fn a_subnet_of_ipv6_is_played_alike() {
    let mut config = NicConfig::new(0).over_ipv6();
    config.peer.verify_every = 1;
    config.peer.source = Source::Always;
    config.peer.source_bytes = Some(5_000);
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 80);
    let (IpAddr::V6(us), IpAddr::V6(peer)) = (k.local, k.remote) else {
        panic!("not of IPv6: {k}")
    };
    let nobody = Ipv6Addr::from_bits(peer.to_bits() ^ 1 << 100);
    for (target, answered) in [(peer, true), (us, false), (nobody, false)] {
        let ask = Ndp::NeighborSolicitation {
            target,
            source: Some(h.config.mac),
            nonce: None,
        };
        let to = solicited_node(target);
        let mut message = [0; Ndp::MAX_EMITTED];
        let n = ask.emit(us, to, &mut message).unwrap();
        h.raw(&frame6(
            &h.config,
            (us, to, group_mac(to)),
            255,
            &message[..n],
        ));
        h.rtt();
        let frames = h.frames();
        assert_eq!(frames.len(), usize::from(answered), "{target}");
        let Some(f) = frames.first() else { continue };
        let Ok(Frame::Icmp6 { ip, msg, body }) =
            Frame::parse_ethernet(f.buf.as_slice(), Csum::Verify)
        else {
            panic!("no answer")
        };
        let Icmpv6::Other { kind, code, word } = msg else {
            panic!("{msg:?}")
        };
        let ends = (ip.src, ip.dst, ip.hop_limit);
        let said = Ndp::parse(ends, (kind, code, word), body).unwrap();
        let Ndp::NeighborAdvertisement {
            target: of,
            station,
            ..
        } = said
        else {
            panic!("{said:?}")
        };
        assert_eq!((of, station), (target, Some(h.config.peer_mac)));
    }
    let mut message = [0; 12];
    Icmpv6::EchoRequest { ident: 5, seq: 6 }.emit(us, peer, b"ping", &mut message);
    h.raw(&frame6(
        &h.config,
        (us, peer, h.config.peer_mac),
        64,
        &message,
    ));
    h.rtt();
    let frames = h.frames();
    match Frame::parse_ethernet(frames[0].buf.as_slice(), Csum::Verify) {
        Ok(Frame::Icmp6 { msg, body, .. }) => {
            assert_eq!(
                (msg, body),
                (Icmpv6::EchoReply { ident: 5, seq: 6 }, &b"ping"[..])
            );
        }
        other => panic!("{other:?}"),
    }
    let counts = h.handle.counts();
    assert_eq!((counts.arp, counts.echo, counts.malformed), (1, 1, 0));

    let mut t = h.connect(k);
    let mut sent = 0;
    for _ in 0..2 {
        let page = stream(sent, 1428);
        let seg = t.ack();
        h.place(&k, &seg, &page);
        t.seq += page.len() as u32;
        sent += page.len() as u64;
    }
    let large = stream(sent, 3 * 1000 + 500);
    let seg = t.ack();
    h.place_but(&k, &seg, &large, |d| d.offload.segment_size = 1000);
    h.ring_bell();
    t.seq += large.len() as u32;
    sent += large.len() as u64;
    h.rtt();
    h.after(h.config.peer.delayed_ack_ns);
    let got = h.segments();
    let data: Vec<u8> = got.iter().flat_map(|g| g.data.clone()).collect();
    assert!(!data.is_empty() && stream(0, data.len()) == data);
    assert!(got.iter().all(|g| g.tcp.key == k && g.data.len() <= 1428));
    assert_eq!(got.last().unwrap().tcp.hdr.ack, t.seq);
    let flows = h.handle.flows();
    assert_eq!((flows[0].acked, flows[0].host), (sent, (us, 4000).into()));
    let c = h.handle.counts();
    assert_eq!((c.verified, c.verify_errors, c.bad_checksum), (6, 0, 0));
    // The other family is not spoken, and no such peer plays it.
    assert!(
        h.handle
            .connect(h.now, (h.config.host, 1), (us, 2))
            .is_err()
    );
    assert!(h.handle.connect(h.now, (peer, 1), (us, 2)).is_ok());
}

/// A frame of ICMPv6 from the host.
fn frame6(
    config: &NicConfig,
    (src, dst, station): (Ipv6Addr, Ipv6Addr, MacAddr),
    hop_limit: u8,
    message: &[u8],
) -> Vec<u8> {
    let mut out = vec![0; 54 + message.len()];
    let eth = EtherHdr {
        dst: station,
        src: config.mac,
        ethertype: ETHERTYPE_IPV6,
    };
    let n = eth.emit(&mut out);
    let ip = Ipv6Hdr {
        src,
        dst,
        protocol: PROTO_ICMPV6,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        header_len: 40,
        total_len: 40 + message.len() as u32,
        fragment: None,
    };
    ip.emit(&mut out[n..]);
    out[54..].copy_from_slice(message);
    out
}

/// Datagrams both ways, over both families: those of the stack are counted and compared, the
/// peer's come from when they are released on, to all ports in turns, and can be checked.
#[test]
fn datagrams_are_taken_and_sent() {
    for v6 in [false, true] {
        let mut config = NicConfig::new(0);
        config.v6 = v6;
        config.peer.verify_every = 1;
        config.peer.datagrams =
            Some(DatagramConfig::new(65, 80, vec![4000, 4001]).with_sends(true));
        let mut h = Host::new(config);
        let k = key(&h.config, 4000, 80);
        let ip = IpHdr {
            src: k.local,
            dst: k.remote,
            protocol: PROTO_UDP,
            hop_limit: 64,
            tos: 0,
            header_len: 0,
            total_len: 0,
        };
        for (n, damage) in [(0, false), (77, false), (5, true)] {
            let stations = Some((h.config.mac, h.config.peer_mac));
            let template = UdpTemplate::new(stations, &ip, (4000, 80), 0);
            let mut data = [0; 100];
            fill(Pattern::get(), n, &mut data);
            data[60] ^= u8::from(damage);
            let mut d = h.ring.push().expect("room");
            d.hdr_len = template.emit(&mut d.hdr, 1, 100) as u8;
            d.offload = Offload {
                csum_start: template.udp_start() as u8,
                csum_offset: UdpHdr::CHECKSUM_AT,
                segment_size: 0,
            };
            refer(&mut d, &[&data]);
        }
        h.ring_bell();
        let c = h.handle.counts();
        assert_eq!((c.datagrams, c.datagram_bytes, c.foreign), (3, 300, 0));
        assert_eq!((c.verified, c.verify_errors), (3, 1));

        h.rtt();
        assert!(h.frames().is_empty(), "nobody has released them");
        h.handle.release_datagrams();
        assert!(h.rx[0].arm(h.now) == RxStatus::Ready);
        let mut out = Vec::new();
        assert_eq!(h.rx[0].poll(h.now, &mut h.pool, &mut out, 9), 9);
        assert_eq!(h.handle.datagrams_sent(), 9);
        for (n, f) in out.iter().enumerate() {
            let Ok(Frame::Ip { ip, payload }) =
                Frame::parse_ethernet(f.buf.as_slice(), Csum::Verify)
            else {
                panic!("no datagram")
            };
            let udp = UdpHdr::parse(payload).unwrap();
            udp.verify(ip.src, ip.dst, payload).unwrap();
            assert!(udp.check != 0 && right(Pattern::get(), &payload[UdpHdr::LEN..]));
            assert_eq!((ip.src, ip.dst, udp.src_port), (k.remote, k.local, 80));
            assert_eq!((udp.dst_port, udp.len), (4000 + n as u16 % 2, 73));
        }
    }
}

//! Tables of inputs and what the parsers and builders make of them.

use std::net::{IpAddr, Ipv4Addr};

use perimeter_wire::{
    ArpOp, ArpPacket, Csum, EtherHdr, FlowKey, Frame, IcmpQuote, Icmpv4, Ipv4Hdr, MAX_HEADERS,
    MacAddr, PROTO_ICMP, PROTO_TCP, PROTO_UDP, SackBlocks, SegOut, Seq, TcpFlags, TcpFrame, TcpHdr,
    TcpOptions, Template, Toeplitz, WireError, checksum, finish_checksum, finish_checksum_in_frame,
    parse_ipv4_tcp, parse_ipv4_tcp_into,
};

fn seg(flags: TcpFlags, opts: TcpOptions) -> TcpHdr {
    TcpHdr {
        src_port: 1,
        dst_port: 2,
        flags,
        opts,
        ..TcpHdr::default()
    }
}

fn emitted(hdr: &TcpHdr) -> Vec<u8> {
    let mut out = [0xee; 60];
    let len = hdr.emit(&mut out);
    assert_eq!(len, hdr.header_len());
    assert_eq!(usize::from(out[12] >> 4) * 4, len);
    out[20..len].to_vec()
}

fn sack(blocks: &[(u32, u32)]) -> SackBlocks {
    let mut sack = SackBlocks::default();
    for &(l, r) in blocks {
        assert!(sack.push(Seq(l), Seq(r)));
    }
    sack
}

/// Option layouts as Linux sends them.
#[test]
fn option_layouts() {
    let syn = TcpFlags::SYN;
    let ack = TcpFlags::ACK;
    let all = TcpOptions {
        mss: Some(1460),
        wscale: Some(7),
        sack_permitted: true,
        ts: Some((0x01020304, 0)),
        sack: SackBlocks::default(),
    };
    let ts = [0x01, 0x02, 0x03, 0x04, 0, 0, 0, 0];
    let with = |head: &[u8], tail: &[u8]| [head, &ts, tail].concat();
    let no_ts = TcpOptions { ts: None, ..all };
    let ts_sack = TcpOptions {
        sack: sack(&[(1, 2), (3, 4), (5, 6), (7, 8)]),
        ..all
    };
    let three_blocks = [
        1, 1, 5, 26, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6,
    ];
    #[rustfmt::skip]
    let table: Vec<(TcpFlags, TcpOptions, Vec<u8>)> = vec![
        (syn, TcpOptions::default(), vec![]),
        (syn, all, with(&[2, 4, 0x05, 0xb4, 4, 2, 8, 10], &[1, 3, 3, 7])),
        (syn, TcpOptions { sack_permitted: false, ..all },
            with(&[2, 4, 0x05, 0xb4, 1, 1, 8, 10], &[1, 3, 3, 7])),
        (syn, no_ts, vec![2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]),
        (syn, TcpOptions { mss: None, wscale: None, ..no_ts }, vec![1, 1, 4, 2]),
        // A SYN carries no SACK, others carry nothing of the handshake.
        (syn, TcpOptions { sack: sack(&[(1, 2)]), ..no_ts },
            vec![2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]),
        (ack, no_ts, vec![]),
        (ack, all, with(&[1, 1, 8, 10], &[])),
        (ack, TcpOptions { sack: sack(&[(9, 0x0a0b0c0d)]), ..no_ts },
            vec![1, 1, 5, 10, 0, 0, 0, 9, 0x0a, 0x0b, 0x0c, 0x0d]),
        // Beside a timestamp only three blocks fit.
        (ack, ts_sack, with(&[1, 1, 8, 10], &three_blocks)),
    ];
    for (flags, opts, bytes) in table {
        assert_eq!(emitted(&seg(flags, opts)), bytes, "{flags:?} {opts:?}");
    }
    let four = TcpOptions {
        ts: None,
        ..ts_sack
    };
    assert_eq!(emitted(&seg(ack, four)).len(), 36);
}

/// Option areas, well formed and not: what is read, and whether it is malformed.
#[test]
fn option_parsing() {
    let none = TcpOptions::default();
    let mss = TcpOptions {
        mss: Some(1000),
        ..none
    };
    let ts = TcpOptions {
        ts: Some((1, 2)),
        ..none
    };
    let m = [2, 4, 0x03, 0xe8];
    let cat = |a: &[u8], b: &[u8]| [a, b].concat();
    #[rustfmt::skip]
    let table: Vec<(bool, Vec<u8>, TcpOptions, bool)> = vec![
        (true, vec![], none, false),
        (true, m.to_vec(), mss, false),
        // End of options: what follows is padding.
        (true, cat(&[0, 0, 0, 0], &m), none, false),
        (true, cat(&m, &[0, 2, 4, 9]), mss, false),
        (true, cat(&[1, 1, 1, 1], &m), mss, false),
        // Unknown and Fast Open options are skipped.
        (true, cat(&[254, 4, 9, 9], &m), mss, false),
        (true, cat(&[34, 2, 1, 1], &m), mss, false),
        // Impossible lengths end the options; what came before counts.
        (true, cat(&m, &[254, 0, 1, 1]), mss, true),
        (true, cat(&m, &[254, 1, 1, 1]), mss, true),
        (true, cat(&[254, 0, 1, 1], &m), none, true),
        (true, cat(&m, &[254, 5, 1, 1]), mss, true),
        (true, cat(&m, &[1, 1, 1, 2]), mss, true),
        // Possible lengths that are wrong for the kind: the option is skipped.
        (true, cat(&[2, 3, 9, 1], &m), mss, false),
        (true, cat(&[8, 4, 9, 9], &m), mss, false),
        (true, cat(&[4, 3, 0, 1], &m), mss, false),
        (true, cat(&[3, 4, 5, 5], &m), mss, false),
        (false, vec![5, 9, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1], none, false),
        (false, vec![5, 2, 1, 1], none, false),
        // A zero MSS says nothing; a huge scale is 14.
        (true, vec![2, 4, 0, 0], none, false),
        (true, vec![3, 3, 14, 0], TcpOptions { wscale: Some(14), ..none }, false),
        (true, vec![3, 3, 15, 0], TcpOptions { wscale: Some(14), ..none }, false),
        (true, vec![3, 3, 255, 0], TcpOptions { wscale: Some(14), ..none }, false),
        // Twice: the last counts.
        (true, cat(&[2, 4, 1, 1], &m), mss, false),
        // Handshake options elsewhere, and SACK on a SYN, are ignored.
        (false, m.to_vec(), none, false),
        (false, vec![3, 3, 7, 1], none, false),
        (false, vec![4, 2, 1, 1], none, false),
        (true, vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2], none, false),
        (false, vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            TcpOptions { sack: sack(&[(1, 2)]), ..none }, false),
        // Timestamps in the light layout and in others, on any segment.
        (false, vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], ts, false),
        (true, vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], ts, false),
        (false, vec![8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1], ts, false),
        (false, vec![8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], ts, false),
        (false, vec![1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1], ts, false),
        (false, vec![1, 1, 1, 1, 1, 8, 10, 0, 0, 0, 1, 0], none, true),
        (false, vec![1, 1, 8, 11, 0, 0, 0, 1, 0, 0, 0, 2], none, true),
    ];
    for (syn, area, opts, bad) in table {
        assert_eq!(TcpOptions::parse(&area, syn), (opts, bad), "{area:?}");
        let flags = if syn { TcpFlags::SYN } else { TcpFlags::ACK };
        let mut bytes = vec![0; 20];
        seg(flags, none).emit(&mut bytes);
        bytes[12] = (((20 + area.len()) / 4) << 4) as u8;
        bytes.extend(&area);
        bytes.extend(b"data");
        let parsed = TcpHdr::parse_noting(&bytes).unwrap();
        assert_eq!(parsed.hdr, seg(flags, opts), "{area:?}");
        assert_eq!(parsed.bad_options, bad, "{area:?}");
        assert_eq!(usize::from(parsed.header_len), 20 + area.len());
    }
}

fn key() -> FlowKey {
    FlowKey {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        local_port: 0x1234,
        remote_port: 80,
    }
}

/// A whole frame with four bytes of data, timestamps and right checksums.
fn frame() -> Vec<u8> {
    let l2 = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let template = Template::new_v4(Some(l2), &key(), 64, 0b10, true);
    let seg = SegOut {
        seq: Seq(0xfffffffe),
        ack: Seq(7),
        flags: TcpFlags::ACK | TcpFlags::PSH,
        window: 500,
        urgent: 0,
        opts: TcpOptions {
            ts: Some((8, 9)),
            ..TcpOptions::default()
        },
    };
    let mut out = [0xee; MAX_HEADERS];
    let len = template.emit(&mut out, 0xabcd, &seg, 4);
    assert_eq!(len, template.l2_len() + 20 + seg.header_len());
    let mut frame = out[..len].to_vec();
    frame.extend(b"data");
    finish_checksum_in_frame(&mut frame, 14);
    frame
}

#[test]
fn a_good_frame() {
    let mut frame = frame();
    // Padding, as Ethernet adds it, is no data.
    frame.extend([0xff; 9]);
    for csum in [Csum::Verify, Csum::Trust] {
        let Ok(Frame::Tcp(tcp)) = Frame::parse_ethernet(&frame, csum) else {
            panic!("no TCP frame");
        };
        assert_eq!(tcp.key, key().reversed());
        assert_eq!((tcp.hdr.src_port, tcp.hdr.dst_port), (0x1234, 80));
        assert_eq!((tcp.hdr.seq, tcp.hdr.ack), (Seq(0xfffffffe), Seq(7)));
        assert_eq!(format!("{:?}", tcp.hdr.flags), "PA");
        assert_eq!((tcp.hdr.window, tcp.hdr.opts.ts), (500, Some((8, 9))));
        assert_eq!((tcp.payload_off, tcp.payload_len), (14 + 20 + 32, 4));
        assert_eq!((tcp.tos, tcp.ttl, tcp.bad_options), (0b10, 64, false));
        let end = (tcp.payload_off + tcp.payload_len) as usize;
        assert_eq!(&frame[tcp.payload_off as usize..end], b"data");
        assert_eq!(parse_ipv4_tcp(&frame[14..], 14, csum), Ok(tcp));
        // A slot that held something else is overwritten wholly.
        let mut slot = TcpFrame {
            bad_options: true,
            ..TcpFrame::default()
        };
        slot.hdr.opts = TcpOptions {
            mss: Some(1),
            wscale: Some(1),
            sack_permitted: true,
            ts: None,
            sack: sack(&[(1, 2)]),
        };
        assert_eq!(
            parse_ipv4_tcp_into(&frame[14..], 14, csum, &mut slot),
            Ok(())
        );
        assert_eq!(slot, tcp);
    }
}

/// Recomputes the IP checksum after a change to the header.
fn fix_ip(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let check = checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
}

/// Source routes are refused wherever they stand; other options, and nonsense, are skipped.
#[test]
fn source_routes() {
    let datagram = |options: &[u8]| {
        let mut p = vec![0; 20];
        Ipv4Hdr {
            src: [10, 0, 0, 2].into(),
            dst: [10, 0, 0, 1].into(),
            protocol: 6,
            ttl: 64,
            tos: 0,
            ident: 0,
            total_len: (20 + options.len()) as u16,
            header_len: 20,
            dont_fragment: true,
            more_fragments: false,
            frag_offset: 0,
        }
        .emit(&mut p);
        p.extend_from_slice(options);
        p[0] = 0x45 + (options.len() / 4) as u8;
        p[10..12].fill(0);
        let check = checksum::checksum(&p);
        p[10..12].copy_from_slice(&check.to_be_bytes());
        p
    };
    let table: &[(&[u8], bool)] = &[
        (&[131, 3, 4, 0], true),
        (&[137, 7, 4, 10, 0, 0, 7, 0], true),
        (&[1, 1, 1, 131], true),
        (&[148, 4, 0, 0, 137, 3, 4, 0], true),
        (&[7, 7, 4, 131, 137, 131, 137, 0], false),
        (&[0, 131, 3, 4], false),
        (&[148, 1, 131, 131], false),
        (&[148, 0, 131, 131], false),
        (&[148, 200, 131, 131], false),
        (&[1, 1, 1, 148], false),
    ];
    for (options, routed) in table {
        for verify in [false, true] {
            let parsed = Ipv4Hdr::parse(&datagram(options), verify);
            let want = routed.then_some(WireError::SourceRoute);
            assert_eq!(parsed.err(), want, "{options:?}");
        }
        let mut bad = datagram(options);
        bad[10] ^= 1;
        let parsed = Ipv4Hdr::parse(&bad, true);
        assert_eq!(parsed.err(), Some(WireError::BadIpChecksum), "{options:?}");
    }
}

/// One change to a good datagram, and the reason for which it is dropped.
#[test]
fn bad_datagrams() {
    type Change = fn(&mut Vec<u8>);
    let table: &[(Change, WireError)] = &[
        (|p| p.clear(), WireError::Truncated),
        (|p| p.truncate(19), WireError::Truncated),
        (|p| p[0] = 0x55, WireError::BadVersion),
        (|p| p[0] = 0x44, WireError::BadHeaderLen),
        (|p| p[0] = 0x40, WireError::BadHeaderLen),
        (
            |p| {
                p[0] = 0x4f;
                p.truncate(59)
            },
            WireError::BadHeaderLen,
        ),
        (|p| p[3] += 1, WireError::BadTotalLen),
        (|p| p[2] = 0xff, WireError::BadTotalLen),
        (|p| p.truncate(p.len() - 1), WireError::BadTotalLen),
        (
            |p| p[2..4].copy_from_slice(&[0, 19]),
            WireError::BadTotalLen,
        ),
        (|p| p[2..4].copy_from_slice(&[0, 0]), WireError::BadTotalLen),
        (|p| p[8] ^= 1, WireError::BadIpChecksum),
        (|p| p[10] ^= 1, WireError::BadIpChecksum),
        (
            |p| {
                p[9] = PROTO_UDP;
                fix_ip(p)
            },
            WireError::NotTcp,
        ),
        (
            |p| {
                p[6] |= 0x20;
                fix_ip(p)
            },
            WireError::Fragment,
        ),
        (
            |p| {
                p[7] |= 1;
                fix_ip(p)
            },
            WireError::Fragment,
        ),
        (
            |p| {
                p[6] |= 0x10;
                fix_ip(p)
            },
            WireError::Fragment,
        ),
        (
            |p| {
                p[2..4].copy_from_slice(&[0, 39]);
                fix_ip(p)
            },
            WireError::Truncated,
        ),
        (|p| p[20 + 12] = 0x40, WireError::BadDataOffset),
        (|p| p[20 + 12] = 0x00, WireError::BadDataOffset),
        (|p| p[20 + 12] = 0xa0, WireError::BadDataOffset),
        (|p| p[20 + 16] ^= 0x80, WireError::BadTcpChecksum),
        (|p| p[20 + 5] ^= 1, WireError::BadTcpChecksum),
        (|p| *p.last_mut().unwrap() ^= 1, WireError::BadTcpChecksum),
        // Addresses are covered by TCP's checksum too.
        (
            |p| {
                p[15] ^= 4;
                fix_ip(p)
            },
            WireError::BadTcpChecksum,
        ),
    ];
    let good = frame().split_off(14);
    assert!(parse_ipv4_tcp(&good, 0, Csum::Verify).is_ok());
    for (i, (change, error)) in table.iter().enumerate() {
        let mut packet = good.clone();
        change(&mut packet);
        let before = TcpFrame::default();
        let mut slot = before;
        let got = parse_ipv4_tcp_into(&packet, 0, Csum::Verify, &mut slot);
        assert_eq!(got, Err(*error), "row {i}");
        assert_eq!(slot, before, "row {i}");
        let trusted = parse_ipv4_tcp(&packet, 0, Csum::Trust);
        match error {
            WireError::BadIpChecksum | WireError::BadTcpChecksum => {
                assert!(trusted.is_ok(), "row {i}")
            }
            _ => assert_eq!(trusted, Err(*error), "row {i}"),
        }
    }
}

#[test]
fn ip_options_are_skipped() {
    let mut packet = frame().split_off(14);
    packet.splice(20..20, [1, 1, 1, 1]);
    packet[0] = 0x46;
    packet[3] += 4;
    packet[10..12].fill(0);
    let check = checksum::checksum(&packet[..24]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    let tcp = parse_ipv4_tcp(&packet, 14, Csum::Verify).unwrap();
    assert_eq!((tcp.payload_off, tcp.payload_len), (14 + 24 + 32, 4));
    packet[21] ^= 2;
    assert_eq!(
        parse_ipv4_tcp(&packet, 14, Csum::Verify),
        Err(WireError::BadIpChecksum)
    );
}

#[test]
fn other_frames() {
    let mut frame = frame();
    frame[14] = 0x65;
    assert_eq!(
        Frame::parse_ip(&frame[14..], 0, Csum::Trust),
        Err(WireError::BadTotalLen)
    );
    frame[14] = 0x55;
    assert_eq!(
        Frame::parse_ip(&frame[14..], 0, Csum::Trust),
        Err(WireError::BadVersion)
    );
    frame[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(
        Frame::parse_ethernet(&frame, Csum::Trust),
        Ok(Frame::Other(0x8100))
    );
    assert_eq!(
        Frame::parse_ethernet(&frame[..13], Csum::Trust),
        Err(WireError::Truncated)
    );
    assert_eq!(
        Frame::parse_ip(&[], 0, Csum::Trust),
        Err(WireError::Truncated)
    );
}

#[test]
fn arp() {
    let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let request = ArpPacket {
        op: ArpOp::Request,
        sender_mac: a,
        sender_ip: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: Ipv4Addr::new(10, 0, 0, 2),
    };
    let mut bytes = [0xee; 60];
    EtherHdr {
        dst: MacAddr::BROADCAST,
        src: a,
        ethertype: 0x0806,
    }
    .emit(&mut bytes);
    assert_eq!(request.emit(&mut bytes[14..]), 28);
    #[rustfmt::skip]
    assert_eq!(bytes[14..42], [
        0, 1, 8, 0, 6, 4, 0, 1,
        2, 0, 0, 0, 0, 1, 10, 0, 0, 1,
        0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ]);
    assert_eq!(
        Frame::parse_ethernet(&bytes, Csum::Verify),
        Ok(Frame::Arp(request))
    );
    let reply = request.reply(b);
    assert_eq!((reply.sender_mac, reply.target_mac), (b, a));
    assert_eq!(reply.sender_ip, request.target_ip);
    assert_eq!(reply.target_ip, request.sender_ip);
    reply.emit(&mut bytes[14..]);
    assert_eq!(ArpPacket::parse(&bytes[14..]), Ok(reply));
    assert_eq!(ArpPacket::parse(&bytes[14..41]), Err(WireError::Truncated));
    for (at, value) in [
        (0, 1),
        (1, 6),
        (2, 0x86),
        (3, 6),
        (4, 8),
        (5, 16),
        (7, 3),
        (6, 1),
        (7, 0),
    ] {
        let mut bad = bytes[14..].to_vec();
        bad[at] = value;
        assert_eq!(ArpPacket::parse(&bad), Err(WireError::BadArp), "byte {at}");
    }
}

#[test]
fn icmp_messages() {
    let gateway = Ipv4Addr::new(192, 0, 2, 1);
    #[rustfmt::skip]
    let table = [
        (Icmpv4::EchoRequest { ident: 0x0102, seq: 0x0304 }, [8, 0, 1, 2, 3, 4]),
        (Icmpv4::EchoReply { ident: 0x0102, seq: 0x0304 }, [0, 0, 1, 2, 3, 4]),
        (Icmpv4::Unreachable { code: 4, next_hop_mtu: 1400 }, [3, 4, 0, 0, 0x05, 0x78]),
        (Icmpv4::Unreachable { code: 3, next_hop_mtu: 0 }, [3, 3, 0, 0, 0, 0]),
        (Icmpv4::Redirect { code: 1, gateway }, [5, 1, 192, 0, 2, 1]),
        (Icmpv4::TimeExceeded { code: 1 }, [11, 1, 0, 0, 0, 0]),
        (Icmpv4::ParameterProblem { code: 0, pointer: 9 }, [12, 0, 9, 0, 0, 0]),
        (Icmpv4::Other { kind: 13, code: 0, word: 0x01020304 }, [13, 0, 1, 2, 3, 4]),
        (Icmpv4::Other { kind: 8, code: 1, word: 0 }, [8, 1, 0, 0, 0, 0]),
    ];
    for (msg, [kind, code, a, b, c, d]) in table {
        for body in [&b""[..], b"odd", b"even"] {
            let mut out = [0xee; 16];
            let len = msg.emit(body, &mut out);
            assert_eq!(len, 8 + body.len());
            assert_eq!(out[..2], [kind, code]);
            assert_eq!(out[4..8], [a, b, c, d]);
            assert_eq!(Icmpv4::parse(&out[..len]), Ok((msg, body)));
            out[len - 1] ^= 1;
            assert_eq!(Icmpv4::parse(&out[..len]), Err(WireError::BadIcmpChecksum));
            assert_eq!(Icmpv4::parse(&out[..7]), Err(WireError::Truncated));
        }
    }
}

#[test]
fn icmp_quotes() {
    let mut quoted = frame().split_off(14);
    // Routers decrement the time to live and need not repair the checksum; the
    // quote ends after eight bytes of TCP.
    quoted[8] = 1;
    quoted.truncate(28);
    let quote = IcmpQuote::parse(&quoted).unwrap();
    assert_eq!(quote.key(), key());
    assert_eq!(quote.seq, Seq(0xfffffffe));
    assert_eq!(quote.ip.protocol, PROTO_TCP);

    let mut message = [0; 64];
    let unreachable = Icmpv4::Unreachable {
        code: 4,
        next_hop_mtu: 576,
    };
    assert!(unreachable.is_error());
    let len = unreachable.emit(&quoted, &mut message);
    let mut packet = [0; 84];
    let ip = Ipv4Hdr {
        src: Ipv4Addr::new(10, 0, 0, 9),
        dst: Ipv4Addr::new(10, 0, 0, 1),
        protocol: PROTO_ICMP,
        ttl: 3,
        tos: 0,
        ident: 1,
        total_len: 20 + len as u16,
        header_len: 20,
        dont_fragment: false,
        more_fragments: false,
        frag_offset: 0,
    };
    ip.emit(&mut packet);
    packet[20..20 + len].copy_from_slice(&message[..len]);
    assert_eq!(
        Frame::parse_ip(&packet, 0, Csum::Verify),
        Ok(Frame::Icmp {
            ip,
            msg: unreachable,
            body: &quoted
        })
    );

    type Change = fn(&mut Vec<u8>);
    let table: &[(Change, WireError)] = &[
        (|q| q.truncate(27), WireError::Truncated),
        (|q| q.truncate(19), WireError::Truncated),
        (|q| q[0] = 0x65, WireError::Truncated),
        (|q| q[0] = 0x55, WireError::BadVersion),
        (|q| q[0] = 0x48, WireError::BadHeaderLen),
        (|q| q[0] = 0x46, WireError::Truncated),
        (|q| q[7] |= 1, WireError::Fragment),
        (|q| q[9] = PROTO_ICMP, WireError::NotTcp),
    ];
    for (i, (change, error)) in table.iter().enumerate() {
        let mut bad = quoted.clone();
        change(&mut bad);
        assert_eq!(IcmpQuote::parse(&bad), Err(*error), "row {i}");
    }
    // The first fragment has the ports.
    quoted[6] |= 0x20;
    assert!(IcmpQuote::parse(&quoted).is_ok());
}

#[test]
fn ipv4_header_fields() {
    let hdr = Ipv4Hdr {
        src: Ipv4Addr::new(1, 2, 3, 4),
        dst: Ipv4Addr::new(5, 6, 7, 8),
        protocol: 99,
        ttl: 255,
        tos: 0xb8,
        ident: 0xbeef,
        total_len: 20,
        header_len: 20,
        dont_fragment: false,
        more_fragments: true,
        frag_offset: 8 * 0x1fff,
    };
    let mut out = [0; 20];
    hdr.emit(&mut out);
    assert_eq!(out[6..8], [0x3f, 0xff]);
    assert_eq!(Ipv4Hdr::parse(&out, true), Ok(hdr));
    assert!(hdr.is_fragment());
    assert_eq!(hdr.payload_len(), 0);
}

#[test]
fn mac_addresses() {
    let mac = MacAddr([0x02, 0xab, 0, 0xff, 0x10, 9]);
    assert_eq!(mac.to_string(), "02:ab:00:ff:10:09");
    for good in ["02:ab:00:ff:10:09", "02-AB-00-ff-10-09"] {
        assert_eq!(good.parse(), Ok(mac));
    }
    for bad in [
        "",
        "02:ab:00:ff:10",
        "02:ab:00:ff:10:9",
        "02:ab:00:ff:10:09:",
        "02:ab:00:ff:10:0g",
        "02:ab-00:ff:10:09",
        "+2:ab:00:ff:10:09",
        "02.ab.00.ff.10.09",
        "02:ab:00:ff:1é:9",
    ] {
        assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
    }
    assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
    assert!(MacAddr([1, 0, 0x5e, 0, 0, 1]).is_multicast());
    assert!(!mac.is_multicast());
}

#[test]
fn flags() {
    let f = TcpFlags::SYN | TcpFlags::ACK;
    assert!(f.contains(TcpFlags::SYN) && f.contains(f) && f.contains(TcpFlags::NONE));
    assert!(!f.contains(TcpFlags::SYN | TcpFlags::FIN));
    assert!(f.intersects(TcpFlags::SYN | TcpFlags::FIN) && !f.intersects(TcpFlags::FIN));
    assert_eq!(f.without(TcpFlags::SYN), TcpFlags::ACK);
    assert_eq!(format!("{f:?} {:?}", TcpFlags::NONE), "SA -");
    assert_eq!(format!("{:?}", TcpFlags(0xff)), "FSRPAUEC");
}

/// The published vectors of the RSS hash, from the receiver's point of view:
/// destination (local), source (remote), hash over addresses and ports.
#[test]
fn toeplitz_vectors() {
    let table = [
        ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x51ccc178),
        ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xc626b0ea),
        ("12.22.207.184", 38024, "24.19.198.95", 12898, 0x5c2b394a),
        ("209.142.163.6", 2217, "38.27.205.30", 48228, 0xafc7327f),
        ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x10e828a2),
        (
            "3ffe:2501:200:3::1",
            1766,
            "3ffe:2501:200:1fff::7",
            2794,
            0x40207d3d,
        ),
        (
            "ff02::1",
            4739,
            "3ffe:501:8::260:97ff:fe40:efab",
            14230,
            0xdde51bbf,
        ),
        (
            "fe80::200:f8ff:fe21:67cf",
            38024,
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            0x02d1feef,
        ),
    ];
    let toeplitz = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
    let mut in_order = 0;
    for (local, local_port, remote, remote_port, hash) in table {
        let key = FlowKey {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            local_port,
            remote_port,
        };
        assert_eq!(toeplitz.hash(&key), toeplitz.hash(&key.reversed()));
        // A NIC puts the source, the remote end, first, and we the lower end.
        if (key.remote, key.remote_port) < (key.local, key.local_port) {
            assert_eq!(toeplitz.hash(&key), hash, "{key}");
            in_order += 1;
        }
    }
    assert!(in_order > 1, "{in_order}");
}

#[test]
fn flows_print_as_socket_addresses() {
    assert_eq!(key().to_string(), "10.0.0.1:4660 -> 10.0.0.2:80");
}

/// RFC 1071, section 3, and lengths around the steps of the wide loop.
#[test]
fn checksum_values() {
    let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(checksum::fold(checksum::sum(&example, 0)), 0xddf2);
    assert_eq!(checksum::checksum(&[]), 0xffff);
    assert_eq!(checksum::checksum(&[0xff]), 0x00ff);
    assert_eq!(checksum::sum(&[0; 200], 0), 0);
    assert_eq!(checksum::sum(&[0xff; 65536], 0xffff_ffff), 0xffff);
    assert_eq!(checksum::fold(0xffff_ffff), 0xffff);
    assert_eq!(checksum::fold(0x0001_ffff), 0x0001);
}

/// RFC 1624, section 5: the case on which the older equation gives 0xffff.
#[test]
fn incremental_update() {
    assert_eq!(checksum::update16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn templates() {
    let l2 = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let mut template = Template::new_v4(Some(l2), &key(), 64, 0, false);
    template.set_l2_dst(MacAddr([9; 6]));
    template.set_tos(0b11);
    template.set_ttl(9);
    assert_eq!(template.ttl(), 9);
    let seg = SegOut {
        flags: TcpFlags::SYN,
        ..SegOut::default()
    };
    let mut out = [0xee; MAX_HEADERS];
    let len = template.emit(&mut out, 1, &seg, 3);
    assert_eq!(len, 54);
    assert_eq!(out[..6], [9; 6]);
    let odd: [&[u8]; 3] = [b"a", b"b", b"c"];
    finish_checksum(&mut out[..len], 14, odd);
    out[len..len + 3].copy_from_slice(b"abc");
    let tcp = parse_ipv4_tcp(&out[14..], 14, Csum::Verify).unwrap();
    assert_eq!((tcp.tos, tcp.payload_len), (0b11, 3));
    assert_eq!((out[20] & 0x40, out[22]), (0, 9));

    let mut plain = Template::new_v4(None, &key(), 64, 0, true);
    plain.set_l2_dst(MacAddr([9; 6]));
    assert_eq!(plain.l2_len(), 0);
    let len = plain.emit(&mut out, 1, &seg, 0);
    assert_eq!((len, out[0]), (40, 0x45));
    assert!(size_of::<Template>() <= 96);
}

/// The header of a datagram, of either family, as `IpHdr` writes it.
#[test]
fn a_datagram_of_either_family() {
    use perimeter_wire::IpHdr;
    let hdr = |src: &str, dst: &str, len: usize| {
        let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        IpHdr {
            src,
            dst,
            protocol: 17,
            hop_limit: 64,
            tos: 0b10,
            header_len: IpHdr::len_to(dst) as u16,
            total_len: (IpHdr::len_to(dst) + len) as u32,
        }
    };
    let mut out = [0; 64];
    let four = hdr("10.0.0.1", "10.0.0.2", 9);
    assert_eq!((four.emit(&mut out), four.ethertype()), (20, 0x0800));
    let read = Ipv4Hdr::parse(&out[..29], true).unwrap();
    assert_eq!(IpHdr::from(read), four);
    let six = hdr("2001:db8::1", "2001:db8::2", 9);
    assert_eq!((six.emit(&mut out), six.ethertype()), (40, 0x86dd));
    // Version, class and label; length of the payload, next header, hop limit (RFC 8200, 3).
    assert_eq!(out[..8], [0x60, 0x20, 0, 0, 0, 9, 17, 64]);
    let (src, dst) = out[8..40].split_at(16);
    assert_eq!((src[..4].to_vec(), src[15]), (vec![0x20, 1, 0xd, 0xb8], 1));
    assert_eq!((dst[..4].to_vec(), dst[15]), (vec![0x20, 1, 0xd, 0xb8], 2));
}

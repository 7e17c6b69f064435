//! Feeds bytes to every parser: none may panic, lengths that they return lie
//! within the input, and what is read can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use perimeter_wire::{
    ArpPacket, Csum, EtherHdr, Frame, IcmpQuote, Icmpv4, Icmpv6, Ipv4Hdr, Ipv6Hdr, Ndp, TcpFrame,
    TcpHdr, checksum, parse_ipv4_tcp, parse_ipv4_tcp_into, parse_ipv6_tcp_into,
};

fn ethernet(bytes: &[u8]) {
    for csum in [Csum::Trust, Csum::Verify] {
        if let Ok(Frame::Tcp(tcp)) = Frame::parse_ethernet(bytes, csum) {
            let end = tcp.payload_off as usize + tcp.payload_len as usize;
            assert!(tcp.payload_off >= 54 && end <= bytes.len());
            let mut slot = TcpFrame::default();
            let parsed = match bytes[14] >> 4 {
                6 => parse_ipv6_tcp_into(&bytes[14..], 14, csum, &mut slot),
                _ => parse_ipv4_tcp_into(&bytes[14..], 14, csum, &mut slot),
            };
            assert_eq!(parsed, Ok(()));
            assert_eq!(slot, tcp);
        }
    }
    if let Ok(eth) = EtherHdr::parse(bytes) {
        let mut out = [0; EtherHdr::LEN];
        eth.emit(&mut out);
        assert_eq!(out, bytes[..EtherHdr::LEN]);
    }
}

fn arp(bytes: &[u8]) {
    if let Ok(packet) = ArpPacket::parse(bytes) {
        let mut out = [0; ArpPacket::LEN];
        packet.emit(&mut out);
        assert_eq!(out, bytes[..ArpPacket::LEN]);
    }
}

/// With the checksums put right, so that what lies behind them is reached.
fn datagram(bytes: &[u8]) {
    let Ok(ip) = Ipv4Hdr::parse(bytes, false) else {
        assert!(parse_ipv4_tcp(bytes, 0, Csum::Verify).is_err());
        return;
    };
    let mut bytes = bytes.to_vec();
    let header_len = usize::from(ip.header_len);
    bytes[10..12].fill(0);
    let check = checksum::checksum(&bytes[..header_len]);
    bytes[10..12].copy_from_slice(&check.to_be_bytes());
    assert_eq!(Ipv4Hdr::parse(&bytes, true), Ok(ip));
    let segment = &mut bytes[header_len..usize::from(ip.total_len)];
    if segment.len() >= 20 {
        let check = checksum::tcp_checksum_v4(ip.src, ip.dst, segment);
        segment[16..18].copy_from_slice(&check.to_be_bytes());
        assert!(checksum::verify_tcp(ip.src.into(), ip.dst.into(), segment));
    }
    let trusted = parse_ipv4_tcp(&bytes, 0, Csum::Trust);
    assert_eq!(trusted, parse_ipv4_tcp(&bytes, 0, Csum::Verify));
}

/// As [`datagram`], of IPv6: extension headers, and ICMPv6 with its checksum put right.
fn datagram6(bytes: &[u8]) {
    let Ok(ip) = Ipv6Hdr::parse(bytes) else {
        let _ = Ipv6Hdr::problem(bytes);
        return;
    };
    assert_eq!(Ipv6Hdr::problem(bytes), None);
    let (head, end) = (usize::from(ip.header_len), ip.total_len as usize);
    assert!((40..=296).contains(&head) && head <= end && end <= bytes.len());
    let mut message = bytes[head..end].to_vec();
    if message.len() >= Icmpv6::LEN {
        message[2..4].fill(0);
        let pseudo = checksum::pseudo_v6(ip.src, ip.dst, 58, message.len() as u32);
        let check = !checksum::fold(checksum::sum(&message, pseudo));
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let (msg, body) = Icmpv6::parse(ip.src, ip.dst, &message).expect("long enough and summed");
        let mut out = vec![0; message.len()];
        assert_eq!(msg.emit(ip.src, ip.dst, body, &mut out), message.len());
        assert_eq!(Icmpv6::parse(ip.src, ip.dst, &out), Ok((msg, body)));
        let _ = IcmpQuote::parse(body).map(|quote| quote.key());
        if let Icmpv6::Other { kind, code, word } = msg {
            let ends = (ip.src, ip.dst, ip.hop_limit);
            if let Ok(ndp) = Ndp::parse(ends, (kind, code, word), body) {
                let mut again = [0; Ndp::MAX_EMITTED];
                let _ = ndp.emit(ip.src, ip.dst, &mut again);
            }
        }
    }
}

fn icmp(bytes: &[u8]) {
    let _ = Icmpv4::parse(bytes);
    let mut bytes = bytes.to_vec();
    if bytes.len() >= Icmpv4::LEN {
        bytes[2..4].fill(0);
        let check = checksum::checksum(&bytes);
        bytes[2..4].copy_from_slice(&check.to_be_bytes());
        let (msg, body) = Icmpv4::parse(&bytes).expect("long enough and summed");
        let _ = IcmpQuote::parse(body).map(|quote| quote.key());
        let mut out = vec![0; bytes.len()];
        assert_eq!(msg.emit(body, &mut out), bytes.len());
        assert_eq!(Icmpv4::parse(&out), Ok((msg, body)));
    }
}

fn tcp(bytes: &[u8]) {
    if let Ok(parsed) = TcpHdr::parse_noting(bytes) {
        assert!(usize::from(parsed.header_len) <= bytes.len());
        let mut out = [0; 60];
        let len = parsed.hdr.emit(&mut out);
        let again = TcpHdr::parse_noting(&out[..len]).expect("our own header");
        assert!(!again.bad_options);
        assert_eq!(again.hdr, parsed.hdr);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else {
        return;
    };
    match which % 6 {
        0 => ethernet(bytes),
        1 => arp(bytes),
        2 => datagram(bytes),
        3 => icmp(bytes),
        4 => datagram6(bytes),
        _ => tcp(bytes),
    }
});

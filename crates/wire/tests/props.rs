//! Properties over random input: no bytes make a parser panic, what is emitted
//! is read back, and the laws of sequence and checksum arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use perimeter_wire::dhcp::DhcpReply;
use perimeter_wire::ipv6::without_zone;
use perimeter_wire::{
    ArpPacket, Csum, EtherHdr, FlowKey, Frame, IcmpQuote, Icmpv4, Ipv4Hdr, MAX_HEADERS, MacAddr,
    PROTO_TCP, SackBlocks, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions, Template, Toeplitz, checksum,
    finish_checksum, finish_checksum_in_frame, parse_ipv4_tcp,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Sequence numbers, one half of them near the ends and the middle of the
/// circle.
fn seq() -> impl Strategy<Value = Seq> {
    prop_oneof![
        any::<u32>(),
        (0u32..16).prop_map(|d| d.wrapping_sub(8)),
        (0u32..16).prop_map(|d| (1u32 << 31).wrapping_add(d).wrapping_sub(8)),
    ]
    .prop_map(Seq)
}

fn sack() -> impl Strategy<Value = SackBlocks> {
    vec((seq(), seq()), 0..=4).prop_map(|blocks| {
        let mut sack = SackBlocks::default();
        for (l, r) in blocks {
            sack.push(l, r);
        }
        sack
    })
}

prop_compose! {
    fn options()(
        mss in proptest::option::of(1u16..),
        wscale in proptest::option::of(0u8..=14),
        sack_permitted: bool,
        ts in any::<Option<(u32, u32)>>(),
        sack in sack(),
    ) -> TcpOptions {
        TcpOptions { mss, wscale, sack_permitted, ts, sack }
    }
}

prop_compose! {
    fn seg()(seq in seq(), ack in seq(), flags: u8, window: u16, urgent: u16, opts in options())
        -> SegOut
    {
        SegOut { seq, ack, flags: TcpFlags(flags), window, urgent, opts }
    }
}

fn v4_key() -> impl Strategy<Value = FlowKey> {
    any::<(Ipv4Addr, Ipv4Addr, u16, u16)>().prop_map(|(l, r, local_port, remote_port)| FlowKey {
        local: IpAddr::V4(l),
        remote: IpAddr::V4(r),
        local_port,
        remote_port,
    })
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    any::<(IpAddr, IpAddr, u16, u16)>().prop_map(|(local, remote, local_port, remote_port)| {
        FlowKey {
            local,
            remote,
            local_port,
            remote_port,
        }
    })
}

/// What of `opts` the wire carries on a segment with or without SYN.
fn carried(opts: &TcpOptions, syn: bool) -> TcpOptions {
    let mut sack = SackBlocks::default();
    if syn {
        return TcpOptions { sack, ..*opts };
    }
    let room = if opts.ts.is_some() { 3 } else { 4 };
    for &(l, r) in opts.sack.as_slice().iter().take(room) {
        sack.push(l, r);
    }
    TcpOptions {
        ts: opts.ts,
        sack,
        ..TcpOptions::default()
    }
}

/// Calls every parser; the properties that hold for any bytes.
fn parse_everything(bytes: &[u8]) {
    let _ = EtherHdr::parse(bytes);
    let _ = ArpPacket::parse(bytes);
    for verify in [false, true] {
        if let Ok(ip) = Ipv4Hdr::parse(bytes, verify) {
            assert!((20..=60).contains(&ip.header_len));
            assert!(u16::from(ip.header_len) <= ip.total_len);
            assert!(usize::from(ip.total_len) <= bytes.len());
        }
    }
    if let Ok((msg, body)) = Icmpv4::parse(bytes) {
        assert_eq!(body.len() + 8, bytes.len());
        let _ = msg.is_error();
    }
    let _ = IcmpQuote::parse(bytes).map(|q| q.key());
    if let Ok((hdr, offset)) = TcpHdr::parse(bytes) {
        assert!((20..=60).contains(&offset) && offset <= bytes.len());
        assert!(hdr.header_len() <= 60);
    }
    for syn in [false, true] {
        let (opts, _) = TcpOptions::parse(bytes, syn);
        assert!(opts.wscale.is_none_or(|w| w <= 14));
    }
    for csum in [Csum::Verify, Csum::Trust] {
        for parsed in [
            Frame::parse_ethernet(bytes, csum),
            Frame::parse_ip(bytes, 0, csum),
            parse_ipv4_tcp(bytes, 0, csum).map(Frame::Tcp),
        ] {
            if let Ok(Frame::Tcp(tcp)) = parsed {
                let end = tcp.payload_off as usize + tcp.payload_len as usize;
                assert!(end <= bytes.len());
            }
        }
    }
    let v4 = Ipv4Addr::LOCALHOST;
    let _ = checksum::verify_tcp(v4.into(), v4.into(), bytes);
    let _ = checksum::tcp_checksum_v4(v4, v4, bytes);
}

/// The definition of RFC 1071, one word at a time.
fn naive_sum(bytes: &[u8], init: u32) -> u16 {
    let mut sum = u64::from(init);
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// A frame of a template with data and complete checksums.
fn build(template: &Template, ident: u16, seg: &SegOut, data: &[u8]) -> Vec<u8> {
    let mut out = [0xa5; MAX_HEADERS];
    let len = template.emit(&mut out, ident, seg, data.len() as u32);
    let mut frame = out[..len].to_vec();
    frame.extend(data);
    finish_checksum_in_frame(&mut frame, template.l2_len());
    frame
}

const L2: (MacAddr, MacAddr) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        parse_everything(&bytes);
    }

    /// Random bytes rarely get past the first checks; a valid start does.
    #[test]
    fn random_bytes_after_a_plausible_start_never_panic(
        mut bytes in vec(any::<u8>(), 20..120), ihl in 4u8..16, offset in 4u8..16,
    ) {
        bytes[0] = 0x40 | ihl;
        bytes[6..8].fill(0);
        bytes[9] = [1, 6, 17, 6][usize::from(bytes[8] & 3)];
        let total = bytes.len() as u16 - u16::from(bytes[2] & 7);
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        if let Some(byte) = bytes.get_mut(usize::from(ihl) * 4 + 12) {
            *byte = offset << 4;
        }
        parse_everything(&bytes);
        let mut frame = vec![0; 12];
        frame.extend([8, 0]);
        frame.extend(&bytes);
        parse_everything(&frame);
    }

    /// A server's message by its fixed part, with any options, and those in the fields for names.
    #[test]
    fn random_options_of_dhcp_never_panic(options in vec(any::<u8>(), 0..300), names in any::<[u8; 8]>()) {
        let mut m = vec![0; 240];
        m[..3].copy_from_slice(&[2, 1, 6]);
        m[44..52].copy_from_slice(&names);
        m[108..116].copy_from_slice(&names);
        m[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
        let _ = DhcpReply::parse(&options);
        for start in [&[53u8, 1, 5][..], &[53, 1, 2, 52, 1, 3, 54]] {
            let whole = [&m[..], start, &options].concat();
            let _ = DhcpReply::parse(&whole);
        }
    }

    #[test]
    fn damaged_frames_never_panic(
        key in v4_key(), seg in seg(), data in vec(any::<u8>(), 0..40),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let template = Template::new_v4(Some(L2), &key, 64, 0, true);
        let mut frame = build(&template, 1, &seg, &data);
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        parse_everything(&frame);
        parse_everything(&frame[14..]);
        parse_everything(&frame[34..]);
        frame.truncate(cut.index(frame.len() + 1));
        parse_everything(&frame);
    }

    /// RFC 1071: any change of up to 15 bits within a burst is detected.
    #[test]
    fn a_burst_of_15_bits_is_always_detected(
        key in v4_key(), seg in seg(), data in vec(any::<u8>(), 0..40),
        pattern in 1u16..0x8000, at in any::<prop::sample::Index>(),
    ) {
        let template = Template::new_v4(None, &key, 64, 0, true);
        let good = build(&template, 1, &seg, &data);
        let mut bad = good.clone();
        let first = at.index(bad.len() * 8 - 14);
        for bit in 0..15 {
            if pattern >> bit & 1 == 1 {
                bad[(first + bit) / 8] ^= 0x80 >> ((first + bit) % 8);
            }
        }
        prop_assert!(parse_ipv4_tcp(&good, 0, Csum::Verify).is_ok());
        prop_assert!(parse_ipv4_tcp(&bad, 0, Csum::Verify).is_err());
    }

    #[test]
    fn tcp_headers_round_trip(seg in seg(), src: u16, dst: u16, tail in vec(any::<u8>(), 0..9)) {
        let hdr = seg.to_hdr(src, dst);
        let syn = hdr.flags.contains(TcpFlags::SYN);
        let mut bytes = vec![0xee; 60];
        let len = hdr.emit(&mut bytes);
        prop_assert_eq!(len, hdr.header_len());
        prop_assert_eq!(len, seg.header_len());
        prop_assert!(len % 4 == 0 && len <= 60);
        prop_assert!(bytes[len..].iter().all(|&b| b == 0xee));
        bytes.truncate(len);
        bytes.extend(&tail);
        let parsed = TcpHdr::parse_noting(&bytes).unwrap();
        prop_assert!(!parsed.bad_options);
        prop_assert_eq!(usize::from(parsed.header_len), len);
        let expected = TcpHdr { opts: carried(&hdr.opts, syn), ..hdr };
        prop_assert_eq!(parsed.hdr, expected);
    }

    /// Whatever options a peer sends, what we make of them can be sent and is
    /// read again as the same.
    #[test]
    fn any_header_read_can_be_written(
        mut bytes in vec(any::<u8>(), 60), words in 5u8..=15, kinds in vec(0u8..10, 0..8),
        lens in vec(0u8..12, 0..8), at in vec(20usize..59, 8),
    ) {
        bytes[12] = words << 4;
        // Random kinds are mostly unknown; plant some that are known.
        for ((kind, len), at) in kinds.iter().zip(&lens).zip(at) {
            bytes[at] = *kind;
            bytes[at + 1] = *len;
        }
        let (hdr, offset) = TcpHdr::parse(&bytes).unwrap();
        prop_assert_eq!(offset, usize::from(words) * 4);
        let mut out = [0; 60];
        let len = hdr.emit(&mut out);
        let again = TcpHdr::parse_noting(&out[..len]).unwrap();
        prop_assert!(!again.bad_options);
        prop_assert_eq!(again.hdr, hdr);
    }

    #[test]
    fn templates_round_trip(
        key in v4_key(), seg in seg(), data in vec(any::<u8>(), 0..80),
        ident: u16, ttl: u8, tos: u8, df: bool, ethernet: bool,
    ) {
        let l2 = ethernet.then_some(L2);
        let template = Template::new_v4(l2, &key, ttl, tos, df);
        let frame = build(&template, ident, &seg, &data);
        let l2_len = template.l2_len();
        prop_assert_eq!(l2_len, if ethernet { 14 } else { 0 });
        if ethernet {
            let eth = EtherHdr::parse(&frame).unwrap();
            prop_assert_eq!((eth.src, eth.dst, eth.ethertype), (L2.0, L2.1, 0x0800));
        }
        let ip = Ipv4Hdr::parse(&frame[l2_len..], true).unwrap();
        prop_assert_eq!((ip.ident, ip.dont_fragment, ip.protocol), (ident, df, PROTO_TCP));
        let mut again = [0; 20];
        ip.emit(&mut again);
        prop_assert_eq!(&again[..], &frame[l2_len..l2_len + 20]);

        let tcp = parse_ipv4_tcp(&frame[l2_len..], l2_len, Csum::Verify).unwrap();
        prop_assert_eq!(tcp.key, key.reversed());
        prop_assert_eq!((tcp.tos, tcp.ttl), (tos, ttl));
        prop_assert_eq!(&frame[tcp.payload_off as usize..], &data[..]);
        let syn = seg.flags.contains(TcpFlags::SYN);
        let mut hdr = seg.to_hdr(key.local_port, key.remote_port);
        // The template's emission and the header's are two code paths.
        let mut plain = [0; 60];
        let len = hdr.emit(&mut plain);
        plain[16..18].copy_from_slice(&frame[l2_len + 36..l2_len + 38]);
        prop_assert_eq!(&plain[..len], &frame[l2_len + 20..frame.len() - data.len()]);
        hdr.opts = carried(&hdr.opts, syn);
        prop_assert_eq!(tcp.hdr, hdr);
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (key.local, key.remote) else { unreachable!() };
        let segment = &frame[l2_len + 20..];
        let field = u16::from_be_bytes([segment[16], segment[17]]);
        prop_assert_eq!(checksum::tcp_checksum_v4(src, dst, segment), field);
        prop_assert!(checksum::verify_tcp(key.local, key.remote, segment));
    }

    /// The checksum does not depend on how the data are cut.
    #[test]
    fn checksum_over_parts(
        key in v4_key(), seg in seg(), parts in vec(vec(any::<u8>(), 0..9), 0..8),
    ) {
        let template = Template::new_v4(Some(L2), &key, 64, 0, true);
        let data = parts.concat();
        let whole = build(&template, 1, &seg, &data);
        let mut out = [0; MAX_HEADERS];
        let len = template.emit(&mut out, 1, &seg, data.len() as u32);
        finish_checksum(&mut out[..len], 14, parts.iter().map(|p| &p[..]));
        prop_assert_eq!(&out[..len], &whole[..len]);
    }

    #[test]
    fn sums_agree_with_the_definition(
        bytes in vec(any::<u8>(), 0..400), init: u32, cut in any::<prop::sample::Index>(),
    ) {
        let sum = checksum::sum(&bytes, init);
        prop_assert!(sum <= 0xffff);
        prop_assert_eq!(sum as u16, naive_sum(&bytes, init));
        prop_assert_eq!(checksum::checksum(&bytes), !naive_sum(&bytes, 0));
        let (a, b) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(checksum::sum_parts([a, b], init), sum);
    }

    #[test]
    fn incremental_updates_agree(mut bytes in vec(any::<u8>(), 4..40), new: u16) {
        // A sum that is not zero, as that of any IP header.
        bytes[0] = 0x45;
        let before = checksum::checksum(&bytes);
        let old = u16::from_be_bytes([bytes[2], bytes[3]]);
        bytes[2..4].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(
            checksum::update16(before, old, new),
            checksum::checksum(&bytes)
        );
    }

    #[test]
    fn tcp_over_ipv6_verifies(src: Ipv6Addr, dst: Ipv6Addr, seg in seg(), flip in 0usize..160) {
        // As addresses are on the wire.
        let (src, dst) = (without_zone(src), without_zone(dst));
        let mut bytes = [0; 60];
        let len = seg.to_hdr(1, 2).emit(&mut bytes);
        let check = {
            // The pseudo-header of RFC 8200 spelled out.
            let mut all = src.octets().to_vec();
            all.extend(dst.octets());
            all.extend((len as u32).to_be_bytes());
            all.extend([0, 0, 0, PROTO_TCP]);
            all.extend(&bytes[..len]);
            !naive_sum(&all, 0)
        };
        bytes[16..18].copy_from_slice(&check.to_be_bytes());
        let verify = |b: &[u8]| checksum::verify_tcp(src.into(), dst.into(), b);
        prop_assert!(verify(&bytes[..len]));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(!verify(&bytes[..len]));
        prop_assert!(!checksum::verify_tcp(src.into(), Ipv4Addr::LOCALHOST.into(), &bytes[..len]));
    }

    #[test]
    fn sequence_laws(a in seq(), b in seq(), n: u32) {
        prop_assert_eq!(a + n - n, a);
        prop_assert_eq!((a + n).since(a), n);
        prop_assert_eq!((a + n).diff(a), n as i32);
        prop_assert_eq!(a + b.since(a), b);
        let mut c = a;
        c += n;
        prop_assert_eq!(c, a + n);
        c -= n;
        prop_assert_eq!(c, a);
        prop_assert_eq!(a.lt(b), b.gt(a));
        prop_assert_eq!(a.le(b), b.ge(a));
        prop_assert_eq!(a.le(b), a == b || a.lt(b));
        prop_assert!(a.le(a) && a.ge(a) && !a.lt(a) && !a.gt(a));
        if a.since(b) != 1 << 31 {
            // Exactly one of before, equal and after.
            let ways = [a.lt(b), a == b, a.gt(b)];
            prop_assert_eq!(ways.iter().filter(|&&w| w).count(), 1);
            prop_assert_eq!(a.max(b), b.max(a));
            prop_assert_eq!(a.min(b), b.min(a));
            prop_assert!(a.max(b).ge(a) && a.max(b).ge(b));
            prop_assert!(a.min(b).le(a) && a.min(b).le(b));
        } else {
            prop_assert!(a.lt(b) && b.lt(a));
        }
    }

    /// Within half the circle the order is a real one, also across 2³².
    #[test]
    fn order_within_a_window(base in seq(), x in 0u32..1 << 31, y in 0u32..1 << 31) {
        let (a, b) = (base + x, base + y);
        prop_assert_eq!(a.lt(b), x < y);
        prop_assert_eq!(a.le(b), x <= y);
        prop_assert_eq!(a.max(b), base + x.max(y));
        prop_assert_eq!(a.min(b), base + x.min(y));
    }

    #[test]
    fn ranges(lo in seq(), len: u32, at: u32) {
        let hi = lo + len;
        prop_assert_eq!((lo + at).between(lo, hi), at < len);
        prop_assert_eq!(lo.between(lo, hi), len > 0);
        prop_assert!(!hi.between(lo, hi));
    }

    #[test]
    fn hashes_are_normalised(key in any_key(), seed in any::<[u8; 20]>()) {
        let mut secret = [0; 40];
        secret[..20].copy_from_slice(&seed);
        secret[20..].copy_from_slice(&seed.map(|b| b.rotate_left(3) ^ 0x5a));
        let toeplitz = Toeplitz::new(&secret);
        prop_assert_eq!(toeplitz.hash(&key), toeplitz.hash(&key.reversed()));
        prop_assert_eq!(key.reversed().reversed(), key);
    }
}

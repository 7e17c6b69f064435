//! An independent implementation, the crate etherparse, reads what we write and
//! writes what we read.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpHardwareId, ArpOperation, EtherType, Ethernet2Header, Icmpv4Header,
    Icmpv4Type, IpDscp, IpEcn, IpNumber, Ipv4Header, TcpHeader, TcpOptionElement, icmpv4,
};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, EtherHdr, FlowKey, Frame, Icmpv4, Ipv4Hdr, MAX_HEADERS, MacAddr,
    SackBlocks, SegOut, Seq, TcpFlags, TcpOptions, Template, WireError, checksum, finish_checksum,
    parse_ipv4_tcp,
};
use proptest::collection::vec;
use proptest::prelude::*;

prop_compose! {
    fn seg()(
        numbers in any::<[u32; 2]>(), flags: u8, window: u16, urgent: u16,
        mss in proptest::option::of(1u16..),
        wscale in proptest::option::of(0u8..=14),
        sack_permitted: bool,
        ts in any::<Option<(u32, u32)>>(),
        blocks in vec(any::<(u32, u32)>(), 0..=4),
    ) -> SegOut {
        let mut sack = SackBlocks::default();
        for (l, r) in blocks {
            sack.push(Seq(l), Seq(r));
        }
        SegOut {
            seq: Seq(numbers[0]),
            ack: Seq(numbers[1]),
            flags: TcpFlags(flags),
            window,
            urgent,
            opts: TcpOptions { mss, wscale, sack_permitted, ts, sack },
        }
    }
}

/// The options that a segment of ours carries, as the oracle names them.
fn elements(opts: &TcpOptions, syn: bool) -> Vec<TcpOptionElement> {
    let mut all = vec![];
    if syn {
        all.extend(opts.mss.map(TcpOptionElement::MaximumSegmentSize));
        if opts.sack_permitted {
            all.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
    }
    all.extend(opts.ts.map(|(v, e)| TcpOptionElement::Timestamp(v, e)));
    if syn {
        all.extend(opts.wscale.map(TcpOptionElement::WindowScale));
    } else {
        let room = if opts.ts.is_some() { 3 } else { 4 };
        let mut blocks = opts
            .sack
            .as_slice()
            .iter()
            .take(room)
            .map(|(l, r)| (l.0, r.0));
        if let Some(first) = blocks.next() {
            let rest = [blocks.next(), blocks.next(), blocks.next()];
            all.push(TcpOptionElement::SelectiveAcknowledgement(first, rest));
        }
    }
    all
}

fn flags(h: &TcpHeader) -> TcpFlags {
    let bits = [h.fin, h.syn, h.rst, h.psh, h.ack, h.urg, h.ece, h.cwr];
    TcpFlags(
        bits.iter()
            .enumerate()
            .map(|(i, &b)| u8::from(b) << i)
            .sum(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn reads_our_segments(
        src: Ipv4Addr, dst: Ipv4Addr, ports in any::<(u16, u16)>(), seg in seg(),
        data in vec(any::<u8>(), 0..60), ident: u16, ttl: u8, tos: u8, df: bool,
    ) {
        let key = FlowKey {
            local: IpAddr::V4(src), remote: IpAddr::V4(dst),
            local_port: ports.0, remote_port: ports.1,
        };
        let l2 = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let template = Template::new_v4(Some(l2), &key, ttl, tos, df);
        let mut out = [0; MAX_HEADERS];
        let len = template.emit(&mut out, ident, &seg, data.len() as u32);
        let headers = &mut out[..len];
        // Unfinished, the field holds the sum of the pseudo-header.
        let pseudo = checksum::pseudo_v4(src, dst, 6, (len - 34 + data.len()) as u16);
        prop_assert_eq!(u16::from_be_bytes([headers[50], headers[51]]), checksum::fold(pseudo));
        finish_checksum(headers, 14, [&data[..]]);

        let (eth, rest) = Ethernet2Header::from_slice(headers).unwrap();
        prop_assert_eq!((eth.source, eth.destination), (l2.0.0, l2.1.0));
        prop_assert_eq!(eth.ether_type, EtherType::IPV4);
        let (ip, rest) = Ipv4Header::from_slice(rest).unwrap();
        prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        prop_assert_eq!((ip.source, ip.destination), (src.octets(), dst.octets()));
        prop_assert_eq!(usize::from(ip.total_len), len - 14 + data.len());
        prop_assert_eq!((ip.identification, ip.time_to_live), (ident, ttl));
        prop_assert_eq!(ip.dscp.value() << 2 | ip.ecn.value(), tos);
        prop_assert_eq!((ip.dont_fragment, ip.more_fragments), (df, false));
        prop_assert_eq!(ip.fragment_offset.value(), 0);
        prop_assert_eq!(ip.protocol, IpNumber::TCP);
        let (tcp, rest) = TcpHeader::from_slice(rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, &data).unwrap());
        prop_assert_eq!((tcp.source_port, tcp.destination_port), ports);
        prop_assert_eq!(tcp.sequence_number, seg.seq.0);
        prop_assert_eq!(tcp.acknowledgment_number, seg.ack.0);
        prop_assert_eq!(flags(&tcp), seg.flags);
        prop_assert_eq!((tcp.window_size, tcp.urgent_pointer), (seg.window, seg.urgent));
        let read: Result<Vec<_>, _> = tcp.options_iterator().collect();
        let read: Vec<_> = read.unwrap().into_iter()
            .filter(|o| *o != TcpOptionElement::Noop).collect();
        prop_assert_eq!(read, elements(&seg.opts, tcp.syn));
    }

    /// Options here come in any order and alignment.
    #[test]
    fn we_read_its_segments(
        src: Ipv4Addr, dst: Ipv4Addr, ports in any::<(u16, u16)>(), seg in seg(),
        data in vec(any::<u8>(), 0..60), ident: u16, ttl: u8, tos: u8,
        order in Just([0usize, 1, 2, 3]).prop_shuffle(), nops in 0usize..3,
    ) {
        let syn = seg.flags.contains(TcpFlags::SYN);
        let all = elements(&seg.opts, syn);
        let mut shuffled = vec![TcpOptionElement::Noop; nops];
        shuffled.extend(order.iter().filter_map(|&i| all.get(i).cloned()));
        let mut tcp = TcpHeader::new(ports.0, ports.1, seg.seq.0, seg.window);
        tcp.acknowledgment_number = seg.ack.0;
        tcp.urgent_pointer = seg.urgent;
        for (i, bit) in [&mut tcp.fin, &mut tcp.syn, &mut tcp.rst, &mut tcp.psh,
            &mut tcp.ack, &mut tcp.urg, &mut tcp.ece, &mut tcp.cwr].into_iter().enumerate()
        {
            *bit = seg.flags.0 >> i & 1 == 1;
        }
        prop_assume!(tcp.set_options(&shuffled).is_ok());
        let len = tcp.header_len() + data.len();
        let mut ip = Ipv4Header::new(len as u16, ttl, IpNumber::TCP, src.octets(), dst.octets())
            .unwrap();
        ip.identification = ident;
        ip.dscp = IpDscp::try_new(tos >> 2).unwrap();
        ip.ecn = IpEcn::try_new(tos & 3).unwrap();
        ip.header_checksum = ip.calc_header_checksum();
        tcp.checksum = tcp.calc_checksum_ipv4(&ip, &data).unwrap();
        let mut packet = ip.to_bytes().to_vec();
        packet.extend(&tcp.to_bytes()[..]);
        packet.extend(&data);

        let frame = parse_ipv4_tcp(&packet, 14, Csum::Verify).unwrap();
        prop_assert!(!frame.bad_options);
        prop_assert_eq!(frame.key.remote, IpAddr::V4(src));
        prop_assert_eq!(frame.key.local, IpAddr::V4(dst));
        prop_assert_eq!((frame.key.remote_port, frame.key.local_port), ports);
        prop_assert_eq!((frame.tos, frame.ttl), (tos, ttl));
        prop_assert_eq!(frame.payload_len as usize, data.len());
        prop_assert_eq!(&packet[frame.payload_off as usize - 14..], &data[..]);
        prop_assert_eq!(elements(&frame.hdr.opts, syn), all);
        let hdr = seg.to_hdr(ports.0, ports.1);
        let opts = frame.hdr.opts;
        prop_assert_eq!(perimeter_wire::TcpHdr { opts, ..hdr }, frame.hdr);
    }

    #[test]
    fn ip_headers_both_ways(
        src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, ttl: u8, tos: u8, ident: u16,
        fragment in 0u16..0x2000, dont_fragment: bool, more_fragments: bool,
        payload in 0u16..40, options in vec(any::<u32>(), 0..10),
    ) {
        let mut theirs = Ipv4Header::new(payload, ttl, IpNumber(protocol), src.octets(),
            dst.octets()).unwrap();
        theirs.identification = ident;
        theirs.dscp = IpDscp::try_new(tos >> 2).unwrap();
        theirs.ecn = IpEcn::try_new(tos & 3).unwrap();
        theirs.dont_fragment = dont_fragment;
        theirs.more_fragments = more_fragments;
        theirs.fragment_offset = fragment.try_into().unwrap();
        let raw: Vec<u8> = options.iter().flat_map(|w| w.to_be_bytes()).collect();
        theirs.options = raw[..].try_into().unwrap();
        theirs.total_len = payload + theirs.header_len() as u16;
        theirs.header_checksum = theirs.calc_header_checksum();
        let mut bytes = theirs.to_bytes().to_vec();
        bytes.resize(bytes.len() + usize::from(payload), 0);
        // The oracle does not look into options; source routes are refused.
        let ours = match Ipv4Hdr::parse(&bytes, true) {
            Err(WireError::SourceRoute) => {
                prop_assert!(raw.iter().any(|b| matches!(b, 131 | 137)));
                return Ok(());
            }
            ours => ours.unwrap(),
        };
        prop_assert_eq!(ours, Ipv4Hdr {
            src, dst, protocol, ttl, tos, ident, dont_fragment, more_fragments,
            total_len: theirs.total_len,
            header_len: theirs.header_len() as u8,
            frag_offset: fragment * 8,
        });
        prop_assert_eq!(ours.is_fragment(), theirs.is_fragmenting_payload());
        if raw.is_empty() {
            let mut again = [0; 20];
            ours.emit(&mut again);
            prop_assert_eq!(&again[..], &bytes[..20]);
        }
    }

    #[test]
    fn ethernet_and_arp_both_ways(macs in any::<[[u8; 6]; 4]>(), ips in any::<[Ipv4Addr; 2]>(),
        ask: bool, ethertype in 0x600u16..,
    ) {
        let theirs = Ethernet2Header {
            source: macs[0], destination: macs[1], ether_type: EtherType(ethertype),
        };
        let ours = EtherHdr::parse(&theirs.to_bytes()).unwrap();
        prop_assert_eq!((ours.src.0, ours.dst.0, ours.ethertype), (macs[0], macs[1], ethertype));
        let mut again = [0; 14];
        ours.emit(&mut again);
        prop_assert_eq!(again, theirs.to_bytes());

        let theirs = ArpEthIpv4Packet {
            operation: if ask { ArpOperation::REQUEST } else { ArpOperation::REPLY },
            sender_mac: macs[2], sender_ipv4: ips[0].octets(),
            target_mac: macs[3], target_ipv4: ips[1].octets(),
        };
        let bytes = theirs.to_bytes();
        let ours = ArpPacket::parse(&bytes).unwrap();
        prop_assert_eq!(ours, ArpPacket {
            op: if ask { ArpOp::Request } else { ArpOp::Reply },
            sender_mac: MacAddr(macs[2]), sender_ip: ips[0],
            target_mac: MacAddr(macs[3]), target_ip: ips[1],
        });
        let mut again = [0; 28];
        ours.emit(&mut again);
        prop_assert_eq!(&again[..], &bytes[..]);
        let read = etherparse::ArpPacket::from_slice(&again).unwrap();
        prop_assert_eq!(read.hw_addr_type, ArpHardwareId::ETHERNET);
        prop_assert_eq!(read.try_eth_ipv4().unwrap(), theirs);
    }

    #[test]
    fn icmp_both_ways(ident: u16, seq: u16, mtu: u16, which in 0usize..5,
        body in vec(any::<u8>(), 0..40), gateway: Ipv4Addr,
    ) {
        let echo = etherparse::IcmpEchoHeader { id: ident, seq };
        let (theirs, ours) = [
            (Icmpv4Type::EchoRequest(echo), Icmpv4::EchoRequest { ident, seq }),
            (Icmpv4Type::EchoReply(echo), Icmpv4::EchoReply { ident, seq }),
            (
                Icmpv4Type::DestinationUnreachable(
                    icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu }),
                Icmpv4::Unreachable { code: 4, next_hop_mtu: mtu },
            ),
            (
                Icmpv4Type::Redirect(icmpv4::RedirectHeader {
                    code: icmpv4::RedirectCode::RedirectForHost,
                    gateway_internet_address: gateway.octets(),
                }),
                Icmpv4::Redirect { code: 1, gateway },
            ),
            (
                Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit),
                Icmpv4::TimeExceeded { code: 0 },
            ),
        ][which].clone();
        let header = Icmpv4Header::with_checksum(theirs, &body);
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(&body);
        prop_assert_eq!(Icmpv4::parse(&bytes), Ok((ours, &body[..])));
        let mut again = [0; 48];
        let len = ours.emit(&body, &mut again);
        prop_assert_eq!(&again[..len], &bytes[..]);

        let mut packet = Ipv4Header::new(len as u16, 9, IpNumber::ICMP, [1, 2, 3, 4], [5, 6, 7, 8])
            .unwrap();
        packet.header_checksum = packet.calc_header_checksum();
        let mut packet = packet.to_bytes().to_vec();
        packet.extend(&bytes);
        let is_ours = matches!(Frame::parse_ip(&packet, 0, Csum::Verify),
            Ok(Frame::Icmp { msg, body: b, .. }) if msg == ours && b == body);
        prop_assert!(is_ours);
    }
}

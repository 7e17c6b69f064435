//! UDP's header and checksum: cases by hand, laws over random input, and an independent
//! implementation that reads what we write and writes what we read.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use etherparse::{IpNumber, Ipv4Header, PacketHeaders, UdpHeader};
use perimeter_wire::checksum::{fold, sum};
use perimeter_wire::{
    EtherHdr, IpHdr, MAX_HEADERS, MacAddr, UdpHdr, UdpTemplate, WireError, finish_udp,
};
use proptest::collection::vec;
use proptest::prelude::*;

const V4: (IpAddr, IpAddr) = (
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
);

fn v6() -> (IpAddr, IpAddr) {
    let at = |n| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    (at(1), at(2))
}

fn datagram(ends: (IpAddr, IpAddr), data: &[u8]) -> Vec<u8> {
    let mut all = vec![0; UdpHdr::LEN];
    all.extend_from_slice(data);
    UdpHdr {
        src_port: 53,
        dst_port: 1024,
        len: all.len() as u16,
        check: 0,
    }
    .emit(&mut all);
    finish_udp(ends.0, ends.1, &mut all);
    all
}

#[test]
fn lengths_that_can_not_be_are_refused() {
    let whole = datagram(V4, b"abc");
    for (len, want) in [
        (0, Err(WireError::BadUdpLen)),
        (7, Err(WireError::BadUdpLen)),
        (8, Ok(8)),
        (11, Ok(11)),
        (12, Err(WireError::BadUdpLen)),
        (65_535, Err(WireError::BadUdpLen)),
    ] {
        let mut bytes = whole.clone();
        bytes[4..6].copy_from_slice(&u16::to_be_bytes(len));
        assert_eq!(UdpHdr::parse(&bytes).map(|h| h.len), want, "{len}");
    }
    for n in 0..UdpHdr::LEN {
        assert_eq!(UdpHdr::parse(&whole[..n]), Err(WireError::Truncated));
    }
}

#[test]
fn no_checksum_is_for_ipv4_alone() {
    for (ends, want) in [(V4, Ok(())), (v6(), Err(WireError::BadUdpChecksum))] {
        let mut bytes = datagram(ends, b"data");
        bytes[6..8].fill(0);
        let hdr = UdpHdr::parse(&bytes).unwrap();
        assert_eq!(hdr.verify(ends.0, ends.1, &bytes), want);
    }
}

/// Two octets of data can bring the sum to any value, also to that whose complement is 0.
#[test]
fn a_computed_zero_is_sent_as_its_other_form() {
    for ends in [V4, v6()] {
        let found = (0..=u16::MAX).map(|n| datagram(ends, &n.to_be_bytes()));
        let found: Vec<_> = found.filter(|b| b[6..8] == [0xff, 0xff]).collect();
        assert!(!found.is_empty());
        for bytes in found {
            let hdr = UdpHdr::parse(&bytes).unwrap();
            assert_eq!(hdr.verify(ends.0, ends.1, &bytes), Ok(()));
        }
        assert!((0..=u16::MAX).all(|n| datagram(ends, &n.to_be_bytes())[6..8] != [0, 0]));
    }
}

prop_compose! {
    fn ends()(v6: bool, a: [u8; 16], b: [u8; 16]) -> (IpAddr, IpAddr) {
        let four = |x: [u8; 16]| IpAddr::from([x[0], x[1], x[2], x[3]]);
        // Zones are this stack's own, and on no wire.
        let six = |x: [u8; 16]| IpAddr::V6(perimeter_wire::ipv6::without_zone(x.into()));
        match v6 {
            true => (six(a), six(b)),
            false => (four(a), four(b)),
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in vec(any::<u8>(), 0..64), ends in ends()) {
        if let Ok(hdr) = UdpHdr::parse(&bytes) {
            prop_assert!(usize::from(hdr.len) <= bytes.len());
            let _ = hdr.verify(ends.0, ends.1, &bytes[..usize::from(hdr.len)]);
        }
    }

    /// One changed word is noticed, unless it is the length that the parser goes by, or the
    /// checksum itself becomes none.
    #[test]
    fn damage_is_noticed(
        ends in ends(), data in vec(any::<u8>(), 0..1500), at: prop::sample::Index, flip in 1u16..,
    ) {
        let bytes = datagram(ends, &data);
        let hdr = UdpHdr::parse(&bytes).unwrap();
        prop_assert_eq!(hdr.verify(ends.0, ends.1, &bytes), Ok(()));
        let mut bad = bytes.clone();
        let at = at.index(bad.len() / 2) * 2;
        let word = u16::from_be_bytes([bad[at], bad[at + 1]]) ^ flip;
        bad[at..at + 2].copy_from_slice(&word.to_be_bytes());
        // 0 and 0xffff are one number in one's complement.
        let same = [word, word ^ flip].iter().all(|w| [0, 0xffff].contains(w));
        if at != 4 && !same && (at != 6 || word != 0) {
            let hdr = UdpHdr { check: u16::from_be_bytes([bad[6], bad[7]]), ..hdr };
            let seen = hdr.verify(ends.0, ends.1, &bad);
            prop_assert_eq!(seen, Err(WireError::BadUdpChecksum));
        }
    }

    #[test]
    fn the_oracle_reads_what_we_write(
        ends in ends(), ports: (u16, u16), data in vec(any::<u8>(), 0..1400),
        hop_limit in 1u8.., tos: u8, ident: u16, ethernet: bool,
    ) {
        let l2 = ethernet.then_some((MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])));
        let ip = IpHdr {
            src: ends.0,
            dst: ends.1,
            protocol: 0,
            hop_limit,
            tos,
            header_len: 0,
            total_len: 0,
        };
        let t = UdpTemplate::new(l2, &ip, ports, u32::from(ident) << 4);
        let mut out = [0; MAX_HEADERS];
        let n = t.emit(&mut out, ident, data.len() as u32);
        prop_assert_eq!(n, t.len());
        prop_assert_eq!(t.udp_start() + UdpHdr::LEN, n);
        let mut frame = out[..n].to_vec();
        frame.extend_from_slice(&data);
        // What a device does to it.
        let start = t.udp_start();
        let check = match !fold(sum(&frame[start..], 0)) { 0 => 0xffff, c => c };
        frame[start + 6..start + 8].copy_from_slice(&check.to_be_bytes());
        let skip = if ethernet { EtherHdr::LEN } else { 0 };
        prop_assert_eq!(t.ip_len(), n - skip);
        if ends.1.is_ipv6() {
            let first = u32::from_be_bytes(frame[skip..skip + 4].try_into().unwrap());
            prop_assert_eq!(first, 6 << 28 | u32::from(tos) << 20 | u32::from(ident) << 4);
        }
        let read = PacketHeaders::from_ip_slice(&frame[skip..]).unwrap();
        let udp = read.transport.unwrap().udp().unwrap();
        prop_assert_eq!((udp.source_port, udp.destination_port), ports);
        prop_assert_eq!(usize::from(udp.length), UdpHdr::LEN + data.len());
        prop_assert_eq!(read.payload.slice(), &data[..]);
        let want = match (ends.0, ends.1) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                let hdr = Ipv4Header::from_slice(&frame[skip..]).unwrap().0;
                prop_assert_eq!(hdr.header_checksum, hdr.calc_header_checksum());
                prop_assert_eq!((hdr.identification, hdr.time_to_live), (ident, hop_limit));
                prop_assert_eq!(hdr.protocol, IpNumber::UDP);
                udp.calc_checksum_ipv4_raw(s.octets(), d.octets(), &data).unwrap()
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                udp.calc_checksum_ipv6_raw(s.octets(), d.octets(), &data).unwrap()
            }
            _ => unreachable!(),
        };
        prop_assert_eq!(check, want);
        let hdr = UdpHdr::parse(&frame[start..]).unwrap();
        prop_assert_eq!(hdr.verify(ends.0, ends.1, &frame[start..]), Ok(()));
    }

    #[test]
    fn we_read_what_the_oracle_writes(
        ends in ends(), ports: (u16, u16), data in vec(any::<u8>(), 0..1400),
    ) {
        let len = (UdpHdr::LEN + data.len()) as u16;
        let mut hdr = UdpHeader {
            source_port: ports.0, destination_port: ports.1, length: len, checksum: 0,
        };
        hdr.checksum = match ends {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                hdr.calc_checksum_ipv4_raw(s.octets(), d.octets(), &data).unwrap()
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                hdr.calc_checksum_ipv6_raw(s.octets(), d.octets(), &data).unwrap()
            }
            _ => unreachable!(),
        };
        let mut bytes = hdr.to_bytes().to_vec();
        bytes.extend_from_slice(&data);
        let ours = UdpHdr::parse(&bytes).unwrap();
        prop_assert_eq!((ours.src_port, ours.dst_port, ours.len), (ports.0, ports.1, len));
        prop_assert_eq!(ours.check, hdr.checksum);
        prop_assert_eq!(ours.verify(ends.0, ends.1, &bytes), Ok(()));
        let mut again = bytes.clone();
        finish_udp(ends.0, ends.1, &mut again);
        prop_assert_eq!(again, bytes);
    }
}

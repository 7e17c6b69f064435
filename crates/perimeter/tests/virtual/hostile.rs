//! What comes from the network may be anything: malformed frames are counted by reason, ICMP
//! errors believed when they quote what is under way, and service goes on.

use crate::common::organizations;
use crate::packet::{ipv4, tcp};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Stack, State, TcpConfig, TcpStream, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::{Icmpv4, PROTO_ICMP, Seq, TcpFlags, TcpHdr, WireError};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// A stack whose network is this test.
struct Lab {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
}

fn under_all(body: fn(&Lab)) {
    for org in organizations() {
        let name = org.to_string();
        let cfg = VirtualConfig::default().with_cores(1);
        let result = Virtual::run(cfg, move |p| {
            let (device, wire) = script(&p, "script", 1500);
            let s = Stack::builder().on_virtual(p.clone()).org(org);
            let s = s
                .interface(device, &["10.0.0.1/24"])
                .unwrap()
                .build()
                .unwrap();
            body(&Lab { p, s, wire });
        });
        result.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

impl Lab {
    fn pass(&self, ms: u64) {
        let end = self.p.now() + Duration::from_millis(ms);
        while self.p.now() < end {
            self.s.drive().unwrap();
            self.p.sleep_until(self.p.now().plus(200_000));
        }
    }

    fn inject(&self, bytes: &[u8]) {
        assert!(self.wire.inject(self.p.now(), bytes));
    }

    /// The next TCP segment of the stack.
    fn sent(&self) -> (TcpHdr, Vec<u8>, Vec<u8>) {
        for _ in 0..1000 {
            if let Some(p) = self.wire.next() {
                let (hdr, len) = TcpHdr::parse(&p.bytes[20..]).unwrap();
                return (hdr, p.bytes[20 + len..].to_vec(), p.bytes);
            }
            self.pass(1);
        }
        panic!("{}: nothing was sent", self.s.organization());
    }

    fn reply(&self, to: &TcpHdr, flags: TcpFlags, seq: u32, ack: u32, payload: &[u8]) {
        let hdr = TcpHdr {
            src_port: to.dst_port,
            dst_port: to.src_port,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 60_000,
            ..TcpHdr::default()
        };
        self.inject(&tcp(&hdr, payload));
    }

    /// A connection of the stack under test, established; our sequence number is 1001.
    fn connect(&self, config: &TcpConfig) -> (TcpStream, TcpHdr) {
        let c = self
            .s
            .connect_with(None, "10.0.0.2:80".parse().unwrap(), config)
            .unwrap();
        c.set_nonblocking(true).unwrap();
        let (syn, _, _) = self.sent();
        assert!(syn.flags.contains(TcpFlags::SYN));
        self.reply(
            &syn,
            TcpFlags::SYN | TcpFlags::ACK,
            1000,
            syn.seq.0.wrapping_add(1),
            b"",
        );
        let (ack, _, _) = self.sent();
        assert_eq!(c.info().unwrap().tcp.state, State::Established);
        (c, ack)
    }

    /// ICMP: destination unreachable, quoting `packet`.
    fn unreachable(&self, code: u8, packet: &[u8]) {
        let quote = &packet[..28];
        let mut msg = vec![0; 8 + quote.len()];
        Icmpv4::Unreachable {
            code,
            next_hop_mtu: 0,
        }
        .emit(quote, &mut msg);
        self.inject(&ipv4(PROTO_ICMP, &msg));
        self.pass(2);
    }
}

#[test]
fn icmp_errors_are_hard_while_connecting_and_soft_afterwards() {
    under_all(|lab| {
        let config = lab.s.tcp_config().with_data_retries(2);
        // Hard.
        for (code, kind) in [
            (0, ErrorKind::NetworkUnreachable),
            (1, ErrorKind::HostUnreachable),
            (3, ErrorKind::ConnectionRefused),
        ] {
            let c = lab.s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
            let (_, _, syn) = lab.sent();
            // One that quotes something else is not believed.
            let mut other = syn.clone();
            other[24] ^= 0x80;
            lab.unreachable(code, &other);
            assert!(c.take_error().unwrap().is_none());
            lab.unreachable(code, &syn);
            assert_eq!(c.take_error().unwrap().map(|e| e.kind()), Some(kind));
        }
        // Soft: the connection goes on, and SO_ERROR tells once.
        let (c, hdr) = lab.connect(&config);
        (&c).write_all(b"abc").unwrap();
        let (data, payload, packet) = lab.sent();
        assert_eq!(payload, b"abc");
        lab.unreachable(1, &packet);
        assert_eq!(c.info().unwrap().tcp.state, State::Established);
        let e = c.take_error().unwrap().map(|e| e.kind());
        assert_eq!(e, Some(ErrorKind::HostUnreachable));
        assert!(c.take_error().unwrap().is_none());
        lab.reply(
            &hdr,
            TcpFlags::ACK,
            1001,
            data.seq.0.wrapping_add(3),
            b"still here",
        );
        lab.pass(2);
        let mut buf = [0; 64];
        assert_eq!((&c).read(&mut buf).unwrap(), 10);
        // When the connection then dies, it is the reason.
        (&c).write_all(b"lost").unwrap();
        while lab.sent().1 != b"lost" {}
        let (_, _, packet) = lab.sent();
        lab.unreachable(1, &packet);
        lab.pass(10_000);
        assert_eq!(c.info().unwrap().tcp.state, State::Closed);
        let e = (&c).read(&mut buf).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::HostUnreachable);
        assert!(lab.s.stats().count("rx_icmp_errors") >= 5);
    });
}

#[test]
fn a_flood_of_malformed_frames_is_counted_and_service_goes_on() {
    under_all(|lab| {
        let (c, hdr) = lab.connect(&lab.s.tcp_config());
        let seg = TcpHdr {
            src_port: 80,
            dst_port: hdr.src_port,
            seq: Seq(1001),
            ack: hdr.seq,
            flags: TcpFlags::ACK,
            window: 1000,
            ..TcpHdr::default()
        };
        let good = tcp(&seg, b"0123456789");
        let bad: Vec<(&str, Vec<u8>)> = vec![
            ("empty", Vec::new()),
            ("short", good[..13].to_vec()),
            ("version", [&[0x55], &good[1..]].concat()),
            ("header length", [&[0x44], &good[1..]].concat()),
            (
                "header checksum",
                [&good[..10], &[good[10] ^ 1], &good[11..]].concat(),
            ),
            ("cut", good[..30].to_vec()),
            ("tcp checksum", [&good[..good.len() - 1], b"x"].concat()),
        ];
        let named = |lab: &Lab| -> Vec<u64> {
            let stats = lab.s.stats();
            WireError::ALL
                .iter()
                .map(|e| stats.count(&format!("drop_{}", e.name())))
                .collect()
        };
        for (what, frame) in &bad {
            let before = named(lab);
            for _ in 0..50 {
                lab.inject(frame);
            }
            lab.pass(2);
            let after = named(lab);
            let more: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            assert_eq!(more.iter().sum::<u64>(), 50, "{what}: {more:?}");
            assert_eq!(
                more.iter().filter(|n| **n > 0).count(),
                1,
                "{what}: one reason"
            );
        }
        // Random bytes, and good frames with random damage.
        let mut x = 0x2545_f491_4f6c_dd1du64;
        let mut random = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for i in 0..5_000 {
            let mut frame = if i % 2 == 0 {
                (0..random() % 200).map(|_| random() as u8).collect()
            } else {
                good.clone()
            };
            if let Some(at) = (random() as usize).checked_rem(frame.len()) {
                frame[at] ^= 1 << (random() % 8);
            }
            lab.inject(&frame);
            if i % 100 == 0 {
                lab.pass(1);
            }
        }
        lab.pass(5);
        // Nothing of it was taken for data, and the connection works.
        let mut buf = [0; 64];
        assert_eq!(
            (&c).read(&mut buf).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        lab.inject(&good);
        lab.pass(2);
        assert_eq!((&c).read(&mut buf).unwrap(), 10);
        assert_eq!(&buf[..10], b"0123456789");
    });
}

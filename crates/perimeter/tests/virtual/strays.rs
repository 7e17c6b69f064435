//! One segment at a time, at the right moment: what is out of place is answered or dropped as
//! RFC 9293 says, not too often, and changes nothing. Under every organization.

use crate::common::each_simulated;
use crate::packet::{THEM, US, header, ipv4, tcp, tcp_between};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Config, Stack, State, TcpConfig, TcpListener, TcpStream, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::{Icmpv4, PROTO_ICMP, Seq, TcpFlags, TcpHdr, TcpOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The stack's and the peer's address on the second interface.
const SECOND: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 2));

/// A stack whose networks are this test: 10.0.0.1 with an MTU of 1500, 10.0.1.1 with 9000.
struct Lab {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
    jumbo: ScriptHandle<Virtual>,
}

fn under_all(body: fn(&Lab)) {
    let cfg = VirtualConfig::default()
        .with_cores(1)
        .with_max_steps(100_000_000);
    each_simulated(&cfg, move |p, org| {
        let (device, wire) = script(&p, "script", 1500);
        let (second, jumbo) = script(&p, "jumbo", 9000);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        let s = s.config(Config::default());
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let s = s.interface(second, &["10.0.1.1/24"]).unwrap();
        let s = s.build().unwrap();
        body(&Lab { p, s, wire, jumbo });
    });
}

/// A segment that the stack has sent: header, payload, datagram.
type Sent = (TcpHdr, Vec<u8>, Vec<u8>);

fn parsed(bytes: Vec<u8>) -> Sent {
    let (hdr, len) = TcpHdr::parse(&bytes[20..]).unwrap();
    (hdr, bytes[20 + len..].to_vec(), bytes)
}

impl Lab {
    /// Time passes, in steps that are finer at the beginning.
    fn pass(&self, d: Duration) {
        let start = self.p.now();
        while self.p.now() < start + d {
            self.s.drive().unwrap();
            let step = match self.p.now().since(start).as_millis() {
                0..100 => 200_000,
                100..2_000 => 20_000_000,
                _ => 500_000_000,
            };
            self.p.sleep_until(self.p.now().plus(step).min(start + d));
        }
        self.s.drive().unwrap();
    }

    fn pass_ms(&self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    fn send(&self, hdr: &TcpHdr, payload: &[u8]) {
        assert!(self.wire.inject(self.p.now(), &tcp(hdr, payload)));
        self.pass_ms(1);
    }

    /// What the stack has sent and nobody has looked at.
    fn sent(&self) -> Vec<Sent> {
        let next = || self.wire.next().map(|p| parsed(p.bytes));
        std::iter::from_fn(next).collect()
    }

    /// The only segment that the stack has sent.
    fn one(&self, what: &str) -> Sent {
        let mut all = self.sent();
        assert_eq!(all.len(), 1, "{}: {what}: {all:?}", self.s.organization());
        all.remove(0)
    }

    fn silent(&self, what: &str) {
        let all = self.sent();
        assert!(all.is_empty(), "{}: {what}: {all:?}", self.s.organization());
    }

    /// How many segments answer `n` times the same one.
    fn answers(&self, n: usize, hdr: &TcpHdr) -> usize {
        for _ in 0..n {
            assert!(self.wire.inject(self.p.now(), &tcp(hdr, b"")));
        }
        self.pass_ms(20);
        self.sent().len()
    }

    /// A connection of the stack, established; the peer's next number is 1001. Yields the
    /// template of the peer's segments.
    fn connect(&self, config: &TcpConfig) -> (TcpStream, TcpHdr) {
        let to = SocketAddr::from((THEM, 80));
        let c = self.s.connect_with(None, to, config).unwrap();
        c.set_nonblocking(true).unwrap();
        self.pass_ms(1);
        let (syn, _, _) = self.one("SYN");
        let mut h = header((80, syn.src_port), 1000, syn.seq.0.wrapping_add(1));
        h.flags = TcpFlags::SYN | TcpFlags::ACK;
        h.opts.mss = Some(1460);
        h.opts.sack_permitted = true;
        self.pass_ms(20);
        self.send(&h, b"");
        self.one("ACK");
        h.flags = TcpFlags::ACK;
        h.seq = Seq(1001);
        h.opts = TcpOptions::default();
        assert_eq!(c.info().unwrap().tcp.state, State::Established);
        (c, h)
    }

    /// A connection in TIME-WAIT on the stack's port `port`, and the template of its peer's
    /// segments, which would be next.
    fn time_wait(&self, l: &TcpListener, port: u16) -> TcpHdr {
        let mut h = header((port, 80), 5000, 0);
        h.flags = TcpFlags::SYN;
        self.send(&h, b"");
        let (syn_ack, _, _) = self.one("SYN-ACK");
        h.flags = TcpFlags::ACK;
        h.seq = Seq(5001);
        h.ack = syn_ack.seq + 1;
        self.send(&h, b"");
        let (c, _) = l.accept().unwrap();
        drop(c);
        self.pass_ms(1);
        let (fin, _, _) = self.one("FIN");
        assert!(fin.flags.contains(TcpFlags::FIN));
        h.flags = TcpFlags::FIN | TcpFlags::ACK;
        h.ack = fin.seq + 1;
        self.send(&h, b"");
        self.one("ACK of the FIN");
        assert_eq!(self.states(), [State::TimeWait]);
        h.flags = TcpFlags::ACK;
        h.seq = Seq(5002);
        h
    }

    fn states(&self) -> Vec<State> {
        let all = self.s.connections();
        all.iter().map(|c| c.tcp.state).collect()
    }
}

fn with(h: &TcpHdr, flags: TcpFlags, seq: u32) -> TcpHdr {
    TcpHdr {
        flags,
        seq: h.seq + seq,
        ..*h
    }
}

#[test]
fn an_acknowledgment_of_what_was_never_sent_is_answered() {
    under_all(|lab| {
        let (c, h) = lab.connect(&lab.s.tcp_config());
        let wrong = TcpHdr {
            ack: h.ack + 5000,
            ..h
        };
        lab.pass_ms(1000);
        lab.send(&wrong, b"not taken");
        let (ack, _, _) = lab.one("a challenge");
        assert_eq!((ack.flags, ack.seq, ack.ack), (TcpFlags::ACK, h.ack, h.seq));
        let n = lab.answers(1000, &wrong);
        assert!(n <= 24, "{n} answers");
        lab.pass_ms(1000);
        lab.sent();
        lab.send(&h, b"taken");
        let mut buf = [0; 64];
        assert_eq!((&c).read(&mut buf).unwrap(), 5);
    });
}

#[test]
fn half_open_connections_answer_what_is_out_of_place() {
    under_all(|lab| {
        let l = lab.s.listen("10.0.0.1:80").unwrap();
        let mut h = header((5000, 80), 100, 0);
        h.flags = TcpFlags::SYN;
        lab.send(&h, b"");
        let (syn_ack, _, _) = lab.one("SYN-ACK");
        h.seq = Seq(101);
        h.ack = syn_ack.seq + 1;
        h.flags = TcpFlags::ACK;
        // A reset in the window, but not at RCV.NXT; data far outside.
        let strays = [
            with(&h, TcpFlags::RST, 500),
            with(&h, TcpFlags::ACK, 1 << 24),
        ];
        for (n, stray) in strays.iter().enumerate() {
            lab.send(stray, if n == 1 { b"data" } else { b"" });
            let (ack, _, _) = lab.one("a challenge");
            assert_eq!((ack.flags, ack.seq, ack.ack), (TcpFlags::ACK, h.ack, h.seq));
            let n = lab.answers(1000, stray);
            assert!(n <= 24, "{n} answers");
            // Until the SYN-ACK is sent again.
            lab.pass_ms(2000);
            assert!(!lab.sent().is_empty());
        }
        lab.send(&with(&h, TcpFlags::RST, 1 << 24), b"");
        lab.silent("a reset outside the window");
        lab.send(&h, b"");
        l.set_nonblocking(true).unwrap();
        l.accept().unwrap();
    });
}

#[test]
fn a_strange_syn_does_not_silence_the_handshake() {
    under_all(|lab| {
        let c = lab.s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
        lab.pass_ms(1);
        let (syn, _, _) = lab.one("SYN");
        let mut h = header((80, syn.src_port), 7000, 0);
        h.flags = TcpFlags::SYN;
        lab.send(&h, b"");
        let (crossed, _, _) = lab.one("SYN-ACK");
        assert_eq!(crossed.flags, TcpFlags::SYN | TcpFlags::ACK);
        h.seq = Seq(7001);
        h.ack = syn.seq + 1;
        // The host that was called answers with a number of its own.
        let challenge = (TcpFlags::ACK, syn.seq + 1, h.seq);
        for (flags, seq) in [
            (TcpFlags::SYN | TcpFlags::ACK, 1 << 24),
            (TcpFlags::ACK, 1 << 24),
            (TcpFlags::RST, 500),
        ] {
            lab.send(&with(&h, flags, seq), b"");
            let (ack, _, _) = lab.one("a challenge");
            assert_eq!((ack.flags, ack.seq, ack.ack), challenge, "{flags:?}");
        }
        assert!(lab.answers(1000, &with(&h, TcpFlags::RST, 500)) <= 24);
        h.flags = TcpFlags::ACK;
        lab.send(&h, b"");
        assert_eq!(c.info().unwrap().tcp.state, State::Established);
    });
}

#[test]
fn listeners_drop_what_has_neither_syn_nor_ack() {
    under_all(|lab| {
        let _l = lab.s.listen("10.0.0.1:80").unwrap();
        let h = header((5000, 80), 100, 77);
        for flags in [
            TcpFlags::NONE,
            TcpFlags::FIN,
            TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG,
        ] {
            lab.send(&with(&h, flags, 0), b"");
            lab.silent("no SYN, no ACK, no RST");
        }
        lab.send(&with(&h, TcpFlags::ACK, 0), b"");
        let (rst, _, _) = lab.one("a reset");
        assert_eq!((rst.flags, rst.seq), (TcpFlags::RST, Seq(77)));
        // Nobody listens there: RFC 9293, section 3.10.7.1.
        let h = header((5000, 81), 100, 77);
        lab.send(&with(&h, TcpFlags::FIN, 0), b"");
        let (rst, _, _) = lab.one("a reset");
        assert_eq!(rst.flags, TcpFlags::RST | TcpFlags::ACK);
        assert_eq!((rst.seq, rst.ack), (Seq(0), Seq(101)));
    });
}

#[test]
fn time_wait_is_nobody_elses_to_prolong_or_to_end() {
    under_all(|lab| {
        let l = lab.s.listen("10.0.0.1:80").unwrap();
        let h = lab.time_wait(&l, 5000);
        drop(l);
        lab.pass_ms(1000);
        let n = lab.answers(300, &with(&h, TcpFlags::FIN | TcpFlags::ACK, 1 << 20));
        assert!(n <= 12, "{n} answers to strange FINs");
        lab.pass_ms(1000);
        // It would be new, but nobody listens any more.
        lab.send(&with(&h, TcpFlags::SYN, 100_000), b"");
        let (ack, _, _) = lab.one("an ACK");
        assert_eq!((ack.flags, ack.seq, ack.ack), (TcpFlags::ACK, h.ack, h.seq));
        assert_eq!(lab.states(), [State::TimeWait]);
        lab.pass(Duration::from_secs(50));
        lab.send(&with(&h, TcpFlags::FIN | TcpFlags::ACK, 1 << 20), b"");
        lab.pass(Duration::from_secs(10));
        assert_eq!(lab.states(), [], "60 s are over");
    });
}

#[test]
fn time_wait_gives_way_to_a_new_connection_where_somebody_listens() {
    under_all(|lab| {
        let l = lab.s.listen("10.0.0.1:80").unwrap();
        let h = lab.time_wait(&l, 5000);
        let mut syn = with(&h, TcpFlags::SYN, 100_000);
        syn.ack = Seq(0);
        lab.send(&syn, b"");
        let (syn_ack, _, _) = lab.one("SYN-ACK");
        assert_eq!(syn_ack.ack, syn.seq + 1);
        let mut ack = with(&syn, TcpFlags::ACK, 1);
        ack.ack = syn_ack.seq + 1;
        lab.send(&ack, b"again");
        let (c, _) = l.accept().unwrap();
        let mut buf = [0; 16];
        assert_eq!((&c).read(&mut buf).unwrap(), 5);
    });
}

#[test]
fn a_closed_socket_does_not_wait_for_a_shut_window_for_ever() {
    under_all(|lab| {
        let (c, h) = lab.connect(&lab.s.tcp_config());
        (&c).write_all(&[1; 4000]).unwrap();
        lab.pass_ms(1);
        let last = lab.sent().pop().expect("data");
        let mut shut = with(&h, TcpFlags::ACK, 0);
        shut.ack = last.0.seq + last.1.len() as u32;
        shut.window = 0;
        lab.send(&shut, b"");
        assert_eq!((&c).write(&[2; 4000]).unwrap(), 4000);
        drop(c);
        let start = lab.p.now();
        while !lab.s.connections().is_empty() {
            let lived = lab.p.now().since(start);
            assert!(
                lived < Duration::from_secs(400),
                "{}: {lived:?}, {:?}",
                lab.s.organization(),
                lab.states()
            );
            // A step of its own: long, as nothing happens in between.
            lab.s.drive().unwrap();
            lab.p.sleep_until(lab.p.now().plus(300_000_000));
            lab.s.drive().unwrap();
            for _ in lab.sent() {
                lab.send(&shut, b"");
            }
        }
        let lived = lab.p.now().since(start);
        assert!(lived > Duration::from_secs(100), "{lived:?}: too soon");
    });
}

/// What came in order is the reader's, the end of the stream too, though the peer resets the
/// connection before it is read. Who writes hears of the reset.
#[test]
fn a_reset_behind_the_fin_leaves_the_end_of_the_stream() {
    under_all(|lab| {
        let (c, h) = lab.connect(&lab.s.tcp_config());
        lab.send(&with(&h, TcpFlags::FIN | TcpFlags::ACK, 0), b"all");
        lab.send(&with(&h, TcpFlags::RST | TcpFlags::ACK, 4), b"");
        let org = lab.s.organization();
        assert_eq!(lab.states(), [State::Closed], "{org}");
        let mut buf = [0; 8];
        assert_eq!((&c).read(&mut buf).unwrap(), 3, "{org}");
        assert_eq!((&c).read(&mut buf).unwrap(), 0, "{org}");
        let error = (&c).write(b"more").unwrap_err().kind();
        assert_eq!(error, ErrorKind::ConnectionReset, "{org}");
        assert_eq!((&c).read(&mut buf).unwrap(), 0, "{org}");
    });
}

/// RFC 8985, section 7.2: the loss of a whole first flight is repaired before the timeout.
#[test]
fn a_first_flight_that_is_lost_costs_no_timeout() {
    under_all(|lab| {
        let (c, mut h) = lab.connect(&lab.s.tcp_config());
        assert_eq!((&c).write(&[5; 40_000]).unwrap(), 40_000);
        lab.pass_ms(1);
        assert_eq!(lab.sent().len(), 10, "the initial window");
        let start = lab.p.now();
        lab.pass_ms(60);
        let (probe, data, _) = lab.one("a probe");
        assert_eq!((probe.seq, data.len()), (h.ack + 14_600, 1460), "new data");
        h.opts.sack.push(probe.seq, probe.seq + 1460);
        lab.send(&h, b"");
        lab.pass_ms(20);
        let again = lab.sent();
        assert_eq!(again[0].0.seq, h.ack, "{}", lab.s.organization());
        assert!(lab.p.now().since(start) < Duration::from_millis(150));
    });
}

#[test]
fn acknowledgments_are_delayed_on_demand() {
    under_all(|lab| {
        let (c, mut h) = lab.connect(&lab.s.tcp_config());
        let mut data = |wait| {
            lab.send(&h, b"0123456789");
            h.seq += 10;
            let early = lab.sent().len();
            lab.pass_ms(wait);
            (early, lab.sent().len())
        };
        assert_eq!(data(60), (1, 0), "at once, by default");
        c.set_quickack(false).unwrap();
        assert_eq!(data(60), (0, 1), "delayed");
        c.set_quickack(true).unwrap();
        assert_eq!(data(60), (1, 0), "at once");
    });
}

/// What the path's MTU limits: the sizes of the segments that carry `n` octets.
fn sizes(lab: &Lab, c: &TcpStream, h: &mut TcpHdr, n: usize) -> (Vec<usize>, Vec<u8>) {
    assert_eq!((&*c).write(&vec![3; n]).unwrap(), n);
    lab.pass_ms(1);
    let all = lab.sent();
    let first = all[0].2.clone();
    h.ack += n as u32;
    (all.iter().map(|s| s.1.len()).collect(), first)
}

fn too_big(lab: &Lab, mtu: u16, packet: &[u8]) {
    let quote = &packet[..28];
    let mut msg = vec![0; 8 + quote.len()];
    Icmpv4::Unreachable {
        code: 4,
        next_hop_mtu: mtu,
    }
    .emit(quote, &mut msg);
    assert!(lab.wire.inject(lab.p.now(), &ipv4(PROTO_ICMP, &msg)));
    lab.pass_ms(1);
}

#[test]
fn a_path_mtu_holds_for_ten_minutes() {
    under_all(|lab| {
        let (c, mut h) = lab.connect(&lab.s.tcp_config());
        let (whole, packet) = sizes(lab, &c, &mut h, 2920);
        assert_eq!(whole, [1460, 1460]);
        too_big(lab, 1000, &packet);
        let again: Vec<usize> = lab.sent().iter().map(|s| s.1.len()).collect();
        assert_eq!(again, [960, 960, 960, 40], "{}", lab.s.organization());
        lab.send(&h, b"");
        lab.pass(Duration::from_secs(300));
        let (small, _) = sizes(lab, &c, &mut h, 1920);
        assert_eq!(small, [960, 960], "five minutes are too early");
        lab.send(&h, b"");
        lab.pass(Duration::from_secs(301));
        let (whole, packet) = sizes(lab, &c, &mut h, 2920);
        assert_eq!(whole, [1460, 1460], "{}", lab.s.organization());
        // Nothing has changed on the way: the router says so once more.
        too_big(lab, 1000, &packet);
        let again: Vec<usize> = lab.sent().iter().map(|s| s.1.len()).collect();
        assert_eq!(again, [960, 960, 960, 40], "{}", lab.s.organization());
    });
}

/// The MSS that the stack offers in its SYN, and in its SYN-ACK, by the interface that has
/// `addrs`.
fn offered(lab: &Lab, addrs: (Ipv4Addr, Ipv4Addr), config: &TcpConfig) -> [Option<u16>; 2] {
    let wire = if addrs == SECOND {
        &lab.jumbo
    } else {
        &lab.wire
    };
    let next = || {
        lab.pass_ms(1);
        let sent = wire.next().expect("a segment");
        parsed(sent.bytes).0
    };
    let (us, them) = addrs;
    let to = SocketAddr::from((them, 80));
    let c = lab.s.connect_with(None, to, config).unwrap();
    let syn = next();
    c.abort().unwrap();
    let mut h = header((5000, 80), 100, 0);
    h.flags = TcpFlags::SYN;
    h.opts.mss = Some(8960);
    let inject = |h: &TcpHdr| {
        let bytes = tcp_between((them, us), h, b"");
        assert!(wire.inject(lab.p.now(), &bytes));
    };
    inject(&h);
    let syn_ack = next();
    h.flags = TcpFlags::ACK;
    h.seq = Seq(101);
    h.ack = syn_ack.seq + 1;
    h.opts.mss = None;
    inject(&h);
    lab.pass_ms(1);
    // What is sent is bounded likewise.
    let conns = lab.s.connections();
    let c = conns
        .iter()
        .find(|c| c.key.remote == std::net::IpAddr::V4(them));
    let mss = c.expect("accepted").tcp.snd_mss;
    assert_eq!(
        Some(mss as u16),
        syn_ack.opts.mss,
        "{}",
        lab.s.organization()
    );
    [syn.opts.mss, syn_ack.opts.mss]
}

#[test]
fn the_mss_follows_the_interface() {
    under_all(|lab| {
        let config = lab.s.tcp_config();
        let l = lab.s.listen("0.0.0.0:80").unwrap();
        let small = offered(lab, (US, THEM), &config);
        let jumbo = offered(lab, SECOND, &config);
        assert_eq!(small, [Some(1460); 2], "{}", lab.s.organization());
        assert_eq!(jumbo, [Some(8960); 2], "{}", lab.s.organization());
        drop(l);
        lab.pass_ms(10);
        while lab.wire.next().is_some() || lab.jumbo.next().is_some() {}
        // An explicit value bounds it.
        let config = config.with_mss(1200);
        let _l = lab
            .s
            .listen_with("0.0.0.0:80", 128, config.clone())
            .unwrap();
        let small = offered(lab, (US, THEM), &config);
        let jumbo = offered(lab, SECOND, &config);
        assert_eq!([small, jumbo], [[Some(1200); 2]; 2]);
    });
}

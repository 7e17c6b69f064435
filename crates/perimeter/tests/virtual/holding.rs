//! Accepting anything: listeners for all addresses and ports, and SYNs that are held until their
//! listener's owner has decided.

use crate::packet::{THEM, US, header, ipv4_between, tcp_between};
use core::net::Ipv4Addr;
use perimeter::link::script::{ScriptHandle, script};
use perimeter::virt::VirtualConfig;
use perimeter::{Accept, Hold, Listen, OrgSpec, Platform, Request, Stack, TcpListener, Virtual};
use perimeter_wire::{Icmpv4, Ipv4Hdr, PROTO_ICMP, Seq, TcpFlags, TcpHdr};
use std::io::ErrorKind;
use std::time::Duration;

const MS: u64 = 1_000_000;
/// Nobody's address here.
const FAR: [u8; 4] = [192, 0, 2, 77];

struct World {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
}

impl World {
    fn pass(&self, ms: u64) {
        let end = self.p.now().plus(ms * MS);
        while self.p.now() < end {
            self.s.drive().unwrap();
            self.p.sleep_until(self.p.now().plus(MS / 5));
        }
    }

    /// The peer sends a segment to `to`.
    fn send(&self, to: [u8; 4], hdr: &TcpHdr) {
        let frame = tcp_between((THEM, to.into()), hdr, b"");
        assert!(self.wire.inject(self.p.now(), &frame));
        self.pass(5);
    }

    fn syn(&self, to: [u8; 4], ports: (u16, u16), seq: u32) {
        self.send(to, &syn(ports, seq));
    }

    /// What the stack has sent since: from where, and the header.
    fn sent(&self) -> Option<([u8; 4], TcpHdr)> {
        let bytes = self.wire.next()?.bytes;
        let ip = Ipv4Hdr::parse(&bytes, true).unwrap();
        let (hdr, _) = TcpHdr::parse(&bytes[20..]).unwrap();
        Some((ip.src.octets(), hdr))
    }

    fn syn_ack(&self, from: [u8; 4], seq: u32) -> TcpHdr {
        let (src, hdr) = self.sent().expect("an answer");
        assert_eq!(src, from);
        assert_eq!(hdr.flags, TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(hdr.ack, Seq(seq) + 1);
        hdr
    }

    fn ack(&self, to: [u8; 4], ports: (u16, u16), syn_ack: &TcpHdr) {
        let hdr = TcpHdr {
            flags: TcpFlags::ACK,
            ack: syn_ack.seq + 1,
            seq: syn_ack.ack,
            ..header(ports, 0, 0)
        };
        self.send(to, &hdr);
    }

    fn count(&self, name: &str) -> u64 {
        self.s
            .stats()
            .counts
            .iter()
            .find(|c| c.0 == name)
            .unwrap()
            .1
    }
}

fn syn(ports: (u16, u16), seq: u32) -> TcpHdr {
    TcpHdr {
        flags: TcpFlags::SYN,
        ..header(ports, seq, 0)
    }
}

fn next(l: &TcpListener) -> Option<Request> {
    match l.request() {
        Ok(r) => Some(r),
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => panic!("{e}"),
    }
}

fn none(l: &TcpListener) {
    assert!(next(l).is_none(), "no request");
    assert_eq!(l.accept().err().unwrap().kind(), ErrorKind::WouldBlock);
}

fn everywhere(accept: Accept, test: impl Fn(&World) + Clone + Send + 'static) {
    for org in OrgSpec::tested() {
        let name = org.to_string();
        let cfg = VirtualConfig::default().with_cores(2);
        let test = test.clone();
        let run = Virtual::run(cfg, move |p| {
            let (device, wire) = script(&p, "script", 1500);
            let s = Stack::builder().on_virtual(p.clone()).org(org);
            let s = s.interface_accepting(device, &["10.0.0.1/24"], accept);
            let s = s.unwrap().build().unwrap();
            let w = World { p, s, wire };
            test(&w);
        });
        run.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

const ANY: Accept = Accept::Any { echo: true };

fn any(w: &World, hold: Option<Hold>) -> TcpListener {
    let listen = match hold {
        Some(hold) => Listen::any().hold(hold),
        None => Listen::any(),
    };
    let l = w.s.listen_as(&listen).unwrap();
    l.set_nonblocking(true).unwrap();
    l
}

#[test]
fn a_listener_takes_any_address_and_port() {
    everywhere(ANY, |w| {
        let l = any(w, None);
        let own = w.s.listen("0.0.0.0:81").unwrap();
        own.set_nonblocking(true).unwrap();
        let mut resets = Vec::new();
        for (to, ports) in [
            (FAR, (5_000, 80)),
            ([10, 0, 0, 1], (5_001, 9)),
            (FAR, (5_002, 65_535)),
        ] {
            w.syn(to, ports, 1_000);
            let syn_ack = w.syn_ack(to, 1_000);
            w.ack(to, ports, &syn_ack);
            resets.push((to, ports, 0));
            let (c, local, peer) = l.accept_ends().unwrap();
            assert_eq!(local, (Ipv4Addr::from(to), ports.1).into());
            assert_eq!(peer, (THEM, ports.0).into());
            assert_eq!(
                (c.local_addr().unwrap(), c.peer_addr().unwrap()),
                (local, peer)
            );
            // Data and the end come from there as well.
            use std::io::Write;
            (&c).write_all(b"x").unwrap();
            drop(c);
            w.pass(5);
            let (src, _) = w.sent().unwrap();
            assert_eq!(src, to);
            while w.sent().is_some() {}
        }
        // A port's own listener comes first.
        w.syn(FAR, (5_003, 81), 7);
        let syn_ack = w.syn_ack(FAR, 7);
        w.ack(FAR, (5_003, 81), &syn_ack);
        let accepted = own.accept().unwrap();
        assert!(l.accept().is_err());
        // The streams above send their data and FINs again: the peer resets them.
        for (to, ports, ack) in resets {
            w.send(
                to,
                &TcpHdr {
                    flags: TcpFlags::RST,
                    ..header(ports, 1_001, ack)
                },
            );
        }
        while w.sent().is_some() {}
        // No host has these, and what goes to a group is no connection.
        for to in [
            [127, 0, 0, 1],
            [224, 0, 0, 1],
            [255, 255, 255, 255],
            [0, 0, 0, 1],
        ] {
            w.syn(to, (5_004, 80), 1);
            assert!(w.sent().is_none(), "{to:?}");
        }
        drop(accepted);
        // Only one can have all.
        let e = w.s.listen_as(&Listen::any()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::AddrInUse);
        drop(l);
        w.pass(5);
        while w.sent().is_some() {}
        w.syn(FAR, (5_005, 80), 1);
        let (src, hdr) = w.sent().unwrap();
        assert!(src == FAR && hdr.flags.contains(TcpFlags::RST));
    });
}

#[test]
fn an_interface_takes_its_own_unless_told_otherwise() {
    everywhere(Accept::Own, |w| {
        let l = any(w, None);
        w.syn(FAR, (5_000, 80), 1);
        assert!(w.sent().is_none());
        assert_eq!(w.count("drop_not_ours"), 1);
        w.syn([10, 0, 0, 1], (5_000, 80), 1);
        w.syn_ack([10, 0, 0, 1], 1);
        drop(l);
    });
}

#[test]
fn a_syn_waits_for_its_decision() {
    everywhere(ANY, |w| {
        let l = any(w, Some(Hold::default()));
        let ports = (5_000, 443);
        w.syn(FAR, ports, 1_000);
        assert!(w.sent().is_none(), "nothing is answered before");
        let r = next(&l).unwrap();
        assert_eq!(r.local_addr(), (Ipv4Addr::from(FAR), 443).into());
        assert_eq!(r.peer_addr(), (THEM, 5_000).into());
        // The peer repeats itself: no second request.
        w.syn(FAR, ports, 1_000);
        none(&l);
        assert!(w.sent().is_none());
        assert!(r.allow().unwrap());
        w.pass(5);
        w.syn_ack(FAR, 1_000);
        // Lost: it is sent again, for another SYN and by itself.
        w.syn(FAR, ports, 1_000);
        w.syn_ack(FAR, 1_000);
        w.pass(1_100);
        let syn_ack = w.syn_ack(FAR, 1_000);
        none(&l);
        w.ack(FAR, ports, &syn_ack);
        let (c, local, _) = l.accept_ends().unwrap();
        assert_eq!(local.port(), 443);
        drop(c);
        none(&l);
        assert_eq!(w.count("syns_held"), 1);
    });
}

#[test]
fn a_syn_is_refused_or_ignored() {
    everywhere(ANY, |w| {
        let l = any(w, Some(Hold::default()));
        w.syn(FAR, (5_000, 80), 1_000);
        assert!(next(&l).unwrap().reset().unwrap());
        w.pass(5);
        let (src, hdr) = w.sent().unwrap();
        assert_eq!((src, hdr.ack), (FAR, Seq(1_001)));
        assert_eq!(hdr.flags, TcpFlags::RST | TcpFlags::ACK);
        // Ignored: the next one is asked for anew.
        w.syn(FAR, (5_000, 80), 1_000);
        next(&l).unwrap().ignore();
        w.syn(FAR, (5_000, 80), 1_000);
        drop(next(&l).unwrap());
        assert!(w.sent().is_none());
        // The peer gives up, in order or by a stranger's guess.
        w.syn(FAR, (5_000, 80), 1_000);
        let r = next(&l).unwrap();
        let rst = |seq| TcpHdr {
            flags: TcpFlags::RST,
            ..header((5_000, 80), seq, 0)
        };
        w.send(FAR, &rst(2_000));
        assert!(r.allow().unwrap(), "still there");
        w.pass(5);
        w.syn_ack(FAR, 1_000);
        w.syn(FAR, (5_001, 80), 1_000);
        let r = next(&l).unwrap();
        w.send(
            FAR,
            &TcpHdr {
                src_port: 5_001,
                ..rst(1_001)
            },
        );
        assert!(!r.allow().unwrap(), "its peer has gone");
        w.pass(5);
        assert!(w.sent().is_none());
        // With the listener go its requests.
        w.syn(FAR, (5_002, 80), 1_000);
        let r = next(&l).unwrap();
        l.close().unwrap();
        assert!(r.allow().is_err());
    });
}

#[test]
fn requests_are_bounded_in_number_and_in_time() {
    everywhere(ANY, |w| {
        let hold = Hold::default()
            .with_requests(8)
            .with_time(Duration::from_secs(3));
        let l = any(w, Some(hold));
        let flood = |from: u16| {
            for port in from..from + 40 {
                let ends = (Ipv4Addr::new(10, 0, 0, 9), FAR.into());
                let frame = tcp_between(ends, &syn((port, 80), 1), b"");
                assert!(w.wire.inject(w.p.now(), &frame));
            }
            w.pass(5);
        };
        flood(1_000);
        w.syn(FAR, (5_000, 80), 1_000);
        assert_eq!((w.count("syns_held"), w.count("drop_syn")), (8, 33));
        // One place is free: who sends his SYN again has it.
        let mut all: Vec<Request> = std::iter::from_fn(|| next(&l)).collect();
        assert_eq!(all.len(), 8);
        all.pop().unwrap().reset().unwrap();
        w.pass(5);
        assert!(w.sent().is_some());
        w.syn(FAR, (5_000, 80), 1_000);
        let r = next(&l).unwrap();
        assert_eq!(r.peer_addr().port(), 5_000);
        r.allow().unwrap();
        w.pass(5);
        let syn_ack = w.syn_ack(FAR, 1_000);
        w.ack(FAR, (5_000, 80), &syn_ack);
        let accepted = l.accept().unwrap();
        // In time as well: nobody decides, and others get their places.
        w.pass(3_000);
        flood(2_000);
        assert_eq!(w.count("syns_held"), 8 + 1 + 8);
        for r in all {
            assert!(!r.allow().unwrap(), "its time is over");
        }
        w.pass(5);
        assert!(w.sent().is_none());
        drop(accepted);
    });
}

/// What an allowed SYN's cookie brings back needs no decision of its own.
#[test]
fn a_cookie_is_sent_for_what_was_allowed() {
    for org in OrgSpec::tested() {
        let name = org.to_string();
        let run = Virtual::run(VirtualConfig::default(), move |p| {
            let (device, wire) = script(&p, "script", 1500);
            let config =
                perimeter::Config::default().with_syn_cookies(perimeter::SynCookies::Always);
            let s = Stack::builder()
                .on_virtual(p.clone())
                .org(org)
                .config(config);
            let s = s.interface_accepting(device, &[], ANY).unwrap();
            let s = s.build().unwrap();
            let w = World { p, s, wire };
            let l = any(&w, Some(Hold::default()));
            w.syn(FAR, (5_000, 80), 1_000);
            assert!(w.sent().is_none());
            // Made up: nobody was asked.
            let forged = TcpHdr {
                flags: TcpFlags::ACK,
                ..header((5_000, 80), 1_001, 12_345)
            };
            w.send(FAR, &forged);
            assert!(w.sent().unwrap().1.flags.contains(TcpFlags::RST));
            assert!(l.accept().is_err());
            next(&l).unwrap().allow().unwrap();
            w.pass(5);
            w.syn_ack(FAR, 1_000);
            // Nothing but the request is kept of it: that answers the peer's next SYN.
            w.syn(FAR, (5_000, 80), 1_000);
            let syn_ack = w.syn_ack(FAR, 1_000);
            assert!(next(&l).is_none());
            w.ack(FAR, (5_000, 80), &syn_ack);
            assert!(l.accept().is_ok());
            assert_eq!(w.count("syn_cookies_accepted"), 1);
        });
        run.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

/// Two interfaces that take anything, with the same peer's address behind both.
#[test]
fn answers_take_the_interface_that_was_asked_by() {
    for org in OrgSpec::tested() {
        let name = org.to_string();
        let run = Virtual::run(VirtualConfig::default(), move |p| {
            let (first, one) = script(&p, "one", 1500);
            let (second, two) = script(&p, "two", 1400);
            let s = Stack::builder().on_virtual(p.clone()).org(org);
            let s = s.interface_accepting(first, &["10.0.0.1/24"], ANY).unwrap();
            let s = s.interface_accepting(second, &[], ANY).unwrap();
            let s = s.route("10.0.0.0/24", None, 0).unwrap().build().unwrap();
            let w = World { p, s, wire: two };
            let l = any(&w, Some(Hold::default()));
            for refuse in [false, true] {
                let ports = (5_000 + u16::from(refuse), 80);
                w.syn(FAR, ports, 1_000);
                let r = next(&l).unwrap();
                if refuse {
                    assert!(r.reset().unwrap());
                    w.pass(5);
                    assert!(w.sent().unwrap().1.flags.contains(TcpFlags::RST));
                    continue;
                }
                assert!(r.allow().unwrap());
                w.pass(1_200);
                w.syn_ack(FAR, 1_000);
                let again = w.syn_ack(FAR, 1_000);
                assert_eq!(again.opts.mss, Some(1_360));
                w.ack(FAR, ports, &again);
                let c = l.accept().unwrap().0;
                c.abort().unwrap();
                w.pass(5);
                assert!(w.sent().unwrap().1.flags.contains(TcpFlags::RST));
            }
            assert!(one.next().is_none(), "nothing was asked by that one");
        });
        run.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

#[test]
fn echo_requests_to_any_address_are_answered_if_the_interface_says_so() {
    let ping = |to: Ipv4Addr| {
        let mut body = vec![0; 12];
        let msg = Icmpv4::EchoRequest { ident: 7, seq: 1 };
        msg.emit(b"ping", &mut body);
        ipv4_between((THEM, to), PROTO_ICMP, &body)
    };
    for (accept, far) in [(ANY, true), (Accept::Any { echo: false }, false)] {
        everywhere(accept, move |w| {
            for (to, answered) in [(US, true), (FAR.into(), far)] {
                assert!(w.wire.inject(w.p.now(), &ping(to)));
                w.pass(5);
                let reply = w.wire.next();
                assert_eq!(reply.is_some(), answered, "{to}");
                if let Some(reply) = reply {
                    let ip = Ipv4Hdr::parse(&reply.bytes, true).unwrap();
                    assert_eq!((ip.src, ip.dst), (to, THEM));
                }
            }
        });
    }
}

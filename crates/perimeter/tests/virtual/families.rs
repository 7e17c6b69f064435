//! Both families of IP beside each other: transfers over each, listeners for both, link-local
//! addresses with their scope.

use crate::common::{Family, Setup, World, content, each_simulated, kind, organizations};
use perimeter::link::fault::FaultConfig;
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{OrgSpec, Stack, TcpStream, Virtual};
use perimeter_sync::virt::VirtualConfig;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};

fn over_v6(org: OrgSpec) -> Setup {
    let mut setup = Setup::new(org);
    setup.family = Family::V6;
    setup
}

/// Data goes each way and ends; what `from` sent arrives.
fn exchange(w: &World, from: &TcpStream, to: &TcpStream, data: &[u8]) {
    let (mut sent, mut got) = (0, Vec::<u8>::new());
    w.until("all of it", || {
        use std::io::{Read, Write};
        if sent < data.len() {
            sent += { from }.write(&data[sent..]).unwrap_or(0);
            if sent == data.len() {
                from.shutdown(Shutdown::Write).unwrap();
            }
        }
        let mut buf = [0; 40_000];
        match { to }.read(&mut buf) {
            Ok(n) => got.extend(&buf[..n]),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        got.len() == data.len()
    });
    assert!(got == data, "{}: not what was sent", w.s.organization());
}

#[test]
fn connections_each_way_over_ipv6() {
    for org in organizations() {
        over_v6(org).run(|w| {
            let org = w.s.organization().to_string();
            let data = content(300_000);
            for (a, b) in [w.open(), w.opened()] {
                assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap(), "{org}");
                assert!(a.local_addr().unwrap().is_ipv6());
                exchange(&w, &a, &b, &data);
                exchange(&w, &b, &a, &data);
                // The header of IPv6 is longer, so that segments are shorter.
                assert_eq!(a.info().unwrap().tcp.snd_mss, 1440 - 12, "{org}");
            }
            let stats = w.s.stats();
            assert_eq!(stats.count("retransmits"), 0, "{org}");
            let c = w.s.start_connect((w.hosts[1], 9).into()).unwrap();
            c.set_nonblocking(true).unwrap();
            w.until("refusal", || c.take_error().unwrap().is_some());
        });
    }
}

#[test]
fn ipv6_over_a_bad_wire() {
    let faults = FaultConfig::default()
        .with_seed(11)
        .with_loss(0.02)
        .with_duplicate(0.02)
        .with_reorder(0.05)
        .with_corrupt(0.01);
    for org in organizations() {
        let mut setup = over_v6(org);
        for end in &mut setup.wire.ends {
            end.faults = faults.clone();
        }
        setup.run(|w| {
            let (a, b) = w.opened();
            let data = content(200_000);
            exchange(&w, &a, &b, &data);
            exchange(&w, &b, &a, &data);
            assert!(w.s.stats().count("retransmits") > 0);
        });
    }
}

/// Two stacks of which both have addresses of both families.
struct Both {
    p: Virtual,
    s: Stack,
    peer: Stack,
}

impl Both {
    fn under_all(body: fn(&Both)) {
        let cfg = VirtualConfig::default()
            .with_cores(2)
            .with_max_steps(20_000_000);
        each_simulated(&cfg, move |p, org| {
            let ([a, b], _) = pair(&p, WireConfig::default());
            let build = |org, end, n: u8| {
                let b = Stack::builder().on_virtual(p.clone()).org(org);
                let addrs = [
                    format!("10.0.0.{n}/24"),
                    format!("fd00::{n}/64"),
                    format!("fe80::{n}/64"),
                ];
                let addrs = addrs.each_ref().map(String::as_str);
                b.interface(end, &addrs).unwrap().build().unwrap()
            };
            let s = build(org, a, 1);
            let peer = build(OrgSpec::default(), b, 2);
            body(&Both { p, s, peer });
        });
    }

    fn until(&self, what: &str, mut cond: impl FnMut() -> bool) {
        use perimeter::Platform;
        for _ in 0..100_000 {
            for s in [&self.s, &self.peer] {
                s.drive().unwrap();
            }
            if cond() {
                return;
            }
            self.p.sleep_until(self.p.now().plus(200_000));
        }
        panic!("{}: {what} never came", self.s.organization());
    }

    /// The peer connects to `to`: from where it says that it comes, if a listener takes it.
    fn reach(&self, l: &perimeter::TcpListener, to: &str) -> Option<(TcpStream, SocketAddr)> {
        l.set_nonblocking(true).unwrap();
        let c = self.peer.start_connect(to.parse().unwrap()).unwrap();
        c.set_nonblocking(true).unwrap();
        let (mut got, mut refused) = (None, false);
        self.until("an answer", || {
            got = l.accept().ok();
            refused = c.take_error().unwrap().is_some();
            got.is_some() || refused
        });
        let (s, from) = got?;
        assert_eq!(c.local_addr().unwrap(), from);
        assert_eq!(s.local_addr().unwrap(), c.peer_addr().unwrap());
        Some((s, from))
    }
}

/// Where a connection comes from, for each kind of listener.
#[test]
fn listeners_for_one_family_and_for_both() {
    Both::under_all(|b| {
        let org = b.s.organization().to_string();
        let addrs = ["10.0.0.1", "[fd00::1]", "[fe80::1]"];
        let takes = |l: &perimeter::TcpListener, port: u16| {
            addrs.map(|a| b.reach(l, &format!("{a}:{port}")).is_some())
        };
        let tcp = b.s.tcp_config();
        let both = b.s.listen("[::]:80").unwrap();
        assert!(!both.only_v6().unwrap());
        assert_eq!(takes(&both, 80), [true, true, true], "{org}");
        let (_s, from) = b.reach(&both, "10.0.0.1:80").unwrap();
        assert_eq!(from.ip(), "10.0.0.2".parse::<std::net::IpAddr>().unwrap());
        let (_s, from) = b.reach(&both, "[::ffff:10.0.0.1]:80").unwrap();
        assert!(from.is_ipv4(), "{org}");
        let (_s, from) = b.reach(&both, "[fe80::1%1]:80").unwrap();
        assert_eq!(from.to_string().split(']').next().unwrap(), "[fe80::2%1");
        // Whoever takes both families leaves no room.
        for at in ["0.0.0.0:80", "[::]:80", "[fd00::1]:80", "10.0.0.1:80"] {
            assert_eq!(kind(b.s.listen(at)), Some(ErrorKind::AddrInUse), "{at}");
        }
        drop(both);
        b.until("its port", || b.s.listen("0.0.0.0:80").is_ok());
        let four = b.s.listen("0.0.0.0:81").unwrap();
        let six = b.s.listen_only_v6("[::]:81", 5, tcp.clone()).unwrap();
        assert!(six.only_v6().unwrap());
        assert_eq!(six.local_addr().unwrap(), "[::]:81".parse().unwrap());
        assert!(b.reach(&four, "10.0.0.1:81").is_some(), "{org}");
        assert!(b.reach(&six, "[fd00::1]:81").is_some(), "{org}");
        for at in ["0.0.0.0:81", "[::]:81", "[fd00::1]:81", "10.0.0.1:81"] {
            assert_eq!(kind(b.s.listen(at)), Some(ErrorKind::AddrInUse), "{at}");
        }
        let four = b.s.listen("0.0.0.0:82").unwrap();
        assert_eq!(takes(&four, 82), [true, false, false], "{org}");
        let six = b.s.listen_only_v6("[::]:83", 5, tcp).unwrap();
        assert_eq!(takes(&six, 83), [false, true, true], "{org}");
        let one = b.s.listen("[fe80::1%1]:84").unwrap();
        assert_eq!(takes(&one, 84), [false, false, true], "{org}");
        assert_eq!(one.local_addr().unwrap(), "[fe80::1%1]:84".parse().unwrap());
    });
}

/// To ourselves, over every address.
#[test]
fn to_our_own_addresses() {
    Both::under_all(|b| {
        for ip in ["10.0.0.1", "[fd00::1]", "[fe80::1]"] {
            let l = b.s.listen(format!("{ip}:80")).unwrap();
            l.set_nonblocking(true).unwrap();
            let c =
                b.s.start_connect(format!("{ip}:80").parse().unwrap())
                    .unwrap();
            let mut got = None;
            b.until("a connection", || {
                got = l.accept().ok();
                got.is_some()
            });
            let (s, from) = got.unwrap();
            assert_eq!(from, c.local_addr().unwrap());
            assert_eq!(s.local_addr().unwrap(), c.peer_addr().unwrap());
            assert_eq!(from.ip(), s.local_addr().unwrap().ip());
        }
        let sent = b.s.stats().count("tx_segments");
        assert!(sent > 0);
    });
}

//! A stack that talks to itself: what goes to one of its own addresses comes back in, by the way
//! that every packet takes, and never reaches the wire.

mod common;
#[path = "common/lan.rs"]
mod lan;

use common::{content, kind};
use lan::{Lan, US, under_all};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Inbound, Native, OrgSpec, Platform, Stack, TcpStream};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::channel;
use std::time::Duration;

fn at(port: u16) -> SocketAddr {
    (US, port).into()
}

/// Both ends of a connection to ourselves; neither blocks.
fn both(lan: &mut Lan, port: u16) -> (TcpStream, TcpStream) {
    let l = lan.s.listen(at(port)).unwrap();
    l.set_nonblocking(true).unwrap();
    let a = lan.s.start_connect(at(port)).unwrap();
    let b = loop {
        match l.accept() {
            Ok((b, from)) => {
                assert_eq!(from, a.local_addr().unwrap());
                break b;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        lan.ms(1);
        assert!(
            lan.p.now() < perimeter_base::Time::from_millis(10_000),
            "{}",
            lan.s.organization()
        );
    };
    for s in [&a, &b] {
        s.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// Sends `data` from one end to the other and shuts that direction down; what arrives.
fn through(lan: &mut Lan, from: &TcpStream, to: &TcpStream, data: &[u8]) -> Vec<u8> {
    let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 40_000]);
    let end = lan.p.now().plus(60_000_000_000);
    let mut shut = false;
    loop {
        if sent < data.len() {
            sent += { from }.write(&data[sent..]).unwrap_or(0);
        } else if !shut {
            from.shutdown(Shutdown::Write).unwrap();
            shut = true;
        }
        match { to }.read(&mut buf) {
            Ok(0) => return got,
            Ok(n) => got.extend(&buf[..n]),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        lan.ms(1);
        assert!(
            lan.p.now() < end,
            "{}: {} bytes",
            lan.s.organization(),
            got.len()
        );
    }
}

#[test]
fn bytes_go_round_and_none_of_it_reaches_the_wire() {
    under_all(24, |lan| {
        let org = lan.s.organization().to_string();
        let (a, b) = both(lan, 80);
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        let data = content(1_000_000);
        assert!(through(lan, &a, &b, &data) == data, "{org}");
        assert!(through(lan, &b, &a, &data) == data, "{org}");
        drop((a, b));
        lan.ms(70_000);
        assert!(lan.s.connections().is_empty(), "{org}");
        lan.s.engine().quiescent().unwrap();
        assert!(lan.sent.is_empty(), "{org}: {} frames", lan.sent.len());
        assert_eq!(lan.count("retransmits"), 0, "{org}");
    });
}

#[test]
fn many_connections_at_once_share_a_queue_that_is_bounded() {
    under_all(24, |lan| {
        let org = lan.s.organization().to_string();
        let pairs: Vec<_> = (0..40).map(|n| both(lan, 1000 + n)).collect();
        let data = content(60_000);
        // All of it is written before any is read: more than the queue and the ring can hold.
        for (a, _) in &pairs {
            assert_eq!({ a }.write(&data).unwrap(), data.len(), "{org}");
        }
        for (a, b) in &pairs {
            assert!(
                through(lan, a, b, b"!") == [&data[..], b"!"].concat(),
                "{org}"
            );
        }
    });
}

#[test]
fn nobody_listening_is_a_refusal() {
    under_all(24, |lan| {
        let c = lan.s.connect_timeout(at(81), Duration::from_secs(5));
        assert_eq!(
            kind(c),
            Some(ErrorKind::ConnectionRefused),
            "{}",
            lan.s.organization()
        );
    });
}

/// Calls that wait, of one thread: the handshake goes on while it is in `connect`.
#[test]
fn one_thread_connects_to_its_own_listener() {
    under_all(24, |lan| {
        let l = lan.s.listen(at(80)).unwrap();
        let mut a = lan
            .s
            .connect_timeout(at(80), Duration::from_secs(5))
            .unwrap();
        let (mut b, _) = l.accept().unwrap();
        let mut buf = [0; 10];
        for _ in 0..50 {
            a.write_all(b"question?!").unwrap();
            b.read_exact(&mut buf).unwrap();
            b.write_all(&buf).unwrap();
            a.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"question?!");
        }
        // An address given in full, and the same port at both ends: that is no connection.
        let same = lan
            .s
            .connect_with(Some(at(80)), at(80), &lan.s.tcp_config());
        assert_eq!(kind(same), Some(ErrorKind::AddrInUse));
    });
}

/// On the machine, with threads that wait in calls, both ways of taking packets.
#[test]
fn threads_talk_to_each_other_through_their_stack() {
    for org in OrgSpec::tested()
        .into_iter()
        .filter(|o| !o.single_threaded())
    {
        for inbound in [Inbound::Thread, Inbound::Inline] {
            let native = Native::default();
            let ([device, _peer], _) = pair(&native, WireConfig::default());
            let s = Stack::builder()
                .on_native(native)
                .org(org.clone())
                .inbound(inbound);
            let s = s
                .interface(device, &["10.0.0.1/24"])
                .unwrap()
                .build()
                .unwrap();
            let l = s.listen(at(80)).unwrap();
            let (tx, rx) = channel();
            let name = format!("{org} {inbound:?}");
            let server = std::thread::spawn(move || {
                let (mut b, _) = l.accept().unwrap();
                let mut all = Vec::new();
                b.read_to_end(&mut all).unwrap();
                b.write_all(&all).unwrap();
            });
            let client = std::thread::spawn(move || {
                let mut a = s.connect(at(80)).unwrap();
                let data = content(400_000);
                a.write_all(&data).unwrap();
                a.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                a.read_to_end(&mut back).unwrap();
                let _ = tx.send(back == data);
            });
            let ok = rx.recv_timeout(Duration::from_secs(30));
            assert_eq!(ok, Ok(true), "{name}");
            client.join().unwrap();
            server.join().unwrap();
        }
    }
}

/// No device at all, one thread, both families.
#[test]
fn a_stack_of_its_own_needs_no_device() {
    for org in OrgSpec::tested() {
        let s = Stack::builder().org(org.clone()).loopback();
        let s = s.build().unwrap();
        for ip in ["127.0.0.1", "::1"] {
            let name = format!("{org} {ip}");
            let to = |port| SocketAddr::new(ip.parse().unwrap(), port);
            let l = s.listen(to(80)).unwrap();
            let mut a = s.connect_timeout(to(80), Duration::from_secs(20)).unwrap();
            let (mut b, from) = l.accept().unwrap();
            assert_eq!(from, a.local_addr().unwrap(), "{name}");
            assert_eq!(from.ip(), to(80).ip(), "{name}");
            let mut buf = [0; 10];
            for _ in 0..50 {
                a.write_all(b"question?!").unwrap();
                b.read_exact(&mut buf).unwrap();
                b.write_all(&buf).unwrap();
                a.read_exact(&mut buf).unwrap();
                assert_eq!(&buf, b"question?!", "{name}");
            }
            let nobody = s.connect_timeout(to(81), Duration::from_secs(20));
            assert_eq!(kind(nobody), Some(ErrorKind::ConnectionRefused), "{name}");

            let (u, v) = (s.bind_udp(to(53)).unwrap(), s.bind_udp(to(0)).unwrap());
            v.send_to(b"question", to(53)).unwrap();
            let (len, from) = u.recv_from(&mut buf).unwrap();
            assert_eq!((len, from), (8, v.local_addr().unwrap()), "{name}");
            // Who is connected hears that nobody is there.
            v.connect(to(54)).unwrap();
            v.send(b"question").unwrap();
            v.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let heard = v.recv(&mut buf);
            assert_eq!(kind(heard), Some(ErrorKind::ConnectionRefused), "{name}");
        }
        // Others of the same network are nobody's.
        let other = s.connect_timeout("127.0.0.2:80".parse().unwrap(), Duration::from_secs(20));
        assert_eq!(kind(other), Some(ErrorKind::NetworkUnreachable), "{org}");
    }
}

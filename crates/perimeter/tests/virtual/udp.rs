//! Datagram sockets under every organization: what `std::net::UdpSocket` does, who gets a datagram,
//! what is told of the network, and what bounds hold.

use crate::common::{
    Family, Setup, World, content, kind, organizations, shared_organizations, under_all,
};
use perimeter::link::fault::FaultConfig;
use perimeter::{
    Datagrams, Events, Interest, Offload, Outgoing, Poll, Stack, Token, UdpConfig, UdpSocket,
};
use perimeter_sync::{Platform, Thread};
use std::collections::HashSet;
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Under every organization, over both families.
pub(super) fn everywhere(change: impl Fn(&mut Setup), body: fn(World)) {
    for family in Family::BOTH {
        let change = |s: &mut Setup| {
            s.family = family;
            change(s);
        };
        under_all(change, body);
    }
}

/// The addresses of the stack under test and of its peer, and that which means any.
pub(super) fn ips(w: &World) -> [IpAddr; 3] {
    let [us, them] = w.hosts;
    let any = match us {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    [us, them, any]
}

/// Another address of that family: of the same prefix, or of one that no route leads to.
fn elsewhere(ip: IpAddr, near: bool) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::new(if near { 10 } else { 99 }, 0, 0, 99).into(),
        IpAddr::V6(_) => {
            let net = if near { 0xfd00 } else { 0xfd99 };
            Ipv6Addr::new(net, 0, 0, 0, 0, 0, 0, 99).into()
        }
    }
}

/// The longest datagram that is not cut, octets of data.
fn longest(w: &World) -> usize {
    match w.hosts[0] {
        IpAddr::V4(_) => 1472,
        IpAddr::V6(_) => 1452,
    }
}

pub(super) fn bind(s: &Stack, addr: (IpAddr, u16)) -> UdpSocket {
    let socket = s.bind_udp(addr).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A socket of the stack under test and one of the peer, both bound to an address of their own.
fn both(w: &World) -> (UdpSocket, UdpSocket, SocketAddr, SocketAddr) {
    let [us, them, _] = ips(w);
    let (a, b) = (w.port(), w.port());
    let (ours, theirs) = (bind(&w.s, (us, a)), bind(&w.peer, (them, b)));
    (ours, theirs, (us, a).into(), (them, b).into())
}

pub(super) fn receive(w: &World, s: &UdpSocket) -> Result<(Vec<u8>, SocketAddr)> {
    let mut buf = vec![0; 65_536];
    let (n, from) = w.wait("a datagram", || s.recv_from(&mut buf))?;
    buf.truncate(n);
    Ok((buf, from))
}

pub(super) fn would_block<T>(r: Result<T>) -> bool {
    kind(r) == Some(ErrorKind::WouldBlock)
}

/// Of a stack that has sent nothing before: what waits for the neighbour's station arrives too.
#[test]
fn datagrams_go_there_and_back() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let (ours, theirs, at, there) = both(&w);
            let mut buf = [0; 2000];
            assert!(would_block(ours.recv_from(&mut buf)));
            for n in 0..5 {
                assert_eq!(ours.send_to(&[n; 9], there).unwrap(), 9);
            }
            for n in 0..5 {
                assert_eq!(receive(&w, &theirs).unwrap(), (vec![n; 9], at));
            }
            for len in [0, 1, 64, 76, 77, 1000, longest(&w)] {
                let data = content(len);
                assert_eq!(theirs.send_to(&data, at).unwrap(), len);
                let mut peeked = [0; 1500];
                let seen = w.wait("a datagram", || ours.peek_from(&mut peeked));
                assert_eq!(seen.unwrap(), (len, there));
                assert_eq!(receive(&w, &ours).unwrap(), (data, there));
            }
            assert!(would_block(ours.recv_from(&mut buf)));
            // What the buffer has no room for is lost.
            theirs.send_to(&content(100), at).unwrap();
            theirs.send_to(b"next", at).unwrap();
            let mut small = [0; 10];
            let got = w.wait("a datagram", || ours.recv_from(&mut small)).unwrap();
            assert_eq!((got, &small[..]), ((10, there), &content(100)[..10]));
            assert_eq!(receive(&w, &ours).unwrap().0, b"next");
            assert_eq!(ours.local_addr().unwrap(), at);
            assert_eq!(kind(ours.peer_addr()), Some(ErrorKind::NotConnected));
            assert_eq!(kind(ours.send(b"to whom?")), Some(ErrorKind::NotConnected));
            assert_eq!(
                kind(ours.send_to(b"", SocketAddr::from((them, 0)))),
                Some(ErrorKind::InvalidInput)
            );
        },
    );
}

#[test]
fn a_socket_with_a_peer_hears_nobody_else_and_is_told_of_errors() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let (_, theirs, _, there) = both(&w);
            let other = bind(&w.peer, (them, w.port()));
            let ours = bind(&w.s, (any, 0));
            let port = ours.local_addr().unwrap().port();
            assert!((32_768..61_000).contains(&port));
            assert!(ours.local_addr().unwrap().ip().is_unspecified());
            ours.connect(there).unwrap();
            let at = SocketAddr::from((us, port));
            assert_eq!(
                (ours.local_addr().unwrap(), ours.peer_addr().unwrap()),
                (at, there)
            );
            ours.send(b"hello").unwrap();
            assert_eq!(receive(&w, &theirs).unwrap(), (b"hello".to_vec(), at));
            other.send_to(b"stranger", at).unwrap();
            theirs.send_to(b"friend", at).unwrap();
            assert_eq!(receive(&w, &ours).unwrap(), (b"friend".to_vec(), there));
            w.pass(Duration::from_millis(50));
            assert!(would_block(ours.recv(&mut [0; 9])));

            // Nobody is there.
            let nobody = SocketAddr::from((them, w.port()));
            ours.connect(nobody).unwrap();
            for call in 0..3 {
                ours.send(b"anybody?").unwrap();
                w.pass(Duration::from_millis(50));
                let e = match call {
                    0 => ours.recv(&mut [0; 9]).map(drop),
                    1 => ours.send(b"again").map(drop),
                    _ => Err(ours.take_error().unwrap().expect("an error")),
                };
                assert_eq!(kind(e), Some(ErrorKind::ConnectionRefused), "call {call}");
                assert!(would_block(ours.recv(&mut [0; 9])), "once");
            }
            // Who has no peer is not told.
            let free = bind(&w.s, (us, w.port()));
            free.send_to(b"anybody?", nobody).unwrap();
            w.pass(Duration::from_millis(50));
            assert!(would_block(free.recv_from(&mut [0; 9])));
            assert!(free.take_error().unwrap().is_none());
        },
    );
}

#[test]
fn a_neighbour_that_is_not_there_is_told_of() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let ours = bind(&w.s, (us, w.port()));
            ours.connect(SocketAddr::from((elsewhere(us, true), 9)))
                .unwrap();
            for n in 0..40 {
                ours.send(&[n; 100]).unwrap();
            }
            assert_eq!(ours.info().unwrap().waiting, 16);
            let got = w.wait("an error", || ours.recv(&mut [0; 9]));
            assert_eq!(kind(got), Some(ErrorKind::HostUnreachable));
            assert_eq!(ours.info().unwrap().waiting, 0);
            assert_eq!(w.s.stats().count("drop_udp_unresolved"), 40);
            let far = kind(ours.connect(SocketAddr::from((elsewhere(us, false), 9))));
            assert_eq!(far, Some(ErrorKind::NetworkUnreachable));
        },
    );
}

#[test]
fn addresses_and_ports() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let port = w.port();
            let wild = bind(&w.s, (any, port));
            let again = w.s.bind_udp(SocketAddr::from((us, port)));
            assert_eq!(kind(again), Some(ErrorKind::AddrInUse));
            let foreign = w.s.bind_udp(SocketAddr::from((them, port)));
            assert_eq!(kind(foreign), Some(ErrorKind::AddrNotAvailable));
            wild.close().unwrap();
            assert_eq!(kind(wild.recv(&mut [0])), Some(ErrorKind::NotConnected));
            let again = bind(&w.s, (us, port));
            drop(again);
            // To itself.
            let a = bind(&w.s, (us, w.port()));
            let b = bind(&w.s, (any, w.port()));
            let to = SocketAddr::from((us, b.local_addr().unwrap().port()));
            a.send_to(b"to myself", to).unwrap();
            assert_eq!(
                receive(&w, &b).unwrap(),
                (b"to myself".to_vec(), a.local_addr().unwrap())
            );
        },
    );
}

/// A socket of all addresses of IPv6 is one of IPv4 too, unless it is told to keep to itself.
#[test]
fn both_families_by_one_socket() {
    under_all(
        |s| s.family = Family::V4,
        |w| {
            let [us, them, any] = ips(&w);
            let port = w.port();
            // The families share a port unless one is told to keep to itself.
            let dual = w.s.bind_udp(("::", port)).unwrap();
            dual.set_nonblocking(true).unwrap();
            let theirs = bind(&w.peer, (them, w.port()));
            theirs
                .send_to(b"mapped", SocketAddr::from((us, port)))
                .unwrap();
            let (data, from) = receive(&w, &dual).unwrap();
            assert_eq!(data, b"mapped");
            assert_eq!(
                from.to_string(),
                format!("[::ffff:10.0.0.2]:{}", w.port() - 1)
            );
            dual.send_to(b"back", from).unwrap();
            assert_eq!(receive(&w, &theirs).unwrap().0, b"back");
            let v4 = w.s.bind_udp(SocketAddr::from((any, port)));
            assert_eq!(kind(v4), Some(ErrorKind::AddrInUse));
            drop(dual);
            let only = UdpConfig::default().with_only_v6(true);
            let six = w.s.bind_udp_with(("::", port), &only).unwrap();
            let four = bind(&w.s, (any, port));
            theirs.send_to(b"four", (us, port)).unwrap();
            assert_eq!(receive(&w, &four).unwrap().0, b"four");
            drop(six);
        },
    );
}

#[test]
fn sockets_that_share_a_port_share_its_flows() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let port = w.port();
            let config = UdpConfig::default().with_reuse_port(true);
            let bind_one = |_| {
                let s =
                    w.s.bind_udp_with(SocketAddr::from((us, port)), &config)
                        .unwrap();
                s.set_nonblocking(true).unwrap();
                s
            };
            let sockets: Vec<UdpSocket> = (0..4).map(bind_one).collect();
            let alone = w.s.bind_udp(SocketAddr::from((us, port)));
            assert_eq!(kind(alone), Some(ErrorKind::AddrInUse));
            let clients: Vec<_> = (0..32).map(|_| bind(&w.peer, (them, w.port()))).collect();
            // IPv6's addresses are probed for duplicates first.
            w.pass(Duration::from_secs(2));
            for round in 0..2u8 {
                for c in &clients {
                    c.send_to(&[round], SocketAddr::from((us, port))).unwrap();
                }
                w.pass(Duration::from_millis(20));
            }
            let mut total = 0;
            for s in &sockets {
                let mut rounds = [HashSet::new(), HashSet::new()];
                while let Ok((_, from)) = s.recv_from(&mut [0]) {
                    let round = usize::from(rounds[0].contains(&from));
                    assert!(rounds[round].insert(from));
                    total += 1;
                }
                assert_eq!(rounds[0], rounds[1], "a flow stays with its socket");
                assert!(!rounds[0].is_empty(), "none of 32 flows");
            }
            assert_eq!(total, 64);
        },
    );
}

#[test]
fn readiness() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let (ours, theirs, at, there) = both(&w);
            let poll = Poll::new(&w.s).unwrap();
            let mut events = Events::with_capacity(4);
            let r = poll.registry();
            r.register(&ours, Token(7), Interest::READABLE).unwrap();
            let none = |events: &mut Events| {
                poll.poll(events, Some(Duration::ZERO)).unwrap();
                assert_eq!(events.iter().count(), 0);
            };
            none(&mut events);
            theirs.send_to(b"one", at).unwrap();
            theirs.send_to(b"two", at).unwrap();
            w.until("an event", || {
                poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
                !events.is_empty()
            });
            let e = events.iter().next().unwrap();
            assert!(e.token() == Token(7) && e.is_readable() && !e.is_error());
            assert_eq!(receive(&w, &ours).unwrap().0, b"one");
            assert_eq!(receive(&w, &ours).unwrap().0, b"two");
            none(&mut events);
            r.reregister(&ours, Token(8), Interest::BOTH.edge())
                .unwrap();
            // Another thread may be the one that tells the poller.
            w.until("an event", || {
                poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
                !events.is_empty()
            });
            assert!(events.iter().next().unwrap().is_writable());
            none(&mut events);
            // An error is an event.
            ours.connect(SocketAddr::from((there.ip(), w.port())))
                .unwrap();
            ours.send(b"anybody?").unwrap();
            w.until("an error", || {
                poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
                events.iter().any(|e| e.is_error())
            });
            assert!(ours.take_error().unwrap().is_some());
            drop(ours);
            none(&mut events);
        },
    );
}

#[test]
fn batches() {
    everywhere(
        |_| {},
        |w| {
            let [us, them, any] = ips(&w);
            let _ = (us, them, any);
            let (ours, theirs, at, there) = both(&w);
            ours.send_to(b"hello", there).unwrap();
            assert_eq!(receive(&w, &theirs).unwrap().0, b"hello");
            let other = bind(&w.peer, (them, w.port()));
            let data = content(20 * 100 + 30);
            let batch = [
                Outgoing {
                    to: Some(there),
                    from: None,
                    data: &data,
                    segment_size: Some(100),
                },
                Outgoing {
                    to: Some(other.local_addr().unwrap()),
                    from: None,
                    data: b"one",
                    segment_size: None,
                },
                Outgoing {
                    to: Some(there),
                    from: None,
                    data: b"",
                    segment_size: None,
                },
            ];
            assert_eq!(ours.send_many(&batch).unwrap(), 3);
            let mut got = Datagrams::with_capacity(8);
            let mut all = Vec::new();
            let mut n = 0;
            while n < 22 {
                n += w.wait("datagrams", || theirs.recv_many(&mut got)).unwrap();
                assert!(got.len() <= 8);
                for d in got.iter() {
                    assert_eq!((d.source, d.destination), (at, there));
                    assert!(d.data.len() == 100 || n >= 21);
                    all.extend_from_slice(d.data);
                }
            }
            assert_eq!((n, all), (22, data.clone()));
            assert_eq!(receive(&w, &other).unwrap().0, b"one");
            ours.connect(there).unwrap();
            assert_eq!(ours.send_segments(&data, 1000, None).unwrap(), data.len());
            for len in [1000, 1000, 30] {
                assert_eq!(receive(&w, &theirs).unwrap().0.len(), len);
            }
            // Longer ones go in fragments, unless they may not.
            let long = longest(&w) + 1;
            let sent = ours.send_segments(&data, long as u16, None).unwrap();
            assert_eq!(sent, data.len());
            // What is put together from fragments may come later than what follows it.
            let mut got = [(); 2].map(|()| receive(&w, &theirs).unwrap().0.len());
            got.sort_unstable();
            assert_eq!(got, [data.len() - long, long]);
            ours.set_dont_fragment(true).unwrap();
            let refused = ours.send_segments(&data, long as u16, None).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
            assert_eq!(ours.send_segments(&data, 1000, None).unwrap(), data.len());
        },
    );
}

/// Whoever sends more than is received fills the socket's queue and no more; what is dropped is
/// counted, and everything comes back.
#[test]
fn a_flood_is_bounded() {
    under_all(
        |s| s.config.memory = 64 << 20,
        |w| {
            let before = w.s.stats().memory;
            let (ours, theirs, at, _) = both(&w);
            ours.set_recv_buffer_size(64 * 1024).unwrap();
            // From here on nothing waits for a station.
            theirs.send_to(b"first", at).unwrap();
            receive(&w, &ours).unwrap();
            for _ in 0..50 {
                for _ in 0..20 {
                    theirs.send_to(&[1; 10], at).unwrap();
                }
                w.pass(Duration::from_millis(2));
            }
            w.pass(Duration::from_millis(50));
            let info = ours.info().unwrap();
            assert!(info.pinned <= 64 * 1024 && info.queued > 20, "{info:?}");
            assert_eq!(info.queued as u64 + info.drops, 1000);
            let stats = w.s.stats();
            assert_eq!(stats.count("drop_udp_queue_full"), info.drops);
            assert!(stats.memory >= before + info.pinned as u64);
            let mut n = 0;
            while ours.recv_from(&mut [0; 10]).is_ok() {
                n += 1;
            }
            assert_eq!(n, info.queued);
            drop(ours);
            w.pass(Duration::from_millis(1));
            assert_eq!(w.s.stats().memory, before);
        },
    );
}

/// A ring without room takes what it can: the caller is told how much that was, and the poller when
/// there is room again.
#[test]
fn a_full_ring_is_told_of() {
    everywhere(
        |s| {
            s.config.tx_ring = 16;
            s.config.offload = Offload::Off;
        },
        |w| {
            let (ours, theirs, _, there) = both(&w);
            ours.connect(there).unwrap();
            let poll = Poll::new(&w.s).unwrap();
            let mut events = Events::with_capacity(4);
            let r = poll.registry();
            r.register(&ours, Token(1), Interest::WRITABLE.edge())
                .unwrap();
            let mut writable = || {
                w.until("room", || {
                    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
                    events.iter().any(|e| e.is_writable())
                });
            };
            ours.send(b"first").unwrap();
            assert_eq!(receive(&w, &theirs).unwrap().0, b"first");
            let data = content(100 * 40);
            let (mut sent, mut calls, mut got) = (0, 0, Vec::new());
            writable();
            while sent < data.len() {
                let n = ours.send_segments(&data[sent..], 40, None).unwrap();
                assert!(n > 0 && n % 40 == 0 && n <= 16 * 40, "{n}");
                let n = n / 40;
                for _ in 0..n {
                    got.extend(receive(&w, &theirs).unwrap().0);
                }
                sent += 40 * n;
                calls += 1;
                if sent < data.len() {
                    writable();
                }
            }
            assert!(calls >= 7, "{calls}");
            assert_eq!(got, data);
            let many = [(); 20].map(|()| Outgoing {
                to: None,
                from: None,
                data: b"one of many",
                segment_size: None,
            });
            let n = ours.send_many(&many).unwrap();
            assert!((1..=16).contains(&n), "{n}");
            for _ in 0..n {
                assert_eq!(receive(&w, &theirs).unwrap().0, b"one of many");
            }
            writable();
            let full = w.s.stats().count("drop_tx_ring_full");
            assert!(full > 6, "{full}");
        },
    );
}

/// Whatever the network does, what arrives is what was sent, and once.
#[test]
fn loss_and_reordering() {
    for (org, seed) in organizations().into_iter().zip(1..) {
        let mut setup = Setup::new(org);
        for end in &mut setup.wire.ends {
            end.faults = FaultConfig::default()
                .with_seed(seed)
                .with_loss(0.1)
                .with_reorder(0.2)
                .with_reorder_ns(3_000_000)
                .with_corrupt(0.05);
        }
        setup.run(|w| {
            let (ours, theirs, at, there) = both(&w);
            let data = content(1400);
            // Until both know the other's station.
            for (from, to, at) in [(&ours, &theirs, there), (&theirs, &ours, at)] {
                w.until("a greeting", || {
                    from.send_to(&[0xff, 0xff], at).unwrap();
                    w.pass(Duration::from_millis(50));
                    to.recv_from(&mut [0; 2]).is_ok()
                });
            }
            w.pass(Duration::from_millis(50));
            for s in [&ours, &theirs] {
                while s.recv_from(&mut [0; 2]).is_ok() {}
            }
            let mut seen = [HashSet::new(), HashSet::new()];
            let mut look = |n: usize, s: &UdpSocket, from: SocketAddr| {
                let mut buf = [0; 1500];
                while let Ok((len, peer)) = s.recv_from(&mut buf) {
                    let number = u16::from_be_bytes([buf[0], buf[1]]);
                    assert_eq!(peer, from);
                    assert_eq!(len, 2 + usize::from(number));
                    assert_eq!(buf[2..len], data[..usize::from(number)]);
                    assert!(seen[n].insert(number), "{number} came twice");
                }
            };
            for number in 0..300u16 {
                let mut d = number.to_be_bytes().to_vec();
                d.extend_from_slice(&data[..usize::from(number)]);
                ours.send_to(&d, there).unwrap();
                theirs.send_to(&d, at).unwrap();
                if number % 10 == 0 {
                    w.pass(Duration::from_millis(1));
                }
                look(0, &ours, there);
                look(1, &theirs, at);
            }
            w.pass(Duration::from_millis(100));
            look(0, &ours, there);
            look(1, &theirs, at);
            assert!(seen.iter().all(|s| s.len() > 150), "most of them");
        });
    }
}

#[test]
fn calls_that_block() {
    for org in shared_organizations() {
        Setup::new(org).run(|w| {
            let [us, them, _] = ips(&w);
            let _ = them;
            let ours = w.s.bind_udp(SocketAddr::from((us, 7))).unwrap();
            ours.set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            let start = w.now();
            assert!(would_block(ours.recv_from(&mut [0])));
            assert!(w.now().since(start) >= Duration::from_millis(20));
            assert_eq!(
                ours.read_timeout().unwrap(),
                Some(Duration::from_millis(20))
            );
            assert_eq!(
                kind(ours.set_read_timeout(Some(Duration::ZERO))),
                Some(ErrorKind::InvalidInput)
            );
            ours.set_read_timeout(None).unwrap();
            let server = ours.try_clone().unwrap();
            let body = move || {
                let mut buf = [0; 100];
                loop {
                    match server.recv_from(&mut buf) {
                        Ok((n, from)) => server.send_to(&buf[..n], from).map(drop).unwrap(),
                        // It was closed.
                        Err(e) => return assert_eq!(e.kind(), ErrorKind::NotConnected),
                    }
                }
            };
            let t = w.p.spawn("server", None, Box::new(body));
            let client = w.peer.bind_udp(SocketAddr::from((them, 0))).unwrap();
            client.connect(SocketAddr::from((us, 7))).unwrap();
            for n in 0..50u8 {
                client.send(&[n; 40]).unwrap();
                let mut buf = [0; 100];
                assert_eq!((client.recv(&mut buf).unwrap(), buf[0]), (40, n));
            }
            ours.close().unwrap();
            t.join().unwrap();
        });
    }
}

/// The end of a stack closes sockets: who waits is told.
#[test]
fn the_end_of_a_stack() {
    for org in shared_organizations() {
        Setup::new(org).run(|w| {
            let [us, them, _] = ips(&w);
            let _ = them;
            let ours = w.s.bind_udp(SocketAddr::from((us, 7))).unwrap();
            let waits = ours.try_clone().unwrap();
            let body = move || {
                assert_eq!(
                    kind(waits.recv_from(&mut [0])),
                    Some(ErrorKind::NotConnected)
                );
            };
            let t = w.p.spawn("waits", None, Box::new(body));
            w.pass(Duration::from_millis(5));
            w.s.stop();
            t.join().unwrap();
            assert_eq!(
                kind(ours.send_to(b"", SocketAddr::from((them, 1)))),
                Some(ErrorKind::NotConnected)
            );
        });
    }
}

/// What the MTU does not allow goes in fragments, unless the socket forbids it.
#[test]
fn long_datagrams() {
    everywhere(
        |_| {},
        |w| {
            let (ours, theirs, at, there) = both(&w);
            let most = match w.hosts[0] {
                IpAddr::V4(_) => 65_507,
                IpAddr::V6(_) => 65_527,
            };
            theirs.send_to(b"hello", at).unwrap();
            receive(&w, &ours).unwrap();
            for len in [longest(&w) + 1, 3000, 9001, most] {
                let data = content(len);
                assert_eq!(ours.send_to(&data, there).unwrap(), len);
                assert_eq!(receive(&w, &theirs).unwrap(), (data.clone(), at));
                assert_eq!(theirs.send_to(&data, at).unwrap(), len);
                assert_eq!(receive(&w, &ours).unwrap(), (data, there));
            }
            let too_long = |r: Result<usize>| {
                assert_eq!(r.unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
            };
            too_long(ours.send_to(&content(most + 1), there));
            ours.set_dont_fragment(true).unwrap();
            too_long(ours.send_to(&content(longest(&w) + 1), there));
            assert!(ours.send_to(&content(longest(&w)), there).is_ok());
            let stats = w.s.stats();
            assert_eq!(stats.count("rx_reassembled"), 4);
            assert_eq!(stats.count("reassembly_failed"), 0);
        },
    );
}

/// Not even while nobody knows the station of the peer.
#[test]
fn what_may_not_be_cut_is_refused_at_once() {
    everywhere(
        |_| {},
        |w| {
            let (ours, theirs, _, there) = both(&w);
            let too_long = |len: usize| {
                let refused = ours.send_to(&content(len), there).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE), "{len}");
            };
            ours.set_dont_fragment(true).unwrap();
            too_long(longest(&w) + 1);
            assert_eq!(ours.info().unwrap().waiting, 0);
            ours.send_to(&content(longest(&w)), there).unwrap();
            ours.set_dont_fragment(false).unwrap();
            ours.send_to(&content(longest(&w) + 1), there).unwrap();
            assert_eq!(receive(&w, &theirs).unwrap().0.len(), longest(&w));
            assert_eq!(receive(&w, &theirs).unwrap().0.len(), longest(&w) + 1);
        },
    );
}

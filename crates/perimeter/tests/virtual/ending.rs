//! How stacks end: in order, with everything delivered; at once; and what calls say afterwards.

use crate::common::{
    Setup, World, content, fill, kind, organizations, shared_organizations, under_all,
};
use perimeter::{Events, Platform, Poll, Stack, State, TcpListener, TcpStream};
use perimeter_sync::Thread;
use std::io::{ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MUCH: usize = 200_000;

/// What a reader of its own, in the peer's program, made of a stream: the bytes, and the error
/// that ended it, if one did.
type Heard = Arc<Mutex<(Vec<u8>, Option<ErrorKind>)>>;

/// Reads `b` to its end in a thread of its own.
fn reader(w: &World, b: TcpStream) -> (impl Thread, Heard) {
    let heard = Heard::default();
    let told = heard.clone();
    b.set_nonblocking(false).unwrap();
    let body = move || {
        let mut buf = vec![0; 10_000];
        loop {
            match (&b).read(&mut buf) {
                Ok(0) => return,
                Ok(n) => told.lock().unwrap().0.extend(&buf[..n]),
                Err(e) => return told.lock().unwrap().1 = Some(e.kind()),
            }
        }
    };
    (w.p.spawn("reader", None, Box::new(body)), heard)
}

/// Writes all of `data`, drops the connection and then the stack; what the peer's reader got, and
/// how long the end took.
fn drop_after_write(w: World, data: &[u8]) -> (Heard, Duration) {
    let (a, b) = w.open();
    let (thread, heard) = reader(&w, b);
    w.write(&a, data);
    let World { s, peer, p, .. } = w;
    let before = p.now();
    drop(a);
    drop(s);
    let took = p.now().since(before);
    thread.join().unwrap();
    drop(peer);
    (heard, took)
}

#[test]
fn the_last_handle_delivers_what_was_written() {
    under_all(
        |s| s.wire.latency_ns = 5_000_000,
        |w| {
            let data = content(MUCH);
            let (heard, _) = drop_after_write(w, &data);
            let (got, error) = &*heard.lock().unwrap();
            assert_eq!((got.len(), *error), (MUCH, None));
            assert!(*got == data);
        },
    );
}

#[test]
fn loss_does_not_keep_it_from_being_delivered() {
    under_all(
        |s| {
            s.wire.latency_ns = 2_000_000;
            for end in &mut s.wire.ends {
                end.faults.loss = 0.03;
            }
        },
        |w| {
            let data = content(MUCH);
            let (heard, _) = drop_after_write(w, &data);
            let (got, error) = &*heard.lock().unwrap();
            assert_eq!((got.len(), *error), (MUCH, None));
        },
    );
}

#[test]
fn without_time_to_drain_the_rest_is_reset() {
    under_all(
        |s| {
            s.config.drain = Duration::ZERO;
            s.wire.latency_ns = 5_000_000;
        },
        |w| {
            let (heard, took) = drop_after_write(w, &content(MUCH));
            let (got, error) = &*heard.lock().unwrap();
            assert!(got.len() < MUCH, "{}", got.len());
            assert_eq!(*error, Some(ErrorKind::ConnectionReset));
            assert!(took < 100 * MS, "{took:?}");
        },
    );
}

#[test]
fn a_peer_that_takes_nothing_holds_the_end_up_for_a_limited_time() {
    under_all(
        |s| {
            s.peer.tcp.rcv_buf = 4096;
            s.config.drain_stall = Duration::from_secs(2);
        },
        |w| {
            let (a, b) = w.open();
            fill(&a);
            let World { s, peer, p, .. } = w;
            let before = p.now();
            drop(a);
            drop(s);
            let took = p.now().since(before);
            assert!(took >= 2 * SECOND && took < 3 * SECOND, "{took:?}");
            // What came in stays; then it is told that this was not all.
            b.set_nonblocking(false).unwrap();
            let mut all = Vec::new();
            let end = (&b).read_to_end(&mut all);
            assert_eq!(kind(end), Some(ErrorKind::ConnectionReset));
            drop(peer);
        },
    );
}

#[test]
fn a_shutdown_delivers_and_tells_that_nothing_was_left() {
    under_all(
        |s| s.wire.latency_ns = 5_000_000,
        |w| {
            let data = content(MUCH);
            // One that is still held, one that was closed, one that nobody has accepted.
            let (a, b) = w.open();
            let (c, d) = w.open();
            let l = w.s.listen(w.at(9)).unwrap();
            let e = w.peer.connect(w.at(9));
            let e = match w.s.organization().single_threaded() {
                true => None,
                false => Some(e.unwrap()),
            };
            let (one, heard) = reader(&w, b);
            let (two, heard_too) = reader(&w, d);
            w.write(&a, &data);
            w.write(&c, &data);
            drop(c);
            let left = w.s.shutdown(60 * SECOND).unwrap();
            assert!(left.is_none(), "{left}");
            one.join().unwrap();
            two.join().unwrap();
            for heard in [heard, heard_too] {
                let (got, error) = &*heard.lock().unwrap();
                assert_eq!((got.len(), *error), (MUCH, None));
            }
            if let Some(e) = e {
                let mut buf = [0; 8];
                assert_eq!(kind((&e).read(&mut buf)), Some(ErrorKind::ConnectionReset));
            }
            assert_eq!(kind(l.accept()), Some(ErrorKind::NotConnected));
            assert_eq!(kind((&a).write(b"x")), Some(ErrorKind::NotConnected));
            assert_eq!(kind(w.s.shutdown(SECOND)), Some(ErrorKind::NotConnected));
        },
    );
}

#[test]
fn a_shutdown_tells_what_was_left() {
    under_all(
        |s| s.peer.tcp.rcv_buf = 4096,
        |w| {
            let (a, b) = w.open();
            let (c, d) = w.open();
            let (thread, heard) = reader(&w, d);
            let written = fill(&a) as u64;
            w.write(&c, b"arrives");
            let before = w.now();
            let left = w.s.shutdown(2 * SECOND).unwrap();
            let took = w.now().since(before);
            assert!(took >= 2 * SECOND && took < 3 * SECOND, "{took:?}");
            assert_eq!(left.connections, 1);
            assert!(left.bytes > 0 && left.bytes < written, "{left}");
            thread.join().unwrap();
            assert_eq!(heard.lock().unwrap().0, b"arrives");
            let mut all = Vec::new();
            b.set_nonblocking(false).unwrap();
            let end = (&b).read_to_end(&mut all);
            assert_eq!(kind(end), Some(ErrorKind::ConnectionReset));
            // What was acknowledged is not among what was left.
            assert!(all.len() as u64 + left.bytes >= written);
        },
    );
}

/// Every call of a stack and of sockets on it, by name.
fn calls(s: &Stack, w: &World, a: &TcpStream) -> Vec<(&'static str, Result<()>)> {
    let mut buf = [0; 8];
    let addr = w.there(7);
    vec![
        ("connect", s.connect(addr).map(drop)),
        (
            "connect_timeout",
            s.connect_timeout(addr, Duration::from_secs(3)).map(drop),
        ),
        ("start_connect", s.start_connect(addr).map(drop)),
        ("listen", s.listen(w.at(8)).map(drop)),
        ("poll", s.poll().map(drop)),
        ("drive", s.drive().map(drop)),
        ("shutdown of the stack", s.shutdown(SECOND).map(drop)),
        ("read", { a }.read(&mut buf).map(drop)),
        ("peek", a.peek(&mut buf).map(drop)),
        ("write", { a }.write(b"x").map(drop)),
        ("shutdown", a.shutdown(std::net::Shutdown::Both)),
        ("set_nodelay", a.set_nodelay(true)),
        ("info", a.info().map(drop)),
        ("take_error", a.take_error().map(drop)),
        ("peer_addr", a.peer_addr().map(drop)),
        ("close", a.close()),
        ("abort", a.abort()),
    ]
}

#[test]
fn every_call_fails_after_a_stop() {
    under_all(
        |_| {},
        |w| {
            let l = w.s.listen(w.at(9)).unwrap();
            let (a, _b) = w.open();
            a.set_nonblocking(false).unwrap();
            let poll = w.s.poll().unwrap();
            w.s.stop();
            for (call, r) in calls(&w.s, &w, &a) {
                assert_eq!(kind(r), Some(ErrorKind::NotConnected), "{call}");
            }
            assert_eq!(kind(l.accept()), Some(ErrorKind::NotConnected));
            let mut events = Events::with_capacity(1);
            assert_eq!(
                kind(poll.poll(&mut events, None)),
                Some(ErrorKind::NotConnected)
            );
            // Looking at what is left is allowed.
            assert_eq!(w.s.stats().connections, 0);
            assert!(w.s.connections().is_empty());
        },
    );
}

#[test]
fn a_stop_wakes_every_call_that_is_blocked() {
    for org in shared_organizations() {
        Setup::new(org).run(|w| {
            let l = w.s.listen(w.at(9)).unwrap();
            let (a, _b) = w.open();
            let (c, _d) = w.open();
            fill(&c);
            a.set_nonblocking(false).unwrap();
            c.set_nonblocking(false).unwrap();
            let poll = Poll::new(&w.s).unwrap();
            let (s, nobody) = (w.s.clone(), w.nobody(7));
            type Blocked = Box<dyn FnOnce() -> Result<()> + Send>;
            let blocked: Vec<(&str, Blocked)> = vec![
                ("accept", Box::new(move || l.accept().map(drop))),
                ("read", Box::new(move || { &a }.read(&mut [0; 8]).map(drop))),
                ("write", Box::new(move || { &c }.write_all(&[0; 1 << 20]))),
                // Nobody answers for this address.
                ("connect", Box::new(move || s.connect(nobody).map(drop))),
                (
                    "poll",
                    Box::new(move || poll.poll(&mut Events::with_capacity(1), None)),
                ),
            ];
            let threads: Vec<_> = blocked
                .into_iter()
                .map(|(name, call)| {
                    let ended = Arc::new(Mutex::new(None));
                    let out = ended.clone();
                    let body = move || *out.lock().unwrap() = Some(kind(call()));
                    (name, ended, w.p.spawn(name, None, Box::new(body)))
                })
                .collect();
            w.p.sleep_until(w.now() + 100 * MS);
            let before = w.now();
            w.s.stop();
            for (name, ended, thread) in threads {
                thread.join().unwrap();
                let ended = *ended.lock().unwrap();
                assert_eq!(ended, Some(Some(ErrorKind::NotConnected)), "{name}");
            }
            let took = w.now().since(before);
            assert!(took < 200 * MS, "{took:?}");
        });
    }
}

/// How an application may end a stack.
type Ends = fn(TcpListener, Stack);

/// The peer believes that it is connected while its acknowledgment is on the way.
#[test]
fn the_peer_of_a_handshake_under_way_is_told_of_the_end() {
    const WAYS: [(&str, Ends); 3] = [
        ("stopped", |_l, s| s.stop()),
        ("shut down", |_l, s| {
            s.shutdown(100 * MS).unwrap();
        }),
        ("dropped", |l, s| {
            drop(l);
            drop(s);
        }),
    ];
    for org in organizations() {
        for (way, end) in WAYS {
            Setup::new(org.clone()).run(move |w| {
                let l = w.s.listen(w.at(9)).unwrap();
                w.settle();
                let c = w.peer.start_connect(w.at(9)).unwrap();
                w.until("SYN-ACK", || c.info().unwrap().tcp.state != State::SynSent);
                assert!(w.s.connections().is_empty(), "the acknowledgment is here");
                let World { s, peer, .. } = w;
                end(l, s);
                c.set_read_timeout(Some(500 * MS)).unwrap();
                let read = (&c).read(&mut [0; 8]);
                assert_eq!(kind(read), Some(ErrorKind::ConnectionReset), "{way}");
                drop(peer);
            });
        }
    }
}

#[test]
fn another_thread_may_stop_a_stack_of_one_thread() {
    for org in organizations().into_iter().filter(|o| o.single_threaded()) {
        Setup::new(org).run(|w| {
            let l = w.s.listen(w.at(9)).unwrap();
            l.set_nonblocking(false).unwrap();
            let (_a, b) = w.open();
            let s = w.s.clone();
            let p = w.p.clone();
            let body = move || {
                p.sleep_until(p.now() + 100 * MS);
                s.stop();
            };
            let thread = w.p.spawn("other", None, Box::new(body));
            assert_eq!(kind(l.accept()), Some(ErrorKind::NotConnected));
            thread.join().unwrap();
            b.set_nonblocking(false).unwrap();
            let read = (&b).read(&mut [0; 8]);
            assert_eq!(kind(read), Some(ErrorKind::ConnectionReset));
        });
    }
}

#[test]
fn sockets_of_one_thread_may_be_dropped_by_another() {
    for org in organizations().into_iter().filter(|o| o.single_threaded()) {
        Setup::new(org).run(|w| {
            let l = w.s.listen(w.at(9)).unwrap();
            let (a, b) = w.open();
            w.write(&a, b"before");
            let poll = w.s.poll().unwrap();
            let dropping =
                w.p.spawn("other", None, Box::new(move || drop((l, a, poll))));
            dropping.join().unwrap();
            w.pass(10 * MS);
            // The port is free again, and the peer has heard of the close.
            let again = w.s.listen(w.at(9)).unwrap();
            assert_eq!(w.read_all(&b).unwrap(), b"before");
            drop(again);
        });
    }
}

#[test]
fn other_threads_see_the_connections_of_a_stack_of_one() {
    for org in organizations().into_iter().filter(|o| o.single_threaded()) {
        Setup::new(org).run(|w| {
            let (_a, _b) = w.open();
            let s = w.s.clone();
            let seen = Arc::new(Mutex::new(None));
            let out = seen.clone();
            let body = move || {
                *out.lock().unwrap() = Some((s.connections().len(), s.stats().connections));
            };
            let thread = w.p.spawn("other", None, Box::new(body));
            w.pass(20 * MS);
            thread.join().unwrap();
            assert_eq!(*seen.lock().unwrap(), Some((1, 1)));
        });
    }
}

#[test]
fn connecting_tries_one_address_after_another() {
    for org in shared_organizations() {
        Setup::new(org).run(|w| {
            let l = w.peer.listen(w.there(80)).unwrap();
            let at = |s: &str| s.parse::<std::net::SocketAddr>().unwrap();
            // No route, nobody there, refused; then the one.
            let all = [at("[2001:db8::1]:80"), w.there(81), w.there(80)];
            let a = w.s.connect(&all[..]).unwrap();
            assert_eq!(a.peer_addr().unwrap(), w.there(80));
            let refused = w.s.connect(&all[..2]);
            assert_eq!(kind(refused), Some(ErrorKind::ConnectionRefused));
            let none = w.s.connect(&all[..0]);
            assert_eq!(kind(none), Some(ErrorKind::InvalidInput));
            drop(l);
        });
    }
}

#[test]
fn the_policy_of_locks_does_not_depend_on_the_order_of_the_builder() {
    use perimeter::link::wire::{WireConfig, pair};
    use perimeter::{Lending, LockPolicy, Native};
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let before = Stack::builder()
        .lock_policy(LockPolicy::Turnstile)
        .on_native(native);
    let after = Stack::builder()
        .on_native(native)
        .lock_policy(LockPolicy::Turnstile);
    let lending = native.with_policy(LockPolicy::Turnstile).lending();
    assert_ne!(lending, Lending::None);
    for (builder, end, addr) in [(before, a, "10.0.0.1/24"), (after, b, "10.0.0.2/24")] {
        assert_eq!(builder.lending(), lending);
        builder.interface(end, &[addr]).unwrap().build().unwrap();
    }
}

#[test]
fn a_timer_is_on_time_though_nobody_polls() {
    use perimeter::link::wire::{WireConfig, pair};
    use perimeter::{Config, Inbound, Virtual};
    for org in shared_organizations() {
        let setup = Setup::new(org.clone());
        let run = Virtual::run(setup.virt, move |p| {
            let ([a, b], _) = pair(&p, WireConfig::default());
            let mut config = Config::default().with_service(500 * MS);
            config.tcp.rto_min = 5 * MS;
            let build = |org, end, addr| {
                let b = Stack::builder().on_virtual(p.clone()).org(org);
                let b = b.config(config.clone()).inbound(Inbound::Inline);
                b.interface(end, &[addr]).unwrap().build().unwrap()
            };
            let s = build(org, a, "10.0.0.1/24");
            // One that is silent unless it is driven.
            let peer = build(crate::common::named("up"), b, "10.0.0.2/24");
            let l = peer.listen("10.0.0.2:80").unwrap();
            l.set_nonblocking(true).unwrap();
            let c = s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
            let held = loop {
                s.drive().unwrap();
                peer.drive().unwrap();
                p.sleep_until(p.now() + MS);
                if let Ok(held) = l.accept() {
                    break held;
                }
            };
            s.drive().unwrap();
            let again = || {
                let stats = s.stats();
                stats.count("retransmits") + stats.count("loss_probes")
            };
            let before = again();
            (&c).write_all(b"anybody?").unwrap();
            p.sleep_until(p.now() + 100 * MS);
            assert!(
                again() > before,
                "{}: nothing was sent again",
                s.organization()
            );
            s.stop();
            peer.stop();
            drop(held);
        });
        run.unwrap_or_else(|f| panic!("{f}"));
    }
}

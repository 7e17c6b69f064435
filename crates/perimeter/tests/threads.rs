//! Threads on the machine: sockets and pollers shared, calls blocked while another thread
//! closes, service while no application thread enters, and the one-threaded `up`.

mod common;

use common::{content, kind, shared_organizations};
use perimeter::link::wire::{End, WireConfig, pair};
use perimeter::{Events, Inbound, Interest, Native, OrgSpec, Stack, State, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn build(native: &Native, org: OrgSpec, inbound: Inbound, end: End<Native>, addr: &str) -> Stack {
    let b = Stack::builder()
        .on_native(*native)
        .org(org)
        .inbound(inbound)
        // Both stacks end here, one after the other: the second finds nobody at the other end.
        .config(perimeter::Config::default().with_drain(Duration::ZERO));
    b.interface(end, &[addr]).unwrap().build().unwrap()
}

/// The stack under test at 10.0.0.1 and its peer at 10.0.0.2.
fn stacks(org: &OrgSpec, inbound: Inbound) -> (Stack, Stack) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    (
        build(&native, org.clone(), inbound, a, "10.0.0.1/24"),
        build(
            &native,
            OrgSpec::default(),
            Inbound::Thread,
            b,
            "10.0.0.2/24",
        ),
    )
}

/// Runs `f` on a thread of its own; its result must come within a time.
fn within<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (tx, rx) = channel();
    let t = thread::spawn(move || {
        let _ = tx.send(f());
    });
    let out = rx
        .recv_timeout(LONG)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    t.join().unwrap();
    out
}

#[test]
fn closing_wakes_calls_that_are_blocked() {
    for org in shared_organizations() {
        for inbound in [Inbound::Thread, Inbound::Inline] {
            let (s, peer) = stacks(&org, inbound);
            let l = peer.listen("10.0.0.2:80").unwrap();
            let mut small = s.tcp_config();
            small.snd_buf = 4096;
            let to = "10.0.0.2:80".parse().unwrap();
            for direction in ["read", "write"] {
                let mut c = s.connect_with(None, to, &small).unwrap();
                let (_held, _) = l.accept().unwrap();
                let other = c.try_clone().unwrap();
                let t = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(30));
                    other.close().unwrap();
                });
                let r = within(direction, move || match direction {
                    "read" => c.read(&mut [0; 8]).map(drop),
                    // More than both buffers hold.
                    _ => c.write_all(&vec![0; 4 << 20]),
                });
                let got = kind(r);
                let want = [Some(ErrorKind::NotConnected), Some(ErrorKind::BrokenPipe)];
                assert!(want.contains(&got), "{org} {direction}: {got:?}");
                t.join().unwrap();
            }
            // An accept.
            let listener = Arc::new(s.listen("10.0.0.1:80").unwrap());
            let waits = listener.clone();
            let t = thread::spawn(move || waits.accept().map(drop));
            thread::sleep(Duration::from_millis(30));
            listener.close().unwrap();
            assert!(within("accept", move || t.join().unwrap()).is_err());
            // A connect to somebody who is not there.
            let c = s.start_connect("10.0.0.99:80".parse().unwrap()).unwrap();
            let other = c.try_clone().unwrap();
            let t = thread::spawn(move || (&c).read(&mut [0; 8]).map(drop));
            thread::sleep(Duration::from_millis(30));
            other.close().unwrap();
            assert!(within("connect", move || t.join().unwrap()).is_err());
            // The whole stack.
            let mut c = s.connect_with(None, to, &small).unwrap();
            let t = thread::spawn(move || c.read(&mut [0; 8]).map(drop));
            thread::sleep(Duration::from_millis(30));
            s.stop();
            assert!(within("stop", move || t.join().unwrap()).is_err());
        }
    }
}

#[test]
fn eight_threads_share_a_socket() {
    const EACH: usize = 200_000;
    for org in shared_organizations() {
        let (s, peer) = stacks(&org, Inbound::Thread);
        let l = s.listen("10.0.0.1:80").unwrap();
        let c = peer.connect("10.0.0.1:80").unwrap();
        let (ours, _) = l.accept().unwrap();
        // Four write and four read, on the same socket.
        let total = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for _ in 0..4 {
            let s = ours.try_clone().unwrap();
            threads.push(thread::spawn(move || {
                (&s).write_all(&content(EACH)).unwrap()
            }));
            let (s, total) = (ours.try_clone().unwrap(), total.clone());
            threads.push(thread::spawn(move || {
                let mut buf = vec![0; 8192];
                loop {
                    match (&s).read(&mut buf).unwrap() {
                        0 => return,
                        n => total.fetch_add(n, Ordering::SeqCst),
                    };
                }
            }));
        }
        let back = c.try_clone().unwrap();
        let t = thread::spawn(move || {
            let (mut got, mut buf) = (0, vec![0; 65536]);
            while got < 4 * EACH {
                got += (&back).read(&mut buf).unwrap();
            }
            got
        });
        (&c).write_all(&content(4 * EACH)).unwrap();
        c.shutdown(Shutdown::Write).unwrap();
        let got = within("all threads", move || {
            threads.into_iter().for_each(|t| t.join().unwrap());
            t.join().unwrap()
        });
        assert_eq!(
            (got, total.load(Ordering::SeqCst)),
            (4 * EACH, 4 * EACH),
            "{org}"
        );
    }
}

#[test]
fn threads_share_a_poller() {
    const CONNS: usize = 12;
    for org in shared_organizations() {
        for inbound in [Inbound::Thread, Inbound::Inline] {
            let (s, peer) = stacks(&org, inbound);
            let l = s.listen("10.0.0.1:80").unwrap();
            let poll = Arc::new(s.poll().unwrap());
            let mut socks = Vec::new();
            let mut clients = Vec::new();
            for i in 0..CONNS {
                let c = peer.connect("10.0.0.1:80").unwrap();
                let (a, _) = l.accept().unwrap();
                a.set_nonblocking(true).unwrap();
                poll.registry()
                    .register(&a, Token(i), Interest::READABLE.oneshot())
                    .unwrap();
                socks.push(a);
                clients.push(thread::spawn(move || {
                    let mut buf = [0; 100];
                    for _ in 0..50 {
                        (&c).write_all(&[i as u8; 100]).unwrap();
                        (&c).read_exact(&mut buf).unwrap();
                        assert!(buf.iter().all(|b| usize::from(*b) == i));
                    }
                }));
            }
            let (socks, left) = (Arc::new(socks), Arc::new(AtomicUsize::new(CONNS)));
            let servers: Vec<_> = (0..4)
                .map(|_| {
                    let (poll, socks, left) = (poll.clone(), socks.clone(), left.clone());
                    thread::spawn(move || echo(&poll, &socks, &left))
                })
                .collect();
            within(&format!("{org} {inbound:?}"), move || {
                clients
                    .into_iter()
                    .chain(servers)
                    .for_each(|t| t.join().unwrap());
            });
        }
    }
}

/// Sends back what comes, until all connections have ended.
fn echo(poll: &perimeter::Poll, socks: &[perimeter::TcpStream], left: &AtomicUsize) {
    let mut events = Events::with_capacity(4);
    let mut buf = [0; 1000];
    while left.load(Ordering::SeqCst) > 0 {
        poll.poll(&mut events, None).unwrap();
        for e in events.iter() {
            let s = &socks[e.token().0];
            // One-shot: until it is armed again, this socket is this thread's.
            loop {
                match (&*s).read(&mut buf) {
                    Ok(0) => {
                        left.fetch_sub(1, Ordering::SeqCst);
                        break;
                    }
                    Ok(n) => (&*s).write_all(&buf[..n]).unwrap(),
                    Err(_) => {
                        let r = poll.registry();
                        r.reregister(s, e.token(), Interest::READABLE.oneshot())
                            .unwrap();
                        break;
                    }
                }
            }
        }
    }
    poll.waker().wake();
}

/// Whether poll(2) finds the descriptor readable within `ms`.
fn readable(fd: BorrowedFd<'_>, ms: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let t = Timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    poll(&mut fds, Some(&t)).unwrap() == 1
}

#[test]
fn a_poller_has_a_descriptor_for_the_hosts_pollers() {
    for org in shared_organizations() {
        let (s, peer) = stacks(&org, Inbound::Thread);
        let l = s.listen("10.0.0.1:80").unwrap();
        let c = peer.connect("10.0.0.1:80").unwrap();
        let (a, _) = l.accept().unwrap();
        a.set_nonblocking(true).unwrap();
        let poll = s.poll().unwrap();
        poll.registry()
            .register(&a, Token(3), Interest::READABLE)
            .unwrap();
        let fd = poll.as_fd();
        let mut events = Events::with_capacity(4);
        for _ in 0..20 {
            assert!(!readable(fd, 0), "{org}: nothing is there");
            (&c).write_all(b"ping").unwrap();
            assert!(readable(fd, 5_000), "{org}: not told");
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            assert_eq!(events.iter().next().map(|e| e.token()), Some(Token(3)));
            assert!(readable(fd, 0), "{org}: a level stays");
            let mut buf = [0; 16];
            assert_eq!((&a).read(&mut buf).unwrap(), 4);
            poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
            assert!(events.is_empty());
        }
    }
}

/// Protocol threads that sleep are told of the end, and joined: those that have nothing to do sleep
/// without a timer.
#[test]
fn idle_stacks_end_at_once() {
    for org in shared_organizations() {
        for inbound in [Inbound::Thread, Inbound::Inline] {
            let (s, peer) = stacks(&org, inbound);
            let _l = s.listen("10.0.0.1:80").unwrap();
            peer.connect("10.0.0.1:80").unwrap();
            // Whether they sleep by now or are about to, the end is to reach them.
            thread::sleep(Duration::from_millis(20));
            within(&format!("{org} {inbound:?}"), move || drop(s));
        }
    }
}

/// Packets are answered within 10 ms though no application thread enters. The machine is shared
/// with others, so the best of many attempts counts, and most must be near.
#[test]
fn served_though_nobody_enters() {
    for org in shared_organizations() {
        for inbound in [Inbound::Thread, Inbound::Inline] {
            let (s, peer) = stacks(&org, inbound);
            let _l = s.listen("10.0.0.1:80").unwrap();
            let _warm = peer.connect("10.0.0.1:80").unwrap();
            let mut times: Vec<_> = (0..15)
                .map(|_| {
                    let start = Instant::now();
                    peer.connect("10.0.0.1:80").unwrap();
                    start.elapsed()
                })
                .collect();
            times.sort();
            assert!(
                times[0] < Duration::from_millis(10),
                "{org} {inbound:?}: {times:?}"
            );
            assert!(
                times[7] < Duration::from_millis(30),
                "{org} {inbound:?}: {times:?}"
            );
            // A timer: an acknowledgment that is delayed by 40 ms.
            let c = peer.connect("10.0.0.1:80").unwrap();
            let mut times: Vec<_> = (0..5)
                .map(|_| {
                    let start = Instant::now();
                    (&c).write_all(b"x").unwrap();
                    while c.info().unwrap().snd_queued > 0 {
                        assert!(start.elapsed() < LONG);
                        thread::sleep(Duration::from_micros(200));
                    }
                    start.elapsed()
                })
                .collect();
            times.sort();
            assert!(
                times[0] < Duration::from_millis(60),
                "{org} {inbound:?}: {times:?}"
            );
        }
    }
}

/// Two ends that answer each other at once wait for less than they may look around; neither does
/// where that is switched off.
#[test]
fn who_waits_looks_around_first() {
    if thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        return;
    }
    // As long as a busy machine takes to answer.
    for most in [Duration::from_millis(20), Duration::ZERO] {
        let native = Native::default();
        let ([a, b], _) = pair(&native, WireConfig::default());
        let config = perimeter::Config::default()
            .with_drain(Duration::ZERO)
            .with_look_around(most);
        let stack = |end, addr: &str| {
            let b = Stack::builder().on_native(native).config(config.clone());
            b.interface(end, &[addr]).unwrap().build().unwrap()
        };
        let (here, there) = (stack(a, "10.0.0.1/24"), stack(b, "10.0.0.2/24"));
        let listener = there.listen("10.0.0.2:7").unwrap();
        let echo = thread::spawn(move || {
            let (mut s, _) = listener.accept().unwrap();
            let mut octet = [0];
            while s.read(&mut octet).unwrap() == 1 {
                s.write_all(&octet).unwrap();
            }
        });
        let looked = within("round trips", move || {
            let mut s = here.connect("10.0.0.2:7").unwrap();
            for n in 0..2_000_u32 {
                s.write_all(&[n as u8]).unwrap();
                let mut octet = [0];
                s.read_exact(&mut octet).unwrap();
                assert_eq!(octet[0], n as u8);
            }
            s.shutdown(Shutdown::Write).unwrap();
            here.stats().count("look_ns")
        });
        echo.join().unwrap();
        assert_eq!(looked > 0, most > Duration::ZERO, "{most:?}: {looked} ns");
    }
}

#[test]
fn up_refuses_other_threads() {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let s = build(
        &native,
        "up".parse().unwrap(),
        Inbound::Thread,
        a,
        "10.0.0.1/24",
    );
    let peer = build(
        &native,
        OrgSpec::default(),
        Inbound::Thread,
        b,
        "10.0.0.2/24",
    );
    let l = peer.listen("10.0.0.2:80").unwrap();
    let c = s.connect("10.0.0.2:80").unwrap();
    let poll = s.poll().unwrap();
    let listener = s.listen("10.0.0.1:80").unwrap();
    let (stranger, sock) = (s.clone(), c.try_clone().unwrap());
    thread::spawn(move || {
        let unsupported = Some(ErrorKind::Unsupported);
        let mut events = Events::with_capacity(1);
        assert_eq!(kind((&sock).read(&mut [0; 8])), unsupported);
        assert_eq!(kind((&sock).write(b"x")), unsupported);
        assert_eq!(kind(sock.info()), unsupported);
        assert_eq!(kind(sock.set_nodelay(true)), unsupported);
        assert_eq!(kind(sock.shutdown(Shutdown::Both)), unsupported);
        assert_eq!(kind(sock.take_error()), unsupported);
        assert_eq!(kind(stranger.connect("10.0.0.2:80")), unsupported);
        assert_eq!(kind(stranger.listen("10.0.0.1:81")), unsupported);
        assert_eq!(kind(stranger.drive()), unsupported);
        assert_eq!(kind(stranger.poll()), unsupported);
        assert_eq!(kind(listener.accept()), unsupported);
        let want = Interest::READABLE;
        assert_eq!(
            kind(poll.registry().register(&sock, Token(0), want)),
            unsupported
        );
        assert_eq!(
            kind(poll.poll(&mut events, Some(Duration::ZERO))),
            unsupported
        );
        // What can't say so says little, and does not panic either.
        assert!(stranger.connections().is_empty());
        let _ = stranger.stats();
        poll.waker().wake();
        let _ = poll.as_raw_fd();
        // Handles that are dropped here close nothing.
        drop((poll, listener, sock, stranger));
    })
    .join()
    .unwrap();
    (&c).write_all(b"fine").unwrap();
    let (mut d, _) = l.accept().unwrap();
    let mut buf = [0; 4];
    let t = thread::spawn(move || {
        d.read_exact(&mut buf).unwrap();
        buf
    });
    // The owner's calls are what moves the stack.
    let start = Instant::now();
    while !t.is_finished() {
        assert!(start.elapsed() < LONG);
        s.drive().unwrap();
        thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(&t.join().unwrap(), b"fine");
    assert_eq!(c.info().unwrap().tcp.state, State::Established);
}

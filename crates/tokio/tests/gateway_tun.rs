//! The gateway between two kernels: programs' sockets in one namespace, a TUN device, the gateway,
//! the host's sockets, and servers in another namespace behind a veth pair. Needs the privilege to
//! make them; else it says what it skips. `PERIMETER_INTEROP=full`: 1 GiB each way, 500 connections,
//! 50,000 short ones, 10,000 sessions.

#[path = "gateway_tun/programs.rs"]
mod programs;
#[path = "gateway_tun/servers.rs"]
mod servers;
#[path = "gateway_tun/world.rs"]
mod world;

use perimeter_tokio::gateway::{Settings, rules::Destinations};
use servers::{DNS_ANSWER, ECHO, GONE, RESET, SINK, SOURCE, WAIT, pattern};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use world::{BEHIND4, BEHIND6, DENIED, NOBODY, World, full, world, world_of};

fn connect(at: (IpAddr, u16), first: u8) -> TcpStream {
    let s = TcpStream::connect_timeout(&at.into(), Duration::from_secs(20)).expect("connected");
    s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    s.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    (&s).write_all(&[first]).unwrap();
    s
}

fn digest(mut from: impl Read) -> (Vec<u8>, u64) {
    let (mut sum, mut n, mut buf) = (Sha256::new(), 0, vec![0; 1 << 18]);
    loop {
        match from.read(&mut buf).expect("read") {
            0 => return (sum.finalize().to_vec(), n),
            k => {
                sum.update(&buf[..k]);
                n += k as u64;
            }
        }
    }
}

/// `total` bytes each way over so many connections at once.
fn transfers(conns: u64, total: u64) {
    let each = total / conns;
    let start = Instant::now();
    thread::scope(|threads| {
        for n in 0..conns {
            let at = (if n % 2 == 0 { BEHIND4 } else { BEHIND6 }, servers::PORT);
            let builder = thread::Builder::new().stack_size(1 << 17);
            let body = move || {
                let mut s = connect(at, SOURCE);
                s.write_all(&each.to_be_bytes()).unwrap();
                let want = digest(pattern(each));
                assert_eq!(digest(&s), want, "to the inside");
                let mut s = connect(at, SINK);
                std::io::copy(&mut pattern(each), &mut s).unwrap();
                s.shutdown(Shutdown::Write).unwrap();
                let mut seen = Vec::new();
                s.read_to_end(&mut seen).unwrap();
                assert_eq!(seen, want.0, "from the inside");
            };
            builder.spawn_scoped(threads, body).unwrap();
        }
    });
    println!(
        "{conns} connections, {total} bytes each way: {:?}",
        start.elapsed()
    );
}

#[test]
fn bytes_are_the_same_each_way() {
    world(Settings::default(), |w| {
        let total = if full() { 1 << 30 } else { 16 << 20 };
        transfers(1, total);
        transfers(10, total);
        if full() {
            transfers(500, total);
        }
        w.settled();
        assert_eq!(w.count("failed"), 0);
    });
}

/// One thread of the stack's serves a device, however many queues it has.
#[test]
fn several_queues_carry_as_one_does() {
    const QUEUES: usize = 4;
    world_of(Settings::default(), QUEUES, |w| {
        transfers(32, if full() { 1 << 30 } else { 16 << 20 });
        let s = udp("0.0.0.0:0");
        s.send_to(b"hello", (BEHIND4, servers::PORT)).unwrap();
        assert_eq!(s.recv(&mut [0; 8]).unwrap(), 5);
        w.settled();
        assert_eq!(w.count("relayed"), 64);
        assert_eq!(w.count("failed"), 0);
    });
}

#[test]
fn what_happens_outside_is_seen_inside() {
    world(Settings::default(), |w| {
        for behind in [BEHIND4, BEHIND6] {
            let at = (behind, servers::PORT);
            // Half a close: the other direction goes on.
            let mut s = connect(at, ECHO);
            s.write_all(b"one").unwrap();
            s.shutdown(Shutdown::Write).unwrap();
            let mut all = Vec::new();
            s.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"one");
            // A reset, either way.
            let e = connect(at, RESET).read(&mut [0]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ConnectionReset);
            let s = connect(at, WAIT);
            thread::sleep(Duration::from_millis(100));
            world::reset(s);
            assert_eq!(w.heard(), "reset");
            // An end, and the server's after that.
            drop(connect(at, WAIT));
            assert_eq!(w.heard(), "end");
            // Refused: nobody listens there.
            let start = Instant::now();
            let e = TcpStream::connect((behind, 9)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
            assert!(start.elapsed() < Duration::from_secs(2));
            // Silence: the server's host drops what goes to that port.
            let to = SocketAddr::new(behind, GONE);
            let e = TcpStream::connect_timeout(&to, Duration::from_secs(3)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::TimedOut);
        }
        // No route outside is as good as a refusal.
        let e = TcpStream::connect((NOBODY, 80)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        w.settled();
        assert!(w.count("unanswered") >= 2 && w.count("refused") >= 3);
    });
}

#[test]
fn rules_are_kept_and_echo_requests_are_answered() {
    let mut settings = Settings::default();
    let what = format!("{DENIED}/32");
    settings
        .rules
        .push(false, what.parse::<Destinations>().unwrap());
    world(settings, |w| {
        let e = TcpStream::connect((DENIED, servers::PORT)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        drop(connect((BEHIND4, servers::PORT), ECHO));
        assert_eq!(w.count("denied"), 1);
        for to in [BEHIND4, BEHIND6, NOBODY] {
            assert!(world::ping(to), "{to}");
        }
    });
}

fn udp(local: &str) -> UdpSocket {
    let s = UdpSocket::bind(local).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    s
}

#[test]
fn datagrams_and_their_sessions() {
    let resolver = SocketAddr::new(BEHIND4, 5300);
    let settings = Settings::default()
        // Long enough for all senders to be there at once.
        .with_session_time(Duration::from_secs(if full() { 15 } else { 2 }))
        .with_dns(Some(resolver));
    world(settings, |w| {
        for (behind, local) in [(BEHIND4, "0.0.0.0:0"), (BEHIND6, "[::]:0")] {
            let s = udp(local);
            let to = SocketAddr::new(behind, servers::PORT);
            for n in [0, 1, 1_000, 1_400, 4_000, 60_000] {
                let data: Vec<u8> = (0..n).map(|i| i as u8).collect();
                s.send_to(&data, to).unwrap();
                let mut buf = vec![0; 65_536];
                let (got, from) = s.recv_from(&mut buf).unwrap_or_else(|e| panic!("{n}: {e}"));
                assert_eq!((from, &buf[..got]), (to, &data[..]), "{n}");
            }
            // One sender has one port outside, whatever it asks.
            let other = SocketAddr::new(behind, servers::PORT + 1);
            let whoami = |at| {
                s.send_to(b"?", at).unwrap();
                let mut buf = [0; 100];
                let n = s.recv(&mut buf).unwrap();
                buf[..n].to_vec()
            };
            assert_eq!(whoami(other), whoami(other));
        }
        // Another resolver answers, in the name of the one that was asked.
        let s = udp("0.0.0.0:0");
        s.send_to(b"a query", (NOBODY, 53)).unwrap();
        let mut buf = [0; 100];
        let (n, from) = s.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..n], from), (DNS_ANSWER, (NOBODY, 53).into()));

        let senders: u64 = if full() { 10_000 } else { 300 };
        let to = SocketAddr::new(BEHIND4, servers::PORT);
        let before = w.count("sessions");
        let mut inside = world::senders(senders, to);
        assert_eq!(inside.line(), "answered");
        assert_eq!(w.count("sessions") - before, senders);
        if full() {
            // Beside those of before that have not ended yet.
            assert!(w.count("sessions_open") >= senders, "all at the same time");
        }
        // Nothing passes any more: they end.
        w.until("the end of all sessions", |w| w.count("sessions_open") == 0);
        // And begin again.
        s.send_to(b"more", to).unwrap();
        assert_eq!(s.recv(&mut [0; 8]).unwrap(), 4);
    });
}

#[test]
fn many_short_connections() {
    world(Settings::default(), |w| {
        let total = if full() { 50_000 } else { 1_000 };
        let start = Instant::now();
        thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for n in 0..total / 8 {
                        let at = if n % 2 == 0 { BEHIND4 } else { BEHIND6 };
                        let mut s = connect((at, servers::PORT), ECHO);
                        s.write_all(b"hello").unwrap();
                        s.shutdown(Shutdown::Write).unwrap();
                        let mut all = Vec::new();
                        s.read_to_end(&mut all).unwrap();
                        assert_eq!(all, b"hello");
                    }
                });
            }
        });
        println!("{total} connections: {:?}", start.elapsed());
        w.settled();
        assert_eq!(w.count("relayed"), total);
    });
}

#[test]
fn idle_connections_wake_nobody() {
    world(Settings::default(), |w| {
        let all: Vec<TcpStream> = (0..200)
            .map(|n| {
                let behind = if n % 2 == 0 { BEHIND4 } else { BEHIND6 };
                let mut s = connect((behind, servers::PORT), ECHO);
                s.write_all(&[7; 1_000]).unwrap();
                s.read_exact(&mut [0; 1_000]).unwrap();
                s
            })
            .collect();
        // The last acknowledgments, and what the kernel says of a new interface.
        thread::sleep(Duration::from_secs(2));
        let time = if full() { 20 } else { 4 };
        let before = world::waits();
        thread::sleep(Duration::from_secs(time));
        let waits = world::waits() - before;
        println!("{waits} in {time} s");
        assert!(waits <= time, "{waits} wake-ups in {time} s");
        assert_eq!(w.count("relaying"), 200);
        drop(all);
    });
}

/// Stopping lets connections go on for a while.
#[test]
fn the_end_is_orderly() {
    let settings = Settings::default().with_drain(Duration::from_secs(2));
    world(settings, |w: &World| {
        let mut goes_on = connect((BEHIND4, servers::PORT), ECHO);
        let mut stays = connect((BEHIND4, servers::PORT), ECHO);
        goes_on.write_all(b"a").unwrap();
        goes_on.read_exact(&mut [0]).unwrap();
        stays.write_all(b"a").unwrap();
        stays.read_exact(&mut [0]).unwrap();
        w.stop();
        thread::sleep(Duration::from_millis(200));
        let e = TcpStream::connect((BEHIND4, servers::PORT)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        goes_on.write_all(b"b").unwrap();
        goes_on.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        goes_on.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"b");
        let e = stays.read(&mut [0]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    });
}

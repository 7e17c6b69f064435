//! The backend over every organization, packet by packet.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use perimeter_base::Time;
use perimeter_org::OrgSpec;

use super::Sockets;
use crate::backend::*;
use crate::flags::Flags;
use crate::shell::Shell;
use crate::tiny::{ACK, FIN, PSH, RST, SYN, Segment};

const LOCAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 1), 8080);
const REMOTE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 5000);

fn flags(org: &str) -> Flags {
    Flags::parse(&format!("org={org},timestamps=0")).unwrap()
}

fn over_all(test: impl Fn(&Sockets)) {
    for org in OrgSpec::tested() {
        test(&Sockets::new(&flags(&org.to_string())).unwrap());
    }
}

fn arrive(b: &Sockets, flags: u8, seq: u32, ack: u32, payload: &[u8]) {
    let segment = Segment {
        from: REMOTE,
        to: LOCAL,
        flags,
        seq,
        ack,
        options: Vec::new(),
        payload: payload.to_vec(),
    };
    b.inject(&segment.bytes());
}

fn next(b: &Sockets) -> Option<(Segment, Time)> {
    b.take_packet().map(|p| (Segment::parse(&p.packet), p.at))
}

fn advance(b: &Sockets, to: Time) {
    while b.now() < to {
        let due = b.next_deadline().map_or(to, |d| d.min(to));
        b.advance(due.max(b.now()));
    }
}

fn listener(b: &Sockets) -> SocketId {
    let s = b.socket(false).unwrap();
    b.bind(s, SocketAddr::V4(LOCAL)).unwrap();
    b.listen(s, 1).unwrap();
    s
}

/// An accepted connection and the sequence number of our next octet.
fn established(b: &Sockets) -> (SocketId, u32) {
    let l = listener(b);
    arrive(b, SYN, 100, 0, &[]);
    let (syn_ack, _) = next(b).expect("a SYN-ACK");
    assert_eq!((syn_ack.flags, syn_ack.ack), (SYN | ACK, 101));
    let iss = syn_ack.seq;
    assert_eq!(b.accept(l, Mode::NoWait), Err(Errno(libc::EAGAIN)));
    arrive(b, ACK, 101, iss.wrapping_add(1), &[]);
    assert!(b.readiness(l).readable);
    let (s, peer) = b.accept(l, Mode::NoWait).unwrap();
    assert_eq!(peer, SocketAddr::V4(REMOTE));
    assert!(next(b).is_none());
    (s, iss.wrapping_add(1))
}

/// The thread that moves the clock makes a call that nothing will end: it is told so, under every
/// organization, instead of hanging.
#[test]
fn an_accept_that_can_never_return_says_so() {
    for org in OrgSpec::tested() {
        let (tell, told) = std::sync::mpsc::channel();
        let name = org.to_string();
        let driver = move || {
            let shell = Shell::new(
                Arc::new(Sockets::new(&flags(&name)).unwrap()),
                Duration::from_secs(10),
            );
            shell.open(7, libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            shell.bind(7, SocketAddr::V4(LOCAL)).unwrap();
            shell.listen(7, 1).unwrap();
            tell.send(shell.accept(7, 8)).unwrap();
        };
        thread::spawn(driver);
        let result = told.recv_timeout(Duration::from_secs(30));
        assert_eq!(result, Ok(Err(Errno(libc::EDEADLK))), "{org}");
    }
}

/// TCP_QUICKACK = 0 delays acknowledgments from the first segment on, for as long as none of them
/// waits in vain; 1 sends them at once.
#[test]
fn quick_acknowledgments_are_switched() {
    over_all(|b| {
        let (s, next_octet) = established(b);
        b.set_option(s, Opt::QuickAck, 0).unwrap();
        let start = b.now();
        arrive(b, ACK | PSH, 101, next_octet, b"abc");
        let at = b.next_deadline().expect("a delayed acknowledgment");
        assert!(next(b).is_none(), "not at once");
        assert!(at.since(start) >= Duration::from_millis(20));
        advance(b, start + Duration::from_millis(60));
        let (ack, at) = next(b).expect("an acknowledgment");
        assert_eq!((ack.flags, ack.ack), (ACK, 104));
        assert!(at.since(start) >= Duration::from_millis(20));
        b.set_option(s, Opt::QuickAck, 1).unwrap();
        arrive(b, ACK | PSH, 104, next_octet, b"def");
        assert_eq!(next(b).expect("at once").0.ack, 107);
    });
}

fn read(b: &Sockets, s: SocketId, n: usize, flags: RecvFlags) -> Result<Vec<u8>> {
    let (mut one, mut two) = (vec![0; n / 2], vec![0; n - n / 2]);
    let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    let got = b.recv(s, &mut bufs, flags, Mode::NoWait)?;
    let mut all = [one, two].concat();
    all.truncate(got);
    Ok(all)
}

fn write(b: &Sockets, s: SocketId, bytes: &[u8]) -> Result<usize> {
    b.send(
        s,
        &[IoSlice::new(bytes)],
        SendFlags::default(),
        Mode::NoWait,
    )
}

#[test]
fn data_both_ways_and_a_close() {
    over_all(|b| {
        let (s, iss) = established(b);
        let plain = RecvFlags::default();
        let peek = RecvFlags {
            peek: true,
            ..plain
        };
        assert_eq!(read(b, s, 10, plain), Err(Errno(libc::EAGAIN)));
        assert!(b.readiness(s).writable && !b.readiness(s).readable);
        arrive(b, ACK | PSH, 101, iss, b"hello");
        let (ack, _) = next(b).expect("an acknowledgment at once");
        assert_eq!((ack.flags, ack.ack), (ACK, 106));
        assert!(b.readiness(s).readable);
        assert_eq!(b.memory(s).unwrap().readable, 5);
        assert_eq!(read(b, s, 10, peek).unwrap(), b"hello");
        assert_eq!(read(b, s, 3, plain).unwrap(), b"hel");
        assert_eq!(read(b, s, 10, plain).unwrap(), b"lo");
        assert!(!b.readiness(s).readable);

        assert_eq!(write(b, s, b"world"), Ok(5));
        let (data, _) = next(b).expect("data");
        assert_eq!((data.flags, data.seq), (ACK | PSH, iss));
        assert_eq!(data.payload, b"world");
        let m = b.memory(s).unwrap();
        assert_eq!((m.unacknowledged, m.unsent), (5, 0));
        arrive(b, ACK, 106, iss.wrapping_add(5), &[]);
        assert_eq!(b.memory(s).unwrap().unacknowledged, 0);

        b.shutdown(s, Shutdown::Write).unwrap();
        let (fin, _) = next(b).expect("a FIN");
        assert_eq!((fin.flags, fin.seq), (ACK | FIN, iss.wrapping_add(5)));
        assert_eq!(write(b, s, b"x"), Err(Errno(libc::EPIPE)));
        arrive(b, ACK | FIN, 106, iss.wrapping_add(6), &[]);
        assert_eq!(next(b).map(|p| p.0.ack), Some(107));
        assert!(b.readiness(s).read_closed);
        assert_eq!(read(b, s, 10, plain).unwrap(), b"");
        assert_eq!(b.info(s).unwrap().state, State::TimeWait);
        b.close(s, Mode::NoWait).unwrap();
        assert_eq!(b.close(s, Mode::NoWait), Err(Errno(libc::EBADF)));
    });
}

#[test]
fn a_syn_is_repeated_on_virtual_time_and_refused() {
    over_all(|b| {
        let s = b.socket(false).unwrap();
        assert!(b.readiness(s).hang_up);
        b.bind(s, SocketAddr::V4(LOCAL)).unwrap();
        let to = SocketAddr::V4(REMOTE);
        let pending = Err(Errno(libc::EINPROGRESS));
        assert_eq!(b.connect(s, to, Mode::NoWait), pending);
        let (syn, at) = next(b).expect("a SYN");
        assert_eq!((syn.flags, syn.to), (SYN, REMOTE));
        assert_eq!(b.connect(s, to, Mode::NoWait), Err(Errno(libc::EALREADY)));
        for (after, slack) in [(1_000, 5), (3_000, 5)] {
            advance(b, at + Duration::from_millis(after - 1));
            assert!(next(b).is_none());
            advance(b, at + Duration::from_millis(after + slack));
            let (again, when) = next(b).expect("the SYN again");
            assert_eq!((again.flags, again.seq), (SYN, syn.seq));
            assert!(when >= at + Duration::from_millis(after));
        }
        arrive(b, RST | ACK, 0, syn.seq.wrapping_add(1), &[]);
        assert!(b.readiness(s).error);
        let refused = Errno(libc::ECONNREFUSED);
        assert_eq!(b.connect(s, to, Mode::NoWait), Err(refused));
        // The socket can try again, as in Linux.
        assert_eq!(b.connect(s, to, Mode::NoWait), pending);
        assert_eq!(next(b).map(|p| p.0.flags), Some(SYN));
    });
}

#[test]
fn options_before_and_after_the_handshake() {
    over_all(|b| {
        let l = b.socket(false).unwrap();
        b.set_option(l, Opt::MaxSegment, 1200).unwrap();
        b.set_option(l, Opt::NoDelay, 1).unwrap();
        b.set_option(l, Opt::Tos, 0x10).unwrap();
        let bad = Err(Errno(libc::EINVAL));
        assert_eq!(b.set_option(l, Opt::MaxSegment, 20), bad);
        assert_eq!(b.option(l, Opt::MaxSegment), Ok(1200));
        b.bind(l, SocketAddr::V4(LOCAL)).unwrap();
        b.listen(l, 1).unwrap();
        // Also what is set on a listener goes over to its connections.
        b.set_option(l, Opt::MaxSegment, 1100).unwrap();
        b.set_option(l, Opt::KeepAlive, 1).unwrap();
        arrive(b, SYN, 100, 0, &[]);
        let (syn_ack, _) = next(b).expect("a SYN-ACK");
        assert_eq!(syn_ack.options[..4], [2, 4, 4, 76]);
        arrive(b, ACK, 101, syn_ack.seq.wrapping_add(1), &[]);
        let (s, _) = b.accept(l, Mode::NoWait).unwrap();
        assert_eq!(b.option(s, Opt::NoDelay), Ok(1));
        assert_eq!(b.option(s, Opt::KeepAlive), Ok(1));
        // Without an option in the SYN the peer takes 536 (RFC 9293, section 3.7.1).
        assert_eq!(b.option(s, Opt::MaxSegment), Ok(536));
        write(b, s, b"x").unwrap();
        assert_eq!(b.take_packet().map(|p| p.packet[1]), Some(0x10));
        assert_eq!(b.congestion(s).unwrap(), "cubic");
        b.set_congestion(s, "reno").unwrap();
        assert_eq!(b.congestion(s).unwrap(), "newreno");
        assert_eq!(b.set_congestion(s, "bbr"), Err(Errno(libc::ENOENT)));
    });
}

#[test]
fn a_second_thread_sleeps_until_a_packet_wakes_it() {
    for org in OrgSpec::tested() {
        let backend = Arc::new(Sockets::new(&flags(&org.to_string())).unwrap());
        let (s, iss) = established(&backend);
        let shell = Arc::new(Shell::new(backend.clone(), Duration::from_secs(10)));
        let entry = crate::shell::Socket::accepted(s);
        shell.install(1000, crate::shell::Entry::Socket(Arc::new(entry)));
        let reader = {
            let shell = shell.clone();
            thread::spawn(move || {
                let mut buf = [0; 16];
                let n = shell.recv(1000, &mut [IoSliceMut::new(&mut buf)], 0);
                (n, shell.read_clock())
            })
        };
        assert!(shell.await_call(), "{org}: the reader did not start");
        shell.pass(Duration::from_millis(100));
        let at = backend.now();
        let segment = Segment {
            from: REMOTE,
            to: LOCAL,
            flags: ACK | PSH,
            seq: 101,
            ack: iss,
            options: Vec::new(),
            payload: b"late".to_vec(),
        };
        shell.inject(&segment.bytes());
        shell.pass(Duration::from_millis(100));
        let (n, when) = reader.join().unwrap();
        assert_eq!(n, Ok(4));
        assert!(
            when <= at + Duration::from_millis(1),
            "{org}: {when:?} {at:?}"
        );
    }
}

#[test]
fn nonsense_flags_are_refused() {
    for text in ["org=none", "org=up:x", "cc=bbr"] {
        let flags = Flags::parse(text).unwrap();
        assert!(Sockets::new(&flags).is_err(), "{text}");
    }
}

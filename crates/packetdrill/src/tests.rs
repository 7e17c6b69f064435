//! The shell over the small stack: what a script does, done by hand.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use perimeter_base::Time;

use crate::backend::{Errno, Result};
use crate::options;
use crate::shell::{PollFd, Shell};
use crate::tiny::{ACK, FIN, PSH, RST, SYN, Segment, Tiny};

const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LISTENER: i32 = 1000;
const CONNECTION: i32 = 1001;

fn shell() -> Arc<Shell> {
    let tiny = Arc::new(Tiny::new(LOCAL));
    Arc::new(Shell::new(tiny, Duration::from_secs(10)))
}

fn arrive(shell: &Shell, flags: u8, seq: u32, ack: u32, payload: &[u8]) {
    let segment = Segment {
        from: SocketAddrV4::new(REMOTE, 5000),
        to: SocketAddrV4::new(LOCAL, 8080),
        flags,
        seq,
        ack,
        options: Vec::new(),
        payload: payload.to_vec(),
    };
    shell.inject(&segment.bytes());
}

fn next(shell: &Shell) -> (Segment, Time) {
    let emitted = shell.next_packet().expect("a packet");
    (Segment::parse(&emitted.packet), emitted.at)
}

fn listening() -> Arc<Shell> {
    let shell = shell();
    shell
        .open(
            LISTENER,
            libc::AF_INET,
            libc::SOCK_STREAM,
            libc::IPPROTO_TCP,
        )
        .unwrap();
    let any: SocketAddr = "0.0.0.0:8080".parse().unwrap();
    shell.bind(LISTENER, any).unwrap();
    shell.listen(LISTENER, 1).unwrap();
    shell
}

/// Opens a connection from outside; ours counts from 7001, theirs from 1.
fn handshake(shell: &Shell) {
    arrive(shell, SYN, 0, 0, &[]);
    assert_eq!(next(shell).0.flags, SYN | ACK);
    arrive(shell, ACK, 1, 7001, &[]);
}

fn accepted() -> Arc<Shell> {
    let shell = listening();
    handshake(&shell);
    let peer = shell.accept(LISTENER, CONNECTION).unwrap();
    assert_eq!(peer, SocketAddrV4::new(REMOTE, 5000).into());
    shell
}

fn read(shell: &Shell, len: usize, flags: i32) -> Result<Vec<u8>> {
    let mut buf = vec![0; len];
    let n = shell.recv(CONNECTION, &mut [IoSliceMut::new(&mut buf)], flags)?;
    buf.truncate(n);
    Ok(buf)
}

fn write(shell: &Shell, bytes: &[u8], flags: i32) -> Result<usize> {
    shell.send(CONNECTION, &mut [IoSlice::new(bytes)], flags)
}

/// Makes a call on a thread of its own, as packetdrill makes calls that a script marks as
/// blocking, and reads the clock right after it, as packetdrill does too.
fn call<T: Send + 'static>(
    shell: &Arc<Shell>,
    op: impl FnOnce(&Shell) -> T + Send + 'static,
) -> thread::JoinHandle<(T, Time)> {
    let (tx, rx) = mpsc::channel();
    let shell = shell.clone();
    let handle = thread::spawn(move || {
        tx.send(()).unwrap();
        let result = op(&shell);
        (result, shell.read_clock())
    });
    rx.recv().unwrap();
    // Long enough to reach the call; a test that is too early fails, it doesn't pass wrongly.
    thread::sleep(Duration::from_millis(20));
    handle
}

#[test]
fn the_clock_moves_only_by_us() {
    let shell = shell();
    let start = shell.backend().now();
    assert_eq!(shell.read_clock() - start, Duration::from_micros(1));
    shell.pass(Duration::from_millis(5));
    assert_eq!(shell.read_clock() - start, Duration::from_micros(5002));
}

#[test]
fn a_blocked_accept_returns_at_the_time_of_the_ack() {
    let shell = listening();
    let accepting = call(&shell, |shell| shell.accept(LISTENER, CONNECTION));
    shell.pass(Duration::from_millis(100));
    arrive(&shell, SYN, 0, 0, &[]);
    next(&shell);
    shell.pass(Duration::from_millis(100));
    let ack_at = shell.backend().now();
    arrive(&shell, ACK, 1, 7001, &[]);
    // However late the other thread is, the clock has stood still for it.
    shell.pass(Duration::from_secs(5));
    let (peer, at) = accepting.join().unwrap();
    assert_eq!(peer, Ok(SocketAddrV4::new(REMOTE, 5000).into()));
    assert_eq!(at, ack_at);
}

#[test]
fn a_blocked_read_and_write_wait_for_the_peer() {
    let shell = accepted();
    let reading = call(&shell, |shell| read(shell, 2000, 0));
    shell.pass(Duration::from_millis(10));
    let data_at = shell.backend().now();
    arrive(&shell, ACK | PSH, 1, 7001, b"hello");
    assert_eq!(next(&shell).0.ack, 6);
    assert_eq!(reading.join().unwrap(), (Ok(b"hello".to_vec()), data_at));

    let socket = shell.socket(CONNECTION).unwrap();
    let bytes = 4000_i32.to_ne_bytes();
    options::set(&shell, &socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes).unwrap();
    let got = options::get(&shell, &socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 4);
    assert_eq!(got, Ok(8000_i32.to_ne_bytes().to_vec()));
    let writing = call(&shell, |shell| write(shell, &[7; 6000], 0));
    for _ in 0..4 {
        next(&shell);
    }
    // Half of the buffer must be free before a writer is woken.
    arrive(&shell, ACK, 6, 8001, &[]);
    shell.pass(Duration::from_millis(10));
    let ack_at = shell.backend().now();
    arrive(&shell, ACK, 6, 9001, &[]);
    assert_eq!(writing.join().unwrap(), (Ok(6000), ack_at));
    let (last, _) = (next(&shell), next(&shell));
    assert_eq!(last.0.seq, 11_001);
}

#[test]
fn a_blocked_connect_repeats_its_syn_on_time() {
    let shell = shell();
    shell
        .open(CONNECTION, libc::AF_INET, libc::SOCK_STREAM, 0)
        .unwrap();
    let start = shell.backend().now();
    let connecting = call(&shell, |shell| {
        shell.connect(CONNECTION, SocketAddrV4::new(REMOTE, 8080).into())
    });
    assert_eq!(next(&shell), (next_syn(), start));
    let (again, at) = next(&shell);
    assert_eq!((again.flags, at - start), (SYN, Duration::from_secs(1)));
    let answer = Segment {
        from: again.to,
        to: again.from,
        flags: SYN | ACK,
        seq: 0,
        ack: 7001,
        options: Vec::new(),
        payload: Vec::new(),
    };
    shell.inject(&answer.bytes());
    assert_eq!(next(&shell).0.flags, ACK);
    assert_eq!(connecting.join().unwrap(), (Ok(()), at));
}

fn next_syn() -> Segment {
    Segment {
        from: SocketAddrV4::new(LOCAL, 40_000),
        to: SocketAddrV4::new(REMOTE, 8080),
        flags: SYN,
        seq: 7000,
        ack: 0,
        options: vec![
            2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 8,
        ],
        payload: Vec::new(),
    }
}

#[test]
fn calls_that_may_not_wait() {
    let shell = listening();
    shell.socket(LISTENER).unwrap().set_nonblocking(true);
    let again = Errno(libc::EAGAIN);
    assert_eq!(shell.accept(LISTENER, CONNECTION), Err(again));
    handshake(&shell);
    shell.accept(LISTENER, CONNECTION).unwrap();
    // The accepted socket doesn't inherit O_NONBLOCK, so this needs its own flag.
    assert!(!shell.socket(CONNECTION).unwrap().is_nonblocking());
    assert_eq!(read(&shell, 10, libc::MSG_DONTWAIT), Err(again));
    assert_eq!(read(&shell, 10, libc::MSG_ERRQUEUE), Err(again));
    arrive(&shell, ACK, 1, 7001, b"abc");
    assert_eq!(read(&shell, 2, libc::MSG_PEEK), Ok(b"ab".to_vec()));
    assert_eq!(read(&shell, 10, 0), Ok(b"abc".to_vec()));
    // MSG_WAITALL without waiting gives what is there.
    arrive(&shell, ACK, 4, 7001, b"d");
    let flags = libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    assert_eq!(read(&shell, 10, flags), Ok(b"d".to_vec()));
    assert_eq!(
        write(&shell, b"x", libc::MSG_FASTOPEN),
        Err(Errno(libc::EOPNOTSUPP))
    );
}

#[test]
fn the_driver_runs_the_clock_where_it_would_block() {
    let shell = accepted();
    // Nothing will ever come: told so instead of hanging.
    assert_eq!(read(&shell, 10, 0), Err(Errno(libc::EDEADLK)));
    let socket = shell.socket(CONNECTION).unwrap();
    socket.set_receive_timeout(Some(Duration::from_millis(250)));
    let start = shell.backend().now();
    assert_eq!(read(&shell, 10, 0), Err(Errno(libc::EAGAIN)));
    assert_eq!(shell.backend().now() - start, Duration::from_millis(250));
}

#[test]
fn poll_and_epoll_on_virtual_time() {
    let shell = accepted();
    let mut fds = [
        PollFd {
            fd: CONNECTION,
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        },
        PollFd {
            fd: -1,
            events: libc::POLLIN,
            revents: 9,
        },
        PollFd {
            fd: 5555,
            events: libc::POLLIN,
            revents: 0,
        },
    ];
    assert_eq!(shell.poll(&mut fds[..2], 0, |_| 0), Ok(1));
    assert_eq!((fds[0].revents, fds[1].revents), (libc::POLLOUT, 0));
    assert_eq!(shell.poll(&mut fds[2..], -1, |_| libc::POLLNVAL), Ok(1));
    let start = shell.backend().now();
    fds[0].events = libc::POLLIN;
    assert_eq!(shell.poll(&mut fds[..1], 30, |_| 0), Ok(0));
    assert_eq!(shell.backend().now() - start, Duration::from_millis(30));

    let (set, input) = (1002, libc::EPOLLIN as u32);
    shell.epoll_create(set);
    let edge = input | libc::EPOLLET as u32;
    let ctl = |op, events| shell.epoll_ctl(set, op, CONNECTION, Some((events, 42)));
    ctl(libc::EPOLL_CTL_ADD, edge).unwrap();
    assert_eq!(ctl(libc::EPOLL_CTL_ADD, edge), Err(Errno(libc::EEXIST)));
    assert_eq!(shell.epoll_wait(set, 8, 0), Ok(vec![]));
    arrive(&shell, ACK, 1, 7001, b"a");
    assert_eq!(shell.epoll_wait(set, 8, -1), Ok(vec![(input, 42)]));
    assert_eq!(shell.epoll_wait(set, 8, 0), Ok(vec![]), "no new edge");
    arrive(&shell, ACK, 2, 7001, b"b");
    assert_eq!(
        shell.epoll_wait(set, 8, 0),
        Ok(vec![(input, 42)]),
        "more data is an edge"
    );
    ctl(libc::EPOLL_CTL_MOD, input | libc::EPOLLONESHOT as u32).unwrap();
    assert_eq!(shell.epoll_wait(set, 8, 0), Ok(vec![(input, 42)]));
    assert_eq!(shell.epoll_wait(set, 8, 0), Ok(vec![]), "one shot");
    ctl(libc::EPOLL_CTL_MOD, input).unwrap();
    for _ in 0..2 {
        assert_eq!(shell.epoll_wait(set, 8, 0), Ok(vec![(input, 42)]), "level");
    }
    ctl(libc::EPOLL_CTL_DEL, 0).unwrap();
    assert_eq!(ctl(libc::EPOLL_CTL_MOD, input), Err(Errno(libc::ENOENT)));

    // The other thread's poll ends by data from outside, at its time.
    ctl(libc::EPOLL_CTL_ADD, edge).unwrap();
    shell.epoll_wait(set, 8, 0).unwrap();
    let waiting = call(&shell, move |shell| shell.epoll_wait(set, 8, 700));
    shell.pass(Duration::from_millis(300));
    let data_at = shell.backend().now();
    arrive(&shell, ACK, 3, 7001, b"c");
    assert_eq!(waiting.join().unwrap(), (Ok(vec![(input, 42)]), data_at));
    // And by its timeout.
    let waiting = call(&shell, move |shell| shell.epoll_wait(set, 8, 700));
    let start = shell.backend().now();
    shell.pass(Duration::from_secs(2));
    let (ready, at) = waiting.join().unwrap();
    assert_eq!(
        (ready, at - start),
        (Ok(vec![]), Duration::from_millis(700))
    );
}

#[test]
fn ends_of_a_connection() {
    let shell = accepted();
    shell.shutdown(CONNECTION, libc::SHUT_WR).unwrap();
    assert_eq!(next(&shell).0.flags, FIN | ACK);
    assert_eq!(write(&shell, b"x", 0), Err(Errno(libc::EPIPE)));
    assert_eq!(shell.shutdown(CONNECTION, 7), Err(Errno(libc::EINVAL)));
    arrive(&shell, FIN | ACK, 1, 7002, &[]);
    assert_eq!(next(&shell).0.ack, 2);
    assert_eq!(read(&shell, 10, 0), Ok(vec![]));
    shell.close(CONNECTION).unwrap();
    assert_eq!(shell.close(CONNECTION), Err(Errno(libc::EBADF)));
    assert_eq!(read(&shell, 10, 0), Err(Errno(libc::EBADF)));
    arrive(&shell, ACK, 2, 7002, &[]);
    assert_eq!(next(&shell).0.flags, RST);
    assert_eq!(shell.next_packet(), None, "nothing left that could send");
}

#[test]
fn a_lingering_close_waits_for_the_acknowledgment() {
    let shell = accepted();
    let socket = shell.socket(CONNECTION).unwrap();
    let on = [1_i32.to_ne_bytes(), 5_i32.to_ne_bytes()].concat();
    options::set(&shell, &socket, libc::SOL_SOCKET, libc::SO_LINGER, &on).unwrap();
    let got = options::get(&shell, &socket, libc::SOL_SOCKET, libc::SO_LINGER, 8);
    assert_eq!(got, Ok(on));
    drop(socket);
    let closing = call(&shell, |shell| shell.close(CONNECTION));
    assert_eq!(next(&shell).0.flags, FIN | ACK);
    shell.pass(Duration::from_millis(40));
    let ack_at = shell.backend().now();
    arrive(&shell, ACK, 1, 7002, &[]);
    assert_eq!(closing.join().unwrap(), (Ok(()), ack_at));
}

#[test]
fn a_reset_is_reported_once() {
    let shell = accepted();
    arrive(&shell, RST, 1, 0, &[]);
    let socket = shell.socket(CONNECTION).unwrap();
    let error = || options::get(&shell, &socket, libc::SOL_SOCKET, libc::SO_ERROR, 4);
    assert_eq!(error(), Ok(libc::ECONNRESET.to_ne_bytes().to_vec()));
    assert_eq!(error(), Ok(vec![0; 4]));
}

#[test]
fn option_sizes_and_names() {
    let shell = accepted();
    let socket = shell.socket(CONNECTION).unwrap();
    let get = |level, name, room| options::get(&shell, &socket, level, name, room);
    let set = |level, name, value: &[u8]| options::set(&shell, &socket, level, name, value);
    let one = 1_i32.to_ne_bytes();
    assert_eq!(set(libc::SOL_TCP, libc::TCP_NODELAY, &one), Ok(()));
    assert_eq!(
        set(libc::SOL_TCP, libc::TCP_NODELAY, &one[..2]),
        Err(Errno(libc::EINVAL))
    );
    assert_eq!(get(libc::SOL_TCP, libc::TCP_NODELAY, 4), Ok(one.to_vec()));
    // IP options come and go as one octet too.
    assert_eq!(set(libc::SOL_IP, libc::IP_TOS, &[4]), Ok(()));
    assert_eq!(get(libc::SOL_IP, libc::IP_TOS, 1), Ok(vec![4]));
    assert_eq!(
        get(libc::SOL_IP, libc::IP_TOS, 4),
        Ok(4_i32.to_ne_bytes().to_vec())
    );
    assert_eq!(get(libc::SOL_TCP, libc::TCP_INFO, 1000).unwrap().len(), 280);
    assert_eq!(get(libc::SOL_TCP, libc::TCP_INFO, 104).unwrap().len(), 104);
    assert_eq!(get(libc::SOL_TCP, options::TCP_CC_INFO, 20), Ok(vec![]));
    assert_eq!(
        get(libc::SOL_SOCKET, options::SO_MEMINFO, 36)
            .unwrap()
            .len(),
        36
    );
    assert_eq!(
        get(libc::SOL_TCP, libc::TCP_CONGESTION, 5),
        Ok(b"cubic".to_vec())
    );
    assert_eq!(set(libc::SOL_TCP, libc::TCP_CONGESTION, b"cubic\0"), Ok(()));
    assert_eq!(
        set(libc::SOL_TCP, libc::TCP_CONGESTION, b"quick"),
        Err(Errno(libc::ENOENT))
    );
    let time = [2_i64.to_ne_bytes(), 500_000_i64.to_ne_bytes()].concat();
    assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), Ok(()));
    assert_eq!(socket.receive_timeout(), Some(Duration::from_millis(2500)));
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16), Ok(time));
    for (level, name, error) in [
        (libc::SOL_SOCKET, libc::SO_BROADCAST, libc::ENOPROTOOPT),
        (libc::SOL_TCP, 999, libc::ENOPROTOOPT),
        (12_345, 1, libc::EOPNOTSUPP),
    ] {
        assert_eq!(get(level, name, 4), Err(Errno(error)));
        assert_eq!(set(level, name, &one), Err(Errno(error)));
    }
    let listener = shell.socket(LISTENER).unwrap();
    let accepts = options::get(&shell, &listener, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, 4);
    assert_eq!(accepts, Ok(one.to_vec()));
}

#[test]
fn sockets_that_we_do_not_have() {
    let shell = shell();
    for (domain, kind, protocol, error) in [
        (libc::AF_UNIX, libc::SOCK_STREAM, 0, libc::EAFNOSUPPORT),
        (libc::AF_INET, libc::SOCK_DGRAM, 0, libc::EPROTONOSUPPORT),
        (
            libc::AF_INET,
            libc::SOCK_STREAM,
            libc::IPPROTO_UDP,
            libc::EPROTONOSUPPORT,
        ),
    ] {
        assert_eq!(shell.open(1, domain, kind, protocol), Err(Errno(error)));
    }
    assert!(!shell.owns(1));
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    shell.open(1, libc::AF_INET, kind, 0).unwrap();
    assert!(shell.socket(1).unwrap().is_nonblocking());
}

//! Refusal, reset and half close, each way.

use crate::common::{
    Load, accept, each, finish, peer, peer_accepts, peer_connects, until, wind_up,
};
use crate::transfer::{receive, send};
use perimeter::{OrgSpec, Stack, TcpStream};
use perimeter_interop::taps;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

const SOME: u64 = 4 << 20;

fn refused(org: &OrgSpec) {
    let stack = taps::stack(org);
    let start = Instant::now();
    let e = stack.connect(taps::kernel_at(9)).expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "a refusal is not a timeout"
    );
    let p = peer(&["refused", "10.99.0.2", "9"]);
    assert_eq!(finish(&stack, p), "ECONNREFUSED");
    // A listener that has gone refuses again.
    drop(stack.listen(taps::stack_at(9)).expect("a listener"));
    let p = peer(&["refused", "10.99.0.2", "9"]);
    assert_eq!(finish(&stack, p), "ECONNREFUSED");
    assert!(stack.connections().is_empty(), "{:?}", stack.connections());
}

#[test]
fn closed_ports_refuse() {
    each(&["python3"], Load::Works, refused);
}

/// A connection that the host's side accepted.
fn to_peer(stack: &Stack, port: u16) -> TcpStream {
    let s = stack.connect(taps::kernel_at(port)).expect("connected");
    s.set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a limit");
    s
}

fn aborts(org: &OrgSpec) {
    let stack = taps::stack(org);
    let l = stack.listen(taps::stack_at(7002)).expect("a listener");
    // Ours, while they read: active and passive. (Earlier, their connect would fail.)
    let greeted = |mut s: &TcpStream| s.read_exact(&mut [0; 1]).expect("a byte");
    let p = peer_accepts(9010, &["linger"]);
    let s = to_peer(&stack, 9010);
    greeted(&s);
    (&s).write_all(b"some data").expect("sent");
    s.abort().expect("aborted");
    assert_eq!(finish(&stack, p), "ECONNRESET");
    let p = peer_connects(7002, &["linger"]);
    let s = accept(&l);
    greeted(&s);
    s.set_linger(Some(Duration::ZERO)).expect("set");
    drop(s);
    assert_eq!(finish(&stack, p), "ECONNRESET");
    // Theirs, after data: what came before the reset may be read or not, but then it is a
    // reset, once; afterwards the stream is at its end.
    let p = peer_accepts(9011, &["greet_and_reset"]);
    let mut s = to_peer(&stack, 9011);
    assert_eq!(finish(&stack, p), "reset");
    let state = || {
        stack
            .connections()
            .iter()
            .all(|c| c.tcp.state == perimeter::State::Closed)
    };
    until(&stack, "the reset", state);
    let mut all = Vec::new();
    let e = s.read_to_end(&mut all).expect_err("reset");
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    assert_eq!(s.read(&mut [0; 8]).expect("told once"), 0);
    let p = peer_connects(7002, &["greet_and_reset"]);
    let s = accept(&l);
    assert_eq!(finish(&stack, p), "reset");
    until(&stack, "the reset", state);
    assert_eq!(
        s.take_error().expect("open").expect("an error").kind(),
        ErrorKind::ConnectionReset
    );
    assert!(
        s.take_error().expect("open").is_none(),
        "SO_ERROR is read once"
    );
    assert_eq!(
        (&s).write(b"x").expect_err("broken").kind(),
        ErrorKind::BrokenPipe
    );
    drop((l, s));
    wind_up(&stack);
}

#[test]
fn aborts_are_resets() {
    each(&["python3"], Load::Waits, aborts);
}

/// Closing with unread data is a reset (RFC 2525, section 2.17).
fn unread(org: &OrgSpec) {
    let stack = taps::stack(org);
    let p = peer_accepts(9012, &["write_after"]);
    let s = to_peer(&stack, 9012);
    s.peek(&mut [0; 1]).expect("data");
    drop(s);
    let why = finish(&stack, p);
    assert!(why == "ECONNRESET" || why == "EPIPE", "{why}");
    let l = stack.listen(taps::stack_at(7003)).expect("a listener");
    let p = peer_connects(7003, &["unread"]);
    let s = accept(&l);
    (&s).write_all(&[7; 10_000]).expect("sent");
    assert_eq!(finish(&stack, p), "closed");
    let e = (&s).read(&mut [0; 8]).expect_err("reset");
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    drop((l, s));
    wind_up(&stack);
}

#[test]
fn unread_data_makes_a_reset() {
    each(&["python3"], Load::Waits, unread);
}

fn half(org: &OrgSpec) {
    let stack = taps::stack(org);
    let l = stack.listen(taps::stack_at(7004)).expect("a listener");
    let some = SOME.to_string();
    // Ours first: the peer sends long after.
    let we_first = |s: TcpStream, p| {
        let digest = send(&s, 100_000);
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(
            (&s).write(b"x").expect_err("shut").kind(),
            ErrorKind::BrokenPipe
        );
        let (got, n) = receive(&s);
        assert_eq!(n, SOME);
        drop(s);
        assert_eq!(finish(&stack, p), format!("{digest} {got}"));
    };
    let p = peer_accepts(9020, &["half_closed", &some]);
    we_first(to_peer(&stack, 9020), p);
    let p = peer_connects(7004, &["half_closed", &some]);
    we_first(accept(&l), p);
    // Theirs first: we send long after.
    let they_first = |s: TcpStream, p| {
        let (got, n) = receive(&s);
        assert_eq!(n, 1000);
        assert_eq!((&s).read(&mut [0; 8]).expect("still the end"), 0);
        let digest = send(&s, SOME);
        drop(s);
        assert_eq!(finish(&stack, p), format!("{got} {digest}"));
    };
    let p = peer_accepts(9021, &["half_close", &some]);
    they_first(to_peer(&stack, 9021), p);
    let p = peer_connects(7004, &["half_close", &some]);
    they_first(accept(&l), p);
    drop(l);
    wind_up(&stack);
}

#[test]
fn one_direction_may_close_first() {
    each(&["python3"], Load::Waits, half);
}

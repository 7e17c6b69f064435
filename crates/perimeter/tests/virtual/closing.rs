//! How connections end: what the application asks for, what the stack limits, and what others
//! find afterwards; under every organization.

use crate::common::{Setup, World, content, fill, kind, named, under_all};
use perimeter::State;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn state_of(w: &World) -> Vec<State> {
    w.s.connections().iter().map(|c| c.tcp.state).collect()
}

#[test]
fn linger_zero_is_a_reset() {
    under_all(
        |_| {},
        |w| {
            for open in [World::open, World::opened] {
                let (a, b) = open(&w);
                w.write(&a, b"never mind");
                a.set_linger(Some(Duration::ZERO)).unwrap();
                drop(a);
                let mut got = 0;
                let end = loop {
                    match w.read(&b) {
                        Ok(data) if data.is_empty() => break None,
                        Ok(data) => got += data.len(),
                        Err(e) => break Some(e.kind()),
                    }
                };
                assert!(got <= 10);
                assert_eq!(end, Some(ErrorKind::ConnectionReset));
                assert_eq!(w.s.stats().connections, 0);
            }
        },
    );
}

#[test]
fn lingering_waits_for_the_acknowledgment() {
    under_all(
        |s| s.wire.latency_ns = 20_000_000,
        |w| {
            let (a, b) = w.open();
            w.write(&a, b"last words");
            a.set_nonblocking(false).unwrap();
            a.set_linger(Some(Duration::from_secs(10))).unwrap();
            let before = w.now();
            drop(a);
            let took = w.now().since(before);
            assert!(took >= 39 * MS && took < 500 * MS, "{took:?}");
            assert_eq!(w.read_all(&b).unwrap(), b"last words");
        },
    );
}

#[test]
fn lingering_ends_with_a_reset_when_time_is_up() {
    under_all(
        |s| s.peer.tcp.rcv_buf = 4096,
        |w| {
            let (a, b) = w.open();
            fill(&a);
            w.pass(50 * MS);
            a.set_nonblocking(false).unwrap();
            a.set_linger(Some(Duration::from_millis(700))).unwrap();
            let before = w.now();
            drop(a);
            let took = w.now().since(before);
            assert!(took >= 700 * MS && took < 800 * MS, "{took:?}");
            w.until("reset", || {
                kind(b.take_error().unwrap().map_or(Ok(()), Err)).is_some()
            });
            assert_eq!(w.s.stats().connections, 0);
        },
    );
}

#[test]
fn closing_with_unread_data_is_a_reset() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.opened();
            w.write(&b, b"unread");
            w.pass(10 * MS);
            drop(a);
            assert_eq!(kind(w.read(&b)), Some(ErrorKind::ConnectionReset));
            // Read data does not matter.
            let (a, b) = w.opened();
            w.write(&b, b"read");
            assert_eq!(w.read(&a).unwrap(), b"read");
            drop(a);
            assert_eq!(w.read(&b).unwrap(), b"");
        },
    );
}

#[test]
fn data_after_close_is_answered_with_a_reset() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.opened();
            drop(a);
            assert_eq!(w.read(&b).unwrap(), b"");
            w.write(&b, b"too late");
            w.until("reset", || b.take_error().unwrap().is_some());
            assert_eq!(kind((&b).write(b"x")), Some(ErrorKind::BrokenPipe));
            w.until("end", || w.s.stats().connections == 0);
        },
    );
}

#[test]
fn orphans_are_limited() {
    under_all(
        |s| {
            s.config.orphans = 2;
            s.peer.tcp.rcv_buf = 4096;
            one_perimeter(s);
        },
        |w| {
            let pairs: Vec<_> = (0..5).map(|_| w.open()).collect();
            for (a, _) in &pairs {
                fill(a);
            }
            w.pass(50 * MS);
            let theirs: Vec<_> = pairs
                .into_iter()
                .map(|(a, b)| {
                    drop(a);
                    b
                })
                .collect();
            w.pass(50 * MS);
            assert_eq!(w.s.stats().connections, 2);
            assert_eq!(w.s.stats().count("orphans_reset"), 3);
            let reset = theirs
                .iter()
                .filter(|b| b.take_error().unwrap().is_some())
                .count();
            assert_eq!(reset, 3);
            // Those that were closed last end well.
            for (i, b) in theirs.iter().enumerate() {
                let ended = w.read_all(b).is_ok_and(|d| d.len() > 4096);
                assert_eq!(ended, i >= 3, "{}: {i}", w.s.organization());
            }
        },
    );
}

/// All connections of the stack under test are in one perimeter, so that a limit of a few is not
/// shared out.
fn one_perimeter(s: &mut Setup) {
    s.org = match s.org.family().name {
        "connp-l" => named("connp-l:1"),
        "connp-t" => named("connp-t:1"),
        "squeue" => named("squeue:1"),
        "streams" => named("streams"),
        "pef" => named("pef:ip=0:tcp=0:sockfs=0"),
        _ => s.org.clone(),
    };
}

/// What a server does that answers, closes first, and is busy: connections in TIME-WAIT fill
/// their table, and none of that costs a transfer.
#[test]
fn a_full_time_wait_table_ends_the_oldest_wait_and_no_transfer() {
    under_all(
        |s| {
            s.config.time_waits = 4;
            s.config.orphans = 4;
            s.peer.tcp.rcv_buf = 4096;
            one_perimeter(s);
        },
        |w| {
            let waiting = |w: &World| {
                let in_time_wait = |s: &State| *s == State::TimeWait;
                state_of(w).into_iter().filter(in_time_wait).count()
            };
            let mut ports = Vec::new();
            for i in 0..10 {
                let (a, b) = w.open();
                ports.push(a.peer_addr().unwrap().port());
                drop(a);
                assert_eq!(w.read(&b).unwrap(), b"");
                drop(b);
                w.until("TIME-WAIT", || waiting(&w) == 4.min(i + 1));
                w.until("an end", || w.s.stats().connections == 4.min(i + 1));
            }
            let left: Vec<_> =
                w.s.connections()
                    .iter()
                    .map(|c| c.key.remote_port)
                    .collect();
            assert!(ports[6..].iter().all(|p| left.contains(p)), "{ports:?}");
            assert_eq!(w.s.stats().count("time_waits_ended"), 6);
            // Answers that the peer has not taken yet when they are closed.
            let answer = content(100_000);
            let theirs: Vec<_> = (0..4)
                .map(|_| {
                    let (a, b) = w.open();
                    w.write(&a, &answer);
                    drop(a);
                    b
                })
                .collect();
            for b in &theirs {
                assert!(w.read_all(b).unwrap() == answer);
            }
            drop(theirs);
            w.until("TIME-WAIT", || {
                waiting(&w) == 4 && w.s.stats().connections == 4
            });
            assert_eq!(w.s.stats().count("orphans_reset"), 0);
            // The waits that are left last their minute.
            let before = w.now();
            w.until("end", || w.s.stats().connections == 0);
            let took = w.now().since(before);
            assert!(took > 58_000 * MS && took < 62_000 * MS, "{took:?}");
            assert_eq!(w.s.stats().memory, 0);
        },
    );
}

/// A peer that never closes leaves connections in FIN-WAIT-2: they are counted as waiting as well.
#[test]
fn fin_wait_2_does_not_cost_a_transfer_either() {
    under_all(
        |s| {
            s.config.time_waits = 3;
            s.config.orphans = 2;
            one_perimeter(s);
        },
        |w| {
            let mut theirs = Vec::new();
            for _ in 0..8 {
                let (a, b) = w.open();
                w.write(&a, b"an answer");
                drop(a);
                theirs.push(b);
                w.pass(5 * MS);
            }
            assert_eq!(state_of(&w), [State::FinWait2; 3]);
            assert_eq!(w.s.stats().count("time_waits_ended"), 5);
            assert_eq!(w.s.stats().count("orphans_reset"), 0);
            // Those that had to go have not told their peers to throw away what came before.
            for b in &theirs {
                assert_eq!(w.read_all(b).unwrap(), b"an answer");
            }
            // Who breaks a half-closed connection off does.
            let (a, b) = w.open();
            a.shutdown(Shutdown::Write).unwrap();
            w.pass(5 * MS);
            a.abort().unwrap();
            w.pass(5 * MS);
            assert!(b.take_error().unwrap().is_some(), "{}", w.s.organization());
        },
    );
}

#[test]
fn fin_wait_2_of_a_closed_socket_is_limited() {
    under_all(
        |s| s.config.tcp.fin_wait_2 = Duration::from_secs(2),
        |w| {
            let (a, b) = w.open();
            drop(a);
            w.until("half close", || state_of(&w) == [State::FinWait2]);
            let before = w.now();
            w.until("end", || w.s.stats().connections == 0);
            let took = w.now().since(before);
            assert!(took > 1900 * MS && took < 2100 * MS, "{took:?}");
            // A half-closed socket that is still held waits for ever.
            let (a, b2) = w.open();
            a.shutdown(Shutdown::Write).unwrap();
            w.pass(Duration::from_secs(5));
            assert_eq!(a.info().unwrap().tcp.state, State::FinWait2);
            w.write(&b2, b"still here");
            assert_eq!(w.read(&a).unwrap(), b"still here");
            drop(b);
        },
    );
}

#[test]
fn stale_handles_are_counted_and_harmless() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.open();
            let stale = a.try_clone().unwrap();
            a.abort().unwrap();
            w.pass(10 * MS);
            assert_eq!(w.s.stats().connections, 0);
            // The place is given to another connection, and the old name does not reach it.
            let (fresh, theirs) = w.open();
            assert_eq!(fresh.id().slot(), stale.id().slot());
            assert_ne!(fresh.id(), stale.id());
            w.write(&theirs, b"for the new one");
            w.pass(10 * MS);
            let before = w.s.stats().count("stale_handles");
            let mut buf = [0; 64];
            for r in [
                (&stale).read(&mut buf).map(drop),
                stale.peek(&mut buf).map(drop),
                (&stale).write(b"hello").map(drop),
                stale.shutdown(Shutdown::Both),
                stale.set_nodelay(true),
                stale.set_send_buffer_size(1),
                stale.info().map(drop),
                stale.take_error().map(drop),
                stale.zero_copy_progress().map(drop),
                stale.close(),
                stale.abort(),
            ] {
                assert_eq!(kind(r), Some(ErrorKind::NotConnected));
            }
            let counted = w.s.stats().count("stale_handles") - before;
            assert_eq!(counted, 11);
            drop((a, stale, b));
            assert_eq!(w.read(&fresh).unwrap(), b"for the new one");
            w.write(&fresh, b"yes");
            assert_eq!(w.read(&theirs).unwrap(), b"yes");
        },
    );
}

#[test]
fn stopping_a_stack_resets_its_connections() {
    under_all(
        |_| {},
        |w| {
            let l = w.s.listen(w.at(9)).unwrap();
            let (a, b) = w.open();
            let (c, d) = w.opened();
            // One that nobody has accepted.
            let e = w.peer.start_connect(w.at(9)).unwrap();
            w.until("handshake", || {
                e.info().unwrap().tcp.state == State::Established
            });
            // Its last word has arrived.
            w.pass(Duration::from_millis(5));
            fill(&a);
            w.s.stop();
            for s in [b, d, e] {
                s.set_nonblocking(true).unwrap();
                let end = loop {
                    match w.read(&s) {
                        Ok(data) => assert!(!data.is_empty(), "an orderly end"),
                        Err(e) => break e.kind(),
                    }
                };
                assert_eq!(end, ErrorKind::ConnectionReset);
            }
            assert_eq!(w.s.stats().connections, 0);
            let mut buf = [0; 8];
            assert_eq!(kind((&c).read(&mut buf)), Some(ErrorKind::NotConnected));
            assert!(l.accept().is_err());
            w.s.engine().quiescent().unwrap();
        },
    );
}

#[test]
fn dropping_everything_resets_and_ends_the_threads() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.open();
            // As a process that ends: the handle goes without being closed.
            core::mem::forget(a);
            let World { s, peer, p, .. } = w;
            s.stop();
            drop(s);
            b.set_nonblocking(false).unwrap();
            let mut buf = [0; 8];
            assert_eq!(kind((&b).read(&mut buf)), Some(ErrorKind::ConnectionReset));
            // The run ends only when all threads have.
            drop((peer, p));
        },
    );
}

#[test]
fn a_pending_error_is_told_once() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.open();
            b.abort().unwrap();
            w.until("reset", || a.info().unwrap().tcp.state == State::Closed);
            let e = a.take_error().unwrap().map(|e| e.kind());
            assert_eq!(e, Some(ErrorKind::ConnectionReset));
            assert!(a.take_error().unwrap().is_none());
            // Then it is a stream that has ended.
            let mut buf = [0; 8];
            assert_eq!((&a).read(&mut buf).unwrap(), 0);
            assert_eq!(kind((&a).write(b"x")), Some(ErrorKind::BrokenPipe));

            // A call takes it as well.
            let (a, b) = w.open();
            b.abort().unwrap();
            w.until("reset", || a.info().unwrap().tcp.state == State::Closed);
            assert_eq!(kind((&a).read(&mut buf)), Some(ErrorKind::ConnectionReset));
            assert!(a.take_error().unwrap().is_none());
        },
    );
}

#[test]
fn a_refused_connection_says_so() {
    under_all(
        |_| {},
        |w| {
            let a = w.s.start_connect(w.there(7)).unwrap();
            let mut e = None;
            w.until("refusal", || {
                e = a.take_error().unwrap();
                e.is_some()
            });
            assert_eq!(
                e.take().map(|e| e.kind()),
                Some(ErrorKind::ConnectionRefused)
            );
            assert_eq!(
                kind(w.s.connect(w.there(7))),
                Some(ErrorKind::ConnectionRefused)
            );
        },
    );
}

#[test]
fn a_neighbour_that_does_not_answer_ends_the_attempt() {
    under_all(
        |_| {},
        |w| {
            w.settle();
            let a = w.s.start_connect(w.nobody(7)).unwrap();
            let mut e = None;
            let before = w.now();
            w.until("failure", || {
                e = a.take_error().unwrap();
                e.is_some()
            });
            assert_eq!(e.map(|e| e.kind()), Some(ErrorKind::HostUnreachable));
            let took = w.now().since(before);
            assert!(took > 7000 * MS && took < 9000 * MS, "{took:?}");
        },
    );
}

#[test]
fn both_directions_end_in_order() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.open();
            w.write(&a, b"question");
            a.shutdown(Shutdown::Write).unwrap();
            assert_eq!(kind((&a).write(b"x")), Some(ErrorKind::BrokenPipe));
            assert_eq!(w.read_all(&b).unwrap(), b"question");
            w.write(&b, b"answer");
            drop(b);
            assert_eq!(w.read_all(&a).unwrap(), b"answer");
            drop(a);
            w.until("end", || {
                let left = w.s.connections();
                left.iter()
                    .all(|c| c.tcp.state == State::TimeWait && c.orphan)
            });
            w.until("end of TIME-WAIT", || w.s.stats().connections == 0);
            assert_eq!(w.s.stats().memory, 0);
        },
    );
}

//! Readiness: level, edge, one-shot and exclusive; pollers that threads share; and that no
//! wake-up is lost, nor a planted loss overlooked.

mod common;

use common::{Setup, fill, organizations, under_all};
use perimeter::{Events, Interest, Poll, Token};
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Read};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(20);

/// No tokens.
const NOBODY: [usize; 0] = [];

/// The tokens that a poll tells within a short time.
fn told(poll: &Poll) -> Vec<usize> {
    let mut events = Events::with_capacity(16);
    poll.poll(&mut events, Some(SOON)).unwrap();
    let mut tokens: Vec<_> = events.iter().map(|e| e.token().0).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn level_edge_and_oneshot() {
    under_all(
        |_| {},
        |w| {
            let polls: Vec<_> = (0..3).map(|_| w.s.poll().unwrap()).collect();
            let (a, b) = w.opened();
            let wants = [
                Interest::READABLE,
                Interest::READABLE.edge(),
                Interest::READABLE.oneshot(),
            ];
            for (poll, want) in polls.iter().zip(wants) {
                poll.registry().register(&a, Token(7), want).unwrap();
                assert_eq!(told(poll), NOBODY, "nothing is there yet");
            }
            w.write(&b, b"one");
            w.pass(SOON);
            for poll in &polls {
                assert_eq!(told(poll), [7]);
            }
            assert_eq!(told(&polls[0]), [7], "a level stays");
            assert_eq!(told(&polls[1]), NOBODY, "an edge is told once");
            assert_eq!(told(&polls[2]), NOBODY, "so is a one-shot");
            w.write(&b, b"two");
            w.pass(SOON);
            assert_eq!(told(&polls[0]), [7]);
            assert_eq!(told(&polls[1]), [7], "another edge");
            assert_eq!(told(&polls[2]), NOBODY, "not armed");
            polls[2]
                .registry()
                .reregister(&a, Token(8), wants[2])
                .unwrap();
            assert_eq!(told(&polls[2]), [8], "armed again, and it is there");
            assert_eq!(w.read(&a).unwrap(), b"onetwo");
            let mut buf = [0; 8];
            assert_eq!(
                common::kind((&a).read(&mut buf)),
                Some(ErrorKind::WouldBlock)
            );
            for poll in &polls {
                assert_eq!(told(poll), NOBODY, "all was read");
            }
            drop(b);
            w.pass(SOON);
            let mut events = Events::with_capacity(4);
            polls[0].poll(&mut events, Some(SOON)).unwrap();
            let e = events.iter().next().unwrap();
            assert!(e.is_readable() && e.is_read_closed() && !e.is_error());
        },
    );
}

#[test]
fn room_to_write_is_told_when_there_is_enough() {
    // A third of the buffer must be free; what is on its way counts as queued, what lies in the
    // peer's buffer does not.
    let third = |at, of| at < of * 2 / 3 + 8192 && at > of / 2;
    room_is_told(u32::MAX, third);
    room_is_told(1 << 20, third);
}

#[test]
fn room_to_write_is_told_as_soon_as_asked_for() {
    room_is_told(2048, |at, of| at < of - 2048 && at > of - 2 * 8192 - 2048);
}

/// A writer is told when `snd_lowat` bytes are free, or a third: `good` says whether, of so many bytes
/// written (the second), so many are unread by then (the first).
fn room_is_told(snd_lowat: u32, good: fn(usize, usize) -> bool) {
    under_all(
        move |s| {
            s.peer.tcp.rcv_buf = 8192;
            s.config.snd_lowat = snd_lowat;
        },
        move |w| {
            let poll = w.s.poll().unwrap();
            let (a, b) = w.open();
            poll.registry()
                .register(&a, Token(1), Interest::WRITABLE)
                .unwrap();
            assert_eq!(told(&poll), [1]);
            let mut n = fill(&a);
            assert!(n >= 256 * 1024);
            // The peer's buffer takes 8192 bytes at once.
            if snd_lowat > 8192 {
                assert_eq!(told(&poll), NOBODY);
            }
            w.pass(SOON);
            n += fill(&a);
            assert_eq!(told(&poll), NOBODY);
            let mut rest = n;
            let mut at = None;
            while rest > 0 {
                rest -= w.read(&b).unwrap().len();
                if at.is_none() && !told(&poll).is_empty() {
                    at = Some(rest);
                }
            }
            let at = at.expect("never writable");
            assert!(good(at, n), "told when {at} of {n} were left");
        },
    );
}

#[test]
fn registrations_end_with_the_socket() {
    under_all(
        |_| {},
        |w| {
            let poll = w.s.poll().unwrap();
            let r = poll.registry();
            let (a, b) = w.opened();
            r.register(&a, Token(1), Interest::BOTH).unwrap();
            r.deregister(&a).unwrap();
            assert_eq!(common::kind(r.deregister(&a)), Some(ErrorKind::NotFound));
            assert_eq!(told(&poll), NOBODY);
            r.register(&a, Token(2), Interest::BOTH).unwrap();
            assert_eq!(told(&poll), [2]);
            drop((a, b));
            assert_eq!(told(&poll), NOBODY, "closed: as with epoll it is gone");
            w.pass(SOON);
            assert_eq!(told(&poll), NOBODY);
            // A listener's as well.
            w.settle();
            let l = w.s.listen(w.at(5)).unwrap();
            r.register(&l, Token(3), Interest::READABLE).unwrap();
            let c = w.peer.start_connect(w.at(5)).unwrap();
            w.pass(SOON);
            assert_eq!(told(&poll), [3]);
            drop(l);
            assert_eq!(told(&poll), NOBODY);
            drop(c);
        },
    );
}

#[test]
fn a_socket_of_another_stack_is_refused() {
    under_all(
        |_| {},
        |w| {
            let poll = w.s.poll().unwrap();
            let (a, b) = w.open();
            let e = poll.registry().register(&b, Token(1), Interest::BOTH);
            assert_eq!(common::kind(e), Some(ErrorKind::InvalidInput));
            poll.registry()
                .register(&a, Token(1), Interest::BOTH)
                .unwrap();
        },
    );
}

/// Of those that registered exclusively one is told; of the others each.
#[test]
fn exclusive_registrations_take_turns() {
    under_all(
        |_| {},
        |w| {
            w.settle();
            let l = w.s.listen(w.at(5)).unwrap();
            l.set_nonblocking(true).unwrap();
            let polls: Vec<_> = (0..3).map(|_| w.s.poll().unwrap()).collect();
            let all = w.s.poll().unwrap();
            for p in &polls {
                let want = Interest::READABLE.exclusive().edge();
                p.registry().register(&l, Token(1), want).unwrap();
            }
            all.registry()
                .register(&l, Token(1), Interest::READABLE.edge())
                .unwrap();
            let mut who = Vec::new();
            for _ in 0..6 {
                let c = w.peer.start_connect(w.at(5)).unwrap();
                w.pass(SOON);
                let mut woken = 0;
                for (i, p) in polls.iter().enumerate() {
                    if !told(p).is_empty() {
                        who.push(i);
                        woken += 1;
                    }
                }
                assert_eq!(woken, 1);
                assert_eq!(told(&all), [1]);
                l.accept().unwrap();
                drop(c);
            }
            who.sort_unstable();
            assert_eq!(who, [0, 0, 1, 1, 2, 2]);
        },
    );
}

#[test]
fn a_waker_wakes_from_any_thread() {
    for org in organizations() {
        Setup::new(org).run(|w| {
            let poll = w.s.poll().unwrap();
            let waker = poll.waker();
            let p = w.p.clone();
            let body = move || {
                p.sleep_until(p.now() + SOON);
                waker.wake();
            };
            let t = w.p.spawn("other", None, Box::new(body));
            let mut events = Events::with_capacity(1);
            poll.poll(&mut events, None).unwrap();
            assert!(events.is_empty());
            t.join().unwrap();
        });
    }
}

#[test]
fn no_wake_up_is_lost() {
    for org in organizations() {
        common::model::explore(&common::model::small(org), 0..common::share(150)).unwrap();
    }
}

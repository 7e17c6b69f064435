//! Batches: what a thread sends goes together, and not later than it waits; under every organization.

use crate::common::{World, content, under_all, written_here};
use perimeter::{Events, Interest, Token};
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// Connections.
const ALL: usize = 16;
/// Calls after which what was sent goes (`perimeter_stack::kept::MOST`).
const MOST: usize = 32;

/// So much time passes, in which the stack under test is left alone.
fn pass(w: &World, ms: u64) {
    for _ in 0..ms {
        w.peer.drive().unwrap();
        w.p.sleep_until(w.p.now().plus(1_000_000));
    }
}

#[test]
fn a_device_is_told_once() {
    under_all(
        |_| {},
        |w| {
            let conns: Vec<_> = (0..ALL).map(|_| w.opened()).collect();
            w.pass(Duration::from_millis(100));
            let data = content(100);
            let batch = w.s.batch();
            for (ours, _) in &conns {
                w.write(ours, &data);
            }
            pass(&w, 5);
            let read = |mut s: &perimeter::TcpStream| s.read(&mut [0; 200]);
            let arrived = conns.iter().filter(|(_, theirs)| read(theirs).is_ok());
            let arrived = arrived.count();
            let kept = w.s.stats().count("tx_doorbells_kept");
            let name = w.s.organization();
            if written_here(name) {
                assert_eq!((arrived, kept), (0, ALL as u64), "{name}");
            }
            drop(batch);
            pass(&w, 5);
            let then = conns.iter().filter(|(_, theirs)| read(theirs).is_ok());
            assert_eq!(arrived + then.count(), ALL, "{name}");
            assert_eq!(w.s.stats().count("retransmits"), 0, "{name}");
        },
    );
}

#[test]
fn nothing_waits_for_many_calls() {
    under_all(
        |_| {},
        |w| {
            let (mut ours, mut theirs) = w.opened();
            ours.set_nodelay(true).unwrap();
            let (mut got, mut buf) = (0, vec![0; 10_000]);
            let mut arrived = || {
                pass(&w, 5);
                got += theirs.read(&mut buf).unwrap();
                got
            };
            let outer = w.s.batch();
            let inner = w.s.batch();
            for _ in 0..MOST + 5 {
                ours.write_all(&[1; 10]).unwrap();
            }
            let many = arrived();
            let name = w.s.organization();
            assert!(many >= 10 * MOST, "{name}: {many}");
            ours.write_all(&[1; 10]).unwrap();
            drop(inner);
            // One of the thread's batches goes on.
            ours.write_all(&[1; 10]).unwrap();
            drop(outer);
            assert_eq!(arrived(), 10 * (MOST + 7), "{name}");
            // None does any more.
            ours.write_all(&[1; 10]).unwrap();
            assert_eq!(arrived(), 10 * (MOST + 8), "{name}");
        },
    );
}

/// A thread that sends a batch and waits for what is answered to it gets that at once.
#[test]
fn who_waits_sends_before() {
    under_all(
        |_| {},
        |w| {
            let (ours, mut theirs) = w.opened();
            theirs.set_nonblocking(false).unwrap();
            theirs.set_nodelay(true).unwrap();
            let echo = move || {
                let mut buf = [0; 100];
                while let Ok(()) = theirs.read_exact(&mut buf) {
                    theirs.write_all(&buf).unwrap();
                }
            };
            let echo = w.p.spawn("echo", Some(1), Box::new(echo));
            let _batch = w.s.batch();
            let poll = w.s.poll().unwrap();
            let mut events = Events::with_capacity(4);
            let data = content(100);
            let start = w.p.now();
            for how in 0..30 {
                let mut ours = &ours;
                ours.set_nonblocking(true).unwrap();
                ours.write_all(&data).unwrap();
                let mut back = [0; 100];
                match how % 3 {
                    0 => ours.set_nonblocking(false).unwrap(),
                    1 => {
                        let registry = poll.registry();
                        registry
                            .register(ours, Token(7), Interest::READABLE)
                            .unwrap();
                        while events.iter().next().is_none() {
                            poll.poll(&mut events, None).unwrap();
                        }
                        registry.deregister(ours).unwrap();
                        events = Events::with_capacity(4);
                    }
                    _ => while !served(&w, ours) {},
                }
                ours.read_exact(&mut back).unwrap();
                assert_eq!(back[..], data);
            }
            let took = w.p.now().since(start);
            let name = w.s.organization();
            assert!(took < Duration::from_millis(200), "{name}: {took:?}");
            assert_eq!(w.s.stats().count("retransmits"), 0, "{name}");
            drop(ours);
            w.s.drive().unwrap();
            echo.join().unwrap();
        },
    );
}

/// Serves the stack for a moment; whether the connection has something to read.
fn served(w: &World, s: &perimeter::TcpStream) -> bool {
    w.s.drive().unwrap();
    w.p.sleep_until(w.p.now().plus(100_000));
    match s.peek(&mut [0; 100]) {
        Ok(n) => n == 100,
        Err(e) if e.kind() == ErrorKind::WouldBlock => false,
        Err(e) => panic!("{e}"),
    }
}

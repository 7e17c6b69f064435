//! A running stack is asked about its connections from a thread of its own, under every kind of
//! organization.

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack, State, TcpListener};
use perimeter_base::Time;
use perimeter_org::engine::{Engine, EngineError};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

fn stacks(org: &OrgSpec) -> (Stack, Stack) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let stack = |org: OrgSpec, end, addr: &str| {
        let b = Stack::builder().on_native(native).org(org);
        b.interface(end, &[addr]).unwrap().build().unwrap()
    };
    (
        stack(org.clone(), a, "10.0.0.1/24"),
        stack(OrgSpec::default(), b, "10.0.0.2/24"),
    )
}

fn deadline(e: &Arc<dyn Engine>) -> Time {
    e.now() + PATIENCE
}

/// Listens on port 80 and answers one connection, byte by byte, until the other side closes.
fn serve(listener: &TcpListener) {
    let (mut s, _) = listener.accept().unwrap();
    let mut byte = [0];
    while s.read(&mut byte).unwrap() > 0 {
        s.write_all(&byte).unwrap();
    }
}

#[test]
fn connections_are_told_with_perimeters_and_cores() {
    for name in ["up", "up:netisr", "up:shared", "connp-l:8"] {
        let org: OrgSpec = name.parse().unwrap();
        let (tell, told) = mpsc::channel();
        let server = thread::spawn(move || {
            // The stack is built by the thread that owns it.
            let (stack, peer) = stacks(&org);
            let listener = stack.listen("10.0.0.1:80").unwrap();
            tell.send((stack.engine().clone(), peer)).unwrap();
            serve(&listener);
        });
        let (engine, peer) = told.recv().unwrap();
        let mut client = peer.connect("10.0.0.1:80").unwrap();
        let mut byte = [0];
        for _ in 0..3 {
            client.write_all(b"x").unwrap();
            client.read_exact(&mut byte).unwrap();
        }
        let asked = Instant::now();
        let (listening, connections) = engine.inspect(deadline(&engine)).unwrap();
        // A thread that is parked is woken for it.
        assert!(
            asked.elapsed() < PATIENCE / 4,
            "{name}: {:?}",
            asked.elapsed()
        );
        assert_eq!(listening.len(), 1, "{name}");
        assert_eq!((listening[0].port, listening[0].queued), (80, 0), "{name}");
        let [c] = connections.as_slice() else {
            panic!("{name}: {connections:?}");
        };
        assert_eq!(c.info.key.local_port, 80, "{name}");
        assert_eq!(c.info.tcp.state, State::Established, "{name}");
        assert_eq!(c.info.tcp.bytes_received, 3, "{name}");
        for perimeter in &c.binding.perimeters {
            let want = if name.starts_with("up") {
                "stack"
            } else {
                "group"
            };
            assert!(perimeter.starts_with(want), "{name}: {perimeter}");
        }
        let cores = perimeter_sync::Platform::cores(&Native::default()) as u16;
        let ran = c.info.ran;
        for core in [ran.ip, ran.tcp, ran.send, ran.receive] {
            assert!(core.is_some_and(|c| c < cores), "{name}: {ran:?}");
        }
        drop(client);
        server.join().unwrap();
    }
}

/// A stack of one thread whose thread does other things: the question fails in bounded time, and
/// does not make the asker the owner.
#[test]
fn a_thread_that_does_not_come_by_is_not_waited_for() {
    let (stack, _peer) = stacks(&"up".parse().unwrap());
    let listener = stack.listen("10.0.0.1:80").unwrap();
    let engine = stack.engine().clone();
    let done = Arc::new(AtomicBool::new(false));
    let over = done.clone();
    let asker = thread::spawn(move || {
        let asked = Instant::now();
        let answer = engine.inspect(engine.now() + Duration::from_millis(100));
        assert!(matches!(answer, Err(EngineError::Absent)), "{answer:?}");
        assert!(asked.elapsed() >= Duration::from_millis(100));
        // Now the owner polls.
        over.store(true, Ordering::Release);
        engine.inspect(deadline(&engine)).unwrap().0.len()
    });
    while !done.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(1));
    }
    while !asker.is_finished() {
        stack.drive().unwrap();
    }
    assert_eq!(asker.join().unwrap(), 1);
    drop(listener);
}

/// Nobody owns the stack yet: asking does not change that.
#[test]
fn asking_does_not_make_an_owner() {
    let (stack, _peer) = stacks(&"up".parse().unwrap());
    let engine = stack.engine().clone();
    let answer = thread::spawn(move || engine.inspect(engine.now() + Duration::from_millis(20)));
    assert!(matches!(answer.join().unwrap(), Err(EngineError::Absent)));
    stack.drive().unwrap();
}

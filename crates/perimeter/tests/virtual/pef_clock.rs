//! A connection's time does not go back, though the threads that run its events read the clock in
//! another order than they come to it.

use crate::common::{Setup, World};
use perimeter::TcpStream;
use perimeter::pef::{Direction, End, EventSpec, Layer, Packet, Under, Verdict};
use perimeter_sync::Platform;
use perimeter_sync::virt::Schedule;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

const NAMES: [&str; 4] = [
    "pef:vertical",
    "pef:vertical:events=fine",
    "pef:random:events=fine",
    "pef:horizontal:events=fine",
];

/// The timestamps of what a connection sends, in its order.
fn stamps(s: &TcpStream) -> Arc<Mutex<Vec<u32>>> {
    let stamps = Arc::<Mutex<Vec<u32>>>::default();
    let seen = stamps.clone();
    let look = move |p: &mut Packet<'_>| {
        if let Some((value, _)) = p.header.and_then(|h| h.opts.ts) {
            seen.lock().unwrap().push(value);
        }
        Verdict::Next
    };
    let spec = EventSpec {
        name: "stamps".to_string(),
        direction: Direction::Transmit,
        layer: Layer::Tcp,
        under: Under::Layer,
        event: Arc::new(look),
    };
    s.insert_event(End::Back, spec).unwrap();
    stamps
}

/// Keeps the thread that brings a data segment for a while, before the connection's perimeter, so
/// that others come to the connection with later clocks.
fn keep_back(s: &TcpStream, p: perimeter::Virtual) {
    let wait = move |packet: &mut Packet<'_>| {
        if packet.len > 0 {
            p.sleep_until(p.now().plus(5_000_000));
        }
        Verdict::Next
    };
    let spec = EventSpec {
        name: "wait".to_string(),
        direction: Direction::Receive,
        layer: Layer::Ip,
        under: Under::Nothing,
        event: Arc::new(wait),
    };
    s.insert_event(End::Back, spec).unwrap();
}

#[test]
fn the_clock_of_a_connection_does_not_go_back() {
    for name in NAMES {
        for seed in 0..3 {
            let schedule = Schedule::Random { switch_one_in: 8 };
            let setup = Setup::new(name.parse().unwrap()).schedule(schedule, seed, 3);
            setup.run(move |w| kept_back(&w, name, seed));
        }
    }
}

/// The peer sends, while another thread than the one that brings that sends as well.
fn kept_back(w: &World, name: &str, seed: u64) {
    const N: usize = 40;
    let (ours, theirs) = w.opened();
    ours.set_nodelay(true).unwrap();
    let stamps = stamps(&ours);
    keep_back(&ours, w.p.clone());
    let (writer, p) = (ours.try_clone().unwrap(), w.p.clone());
    let body = move || {
        for _ in 0..N {
            p.sleep_until(p.now().plus(1_300_000));
            assert_eq!({ &writer }.write(b"ours").unwrap(), 4);
        }
    };
    let writer = w.p.spawn("writer", Some(1), Box::new(body));
    let (mut here, mut there) = (0, 0);
    let mut buf = [0; 4096];
    w.until("all data", || {
        if there < 4 * N {
            let _ = { &theirs }.write(b"theirs");
        }
        here += { &ours }.read(&mut buf).unwrap_or(0);
        there += { &theirs }.read(&mut buf).unwrap_or(0);
        there == 4 * N
    });
    assert!(here > 0);
    perimeter_sync::Thread::join(writer).unwrap();
    let stamps = stamps.lock().unwrap().clone();
    assert!(stamps.len() >= N / 2, "{} segments", stamps.len());
    for (i, pair) in stamps.windows(2).enumerate() {
        let ahead = pair[1].wrapping_sub(pair[0]) as i32;
        assert!(
            ahead >= 0,
            "{name}, seed {seed}: {ahead} ms at segment {i}: {stamps:?}"
        );
    }
}

//! Callbacks of events that panic: their event is taken off and counted, its owner is told, and
//! everything else goes on.

use crate::common::{Setup, World, content};
use crate::lists::{NAMES, event, stacks};
use crate::packet::ipv4;
use perimeter::link::script::script;
use perimeter::pef::{
    Direction, End, EventId, EventSpec, Layer, Packet, PacketEvent, Under, Verdict,
};
use perimeter::{Stack, TcpStream, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Panics on its third packet, and on all after it.
fn fragile(what: (Direction, Layer, Under)) -> (EventSpec, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    let callback = move |_: &mut Packet<'_>| {
        let n = seen.fetch_add(1, Ordering::Relaxed);
        assert!(n < 2, "the callback has had enough");
        Verdict::Next
    };
    (event("fragile", what, callback), calls)
}

/// Everywhere that an event may stand.
fn places() -> Vec<(Direction, Layer, Under)> {
    let mut all = Vec::new();
    for direction in [Direction::Receive, Direction::Transmit] {
        for layer in Layer::ALL {
            for under in [Under::Layer, Under::Squeue(1), Under::Nothing] {
                all.push((direction, layer, under));
            }
        }
    }
    all
}

/// The same bytes both ways at once.
fn both_ways(w: &World, a: &TcpStream, b: &TcpStream, n: usize) {
    let data = content(n);
    let (mut sent, mut back) = (0, 0);
    let (mut there, mut here) = (Vec::new(), Vec::new());
    let take = |s: &TcpStream, got: &mut Vec<u8>| {
        let mut buf = [0; 16_384];
        while let Ok(n @ 1..) = { s }.read(&mut buf) {
            got.extend(&buf[..n]);
        }
    };
    w.until("all data", || {
        // In pieces: a call is one packet on its list.
        let (to, till) = (n.min(sent + 1_000), n.min(back + 1_000));
        sent += { a }.write(&data[sent..to]).unwrap_or(0);
        back += { b }.write(&data[back..till]).unwrap_or(0);
        take(b, &mut there);
        take(a, &mut here);
        there.len() >= n && here.len() >= n
    });
    assert!(there == data && here == data);
}

fn is_told(s: &TcpStream, e: EventId, what: &str) {
    let error = s.disable_event(e).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other, "{what}: {error}");
    assert!(error.to_string().contains("panicked"), "{what}: {error}");
}

#[test]
fn a_callback_that_panics_costs_its_event_only() {
    for name in NAMES {
        for place in places() {
            let what = format!("{name}, {place:?}");
            Setup::new(name.parse().unwrap()).run(move |w| {
                let (ours, theirs) = w.opened();
                let (other, others) = w.opened();
                let plain = ours.binding().events;
                let (spec, calls) = fragile(place);
                // Behind the last layer's own event a packet has nothing left.
                let last = [
                    (Direction::Receive, Layer::Sockfs),
                    (Direction::Transmit, Layer::Ip),
                ];
                let front = last.contains(&(place.0, place.1));
                let end = if front { End::Front } else { End::Back };
                let e = ours.insert_event(end, spec).unwrap();
                both_ways(&w, &ours, &theirs, 60_000);
                both_ways(&w, &other, &others, 20_000);
                let panics = w.s.stats().count("event_panics");
                // Outside any perimeter two threads may be in it at once.
                let most = if place.2 == Under::Nothing { 3 } else { 1 };
                assert!((1..=most).contains(&panics), "{what}: {panics} panics");
                let calls = u64::from(calls.load(Ordering::Relaxed));
                assert_eq!(calls, 2 + panics, "{what}");
                is_told(&ours, e, &what);
                let mut events = ours.binding().events;
                let failed = &mut events[usize::from(place.0 == Direction::Transmit)];
                assert_eq!(
                    failed.pop().as_deref(),
                    Some("fragile (panicked)"),
                    "{what}"
                );
                assert_eq!(events, plain, "{what}");
                // The lists can be altered as before, and connections opened.
                let (spec, _) = fragile(place);
                let again = ours.insert_event(End::Front, spec).unwrap();
                ours.disable_event(again).unwrap();
                let (late, lates) = w.opened();
                both_ways(&w, &late, &lates, 5_000);
                ours.shutdown(Shutdown::Write).unwrap();
                assert_eq!(w.read_all(&theirs).unwrap(), b"");
            });
        }
    }
}

/// An event that all connections start with is off for all of them.
#[test]
fn a_registered_callback_that_panics_is_off_for_all() {
    for name in NAMES {
        for direction in [Direction::Receive, Direction::Transmit] {
            Setup::new(name.parse().unwrap()).run(move |w| {
                let (spec, calls) = fragile((direction, Layer::Tcp, Under::Layer));
                let e = w.s.register_event(spec).unwrap();
                let (a, b) = w.opened();
                both_ways(&w, &a, &b, 30_000);
                let (c, d) = w.opened();
                both_ways(&w, &c, &d, 30_000);
                let panics = w.s.stats().count("event_panics");
                assert_eq!(panics, 1, "{name}");
                assert_eq!(calls.load(Ordering::Relaxed), 3, "{name}");
                is_told(&a, e, name);
                // Later ones start without it.
                let list = usize::from(direction == Direction::Transmit);
                let names = c.binding().events[list].join(" ");
                assert!(!names.contains("fragile"), "{name}: {names}");
            });
        }
    }
}

/// Neither the thread that serves the device nor any other connection dies of it.
#[test]
fn a_trace_that_panics_is_the_end_of_the_trace() {
    for name in NAMES {
        let [s, peer] = stacks(name);
        let listener = s.listen("10.0.0.1:80").unwrap();
        let open = || {
            let theirs = peer.connect("10.0.0.1:80").unwrap();
            let (ours, _) = listener.accept().unwrap();
            for end in [&ours, &theirs] {
                end.set_read_timeout(Some(std::time::Duration::from_secs(20)))
                    .unwrap();
            }
            (ours, theirs)
        };
        let echo = |ours: &TcpStream, theirs: &TcpStream| {
            let data = content(100_000);
            { theirs }.write_all(&data).unwrap();
            let mut got = vec![0; data.len()];
            { ours }.read_exact(&mut got).unwrap();
            { ours }.write_all(&got).unwrap();
            { theirs }.read_exact(&mut got).unwrap();
            assert!(got == data, "{name}");
        };
        let (ours, theirs) = open();
        let (other, others) = open();
        let events = ours.trace(|_| panic!("no traces today")).unwrap();
        echo(&ours, &theirs);
        echo(&other, &others);
        let (late, lates) = open();
        echo(&late, &lates);
        // One of each direction.
        assert_eq!(s.stats().count("event_panics"), 2, "{name}");
        for e in events {
            is_told(&ours, e, name);
        }
    }
}

/// Whose message panics when it is thrown away, as the callback does when it is.
struct Vicious;

impl Drop for Vicious {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("and once more");
        }
    }
}

impl PacketEvent for Vicious {
    fn on_packet(&self, _: &mut Packet<'_>) -> Verdict {
        std::panic::panic_any(Vicious)
    }
}

#[test]
fn panics_of_destructors_are_caught_too() {
    for name in NAMES {
        Setup::new(name.parse().unwrap()).run(move |w| {
            let (ours, theirs) = w.opened();
            let what = (Direction::Receive, Layer::Tcp, Under::Layer);
            ours.insert_event(End::Front, event("fragile", what, Vicious))
                .unwrap();
            both_ways(&w, &ours, &theirs, 30_000);
            assert_eq!(w.s.stats().count("event_panics"), 1, "{name}");
        });
    }
}

#[test]
fn a_callback_without_a_connection_may_panic() {
    for name in NAMES {
        let config = VirtualConfig::default().with_cores(2);
        let result = Virtual::run(config, move |p| {
            let (device, wire) = script(&p, "script", 1500);
            let s = Stack::builder().on_virtual(p.clone());
            let s = s.organization(name).unwrap();
            let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
            let s = s.build().unwrap();
            let (spec, calls) = fragile((Direction::Unbound, Layer::Ip, Under::Nothing));
            s.register_event(spec).unwrap();
            let (spec, others) = counter();
            s.register_event(spec).unwrap();
            for _ in 0..6 {
                // Of a protocol that nobody has.
                assert!(wire.inject(p.now(), &ipv4(253, &[7; 10])));
                for _ in 0..20 {
                    s.drive().unwrap();
                    p.sleep_until(p.now().plus(200_000));
                }
            }
            assert_eq!(calls.load(Ordering::Relaxed), 3, "{name}");
            assert_eq!(others.load(Ordering::Relaxed), 6, "{name}");
            assert_eq!(s.stats().count("event_panics"), 1, "{name}");
        });
        result.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

fn counter() -> (EventSpec, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    let what = (Direction::Unbound, Layer::Ip, Under::Nothing);
    let count = move |_: &mut Packet<'_>| {
        seen.fetch_add(1, Ordering::Relaxed);
        Verdict::Next
    };
    (event("fragile", what, count), calls)
}

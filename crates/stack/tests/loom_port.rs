//! All interleavings of threads at one transmit port: who emits, who rings the doorbell, who asks
//! for counts, who sets room aside.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-stack --release --features testing --test loom_port`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use perimeter_base::{Time, TxRing};
use perimeter_link::TxQueue;
use perimeter_stack::kind::Kind;
use perimeter_stack::planted::Bug;
use perimeter_stack::planted::models::{found, holds};
use perimeter_stack::port::TxPort;
use perimeter_sync::Shared;
use perimeter_sync::model::Model;
use std::sync::Arc;

struct Loom;

impl Kind for Loom {
    type P = Model;
    type L = Shared;
}

/// A device that takes all there is, and checks that it comes in the order of its positions.
#[derive(Default)]
struct Device {
    taken: u64,
    /// It takes nothing at this doorbell, the first being 1.
    full_at: usize,
    bells: usize,
    /// Whether the link is up, which others may change; `None`: it is.
    up: Option<Arc<AtomicBool>>,
}

impl TxQueue for Device {
    fn doorbell(&mut self, _: Time, ring: &mut TxRing) {
        self.bells += 1;
        if self.bells == self.full_at {
            return;
        }
        for d in ring.pending() {
            assert_eq!(u64::from(d.hdr[0]), self.taken, "out of order");
            self.taken += 1;
        }
        ring.clear();
    }

    fn carrier(&self) -> bool {
        self.up.as_ref().is_none_or(|up| up.load(Ordering::Relaxed))
    }
}

type Port = TxPort<Loom>;

fn port(capacity: usize, full_at: usize) -> Arc<Port> {
    around(
        Device {
            full_at,
            ..Device::default()
        },
        capacity,
    )
}

fn around(device: Device, capacity: usize) -> Arc<Port> {
    Arc::new(TxPort::new(
        &Model,
        Box::new(device),
        TxRing::staged(capacity),
        0,
    ))
}

/// Appends a descriptor that carries its position, if there is room.
fn emit(port: &Port) -> bool {
    let mut stage = port.stage();
    let position = stage.position() as u8;
    let Some(mut d) = stage.push() else {
        return false;
    };
    d.hdr[0] = position;
    true
}

/// Two threads emit and ring. When both have, the device has everything, though neither waits
/// for the other.
fn everything_is_taken() {
    let port = port(4, 0);
    let theirs = port.clone();
    let other = thread::spawn(move || {
        for _ in 0..2 {
            assert!(emit(&theirs));
            theirs.doorbell(Time::ZERO);
        }
    });
    assert!(emit(&port));
    port.doorbell(Time::ZERO);
    other.join().unwrap();
    assert_eq!(port.completions().done(), 3, "descriptors lie in the ring");
    assert_eq!(port.pending(), 0);
    assert_eq!(port.ready_at(), Time::NEVER);
}

#[test]
fn what_is_placed_is_taken() {
    holds(3, everything_is_taken);
}

#[test]
fn a_bell_that_is_not_looked_after_is_found() {
    found(Bug::DoorbellLeavesLate, 3, everything_is_taken);
}

/// Who asks for counts, or for the carrier, holds the device for a moment. A doorbell that comes just
/// then is not lost: whoever serves the queue is told to ring.
fn questions_cost_no_doorbell(ask: fn(&Port)) {
    let up = Arc::new(AtomicBool::new(true));
    let device = Device {
        up: Some(up.clone()),
        ..Device::default()
    };
    let port = around(device, 4);
    let theirs = port.clone();
    let other = thread::spawn(move || ask(&theirs));
    assert!(emit(&port));
    // Before the other looks, or after.
    up.store(false, Ordering::Relaxed);
    port.doorbell(Time::ZERO);
    other.join().unwrap();
    let rings = port.ready_at() == Time::ZERO;
    assert!(
        port.completions().done() == 1 || rings,
        "it lies there for ever"
    );
}

fn counts(port: &Port) {
    port.stats();
}

fn carrier(port: &Port) {
    port.carrier();
}

#[test]
fn a_doorbell_beside_a_question_is_made_up_for() {
    holds(3, || questions_cost_no_doorbell(counts));
    holds(3, || questions_cost_no_doorbell(carrier));
}

#[test]
fn a_question_that_does_not_look_back_is_found() {
    let bug = Bug::CountsHideDoorbell;
    found(bug, 3, || questions_cost_no_doorbell(counts));
    found(bug, 3, || questions_cost_no_doorbell(carrier));
}

/// A device that is full for once: what it leaves, and what is placed meanwhile, it gets by the
/// doorbell that it asks for.
#[test]
fn a_full_device_is_asked_again() {
    holds(3, || {
        let port = port(4, 1);
        let theirs = port.clone();
        let other = thread::spawn(move || {
            assert!(emit(&theirs));
            theirs.doorbell(Time::ZERO);
        });
        assert!(emit(&port));
        port.doorbell(Time::ZERO);
        other.join().unwrap();
        if port.completions().done() < 2 {
            assert_ne!(port.ready_at(), Time::NEVER, "nobody rings again");
            assert!(port.backlogged());
            // Once for what the device has left, once for what came since.
            port.doorbell(Time::ZERO);
        }
        assert_eq!(port.completions().done(), 2);
    });
}

/// Room that is set aside is there when it is used, whoever else places segments meanwhile by
/// the same rule.
fn room_is_kept() {
    let port = port(2, 0);
    let turn = |port: &Port| {
        let n = port.set_aside(1);
        if n == 1 {
            // As `output::place` does.
            let mut stage = port.stage();
            let position = stage.position() as u8;
            let slot = stage.push();
            slot.expect("the room that was set aside is there").hdr[0] = position;
            let _ = port.put_back(1);
        }
        n
    };
    let others: Vec<_> = (0..2)
        .map(|_| {
            let port = port.clone();
            thread::spawn(move || turn(&port))
        })
        .collect();
    let mine = turn(&port);
    let theirs: u64 = others.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(mine + theirs, 2, "two of three find room");
    // Nothing is aside any more: all of the ring can be had once it has been emptied.
    port.doorbell(Time::ZERO);
    assert_eq!(port.set_aside(9), 2);
    let _ = port.put_back(2);
}

#[test]
fn room_that_is_set_aside_is_there() {
    holds(2, room_is_kept);
}

#[test]
fn room_that_two_set_aside_is_found() {
    found(Bug::AsideUnlocked, 2, room_is_kept);
}

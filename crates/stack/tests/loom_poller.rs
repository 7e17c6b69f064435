//! All interleavings of sockets that become ready and threads that wait on a poller. Loom reports
//! a lost wake-up as a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-stack --release --features testing --test loom_poller`
#![cfg(loom)]

use loom::thread;
use perimeter_base::Time;
use perimeter_stack::kind::Kind;
use perimeter_stack::planted::Bug;
use perimeter_stack::planted::models::{found, holds};
use perimeter_stack::poller::{Pollers, Ready};
use perimeter_stack::ready::{IN, OUT, Side, Trigger, Wakes, Want};
use perimeter_stack::{Lk, SockId};
use perimeter_sync::model::Model;
use perimeter_sync::{Event, Lock, LockClass, Platform, Shared};
use std::sync::Arc;

struct Loom;

impl Kind for Loom {
    type P = Model;
    type L = Shared;
}

/// A socket's two directions, each behind its own lock, and the one poller that it is
/// registered with.
struct World {
    pollers: Pollers<Loom>,
    poller: u32,
    read: Lk<Loom, Side<Loom>>,
    write: Lk<Loom, Side<Loom>>,
}

const TOKEN: usize = 7;

fn sock() -> SockId {
    SockId::conn(0, 0, 1)
}

impl World {
    fn new(trigger: Trigger) -> Arc<World> {
        let pollers = Pollers::new(&Model);
        let poller = pollers.create(&Model).unwrap();
        let want = Want {
            interest: IN | OUT,
            trigger,
            exclusive: false,
        };
        let p = pollers.get(poller).unwrap();
        let word = p.register(poller, sock(), TOKEN, want);
        let word = word.unwrap();
        let mut wakes = Wakes::default();
        let (mut read, mut write) = (Side::read(), Side::write());
        read.register(&word, &mut wakes);
        write.register(&word, &mut wakes);
        assert!(wakes.regs.is_empty());
        Arc::new(World {
            poller,
            read: Model.lock(LockClass::Rcvbuf, read),
            write: Model.lock(LockClass::Sndbuf, write),
            pollers,
        })
    }

    /// Something happens inside the perimeter; who waits is told when it has been left.
    fn raise(&self, bits: u8) {
        let mut wakes = Wakes::default();
        let side = if bits == IN { &self.read } else { &self.write };
        side.lock().raise(bits, &mut wakes);
        self.pollers.wake_threads(&mut wakes);
    }

    /// The application has taken everything.
    fn lower(&self, bits: u8) {
        let side = if bits == IN { &self.read } else { &self.write };
        side.lock().lower(bits);
    }

    /// Waits for events as `Engine::poll` does.
    fn poll(&self) -> Vec<Ready> {
        let p = self.pollers.get(self.poller).unwrap();
        let event = Arc::new(Model.event());
        let mut out = Vec::new();
        while p.take(&mut out, 8) == 0 {
            if p.wait(&event) {
                event.wait(Time::NEVER);
                p.unwait(&event);
            }
        }
        out
    }

    /// Waits until all of `bits` were told.
    fn poll_for(&self, bits: u8) {
        let mut seen = 0;
        while seen & bits != bits {
            for r in self.poll() {
                assert_eq!(r.token, TOKEN);
                seen |= r.bits;
            }
        }
    }
}

/// One waits, another makes ready.
fn one_wake(trigger: Trigger) {
    let w = World::new(trigger);
    let theirs = w.clone();
    let socket = thread::spawn(move || theirs.raise(IN));
    w.poll_for(IN);
    socket.join().unwrap();
}

#[test]
fn a_wake_is_not_lost() {
    for trigger in [Trigger::Level, Trigger::Edge, Trigger::OneShot] {
        holds(3, move || one_wake(trigger));
    }
}

#[test]
fn who_sleeps_without_a_look_is_found() {
    found(Bug::PollerSleepsUnlooked, 3, || one_wake(Trigger::Level));
}

#[test]
fn who_announces_itself_late_is_found() {
    found(Bug::WaiterAnnouncedLate, 3, || one_wake(Trigger::Edge));
}

/// Ready, read empty, ready again: the second time is told as well, though the entry of the first
/// may still be on the list, or have gone stale there.
fn again() {
    let w = World::new(Trigger::Level);
    let theirs = w.clone();
    let socket = thread::spawn(move || {
        theirs.raise(IN);
        theirs.lower(IN);
        theirs.raise(IN);
    });
    w.poll_for(IN);
    socket.join().unwrap();
    // Now it is ready, and a level: told as long as it is.
    w.poll_for(IN);
}

#[test]
fn a_stale_entry_hides_nothing() {
    holds(3, again);
}

#[test]
fn an_entry_that_is_forgotten_is_found() {
    found(Bug::PollerForgetsEntry, 3, again);
}

/// Both halves at once, under locks of their own: neither store undoes the other.
fn halves() {
    let w = World::new(Trigger::Edge);
    let (reads, writes) = (w.clone(), w.clone());
    let reader = thread::spawn(move || reads.raise(IN));
    let writer = thread::spawn(move || writes.raise(OUT));
    w.poll_for(IN | OUT);
    reader.join().unwrap();
    writer.join().unwrap();
    let word = w.pollers.get(w.poller).unwrap().find(sock());
    assert_eq!(word.map(|word| word.ready()), Some(IN | OUT));
}

#[test]
fn the_halves_of_a_word_do_not_meet() {
    holds(2, halves);
}

#[test]
fn halves_in_one_byte_are_found() {
    found(Bug::HalvesShared, 2, halves);
}

/// A poller is closed while its socket becomes ready and a thread waits.
#[test]
fn closing_wakes_who_waits() {
    holds(2, || {
        let w = World::new(Trigger::Level);
        let (theirs, waits) = (w.clone(), w.clone());
        let socket = thread::spawn(move || theirs.raise(IN));
        let waiter = thread::spawn(move || {
            let p = waits.pollers.get(waits.poller).unwrap();
            let event = Arc::new(Model.event());
            if p.wait(&event) {
                event.wait(Time::NEVER);
                p.unwait(&event);
            }
        });
        w.pollers.close(w.poller);
        socket.join().unwrap();
        waiter.join().unwrap();
        assert_eq!(w.pollers.get(w.poller).unwrap().len(), 0);
    });
}

//! All interleavings of a socket that becomes ready and tasks that wait for it. Loom reports a lost
//! wake-up as a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-stack --release --features testing --test loom_tasks`
#![cfg(loom)]

use core::task::{Context, Poll, Waker};
use loom::thread;
use perimeter_base::Time;
use perimeter_stack::Lk;
use perimeter_stack::kind::Kind;
use perimeter_stack::planted::Bug;
use perimeter_stack::planted::models::{found, holds};
use perimeter_stack::ready::{ERR, HUP, IN, Side, Wakes};
use perimeter_stack::tasks::{Half, Place, Tasks};
use perimeter_sync::model::Model;
use perimeter_sync::{Event, Lock, LockClass, Platform, Shared};
use std::sync::Arc;
use std::task::Wake;

struct Loom;

impl Kind for Loom {
    type P = Model;
    type L = Shared;
}

/// The receive side of a socket behind its lock, and who waits for it.
struct World {
    tasks: Arc<Tasks>,
    side: Lk<Loom, Side<Loom>>,
}

/// A task that sleeps on an event of its own.
struct Bell(<Model as Platform>::Event);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.set();
    }
}

impl World {
    fn new() -> Arc<World> {
        let tasks = Arc::new(Tasks::default());
        let mut side = Side::read();
        side.add_tasks(&tasks, &mut Wakes::default());
        Arc::new(World {
            tasks,
            side: Model.lock(LockClass::Rcvbuf, side),
        })
    }

    /// Data comes inside the perimeter; who waits is told when it has been left.
    fn comes(&self) {
        let mut wakes = Wakes::<Loom>::default();
        self.side.lock().raise(IN, &mut wakes);
        for (tasks, half) in wakes.tasks {
            tasks.wake(half);
        }
    }

    /// The application has taken everything.
    fn taken(&self) {
        self.side.lock().lower(IN);
    }

    /// Whether there is something.
    fn there(&self) -> bool {
        self.side.lock().bits() & IN != 0
    }
}

/// Polls until it is ready, sleeping in between as an executor does.
fn run(mut poll: impl FnMut(&mut Context<'_>) -> Poll<u8>) -> u8 {
    let bell = Arc::new(Bell(Model.event()));
    let waker = Waker::from(bell.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(bits) = poll(&mut cx) {
            return bits;
        }
        bell.0.wait(Time::NEVER);
        bell.0.take();
    }
}

fn one_waits() {
    let w = World::new();
    let theirs = w.clone();
    let socket = thread::spawn(move || theirs.comes());
    let bits = run(|cx| w.tasks.poll(Half::Read, cx));
    assert!(bits == IN && w.there(), "told of nothing");
    socket.join().unwrap();
}

#[test]
fn a_wake_is_not_lost() {
    holds(3, one_waits);
}

#[test]
fn who_announces_itself_late_is_found() {
    found(Bug::TaskAnnouncedLate, 3, one_waits);
}

/// One task polls, and a future waits at the same time: both are told.
fn two_wait() {
    let w = World::new();
    let theirs = w.clone();
    let other = thread::spawn(move || {
        let mut place = Place::default();
        run(|cx| theirs.tasks.wait(Half::Read, &mut place, cx));
        theirs.tasks.leave(Half::Read, &mut place);
    });
    let theirs = w.clone();
    let socket = thread::spawn(move || theirs.comes());
    run(|cx| w.tasks.poll(Half::Read, cx));
    other.join().unwrap();
    socket.join().unwrap();
}

#[test]
fn all_who_wait_are_told() {
    holds(2, two_wait);
}

#[test]
fn who_is_not_looked_for_is_found() {
    found(Bug::TaskWordStored, 3, one_waits);
}

/// A future goes while data comes: who stays is told all the same.
#[test]
fn who_goes_takes_no_wake_along() {
    holds(2, || {
        let w = World::new();
        let theirs = w.clone();
        let goes = thread::spawn(move || {
            let mut place = Place::default();
            let mut cx = Context::from_waker(Waker::noop());
            let _ = theirs.tasks.wait(Half::Read, &mut place, &mut cx);
            theirs.tasks.leave(Half::Read, &mut place);
        });
        let theirs = w.clone();
        let socket = thread::spawn(move || theirs.comes());
        let mut place = Place::default();
        run(|cx| w.tasks.wait(Half::Read, &mut place, cx));
        goes.join().unwrap();
        socket.join().unwrap();
    });
}

/// Data comes, is taken by another task, and comes again.
#[test]
fn the_second_time_is_told_too() {
    holds(3, || {
        let w = World::new();
        let theirs = w.clone();
        let socket = thread::spawn(move || {
            theirs.comes();
            theirs.taken();
            theirs.comes();
        });
        run(|cx| w.tasks.poll(Half::Read, cx));
        socket.join().unwrap();
        assert_eq!(run(|cx| w.tasks.poll(Half::Read, cx)), IN);
    });
}

/// The stack ends while a task is about to wait.
#[test]
fn the_end_is_told() {
    holds(3, || {
        let w = World::new();
        let theirs = w.clone();
        let end = thread::spawn(move || theirs.tasks.end());
        let bits = run(|cx| w.tasks.poll(Half::Read, cx));
        assert_eq!(bits, ERR | HUP);
        end.join().unwrap();
    });
}

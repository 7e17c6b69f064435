//! All interleavings of who enters an squeue, who leaves messages there, and its worker. Loom
//! reports a message that nobody comes for as a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-org --release --features testing --lib squeue::queue::models`

use super::{ANY_CORE, Entered, Inside, Protected, Settings, Squeue, SqueueEntry, Who};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use perimeter_base::Time;
use perimeter_stack::planted::Bug;
use perimeter_stack::planted::models::{found, holds};
use perimeter_sync::model::{Model, ModelEvent};
use perimeter_sync::{Event, Platform};
use std::sync::Arc;

/// A message: its producer and its number; the last is [`STOP`], which ends the worker.
type Message = (usize, u32);

const STOP: usize = usize::MAX;

/// What is protected: what was run.
#[derive(Default)]
struct Log(Vec<Message>);

impl Protected for Log {
    type Message = Message;
}

struct World {
    queue: Squeue<Model, Log>,
    /// How many messages are to come.
    total: usize,
    /// Set when all of them were run.
    all: ModelEvent,
    /// Who found the queue full is to go on.
    enabled: ModelEvent,
}

/// The core that all threads of a model are on, and another one.
const HERE: usize = 0;
const ELSEWHERE: usize = 1;

impl World {
    fn new(core: usize, (quantum, delay): (u64, u64), total: usize) -> Arc<World> {
        let quanta = [quantum; 3];
        let settings = Settings { quanta, delay };
        Arc::new(World {
            queue: Squeue::new(&Model, core, settings, Log::default()),
            total,
            all: Model.event(),
            enabled: Model.event(),
        })
    }

    fn run(&self, log: &mut Inside<Log>, m: Message) {
        log.0.push(m);
        if log.0.len() == self.total {
            self.all.set();
        }
    }

    /// As `FireEngine::tell`.
    fn bring(&self, entry: SqueueEntry, m: Message) {
        match self.queue.enter(entry) {
            Entered::In(mut proc) => {
                self.run(&mut proc, m);
                proc.leave(Who::Writer, |log, m| self.run(log, m));
            }
            Entered::Busy(door) => {
                if let Some(proc) = door.put(m) {
                    proc.leave(Who::Inbound, |log, m| self.run(log, m));
                }
            }
        }
    }

    /// The worker, until it is told to stop.
    fn work(&self) {
        let mut stop = false;
        while !stop {
            self.queue.work(Who::Worker, |log, m| {
                stop |= m.0 == STOP;
                self.run(log, m);
            });
            if !stop {
                self.queue.park(Time::NEVER);
            }
        }
    }

    /// All messages were run, each producer's in its order.
    fn judge(&self) {
        let log = self.queue.seize();
        assert_eq!(log.0.len(), self.total);
        for who in 0..2 {
            let theirs: Vec<u32> = log.0.iter().filter(|m| m.0 == who).map(|m| m.1).collect();
            assert!(theirs.is_sorted_by(|a, b| a < b), "{theirs:?}");
        }
        drop(log);
        assert_eq!(self.queue.pending(), 0);
    }
}

/// Two producers and a worker.
fn produce(core: usize, quantum: u64, entries: [SqueueEntry; 2], each: u32) {
    let w = World::new(core, (quantum, 0), 2 * each as usize);
    let (works, produces) = (w.clone(), w.clone());
    let worker = thread::spawn(move || works.work());
    let other = thread::spawn(move || {
        (0..each).for_each(|n| produces.bring(entries[1], (1, n)));
    });
    (0..each).for_each(|n| w.bring(entries[0], (0, n)));
    // Nobody comes any more: whatever is left is the worker's, who has been told.
    w.all.wait(Time::NEVER);
    other.join().unwrap();
    assert!(matches!(w.queue.enter(SqueueEntry::Fill), Entered::Busy(_)));
    w.judge();
    w.bring(SqueueEntry::Fill, (STOP, 0));
    worker.join().unwrap();
}

#[test]
fn no_message_is_left() {
    use SqueueEntry::{Fill, NoDrain, Process};
    for entries in [[Process, Process], [Process, Fill], [NoDrain, Fill]] {
        holds(2, move || produce(HERE, 1, entries, 1));
    }
    holds(2, || produce(ELSEWHERE, 1, [Process, Process], 1));
}

#[test]
fn each_producer_keeps_its_order() {
    holds(1, || produce(HERE, 1, [SqueueEntry::Process; 2], 2));
}

/// A quantum that is over at once: the worker gets what is left.
#[test]
fn what_a_quantum_leaves_is_the_workers() {
    holds(2, || produce(HERE, 0, [SqueueEntry::Process; 2], 1));
}

#[test]
fn a_flag_that_is_cleared_late_is_found() {
    found(Bug::ProcClearedLate, 2, || {
        produce(HERE, 1, [SqueueEntry::Process; 2], 1);
    });
}

#[test]
fn a_worker_that_sleeps_without_a_look_is_found() {
    found(Bug::WorkerSleepsUnlooked, 2, || {
        produce(HERE, 1, [SqueueEntry::Fill; 2], 1);
    });
}

/// A wake that is put off: the worker sees to it itself.
#[test]
fn a_wake_that_is_put_off_comes() {
    holds(2, || {
        let w = World::new(ELSEWHERE, (1, 1), 2);
        let (works, brings) = (w.clone(), w.clone());
        let worker = thread::spawn(move || works.work());
        let other = thread::spawn(move || brings.bring(SqueueEntry::Fill, (1, 0)));
        w.bring(SqueueEntry::Fill, (0, 0));
        w.all.wait(Time::NEVER);
        other.join().unwrap();
        w.judge();
        w.bring(SqueueEntry::Fill, (STOP, 0));
        worker.join().unwrap();
    });
}

/// The stack ends while the worker works, or parks without a deadline, or has been told to wake
/// later: as `serve::work` and `Running::stop_now`.
fn end(delay: u64, said_first: bool) {
    let w = World::new(ELSEWHERE, (1, delay), 1);
    let stopping = Arc::new(AtomicBool::new(false));
    let (works, stops) = (w.clone(), stopping.clone());
    let worker = thread::spawn(move || {
        while !stops.load(Ordering::Acquire) {
            let n = works.queue.work(Who::Worker, |log, m| works.run(log, m));
            if n == 0 {
                works.queue.park(Time::NEVER);
            }
        }
    });
    w.bring(SqueueEntry::Fill, (0, 0));
    if said_first {
        stopping.store(true, Ordering::Release);
        w.queue.end();
    } else {
        w.queue.bell.set();
        stopping.store(true, Ordering::Release);
    }
    worker.join().unwrap();
}

#[test]
fn a_worker_is_told_of_the_end() {
    for delay in [0, 1] {
        holds(3, move || end(delay, true));
    }
}

/// Who woke the worker before it could see why would have it sleep for ever.
#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_before_the_word_is_found() {
    holds(3, || end(0, false));
}

/// Flow control between modules: who finds the queue full (here at one message) is enabled when
/// it has been taken.
fn modules() {
    let w = World::new(ANY_CORE, (1, 0), 2);
    let turn = |w: &World, who: usize| {
        while w.queue.push_below(1, 1, (who, 0)).is_err() {
            w.enabled.wait(Time::NEVER);
        }
        // As `Streams::move_on`.
        w.queue.work(Who::Writer, |log, m| w.run(log, m));
        if w.queue.take_enabled() != 0 {
            w.enabled.set();
        }
    };
    let theirs = w.clone();
    let other = thread::spawn(move || turn(&theirs, 1));
    turn(&w, 0);
    other.join().unwrap();
    // Who found PROC taken has left its message to who had it, or else it lies there until the
    // next one comes: `move_on` nudges then.
    w.queue.work(Who::Writer, |log, m| w.run(log, m));
    w.judge();
}

#[test]
fn who_is_refused_is_enabled() {
    holds(3, modules);
}

#[test]
fn a_missing_enable_is_found() {
    found(Bug::BackEnableMissing, 3, modules);
}

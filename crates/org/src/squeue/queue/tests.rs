//! The squeue by itself, on virtual cores.

use super::{Entered, Inside, Protected, Settings, Squeue, SqueueEntry, Who};
use perimeter_base::Time;
use perimeter_sync::virt::{Schedule, VirtualConfig};
use perimeter_sync::{Platform, Thread, Virtual};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What is protected: a log of (producer, number), and a flag that nobody else is at it.
#[derive(Default)]
struct Log {
    entries: Vec<(usize, u32)>,
    busy: bool,
}

impl Protected for Log {
    type Message = (usize, u32);
}

const QUANTA: Settings = Settings {
    quanta: [20_000_000, 10_000_000, 10_000_000],
    delay: 0,
};

/// Runs a message, with a scheduling point in the middle.
fn run(p: &Virtual, log: &mut Inside<Log>, m: (usize, u32)) {
    assert!(!log.busy, "two threads hold PROC");
    log.busy = true;
    p.checkpoint();
    log.entries.push(m);
    log.busy = false;
}

fn bring(p: &Virtual, q: &Squeue<Virtual, Log>, entry: SqueueEntry, m: (usize, u32)) {
    match q.enter(entry) {
        Entered::In(mut proc) => {
            run(p, &mut proc, m);
            proc.leave(Who::Writer, |log, m| run(p, log, m));
        }
        Entered::Busy(door) => {
            if let Some(proc) = door.put(m) {
                proc.leave(Who::Inbound, |log, m| run(p, log, m));
            }
        }
    }
}

/// Three producers in each entry mode and a worker; every message is run once, in its
/// producer's order, and nothing is left.
fn produce(seed: u64, settings: Settings) {
    const EACH: u32 = 8;
    let config = VirtualConfig::default()
        .with_seed(seed)
        .with_cores(2)
        .with_schedule(Schedule::Random { switch_one_in: 2 })
        .with_max_steps(200_000);
    Virtual::run(config, move |p| {
        let q = Arc::new(Squeue::new(&p, 0, settings, Log::default()));
        let over = Arc::new(AtomicBool::new(false));
        let worked = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (p2, q, over, worked) = (p.clone(), q.clone(), over.clone(), worked.clone());
            let body = move || {
                while !over.load(Ordering::Relaxed) {
                    let n = q.work(Who::Worker, |log, m| run(&p2, log, m));
                    worked.fetch_add(n, Ordering::Relaxed);
                    if n == 0 {
                        q.park(p2.now().plus(50_000_000));
                    }
                }
            };
            p.spawn("worker", Some(0), Box::new(body))
        };
        let modes = [
            SqueueEntry::Process,
            SqueueEntry::NoDrain,
            SqueueEntry::Fill,
        ];
        let producers: Vec<_> = modes
            .into_iter()
            .enumerate()
            .map(|(who, entry)| {
                let (p2, q) = (p.clone(), q.clone());
                let body = move || {
                    for n in 0..EACH {
                        bring(&p2, &q, entry, (who, n));
                    }
                };
                p.spawn("producer", Some(who), Box::new(body))
            })
            .collect();
        for t in producers {
            t.join().unwrap();
        }
        // The worker was told of whatever is left: no timeout passes.
        let start = p.now();
        while q.pending() > 0 {
            p.sleep_until(p.now().plus(100_000));
            assert!(p.now().nanos_since(start) < 10_000_000, "the worker sleeps");
        }
        over.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let proc = q.seize();
        for who in 0..3 {
            let mine: Vec<u32> = proc
                .entries
                .iter()
                .filter(|(w, _)| *w == who)
                .map(|(_, n)| *n)
                .collect();
            assert_eq!(mine, (0..EACH).collect::<Vec<_>>(), "producer {who}");
        }
    })
    .unwrap_or_else(|f| panic!("{f}"));
}

#[test]
fn every_message_is_run_once_and_in_order() {
    for seed in 0..300 {
        produce(seed, QUANTA);
    }
}

#[test]
fn quanta_of_nothing_and_a_delayed_worker_lose_nothing() {
    let settings = Settings {
        quanta: [0; 3],
        delay: 300_000,
    };
    for seed in 0..300 {
        produce(seed, settings);
    }
}

#[test]
fn a_drain_stops_at_its_quantum_and_keeps_the_order() {
    let config = VirtualConfig::default().with_schedule(Schedule::Time { jitter_percent: 0 });
    Virtual::run(config, |p| {
        let settings = Settings {
            quanta: [1_000; 3],
            delay: 0,
        };
        let q = Squeue::new(&p, 0, settings, Log::default());
        for n in 0..100 {
            bring(&p, &q, SqueueEntry::Fill, (0, n));
        }
        let (mut turns, mut next) = (0, 100);
        loop {
            let n = q.work(Who::Worker, |log, m| {
                p.sleep_until(p.now().plus(100));
                if next < 120 {
                    // Behind all that waits, also behind what goes back.
                    bring(&p, &q, SqueueEntry::Fill, (0, next));
                    next += 1;
                }
                run(&p, log, m);
            });
            if n == 0 {
                break;
            }
            // Looked at every 16 messages.
            assert!(n <= 16, "{n} messages in a quantum of ten");
            turns += 1;
        }
        assert_eq!(turns, 8);
        let log = q.seize();
        let want: Vec<_> = (0..120).map(|n| (0, n)).collect();
        assert_eq!(log.entries, want);
    })
    .unwrap();
}

#[test]
fn reentry_is_allowed_once() {
    let config = VirtualConfig::default();
    Virtual::run(config, |p| {
        let q = Squeue::new(&p, 0, QUANTA, Log::default());
        let mut proc = q.take().unwrap();
        let inner = proc.reenter(|log| {
            log.entries.push((0, 0));
            log.reenter(|_| ()).is_none()
        });
        assert_eq!(inner, Some(true));
        assert_eq!(proc.reenter(|_| ()), Some(()));
        assert!(q.take().is_none(), "PROC is held");
        drop(proc);
        assert_eq!(q.take().unwrap().entries, [(0, 0)]);
        assert_eq!(q.pending(), 0);
        assert_eq!(q.core(), 0);
    })
    .unwrap();
}

#[test]
fn a_panic_gives_the_squeue_back() {
    let config = VirtualConfig::default();
    Virtual::run(config, |p| {
        let q = Squeue::new(&p, 0, QUANTA, Log::default());
        let body = std::panic::AssertUnwindSafe(|| {
            let _proc = q.take().unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(std::panic::catch_unwind(body).is_err());
        assert!(q.take().is_some());
        assert_eq!(p.now(), Time::ZERO.max(p.now()));
    })
    .unwrap();
}

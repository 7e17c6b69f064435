use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use perimeter_base::Time;

use super::*;
use crate::class::Work;
use crate::platform::{Event, Lock, Thread};

fn random(seed: u64) -> VirtualConfig {
    VirtualConfig {
        seed,
        schedule: Schedule::Random { switch_one_in: 3 },
        max_steps: 1_000_000,
        ..VirtualConfig::default()
    }
}

fn pct(seed: u64, depth: u32, steps: u64) -> VirtualConfig {
    VirtualConfig {
        seed,
        schedule: Schedule::Pct { depth },
        pct_steps: steps,
        max_steps: 1_000_000,
        ..VirtualConfig::default()
    }
}

fn time(seed: u64, cores: usize, jitter_percent: u32) -> VirtualConfig {
    VirtualConfig {
        seed,
        cores,
        schedule: Schedule::Time { jitter_percent },
        ..VirtualConfig::default()
    }
}

/// Four threads over two locks, an event and sleeps: something of everything.
fn mixture(p: Virtual) -> u64 {
    let a = Arc::new(p.lock(LockClass::Connection, 0u64));
    let b = Arc::new(p.lock(LockClass::Sndbuf, 0u64));
    let done = Arc::new(p.event());
    let left = Arc::new(AtomicU32::new(4));
    let threads: Vec<_> = (0..4u64)
        .map(|i| {
            let (p, a, b, done, left) =
                (p.clone(), a.clone(), b.clone(), done.clone(), left.clone());
            let q = p.clone();
            q.spawn(
                &format!("worker{i}"),
                Some(i as usize),
                Box::new(move || {
                    for k in 0..20 {
                        p.charge(Work::TcpFast, 1);
                        let mut x = a.lock();
                        *x = x.wrapping_mul(31).wrapping_add(i);
                        *b.lock() += *x & 1;
                        drop(x);
                        if k % 5 == i {
                            p.sleep_until(p.now().plus(700));
                        }
                        p.yield_now();
                    }
                    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                        done.set();
                    }
                }),
            )
        })
        .collect();
    assert!(done.wait(Time::NEVER));
    for t in threads {
        t.join().unwrap();
    }
    let x = *a.lock();
    x ^ *b.lock() << 32
}

#[test]
fn same_seed_same_run_and_other_seed_other_run() {
    type Make = fn(u64) -> VirtualConfig;
    let makes: [(&str, Make); 3] = [
        ("random", random),
        ("pct", |s| pct(s, 4, 400)),
        ("time", |s| time(s, 4, 20)),
    ];
    for (name, make) in makes {
        let mut hashes = std::collections::HashSet::new();
        let mut values = std::collections::HashSet::new();
        for seed in 0..50 {
            let one = Virtual::run(make(seed), mixture).unwrap();
            let two = Virtual::run(make(seed), mixture).unwrap();
            assert_eq!(one, two, "{name} seed {seed}");
            hashes.insert(one.1.trace_hash);
            values.insert(one.0);
        }
        assert_eq!(hashes.len(), 50, "{name}");
        assert!(values.len() >= 10, "{name}: {} outcomes", values.len());
    }
}

#[test]
fn time_order_without_jitter_ignores_the_seed() {
    let one = Virtual::run(time(1, 4, 0), mixture).unwrap();
    let two = Virtual::run(time(2, 4, 0), mixture).unwrap();
    assert_eq!(one.0, two.0);
    assert_eq!(one.1.virtual_time, two.1.virtual_time);
}

type Named = (&'static str, Box<dyn FnOnce() + Send>);

/// Spawns the bodies and joins them.
fn all(p: &Virtual, bodies: Vec<Named>) {
    let ts: Vec<_> = bodies
        .into_iter()
        .map(|(n, b)| p.spawn(n, None, b))
        .collect();
    for t in ts {
        t.join().unwrap();
    }
}

/// The classic, hidden from the order check by taking the second lock by a loop of attempts.
fn abba(p: Virtual) {
    let a = Arc::new(p.lock(LockClass::Group, ()));
    let b = Arc::new(p.lock(LockClass::Group, ()));
    let (a2, b2) = (a.clone(), b.clone());
    let (e, f) = (Arc::new(p.event()), Arc::new(p.event()));
    let (e2, f2) = (e.clone(), f.clone());
    e.label("left is through");
    // Each holds its lock and waits for the other, who needs that lock first.
    all(
        &p,
        vec![
            (
                "left",
                Box::new(move || {
                    let g = a.lock();
                    f.wait(Time::NEVER);
                    drop(g);
                    drop(b.lock());
                    e.set();
                }),
            ),
            (
                "right",
                Box::new(move || {
                    drop(a2.lock());
                    f2.set();
                    let g = b2.lock();
                    e2.wait(Time::NEVER);
                    drop(g);
                }),
            ),
        ],
    );
}

#[test]
fn deadlock_is_reported_with_who_waits_for_what() {
    for make in [random as fn(u64) -> VirtualConfig, |s| time(s, 2, 5)] {
        let f = (0..50)
            .find_map(|s| Virtual::run(make(s), abba).err())
            .expect("a deadlock within 50 seeds");
        assert_eq!(f.kind, FailureKind::Deadlock);
        let text = f.to_string();
        for part in [
            &format!("seed {}", f.config.seed) as &str,
            "\"main\"",
            "waits for the end of thread",
            "waits for lock group #",
            "held by thread",
            "holds group #",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let again = Virtual::run(*f.config.clone(), abba).unwrap_err();
        assert_eq!(
            (again.steps, again.trace_hash, again.detail),
            (f.steps, f.trace_hash, f.detail)
        );
    }
}

#[test]
fn lock_order_is_checked_at_every_acquisition() {
    let run = |outer, inner| {
        Virtual::run(random(1), move |p: Virtual| {
            let (a, b) = (p.lock(outer, 1), p.lock(inner, 2));
            let _a = a.lock();
            let _b = b.lock();
        })
    };
    assert!(run(LockClass::Group, LockClass::Sndbuf).is_ok());
    for (o, i) in [
        (LockClass::Sndbuf, LockClass::Group),
        (LockClass::Group, LockClass::Group),
    ] {
        let f = run(o, i).unwrap_err();
        assert_eq!(f.kind, FailureKind::LockOrder);
        assert!(f.detail.contains("while it holds"), "{f}");
    }
    let f = Virtual::run(random(1), |p| {
        let a = p.lock(LockClass::Leaf, 1);
        let _g = a.lock();
        let _h = a.lock();
    })
    .unwrap_err();
    assert!(f.detail.contains("the same lock"), "{f}");
    // An attempt can't deadlock.
    let ok = Virtual::run(random(1), |p| {
        let (a, b) = (p.lock(LockClass::Leaf, 1), p.lock(LockClass::Group, 1));
        let _g = a.lock();
        assert!(a.try_lock().is_none());
        b.try_lock().is_some()
    });
    assert!(ok.unwrap().0);
}

/// A consumer that looks, then clears, then sleeps: a message between the look and the clear
/// is lost. A timeout hides it.
fn sleepy(p: Virtual, deadline: Option<u64>) {
    let queue = Arc::new(AtomicU32::new(0));
    let event = Arc::new(p.event());
    event.label("consumer");
    let q = queue.clone();
    event.condition(move || q.load(Ordering::Relaxed) > 0);
    let (e, q, p2) = (event.clone(), queue.clone(), p.clone());
    all(
        &p,
        vec![
            (
                "consumer",
                Box::new(move || {
                    let mut got = 0;
                    while got < 3 {
                        got += q.swap(0, Ordering::Relaxed);
                        p2.checkpoint();
                        e.take();
                        if got < 3 {
                            let until = deadline.map_or(Time::NEVER, |d| p2.now().plus(d));
                            e.wait(until);
                        }
                    }
                }),
            ),
            (
                "producer",
                Box::new(move || {
                    for _ in 0..3 {
                        queue.fetch_add(1, Ordering::Relaxed);
                        event.set();
                    }
                }),
            ),
        ],
    );
}

#[test]
fn lost_wakeup_is_found_even_behind_a_timeout() {
    for deadline in [None, Some(1_000_000)] {
        let f = (0..200)
            .find_map(|s| Virtual::run(random(s), move |p| sleepy(p, deadline)).err())
            .expect("a lost wake-up within 200 seeds");
        assert_eq!(f.kind, FailureKind::LostWakeup, "{f}");
        assert!(f.detail.contains("\"consumer\""), "{f}");
    }
}

#[test]
fn quiescence_checks_can_fail_a_run() {
    let bytes = Arc::new(AtomicU64::new(0));
    let run = |b: Arc<AtomicU64>, n: u64| {
        Virtual::run(random(3), move |p: Virtual| {
            let c = b.clone();
            p.quiescence(move || match c.load(Ordering::Relaxed) {
                1 => Ok(()),
                n => Err(format!("{n} bytes unacknowledged")),
            });
            b.store(n, Ordering::Relaxed);
        })
    };
    assert!(run(bytes.clone(), 1).is_ok());
    let f = run(bytes, 7).unwrap_err();
    assert_eq!(f.kind, FailureKind::Quiescence);
    assert!(f.detail.contains("7 bytes unacknowledged"));
}

#[test]
fn limits_end_livelocks() {
    let spin = |p: Virtual| {
        loop {
            p.yield_now();
        }
    };
    for (steps, time, kind) in [
        (1_000, Time::NEVER, FailureKind::StepLimit),
        (u64::MAX, Time(100_000), FailureKind::TimeLimit),
    ] {
        for schedule in [
            Schedule::Random { switch_one_in: 2 },
            Schedule::Time { jitter_percent: 0 },
        ] {
            let cfg = VirtualConfig {
                max_steps: steps,
                max_time: time,
                schedule,
                ..VirtualConfig::default()
            };
            let f = Virtual::run(cfg, move |p| {
                let q = p.clone();
                let t = p.spawn("other", None, Box::new(move || spin(q)));
                spin(p);
                t.join().unwrap();
            })
            .unwrap_err();
            assert_eq!(f.kind, kind, "{schedule}: {f}");
        }
    }
}

/// Counts its life; its destructor takes a lock.
struct Counted {
    _life: Life,
    lock: Arc<VirtualLock<u32>>,
}

/// A field of its own, dropped even when `Counted::drop` is unwound while it waits.
struct Life(Arc<AtomicU32>);

impl Counted {
    fn new(count: &Arc<AtomicU32>, lock: &Arc<VirtualLock<u32>>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted {
            _life: Life(count.clone()),
            lock: lock.clone(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.lock.lock() += 1;
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_panic_fails_the_run_and_unwinds_all_threads() {
    for seed in 0..100 {
        let alive = Arc::new(AtomicU32::new(0));
        let a = alive.clone();
        let f = Virtual::run(random(seed), move |p: Virtual| {
            let lock = Arc::new(p.lock(LockClass::Leaf, 0));
            let never = Arc::new(p.event());
            let ts: Vec<_> = (0..6)
                .map(|i| {
                    let c = Counted::new(&a, &lock);
                    let (lock, never, p2) = (lock.clone(), never.clone(), p.clone());
                    p.spawn(
                        "victim",
                        None,
                        Box::new(move || {
                            // Dropped after `c` when unwound: `c` needs the lock of others.
                            let _c = c;
                            match i {
                                0 => {
                                    never.wait(Time::NEVER);
                                }
                                1 => p2.sleep_until(Time::from_millis(50)),
                                2 => {
                                    let _g = lock.lock();
                                    p2.sleep_until(Time::from_millis(5));
                                }
                                3 => {
                                    p2.sleep_until(Time::from_millis(1));
                                    resume_quietly("planned");
                                }
                                _ => drop(lock.lock()),
                            }
                        }),
                    )
                })
                .collect();
            for t in ts {
                t.join().unwrap();
            }
        })
        .unwrap_err();
        assert_eq!(f.kind, FailureKind::Panic, "{f}");
        assert!(f.detail.contains("planned"), "seed {seed}: {f}");
        // Thread 2 holds the lock while it unwinds its own `Counted` last: nothing leaks.
        assert_eq!(alive.load(Ordering::Relaxed), 0, "seed {seed}");
    }
}

/// A panic that does not fill the test's output.
fn resume_quietly(text: &'static str) {
    std::panic::resume_unwind(Box::new(text));
}

#[test]
fn threads_that_cannot_be_unwound_are_leaked_not_fatal() {
    let f = Virtual::run(random(1), |p: Virtual| {
        let lock = Arc::new(p.lock(LockClass::Leaf, 0));
        let counter = Arc::new(AtomicU32::new(0));
        let q = p.clone();
        let t = p.spawn(
            "stubborn",
            None,
            Box::new(move || {
                // The guard outlives the destructor that wants the lock again.
                let _g = lock.lock();
                let _c = Counted::new(&counter, &lock);
                q.sleep_until(Time::from_millis(9));
            }),
        );
        let swallow = p.clone();
        let u = p.spawn(
            "swallower",
            None,
            Box::new(move || {
                loop {
                    let e = swallow.event();
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        e.wait(Time::NEVER)
                    }));
                }
            }),
        );
        p.sleep_until(Time::from_millis(1));
        resume_quietly("planned");
        t.join().unwrap();
        u.join().unwrap();
    })
    .unwrap_err();
    assert_eq!(f.kind, FailureKind::Panic, "{f}");
}

/// Needs two ordering constraints: the checker between two stores of the initialiser, and a
/// long prelude in which nothing matters.
fn depth_two(p: Virtual) {
    let a = Arc::new(p.lock(LockClass::Connection, (0, 0)));
    let b = a.clone();
    let (p1, p2) = (p.clone(), p.clone());
    all(
        &p,
        vec![
            (
                "writer",
                Box::new(move || {
                    for _ in 0..50 {
                        p1.checkpoint();
                    }
                    a.lock().0 = 1;
                    a.lock().1 = 1;
                    for _ in 0..50 {
                        p1.checkpoint();
                    }
                }),
            ),
            (
                "reader",
                Box::new(move || {
                    p2.checkpoint();
                    let v = *b.lock();
                    if v.0 != v.1 {
                        resume_quietly("torn pair");
                    }
                }),
            ),
        ],
    );
}

#[test]
fn pct_finds_a_bug_of_depth_two_within_its_bound() {
    let (_, report) = Virtual::run(time(0, 4, 0), depth_two).unwrap();
    let found = |depth| {
        (0..3_000)
            .filter(|&s| {
                Virtual::run(pct(s, depth, report.steps), depth_two)
                    .is_err_and(|f| f.detail.contains("torn pair"))
            })
            .count() as u64
    };
    // At least 1/(n k^(d-1)) of the seeds: n = 3 threads, k steps.
    let hits = found(2);
    let bound = 3_000 / (3 * report.steps);
    assert!(hits >= bound.max(1), "{hits} hits, bound {bound}");
    // One constraint is not enough to find it.
    assert_eq!(found(1), 0);
}

#[test]
fn prediction_follows_amdahl() {
    // Every round: 10 µs, of which a fraction under one lock.
    let elapsed = |cores: usize, serial_percent: u64| {
        let (_, report) = Virtual::run(time(1, cores, 10), move |p: Virtual| {
            let lock = Arc::new(p.lock(LockClass::Group, ()));
            let ts: Vec<_> = (0..cores)
                .map(|c| {
                    let (p2, lock) = (p.clone(), lock.clone());
                    p.spawn(
                        "worker",
                        Some(c),
                        Box::new(move || {
                            for _ in 0..4_000 / cores {
                                p2.charge(Work::Nanos, 100 * (100 - serial_percent));
                                let _g = lock.lock();
                                p2.charge(Work::Nanos, 100 * serial_percent);
                            }
                        }),
                    )
                })
                .collect();
            for t in ts {
                t.join().unwrap();
            }
        })
        .unwrap();
        report.virtual_time.nanos() as f64
    };
    for s in [0, 5, 10, 25, 50] {
        let one = elapsed(1, s);
        for cores in [2usize, 4, 8] {
            let n = cores as f64;
            let f = s as f64 / 100.0;
            // Rounds overlap: the lock bounds the rate once its use exceeds one core's round.
            let ideal = (1.0 / f.max(1e-9)).min(n);
            let amdahl = 1.0 / (f + (1.0 - f) / n);
            let got = one / elapsed(cores, s);
            assert!(
                got > 0.85 * amdahl.min(ideal) && got < 1.03 * ideal,
                "{cores} cores, {s} % serial: {got:.2}, Amdahl {amdahl:.2}, bound {ideal:.2}"
            );
        }
    }
}

#[test]
fn threads_of_one_core_never_overlap_in_time() {
    let run = |cores| {
        Virtual::run(time(1, cores, 0), move |p: Virtual| {
            let ts: Vec<_> = (0..4)
                .map(|c| {
                    let p2 = p.clone();
                    let body = move || {
                        for _ in 0..1000 {
                            p2.charge(Work::Nanos, 10_000);
                            p2.checkpoint();
                        }
                    };
                    p.spawn("burner", Some(c), Box::new(body))
                })
                .collect();
            for t in ts {
                t.join().unwrap();
            }
        })
        .unwrap()
        .1
    };
    let (one, four) = (run(1), run(4));
    assert!(one.virtual_time.nanos() >= 40_000_000);
    // Slices of 3 ms: some ten turns, not one per point.
    assert!((8..40).contains(&one.switches), "{}", one.switches);
    assert!(four.virtual_time.nanos() < 11_000_000, "{four:?}");
}

#[test]
fn waiting_and_holding_are_measured_in_virtual_time() {
    let (stats, _) = Virtual::run(time(1, 2, 0), |p: Virtual| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let ts: Vec<_> = (0..2)
            .map(|c| {
                let (p2, lock) = (p.clone(), lock.clone());
                p.spawn(
                    "holder",
                    Some(c),
                    Box::new(move || {
                        let _g = lock.lock();
                        p2.charge(Work::Nanos, 100_000);
                    }),
                )
            })
            .collect();
        for t in ts {
            t.join().unwrap();
        }
        lock.stats()
    })
    .unwrap();
    assert_eq!((stats.acquisitions, stats.contended), (2, 1));
    assert!((200_000..201_000).contains(&stats.hold_ns), "{stats:?}");
    assert!((80_000..110_000).contains(&stats.wait_ns), "{stats:?}");
}

#[test]
fn lanes_are_dense_and_recycled() {
    let (lanes, _) = Virtual::run(random(1), |p: Virtual| {
        let mut lanes = vec![p.lane()];
        for _ in 0..10 {
            let seen = Arc::new(AtomicU32::new(0));
            let (s, p2) = (seen.clone(), p.clone());
            let body = move || s.store(p2.lane() as u32, Ordering::Relaxed);
            p.spawn("short", None, Box::new(body)).join().unwrap();
            lanes.push(seen.load(Ordering::Relaxed) as usize);
        }
        lanes
    })
    .unwrap();
    assert_eq!(lanes, [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn events_keep_a_set_and_time_out() {
    Virtual::run(time(1, 2, 0), |p: Virtual| {
        let e = p.event();
        e.set();
        e.set();
        assert!(e.wait(Time::NEVER));
        let t = p.now().plus(5_000);
        assert!(!e.wait(t));
        assert!(p.now() >= t && p.now() < t.plus(10_000));
        e.set();
        assert!(e.take() && !e.take());
        assert!(!e.wait(p.now()));
    })
    .unwrap();
}

#[test]
fn locks_outlive_their_simulation() {
    let (lock, _) = Virtual::run(random(1), |p: Virtual| {
        let l = p.lock(LockClass::Leaf, 5);
        *l.lock() += 1;
        l
    })
    .unwrap();
    assert_eq!(*lock.lock(), 6);
    assert_eq!(lock.stats().acquisitions, 2);
}

#[test]
fn simulations_nest_and_run_in_parallel() {
    let hash = |seed| Virtual::run(random(seed), mixture).unwrap().1.trace_hash;
    let alone: Vec<_> = (0..8).map(hash).collect();
    let parallel: Vec<_> = std::thread::scope(|s| {
        let ts: Vec<_> = (0..8).map(|i| s.spawn(move || hash(i))).collect();
        ts.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(alone, parallel);
    let (nested, _) = Virtual::run(random(9), move |_| hash(3)).unwrap();
    assert_eq!(nested, alone[3]);
}

#[test]
fn embedded_calls_block_and_are_released() {
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let event = Arc::new(p.event());
    let p2 = p.clone();
    assert_eq!(sim.call(move || p2.cores()), 4);
    std::thread::scope(|s| {
        let (e, p1) = (event.clone(), p.clone());
        let sim = &sim;
        let waiter = s.spawn(move || {
            sim.call(move || {
                let set = e.wait(Time::from_millis(10));
                (set, p1.now())
            })
        });
        while sim.next_deadline().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(sim.next_deadline(), Some(Time::from_millis(10)));
        sim.advance_to(Time::from_millis(3));
        assert_eq!(sim.now(), Time::from_millis(3));
        assert!(!waiter.is_finished());
        let e = event.clone();
        sim.call(move || e.set());
        assert_eq!(waiter.join().unwrap(), (true, Time::from_millis(3)));
        // Let go by time, and by an OS thread outside.
        let (e, p1) = (event.clone(), p.clone());
        let waiter = s.spawn(move || {
            let w = move |n| e.wait(Time::from_millis(n));
            sim.call(move || (w(10), p1.now(), w(20), p1.now()))
        });
        while sim.next_deadline().is_none() {
            std::thread::yield_now();
        }
        sim.advance_to(Time::from_millis(15));
        event.set();
        let at = Time::from_millis(15);
        assert_eq!(
            waiter.join().unwrap(),
            (false, Time::from_millis(10), true, at)
        );
    });
    // An OS thread outside waits for what a virtual thread does.
    let e = event.clone();
    let q = p.clone();
    let t = p.spawn(
        "late",
        None,
        Box::new(move || {
            q.sleep_until(Time::from_millis(40));
            e.set();
        }),
    );
    std::thread::scope(|s| {
        let w = s.spawn(|| event.wait(Time::NEVER));
        sim.advance_to(Time::from_millis(50));
        assert!(w.join().unwrap());
    });
    t.join().unwrap();
    assert!(sim.failure().is_none());
}

#[test]
fn embedded_panic_reaches_the_caller_and_ends_it() {
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let lock = Arc::new(p.lock(LockClass::Leaf, 0));
    let dropped = Arc::new(AtomicU32::new(0));
    let c = Counted::new(&dropped, &lock);
    let q = p.clone();
    p.spawn(
        "sleeper",
        None,
        Box::new(move || {
            let _c = c;
            q.sleep_until(Time::NEVER.min(Time::from_millis(1000)));
        }),
    );
    sim.settle();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sim.call(|| resume_quietly("planned"));
    }));
    assert_eq!(
        shared::message(&*caught.unwrap_err()),
        "planned",
        "the panic itself"
    );
    sim.settle();
    assert_eq!(sim.failure().unwrap().kind, FailureKind::Panic);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    // Nothing hangs afterwards.
    sim.advance_to(Time::from_millis(9));
    p.spawn("never", None, Box::new(|| ()));
}

#[test]
fn embedded_drop_unwinds_what_is_blocked() {
    let dropped = Arc::new(AtomicU32::new(0));
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let c = Counted::new(&dropped, &Arc::new(p.lock(LockClass::Leaf, 0)));
    let e = p.event();
    p.spawn(
        "blocked",
        None,
        Box::new(move || {
            let _c = c;
            e.wait(Time::NEVER);
        }),
    );
    sim.settle();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(sim);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}

/// Resident pages of this process.
fn resident() -> u64 {
    let s = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let n = s.split(' ').nth(1).and_then(|n| n.parse().ok());
    n.unwrap_or(0)
}

#[test]
fn a_hundred_thousand_runs_leak_nothing() {
    let one = |seed| {
        let r = Virtual::run(random(seed), move |p: Virtual| {
            let l = Arc::new(p.lock(LockClass::Leaf, vec![0u8; 64]));
            let l2 = l.clone();
            let q = p.clone();
            let body = move || {
                l2.lock().push(1);
                if seed % 10 == 0 {
                    // Every tenth run fails and is unwound.
                    q.event().wait(Time::NEVER);
                }
            };
            let t = p.spawn("t", None, Box::new(body));
            l.lock().push(2);
            t.join().unwrap();
        });
        assert_eq!(r.is_err(), seed % 10 == 0);
    };
    (0..10_000).for_each(one);
    let (pages, stacks) = (resident(), stacks_alive());
    (10_000..110_000).for_each(one);
    // Other tests of this process use stacks too, some tens; a leak would be 200,000.
    assert!(stacks_alive() < stacks + 500, "{stacks} {}", stacks_alive());
    assert!(resident() < pages + 10_000, "{pages} {}", resident());
}

//! Tests of virtual cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use perimeter_base::Time;

mod driven;
mod failing;
mod kernels;
mod lines;
mod record;
mod turnstile;

use super::*;
use crate::class::Work;
use crate::platform::{Event, Lock, Thread};
use crate::{Mpsc, PerLane, SoloLock};

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
        assert!(hashes.len() >= 25, "{name}: {} runs", hashes.len());
        assert!(values.len() >= 10, "{name}: {} outcomes", values.len());
    }
}

#[test]
fn time_order_without_jitter_ignores_the_seed() {
    let one = Virtual::run(time(1, 4, 0), mixture).unwrap();
    let two = Virtual::run(time(2, 4, 0), mixture).unwrap();
    assert_eq!(one, two);
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

/// A panic that does not fill the test's output.
fn resume_quietly(text: &'static str) {
    std::panic::resume_unwind(Box::new(text));
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

/// A thread works for ten milliseconds and wakes another of its core after a tenth of one: how long
/// that waits for the core, ns; and how often the core went on to another thread.
fn woken(preempt_ns: u32) -> (u64, u64) {
    let mut config = time(1, 1, 0);
    config.costs.preempt_ns = preempt_ns;
    let (waited, report) = Virtual::run(config, |p: Virtual| {
        let event = Arc::new(p.event());
        let (p2, event2) = (p.clone(), event.clone());
        let ran = Arc::new(AtomicU64::new(0));
        let ran2 = ran.clone();
        let waiter = move || {
            event2.wait(Time::NEVER);
            ran2.store(p2.now().nanos(), Ordering::Relaxed);
        };
        let waiter = p.spawn("waiter", Some(0), Box::new(waiter));
        p.sleep_until(p.now().plus(1_000_000));
        let mut woke = 0;
        for i in 0..1000 {
            if i == 10 {
                woke = p.now().nanos();
                event.set();
            }
            p.charge(Work::Nanos, 10_000);
            p.checkpoint();
        }
        waiter.join().unwrap();
        ran.load(Ordering::Relaxed) - woke
    })
    .unwrap();
    (waited, report.turns)
}

#[test]
fn who_is_woken_takes_the_core_if_the_costs_say_so() {
    // At the end of a turn of 3 ms; at once; once the other has run for a millisecond.
    let (at_its_end, turns) = woken(0);
    assert!((2_800_000..3_000_000).contains(&at_its_end), "{at_its_end}");
    let (at_once, more) = woken(1);
    assert!(at_once < 20_000, "{at_once}");
    assert_eq!(more, turns, "each goes and comes back");
    let (later, _) = woken(1_000_000);
    assert!((880_000..950_000).contains(&later), "{later}");
}

/// A core that sleeps until a deadline sets its timer, and has an interrupt from it, where that is
/// near; one that is woken before sets it again.
#[test]
fn timers_cost_what_the_table_says() {
    let busy = |set: u32, interrupt: u32, wake: bool, until: u64| {
        let mut config = time(1, 2, 0);
        config.costs.timer_set_ns = set;
        config.costs.timer_interrupt_ns = interrupt;
        let (_, report) = Virtual::run(config, move |p: Virtual| {
            let event = Arc::new(p.event());
            let (p2, event2) = (p.clone(), event.clone());
            let sleeper = move || _ = event2.wait(Time(until));
            let sleeper = p.spawn("sleeper", Some(1), Box::new(sleeper));
            p2.charge(Work::Nanos, 500_000);
            if wake {
                event.set();
            }
            sleeper.join().unwrap();
        })
        .unwrap();
        report.virtual_time.nanos() - report.idle_ns[1]
    };
    let more = |wake: bool, until: u64| {
        let nothing = busy(0, 0, wake, until) as i64;
        (busy(1_000, 20_000, wake, until) as i64 - nothing).unsigned_abs()
    };
    // Turns take 3 ms: that is near, and 10 ms are not.
    assert!((20_900..21_100).contains(&more(false, 1_000_000)));
    assert!((1_900..2_100).contains(&more(true, 1_000_000)));
    assert_eq!(more(false, 10_000_000), 0);
}

#[test]
fn spinners_do_not_starve_a_parked_waiter() {
    let (shares, _) = Virtual::run(time(1, 4, 10), |p: Virtual| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let counts: Arc<[AtomicU64; 6]> = Arc::default();
        let ts: Vec<_> = (0..6)
            .map(|i| {
                let (p2, lock, counts) = (p.clone(), lock.clone(), counts.clone());
                let body = move || {
                    while p2.now() < Time::from_millis(60) {
                        let _g = lock.lock();
                        p2.charge(Work::Nanos, 9_000);
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    }
                };
                // Cores 0 and 1 have two threads each.
                p.spawn("hog", Some(i), Box::new(body))
            })
            .collect();
        for t in ts {
            t.join().unwrap();
        }
        counts.each_ref().map(|c| c.load(Ordering::Relaxed))
    })
    .unwrap();
    let sum: u64 = shares.iter().sum();
    // Never idle for long, and nobody is left out.
    assert!((5_500..6_700).contains(&sum), "{shares:?}");
    assert!(shares.iter().all(|&s| s > 60), "{shares:?}");
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
fn queues_and_lane_stocks_work_on_virtual_cores() {
    let mut orders = std::collections::HashSet::new();
    for seed in 0..100 {
        let (got, _) = Virtual::run(random(seed), |p: Virtual| {
            let queue = Arc::new(Mpsc::new(p.clone(), 4));
            let stock = Arc::new(PerLane::<_, u32>::new(p.clone()));
            let ts: Vec<_> = (0..3u32)
                .map(|i| {
                    let (q, s, p2) = (queue.clone(), stock.clone(), p.clone());
                    let body = move || {
                        for k in 0..5 {
                            let mut b = s.take().unwrap_or_default();
                            *b = i * 10 + k;
                            let mut v = *b;
                            while let Err(back) = q.push(v) {
                                v = back;
                                p2.yield_now();
                            }
                            s.put(b);
                        }
                    };
                    p.spawn("producer", None, Box::new(body))
                })
                .collect();
            let mut got = Vec::new();
            while got.len() < 15 {
                match queue.pop() {
                    Some(v) => got.push(v),
                    None => p.yield_now(),
                }
            }
            for t in ts {
                t.join().unwrap();
            }
            got
        })
        .unwrap();
        for i in 0..3 {
            let mine: Vec<_> = got.iter().filter(|v| **v / 10 == i).collect();
            assert!(mine.is_sorted() && mine.len() == 5, "seed {seed}: {got:?}");
        }
        orders.insert(got);
    }
    assert!(orders.len() > 50, "{}", orders.len());
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
fn an_event_serves_one_thread_after_another() {
    for seed in 0..100 {
        Virtual::run(random(seed), |p: Virtual| {
            let event = Arc::new(p.event());
            let ts: Vec<_> = (0..3)
                .map(|_| {
                    let e = event.clone();
                    let body = move || assert!(e.wait(Time::NEVER));
                    let t = p.spawn("waiter", None, Box::new(body));
                    // Until it is parked, for time moves when nobody can run. The next one may
                    // come as soon as this one has been woken, before it has run.
                    p.sleep_until(p.now().plus(1_000_000));
                    event.set();
                    t
                })
                .collect();
            for t in ts {
                t.join().unwrap();
            }
        })
        .unwrap();
    }
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
fn os_threads_outside_contend_for_locks_of_an_ended_simulation() {
    let (lock, _) = Virtual::run(random(1), |p: Virtual| p.lock(LockClass::Leaf, 0)).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..1000 {
                    let mut g = lock.lock();
                    let v = *g;
                    std::thread::yield_now();
                    *g = v + 1;
                }
            });
        }
    });
    assert_eq!(*lock.lock(), 4000);
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
fn threads_are_refused_to_who_can_do_without() {
    let cfg = VirtualConfig::default().with_most_threads(2);
    let run = Virtual::run(cfg, |p| {
        let (go, ran) = (Arc::new(p.event()), Arc::new(AtomicU32::new(0)));
        let body = |wait: bool| -> Box<dyn FnOnce() + Send> {
            let (go, ran) = (go.clone(), ran.clone());
            Box::new(move || {
                if wait {
                    go.wait(Time::NEVER);
                }
                ran.fetch_add(1, Ordering::Relaxed);
            })
        };
        let start = |body| p.try_spawn_at(Priority::ORDINARY, "one", None, body);
        let first = start(body(true)).unwrap();
        assert!(start(body(false)).is_err());
        // Who must have one gets it.
        p.spawn("another", None, body(false)).join().unwrap();
        go.set();
        first.join().unwrap();
        start(body(false)).unwrap().join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 3);
    });
    assert_eq!(run.unwrap().1.threads, 4);
}

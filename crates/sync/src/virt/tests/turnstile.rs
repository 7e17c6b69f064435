//! The lock policy of 2006: who spins, who sleeps, whom a release wakes, and who gets whose
//! priority.

use super::*;
use core::time::Duration;

const MS: u64 = 1_000_000;

fn turnstile(cores: usize) -> VirtualConfig {
    VirtualConfig {
        lock_policy: LockPolicy::Turnstile,
        priorities: true,
        ..time(1, cores, 0)
    }
}

/// Works for `ns`, with a scheduling point every microsecond.
fn work(p: &Virtual, ns: u64) {
    for _ in 0..ns / 1_000 {
        p.charge(Work::Nanos, 1_000);
        p.checkpoint();
    }
}

/// Starts a thread that comes at `at`.
fn at(
    p: &Virtual,
    at: u64,
    level: u8,
    core: usize,
    body: impl FnOnce(&Virtual) + Send + 'static,
) -> VirtualThread {
    let q = p.clone();
    let name = format!("level{level}");
    p.spawn_at(
        Priority::new(level),
        &name,
        Some(core),
        Box::new(move || {
            q.sleep_until(Time(at));
            body(&q);
        }),
    )
}

/// Priority inversion on one core: `low` holds the lock for 2 ms, `middle` hogs the core for a
/// second, `high` wants the lock. When `high` had it, in ns.
fn inversion(cfg: VirtualConfig) -> u64 {
    let run = Virtual::run(cfg, |p| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let got = Arc::new(AtomicU64::new(0));
        let (l, h, g) = (lock.clone(), lock, got.clone());
        let threads = [
            at(&p, MS, 1, 0, move |p| {
                let guard = l.lock();
                work(p, 2 * MS);
                drop(guard);
            }),
            at(&p, 2 * MS, 2, 0, |p| work(p, 1_000 * MS)),
            at(&p, 2 * MS + MS / 2, 3, 0, move |p| {
                drop(h.lock());
                g.store(p.now().0, Ordering::Relaxed);
            }),
        ];
        for t in threads {
            t.join().unwrap();
        }
        got.load(Ordering::Relaxed)
    });
    run.unwrap().0
}

#[test]
fn a_lent_priority_ends_an_inversion() {
    // What is left of low's 2 ms, and some switches.
    let lent = inversion(turnstile(1));
    assert!((3 * MS..4 * MS).contains(&lent), "{lent}");
}

#[test]
fn without_lending_the_inversion_is_seen() {
    for cfg in [
        VirtualConfig {
            planted_no_lending: true,
            ..turnstile(1)
        },
        VirtualConfig {
            lock_policy: LockPolicy::Modern,
            ..turnstile(1)
        },
    ] {
        let late = inversion(cfg);
        assert!(late > 1_000 * MS, "{late}");
    }
}

/// `high` waits for `b`, whose owner waits for `a`, whose owner is kept from its core by
/// `hog`: the priority goes down the chain.
#[test]
fn a_priority_is_lent_along_a_chain() {
    let chain = |planted_no_lending| {
        let cfg = VirtualConfig {
            planted_no_lending,
            ..turnstile(2)
        };
        let run = Virtual::run(cfg, |p| {
            let a = Arc::new(p.lock(LockClass::Connection, ()));
            let b = Arc::new(p.lock(LockClass::ConnHashtable, ()));
            let got = Arc::new(AtomicU64::new(0));
            let (a1, a2, b2, b3, g) = (a.clone(), a, b.clone(), b, got.clone());
            let threads = [
                at(&p, MS, 1, 0, move |p| {
                    let guard = a1.lock();
                    work(p, 2 * MS);
                    drop(guard);
                }),
                at(&p, 2 * MS, 2, 1, move |_| {
                    let first = b2.lock();
                    drop(a2.lock());
                    drop(first);
                }),
                at(&p, 2 * MS + MS / 4, 4, 0, |p| work(p, 1_000 * MS)),
                at(&p, 2 * MS + MS / 2, 5, 1, move |p| {
                    drop(b3.lock());
                    g.store(p.now().0, Ordering::Relaxed);
                }),
            ];
            for t in threads {
                t.join().unwrap();
            }
            got.load(Ordering::Relaxed)
        });
        run.unwrap().0
    };
    let (lent, not) = (chain(false), chain(true));
    assert!(lent < 4 * MS, "{lent}");
    assert!(not > 1_000 * MS, "{not}");
}

/// What is lent is given back with the lock: afterwards `middle` comes before `low` again.
#[test]
fn what_was_lent_is_given_back() {
    let run = Virtual::run(turnstile(1), |p| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let order = Arc::new(Mutex::new(Vec::new()));
        let (l, h) = (lock.clone(), lock);
        let (o1, o2, o3) = (order.clone(), order.clone(), order.clone());
        let threads = [
            at(&p, MS, 1, 0, move |p| {
                let guard = l.lock();
                work(p, 2 * MS);
                drop(guard);
                work(p, 2 * MS);
                o1.lock().push("low");
            }),
            at(&p, 2 * MS, 2, 0, move |p| {
                work(p, 10 * MS);
                o2.lock().push("middle");
            }),
            at(&p, 2 * MS + MS / 2, 3, 0, move |p| {
                drop(h.lock());
                work(p, MS);
                o3.lock().push("high");
            }),
        ];
        for t in threads {
            t.join().unwrap();
        }
        let order = order.lock();
        order.clone()
    });
    assert_eq!(run.unwrap().0, ["high", "middle", "low"]);
}

/// The owner holds the lock across a sleep; two wait, on cores of their own. How many found it
/// taken again by the other, and what the waiting cost the cores.
fn herd(policy: LockPolicy) -> (usize, u64) {
    let cfg = VirtualConfig {
        lock_policy: policy,
        ..turnstile(3)
    };
    let run = Virtual::run(cfg, |p| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let taken = Arc::new(AtomicU32::new(0));
        let mut threads = vec![{
            let lock = lock.clone();
            at(&p, 0, 0, 0, move |p| {
                let guard = lock.lock();
                p.sleep_until(Time(10 * MS));
                drop(guard);
            })
        }];
        for core in [1, 2] {
            let (lock, taken) = (lock.clone(), taken.clone());
            threads.push(at(&p, MS, 0, core, move |p| {
                let guard = lock.lock();
                taken.fetch_add(1, Ordering::Relaxed);
                p.sleep_until(p.now() + Duration::from_millis(1));
                drop(guard);
            }));
        }
        p.record();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(taken.load(Ordering::Relaxed), 2);
        let again = |e: &&Entry| matches!(e.act, Act::LockAgain { .. });
        p.recorded().iter().filter(again).count()
    });
    let (again, report) = run.unwrap();
    (again, report.idle_ns[1..].iter().sum())
}

#[test]
fn a_release_wakes_all() {
    let (again, idle) = herd(LockPolicy::Turnstile);
    assert_eq!(again, 1, "the second to come finds the first one's");
    assert!(idle > 16 * MS, "they sleep while the owner does: {idle}");
    assert_eq!(herd(LockPolicy::Modern).0, 0, "one at a time");
}

/// A contender spins as long as the owner runs, be it 50 ms; it sleeps at the moment at which
/// the owner does not, and it does not begin to spin for an owner of its own core.
#[test]
fn spinning_follows_the_owner() {
    let run = |runs: u64, sleeps: u64, core: usize| {
        let run = Virtual::run(turnstile(2), move |p| {
            let lock = Arc::new(p.lock(LockClass::Group, ()));
            let l = lock.clone();
            let owner = at(&p, 0, 0, 0, move |p| {
                let guard = l.lock();
                work(p, runs);
                if sleeps > 0 {
                    p.sleep_until(p.now() + Duration::from_nanos(sleeps));
                }
                drop(guard);
            });
            let waiter = at(&p, MS, 0, core, move |_| drop(lock.lock()));
            for t in [owner, waiter] {
                t.join().unwrap();
            }
        });
        run.unwrap().1
    };
    let idle = |r: &Report| r.idle_ns[1];
    let spun = run(50 * MS, 0, 1);
    assert!(idle(&spun) < 2 * MS, "{spun:?}");
    assert_eq!(spun.locks[LockClass::Group as usize].contended, 1);
    let slept = run(20 * MS, 30 * MS, 1);
    assert!((30 * MS..33 * MS).contains(&idle(&slept)), "{slept:?}");
    let same = run(20 * MS, 30 * MS, 0);
    assert_eq!(same.locks[LockClass::Group as usize].contended, 1);
}

/// A contender that spins sleeps when its owner is preempted, and lends what takes the owner
/// back to its core.
#[test]
fn an_owner_that_is_preempted_is_helped() {
    let run = Virtual::run(turnstile(2), |p| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        let got = Arc::new(AtomicU64::new(0));
        let (l, h, g) = (lock.clone(), lock, got.clone());
        let threads = [
            at(&p, MS, 1, 0, move |p| {
                let guard = l.lock();
                work(p, 10 * MS);
                drop(guard);
            }),
            at(&p, 2 * MS, 3, 1, move |p| {
                drop(h.lock());
                g.store(p.now().0, Ordering::Relaxed);
            }),
            at(&p, 3 * MS, 2, 0, |p| work(p, 1_000 * MS)),
        ];
        for t in threads {
            t.join().unwrap();
        }
        got.load(Ordering::Relaxed)
    });
    let got = run.unwrap().0;
    assert!((11 * MS..12 * MS).contains(&got), "{got}");
}

#[test]
fn priorities_are_strict_on_a_core_and_only_there() {
    for priorities in [true, false] {
        let cfg = VirtualConfig {
            priorities,
            ..turnstile(2)
        };
        let run = Virtual::run(cfg, |p| {
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut threads = Vec::new();
            for (level, core) in [(1, 0), (5, 0), (3, 0), (0, 1)] {
                let order = order.clone();
                threads.push(at(&p, MS, level, core, move |p| {
                    work(p, 20 * MS);
                    order.lock().push(level);
                }));
            }
            for t in threads {
                t.join().unwrap();
            }
            let order = order.lock();
            order.clone()
        });
        let order = run.unwrap().0;
        if priorities {
            assert_eq!(order[2..], [3, 1], "{order:?}");
            assert!(order[..2].contains(&5) && order[..2].contains(&0));
        } else {
            assert_eq!(order[0], 0, "three share the other core: {order:?}");
        }
    }
}

/// In exploration, too, all are woken, and nobody is lost: every order is tried.
#[test]
fn exploration_loses_nobody() {
    for schedule in [
        Schedule::Random { switch_one_in: 2 },
        Schedule::Pct { depth: 3 },
        Schedule::Time { jitter_percent: 40 },
    ] {
        let cfg = VirtualConfig {
            schedule,
            max_steps: 100_000,
            ..turnstile(3)
        };
        let done = explore(&cfg, 0..300, mixture, |cfg, sum, report| {
            let all = Virtual::run(cfg.clone(), mixture).unwrap();
            assert_eq!((sum, report), (all.0, &all.1), "{cfg:?}");
        });
        let done = done.unwrap();
        assert!(done.distinct > 50, "{done:?}");
    }
}

//! Runs that must fail, and how they end.

use super::*;

/// The classic: two locks in two orders.
fn abba(p: Virtual) {
    let a = Arc::new(p.lock(LockClass::Connection, ()));
    let b = Arc::new(p.lock(LockClass::Sndbuf, ()));
    let (a2, b2, p1, p2) = (a.clone(), b.clone(), p.clone(), p.clone());
    let left = move || {
        let _g = a.lock();
        p1.charge(Work::Nanos, 10_000);
        let _h = b.lock();
    };
    let right = move || {
        let _g = b2.lock();
        p2.charge(Work::Nanos, 10_000);
        let _h = a2.lock();
    };
    all(
        &p,
        vec![("left", Box::new(left)), ("right", Box::new(right))],
    );
}

/// A lock held over a wait for somebody who needs it first: no lock order is broken.
fn lock_and_event(p: Virtual) {
    let lock = Arc::new(p.lock(LockClass::Group, ()));
    let event = Arc::new(p.event());
    event.label("through");
    let (lock2, event2) = (lock.clone(), event.clone());
    let left = move || {
        let _g = lock.lock();
        event.wait(Time::NEVER);
    };
    let right = move || {
        drop(lock2.lock());
        event2.set();
    };
    all(
        &p,
        vec![("left", Box::new(left)), ("right", Box::new(right))],
    );
}

#[test]
fn deadlock_is_reported_with_who_waits_for_what() {
    let unchecked = |cfg| VirtualConfig {
        check_lock_order: false,
        ..cfg
    };
    type Case = (fn(Virtual), VirtualConfig, &'static [&'static str]);
    let locks = &["for lock connection #", "for lock sndbuf #"];
    let event = &["waits for event \"through\" #", "for lock group #"];
    let cases: [Case; 4] = [
        (abba, unchecked(random(0)), locks),
        (abba, unchecked(pct(0, 3, 12)), locks),
        (abba, unchecked(time(0, 2, 50)), locks),
        (lock_and_event, random(0), event),
    ];
    for (main, cfg, parts) in cases {
        let f = explore(&cfg, 0..500, main, |_, (), _| ()).expect_err("a deadlock");
        assert_eq!(f.kind, FailureKind::Deadlock, "{f}");
        let text = f.to_string();
        let seed = format!("seed {} schedule {}", f.config.seed, f.config.schedule);
        let common = [&seed, "\"main\"", "waits for the end of thread", file!()];
        for part in common
            .iter()
            .chain(parts)
            .chain(&["held by thread", "; holds "])
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        let again = Virtual::run(*f.config.clone(), main).unwrap_err();
        assert_eq!(
            (again.steps, again.trace_hash, again.detail),
            (f.steps, f.trace_hash, f.detail)
        );
    }
    // The order check needs no unlucky seed.
    for seed in 0..20 {
        let f = Virtual::run(random(seed), abba).unwrap_err();
        assert_eq!(f.kind, FailureKind::LockOrder, "{f}");
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
    // Attempts too, and both places are named.
    let f = Virtual::run(random(1), |p| {
        let (a, b) = (p.lock(LockClass::Leaf, 1), p.lock(LockClass::Group, 1));
        let _g = a.lock();
        b.try_lock().is_some()
    })
    .unwrap_err();
    assert_eq!(f.detail.matches(file!()).count(), 3, "{f}");
    // Locks of one thread count as well.
    let f = Virtual::run(random(1), |p: Virtual| {
        let a = p.lock(LockClass::Leaf, 1);
        let b = SoloLock::new(p, LockClass::Group, 1);
        drop(b.lock());
        let _g = a.lock();
        let _h = b.lock();
    })
    .unwrap_err();
    assert_eq!(f.kind, FailureKind::LockOrder, "{f}");
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
    // This OS thread counts as panicking from now on. Simulations work on it all the same.
    assert!(std::thread::panicking());
    let elsewhere = std::thread::spawn(|| Virtual::run(random(5), mixture).unwrap());
    let here = Virtual::run(random(5), mixture).unwrap();
    assert_eq!(here, elsewhere.join().unwrap());
    let f = Virtual::run(random(6), |p: Virtual| {
        let e = p.event();
        let t = p.spawn(
            "sleeper",
            None,
            Box::new(move || assert!(e.wait(Time::NEVER))),
        );
        t.join().unwrap();
    });
    assert_eq!(f.unwrap_err().kind, FailureKind::Deadlock);
}

/// Says that its worker has gone.
struct Gone(Arc<AtomicU32>, Arc<VirtualEvent>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
        self.1.set();
    }
}

/// Stops a worker and waits for its end, as a stack does when it is dropped.
struct Stop(Arc<AtomicU32>, Arc<VirtualEvent>, Option<VirtualThread>);

impl Drop for Stop {
    fn drop(&mut self) {
        while self.0.load(Ordering::Relaxed) == 0 {
            self.1.wait(Time::NEVER);
        }
        let _ = self.2.take().map(Thread::join);
        self.0.store(2, Ordering::Relaxed);
    }
}

#[test]
fn destructors_that_wait_for_workers_end() {
    for seed in 0..50 {
        let gone = Arc::new(AtomicU32::new(0));
        let seen = gone.clone();
        let f = Virtual::run(random(seed), move |p: Virtual| {
            let event = Arc::new(p.event());
            let work = p.event();
            let last = Gone(gone.clone(), event.clone());
            let q = p.clone();
            let body = move || {
                let _last = last;
                q.sleep_until(Time::from_millis(1));
                work.wait(Time::NEVER);
            };
            let worker = p.spawn("worker", None, Box::new(body));
            let _stop = Stop(gone, event, Some(worker));
            p.sleep_until(Time(seed * 50_000));
            resume_quietly("planned");
        })
        .unwrap_err();
        assert!(f.detail.contains("planned"), "{f}");
        assert_eq!(seen.load(Ordering::Relaxed), 2, "seed {seed}");
    }
}

/// A timeout that comes while its cause is still being worked on.
fn slow_reply(p: Virtual) {
    let reply = Arc::new(p.event());
    let (r, q) = (reply.clone(), p.clone());
    let t = p.spawn(
        "server",
        None,
        Box::new(move || {
            for _ in 0..50 {
                q.checkpoint();
            }
            r.set();
        }),
    );
    if !reply.wait(Time::from_millis(200)) {
        resume_quietly("timed out");
    }
    t.join().unwrap();
}

#[test]
fn early_timers_meet_work_under_way() {
    let found = |one_in| {
        let cfg = VirtualConfig {
            early_timer_one_in: one_in,
            ..random(0)
        };
        explore(&cfg, 0..200, slow_reply, |_, (), _| ()).is_err()
    };
    assert!(!found(0));
    assert!(found(100));
}

//! The lock policy of 2006 on the machine.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use super::*;
use crate::platform::{Event, Lock, Thread};
use crate::policy::Priority;

fn turnstile() -> Native {
    Native::new().with_policy(LockPolicy::Turnstile)
}

fn at(
    p: Native,
    level: u8,
    core: usize,
    body: impl FnOnce(Native) + Send + 'static,
) -> NativeThread {
    p.spawn_at(
        Priority::new(level),
        "test",
        Some(core),
        Box::new(move || body(p)),
    )
}

#[test]
fn it_excludes_and_counts() {
    let p = turnstile();
    let lock = Arc::new(p.lock(LockClass::Group, (0u64, 0u64)));
    let threads: Vec<_> = (0..6)
        .map(|i| {
            let lock = lock.clone();
            at(p, 0, i, move |p| {
                for k in 0..2_000 {
                    let mut g = lock.lock();
                    g.0 += 1;
                    if k % 100 == i {
                        // Long enough for others to sleep.
                        p.sleep_until(p.now() + Duration::from_micros(30));
                    }
                    g.1 += 1;
                    assert_eq!(g.0, g.1);
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    let stats = lock.stats();
    assert_eq!(stats.acquisitions, 12_000);
    assert!(stats.contended > 0 && stats.wait_ns > 0, "{stats:?}");
    assert!(lock.try_lock().is_some_and(|g| *g == (12_000, 12_000)));
}

/// All who sleep are woken by one release, also those that do not get the lock.
#[test]
fn a_release_wakes_all() {
    let p = turnstile();
    let lock = Arc::new(p.lock(LockClass::Group, ()));
    let arrived = Arc::new(AtomicU32::new(0));
    let held = lock.lock();
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let (lock, arrived) = (lock.clone(), arrived.clone());
            at(p, 0, i, move |_| {
                arrived.fetch_add(1, Ordering::Relaxed);
                drop(lock.lock());
            })
        })
        .collect();
    while arrived.load(Ordering::Relaxed) < 4 {
        p.yield_now();
    }
    p.sleep_until(p.now() + Duration::from_millis(20));
    drop(held);
    for t in threads {
        t.join().unwrap();
    }
    assert_eq!(lock.stats().contended, 4);
}

/// While the owner is parked nobody spins for it.
#[test]
fn nobody_spins_for_a_parked_owner() {
    let p = turnstile();
    let lock = Arc::new(p.lock(LockClass::Group, ()));
    let (event, holds) = (Arc::new(p.event()), Arc::new(AtomicBool::new(false)));
    let (l, e, h) = (lock.clone(), event.clone(), holds.clone());
    let owner = at(p, 0, 0, move |_| {
        let guard = l.lock();
        h.store(true, Ordering::Release);
        e.wait(Time::NEVER);
        drop(guard);
    });
    while !holds.load(Ordering::Acquire) {
        p.yield_now();
    }
    p.sleep_until(p.now() + Duration::from_millis(10));
    let waiter = at(p, 0, 1, move |p| {
        let before = p.cpu_ns();
        drop(lock.lock());
        let used = p.cpu_ns() - before;
        assert!(used < 2_000_000, "{used}");
    });
    p.sleep_until(p.now() + Duration::from_millis(20));
    event.set();
    owner.join().unwrap();
    waiter.join().unwrap();
}

const HOG: Duration = Duration::from_millis(500);

/// As on virtual cores: an ordinary thread holds the lock, one of level 2 hogs the core, one of
/// level 3 wants the lock. How long that takes, ns.
fn inversion(p: Native) -> u64 {
    let lock = Arc::new(p.lock(LockClass::Group, ()));
    let stage = Arc::new(AtomicU32::new(0));
    let (waited, up) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let spin_until = |p: Native, until: Time| while p.now() < until {};
    let (l, s) = (lock.clone(), stage.clone());
    let low = at(p, 0, 0, move |p| {
        let guard = l.lock();
        s.store(1, Ordering::Release);
        // However late the others come, it has the lock: until the hog is there, and for some more
        // of its own time, which is more than the kernel gives to ordinary threads beside one of
        // a real-time class (50 ms in a second, which may be two seconds' at their border).
        let end = p.now() + Duration::from_secs(20);
        while s.load(Ordering::Acquire) < 2 && p.now() < end {}
        let before = p.cpu_ns();
        while p.cpu_ns() - before < 120_000_000 {}
        drop(guard);
    });
    while stage.load(Ordering::Acquire) < 1 {
        p.yield_now();
    }
    let (w, l) = (waited.clone(), lock);
    let high = {
        let (stage, up) = (stage.clone(), up.clone());
        at(p, 3, 0, move |p| {
            up.store(true, Ordering::Release);
            while stage.load(Ordering::Acquire) < 2 {
                p.sleep_until(p.now() + Duration::from_micros(200));
            }
            let start = p.now();
            drop(l.lock());
            w.store(p.now().nanos_since(start), Ordering::Relaxed);
        })
    };
    // A hog would keep one that is about to start on its core from going on.
    while !up.load(Ordering::Acquire) {
        p.yield_now();
    }
    let hog = at(p, 2, 0, move |p| {
        stage.store(2, Ordering::Release);
        spin_until(p, p.now() + HOG);
    });
    for t in [low, high, hog] {
        t.join().unwrap();
    }
    waited.load(Ordering::Relaxed)
}

#[test]
fn a_lent_priority_ends_an_inversion() {
    let p = turnstile();
    assert_eq!(Native::new().lending(), Lending::None);
    if p.lending() != Lending::Lent {
        assert_eq!(p.lending(), Lending::NotPermitted);
        println!("SCHED_FIFO is not permitted here: nothing is lent");
        return;
    }
    let lent = inversion(p);
    turnstile::PLANTED_NO_LENDING.store(true, Ordering::Relaxed);
    let not = inversion(p);
    turnstile::PLANTED_NO_LENDING.store(false, Ordering::Relaxed);
    let bound = HOG.as_nanos() as u64 / 2;
    assert!(lent < bound, "{lent}");
    assert!(not > bound, "{not}");
}

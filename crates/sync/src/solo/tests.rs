use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::Native;

fn panics(f: impl FnOnce() + Send) -> String {
    std::thread::scope(|s| {
        let payload = s.spawn(f).join().expect_err("it should have panicked");
        match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => (*other.downcast::<&str>().unwrap()).to_owned(),
        }
    })
}

/// Code as the stack has it, generic over the kind of lock.
fn count<P: Platform, L: Locks<P>>(p: &P) -> (u64, LockStats) {
    let l = L::new(p, LockClass::Route, 5u64);
    for _ in 0..10 {
        *l.lock() += 1;
    }
    *l.try_lock().expect("free") += 1;
    assert_eq!(l.class(), LockClass::Route);
    let value = *l.lock();
    (value, l.stats())
}

#[test]
fn both_kinds_of_lock_do_the_same() {
    let p = Native::new();
    let (value, solo) = count::<_, Solo>(&p);
    let (same, shared) = count::<_, crate::Shared>(&p);
    assert_eq!((value, same), (16, 16));
    assert_eq!(solo.acquisitions, 12);
    assert_eq!(
        (solo.acquisitions, solo.contended),
        (shared.acquisitions, shared.contended)
    );
}

#[test]
fn another_thread_is_refused() {
    let lock = SoloLock::new(Native::new(), LockClass::Poller, 1);
    *lock.lock() += 1;
    for attempt in [false, true] {
        let text = panics(|| {
            if attempt {
                let _ = lock.try_lock();
            } else {
                *lock.lock() += 1;
            }
        });
        assert!(
            text.contains("`poller`") && text.contains("one thread"),
            "{text}"
        );
    }
    assert_eq!(*lock.lock(), 2);
    // Statistics are for everybody.
    std::thread::scope(|s| {
        let n = s.spawn(|| lock.stats().acquisitions).join().unwrap();
        assert_eq!(n, 2);
    });
}

#[test]
fn made_here_used_there() {
    let lock = Arc::new(SoloLock::new(Native::new(), LockClass::Poller, vec![1]));
    let theirs = lock.clone();
    // The main thread has a lane of its own, which must not matter.
    let here = Native::new().lane();
    std::thread::spawn(move || {
        assert_ne!(Native::new().lane(), here);
        theirs.lock().push(2);
    })
    .join()
    .unwrap();
    let lock = Arc::try_unwrap(lock).unwrap();
    assert_eq!(lock.value.into_inner(), [1, 2]);
}

#[test]
fn a_second_lock_by_the_owner() {
    let text = panics(|| {
        let lock = SoloLock::new(Native::new(), LockClass::Group, ());
        let g = lock.lock();
        assert!(lock.try_lock().is_none(), "held");
        drop(g);
        let _g = lock.lock();
        let _again = lock.lock();
    });
    assert!(text.contains("`group` is already held"), "{text}");
}

#[test]
fn a_panic_releases() {
    let p = Native::new();
    let lock = SoloLock::new(p, LockClass::Group, 0);
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _g = lock.lock();
        panic!("inside");
    }));
    assert!(r.is_err());
    *lock.lock() += 1;
}

#[test]
fn the_gate_lets_one_thread_in() {
    let p = Native::new();
    let gate = OwnerGate::new(p);
    assert!(!gate.is_bound());
    let stay = AtomicBool::new(true);
    std::thread::scope(|s| {
        let owner = s.spawn(|| {
            gate.enter().unwrap();
            let lane = p.lane();
            while stay.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            gate.enter().unwrap();
            lane
        });
        while !gate.is_bound() {
            std::thread::yield_now();
        }
        let e = gate.enter().unwrap_err();
        assert_eq!(e.caller, p.lane());
        assert!(e.to_string().contains("up:shared"), "{e}");
        stay.store(false, Ordering::Release);
        assert_eq!(owner.join().unwrap(), e.owner);
    });
}

/// Many race to be the first; all but one are told the same owner.
#[test]
fn one_owner_of_many_that_race() {
    for _ in 0..50 {
        let gate = OwnerGate::new(Native::new());
        let all = std::sync::Barrier::new(4);
        let outcomes: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        all.wait();
                        let r = gate.enter();
                        all.wait();
                        r
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|r| r.is_ok()).count(), 1);
        let mut owners: Vec<_> = outcomes.iter().filter_map(|r| r.err()).collect();
        owners.dedup_by_key(|e| e.owner);
        assert_eq!(owners.len(), 1);
    }
}

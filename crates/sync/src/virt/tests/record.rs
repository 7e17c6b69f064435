//! Records say what happened, all of it, in order, and change nothing.

use super::*;
use core::panic::Location;

/// A holder on core 0 and a waiter on core 1 that meet at a lock; then an event each way.
fn meeting(p: &Virtual) {
    let lock = Arc::new(p.lock(LockClass::Group, ()));
    let (ping, pong) = (Arc::new(p.event()), Arc::new(p.event()));
    let (q, l, a, b) = (p.clone(), lock.clone(), ping.clone(), pong.clone());
    let other = p.spawn(
        "other",
        Some(1),
        Box::new(move || {
            // After main has taken the lock, and before it releases it.
            q.sleep_until(Time(50_000));
            drop(l.lock());
            q.charge(Work::HandOver, 2);
            a.set();
            assert!(b.wait(Time::NEVER));
        }),
    );
    let guard = lock.lock();
    p.charge(Work::TcpSlow, 1);
    p.charge(Work::Nanos, 100_000);
    drop(guard);
    assert!(ping.wait(Time::NEVER));
    assert!(!ping.wait(p.now() + core::time::Duration::from_micros(5)));
    pong.set();
    ping.set();
    assert!(ping.take());
    other.join().unwrap();
}

#[test]
fn what_threads_do_is_recorded_in_order() {
    let (lines, _) = Virtual::run(time(1, 2, 0), |p| {
        p.charge(Work::Copy, 1);
        p.record();
        meeting(&p);
        let entries = p.recorded();
        p.charge(Work::Copy, 1);
        assert!(p.recorded().is_empty(), "it has ended");
        entries.iter().map(Entry::to_string).collect::<Vec<_>>()
    })
    .unwrap();
    let expected = [
        "main@0 lock group",
        "main@0 work tcp_slow",
        "main@0 work nanos 100000",
        "other@1 wait for group of main",
        "main@0 unlock group",
        "other@1 lock group",
        "main@0 park",
        "other@1 unlock group",
        "other@1 work hand_over 2",
        "other@1 set, wakes main",
        "main@0 woken",
        "other@1 park",
        "main@0 park",
        "main@0 timed out",
        "main@0 set, wakes other",
        "main@0 set",
        "main@0 was set",
        "other@1 woken",
    ];
    let mut sorted = lines.clone();
    let mut wanted: Vec<String> = expected.map(String::from).to_vec();
    // What different cores do at about the same time is in the order of their clocks, which a
    // change of costs may change; what one thread does is not.
    for name in ["main", "other"] {
        let of = |all: &[String]| -> Vec<String> {
            all.iter()
                .filter(|l| l.starts_with(name))
                .cloned()
                .collect()
        };
        assert_eq!(of(&lines), of(&wanted));
    }
    sorted.sort();
    wanted.sort();
    assert_eq!(sorted, wanted);
    let at = |text: &str| lines.iter().position(|l| l == text).unwrap();
    assert!(at("other@1 wait for group of main") < at("main@0 unlock group"));
    assert!(at("main@0 unlock group") < at("other@1 lock group"));
    assert!(at("other@1 set, wakes main") < at("main@0 woken"));
}

#[test]
fn recording_changes_nothing() {
    for cfg in [time(3, 2, 20), random(4), pct(5, 3, 200)] {
        let plain = Virtual::run(cfg.clone(), |p| meeting(&p)).unwrap().1;
        let (n, recorded) = Virtual::run(cfg, |p| {
            p.record();
            meeting(&p);
            p.recorded().len()
        })
        .unwrap();
        assert!(n >= 14, "{n}");
        assert_eq!(plain, recorded);
    }
}

#[test]
fn locks_of_others_and_numbers() {
    Virtual::run(time(0, 1, 0), |p| {
        let (a, b) = (p.lock(LockClass::Route, ()), p.lock(LockClass::Route, ()));
        p.record();
        p.note_lock(LockClass::Connection, Location::caller());
        p.note_unlock(LockClass::Connection);
        drop(a.lock());
        drop(b.try_lock());
        let held = b.lock();
        p.record();
        drop(held);
        let rest = p.recorded();
        assert_eq!(rest.len(), 1, "what came before is dropped");
        assert_eq!(rest[0].act.unlocked(), Some(LockClass::Route));

        p.record();
        p.note_lock(LockClass::Connection, Location::caller());
        p.note_unlock(LockClass::Connection);
        drop(a.lock());
        drop(b.try_lock());
        let all = p.recorded();
        let classes: Vec<_> = all.iter().filter_map(|e| e.act.locked()).collect();
        let (c, r) = (LockClass::Connection, LockClass::Route);
        assert_eq!(classes, [c, r, r]);
        let number = |e: &Entry| match e.act {
            Act::Lock { id, .. } | Act::Unlock { id, .. } => id,
            _ => panic!("{e}"),
        };
        assert_eq!(number(&all[0]), None);
        assert_eq!(number(&all[2]), number(&all[3]));
        assert_ne!(number(&all[2]), number(&all[4]));
        let exact = format!("{:#}", all[2]);
        assert!(exact.contains("main@0 lock route #"), "{exact}");
    })
    .unwrap();
}

//! All interleavings of a ring that comes to be while others are read, and of the look that
//! decides whether its reader may sleep.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_fanin`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use perimeter_sync::FaninConsumer;
use perimeter_sync::queue::fanin::Rings;

/// Exhaustive up to this many preemptions, beyond what the threads do by themselves.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(preemptions);
    b.check(f);
}

/// Two senders make their rings while the consumer reads: nothing is lost, and each sender's
/// values come in its order.
#[test]
fn rings_appear_while_others_are_read() {
    model(2, || {
        let (rings, mut to) = (Arc::new(Rings::new(2, 1)), FaninConsumer::new());
        let senders: Vec<_> = (0..2usize)
            .map(|who| {
                let rings = rings.clone();
                thread::spawn(move || {
                    let mut end = rings.join();
                    // Boxes: loom's leak check sees one that is lost or dropped twice.
                    let push = |i: &usize| end.push(Box::new((who, *i))).is_ok();
                    (0..2).filter(push).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut got: Vec<Box<(usize, usize)>> = Vec::new();
        rings.pop_many(&mut to, &mut got, 1);
        rings.pop_many(&mut to, &mut got, 2);
        let sent: Vec<_> = senders.into_iter().map(|s| s.join().unwrap()).collect();
        assert_eq!(got.len() + rings.len(), sent.iter().map(Vec::len).sum());
        while rings.pop_many(&mut to, &mut got, 2) > 0 {}
        assert!(rings.is_empty());
        for (who, sent) in sent.iter().enumerate() {
            let theirs: Vec<_> = got.iter().filter(|v| v.0 == who).map(|v| v.1).collect();
            assert_eq!(&theirs, sent);
        }
    });
}

/// The law of `is_empty`: who pushes and then looks whether the consumer sleeps, and the consumer
/// that says so and then looks whether anything waits, do not both miss the other, though the ring
/// is made at that moment and another one has been there before.
#[test]
fn a_push_and_a_look_see_each_other() {
    for older in [false, true] {
        model(3, move || {
            let (rings, mut to) = (Arc::new(Rings::new(2, 2)), FaninConsumer::new());
            let mut first = older.then(|| rings.join());
            if let Some(end) = &mut first {
                end.push(0).unwrap();
                rings.pop_many(&mut to, &mut Vec::new(), 1);
            }
            let asleep = Arc::new(AtomicBool::new(false));
            let (theirs, told) = (rings.clone(), asleep.clone());
            let sender = thread::spawn(move || {
                theirs.join().push(1).unwrap();
                fence(Ordering::SeqCst);
                told.load(Ordering::SeqCst)
            });
            asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let empty = rings.is_empty();
            let woken = sender.join().unwrap();
            assert!(woken || !empty, "it sleeps on a value");
            let mut got = Vec::new();
            rings.pop_many(&mut to, &mut got, 9);
            assert_eq!(got, [1]);
        });
    }
}

/// A full ring refuses, and a value that was read makes room.
#[test]
fn what_was_read_makes_room() {
    model(3, || {
        let (rings, mut to) = (Arc::new(Rings::new(1, 1)), FaninConsumer::new());
        let mut end = rings.join();
        end.push(0).unwrap();
        let theirs = rings.clone();
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            while theirs.pop_many(&mut to, &mut got, 1) == 0 {
                thread::yield_now();
            }
            got
        });
        while end.push(1).is_err() {
            thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), [0]);
        assert_eq!(rings.len(), 1);
    });
}

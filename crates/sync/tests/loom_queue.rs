//! All interleavings of the rings, at shrunken capacity, against an oracle.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_queue`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use perimeter_sync::queue::{mpsc, spsc};

/// Exhaustive up to this many preemptions, beyond what the threads do by themselves.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(preemptions);
    b.check(f);
}

#[test]
fn spsc_full_and_empty() {
    // Capacity 2 and four values: it wraps, and is full and empty on the way. Boxes: loom's
    // leak check sees a value that is lost or dropped twice.
    model(3, || {
        let (mut tx, mut rx) = spsc::channel(2);
        let producer = thread::spawn(move || {
            let mut sent = Vec::new();
            for v in 0..4usize {
                if tx.push(Box::new(v)).is_ok() {
                    sent.push(v);
                }
            }
            sent
        });
        let mut got = Vec::new();
        for turn in 0..3 {
            let mut many = Vec::new();
            if turn == 1 {
                rx.pop_many(&mut many, 2);
            } else {
                many.extend(rx.pop());
            }
            got.extend(many.into_iter().map(|v| *v));
        }
        let sent = producer.join().unwrap();
        // Some are left in the ring, some of those for its drop.
        got.extend(rx.pop().map(|v| *v));
        assert_eq!(got[..], sent[..got.len()]);
        assert!(sent.len() >= 2 && sent.len() - got.len() <= 1);
    });
}

#[test]
fn mpsc_two_producers_and_a_consumer() {
    model(2, || {
        let q = Arc::new(mpsc::Ring::new(2));
        let producers: Vec<_> = (0..2usize)
            .map(|who| {
                let q = q.clone();
                thread::spawn(move || {
                    (0..2usize)
                        .filter(|&i| q.push(Box::new((who, i))).is_ok())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let mut got = Vec::new();
        got.extend(q.pop().map(|v| *v));
        let mut many = Vec::new();
        q.pop_many(&mut many, 2);
        got.extend(many.into_iter().map(|v| *v));
        let sent: Vec<_> = producers.into_iter().map(|p| p.join().unwrap()).collect();
        while let Some(v) = q.pop() {
            got.push(*v);
        }
        for (who, sent) in sent.iter().enumerate() {
            let theirs: Vec<_> = got.iter().filter(|v| v.0 == who).map(|v| v.1).collect();
            assert_eq!(&theirs, sent, "each producer's, in its order");
        }
    });
}

#[test]
fn mpsc_of_one_place() {
    model(3, || {
        let q = Arc::new(mpsc::Ring::new(1));
        let theirs = q.clone();
        let producer = thread::spawn(move || {
            (0..2usize)
                .filter(|&i| theirs.push(i).is_ok())
                .collect::<Vec<_>>()
        });
        let mut got: Vec<_> = q.pop().into_iter().collect();
        got.extend(q.pop());
        let sent = producer.join().unwrap();
        got.extend(q.pop());
        assert_eq!(got, sent);
        assert_eq!(q.len(), 0);
    });
}

/// The law that Vyukov's queue breaks: a push that has returned is seen by a pop that starts
/// afterwards, though another push is in the middle.
#[test]
fn mpsc_a_finished_push_is_seen() {
    model(3, || {
        let q = Arc::new(mpsc::Ring::new(2));
        let done = Arc::new(AtomicUsize::new(0));
        let producers: Vec<_> = (0..2usize)
            .map(|who| {
                let (q, done) = (q.clone(), done.clone());
                thread::spawn(move || {
                    q.push(who).unwrap();
                    done.fetch_add(1, Ordering::AcqRel);
                })
            })
            .collect();
        if done.load(Ordering::Acquire) > 0 {
            assert!(q.len() > 0);
            assert!(q.pop().is_some(), "a push has returned");
        }
        for p in producers {
            p.join().unwrap();
        }
    });
}

/// And the same of being full: a pop that has returned made room.
#[test]
fn mpsc_a_finished_pop_makes_room() {
    model(3, || {
        let q = Arc::new(mpsc::Ring::new(2));
        q.push(0).unwrap();
        q.push(1).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (q, done) = (q.clone(), done.clone());
                thread::spawn(move || {
                    let v = q.pop().expect("two for two");
                    done.fetch_add(1, Ordering::AcqRel);
                    v
                })
            })
            .collect();
        if done.load(Ordering::Acquire) > 0 {
            assert!(q.push(2).is_ok(), "a pop has returned");
        }
        let mut got: Vec<usize> = consumers.into_iter().map(|c| c.join().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
    });
}

/// Two that pop at once, one of them many, share the values without loss or repetition.
#[test]
fn mpsc_two_consumers() {
    model(3, || {
        let q = Arc::new(mpsc::Ring::new(3));
        for i in 0..3usize {
            q.push(Box::new(i)).unwrap();
        }
        let theirs = q.clone();
        let other = thread::spawn(move || {
            let mut many = Vec::new();
            theirs.pop_many(&mut many, 2);
            many.into_iter().map(|v| *v).collect::<Vec<_>>()
        });
        let mut got: Vec<usize> = q.pop().into_iter().map(|v| *v).collect();
        let again = q.push(Box::new(3)).is_ok();
        got.extend(other.join().unwrap());
        while let Some(v) = q.pop() {
            got.push(*v);
        }
        got.sort_unstable();
        assert_eq!(
            got,
            if again {
                vec![0, 1, 2, 3]
            } else {
                vec![0, 1, 2]
            }
        );
        assert!(again, "our own pop made room");
    });
}

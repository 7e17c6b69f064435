//! All interleavings of an inbox of `connp-t`: a bounded queue, one for all senders or a ring for
//! each, and the list behind it for what finds no room.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_inbox`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use perimeter_sync::FaninConsumer;
use perimeter_sync::queue::fanin::Rings;
use perimeter_sync::queue::mpsc;
use perimeter_sync::queue::spill::{List, Spill};
use std::collections::VecDeque;

/// Exhaustive up to this many preemptions, beyond what the threads do by themselves.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(preemptions);
    b.check(f);
}

type Value = (usize, usize);

/// The list under loom's lock.
struct Listed(Mutex<VecDeque<Value>>);

impl List<Value> for Listed {
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<Value>) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
}

fn spill() -> Spill<Listed> {
    Spill::new(Listed(Mutex::new(VecDeque::new())))
}

/// `wait=condvar`: one queue of two places.
struct All {
    ring: mpsc::Ring<Value>,
    spill: Spill<Listed>,
}

impl All {
    fn new(places: usize) -> Arc<All> {
        Arc::new(All {
            ring: mpsc::Ring::new(places),
            spill: spill(),
        })
    }

    fn put(&self, v: Value) {
        let done = self.spill.put(v, |v| self.ring.push(v), |_, _| false);
        assert!(done.is_ok());
    }

    fn take(&self, out: &mut Vec<Value>, max: usize) -> usize {
        let pop = |out: &mut Vec<Value>| self.ring.pop_many(out, max);
        self.spill.take(pop, || (), out, max)
    }

    fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.spill.is_empty()
    }
}

fn in_order(got: &[Value], senders: usize, each: usize) {
    for who in 0..senders {
        let theirs: Vec<_> = got.iter().filter(|v| v.0 == who).map(|v| v.1).collect();
        assert_eq!(theirs, (0..each).collect::<Vec<_>>(), "{got:?}");
    }
}

/// One place, two senders of two: most of it goes by the list. Nothing is lost, nothing overtakes
/// what its own sender has sent before, and what a sender has sent before it told another goes
/// before what that one sends.
#[test]
fn one_queue_for_all() {
    model(2, || {
        let inbox = All::new(1);
        let senders: Vec<_> = (0..2usize)
            .map(|who| {
                let inbox = inbox.clone();
                thread::spawn(move || (0..2).for_each(|i| inbox.put((who, i))))
            })
            .collect();
        let mut got = Vec::new();
        inbox.take(&mut got, 1);
        inbox.take(&mut got, 2);
        for s in senders {
            s.join().unwrap();
        }
        while inbox.take(&mut got, 2) > 0 {}
        assert!(inbox.is_empty());
        in_order(&got, 2, 2);
    });
}

#[test]
fn what_was_put_before_comes_before() {
    model(3, || {
        let inbox = All::new(1);
        let first = Arc::new(AtomicBool::new(false));
        let (theirs, told) = (inbox.clone(), first.clone());
        let a = thread::spawn(move || {
            theirs.put((0, 0));
            theirs.put((0, 1));
            told.store(true, Ordering::Release);
        });
        let mut got = Vec::new();
        let later = first.load(Ordering::Acquire);
        inbox.put((1, 0));
        inbox.take(&mut got, 1);
        a.join().unwrap();
        while inbox.take(&mut got, 1) > 0 {}
        in_order(&got, 1, 2);
        if later {
            assert_eq!(got, [(0, 0), (0, 1), (1, 0)]);
        }
    });
}

/// `wait=spin`: a ring of one place for each sender.
#[test]
fn a_ring_for_each() {
    model(2, || {
        let rings = Arc::new((Rings::new(2, 1), spill()));
        let mut to = FaninConsumer::new();
        let senders: Vec<_> = (0..2usize)
            .map(|who| {
                let inbox = rings.clone();
                thread::spawn(move || {
                    let mut end = inbox.0.join();
                    for i in 0..2 {
                        let done = inbox.1.put((who, i), |v| end.push(v), |_, _| false);
                        assert!(done.is_ok());
                    }
                })
            })
            .collect();
        let (queue, spill) = &*rings;
        let mut got = Vec::new();
        let mut take = |got: &mut Vec<Value>, max| {
            let pop = |out: &mut Vec<Value>| queue.pop_many(&mut to, out, max);
            spill.take(pop, || (), got, max)
        };
        take(&mut got, 1);
        take(&mut got, 2);
        for s in senders {
            s.join().unwrap();
        }
        while take(&mut got, 2) > 0 {}
        assert!(queue.is_empty() && spill.is_empty());
        in_order(&got, 2, 2);
    });
}

/// A thread says that it sleeps and looks at its inbox once more; who puts something there looks
/// afterwards whether it sleeps. It never sleeps on a message, be that in the queue or behind it.
#[test]
fn nobody_sleeps_on_a_message() {
    for full in [false, true] {
        model(3, move || {
            let inbox = All::new(1);
            if full {
                inbox.put((0, 0));
            }
            let asleep = Arc::new(AtomicBool::new(false));
            let (theirs, told) = (inbox.clone(), asleep.clone());
            let sender = thread::spawn(move || {
                theirs.put((1, 0));
                fence(Ordering::SeqCst);
                told.load(Ordering::SeqCst)
            });
            let mut got = Vec::new();
            while inbox.take(&mut got, 1) > 0 {}
            asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let empty = inbox.is_empty();
            let woken = sender.join().unwrap();
            assert!(
                woken || !empty || got.contains(&(1, 0)),
                "it sleeps on a message"
            );
            while inbox.take(&mut got, 1) > 0 {}
            assert_eq!(got.len(), 1 + usize::from(full));
        });
    }
}

/// Packets that find no room are refused, and all else waits behind; what was refused is given
/// back whole.
#[test]
fn packets_are_refused_and_nothing_else() {
    model(2, || {
        let inbox = All::new(1);
        let theirs = inbox.clone();
        let packets = thread::spawn(move || {
            let put = |i: &usize| {
                let v = (0, *i);
                let done = theirs.spill.put(v, |v| theirs.ring.push(v), |_, _| true);
                assert!(done.is_ok() || done == Err(v));
                done.is_ok()
            };
            (0..2).filter(put).collect::<Vec<_>>()
        });
        inbox.put((1, 0));
        inbox.put((1, 1));
        let mut got = Vec::new();
        inbox.take(&mut got, 1);
        let sent = packets.join().unwrap();
        while inbox.take(&mut got, 1) > 0 {}
        let theirs: Vec<_> = got.iter().filter(|v| v.0 == 0).map(|v| v.1).collect();
        assert_eq!(theirs, sent);
        let ours: Vec<_> = got.iter().filter(|v| v.0 == 1).map(|v| v.1).collect();
        assert_eq!(ours, [0, 1]);
    });
}

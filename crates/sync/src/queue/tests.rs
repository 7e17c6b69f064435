use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::Native;

#[derive(Clone, Debug)]
enum Do {
    Push,
    Pop,
    PopMany(usize),
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let step = prop_oneof![
        4 => Just(Do::Push),
        2 => Just(Do::Pop),
        1 => (0..6usize).prop_map(Do::PopMany),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// One thread, any capacity, against a deque. Boxes, so that a leak or a double drop shows
    /// under a checker of memory.
    #[test]
    fn like_a_bounded_deque(capacity in 1..9usize, steps in steps()) {
        let p = Native::new();
        let q = Mpsc::new(p, capacity);
        let (mut tx, mut rx) = spsc::channel(capacity);
        let mut oracle = VecDeque::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Do::Push => {
                    let room = oracle.len() < capacity;
                    prop_assert_eq!(q.push(Box::new(n)).is_ok(), room);
                    prop_assert_eq!(tx.push(Box::new(n)).map_err(|v| *v), if room { Ok(()) } else { Err(n) });
                    if room {
                        oracle.push_back(n);
                    }
                }
                Do::Pop => {
                    let expected = oracle.pop_front();
                    prop_assert_eq!(q.pop().map(|v| *v), expected);
                    prop_assert_eq!(rx.pop().map(|v| *v), expected);
                }
                Do::PopMany(max) => {
                    let (mut a, mut b) = (Vec::new(), Vec::new());
                    let expected: Vec<_> = oracle.drain(..max.min(oracle.len())).map(Box::new).collect();
                    let n = q.pop_many(&mut a, max);
                    // The producer's count is looked at only when none is known of: it may be
                    // fewer, but then never none, and the rest comes at once.
                    let mut m = rx.pop_many(&mut b, max);
                    while m < expected.len() {
                        let more = rx.pop_many(&mut b, max - m);
                        prop_assert!(more > 0);
                        m += more;
                    }
                    prop_assert_eq!(n, expected.len());
                    prop_assert_eq!(&a, &expected);
                    prop_assert_eq!(&b, &expected);
                }
            }
            prop_assert_eq!(q.len(), oracle.len());
            prop_assert_eq!(tx.len(), oracle.len());
            prop_assert_eq!(rx.is_empty(), oracle.is_empty());
        }
        prop_assert_eq!(q.capacity(), capacity);
        prop_assert_eq!(rx.capacity(), capacity);
    }
}

struct Counted(Arc<AtomicU64>);
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn dropping_a_queue_drops_what_is_in_it() {
    let dropped = Arc::new(AtomicU64::new(0));
    let make = || Counted(dropped.clone());
    let p = Native::new();
    let q = Mpsc::new(p, 5);
    let (mut tx, mut rx) = spsc::channel(5);
    for _ in 0..3 {
        for _ in 0..4 {
            assert!(q.push(make()).is_ok() && tx.push(make()).is_ok());
        }
        for _ in 0..3 {
            drop((q.pop(), rx.pop()));
        }
        drop((q.pop(), rx.pop()));
    }
    assert_eq!(dropped.swap(0, Ordering::Relaxed), 24);
    for _ in 0..4 {
        assert!(q.push(make()).is_ok() && tx.push(make()).is_ok());
    }
    drop(tx);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop((q, rx));
    assert_eq!(dropped.load(Ordering::Relaxed), 8);
}

#[test]
#[should_panic(expected = "a queue of 0 places")]
fn no_queue_without_places() {
    let _ = Mpsc::<_, u8>::new(Native::new(), 0);
}

#[test]
fn spsc_keeps_order_under_threads() {
    const N: u64 = 300_000;
    for capacity in [1, 3, 64] {
        let n = if capacity == 1 { N / 30 } else { N };
        let (mut tx, mut rx) = spsc::channel(capacity);
        std::thread::scope(|s| {
            s.spawn(move || {
                for mut v in 0..n {
                    while let Err(back) = tx.push(v) {
                        v = back;
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            let mut many = Vec::new();
            while next < n {
                if next % 2 == 0 {
                    many.extend(rx.pop());
                } else {
                    rx.pop_many(&mut many, 8);
                }
                if many.is_empty() {
                    std::thread::yield_now();
                }
                for v in many.drain(..) {
                    assert_eq!(v, next);
                    next += 1;
                }
            }
            assert!(rx.pop().is_none());
        });
    }
}

#[test]
fn mpsc_keeps_each_producers_order_under_threads() {
    const N: u64 = 60_000;
    const PRODUCERS: usize = 3;
    for (capacity, consumers) in [(1, 1), (5, 1), (64, 1), (5, 2)] {
        let n = if capacity == 1 { N / 20 } else { N };
        let q = Mpsc::new(Native::new(), capacity);
        let left = AtomicU64::new(n * PRODUCERS as u64);
        let sum = AtomicU64::new(0);
        std::thread::scope(|s| {
            for who in 0..PRODUCERS {
                let q = &q;
                s.spawn(move || {
                    for i in 0..n {
                        let mut v = (who, i);
                        while let Err(back) = q.push(v) {
                            v = back;
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..consumers {
                s.spawn(|| {
                    let mut last = [None; PRODUCERS];
                    let mut many = Vec::new();
                    let mut turn = 0u32;
                    while left.load(Ordering::Relaxed) > 0 {
                        turn += 1;
                        if turn.is_multiple_of(2) {
                            many.extend(q.pop());
                        } else {
                            q.pop_many(&mut many, 7);
                        }
                        if many.is_empty() {
                            std::thread::yield_now();
                        }
                        for (who, i) in many.drain(..) {
                            if consumers == 1 {
                                assert_eq!(i, last[who].map_or(0, |l| l + 1));
                            }
                            assert!(last[who] < Some(i), "{who}: {i} after {:?}", last[who]);
                            last[who] = Some(i);
                            sum.fetch_add(i, Ordering::Relaxed);
                            left.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), PRODUCERS as u64 * (n * (n - 1) / 2));
        assert!(q.is_empty());
    }
}

/// What makes the queue linearizable and Vyukov's not: once a push has returned, a pop that
/// starts then finds something, whatever other producers are in the middle of.
#[test]
fn a_finished_push_is_seen() {
    let q = Mpsc::new(Native::new(), 64);
    let stop = AtomicBool::new(false);
    let in_queue = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if q.push(()).is_ok() {
                        in_queue.fetch_add(1, Ordering::SeqCst);
                    }
                    std::thread::yield_now();
                }
            });
        }
        let begin = std::time::Instant::now();
        while begin.elapsed() < core::time::Duration::from_millis(300) {
            // The only consumer: what has been counted stays until it pops it.
            if in_queue.load(Ordering::SeqCst) as i64 > 0 {
                assert!(q.pop().is_some());
                in_queue.fetch_sub(1, Ordering::SeqCst);
            } else {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

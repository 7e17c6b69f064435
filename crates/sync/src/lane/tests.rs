use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier};

use super::*;
use crate::{Native, PerLaneCounters};

#[test]
fn lanes_are_unique_among_the_living_and_dense() {
    // Other tests of this process have lanes too: count how many ever were, not which.
    for _ in 0..20 {
        const N: usize = 40;
        let barrier = Arc::new(Barrier::new(N));
        let threads: Vec<_> = (0..N)
            .map(|_| {
                let barrier = barrier.clone();
                std::thread::spawn(move || {
                    let lane = current();
                    barrier.wait();
                    assert_eq!(current(), lane);
                    lane
                })
            })
            .collect();
        let lanes: HashSet<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(lanes.len(), N);
    }
    // 800 threads have been, at most 40 at a time, beside those of the other tests.
    assert!(NUMBERS.lock().next < 700, "{}", NUMBERS.lock().next);
}

/// Asks for a lane from a destructor that runs after the lane has been returned.
#[test]
fn late_destructors_never_share_a_lane() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            let lane = current();
            SEEN.lock().push(lane);
            assert_eq!(current(), lane);
        }
    }
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    thread_local!(static LATE: Late = const { Late });

    let first: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                // Registered first, so it runs last.
                LATE.with(|_| ());
                current()
            })
        })
        .collect();
    let first: Vec<_> = first.into_iter().map(|t| t.join().unwrap()).collect();
    let seen = SEEN.lock().clone();
    let distinct: HashSet<_> = seen.iter().collect();
    assert_eq!(seen.len(), 4);
    // Either the destructor ran before the return, and has the thread's lane, or it got a
    // number that nobody has again.
    assert!(distinct.len() == 4 || seen.iter().all(|l| first.contains(l)));
}

struct Counted(u64, Arc<AtomicU64>);
impl Counted {
    fn new(value: u64, live: &Arc<AtomicU64>) -> Box<Counted> {
        live.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted(value, live.clone()))
    }
}
impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_stock_gives_back_what_was_put_and_frees_the_rest() {
    let live = Arc::new(AtomicU64::new(0));
    let stock = PerLane::new(Native::new());
    assert!(stock.take().is_none());
    for i in 0..100 {
        stock.put(Counted::new(i, &live));
    }
    let mut seen: Vec<_> = (0..60).map(|_| stock.take().unwrap().0).collect();
    assert_eq!(seen[0], 99, "own, last in first out");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 60);
    assert_eq!(live.load(Ordering::Relaxed), 40);
    drop(stock);
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn boxes_put_by_one_thread_reach_another() {
    let stock = Arc::new(PerLane::new(Native::new()));
    // Have a lane before the other thread does: else it could be the same, one after the other.
    current();
    let theirs = stock.clone();
    std::thread::spawn(move || (0..40).for_each(|i| theirs.put(Box::new(i))))
        .join()
        .unwrap();
    let mut n = 0;
    // Half of its own went, when there was one too many.
    while stock.take().is_some() {
        n += 1;
    }
    assert_eq!(n, HALF);
}

/// Threads come and go; each writes to the boxes it holds without any other protection.
#[test]
fn stocks_under_threads_that_come_and_go() {
    let live = Arc::new(AtomicU64::new(0));
    let stock = Arc::new(PerLane::new(Native::new()));
    for _ in 0..10 {
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let (stock, live) = (stock.clone(), live.clone());
                std::thread::spawn(move || {
                    let mut held = Vec::new();
                    for i in 0..3_000u64 {
                        let mut b = stock.take().unwrap_or_else(|| Counted::new(0, &live));
                        let before = b.0;
                        b.0 = before + 1;
                        held.push(b);
                        if i % 50 == 49 {
                            held.drain(..).for_each(|b| stock.put(b));
                        }
                    }
                    held.drain(..).for_each(|b| stock.put(b));
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
    }
    // Nothing is lost on the way: every use was counted in a box that still exists.
    let boxes = live.load(Ordering::Relaxed);
    let mut stock = Arc::try_unwrap(stock).unwrap_or_else(|_| panic!("still shared"));
    let mut uses = 0;
    let mut n = 0;
    let common = std::mem::take(stock.common.get_mut());
    for b in stock
        .slots
        .iter()
        // SAFETY: all other threads have ended.
        .flat_map(|s| unsafe { std::mem::take(&mut *s.0.0.get()) })
        .chain(common)
    {
        uses += b.0;
        n += 1;
    }
    assert_eq!((n, uses), (boxes, 10 * 6 * 3_000));
    assert_eq!(live.load(Ordering::Relaxed), 0);
}

#[test]
fn counters_lose_nothing_also_beyond_the_lanes() {
    let c = Arc::new(PerLaneCounters::<3>::new());
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (c, stop) = (c.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = c.sum(0);
                assert!(now >= last, "sums only grow: {now} after {last}");
                last = now;
                std::thread::yield_now();
            }
        })
    };
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let c = c.clone();
            std::thread::spawn(move || {
                let lane = current();
                for _ in 0..50_000 {
                    c.add(lane, 0, 1);
                    c.add(LANES + i, 1, 2);
                    c.add(usize::MAX, 2, 3);
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    assert_eq!(c.totals(), [200_000, 400_000, 600_000]);
}

#[test]
fn more_threads_than_lanes() {
    const N: usize = LANES + 40;
    let c = Arc::new(PerLaneCounters::<1>::new());
    let stock = Arc::new(PerLane::new(Native::new()));
    let all = Arc::new(Barrier::new(N));
    let threads: Vec<_> = (0..N)
        .map(|i| {
            let (c, stock, all) = (c.clone(), stock.clone(), all.clone());
            std::thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || {
                    let lane = current();
                    all.wait();
                    c.add(lane, 0, 1);
                    stock.put(Box::new(i));
                    all.wait();
                    let own = stock.take().is_some();
                    (lane, own)
                })
                .unwrap()
        })
        .collect();
    let out: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let lanes: HashSet<_> = out.iter().map(|&(lane, _)| lane).collect();
    assert_eq!(lanes.len(), N);
    assert!(lanes.iter().any(|&l| l >= LANES));
    assert!(out.iter().all(|&(_, took)| took));
    assert_eq!(c.sum(0), N as u64);
}

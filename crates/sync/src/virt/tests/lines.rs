//! What lines cost: by who wrote them last, by what caches hold, and by how many look at a lock.

use super::super::{Cost, CostTable, LineCosts, PayloadCosts, Schedule, Virtual, VirtualConfig};
use crate::{Lock, LockClass, Platform, Thread, Touched, Work};
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use std::sync::Arc;

/// Four cores: two and two share a cache, two processors of two such.
fn lines() -> LineCosts {
    let mut each = [0; Touched::COUNT];
    each[Touched::Tcb.index()] = 2000;
    LineCosts::default()
        .with_near_ns(40)
        .with_far_ns(100)
        .with_remote_ns(300)
        .with_shared_ns(20)
        .with_memory_ns(80)
        .with_near_cores(2)
        .with_socket_cores(4)
        .with_each(each)
}

/// Nothing else costs anything that could be taken for a line.
fn config(lines: LineCosts) -> VirtualConfig {
    let mut work = CostTable::default().work;
    work[Work::Copy as usize] = Cost::default();
    let costs = CostTable::default()
        .with_work(work)
        .with_lines(lines)
        .with_lock_ns(0)
        .with_atomic_ns(1)
        .with_switch_ns(0);
    VirtualConfig::default()
        .with_cores(8)
        .with_schedule(Schedule::Time { jitter_percent: 0 })
        .with_costs(costs)
}

fn run<R: Send + 'static>(lines: LineCosts, f: impl FnOnce(&Virtual) -> R + Send + 'static) -> R {
    Virtual::run(config(lines), move |p| f(&p))
        .unwrap_or_else(|e| panic!("{e}"))
        .0
}

/// Runs `f` as a thread on that core, and waits; how long it took there.
fn on(p: &Virtual, core: usize, f: impl FnOnce(&Virtual) + Send + 'static) -> u64 {
    let took = Arc::new(AtomicU64::new(0));
    let (p2, told) = (p.clone(), took.clone());
    let body = move || {
        let before = p2.now();
        f(&p2);
        told.store(p2.now().nanos_since(before), Ordering::Relaxed);
    };
    p.spawn("there", Some(core), Box::new(body)).join().unwrap();
    took.load(Ordering::Relaxed)
}

/// What one touch of a tag takes on each of these cores, one after the other.
fn touches(lines: LineCosts, list: &'static [(usize, bool)]) -> Vec<u64> {
    run(lines, move |p| {
        let tag = Arc::new(<Virtual as Platform>::Tag::default());
        list.iter()
            .map(|&(core, write)| {
                let tag = tag.clone();
                on(p, core, move |p| p.touch(&tag, Touched::Tcb, 1, write))
            })
            .collect()
    })
}

#[test]
fn a_line_costs_what_the_table_says_for_its_distance() {
    // Two lines: from memory, at hand, near, far, another processor.
    let list = &[(0, true), (0, true), (1, true), (2, true), (4, true)];
    assert_eq!(touches(lines(), list), [160, 0, 80, 200, 600]);
    // Back and forth it costs the same each time.
    let list = &[(0, true), (1, true), (0, true), (1, true)];
    assert_eq!(touches(lines(), list), [160, 80, 80, 80]);
}

#[test]
fn further_lines_of_a_touch_come_beside_the_first() {
    let far = |percent| {
        let lines = lines().with_further_percent(percent);
        touches(lines, &[(0, true), (2, true)])[1]
    };
    assert_eq!([100, 50, 0].map(far), [200, 150, 100]);
}

#[test]
fn who_only_reads_takes_nothing_from_others() {
    let list = &[
        (0, true),
        (1, false),
        (0, false),
        (1, false),
        (0, true),
        (1, false),
    ];
    // Read from the writer; both have it then; the second write tells the other; and once more.
    assert_eq!(touches(lines(), list), [160, 80, 0, 0, 80, 80]);
    // What others of the group have read is in its cache; nobody has it to himself any more.
    let list = &[(0, true), (2, false), (3, false), (1, false)];
    assert_eq!(touches(lines(), list), [160, 200, 40, 40]);
}

#[test]
fn caches_hold_only_so_much() {
    let bounded = lines().with_private_lines(8).with_shared_lines(32);
    // So many tags of two lines in turn, twice: what the second turn takes.
    let turn = |tags: usize| {
        run(bounded, move |p| {
            let all: Vec<_> = (0..tags)
                .map(|_| <Virtual as Platform>::Tag::default())
                .collect();
            let round = |p: &Virtual| {
                all.iter().for_each(|t| p.touch(t, Touched::Tcb, 1, true));
            };
            round(p);
            let before = p.now();
            round(p);
            p.now().nanos_since(before)
        })
    };
    assert_eq!(turn(4), 0, "all of it is at hand");
    assert_eq!(turn(8), 8 * 2 * 20, "in the shared cache");
    assert_eq!(turn(24), 24 * 2 * 80, "in memory");
}

/// What these cores take, one after the other, for writing lines of payload that wait by one tag,
/// or for taking the first of them and copying.
fn payload(lines: LineCosts, list: &'static [(usize, usize, bool)]) -> Vec<u64> {
    let costs = PayloadCosts::default()
        .with_shared([2000, 1000])
        .with_memory([8000, 7000])
        .with_near([20_000, 10_000])
        .with_far([40_000, 30_000])
        .with_remote([60_000, 50_000]);
    run(lines.with_payload(costs), move |p| {
        let tag = || Arc::new(<Virtual as Platform>::Tag::default());
        let (tag, by) = (tag(), tag());
        let each = |&(core, n, write): &(usize, usize, bool)| {
            let (tag, by) = (tag.clone(), by.clone());
            on(p, core, move |p| {
                if write {
                    p.touch(&by, Touched::Payload, 0, true);
                    p.arrived(&by, &tag, n);
                    p.touch(&by, Touched::Payload, 0, true);
                } else {
                    p.touch(&tag, Touched::Payload, n, false);
                    p.charge(Work::Copy, 0);
                }
            })
        };
        list.iter().map(each).collect()
    })
}

#[test]
fn the_memory_of_payload_goes_round() {
    // From memory once; what was given back last is in the core's cache.
    let alone = &[(0, 3, true), (0, 3, false), (0, 2, true), (0, 2, true)];
    assert_eq!(payload(lines(), alone), [24, 0, 0, 8]);
    // Others read it where it was written, and who writes next has what was read last.
    let apart = &[
        (0, 4, true),
        (1, 1, false),
        (2, 1, false),
        (4, 2, false),
        (0, 1, true),
        (4, 2, true),
    ];
    assert_eq!(payload(lines(), apart), [32, 10, 30, 100, 60, 60]);
    // Nobody takes more than there is.
    assert_eq!(payload(lines(), &[(0, 1, true), (1, 9, false)]), [8, 10]);
}

#[test]
fn much_payload_under_way_leaves_the_caches() {
    let bounded = lines().with_private_lines(8).with_shared_lines(32);
    // More waits than a core's own caches hold, or any: the first of it is not there any more.
    let own = &[(0, 8, true), (0, 8, true), (0, 8, false)];
    assert_eq!(payload(bounded, own), [64, 64, 0]);
    let shared = &[(0, 9, true), (0, 16, true), (0, 9, false), (0, 16, false)];
    assert_eq!(payload(bounded, shared), [72, 128, 9, 16]);
    let memory = &[(0, 8, true), (0, 40, true), (0, 8, false)];
    assert_eq!(payload(bounded, memory), [64, 320, 56]);
    // More than a thread keeps comes back by the depot.
    let much = 3 * 64 * 23;
    let all: &'static [_] = Box::leak(Box::new([
        (0, much, true),
        (1, much, false),
        (0, 1, true),
        (0, 64 * 23, true),
    ]));
    let took = payload(lines(), all);
    assert_eq!(took[2], 20, "from the other core's cache: {took:?}");
    assert_eq!(took[3], 64 * 23 * 20, "{took:?}");
}

#[test]
fn what_a_lock_protects_moves_with_it() {
    let mut with = lines();
    with.each[Touched::Behind(LockClass::Group).index()] = 3000;
    let took = run(with, |p| {
        let lock = Arc::new(p.lock(LockClass::Group, ()));
        [0, 1, 1, 4].map(|core| {
            let lock = lock.clone();
            on(p, core, move |_| drop(lock.lock()))
        })
    });
    // The scheduling points of taking and releasing beside word and three lines.
    let points = took[2];
    assert!(points < 10, "{points}");
    let moved = took.map(|ns| ns - points);
    assert_eq!(moved, [80 + 240, 40 + 120, 0, 300 + 900]);
}

/// When the last of `spinners` threads on cores of their own, which all spin for a lock, has got it
/// once its owner has let go.
fn handed_on(spinners: usize, crowd_percent: u32) -> u64 {
    let lines = lines().with_near_cores(0).with_crowd_percent(crowd_percent);
    let mut cfg = config(lines);
    cfg.costs.spin_ns = 1_000_000;
    let body = move |p: Virtual| {
        let lock = Arc::new(p.lock(LockClass::Group, Time::ZERO));
        let held = lock.lock();
        let threads: Vec<_> = (1..=spinners)
            .map(|core| {
                let (p2, lock) = (p.clone(), lock.clone());
                let body = move || {
                    let mut got = lock.lock();
                    *got = p2.now();
                };
                p.spawn("spinner", Some(core), Box::new(body))
            })
            .collect();
        // Its owner runs on: who waits for it spins meanwhile.
        p.charge(Work::Nanos, 100_000);
        p.checkpoint();
        let before = p.now();
        drop(held);
        for t in threads {
            t.join().unwrap();
        }
        lock.lock().nanos_since(before)
    };
    Virtual::run(cfg, body).unwrap_or_else(|e| panic!("{e}")).0
}

#[test]
fn handing_a_lock_on_takes_longer_the_more_spin_for_it() {
    let (one, four) = (handed_on(1, 50), handed_on(4, 50));
    let (alone, calm) = (handed_on(1, 0), handed_on(4, 0));
    assert_eq!(one, alone, "nobody else looks");
    // Behind the first three others spin, then two, then one: six times half a move of 40 ns.
    assert_eq!(four - calm, 6 * 20);
}

#[test]
fn the_same_seed_gives_the_same_costs() {
    let lines_of = |seed| {
        let cfg = config(lines().with_private_lines(8))
            .with_seed(seed)
            .with_schedule(Schedule::Time { jitter_percent: 5 });
        let body = |p: Virtual| {
            let tags: Arc<Vec<<Virtual as Platform>::Tag>> =
                Arc::new((0..16).map(|_| Default::default()).collect());
            let threads: Vec<_> = (0..4)
                .map(|core| {
                    let (p2, tags) = (p.clone(), tags.clone());
                    let body = move || {
                        for i in 0..100 {
                            p2.touch(&tags[(7 * core + i) % 16], Touched::Tcb, 1, i % 3 == 0);
                            p2.checkpoint();
                        }
                    };
                    p.spawn("toucher", Some(core), Box::new(body))
                })
                .collect();
            for t in threads {
                t.join().unwrap();
            }
        };
        let (_, report) = Virtual::run(cfg, body).unwrap();
        (report.lines_ns, report.virtual_time)
    };
    assert_eq!(lines_of(1), lines_of(1));
    assert_ne!(lines_of(1).1, lines_of(2).1);
    assert!(lines_of(1).1 > Time::ZERO);
}

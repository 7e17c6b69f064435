//! Schedulers as kernels have had them: one queue for all cores, one lock, and what is accounted for.

use super::super::{Schedule, Virtual, VirtualConfig};
use crate::{Event, Lock, LockClass, Platform, Thread, Touched, Work};
use perimeter_base::Time;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

fn config(cores: usize) -> VirtualConfig {
    VirtualConfig::default()
        .with_cores(cores)
        .with_schedule(Schedule::Time { jitter_percent: 0 })
}

/// Six threads that work and sleep by turns; the cores that each was seen on.
fn seen(config: VirtualConfig, core: impl Fn(usize) -> Option<usize>) -> Vec<HashSet<usize>> {
    let cores: Vec<Option<usize>> = (0..6).map(core).collect();
    let (seen, _) = Virtual::run(config, move |p: Virtual| {
        let seen = Arc::new(Mutex::new(vec![HashSet::new(); 6]));
        let start = |(i, core): (usize, Option<usize>)| {
            let (p2, seen) = (p.clone(), seen.clone());
            let body = move || {
                for n in 0..20 {
                    p2.charge(Work::Nanos, 10_000 + 777 * ((i + n) % 5) as u64);
                    seen.lock().unwrap()[i].insert(p2.core());
                    p2.sleep_until(p2.now().plus(5_000));
                }
            };
            p.spawn("worker", core, Box::new(body))
        };
        let threads: Vec<_> = cores.into_iter().enumerate().map(start).collect();
        for t in threads {
            t.join().unwrap();
        }
        seen.lock().unwrap().clone()
    })
    .unwrap();
    seen
}

#[test]
fn with_one_queue_threads_that_are_bound_to_no_core_move() {
    let one = config(3).with_one_run_queue(true);
    let moved = seen(one.clone(), |_| None);
    assert!(moved.iter().all(|cores| cores.len() == 3), "{moved:?}");
    // Those that are bound do not, nor does anybody without such a queue.
    let bound = seen(one.clone(), |i| (i < 2).then_some(i));
    assert_eq!(bound[0], HashSet::from([0]));
    assert_eq!(bound[1], HashSet::from([1]));
    let others: HashSet<_> = bound[2..].iter().flatten().collect();
    assert_eq!(others.len(), 3, "{bound:?}");
    let each = seen(config(3), |_| None);
    assert!(each.iter().all(|cores| cores.len() == 1), "{each:?}");
    // Nobody runs where somebody looks on.
    let aside = seen(one.with_spare_cores(2), |_| None);
    assert!(aside.iter().flatten().all(|core| *core < 3), "{aside:?}");
}

/// Who wakes alone finds all cores idle, and runs on any of them.
#[test]
fn with_one_queue_no_idle_core_comes_first() {
    let (times, _) = Virtual::run(config(3).with_one_run_queue(true), |p: Virtual| {
        let p2 = p.clone();
        let times = Arc::new(Mutex::new([0; 3]));
        let seen = times.clone();
        let body = move || {
            for _ in 0..300 {
                p2.sleep_until(p2.now().plus(5_000));
                seen.lock().unwrap()[p2.core()] += 1;
            }
        };
        p.spawn("worker", None, Box::new(body)).join().unwrap();
        *times.lock().unwrap()
    })
    .unwrap();
    assert!(times.iter().all(|n| (60..=140).contains(n)), "{times:?}");
}

/// Cores are counted modulo those that the program knows of, and spare ones are not among them.
#[test]
fn no_thread_is_bound_to_a_spare_core() {
    let all = seen(config(2).with_spare_cores(1), Some);
    let cores = [0, 1, 0, 1, 0, 1].map(|core| HashSet::from([core]));
    assert_eq!(all, cores);
}

/// What two cores take that do nothing but wake a thread of their own, and what scheduling does.
fn wakes(config: VirtualConfig) -> (u64, u64) {
    let (_, report) = Virtual::run(config, |p: Virtual| {
        let start = |core| {
            let (p2, mine) = (p.clone(), Arc::new(p.event()));
            let (theirs, event) = (mine.clone(), Arc::new(p.event()));
            let back = event.clone();
            let sleeper = move || {
                for _ in 0..100 {
                    theirs.wait(Time::NEVER);
                    back.set();
                }
            };
            let sleeper = p2.spawn("sleeper", Some(core), Box::new(sleeper));
            let waker = move || {
                for _ in 0..100 {
                    mine.set();
                    event.wait(Time::NEVER);
                }
            };
            [sleeper, p2.spawn("waker", Some(core), Box::new(waker))]
        };
        for t in [0, 1].map(start).into_iter().flatten() {
            t.join().unwrap();
        }
    })
    .unwrap();
    (report.virtual_time.nanos(), report.scheduling_ns)
}

#[test]
fn one_scheduler_is_waited_for() {
    let costs = config(2)
        .costs
        .with_park_ns(1_000)
        .with_wake_ns(1_000)
        .with_switch_ns(1_000);
    let (time, scheduling) = wakes(config(2).with_costs(costs));
    // Each core wakes, sleeps and switches 200 times, which is nearly all that it does.
    assert!((1_190_000..1_230_000).contains(&scheduling), "{scheduling}");
    assert!((600_000..650_000).contains(&time), "{time}");
    let (one, waited) = wakes(config(2).with_costs(costs.with_one_scheduler(true)));
    assert!(
        (1_900..2_100).contains(&(1000 * one / time)),
        "{one}, {time}"
    );
    assert!(
        (1_900..2_100).contains(&(1000 * waited / scheduling)),
        "{waited}"
    );
}

/// Sleeping for a lock costs what any sleep does.
#[test]
fn who_sleeps_for_a_lock_pays_for_it() {
    let scheduling = |park: u32| {
        let costs = config(1).costs.with_park_ns(park).with_spin_ns(0);
        let (_, report) = Virtual::run(config(2).with_costs(costs), |p: Virtual| {
            let lock = Arc::new(p.lock(LockClass::Group, ()));
            let (p2, theirs) = (p.clone(), lock.clone());
            let guard = lock.lock();
            let waiter = p.spawn("waiter", Some(1), Box::new(move || drop(theirs.lock())));
            p2.charge(Work::Nanos, 50_000);
            drop(guard);
            waiter.join().unwrap();
        })
        .unwrap();
        report.scheduling_ns
    };
    assert_eq!(scheduling(7_000) - scheduling(0), 7_000);
}

#[test]
fn lines_that_a_core_lacked_are_counted() {
    let mut each = [0; Touched::COUNT];
    each[Touched::Tcb.index()] = 2_500;
    let mut costs = config(2).costs;
    costs.lines = costs.lines.with_each(each).with_memory_ns(100);
    let (_, report) = Virtual::run(config(2).with_costs(costs), |p: Virtual| {
        let tag = Arc::new(<Virtual as Platform>::Tag::default());
        // From memory; from the cache; from core 0; from core 1.
        for core in [0, 0, 1, 0] {
            let (p2, tag) = (p.clone(), tag.clone());
            let body = move || p2.touch(&tag, Touched::Tcb, 1, true);
            p.spawn("there", Some(core), Box::new(body)).join().unwrap();
        }
        let lock = Arc::new(p.lock(LockClass::Leaf, ()));
        for core in [0, 1] {
            let lock = lock.clone();
            let body = move || drop(lock.lock());
            p.spawn("there", Some(core), Box::new(body)).join().unwrap();
        }
    })
    .unwrap();
    assert_eq!(report.missed[Touched::Tcb.index()], [5_000, 2_500]);
    let words = report.missed[Touched::COUNT];
    assert_eq!(words[0], 1_000, "one lock went from core to core");
    assert!(words[1] >= 1_000, "it was in no cache at first");
}

/// A thread that sleeps and goes on: what it has for itself is in its core's cache, or comes along
/// to another core.
#[test]
fn a_thread_takes_its_lines_along() {
    let mut each = [0; Touched::COUNT];
    each[Touched::Thread.index()] = 5_000;
    let mut costs = config(2).costs;
    costs.lines = costs
        .lines
        .with_each(each)
        .with_memory_ns(100)
        .with_near_ns(40);
    let missed = |core: Option<usize>| {
        let config = config(2).with_costs(costs).with_one_run_queue(true);
        let (_, report) = Virtual::run(config, move |p: Virtual| {
            let p2 = p.clone();
            // While it sleeps, one of those that begin then takes the core that it had.
            let body = move || {
                for _ in 0..50 {
                    p2.sleep_until(p2.now() + core::time::Duration::from_micros(10));
                    p2.charge(Work::Nanos, 1_000);
                }
            };
            let sleeper = p.spawn("sleeper", core, Box::new(body));
            for _ in 0..50 {
                let p3 = p.clone();
                let body = move || p3.charge(Work::Nanos, 12_000);
                p.spawn("other", None, Box::new(body)).join().unwrap();
            }
            sleeper.join().unwrap();
        })
        .unwrap();
        report.missed[Touched::Thread.index()]
    };
    let [bound, moves] = [Some(1), None].map(|core| missed(core)[0]);
    assert!(moves > bound, "{moves} {bound}");
    assert_eq!(missed(None)[0] % 5_000, 0);
}

/// Who looks after a ring takes all descriptors to his core that were placed since, and no others;
/// those that he has freed come from there when they are placed again.
#[test]
fn freed_descriptors_go_to_who_frees_them_and_back() {
    let missed = |completion: u32| {
        let mut each = [0; Touched::COUNT];
        each[Touched::Descriptor.index()] = 2_000;
        each[Touched::Completion.index()] = completion;
        let mut costs = config(2).costs;
        costs.lines = costs.lines.with_each(each);
        let (_, report) = Virtual::run(config(2).with_costs(costs), |p: Virtual| {
            let tag = Arc::new(<Virtual as Platform>::Tag::default());
            let on = |core, what, n| {
                let (p2, tag) = (p.clone(), tag.clone());
                let body = move || p2.touch(&tag, what, n, true);
                p.spawn("there", Some(core), Box::new(body)).join().unwrap();
            };
            on(0, Touched::Descriptor, 1);
            on(0, Touched::Descriptor, 3);
            // Four of them; then none.
            on(1, Touched::Completion, 1);
            on(1, Touched::Completion, 1);
            // Two that were freed; then the other two, and one that is new.
            on(0, Touched::Descriptor, 2);
            on(0, Touched::Descriptor, 3);
        })
        .unwrap();
        [Touched::Descriptor, Touched::Completion].map(|t| report.missed[t.index()][0])
    };
    assert_eq!(missed(0), [0, 0], "without, they stay with who sends");
    assert_eq!(missed(1_500), [8_000, 6_000]);
}

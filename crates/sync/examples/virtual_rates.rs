//! How fast virtual cores run: scheduling points, switches and whole simulations a second.

use perimeter_base::Time;
use perimeter_sync::virt::{Report, Schedule, Virtual, VirtualConfig};
use perimeter_sync::{Event, Lock, LockClass, Platform, Thread};
use std::sync::Arc;
use std::time::Instant;

fn config(schedule: Schedule, seed: u64) -> VirtualConfig {
    VirtualConfig::default()
        .with_seed(seed)
        .with_schedule(schedule)
        .with_max_steps(u64::MAX)
        .with_max_time(Time::NEVER)
}

/// `threads` threads, each `n` times through its own lock, or one that all share.
fn locks(p: &Virtual, threads: usize, n: usize, shared: bool) {
    let one = Arc::new(p.lock(LockClass::Leaf, 0u64));
    let ts: Vec<_> = (0..threads)
        .map(|i| {
            let l = if shared {
                one.clone()
            } else {
                Arc::new(p.lock(LockClass::Leaf, 0u64))
            };
            let body = move || (0..n).for_each(|_| *l.lock() += 1);
            p.spawn("locker", Some(i), Box::new(body))
        })
        .collect();
    for t in ts {
        t.join().unwrap();
    }
}

/// Two threads that wake each other.
fn ping_pong(p: &Virtual, n: usize) {
    let (a, b) = (Arc::new(p.event()), Arc::new(p.event()));
    let (a2, b2) = (a.clone(), b.clone());
    let t = p.spawn(
        "pong",
        Some(1),
        Box::new(move || {
            for _ in 0..n {
                a2.wait(Time::NEVER);
                b2.set();
            }
        }),
    );
    for _ in 0..n {
        a.set();
        b.wait(Time::NEVER);
    }
    t.join().unwrap();
}

fn measure(name: &str, schedule: Schedule, f: impl Fn(&Virtual) + Send + Copy + 'static) {
    let mut best: Option<(f64, Report)> = None;
    for _ in 0..5 {
        let start = Instant::now();
        let (_, r) = Virtual::run(config(schedule, 1), move |p| f(&p)).expect("runs through");
        let s = start.elapsed().as_secs_f64();
        if best.as_ref().is_none_or(|b| s < b.0) {
            best = Some((s, r));
        }
    }
    let Some((s, r)) = best else { return };
    println!(
        "{name:12} {:22} {:6.1} M points/s {:6.2} M switches/s",
        schedule.to_string(),
        r.steps as f64 / s / 1e6,
        r.switches as f64 / s / 1e6
    );
}

fn main() {
    let schedules = [
        Schedule::Time { jitter_percent: 0 },
        Schedule::Time { jitter_percent: 10 },
        Schedule::Random { switch_one_in: 10 },
        Schedule::Random { switch_one_in: 2 },
        Schedule::Pct { depth: 3 },
    ];
    for s in schedules {
        measure("one thread", s, |p| locks(p, 1, 1_000_000, false));
        measure("own locks", s, |p| locks(p, 4, 250_000, false));
        measure("one lock", s, |p| locks(p, 4, 250_000, true));
        measure("ping-pong", s, |p| ping_pong(p, 250_000));
    }
    for (name, threads, n) in [("empty", 0, 0), ("4 threads", 4, 0), ("4 x 100", 4, 100)] {
        let runs = 20_000;
        let start = Instant::now();
        for seed in 0..runs {
            let c = config(Schedule::Random { switch_one_in: 10 }, seed);
            Virtual::run(c, move |p| locks(&p, threads, n, true)).expect("runs through");
        }
        let s = start.elapsed().as_secs_f64();
        println!("runs {name:12} {:8.0} runs/s", runs as f64 / s);
    }
}

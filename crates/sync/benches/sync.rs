//! What the platform costs on the machine: `cargo bench -p perimeter-sync`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use perimeter_sync::queue::spsc;
use perimeter_sync::{
    Event, Lock, LockClass, Mpsc, Native, PerLane, PerLaneCounters, Platform, SoloLock, Thread,
};

fn platform(c: &mut Criterion) {
    let p = Native::new();
    c.bench_function("now", |b| b.iter(|| p.now()));
    c.bench_function("lane", |b| b.iter(|| black_box(&p).lane()));
    let e = p.event();
    c.bench_function("event set, no sleeper", |b| b.iter(|| black_box(&e).set()));
    c.bench_function("event set + take", |b| {
        b.iter(|| {
            black_box(&e).set();
            e.take()
        });
    });
}

fn locks(c: &mut Criterion) {
    let p = Native::new();
    let lock = Arc::new(p.lock(LockClass::Group, 0u64));
    c.bench_function("lock free", |b| {
        b.iter(|| *black_box(&*lock).lock() += 1);
    });
    let solo = SoloLock::new(p, LockClass::Group, 0u64);
    c.bench_function("solo lock", |b| b.iter(|| *black_box(&solo).lock() += 1));

    let stop = Arc::new(AtomicBool::new(false));
    let rival = {
        let (lock, stop) = (lock.clone(), stop.clone());
        p.spawn(
            "rival",
            Some(1),
            Box::new(move || {
                while !stop.load(Ordering::Relaxed) {
                    *lock.lock() += 1;
                }
            }),
        )
    };
    c.bench_function("lock, one rival", |b| {
        b.iter(|| *black_box(&*lock).lock() += 1);
    });
    stop.store(true, Ordering::Relaxed);
    rival.join().expect("the rival ends");
    println!("{:?}", lock.stats());
}

fn lanes(c: &mut Criterion) {
    let p = Native::new();
    let stock = PerLane::new(p);
    stock.put(Box::new([0u64; 8]));
    c.bench_function("per lane take + put", |b| {
        b.iter(|| {
            let x = black_box(&stock).take().expect("one is there");
            stock.put(x);
        });
    });
    let counters = PerLaneCounters::<16>::new();
    let lane = p.lane();
    c.bench_function("counter", |b| {
        b.iter(|| black_box(&counters).add(lane, 3, 1));
    });
    c.bench_function("counter, shared row", |b| {
        b.iter(|| black_box(&counters).add(usize::MAX, 3, 1));
    });
}

fn queues(c: &mut Criterion) {
    let p = Native::new();
    let q = Mpsc::new(p, 64);
    c.bench_function("mpsc push + pop", |b| {
        b.iter(|| {
            let _ = black_box(&q).push(7u64);
            q.pop()
        });
    });
    let mut out = Vec::with_capacity(32);
    c.bench_function("mpsc 32 x push + pop_many", |b| {
        b.iter(|| {
            for i in 0..32u64 {
                let _ = black_box(&q).push(i);
            }
            out.clear();
            q.pop_many(&mut out, 32)
        });
    });
    let (mut tx, mut rx) = spsc::channel(64);
    c.bench_function("spsc push + pop", |b| {
        b.iter(|| {
            let _ = black_box(&mut tx).push(7u64);
            rx.pop()
        });
    });
    c.bench_function("spsc 32 x push + pop_many", |b| {
        b.iter(|| {
            for i in 0..32u64 {
                let _ = black_box(&mut tx).push(i);
            }
            out.clear();
            rx.pop_many(&mut out, 32)
        });
    });
}

criterion_group!(benches, platform, locks, lanes, queues);
criterion_main!(benches);

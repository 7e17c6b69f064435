//! What single operations take on this machine: locks, wakes, switches, cache lines, memory.

mod payload;

use crate::host;
pub use payload::Payload;
use perimeter::{LockClass, Native};
use perimeter_base::{Time, rng::SplitMix64};
use perimeter_sync::{Event, Lock, Platform};
use std::{
    cell::RefCell,
    hint,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Batches, of which the fastest counts: others were interrupted.
const BATCHES: usize = 7;
/// Bytes of a line.
const LINE: usize = 64;

/// What was found, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Micro {
    /// Taking and releasing a free lock.
    pub lock: f64,
    /// An atomic operation on a line of one's own.
    pub atomic: f64,
    /// Yielding with nobody else to run.
    pub yields: f64,
    /// A line from one core to the other; `None` with one core, or where one was busy.
    pub line: Option<f64>,
    /// What payload takes by where it is.
    pub payload: Payload,
    /// A look while spinning.
    pub pause: f64,
    /// Waking a thread of the same core, going to sleep, and going on to another thread: each.
    pub step: f64,
    /// Setting a core's timer.
    pub timer_set: f64,
    /// The interrupt of a timer that ends a sleep.
    pub timer_interrupt: f64,
    /// How much more it takes to wake one of another core.
    pub kick: f64,
    /// From such a wake until the thread runs, beyond the wake itself.
    pub wake_latency: f64,
    /// How long threads of a core take turns for.
    pub slice: f64,
    /// Whether a thread that its timer wakes takes the core from one that runs there.
    pub preempts: bool,
    /// A dependent load from memory.
    pub memory: f64,
    /// A dependent load from a cache beyond the second level.
    pub shared: f64,
    /// Lines of a core's own caches, and of all that it has found room in.
    pub caches: (u32, u32),
}

/// The fastest of some batches of `n` times `f`, ns for each.
fn fastest(n: u32, mut f: impl FnMut()) -> f64 {
    let batch = |f: &mut dyn FnMut()| {
        let begun = Instant::now();
        for _ in 0..n {
            f();
        }
        begun.elapsed().as_nanos() as f64 / f64::from(n)
    };
    (0..BATCHES)
        .map(|_| batch(&mut f))
        .fold(f64::INFINITY, f64::min)
}

/// Measures this machine. Takes some three seconds, and both of its first two cores.
pub fn measure() -> Micro {
    host::timers_on_time();
    let p = Native::default();
    let lock = p.lock(LockClass::Leaf, 0u64);
    let word = AtomicU64::new(0);
    let (other, late) = waking(&p);
    // A wake, a sleep, and there and back: no clock tells them apart.
    let round = switching(&p, None);
    let step = round / 4.0;
    let (taken, behind) = timed(&p);
    // Each of both sets the timer before it sleeps, and again when it is woken.
    let timer_set = (switching(&p, Some(Duration::from_millis(1))) - round).max(0.0) / 4.0;
    let (private, all) = caches();
    let slice = slice();
    let (payload, room) = payload::measure(private, all);
    Micro {
        lock: fastest(200_000, || *hint::black_box(&lock).lock() += 1),
        atomic: fastest(200_000, || {
            hint::black_box(&word).fetch_add(1, Ordering::SeqCst);
        }),
        yields: fastest(20_000, thread::yield_now),
        line: (0..20).find_map(|_| line()),
        payload,
        pause: fastest(200_000, hint::spin_loop),
        step,
        timer_set,
        // Beside which there is a sleep, and there and back.
        timer_interrupt: (taken - timer_set - 3.0 * step).max(0.0),
        kick: (other - step).max(0.0),
        wake_latency: (late - other).max(0.0),
        slice,
        preempts: behind < slice / 4.0,
        memory: chase(all * 4),
        shared: chase(private * 4),
        caches: ((private / LINE) as u32, (room / LINE) as u32),
    }
}

/// What a line takes from one core to the other, ns; `None` with one core, or where one was busy.
pub fn line() -> Option<f64> {
    host::apart::usual_round_trip().map(|ns| ns / 2.0)
}

/// Whether that is far.
pub fn is_far(line: f64) -> bool {
    host::apart::is_far(2.0 * line)
}

/// Bytes of a core's own caches, and of all that it can use.
fn caches() -> (usize, usize) {
    /// Where the kernel does not tell: sizes of today's servers.
    const USUAL: (usize, usize) = (1 << 20, 32 << 20);
    let size = |index: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        let kilobytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kilobytes << 10)
    };
    (size(2).unwrap_or(USUAL.0), size(3).unwrap_or(USUAL.1))
}

/// A dependent load from somewhere within so many bytes, at most a quarter of a gigabyte, ns.
fn chase(bytes: usize) -> f64 {
    /// Loads of a batch.
    const LOADS: u32 = 200_000;
    #[repr(align(64))]
    #[derive(Clone)]
    struct Line(usize);
    let n = bytes.clamp(1 << 16, 256 << 20) / LINE;
    // A permutation of one cycle (Sattolo).
    let mut order: Vec<usize> = (0..n).collect();
    let mut rng = SplitMix64::new(1);
    for i in (1..n).rev() {
        order.swap(i, rng.below(i as u64) as usize);
    }
    let lines: Vec<Line> = order.into_iter().map(Line).collect();
    let mut at = 0;
    fastest(LOADS, || at = hint::black_box(&lines)[at].0)
}

/// What waking the thread of another core takes, and how long after that it runs.
fn waking(p: &Native) -> (f64, f64) {
    const ROUNDS: usize = 1500;
    if host::cores() < 2 {
        return (0.0, 0.0);
    }
    let event = p.event();
    let (asleep, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let stamp = AtomicU64::new(0);
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64;
    let wait = || {
        host::pin(1);
        let mut late = Vec::new();
        loop {
            asleep.store(true, Ordering::Release);
            event.wait(Time::NEVER);
            if over.load(Ordering::Acquire) {
                return late;
            }
            late.push(now().saturating_sub(stamp.load(Ordering::Acquire)));
        }
    };
    let wake = || {
        host::pin(0);
        let mut wakes = Vec::new();
        for _ in 0..ROUNDS {
            while !asleep.swap(false, Ordering::AcqRel) {
                hint::spin_loop();
            }
            // It has told so before it sleeps.
            let until = now() + 15_000;
            while now() < until {
                hint::spin_loop();
            }
            let before = now();
            stamp.store(before, Ordering::Release);
            event.set();
            wakes.push(now() - before);
        }
        while !asleep.load(Ordering::Acquire) {
            hint::spin_loop();
        }
        over.store(true, Ordering::Release);
        event.set();
        wakes
    };
    thread::scope(|s| {
        let waiter = s.spawn(wait);
        let waker = s.spawn(wake);
        let wakes = waker.join().unwrap_or_default();
        (low(wakes), low(waiter.join().unwrap_or_default()))
    })
}

/// What a fifth of a list is below: others were interrupted.
fn low(mut list: Vec<u64>) -> f64 {
    list.sort_unstable();
    list.get(list.len() / 5).copied().unwrap_or(0) as f64
}

fn median(mut list: Vec<u64>) -> f64 {
    list.sort_unstable();
    list.get(list.len() / 2).copied().unwrap_or(0) as f64
}

/// Two threads of one core wake each other and sleep: a round. Who is woken comes at once, and finds
/// that the other sleeps or is about to: that is one wake, one sleep, and going from one thread to
/// the other and back. Each sleeps for so long at most, or until it is woken.
fn switching(p: &Native, most: Option<Duration>) -> f64 {
    const ROUNDS: u32 = 1000;
    let events = [p.event(), p.event()];
    let run = |me: usize| {
        host::pin(0);
        let begun = Instant::now();
        for round in 0..ROUNDS {
            if me == 0 || round > 0 {
                events[1 - me].set();
            }
            let until = |most: Duration| p.now().plus(most.as_nanos() as u64);
            events[me].wait(most.map_or(Time::NEVER, until));
        }
        if me == 1 {
            events[0].set();
        }
        begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    // Others may have the core for a while: the fastest of some.
    let once = || {
        thread::scope(|s| {
            let a = s.spawn(|| run(0));
            s.spawn(|| run(1));
            a.join().unwrap_or(f64::INFINITY)
        })
    };
    (0..BATCHES).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// What a core lacks, of the time that it has for another thread, for each sleep until a deadline,
/// and how long after that the sleeper has the core, ns.
fn timed(p: &Native) -> (f64, f64) {
    const SLEEPS: u64 = 1000;
    /// Long enough for the core to go on to the other thread.
    const ASLEEP: u64 = 60_000;
    /// How long the other has the core to itself first.
    const ALONE: Duration = Duration::from_millis(20);
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        host::pin(0);
        while !over.load(Ordering::Relaxed) {
            // A part of a microsecond, so that a look at the count is fine enough.
            (0..20).for_each(|_| hint::spin_loop());
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let sleep = || {
        host::pin(0);
        let event = p.event();
        let spent = |f: &dyn Fn()| {
            let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
            f();
            let ns = begun.elapsed().as_nanos() as f64;
            (ns, (done.load(Ordering::Relaxed) - before) as f64)
        };
        let (ns, alone) = spent(&|| thread::sleep(ALONE));
        let each = ns / alone.max(1.0);
        let late = RefCell::new(Vec::new());
        let (ns, beside) = spent(&|| {
            for _ in 0..SLEEPS {
                let until = p.now().plus(ASLEEP);
                event.wait(until);
                late.borrow_mut().push(p.now().nanos_since(until));
            }
        });
        let taken = (ns - each * beside) / SLEEPS as f64;
        (taken.max(0.0), median(late.take()))
    };
    // Others may have the core for a while, and the other thread keeps it for a turn now and then:
    // the least of some.
    let once = || {
        thread::scope(|s| {
            s.spawn(work);
            let found = s.spawn(sleep).join().unwrap_or_default();
            over.store(true, Ordering::Relaxed);
            found
        })
    };
    let list = (0..3).map(|_| {
        over.store(false, Ordering::Relaxed);
        once()
    });
    let least = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.min(b.1));
    list.fold((f64::INFINITY, f64::INFINITY), least)
}

/// Two threads want one core: how long each has it.
fn slice() -> f64 {
    /// Off the core for less, a thread was interrupted.
    const GAP: Duration = Duration::from_micros(300);
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            host::pin(0);
            while !over.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
        });
        let look = s.spawn(|| {
            host::pin(0);
            let end = Instant::now() + Duration::from_millis(400);
            let mut gaps = Vec::new();
            let mut last = Instant::now();
            while last < end {
                let now = Instant::now();
                if now - last > GAP {
                    gaps.push((now - last).as_nanos() as u64);
                }
                last = now;
            }
            median(gaps)
        });
        let slice = look.join().unwrap_or(0.0);
        over.store(true, Ordering::Relaxed);
        slice
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_take_some_time() {
        let m = measure();
        assert!(
            (0.5..1e4).contains(&m.lock) && (0.5..1e4).contains(&m.atomic),
            "{m:?}"
        );
        assert!(m.memory > 1.0 && m.memory < 1e5, "{m:?}");
        assert!(m.step > 10.0 && m.yields > 10.0, "{m:?}");
        assert!(m.timer_set < 1e5 && m.timer_interrupt < 1e6, "{m:?}");
        if host::cores() > 1 {
            // A difference of two: on a busy machine it may be nothing.
            assert!(m.kick >= 0.0 && m.wake_latency < 1e7, "{m:?}");
        }
    }

    #[test]
    fn a_cache_is_faster_than_memory() {
        // A page and a quarter of a gigabyte: no machine has them alike.
        assert!(chase(1 << 16) * 2.0 < chase(256 << 20));
    }
}

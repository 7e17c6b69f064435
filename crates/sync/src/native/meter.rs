//! Where the machine's threads note what they have timed: a row of counters for each thread, and a
//! set of rows for each stack that is profiled.
//!
//! Noting is a load and a store in the thread's own row. Locks name their set by a number that
//! fits where they have room, so that one which is not profiled is no larger for it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

use super::clock::Ticks;
use super::thread;
use crate::class::LockClass;
use crate::lane::{self, LaneTable};
use crate::profile::{BUCKETS, Histogram, Path, Profile};

/// Sets of rows: stacks of a process that may be profiled at once.
pub(super) const SETS: usize = 8;
/// Counters of a class of locks: those who waited and all, by size.
const CLASS: usize = 2 * BUCKETS;
/// Where the paths begin: a count and a sum for each.
const PATHS: usize = LockClass::ALL.len() * CLASS;
const ROW: usize = PATHS + 2 * Path::ALL.len();

type Row = OnceLock<Box<[AtomicU64]>>;

fn zeros() -> Box<[AtomicU64]> {
    (0..ROW).map(|_| AtomicU64::new(0)).collect()
}

/// A set.
pub(super) struct Meter {
    taken: AtomicBool,
    rows: LaneTable<Row>,
    /// Of threads beyond the last lane.
    shared: Row,
}

static METERS: [Meter; SETS] = [const { Meter::new() }; SETS];

/// A set's number, from 1; 0: not profiled.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Which(u8);

impl Which {
    pub(super) const NONE: Which = Which(0);

    #[inline(always)]
    pub(super) fn any(self) -> bool {
        self.0 != 0
    }

    #[inline]
    pub(super) fn meter(self) -> Option<&'static Meter> {
        METERS.get(usize::from(self.0).wrapping_sub(1))
    }
}

impl Meter {
    const fn new() -> Meter {
        Meter {
            taken: AtomicBool::new(false),
            rows: LaneTable::new(),
            shared: Row::new(),
        }
    }

    fn add(&self, at: usize, n: u64) {
        match self.rows.get(lane::current(), Row::new) {
            Some(row) => {
                let c = &row.get_or_init(zeros)[at];
                c.store(c.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
            }
            None => {
                self.shared.get_or_init(zeros)[at].fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// A contended acquisition has waited.
    pub(super) fn waited(&self, class: LockClass, ns: u64) {
        self.add(class as usize * CLASS + Histogram::bucket(ns), 1);
    }

    /// An acquisition has ended.
    pub(super) fn held(&self, class: LockClass, ns: u64) {
        self.add(class as usize * CLASS + BUCKETS + Histogram::bucket(ns), 1);
    }

    fn took(&self, path: Path, ns: u64) {
        let at = PATHS + 2 * path as usize;
        self.add(at, 1);
        self.add(at + 1, ns);
    }

    /// Times `f` by the clock: for what is short and does not sleep.
    #[cold]
    pub(super) fn by_clock<R>(&self, path: Path, f: impl FnOnce() -> R) -> R {
        let ticks = Ticks::get();
        let start = ticks.raw();
        let out = f();
        self.took(path, ticks.to_ns(ticks.between(start, ticks.raw())));
        out
    }

    /// Times `f`, which enters the kernel and may sleep there, by the thread's processor time.
    #[cold]
    pub(super) fn by_cpu<R>(&self, path: Path, f: impl FnOnce() -> R) -> R {
        let start = thread::cpu_ns();
        let out = f();
        let used = thread::cpu_ns().saturating_sub(start);
        self.took(path, used.saturating_sub(cpu_clock_cost()));
        out
    }

    fn all(&self) -> impl Iterator<Item = &[AtomicU64]> {
        let rows = self.rows.iter().chain([&self.shared]);
        rows.filter_map(|r| r.get()).map(|r| &**r)
    }

    fn read(&self) -> Profile {
        let mut profile = Profile::default();
        for row in self.all() {
            let at = |i: usize| row[i].load(Ordering::Relaxed);
            for class in LockClass::ALL {
                let times = profile.locks_mut(class);
                let first = class as usize * CLASS;
                for bucket in 0..BUCKETS {
                    times.wait.add_to(bucket, at(first + bucket));
                    times.hold.add_to(bucket, at(first + BUCKETS + bucket));
                }
            }
            for path in Path::ALL {
                let first = PATHS + 2 * path as usize;
                let times = profile.path_mut(path);
                times.count += at(first);
                times.ns += at(first + 1);
            }
        }
        profile
    }
}

/// What two reads of a thread's processor clock in a row are apart, at least, ns.
fn cpu_clock_cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let apart = || {
            let start = thread::cpu_ns();
            thread::cpu_ns().saturating_sub(start)
        };
        (0..32).map(|_| apart()).min().unwrap_or(0)
    })
}

/// A profile that is being made, of all that [`super::Native::with_profiling`] makes. Up to eight
/// at once in a process; dropping it lets another one take its place, so it is to outlive the
/// locks and queues that it was made with: what those note later is added to that other one.
///
/// Every acquisition of a lock then reads the clock twice, and every park and every wake the
/// thread's processor clock twice.
#[derive(Debug)]
pub struct Profiling(Which);

impl Profiling {
    /// Begins one; `None`: there are eight.
    pub fn begin() -> Option<Profiling> {
        // Not in somebody's first measurement.
        let _ = (Ticks::get(), cpu_clock_cost());
        let free = |m: &Meter| !m.taken.swap(true, Ordering::Acquire);
        let set = METERS.iter().position(free)?;
        for c in METERS[set].all().flatten() {
            c.store(0, Ordering::Relaxed);
        }
        Some(Profiling(Which(set as u8 + 1)))
    }

    pub(super) fn which(&self) -> Which {
        self.0
    }

    /// What has been timed so far.
    pub fn read(&self) -> Profile {
        read(self.0).unwrap_or_default()
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        if let Some(m) = self.0.meter() {
            m.taken.store(false, Ordering::Release);
        }
    }
}

/// What a set has noted.
pub(super) fn read(which: Which) -> Option<Profile> {
    which.meter().map(Meter::read)
}

//! What a profiled platform tells of time: how long locks were waited for and held, by class, and
//! what queueing, parking and waking cost.

use core::fmt;

use crate::class::LockClass;

/// Buckets of an octave, as a power of two: a bucket is at most a quarter as wide as where it
/// begins.
const FINE: u32 = 2;
/// Buckets of a [`Histogram`]; the last one also takes what is longer than 100 s.
pub const BUCKETS: usize = 144;

/// Durations by size: exact up to 7 ns, then four buckets from each power of two to the next.
///
/// ```
/// use perimeter_sync::profile::Histogram;
///
/// let mut waits = Histogram::default();
/// [3, 3, 1000].into_iter().for_each(|ns| waits.add(ns));
/// let earlier = waits.clone();
/// waits.add(90_000);
/// assert_eq!((waits.count(), waits.since(&earlier).count()), (4, 1));
/// // The smallest duration of each bucket, and how many are in it.
/// assert!(waits.iter().eq([(3, 2), (896, 1), (81_920, 1)]));
/// assert_eq!(Histogram::floor(Histogram::bucket(1000)), 896);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// The bucket of a duration in ns.
    #[inline]
    pub fn bucket(ns: u64) -> usize {
        let octave = (ns | 1).ilog2();
        if octave < FINE {
            return ns as usize;
        }
        let step = octave - FINE;
        let at = (u64::from(step + 1) << FINE) + ((ns >> step) & ((1 << FINE) - 1));
        (at as usize).min(BUCKETS - 1)
    }

    /// The shortest duration in a bucket, ns.
    pub fn floor(bucket: usize) -> u64 {
        let octave = bucket >> FINE;
        let fine = (bucket & ((1 << FINE) - 1)) as u64;
        match octave {
            0 => fine,
            _ => ((1 << FINE) + fine) << (octave - 1),
        }
    }

    /// Counts one duration in ns.
    pub fn add(&mut self, ns: u64) {
        self.add_to(Histogram::bucket(ns), 1);
    }

    /// Counts `n` durations in a bucket.
    pub(crate) fn add_to(&mut self, bucket: usize, n: u64) {
        if n == 0 {
            return;
        }
        if self.0.len() <= bucket {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] += n;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The buckets that are not empty: the shortest duration of each in ns, and how many.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.0.iter().enumerate();
        all.filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| (Histogram::floor(bucket), *n))
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut out = Histogram::default();
        for (bucket, n) in self.0.iter().enumerate() {
            let before = earlier.0.get(bucket).copied().unwrap_or(0);
            out.add_to(bucket, n.saturating_sub(before));
        }
        out
    }
}

/// Each bucket that is not empty, as `from: count`.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Waits for locks of one class, and how long they were held.
///
/// ```
/// use perimeter_sync::profile::LockTimes;
///
/// let mut times = LockTimes::default();
/// times.hold.add(400);
/// times.hold.add(500);
/// times.wait.add(90);
/// println!("waited {:?}, held {:?}", times.wait, times.hold);
/// assert_eq!((times.wait.count(), times.hold.count()), (1, 2), "every second one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockTimes {
    /// Contended acquisitions, by how long they waited.
    pub wait: Histogram,
    /// All acquisitions, by how long they held the lock.
    pub hold: Histogram,
}

/// What threads do to hand work to each other.
///
/// ```
/// use perimeter_sync::profile::{Path, Profile};
///
/// let profile = Profile::default();
/// for path in Path::ALL {
///     println!("{}: {:?}", path.name(), profile.path(path));
/// }
/// assert_eq!(Path::ALL.map(Path::name), ["queue", "park", "wake"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Path {
    /// Putting into queues between threads, and taking from them. Queues that stand behind a lock
    /// of class [`LockClass::Squeue`] are not among these: their time is that lock's.
    Queue = 0,
    /// Falling asleep at an event and waking up again, without the sleep.
    Park,
    /// Waking a thread that sleeps at an event.
    Wake,
}

impl Path {
    /// All of them.
    pub const ALL: [Path; 3] = [Path::Queue, Path::Park, Path::Wake];

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Queue => "queue",
            Path::Park => "park",
            Path::Wake => "wake",
        }
    }
}

/// What was spent on a [`Path`].
///
/// ```
/// use perimeter_sync::profile::{Path, PathTimes, Profile};
///
/// /// What one costs, ns.
/// fn each(times: PathTimes) -> Option<u64> {
///     times.ns.checked_div(times.count)
/// }
/// assert_eq!(each(Profile::default().path(Path::Park)), None, "nobody has slept");
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathTimes {
    /// How often it was taken.
    pub count: u64,
    /// Processor time in all, ns.
    pub ns: u64,
}

/// All that a profiled platform has timed.
///
/// ```
/// use perimeter_sync::native::Profiling;
/// use perimeter_sync::profile::Path;
/// use perimeter_sync::{Lock, LockClass, Native, Platform};
///
/// let profiling = Profiling::begin().ok_or("eight are under way")?;
/// let native = Native::default().with_profiling(&profiling);
/// let before = native.profile().ok_or("it is profiled")?;
/// *native.lock(LockClass::Group, 0).lock() += 1;
/// let after = native.profile().ok_or("it is profiled")?;
/// let during = after.since(&before);
/// assert_eq!(during.locks(LockClass::Group).hold.count(), 1);
/// assert_eq!(during.path(Path::Wake).count, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    locks: [LockTimes; LockClass::ALL.len()],
    paths: [PathTimes; Path::ALL.len()],
}

impl Profile {
    /// The locks of a class.
    pub fn locks(&self, class: LockClass) -> &LockTimes {
        &self.locks[class as usize]
    }

    /// A path.
    pub fn path(&self, path: Path) -> PathTimes {
        self.paths[path as usize]
    }

    pub(crate) fn locks_mut(&mut self, class: LockClass) -> &mut LockTimes {
        &mut self.locks[class as usize]
    }

    pub(crate) fn path_mut(&mut self, path: Path) -> &mut PathTimes {
        &mut self.paths[path as usize]
    }

    /// What was timed since `earlier`.
    pub fn since(&self, earlier: &Profile) -> Profile {
        let mut out = Profile::default();
        for class in LockClass::ALL {
            let (now, then) = (self.locks(class), earlier.locks(class));
            *out.locks_mut(class) = LockTimes {
                wait: now.wait.since(&then.wait),
                hold: now.hold.since(&then.hold),
            };
        }
        for path in Path::ALL {
            let (now, then) = (self.path(path), earlier.path(path));
            *out.path_mut(path) = PathTimes {
                count: now.count.saturating_sub(then.count),
                ns: now.ns.saturating_sub(then.ns),
            };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        for bucket in 1..BUCKETS {
            let (from, to) = (Histogram::floor(bucket - 1), Histogram::floor(bucket));
            assert!(from < to, "{bucket}");
            assert!(to - from <= (from / 4).max(1), "{from}..{to}");
            assert_eq!(Histogram::bucket(to), bucket);
            assert_eq!(Histogram::bucket(to - 1), bucket - 1);
        }
        assert_eq!(Histogram::bucket(0), 0);
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
        assert!(Histogram::floor(BUCKETS - 1) > 100_000_000_000);
    }

    #[test]
    fn what_came_later_is_told_apart() {
        let mut h = Histogram::default();
        for ns in [3, 3, 100, 5000] {
            h.add(ns);
        }
        let earlier = h.clone();
        h.add(100);
        h.add(1_000_000);
        let later = h.since(&earlier);
        assert_eq!((h.count(), later.count()), (6, 2));
        let expected = [96, Histogram::floor(Histogram::bucket(1_000_000))];
        assert!(later.iter().eq(expected.map(|ns| (ns, 1))), "{later:?}");
    }
}

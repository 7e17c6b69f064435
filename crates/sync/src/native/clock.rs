//! The machine's clock: the time-stamp counter, calibrated once per process.

use std::sync::OnceLock;

use perimeter_base::Time;

#[cfg(not(miri))]
use quanta::Clock;

/// Miri runs no instruction of the processor's own: nanoseconds by the system's clock.
#[cfg(miri)]
#[derive(Debug)]
struct Clock(std::time::Instant);

#[cfg(miri)]
impl Clock {
    fn new() -> Clock {
        Clock(std::time::Instant::now())
    }

    fn raw(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn delta_as_nanos(&self, start: u64, end: u64) -> u64 {
        end - start
    }
}

/// Raw ticks, and what they are in nanoseconds.
///
/// quanta reads the counter only where the processor promises a constant rate that does not
/// stop, in step on all cores, and falls back to `CLOCK_MONOTONIC` elsewhere; its calibration is
/// the process's, done at the first use (some ten to two hundred milliseconds).
#[derive(Debug)]
pub(crate) struct Ticks {
    clock: Clock,
    /// What two reads in a row are apart, at least: taken off every measured hold time.
    read_cost: u64,
}

impl Ticks {
    /// The process's.
    pub(crate) fn get() -> &'static Ticks {
        static TICKS: OnceLock<Ticks> = OnceLock::new();
        TICKS.get_or_init(|| {
            let clock = Clock::new();
            let read_cost = (0..64)
                .map(|_| {
                    let a = clock.raw();
                    clock.raw().saturating_sub(a)
                })
                .min()
                .unwrap_or(0);
            Ticks { clock, read_cost }
        })
    }

    /// The counter.
    #[inline(always)]
    pub(crate) fn raw(&self) -> u64 {
        self.clock.raw()
    }

    /// Ticks from `start` to `end` without the cost of reading; zero when the counter of another
    /// core is a little behind.
    #[inline]
    pub(crate) fn between(&self, start: u64, end: u64) -> u64 {
        end.saturating_sub(start).saturating_sub(self.read_cost)
    }

    /// A number of ticks in nanoseconds.
    pub(crate) fn to_ns(&self, ticks: u64) -> u64 {
        self.clock.delta_as_nanos(0, ticks)
    }

    /// The time since the counter was `origin`; zero before it.
    #[inline(always)]
    pub(crate) fn since(&self, origin: u64) -> Time {
        // Saturating: the counters of two cores may differ by a few ticks, and a difference
        // below zero would be read as 580 years.
        let raw = self.clock.raw();
        Time(self.clock.delta_as_nanos(origin, raw.max(origin)))
    }
}

//! Time as the protocol sees it: nanoseconds since an epoch of the platform's choosing.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since the platform's epoch (its start).
///
/// Plain and ordered: the protocol never reads a clock, it is told the time. 2^64 ns are 584
/// years, so arithmetic saturates rather than wraps.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The platform's epoch.
    pub const ZERO: Time = Time(0);
    /// Later than everything that happens: "no deadline".
    pub const NEVER: Time = Time(u64::MAX);

    /// From whole microseconds.
    pub const fn from_micros(us: u64) -> Time {
        Time(us.saturating_mul(1_000))
    }

    /// From whole milliseconds.
    pub const fn from_millis(ms: u64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the epoch.
    pub const fn micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the epoch.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How long after `earlier` this is; zero when it is not later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds after `earlier`; zero when it is not later.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus `ns` nanoseconds.
    pub const fn plus(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        self.plus(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Time::NEVER {
            return f.write_str("never");
        }
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time(5) - Time(9), Duration::ZERO);
        assert_eq!(Time(9).nanos_since(Time(5)), 4);
        assert_eq!(Time::from_millis(3).micros(), 3_000);
        assert_eq!(format!("{:?}", Time(1_000_000_001)), "1.000000001s");
    }
}

//! How often a thing may be done that strangers can ask for.

use perimeter_base::Time;

/// A token bucket: so many times a second, and so many at once. Belongs to one thread or stands
/// under a lock.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Time between two, ns.
    interval: u64,
    /// How far ahead of time one may be, ns.
    ahead: u64,
    /// When the next one is due by the rate alone.
    next: u64,
}

impl Bucket {
    /// A full bucket for `rate` a second, at least 1, and `burst` at once.
    pub const fn new(rate: u64, burst: u64) -> Bucket {
        let interval = 1_000_000_000 / if rate == 0 { 1 } else { rate };
        Bucket {
            interval,
            ahead: interval * burst.saturating_sub(1),
            next: 0,
        }
    }

    /// Whether it may be done now; counted as done if so.
    pub fn take(&mut self, now: Time) -> bool {
        let next = self.next.max(now.0);
        let may = next - now.0 <= self.ahead;
        if may {
            self.next = next.saturating_add(self.interval);
        }
        may
    }
}

/// Limits for what a thread sends to strangers, each thread's its own: keeping to them writes
/// nothing that is shared.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Resets for segments without a connection: 1,000 a second, 250 at once.
    pub resets: Bucket,
    /// Echo replies: 1,000 a second, 250 at once.
    pub echoes: Bucket,
    /// Errors about datagrams that nobody wants: 1,000 a second, 250 at once.
    pub errors: Bucket,
    /// Neighbour advertisements and listener reports that were asked for: likewise.
    pub adverts: Bucket,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            resets: Bucket::new(1_000, 250),
            echoes: Bucket::new(1_000, 250),
            errors: Bucket::new(1_000, 250),
            adverts: Bucket::new(1_000, 250),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_burst_then_as_the_rate() {
        for start in [0, 1, 77_000_000_000] {
            let mut b = Bucket::new(1_000, 50);
            let taken = (0..1_000).filter(|_| b.take(Time(start))).count();
            assert_eq!(taken, 50, "{start}");
            let later = (0..1_000_000).filter(|n| b.take(Time(start + n * 1_000)));
            assert_eq!(
                later.count(),
                999,
                "a second's, less the one that was due at its start"
            );
            // Idle for long is a burst, not more.
            let idle = Time(start + 100_000_000_000);
            assert_eq!((0..1_000).filter(|_| b.take(idle)).count(), 50);
            // Threads read their clocks in any order.
            assert!(!b.take(Time(start)));
        }
    }
}

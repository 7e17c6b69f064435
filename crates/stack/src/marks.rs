//! Water marks between TCP and a receive queue, with back-enabling: what `canputnext`, `putnext`
//! and `getq` are to STREAMS, without its messages (`pef_q_t`; Yu and Curtis, section 3.3).
//!
//! The paper names the three operations; the marks are STREAMS'. Full at the high mark, which is
//! soft, for what is put is never refused; full until below the low mark. A
//! [`Marks::can_put_next`] that fails records that TCP waits; the first [`Marks::get`] that ends
//! fullness says so once, and TCP then sends the window update that the peer waits for.

use crate::planted::{Bug, planted};

/// What a queue holds against its marks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    high: u32,
    low: u32,
    /// Octets put and not yet got.
    held: u32,
    full: bool,
    waiter: bool,
}

impl Marks {
    /// The marks of an empty queue of `limit` octets for segments of `mss`. While it is not full
    /// its free space is worth a segment even when the window lags a step behind it; so a peer
    /// never stops for a window of which nobody was to tell it more.
    #[must_use]
    pub fn new(limit: u32, mss: u16) -> Marks {
        let mut m = Marks {
            high: 1,
            low: 1,
            held: 0,
            full: false,
            waiter: false,
        };
        m.set_limit(limit, mss);
        m
    }

    /// Moves the marks to another limit.
    pub fn set_limit(&mut self, limit: u32, mss: u16) {
        let mss = u32::from(mss);
        let slack = (limit / 2).min(2 * mss) + (limit / 2).min(mss);
        self.high = limit.saturating_sub(slack).max(1);
        self.low = (self.high / 2).max(1);
        self.full = self.held >= self.high;
        // TCP learns of the new limit now, and that there is no room: it is to be told when there
        // is.
        self.waiter |= self.full;
    }

    /// Whether the queue is not full. If it is, whoever asks waits to be enabled again.
    #[inline]
    pub fn can_put_next(&mut self) -> bool {
        self.waiter |= self.full;
        !self.full
    }

    /// `n` octets are put, be the queue full or not.
    #[inline]
    pub fn put_next(&mut self, n: u32) {
        self.held += n;
        self.full |= self.held >= self.high;
    }

    /// `n` octets are got. True: whoever waits is enabled again; said once.
    #[inline]
    #[must_use]
    pub fn get(&mut self, n: u32) -> bool {
        self.held = self.held.saturating_sub(n);
        if self.full && self.held < self.low {
            self.full = false;
            return core::mem::take(&mut self.waiter) && !planted(Bug::BackEnableMissing);
        }
        false
    }

    /// Octets put and not yet got.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_from_the_high_mark_until_below_the_low_one() {
        let mut m = Marks::new(64_000, 1000);
        assert_eq!((m.high, m.low), (61_000, 30_500));
        m.put_next(60_999);
        assert!(m.can_put_next());
        m.put_next(1);
        assert!(!m.can_put_next(), "the mark itself is full");
        m.put_next(5_000);
        assert_eq!(m.held(), 66_000, "soft: a put may overshoot");
        assert!(!m.get(35_499), "30,501 are left");
        assert!(!m.get(1), "the low mark itself is still full");
        assert!(!m.can_put_next());
        assert!(m.get(1), "below: the waiter is enabled");
        assert!(m.can_put_next());
        assert!(!m.get(1), "once");
    }

    #[test]
    fn who_did_not_ask_is_not_told() {
        let mut m = Marks::new(10, 1000);
        m.put_next(10);
        assert!(!m.get(10), "nobody waits");
        assert!(m.can_put_next());
    }

    #[test]
    fn a_raised_limit_ends_fullness_and_a_lowered_one_begins_it() {
        let mut m = Marks::new(10_000, 1000);
        m.put_next(8_000);
        assert!(!m.can_put_next());
        m.set_limit(100_000, 1000);
        assert!(m.can_put_next());
        m.set_limit(4_000, 1000);
        assert!(!m.can_put_next());
        assert!(m.get(8_000));
    }

    /// Whatever is put and got: a queue that TCP found full tells it once it is no longer.
    #[test]
    fn no_waiter_is_forgotten() {
        let mut x = 88_172_645_463_325_252u64;
        let mut draw = |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x % n
        };
        for round in 0..200u32 {
            let limit = 1 + draw(100_000) as u32;
            let mut m = Marks::new(limit, 536 + draw(9000) as u16);
            let mut waits = false;
            for _ in 0..200 {
                if draw(2) == 0 {
                    m.put_next(1 + draw(3000) as u32);
                    waits |= !m.can_put_next();
                } else {
                    let told = m.get(draw(6000) as u32);
                    assert_eq!(told, waits && !m.full, "round {round}: {m:?}");
                    waits &= m.full;
                }
            }
            let rest = m.get(m.held());
            assert_eq!(rest, waits, "round {round}: emptied, and nobody was told");
            assert!(m.can_put_next());
        }
    }
}

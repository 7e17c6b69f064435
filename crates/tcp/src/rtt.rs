//! Round-trip time estimation and the retransmission timeout (RFC 6298).
//!
//! What the connection calls, and when:
//!
//! * [`Rtt::sample`] once per acknowledgment that advances `SND.UNA` and carries a usable
//!   measurement: an echoed timestamp (RFC 7323, section 4), or the age of a segment that was
//!   sent exactly once (Karn). It also ends any back-off, because a sample proves that the path
//!   delivers again (RFC 6298, section 5.7).
//! * [`Rtt::backoff`] when the retransmission or persist timer fires.
//! * [`Rtt::reset_backoff`] when an acknowledgment advances `SND.UNA` but gives no sample.

use perimeter_base::Time;
use perimeter_wire::Seq;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// Largest doubling count kept: 2^16 times the smallest RTO is beyond any sensible maximum.
const MAX_BACKOFF: u8 = 16;

/// Estimator state. All times are nanoseconds.
#[derive(Clone, Debug)]
pub struct Rtt {
    /// Smoothed round-trip time scaled by 8, so that the 1/8 gain loses no precision.
    srtt8: u64,
    /// Mean deviation scaled by 4, for the 1/4 gain.
    var4: u64,
    min: u32,
    initial_ms: u32,
    rto_min_ms: u32,
    rto_max_ms: u32,
    backoff: u8,
}

impl Rtt {
    /// An estimator without a sample. Until the first one the timeout is `rto_initial_ns`
    /// (RFC 6298, section 2.1: 1 s). Limits are kept in whole milliseconds.
    pub fn new(rto_initial_ns: u64, rto_min_ns: u64, rto_max_ns: u64) -> Rtt {
        let ms = |ns: u64| u32::try_from(ns.div_ceil(MS)).unwrap_or(u32::MAX);
        Rtt {
            srtt8: 0,
            var4: 0,
            min: u32::MAX,
            initial_ms: ms(rto_initial_ns),
            rto_min_ms: ms(rto_min_ns),
            rto_max_ms: ms(rto_max_ns).max(1),
            backoff: 0,
        }
    }

    /// Takes one measurement and ends any back-off. A measurement of zero counts as 1 ns.
    #[inline]
    pub fn sample(&mut self, rtt_ns: u64) {
        // An hour bounds what a forged timestamp echo can claim.
        let rtt = rtt_ns.clamp(1, 3_600_000 * MS);
        self.backoff = 0;
        self.min = self.min.min(u32::try_from(rtt).unwrap_or(u32::MAX - 1));
        if self.srtt8 == 0 {
            self.srtt8 = rtt * 8;
            self.var4 = rtt * 2;
            return;
        }
        let srtt = self.srtt8 / 8;
        let mut dev = rtt.abs_diff(srtt);
        // A sample far below the mean is good news. Feeding it into the variance at full
        // weight would raise the timeout on a falling RTT (Eifel, Linux): damp it.
        if rtt < srtt && dev > self.var4 / 4 {
            dev = self.var4 / 4 + (dev - self.var4 / 4) / 8;
        }
        self.var4 = self.var4 - self.var4 / 4 + dev;
        self.srtt8 = self.srtt8 - srtt + rtt;
    }

    /// Smoothed round-trip time; zero before the first sample.
    #[inline]
    pub fn srtt(&self) -> u64 {
        self.srtt8 / 8
    }

    /// Round-trip time variation (RTTVAR); zero before the first sample.
    pub fn rttvar(&self) -> u64 {
        self.var4 / 4
    }

    /// Smallest sample, `None` before the first. Saturates at about 4.29 s.
    pub fn min_rtt(&self) -> Option<u64> {
        (self.min != u32::MAX).then_some(u64::from(self.min))
    }

    /// The timeout without back-off: `SRTT + max(rto_min, 4·RTTVAR)`, at most `rto_max`.
    ///
    /// RFC 6298 puts the floor under the sum; here it stands under the variance term, as Linux
    /// does, so that a path whose RTT exceeds the floor keeps a margin for delayed
    /// acknowledgments when its variance collapses.
    #[inline]
    pub fn base_rto(&self) -> u64 {
        let max = u64::from(self.rto_max_ms) * MS;
        if self.srtt8 == 0 {
            return (u64::from(self.initial_ms) * MS).min(max);
        }
        let var = self.var4.max(u64::from(self.rto_min_ms) * MS);
        (self.srtt8 / 8 + var).min(max)
    }

    /// The timeout to arm now, back-off included.
    #[inline]
    pub fn rto(&self) -> u64 {
        let max = u64::from(self.rto_max_ms) * MS;
        self.base_rto().saturating_mul(1 << self.backoff).min(max)
    }

    /// Doubles the timeout (RFC 6298, section 5.5).
    pub fn backoff(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// How often the timeout has been doubled since the last progress.
    pub fn backoffs(&self) -> u8 {
        self.backoff
    }

    /// Ends the back-off without a sample.
    #[inline]
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// After a SYN that was retransmitted the data phase starts from 3 s when there is no
    /// sample (RFC 6298, section 5.7).
    pub fn syn_was_retransmitted(&mut self) {
        if self.srtt8 == 0 {
            self.initial_ms = 3000;
            self.backoff = 0;
        }
    }
}

/// Send times kept by [`SendTimes`].
const TIMES: usize = 32;

/// When recent segments were first sent, for several RTT samples per round trip without the
/// timestamp option, and with more than its millisecond of resolution.
///
/// A connection times one segment per round trip, which is enough for the timeout. HyStart
/// needs eight or more ([`crate::cc::Cc::wants_samples`]): while it asks, keep one of these in
/// a box, call [`SendTimes::on_send`] for every new segment and take the RTT sample from
/// [`SendTimes::on_ack`]; drop it when HyStart has lost interest and it is empty.
#[derive(Clone, Debug)]
pub struct SendTimes {
    /// One past the segment's last octet, and the clock in µs (which wraps).
    ring: [(Seq, u32); TIMES],
    head: u8,
    len: u8,
}

impl Default for SendTimes {
    fn default() -> SendTimes {
        SendTimes::new()
    }
}

impl SendTimes {
    /// An empty record.
    pub fn new() -> SendTimes {
        SendTimes {
            ring: [(Seq(0), 0); TIMES],
            head: 0,
            len: 0,
        }
    }

    /// New data up to `end` was sent. Segments are recorded at most every `window`/24 octets,
    /// so that the record spans the window; when it is full, newer ones are not.
    #[inline]
    pub fn on_send(&mut self, end: Seq, window: u32, now: Time) {
        if self.len > 0 {
            let last = usize::from(self.head + self.len - 1) % TIMES;
            let near = end.since(self.ring[last].0) < window / 24;
            if near || usize::from(self.len) == TIMES {
                return;
            }
        }
        let at = usize::from(self.head + self.len) % TIMES;
        self.ring[at] = (end, now.micros() as u32);
        self.len += 1;
    }

    /// Everything before `ack` was acknowledged: the age of the segment sent last among those
    /// that this releases, ns.
    #[inline]
    pub fn on_ack(&mut self, ack: Seq, now: Time) -> Option<u64> {
        let mut sent = None;
        while self.len > 0 {
            let (end, at) = self.ring[usize::from(self.head)];
            if end.gt(ack) {
                break;
            }
            sent = Some(at);
            self.head = (self.head + 1) % TIMES as u8;
            self.len -= 1;
        }
        let us = (now.micros() as u32).wrapping_sub(sent?);
        Some(u64::from(us.max(1)) * 1_000)
    }

    /// Something was sent again: an acknowledgment may now be for either copy (Karn).
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests;

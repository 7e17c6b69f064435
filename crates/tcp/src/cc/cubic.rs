//! CUBIC's window function (RFC 9438, sections 4.2 to 4.5 and 4.7).
//!
//! Windows are whole segments here and time is in ticks of 1/1024 s, so that the cubic is a
//! few integer multiplications. The result is rounded as Linux rounds it: targets are whole
//! segments, and the window is recomputed when it changed or 1/32 s after the last time.

/// β_cubic × 1024 (RFC 9438, section 4.6: 0.7).
pub(super) const BETA: u32 = 717;
/// Denominator of [`BETA`].
pub(super) const BETA_ONE: u32 = 1024;

/// Ticks per second.
const TICKS: u64 = 1024;
/// Age at which the increment is recomputed although the window did not change.
const RECALC: u32 = (TICKS / 32) as u32;
/// Without a known W_max the window grows by a segment per this many at the latest (Linux).
const PROBE_CNT: u32 = 20;
/// Longest time on the curve: the cube of it, in ticks, still fits 63 bits.
const T_MAX: u64 = 1 << 20;

/// State of the current congestion-avoidance epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// W_max, octets; 0 when no loss is remembered.
    pub(super) w_max: u32,
    /// Smallest RTT since the last timeout, µs; 0 when there is none.
    pub(super) delay_min: u32,
    /// The window before the last reduction (cwnd_prior), octets.
    prior: u32,
    /// When the epoch started, ticks.
    epoch: u32,
    /// When `cnt` was computed, ticks.
    computed: u32,
    /// K, ticks.
    k: u32,
    /// The plateau: W_max, or the window at the start of an epoch that began above it.
    origin: u32,
    /// Window that Reno would have reached in this epoch (W_est), segments.
    w_est: u32,
    /// Octets acknowledged towards the next increment of `w_est`.
    est_credit: u32,
    /// Segments to be acknowledged per segment of growth.
    cnt: u32,
    in_epoch: bool,
    /// The window changed since `cnt` was computed.
    pub(super) stale: bool,
}

/// The clock in ticks; wraps after 48 days, which only differences see.
pub(super) fn ticks(ns: u64) -> u32 {
    // 1024 / 10⁹ = 2 / 1953125, exactly.
    ((ns / 1_953_125) * 2 + (ns % 1_953_125) * 2 / 1_953_125) as u32
}

/// ⌊∛x⌋, digit by digit.
pub(super) fn cbrt(mut x: u64) -> u32 {
    let mut y: u64 = 0;
    let mut shift = 63;
    loop {
        y <<= 1;
        let bit = 3 * y * (y + 1) + 1;
        if x >> shift >= bit {
            x -= bit << shift;
            y += 1;
        }
        if shift == 0 {
            return y as u32;
        }
        shift -= 3;
    }
}

impl Cubic {
    /// A loss at a window of `cwnd` octets: remembers W_max, with fast convergence
    /// (section 4.7), and returns the new threshold in octets.
    pub(super) fn on_loss(&mut self, cwnd: u32, mss: u32) -> u32 {
        let segs = cwnd / mss;
        self.w_max = if cwnd < self.w_max {
            // cwnd · (1 + β) / 2
            segs_times(segs, BETA_ONE + BETA, 2 * BETA_ONE) * mss
        } else {
            segs * mss
        };
        self.prior = cwnd;
        self.in_epoch = false;
        segs_times(segs, BETA, BETA_ONE).max(2) * mss
    }

    /// After a timeout the next epoch starts with K = 0 from its own window (section 4.8),
    /// and the path may be another: nothing measured counts.
    pub(super) fn on_rto(&mut self) {
        self.w_max = 0;
        self.delay_min = 0;
        self.in_epoch = false;
    }

    /// The next congestion-avoidance acknowledgment starts a new epoch.
    pub(super) fn end_epoch(&mut self) {
        self.in_epoch = false;
    }

    /// Takes idle time out of the epoch.
    pub(super) fn skip_idle(&mut self, idle: u32, now: u32) {
        if self.in_epoch {
            let age = now.wrapping_sub(self.epoch);
            self.epoch = now.wrapping_sub(age.saturating_sub(idle));
        }
    }

    /// Whether the epoch is younger than a second: its round trips still carry the queue that
    /// the loss event drained.
    pub(super) fn just_reduced(&self, now: u32) -> bool {
        self.in_epoch && now.wrapping_sub(self.epoch) < TICKS as u32
    }

    /// Segments to be acknowledged per segment of growth, at least 2: the window grows by at
    /// most half per round trip (section 4.2: target ≤ 1.5 · cwnd).
    #[inline]
    pub(super) fn update(&mut self, cwnd: u32, mss: u32, acked: u32, now: u32) -> u32 {
        self.est_credit = self.est_credit.saturating_add(acked);
        if self.in_epoch && !self.stale && now.wrapping_sub(self.computed) <= RECALC {
            return self.cnt;
        }
        self.recompute(cwnd, mss, acked, now)
    }

    fn recompute(&mut self, cwnd: u32, mss: u32, acked: u32, now: u32) -> u32 {
        let segs = (cwnd / mss).max(1);
        self.stale = false;
        // The cubic moves little within a tick; the Reno estimate may move with every ACK.
        if !self.in_epoch || now != self.computed {
            self.computed = now;
            if !self.in_epoch {
                self.start_epoch(segs, mss, acked, now);
            }
            let target = self.target(now);
            self.cnt = if target > segs {
                segs / (target - segs)
            } else {
                segs.saturating_mul(100)
            };
            if self.w_max == 0 {
                self.cnt = self.cnt.min(PROBE_CNT);
            }
        }
        self.reno_friendly(segs, mss);
        self.cnt = self.cnt.max(2);
        self.cnt
    }

    fn start_epoch(&mut self, segs: u32, mss: u32, acked: u32, now: u32) {
        self.in_epoch = true;
        self.epoch = now;
        self.est_credit = acked;
        self.w_est = segs;
        let w_max = self.w_max / mss;
        if w_max <= segs {
            self.k = 0;
            self.origin = segs;
        } else {
            // K = ∛((W_max − cwnd) / C), C = 0.4, in ticks: 2.5 · 2³⁰ under the root.
            let diff = u64::from(w_max - segs).min(1 << 30);
            self.k = cbrt(diff * (5 << 29));
            self.origin = w_max;
        }
    }

    /// W_cubic(t + RTT), segments. The RTT is the smallest: queueing delay is not credited.
    fn target(&self, now: u32) -> u32 {
        let rtt = u64::from(self.delay_min) * TICKS / 1_000_000;
        let t = u64::from(now.wrapping_sub(self.epoch)) + rtt;
        let k = u64::from(self.k);
        let offs = t.abs_diff(k).min(T_MAX);
        // 0.4 · (offs / 1024)³ = offs³ / (5 · 2²⁹)
        let delta = u32::try_from(offs * offs * offs / (5 << 29)).unwrap_or(u32::MAX);
        if t < k {
            self.origin.saturating_sub(delta)
        } else {
            self.origin.saturating_add(delta)
        }
    }

    /// The Reno-friendly region (section 4.3): never grow slower than Reno would with the
    /// same β.
    fn reno_friendly(&mut self, segs: u32, mss: u32) {
        // Octets acknowledged per segment of W_est: cwnd / α, where α is 3(1−β)/(1+β), that
        // is 8/15, until W_est has regained the window before the reduction, and then 1.
        let regained = self.prior != 0 && self.w_est >= self.prior / mss;
        let num = if regained { 8 } else { 15 };
        let per = u64::from(segs) * u64::from(mss) * num / 8;
        let credit = u64::from(self.est_credit);
        if credit > per {
            let n = (credit - 1) / per;
            self.est_credit = (credit - n * per) as u32;
            self.w_est = self.w_est.saturating_add(n as u32);
        }
        if self.w_est > segs {
            self.cnt = self.cnt.min(segs / (self.w_est - segs));
        }
    }
}

/// `segs · num / den`, rounded down.
fn segs_times(segs: u32, num: u32, den: u32) -> u32 {
    (u64::from(segs) * u64::from(num) / u64::from(den)) as u32
}

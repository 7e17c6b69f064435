//! Congestion control: CUBIC (RFC 9438) and NewReno (RFC 5681) behind one value type.
//!
//! What the connection calls, and when:
//!
//! | moment | call |
//! |---|---|
//! | connection established | [`Cc::new`], [`CwndUsage::new`] |
//! | an output run has sent data | [`CwndUsage::on_send`] |
//! | new data was sent, [`Cc::wants_samples`] | [`crate::rtt::SendTimes::on_send`] |
//! | a segment was sent in recovery | [`Prr::on_send`] |
//! | first new data after `SND.UNA == SND.NXT` | [`Cc::on_tx_start`] before sending |
//! | ACK of new data, outside recovery (open, disorder, loss after RTO) | [`Cc::on_ack`] |
//! | entering fast recovery | [`Cc::on_loss`], then [`Prr::new`] |
//! | every ACK in fast recovery | [`Prr::on_ack`] (sets the window); not [`Cc::on_ack`] |
//! | `SND.UNA` reaches the recovery point | [`Cc::on_recovery_exit`] |
//! | retransmission timeout | [`Cc::on_rto`] |
//! | path MTU or MSS changed | [`Cc::on_mss_change`] |

mod cubic;
mod hystart;
mod prr;
mod usage;

use alloc::{borrow::ToOwned, string::String};
use core::fmt;
use core::str::FromStr;

use perimeter_base::Time;
use perimeter_wire::Seq;

pub use prr::Prr;
pub use usage::CwndUsage;

use cubic::Cubic;
use hystart::{HyState, LOW_WINDOW, Sample};

/// The slow-start threshold before the first loss: unlimited.
pub const SSTHRESH_INFINITE: u32 = u32::MAX;

/// The largest window: what a scaled receive window can reach (RFC 7323, section 2.3).
const CWND_MAX: u32 = 1 << 30;

/// Which algorithm governs the window.
///
/// ```
/// use perimeter_tcp::CcKind;
///
/// // As the command line names them.
/// let kind: CcKind = "newreno".parse()?;
/// assert_eq!(kind, CcKind::NewReno);
/// assert_eq!(CcKind::default().to_string(), "cubic");
/// let error = "bbr".parse::<CcKind>().expect_err("there is none of that name");
/// println!("{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CcKind {
    /// CUBIC, RFC 9438, with Linux's integer granularity.
    #[default]
    Cubic,
    /// NewReno, RFC 5681 with appropriate byte counting.
    NewReno,
}

impl fmt::Display for CcKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CcKind::Cubic => "cubic",
            CcKind::NewReno => "newreno",
        })
    }
}

/// The name given is not that of a congestion control algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCcError(pub String);

impl fmt::Display for UnknownCcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown congestion control {:?} (known: cubic, newreno, reno)",
            self.0
        )
    }
}

impl core::error::Error for UnknownCcError {}

impl FromStr for CcKind {
    type Err = UnknownCcError;
    fn from_str(s: &str) -> Result<CcKind, UnknownCcError> {
        match s {
            "cubic" => Ok(CcKind::Cubic),
            "newreno" | "reno" => Ok(CcKind::NewReno),
            _ => Err(UnknownCcError(s.to_owned())),
        }
    }
}

/// What one acknowledgment of new data says to congestion control.
#[derive(Copy, Clone, Debug)]
pub struct Ack {
    /// Octets that left the network according to this acknowledgment: acknowledged or SACKed
    /// for the first time, each once ([`crate::sack::SackUpdate::delivered`]; without a
    /// scoreboard, what SND.UNA advanced by).
    pub acked: u32,
    /// Whether the window, not the application or the peer, was what limited sending:
    /// [`CwndUsage::is_limited`]. The window grows only if so (RFC 7661's concern).
    pub cwnd_limited: bool,
    /// The round-trip sample of this acknowledgment in nanoseconds, if it gave one.
    pub rtt_ns: Option<u64>,
    /// `SND.UNA` after this acknowledgment.
    pub snd_una: Seq,
    /// `SND.NXT` now.
    pub snd_nxt: Seq,
    /// How many acknowledgments this one stands for: those that arrived together are merged.
    pub segs: u32,
    /// Now.
    pub now: Time,
}

/// Congestion state of one connection. Windows are in octets.
///
/// Growth in congestion avoidance happens in whole segments and reductions round down to
/// whole segments, as in Linux; between them every quantity is an integer and the common
/// acknowledgment costs an addition and a comparison.
#[derive(Clone, Debug)]
pub struct Cc {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    /// Octets acknowledged towards the next congestion-avoidance increment.
    credit: u32,
    kind: CcKind,
    iw_segments: u16,
    hy: HyState,
    cubic: Cubic,
}

impl Cc {
    /// State of a new connection: window `iw_segments` × `mss` (RFC 6928: 10), no threshold.
    /// `mss` below 1 and `iw_segments` below 1 count as 1.
    pub fn new(kind: CcKind, mss: u32, iw_segments: u32) -> Cc {
        let mss = mss.clamp(1, 65_535);
        let iw = iw_segments.clamp(1, 16_384) as u16;
        Cc {
            cwnd: u32::from(iw) * mss,
            ssthresh: SSTHRESH_INFINITE,
            mss,
            credit: 0,
            kind,
            iw_segments: iw,
            hy: HyState::default(),
            cubic: Cubic::default(),
        }
    }

    /// The algorithm.
    pub fn kind(&self) -> CcKind {
        self.kind
    }

    /// Congestion window, octets. At least one segment.
    #[inline]
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Slow-start threshold, octets; [`SSTHRESH_INFINITE`] before the first loss.
    #[inline]
    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// The segment size the state counts in, octets.
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// Whether RTT samples, many per round trip, would be of use now: slow start watches for
    /// its end. See [`crate::rtt::SendTimes`].
    #[inline]
    pub fn wants_samples(&self) -> bool {
        self.kind == CcKind::Cubic
            && !self.hy.done
            && self.in_slow_start()
            && u64::from(self.cwnd) * 2 >= u64::from(LOW_WINDOW) * u64::from(self.mss)
    }

    /// `cwnd < ssthresh`.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// An acknowledgment of new data outside fast recovery. Duplicate acknowledgments
    /// (`acked` 0) change nothing but the RTT state.
    #[inline]
    pub fn on_ack(&mut self, a: &Ack) {
        if self.kind == CcKind::Cubic
            && let Some(rtt) = a.rtt_ns
        {
            self.on_rtt(rtt, a);
        }
        if !a.cwnd_limited || a.acked == 0 {
            return;
        }
        let mut acked = a.acked.min(CWND_MAX);
        if self.cwnd < self.ssthresh {
            acked = self.slow_start(acked);
            if acked == 0 {
                return;
            }
        }
        let per_segment = match self.kind {
            CcKind::NewReno => u64::from(self.cwnd),
            CcKind::Cubic => {
                let now = cubic::ticks(a.now.nanos());
                let cnt = self.cubic.update(self.cwnd, self.mss, acked, now);
                u64::from(cnt) * u64::from(self.mss)
            }
        };
        self.grow(acked, per_segment);
    }

    /// Slow start up to the threshold; returns the octets it did not use.
    #[inline]
    fn slow_start(&mut self, acked: u32) -> u32 {
        let used = acked.min(self.ssthresh - self.cwnd);
        self.cwnd = (self.cwnd + used).min(CWND_MAX);
        self.cubic.stale = true;
        acked - used
    }

    /// Congestion avoidance: one segment per `per_segment` octets acknowledged.
    #[inline]
    fn grow(&mut self, acked: u32, per_segment: u64) {
        let mut credit = u64::from(self.credit);
        let mut segs = 0;
        // The credit was earned at a slower rate than the one that holds now: it buys one
        // segment, no more.
        if credit >= per_segment {
            credit = 0;
            segs = 1;
        }
        credit += u64::from(acked);
        if credit >= per_segment {
            segs += credit / per_segment;
            credit %= per_segment;
        }
        self.credit = u32::try_from(credit).unwrap_or(u32::MAX);
        if segs > 0 {
            let next = u64::from(self.cwnd) + segs * u64::from(self.mss);
            self.cwnd = u32::try_from(next).unwrap_or(CWND_MAX).min(CWND_MAX);
            self.cubic.stale = true;
        }
    }

    /// A round-trip sample: the minimum, and whether slow start should end.
    #[inline]
    fn on_rtt(&mut self, rtt_ns: u64, a: &Ack) {
        let rtt = u32::try_from(rtt_ns / 1_000).unwrap_or(u32::MAX).max(1);
        if self.cubic.just_reduced(cubic::ticks(a.now.nanos())) {
            return;
        }
        if self.cubic.delay_min == 0 || rtt < self.cubic.delay_min {
            self.cubic.delay_min = rtt;
        }
        if !self.hy.done
            && self.in_slow_start()
            && u64::from(self.cwnd) >= u64::from(LOW_WINDOW) * u64::from(self.mss)
        {
            self.watch_slow_start(rtt, a);
        }
    }

    fn watch_slow_start(&mut self, rtt: u32, a: &Ack) {
        let s = Sample {
            rtt,
            delay_min: self.cubic.delay_min,
            snd_una: a.snd_una,
            snd_nxt: a.snd_nxt,
            segs: a.segs.min(255) as u8,
            now: a.now.micros() as u32,
        };
        if self.hy.ends(&s) {
            self.ssthresh = self.cwnd;
        }
    }

    /// A loss was detected other than by timeout (entering fast recovery): sets `ssthresh`.
    /// The window itself is left to [`Prr`] or [`Cc::set_cwnd`].
    ///
    /// `flight` is FlightSize, octets sent and not acknowledged, without those sent by
    /// limited transmit. NewReno halves it (RFC 5681, equation 4); CUBIC reduces the window,
    /// which [`CwndUsage`] keeps from exceeding what was used (RFC 9438, section 4.6).
    pub fn on_loss(&mut self, flight: u32) {
        self.credit = 0;
        self.ssthresh = match self.kind {
            CcKind::Cubic => self.cubic.on_loss(self.cwnd, self.mss),
            CcKind::NewReno => {
                let segs = flight.min(self.cwnd) / 2 / self.mss;
                segs.max(2) * self.mss
            }
        };
    }

    /// The retransmission timer fired. The window becomes one segment.
    ///
    /// `first` is false when the same segment timed out before without progress: then
    /// `ssthresh` is left alone (RFC 5681, section 3.1). Pass false also when the timer fires
    /// within fast recovery, which has reduced already (Linux).
    pub fn on_rto(&mut self, flight: u32, first: bool) {
        if first {
            self.on_loss(flight);
        }
        self.cubic.on_rto();
        self.hy = HyState::default();
        self.cwnd = self.mss;
        self.credit = 0;
        self.cubic.stale = true;
    }

    /// Recovery is over: the window becomes `ssthresh`.
    pub fn on_recovery_exit(&mut self) {
        if self.ssthresh != SSTHRESH_INFINITE {
            self.set_cwnd(self.ssthresh);
        }
    }

    /// Call before the first new data when nothing is outstanding. `idle_ns` is the time
    /// since the last data was sent, `rto_ns` the current timeout.
    ///
    /// Time spent idle does not count towards CUBIC's growth (RFC 9438, section 4.2). With
    /// `restart` (Linux's `tcp_slow_start_after_idle`, RFC 2861) and after more than a
    /// timeout, the window also halves for every timeout that passed, down to the initial
    /// window, and `ssthresh` remembers three quarters of it.
    pub fn on_tx_start(&mut self, idle_ns: u64, rto_ns: u64, restart: bool, now: Time) {
        let ticks = cubic::ticks(now.nanos());
        self.cubic.skip_idle(cubic::ticks(idle_ns), ticks);
        if !restart || idle_ns <= rto_ns {
            return;
        }
        let floor = (u32::from(self.iw_segments) * self.mss).min(self.cwnd);
        if self.ssthresh != SSTHRESH_INFINITE {
            let remembered = (u64::from(self.cwnd) * 3 / 4) as u32;
            self.ssthresh = self.ssthresh.max(remembered);
        }
        let mut left = idle_ns;
        let mut cwnd = self.cwnd;
        // At most 31 rounds: the window reaches its floor.
        while left > rto_ns && cwnd > floor {
            left -= rto_ns;
            cwnd /= 2;
        }
        self.set_cwnd(cwnd.max(floor));
        self.credit = 0;
    }

    /// Sets the window, within one segment and 1 GiB.
    #[inline]
    pub fn set_cwnd(&mut self, octets: u32) {
        self.cwnd = octets.clamp(self.mss, CWND_MAX);
        self.cubic.stale = true;
    }

    /// The segment size changed: the window keeps its number of octets, but is at least one
    /// segment.
    pub fn on_mss_change(&mut self, mss: u32) {
        self.mss = mss.clamp(1, 65_535);
        self.cubic.end_epoch();
        self.set_cwnd(self.cwnd);
        if self.ssthresh != SSTHRESH_INFINITE {
            self.ssthresh = self.ssthresh.max(2 * self.mss);
        }
    }
}

#[cfg(test)]
mod tests;

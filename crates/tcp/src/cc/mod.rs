//! Congestion control: CUBIC (RFC 9438) and NewReno (RFC 5681) behind one value type.
//!
//! What the connection calls, and when:
//!
//! | moment | call |
//! |---|---|
//! | connection established | [`Cc::new`], [`CwndUsage::new`] |
//! | a data segment was sent | [`CwndUsage::on_send`]; in recovery also [`Prr::on_send`] |
//! | first new data after `SND.UNA == SND.NXT` | [`Cc::on_tx_start`] before sending |
//! | ACK of new data, outside recovery (open, disorder, loss after RTO) | [`Cc::on_ack`] |
//! | entering fast recovery | [`Cc::on_loss`], then [`Prr::new`] |
//! | every ACK in fast recovery | [`Prr::on_ack`] (sets the window); not [`Cc::on_ack`] |
//! | `SND.UNA` reaches the recovery point | [`Cc::on_recovery_exit`] |
//! | retransmission timeout | [`Cc::on_rto`] |
//! | recovery or timeout shown spurious (D-SACK, Eifel) | [`Cc::undo`] |
//! | path MTU or MSS changed | [`Cc::on_mss_change`] |

mod cubic;
mod hystart;
mod prr;
mod usage;

use core::fmt;
use core::str::FromStr;

use perimeter_base::Time;
use perimeter_wire::Seq;

pub use hystart::HyStart;
pub use prr::Prr;
pub use usage::CwndUsage;

use cubic::Cubic;
use hystart::HyState;

/// The slow-start threshold before the first loss: unlimited.
pub const SSTHRESH_INFINITE: u32 = u32::MAX;

/// Which algorithm governs the window.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
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
pub struct UnknownCc(pub String);

impl fmt::Display for UnknownCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown congestion control {:?} (known: cubic, newreno, reno)",
            self.0
        )
    }
}

impl std::error::Error for UnknownCc {}

impl FromStr for CcKind {
    type Err = UnknownCc;
    fn from_str(s: &str) -> Result<CcKind, UnknownCc> {
        match s {
            "cubic" => Ok(CcKind::Cubic),
            "newreno" | "reno" => Ok(CcKind::NewReno),
            _ => Err(UnknownCc(s.to_owned())),
        }
    }
}

/// What one acknowledgment of new data says to congestion control.
#[derive(Copy, Clone, Debug)]
pub struct Ack {
    /// Octets newly acknowledged, cumulatively. In slow start after a timeout octets that
    /// were SACKed before count too, as the cumulative point passes them.
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
    /// Now.
    pub now: Time,
}

/// What a loss event overwrote, so that it can be undone.
#[derive(Copy, Clone, Debug, Default)]
struct Saved {
    cwnd: u32,
    ssthresh: u32,
    w_max: u32,
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
    hystart: HyStart,
    iw_segments: u16,
    hy: HyState,
    cubic: Cubic,
    saved: Saved,
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
            hystart: HyStart::default(),
            iw_segments: iw,
            hy: HyState::default(),
            cubic: Cubic::default(),
            saved: Saved::default(),
        }
    }

    /// Chooses how slow start ends early (CUBIC only).
    pub fn set_hystart(&mut self, mode: HyStart) {
        self.hystart = mode;
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

    /// `cwnd < ssthresh`.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// An acknowledgment of new data outside fast recovery.
    #[inline]
    pub fn on_ack(&mut self, a: &Ack) {
        let _ = a;
    }

    /// A loss was detected other than by timeout (entering fast recovery): sets `ssthresh`,
    /// remembers what [`Cc::undo`] restores. The window itself is left to [`Prr`] or
    /// [`Cc::set_cwnd`]. `flight` is FlightSize, octets sent and not acknowledged, without
    /// those sent by limited transmit.
    pub fn on_loss(&mut self, flight: u32, now: Time) {
        let _ = (flight, now);
    }

    /// The retransmission timer fired. The window becomes one segment; `first` is false when
    /// the same segment timed out before without progress: then `ssthresh` is left alone
    /// (RFC 5681, section 3.1) and so is what [`Cc::undo`] restores.
    pub fn on_rto(&mut self, flight: u32, first: bool, now: Time) {
        let _ = (flight, first, now);
    }

    /// Recovery is over: the window becomes `ssthresh`.
    pub fn on_recovery_exit(&mut self) {
        self.cwnd = self.ssthresh.min(self.cwnd.max(self.ssthresh));
    }

    /// Call before the first new data when nothing is outstanding. `idle_ns` is the time
    /// since the last data was sent, `rto_ns` the current timeout.
    ///
    /// Time spent idle does not count towards CUBIC's growth (RFC 9438, section 4.2). With
    /// `restart` (Linux's `tcp_slow_start_after_idle`, RFC 2861) the window also halves for
    /// every timeout that passed, down to the initial window.
    pub fn on_tx_start(&mut self, idle_ns: u64, rto_ns: u64, restart: bool, now: Time) {
        let _ = (idle_ns, rto_ns, restart, now);
    }

    /// Sets the window (at least one segment).
    #[inline]
    pub fn set_cwnd(&mut self, octets: u32) {
        self.cwnd = octets.max(self.mss);
    }

    /// The last loss event was spurious: restores window and threshold from before it.
    pub fn undo(&mut self) {}

    /// The segment size changed: the window keeps its octets, but at least one segment.
    pub fn on_mss_change(&mut self, mss: u32) {
        self.mss = mss.clamp(1, 65_535);
    }
}

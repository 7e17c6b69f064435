//! What can be asked of a connection: the counterpart of TCP_INFO.

use core::time::Duration;

use crate::config::Keepalive;
use crate::tcb::State;

/// The congestion state, by Linux's names.
///
/// ```
/// use perimeter_tcp::{CaState, Info};
///
/// /// Whether the path loses what is sent.
/// fn is_losing(info: &Info) -> bool {
///     matches!(info.ca_state, CaState::Recovery | CaState::Loss)
/// }
/// # use perimeter_base::Time;
/// # use perimeter_tcp::{Config, Tcb};
/// # use perimeter_wire::Seq;
/// # let info = Tcb::connect(&Config::default(), Seq(1), 0, Time::ZERO).info(Time::ZERO);
/// assert!(!is_losing(&info), "it has sent nothing yet");
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open = 0,
    /// Duplicate acknowledgments or SACKs, but not enough to call it loss.
    Disorder = 1,
    /// Fast recovery.
    Recovery = 3,
    /// Slow start after a retransmission timeout.
    Loss = 4,
}

/// A snapshot of a connection. Counts of segments are bytes over the MSS, rounded up.
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_tcp::{Config, State, Tcb};
/// use perimeter_wire::Seq;
///
/// // Of a connection that is being opened.
/// let tcb = Tcb::connect(&Config::default(), Seq(1), 0, Time::ZERO);
/// let info = tcb.info(Time::ZERO);
/// assert_eq!(info.state, State::SynSent);
/// assert_eq!((info.retransmits, info.rto.as_secs()), (0, 1));
/// assert!(info.srtt.is_zero(), "nothing has been measured");
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Connection state.
    pub state: State,
    /// Congestion state.
    pub ca_state: CaState,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// SACK is in use.
    pub sack: bool,
    /// Nagle's algorithm is off (TCP_NODELAY).
    pub nodelay: bool,
    /// Partial segments are held back (TCP_CORK).
    pub cork: bool,
    /// How long sent data may stay unacknowledged, if that was said (TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// Keepalive with its times, if it is on (SO_KEEPALIVE).
    pub keepalive: Option<Keepalive>,
    /// Shift count applied to windows received; `None` without window scaling.
    pub snd_wscale: Option<u8>,
    /// Shift count applied to windows sent; `None` without window scaling.
    pub rcv_wscale: Option<u8>,
    /// Consecutive retransmission timeouts.
    pub retransmits: u8,
    /// Unanswered window or keepalive probes.
    pub probes: u8,
    /// How often the timeout has been doubled.
    pub backoff: u8,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Send MSS in octets, options deducted.
    pub snd_mss: u32,
    /// Estimate of the peer's segment size in octets.
    pub rcv_mss: u32,
    /// MSS advertised to the peer in octets, options deducted (as Linux reports it).
    pub adv_mss: u32,
    /// The MSS option as sent, in octets.
    pub adv_mss_option: u32,
    /// Path MTU in octets.
    pub pmtu: u32,
    /// Segments sent and not yet acknowledged cumulatively.
    pub unacked: u32,
    /// Estimated to be in the network (RFC 6675's pipe).
    pub in_flight: u32,
    /// Of the unacknowledged, selectively acknowledged (without SACK: duplicate acknowledgments).
    pub sacked: u32,
    /// Of the unacknowledged, deemed lost.
    pub lost: u32,
    /// Of the unacknowledged, retransmitted and still out.
    pub retrans: u32,
    /// Congestion window in segments.
    pub snd_cwnd: u32,
    /// Slow-start threshold in segments; `u32::MAX` while there is none.
    pub snd_ssthresh: u32,
    /// Congestion window in octets.
    pub cwnd_bytes: u32,
    /// Peer's window in octets.
    pub snd_wnd: u32,
    /// Own window in octets, as advertised.
    pub rcv_wnd: u32,
    /// Duplicate acknowledgments that start a recovery.
    pub reordering: u32,
    /// Segments retransmitted in all.
    pub total_retrans: u32,
    /// Octets acknowledged by the peer in all.
    pub bytes_acked: u64,
    /// Octets received in order in all.
    pub bytes_received: u64,
    /// Octets of data sent in all, retransmissions included.
    pub bytes_sent: u64,
    /// Octets of data retransmitted in all.
    pub bytes_retrans: u64,
    /// Segments sent in all.
    pub segs_out: u32,
    /// Segments received in all.
    pub segs_in: u32,
    /// Segments with data received in all.
    pub data_segs_in: u32,
    /// Segments with data sent in all.
    pub data_segs_out: u32,
    /// Time since the last segment with data was sent.
    pub last_data_sent: Duration,
    /// Time since the last segment was received.
    pub last_rcv: Duration,
    /// Octets that wait out of order.
    pub ooo_bytes: u32,
}

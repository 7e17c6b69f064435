//! Acknowledgments: what they release, what they measure, what they say about losses.
//!
//! Loss recovery is one algorithm with two estimators. With SACK the scoreboard knows what is
//! lost and what is in flight (RFC 6675); without, each duplicate acknowledgment counts as one
//! segment that has left the network, and only the first outstanding segment can be known to
//! be lost (RFC 6582). Either way proportional rate reduction sets the window (RFC 6937).

use alloc::boxed::Box;

use perimeter_base::Time;
use perimeter_wire::{Seq, TcpHdr};

use super::types::Input;
use super::{Tcb, flag};
use crate::cc::{Ack, Prr};
use crate::info::CaState;
use crate::sack::{DUP_THRESH, Scoreboard};

/// What an acknowledgment says, gathered before deciding what follows from it.
pub(super) struct Progress {
    /// Octets of sequence space that became acknowledged cumulatively.
    pub(super) advanced: u32,
    /// Octets that left the network: cumulatively or selectively acknowledged, each once.
    pub(super) delivered: u32,
    /// More is lost than was known.
    pub(super) new_loss: bool,
    pub(super) rtt_ns: Option<u64>,
}

impl Tcb {
    /// The acknowledgment of a segment that passed all checks: it lies between SND.UNA −
    /// MAX.SND.WND and SND.NXT. `len` is the segment's payload length.
    pub(super) fn take_ack(&mut self, seg: &TcpHdr, len: u32, now: Time, out: &mut Input) {
        let una = self.snd_una;
        let flight = self.snd_nxt.since(una);
        if seg.ack.lt(una) {
            // Overtaken. Its SACK blocks may still be news (RFC 2018, section 3).
            if flight > 0 && self.has(flag::SACK) && !seg.opts.sack.is_empty() {
                let mut p = Progress {
                    advanced: 0,
                    delivered: 0,
                    new_loss: false,
                    rtt_ns: None,
                };
                self.take_sack(una, seg, &mut p, now);
                self.react(&p, flight, now);
            }
            return;
        }
        let advanced = seg.ack.since(una);
        let old_wnd = self.snd_wnd;
        self.update_window(seg);
        self.probes = 0;
        if flight == 0 {
            if self.has(flag::TLP_OUT) {
                self.answer_to_probe(seg, len == 0, flight);
            }
            return;
        }
        self.snd_una = seg.ack;
        let fin_acked = advanced > 0 && self.has(flag::FIN_SENT) && seg.ack == self.snd_nxt;
        out.acked = advanced - u32::from(fin_acked);
        let mut p = Progress {
            advanced,
            delivered: advanced,
            new_loss: false,
            rtt_ns: None,
        };
        if advanced > 0 {
            self.count.bytes_acked += u64::from(out.acked);
            p.rtt_ns = self.take_rtt(seg, now);
            // Without a sample the back-off stays (Karn): the timeout may have been too short.
            if let Some(ns) = p.rtt_ns {
                self.rtt.sample(ns);
            }
            if self.has(flag::SAMPLING) {
                p.rtt_ns = self.sample_times(now).or(p.rtt_ns);
            }
            self.retries = 0;
            self.soft_error = None;
        }
        if self.has(flag::SACK) || self.scoreboard.is_some() {
            self.take_sack(una, seg, &mut p, now);
        } else {
            let dup = advanced == 0 && len == 0 && self.snd_wnd == old_wnd;
            self.count_dupacks(dup, &mut p);
        }
        if self.has(flag::TLP_OUT) {
            let silent = p.delivered == 0 && len == 0 && self.snd_wnd == old_wnd;
            self.answer_to_probe(seg, silent, flight);
        }
        if self.has(flag::MTU_PROBE) {
            out.events |= self.answer_to_mtu_probe(&p, flight, now);
        }
        self.react(&p, flight, now);
        if advanced > 0 {
            self.flags &= !(flag::TLP_ARMED | flag::REO_ARMED);
            self.rexmt_at = if self.snd_una == self.snd_nxt {
                Time::NEVER
            } else {
                now.plus(self.rtt.rto())
            };
        }
        if self.ca == CaState::Disorder {
            self.arm_reorder_timer(now);
        }
        if fin_acked {
            self.fin_acked(now, out);
        }
    }

    /// SND.WND, SND.WL1 and SND.WL2 (RFC 9293, section 3.10.7.4); ends probing when the window
    /// opens.
    fn update_window(&mut self, seg: &TcpHdr) {
        let newer = self.snd_wl1.lt(seg.seq)
            || (self.snd_wl1 == seg.seq && self.snd_wl2.le(seg.ack))
            || seg.ack.gt(self.snd_una);
        if newer {
            self.snd_wnd = u32::from(seg.window) << self.snd_shift;
            self.max_wnd = self.max_wnd.max(self.snd_wnd);
            self.snd_wl1 = seg.seq;
            self.snd_wl2 = seg.ack;
        }
        // A peer that answers may keep its window shut for as long as it likes (RFC 9293,
        // section 3.8.6.1); only the user timeout limits that.
        if self.has(flag::PERSIST) && self.snd_wnd > 0 {
            self.leave_persist();
        }
    }

    pub(super) fn leave_persist(&mut self) {
        self.flags &= !(flag::PERSIST | flag::PROBE);
        self.rexmt_at = Time::NEVER;
        self.rtt.reset_backoff();
    }

    /// The RTT sample of an acknowledgment that advances: the timed segment's age, or, where
    /// retransmission has spoilt that (Karn), the echoed timestamp's, to the millisecond.
    ///
    /// An echo from before the last timeout is no sample: where the acknowledgment was lost,
    /// not the data, it would measure the timeout itself, and the next timeout would be longer
    /// for it (the receiver does not record timestamps of duplicates below its window).
    pub(super) fn take_rtt(&mut self, seg: &TcpHdr, now: Time) -> Option<u64> {
        if self.has(flag::TIMING) {
            if seg.ack.lt(self.rtt_seq) {
                return None;
            }
            self.flags &= !flag::TIMING;
            return Some(now.nanos_since(self.rtt_at));
        }
        let (_, ecr) = seg.opts.ts.filter(|_| self.has(flag::TS))?;
        let ms = self.ts_now(now).wrapping_sub(ecr);
        let since_rto = ecr.wrapping_sub(self.rto_ts) as i32 >= 0;
        // Older than the longest timeout, or from the future: not an echo of ours.
        (since_rto && ms < 1 << 20).then(|| u64::from(ms.max(1)) * 1_000_000)
    }

    /// The sample from the recorded send times, for congestion control; stops recording when
    /// that has seen enough.
    pub(super) fn sample_times(&mut self, now: Time) -> Option<u64> {
        let sample = self.times.as_mut()?.on_ack(self.snd_una, now);
        if !self.cc.wants_samples() {
            self.times = None;
            self.flags &= !flag::SAMPLING;
        }
        sample
    }

    fn take_sack(&mut self, old_una: Seq, seg: &TcpHdr, p: &mut Progress, now: Time) {
        let blocks = if self.has(flag::SACK) {
            seg.opts.sack.as_slice()
        } else {
            &[]
        };
        if self.scoreboard.is_none() {
            if blocks.is_empty() {
                return;
            }
            self.scoreboard = Some(self.new_scoreboard(old_una));
        }
        if let Some(sb) = &mut self.scoreboard {
            let since = now.nanos_since(self.again_at);
            sb.expect_echoes(since >= self.rtt.min_rtt().unwrap_or(0));
            let u = sb.on_ack(self.snd_una, seg.ack, blocks, self.snd_nxt);
            p.delivered = u.delivered;
            p.new_loss = u.newly_lost;
        }
    }

    fn new_scoreboard(&self, una: Seq) -> Box<Scoreboard> {
        let mut sb = Scoreboard::new(u32::from(self.mss), una);
        sb.set_reordering(u32::from(self.reordering));
        Box::new(sb)
    }

    /// Duplicate acknowledgments stand for segments that arrived out of order (RFC 5681); one
    /// that advances says that the hole is filled, and the duplicates before it belong to the
    /// segments behind the hole.
    fn count_dupacks(&mut self, dup: bool, p: &mut Progress) {
        let mss = u32::from(self.mss);
        if dup {
            let most = self
                .snd_nxt
                .since(self.snd_una)
                .div_ceil(mss)
                .saturating_sub(1);
            self.dupacks = (u32::from(self.dupacks) + 1).min(most).min(255) as u8;
            p.delivered = mss;
        } else if p.advanced > 0 && self.dupacks > 0 {
            let segs = p.advanced.div_ceil(mss);
            let counted = u32::from(self.dupacks).min(segs.saturating_sub(1));
            p.delivered = p.advanced.saturating_sub(counted * mss).max(1);
            self.dupacks -= counted as u8;
        }
    }

    /// What follows for congestion state and window. `flight` is what was outstanding before.
    fn react(&mut self, p: &Progress, flight: u32, now: Time) {
        match self.ca {
            CaState::Open | CaState::Disorder => {
                if self.loss_detected() {
                    self.enter_recovery(p, flight, now);
                    return;
                }
                if p.advanced > 0 {
                    self.dupacks = 0;
                    self.grow(p, now);
                }
                self.settle();
            }
            CaState::Recovery => {
                if self.snd_una.ge(self.recover) {
                    self.cc.on_recovery_exit();
                    self.end_recovery();
                    return;
                }
                if !self.has(flag::SACK) && p.advanced > 0 {
                    // A partial acknowledgment: the next segment is lost, too (RFC 6582,
                    // section 3.2).
                    self.flags |= flag::HEAD_LOST;
                }
                let pipe = self.pipe();
                let progress = p.advanced > 0;
                self.prr
                    .on_ack(&mut self.cc, p.delivered, pipe, progress, p.new_loss);
            }
            CaState::Loss => {
                if p.advanced > 0 {
                    self.grow(p, now);
                }
                if self.snd_una.ge(self.recover) {
                    self.end_recovery();
                }
            }
        }
    }

    fn grow(&mut self, p: &Progress, now: Time) {
        let cwnd_limited = self.usage.is_limited(&self.cc);
        self.cc.on_ack(&Ack {
            acked: p.delivered,
            cwnd_limited,
            rtt_ns: p.rtt_ns,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            segs: 1,
            now,
        });
    }

    /// Whether the first outstanding segment is to be called lost (RFC 6675, section 5; RFC
    /// 6582, section 3.2, which asks that it be beyond the last recovery's point).
    pub(super) fn loss_detected(&self) -> bool {
        if self.snd_una == self.snd_nxt {
            return false;
        }
        match &self.scoreboard {
            Some(sb) => sb.first_is_lost(),
            None => u32::from(self.dupacks) >= DUP_THRESH && self.snd_una.gt(self.recover),
        }
    }

    pub(super) fn enter_recovery(&mut self, p: &Progress, flight: u32, now: Time) {
        self.ca = CaState::Recovery;
        self.recover = self.snd_nxt;
        if self.has(flag::MTU_PROBE) {
            self.probe_is_vain(now);
        }
        self.flags &= !(flag::TIMING | flag::SAMPLING);
        self.forget_probe();
        self.times = None;
        self.cc.on_loss(flight);
        self.prr = Prr::new(&self.cc);
        match &mut self.scoreboard {
            Some(sb) => sb.start_recovery(self.snd_nxt),
            None => self.flags |= flag::HEAD_LOST,
        }
        let pipe = self.pipe();
        self.prr
            .on_ack(&mut self.cc, p.delivered, pipe, p.advanced > 0, true);
    }

    /// Recovery is over; holes above the recovery point may remain.
    fn end_recovery(&mut self) {
        self.flags &= !flag::HEAD_LOST;
        self.dupacks = 0;
        if let Some(sb) = &mut self.scoreboard {
            sb.end_recovery();
        }
        self.ca = CaState::Open;
        self.settle();
    }

    /// Open or Disorder, by whether anything is out of order; drops a scoreboard that has
    /// nothing to say.
    fn settle(&mut self) {
        let disorder = match &self.scoreboard {
            Some(sb) => !sb.is_empty(),
            None => self.dupacks > 0,
        };
        self.ca = if disorder {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if !disorder && let Some(sb) = self.scoreboard.take() {
            self.reordering = sb.reordering() as u16;
        }
    }

    /// Everything outstanding counts as lost and is sent again in slow start (after a timeout)
    /// or as the window allows (after the path MTU shrank).
    pub(super) fn resend_all(&mut self, now: Time) {
        if self.snd_una == self.snd_nxt || self.has(flag::SYN_OUT) {
            return;
        }
        let mut sb = match self.scoreboard.take() {
            Some(sb) => sb,
            None => self.new_scoreboard(self.snd_una),
        };
        sb.set_mss(u32::from(self.mss));
        sb.mark_all_lost(self.snd_nxt);
        self.scoreboard = Some(sb);
        self.forget_probe();
        self.ca = CaState::Loss;
        self.recover = self.snd_nxt;
        self.dupacks = 0;
        self.flags &= !(flag::TIMING | flag::HEAD_LOST | flag::SAMPLING);
        self.times = None;
        self.rexmt_at = now.plus(self.rtt.rto());
        self.refresh_fast();
    }

    /// Octets estimated to be in the network.
    pub(super) fn pipe(&self) -> u32 {
        let flight = self.snd_nxt.since(self.snd_una);
        if let Some(sb) = &self.scoreboard {
            return sb.pipe(self.snd_nxt);
        }
        let mss = u32::from(self.mss);
        let left = u32::from(self.dupacks) + u32::from(self.has(flag::HEAD_LOST));
        flight.saturating_sub(left * mss)
    }

    /// Octets SACKed, lost, and retransmitted, of what is outstanding.
    pub(super) fn loss_counts(&self) -> (u32, u32, u32) {
        let flight = self.snd_nxt.since(self.snd_una);
        match &self.scoreboard {
            Some(sb) => {
                let (sacked, lost) = (sb.sacked(), sb.lost(self.snd_una));
                let first_sent = flight.saturating_sub(sacked).saturating_sub(lost);
                (
                    sacked,
                    lost,
                    sb.pipe(self.snd_nxt).saturating_sub(first_sent),
                )
            }
            None => {
                let mss = u32::from(self.mss);
                let sacked = (u32::from(self.dupacks) * mss).min(flight);
                let recovering = self.ca == CaState::Recovery;
                let lost = if recovering { mss.min(flight) } else { 0 };
                let again = if self.has(flag::HEAD_LOST) { 0 } else { lost };
                (sacked, lost, again)
            }
        }
    }
}

//! Black holes, and the search for the path's MTU where no router tells it (RFC 4821).
//!
//! A router that drops what is too big without saying so, or whose word is filtered, lets the
//! handshake through and no full segment. Two retransmission timeouts in a row of more than the
//! smaller size are taken for that: segments get smaller, down to what nearly every path takes.
//! Without SACK that is all: ten minutes later full segments are tried again.
//!
//! With SACK the search for the largest segment that passes begins a second later. A probe is new
//! data in one segment that is larger than the MSS, sent only when so much follows it that its loss
//! shows in SACKs. The first is as large as segments were before, as the path may only have been
//! down; then each halves what is left. There are three answers (sections 7.6.1 to 7.6.4):
//!
//! - acknowledged: the MSS is that large from here on;
//! - lost alone, while everything else that was in flight arrived: its size is too large. It is sent
//!   again in small segments and says nothing of congestion;
//! - lost with other segments, or with a timeout: nothing is learnt. The same size is tried again, a
//!   few times at most.
//!
//! What bounds it: one probe at a time, a second between a loss and the next probe, each that counts
//! halves what is left, and after three that did not, the search rests for ten minutes.

use alloc::boxed::Box;
use core::time::Duration;

use perimeter_base::Time;
use perimeter_wire::{Seq, TcpFlags};

use super::ack::Progress;
use super::search::{Probe, Search};
use super::timers::PATH_MTU_AGE;
use super::types::{Events, Queued, SegPlan, TimerOutcome};
use super::{TS_LEN, Tcb, flag};
use crate::info::CaState;
use crate::sack::DUP_THRESH;

/// Timeouts in a row after which full segments are taken to vanish, and again as many with smaller
/// ones.
const SUSPECT: u8 = 2;
/// The first smaller segment, without options, octets (Linux's tcp_base_mss).
const BASE: u16 = 1024;
/// How long after segments got smaller, or a probe was lost, the next probe is due.
const PAUSE: Duration = Duration::from_secs(1);
/// The search ends when so few octets are left (Linux's tcp_probe_threshold).
const ENOUGH: u16 = 8;
/// Probes of one size that may be lost with other segments before the search rests.
const TRIES: u8 = 3;

impl Tcb {
    /// The retransmission timer has fired once more. Makes segments smaller if the last ones seem to
    /// vanish for their size; whether they do.
    pub(super) fn suspect_path(&mut self, now: Time) -> bool {
        if self.has(flag::MTU_PROBE) {
            self.probe_is_vain(now);
        }
        if !self.set.mtu_probing || !self.retries.is_multiple_of(SUSPECT) {
            return false;
        }
        let largest = self.peer_mss.min(self.adv_mss);
        let size = self.path_mss.min(largest);
        let floor = self.set.path_floor;
        let base = BASE.max(floor);
        let next = if size > base { base } else { floor };
        // What is sent again after a timeout begins with a segment as large as fits. If that is not
        // larger than the next size, its loss has other reasons.
        let hole = match &self.scoreboard {
            Some(sb) => sb.first_hole(self.snd_nxt),
            None => u32::MAX,
        };
        let first = hole.min(self.data_in_flight());
        if size <= next || first <= u32::from(self.without_options(next)) {
            return false;
        }
        self.search = Some(Box::new(Search::new(largest)));
        self.flags &= !flag::MTU_PROBE;
        self.take_path(next);
        self.path_at = now + PAUSE;
        self.arm_aux();
        true
    }

    /// Segments of `size` octets without options from here on.
    fn take_path(&mut self, size: u16) {
        self.path_mss = size;
        self.mss = self.effective_mss();
        self.cc.on_mss_change(u32::from(self.mss));
        if let Some(sb) = &mut self.scoreboard {
            sb.set_mss(u32::from(self.mss));
        }
    }

    /// The time has come to try a larger segment.
    pub(super) fn path_is_old(&mut self, now: Time, out: &mut TimerOutcome) {
        let sack = self.has(flag::SACK);
        let Some(s) = &mut self.search else {
            return self.retry_path(now);
        };
        if !sack {
            // The loss of a probe alone would not show: as if a router had said it.
            self.search = None;
            self.path_at = now + PATH_MTU_AGE;
            return;
        }
        if s.over {
            **s = Search::new(self.peer_mss.min(self.adv_mss));
        }
        self.path_at = Time::NEVER;
        self.flags |= flag::MTU_PROBE;
        self.refresh_fast();
        out.output = true;
    }

    /// The probe that is due. `None`: not now; `Some(None)`: as soon as what is in flight has left
    /// room for it, and nothing else before.
    pub(super) fn plan_mtu_probe(&mut self, q: Queued, now: Time) -> Option<Option<SegPlan>> {
        let s = self.search.as_ref()?;
        let plain = self.ca == CaState::Open && self.scoreboard.is_none() && self.ooo.is_none();
        if s.probe.is_some() || !plain || self.has(flag::FIN_SENT) {
            return None;
        }
        let size = s.next(self.path_mss);
        let len = u32::from(self.without_options(size));
        let flight = self.snd_nxt.since(self.snd_una);
        let reordering = u32::from(self.reordering).max(DUP_THRESH);
        let all = len + (reordering + 1) * u32::from(self.mss);
        let (window, cwnd) = (self.snd_wnd, self.cc.cwnd());
        if q.len < flight + all || window < all || cwnd < all {
            return None;
        }
        if flight + all > window || flight + len > cwnd {
            return Some(None);
        }
        let seq = self.snd_nxt;
        let plan = self.new_segment(q, flight, len, TcpFlags::ACK, now);
        if let Some(s) = &mut self.search {
            s.probe = Some(Probe {
                seq,
                end: self.snd_nxt,
                size,
                told: None,
                repair: None,
            });
        }
        self.count.untold.mtu_probes = self.count.untold.mtu_probes.saturating_add(1);
        Some(Some(plan))
    }

    /// An acknowledgment while a probe is due or out, before losses are looked at. What it tells of
    /// the path.
    pub(super) fn answer_to_mtu_probe(&mut self, p: &Progress, flight: u32, now: Time) -> Events {
        let Some(probe) = self.search.as_ref().and_then(|s| s.probe.as_ref()) else {
            return Events::NONE;
        };
        let (end, size, told) = (probe.end, probe.size, probe.told);
        let Some(recover) = probe.repair else {
            if self.snd_una.ge(end) {
                return self.probe_passed(size, now);
            }
            if matches!(self.ca, CaState::Open | CaState::Disorder) {
                self.repair_probe(now);
            }
            return Events::NONE;
        };
        if p.new_loss {
            // More is lost than the probe: that is congestion, as anywhere else.
            self.cc.on_loss(flight);
            self.cc.on_recovery_exit();
            self.probe_is_vain(now);
            return Events::NONE;
        }
        if self.snd_una.lt(recover) {
            return Events::NONE;
        }
        if let Some(s) = &mut self.search {
            (s.high, s.try_high) = told.map_or((size - 1, false), |path| (path, true));
            (s.narrow, s.vain) = (true, 0);
        }
        self.seek_on(now + PAUSE)
    }

    fn probe_passed(&mut self, size: u16, now: Time) -> Events {
        if let Some(s) = &mut self.search {
            s.vain = 0;
        }
        self.take_path(size);
        self.seek_on(now)
    }

    /// The probe is lost, or the acknowledgment of it is: with other segments, which says nothing of
    /// its size.
    pub(super) fn probe_is_vain(&mut self, now: Time) {
        self.flags &= !flag::MTU_PROBE;
        let Some(s) = &mut self.search else { return };
        let was_out = s.probe.take().is_some();
        s.vain += u8::from(was_out);
        s.over = s.vain >= TRIES;
        let pause = if s.over { PATH_MTU_AGE } else { PAUSE };
        self.path_at = now + pause;
        self.arm_aux();
    }

    /// Plans the next probe at `at`, or the end of the search. What there is to tell of it.
    fn seek_on(&mut self, at: Time) -> Events {
        let low = self.path_mss;
        let Some(s) = &mut self.search else {
            return Events::NONE;
        };
        s.probe = None;
        s.high = s.high.max(low);
        s.try_high &= s.high > low;
        s.over = !s.try_high && s.high - low <= ENOUGH;
        let (over, narrow) = (s.over, s.narrow);
        self.path_at = if over { at + PATH_MTU_AGE } else { at };
        self.flags &= !flag::MTU_PROBE;
        self.refresh_fast();
        self.arm_aux();
        if over && narrow {
            Events::PATH_MTU
        } else {
            Events::NONE
        }
    }

    /// Sends the probe again in small segments if it is lost, and as far as is known nothing else;
    /// whether it is so. The congestion window stays (RFC 4821, section 7.6.2).
    pub(super) fn repair_probe(&mut self, now: Time) -> bool {
        let lost = self.loss_detected();
        let (una, nxt) = (self.snd_una, self.snd_nxt);
        let search = self.search.as_mut().filter(|_| lost);
        let (Some(s), Some(sb)) = (search, &mut self.scoreboard) else {
            return false;
        };
        let Some(probe) = &mut s.probe else {
            return false;
        };
        let len = probe.end.since(probe.seq);
        if probe.repair.is_some() || una != probe.seq || sb.lost(una) > len {
            return false;
        }
        probe.repair = Some(nxt);
        sb.start_recovery(nxt);
        self.ca = CaState::Loss;
        self.recover = nxt;
        self.dupacks = 0;
        self.flags &= !(flag::TIMING | flag::SAMPLING);
        self.times = None;
        self.forget_probe();
        self.rexmt_at = now.plus(self.rtt.rto());
        self.refresh_fast();
        true
    }

    /// A router says what it takes instead of the segment at `at`, in octets without headers: whether
    /// that was a probe, and the search goes on with this.
    pub(super) fn probe_was_too_big(&mut self, path: u16, at: Seq) -> bool {
        let low = self.path_mss;
        let probe = self.search.as_mut().and_then(|s| s.probe.as_mut());
        match probe.filter(|p| p.seq == at && (low..p.size).contains(&path)) {
            Some(probe) => {
                // Its loss shows as that of any other.
                probe.told = Some(path);
                true
            }
            None => false,
        }
    }

    /// What fits a segment of that size beside the options that every segment carries.
    fn without_options(&self, size: u16) -> u16 {
        size - if self.has(flag::TS) { TS_LEN } else { 0 }
    }
}

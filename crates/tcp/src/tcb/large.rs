//! Several segments planned at once, as one large segment.

use perimeter_base::Time;
use perimeter_wire::{LARGEST_PAYLOAD, TcpFlags};

use super::output::{Again, Blocked, New};
use super::types::{Large, Queued, SegPlan};
use super::{Tcb, flag};
use crate::info::CaState;

/// What is to be sent next.
enum Next {
    Again(Again),
    New(New),
}

/// After so long without sending, ns, what the windows have room for goes at once.
const LATELY: u64 = 1_000_000;

impl Tcb {
    /// As [`Tcb::plan_here`]; and where that is a full segment, new data or sent again, as many of
    /// those that may follow it at once as `most` allows, as one large segment; the last of them may
    /// be a partial one. Cut, it is what [`Tcb::plan`] would have given one by one
    /// ([`SegPlan::segment`]).
    #[inline(never)]
    pub fn plan_large(&mut self, q: Queued, most: Large, now: Time) -> Option<SegPlan> {
        if let Some(why) = self.defers_for(q, most, now) {
            self.set_flag(flag::CWND_FULL, why == Blocked::Cwnd);
            return self.without_data(why, now);
        }
        let mut plan = self.plan(q, now)?;
        if plan.len > 0 && self.defers {
            self.note_pause(&plan, now);
        }
        if plan.len == 0 || plan.seg.flags != TcpFlags::ACK {
            return Some(plan);
        }
        if !self.has(flag::FAST) && !self.is_undisturbed() {
            self.lengthen_disturbed(&mut plan, q, most, now);
        } else if plan.len == self.mss.into() && plan.seg.seq + plan.len == self.snd_nxt {
            self.lengthen(&mut plan, q, most, now);
        }
        Some(plan)
    }

    /// Whether a part of a large segment waits for the next acknowledgment, and for which window
    /// (Linux's `tcp_tso_should_defer`). It waits while two thirds of the window are on the way and more
    /// is queued than the rest has room for; but not if that acknowledgment may be more than half a
    /// round trip away, nor once nothing has been sent for a millisecond.
    #[inline]
    fn defers_for(&self, q: Queued, most: Large, now: Time) -> Option<Blocked> {
        if !self.defers || !self.has(flag::FAST) {
            return None;
        }
        let mss = u32::from(self.mss);
        let cwnd = self.cc.cwnd();
        let window = self.snd_wnd.min(cwnd);
        let flight = self.snd_nxt.since(self.snd_una);
        let room = window.saturating_sub(flight);
        let largest = most.octets.min(cwnd / 2);
        let part = (mss..largest - largest % mss).contains(&room);
        let soon = self.snd_una != self.pause_seq && now.nanos_since(self.sent_at) <= LATELY;
        if !part || !soon || room >= window / 3 || q.len <= flight + room {
            return None;
        }
        Some(match cwnd < self.snd_wnd {
            true => Blocked::Cwnd,
            false => Blocked::Window,
        })
    }

    /// What `plan` has is sent now. What was acknowledged last was sent a round trip ago, and what is
    /// acknowledged next right after it, if there was no pause in between.
    #[inline]
    fn note_pause(&mut self, plan: &SegPlan, now: Time) {
        let pause = now.nanos_since(self.sent_at) >= self.rtt.srtt() / 2;
        if pause || plan.off == 0 {
            self.pause_seq = plan.seg.seq;
        }
        self.sent_at = now;
    }

    /// Further segments of new data join a full one, all but the last of them full, too. They stop at
    /// a push or the FIN, which only the last segment of a large one can have, and at half the
    /// congestion window, as Linux's bursts do.
    #[inline(never)]
    fn lengthen(&mut self, plan: &mut SegPlan, q: Queued, most: Large, now: Time) {
        let mss = u32::from(self.mss);
        let octets = most.octets.min(self.cc.cwnd() / 2);
        let closes = self.has(flag::FIN_QUEUED);
        plan.size = self.mss;
        let room = octets.saturating_sub(plan.len);
        let quiet = self
            .quiet(q, room)
            .min(u32::from(most.segs.saturating_sub(plan.segs)));
        self.commit_quiet(quiet, now);
        plan.len += quiet * mss;
        plan.segs += quiet as u16;
        while plan.seg.flags == TcpFlags::ACK && plan.segs < most.segs {
            let flight = self.snd_nxt.since(self.snd_una);
            let len = q.len.saturating_sub(flight).min(mss);
            let end = flight + len;
            let fits = plan.len + len <= octets && end <= self.snd_wnd && end <= self.cc.cwnd();
            if len == 0 || !fits || (len < mss && !closes && self.hold_partial(q, flight)) {
                break;
            }
            let flags = TcpFlags::ACK | self.fin_with(end == q.len);
            plan.seg.flags = self.commit_new(q, flight, len, flags, now);
            plan.len += len;
            plan.segs += 1;
        }
        self.count.segs_out = self.count.segs_out.wrapping_add(u32::from(plan.segs) - 1);
    }

    /// As [`Tcb::lengthen`], while something is lost, out of order or probed for: one by one, as what
    /// may be sent next changes with each. What is sent again and new data behind it may be one.
    #[inline(never)]
    fn lengthen_disturbed(&mut self, plan: &mut SegPlan, q: Queued, most: Large, now: Time) {
        let size = self.payload_room();
        if plan.len != size {
            return;
        }
        let octets = most.octets.min(self.cc.cwnd() / 2);
        while plan.seg.flags == TcpFlags::ACK && plan.segs < most.segs {
            let Some(next) = self.next_data(q) else { break };
            let (off, len) = match next {
                Next::Again(a) => {
                    let fin = self.ends_with_fin(a.seq + a.len);
                    (a.seq.since(self.snd_una), a.len - u32::from(fin))
                }
                Next::New(n) => (n.off, n.len),
            };
            let joins = off == plan.off + plan.len && (1..=size).contains(&len);
            if !joins || plan.len + len > octets || !plan.len.is_multiple_of(size) {
                break;
            }
            let one = match next {
                Next::Again(a) => self.send_again(q, a, now),
                Next::New(n) => self.new_segment(q, n.off, n.len, n.flags, now),
            };
            plan.seg.flags = one.seg.flags;
            plan.len += len;
            plan.segs += 1;
        }
        plan.size = size as u16;
    }

    /// What [`Tcb::plan`] would give next, if that is data.
    fn next_data(&self, q: Queued) -> Option<Next> {
        let first = flag::SYN_DUE | flag::SYN_OUT | flag::PROBE | flag::TLP_DUE | flag::MTU_PROBE;
        if self.has(first) {
            return None;
        }
        let again = matches!(self.ca, CaState::Recovery | CaState::Loss)
            .then(|| self.next_again(q))
            .flatten();
        match again {
            Some(what) => Some(Next::Again(what)),
            None => self.next_new(q).ok().map(Next::New),
        }
    }

    /// How many full segments of new data, of `room` octets together at most, can be sent before one
    /// that pushes or has the FIN. [`Tcb::commit_quiet`] counts them as [`Tcb::commit_new`] would one
    /// by one.
    #[inline(always)]
    fn quiet(&self, q: Queued, room: u32) -> u32 {
        if !self.large {
            return 0;
        }
        let flight = self.snd_nxt.since(self.snd_una);
        // The last that can go now may push.
        let mss = u32::from(self.mss);
        let others = self.goes_now(q).saturating_sub(flight + mss);
        let mut octets = others.min(room);
        let pushed = match self.has(flag::FIN_QUEUED) {
            true => q.len,
            false => q.len.saturating_sub(q.unpushed),
        };
        if pushed > flight {
            octets = octets.min(pushed - flight - 1);
        }
        let since = self.snd_nxt.since(self.push_seq);
        octets = octets.min((self.push_after() - 1).saturating_sub(since));
        octets / mss
    }

    /// Counts the `n` segments that [`Tcb::quiet`] has found as sent, right behind another one.
    #[inline(always)]
    fn commit_quiet(&mut self, n: u32, now: Time) {
        let mss = u32::from(self.mss);
        // Not 0: there is a burst.
        self.burst = self.burst.wrapping_add(n as u8).max(1);
        match self.has(flag::SAMPLING) {
            true => (0..n).for_each(|_| {
                self.snd_nxt += mss;
                self.record_send(now);
            }),
            false => self.snd_nxt += n * mss,
        }
        self.count.data_segs_out = self.count.data_segs_out.wrapping_add(n);
    }

    /// After how many octets without a push a segment pushes: half the peer's largest window, or as
    /// much of that as the largest segments make up, so that the push cuts none of those. At least 1,
    /// and more than a quarter of the window.
    #[inline]
    pub(super) fn push_after(&self) -> u32 {
        let half = (self.max_wnd / 2).max(1);
        // 0 over a loopback, where one segment may be longer.
        let whole = LARGEST_PAYLOAD - LARGEST_PAYLOAD % u32::from(self.mss);
        match half.checked_div(whole) {
            None | Some(0) => half,
            Some(n) => n * whole,
        }
    }
}

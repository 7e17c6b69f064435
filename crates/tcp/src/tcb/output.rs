//! Which segment to send next.

use perimeter_base::Time;
use perimeter_wire::{SegOut, Seq, TcpFlags, TcpOptions};

use super::types::{Queued, SegPlan};
use super::{State, Tcb, flag, tick};
use crate::info::CaState;
use crate::sack::NextSeg;

/// Why there is no data to send.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Blocked {
    /// Nothing is queued that has not been sent.
    Empty,
    /// The congestion window is full.
    Cwnd,
    /// The peer's window is full.
    Window,
    /// A partial segment waits for more data or an acknowledgment.
    Held,
}

/// Something to send again.
#[derive(Copy, Clone)]
pub(super) struct Again {
    pub(super) seq: Seq,
    /// Of sequence space: the FIN may be the last.
    pub(super) len: u32,
    /// The one rescue of an episode.
    rescue: bool,
}

/// New data to send, with the FIN behind it where `flags` has it.
#[derive(Copy, Clone)]
pub(super) struct New {
    pub(super) off: u32,
    pub(super) len: u32,
    pub(super) flags: TcpFlags,
}

/// Ticks after received data within which sending counts as an answer to it: the delayed
/// acknowledgment's 40 ms. Such a connection is interactive, and its acknowledgments can ride
/// on the answers (Linux's ping-pong mode).
const ANSWER_WITHIN: u32 = 39;

impl Tcb {
    /// The next segment to send, or `None`. It counts as sent: its payload must be taken from
    /// the send buffer and emitted. Check for room before asking.
    ///
    /// `q` is the send buffer as of now: everything that [`Input::acked`](super::types::Input)
    /// told was released from it.
    #[inline]
    pub fn plan(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        self.plan_here(q, now)
    }

    /// As [`Tcb::plan`], for the loop that sends: a call for each segment costs more than what is
    /// decided.
    #[inline(always)]
    pub fn plan_here(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        let flight = self.snd_nxt.since(self.snd_una);
        let mss = u32::from(self.mss);
        let end = flight + mss;
        if !self.has(flag::FAST) {
            return self.plan_slow(q, now);
        }
        // The next full segment of a transfer under way, or nothing to send but perhaps an
        // acknowledgment.
        let full = flight > 0 && end <= q.len && end <= self.snd_wnd && end <= self.cc.cwnd();
        let empty = q.len <= flight && self.burst == 0;
        if !full && !empty {
            return self.plan_slow(q, now);
        }
        if empty && !self.has(flag::ACK_NOW) {
            self.all_sent(flight, now);
            return None;
        }
        let seq = self.snd_nxt;
        let flags = if full {
            self.commit_new(q, flight, mss, TcpFlags::ACK, now)
        } else {
            TcpFlags::ACK
        };
        let window = self.acknowledge();
        // Written out, so that it is built where the caller wants it. Prediction implies that
        // nothing is out of order: there is no SACK to send.
        Some(SegPlan {
            seg: SegOut {
                seq,
                ack: self.rcv_nxt,
                flags,
                window,
                urgent: 0,
                opts: TcpOptions {
                    ts: if self.has(flag::TS) {
                        Some((self.ts_now(now), self.ts_recent))
                    } else {
                        None
                    },
                    ..TcpOptions::default()
                },
            },
            off: if full { flight } else { 0 },
            len: if full { mss } else { 0 },
            segs: 1,
            size: 0,
        })
    }

    /// Whether there is nothing to send, nor anything to see to but the loss probe, which then is
    /// seen to: [`Tcb::plan`] would say `None`. For who would have to do more than ask.
    #[inline(always)]
    pub fn has_nothing(&mut self, q: Queued, now: Time) -> bool {
        let flight = self.snd_nxt.since(self.snd_una);
        let due = !self.has(flag::FAST) || self.has(flag::ACK_NOW);
        if due || self.burst > 0 {
            return false;
        }
        if q.len > flight {
            return self.holds_last(q, flight, now);
        }
        self.all_sent(flight, now);
        true
    }

    /// Everything queued has been sent, and nothing else is due.
    #[inline(always)]
    fn all_sent(&mut self, flight: u32, now: Time) {
        self.flags &= !(flag::WANTS | flag::PUSH);
        if flight > 0 && !self.has(flag::TLP_ARMED) {
            self.arm_probe(false, now);
        }
    }

    /// As [`Tcb::has_nothing`], where something is queued: whether that is a partial segment which
    /// waits for more data or an acknowledgment.
    #[inline]
    fn holds_last(&mut self, q: Queued, flight: u32, now: Time) -> bool {
        let fits = q.len <= self.snd_wnd && q.len <= self.cc.cwnd();
        let partial = flight > 0 && q.len < flight + u32::from(self.mss);
        let held = partial && fits && self.hold_partial(q, flight);
        if held {
            self.flags &= !flag::CWND_FULL;
            self.end_of_run(Blocked::Held, now);
        }
        held
    }

    /// Everything that is not the next full segment of an undisturbed transfer.
    fn plan_slow(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        if self.has(flag::SYN_DUE) {
            return Some(self.syn(now));
        }
        if !self.state.is_synchronized() || self.has(flag::SYN_OUT) {
            // In SYN-RECEIVED nothing is sent but answers to what is out of place.
            let due = self.has(flag::ACK_NOW) && self.state != State::SynSent;
            return due.then(|| self.pure(self.snd_nxt, now));
        }
        if self.has(flag::PROBE)
            && let Some(plan) = self.plan_probe(q, now)
        {
            return Some(plan);
        }
        if self.has(flag::TLP_DUE)
            && let Some(plan) = self.plan_loss_probe(q, now)
        {
            return Some(plan);
        }
        if matches!(self.ca, CaState::Recovery | CaState::Loss)
            && let Some(plan) = self.plan_again(q, now)
        {
            return Some(plan);
        }
        let blocked = match self.plan_data(q, now) {
            Ok(plan) => return Some(plan),
            Err(why) => why,
        };
        self.without_data(blocked, now)
    }

    /// What is sent where data is blocked: an acknowledgment, if one is due.
    pub(super) fn without_data(&mut self, blocked: Blocked, now: Time) -> Option<SegPlan> {
        self.end_of_run(blocked, now);
        let due = self.has(flag::ACK_NOW);
        due.then(|| self.pure(self.snd_nxt, now))
    }

    /// A SYN, or a SYN-ACK after SYNs have crossed.
    fn syn(&mut self, now: Time) -> SegPlan {
        self.flags &= !flag::SYN_DUE;
        let first = self.snd_nxt == self.iss;
        let crossed = self.state != State::SynSent;
        if first {
            self.snd_nxt = self.iss + 1;
            self.rtt_seq = self.snd_nxt;
            self.rtt_at = now;
            self.flags |= flag::TIMING;
            self.stall_since = tick(now);
            self.rexmt_at = now.plus(self.rtt.rto());
        } else {
            self.flags &= !flag::TIMING;
            self.count.sent_again();
            if self.rexmt_at == Time::NEVER {
                self.rexmt_at = now.plus(self.rtt.rto());
            }
        }
        self.last_ack = self.rcv_nxt;
        self.count.segs_out += 1;
        let offer = self.set.offer_wscale;
        // A SYN-ACK repeats only what the peer's SYN had.
        let wscale = (offer != u8::MAX && (!crossed || self.has(flag::WSCALE))).then_some(offer);
        let window = (self.rcv_space.max(0) as u32).min(0xffff);
        if crossed {
            self.flags &= !flag::ACK_NOW;
            self.rcv_adv = self.rcv_adv.max(self.rcv_nxt + window);
        }
        SegPlan {
            segs: 1,
            size: 0,
            seg: SegOut {
                seq: self.iss,
                ack: if crossed { self.rcv_nxt } else { Seq(0) },
                flags: if crossed {
                    TcpFlags::SYN | TcpFlags::ACK
                } else {
                    TcpFlags::SYN
                },
                window: window as u16,
                urgent: 0,
                opts: TcpOptions {
                    mss: Some(self.adv_mss),
                    wscale,
                    sack_permitted: self.has(flag::SACK),
                    ts: self
                        .has(flag::TS)
                        .then(|| (self.ts_now(now), self.ts_recent)),
                    ..TcpOptions::default()
                },
            },
            off: 0,
            len: 0,
        }
    }

    /// The persist or keepalive timer wants to hear from the peer.
    ///
    /// What was held back goes out if the window has any room (RFC 9293, section 3.8.6.2.1: the
    /// override timeout). Otherwise a segment below the window, which the peer must answer
    /// (sections 3.8.4 and 3.8.6.1), without data, as Linux does.
    fn plan_probe(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        self.flags &= !flag::PROBE;
        let sent = self.data_in_flight();
        if self.snd_una != self.snd_nxt {
            return None;
        }
        let unsent = q.len.saturating_sub(sent);
        if unsent > 0 && self.snd_wnd > 0 {
            let len = unsent.min(self.snd_wnd).min(self.payload_room());
            let fin = self.fin_with(len == unsent);
            let flags = TcpFlags::ACK | TcpFlags::PSH | fin;
            return Some(self.new_segment(q, sent, len, flags, now));
        }
        Some(self.pure(self.snd_una - 1, now))
    }

    /// Retransmission, while there is room in the congestion window.
    fn plan_again(&mut self, q: Queued, now: Time) -> Option<SegPlan> {
        let what = self.next_again(q)?;
        Some(self.send_again(q, what, now))
    }

    /// What [`Tcb::plan_again`] would send.
    pub(super) fn next_again(&self, q: Queued) -> Option<Again> {
        let pipe = self.pipe();
        let room = self.cc.cwnd().saturating_sub(pipe);
        if room == 0 || self.snd_una == self.snd_nxt {
            return None;
        }
        let flight = self.snd_nxt.since(self.snd_una);
        let Some(sb) = &self.scoreboard else {
            return self.has(flag::HEAD_LOST).then(|| Again {
                seq: self.snd_una,
                len: self.payload_room().min(flight),
                rescue: false,
            });
        };
        let unsent = q.len.saturating_sub(self.data_in_flight());
        let fits = flight + unsent.min(u32::from(self.mss)) <= self.snd_wnd;
        let what = match sb.next_seg(self.snd_nxt, unsent > 0 && fits)? {
            NextSeg::New => return None,
            NextSeg::Retransmit { seq, len } => Again {
                seq,
                len: len.min(self.payload_room()),
                rescue: false,
            },
            // The last octets are the ones that the rescue is for.
            NextSeg::Rescue { seq, len } => {
                let fits = len.min(self.payload_room());
                Again {
                    seq: seq + (len - fits),
                    len: fits,
                    rescue: true,
                }
            }
        };
        (what.len <= room || pipe == 0).then_some(what)
    }

    /// Counts that as sent, and returns its plan.
    pub(super) fn send_again(&mut self, q: Queued, what: Again, now: Time) -> SegPlan {
        let Again { seq, len, rescue } = what;
        let mut joins = false;
        match &mut self.scoreboard {
            Some(sb) => {
                joins = sb.high_rxt() == seq;
                let sent = match rescue {
                    true => NextSeg::Rescue { seq, len },
                    false => NextSeg::Retransmit { seq, len },
                };
                sb.on_sent(sent, self.snd_nxt);
            }
            None => self.flags &= !flag::HEAD_LOST,
        }
        // Of two that left together the first time, and do so again, the second one pushes; a
        // large segment is delivered without.
        let second = (seq.since(self.iss) / u32::from(self.mss)) & 1 != 0;
        let pair = joins && second && !self.large && self.has(flag::AGAIN);
        self.again(q, seq, len, pair, now)
    }

    /// New data, as a probe of the path's MTU if one is due.
    fn plan_data(&mut self, q: Queued, now: Time) -> Result<SegPlan, Blocked> {
        if self.has(flag::MTU_PROBE)
            && let Some(probe) = self.plan_mtu_probe(q, now)
        {
            return probe.ok_or(Blocked::Cwnd);
        }
        self.plan_new(q, now)
    }

    /// New data, with the FIN if that is next.
    fn plan_new(&mut self, q: Queued, now: Time) -> Result<SegPlan, Blocked> {
        self.flags &= !flag::CWND_FULL;
        if self.snd_una == self.snd_nxt && q.len > 0 {
            self.resume(now);
        }
        match self.next_new(q) {
            Ok(New { off, len, flags }) => Ok(self.new_segment(q, off, len, flags, now)),
            Err(why) => {
                self.set_flag(flag::CWND_FULL, why == Blocked::Cwnd);
                Err(why)
            }
        }
    }

    /// What [`Tcb::plan_new`] would send.
    pub(super) fn next_new(&self, q: Queued) -> Result<New, Blocked> {
        if self.has(flag::FIN_SENT) {
            return Err(Blocked::Empty);
        }
        let off = self.snd_nxt.since(self.snd_una);
        let unsent = q.len.saturating_sub(off);
        let fin_queued = self.has(flag::FIN_QUEUED);
        if unsent == 0 {
            // A FIN alone waits for no window: it is nothing to buffer (as BSD and Linux).
            let flags = TcpFlags::ACK | TcpFlags::FIN;
            return match fin_queued {
                true => Ok(New { off, len: 0, flags }),
                false => Err(Blocked::Empty),
            };
        }
        let room = self.payload_room();
        let mut len = unsent.min(room);
        let window = self.snd_wnd.saturating_sub(off);
        let cwnd = self.cc.cwnd().saturating_sub(self.pipe());
        if window < len {
            // Sender's silly-window avoidance (RFC 9293, section 3.8.6.2.1): less than a
            // segment only if it is half of the largest window seen.
            if window == 0 || window < self.max_wnd / 2 {
                return Err(Blocked::Window);
            }
            len = window;
        }
        if cwnd < len {
            return Err(Blocked::Cwnd);
        }
        let last = len == unsent;
        if len < room && last && !fin_queued && self.hold_partial(q, off) {
            return Err(Blocked::Held);
        }
        let flags = TcpFlags::ACK | self.fin_with(last);
        Ok(New { off, len, flags })
    }

    /// Whether a partial last segment waits: for more data (cork, MSG_MORE), or for the
    /// acknowledgment of another partial one (Nagle's algorithm, RFC 9293 section 3.7.4, in
    /// Minshall's variant, as Linux).
    pub(super) fn hold_partial(&self, q: Queued, flight: u32) -> bool {
        if self.has(flag::PUSH) {
            return false;
        }
        let small_out = flight > 0 && self.snd_sml.gt(self.snd_una);
        self.has(flag::CORK) || q.more_coming || (!self.has(flag::NODELAY) && small_out)
    }

    pub(super) fn fin_with(&self, last: bool) -> TcpFlags {
        if last && self.has(flag::FIN_QUEUED) && !self.has(flag::FIN_SENT) {
            TcpFlags::FIN
        } else {
            TcpFlags::NONE
        }
    }

    /// The first data after everything was acknowledged: the congestion window may be stale
    /// (RFC 2861; RFC 9438, section 4.2).
    fn resume(&mut self, now: Time) {
        let idle = u64::from(tick(now).wrapping_sub(self.last_tx)) << 20;
        let restart = self.has(flag::IDLE_RESTART);
        self.cc.on_tx_start(idle, self.rtt.rto(), restart, now);
    }

    /// Payload that fits beside the options of a segment sent now.
    pub(super) fn payload_room(&self) -> u32 {
        let mss = u32::from(self.mss);
        match &self.ooo {
            Some(ooo) if self.has(flag::SACK) => {
                let mut opts = TcpOptions {
                    ts: self.has(flag::TS).then_some((0, 0)),
                    ..TcpOptions::default()
                };
                let without = opts.wire_len(false);
                ooo.queue.sack_blocks(&mut opts.sack);
                let sack = (opts.wire_len(false) - without) as u32;
                mss.saturating_sub(sack).max(1)
            }
            _ => mss,
        }
    }

    /// A segment of `len` octets of new data at `off`, with `flags`; a FIN among them follows
    /// the data.
    pub(super) fn new_segment(
        &mut self,
        q: Queued,
        off: u32,
        len: u32,
        flags: TcpFlags,
        now: Time,
    ) -> SegPlan {
        let seq = self.snd_nxt;
        let flags = self.commit_new(q, off, len, flags, now);
        SegPlan::one(self.header(seq, flags, now), off, len)
    }

    /// Whether a segment of `len` octets at `off`, the last of so many since a push, pushes: where
    /// large segments are planned, the last that can go now, or one that makes half of the peer's
    /// largest window up; else the second of a pair.
    #[inline(never)]
    fn pushes_late(&self, q: Queued, (off, len): (u32, u32), octets: u32) -> bool {
        if self.large {
            return octets >= self.push_after() || self.is_last(q, off + len);
        }
        let mss = u32::from(self.mss);
        len != mss || octets >= self.max_wnd || octets.is_multiple_of(2 * mss)
    }

    /// Whether nothing of what is queued can go now behind the first `end` octets.
    fn is_last(&self, q: Queued, end: u32) -> bool {
        let goes = self.goes_now(q);
        let rest = goes.saturating_sub(end);
        let held = goes < q.len || (!self.has(flag::FIN_QUEUED) && self.hold_partial(q, end));
        rest == 0 || (rest < self.mss.into() && held)
    }

    /// How far the queue and the windows let undisturbed data go now, octets from SND.UNA.
    #[inline]
    pub(super) fn goes_now(&self, q: Queued) -> u32 {
        q.len.min(self.snd_wnd).min(self.cc.cwnd())
    }

    /// Counts new data as sent; returns the flags of its segment.
    #[inline(always)]
    pub(super) fn commit_new(
        &mut self,
        q: Queued,
        off: u32,
        len: u32,
        flags: TcpFlags,
        now: Time,
    ) -> TcpFlags {
        self.burst = self.burst.wrapping_add(1);
        let mut flags = flags;
        let pushed = q.len.saturating_sub(q.unpushed);
        // The end of what the application wrote; and, within a burst, every second segment:
        // receivers that gather segments deliver them then (what Linux's smallest segmentation
        // offload bursts look like on the wire). Large segments would be cut by that.
        let pair = self.burst & 1 == 0 && self.cc.cwnd() >= 4 * u32::from(self.mss) && !self.large;
        if len > 0 && ((off < pushed && off + len >= pushed) || pair) {
            flags |= TcpFlags::PSH;
        }
        // Half the peer's largest window has passed without a push: a peer that gathers until it
        // sees one must not wait for the window to fill (Linux; at a pair's end).
        let octets = (self.snd_nxt + len).since(self.push_seq);
        let late = octets > self.max_wnd / 2 || (self.large && octets > self.max_wnd / 4);
        if late && self.pushes_late(q, (off, len), octets) {
            self.push_seq = self.snd_nxt + len;
            flags |= TcpFlags::PSH;
        }
        let fin = flags.contains(TcpFlags::FIN);
        self.snd_nxt += len + u32::from(fin);
        if fin {
            self.flags |= flag::FIN_SENT;
            self.set_flag(flag::FIN_ALONE, len == 0);
        }
        if len < u32::from(self.mss) && off + len >= q.len {
            self.snd_sml = self.snd_nxt;
        }
        // Also in slow start after a timeout: it is the sample that ends the back-off.
        if !self.has(flag::TIMING) && self.ca != CaState::Recovery {
            self.flags |= flag::TIMING;
            self.rtt_seq = self.snd_nxt;
            self.rtt_at = now;
        }
        if self.has(flag::SAMPLING) {
            self.record_send(now);
        }
        if self.rexmt_at == Time::NEVER || self.has(flag::PERSIST) {
            self.arm_rexmt(now);
        }
        if self.ca == CaState::Recovery {
            self.prr.on_send(len);
        }
        self.sent_data(len, now);
        flags
    }

    /// Slow start watches round trips: more than one sample for each.
    pub(super) fn record_send(&mut self, now: Time) {
        let window = self.cc.cwnd().min(self.snd_wnd);
        let times = self.times.get_or_insert_default();
        times.on_send(self.snd_nxt, window, now);
    }

    #[cold]
    fn arm_rexmt(&mut self, now: Time) {
        if self.has(flag::PERSIST) {
            self.leave_persist();
        }
        self.stall_since = tick(now);
        self.rexmt_at = now.plus(self.rtt.rto());
        self.refresh_fast();
    }

    /// `len` octets of sequence space from `seq` once more; the FIN may be the last of them.
    /// `pair` says that it is the second segment of two that left together the first time and
    /// do so again.
    pub(super) fn again(
        &mut self,
        q: Queued,
        seq: Seq,
        len: u32,
        pair: bool,
        now: Time,
    ) -> SegPlan {
        let fin = self.ends_with_fin(seq + len);
        let octets = len - u32::from(fin);
        let off = seq.since(self.snd_una);
        let mut flags = TcpFlags::ACK;
        if fin {
            flags |= TcpFlags::FIN;
        }
        let pushed = q.len.saturating_sub(q.unpushed);
        if octets > 0 && (pair || (off < pushed && off + octets >= pushed)) {
            flags |= TcpFlags::PSH;
        }
        self.flags |= flag::AGAIN;
        self.again_at = now;
        let fast = self.ca == CaState::Recovery && seq == self.snd_una;
        if fast || self.rexmt_at == Time::NEVER {
            self.rexmt_at = now.plus(self.rtt.rto());
        }
        if self.ca == CaState::Recovery {
            self.prr.on_send(len);
        }
        if let Some(times) = &mut self.times {
            times.clear();
        }
        self.count.sent_again();
        self.count.bytes_retrans += u64::from(octets);
        self.sent_data(octets, now);
        SegPlan::one(self.header(seq, flags, now), off, octets)
    }

    /// Whether `end` is where everything sent ends, and the FIN is the last of it.
    pub(super) fn ends_with_fin(&self, end: Seq) -> bool {
        self.has(flag::FIN_SENT) && end == self.snd_nxt
    }

    /// A segment without data.
    fn pure(&mut self, seq: Seq, now: Time) -> SegPlan {
        SegPlan::one(self.header(seq, TcpFlags::ACK, now), 0, 0)
    }

    #[inline]
    fn sent_data(&mut self, len: u32, now: Time) {
        let t = tick(now);
        self.last_tx = t;
        self.count.data_segs_out = self.count.data_segs_out.wrapping_add(u32::from(len > 0));
        if t.wrapping_sub(self.last_data_rx) < ANSWER_WITHIN {
            self.quick = 0;
        }
    }

    /// A segment is about to acknowledge all that has arrived; returns its window field.
    #[inline(always)]
    fn acknowledge(&mut self) -> u16 {
        if self.last_ack != self.rcv_nxt {
            self.quick = self.quick.saturating_sub(1);
            self.last_ack = self.rcv_nxt;
        }
        self.flags &= !flag::ACK_NOW;
        self.delack_at = Time::NEVER;
        self.count.segs_out = self.count.segs_out.wrapping_add(1);
        self.window_field()
    }

    /// The header of any segment but a SYN.
    fn header(&mut self, seq: Seq, flags: TcpFlags, now: Time) -> SegOut {
        let window = self.acknowledge();
        let mut seg = SegOut {
            seq,
            ack: self.rcv_nxt,
            flags,
            window,
            urgent: 0,
            opts: TcpOptions::default(),
        };
        if self.has(flag::TS) {
            seg.opts.ts = Some((self.ts_now(now), self.ts_recent));
        }
        if let Some(ooo) = &self.ooo
            && self.has(flag::SACK)
        {
            ooo.queue.sack_blocks(&mut seg.opts.sack);
        }
        seg
    }

    /// `plan` has no data to send: notes why, for congestion control, and sees to it that
    /// blocked data is not forgotten.
    fn end_of_run(&mut self, blocked: Blocked, now: Time) {
        let flight = self.snd_nxt.since(self.snd_una);
        let full = blocked == Blocked::Cwnd;
        self.arm_probe(self.burst > 0, now);
        if self.burst > 0 || full {
            self.usage.on_send(self.snd_una, self.snd_nxt, flight, full);
            self.burst = 0;
        }
        self.flags &= !(flag::WANTS | flag::AGAIN);
        match blocked {
            Blocked::Empty => {
                self.flags &= !flag::PUSH;
                self.push_seq = self.snd_nxt;
            }
            Blocked::Cwnd => {}
            Blocked::Window | Blocked::Held => {
                self.flags |= flag::WANTS;
                if flight == 0 && self.rexmt_at == Time::NEVER {
                    self.flags |= flag::PERSIST;
                    self.stall_since = tick(now);
                    self.rexmt_at = now.plus(self.rtt.rto());
                    self.refresh_fast();
                }
            }
        }
    }
}

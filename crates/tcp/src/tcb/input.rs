//! A segment in full (RFC 9293, section 3.10.7; RFC 5961; RFC 7323).

use core::time::Duration;

use perimeter_base::{PktBuf, Time};
use perimeter_wire::{Seq, TcpFlags, TcpHdr};

use super::light::DATA_PAUSE;
use super::types::{Events, Input, Rst, TcpError};
use super::{DEFAULT_MSS, State, Step, Tcb, flag, tick};

/// Least distance between two answers to unacceptable segments without data, in ticks: two
/// ends that disagree can't then drive each other (Linux: 500 ms).
const OOW_GAP: u32 = 477;

/// Ticks after which TS.Recent is too old to compare with: 24 days (RFC 7323, section 5.5).
const TS_OUTDATED: u32 = 24 * 86_400 * 954;

impl Tcb {
    /// The complete processing; use it for what [`Tcb::input_light`] left.
    pub fn input_full(&mut self, seg: &TcpHdr, data: Option<PktBuf>, now: Time, out: &mut Input) {
        if self.has(flag::GUARDED) {
            (out.data, out.events) = (data, Events::GUARDED);
            return;
        }
        let len = data.as_ref().map_or(0, |d| d.len() as u32);
        self.count.segs_in = self.count.segs_in.wrapping_add(1);
        if len > 0 {
            self.count.data_segs_in = self.count.data_segs_in.wrapping_add(1);
        }
        match self.state {
            State::Closed => {
                out.reply = Rst::answering(seg, len);
                return;
            }
            State::SynSent => self.in_syn_sent(seg, data, now, out),
            State::TimeWait => self.in_time_wait(seg, len, now),
            _ => self.in_synchronized(seg, data, now, out),
        }
        self.last_rx = tick(now);
        if self.state != State::Closed {
            self.refresh_fast();
            out.output = true;
        }
    }

    /// Section 3.10.7.3.
    fn in_syn_sent(&mut self, seg: &TcpHdr, data: Option<PktBuf>, now: Time, out: &mut Input) {
        let acks = seg.flags.contains(TcpFlags::ACK);
        let rst = seg.flags.contains(TcpFlags::RST);
        if acks && (seg.ack.le(self.iss) || seg.ack.gt(self.snd_nxt)) {
            if !rst {
                out.reply = Some(Rst::new(seg.ack, None));
            }
            return;
        }
        if rst {
            if acks {
                out.events |= self.finish(Some(TcpError::Refused));
            }
            return;
        }
        if !seg.flags.contains(TcpFlags::SYN) {
            return;
        }
        self.irs = seg.seq;
        self.rcv_nxt = seg.seq + 1;
        self.last_ack = self.rcv_nxt;
        // The window of our SYN counts from here; it was not scaled.
        self.rcv_adv = self.rcv_nxt + (self.rcv_space.max(0) as u32).min(0xffff);
        self.negotiate(seg);
        self.snd_wnd = u32::from(seg.window);
        self.max_wnd = self.snd_wnd;
        self.snd_wl1 = seg.seq;
        self.snd_wl2 = seg.ack;
        if !acks {
            // Simultaneous open: our SYN goes out again, as a SYN-ACK.
            self.step(Step::SynCrossed);
            self.flags |= flag::SYN_DUE;
            return;
        }
        self.snd_una = seg.ack;
        self.step(Step::SynAcked);
        self.handshake_done(seg, now, out);
        self.flags |= flag::ACK_NOW;
        let fin = seg.flags.contains(TcpFlags::FIN);
        self.take_data(seg.seq + 1, data, fin, now, out);
    }

    /// Settles options from the peer's SYN against what ours offered.
    fn negotiate(&mut self, syn: &TcpHdr) {
        let offered = self.set.offer_wscale;
        let wscale = match syn.opts.wscale {
            Some(peer) if offered != u8::MAX => Some((peer, offered)),
            _ => None,
        };
        let ts = syn.opts.ts.filter(|_| self.has(flag::TS));
        let sack = syn.opts.sack_permitted && self.has(flag::SACK);
        let mss = syn.opts.mss.unwrap_or(DEFAULT_MSS);
        self.negotiated(mss, wscale, ts.map(|(val, _)| val), sack);
    }

    /// Our SYN is acknowledged.
    fn handshake_done(&mut self, seg: &TcpHdr, now: Time, out: &mut Input) {
        self.flags &= !(flag::SYN_OUT | flag::SYN_DUE);
        let syn_lost = self.retries > 0;
        let rtt = self.take_rtt(seg, now);
        self.rexmt_at = Time::NEVER;
        self.snd_sml = self.snd_una;
        self.recover = self.iss;
        self.start(rtt, syn_lost, now);
        out.events |= Events::CONNECTED;
    }

    /// TIME-WAIT (section 3.10.7.4). Resets are ignored: RFC 1337. What may open a new
    /// connection is [`Tcb::time_wait_reuse`]'s to say, before.
    ///
    /// Only the peer's own FIN, sent again because our acknowledgment was lost, starts the wait
    /// anew: it ends exactly at RCV.NXT and acknowledges what we sent. Strangers can't prolong
    /// the wait, and what they send is answered rarely.
    fn in_time_wait(&mut self, seg: &TcpHdr, len: u32, now: Time) {
        let is = |flag| seg.flags.contains(flag);
        if is(TcpFlags::RST) {
            return;
        }
        let fin_again = is(TcpFlags::FIN)
            && is(TcpFlags::ACK)
            && !is(TcpFlags::SYN)
            && seg.seq + len + 1 == self.rcv_nxt
            && self.ack_in_range(seg.ack);
        if fin_again {
            self.challenge_ack(now);
            self.arm_time_wait(now);
        } else if len > 0
            || seg.seq != self.rcv_nxt
            || seg.flags.intersects(TcpFlags::SYN | TcpFlags::FIN)
        {
            self.answer_unacceptable(0, now);
        }
    }

    /// Section 3.10.7.4, in its order.
    fn in_synchronized(&mut self, seg: &TcpHdr, data: Option<PktBuf>, now: Time, out: &mut Input) {
        let len = data.as_ref().map_or(0, |d| d.len() as u32);
        let mut seq = seg.seq;
        let mut flags = seg.flags;
        if self.has(flag::SYN_OUT) && flags.contains(TcpFlags::SYN) {
            if seq + 1 != self.rcv_nxt {
                self.challenge_ack(now);
                return;
            }
            if !flags.contains(TcpFlags::ACK) || seg.ack != self.snd_nxt {
                // The peer has not seen our SYN-ACK.
                self.flags |= flag::SYN_DUE;
                return;
            }
            // Simultaneous open: the peer's SYN-ACK repeats the SYN we have.
            seq += 1;
            flags = flags.without(TcpFlags::SYN);
        }
        if !self.acceptable(seg, seq, flags, len, now) {
            return;
        }
        if flags.contains(TcpFlags::RST) {
            self.take_rst(seq, now, out);
            return;
        }
        if flags.contains(TcpFlags::SYN) {
            // RFC 5961, section 4.
            self.challenge_ack(now);
            return;
        }
        if !flags.contains(TcpFlags::ACK) || !self.ack_plausible(seg, now, out) {
            return;
        }
        // Only now: a segment that would be dropped must not move TS.Recent.
        if let Some((val, _)) = seg.opts.ts
            && self.has(flag::TS)
            && seq.le(self.last_ack)
            && (val.wrapping_sub(self.ts_recent) as i32 >= 0 || self.ts_outdated(now))
        {
            self.ts_recent = val;
        }
        self.take_ack(seg, len, now, out);
        if self.state == State::Closed {
            return;
        }
        // The urgent pointer says nothing that anybody here asks for: the data stays in the stream
        // (RFC 6093).
        let fin = flags.contains(TcpFlags::FIN);
        if len == 0 && !fin {
            return;
        }
        if len > 0 {
            let t = tick(now);
            if t.wrapping_sub(self.last_data_rx) > DATA_PAUSE {
                self.quick = self.set.quick_acks;
            }
            self.last_data_rx = t;
            if self.unwanted(seq + len) {
                out.reply = Some(Rst::new(seg.ack, None));
                out.events |= self.finish(Some(TcpError::Reset));
                return;
            }
        }
        if self.state.may_receive() {
            self.take_data(seq, data, fin, now, out);
        } else {
            // The peer has closed already: its FIN again, or nonsense.
            self.flags |= flag::ACK_NOW;
        }
    }

    /// New data for which there is no reader any more, while closing: RFC 9293, section
    /// 3.10.4 (as Linux): the peer must learn that it is lost.
    fn unwanted(&self, end: Seq) -> bool {
        self.has(flag::ORPHAN)
            && matches!(self.state, State::FinWait1 | State::FinWait2)
            && end.gt(self.rcv_nxt)
    }

    /// PAWS and the sequence check; answers what fails them.
    ///
    /// The left edge is Last.ACK.sent rather than RCV.NXT and the right edge is inclusive, as
    /// in Linux: acknowledgments that data overtook, and those of a peer that has filled the
    /// window, keep their use.
    fn acceptable(&mut self, seg: &TcpHdr, seq: Seq, flags: TcpFlags, len: u32, now: Time) -> bool {
        let rst = flags.contains(TcpFlags::RST);
        if let Some((val, _)) = seg.opts.ts
            && self.has(flag::TS)
            && !rst
            && (val.wrapping_sub(self.ts_recent) as i32) < 0
            && !self.ts_outdated(now)
        {
            self.answer_unacceptable(len, now);
            return false;
        }
        let end = seq + len + u32::from(flags.contains(TcpFlags::FIN));
        if end.ge(self.last_ack) && seq.le(self.rcv_adv.max(self.rcv_nxt)) {
            return true;
        }
        if flags.contains(TcpFlags::SYN) {
            self.challenge_ack(now);
        } else if !rst {
            self.answer_unacceptable(len, now);
        }
        false
    }

    fn ts_outdated(&self, now: Time) -> bool {
        tick(now).wrapping_sub(self.last_rx) > TS_OUTDATED
    }

    /// RFC 5961, section 3: only a reset at exactly RCV.NXT counts.
    fn take_rst(&mut self, seq: Seq, now: Time, out: &mut Input) {
        if seq != self.rcv_nxt {
            self.challenge_ack(now);
            return;
        }
        let error = match self.state {
            State::SynReceived => TcpError::Refused,
            _ => TcpError::Reset,
        };
        out.events |= self.finish(Some(error));
    }

    /// RFC 5961, section 5: SND.UNA − MAX.SND.WND ≤ SEG.ACK ≤ SND.NXT, or else a challenge
    /// (RFC 9293, section 3.10.7.4); completes the handshake of a simultaneous open.
    fn ack_plausible(&mut self, seg: &TcpHdr, now: Time, out: &mut Input) -> bool {
        if self.has(flag::SYN_OUT) {
            if seg.ack.le(self.snd_una) || seg.ack.gt(self.snd_nxt) {
                out.reply = Some(Rst::new(seg.ack, None));
                return false;
            }
            self.step(Step::HandshakeAcked);
            self.snd_una += 1;
            self.handshake_done(seg, now, out);
            return true;
        }
        let plausible = self.ack_in_range(seg.ack);
        if !plausible {
            self.challenge_ack(now);
        }
        plausible
    }

    /// Whether a peer that has followed the connection can have sent this acknowledgment.
    fn ack_in_range(&self, ack: Seq) -> bool {
        ack.le(self.snd_nxt) && ack.ge(self.snd_una - self.max_wnd)
    }

    /// Tells the peer where we are. Segments without data are answered rarely, so that two
    /// ends that disagree don't loop; those with data are not part of such a loop.
    pub(super) fn answer_unacceptable(&mut self, len: u32, now: Time) {
        let t = tick(now);
        if len == 0 {
            if t.wrapping_sub(self.oow_at) < OOW_GAP {
                return;
            }
            self.oow_at = t;
        }
        self.flags |= flag::ACK_NOW;
    }

    /// RFC 5961, section 7: at most so many per second. The limit is the connection's own and
    /// varies, so that an attacker learns nothing about other connections from it
    /// (CVE-2016-5696).
    fn challenge_ack(&mut self, now: Time) {
        let sec = (now.nanos() / 1_000_000_000) as u32;
        if sec != self.challenge_sec {
            self.challenge_sec = sec;
            let mix = (sec ^ self.ts_offset)
                .wrapping_add(self.iss.0)
                .wrapping_mul(0x9e37_79b1);
            self.challenge_left = 4 + (mix >> 29) as u8;
        }
        if self.challenge_left > 0 {
            self.challenge_left -= 1;
            self.flags |= flag::ACK_NOW;
        }
    }

    /// The state's answer to the peer's FIN.
    pub(super) fn fin_arrived(&mut self, now: Time, out: &mut Input) {
        self.step(Step::FinIn);
        if self.state == State::TimeWait {
            self.enter_time_wait(now, out);
        }
    }

    /// The state's answer to the acknowledgment of our FIN.
    pub(super) fn fin_acked(&mut self, now: Time, out: &mut Input) {
        self.step(Step::FinAcked);
        match self.state {
            State::FinWait2 if self.has(flag::ORPHAN) => {
                self.aux_at = now + Duration::from_millis(u64::from(self.set.fin_wait_2_ms));
            }
            State::TimeWait => self.enter_time_wait(now, out),
            State::Closed => out.events |= self.finish(None),
            _ => {}
        }
    }

    fn enter_time_wait(&mut self, now: Time, out: &mut Input) {
        self.rexmt_at = Time::NEVER;
        self.delack_at = Time::NEVER;
        self.scoreboard = None;
        self.times = None;
        self.flags &= !(flag::SAMPLING | flag::PROBE | flag::PERSIST | flag::HEAD_LOST);
        self.arm_time_wait(now);
        out.events |= Events::TIME_WAIT;
    }

    fn arm_time_wait(&mut self, now: Time) {
        self.aux_at = now + Duration::from_millis(u64::from(self.set.time_wait_ms));
    }
}

//! The application's side: closing, settings, and what can be asked.

use core::time::Duration;

use perimeter_base::Time;
use perimeter_wire::{Seq, TcpFlags, TcpHdr};

use super::types::{Events, Repeats, Rst, TcpError, Unreachable};
use super::{QUICK_ACKS, State, Step, TS_LEN, Tcb, flag, tick};
use crate::cc::{CcKind, SSTHRESH_INFINITE};
use crate::config::{HEADERS, Keepalive, MIN_MSS, MIN_PMTU, millis};
use crate::info::Info;

impl Tcb {
    /// The application sends no more: a FIN follows what is queued. Run the output loop.
    pub fn shutdown_write(&mut self, now: Time) -> bool {
        let was_open = matches!(
            self.state,
            State::SynReceived | State::Established | State::CloseWait
        );
        if self.state == State::SynSent {
            self.finish(None);
            return false;
        }
        self.step(Step::CloseSend);
        if was_open {
            self.flags |= flag::FIN_QUEUED;
            self.arm_keepalive(now);
            self.refresh_fast();
        }
        was_open
    }

    /// The application has closed the socket and nobody will read or write any more. If
    /// unread data is left, call [`Tcb::abort`] instead (RFC 9293, section 3.10.4, RFC 2525
    /// section 2.17).
    ///
    /// Sends a FIN after what is queued; bounds the time in FIN-WAIT-2; data that arrives from
    /// now on is answered with a reset. Run the output loop if it returns true; in SYN-SENT
    /// the connection is [`State::Closed`] at once.
    pub fn close(&mut self, now: Time) -> bool {
        self.flags |= flag::ORPHAN;
        let output = self.shutdown_write(now);
        if self.state == State::FinWait2 {
            self.aux_at = now + Duration::from_millis(u64::from(self.set.fin_wait_2_ms));
        }
        output
    }

    /// Gives the connection up at once. Returns the reset to send if the peer knows of the
    /// connection. The state is [`State::Closed`] afterwards.
    pub fn abort(&mut self, now: Time) -> Option<Rst> {
        let rst = match self.state {
            State::Closed | State::SynSent | State::TimeWait => None,
            _ => Some(self.reset(now)),
        };
        self.finish(None);
        rst
    }

    /// Switches Nagle's algorithm off or on. Switching it off pushes what was held, corked or
    /// not (as Linux): run the output loop if it returns true.
    pub fn set_nodelay(&mut self, on: bool) -> bool {
        self.set_flag(flag::NODELAY, on);
        if on {
            self.flags |= flag::PUSH;
        }
        on && self.state.is_synchronized()
    }

    /// Holds partial segments, or lets them go: run the output loop if it returns true.
    pub fn set_cork(&mut self, on: bool) -> bool {
        let was = self.has(flag::CORK);
        self.set_flag(flag::CORK, on);
        if was && !on {
            self.flags |= flag::PUSH;
        }
        was && !on && self.state.is_synchronized()
    }

    /// Sets or removes keepalive. Re-read [`Tcb::deadline`] afterwards.
    pub fn set_keepalive(&mut self, keep: Option<Keepalive>, now: Time) {
        self.set.keep_probes = keep.map_or(0, |k| k.probes.max(1));
        if let Some(k) = keep {
            self.set.keep_idle_ms = millis(k.idle);
            self.set.keep_interval_ms = millis(k.interval);
        }
        self.arm_keepalive(now);
    }

    /// Sets or removes the user timeout (RFC 5482).
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.set.user_timeout_ms = timeout.map_or(0, |t| millis(t).max(1));
    }

    /// Sets how long FIN-WAIT-2 of a closed connection lasts (TCP_LINGER2).
    pub fn set_fin_wait_2(&mut self, timeout: Duration) {
        self.set.fin_wait_2_ms = millis(timeout);
    }

    /// Acknowledges at once what has been received and comes next, or delays acknowledgments
    /// as if each were to ride on an answer (TCP_QUICKACK). Neither lasts, as in Linux: delaying
    /// ends when the timer has to send an acknowledgment that found nothing to ride on, and quick
    /// acknowledgments end when the application answers. Run the output loop if it returns true.
    pub fn set_quick_ack(&mut self, on: bool) -> bool {
        if !on {
            self.quick = 0;
            self.set.quick_acks = 0;
            return false;
        }
        self.set.quick_acks = QUICK_ACKS;
        self.quick = self.quick.max(1);
        if self.delack_at != Time::NEVER {
            self.flags |= flag::ACK_NOW;
            return true;
        }
        false
    }

    /// Changes the congestion control. The window is kept; the threshold is learnt anew.
    pub fn set_congestion(&mut self, kind: CcKind) {
        if self.cc.kind() != kind {
            let cwnd = self.cc.cwnd();
            let mut cc = crate::cc::Cc::new(kind, u32::from(self.mss), u32::from(self.set.iw));
            cc.set_cwnd(cwnd);
            self.cc = cc;
        }
    }

    /// An ICMP destination-unreachable message that quotes our segment at `seq`.
    ///
    /// RFC 5927: believed only if it quotes something outstanding. Fatal while connecting, a
    /// soft error afterwards, which is reported if the connection then times out (RFC 1122,
    /// section 4.2.3.9).
    pub fn on_unreachable(&mut self, e: Unreachable, seq: Seq) -> Events {
        let outstanding = seq.since(self.snd_una) < self.snd_nxt.since(self.snd_una);
        if !outstanding {
            return Events::NONE;
        }
        let error = match e {
            Unreachable::Net => TcpError::NetUnreachable,
            Unreachable::Host => TcpError::HostUnreachable,
            Unreachable::Protocol => TcpError::ProtocolUnreachable,
            Unreachable::Port => TcpError::Refused,
        };
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return self.finish(Some(error));
        }
        self.soft_error = Some(error);
        Events::NONE
    }

    /// The next hop does not answer. Fatal while connecting, a soft error afterwards.
    pub fn on_no_neighbour(&mut self) -> Events {
        if self.state == State::SynSent {
            return self.finish(Some(TcpError::HostUnreachable));
        }
        self.soft_error = Some(TcpError::HostUnreachable);
        Events::NONE
    }

    /// The interface that the connection goes by has gone for good: it ends, without a reset, which
    /// would not get anywhere.
    pub fn on_interface_gone(&mut self) -> Events {
        self.finish(Some(TcpError::NetDown))
    }

    /// How often the retransmission timer has gone off since the last acknowledgment of something
    /// new.
    pub fn backoffs(&self) -> u32 {
        self.rtt.backoffs().into()
    }

    /// An ICMP fragmentation-needed message that quotes our segment at `seq`: lowers the MSS
    /// for ten minutes (RFC 1191, section 6.3) and sends again what is outstanding. True: run the
    /// output loop.
    pub fn on_packet_too_big(&mut self, mtu: u16, seq: Seq, now: Time) -> bool {
        let flight = self.snd_nxt.since(self.snd_una);
        if seq.since(self.snd_una) >= flight || !self.state.is_synchronized() {
            return false;
        }
        let path = mtu.max(MIN_PMTU) - HEADERS;
        if self.probe_was_too_big(path, seq) {
            return true;
        }
        if path >= self.path_mss.min(self.adv_mss).min(self.peer_mss) {
            return false;
        }
        self.path_mss = path;
        self.search = None;
        self.flags &= !flag::MTU_PROBE;
        self.path_lowered(now);
        self.mss = self.effective_mss();
        self.cc.on_mss_change(u32::from(self.mss));
        self.resend_all(now);
        true
    }

    /// The connection is new, and the MTU of its path is known, in IPv4's terms: it begins with that,
    /// and tries a larger one after `until`.
    pub fn set_path_mtu(&mut self, mtu: u16, until: Time) {
        let path = mtu.max(MIN_PMTU) - HEADERS;
        if path >= self.path_mss.min(self.adv_mss) {
            return;
        }
        self.path_mss = path;
        self.path_at = until;
        if self.state.is_synchronized() {
            self.mss = self.effective_mss();
            self.cc.on_mss_change(u32::from(self.mss));
            self.arm_aux();
        }
    }

    /// The MTU of the path, in IPv4's terms, as far as it is known to be less than the link's: as a
    /// router has named it or as probing has found it.
    pub fn path_mtu(&self) -> u16 {
        self.path_mss.saturating_add(HEADERS)
    }

    /// No segment smaller than that, in octets without options, is tried where full ones vanish: the
    /// least that every link takes, where the family has one.
    pub fn set_path_floor(&mut self, mss: u16) {
        self.set.path_floor = mss;
    }

    /// The next moment at which [`Tcb::on_timer`] has something to do.
    #[inline]
    pub fn deadline(&self) -> Time {
        self.rexmt_at.min(self.delack_at).min(self.aux_at)
    }

    /// The timers that are due, one bit each: 1, delayed acknowledgment; 2, retransmission or
    /// persist; 4, keepalive or the end of waiting.
    pub fn timers_due(&self, now: Time) -> u8 {
        let at = [self.delack_at, self.rexmt_at, self.aux_at];
        let due = at.iter().enumerate();
        due.map(|(i, t)| u8::from(*t <= now) << i).sum()
    }

    /// What has been sent again since this was asked last, if anything.
    #[inline]
    pub fn take_repeats(&mut self) -> Option<Repeats> {
        if self.count.untold == Repeats::default() {
            return None;
        }
        Some(core::mem::take(&mut self.count.untold))
    }

    /// State of the connection.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The error that ended the connection, if it was not taken yet.
    pub fn error(&self) -> Option<TcpError> {
        self.error
    }

    /// Takes that error, or else the last soft error (SO_ERROR): each is reported once.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.error.take().or_else(|| self.soft_error.take())
    }

    /// SND.UNA: the first octet of the send buffer.
    pub fn snd_una(&self) -> Seq {
        self.snd_una
    }

    /// SND.NXT.
    pub fn snd_nxt(&self) -> Seq {
        self.snd_nxt
    }

    /// RCV.NXT.
    pub fn rcv_nxt(&self) -> Seq {
        self.rcv_nxt
    }

    /// Congestion window, octets.
    pub fn cwnd(&self) -> u32 {
        self.cc.cwnd()
    }

    /// The MSS that we announced, octets.
    pub fn adv_mss(&self) -> u16 {
        self.adv_mss
    }

    /// Send MSS, octets, options deducted.
    pub fn mss(&self) -> u16 {
        self.mss
    }

    /// Smoothed round-trip time; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        Duration::from_nanos(self.rtt.srtt())
    }

    /// Whether header prediction may be tried (it may, unless switched off here). Without it
    /// every segment takes the full path, in and out.
    pub fn set_prediction(&mut self, on: bool) {
        self.heavy = !on;
        self.refresh_fast();
    }

    /// Whether large segments are planned ([`Tcb::plan_large`]): else a burst pushes at every second
    /// segment.
    pub fn set_large(&mut self, on: bool) {
        self.large = on;
    }

    /// Whether the part of a large segment that the windows have room for waits until they have room
    /// for more, while two thirds of them are on the way.
    pub fn set_defer(&mut self, on: bool) {
        self.defers = on;
    }

    /// Whether data has arrived whose acknowledgment waits, for more data or for a time.
    pub fn delays_ack(&self) -> bool {
        self.delack_at != Time::NEVER
    }

    /// Whether data is acknowledged once the application has read, in place of when it arrives, while
    /// half of the receive buffer or more waits for it; after half a millisecond in any case.
    pub fn set_ack_on_read(&mut self, on: bool) {
        self.ack_on_read = on;
    }

    /// Octets of memory behind this block: scoreboard and out-of-order data.
    #[inline]
    pub fn memory(&self) -> usize {
        if self.ooo.is_none() && self.scoreboard.is_none() {
            return 0;
        }
        self.ooo.as_ref().map_or(0, |o| o.queue.memory())
            + self.scoreboard.as_ref().map_or(0, |s| s.memory())
    }

    /// Whether a SYN that arrives for this connection in TIME-WAIT may open a new one in its
    /// place: it is provably new, by timestamp or by sequence number (RFC 6191, section 2; RFC
    /// 9293, section 3.10.7.4, MAY-2). Returns the least ISS for the new connection, so that
    /// its sequence numbers don't overlap the old ones.
    pub fn time_wait_reuse(&self, syn: &TcpHdr) -> Option<Seq> {
        let plain_syn = syn.flags.contains(TcpFlags::SYN)
            && !syn.flags.intersects(TcpFlags::RST | TcpFlags::ACK);
        if self.state != State::TimeWait || !plain_syn {
            return None;
        }
        let newer = match syn.opts.ts {
            Some((val, _)) if self.has(flag::TS) => {
                let ahead = val.wrapping_sub(self.ts_recent) as i32;
                ahead > 0 || (ahead == 0 && syn.seq.gt(self.rcv_nxt))
            }
            _ => syn.seq.gt(self.rcv_nxt),
        };
        // A window's worth beyond the last octet sent (Linux).
        newer.then(|| self.snd_nxt + 0xffff + 2)
    }

    /// A snapshot for TCP_INFO.
    pub fn info(&self, now: Time) -> Info {
        let mss = u32::from(self.mss).max(1);
        let segs = |octets: u32| octets.div_ceil(mss);
        let flight = self.snd_nxt.since(self.snd_una);
        let pipe = self.pipe();
        let (sacked, lost, retrans) = self.loss_counts();
        let age = |then: u32| Duration::from_nanos(u64::from(tick(now).wrapping_sub(then)) << 20);
        let ns = Duration::from_nanos;
        let ms = |ms: u32| Duration::from_millis(ms.into());
        let c = &self.count;
        Info {
            state: self.state,
            ca_state: self.ca,
            timestamps: self.has(flag::TS),
            sack: self.has(flag::SACK),
            nodelay: self.has(flag::NODELAY),
            cork: self.has(flag::CORK),
            user_timeout: (self.set.user_timeout_ms > 0)
                .then(|| Duration::from_millis(self.set.user_timeout_ms.into())),
            keepalive: (self.set.keep_probes > 0).then(|| Keepalive {
                idle: ms(self.set.keep_idle_ms),
                interval: ms(self.set.keep_interval_ms),
                probes: self.set.keep_probes,
            }),
            snd_wscale: self.has(flag::WSCALE).then_some(self.snd_shift),
            rcv_wscale: self.has(flag::WSCALE).then_some(self.rcv_shift),
            retransmits: self.retries,
            probes: self.probes,
            backoff: self.rtt.backoffs(),
            rto: ns(self.rtt.rto()),
            srtt: ns(self.rtt.srtt()),
            rttvar: ns(self.rtt.rttvar()),
            min_rtt: ns(self.rtt.min_rtt().unwrap_or(0)),
            snd_mss: u32::from(self.mss),
            rcv_mss: u32::from(self.rcv_mss),
            adv_mss: u32::from(self.adv_mss - if self.has(flag::TS) { TS_LEN } else { 0 }),
            pmtu: u32::from(self.path_mss) + u32::from(HEADERS),
            unacked: segs(flight),
            in_flight: segs(pipe),
            sacked: segs(sacked),
            lost: segs(lost),
            retrans: segs(retrans),
            snd_cwnd: self.cc.cwnd() / mss,
            snd_ssthresh: match self.cc.ssthresh() {
                SSTHRESH_INFINITE => u32::MAX,
                octets => octets / mss,
            },
            cwnd_bytes: self.cc.cwnd(),
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.rcv_adv.since(self.rcv_nxt),
            reordering: match &self.scoreboard {
                Some(sb) => sb.reordering(),
                None => u32::from(self.reordering),
            },
            total_retrans: c.retrans,
            bytes_acked: c.bytes_acked,
            bytes_received: c.bytes_received,
            bytes_sent: c.bytes_acked + u64::from(self.data_in_flight()) + c.bytes_retrans,
            bytes_retrans: c.bytes_retrans,
            segs_out: c.segs_out,
            segs_in: c.segs_in,
            data_segs_in: c.data_segs_in,
            data_segs_out: c.data_segs_out,
            last_data_sent: age(self.last_tx),
            last_rcv: age(self.last_rx),
            ooo_bytes: self.ooo.as_ref().map_or(0, |o| o.queue.len()),
            adv_mss_option: u32::from(self.adv_mss.max(MIN_MSS)),
        }
    }

    /// Octets of data sent and not acknowledged: the flight without SYN and FIN.
    pub(super) fn data_in_flight(&self) -> u32 {
        let control = u32::from(self.has(flag::FIN_SENT)) + u32::from(self.has(flag::SYN_OUT));
        self.snd_nxt.since(self.snd_una).saturating_sub(control)
    }

    pub(super) fn set_flag(&mut self, bit: u32, on: bool) {
        if on {
            self.flags |= bit;
        } else {
            self.flags &= !bit;
        }
    }
}

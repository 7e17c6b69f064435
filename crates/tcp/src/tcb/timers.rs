//! What happens when nothing does: retransmission, persist, delayed acknowledgment, keepalive,
//! and the end of waiting.

use core::time::Duration;

use perimeter_base::Time;

use super::types::{Events, TcpError, TimerOutcome, Timers};
use super::{QUICK_ACKS, State, Tcb, flag, tick, ticks_of_ms};
use crate::info::CaState;

/// How long a path's MTU is believed once a router has named it (RFC 1191, section 6.3: ten
/// minutes).
pub(super) const PATH_MTU_AGE: Duration = Duration::from_secs(600);

/// When a larger one is tried if something else is going on then.
const PATH_BUSY: Duration = Duration::from_secs(60);

impl Tcb {
    /// [`Tcb::deadline`] has come. Calling early does nothing.
    pub fn on_timer(&mut self, now: Time) -> TimerOutcome {
        let mut out = TimerOutcome::default();
        if self.delack_at <= now {
            self.delack_at = Time::NEVER;
            self.flags |= flag::ACK_NOW;
            // Delaying has cost the peer time: what [`Tcb::set_quick_ack`] asked for is over.
            self.set.quick_acks = QUICK_ACKS;
            out.fired |= Timers::DELACK;
            out.output = true;
        }
        if self.rexmt_at <= now {
            self.rexmt_at = Time::NEVER;
            if self.has(flag::PERSIST) {
                out.fired |= Timers::PERSIST;
                self.on_persist(now, &mut out);
            } else if self.snd_una != self.snd_nxt {
                out.fired |= Timers::RETRANSMIT;
                if self.has(flag::REO_ARMED) {
                    self.on_reorder_timer(now, &mut out);
                } else if self.has(flag::TLP_ARMED) {
                    self.on_probe_timer(now, &mut out);
                } else {
                    self.on_rto(now, &mut out);
                }
            }
        }
        if self.aux_at <= now {
            self.aux_at = Time::NEVER;
            self.on_aux(now, &mut out);
        }
        out
    }

    /// The retransmission timer (RFC 6298, section 5.4 on).
    fn on_rto(&mut self, now: Time, out: &mut TimerOutcome) {
        let syn = self.has(flag::SYN_OUT);
        let limit = match () {
            () if syn => self.set.syn_retries,
            () if self.has(flag::ORPHAN) => self.set.orphan_retries,
            () => self.set.data_retries,
        };
        let first = self.retries == 0;
        if first && !self.has(flag::TLP_OUT) {
            // The timer was last set when the peer was last heard of, or when the oldest
            // segment was sent.
            self.stall_since = tick(Time(now.nanos().saturating_sub(self.rtt.rto())));
        }
        if self.gives_up(self.retries, limit, now) {
            self.time_out(now, out);
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.rto_ts = self.ts_now(now);
        self.rtt.backoff();
        if syn {
            self.flags |= flag::SYN_DUE;
            self.rexmt_at = now.plus(self.rtt.rto());
            self.rexmt_at = self.rexmt_at.min(self.user_limit(now));
        } else {
            let flight = self.snd_nxt.since(self.snd_una);
            let reduces = first && self.ca != CaState::Recovery;
            self.cc.on_rto(flight, reduces);
            if self.suspect_path(now) {
                out.events |= Events::BLACK_HOLE;
            }
            self.resend_all(now);
            self.rexmt_at = self.rexmt_at.min(self.user_limit(now));
        }
        out.output = true;
    }

    /// The persist timer: asks a peer with a closed window, or overrides what held data back.
    /// The interval backs off like the retransmission timeout (RFC 9293, section 3.8.6.1).
    fn on_persist(&mut self, now: Time, out: &mut TimerOutcome) {
        let limit = match () {
            () if self.has(flag::ORPHAN) => self.set.orphan_retries,
            () => self.set.data_retries,
        };
        if self.gives_up(self.probes, limit, now) || self.orphan_gives_up() {
            self.time_out(now, out);
            return;
        }
        self.flags |= flag::PROBE;
        self.rtt.backoff();
        self.probes = self.probes.saturating_add(1);
        self.rexmt_at = now.plus(self.rtt.rto()).min(self.user_limit(now));
        self.refresh_fast();
        out.output = true;
    }

    /// Whether it is time to give up: the user timeout has passed since the peer was last
    /// heard of about this, or without one, after `limit` attempts (RFC 9293, section 3.8.3).
    fn gives_up(&self, attempts: u8, limit: u8, now: Time) -> bool {
        if self.set.user_timeout_ms > 0 {
            let silent = tick(now).wrapping_sub(self.stall_since);
            return silent >= ticks_of_ms(self.set.user_timeout_ms);
        }
        attempts >= limit
    }

    /// A peer that answers may keep its window shut for as long as an application waits for it
    /// (RFC 9293, section 3.8.6.1). When none does any more, what is left to send is given up once
    /// the interval between probes has grown to its maximum, answered or not, as by Linux: after
    /// some minutes. Only an opening window starts the intervals over.
    fn orphan_gives_up(&self) -> bool {
        self.has(flag::ORPHAN)
            && self.rtt.backoffs() >= self.set.orphan_retries
            && self.rtt.rto() >= u64::from(self.set.rto_max_ms) * 1_000_000
    }

    /// When the user timeout would pass: timers don't wait beyond it.
    pub(super) fn user_limit(&self, now: Time) -> Time {
        match self.set.user_timeout_ms {
            0 => Time::NEVER,
            ms => {
                let silent = tick(now).wrapping_sub(self.stall_since);
                after_ticks(now, ticks_of_ms(ms).saturating_sub(silent))
            }
        }
    }

    fn time_out(&mut self, now: Time, out: &mut TimerOutcome) {
        let error = self.soft_error.take().unwrap_or(TcpError::TimedOut);
        // A peer that comes back should learn that we are gone.
        if self.state.is_synchronized() {
            out.reply = Some(self.reset(now));
        }
        out.events |= self.finish(Some(error));
    }

    fn on_aux(&mut self, now: Time, out: &mut TimerOutcome) {
        match self.state {
            State::TimeWait => self.on_two_msl(out),
            State::FinWait2 if self.has(flag::ORPHAN) => self.on_two_msl(out),
            State::Closed | State::SynSent | State::SynReceived => {}
            _ => {
                out.fired |= Timers::KEEPALIVE;
                if self.path_at <= now {
                    self.path_is_old(now, out);
                }
                if self.keep_at <= now {
                    self.keep_at = Time::NEVER;
                    self.on_keepalive(now, out);
                }
                self.arm_aux();
            }
        }
    }

    /// What a router said about the path's MTU is long ago (RFC 1191, section 6.3): the path may
    /// have changed. If it has not, the next full segment is answered as the first was.
    pub(super) fn retry_path(&mut self, now: Time) {
        if self.ca != CaState::Open || self.dupacks > 0 {
            // Segments of one size are easier to account for: when this is over.
            self.path_at = now + PATH_BUSY;
            return;
        }
        self.path_at = Time::NEVER;
        self.path_mss = self.adv_mss;
        self.mss = self.effective_mss();
        self.cc.on_mss_change(u32::from(self.mss));
    }

    /// The path's MTU was lowered.
    pub(super) fn path_lowered(&mut self, now: Time) {
        self.path_at = now + PATH_MTU_AGE;
        self.arm_aux();
    }

    /// While the connection is open the timer is shared by keepalive and the path's MTU.
    pub(super) fn arm_aux(&mut self) {
        if self.is_watching() {
            self.aux_at = self.keep_at.min(self.path_at);
        }
    }

    /// Neither waiting for its end nor done.
    fn is_watching(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        ) && !(self.state == State::FinWait2 && self.has(flag::ORPHAN))
    }

    fn on_two_msl(&mut self, out: &mut TimerOutcome) {
        out.fired |= Timers::TWO_MSL;
        out.events |= self.finish(None);
    }

    /// Keepalive (RFC 9293, section 3.8.4). The timer is not re-armed by traffic: when it
    /// fires it looks at how long the peer has been silent.
    fn on_keepalive(&mut self, now: Time, out: &mut TimerOutcome) {
        if self.set.keep_probes == 0 {
            return;
        }
        if self.snd_una != self.snd_nxt || self.has(flag::PERSIST) {
            // Data is out: its own timer watches the peer.
            self.arm_keepalive(now);
            return;
        }
        let silent = tick(now).wrapping_sub(self.last_rx);
        let idle = ticks_of_ms(self.set.keep_idle_ms);
        if silent < idle {
            self.keep_at = after_ticks(now, idle - silent);
            return;
        }
        let timed_out = match self.set.user_timeout_ms {
            0 => self.probes >= self.set.keep_probes,
            ms => self.probes > 0 && silent >= ticks_of_ms(ms),
        };
        if timed_out {
            self.time_out(now, out);
            return;
        }
        self.probes = self.probes.saturating_add(1);
        self.flags |= flag::PROBE;
        self.keep_at = now + Duration::from_millis(u64::from(self.set.keep_interval_ms.max(1)));
        self.refresh_fast();
        out.output = true;
    }

    /// Starts or stops the keepalive timer, as the settings and the state have it.
    pub(super) fn arm_keepalive(&mut self, now: Time) {
        if !self.is_watching() {
            return;
        }
        self.keep_at = if self.set.keep_probes > 0 {
            after_ticks(now, ticks_of_ms(self.set.keep_idle_ms))
        } else {
            Time::NEVER
        };
        self.arm_aux();
    }
}

fn after_ticks(now: Time, ticks: u32) -> Time {
    now.plus(u64::from(ticks.max(1)) << 20)
}

//! The transmission control block: one connection's protocol state.
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | states and transitions |
//! | `light.rs` | header prediction |
//! | `input.rs` | a segment in full: RFC 9293, section 3.10.7 |
//! | `ack.rs` | acknowledgments, loss detection, recovery |
//! | `receive.rs` | data in: order, window, when to acknowledge |
//! | `output.rs` | which segment to send next |
//! | `large.rs` | several of them planned at once |
//! | `probe.rs` | tail loss probes, the reordering window |
//! | `path.rs` | black holes, and probing for the path's MTU |
//! | `timers.rs` | what happens when nothing does |

mod ack;
mod input;
mod large;
mod light;
mod output;
mod path;
mod probe;
mod query;
mod receive;
mod search;
mod state;
mod timers;
pub mod types;

use alloc::boxed::Box;

use perimeter_base::Time;
use perimeter_wire::Seq;

use crate::cc::{Cc, CwndUsage, Prr};
use crate::config::{Config, MIN_MSS, millis};
use crate::info::CaState;
use crate::rcvbuf::RcvBuf;
use crate::reasm::OutOfOrder;
use crate::rtt::{Rtt, SendTimes};
use crate::sack::{DUP_THRESH, Scoreboard};
use crate::syncache::Established;

pub use state::State;
use state::Step;
use types::{Events, Repeats, Rst, TcpError};

/// Octets that the timestamp option takes from every segment (RFC 7323, appendix A).
const TS_LEN: u16 = 12;

/// The send MSS without an MSS option (RFC 9293, section 3.7.1, MUST-15).
const DEFAULT_MSS: u16 = 536;

/// Acknowledgments sent at once at the start and after a pause, before delaying begins: they
/// speed up the peer's slow start (Linux's quick acknowledgments).
const QUICK_ACKS: u8 = 16;

/// Boolean state, as bits of `Tcb::flags`.
mod flag {
    /// Header prediction may be tried: ESTABLISHED, nothing out of order, nothing lost.
    pub const FAST: u32 = 1;
    /// Timestamps are in use.
    pub const TS: u32 = 1 << 1;
    /// SACK is in use.
    pub const SACK: u32 = 1 << 2;
    /// An acknowledgment is due at once.
    pub const ACK_NOW: u32 = 1 << 3;
    /// Nagle's algorithm is off.
    pub const NODELAY: u32 = 1 << 4;
    /// Partial segments are held.
    pub const CORK: u32 = 1 << 5;
    /// Partial segments held so far go out whatever Nagle or the cork say.
    pub const PUSH: u32 = 1 << 6;
    /// The application has closed its side: a FIN follows the data.
    pub const FIN_QUEUED: u32 = 1 << 7;
    /// The FIN has been sent: it is the octet before SND.NXT.
    pub const FIN_SENT: u32 = 1 << 8;
    /// A SYN (or SYN-ACK) is due.
    pub const SYN_DUE: u32 = 1 << 9;
    /// Our SYN is not acknowledged: SND.UNA is the SYN itself.
    pub const SYN_OUT: u32 = 1 << 10;
    /// `rtt_seq` and `rtt_at` time a segment.
    pub const TIMING: u32 = 1 << 11;
    /// `rexmt_at` is the persist timer.
    pub const PERSIST: u32 = 1 << 12;
    /// A probe of the peer (zero window or keepalive) is due.
    pub const PROBE: u32 = 1 << 13;
    /// A probe of the path's MTU is due, or out ([`super::path`]).
    pub const MTU_PROBE: u32 = 1 << 15;
    /// The application has closed the socket: nobody reads any more.
    pub const ORPHAN: u32 = 1 << 14;
    /// NewReno: the first outstanding segment is to be retransmitted.
    pub const HEAD_LOST: u32 = 1 << 16;
    /// Window scaling is in use.
    pub const WSCALE: u32 = 1 << 17;
    /// Segments come back: [`super::Tcb::set_guarded`].
    pub const GUARDED: u32 = 1 << 18;
    /// The congestion window restarts after idle times.
    pub const IDLE_RESTART: u32 = 1 << 19;
    /// The output run stopped for want of congestion window.
    pub const CWND_FULL: u32 = 1 << 20;
    /// The last plan left data unsent for want of the peer's window, or held it back.
    pub const WANTS: u32 = 1 << 21;
    /// The last segment of this output run was sent before.
    pub const AGAIN: u32 = 1 << 23;
    /// Tail loss probes are sent.
    pub const TLP: u32 = 1 << 24;
    /// `rexmt_at` is when a loss probe is due, not a retransmission timeout.
    pub const TLP_ARMED: u32 = 1 << 25;
    /// A loss probe is due.
    pub const TLP_DUE: u32 = 1 << 26;
    /// A loss probe is out: `tlp_end`.
    pub const TLP_OUT: u32 = 1 << 27;
    /// Holes count as lost after a reordering window.
    pub const REO: u32 = 1 << 29;
    /// `rexmt_at` is the end of that window.
    pub const REO_ARMED: u32 = 1 << 30;
    /// The FIN left in a segment of its own.
    pub const FIN_ALONE: u32 = 1 << 31;
    /// That probe was data sent before.
    pub const TLP_AGAIN: u32 = 1 << 28;
    /// Every round trip gives several RTT samples.
    pub const SAMPLING: u32 = 1 << 22;
}

/// Counters that only [`Info`](crate::Info) needs.
#[derive(Clone, Debug, Default)]
struct Counters {
    bytes_acked: u64,
    bytes_received: u64,
    bytes_retrans: u64,
    segs_in: u32,
    segs_out: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    retrans: u32,
    /// What nobody has asked for yet.
    untold: Repeats,
}

impl Counters {
    fn sent_again(&mut self) {
        self.retrans = self.retrans.wrapping_add(1);
        self.untold.segments = self.untold.segments.saturating_add(1);
    }
}

/// Settings that a connection carries, in compact units.
#[derive(Clone, Debug)]
struct Settings {
    keep_idle_ms: u32,
    keep_interval_ms: u32,
    /// 0: no keepalive.
    keep_probes: u8,
    iw: u8,
    syn_retries: u8,
    data_retries: u8,
    orphan_retries: u8,
    /// Black holes are looked for.
    mtu_probing: bool,
    /// The smallest segment that is tried, without options.
    path_floor: u16,
    /// Shift count to offer; `u8::MAX` when scaling is off.
    offer_wscale: u8,
    /// Acknowledgments sent at once after a pause.
    quick_acks: u8,
    delack_ms: u16,
    /// 0: none.
    user_timeout_ms: u32,
    time_wait_ms: u32,
    fin_wait_2_ms: u32,
    /// Limit of the receive buffer, as it was told last.
    rcv_limit: u32,
    reasm_limit: u32,
    rto_initial_ms: u32,
    rto_min_ms: u32,
    rto_max_ms: u32,
}

impl Settings {
    fn new(cfg: &Config) -> Settings {
        let keep = cfg.keepalive;
        Settings {
            keep_idle_ms: keep.map_or(0, |k| millis(k.idle)),
            keep_interval_ms: keep.map_or(0, |k| millis(k.interval)),
            keep_probes: keep.map_or(0, |k| k.probes.max(1)),
            iw: cfg.initial_window.clamp(1, 255) as u8,
            syn_retries: cfg.syn_retries,
            data_retries: cfg.data_retries,
            orphan_retries: cfg.orphan_retries,
            mtu_probing: cfg.mtu_probing,
            path_floor: search::FLOOR,
            offer_wscale: cfg.wscale().unwrap_or(u8::MAX),
            quick_acks: QUICK_ACKS,
            delack_ms: millis(cfg.delayed_ack).min(500) as u16,
            user_timeout_ms: cfg.user_timeout.map_or(0, |t| millis(t).max(1)),
            time_wait_ms: millis(cfg.time_wait),
            fin_wait_2_ms: millis(cfg.fin_wait_2),
            rcv_limit: RcvBuf::in_bounds(cfg.rcv_buf),
            reasm_limit: cfg.max_reassembly_bytes,
            rto_initial_ms: millis(cfg.rto_initial),
            rto_min_ms: millis(cfg.rto_min),
            rto_max_ms: millis(cfg.rto_max),
        }
    }

    fn rtt(&self) -> Rtt {
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        Rtt::new(
            ns(self.rto_initial_ms),
            ns(self.rto_min_ms),
            ns(self.rto_max_ms),
        )
    }
}

/// One connection.
///
/// The variables are RFC 9293's (section 3.3.1). Sequence numbers count octets of data; the
/// SYN and the FIN count one each. SND.NXT never moves back: what is to be sent again is the
/// scoreboard's knowledge, so SND.NXT is SND.MAX as well.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Tcb {
    // First line: what header prediction and `plan` read and write for every segment.
    snd_una: Seq,
    snd_nxt: Seq,
    /// SND.WND, in octets.
    snd_wnd: u32,
    snd_wl1: Seq,
    snd_wl2: Seq,
    rcv_nxt: Seq,
    /// The right edge of the window advertised last; never moves back.
    rcv_adv: Seq,
    /// Free space of the receive buffer: what the application left, less what was delivered.
    /// Negative when a shrunken buffer is overdrawn.
    rcv_space: i32,
    /// Last.ACK.sent (RFC 7323, section 4.3).
    last_ack: Seq,
    /// TS.Recent.
    ts_recent: u32,
    ts_offset: u32,
    flags: u32,
    /// Send MSS: payload octets per segment, options deducted.
    mss: u16,
    /// Largest payload received: the peer's segment size, for delayed acknowledgments.
    rcv_mss: u16,
    state: State,
    ca: CaState,
    snd_shift: u8,
    rcv_shift: u8,
    /// Acknowledgments still to be sent without delay.
    quick: u8,
    /// Segments planned since `plan` last had nothing, modulo 256.
    burst: u8,
    /// Duplicate acknowledgments, without SACK: segments that have left the network.
    dupacks: u8,
    /// Consecutive retransmission timeouts.
    retries: u8,

    // Second line: timers, and what is timed.
    /// Retransmission or persist timer.
    rexmt_at: Time,
    /// Delayed acknowledgment.
    delack_at: Time,
    /// Keepalive, FIN-WAIT-2 or TIME-WAIT, as the state has it.
    aux_at: Time,
    /// When the timed segment was sent.
    rtt_at: Time,
    /// The end of the timed segment.
    rtt_seq: Seq,
    /// When the last segment arrived, in [`tick`]s.
    last_rx: u32,
    /// When the last segment with data arrived, in [`tick`]s.
    last_data_rx: u32,
    /// When data was last sent, in [`tick`]s.
    last_tx: u32,
    /// Largest SND.WND seen.
    max_wnd: u32,
    /// End of the last segment smaller than the MSS (Minshall's variant of Nagle).
    snd_sml: Seq,
    /// Recovery point: SND.NXT when the current recovery began (RFC 6582's `recover`).
    recover: Seq,

    cc: Cc,
    usage: CwndUsage,
    /// Up to where data was pushed to the peer within a long write.
    push_seq: Seq,
    /// Large segments are planned: a burst does not push at every second segment.
    large: bool,
    /// Parts of large segments wait for room in the windows.
    defers: bool,
    /// Where sending went on after a pause of half a round trip. Kept while `defers`.
    pause_seq: Seq,
    /// When the last segment with data left. Kept while `defers`.
    sent_at: Time,
    /// Acknowledgments wait for an application that is behind.
    ack_on_read: bool,
    prr: Prr,
    rtt: Rtt,
    count: Counters,

    // Rare from here on.
    scoreboard: Option<Box<Scoreboard>>,
    /// Send times, while `SAMPLING`.
    times: Option<Box<SendTimes>>,
    ooo: Option<Box<OutOfOrder>>,
    /// When something was last sent again.
    again_at: Time,
    /// While `TLP_ARMED`: when the retransmission timer would fire.
    rto_at: Time,
    /// When keepalive looks at the peer, while the connection is open.
    keep_at: Time,
    /// When a larger path MTU is tried, while the connection is open.
    path_at: Time,
    /// SND.NXT when a loss probe was sent, while `TLP_OUT` (TLP.end_seq).
    tlp_end: Seq,
    /// When the current silence began: the oldest unanswered transmission, in [`tick`]s.
    stall_since: u32,
    /// When an acknowledgment of something unacceptable was last sent, in [`tick`]s.
    oow_at: u32,
    /// The second in which challenge acknowledgments are being counted.
    challenge_sec: u32,
    /// Our timestamp clock when the retransmission timer last fired.
    rto_ts: u32,
    iss: Seq,
    irs: Seq,
    /// Loss threshold in segments: what the path was seen to reorder.
    reordering: u16,
    /// The MSS that the peer announced.
    peer_mss: u16,
    /// The MSS that we announced.
    adv_mss: u16,
    /// Path MTU less the headers without options.
    path_mss: u16,
    /// Challenge acknowledgments left in this second.
    challenge_left: u8,
    /// Unanswered probes.
    probes: u8,
    error: Option<TcpError>,
    soft_error: Option<TcpError>,
    /// Header prediction is never tried.
    heavy: bool,
    /// What is known of the path's MTU by trying.
    search: Option<Box<search::Search>>,
    set: Settings,
}

/// Coarse clock for ages: units of 2²⁰ ns (1.05 ms), wrapping after 52 days.
#[inline]
fn tick(now: Time) -> u32 {
    (now.nanos() >> 20) as u32
}

/// Milliseconds in ticks, rounded up.
fn ticks_of_ms(ms: u32) -> u32 {
    (u64::from(ms) * 1_000_000).div_ceil(1 << 20).min(1 << 31) as u32
}

impl Tcb {
    /// `seqs` are the initial sequence numbers, ours and the peer's.
    fn base(
        cfg: &Config,
        state: State,
        seqs: (Seq, Seq),
        mss: u16,
        ts_offset: u32,
        now: Time,
    ) -> Tcb {
        let set = Settings::new(cfg);
        let (iss, irs) = seqs;
        let adv_mss = mss.max(MIN_MSS);
        let mut flags = 0;
        for (on, bit) in [
            (cfg.timestamps, flag::TS),
            (cfg.sack, flag::SACK),
            (cfg.nodelay, flag::NODELAY),
            (cfg.cork, flag::CORK),
            (cfg.slow_start_after_idle, flag::IDLE_RESTART),
            (cfg.loss_probe, flag::TLP),
            (cfg.reorder_timer, flag::REO),
        ] {
            if on {
                flags |= bit;
            }
        }
        Tcb {
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wl1: irs,
            snd_wl2: iss,
            rcv_nxt: irs,
            rcv_adv: irs,
            rcv_space: set.rcv_limit as i32,
            last_ack: irs,
            ts_recent: 0,
            ts_offset,
            flags,
            mss: adv_mss,
            // Options of ours and the peer's shorten full segments: one that is taken for less than
            // full would be acknowledged late.
            rcv_mss: DEFAULT_MSS.min(adv_mss).saturating_sub(TS_LEN),
            state,
            ca: CaState::Open,
            snd_shift: 0,
            rcv_shift: 0,
            quick: QUICK_ACKS,
            burst: 0,
            dupacks: 0,
            retries: 0,
            rexmt_at: Time::NEVER,
            delack_at: Time::NEVER,
            aux_at: Time::NEVER,
            rtt_at: now,
            rtt_seq: iss,
            last_rx: tick(now),
            last_data_rx: tick(now).wrapping_sub(1 << 30),
            last_tx: tick(now),
            max_wnd: 0,
            push_seq: iss,
            large: false,
            defers: false,
            pause_seq: iss,
            sent_at: now,
            ack_on_read: false,
            snd_sml: iss,
            recover: iss,
            again_at: Time::ZERO,
            rto_at: Time::NEVER,
            keep_at: Time::NEVER,
            path_at: Time::NEVER,
            tlp_end: iss,
            cc: Cc::new(cfg.congestion, u32::from(adv_mss), u32::from(set.iw)),
            usage: CwndUsage::new(iss),
            prr: Prr::default(),
            rtt: set.rtt(),
            count: Counters::default(),
            scoreboard: None,
            times: None,
            ooo: None,
            stall_since: tick(now),
            oow_at: tick(now).wrapping_sub(1 << 30),
            challenge_sec: u32::MAX,
            rto_ts: (now.millis() as u32).wrapping_add(ts_offset),
            iss,
            irs,
            reordering: DUP_THRESH as u16,
            peer_mss: DEFAULT_MSS,
            adv_mss,
            path_mss: adv_mss,
            challenge_left: 0,
            probes: 0,
            error: None,
            soft_error: None,
            heavy: false,
            search: None,
            set,
        }
    }

    /// An active open in SYN-SENT; the output loop then sends the SYN. `iss` comes from
    /// [`IsnGen`](crate::isn::IsnGen), as does `ts_offset`.
    pub fn connect(cfg: &Config, iss: Seq, ts_offset: u32, now: Time) -> Tcb {
        let seqs = (iss, Seq(0));
        let mut t = Tcb::base(cfg, State::SynSent, seqs, cfg.mss, ts_offset, now);
        t.flags |= flag::SYN_DUE | flag::SYN_OUT;
        t
    }

    /// A connection that completed its handshake through the SYN cache, in ESTABLISHED. The
    /// segment that completed it goes to [`Tcb::input`] next.
    pub fn accept(cfg: &Config, e: &Established, now: Time) -> Tcb {
        let first = e.iss + 1;
        let seqs = (first, e.irs + 1);
        let state = State::Established;
        let mut t = Tcb::base(cfg, state, seqs, e.rcv_mss, e.ts_offset, now);
        t.iss = e.iss;
        t.irs = e.irs;
        t.recover = e.iss;
        t.negotiated(e.mss, e.wscale, e.timestamps.then_some(e.ts_recent), e.sack);
        t.snd_wnd = e.snd_wnd;
        t.max_wnd = e.snd_wnd;
        t.rcv_adv = t.rcv_nxt + e.rcv_wnd;
        t.start(e.rtt_ns, e.retransmitted, now);
        t
    }

    /// Takes over what the handshake settled: the peer's MSS, the shift counts (send, receive)
    /// if both scale, the peer's timestamp if both use them, and SACK.
    fn negotiated(
        &mut self,
        mss: u16,
        wscale: Option<(u8, u8)>,
        ts_recent: Option<u32>,
        sack: bool,
    ) {
        self.peer_mss = mss.max(MIN_MSS);
        if let Some((snd, rcv)) = wscale {
            self.flags |= flag::WSCALE;
            self.snd_shift = snd.min(14);
            self.rcv_shift = rcv.min(14);
        }
        self.flags &= !(flag::TS | flag::SACK);
        if let Some(recent) = ts_recent {
            self.flags |= flag::TS;
            self.ts_recent = recent;
        }
        if sack {
            self.flags |= flag::SACK;
        }
        self.mss = self.effective_mss();
    }

    /// Begins the data phase: congestion state for the MSS that was settled, first RTT sample.
    fn start(&mut self, rtt_ns: Option<u64>, syn_lost: bool, now: Time) {
        // RFC 5681, section 3.1: a lost SYN means an initial window of one segment.
        let iw = if syn_lost { 1 } else { u32::from(self.set.iw) };
        self.cc = Cc::new(self.cc.kind(), u32::from(self.mss), iw);
        self.usage = CwndUsage::new(self.snd_una);
        if let Some(ns) = rtt_ns {
            self.rtt.sample(ns);
        } else if syn_lost {
            self.rtt.syn_was_retransmitted();
        }
        self.retries = 0;
        self.set_flag(flag::SAMPLING, self.cc.wants_samples());
        self.last_tx = tick(now);
        self.arm_keepalive(now);
        self.refresh_fast();
    }

    /// What fits a segment: bounded by the peer's MSS option, our own link and the path, less
    /// the options that every segment carries (RFC 9293, section 3.7.1).
    fn effective_mss(&self) -> u16 {
        let mss = self.peer_mss.min(self.adv_mss).min(self.path_mss);
        let ts = if self.has(flag::TS) { TS_LEN } else { 0 };
        mss.max(MIN_MSS) - ts
    }

    #[inline]
    fn has(&self, bit: u32) -> bool {
        self.flags & bit != 0
    }

    /// Whether nothing becomes of a segment: it comes back with [`Events::GUARDED`], so that who calls
    /// looks at it, and takes the guard off for it. A connection to which not every segment of its
    /// flow may come pays for that, and no other one does, as prediction knows nothing of it.
    pub fn set_guarded(&mut self, on: bool) {
        self.set_flag(flag::GUARDED, on);
        self.refresh_fast();
    }

    /// Whether it is guarded.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.has(flag::GUARDED)
    }

    /// Recomputes whether header prediction may be tried.
    fn refresh_fast(&mut self) {
        let fast = self.state == State::Established
            && !self.has(flag::FIN_QUEUED)
            && self.is_undisturbed();
        if fast {
            self.flags |= flag::FAST;
        } else {
            self.flags &= !flag::FAST;
        }
    }

    /// Whether nothing is lost, out of order or probed for: what is sent is new data, as far as
    /// the windows reach.
    fn is_undisturbed(&self) -> bool {
        !self.heavy
            && self.ca == CaState::Open
            && self.ooo.is_none()
            && self.scoreboard.is_none()
            && self.dupacks == 0
            && self.probes == 0
            && !self.has(flag::SYN_OUT | flag::PERSIST | flag::TLP_DUE | flag::TLP_OUT)
            && !self.has(flag::MTU_PROBE | flag::GUARDED)
    }

    /// Takes a transition, if `step` is one here.
    fn step(&mut self, step: Step) -> bool {
        match self.state.after(step) {
            Some(next) => {
                self.state = next;
                true
            }
            None => false,
        }
    }

    /// Ends the connection. All memory behind boxes goes at once: the owner may keep the
    /// block until its last reference is gone.
    fn finish(&mut self, error: Option<TcpError>) -> Events {
        self.step(Step::Gone);
        self.rexmt_at = Time::NEVER;
        self.delack_at = Time::NEVER;
        self.aux_at = Time::NEVER;
        self.scoreboard = None;
        self.times = None;
        self.ooo = None;
        self.search = None;
        self.flags &= !(flag::FAST
            | flag::MTU_PROBE
            | flag::ACK_NOW
            | flag::SYN_DUE
            | flag::PROBE
            | flag::PERSIST
            | flag::WANTS);
        match error {
            Some(e) => {
                self.error = Some(e);
                Events::CLOSED | Events::ERROR
            }
            None => Events::CLOSED,
        }
    }

    /// The reset that tears this connection down at the peer.
    fn reset(&self, now: Time) -> Rst {
        Rst {
            seq: self.snd_nxt,
            ack: Some(self.rcv_nxt),
            ts: self
                .has(flag::TS)
                .then(|| (self.ts_now(now), self.ts_recent)),
        }
    }

    /// Our timestamp clock: milliseconds plus the connection's offset (RFC 7323, section 5.4).
    #[inline]
    fn ts_now(&self, now: Time) -> u32 {
        (now.millis() as u32).wrapping_add(self.ts_offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_stays_small() {
        assert!(size_of::<Tcb>() <= 640, "{}", size_of::<Tcb>());
        assert_eq!(core::mem::offset_of!(Tcb, rexmt_at), 64);
        assert!(core::mem::offset_of!(Tcb, cc) <= 128);
    }

    #[test]
    fn ticks_cover_their_milliseconds() {
        assert_eq!(ticks_of_ms(0), 0);
        for ms in [1, 2, 40, 1000, 7_200_000, u32::MAX] {
            let ticks = u64::from(ticks_of_ms(ms));
            assert!(ticks << 20 >= (u64::from(ms) * 1_000_000).min(1 << 51));
        }
    }
}

//! Half-open connections: the SYN cache.
//!
//! One per perimeter, outside the connection table: a SYN costs one small entry, bounded in
//! number, and a connection's state is made only when the handshake completes (RFC 4987,
//! section 3.3).

use perimeter_base::Time;
use perimeter_wire::{FlowKey, SegOut, Seq, TcpHdr};

/// What a listener offers to those who connect.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ListenParams {
    /// Largest segment we can receive, octets (MTU − 40 or − 60).
    pub mss: u16,
    /// Receive window to offer, octets, unscaled.
    pub rcv_wnd: u32,
    /// Shift to offer, or `None` to refuse window scaling.
    pub wscale: Option<u8>,
    /// Whether to use timestamps.
    pub timestamps: bool,
    /// Whether to use SACK.
    pub sack: bool,
    /// The accept queue is full: new SYNs are dropped.
    pub full: bool,
}

/// Everything a connection needs that completed its handshake through the cache.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Our initial sequence number; `SND.UNA = SND.NXT = iss + 1`.
    pub iss: Seq,
    /// The peer's; `RCV.NXT = irs + 1`.
    pub irs: Seq,
    /// The MSS that the peer announced, at least [`MIN_MSS`]; 536 if it announced none.
    pub mss: u16,
    /// Window shifts (send, receive) if both ends use window scaling.
    pub wscale: Option<(u8, u8)>,
    /// Whether both ends use timestamps.
    pub timestamps: bool,
    /// The peer's latest timestamp value (TS.Recent), if timestamps are used.
    pub ts_recent: u32,
    /// Offset of our timestamp clock.
    pub ts_offset: u32,
    /// Whether both ends use SACK.
    pub sack: bool,
    /// The peer's window from the acknowledgment, octets, scaled.
    pub snd_wnd: u32,
    /// The window offered in the SYN-ACK, octets.
    pub rcv_wnd: u32,
    /// Round trip of SYN-ACK and ACK, unless the SYN-ACK was retransmitted and timestamps
    /// cannot tell (Karn).
    pub rtt_ns: Option<u64>,
    /// Whether the SYN-ACK had to be sent again: the initial window is then one segment
    /// (RFC 5681, section 3.1) and the first RTO 3 s without a sample (RFC 6298).
    pub retransmitted: bool,
}

/// The smallest MSS that a peer can impose (Linux's `tcp_min_snd_mss`, CVE-2019-11479).
pub const MIN_MSS: u16 = 48;

/// Answer to a SYN.
#[derive(Clone, Debug)]
pub enum SynAction {
    /// Send this SYN-ACK.
    SendSynAck(SegOut),
    /// Send nothing.
    Drop(SynDrop),
}

/// Why a SYN was dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SynDrop {
    /// The listener's accept queue is full.
    Backlog,
    /// Flags that no SYN to a listener carries (ACK, RST, FIN).
    Malformed,
}

/// Answer to an acknowledgment for which there is no connection.
#[derive(Clone, Debug)]
pub enum AckAction {
    /// The handshake is complete and the entry removed: make the connection, give it the
    /// segment.
    Established(Established),
    /// Acceptable entry, unacceptable acknowledgment: reply with a reset of this sequence
    /// number (RFC 9293, section 3.10.7.4: `<SEQ=SEG.ACK><CTL=RST>`). The entry stays.
    Rst(Seq),
    /// Drop silently, or answer with the SYN-ACK again if given.
    Ignore(Option<SegOut>),
    /// No entry for this key.
    None,
}

/// Counters of a cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SynStats {
    /// Entries created.
    pub added: u64,
    /// Entries that became connections.
    pub completed: u64,
    /// Entries evicted from a full bucket.
    pub evicted: u64,
    /// Entries that ran out of retries.
    pub timed_out: u64,
    /// Entries removed by a reset or an ICMP error.
    pub aborted: u64,
    /// SYN-ACKs sent again, by the timer or for a duplicate SYN.
    pub retransmitted: u64,
    /// SYNs dropped because an accept queue was full.
    pub backlog_full: u64,
}

/// The cache.
pub struct SynCache {
    stats: SynStats,
}

impl SynCache {
    /// A cache of `buckets` (rounded up to a power of two) × `depth` entries, keyed with 128
    /// secret bits. Memory is allocated per bucket, on its first use.
    pub fn new(buckets: usize, depth: usize, k0: u64, k1: u64) -> SynCache {
        let _ = (buckets, depth, k0, k1);
        SynCache {
            stats: SynStats::default(),
        }
    }

    /// A SYN for a listener. `iss` and `ts_offset` are used if it makes a new entry.
    pub fn on_syn(
        &mut self,
        key: FlowKey,
        seg: &TcpHdr,
        l: &ListenParams,
        iss: Seq,
        ts_offset: u32,
        now: Time,
    ) -> SynAction {
        let _ = (key, seg, l, iss, ts_offset, now);
        SynAction::Drop(SynDrop::Backlog)
    }

    /// A segment with ACK and without SYN or RST that belongs to no connection. `len` is its
    /// payload length.
    pub fn on_ack(&mut self, key: &FlowKey, seg: &TcpHdr, now: Time) -> AckAction {
        let _ = (key, seg, now);
        AckAction::None
    }

    /// The accept queue was full when [`SynCache::on_ack`] completed the handshake: the entry
    /// returns, the acknowledgment counts as lost, and the SYN-ACK is sent again later.
    pub fn put_back(&mut self, key: FlowKey, e: &Established, now: Time) {
        let _ = (key, e, now);
    }

    /// A reset. Returns whether it removed an entry.
    pub fn on_rst(&mut self, key: &FlowKey, seg: &TcpHdr) -> bool {
        let _ = (key, seg);
        false
    }

    /// An ICMP hard error quoting a segment with sequence number `seq`. Returns whether it
    /// removed an entry.
    pub fn on_unreachable(&mut self, key: &FlowKey, seq: Seq) -> bool {
        let _ = (key, seq);
        false
    }

    /// Removes every entry whose key `gone` accepts (a listener closed). Returns how many.
    pub fn remove_if(&mut self, gone: &mut dyn FnMut(&FlowKey) -> bool) -> usize {
        let _ = gone;
        0
    }

    /// When [`SynCache::on_timer`] wants to be called; [`Time::NEVER`] if the cache is empty.
    pub fn deadline(&self) -> Time {
        Time::NEVER
    }

    /// Sends SYN-ACKs again that are due and drops entries that ran out of retries.
    pub fn on_timer(&mut self, now: Time, send: &mut dyn FnMut(&FlowKey, SegOut)) {
        let _ = (now, send);
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether no entry is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters since the cache was made.
    pub fn stats(&self) -> SynStats {
        self.stats
    }
}

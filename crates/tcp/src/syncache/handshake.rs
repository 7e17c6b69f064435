//! What a handshake is begun with, and what a connection needs that completed one.

use perimeter_base::Time;
use perimeter_wire::{MacAddr, Seq};

/// Where a frame came from: the interface, and the station there; the unspecified one where the link
/// has no stations.
pub type Origin = (u16, MacAddr);

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
    /// The SYN takes over a connection in TIME-WAIT, whose numbers its own must follow: it gets
    /// an entry, never a cookie.
    pub reuse: bool,
    /// Names the listener: a cookie that one has sent is no other's.
    pub tag: u32,
    /// Where the SYN came from: kept with a new entry, for what the entry sends by itself.
    pub from: Option<Origin>,
    /// Kept with a new entry and given back when its handshake is complete: whatever the caller
    /// wants to know then of where the SYN came in.
    pub origin: u16,
}

/// Everything a connection needs that completed its handshake through the cache.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// When it did, not before anything that the cache has sent: the connection's clock starts
    /// here.
    pub at: Time,
    /// [`ListenParams::origin`] of the SYN.
    pub origin: u16,
    /// Our initial sequence number; `SND.UNA = SND.NXT = iss + 1`.
    pub iss: Seq,
    /// The peer's; `RCV.NXT = irs + 1`.
    pub irs: Seq,
    /// The MSS that the peer announced, at least [`MIN_MSS`]; 536 (IPv6: 1220) if none.
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
    /// The window offered in the SYN-ACK, octets; the peer may have been told less: at most
    /// 65,535, since the window of a SYN is not scaled.
    pub rcv_wnd: u32,
    /// The MSS that we announced, octets.
    pub rcv_mss: u16,
    /// Round trip of SYN-ACK and ACK, unless the SYN-ACK was retransmitted and timestamps
    /// cannot tell (Karn).
    pub rtt_ns: Option<u64>,
    /// Whether the SYN-ACK had to be sent again: the initial window is then one segment
    /// (RFC 5681, section 3.1) and the first RTO 3 s without a sample (RFC 6298).
    pub retransmitted: bool,
}

/// The smallest MSS that a peer can impose (Linux's `tcp_min_snd_mss`, CVE-2019-11479).
pub const MIN_MSS: u16 = 48;

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

//! SYN cookies: handshakes that the cache has no room for are kept by the peer (RFC 4987,
//! section 3.6).
//!
//! The initial sequence number of such a SYN-ACK is a keyed hash of all that must come back
//! unchanged: the ends, the peer's sequence number, the listener and what it offers, whether
//! timestamps are used, and a counter that goes up every 69 seconds. Two kinds of bits in it are
//! not the hash's: the counter's lowest, and the place of the peer's MSS in a table. What the
//! acknowledgment brings back is hashed again. A number that was sent is accepted for 69 to
//! 137 seconds, and one out of 2²⁸ that were made up.
//!
//! The peer's window scale and whether it permits SACK stand in the lowest bits of our
//! timestamp, which it echoes (as Linux has it). A peer without timestamps gets neither.

use perimeter_base::Time;
use perimeter_wire::tcp::MAX_WSCALE;
use perimeter_wire::{FlowKey, SegOut, Seq, TcpHdr, TcpOptions};

use super::entry::{self, DEFAULT_MSS_V4, DEFAULT_MSS_V6};
use super::handshake::{Established, ListenParams, MIN_MSS};
use crate::isn::{IsnGen, ts_clock};

/// When a cookie is sent in place of an entry.
///
/// ```
/// use perimeter_tcp::SynCache;
/// use perimeter_tcp::syncache::Cookies;
///
/// assert_eq!(Cookies::default(), Cookies::WhenFull);
/// // A cache that never answers without an entry: 512 buckets of 30.
/// let cache = SynCache::new(512, 30, 1, 2).with_cookies(Cookies::Off);
/// assert_eq!(cache.capacity(), 15_360);
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cookies {
    /// Never: the oldest entry of a full bucket goes.
    Off,
    /// When the bucket is full.
    #[default]
    WhenFull,
    /// For every SYN. For tests: no SYN-ACK is sent again, and peers without timestamps get
    /// neither window scaling nor SACK.
    Always,
}

/// The counter goes up every 2³⁶ ns: 68.7 s.
const PERIOD_BITS: u32 = 36;

/// How long after a cookie was sent any acknowledgment may bring one: two periods.
pub(super) const LIFE: u64 = 2 << PERIOD_BITS;

/// Values of the MSS that a cookie can tell, ascending: the floor; small ones of old; what IPv4
/// and IPv6 begin with; Ethernet's behind a tunnel or two, behind PPPoE with timestamps, and
/// plain; jumbo frames. A peer's is rounded down.
const MSS: [u16; 8] = [MIN_MSS, 216, 536, 1220, 1360, 1440, 1460, 8960];

/// Bits of the sequence number above the hash: the counter's lowest, and the place in [`MSS`].
const HASH_BITS: u32 = 28;

/// Bits of the timestamp that carry options: 32 ms of its clock.
const TS_BITS: u32 = 0x1f;
/// The peer permits SACK.
const TS_SACK: u32 = 0x10;
/// Its window scale; 15: none.
const TS_WSCALE: u32 = 0x0f;

fn period(now: Time) -> u64 {
    now.nanos() >> PERIOD_BITS
}

/// The sequence number for a SYN-ACK. `timestamps`: both ends use them.
fn number(
    r#gen: &IsnGen,
    key: &FlowKey,
    (irs, mss): (Seq, u32),
    timestamps: bool,
    l: &ListenParams,
    period: u64,
) -> Seq {
    let scale = u64::from(l.wscale.map_or(TS_WSCALE as u8, |w| w.min(MAX_WSCALE)));
    // What it offers must not have changed either, as the peer goes by what it was told.
    let offer = u64::from(timestamps) | u64::from(l.sack) << 1 | scale << 2 | u64::from(mss) << 8;
    let words = [
        u64::from(irs.0) << 32 | u64::from(l.tag),
        period << 16 | offer,
    ];
    let hash = r#gen.cookie(key, words) as u32 & ((1 << HASH_BITS) - 1);
    Seq(((period as u32 & 1) << 31) | mss << HASH_BITS | hash)
}

/// The SYN-ACK that keeps nothing here.
pub(super) fn syn_ack(
    r#gen: &IsnGen,
    key: &FlowKey,
    syn: &TcpHdr,
    l: &ListenParams,
    ts_offset: u32,
    now: Time,
) -> SegOut {
    let o = &syn.opts;
    let none = if key.remote.is_ipv6() {
        DEFAULT_MSS_V6
    } else {
        DEFAULT_MSS_V4
    };
    let theirs = o.mss.unwrap_or(none).max(MIN_MSS);
    let mss = MSS.iter().rposition(|m| *m <= theirs).unwrap_or(0) as u32;
    let ts = o.ts.filter(|_| l.timestamps);
    // Without timestamps there is no room to remember these.
    let wscale = l.wscale.filter(|_| ts.is_some() && o.wscale.is_some());
    let sack = ts.is_some() && l.sack && o.sack_permitted;
    let remembered = match (wscale, o.wscale) {
        (Some(_), Some(w)) => u32::from(w.min(MAX_WSCALE)),
        _ => TS_WSCALE,
    } | if sack { TS_SACK } else { 0 };
    let iss = number(r#gen, key, (syn.seq, mss), ts.is_some(), l, period(now));
    let opts = TcpOptions {
        mss: Some(l.mss),
        wscale: wscale.map(|w| w.min(MAX_WSCALE)),
        sack_permitted: sack,
        ts: ts.map(|(val, _)| (stamp(ts_clock(now, ts_offset), remembered), val)),
        ..TcpOptions::default()
    };
    entry::syn_ack(iss, syn.seq, l.rcv_wnd, opts)
}

/// The latest value of the timestamp clock up to `clock` whose lowest bits are these: never ahead
/// of it, or the connection's later segments would look old to the peer.
fn stamp(clock: u32, bits: u32) -> u32 {
    let val = clock & !TS_BITS | bits;
    if val & TS_BITS > clock & TS_BITS {
        val.wrapping_sub(TS_BITS + 1)
    } else {
        val
    }
}

/// The connection whose handshake `seg` completes, if it acknowledges a number that was sent in
/// this period or the one before. It may carry data; it is the first after the SYN.
pub(super) fn check(
    r#gen: &IsnGen,
    key: &FlowKey,
    seg: &TcpHdr,
    l: &ListenParams,
    ts_offset: u32,
    now: Time,
) -> Option<Established> {
    let (iss, irs) = (seg.ack - 1, seg.seq - 1);
    let mss = iss.0 >> HASH_BITS & 7;
    let this = period(now);
    let sent = this.checked_sub(u64::from((this as u32 ^ iss.0 >> 31) & 1))?;
    let ts = seg.opts.ts.filter(|_| l.timestamps);
    if number(r#gen, key, (irs, mss), ts.is_some(), l, sent) != iss {
        return None;
    }
    let bits = ts.map_or(TS_WSCALE, |(_, echo)| echo & TS_BITS);
    let theirs = (bits & TS_WSCALE) as u8;
    let wscale = l
        .wscale
        .filter(|_| theirs <= MAX_WSCALE)
        .map(|w| (theirs, w.min(MAX_WSCALE)));
    Some(Established {
        at: now,
        origin: l.origin,
        iss,
        irs,
        mss: MSS[mss as usize],
        wscale,
        timestamps: ts.is_some(),
        ts_recent: ts.map_or(0, |(val, _)| val),
        ts_offset,
        sack: l.sack && bits & TS_SACK != 0,
        snd_wnd: u32::from(seg.window) << wscale.map_or(0, |w| w.0),
        rcv_wnd: l.rcv_wnd,
        rcv_mss: l.mss,
        // Nobody knows when the SYN-ACK was sent, and its timestamp is up to 32 ms early.
        rtt_ns: None,
        retransmitted: false,
    })
}

#[cfg(test)]
mod tests;

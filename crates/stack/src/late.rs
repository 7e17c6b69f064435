//! IP's part of a received segment where IP has a turn of its own: the classifier is asked by what
//! the frame claims, and headers, lengths and checksums are looked at in that turn.
//!
//! Only plain segments of TCP are put off: without options in IP's header, no fragments, and with
//! addresses that are good at a glance. All else IP deals with where frames come in.

use crate::count::{Count, malformed};
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::own::Own;
use crate::port::Offload;
use crate::segment::{Seg, Segs, Turn};
use crate::shared::SharedState;
use core::mem::take;
use core::net::IpAddr;
use perimeter_base::PktBuf;
use perimeter_link::{Medium, RxFrame};
use perimeter_sync::{Platform, Work};
use perimeter_wire::{
    Csum, EtherHdr, FlowKey, PROTO_TCP, WireError, carries, carries_v6, glance, parse_tcp_into,
};

/// Charges frames that IP is done with, and octets of those whose checksums it had to verify.
pub(crate) fn charge(p: &impl Platform, (frames, unchecked): (u64, u64)) {
    p.charge(Work::RxFrame, frames);
    p.charge(Work::Checksum, unchecked);
}

/// A frame is none that anybody could read: it is counted and gone.
#[cold]
pub(crate) fn drop_malformed<K: Kind>(cx: &mut Ctx<K>, e: WireError, buf: PktBuf) {
    cx.sh.counters.add(cx.lane, malformed(e), 1);
    cx.pool.put(buf);
}

fn l2_len<K: Kind>(sh: &SharedState<K>, iface: u16) -> usize {
    match sh.ifaces[usize::from(iface)].caps.medium {
        Medium::Ethernet => EtherHdr::LEN,
        Medium::Ip => 0,
    }
}

/// Whether a flow's addresses are good at a glance.
#[inline]
pub(crate) fn welcome<K: Kind>(sh: &SharedState<K>, iface: u16, key: &FlowKey) -> bool {
    match key.local {
        IpAddr::V4(_) => sh.ifaces[usize::from(iface)].plain(key.local, key.remote),
        IpAddr::V6(_) => sh.plain6(iface, key),
    }
}

/// The flow of a frame that came by interface `iface`, if it can be put off.
#[inline(never)]
pub(crate) fn plain<K: Kind>(sh: &SharedState<K>, iface: u16, bytes: &[u8]) -> Option<FlowKey> {
    let l2 = l2_len(sh, iface);
    let ethernet = l2 > 0;
    let v6 = carries_v6(bytes, ethernet, PROTO_TCP);
    if !v6 && !carries(bytes, ethernet, PROTO_TCP) {
        return None;
    }
    let key = glance(&bytes[l2..])?;
    // A frame may say one family and its datagram another.
    (key.local.is_ipv6() == v6 && welcome(sh, iface, &key)).then_some(key)
}

/// Keeps a frame of that flow among the burst's segments, for [`input`].
pub(crate) fn put_off<K: Kind>(own: &mut Own<K>, iface: u16, f: RxFrame, key: FlowKey) {
    let seg = own.segs.place();
    seg.frame.key = key;
    seg.hash = f.hash.unwrap_or(0);
    seg.iface = iface;
    seg.segs = 0;
    seg.ip = Turn::Ahead {
        csum_ok: f.csum_ok,
        hashed: f.hash.is_some(),
        segment_size: f.segment_size,
    };
    seg.payload = f.buf;
    own.segs.keep();
}

/// How many of a burst's segments wait for IP, and octets of those whose checksums it has to verify.
pub(crate) fn waiting(segs: &Segs) -> (u64, u64) {
    let octets = |s: &Seg| match s.ip {
        Turn::Done => None,
        Turn::Ahead { csum_ok: true, .. } => Some(0),
        Turn::Ahead { .. } => Some(s.payload.len() as u64),
    };
    let all = segs.iter().filter_map(octets);
    all.fold((0, 0), |(n, sum), octets| (n + 1, sum + octets))
}

/// IP's turn with a segment: headers, lengths and checksums are checked and read, and the frame is
/// cut down to the payload. A segment that has been here already stays as it is. `false`: it was
/// no good, and is counted and gone.
#[inline(never)]
pub fn input<K: Kind>(cx: &mut Ctx<K>, seg: &mut Seg) -> bool {
    let Turn::Ahead {
        csum_ok,
        hashed,
        segment_size,
    } = take(&mut seg.ip)
    else {
        return true;
    };
    let (sh, own) = cx.split();
    let frame = seg.payload.as_slice();
    let unchecked = if csum_ok { 0 } else { frame.len() as u64 };
    charge(&sh.p, (1, unchecked));
    let csum = if csum_ok { Csum::Trust } else { Csum::Verify };
    let l2 = l2_len(sh, seg.iface);
    if let Err(e) = parse_tcp_into(&frame[l2..], l2, csum, &mut seg.frame) {
        drop_malformed(&mut Ctx::new(sh, own), e, take(&mut seg.payload));
        return false;
    }
    if seg.frame.bad_options {
        sh.counters
            .add(own.lane, malformed(WireError::BadOption), 1);
    }
    if !hashed {
        seg.hash = sh.flow_hash(&seg.frame.key);
    }
    seg.core = own.core;
    seg.payload.trim_front(seg.frame.payload_off as usize);
    seg.payload.truncate(seg.frame.payload_len as usize);
    seg.segs = 1;
    if segment_size > 0 && sh.config.offload != Offload::Off {
        seg.is_of(segment_size);
        sh.count(own.lane, Count::RxMerged, u64::from(seg.segs) - 1);
    }
    sh.count(own.lane, Count::RxSegs, seg.segs.into());
    true
}

/// The hash of a segment's flow, from the device or made now; IP's turn does not make it again.
pub fn hash<K: Kind>(sh: &SharedState<K>, seg: &mut Seg) -> u32 {
    if let Turn::Ahead { hashed, .. } = &mut seg.ip
        && !*hashed
    {
        *hashed = true;
        seg.hash = sh.flow_hash(&seg.frame.key);
    }
    seg.hash
}

/// The classifier looks at a segment again that IP has yet to look at, as an event may have changed
/// it. `false`: it is none any more that could be put off.
pub fn again<K: Kind>(sh: &SharedState<K>, seg: &mut Seg) -> bool {
    if seg.ip == Turn::Done {
        return true;
    }
    let key = plain(sh, seg.iface, seg.payload.as_slice());
    seg.frame.key = key.unwrap_or(seg.frame.key);
    key.is_some()
}

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
    // Whoever had this place last may have left payloads that were merged.
    seg.rest.clear();
    seg.behind = 0;
    seg.ip = Turn::Ahead {
        csum_ok: f.csum_ok,
        hashed: f.hash.is_some(),
        segment_size: f.segment_size,
    };
    seg.payload = f.buf;
    own.segs.keep();
}

/// As [`put_off`], where segments of a burst may be merged: headers are read now, as they tell
/// whether segments follow each other. IP's turn then finds them read.
#[inline(never)]
pub(crate) fn put_off_or_merge<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    key: FlowKey,
) {
    let l2 = l2_len(sh, iface);
    let seg = own.segs.place();
    let headers = &f.buf.as_slice()[l2..];
    let plain = f.csum_ok
        && f.segment_size == 0
        && parse_tcp_into(headers, l2, Csum::Trust, &mut seg.frame).is_ok()
        && !seg.frame.bad_options;
    if !plain {
        // What comes behind may be of its flow, and must not overtake it.
        own.latest.begin_anew();
        return put_off(own, iface, f, key);
    }
    seg.hash = f.hash.unwrap_or_else(|| sh.flow_hash(&key));
    (seg.iface, seg.ip) = (iface, Turn::Read);
    seg.payload = f.buf;
    seg.narrow();
    seg.is_of(0);
    own.segs.keep_or_merge(&mut own.latest, &mut own.pool);
}

/// Takes a segment apart for who looks at each packet as it came: `f` is given one after the other,
/// as a frame as a whole if IP has yet to look at it. Acknowledgments that were merged are one.
pub fn apart(seg: &mut Seg, mut f: impl FnMut(Seg)) {
    let (turn, headers) = (seg.ip, seg.frame.payload_off as usize);
    seg.apart(|s| {
        let mut one = Seg {
            frame: s.frame,
            hash: s.hash,
            iface: s.iface,
            core: s.core,
            segs: 1,
            payload: take(&mut s.payload),
            size: s.frame.payload_len,
            ip: turn,
            ..Seg::default()
        };
        if turn == Turn::Read {
            one.payload.widen_front(headers);
            one.segs = 0;
            one.ip = Turn::Ahead {
                csum_ok: true,
                hashed: true,
                segment_size: 0,
            };
        }
        f(one);
    });
}

/// How many of a burst's segments wait for IP, and octets of those whose checksums it has to verify.
pub(crate) fn waiting(segs: &Segs) -> (u64, u64) {
    let octets = |s: &Seg| match s.ip {
        Turn::Done => None,
        Turn::Ahead { csum_ok: true, .. } | Turn::Read => Some(0),
        Turn::Ahead { .. } => Some(s.payload.len() as u64),
    };
    let all = segs.iter().filter_map(octets);
    all.fold((0, 0), |(n, sum), octets| (n + 1, sum + octets))
}

/// IP's turn with a segment: headers, lengths and checksums are checked and read, and the frame is
/// cut down to the payload, unless that was done where it came in, so that it could be merged. A
/// segment that has been here already stays as it is. `false`: it was no good, and is counted and
/// gone.
#[inline(never)]
pub fn input<K: Kind>(cx: &mut Ctx<K>, seg: &mut Seg) -> bool {
    let good = match take(&mut seg.ip) {
        Turn::Done => return true,
        Turn::Read => {
            charge(&cx.sh.p, (1, 0));
            true
        }
        Turn::Ahead {
            csum_ok,
            hashed,
            segment_size,
        } => read(cx, seg, (csum_ok, hashed), segment_size),
    };
    if good {
        seg.core = cx.core;
        if seg.segs > 1 {
            cx.count(Count::RxMerged, u64::from(seg.segs) - 1);
        }
        cx.count(Count::RxSegs, seg.segs.into());
    }
    good
}

/// Checks and reads a whole frame, whose checksums and hash the device knows or not.
fn read<K: Kind>(
    cx: &mut Ctx<K>,
    seg: &mut Seg,
    (csum_ok, hashed): (bool, bool),
    segment_size: u16,
) -> bool {
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
    seg.narrow();
    seg.segs = 1;
    if segment_size > 0 && sh.config.offload != Offload::Off {
        seg.is_of(segment_size);
    }
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
    // Nobody has looked at what may be merged, so nobody has changed it.
    if matches!(seg.ip, Turn::Done | Turn::Read) {
        return true;
    }
    let key = plain(sh, seg.iface, seg.payload.as_slice());
    seg.frame.key = key.unwrap_or(seg.frame.key);
    key.is_some()
}

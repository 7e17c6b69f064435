//! Fragments that come, and datagrams that have waited for the rest for too long.

use super::reassembly::{self, Counts};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::datagram::{self, Fault};
use crate::kind::Kind;
use crate::net::is_group;
use core::net::IpAddr;
use perimeter_base::{PktBuf, Time};
use perimeter_sync::Lock;
use perimeter_wire::EtherHdr;

/// A fragment came by interface `iface` in `frame`, of which the first `l2` octets are the link
/// layer's header. The frame of the whole datagram, if that is there now. `welcome` says whether
/// we want what goes between these addresses.
#[cold]
pub(crate) fn arrived<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    frame: PktBuf,
    l2: usize,
    welcome: impl FnOnce(&mut Ctx<K>, (IpAddr, IpAddr)) -> bool,
) -> Option<PktBuf> {
    cx.count(Count::Fragments, 1);
    let Some(f) = reassembly::read(iface, frame.as_slice(), l2) else {
        cx.count(Count::BadFragment, 1);
        cx.pool.put(frame);
        return None;
    };
    if !welcome(cx, (f.key.src, f.key.dst)) {
        cx.pool.put(frame);
        return None;
    }
    let now = cx.now();
    let mut counts = Counts::default();
    let sh = cx.sh;
    let (before, after, whole) = {
        let mut all = sh.fragments.lock();
        let before = all.pinned();
        let whole = all.take(now, &f, frame, &mut cx.pool, &mut counts);
        (before, all.pinned(), whole)
    };
    cx.charge(before, after);
    for (what, n) in [
        (Count::Reassembled, counts.whole),
        (Count::ReassemblyFailed, counts.failed),
        (Count::FragmentOverlap, counts.overlaps),
        (Count::FragmentNoRoom, counts.refused),
    ] {
        if n > 0 {
            cx.count(what, n);
        }
    }
    whole
}

/// Lets go of all fragments: the stack ends, and nobody waits for the rest of them.
pub fn abandon<K: Kind>(cx: &mut Ctx<K>) {
    let pinned = {
        let mut all = cx.sh.fragments.lock();
        let pinned = all.pinned();
        all.clear();
        pinned
    };
    cx.charge(pinned, 0);
}

/// Lets go of what has waited for too long. Who sent the beginning of a datagram is told (RFC 1122,
/// section 3.3.2; RFC 8200, section 4.5).
pub fn expire<K: Kind>(cx: &mut Ctx<K>, now: Time) {
    let mut gone = Vec::new();
    let (before, after) = {
        let mut all = cx.sh.fragments.lock();
        if all.is_empty() {
            return;
        }
        let before = all.pinned();
        all.expire(now, |key, p| gone.push((key, p)));
        (before, all.pinned())
    };
    cx.charge(before, after);
    cx.count(Count::ReassemblyFailed, gone.len() as u64);
    for (key, p) in gone {
        if let Some((head, l2, data)) = p.beginning(1024)
            && !is_group(key.dst)
        {
            let quote = [&head[l2..], data].concat();
            let came = EtherHdr::parse(head).ok().filter(|_| l2 > 0);
            let came = (key.iface, came.map(|eth| eth.src));
            datagram::tell(cx, came, (key.dst, key.src), Fault::Incomplete, &quote);
        }
    }
}

//! Forwarding: what comes for other hosts goes on towards them (RFC 1812, RFC 8200), if
//! [`Config::forwarding`](crate::Config::forwarding) asks for it.
//!
//! A datagram that is handed on meets no perimeter: it is of no connection of ours. The thread that
//! took it from its device routes it and puts it into the transmit ring of another one. Its payload is
//! never copied, unless it has to be cut.

mod cut;

use crate::count::Count;
use crate::ctx::Ctx;
use crate::datagram::{self, Fault};
use crate::kind::Kind;
use crate::net::{L2, is_host};
use crate::own::Own;
use crate::shared::SharedState;
use crate::transit::{LONGEST, Transit};
use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_link::RxFrame;
use perimeter_tcp::Unreachable;
use perimeter_wire::ipv6::is_link_local;
use perimeter_wire::{EtherHdr, MacAddr};

/// Where a datagram goes: an interface, and the stations if it has such.
type Way = (u16, Option<(MacAddr, MacAddr)>);

/// The way of the last datagram of a burst, which is most often that of the next one.
type Last = Option<(IpAddr, Way)>;

/// Takes what is for other hosts out of a burst that came by interface `iface`, and sends it on.
#[inline(never)]
pub(crate) fn sift<K: Kind>(cx: &mut Ctx<K>, iface: u16, frames: &mut Vec<RxFrame>) {
    if iface == cx.sh.loopback().0 {
        return;
    }
    let sh = cx.sh;
    let by = (iface, &sh.ifaces[usize::from(iface)].caps);
    let mut last = None;
    frames.retain_mut(
        |f| match Transit::of(by, f, |dst| goes_on(sh, iface, dst)) {
            Some(t) => {
                arrived(cx, t, &mut last);
                false
            }
            None => true,
        },
    );
}

/// Whether what came by interface `iface` for `dst` is to go on: `dst` is a host's address that is
/// not ours, and means the same host elsewhere.
fn goes_on<K: Kind>(sh: &SharedState<K>, iface: u16, dst: IpAddr) -> bool {
    let near = matches!(dst, IpAddr::V6(ip) if is_link_local(ip));
    // All hosts of a link are told by who is on it (RFC 2644).
    let directed = || sh.is_broadcast(sh.loopback().0, dst);
    is_host(dst) && !near && !sh.takes(iface, dst) && !directed()
}

/// Why a datagram goes no further, whoever is told of it.
fn refused<K: Kind>(sh: &SharedState<K>, t: &Transit) -> Option<Count> {
    match (t.ip.src, t.ip.dst) {
        (IpAddr::V6(src), _) => sh.wrong_source6(t.iface, src),
        // Link-local addresses of IPv4 mean another host elsewhere (RFC 3927, section 2.7).
        (IpAddr::V4(src), IpAddr::V4(dst)) if src.is_link_local() || dst.is_link_local() => {
            Some(Count::ForwardScope)
        }
        (src, _) => sh.wrong_source4(t.iface, src),
    }
}

/// A datagram for another host has arrived.
fn arrived<K: Kind>(cx: &mut Ctx<K>, mut t: Transit, last: &mut Last) {
    if let Some(why) = refused(cx.sh, &t) {
        return dropped(cx, t, why, None);
    }
    if matches!(t.ip.src, IpAddr::V6(src) if is_link_local(src)) {
        return dropped(cx, t, Count::ForwardScope, Some(Fault::Scope));
    }
    if t.ip.hop_limit <= 1 {
        return dropped(cx, t, Count::ForwardExpired, Some(Fault::Expired));
    }
    if let Some((dst, way)) = *last
        && dst == t.ip.dst
    {
        t.hop();
        return send(cx, t, way);
    }
    *last = find(cx, t, None);
}

/// Finds the way for a datagram and sends it there; the way. If a neighbour's station has to be asked
/// for, the datagram waits until `until`, or as long as one may.
fn find<K: Kind>(cx: &mut Ctx<K>, mut t: Transit, until: Option<Time>) -> Last {
    let (now, dst) = (cx.now(), t.ip.dst);
    let found = cx.sh.routes.resolve(&cx.sh.ifaces, dst, None, now);
    let hop = found.as_ref().map(|r| r.hop.iface);
    let there = hop.filter(|n| !cx.sh.ifaces[usize::from(*n)].is_gone());
    let (Some(found), Some(iface)) = (found, there) else {
        let fault = Fault::Unreachable(Unreachable::Net);
        dropped(cx, t, Count::ForwardNoRoute, Some(fault));
        return None;
    };
    if until.is_none() {
        t.hop();
    }
    if let Some(ask) = found.ask {
        cx.sh.ask(cx, iface, ask);
    }
    let stations = match found.l2 {
        L2::None => None,
        L2::Stations(ours, theirs) => Some((ours, theirs)),
        L2::Unresolved => {
            let until = until.unwrap_or(now.plus(LONGEST));
            for lost in cx.sh.forward.wait(found.hop, until, t) {
                dropped(cx, lost, Count::ForwardUnresolved, None);
            }
            // Whoever heard the neighbour before this one waited has not seen it. Both look with the
            // neighbour's entry held, so one of them sees what the other did.
            if let Some((hop, Some(_))) = cx.sh.routes.known(dst) {
                cx.sh.forward_on(cx.own, (hop.iface, hop.next));
            }
            return None;
        }
    };
    send(cx, t, (iface, stations));
    Some((dst, (iface, stations)))
}

/// Sends a datagram on, in pieces if it is longer than the link takes and may be cut.
fn send<K: Kind>(cx: &mut Ctx<K>, mut t: Transit, way: Way) {
    let i = &cx.sh.ifaces[usize::from(way.0)];
    let (mtu, large) = (i.mtu(t.ip.dst), i.caps.large);
    if t.longest() > mtu {
        if !t.may_be_cut() {
            return dropped(cx, t, Count::ForwardTooBig, Some(Fault::TooBig(mtu)));
        }
        t.finish_checksum();
        let parts = cut::fragments(&t, mtu, &mut cx.pool);
        cx.count(Count::FragmentsSent, parts.len() as u64);
        cx.count(Count::Forwarded, 1);
        cx.pool.put(t.buf);
        return parts.into_iter().for_each(|part| place(cx, part, way));
    }
    cx.count(Count::Forwarded, 1);
    if t.segment_size > 0 && (t.ip.total_len > large || !t.headers_fit()) {
        let parts = cut::segments(&t, &mut cx.pool);
        cx.pool.put(t.buf);
        return parts.into_iter().for_each(|part| place(cx, part, way));
    }
    place(cx, t, way);
}

/// Places a datagram in a transmit ring.
fn place<K: Kind>(cx: &mut Ctx<K>, t: Transit, (iface, stations): Way) {
    let i = &cx.sh.ifaces[usize::from(iface)];
    let q = match i.tx.len() {
        1 => i.tx.start,
        _ => i.txq(t.hash().unwrap_or_else(|| cx.sh.flow_hash(&t.ends()))),
    };
    let (ethertype, mut stage) = (t.ip.ethertype(), cx.sh.tx[usize::from(q)].stage());
    let Some(mut d) = stage.push() else {
        drop(stage);
        return dropped(cx, t, Count::TxRingFull, None);
    };
    let l2 = stations.map_or(0, |(src, dst)| {
        let eth = EtherHdr {
            dst,
            src,
            ethertype,
        };
        eth.emit(&mut d.hdr)
    });
    t.describe(l2, &mut d);
    drop(stage);
    cx.deferred.ring(q);
}

/// A datagram goes no further; its sender is told, if there is something to tell and that is due.
fn dropped<K: Kind>(cx: &mut Ctx<K>, t: Transit, why: Count, fault: Option<Fault>) {
    cx.count(why, 1);
    if let Some(fault) = fault
        && t.may_tell()
        && let Some(from) = cx.sh.speaker(t.iface, t.ip.src)
    {
        let ends = (from, t.ip.src);
        datagram::tell(cx, (t.iface, t.station), ends, fault, t.buf.as_slice());
    }
    cx.pool.put(t.buf);
}

impl<K: Kind> SharedState<K> {
    /// The address that speaks for us to `to`, who is heard by interface `iface`.
    fn speaker(&self, iface: u16, to: IpAddr) -> Option<IpAddr> {
        match to {
            IpAddr::V4(_) => {
                let first = |i: &crate::net::Iface| i.addrs.first().map(|a| a.addr);
                first(&self.ifaces[usize::from(iface)])
                    .or_else(|| self.ifaces.iter().find_map(first))
            }
            IpAddr::V6(to) => {
                let found = crate::ipv6::source::select(&self.v6, iface, to);
                found.map(|held| IpAddr::V6(held.addr))
            }
        }
    }

    /// A neighbour's station is known: what waits for it goes on.
    #[inline]
    pub(crate) fn forward_on(&self, own: &mut Own<K>, at: (u16, IpAddr)) {
        if self.forward.due() != Time::NEVER {
            let cx = &mut Ctx::new(self, own);
            for (until, t) in self.forward.take(at) {
                find(cx, t, Some(until));
            }
        }
    }

    /// Neighbours that datagrams wait for are asked for again, and who sent those that have waited
    /// long enough is told that nobody is there.
    pub(crate) fn forward_again(&self, own: &mut Own<K>) {
        let cx = &mut Ctx::new(self, own);
        let now = cx.now();
        if now < self.forward.due() {
            return;
        }
        let (lost, hops) = self.forward.look(now);
        for t in lost {
            let fault = Fault::Unreachable(Unreachable::Host);
            dropped(cx, t, Count::ForwardUnresolved, Some(fault));
        }
        for (hop, dst) in hops {
            let found = self.routes.resolve(&self.ifaces, dst, None, now);
            if let Some(ask) = found.and_then(|r| r.ask) {
                self.ask(cx, hop.iface, ask);
            }
        }
    }
}

//! Neighbour discovery (RFC 4861) over the neighbours that ARP has as well: solicitations are
//! answered and sent, and what a neighbour says of itself is heard.

use super::addrs::{Held, State};
use super::is_host;
use crate::aside::Aside;
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::own::Own;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv6Addr};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_wire::ipv6::{ALL_NODES, group_mac, is_link_local, solicited_node};
use perimeter_wire::mld::{self, Record};
use perimeter_wire::ndp::HOP_LIMIT;
use perimeter_wire::{ETHERTYPE_IPV6, EtherHdr, Ipv6Hdr, MacAddr, Ndp, PROTO_ICMPV6, WireError};

/// A message of neighbour discovery came by interface `iface`.
pub(crate) fn input<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    ip: &Ipv6Hdr,
    (head, body): ((u8, u8, u32), &[u8]),
    aside: &mut Aside,
    frame: &[u8],
) {
    let i = &cx.sh.ifaces[usize::from(iface)];
    if i.caps.medium != Medium::Ethernet {
        // A point-to-point link without stations has neighbours that need not be discovered.
        return cx.count(Count::OtherProtocol, 1);
    }
    let bad = |cx: &Ctx<K>| {
        let at = crate::count::malformed(WireError::BadNdp);
        cx.sh.counters.add(cx.own.lane, at, 1);
    };
    let Ok(msg) = Ndp::parse((ip.src, ip.dst, ip.hop_limit), head, body) else {
        return bad(cx);
    };
    let Some(src) = cx.sh.arrived(iface, ip.src) else {
        return bad(cx);
    };
    let station = EtherHdr::parse(frame).map_or(MacAddr::UNSPECIFIED, |eth| eth.src);
    if station == i.caps.mac || station.is_multicast() {
        // Our own, come back; or nonsense.
        return;
    }
    match msg {
        Ndp::NeighborSolicitation {
            target,
            source,
            nonce,
        } => {
            let Some(target) = cx.sh.arrived(iface, target) else {
                return bad(cx);
            };
            solicited(cx, iface, (src, source), (target, nonce), aside);
        }
        Ndp::NeighborAdvertisement {
            target,
            station: said,
            ..
        } => {
            let Some(target) = cx.sh.arrived(iface, target) else {
                return bad(cx);
            };
            if let Some(held) = cx.sh.v6.find(target).filter(|h| h.iface == iface) {
                return taken(cx, held, None, aside);
            }
            let who = (IpAddr::V6(target), said.unwrap_or(station));
            aside.resolved.extend(cx.sh.heard(cx, iface, who, false));
        }
        Ndp::RouterAdvertisement(ra) => {
            if let Some(mac) = ra.source.filter(|mac| !mac.is_multicast()) {
                let who = (IpAddr::V6(src), mac);
                aside.resolved.extend(cx.sh.heard(cx, iface, who, false));
            }
            cx.sh.router_advertised(cx, iface, src, &ra);
        }
        Ndp::Redirect {
            target,
            destination,
        } => {
            let to = cx.sh.arrived(iface, ip.dst);
            let what = cx.sh.arrived(iface, destination);
            let Some(((to, what), target)) = to.zip(what).zip(cx.sh.arrived(iface, target)) else {
                return bad(cx);
            };
            redirected(cx, iface, (src, to), (what, target));
        }
        // Hosts do not answer those.
        Ndp::RouterSolicitation { .. } => {}
    }
}

/// `src` tells `to`, who may be us, that there is a better first hop to `dst`.
fn redirected<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    (src, to): (Ipv6Addr, Ipv6Addr),
    (dst, target): (Ipv6Addr, Ipv6Addr),
) {
    let asked = cx.sh.config.ipv6.accept_redirects && !cx.sh.config.forwarding;
    let ours = |ip| cx.sh.v6.find(ip).is_some();
    let for_us = cx.sh.v6.find(to).is_some_and(|h| h.iface == iface);
    // What is on the link is there for all that a router could say.
    let far = is_host(dst) && !is_link_local(dst);
    if !asked || !for_us || !far || ours(dst) || ours(target) || ours(src) {
        return cx.count(Count::RedirectsRefused, 1);
    }
    let now = cx.now();
    let at = (iface, &cx.sh.ifaces[usize::from(iface)]);
    let done = cx.sh.routes.redirected(at, src, (dst, target), now);
    if let Some(ask) = done.ask {
        cx.sh.ask(cx, iface, ask);
    }
    if done.moved {
        cx.sh.net_moved();
    }
    let what = match done.taken {
        true => Count::Redirects,
        false => Count::RedirectsRefused,
    };
    cx.count(what, 1);
}

/// `src`, of station `source`, asks who has `target`.
fn solicited<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    (src, source): (Ipv6Addr, Option<MacAddr>),
    (target, nonce): (Ipv6Addr, Option<[u8; 6]>),
    aside: &mut Aside,
) {
    let Some(held) = cx.sh.v6.find(target).filter(|h| h.iface == iface) else {
        return;
    };
    if cx.sh.v6.owns(src) {
        return cx.sh.conflict(cx, iface, src);
    }
    if held.state == State::Tentative {
        // Somebody who has an address asks in vain: it is not ours yet. Who has none looks
        // whether it can have this one, and so do we (RFC 4862, section 5.4.3).
        if src.is_unspecified() {
            taken(cx, held, nonce, aside);
        }
        return;
    }
    if !src.is_unspecified() && !cx.sh.routes.on_link(iface, IpAddr::V6(src)) {
        // Not a neighbour, so nothing is learnt of it and nothing said to it.
        return cx.count(Count::BadAddress, 1);
    }
    if let Some(mac) = source.filter(|mac| !mac.is_multicast()) {
        let who = (IpAddr::V6(src), mac);
        aside.resolved.extend(cx.sh.heard(cx, iface, who, true));
    }
    let now = cx.now();
    if !cx.limits.adverts.take(now) {
        return cx.count(Count::AdvertLimit, 1);
    }
    let dst = match src.is_unspecified() {
        true => ALL_NODES,
        false => src,
    };
    // To who asked, or by way of its entry; else to the group.
    let to = source.or_else(|| cx.sh.routes.known(IpAddr::V6(dst)).and_then(|k| k.1));
    let to = match (dst.is_multicast(), to) {
        (true, _) | (_, None) => group_mac(ALL_NODES),
        (false, Some(mac)) => mac,
    };
    cx.sh.advertise(cx, iface, to, target, dst);
}

/// Somebody else has, or wants, an address that is ours or is to be.
fn taken<K: Kind>(cx: &mut Ctx<K>, held: Held, nonce: Option<[u8; 6]>, aside: &mut Aside) {
    match held.state {
        State::Tentative => aside.failed.extend(cx.sh.duplicate(cx, held.addr, nonce)),
        _ => cx.sh.conflict(cx, held.iface, held.addr),
    }
}

impl<K: Kind> SharedState<K> {
    /// Says to `dst` at the station `to` that `target` is ours.
    fn advertise(
        &self,
        own: &mut Own<K>,
        iface: u16,
        to: MacAddr,
        target: Ipv6Addr,
        dst: Ipv6Addr,
    ) {
        let mac = self.ifaces[usize::from(iface)].caps.mac;
        let msg = Ndp::NeighborAdvertisement {
            target,
            router: self.config.forwarding,
            solicited: !dst.is_multicast(),
            overrides: true,
            station: Some(mac),
        };
        self.send_ndp(own, iface, to, (target, dst), &msg);
    }

    /// Asks the station `to`, or the group of those who may be it, who has `whom`.
    pub(crate) fn solicit(&self, own: &mut Own<K>, iface: u16, to: MacAddr, whom: Ipv6Addr) {
        let Some(from) = super::source::select(&self.v6, iface, whom) else {
            return;
        };
        if from.state == State::Tentative {
            return;
        }
        let (to, dst) = match to.is_broadcast() {
            true => {
                let group = solicited_node(whom);
                (group_mac(group), group)
            }
            false => (to, whom),
        };
        let msg = Ndp::NeighborSolicitation {
            target: whom,
            source: Some(self.ifaces[usize::from(iface)].caps.mac),
            nonce: None,
        };
        self.send_ndp(own, iface, to, (from.addr, dst), &msg);
    }

    /// Sends a message of neighbour discovery.
    pub(crate) fn send_ndp(
        &self,
        own: &mut Own<K>,
        iface: u16,
        to: MacAddr,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        msg: &Ndp,
    ) {
        let mut out = [0; Ipv6Hdr::LEN + Ndp::MAX_EMITTED];
        let Some(n) = msg.emit(src, dst, &mut out[Ipv6Hdr::LEN..]) else {
            return;
        };
        let hdr = Ipv6Hdr {
            src,
            dst,
            protocol: PROTO_ICMPV6,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            header_len: Ipv6Hdr::LEN as u16,
            total_len: (Ipv6Hdr::LEN + n) as u32,
            fragment: None,
        };
        hdr.emit(&mut out);
        self.send_link(own, iface, to, &out[..Ipv6Hdr::LEN + n]);
    }

    /// Sends a datagram of IPv6, which fits a descriptor's headers, to a station.
    fn send_link(&self, own: &mut Own<K>, iface: u16, to: MacAddr, datagram: &[u8]) {
        let i = &self.ifaces[usize::from(iface)];
        let q = i.tx.start;
        let mut stage = self.tx[usize::from(q)].stage();
        let Some(mut d) = stage.push() else {
            return self.count(own.lane, Count::TxRingFull, 1);
        };
        let eth = EtherHdr {
            dst: to,
            src: i.caps.mac,
            ethertype: ETHERTYPE_IPV6,
        };
        let n = eth.emit(&mut d.hdr);
        d.hdr[n..n + datagram.len()].copy_from_slice(datagram);
        d.hdr_len = (n + datagram.len()) as u8;
        own.deferred.ring(q);
    }

    /// Somebody else uses our address `ip` on interface `iface`: it is said that it is ours, at
    /// most once in ten seconds, and kept, as RFC 5227 has it for IPv4.
    pub(crate) fn conflict(&self, own: &mut Own<K>, iface: u16, ip: Ipv6Addr) {
        const DEFEND_INTERVAL: u64 = 10_000_000_000;
        self.count(own.lane, Count::NdpConflicts, 1);
        let now = own.now(&self.p);
        let last = &self.defended[usize::from(iface)];
        let at = last.load(Ordering::Relaxed);
        if at != 0 && now.nanos_since(Time(at)) < DEFEND_INTERVAL {
            return;
        }
        last.store(now.0.max(1), Ordering::Relaxed);
        self.advertise(own, iface, group_mac(ALL_NODES), ip, ALL_NODES);
    }

    /// Tells routers and switches which groups interface `iface` listens to, for that is asked in
    /// a datagram with the header `ip`, or has changed.
    pub(crate) fn report_groups(&self, own: &mut Own<K>, iface: u16, ip: &Ipv6Hdr, what: Record) {
        let link = perimeter_wire::ipv6::is_link_local(ip.src);
        let ethernet = self.ifaces[usize::from(iface)].caps.medium == Medium::Ethernet;
        let now = own.now(&self.p);
        // Only a router of this link asks (RFC 3810, section 6.2).
        if !link || ip.hop_limit != 1 || !ethernet || !own.limits.adverts.take(now) {
            return self.count(own.lane, Count::OtherProtocol, 1);
        }
        for h in self.v6.of(iface) {
            self.report_group(own, iface, (what, solicited_node(h.addr)));
        }
        for group in self.joined_v6(iface) {
            self.report_group(own, iface, (what, group));
        }
    }

    /// Tells that interface `iface` listens to a group, or no longer.
    pub(crate) fn report_group(&self, own: &mut Own<K>, iface: u16, group: (Record, Ipv6Addr)) {
        let mut link = self
            .v6
            .of(iface)
            .filter(|h| h.state > State::Tentative && perimeter_wire::ipv6::is_link_local(h.addr));
        let from = link.next().map_or(Ipv6Addr::UNSPECIFIED, |h| h.addr);
        let mut out = [0; mld::report_len(1)];
        let n = mld::report(from, &[group], &mut out);
        self.send_link(own, iface, group_mac(mld::MLD_ROUTERS), &out[..n]);
    }
}

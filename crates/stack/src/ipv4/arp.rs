//! ARP (RFC 826), and the defence of our addresses (RFC 5227).

use crate::aside::Aside;
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::net::Iface;
use crate::own::Own;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_wire::{ArpOp, ArpPacket, ETHERTYPE_ARP, EtherHdr, MacAddr};

/// An ARP packet came by interface `iface` (RFC 826).
pub(crate) fn arp<K: Kind>(cx: &mut Ctx<K>, iface: u16, p: &ArpPacket, aside: &mut Aside) {
    let i = &cx.sh.ifaces[usize::from(iface)];
    if p.sender_mac == i.caps.mac || p.sender_mac.is_multicast() {
        // Our own packet, come back; or nonsense.
        return;
    }
    if cx.sh.looks_at(cx, iface, p) {
        return;
    }
    let for_us = i.owns(IpAddr::V4(p.target_ip));
    if i.owns(IpAddr::V4(p.sender_ip)) {
        return cx.sh.defend(cx, iface, p.sender_ip);
    }
    // What we know is updated by anybody's packet, what we do not know is learnt only
    // when it is addressed to us. A probe (RFC 5227) comes from no address.
    if !p.sender_ip.is_unspecified() && i.addrs.iter().any(|a| a.contains(IpAddr::V4(p.sender_ip)))
    {
        let who = (IpAddr::V4(p.sender_ip), p.sender_mac);
        aside.resolved.extend(cx.sh.heard(cx, iface, who, for_us));
    }
    if for_us && p.op == ArpOp::Request {
        let reply = p.reply(i.caps.mac);
        cx.sh.send_arp(cx, iface, p.sender_mac, &reply);
    }
}

impl<K: Kind> SharedState<K> {
    /// Asks the station `to`, or all, who has `whom`.
    pub(crate) fn send_request(&self, own: &mut Own<K>, iface: u16, to: MacAddr, whom: Ipv4Addr) {
        if let Some(packet) = request(&self.ifaces[usize::from(iface)], whom) {
            self.send_arp(own, iface, to, &packet);
        }
    }

    /// Sends an ARP packet.
    pub(super) fn send_arp(&self, own: &mut Own<K>, iface: u16, dst: MacAddr, packet: &ArpPacket) {
        let i = &self.ifaces[usize::from(iface)];
        let q = i.tx.start;
        let mut stage = self.tx[usize::from(q)].stage();
        if let Some(mut d) = stage.push() {
            d.hdr_len = arp_frame(i.caps.mac, dst, packet, &mut d.hdr) as u8;
            own.deferred.ring(q);
        } else {
            self.count(own.lane, Count::TxRingFull, 1);
        }
    }

    /// Another station uses our address `ip` on interface `iface`: says once in ten seconds that
    /// it is ours, and keeps it (RFC 5227, section 2.4, (c)).
    fn defend(&self, own: &mut Own<K>, iface: u16, ip: Ipv4Addr) {
        const DEFEND_INTERVAL: u64 = 10_000_000_000;
        self.count(own.lane, Count::ArpConflicts, 1);
        let now = own.now(&self.p);
        let last = &self.defended[usize::from(iface)];
        let at = last.load(Ordering::Relaxed);
        if at != 0 && now.nanos_since(Time(at)) < DEFEND_INTERVAL {
            return;
        }
        last.store(now.0.max(1), Ordering::Relaxed);
        let mac = self.ifaces[usize::from(iface)].caps.mac;
        let packet = announcement(mac, ip);
        self.send_arp(own, iface, MacAddr::BROADCAST, &packet);
    }
}

/// The request for `target_ip` on `iface`. `None`: the interface has no IPv4 address.
fn request(iface: &Iface, target_ip: Ipv4Addr) -> Option<ArpPacket> {
    let sender_ip = iface.addrs.iter().find_map(|a| match a.addr {
        IpAddr::V4(ip) if a.contains(IpAddr::V4(target_ip)) => Some(ip),
        _ => None,
    });
    let first = iface.addrs.iter().find_map(|a| match a.addr {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    Some(ArpPacket {
        op: ArpOp::Request,
        sender_mac: iface.caps.mac,
        sender_ip: sender_ip.or(first)?,
        target_mac: MacAddr([0; 6]),
        target_ip,
    })
}

/// Says that `ip` is the station `mac` (RFC 5227, section 2.3).
pub(super) fn announcement(mac: MacAddr, ip: Ipv4Addr) -> ArpPacket {
    ArpPacket {
        op: ArpOp::Request,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr([0; 6]),
        target_ip: ip,
    }
}

/// Asks whether somebody has `ip` (RFC 5227, section 2.1.1).
pub(super) fn probe(mac: MacAddr, ip: Ipv4Addr) -> ArpPacket {
    ArpPacket {
        sender_ip: Ipv4Addr::UNSPECIFIED,
        ..announcement(mac, ip)
    }
}

/// Writes an ARP packet as a frame to `dst`; returns its length.
fn arp_frame(src: MacAddr, dst: MacAddr, p: &ArpPacket, out: &mut [u8]) -> usize {
    let n = EtherHdr {
        dst,
        src,
        ethertype: ETHERTYPE_ARP,
    }
    .emit(out);
    n + p.emit(&mut out[n..])
}

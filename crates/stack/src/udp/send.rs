//! Sending: finding the way, writing descriptors, and waiting for a neighbour.

use super::path::{Full, Outgoing, Path, Payload, Sent, Waiting};
use super::socket::Socket;
use super::{Claim, UdpError};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::net::{L2, both_get};
use crate::port::Stalled;
use crate::ready;
use core::net::IpAddr;
use perimeter_link::Medium;
use perimeter_sync::{Platform, Work};
use perimeter_tcp::TcpError;
use perimeter_wire::{FlowKey, IpHdr, MAX_DATAGRAM, MacAddr, UdpHdr, UdpTemplate, igmp, ipv6};
use std::sync::Arc;

/// Datagrams of a socket that wait for a neighbour's station, and the memory that they pin, bytes:
/// the oldest go (RFC 1122, section 2.3.2.2 asks for one to be kept at least).
const WAITING: usize = 16;
const WAITING_BYTES: usize = 128 * 1024;
/// How long prepared headers are used before the neighbour is asked about again, ns.
const FRESH: u64 = 1_000_000_000;

/// What stands between a socket and sending.
pub(super) enum Way {
    /// The path is prepared.
    Ready,
    /// The neighbour has been asked for, or the address is not ours to use yet; by that interface.
    Unresolved(u16),
}

impl<K: Kind> Socket<K> {
    /// Sends. Nothing is sent while an error is pending: that is told first.
    pub fn send(&mut self, cx: &mut Ctx<K>, out: Outgoing) -> Sent {
        cx.sh.p.charge(Work::SockCall, 1);
        match self.take_error() {
            Some(e) => Sent::not(e, out),
            None => self.place(cx, out),
        }
    }

    /// As [`Socket::send`], one after the other: how many of `all` were taken, from the front, of
    /// which the last may have been in part. Buffers go back to the thread's stock.
    ///
    /// # Errors
    /// Why the first was not.
    pub fn send_many(&mut self, cx: &mut Ctx<K>, all: Vec<Outgoing>) -> Result<usize, UdpError> {
        cx.sh.p.charge(Work::SockCall, 1);
        if let Some(e) = self.take_error() {
            return Err(e);
        }
        let mut n = 0;
        for out in all {
            let len = out.data.len();
            let sent = self.place(cx, out);
            if let Some(buf) = sent.back {
                cx.pool.put(buf);
            }
            match sent.taken {
                Ok(taken) if taken == len => n += 1,
                Ok(_) => return Ok(n + 1),
                Err(e) if n == 0 => return Err(e),
                Err(_) => return Ok(n),
            }
        }
        Ok(n)
    }

    fn place(&mut self, cx: &mut Ctx<K>, out: Outgoing) -> Sent {
        match self.way(cx, &out) {
            Ok(Way::Ready) => self.emit(cx, out),
            Ok(Way::Unresolved(iface)) => match self.too_long(cx, iface, &out) {
                true => Sent::not(UdpError::TooLong, out),
                false => self.put_aside(cx, out),
            },
            Err(e) => Sent::not(e, out),
        }
    }

    /// Whether a datagram that may not be cut is longer than that interface and path take, or any is
    /// longer than all.
    #[cold]
    pub(super) fn too_long(&self, cx: &mut Ctx<K>, iface: u16, out: &Outgoing) -> bool {
        let Some((to, _)) = out.to.or(self.remote) else {
            return false;
        };
        let whole = out.each() + UdpHdr::LEN + IpHdr::len_to(to);
        // The header of IPv6 counts towards an MTU, not towards a datagram's own length.
        let most = match (self.config.dont_fragment, to) {
            (true, _) => cx.sh.path_mtu(iface, to, cx.now()).0.min(MAX_DATAGRAM),
            (false, IpAddr::V4(_)) => MAX_DATAGRAM,
            (false, IpAddr::V6(_)) => MAX_DATAGRAM + IpHdr::len_to(to) as u32,
        };
        whole > most as usize
    }

    /// Finds the way for `out`, if that is not the last one's.
    #[inline]
    pub(super) fn way(&mut self, cx: &mut Ctx<K>, out: &Outgoing) -> Result<Way, UdpError> {
        let to = out.to.or(self.remote).ok_or(UdpError::NotConnected)?;
        if let Some(path) = &self.path
            && path.to == to
            && path.from == out.from
            && path.generation == cx.sh.net_generation()
            && path.until > cx.now()
        {
            return Ok(Way::Ready);
        }
        self.find(cx, out.from, to)
    }

    /// The address to send from: as told, the socket's own, or the route's.
    fn source(
        &self,
        cx: &Ctx<K>,
        from: Option<(IpAddr, u16)>,
        to: IpAddr,
    ) -> Result<(IpAddr, u16), UdpError> {
        if let Some(from) = from {
            return match self.config.any {
                true => Ok(from),
                false if cx.sh.may_bind(from.0) && from.1 == self.port => Ok(from),
                false => Err(UdpError::NotOurs),
            };
        }
        let own = self.source.or(self.claim.addr());
        let found = cx.sh.source(to, own, self.config.device);
        let (_, addr) = found.ok_or(UdpError::Failed(TcpError::NetUnreachable))?;
        Ok((addr, self.port))
    }

    /// The flow of `out`, as far as it is known without a way.
    #[cold]
    pub(super) fn ends(&self, cx: &Ctx<K>, out: &Outgoing) -> FlowKey {
        let to = out.to.or(self.remote);
        let (remote, remote_port) = to.unwrap_or((FlowKey::UNSPECIFIED.remote, 0));
        let from = self.source(cx, out.from, remote).ok();
        let (local, local_port) = from.unwrap_or((FlowKey::UNSPECIFIED.local, self.port));
        FlowKey {
            local,
            remote,
            local_port,
            remote_port,
        }
    }

    /// The address that it would send from to that one.
    pub(super) fn source_to(&self, cx: &Ctx<K>, to: IpAddr) -> Result<IpAddr, UdpError> {
        match self.group(cx, to) {
            Some(iface) => self.source_by(cx, iface, to),
            None => {
                let found = cx.sh.source(to, self.claim.addr(), self.config.device);
                let (_, addr) = found.ok_or(UdpError::Failed(TcpError::NetUnreachable))?;
                Ok(addr)
            }
        }
    }

    /// The interface by which it sends to a group, or to all hosts of a link; `None`: `to` is
    /// neither.
    pub(super) fn group(&self, cx: &Ctx<K>, to: IpAddr) -> Option<u16> {
        let (sh, device) = (cx.sh, self.config.device);
        let outer = 0..sh.loopback().0;
        let mine = |n: &u16| both_get(device, Some(*n));
        let of = outer.clone().find(|n| mine(n) && sh.is_broadcast(*n, to));
        let limited = matches!(to, IpAddr::V4(a) if a.is_broadcast());
        if !to.is_multicast() && !limited {
            return of;
        }
        let own = self.source.or(self.claim.addr());
        let home = |a: IpAddr| {
            outer
                .clone()
                .find(|n| sh.addrs(*n).iter().any(|c| c.addr == a))
        };
        let routed = || Some(sh.routes.hop(to)?.iface).filter(|n| *n < sh.loopback().0);
        let iface = device
            .or(self.config.multicast_interface)
            .or_else(|| own.and_then(home));
        Some(iface.or_else(routed).unwrap_or(0))
    }

    /// The address to send from by that interface.
    fn source_by(&self, cx: &Ctx<K>, iface: u16, to: IpAddr) -> Result<IpAddr, UdpError> {
        let own = self.claim.addr().filter(|a| !a.is_multicast());
        let found = own.or_else(|| match to {
            IpAddr::V4(_) => {
                let first = cx.sh.ifaces[usize::from(iface)].addrs.first();
                first.map(|a| a.addr)
            }
            IpAddr::V6(to) => {
                let found = crate::ipv6::source::select(&cx.sh.v6, iface, to);
                found.map(|held| IpAddr::V6(held.addr))
            }
        });
        found.ok_or(UdpError::Failed(TcpError::NetUnreachable))
    }

    /// Whether nothing is sent from that address yet, as it may turn out to be somebody else's (RFC
    /// 4862, section 5.4). The socket is told when it can be.
    fn must_wait(&self, cx: &Ctx<K>, from: IpAddr) -> bool {
        match from {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => !cx.sh.is_ours(from) && cx.sh.is_tentative(ip, Some(self.id)),
        }
    }

    /// The way to a group, or to all hosts of a link, by an interface.
    fn find_group(
        &mut self,
        cx: &mut Ctx<K>,
        iface: u16,
        asked: Option<(IpAddr, u16)>,
        to: (IpAddr, u16),
    ) -> Result<Way, UdpError> {
        let all = !to.0.is_multicast();
        if all && !self.config.broadcast {
            return Err(UdpError::Permission);
        }
        let i = cx.sh.ifaces.get(usize::from(iface));
        let i = i.filter(|_| iface < cx.sh.loopback().0);
        let i = i.ok_or(UdpError::Invalid)?;
        let from = match asked {
            Some(_) => self.source(cx, asked, to.0)?,
            None => (self.source_by(cx, iface, to.0)?, self.port),
        };
        if self.must_wait(cx, from.0) {
            return Ok(Way::Unresolved(iface));
        }
        let station = match to.0 {
            _ if all => MacAddr::BROADCAST,
            IpAddr::V4(g) => igmp::group_mac_v4(g),
            IpAddr::V6(g) => ipv6::group_mac(g),
        };
        let l2 = (i.caps.medium == Medium::Ethernet).then_some((i.caps.mac, station));
        let hops = match all {
            true => self.config.ttl.unwrap_or(cx.sh.config.ttl),
            false => self.config.multicast_ttl,
        };
        let way = (iface, l2, hops);
        let lo = &cx.sh.ifaces[usize::from(cx.sh.loopback().0)];
        let looped = self.config.multicast_loop.then_some(lo.tx.start);
        self.settle(cx, way, asked, (from, to), looped)
    }

    #[cold]
    fn find(
        &mut self,
        cx: &mut Ctx<K>,
        from: Option<(IpAddr, u16)>,
        to: (IpAddr, u16),
    ) -> Result<Way, UdpError> {
        let unreachable = UdpError::Failed(TcpError::NetUnreachable);
        let families = match self.claim {
            Claim::V6 { only: false } => true,
            Claim::V6 { only: true } => to.0.is_ipv6(),
            Claim::V4 => to.0.is_ipv4(),
            Claim::One(a) => a.is_ipv4() == to.0.is_ipv4(),
        };
        if to.1 == 0 || !(families || self.config.any) {
            return Err(UdpError::Invalid);
        }
        if let Some(iface) = self.group(cx, to.0) {
            return self.find_group(cx, iface, from, to);
        }
        let asked = from;
        let from = self.source(cx, from, to.0)?;
        if from.0.is_ipv4() != to.0.is_ipv4() {
            return Err(UdpError::Invalid);
        }
        let now = cx.now();
        let sh = cx.sh;
        if self.must_wait(cx, from.0) {
            let hop = sh.routes.hop_by((to.0, self.config.device));
            let hop = hop.ok_or(unreachable)?;
            return Ok(Way::Unresolved(hop.iface));
        }
        // What is not an address of ours goes by the interface that stands for it.
        let only = match (self.config.device, sh.is_ours(from.0)) {
            (Some(n), _) => Some(n),
            (None, true) => None,
            (None, false) => {
                let n = sh.ifaces.iter().position(|i| i.takes(from.0));
                Some(n.ok_or(unreachable)? as u16)
            }
        };
        let to_by = (to.0, only);
        let found = sh.routes.resolve_by(&sh.ifaces, to_by, Some(self.id), now);
        let found = found.ok_or(unreachable)?;
        let iface = found.hop.iface;
        if !both_get(self.config.device, Some(iface)) {
            return Err(unreachable);
        }
        if let Some(ask) = found.ask {
            cx.sh.ask(cx, iface, ask);
        }
        let l2 = match found.l2 {
            L2::Unresolved => return Ok(Way::Unresolved(iface)),
            L2::None => None,
            L2::Stations(ours, theirs) => Some((ours, theirs)),
        };
        let hops = self.config.ttl.unwrap_or_else(|| cx.sh.hops(iface, to.0));
        let way = (iface, l2, hops);
        self.settle(cx, way, asked, (from, to), None)
    }

    /// Prepares headers for a way: interface, stations and hops.
    fn settle(
        &mut self,
        cx: &mut Ctx<K>,
        (iface, l2, hop_limit): (u16, Option<(MacAddr, MacAddr)>, u8),
        asked: Option<(IpAddr, u16)>,
        (from, to): ((IpAddr, u16), (IpAddr, u16)),
        looped: Option<u16>,
    ) -> Result<Way, UdpError> {
        let now = cx.now();
        let generation = cx.sh.net_generation();
        let i = &cx.sh.ifaces[usize::from(iface)];
        if i.is_gone() {
            return Err(UdpError::Failed(TcpError::NetDown));
        }
        let ip = IpHdr {
            src: from.0,
            dst: to.0,
            protocol: perimeter_wire::PROTO_UDP,
            hop_limit,
            tos: self.config.tos,
            header_len: 0,
            total_len: 0,
        };
        let key = FlowKey {
            local: from.0,
            remote: to.0,
            local_port: from.1,
            remote_port: to.1,
        };
        let hash = cx.sh.flow_hash(&key);
        let label = cx.sh.flow_label(&key);
        cx.sh.path_mtus.sends(hash, now);
        let (mtu, narrow) = cx.sh.path_mtu(iface, to.0, now);
        let piece = mtu.min(MAX_DATAGRAM);
        self.path = Some(Arc::new(Path {
            iface,
            from: asked,
            to,
            generation,
            until: now.plus(FRESH),
            txq: i.txq(hash),
            ip,
            ports: (from.1, to.1),
            stations: l2,
            mtu: match narrow && !self.config.dont_fragment {
                true => 0,
                false => piece,
            },
            piece,
            whole: self.config.dont_fragment,
            looped: looped.map(|q| {
                let template = UdpTemplate::new(None, &ip, (from.1, to.1), label);
                (iface, q, template)
            }),
            template: UdpTemplate::new(l2, &ip, (from.1, to.1), label),
        }));
        Ok(Way::Ready)
    }

    /// Writes what the path leads to into the ring.
    fn emit(&mut self, cx: &mut Ctx<K>, out: Outgoing) -> Sent {
        let Some(path) = &self.path else {
            return Sent::not(UdpError::Invalid, out);
        };
        let mut full = None;
        let sent = path.emit(cx, out, &mut full);
        if let Some(at) = full {
            self.stalled(cx, at);
        }
        sent
    }

    /// There was no room: it is told when there are so many places in that ring.
    pub(super) fn stalled(&mut self, cx: &mut Ctx<K>, (txq, places): Full) {
        self.write.lower(ready::OUT);
        let id = self.id;
        cx.deferred.blocked.push((txq, Stalled { id, places }));
    }

    /// Keeps `out` until its neighbour's station is known.
    #[cold]
    pub(super) fn put_aside(&mut self, cx: &mut Ctx<K>, out: Outgoing) -> Sent {
        let len = out.data.len();
        let w = Waiting { out };
        let mut pinned: usize = self.waiting.iter().map(Waiting::pins).sum();
        while let Some(oldest) = self.waiting.front()
            && (self.waiting.len() >= WAITING || pinned + w.pins() > WAITING_BYTES)
        {
            let pins = oldest.pins();
            pinned -= pins;
            cx.charge(pins, 0);
            self.waiting.pop_front();
            cx.count(Count::UdpUnresolved, 1);
        }
        cx.charge(0, w.pins());
        self.waiting.push_back(w);
        Sent {
            taken: Ok(len),
            back: None,
        }
    }

    /// A neighbour's station is known now, or there is room in a ring: what waits goes on.
    pub fn go_on(&mut self, cx: &mut Ctx<K>) {
        let mut rest = core::mem::take(&mut self.waiting);
        while let Some(w) = rest.pop_front() {
            cx.charge(w.pins(), 0);
            if let Some(w) = self.place_waiting(cx, w) {
                // The ring is full: its device tells when there is room.
                cx.charge(0, w.pins());
                self.waiting.push_back(w);
                self.waiting.append(&mut rest);
                return;
            }
        }
        self.write.raise(ready::OUT, &mut cx.deferred.wakes);
    }

    /// Sends what has waited; what there is no room for yet.
    pub(super) fn place_waiting(&mut self, cx: &mut Ctx<K>, w: Waiting) -> Option<Waiting> {
        let Outgoing {
            to, from, segment, ..
        } = w.out;
        let shared = match &w.out.data {
            Payload::Shared(all) => Some(all.clone()),
            Payload::Buf(_) => None,
        };
        let len = w.out.data.len();
        let Sent { taken, back } = self.place(cx, w.out);
        let taken = match taken {
            Ok(n) if n < len => n,
            Err(UdpError::WouldBlock) => 0,
            done => {
                if done.is_err() {
                    cx.count(Count::UdpUnresolved, 1);
                }
                if let Some(buf) = back {
                    cx.pool.put(buf);
                }
                return None;
            }
        };
        let data = match (shared, back) {
            (Some(all), _) => Payload::Shared(all.slice(taken..)),
            (None, Some(mut buf)) => {
                buf.trim_front(taken);
                Payload::Buf(buf)
            }
            (None, None) => return None,
        };
        let out = Outgoing {
            to,
            from,
            data,
            segment,
        };
        Some(Waiting { out })
    }

    /// The neighbour is not there: what waits for one is lost.
    pub fn no_neighbour(&mut self, cx: &mut Ctx<K>) {
        let lost = core::mem::take(&mut self.waiting);
        cx.count(Count::UdpUnresolved, lost.len() as u64);
        let peer = self.remote;
        let mut mine = false;
        for w in lost {
            cx.charge(w.pins(), 0);
            mine |= peer.is_some() && w.out.to.or(peer) == peer;
        }
        if mine {
            self.fail(cx, UdpError::Failed(TcpError::HostUnreachable));
        }
    }
}

//! What [`super::client`] decides, done: messages and probes are sent, addresses with their routes come
//! and go.

use super::arp::{announcement, probe};
use super::client::{Do, Lease, Message};
use crate::count::Count;
use crate::ipv6::autoconf::Settled;
use crate::kind::Kind;
use crate::net::{Cidr, L2, Route};
use crate::own::Own;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering;
use perimeter_sync::Lock;
use perimeter_wire::dhcp::{CLIENT_PORT, DhcpReply, QUERY_LEN, SERVER_PORT};
use perimeter_wire::finish_udp;
use perimeter_wire::{ArpPacket, ETHERTYPE_IPV4, EtherHdr, Ipv4Hdr, MacAddr, PROTO_UDP, UdpHdr};

/// Octets of the headers before a message.
const HEADERS: usize = EtherHdr::LEN + 20 + UdpHdr::LEN;

/// A message as a frame.
fn framed(m: &[u8], stations: (MacAddr, MacAddr), ends: (Ipv4Addr, Ipv4Addr)) -> Vec<u8> {
    let mut out = vec![0; HEADERS + m.len()];
    let eth = EtherHdr {
        dst: stations.1,
        src: stations.0,
        ethertype: ETHERTYPE_IPV4,
    };
    let ip = Ipv4Hdr {
        src: ends.0,
        dst: ends.1,
        protocol: PROTO_UDP,
        ttl: 64,
        tos: 0,
        ident: 0,
        total_len: (out.len() - EtherHdr::LEN) as u16,
        header_len: 20,
        dont_fragment: false,
        more_fragments: false,
        frag_offset: 0,
    };
    let udp = UdpHdr {
        src_port: CLIENT_PORT,
        dst_port: SERVER_PORT,
        len: (UdpHdr::LEN + m.len()) as u16,
        check: 0,
    };
    let n = eth.emit(&mut out);
    let n = n + ip.emit(&mut out[n..]);
    udp.emit(&mut out[n..]);
    out[HEADERS..].copy_from_slice(m);
    finish_udp(ends.0.into(), ends.1.into(), &mut out[n..]);
    out
}

/// The routes that come with a lease: to its network, and by its gateways to everywhere.
fn routes(lease: &Lease) -> impl Iterator<Item = Route> + '_ {
    let iface = lease.iface;
    let near = Route {
        dst: lease.addr,
        iface,
        via: None,
    };
    let any = Cidr {
        addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: 0,
    };
    let far = lease.routers.iter().map(move |router| Route {
        dst: any,
        iface,
        via: Some(IpAddr::V4(*router)),
    });
    std::iter::once(near).chain(far)
}

impl<K: Kind> SharedState<K> {
    /// Does what clients have decided.
    pub(crate) fn lease(&self, own: &mut Own<K>, all: Vec<(u16, Do)>, settled: &mut Settled) {
        for (n, what) in all {
            let i = &self.ifaces[usize::from(n)];
            match what {
                Do::Send(message) => self.send_dhcp(own, n, &message),
                Do::Probe(ip) => {
                    self.send_arp(own, n, MacAddr::BROADCAST, &probe(i.caps.mac, ip));
                }
                Do::Take(lease) => {
                    i.addrs.lease(Some(lease.addr));
                    i.set_mtu4(lease.mtu);
                    routes(&lease).for_each(|r| self.routes.add(r));
                    self.net_moved();
                    self.count(own.lane, Count::Leases, 1);
                    if let IpAddr::V4(ip) = lease.addr.addr {
                        let says = announcement(i.caps.mac, ip);
                        self.send_arp(own, n, MacAddr::BROADCAST, &says);
                    }
                    // Its station will be wanted to renew the lease, or to give it back.
                    self.station(own, n, lease.server);
                }
                Do::Drop(lease) => {
                    i.addrs.lease(None);
                    i.set_mtu4(None);
                    routes(&lease).for_each(|r| self.routes.remove(&r));
                    self.net_moved();
                    self.count(own.lane, Count::LeasesLost, 1);
                    settled.lost.push(lease.addr.addr);
                }
            }
        }
        // With other routes or another MTU it is taken again at once.
        settled.lost.retain(|ip| !self.is_ours(*ip));
    }

    /// The station behind which `to` is on the link of interface `n`; asked for if it is not known.
    fn station(&self, own: &mut Own<K>, n: u16, to: Ipv4Addr) -> Option<MacAddr> {
        let now = own.now(&self.p);
        let found = self
            .routes
            .resolve_by(&self.ifaces, (to.into(), Some(n)), None, now)?;
        if let Some(ask) = found.ask {
            self.ask(own, n, ask);
        }
        match found.l2 {
            L2::Stations(_, station) => Some(station),
            _ => None,
        }
    }

    /// Sends a message; if it is for one server whose station is not known yet, that is asked for.
    fn send_dhcp(&self, own: &mut Own<K>, n: u16, m: &Message) {
        let mac = self.ifaces[usize::from(n)].caps.mac;
        let from = m.addr.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let (station, to) = match m.to {
            None => (MacAddr::BROADCAST, Ipv4Addr::BROADCAST),
            Some(to) => {
                let Some(station) = self.station(own, n, to) else {
                    let now = own.now(&self.p);
                    let mut auto = self.auto.lock();
                    let mine = auto.clients.iter_mut().find(|c| c.iface == n);
                    mine.into_iter().for_each(|c| c.unsent(now));
                    self.auto_at.store(auto.due().0, Ordering::Release);
                    return;
                };
                (station, to)
            }
        };
        let mut out = [0; QUERY_LEN];
        let len = {
            let auto = self.auto.lock();
            let Some(c) = auto.clients.iter().find(|c| c.iface == n) else {
                return;
            };
            m.query(&c.config, mac).emit(&mut out)
        };
        let frame = framed(&out[..len], (mac, station), (from, to));
        self.send_frame(own, n, &frame);
    }

    /// A datagram for the port of clients has come by interface `iface`, and no socket has it.
    #[cold]
    pub fn dhcp_received(&self, own: &mut Own<K>, iface: u16, message: &[u8]) {
        let now = own.now(&self.p);
        let mut auto = self.auto.lock();
        let Some(c) = auto.clients.iter_mut().find(|c| c.iface == iface) else {
            return;
        };
        if let Ok(reply) = DhcpReply::parse(message) {
            c.received(&reply, now);
        }
        let looks = auto.clients.iter().any(|c| c.probed().is_some());
        self.probing.store(looks, Ordering::Release);
        self.auto_at.store(auto.due().0, Ordering::Release);
    }

    /// Whether an ARP packet is about an address that is being looked at: somebody else has it, or
    /// wants it too (RFC 5227, section 2.1.1).
    pub(super) fn looks_at(&self, own: &mut Own<K>, iface: u16, p: &ArpPacket) -> bool {
        if !self.probing.load(Ordering::Acquire) {
            return false;
        }
        let now = own.now(&self.p);
        let mut auto = self.auto.lock();
        let mut mine = auto.clients.iter_mut().filter(|c| c.iface == iface);
        let wanted = match p.sender_ip.is_unspecified() {
            true => p.target_ip,
            false => p.sender_ip,
        };
        let Some(c) = mine.find(|c| c.probed() == Some(wanted)) else {
            return false;
        };
        c.conflict(now);
        self.auto_at.store(auto.due().0, Ordering::Release);
        drop(auto);
        self.count(own.lane, Count::ArpConflicts, 1);
        true
    }

    /// What servers have given to interfaces.
    pub fn leases(&self) -> Vec<Lease> {
        let auto = self.auto.lock();
        auto.clients
            .iter()
            .filter_map(|c| c.lease())
            .cloned()
            .collect()
    }

    /// Gives back what is to be given back, as the stack ends.
    pub fn release_leases(&self, own: &mut Own<K>) {
        let now = own.now(&self.p);
        let mut all = Vec::new();
        for c in &mut self.auto.lock().clients {
            let mut out = Vec::new();
            c.release(now, &mut out);
            all.extend(out.into_iter().map(|what| (c.iface, what)));
        }
        self.lease(own, all, &mut Settled::default());
    }
}

//! Which addresses are the stack's own, and which one goes with which way.

use super::SharedState;
use crate::kind::Kind;
use crate::net::{Accept, Cidr, is_host};
use core::net::IpAddr;

impl<K: Kind> SharedState<K> {
    /// The interface towards `remote` and the address to use there, `local` if one is given
    /// (RFC 1122, section 3.3.4.3: the address in the route's own prefix, else the first; to one of
    /// our own, that one). For a socket that is bound to `device`, if one is given, only what leaves
    /// by that interface is a route. `None`: there is no route, or none of those is a host's address.
    pub fn source(
        &self,
        remote: IpAddr,
        local: Option<IpAddr>,
        device: Option<u16>,
    ) -> Option<(u16, IpAddr)> {
        let hop = self.routes.hop_by((remote, device))?;
        if device.is_some_and(|n| n != hop.iface) {
            return None;
        }
        let iface = &self.ifaces[usize::from(hop.iface)];
        let all = |a: &Cidr| a.broadcast() == Some(remote);
        // Loopback addresses are hosts' on the way to ourselves, if the stack has them.
        let inside = hop.iface == self.loopback().0;
        if !(inside || is_host(remote)) || iface.addrs.any(all) {
            return None;
        }
        let addr = match local {
            Some(a) => {
                let ours = a.is_ipv4() == remote.is_ipv4() && self.may_bind(a);
                ours.then_some(a)?
            }
            None if inside => remote,
            None => match remote {
                IpAddr::V4(_) => {
                    let near = iface.addrs.iter().find(|a| a.contains(hop.next));
                    near.or(iface.addrs.first())?.addr
                }
                IpAddr::V6(dst) => {
                    let found = crate::ipv6::source::select(&self.v6, hop.iface, dst)?;
                    IpAddr::V6(found.addr)
                }
            },
        };
        Some((hop.iface, addr))
    }

    /// Whether a datagram to that address is for this stack.
    #[inline]
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(_) => self.ifaces.iter().any(|i| i.owns(ip)),
            IpAddr::V6(ip) => self.v6.owns(ip),
        }
    }

    /// Whether a socket may have that address: it is ours, or will be in a moment.
    pub fn may_bind(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(_) => self.is_ours(ip),
            IpAddr::V6(ip) => self.v6.find(ip).is_some(),
        }
    }

    /// The addresses of an interface, of both families; IPv6's with their zones, in the order in
    /// which they were added.
    pub fn addrs(&self, iface: u16) -> Vec<Cidr> {
        let v6 = self.v6.of(iface).map(|h| Cidr {
            addr: IpAddr::V6(h.addr),
            prefix: h.prefix,
        });
        let v4 = self.ifaces[usize::from(iface)].addrs.iter();
        v4.chain(v6).collect()
    }

    /// Whether a datagram to that address, which came by interface `iface`, is for this stack: it
    /// is one of its own, or the interface takes any.
    #[inline]
    pub fn takes(&self, iface: u16, ip: IpAddr) -> bool {
        self.is_ours(ip) || self.ifaces[usize::from(iface)].takes(ip)
    }

    /// Whether echo requests to that address, which came by interface `iface`, are answered.
    pub(crate) fn echoes(&self, iface: u16, ip: IpAddr) -> bool {
        let silent = Accept::Any { echo: false };
        self.ifaces[usize::from(iface)].accept != silent || self.is_ours(ip)
    }

    /// The interface that packets from `local` have to take, where that is not an address of ours:
    /// theirs, whose transmit queue is `txq`.
    #[inline]
    pub fn only_by(&self, local: IpAddr, txq: u16) -> Option<u16> {
        if !self.accepts_any || self.is_ours(local) {
            return None;
        }
        let n = self.ifaces.iter().position(|i| i.tx.contains(&txq))?;
        Some(n as u16)
    }
}

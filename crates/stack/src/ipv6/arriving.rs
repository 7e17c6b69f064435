//! Addresses of what arrives over IPv6: their zones, and whether it is for us.

use super::{is_host, zone_of};
use crate::count::Count;
use crate::kind::Kind;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv6Addr};
use perimeter_wire::FlowKey;
use perimeter_wire::ipv6::{is_link_local, with_zone, zone};

impl<K: Kind> SharedState<K> {
    /// The address of a datagram that came by interface `iface`, with its zone. `None`: it carries
    /// something where link-local addresses have zeros.
    #[inline]
    pub(super) fn arrived(&self, iface: u16, ip: Ipv6Addr) -> Option<Ipv6Addr> {
        match is_link_local(ip) {
            true => self.arrived_link_local(iface, ip),
            false => Some(ip),
        }
    }

    #[cold]
    fn arrived_link_local(&self, iface: u16, ip: Ipv6Addr) -> Option<Ipv6Addr> {
        if zone(ip) != 0 {
            return None;
        }
        if iface != self.loopback().0 {
            return Some(with_zone(ip, zone_of(iface)));
        }
        // What we send to ourselves is between our own addresses; the first that it may be.
        let own = self.v6.all().find(|h| with_zone(h.addr, 0) == ip)?;
        Some(own.addr)
    }

    /// Whether at a glance a flow that came by interface `iface` is between an address of ours and
    /// a host's, and neither has a zone: so for nearly every packet. `false` says nothing; what is
    /// then to be done, [`SharedState::unwelcome6`] does.
    #[inline(always)]
    pub(crate) fn plain6(&self, iface: u16, key: &FlowKey) -> bool {
        let (IpAddr::V6(local), IpAddr::V6(remote)) = (key.local, key.remote) else {
            return false;
        };
        is_host(remote)
            && !is_link_local(remote)
            && !is_link_local(local)
            && iface != self.loopback().0
            && self.v6.between(local, remote)
    }

    /// Gives the addresses of a flow that came by interface `iface` their zones. Why it is to be
    /// dropped: it is not for us, or from no host.
    #[inline]
    pub(crate) fn unwelcome6(&self, iface: u16, key: &mut FlowKey) -> Option<Count> {
        let (IpAddr::V6(local), IpAddr::V6(remote)) = (key.local, key.remote) else {
            return Some(Count::BadAddress);
        };
        let ends = self.arrived(iface, local).zip(self.arrived(iface, remote));
        let Some((local, remote)) = ends else {
            return Some(Count::BadAddress);
        };
        (key.local, key.remote) = (IpAddr::V6(local), IpAddr::V6(remote));
        match self.takes(iface, IpAddr::V6(local)) {
            true => self.wrong_source6(iface, remote),
            false => Some(Count::NotOurs),
        }
    }

    /// Why no host can have sent a datagram from `ip` to us by this interface; `None`: one can.
    #[inline]
    pub(crate) fn wrong_source6(&self, iface: u16, ip: Ipv6Addr) -> Option<Count> {
        let ours = self.v6.owns(ip);
        if ours || iface == self.loopback().0 {
            return (!ours || iface != self.loopback().0).then_some(Count::BadAddress);
        }
        if ip.is_multicast() {
            return Some(Count::BadAddress);
        }
        (!is_host(ip)).then_some(Count::Martian)
    }

    /// The ends of a datagram that came by interface `iface`, with their zones, and whether it is
    /// for one of our addresses or a group that we listen to; `Err`: why it is dropped.
    pub(crate) fn arrived6(
        &self,
        iface: u16,
        (src, dst): (Ipv6Addr, Ipv6Addr),
    ) -> Result<(Ipv6Addr, Ipv6Addr), Count> {
        let ends = self.arrived(iface, src).zip(self.arrived(iface, dst));
        let (src, dst) = ends.ok_or(Count::BadAddress)?;
        let ours = match dst.is_multicast() {
            true => self.listens6(iface, dst) || self.joined(iface, IpAddr::V6(dst)),
            false => self.takes(iface, IpAddr::V6(dst)),
        };
        if !ours {
            return Err(Count::NotOurs);
        }
        match self.wrong_source6(iface, src) {
            Some(why) => Err(why),
            None => Ok((src, dst)),
        }
    }

    /// Whether interface `iface` listens to a group: that of all nodes, and those of its addresses.
    pub(crate) fn listens6(&self, iface: u16, group: Ipv6Addr) -> bool {
        use perimeter_wire::ipv6::{ALL_NODES, solicited_node};
        let mut own = self.v6.of(iface);
        group == ALL_NODES || own.any(|h| solicited_node(h.addr) == group)
    }
}

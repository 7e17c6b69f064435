//! Addresses of what arrives over IPv4: who can have sent it.

use crate::count::Count;
use crate::kind::Kind;
use crate::net::{is_group, is_host};
use crate::shared::SharedState;
use core::net::IpAddr;

impl<K: Kind> SharedState<K> {
    /// Why no host can have sent a datagram from `ip` to us by this interface; `None`: one can. A host
    /// has no broadcast or multicast address, none of networks 0, 127 and 240/4, and none of our own:
    /// those come by the loopback, and nothing else does.
    pub(crate) fn wrong_source4(&self, iface: u16, ip: IpAddr) -> Option<Count> {
        let ours = self.ifaces.iter().any(|i| i.owns(ip));
        if iface == self.loopback().0 {
            return (!ours).then_some(Count::BadAddress);
        }
        let addrs = &self.ifaces[usize::from(iface)].addrs;
        let directed = || addrs.any(|a| a.broadcast() == Some(ip));
        if ours || is_group(ip) || directed() {
            return Some(Count::BadAddress);
        }
        (!is_host(ip)).then_some(Count::Martian)
    }
}

//! Reports of IGMP (RFC 3376): a host tells the routers of its link which groups it is in.

use crate::count::Count;
use crate::kind::Kind;
use crate::own::Own;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv4Addr};
use perimeter_wire::igmp::{self, IGMP_ROUTERS, group_mac_v4};
use perimeter_wire::mld::Record;
use perimeter_wire::{ETHERTYPE_IPV4, EtherHdr};

impl<K: Kind> SharedState<K> {
    /// Sends such a report by interface `iface`: which group, and whether it was joined or left.
    pub(crate) fn report_v4(&self, own: &mut Own<K>, iface: u16, group: (Record, Ipv4Addr)) {
        let i = &self.ifaces[usize::from(iface)];
        let ours = i.addrs.iter().find_map(|a| match a.addr {
            IpAddr::V4(a) => Some(a),
            IpAddr::V6(_) => None,
        });
        let src = ours.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let q = i.tx.start;
        let mut stage = self.tx[usize::from(q)].stage();
        let Some(mut d) = stage.push() else {
            return self.count(own.lane, Count::TxRingFull, 1);
        };
        let eth = EtherHdr {
            dst: group_mac_v4(IGMP_ROUTERS),
            src: i.caps.mac,
            ethertype: ETHERTYPE_IPV4,
        };
        let n = eth.emit(&mut d.hdr);
        d.hdr_len = (n + igmp::report(src, &[group], &mut d.hdr[n..])) as u8;
        drop(stage);
        self.count(own.lane, Count::GroupReports, 1);
        own.deferred.ring(q);
    }
}

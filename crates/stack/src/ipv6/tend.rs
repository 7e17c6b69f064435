//! What [`super::autoconf`] decides, done: probes and solicitations are sent, routes come and go, and
//! who waits for an address goes on.

use super::addrs::State;
use super::autoconf::{Act, Settled};
use crate::count::Count;
use crate::id::SockId;
use crate::kind::Kind;
use crate::own::Own;
use crate::shared::SharedState;
use core::net::Ipv6Addr;
use core::sync::atomic::Ordering;
use perimeter_sync::Lock;
use perimeter_wire::Ndp;
use perimeter_wire::ipv6::{ALL_ROUTERS, group_mac, is_link_local, solicited_node, without_zone};
use perimeter_wire::mld::Record;
use perimeter_wire::ndp::RouterAdvert;

impl<K: Kind> SharedState<K> {
    /// Sees to addresses: what is due is done.
    pub(crate) fn tend_addresses(&self, own: &mut Own<K>) -> Settled {
        let now = own.now(&self.p);
        let (mut settled, mut acts) = (Settled::default(), Vec::new());
        if self.auto_at.load(Ordering::Acquire) > now.0 {
            return settled;
        }
        let mut leases = Vec::new();
        {
            let mut auto = self.auto.lock();
            auto.run(&self.v6, now, &mut settled, &mut acts);
            for c in &mut auto.clients {
                let mut out = Vec::new();
                c.run(now, &mut out);
                leases.extend(out.into_iter().map(|what| (c.iface, what)));
            }
            if self.probing.load(Ordering::Relaxed) {
                let looks = auto.clients.iter().any(|c| c.probed().is_some());
                self.probing.store(looks, Ordering::Release);
            }
            self.auto_at.store(auto.due().0, Ordering::Release);
        }
        self.act(own, acts);
        self.lease(own, leases, &mut settled);
        settled
    }

    fn act(&self, own: &mut Own<K>, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Probe(n, target, nonce) => {
                    let group = solicited_node(target);
                    let ends = (Ipv6Addr::UNSPECIFIED, group);
                    let msg = Ndp::NeighborSolicitation {
                        target: without_zone(target),
                        source: None,
                        nonce: Some(nonce),
                    };
                    self.send_ndp(own, n, group_mac(group), ends, &msg);
                }
                Act::Join(n, ip) => self.report_group(own, n, (Record::Joins, solicited_node(ip))),
                Act::Leave(n, ip) => {
                    let group = solicited_node(ip);
                    if !self.listens6(n, group) {
                        self.report_group(own, n, (Record::Leaves, group));
                    }
                }
                Act::Solicit(n, from, mac) => {
                    let msg = Ndp::RouterSolicitation { source: Some(mac) };
                    let ends = (from, ALL_ROUTERS);
                    self.send_ndp(own, n, group_mac(ALL_ROUTERS), ends, &msg);
                }
                Act::Add(route) => {
                    self.routes.add(route);
                    self.net_moved();
                }
                Act::Remove(route) => {
                    self.routes.remove(&route);
                    self.net_moved();
                }
                Act::Moved => self.net_moved(),
            }
        }
    }

    /// A router `src` of interface `iface` has advertised itself and its link.
    pub(crate) fn router_advertised(
        &self,
        own: &mut Own<K>,
        iface: u16,
        src: Ipv6Addr,
        ra: &RouterAdvert,
    ) {
        let now = own.now(&self.p);
        let (mut acts, i) = (Vec::new(), &self.ifaces[usize::from(iface)]);
        {
            let mut auto = self.auto.lock();
            let auto = &mut *auto;
            let Some(link) = auto.links.get_mut(usize::from(iface)) else {
                return;
            };
            if !link.autoconf {
                return;
            }
            if ra.lifetime > 0 {
                link.solicitations = 0;
            }
            let random = &mut auto.random;
            if link.taken.advertised(&i.variables, ra, now, random) {
                acts.push(Act::Moved);
            }
            acts.extend(link.advertised(iface, src, ra.lifetime, now));
            for prefix in ra.prefixes() {
                if prefix.preferred > prefix.valid || is_link_local(prefix.prefix) {
                    continue;
                }
                if prefix.on_link {
                    let link = &mut auto.links[usize::from(iface)];
                    acts.extend(link.on_link(iface, prefix, now));
                }
                if prefix.autonomous && prefix.len == 64 {
                    auto.autonomous(&self.v6, iface, prefix, now);
                }
            }
            self.auto_at.store(auto.due().0, Ordering::Release);
        }
        if let Some(mtu) = ra.mtu {
            i.set_mtu6(mtu);
        }
        self.count(own.lane, Count::RouterAdverts, 1);
        self.act(own, acts);
    }

    /// Whether nobody sends from that address yet: `waiter` is told when it can be.
    #[cold]
    pub(crate) fn is_tentative(&self, ip: Ipv6Addr, waiter: Option<SockId>) -> bool {
        let held = self.v6.find(ip);
        if held.is_none_or(|h| h.state != State::Tentative) {
            return false;
        }
        let mut auto = self.auto.lock();
        let mut probes = auto.links.iter_mut().flat_map(|l| &mut l.probes);
        let Some(probe) = probes.find(|p| p.held.addr == ip) else {
            // It has just become one.
            return self
                .v6
                .find(ip)
                .is_some_and(|h| h.state == State::Tentative);
        };
        const WAITING: usize = 65_536;
        if let Some(id) = waiter
            && probe.waiting.len() < WAITING
            && probe.waiting.last() != Some(&id)
        {
            probe.waiting.push(id);
        }
        true
    }

    /// Somebody else on the link of `iface` has or wants the address `ip`, which we are about to
    /// take: it is theirs. `nonce` is what a probe says of itself. Yields who waited for it.
    pub(crate) fn duplicate(
        &self,
        own: &mut Own<K>,
        ip: Ipv6Addr,
        nonce: Option<[u8; 6]>,
    ) -> Vec<SockId> {
        let now = own.now(&self.p);
        let mut acts = Vec::new();
        let failed = {
            let mut auto = self.auto.lock();
            let failed = auto.duplicate(&self.v6, ip, nonce, now, &mut acts);
            self.auto_at.store(auto.due().0, Ordering::Release);
            failed
        };
        if failed.is_some() {
            self.count(own.lane, Count::Duplicates, 1);
        }
        self.act(own, acts);
        failed.unwrap_or_default()
    }

    /// Addresses that were to be ours and that others turned out to have, with their interfaces.
    pub fn duplicates(&self) -> Vec<(u16, Ipv6Addr)> {
        self.auto.lock().duplicates.clone()
    }
}

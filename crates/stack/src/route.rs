//! Routes and neighbours, as locks see them: a table that all share, and in it entries with a lock
//! each.
//!
//! An entry is entered while the table is held, which is then let go (lock coupling: Willmann et
//! al., section 3.1, "route hashtable" and "route"). So whoever has the table and finds no holder
//! of an entry knows that nobody is on the way to it, and may give the entry to another neighbour.

use crate::id::SockId;
use crate::kind::{Kind, Lk, lock};
use crate::net::{Hop, Iface, L2, Route, request};
use crate::places::Places;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_sync::{Lock, LockClass, LockStats};
use perimeter_wire::{ArpPacket, MacAddr};
use std::collections::HashMap;

/// How many neighbours are remembered; beyond, the longest unconfirmed goes.
const NEIGHBOURS: usize = 1024;
/// How many connections may wait for one neighbour.
const WAITING: usize = 65_536;
/// How long an answer is believed (RFC 1122, section 2.3.2.1 asks for of the order of a minute;
/// traffic from the neighbour confirms it).
const FRESH: u64 = 60_000_000_000;
/// Time between requests for the same neighbour (RFC 1122, section 2.3.2.1: at most one a
/// second).
pub const ASK_AGAIN: u64 = 1_000_000_000;
/// Unanswered requests after which those who wait are told that the neighbour is not there: as
/// many as a SYN has attempts by default and one more, so that a bad wire alone does not do it.
const ASK_LIMIT: u32 = 8;

/// One route: that of a prefix, or the one that was made from it for a neighbour.
#[derive(Default)]
struct Entry {
    mac: Option<MacAddr>,
    confirmed: Time,
    asked: Time,
    /// Requests since the last answer.
    tries: u32,
    waiting: Vec<SockId>,
    /// Segments that were routed one by one.
    segments: u64,
}

/// Which entry is whose.
struct Table {
    /// Routes of prefixes, the longest first; their entries have the same numbers.
    routes: Vec<Route>,
    /// Entries of neighbours.
    neighbours: HashMap<(u16, IpAddr), u32>,
    /// Entries that belong to no neighbour any more.
    free: Vec<u32>,
}

impl Table {
    fn find(&self, dst: IpAddr) -> Option<(u32, Hop)> {
        let n = self.routes.iter().position(|r| r.dst.contains(dst))?;
        let hop = Hop {
            iface: self.routes[n].iface,
            next: self.routes[n].via.unwrap_or(dst),
        };
        Some((n as u32, hop))
    }
}

type Held<'a, K, T> = <Lk<K, T> as Lock<T>>::Guard<'a>;

/// Routes and neighbours. A connection looks here once and keeps a header template until the
/// generation moves; or, under organizations that say so, for each segment.
pub struct Routes<K: Kind> {
    p: K::P,
    table: Lk<K, Table>,
    entries: Places<Lk<K, Entry>>,
    /// When a request is due again, ns. Lowered with the entry held that is due, raised with the
    /// table held after a look at all entries.
    ask_at: AtomicU64,
}

/// What an attempt to resolve a destination yields.
pub struct Resolved {
    /// Where it is.
    pub hop: Hop,
    /// The station there.
    pub l2: L2,
    /// A request to be sent on the hop's interface.
    pub ask: Option<ArpPacket>,
}

impl<K: Kind> Routes<K> {
    /// No neighbours; the given routes, in any order.
    pub fn new(p: &K::P, mut routes: Vec<Route>) -> Routes<K> {
        routes.sort_by_key(|r| core::cmp::Reverse(r.dst.prefix));
        let table = Table {
            routes,
            neighbours: HashMap::new(),
            free: Vec::new(),
        };
        Routes {
            p: p.clone(),
            table: lock::<K, _>(p, LockClass::RouteHashtable, table),
            entries: Places::default(),
            ask_at: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// The next hop towards `dst`.
    pub fn hop(&self, dst: IpAddr) -> Option<Hop> {
        Some(self.table.lock().find(dst)?.1)
    }

    /// Enters an entry. The table is held.
    fn enter(&self, n: u32) -> Held<'_, K, Entry> {
        let make = || lock::<K, _>(&self.p, LockClass::Route, Entry::default());
        let entry = self.entries.get_or_make(n, make);
        entry.expect("routes and neighbours are few").lock()
    }

    /// Enters the entry of a neighbour, made if there is none. The table is `table`.
    fn neighbour(&self, table: &mut Table, at: (u16, IpAddr), now: Time) -> Held<'_, K, Entry> {
        if let Some(&n) = table.neighbours.get(&at) {
            return self.enter(n);
        }
        if table.neighbours.len() >= NEIGHBOURS {
            self.forget_one(table);
        }
        let fresh = table.routes.len() + table.neighbours.len();
        let n = table.free.pop().unwrap_or(fresh as u32);
        table.neighbours.insert(at, n);
        let mut entry = self.enter(n);
        *entry = Entry {
            confirmed: now,
            ..Entry::default()
        };
        entry
    }

    /// The neighbour confirmed longest ago goes, those without a waiter first.
    fn forget_one(&self, table: &mut Table) {
        let rank = |n: u32| {
            let e = self.enter(n);
            (!e.waiting.is_empty(), e.mac.is_some(), e.confirmed)
        };
        let oldest = table.neighbours.iter().min_by_key(|(_, n)| rank(**n));
        if let Some((&at, &n)) = oldest {
            table.neighbours.remove(&at);
            table.free.push(n);
        }
    }

    /// The station behind the hop towards `dst`; `None`: no route. When the station is not known,
    /// `waiter` is remembered, and the ARP request to send is returned if one is due.
    pub fn resolve(
        &self,
        ifaces: &[Iface],
        dst: IpAddr,
        waiter: Option<SockId>,
        now: Time,
    ) -> Option<Resolved> {
        let mut table = self.table.lock();
        let (n, hop) = table.find(dst)?;
        let iface = &ifaces[usize::from(hop.iface)];
        let resolved = |l2, ask| Some(Resolved { hop, l2, ask });
        if iface.caps.medium == Medium::Ip {
            let _route = self.enter(n);
            drop(table);
            return resolved(L2::None, None);
        }
        let IpAddr::V4(target_ip) = hop.next else {
            return resolved(L2::Unresolved, None);
        };
        let mut e = self.neighbour(&mut table, (hop.iface, hop.next), now);
        drop(table);
        let stale = e.mac.is_none() || now.nanos_since(e.confirmed) > FRESH;
        let mut ask = None;
        if stale && (e.asked == Time::ZERO || now.nanos_since(e.asked) >= ASK_AGAIN) {
            e.asked = now.max(Time(1));
            e.tries += 1;
            ask = request(iface, target_ip);
            self.ask_at
                .fetch_min(now.plus(ASK_AGAIN).0, Ordering::Relaxed);
        }
        if let Some(mac) = e.mac {
            return resolved(L2::Stations(iface.caps.mac, mac), ask);
        }
        if let Some(id) = waiter
            && e.waiting.len() < WAITING
            && e.waiting.last() != Some(&id)
        {
            e.waiting.push(id);
        }
        resolved(L2::Unresolved, ask)
    }

    /// Routes one segment: table, then entry while the table is held. Yields the neighbour's
    /// station if there is one and it is known.
    pub fn segment(&self, dst: IpAddr) -> Option<MacAddr> {
        let table = self.table.lock();
        let (n, hop) = table.find(dst)?;
        let n = table
            .neighbours
            .get(&(hop.iface, hop.next))
            .map_or(n, |n| *n);
        let mut e = self.enter(n);
        drop(table);
        e.segments += 1;
        e.mac
    }

    /// Segments routed one by one towards `dst` since its entry was made.
    pub fn segments(&self, dst: IpAddr) -> u64 {
        let table = self.table.lock();
        let Some((n, hop)) = table.find(dst) else {
            return 0;
        };
        let neighbour = table.neighbours.get(&(hop.iface, hop.next));
        self.enter(neighbour.copied().unwrap_or(n)).segments
    }

    /// A neighbour spoke: remembers its station if it was asked for, or if `learn` says that
    /// it addressed us (RFC 826). Returns who waited for it, and whether the station is new.
    pub fn heard(
        &self,
        iface: u16,
        ip: Ipv4Addr,
        mac: MacAddr,
        learn: bool,
        now: Time,
    ) -> (Vec<SockId>, bool) {
        let at = (iface, IpAddr::V4(ip));
        let mut table = self.table.lock();
        if !learn && !table.neighbours.contains_key(&at) {
            return (Vec::new(), false);
        }
        let mut e = self.neighbour(&mut table, at, now);
        drop(table);
        let changed = e.mac.is_some_and(|m| m != mac);
        e.mac = Some(mac);
        e.confirmed = now;
        e.tries = 0;
        (core::mem::take(&mut e.waiting), changed)
    }

    /// When [`Routes::retry`] has something to do: not later than that.
    #[inline]
    pub fn ask_at(&self) -> Time {
        Time(self.ask_at.load(Ordering::Relaxed))
    }

    /// ARP requests that are due again for neighbours that somebody waits for go to `out`, with
    /// their interfaces, and who has waited in vain to `failed`.
    pub fn retry(
        &self,
        ifaces: &[Iface],
        now: Time,
        out: &mut Vec<(u16, ArpPacket)>,
        failed: &mut Vec<SockId>,
    ) {
        let table = self.table.lock();
        let mut next = Time::NEVER;
        for ((iface, ip), n) in &table.neighbours {
            let mut e = self.enter(*n);
            if e.mac.is_some() || e.waiting.is_empty() {
                continue;
            }
            if now.nanos_since(e.asked) >= ASK_AGAIN {
                if e.tries >= ASK_LIMIT {
                    e.tries = 0;
                    failed.append(&mut e.waiting);
                    continue;
                }
                e.asked = now.max(Time(1));
                e.tries += 1;
                if let IpAddr::V4(ip) = ip
                    && let Some(p) = request(&ifaces[usize::from(*iface)], *ip)
                {
                    out.push((*iface, p));
                }
            }
            next = next.min(e.asked.plus(ASK_AGAIN));
        }
        self.ask_at.store(next.0, Ordering::Relaxed);
    }

    /// Lock counts, by class.
    pub fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::RouteHashtable, self.table.stats());
        let entries = {
            let table = self.table.lock();
            table.routes.len() + table.neighbours.len() + table.free.len()
        };
        for e in (0..entries as u32).filter_map(|n| self.entries.get(n)) {
            add(LockClass::Route, e.stats());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use crate::net::Cidr;
    use perimeter_link::Capabilities;
    use perimeter_sync::Native;

    fn cidr(s: &str) -> Cidr {
        s.parse().unwrap()
    }

    fn route(dst: &str, iface: u16, via: Option<IpAddr>) -> Route {
        let dst = cidr(dst);
        Route { dst, iface, via }
    }

    fn iface(medium: Medium) -> Iface {
        let caps = Capabilities {
            name: String::new(),
            medium,
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            tx_checksum: true,
        };
        Iface {
            caps,
            addrs: vec![cidr("10.0.0.1/16")],
            rx: 0..1,
            tx: 0..1,
        }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let gateway = "10.0.0.254".parse().unwrap();
        let routes = Routes::<OneThread>::new(
            &Native::default(),
            vec![
                route("0.0.0.0/0", 0, Some(gateway)),
                route("10.0.0.0/24", 0, None),
                route("10.0.0.128/25", 1, None),
            ],
        );
        let hop = |s: &str| routes.hop(s.parse().unwrap()).unwrap();
        let next = "10.0.0.1".parse().unwrap();
        assert_eq!(hop("10.0.0.1"), Hop { iface: 0, next });
        assert_eq!(hop("10.0.0.130").iface, 1);
        assert_eq!(hop("9.9.9.9").next, gateway);
    }

    #[test]
    fn neighbours_are_bounded_and_the_oldest_goes() {
        let routes =
            Routes::<OneThread>::new(&Native::default(), vec![route("10.0.0.0/16", 0, None)]);
        let ifaces = [iface(Medium::Ethernet)];
        let at = |n: usize| Ipv4Addr::new(10, 0, (n >> 8) as u8 + 1, n as u8);
        let mac = |n: usize| MacAddr([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
        for n in 0..NEIGHBOURS + 10 {
            let now = Time(1_000_000 + n as u64);
            routes.heard(0, at(n), mac(n), true, now);
            assert_eq!(routes.segment(at(n).into()), Some(mac(n)));
        }
        for n in 0..NEIGHBOURS + 10 {
            let known = routes.segment(at(n).into());
            assert_eq!(known, (n >= 10).then(|| mac(n)), "{n}");
        }
        assert_eq!(routes.segments(at(500).into()), 2);
        // The first ten were routed by the prefix's own entry.
        assert_eq!(routes.segments(at(3).into()), 10);
        let now = Time(2_000_000);
        let r = routes.resolve(&ifaces, at(500).into(), None, now).unwrap();
        assert_eq!(r.l2, L2::Stations(ifaces[0].caps.mac, mac(500)));
        let r = routes.resolve(&ifaces, at(3).into(), None, now).unwrap();
        assert!(r.l2 == L2::Unresolved && r.ask.is_some());
        assert_eq!(routes.ask_at(), now.plus(ASK_AGAIN));
    }

    #[test]
    fn who_waits_in_vain_is_told() {
        let routes =
            Routes::<OneThread>::new(&Native::default(), vec![route("10.0.0.0/16", 0, None)]);
        let ifaces = [iface(Medium::Ethernet)];
        let (dst, id) = ("10.0.9.9".parse().unwrap(), SockId::conn(0, 7, 1));
        let mut now = Time(5);
        let r = routes.resolve(&ifaces, dst, Some(id), now).unwrap();
        assert!(r.ask.is_some());
        let (mut out, mut failed) = (Vec::new(), Vec::new());
        for n in 1..ASK_LIMIT as usize {
            now = now.plus(ASK_AGAIN);
            assert_eq!(routes.ask_at(), now);
            routes.retry(&ifaces, now, &mut out, &mut failed);
            assert_eq!((out.len(), failed.len()), (n, 0));
        }
        now = now.plus(ASK_AGAIN);
        routes.retry(&ifaces, now, &mut out, &mut failed);
        assert_eq!(failed, [id]);
        assert_eq!(routes.ask_at(), Time::NEVER);
    }

    #[test]
    fn a_device_without_link_layer_needs_no_neighbour() {
        let routes =
            Routes::<OneThread>::new(&Native::default(), vec![route("10.0.0.0/16", 0, None)]);
        let dst = "10.0.9.9".parse().unwrap();
        let ifaces = [iface(Medium::Ip)];
        let r = routes.resolve(&ifaces, dst, None, Time(5)).unwrap();
        assert!(r.l2 == L2::None && r.ask.is_none());
        assert_eq!((routes.segment(dst), routes.segments(dst)), (None, 1));
    }
}

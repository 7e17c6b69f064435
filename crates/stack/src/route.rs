//! Routes and neighbours, as locks see them: a table that all share, and in it entries with a lock
//! each.
//!
//! An entry is entered while the table is held, which is then let go (lock coupling: Willmann et
//! al., section 3.1, "route hashtable" and "route"). So whoever has the table and finds no holder
//! of an entry knows that nobody is on the way to it, and may give the entry to another neighbour.

mod redirected;
mod redirects;
mod table;

use crate::id::SockId;
use crate::ipv6::addrs::Addresses;
use crate::kind::{Kind, Lk, lock};
use crate::limit::Bucket;
pub use crate::neighbour::ASK_AGAIN;
use crate::neighbour::{Entry, Kin, Word};
use crate::net::{Addrs, Hop, Iface, L2, Route};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_sync::places::Places;
use perimeter_sync::{Lock, LockClass, LockStats};
use perimeter_wire::MacAddr;
use perimeter_wire::ipv6::is_link_local;
use std::sync::Arc;
use table::Table;

pub use table::To;

/// How many connections may wait for one neighbour.
const WAITING: usize = 65_536;

type Held<'a, K, T> = <Lk<K, T> as Lock<T>>::Guard<'a>;

/// Routes and neighbours. A connection looks here once and keeps a header template until the
/// generation moves; or, under organizations that say so, for each segment.
pub struct Routes<K: Kind> {
    p: K::P,
    table: Lk<K, Table>,
    entries: Places<Lk<K, Entry>>,
    /// The stack's own IPv4 addresses, which the interface `loopback` leads to; so it does to its
    /// own of IPv6.
    own: Vec<IpAddr>,
    /// Those of interfaces that get one from a server.
    leased: Vec<Arc<Addrs>>,
    own6: Arc<Addresses>,
    loopback: u16,
    /// When a request is due again, ns. Lowered with the entry held that is due, raised with the
    /// table held after a look at all entries.
    ask_at: AtomicU64,
}

/// The station to ask, or all, and the address that is asked for.
pub type Ask = (MacAddr, IpAddr);

/// What an attempt to resolve a destination yields.
pub struct Resolved {
    /// Where it is.
    pub hop: Hop,
    /// The station there.
    pub l2: L2,
    /// A request to be sent on the hop's interface.
    pub ask: Option<Ask>,
    /// The station was not heard for long: it is asked from then on, unless somebody has heard of
    /// what was sent there (`Routes::confirm`).
    pub delayed: Option<Time>,
}

/// What a neighbour's word did.
#[derive(Default)]
pub struct Heard {
    /// Who waited for it.
    pub waiting: Vec<SockId>,
    /// The station is another than before, and connections may know the old one.
    pub changed: bool,
    /// It was not believed: another station is known, which is asked first.
    pub doubted: bool,
    /// The request for that, if one is due.
    pub ask: Option<Ask>,
}

impl<K: Kind> Routes<K> {
    /// No neighbours; the given routes, in any order. What goes to one of `own` takes the
    /// interface `loopback`.
    pub fn new(
        p: &K::P,
        routes: Vec<Route>,
        (own, leased, own6): (Vec<IpAddr>, Vec<Arc<Addrs>>, Arc<Addresses>),
        loopback: u16,
    ) -> Routes<K> {
        Routes {
            p: p.clone(),
            table: lock::<K, _>(p, LockClass::RouteHashtable, Table::new(routes)),
            entries: Places::default(),
            own,
            leased,
            own6,
            loopback,
            ask_at: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// The hop to one of our own addresses.
    fn to_self(&self, dst: IpAddr) -> Option<Hop> {
        let own = match dst {
            IpAddr::V4(_) => self.own.contains(&dst) || self.is_leased(dst),
            // Tentative ones too: what goes there waits until it is ours, and never leaves.
            IpAddr::V6(dst) => self.own6.find(dst).is_some(),
        };
        own.then_some(Hop {
            iface: self.loopback,
            next: dst,
        })
    }

    fn is_leased(&self, dst: IpAddr) -> bool {
        let mut all = self.leased.iter().filter_map(|a| a.leased());
        all.any(|a| a.addr == dst)
    }

    /// The next hop towards `dst`.
    pub fn hop(&self, dst: IpAddr) -> Option<Hop> {
        self.hop_by((dst, None))
    }

    /// As [`Routes::hop`], by one interface only if it says so; to our own addresses by the loopback
    /// all the same.
    pub fn hop_by(&self, to: To) -> Option<Hop> {
        self.to_self(to.0)
            .or_else(|| Some(self.table.lock().find(to)?.1))
    }

    /// Enters an entry. The table is held.
    fn enter(&self, n: u32) -> Held<'_, K, Entry> {
        let make = || lock::<K, _>(&self.p, LockClass::Route, Entry::default());
        let entry = self.entries.get_or_make(n, make);
        entry.expect("routes and neighbours are few").lock()
    }

    /// Makes an entry for a neighbour that has none, and enters it. The table is `table`.
    fn make(&self, table: &mut Table, at: (u16, IpAddr), kin: Kin) -> (Held<'_, K, Entry>, Kin) {
        let (slot, kin) = table.add(at, kin);
        let mut entry = self.enter(table.entry(slot));
        *entry = Entry::default();
        (entry, kin)
    }

    /// The request for a neighbour whose answer is wanted, if one may go out now; and the next one
    /// is seen to. The table and the entry are held.
    fn ask(
        &self,
        requests: &mut Bucket,
        e: &mut Entry,
        (iface, ip): (&Iface, IpAddr),
        now: Time,
    ) -> Option<Ask> {
        // Who asks says from which address.
        let able = match ip {
            IpAddr::V4(_) => iface.addrs.first().is_some(),
            IpAddr::V6(_) => self.own6.of(iface.number).next().is_some(),
        };
        let pace = iface.pace(ip);
        let ask = (able && e.due(now, pace) && requests.take(now)).then(|| (e.ask(now), ip));
        let at = e.due_at(pace).max(now.plus(1));
        self.ask_at.fetch_min(at.0, Ordering::Relaxed);
        ask
    }

    /// The station behind the hop towards `dst`; `None`: no route. When the station is not known,
    /// `waiter` is remembered, and the request to send is returned if one is due.
    pub fn resolve(
        &self,
        ifaces: &[Iface],
        dst: IpAddr,
        waiter: Option<SockId>,
        now: Time,
    ) -> Option<Resolved> {
        self.resolve_by(ifaces, (dst, None), waiter, now)
    }

    /// As [`Routes::resolve`], by one interface only if it says so.
    pub fn resolve_by(
        &self,
        ifaces: &[Iface],
        to: To,
        waiter: Option<SockId>,
        now: Time,
    ) -> Option<Resolved> {
        let resolved = |hop, l2, (ask, delayed)| {
            let all = Resolved {
                hop,
                l2,
                ask,
                delayed,
            };
            Some(all)
        };
        if let Some(hop) = self.to_self(to.0) {
            return resolved(hop, L2::None, (None, None));
        }
        let mut table = self.table.lock();
        let (n, hop) = table.find(to)?;
        let iface = &ifaces[usize::from(hop.iface)];
        if iface.caps.medium == Medium::Ip {
            let _route = self.enter(n);
            drop(table);
            return resolved(hop, L2::None, (None, None));
        }
        let at = (hop.iface, hop.next);
        let mut e = match table.book.find(at) {
            Some(slot) => {
                match table.book.kin(slot) {
                    Kin::Heard | Kin::Known => table.book.touch(slot, Kin::Known),
                    Kin::Asked | Kin::Gateway => {}
                }
                self.enter(table.entry(slot))
            }
            None => self.make(&mut table, at, Kin::Asked).0,
        };
        let mut ask = None;
        if e.used(now, iface.pace(hop.next)) {
            ask = self.ask(&mut table.requests, &mut e, (iface, hop.next), now);
        }
        drop(table);
        let delayed = e.delayed();
        if let Some(until) = delayed {
            self.ask_at.fetch_min(until.0, Ordering::Relaxed);
        }
        if let Some(mac) = e.mac {
            return resolved(hop, L2::Stations(iface.caps.mac, mac), (ask, delayed));
        }
        if let Some(id) = waiter
            && e.waiting.len() < WAITING
            && e.waiting.last() != Some(&id)
        {
            e.waiting.push(id);
        }
        resolved(hop, L2::Unresolved, (ask, None))
    }

    /// The next hop towards `dst`, and its station if that is known: for answers to strangers, who
    /// make no entries and are not asked for.
    pub fn known(&self, dst: IpAddr) -> Option<(Hop, Option<MacAddr>)> {
        self.known_by((dst, None))
    }

    /// As [`Routes::known`], by one interface only if it says so.
    pub fn known_by(&self, to: To) -> Option<(Hop, Option<MacAddr>)> {
        if let Some(hop) = self.to_self(to.0) {
            return Some((hop, None));
        }
        let table = self.table.lock();
        let (n, hop) = table.find(to)?;
        let slot = table.book.find((hop.iface, hop.next));
        let n = slot.map_or(n, |slot| table.entry(slot));
        let e = self.enter(n);
        drop(table);
        Some((hop, e.mac))
    }

    /// Whether `ip` is a neighbour's address on interface `iface`.
    pub(crate) fn on_link(&self, iface: u16, ip: IpAddr) -> bool {
        if let IpAddr::V6(ip) = ip
            && is_link_local(ip)
        {
            return true;
        }
        let table = self.table.lock();
        let mut here = table.routes.iter().filter(|r| r.iface == iface);
        here.any(|r| r.via.is_none() && r.dst.contains(ip)) || table.redirects.on_link((iface, ip))
    }

    /// Routes one segment: table, then entry while the table is held. Yields the neighbour's
    /// station if there is one and it is known.
    #[inline(always)]
    pub fn segment(&self, to: To) -> Option<MacAddr> {
        let mut table = self.table.lock();
        let n = table.towards_again(to)?;
        let mut e = self.enter(n);
        drop(table);
        e.segments += 1;
        e.mac
    }

    /// Segments routed one by one towards `dst` since its entry was made.
    pub fn segments(&self, dst: IpAddr) -> u64 {
        let table = self.table.lock();
        match table.towards((dst, None)) {
            Some(n) => self.enter(n).segments,
            None => 0,
        }
    }

    /// A neighbour spoke on interface `iface`, which is number `n`: remembers its station if it was
    /// asked for, or if `learn` says that it addressed us (RFC 826). Where another station is known
    /// and in use, that one is asked before this one is believed.
    pub fn heard(
        &self,
        (n, iface): (u16, &Iface),
        ip: IpAddr,
        mac: MacAddr,
        learn: bool,
        now: Time,
    ) -> Heard {
        let at = (n, ip);
        let mut table = self.table.lock();
        let (mut e, kin) = match table.book.find(at) {
            Some(slot) => {
                let kin = table.book.kin(slot);
                if kin == Kin::Asked {
                    table.book.touch(slot, Kin::Known);
                }
                (self.enter(table.entry(slot)), kin)
            }
            None if learn => self.make(&mut table, at, Kin::Heard),
            None => return Heard::default(),
        };
        let word = e.claimed(mac, kin != Kin::Heard, now);
        let mut heard = Heard::default();
        match word {
            Word::Believed(changed) => {
                heard.changed = changed && kin != Kin::Heard;
                heard.waiting = core::mem::take(&mut e.waiting);
                drop(e);
                heard.changed |= kin == Kin::Gateway && table.note(at, false);
                if !table.redirects.is_empty() {
                    heard.changed |= table.redirects_answered(at);
                }
            }
            Word::Doubted => {
                heard.doubted = true;
                heard.ask = self.ask(&mut table.requests, &mut e, (iface, ip), now);
            }
        }
        heard
    }

    /// When [`Routes::retry`] has something to do: not later than that.
    #[inline]
    pub fn ask_at(&self) -> Time {
        Time(self.ask_at.load(Ordering::Relaxed))
    }

    /// Requests that are due again, for neighbours that somebody waits for or that are in
    /// doubt, go to `out`, with their interfaces, and who has waited in vain to `failed`. Neighbours
    /// that were known and do not answer are forgotten (RFC 4861, section 7.3.3); how many, and
    /// whether something goes another way from now on.
    pub fn retry(
        &self,
        ifaces: &[Iface],
        now: Time,
        out: &mut Vec<(u16, Ask)>,
        failed: &mut Vec<SockId>,
    ) -> (u64, bool) {
        let mut table = self.table.lock();
        let mut moved = table.redirects_expire(now);
        let Table {
            most,
            book,
            requests,
            ..
        } = &mut *table;
        let (mut lost, mut down) = (0, Vec::new());
        self.ask_at.store(Time::NEVER.0, Ordering::Relaxed);
        for ((iface, ip), slot) in book.each() {
            let mut e = self.enter(*most + slot);
            if !e.wanted(now) {
                if let Some(until) = e.delayed() {
                    self.ask_at.fetch_min(until.0, Ordering::Relaxed);
                }
                continue;
            }
            let to = (&ifaces[usize::from(iface)], ip);
            if e.due(now, to.0.pace(ip)) && e.give_up() {
                failed.append(&mut e.waiting);
                lost += u64::from(e.mac.take().is_some());
                if book.kin(slot) == Kin::Gateway {
                    down.push((iface, ip));
                }
                continue;
            }
            let ask = self.ask(requests, &mut e, to, now);
            out.extend(ask.map(|ask| (iface, ask)));
        }
        for gateway in down {
            table.note(gateway, true);
            moved |= table.redirects_gone(gateway);
        }
        let over = table.redirects.due();
        self.ask_at.fetch_min(over.0, Ordering::Relaxed);
        (lost, moved)
    }

    /// What was sent to the neighbour on the way `to` there has arrived, as its receiver says.
    pub(crate) fn confirm(&self, to: To, now: Time) {
        let table = self.table.lock();
        if let Some((_, hop)) = table.find(to)
            && let Some(slot) = table.book.find((hop.iface, hop.next))
        {
            self.enter(table.entry(slot)).confirm(now);
        }
    }

    /// The neighbour on the way `to` there may have gone: it is asked, if it has not been heard for
    /// a while.
    pub(crate) fn suspect(&self, ifaces: &[Iface], to: To, now: Time) -> Option<(u16, Ask)> {
        let mut table = self.table.lock();
        let (_, hop) = table.find(to)?;
        let slot = table.book.find((hop.iface, hop.next))?;
        let mut e = self.enter(table.entry(slot));
        if !e.suspected(now) {
            return None;
        }
        let to = (&ifaces[usize::from(hop.iface)], hop.next);
        let ask = self.ask(&mut table.requests, &mut e, to, now)?;
        Some((hop.iface, ask))
    }

    /// A router has said where something is; nothing, if it was known or there is no room.
    pub(crate) fn add(&self, route: Route) {
        let mut table = self.table.lock();
        if table.routes.contains(&route) || table.routes.len() as u32 >= table.most {
            return;
        }
        let longer = |r: &Route| r.dst.prefix >= route.dst.prefix;
        let at = table.routes.partition_point(longer);
        table.routes.insert(at, route);
        table.down.insert(at, false);
        table.changes += 1;
        // A neighbour that was known before is a gateway from now on.
        if let Some(via) = route.via
            && let Some(slot) = table.book.find((route.iface, via))
        {
            table.book.touch(slot, Kin::Gateway);
        }
    }

    /// What a router has said is over.
    pub(crate) fn remove(&self, route: &Route) {
        let mut table = self.table.lock();
        let Some(at) = table.routes.iter().position(|r| r == route) else {
            return;
        };
        table.routes.remove(at);
        table.down.remove(at);
        table.changes += 1;
        let via = |r: &Route| r.iface == route.iface && r.via == route.via;
        if let Some(gateway) = route.via
            && !table.routes.iter().any(via)
        {
            let at = (route.iface, gateway);
            table.redirects_gone(at);
            if let Some(slot) = table.book.find(at) {
                table.book.touch(slot, Kin::Known);
            }
        }
    }

    /// Lock counts, by class.
    pub fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::RouteHashtable, self.table.stats());
        let entries = {
            let table = self.table.lock();
            table.entry(table.book.slots())
        };
        for e in (0..entries).filter_map(|n| self.entries.get(n)) {
            add(LockClass::Route, e.stats());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use crate::neighbour::ASK_LIMIT;
    use crate::net::Cidr;
    use perimeter_link::Capabilities;
    use perimeter_sync::Native;

    fn cidr(s: &str) -> Cidr {
        s.parse().unwrap()
    }

    pub(super) fn route(dst: &str, iface: u16, via: Option<IpAddr>) -> Route {
        let dst = cidr(dst);
        Route { dst, iface, via }
    }

    /// Of a stack at 10.0.0.1, whose loopback is interface 7.
    fn routes(routes: Vec<Route>) -> Routes<OneThread> {
        let own = vec![IpAddr::from([10, 0, 0, 1])];
        let none = Arc::new(Addresses::new(0));
        Routes::new(&Native::default(), routes, (own, Vec::new(), none), 7)
    }

    pub(super) fn iface(medium: Medium) -> Iface {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let caps = Capabilities::new("", medium, 1500).with_mac(mac);
        Iface {
            caps,
            number: 0,
            mtu6: core::sync::atomic::AtomicU32::new(1500),
            addrs: Arc::new(Addrs::new(vec![cidr("10.0.0.1/16")])),
            mtu4: core::sync::atomic::AtomicU32::new(1500),
            accept: crate::net::Accept::Own,
            rx: 0..1,
            tx: 0..1,
            gone: core::sync::atomic::AtomicBool::new(false),
            variables: Default::default(),
        }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let gateway = "10.0.0.254".parse().unwrap();
        let routes = routes(vec![
            route("0.0.0.0/0", 0, Some(gateway)),
            route("10.0.0.0/24", 0, None),
            route("10.0.0.128/25", 1, None),
        ]);
        let hop = |s: &str| routes.hop(s.parse().unwrap()).unwrap();
        let next = "10.0.0.2".parse().unwrap();
        assert_eq!(hop("10.0.0.2"), Hop { iface: 0, next });
        assert_eq!(hop("10.0.0.130").iface, 1);
        assert_eq!(hop("9.9.9.9").next, gateway);
    }

    #[test]
    fn those_who_spoke_are_bounded_and_the_oldest_goes() {
        const BOUND: usize = 512;
        let routes = routes(vec![route("10.0.0.0/16", 0, None)]);
        let ifaces = [iface(Medium::Ethernet)];
        let at = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8 + 1, n as u8]);
        let mac = |n: usize| MacAddr([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
        for n in 0..BOUND + 10 {
            let now = Time(1_000_000 + n as u64);
            let heard = routes.heard((0, &ifaces[0]), at(n), mac(n), true, now);
            assert!(!heard.changed && !heard.doubted);
            assert_eq!(routes.segment((at(n), None)), Some(mac(n)));
        }
        for n in 0..BOUND + 10 {
            let known = routes.segment((at(n), None));
            assert_eq!(known, (n >= 10).then(|| mac(n)), "{n}");
        }
        assert_eq!(routes.segments(at(500)), 2);
        // The first ten were routed by the prefix's own entry.
        assert_eq!(routes.segments(at(3)), 10);
        let now = Time(2_000_000);
        let r = routes.resolve(&ifaces, at(500), None, now).unwrap();
        assert_eq!(r.l2, L2::Stations(ifaces[0].caps.mac, mac(500)));
        let r = routes.resolve(&ifaces, at(3), None, now).unwrap();
        assert!(r.l2 == L2::Unresolved && r.ask.is_some());
        assert_eq!(routes.ask_at(), now.plus(ASK_AGAIN));
    }

    /// Segments to one destination follow what changes: a neighbour that gets an entry of its own,
    /// a better route, the end of that, and a gateway that has gone.
    #[test]
    fn segments_go_where_the_routes_lead_by_now() {
        let gateway = "10.0.0.254".parse().unwrap();
        let routes = routes(vec![
            route("10.0.0.0/16", 0, None),
            route("0.0.0.0/0", 0, Some(gateway)),
        ]);
        let ifaces = [iface(Medium::Ethernet)];
        let mac = |n: u8| MacAddr([2, 1, 0, 0, 0, n]);
        let hear = |ip: IpAddr, n: u8, now| {
            routes.heard((0, &ifaces[0]), ip, mac(n), true, Time(now));
        };
        let segment = |ip: &str| routes.segment((ip.parse().unwrap(), None));
        assert_eq!((segment("9.9.9.9"), segment("9.9.9.9")), (None, None));
        hear(gateway, 1, 1);
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
        assert_eq!(segment("10.0.0.2"), None);
        hear("10.0.0.2".parse().unwrap(), 2, 2);
        assert_eq!(segment("10.0.0.2"), Some(mac(2)));
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
        // By another interface nothing leads there.
        assert_eq!(routes.segment(("9.9.9.9".parse().unwrap(), Some(3))), None);
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
        let better = route("9.9.0.0/16", 0, Some("10.0.0.2".parse().unwrap()));
        routes.add(better);
        assert_eq!(segment("9.9.9.9"), Some(mac(2)));
        routes.remove(&better);
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
        // The only other gateway of as long a prefix takes over while the first does not answer.
        routes.add(route("0.0.0.0/0", 0, Some("10.0.0.2".parse().unwrap())));
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
        assert!(routes.table.lock().note((0, gateway), true));
        assert_eq!(segment("9.9.9.9"), Some(mac(2)));
        assert!(routes.table.lock().note((0, gateway), false));
        assert_eq!(segment("9.9.9.9"), Some(mac(1)));
    }

    /// What was used is not overwritten at once, what was only heard is, and strangers neither make
    /// entries nor have any asked for.
    #[test]
    fn an_answer_to_a_stranger_changes_nothing() {
        let routes = routes(vec![route("10.0.0.0/16", 0, None)]);
        let ifaces = [iface(Medium::Ethernet)];
        let ip = IpAddr::from([10, 0, 0, 9]);
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 8]));
        assert_eq!(routes.known(ip).unwrap().1, None);
        let hear = |mac, learn, now| routes.heard((0, &ifaces[0]), ip, mac, learn, Time(now));
        hear(a, false, 1);
        assert_eq!(routes.known(ip).unwrap().1, None, "nobody had asked");
        hear(b, true, 1);
        assert!(!hear(a, true, 2).changed);
        assert_eq!(routes.known(ip).unwrap().1, Some(a));
        let used = routes.resolve(&ifaces, ip, None, Time(3)).unwrap();
        assert_eq!(used.l2, L2::Stations(ifaces[0].caps.mac, a));
        let lie = hear(b, true, 4);
        assert!(lie.doubted && lie.ask.is_some_and(|(to, _)| to == a));
        assert_eq!(routes.known(ip).unwrap().1, Some(a));
        assert_eq!(routes.ask_at(), Time(4).plus(ASK_AGAIN));
    }

    #[test]
    fn our_own_addresses_lead_to_the_loopback() {
        let routes = routes(vec![route("10.0.0.0/16", 0, None)]);
        let own = "10.0.0.1".parse().unwrap();
        assert_eq!(routes.hop(own).unwrap().iface, 7);
        assert_eq!(routes.known(own).unwrap().0.iface, 7);
        let r = routes.resolve(&[], own, None, Time(1)).unwrap();
        assert!(r.l2 == L2::None && r.ask.is_none() && r.hop.iface == 7);
    }

    #[test]
    fn who_waits_in_vain_is_told() {
        let routes = routes(vec![route("10.0.0.0/16", 0, None)]);
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
        let routes = routes(vec![route("10.0.0.0/16", 0, None)]);
        let dst = "10.0.9.9".parse().unwrap();
        let ifaces = [iface(Medium::Ip)];
        let r = routes.resolve(&ifaces, dst, None, Time(5)).unwrap();
        assert!(r.l2 == L2::None && r.ask.is_none());
        assert_eq!(
            (routes.segment((dst, None)), routes.segments(dst)),
            (None, 1)
        );
    }
}

//! Groups that sockets have joined, each on an interface, and telling the routers of its link so
//! (IGMPv3, RFC 3376; MLDv2, RFC 3810). Sockets join whole groups; sources are not chosen.

use crate::ctx::Ctx;
use crate::joined::Due;
pub use crate::joined::{Groups, Joined};
use crate::kind::Kind;
use crate::own::Own;
use crate::shared::SharedState;
use core::net::{IpAddr, Ipv6Addr};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_sync::Lock;
use perimeter_wire::IpHdr;
use perimeter_wire::igmp::{ALL_HOSTS, IgmpQuery};
use perimeter_wire::mld::Record;

/// How long after a change it is reported once more, ns, as one report may be lost (RFC 3376,
/// section 8.11: within a second).
const AGAIN: u64 = 900_000_000;
/// The most groups of a stack.
pub const GROUPS: usize = 1024;
/// The longest that an answer is put off, whatever a query allows, ns.
const LATEST: u64 = 25_000_000_000;

impl<K: Kind> SharedState<K> {
    /// Whether a socket has joined `group` on interface `iface`; on the loopback, on whichever.
    #[inline]
    pub fn joined(&self, iface: u16, group: IpAddr) -> bool {
        self.groups_joined.0.load(Ordering::Relaxed) > 0 && self.joined_slow(iface, group)
    }

    #[cold]
    fn joined_slow(&self, iface: u16, group: IpAddr) -> bool {
        let groups = self.groups.lock();
        match iface == self.loopback().0 {
            true => groups.joined.keys().any(|(_, g)| *g == group),
            false => groups.joined.contains_key(&(iface, group)),
        }
    }

    /// Whether any socket has joined a group.
    #[inline]
    pub(crate) fn has_groups(&self) -> bool {
        self.groups_joined.0.load(Ordering::Relaxed) > 0
    }

    /// The groups of IPv6 that sockets have joined on an interface.
    pub(crate) fn joined_v6(&self, iface: u16) -> Vec<Ipv6Addr> {
        if !self.has_groups() {
            return Vec::new();
        }
        let groups = self.groups.lock();
        let here = groups.joined.keys().filter(|(n, _)| *n == iface);
        here.filter_map(|(_, g)| match g {
            IpAddr::V6(g) => Some(*g),
            IpAddr::V4(_) => None,
        })
        .collect()
    }

    /// Whether `ip` means all hosts of the link of interface `iface`: the limited broadcast, or that
    /// of one of its prefixes; on the loopback, of whichever.
    pub fn is_broadcast(&self, iface: u16, ip: IpAddr) -> bool {
        let of = |n: u16| {
            let addrs = &self.ifaces[usize::from(n)].addrs;
            addrs.any(|a| a.broadcast() == Some(ip))
        };
        match ip {
            IpAddr::V4(a) if a.is_broadcast() => true,
            IpAddr::V4(_) if iface == self.loopback().0 => (0..iface).any(of),
            IpAddr::V4(_) => of(iface),
            IpAddr::V6(_) => false,
        }
    }

    /// A socket joins a group; whether there was room for one more.
    pub(crate) fn join(&self, own: &mut Own<K>, iface: u16, group: IpAddr) -> bool {
        let now = own.now(&self.p);
        {
            let mut groups = self.groups.lock();
            if groups.joined.len() >= GROUPS && !groups.joined.contains_key(&(iface, group)) {
                return false;
            }
            let n = groups.joined.entry((iface, group)).or_default();
            *n += 1;
            if *n > 1 {
                return true;
            }
            groups.plan(now.plus(AGAIN), iface, group, Record::Joins);
            let all = groups.joined.len();
            self.groups_joined.0.store(all, Ordering::Relaxed);
        }
        self.tell_group(own, iface, group, Record::Joins);
        true
    }

    /// A socket leaves a group.
    pub(crate) fn leave_group(&self, own: &mut Own<K>, iface: u16, group: IpAddr) {
        let now = own.now(&self.p);
        {
            let mut groups = self.groups.lock();
            let Some(n) = groups.joined.get_mut(&(iface, group)) else {
                return;
            };
            *n -= 1;
            if *n > 0 {
                return;
            }
            groups.joined.remove(&(iface, group));
            groups.plan(now.plus(AGAIN), iface, group, Record::Leaves);
            let all = groups.joined.len();
            self.groups_joined.0.store(all, Ordering::Relaxed);
        }
        self.tell_group(own, iface, group, Record::Leaves);
    }

    /// Reports that are due.
    pub fn report_due(&self, own: &mut Own<K>, now: Time) {
        let due: Vec<Due> = {
            let mut groups = self.groups.lock();
            if groups.due.is_empty() {
                return;
            }
            groups.due.extract_if(.., |d| d.at <= now).collect()
        };
        for d in due {
            self.tell_group(own, d.iface, d.group, d.what);
        }
    }

    /// Sends a report, where there is a link with somebody to hear it.
    fn tell_group(&self, own: &mut Own<K>, iface: u16, group: IpAddr, what: Record) {
        let i = &self.ifaces[usize::from(iface)];
        if i.caps.medium != Medium::Ethernet || i.is_gone() {
            return;
        }
        match group {
            IpAddr::V4(g) => self.report_v4(own, iface, (what, g)),
            IpAddr::V6(g) => self.report_group(own, iface, (what, g)),
        }
    }
}

/// A message of IGMP came by interface `iface`: a query is answered some time within what it
/// allows, so that not all answer at once (RFC 3376, section 5.2).
#[cold]
pub(crate) fn query_v4<K: Kind>(cx: &mut Ctx<K>, iface: u16, ip: &IpHdr, payload: &[u8]) {
    // A query that a router has passed on is none of this link.
    let Ok(Some(query)) = IgmpQuery::parse(payload) else {
        return;
    };
    if ip.hop_limit != 1 {
        return;
    }
    let now = cx.now();
    let mut groups = cx.sh.groups.lock();
    let asked: Vec<IpAddr> = groups
        .joined
        .keys()
        .filter(|(n, g)| *n == iface && g.is_ipv4())
        .map(|(_, g)| *g)
        .filter(|g| query.group.is_unspecified() || *g == query.group)
        .filter(|g| *g != ALL_HOSTS)
        .collect();
    let most = (u64::from(query.within) * 100_000_000).clamp(1, LATEST);
    for group in asked {
        let key = perimeter_wire::FlowKey {
            local: group,
            remote: ip.src,
            ..perimeter_wire::FlowKey::UNSPECIFIED
        };
        let secret = [cx.sh.secret[0] ^ now.0, cx.sh.secret[1]];
        let delay = crate::hash::table_hash(secret, &key) % most;
        groups.plan(now.plus(delay), iface, group, Record::Listens);
    }
}

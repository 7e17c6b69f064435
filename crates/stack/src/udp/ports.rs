//! Who gets a datagram: the most specific of the sockets whose address and port it was sent to.

use crate::hash::table_hash;
use crate::id::SockId;
use crate::kind::{Kind, Lk, lock};
use crate::net::both_get;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use hashbrown::{HashMap, HashTable};
use perimeter_sync::{Lock, LockClass};
use perimeter_wire::FlowKey;

/// Ports are spread over so many locks, by their low bits.
const BUCKETS: usize = 64;

/// Which local addresses a socket is bound to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// One address.
    One(IpAddr),
    /// All of IPv4.
    V4,
    /// All of IPv6, and of IPv4 too unless the socket is for IPv6 alone (RFC 3493, section 5.3).
    V6 {
        /// IPv6 alone.
        only: bool,
    },
}

impl Claim {
    /// What binding to `addr` claims.
    pub fn of(addr: IpAddr, only_v6: bool) -> Claim {
        match addr {
            IpAddr::V4(a) if a.is_unspecified() => Claim::V4,
            IpAddr::V6(a) if a.is_unspecified() => Claim::V6 { only: only_v6 },
            one => Claim::One(one),
        }
    }

    /// The address; `None`: any.
    pub fn addr(self) -> Option<IpAddr> {
        match self {
            Claim::One(a) => Some(a),
            Claim::V4 | Claim::V6 { .. } => None,
        }
    }

    /// Whether datagrams to `dst` are for it.
    #[inline]
    pub fn covers(self, dst: IpAddr) -> bool {
        match self {
            Claim::One(a) => a == dst,
            Claim::V4 => dst.is_ipv4(),
            Claim::V6 { only } => dst.is_ipv6() || !only,
        }
    }

    fn overlaps(self, other: Claim) -> bool {
        match (self, other) {
            (Claim::One(a), b) | (b, Claim::One(a)) => b.covers(a),
            (Claim::V4, Claim::V6 { only }) | (Claim::V6 { only }, Claim::V4) => !only,
            (Claim::V4, Claim::V4) | (Claim::V6 { .. }, Claim::V6 { .. }) => true,
        }
    }

    /// How specific it is.
    fn rank(self) -> u8 {
        match self {
            Claim::One(_) => 2,
            Claim::V4 => 1,
            Claim::V6 { .. } => 0,
        }
    }
}

/// A socket's place among those of its port.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The socket.
    pub id: SockId,
    /// Its addresses.
    pub claim: Claim,
    /// Others may bind to the same (SO_REUSEADDR): the last one gets what is sent to one host.
    pub reuse_address: bool,
    /// Others may bind to the same (SO_REUSEPORT): each gets its part of the flows.
    pub reuse_port: bool,
    /// It has a peer, and gets from nobody else: it is found by its flow.
    pub connected: bool,
    /// The interface that it is bound to (SO_BINDTODEVICE), if it is.
    pub device: Option<u16>,
    /// The groups that it has joined, each on an interface.
    pub groups: Vec<(IpAddr, u16)>,
}

impl Bound {
    /// Whether both may be bound to what overlaps.
    fn shares(&self, other: &Bound) -> bool {
        self.reuse_port && other.reuse_port || self.reuse_address && other.reuse_address
    }

    /// Whether datagrams to `dst` that come by interface `iface` (`None`: by any) are for it, whoever
    /// sent them.
    #[inline]
    fn gets(&self, dst: IpAddr, iface: Option<u16>) -> bool {
        !self.connected && self.claim.covers(dst) && both_get(self.device, iface)
    }

    /// How specific it is.
    fn rank(&self) -> (u8, bool) {
        (self.claim.rank(), self.device.is_some())
    }
}

/// A socket with a peer: its flow, its name, and the interface that it is bound to.
type Connected = (FlowKey, SockId, Option<u16>);

#[derive(Default)]
struct Bucket {
    ports: HashMap<u16, Vec<Bound>, foldhash::fast::RandomState>,
    /// Sockets with a peer, by flow. Keyed, as peers choose what is in it where sockets are
    /// connected to whoever comes.
    flows: HashTable<Connected>,
}

/// Whom a datagram is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// That socket.
    One(SockId),
    /// Nobody.
    Nobody,
}

/// The sockets of a stack, by port.
pub struct Ports<K: Kind> {
    buckets: Box<[Lk<K, Bucket>]>,
    /// Sockets that take what is for no other, whatever its address and port.
    any: Lk<K, Vec<(SockId, Option<u16>)>>,
    /// How many those are: to look at without the lock.
    any_len: AtomicUsize,
    secret: [u64; 2],
}

impl<K: Kind> Ports<K> {
    /// No sockets.
    pub fn new(p: &K::P, secret: [u64; 2]) -> Ports<K> {
        let bucket = |_| lock::<K, _>(p, LockClass::Leaf, Bucket::default());
        Ports {
            buckets: (0..BUCKETS).map(bucket).collect(),
            any: lock::<K, _>(p, LockClass::Leaf, Vec::new()),
            any_len: AtomicUsize::new(0),
            secret,
        }
    }

    #[inline]
    fn bucket(&self, port: u16) -> &Lk<K, Bucket> {
        &self.buckets[usize::from(port) % BUCKETS]
    }

    /// Binds a socket to a port; whether it is free.
    pub fn bind(&self, port: u16, new: Bound) -> bool {
        let mut bucket = self.bucket(port).lock();
        let all = bucket.ports.entry(port).or_default();
        let both = |b: &Bound| b.claim.overlaps(new.claim) && both_get(b.device, new.device);
        let clash = |b: &Bound| both(b) && !b.shares(&new);
        let free = !all.iter().any(clash);
        if free {
            all.push(new);
        } else if all.is_empty() {
            bucket.ports.remove(&port);
        }
        free
    }

    /// Whether nobody is bound to a port: asked for ephemeral ones, which are never shared.
    pub fn is_free(&self, port: u16) -> bool {
        !self.bucket(port).lock().ports.contains_key(&port)
    }

    /// Takes a socket off a port.
    pub fn unbind(&self, port: u16, id: SockId) {
        let mut bucket = self.bucket(port).lock();
        if let Some(all) = bucket.ports.get_mut(&port) {
            all.retain(|b| b.id != id);
            if all.is_empty() {
                bucket.ports.remove(&port);
            }
        }
    }

    /// Changes what is known of a socket.
    pub fn change(&self, port: u16, id: SockId, f: impl FnOnce(&mut Bound)) {
        let mut bucket = self.bucket(port).lock();
        let all = bucket.ports.get_mut(&port);
        if let Some(b) = all.and_then(|all| all.iter_mut().find(|b| b.id == id)) {
            f(b);
        }
    }

    /// Binds a socket to an interface, or to none, wherever it is known; `flow`: its flow, if it has
    /// a peer. Whoever else is there may get the same then, as where both share.
    pub fn set_device(&self, port: u16, id: SockId, flow: Option<&FlowKey>, device: Option<u16>) {
        self.change(port, id, |b| b.device = device);
        if let Some(key) = flow {
            let hash = table_hash(self.secret, key);
            let mut bucket = self.bucket(key.local_port).lock();
            let mine = |(k, i, _): &Connected| k == key && *i == id;
            if let Some(to) = bucket.flows.find_mut(hash, mine) {
                to.2 = device;
            }
        }
        let mut any = self.any.lock();
        if let Some(to) = any.iter_mut().find(|(i, _)| *i == id) {
            to.1 = device;
        }
    }

    /// Enters a socket's flow, whose local port it is bound to; whether no other has it.
    pub fn connect(&self, key: &FlowKey, id: SockId, device: Option<u16>) -> bool {
        let hash = table_hash(self.secret, key);
        let mut bucket = self.bucket(key.local_port).lock();
        if bucket.flows.find(hash, |(k, ..)| k == key).is_some() {
            return false;
        }
        let rehash = |(k, ..): &Connected| table_hash(self.secret, k);
        bucket.flows.insert_unique(hash, (*key, id, device), rehash);
        true
    }

    /// Takes a socket's flow out.
    pub fn disconnect(&self, key: &FlowKey, id: SockId) {
        let hash = table_hash(self.secret, key);
        let mut bucket = self.bucket(key.local_port).lock();
        if let Ok(e) = bucket
            .flows
            .find_entry(hash, |(k, i, _)| k == key && *i == id)
        {
            e.remove();
        }
    }

    /// The socket connected as `key`.
    pub fn connected(&self, key: &FlowKey) -> Option<SockId> {
        let bucket = self.bucket(key.local_port).lock();
        let hash = table_hash(self.secret, key);
        bucket
            .flows
            .find(hash, |(k, ..)| k == key)
            .map(|(_, id, _)| *id)
    }

    /// Whom a datagram of flow `key` is for that came by interface `iface` (`None`: by any) to an
    /// address of one host. `hash` spreads flows over sockets that share.
    #[inline]
    pub fn find(&self, key: &FlowKey, iface: Option<u16>, hash: impl FnOnce() -> u32) -> Target {
        {
            let bucket = self.bucket(key.local_port).lock();
            if !bucket.flows.is_empty() {
                let at = table_hash(self.secret, key);
                if let Some((_, id, device)) = bucket.flows.find(at, |(k, ..)| k == key)
                    && both_get(*device, iface)
                {
                    return Target::One(*id);
                }
            }
            if let Some(all) = bucket.ports.get(&key.local_port)
                && let Some(id) = best(all, (key.local, iface), hash)
            {
                return Target::One(id);
            }
        }
        match self.any_len.load(Ordering::Relaxed) {
            0 => Target::Nobody,
            _ => self.any(iface),
        }
    }

    /// The last of those who take what is for no other; bound to that interface, if one is given,
    /// rather than to none.
    fn any(&self, iface: Option<u16>) -> Target {
        let any = self.any.lock();
        let fit = any.iter().filter(|(_, device)| both_get(*device, iface));
        let best = fit.max_by_key(|(_, device)| device.is_some());
        best.map_or(Target::Nobody, |(id, _)| Target::One(*id))
    }

    /// Appends the sockets that are to get a copy of a datagram to a group, or to all stations of
    /// interface `iface`; on the loopback (`iface` is `None`) on whichever.
    pub fn find_all(&self, key: &FlowKey, iface: Option<u16>, out: &mut Vec<SockId>) {
        let bucket = self.bucket(key.local_port).lock();
        let at = table_hash(self.secret, key);
        if let Some((_, id, device)) = bucket.flows.find(at, |(k, ..)| k == key)
            && both_get(*device, iface)
        {
            out.push(*id);
        }
        let Some(all) = bucket.ports.get(&key.local_port) else {
            return;
        };
        let group = key.local.is_multicast();
        let joined = |b: &&Bound| {
            let here = |(g, i): &(IpAddr, u16)| *g == key.local && iface.is_none_or(|n| n == *i);
            !group || b.groups.iter().any(here)
        };
        let wanted = all.iter().filter(|b| b.gets(key.local, iface));
        out.extend(wanted.filter(joined).map(|b| b.id));
    }

    /// Adds a socket that takes what is for no other.
    pub fn take_any(&self, id: SockId, device: Option<u16>) {
        let mut any = self.any.lock();
        any.push((id, device));
        self.any_len.store(any.len(), Ordering::Relaxed);
    }

    /// It takes no more.
    pub fn leave_any(&self, id: SockId) {
        let mut any = self.any.lock();
        any.retain(|(i, _)| *i != id);
        self.any_len.store(any.len(), Ordering::Relaxed);
    }

    /// All sockets.
    pub fn all(&self) -> Vec<SockId> {
        let mut out: Vec<SockId> = self.any.lock().iter().map(|(id, _)| *id).collect();
        for bucket in &self.buckets {
            out.extend(bucket.lock().ports.values().flatten().map(|b| b.id));
        }
        out
    }
}

/// The most specific of the sockets of a port for datagrams to `dst` that come by interface `iface`:
/// by its address, then by its interface. Of several that are equal each gets its part of the flows if
/// all share that way, else the last one gets all.
#[inline]
fn best(
    all: &[Bound],
    (dst, iface): (IpAddr, Option<u16>),
    hash: impl FnOnce() -> u32,
) -> Option<SockId> {
    if let [only] = all {
        return only.gets(dst, iface).then_some(only.id);
    }
    let fits = || all.iter().filter(|b| b.gets(dst, iface));
    let rank = fits().map(Bound::rank).max()?;
    let equal = || fits().filter(|b| b.rank() == rank);
    let n = match equal().all(|b| b.reuse_port) {
        true => hash() as usize % equal().count(),
        false => equal().count() - 1,
    };
    equal().nth(n).map(|b| b.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use perimeter_sync::Native;

    fn ports() -> Ports<OneThread> {
        Ports::new(&Native::default(), [1, 2])
    }

    fn bound(n: u32, addr: &str) -> Bound {
        Bound {
            id: SockId::datagram(0, n, 1),
            claim: Claim::of(addr.parse().unwrap(), false),
            reuse_address: false,
            reuse_port: false,
            connected: false,
            device: None,
            groups: Vec::new(),
        }
    }

    fn key(local: &str, remote: &str) -> FlowKey {
        let (l, r): (core::net::SocketAddr, core::net::SocketAddr) =
            (local.parse().unwrap(), remote.parse().unwrap());
        FlowKey {
            local: l.ip(),
            remote: r.ip(),
            local_port: l.port(),
            remote_port: r.port(),
        }
    }

    fn found(p: &Ports<OneThread>, local: &str, remote: &str, hash: u32) -> Option<u32> {
        found_by(p, 0, local, remote, hash)
    }

    fn found_by(
        p: &Ports<OneThread>,
        iface: u16,
        local: &str,
        remote: &str,
        hash: u32,
    ) -> Option<u32> {
        match p.find(&key(local, remote), Some(iface), || hash) {
            Target::One(id) => Some(id.index()),
            Target::Nobody => None,
        }
    }

    #[test]
    fn the_most_specific_gets_it() {
        let p = ports();
        assert!(p.bind(7, bound(1, "0.0.0.0")));
        let shared = |n, addr| Bound {
            reuse_address: true,
            ..bound(n, addr)
        };
        assert!(!p.bind(7, bound(2, "10.0.0.1")), "the wildcard has it");
        p.unbind(7, SockId::datagram(0, 1, 1));
        assert!(p.bind(7, shared(1, "0.0.0.0")));
        assert!(p.bind(7, shared(2, "10.0.0.1")));
        assert!(p.bind(7, shared(3, "10.0.0.1")));
        assert!(!p.bind(7, bound(4, "10.0.0.1")), "it does not share");
        assert!(!p.bind(7, bound(5, "10.0.0.9")), "nor does this");
        assert_eq!(
            found(&p, "10.0.0.1:7", "10.0.0.5:9", 0),
            Some(3),
            "the last"
        );
        assert_eq!(found(&p, "10.0.0.2:7", "10.0.0.5:9", 0), Some(1));
        assert_eq!(found(&p, "10.0.0.2:8", "10.0.0.5:9", 0), None);
        let flow = key("10.0.0.1:7", "10.0.0.5:9");
        assert!(p.connect(&flow, SockId::datagram(0, 2, 1), None));
        assert!(!p.connect(&flow, SockId::datagram(0, 3, 1), None));
        p.change(7, SockId::datagram(0, 2, 1), |b| b.connected = true);
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", 0), Some(2));
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:8", 0), Some(3));
        p.disconnect(&flow, SockId::datagram(0, 2, 1));
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", 0), Some(3));
    }

    #[test]
    fn who_shares_a_port_gets_a_part_of_the_flows() {
        let p = ports();
        for n in 0..4 {
            let b = Bound {
                reuse_port: true,
                ..bound(n, "0.0.0.0")
            };
            assert!(p.bind(7, b));
        }
        for hash in 0..16 {
            assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", hash), Some(hash % 4));
        }
    }

    #[test]
    fn the_families_share_a_port_only_where_one_is_for_ipv6_alone() {
        let p = ports();
        assert!(p.bind(7, bound(1, "::")));
        assert!(!p.bind(7, bound(2, "0.0.0.0")));
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", 0), Some(1));
        p.unbind(7, SockId::datagram(0, 1, 1));
        let only = Bound {
            claim: Claim::V6 { only: true },
            ..bound(1, "::")
        };
        assert!(p.bind(7, only));
        assert!(p.bind(7, bound(2, "0.0.0.0")));
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", 0), Some(2));
        assert_eq!(found(&p, "[fd00::1]:7", "[fd00::2]:9", 0), Some(1));
    }

    #[test]
    fn who_is_bound_to_an_interface_gets_what_comes_by_it() {
        let p = ports();
        let by = |n, device| Bound {
            device,
            ..bound(n, "0.0.0.0")
        };
        let from = "10.0.0.5:9";
        let got = |p: &Ports<OneThread>, iface| found_by(p, iface, "10.0.0.1:7", from, 0);
        assert!(p.bind(7, by(1, Some(1))));
        assert!(p.bind(7, by(2, Some(2))));
        assert!(!p.bind(7, by(3, Some(2))), "it has another already");
        assert!(!p.bind(7, by(3, None)), "some of that is taken");
        assert_eq!([0, 1, 2].map(|n| got(&p, n)), [None, Some(1), Some(2)]);
        // By the address first, then by the interface.
        let one = Bound {
            reuse_port: true,
            ..bound(4, "10.0.0.1")
        };
        p.change(7, SockId::datagram(0, 1, 1), |b| b.reuse_port = true);
        p.change(7, SockId::datagram(0, 2, 1), |b| b.reuse_port = true);
        let rest = Bound {
            reuse_port: true,
            ..by(5, None)
        };
        assert!(p.bind(7, rest));
        assert_eq!([0, 1, 2].map(|n| got(&p, n)), [Some(5), Some(1), Some(2)]);
        assert!(p.bind(7, one));
        assert_eq!([0, 1, 2].map(|n| got(&p, n)), [Some(4); 3]);
        // Nor does a socket with a peer get what its peer sends by another way.
        let (flow, id) = (key("10.0.0.1:7", from), SockId::datagram(0, 1, 1));
        assert!(p.connect(&flow, id, Some(1)));
        assert_eq!([0, 1, 2].map(|n| got(&p, n)), [Some(4), Some(1), Some(4)]);
        p.set_device(7, id, Some(&flow), Some(2));
        assert_eq!([0, 1, 2].map(|n| got(&p, n)), [Some(4), Some(4), Some(1)]);
    }

    #[test]
    fn who_takes_anything_gets_what_nobody_else_does() {
        let p = ports();
        assert!(p.bind(7, bound(1, "0.0.0.0")));
        let any = SockId::datagram(0, 9, 1);
        p.take_any(any, None);
        assert_eq!(found(&p, "10.0.0.1:7", "10.0.0.5:9", 0), Some(1));
        assert_eq!(found(&p, "8.8.8.8:53", "10.0.0.5:9", 0), Some(9));
        assert_eq!(p.all().len(), 2);
        p.leave_any(any);
        assert_eq!(found(&p, "8.8.8.8:53", "10.0.0.5:9", 0), None);
    }
}

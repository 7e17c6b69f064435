//! The IP classifier: which connection, and so which squeue, a packet belongs to, whichever core
//! receives it; and which squeue a listener belongs to.
//!
//! Flows are in a table whose parts have locks of their own, as FireEngine's fanout buckets
//! have. A flow that is being set up is entered with its squeue alone.

use core::net::IpAddr;
use hashbrown::HashTable;
use perimeter_stack::SockId;
use perimeter_stack::shard::table_hash;
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_wire::FlowKey;

/// Parts of the table: enough that inbound threads rarely meet, and few enough that what a small
/// number of connections needs of them stays in a core's cache.
const PARTS: usize = 64;

/// A flow and where it belongs.
struct Entry {
    key: FlowKey,
    to: Flow,
}

/// Where a flow belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Its squeue.
    pub(crate) squeue: u16,
    /// Its connection, once that is made.
    pub(crate) id: Option<SockId>,
}

/// A listener and where it belongs.
struct Bind {
    addr: Option<IpAddr>,
    port: u16,
    id: SockId,
    squeue: u16,
}

/// The classifier.
pub(crate) struct Ipcl<P: Platform> {
    secret: [u64; 2],
    parts: Box<[P::Lock<HashTable<Entry>>]>,
    binds: P::Lock<Vec<Bind>>,
}

impl<P: Platform> Ipcl<P> {
    pub(crate) fn new(p: &P, secret: [u64; 2]) -> Ipcl<P> {
        let part = |_| p.lock(LockClass::ConnHashtable, HashTable::new());
        Ipcl {
            secret,
            parts: (0..PARTS).map(part).collect(),
            binds: p.lock(LockClass::ConnHashtable, Vec::new()),
        }
    }

    #[inline]
    fn hash(&self, key: &FlowKey) -> (u64, &P::Lock<HashTable<Entry>>) {
        let hash = table_hash(self.secret, key);
        // The table itself uses the lowest and the highest bits.
        (hash, &self.parts[(hash >> 32) as usize % PARTS])
    }

    /// Where a flow belongs. `hold` takes a reference to its connection before another thread
    /// can change the table.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey, hold: impl FnOnce(SockId)) -> Option<Flow> {
        let (hash, part) = self.hash(key);
        let part = part.lock();
        let to = part.find(hash, |e| e.key == *key)?.to;
        if let Some(id) = to.id {
            hold(id);
        }
        Some(to)
    }

    /// Enters a flow that is being set up on `squeue`; `false`: it exists.
    pub(crate) fn insert(&self, key: FlowKey, squeue: u16) -> bool {
        let secret = self.secret;
        let (hash, part) = self.hash(&key);
        let mut part = part.lock();
        if part.find(hash, |e| e.key == key).is_some() {
            return false;
        }
        let to = Flow { squeue, id: None };
        part.insert_unique(hash, Entry { key, to }, |e| table_hash(secret, &e.key));
        true
    }

    /// The connection of a flow that was entered before is made.
    pub(crate) fn complete(&self, key: &FlowKey, id: SockId) {
        let (hash, part) = self.hash(key);
        if let Some(e) = part.lock().find_mut(hash, |e| e.key == *key) {
            e.to.id = Some(id);
        }
    }

    /// Forgets a flow of `squeue`, if it is still that of `id`, or of nobody yet.
    pub(crate) fn remove(&self, key: &FlowKey, squeue: u16, id: Option<SockId>) {
        let (hash, part) = self.hash(key);
        let mut part = part.lock();
        let mine = |e: &Entry| {
            e.key == *key && e.to.squeue == squeue && (e.to.id.is_none() || e.to.id == id)
        };
        if let Ok(e) = part.find_entry(hash, mine) {
            e.remove();
        }
    }

    /// Enters a listener, which belongs to `squeue`, unless another one has its port: then with
    /// that, so that a port's handshakes are in one place. Returns where that is.
    pub(crate) fn bind(&self, id: SockId, addr: Option<IpAddr>, port: u16, squeue: u16) -> u16 {
        let mut binds = self.binds.lock();
        let other = binds.iter().find(|b| b.port == port);
        let squeue = other.map_or(squeue, |b| b.squeue);
        binds.push(Bind {
            addr,
            port,
            id,
            squeue,
        });
        squeue
    }

    /// Forgets a listener; returns where it belonged.
    pub(crate) fn unbind(&self, id: SockId) -> Option<u16> {
        let mut binds = self.binds.lock();
        let at = binds.iter().position(|b| b.id == id)?;
        Some(binds.swap_remove(at).squeue)
    }

    /// The squeue of whoever listens at that address and port.
    pub(crate) fn listener(&self, addr: IpAddr, port: u16) -> Option<u16> {
        let binds = self.binds.lock();
        let here = |b: &&Bind| b.port == port && b.addr.is_none_or(|a| a == addr);
        binds.iter().find(here).map(|b| b.squeue)
    }

    /// Flows that are entered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|p| p.lock().len()).sum()
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for p in &self.parts {
            add(LockClass::ConnHashtable, p.stats());
        }
        add(LockClass::ConnHashtable, self.binds.stats());
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, Ipcl};
    use core::net::{IpAddr, Ipv4Addr};
    use perimeter_stack::SockId;
    use perimeter_sync::Native;
    use perimeter_wire::FlowKey;

    #[test]
    fn a_flow_is_found_from_its_beginning_to_its_end() {
        let c = Ipcl::new(&Native::new(), [3, 5]);
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let key = |port| FlowKey {
            local: ip,
            remote: ip,
            local_port: 80,
            remote_port: port,
        };
        for port in 0..5_000 {
            assert!(c.insert(key(port), port % 7));
            assert!(!c.insert(key(port), 0), "it exists");
        }
        for port in 0..5_000u16 {
            let id = SockId::conn(port % 7, u32::from(port), 1);
            let mut held = None;
            let to = c.find(&key(port), |id| held = Some(id));
            let squeue = port % 7;
            assert_eq!((to, held), (Some(Flow { squeue, id: None }), None));
            c.complete(&key(port), id);
            let to = c.find(&key(port), |id| held = Some(id));
            assert_eq!(to.and_then(|t| t.id), Some(id));
            assert_eq!(held, Some(id));
            // A predecessor's end leaves it alone.
            c.remove(&key(port), squeue, Some(SockId::conn(squeue, 9, 9)));
            assert_eq!(c.len(), 5_000 - usize::from(port));
            c.remove(&key(port), squeue, Some(id));
            assert_eq!(c.find(&key(port), |_| ()), None);
        }
        assert_eq!(c.len(), 0);
    }

    #[test]
    fn listeners_of_a_port_share_an_squeue() {
        let c = Ipcl::new(&Native::new(), [3, 5]);
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(c.listener(ip, 80), None);
        assert_eq!(c.bind(SockId::listener(1, 1), Some(ip), 80, 4), 4);
        assert_eq!(c.bind(SockId::listener(2, 1), None, 80, 2), 4);
        assert_eq!(c.bind(SockId::listener(3, 1), None, 81, 2), 2);
        assert_eq!(c.listener(ip, 80), Some(4));
        assert_eq!(c.unbind(SockId::listener(1, 1)), Some(4));
        assert_eq!(c.listener(ip, 80), Some(4));
        assert_eq!(c.unbind(SockId::listener(2, 1)), Some(4));
        assert_eq!(c.listener(ip, 80), None);
        assert_eq!(c.unbind(SockId::listener(2, 1)), None);
    }
}

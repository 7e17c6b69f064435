//! What is known of each flow, in tables under a keyed hash.

use hashbrown::HashTable;
use perimeter_stack::shard::table_hash;
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_wire::FlowKey;

/// Parts of [`Flows`]: enough that inbound threads rarely meet, and few enough that what a small
/// number of connections needs of them stays in a core's cache.
const PARTS: usize = 64;

/// A table of flows, for whoever has it alone.
pub(crate) struct Table<V> {
    entries: HashTable<(FlowKey, V)>,
    secret: [u64; 2],
}

impl<V> Table<V> {
    pub(crate) fn new(secret: [u64; 2]) -> Table<V> {
        let entries = HashTable::new();
        Table { entries, secret }
    }

    /// The entry of a flow, whose hash is `hash`.
    #[inline]
    fn at(&mut self, hash: u64, key: &FlowKey) -> Option<&mut V> {
        let entry = self.entries.find_mut(hash, |(k, _)| k == key);
        entry.map(|(_, v)| v)
    }

    /// The entry of a flow.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<&V> {
        let hash = table_hash(self.secret, key);
        let entry = self.entries.find(hash, |(k, _)| k == key);
        entry.map(|(_, v)| v)
    }

    /// Enters a flow, which has no entry.
    pub(crate) fn insert(&mut self, key: FlowKey, value: V) {
        let secret = self.secret;
        let hash = table_hash(secret, &key);
        let rehash = |(k, _): &(FlowKey, V)| table_hash(secret, k);
        self.entries.insert_unique(hash, (key, value), rehash);
    }

    /// Forgets a flow if its entry is `mine`.
    pub(crate) fn remove(&mut self, key: &FlowKey, mine: impl Fn(&V) -> bool) {
        let hash = table_hash(self.secret, key);
        let entry = self.entries.find_entry(hash, |(k, v)| k == key && mine(v));
        if let Ok(entry) = entry {
            entry.remove();
        }
    }
}

/// The same for all threads: in parts with locks of their own.
pub(crate) struct Flows<P: Platform, V: Send + 'static> {
    parts: Box<[P::Lock<Table<V>>]>,
    secret: [u64; 2],
}

impl<P: Platform, V: Send + 'static> Flows<P, V> {
    pub(crate) fn new(p: &P, secret: [u64; 2]) -> Flows<P, V> {
        let part = |_| p.lock(LockClass::ConnHashtable, Table::new(secret));
        Flows {
            parts: (0..PARTS).map(part).collect(),
            secret,
        }
    }

    /// A number that is drawn for the flow: the same whoever asks, and nobody else's guess.
    #[inline]
    pub(crate) fn draw(&self, key: &FlowKey) -> u64 {
        table_hash(self.secret, key)
    }

    /// The part of a flow. The tables themselves use the lowest and the highest bits of `hash`.
    #[inline]
    fn part(&self, hash: u64) -> &P::Lock<Table<V>> {
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    /// Runs `f` on the entry of a flow, if it has one, before another thread can change the table.
    #[inline]
    pub(crate) fn with<R>(&self, key: &FlowKey, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hash = self.draw(key);
        let mut part = self.part(hash).lock();
        part.at(hash, key).map(f)
    }

    /// Enters a flow; `false`: it has an entry.
    pub(crate) fn insert(&self, key: FlowKey, value: V) -> bool {
        let hash = self.draw(&key);
        let mut part = self.part(hash).lock();
        let fresh = part.at(hash, &key).is_none();
        if fresh {
            part.insert(key, value);
        }
        fresh
    }

    /// Forgets a flow if its entry is `mine`.
    pub(crate) fn remove(&self, key: &FlowKey, mine: impl Fn(&V) -> bool) {
        self.part(self.draw(key)).lock().remove(key, mine);
    }

    /// Flows that are entered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|p| p.lock().entries.len()).sum()
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for p in &self.parts {
            add(LockClass::ConnHashtable, p.stats());
        }
    }
}

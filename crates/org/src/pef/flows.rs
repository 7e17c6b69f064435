//! The classifier, at the bottom of IP (section 3.2.3): from a flow to its connection and to
//! what its packets run through. Asked once for each received packet, outside any perimeter.

use super::bind::Bind;
use hashbrown::HashTable;
use perimeter_stack::SockId;
use perimeter_stack::shard::table_hash;
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_wire::FlowKey;

/// Locks of the table. Many, so that inbound threads rarely meet.
const BUCKETS: usize = 64;

/// What the classifier knows of a flow.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Found {
    /// The connection; its shard is the squeue of its TCP layer.
    pub(crate) id: SockId,
    /// Where its layers run.
    pub(crate) bind: Bind,
    /// Its lists were altered, or its layers moved: ask there.
    pub(crate) altered: bool,
}

struct Entry {
    key: FlowKey,
    found: Found,
}

/// The connection table.
pub(crate) struct Flows<P: Platform> {
    buckets: Box<[P::Lock<HashTable<Entry>>]>,
    secret: [u64; 2],
}

impl<P: Platform> Flows<P> {
    pub(crate) fn new(p: &P, secret: [u64; 2]) -> Flows<P> {
        let bucket = |_| p.lock(LockClass::ConnHashtable, HashTable::new());
        Flows {
            buckets: (0..BUCKETS).map(bucket).collect(),
            secret,
        }
    }

    fn bucket(&self, hash: u64) -> &P::Lock<HashTable<Entry>> {
        &self.buckets[(hash >> 32) as usize % BUCKETS]
    }

    /// A number that is drawn for the flow: the same whoever asks, and nobody else's guess.
    pub(crate) fn draw(&self, key: &FlowKey) -> u64 {
        table_hash(self.secret, key)
    }

    /// The connection of a flow.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<Found> {
        let hash = self.draw(key);
        let bucket = self.bucket(hash).lock();
        bucket.find(hash, |e| e.key == *key).map(|e| e.found)
    }

    /// Adds a connection; `false`: the flow has one.
    pub(crate) fn add(&self, key: FlowKey, found: Found) -> bool {
        let hash = self.draw(&key);
        let mut bucket = self.bucket(hash).lock();
        if bucket.find(hash, |e| e.key == key).is_some() {
            return false;
        }
        let secret = self.secret;
        bucket.insert_unique(hash, Entry { key, found }, |e| table_hash(secret, &e.key));
        true
    }

    /// Notes that a connection's lists were altered, or its layers moved.
    pub(crate) fn altered(&self, key: &FlowKey, id: SockId) {
        let hash = self.draw(key);
        let mut bucket = self.bucket(hash).lock();
        if let Some(e) = bucket.find_mut(hash, |e| e.key == *key && e.found.id == id) {
            e.found.altered = true;
        }
    }

    /// Forgets a connection.
    pub(crate) fn remove(&self, key: &FlowKey, id: SockId) {
        let hash = self.draw(key);
        let mut bucket = self.bucket(hash).lock();
        if let Ok(e) = bucket.find_entry(hash, |e| e.key == *key && e.found.id == id) {
            e.remove();
        }
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for b in &self.buckets {
            add(LockClass::ConnHashtable, b.stats());
        }
    }
}

//! The connection table: what the lock `conn_hashtable` protects.

use crate::Kd;
use crate::place::Guard;
use core::sync::atomic::AtomicU64;
use hashbrown::HashTable;
use perimeter_stack::passive::Passive;
use perimeter_stack::shard::table_hash;
use perimeter_stack::wheel::Wheel;
use perimeter_stack::{Commons, Others};
use perimeter_sync::{LockClass, Platform};
use perimeter_wire::FlowKey;

/// The table, held.
pub(super) type TableGuard<'a, P> = Guard<'a, P, Table<P>>;

/// Connections by flow, listeners, and handshakes under way.
pub(super) struct Table<P: Platform> {
    by_flow: HashTable<(FlowKey, u32)>,
    secret: [u64; 2],
    pub(super) passive: Passive<Kd<P>>,
}

impl<P: Platform> Table<P> {
    /// The place of a flow's connection.
    pub(super) fn find(&self, key: &FlowKey) -> Option<u32> {
        let hash = table_hash(self.secret, key);
        self.by_flow
            .find(hash, |(k, _)| k == key)
            .map(|(_, slot)| *slot)
    }

    pub(super) fn link(&mut self, key: FlowKey, slot: u32) {
        let secret = self.secret;
        let hash = table_hash(secret, &key);
        self.by_flow
            .insert_unique(hash, (key, slot), |(k, _)| table_hash(secret, k));
    }

    /// Does nothing if that was done before.
    pub(super) fn unlink(&mut self, key: &FlowKey, slot: u32) {
        let hash = table_hash(self.secret, key);
        if let Ok(e) = self.by_flow.find_entry(hash, |(_, s)| *s == slot) {
            e.remove();
        }
    }
}

/// A table and the timers of its connections. There is one; under `msgp-modern` there are many,
/// on cache lines of their own.
#[repr(align(128))]
pub(super) struct Shard<P: Platform> {
    pub(super) table: P::Lock<Table<P>>,
    /// Innermost: entered while a connection is held.
    pub(super) wheel: P::Lock<Wheel>,
    /// When the wheel, and the SYN cache, have something to do; written under their locks.
    pub(super) wheel_due: AtomicU64,
    pub(super) syn_due: AtomicU64,
    /// Sockets of other protocols.
    pub(super) others: P::Lock<Others>,
}

impl<P: Platform> Shard<P> {
    /// One of so many.
    pub(super) fn new(sh: &Commons<Kd<P>>, of: usize) -> Shard<P> {
        let table = Table {
            by_flow: HashTable::new(),
            secret: sh.secret,
            passive: Passive::new(sh, of),
        };
        Shard {
            table: sh.p.lock(LockClass::ConnHashtable, table),
            wheel: sh.p.lock(LockClass::Leaf, Wheel::new(sh.p.now())),
            wheel_due: AtomicU64::new(u64::MAX),
            syn_due: AtomicU64::new(u64::MAX),
            others: sh.p.lock(LockClass::Connection, Others::default()),
        }
    }
}

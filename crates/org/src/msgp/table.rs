//! The connection table: what the lock `conn_hashtable` protects.

use crate::outer::Guard;
use crate::{Kd, flows};
use core::sync::atomic::AtomicU64;
use perimeter_stack::passive::Passive;
use perimeter_stack::wheel::Wheel;
use perimeter_stack::{Others, SharedState};
use perimeter_sync::{LockClass, Platform};

/// The table, held.
pub(super) type TableGuard<'a, P> = Guard<'a, P, Table<P>>;

/// Connections by flow, listeners, and handshakes under way.
pub(super) struct Table<P: Platform> {
    /// The place of each flow's connection.
    pub(super) places: flows::Table<u32>,
    pub(super) passive: Passive<Kd<P>>,
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
    pub(super) fn new(sh: &SharedState<Kd<P>>, of: usize) -> Shard<P> {
        let table = Table {
            places: flows::Table::new(sh.secret),
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

//! Places for connections that no application holds: what the whole stack has of them.

use crate::count::Count;
use crate::kind::{Kind, Lk, lock};
use perimeter_sync::{Lock, LockClass};

/// What is left to do for a connection that no application holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// To deliver data or a FIN.
    Orphan = 0,
    /// To wait: TIME-WAIT or FIN-WAIT-2.
    Waiting = 1,
}

impl End {
    pub(crate) const ALL: [End; 2] = [End::Orphan, End::Waiting];

    /// The counter of those that ended because there were too many.
    pub fn count(self) -> Count {
        match self {
            End::Orphan => Count::OrphansReset,
            End::Waiting => Count::TimeWaitsEnded,
        }
    }
}

/// Places that nobody has taken yet, of one account of the whole stack.
pub struct Quota<K: Kind> {
    free: Lk<K, usize>,
    batch: usize,
}

impl<K: Kind> Quota<K> {
    /// `limit` places.
    pub fn new(p: &K::P, limit: usize) -> Quota<K> {
        Quota {
            free: lock::<K, _>(p, LockClass::Leaf, limit),
            batch: (limit / 4096).clamp(1, 64),
        }
    }

    /// Takes a batch, or what there is.
    pub(crate) fn take(&self) -> usize {
        let mut free = self.free.lock();
        let n = self.batch.min(*free);
        *free -= n;
        n
    }

    /// Gives a batch back where an account of `len` connections has been `granted` places for two
    /// batches more; what is left to it.
    pub(crate) fn relieve(&self, len: usize, granted: usize) -> usize {
        if granted < len + 2 * self.batch {
            return granted;
        }
        *self.free.lock() += self.batch;
        granted - self.batch
    }
}

//! Counters that many threads write and few read.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::lane::LaneTable;
use crate::shim::Padded;

/// `N` event counters, one set per lane, each on its own cache lines: adding is a load and a
/// store by the lane's thread, with no atomic read-modify-write and no sharing. Readers sum.
///
/// Threads beyond lane 512 share one set and pay an atomic addition.
#[derive(Debug)]
pub struct PerLaneCounters<const N: usize> {
    lanes: LaneTable<Padded<[AtomicU64; N]>>,
    shared: Padded<[AtomicU64; N]>,
}

fn zeros<const N: usize>() -> Padded<[AtomicU64; N]> {
    Padded([const { AtomicU64::new(0) }; N])
}

impl<const N: usize> PerLaneCounters<N> {
    /// All zero.
    pub fn new() -> Self {
        PerLaneCounters {
            lanes: LaneTable::new(),
            shared: zeros(),
        }
    }

    /// Adds `n` to counter `idx` on behalf of `lane`, which must be the caller's own
    /// ([`crate::Platform::lane`]): an addition under another thread's lane may lose one of the
    /// two.
    ///
    /// # Panics
    /// If `idx` is not below `N`.
    #[inline]
    pub fn add(&self, lane: usize, idx: usize, n: u64) {
        match self.lanes.get(lane, zeros) {
            Some(row) => {
                let c = &row.0[idx];
                c.store(c.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
            }
            None => {
                self.shared.0[idx].fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// Counter `idx` over all lanes. While others count it is a value between before and after.
    ///
    /// # Panics
    /// If `idx` is not below `N`.
    pub fn sum(&self, idx: usize) -> u64 {
        let shared = self.shared.0[idx].load(Ordering::Relaxed);
        self.lanes.iter().fold(shared, |sum, row| {
            sum.wrapping_add(row.0[idx].load(Ordering::Relaxed))
        })
    }

    /// All counters over all lanes.
    pub fn totals(&self) -> [u64; N] {
        core::array::from_fn(|idx| self.sum(idx))
    }
}

impl<const N: usize> Default for PerLaneCounters<N> {
    fn default() -> Self {
        Self::new()
    }
}

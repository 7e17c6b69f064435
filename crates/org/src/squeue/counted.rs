//! What squeues count of their own: places among the organization's counters, and their names.

/// Messages that the thread which brought them ran itself.
pub(crate) const INLINE: usize = 0;
/// Messages that another thread ran while it drained the squeue.
pub(crate) const DRAINED: usize = 1;
/// Messages that the squeue's worker ran.
pub(crate) const WORKER: usize = 2;
/// Messages run by re-entry: within the run of another connection's, by the same thread.
pub(crate) const REENTERED: usize = 3;
/// Packets that found no room in a soft ring.
pub(crate) const RING_FULL: usize = 4;

/// The names of these.
pub(crate) const NAMES: [&str; 5] = [
    "squeue_inline",
    "squeue_drained",
    "squeue_worker",
    "squeue_reentered",
    "drop_soft_ring_full",
];

//! What `pef` counts of its own: what its squeues do, and what became of events.

use crate::squeue::counted;

/// Times that a callback of an event panicked: the event was taken off.
pub(super) const EVENT_PANICS: usize = counted::NAMES.len();
/// Live connections whose TCP has moved to another squeue.
pub(super) const MOVED: usize = EVENT_PANICS + 1;

/// The names of all.
pub(super) const NAMES: [&str; 7] = {
    let [inline, drained, worker, reentered, ring_full] = counted::NAMES;
    [
        inline,
        drained,
        worker,
        reentered,
        ring_full,
        "event_panics",
        "squeue_moved",
    ]
};

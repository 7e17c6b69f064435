//! What `pef` counts of its own: what its squeues do, and what became of events.

use crate::squeue::counted;

/// Times that a callback of an event panicked: the event was taken off.
pub(super) const EVENT_PANICS: usize = counted::NAMES.len();

/// The names of all.
pub(super) const NAMES: [&str; 6] = {
    let [inline, drained, worker, reentered, ring_full] = counted::NAMES;
    [
        inline,
        drained,
        worker,
        reentered,
        ring_full,
        "event_panics",
    ]
};

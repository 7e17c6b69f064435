//! What sessions see of their runs.

use crate::workload::{Locks, Tally, Times};

/// What a session saw of its run since it looked before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Payload per second in bytes; `None`: nobody can tell while it runs.
    pub goodput: Option<f64>,
    /// Rounds per second, or connections from opening to close, where there are such. The workers
    /// count them, whatever their session sees.
    pub rounds: Option<f64>,
    /// How the time of the threads under test divides, where that is known in between.
    pub times: Option<Times>,
    /// Length of what the stack's counters cover, in ns.
    pub window_ns: u64,
    /// Processor time of threads that run the protocol and nothing else, in ns.
    pub protocol_ns: u64,
    /// Locks by class; empty where there are none to see.
    pub locks: Vec<Locks>,
    /// Work is done by a program of its own, whose processor time is known at the end only.
    pub elsewhere: bool,
}

/// Bytes per second of all that was told, each over its own time, counted by `bytes`; `None` if
/// nothing was told.
pub(crate) fn rate(told: &[Option<Tally>], bytes: impl Fn(&Tally) -> u64) -> Option<f64> {
    let told = || told.iter().flatten();
    let rate = |t: &Tally| t.per_second(bytes(t));
    told().next().map(|_| told().map(rate).sum())
}

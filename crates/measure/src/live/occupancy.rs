//! What a perimeter is in each organization, and how occupied it is.

use super::Seen;
use crate::organizations::Organization;
use perimeter::families::Occupancy;

/// What at most one thread is in at a time, and where the time within it is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Perimeter {
    /// A lock of this class: the time for which such locks are held. An estimate from one
    /// acquisition in 64 or, with `--profile`, from all.
    Lock(&'static str),
    /// What a protocol thread owns: the processor time of those threads.
    Owner,
    /// The stack as a whole, or queues that whoever comes drains: the processor time in the stack,
    /// without the application, the ideal peer, and waits. A little is outside any perimeter
    /// (polling devices, waking up), so it is an upper bound.
    Stack,
}

impl Perimeter {
    /// That of an organization; `None` where there is none, or nobody can look.
    pub fn of(organization: &Organization) -> Option<Perimeter> {
        let Organization::Ours(spec) = organization else {
            return None;
        };
        match spec.occupancy() {
            Occupancy::Lock(class) => Some(Perimeter::Lock(class.name())),
            Occupancy::Owner => Some(Perimeter::Owner),
            Occupancy::Stack => Some(Perimeter::Stack),
            Occupancy::Unknown => None,
        }
    }

    /// In a word, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Perimeter::Lock(class) => class,
            Perimeter::Owner => "protocol thread",
            Perimeter::Stack => "stack",
        }
    }

    /// How many threads are within such perimeters at a time, on average over what was seen. Where
    /// there is one perimeter, that is the share of time for which somebody is within.
    pub(super) fn occupancy(self, seen: &Seen) -> Option<f64> {
        let window = seen.window_ns.max(1) as f64;
        let within = match self {
            Perimeter::Lock(class) => seen.locks.iter().find(|l| l.class == class)?.hold_ns,
            Perimeter::Owner => seen.protocol_ns,
            // Both ends' threads share one window.
            Perimeter::Stack => seen.times?.stack?,
        };
        Some(within as f64 / window)
    }
}

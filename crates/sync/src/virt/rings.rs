//! Descriptors of transmit rings, with the buffers that they refer to, on virtual cores: from who
//! sends to who frees what was sent, and back.

use super::lines::{Place, VirtualTag};
use super::state::State;
use crate::class::Touched;
use std::collections::HashMap;

/// Rings, by the place of their lines.
pub(super) type Rings = HashMap<u32, Ring>;

/// Descriptors of a ring that is looked after by who frees them.
#[derive(Default)]
pub(super) struct Ring {
    /// How many were placed since it was looked after last.
    placed: u64,
    /// How many were freed and not placed again, and where those are.
    freed: u64,
    by: Place,
}

impl State {
    /// The running thread places `items` descriptors in the ring of `tag`, or frees all that were
    /// placed since that was done last.
    pub(super) fn ring(&mut self, tag: &VirtualTag, what: Touched, items: u64) {
        let each = u64::from(self.cfg.costs.lines.each[what.index()]);
        let at = self.place_of(tag);
        let core = self.threads[self.running as usize].core as u32;
        let mut ring = self.rings.remove(&tag.place.get()).unwrap_or_default();
        let mut place = self.places[at];
        let ns = if what == Touched::Completion {
            let n = std::mem::take(&mut ring.placed);
            ring.freed += n;
            let ns = self.fetch_for(core, (&mut place, Some(what)), n * each, true);
            if n > 0 {
                ring.by = place;
            }
            ns
        } else {
            let again = items.min(ring.freed);
            ring.freed -= again;
            ring.placed += items;
            let mut by = ring.by;
            let freed = self.fetch_for(core, (&mut by, Some(what)), again * each, true);
            let new = (items - again) * each;
            let ns = freed + self.fetch_for(core, (&mut place, Some(what)), new, true);
            self.places[at] = place;
            ns
        };
        self.rings.insert(tag.place.get(), ring);
        self.lines_ns[what.index()] += ns;
        self.spend(ns);
    }
}

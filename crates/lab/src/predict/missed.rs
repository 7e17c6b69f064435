//! Lines that virtual cores lacked, as misses of their second-level caches.

use super::machine::{Machine, PEER_LINES};
use crate::misses::{
    self, Component, Counts, Modelled, Share,
    geometry::{Caches, Geometry, Sharing},
};
use perimeter::Guards;
use perimeter_sync::Touched;

/// Lines in thousandths by what they belong to, words of locks last: from other cores, and not.
pub(super) type Missed = [[u64; 2]; Touched::COUNT + 1];

/// The part of the system that touches such lines; `None`: not the system under test.
fn component(what: Touched) -> Option<Component> {
    if PEER_LINES.contains(&what) {
        return None;
    }
    Some(match what {
        // A message is what protocols then work on, a packet's mbuf or a call; the queue that it lies
        // in is the scheduler's.
        Touched::Message => Component::Stack,
        Touched::Event | Touched::Thread => Component::Scheduler,
        Touched::Descriptor | Touched::Completion => Component::Driver,
        Touched::Behind(class) => match class.guards() {
            Some(Guards::Queue) => Component::Scheduler,
            Some(Guards::Driver) => Component::Driver,
            _ => Component::Stack,
        },
        _ => Component::Stack,
    })
}

/// What `cores` cores of `machine` missed for `bytes` bytes of payload. Of its caches only their
/// lines are modelled: the one not used for longest goes first, wherever it lies.
pub(super) fn modelled(machine: &Machine, cores: usize, bytes: u64, missed: &Missed) -> Modelled {
    let mut parts = Component::ALL.map(|component| Share {
        component,
        counts: Counts::default(),
    });
    let words = (Some(Component::Lock), missed[Touched::COUNT]);
    let touched = Touched::all().map(|t| (component(t), missed[t.index()]));
    for (component, [from_cores, others]) in touched.chain([words]) {
        let Some(component) = component else { continue };
        let counts = &mut parts[component as usize].counts;
        counts.coherence += from_cores / 1000;
        counts.capacity += others / 1000;
    }
    let lines = u64::from(machine.lines.private_lines);
    let cache = Geometry {
        size: lines * Touched::LINE as u64,
        ways: lines as usize,
        line: Touched::LINE as u64,
    };
    let caches = Caches {
        name: machine.name.clone(),
        l1: cache,
        l2: cache,
        sharing: Sharing::Inclusive,
    };
    Modelled {
        cores,
        bytes,
        seed: 0,
        records: 0,
        items: Vec::new(),
        machines: vec![misses::Machine {
            caches,
            parts: parts.into(),
            upgrades: 0,
        }],
    }
}

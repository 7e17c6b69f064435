//! Cache misses of a run, counted or modelled: what is told of them.

pub mod geometry;

use geometry::Caches;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Parts that misses are attributed to, as in the paper's Figure 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Component {
    /// TCP, IP, sockets, pollers, and the organizations but for their hand-over.
    Stack,
    /// Queues, events and messages between threads.
    Scheduler,
    /// Locks.
    Lock,
    /// Network interfaces.
    Driver,
    /// The benchmark's event loop.
    Application,
}

impl Component {
    /// All of them, as they index counters.
    pub const ALL: [Component; 5] = [
        Component::Stack,
        Component::Scheduler,
        Component::Lock,
        Component::Driver,
        Component::Application,
    ];

    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Component::Stack => "stack",
            Component::Scheduler => "scheduler",
            Component::Lock => "lock",
            Component::Driver => "driver",
            Component::Application => "application",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a line was missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Miss {
    /// This core never had it, and no other has written it since.
    Cold,
    /// This core had it and dropped it for want of room.
    Capacity,
    /// The device wrote it.
    Device,
    /// Another core wrote it, or has it modified.
    Coherence,
}

impl Miss {
    /// All of them, as they index counters.
    pub const ALL: [Miss; 4] = [Miss::Cold, Miss::Capacity, Miss::Device, Miss::Coherence];
}

/// What became of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The first level had it.
    First,
    /// The second level had it.
    Second,
    /// Neither had.
    Missed(Miss),
}

/// Bytes of a KB.
const KB: f64 = 1024.0;

/// Accesses by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All.
    pub accesses: u64,
    /// Missed the first level and hit the second.
    pub second: u64,
    /// Missed both: [`Miss::Cold`].
    pub cold: u64,
    /// [`Miss::Capacity`].
    pub capacity: u64,
    /// [`Miss::Device`].
    pub device: u64,
    /// [`Miss::Coherence`].
    pub coherence: u64,
}

impl Counts {
    /// Counts an access.
    pub fn add(&mut self, outcome: Outcome) {
        self.accesses += 1;
        match outcome {
            Outcome::First => {}
            Outcome::Second => self.second += 1,
            Outcome::Missed(Miss::Cold) => self.cold += 1,
            Outcome::Missed(Miss::Capacity) => self.capacity += 1,
            Outcome::Missed(Miss::Device) => self.device += 1,
            Outcome::Missed(Miss::Coherence) => self.coherence += 1,
        }
    }

    /// Misses of the second level, all or of one kind.
    pub fn misses(&self, kind: Option<Miss>) -> u64 {
        match kind {
            None => self.cold + self.capacity + self.device + self.coherence,
            Some(Miss::Cold) => self.cold,
            Some(Miss::Capacity) => self.capacity,
            Some(Miss::Device) => self.device,
            Some(Miss::Coherence) => self.coherence,
        }
    }
}

/// What a component did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The component.
    pub component: Component,
    /// Its accesses.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What one kind of caches saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The caches.
    pub caches: Caches,
    /// By component.
    pub parts: Vec<Share>,
    /// Writes that took a shared line away from others.
    pub upgrades: u64,
}

/// What the processor counted of a run's threads. Events that it does not know are missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// For how long, s.
    pub seconds: f64,
    /// Whether what the kernel did for the threads is included.
    pub kernel: bool,
    /// Instructions.
    pub instructions: Option<u64>,
    /// Cycles of the cores.
    pub cycles: Option<u64>,
    /// Reads of data that missed the first level.
    pub first_level: Option<u64>,
    /// Reads of data that missed the last level.
    pub last_level: Option<u64>,
}

/// Lines of what goes from core to core: a socket's send side, a message, what a lock protects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub name: String,
    /// Lines that were missed because another core had written them, from a touch of such an item
    /// to the next touch of anything; without words of locks.
    pub lines: u64,
    /// How many such items were touched that another core had touched before.
    pub moved: u64,
}

/// A traced run through the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modelled {
    /// Virtual cores.
    pub cores: usize,
    /// Payload bytes acknowledged while counting.
    pub bytes: u64,
    /// Seed of the interleaving.
    pub seed: u64,
    /// Records of the trace, those before counting included.
    #[serde(alias = "lines")]
    pub records: u64,
    /// Lines that went from core to core, with the caches of the paper's machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Item>,
    /// The paper's machine, and this one if its caches are known.
    pub machines: Vec<Machine>,
}

impl Modelled {
    /// Misses of the second level per KB of payload, on one of the machines, of one component or
    /// all, of one kind or all; `None` without payload or that machine.
    pub fn per_kb(
        &self,
        machine: usize,
        component: Option<Component>,
        kind: Option<Miss>,
    ) -> Option<f64> {
        let of = |p: &&Share| component.is_none_or(|c| p.component == c);
        let parts = &self.machines.get(machine)?.parts;
        let misses: u64 = parts.iter().filter(of).map(|p| p.counts.misses(kind)).sum();
        (self.bytes > 0).then(|| misses as f64 * KB / self.bytes as f64)
    }
}

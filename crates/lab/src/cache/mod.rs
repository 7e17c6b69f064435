//! Cache misses of the stack: counted by the processor where it can be asked ([`counted`]), and
//! modelled: by component, per KB of payload sent, as in the paper's
//! Table 2 and Figure 6.
//!
//! The real stack sends over virtual cores in a process of its own (`subject`) that valgrind's
//! lackey traces; the trace is read as it comes (`lackey`, `observer`), each access attributed by
//! the source file of its instruction (`places`) and put through the data caches of as many cores
//! (`model`), of the paper's machine and of this one (`geometry`).
//!
//! What the model leaves out: instruction fetches, prefetching, page walks, the kernel (waking and
//! switching threads), and what the device reads. What the ideal peer does is not the machine's
//! under test; the frames that it sends arrive as if by DMA.

pub mod counted;
pub mod geometry;
mod lackey;
pub mod model;
mod observer;
pub mod places;
mod subject;
mod trace;

pub use subject::run as run_subject;
pub use trace::{Backend, arguments, available, first_guess, of_program};

use geometry::Caches;
use model::{Miss, Outcome};
use places::Component;
use serde::{Deserialize, Serialize};

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
pub struct Part {
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
    pub parts: Vec<Part>,
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

/// A traced run through the caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modelled {
    /// Virtual cores.
    pub cores: usize,
    /// Payload bytes acknowledged while counting.
    pub bytes: u64,
    /// Seed of the interleaving.
    pub seed: u64,
    /// Lines of the trace, set-up included.
    pub lines: u64,
    /// Instructions under test while counting.
    pub instructions: u64,
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
        let of = |p: &&Part| component.is_none_or(|c| p.component == c);
        let parts = &self.machines.get(machine)?.parts;
        let misses: u64 = parts.iter().filter(of).map(|p| p.counts.misses(kind)).sum();
        (self.bytes > 0).then(|| misses as f64 * KB / self.bytes as f64)
    }
}

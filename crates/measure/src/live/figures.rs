//! What is shown of a run: of a moment, or of all of it.

use super::{Perimeter, Seen};
use crate::{
    stats::median,
    workload::{Locks, SEGMENT, Sample},
};

/// A class of locks.
#[derive(Debug, Clone, PartialEq)]
pub struct LockRates {
    /// Name of the class.
    pub class: String,
    /// Acquisitions per second.
    pub taken: f64,
    /// Contended acquisitions per second.
    pub contended: f64,
}

impl LockRates {
    fn of(lock: &Locks, ns: f64) -> LockRates {
        let per_second = |n: u64| n as f64 * 1e9 / ns;
        LockRates {
            class: lock.class.clone(),
            taken: per_second(lock.acquisitions),
            contended: per_second(lock.contended),
        }
    }

    /// Contended acquisitions as a share of all.
    pub fn share(&self) -> f64 {
        match self.taken > 0.0 {
            true => self.contended / self.taken,
            false => 0.0,
        }
    }
}

/// The figures of a moment, of a run, or of several; `None` is what nobody can tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Payload, Mb/s.
    pub goodput_mbps: Option<f64>,
    /// Rounds per second, or connections from opening to close, where there are such.
    pub rounds: Option<f64>,
    /// Cores that this process, and the kernel's interrupt threads, use.
    pub cores: Option<f64>,
    /// Their processor time per [`SEGMENT`] bytes of payload, in ns.
    pub ns_per_segment: Option<f64>,
    /// Threads within the organization's [`Perimeter`]s at a time, on average.
    pub occupancy: Option<f64>,
    /// Locks by class, those with most contended acquisitions first.
    pub locks: Vec<LockRates>,
}

impl Figures {
    /// Of what was `seen` in a span of so many ns, in which the process used `cpu_ns`.
    pub(super) fn seen(seen: &Seen, perimeter: Option<Perimeter>, cpu_ns: u64, ns: f64) -> Figures {
        let cores = (!seen.elsewhere).then_some(cpu_ns as f64 / ns.max(1.0));
        let segments = seen.goodput.map(|g| g / SEGMENT as f64);
        let each = cores.zip(segments.filter(|s| *s > 0.0));
        let window = (seen.window_ns as f64).max(1.0);
        let figures = Figures {
            goodput_mbps: seen.goodput.map(mbps),
            rounds: seen.rounds,
            cores,
            ns_per_segment: each.map(|(cores, segments)| cores * 1e9 / segments),
            occupancy: perimeter.and_then(|p| p.occupancy(seen)),
            locks: seen
                .locks
                .iter()
                .map(|l| LockRates::of(l, window))
                .collect(),
        };
        figures.sorted()
    }

    /// Of a complete run. No sample has its occupancy.
    pub(super) fn measured(sample: &Sample, occupancy: Option<f64>) -> Figures {
        let ns = (sample.elapsed.as_nanos() as f64).max(1.0);
        let cpu = sample.cpu_ns as f64;
        let figures = Figures {
            goodput_mbps: Some(mbps(sample.goodput)),
            rounds: (sample.rounds > 0).then_some(sample.rounds as f64 * 1e9 / ns),
            cores: Some(cpu / ns),
            ns_per_segment: (sample.segments > 0.0).then_some(cpu / sample.segments),
            occupancy,
            locks: sample.locks.iter().map(|l| LockRates::of(l, ns)).collect(),
        };
        figures.sorted()
    }

    /// Of several runs: the median of each, and the sums of the locks' counts.
    pub(super) fn medians(runs: &[Figures]) -> Figures {
        let of = |one: fn(&Figures) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(one).collect();
            median(&values)
        };
        let mut locks: Vec<LockRates> = Vec::new();
        for lock in runs.iter().flat_map(|r| &r.locks) {
            match locks.iter_mut().find(|sum| sum.class == lock.class) {
                Some(sum) => {
                    sum.taken += lock.taken;
                    sum.contended += lock.contended;
                }
                None => locks.push(lock.clone()),
            }
        }
        let figures = Figures {
            goodput_mbps: of(|f| f.goodput_mbps),
            rounds: of(|f| f.rounds),
            cores: of(|f| f.cores),
            ns_per_segment: of(|f| f.ns_per_segment),
            occupancy: of(|f| f.occupancy),
            locks,
        };
        figures.sorted()
    }

    /// The class of locks with the most contended acquisitions.
    pub fn hottest(&self) -> Option<&LockRates> {
        self.locks.first()
    }

    fn sorted(mut self) -> Figures {
        self.locks
            .sort_by(|a, b| b.contended.total_cmp(&a.contended));
        self
    }
}

/// Bytes per second as Mb/s.
fn mbps(bytes: f64) -> f64 {
    bytes * 8.0 / 1e6
}

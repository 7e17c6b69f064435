//! Many seeds of one program.

use std::collections::HashSet;
use std::ops::Range;

use super::config::{RunError, Schedule, VirtualConfig};
use super::{Report, Virtual};

/// What an exploration has seen.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Explored {
    /// Runs made.
    pub runs: u64,
    /// Different runs among them, by trace hash.
    pub distinct: u64,
    /// Scheduling points of the longest run.
    pub longest: u64,
    /// Scheduling points of all runs.
    pub steps: u64,
}

/// Runs `main` once per seed, on the calling OS thread, up to the first failure. `check` judges
/// each result.
///
/// Under [`Schedule::Pct`] the estimate of a run's length follows the longest run so far, from
/// `cfg.pct_steps` on; what a seed does depends on it, so a failure is replayed from its
/// [`RunError::config`], not from the seed alone.
///
/// # Errors
/// The first failure.
///
/// # Panics
/// If `check` does; print the seed there.
pub fn explore<R, F>(
    cfg: &VirtualConfig,
    seeds: Range<u64>,
    main: F,
    mut check: impl FnMut(&VirtualConfig, R, &Report),
) -> Result<Explored, RunError>
where
    R: Send + 'static,
    F: FnOnce(Virtual) -> R + Clone + Send + 'static,
{
    let mut cfg = cfg.clone();
    let mut seen = HashSet::new();
    let mut all = Explored::default();
    for seed in seeds {
        cfg.seed = seed;
        let (result, report) = Virtual::run(cfg.clone(), main.clone())?;
        all.runs += 1;
        all.steps += report.steps;
        all.longest = all.longest.max(report.steps);
        seen.insert(report.trace_hash);
        check(&cfg, result, &report);
        if matches!(cfg.schedule, Schedule::Pct { .. }) {
            cfg.pct_steps = all.longest.max(1);
        }
    }
    all.distinct = seen.len() as u64;
    Ok(all)
}

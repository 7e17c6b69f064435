//! What is asked of a prediction, and the runs of its points on virtual cores, each made once.

use super::{
    effort::Effort,
    machine::{Group, Machine},
    pool,
    simulate::{Simulated, simulate_all},
};
use crate::{
    Error,
    plan::{Cell, Mode},
    workload::{Configuration, Settings},
};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    iter,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// By what each group of costs is multiplied and divided.
const VARIED: f64 = 1.5;

/// Runs of a point, each with a seed of its own, where most of a run is over before anything counts.
const MOST_RUNS: usize = 2;

/// What is asked.
#[derive(Debug)]
pub struct Question {
    /// The machine.
    pub machine: Machine,
    /// Numbers of cores, ascending.
    pub cores: Vec<usize>,
    /// Which values of the plan's axis.
    pub mode: Mode,
    /// How often each point is looked at with the table as it is: each time in a run with a seed of
    /// its own where there are few connections, in two such runs where there are more, and in one
    /// where there are many.
    pub seeds: u64,
    /// Whether the table is varied, for a band.
    pub band: bool,
    /// How much each run does.
    pub effort: Effort,
    /// What has been run for it.
    pub made: Made,
}

/// Runs of a point.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// With the table as it is.
    pub(super) plain: Vec<Simulated>,
    /// With groups of costs varied.
    pub(super) varied: Vec<Simulated>,
}

/// Runs that were made for one question, by what they are of: plans have many points in common.
#[derive(Debug, Default)]
pub struct Made(Mutex<HashMap<String, Found>>);

/// The runs of a point, or why it can't be simulated.
pub(super) type Found = Arc<Result<Runs, Error>>;

impl Made {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the runs of `points`, of which many may be the same. The longest begin first, lest all cores
/// but one are idle at the end. Tells how many of how many are made.
pub(super) fn make_all(
    question: &Question,
    points: &[(usize, Cell)],
    told: impl Fn(usize, usize) + Sync,
) {
    let mut seen = HashSet::new();
    let first = |(cores, cell): &&(usize, Cell)| seen.insert(name(question, *cores, cell));
    let mut points: Vec<&(usize, Cell)> = points.iter().filter(first).collect();
    points.sort_by_key(|(cores, cell)| Reverse(length(question, *cores, cell)));
    let (made, all) = (AtomicUsize::new(0), points.len());
    pool::each(&points, |(cores, cell)| {
        runs(question, *cores, cell);
        told(made.fetch_add(1, Ordering::Relaxed) + 1, all);
    });
}

/// About how many segments are simulated for a point.
fn length(question: &Question, cores: usize, cell: &Cell) -> u64 {
    let settings = question.machine.settings(cell);
    let parts = question.seeds + if question.band { 8 } else { 0 };
    let of = &cell.configuration;
    let how = (cores, parts);
    let effort = &question.effort;
    effort.length(&question.machine, &settings, of, how)
}

/// What tells one simulation from another.
fn name(question: &Question, cores: usize, cell: &Cell) -> String {
    // Without what makes no difference to a simulation.
    let essential = Settings {
        organizations: Vec::new(),
        connections: Vec::new(),
        seconds: Duration::ZERO,
        repeat: 0,
        quick: false,
        ..question.machine.settings(cell)
    };
    format!("{essential:?} {:?} {cores}", cell.configuration)
}

/// The runs of a cell, unless they were made before.
pub(super) fn runs(question: &Question, cores: usize, cell: &Cell) -> Found {
    let name = name(question, cores, cell);
    if let Some(made) = question.made.all().get(&name) {
        return made.clone();
    }
    let settings = question.machine.settings(cell);
    let made = Arc::new(make(question, cores, &settings, &cell.configuration));
    question.made.all().insert(name, made.clone());
    made
}

fn make(
    question: &Question,
    cores: usize,
    settings: &Settings,
    configuration: &Configuration,
) -> Result<Runs, Error> {
    let table = question.machine.peer_elsewhere();
    let varied = match question.band {
        true => varied(&table),
        false => Vec::new(),
    };
    let times = question.seeds.max(1) as usize;
    // Which of few connections share a thread or a lock is a matter of the seed. With more of them
    // that evens out, and most of a run is over before anything counts: so each is looked at
    // several times.
    let (effort, connections) = (&question.effort, configuration.connections);
    let runs = if effort.is_short(connections) {
        times
    } else if effort.is_long(connections) {
        1
    } else {
        times.min(MOST_RUNS)
    };
    let mut made = Runs::default();
    for run in 0..runs {
        let looks = (times + run) / runs;
        // The first goes on with other costs.
        let after = if run == 0 { varied.as_slice() } else { &[] };
        let machines: Vec<&Machine> = iter::repeat_n(&table, looks).chain(after).collect();
        let seed = run as u64 + 1;
        let how = (seed, question.effort);
        let mut all = simulate_all(&machines, settings, configuration, cores, how)?;
        made.varied.extend(all.split_off(looks.min(all.len())));
        made.plain.extend(all);
    }
    Ok(made)
}

/// A machine with each group of costs larger, and smaller.
fn varied(table: &Machine) -> Vec<Machine> {
    let groups = Group::ALL.into_iter();
    groups
        .flat_map(|g| [VARIED, 1.0 / VARIED].map(|factor| table.varied(g, factor)))
        .collect()
}

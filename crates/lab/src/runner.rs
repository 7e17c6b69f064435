//! Carries plans out: every configuration in turns, each run recorded before the next begins.

use crate::{
    Error,
    bench::report::{Asked, Build},
    host::{Host, apart},
    plan::{Cell, Mode, Plan},
    record::{Folder, Header, Measured, Outcome, Row, SCHEMA, Stored},
    session::{self, Backend, Traits},
    stats::shuffle,
    workload::Device,
};
use perimeter_base::rng::SplitMix64;
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

mod further;
mod passes;

use passes::Passes;

/// Failures after which a configuration is given up.
const PATIENCE: u32 = 2;

/// Expected time of runs before what they took is believed.
const LEARN: Duration = Duration::from_secs(5);

/// What is to be carried out.
#[derive(Debug, Clone)]
pub struct Request {
    /// The plans, in order.
    pub plans: Vec<Plan>,
    /// How much time.
    pub mode: Mode,
    /// Device of our organizations in place of the plans'.
    pub device: Option<Device>,
    /// Seed of the order of runs.
    pub seed: u64,
    /// The program.
    pub build: Build,
    /// For how long, after the plans' passes, further ones are made for want of near or of far
    /// cores.
    pub more: Duration,
}

impl Request {
    /// The header of a folder for it.
    pub fn header(&self) -> Header {
        Header {
            schema: SCHEMA.into(),
            mode: self.mode,
            device: self.device,
            seed: self.seed,
            plans: self.plans.iter().map(|p| p.name.clone()).collect(),
            host: Host::read(),
            build: self.build.clone(),
            started_unix: now(),
        }
    }

    /// The request that a folder was made for, if this one agrees with it: a folder is gone on
    /// with as it was begun, with its own seed. `seed` is the one that was asked for, if any.
    ///
    /// # Errors
    /// [`Error::Input`] with what differs.
    pub fn joined(mut self, stored: &Stored, seed: Option<u64>) -> Result<Request, Error> {
        let header = &stored.header;
        let differ = |what: &str, had: String, has: String| {
            Err(Error::Input(format!(
                "--resume: this folder holds {what} {had}, not {has}"
            )))
        };
        let plans = if header.plans.len() == 1 {
            "the plan"
        } else {
            "the plans"
        };
        let names: Vec<&str> = self.plans.iter().map(|p| &*p.name).collect();
        if names != header.plans {
            return differ(plans, header.plans.join(", "), names.join(", "));
        }
        if header.mode != self.mode {
            return differ("the mode", header.mode.to_string(), self.mode.to_string());
        }
        if header.device != self.device {
            let name = |d: Option<Device>| d.map_or("as planned".into(), |d| d.to_string());
            return differ("the device", name(header.device), name(self.device));
        }
        if header.build != self.build {
            let name = |b: &Build| format!("{} {}", b.version, b.commit.as_deref().unwrap_or("?"));
            return differ("version", name(&header.build), name(&self.build));
        }
        for (mine, stored) in self.plans.iter().zip(&stored.plans) {
            if mine.text_here() != stored.text {
                return Err(Error::Input(format!(
                    "--resume: the plan `{}` has changed since the folder was begun",
                    mine.name
                )));
            }
        }
        if let Some(seed) = seed.filter(|seed| *seed != header.seed) {
            return differ("seed", header.seed.to_string(), seed.to_string());
        }
        self.seed = header.seed;
        Ok(self)
    }

    /// Roughly how long the plans' passes take.
    pub fn estimate(&self) -> Duration {
        self.plans.iter().map(|p| p.estimate(self.mode)).sum()
    }
}

/// A run that is about to begin.
#[derive(Debug)]
pub struct Step<'a> {
    /// Runs before this one, those of earlier processes included.
    pub done: usize,
    /// All runs.
    pub of: usize,
    /// Its plan.
    pub plan: &'a Plan,
    /// Its configuration.
    pub cell: &'a Cell,
    /// Estimate of what is left, this run included.
    pub left: Duration,
}

/// Told what happens.
pub trait Watcher {
    /// A run begins.
    fn begins(&mut self, step: &Step<'_>);
    /// Something to be told at once: a configuration that can't run, a run that failed.
    fn remark(&mut self, line: &str);
    /// Whether no further run is to begin. Asked before each.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Runs that measured something.
    pub measured: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Configurations that this machine or process can't run.
    pub unavailable: usize,
    /// Runs that were there already.
    pub present: usize,
    /// The watcher ended it before all was done.
    pub stopped: bool,
}

/// Makes the backend of a cell; another one in tests.
pub type Backends<'a> = &'a mut dyn FnMut(&Cell) -> Box<dyn Backend>;

/// Carries out `request`, adding to `folder`; `present` are the rows that it has.
///
/// Each plan runs by itself, in passes over all its cells. Every pass has an order of its own,
/// drawn from the seed, so that neither a drift of the machine nor what ran just before falls on
/// the same configurations each time.
///
/// Then come further passes, for as long as [`Request::more`] allows: whenever the cores are near, of
/// what lacks runs with near cores, and so for far ones. A verdict needs as many runs of one kind as
/// [`ENOUGH`](crate::stats::ENOUGH) says, and compares runs of one pass.
///
/// Ends between two runs once the watcher says so. What fails in the run meanwhile is not recorded:
/// the key that stops this program stops the peers' programs too.
///
/// # Errors
/// That a row can't be recorded. Runs that fail are recorded as such, and the others go on.
pub fn run(
    request: &Request,
    folder: &mut Folder,
    present: &[Row],
    watcher: &mut dyn Watcher,
) -> Result<Summary, Error> {
    let mut backends = Cell::backend;
    run_with(request, folder, present, watcher, &mut backends)
}

/// As [`run`], with backends of the caller's choice.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    request: &Request,
    folder: &mut Folder,
    present: &[Row],
    watcher: &mut dyn Watcher,
    backends: Backends<'_>,
) -> Result<Summary, Error> {
    Runner::new(request, folder, present, watcher).carry_out(&mut apart::round_trip, backends)
}

struct Runner<'a> {
    request: &'a Request,
    folder: &'a mut Folder,
    watcher: &'a mut dyn Watcher,
    present: HashSet<(&'a str, &'a str, u64, u32)>,
    host: Host,
    summary: Summary,
    done: usize,
    of: usize,
    left: Duration,
    /// Time of the runs so far, and what they were expected to take.
    spent: Duration,
    expected: Duration,
    /// How often a point has failed.
    failures: HashMap<Point, u32>,
    /// The passes in which a point was measured.
    passes: HashMap<Point, Passes>,
}

/// A plan, a label, and a place on the x axis.
type Point = (String, String, u64);

fn point(plan: &Plan, cell: &Cell) -> Point {
    let label = plan.series[cell.series].label.clone();
    (plan.name.clone(), label, cell.x)
}

impl<'a> Runner<'a> {
    fn new(
        request: &'a Request,
        folder: &'a mut Folder,
        present: &'a [Row],
        watcher: &'a mut dyn Watcher,
    ) -> Runner<'a> {
        let mut passes: HashMap<Point, Passes> = HashMap::new();
        let measured = || present.iter().filter_map(|r| Some((r, r.measured()?)));
        for (row, m) in measured() {
            let point = (row.plan.clone(), row.series.clone(), row.x);
            let passes = passes.entry(point).or_default();
            passes.add(row.repeat, m.raw.core_round_trip_ns);
        }
        Runner {
            request,
            folder,
            watcher,
            present: measured().map(|(r, _)| r.key()).collect(),
            host: Host::read(),
            summary: Summary::default(),
            done: 0,
            of: 0,
            left: Duration::ZERO,
            spent: Duration::ZERO,
            expected: Duration::ZERO,
            failures: HashMap::new(),
            passes,
        }
    }

    /// All passes; `look` tells how far apart the cores are.
    fn carry_out(
        mut self,
        look: &mut dyn FnMut() -> Option<f64>,
        backends: Backends<'_>,
    ) -> Result<Summary, Error> {
        let (mode, device) = (self.request.mode, self.request.device);
        for plan in &self.request.plans {
            let cells = plan.cells(mode, device)?;
            let repeats = plan.repeats(mode);
            self.of += cells.len() * repeats as usize;
            self.left += cells.iter().map(Cell::estimate).sum::<Duration>() * repeats;
        }
        self.folder.record_sends(&self.request.plans)?;
        for plan in &self.request.plans {
            self.plan(plan, backends)?;
            if self.summary.stopped {
                return Ok(self.summary);
            }
        }
        self.further(look, backends)?;
        Ok(self.summary)
    }

    fn plan(&mut self, plan: &Plan, backends: Backends<'_>) -> Result<(), Error> {
        let cells = plan.cells(self.request.mode, self.request.device)?;
        let mut running: Vec<Option<Box<dyn Backend>>> = Vec::new();
        for cell in &cells {
            running.push(self.ready(plan, cell, backends(cell))?);
        }
        for repeat in 0..plan.repeats(self.request.mode) {
            for index in order(cells.len(), self.request.seed, &plan.name, repeat) {
                if self.is_stopped() {
                    return Ok(());
                }
                let cell = &cells[index];
                let label = &*plan.series[cell.series].label;
                let there = self.present.contains(&(&*plan.name, label, cell.x, repeat));
                self.summary.present += usize::from(there);
                let given_up = self.is_given_up(&point(plan, cell));
                if let Some(backend) = running[index]
                    .as_deref_mut()
                    .filter(|_| !there && !given_up)
                {
                    self.once(plan, cell, repeat, backend)?;
                }
                self.done += 1;
                self.left = self.left.saturating_sub(cell.estimate());
            }
        }
        Ok(())
    }

    /// Whether no further run is to begin; then the summary says so.
    fn is_stopped(&mut self) -> bool {
        self.summary.stopped |= self.watcher.is_stopped();
        self.summary.stopped
    }

    fn is_given_up(&self, point: &Point) -> bool {
        self.failures.get(point).is_some_and(|n| *n >= PATIENCE)
    }

    /// The backend if it can run the cell; else a row says why not.
    fn ready(
        &mut self,
        plan: &Plan,
        cell: &Cell,
        mut backend: Box<dyn Backend>,
    ) -> Result<Option<Box<dyn Backend>>, Error> {
        let configuration = std::slice::from_ref(&cell.configuration);
        let Err(e) = backend.check(&cell.settings, configuration) else {
            return Ok(Some(backend));
        };
        self.summary.unavailable += 1;
        let label = &plan.series[cell.series].label;
        self.watcher.remark(&format!(
            "{}: {label} at {} can't run here: {e}",
            plan.name, cell.x
        ));
        let outcome = Outcome::Unavailable(e.to_string());
        let row = self.row(plan, cell, 0, now(), Traits::default(), outcome);
        self.folder.append(&row)?;
        Ok(None)
    }

    /// One run.
    fn once(
        &mut self,
        plan: &Plan,
        cell: &Cell,
        repeat: u32,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        self.watcher.begins(&Step {
            done: self.done,
            of: self.of,
            plan,
            cell,
            left: self.left.mul_f64(self.pace()),
        });
        let (started, begun) = (now(), Instant::now());
        let run = session::once(
            backend,
            &cell.settings,
            &cell.configuration,
            cell.slot,
            None,
            None,
        );
        let outcome = match run {
            Ok((sample, _)) => {
                self.summary.measured += 1;
                let passes = self.passes.entry(point(plan, cell)).or_default();
                passes.add(repeat, sample.core_round_trip_ns);
                Outcome::Measured(Box::new(Measured::from(&sample)))
            }
            Err(_) if self.watcher.is_stopped() => return Ok(()),
            Err(e) => {
                self.summary.failed += 1;
                *self.failures.entry(point(plan, cell)).or_default() += 1;
                self.watcher.remark(&format!("{}: {e}", plan.name));
                Outcome::Failed(e.to_string())
            }
        };
        let traits = backend.traits(&cell.settings, &cell.configuration);
        let row = self.row(plan, cell, repeat, started, traits, outcome);
        self.folder.append(&row)?;
        self.spent += begun.elapsed();
        self.expected += cell.estimate();
        Ok(())
    }

    /// How much longer runs take than expected, as far as is known.
    fn pace(&self) -> f64 {
        let ratio = self.spent.as_secs_f64() / self.expected.as_secs_f64().max(1e-3);
        match self.expected < LEARN {
            true => 1.0,
            false => ratio.clamp(0.5, 10.0),
        }
    }

    fn row(
        &self,
        plan: &Plan,
        cell: &Cell,
        repeat: u32,
        started_unix: u64,
        traits: Traits,
        outcome: Outcome,
    ) -> Row {
        Row {
            plan: plan.name.clone(),
            series: plan.series[cell.series].label.clone(),
            org: cell.configuration.organization.to_string(),
            x: cell.x,
            repeat,
            outcome,
            device: traits.device,
            inbound: traits.inbound,
            comparable: traits.comparable,
            notes: traits.notes,
            threads: cell.configuration.threads,
            settings: Asked::from(&cell.settings),
            seed: self.request.seed,
            started_unix,
            build: self.request.build.clone(),
            host: self.host.clone(),
        }
    }
}

/// Order of the cells in one pass: the same for the same seed, plan and pass.
fn order(cells: usize, seed: u64, plan: &str, repeat: u32) -> Vec<usize> {
    // FNV-1a, so that two plans have orders of their own.
    let name = plan.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut order: Vec<usize> = (0..cells).collect();
    let mut rng = SplitMix64::new(seed ^ name);
    // The generator's steps are a constant apart, so each pass starts from a drawn state.
    for _ in 0..repeat {
        rng = SplitMix64::new(rng.next());
    }
    shuffle(&mut order, &mut rng);
    order
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests;

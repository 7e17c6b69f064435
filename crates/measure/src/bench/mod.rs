//! The command `bench`: a grid of configurations, interleaved, within a time if that is asked for.

pub mod answer;
pub mod compare;
pub mod grid;
pub mod progress;
pub mod recommend;
pub mod report;
pub mod short;
pub mod table;

use crate::{
    Error,
    host::Host,
    live::Feed,
    organizations::Organization,
    session::{self, Backend, Slot},
    workload::{Configuration, Sample, Settings},
};
use grid::Budget;
use progress::{Observer, Run};
use report::{Build, Report};
use std::time::{Duration, Instant, SystemTime};

/// Runs the whole benchmark. `started` is when the command began: the bound of a quick run counts
/// from there.
///
/// # Errors
/// [`Error::Input`] and [`Error::Unavailable`] come before anything has run. [`Error::Late`] leaves that
/// configuration out ([`Report::failed`]), unless there is no other; others end the benchmark.
pub fn bench(
    settings: &Settings,
    build: Build,
    started: Instant,
    observer: &mut dyn Observer,
) -> Result<Report, Error> {
    settings.check()?;
    let (grid, backends, absent) = there(settings)?;
    let begun = SystemTime::now();
    let mut bench = Bench {
        settings,
        started,
        budget: Budget::new(settings),
        set_up: grid.iter().map(session::first_guess).collect(),
        samples: vec![Vec::new(); grid.len()],
        skipped: vec![false; grid.len()],
        failed: vec![None; grid.len()],
        backends,
        grid,
    };
    observer.planned(&bench.grid, settings.repeat);
    let outcome = bench.run(observer);
    observer.done();
    let made = outcome?;
    if bench.samples.iter().all(Vec::is_empty)
        && let Some(why) = bench.failed.iter().flatten().next()
    {
        return Err(Error::Late(why.clone()));
    }
    let rows = bench
        .grid
        .iter()
        .zip(&bench.backends)
        .zip(&bench.samples)
        .filter(|(_, samples)| !samples.is_empty())
        .map(|((c, b), samples)| {
            let mut traits = b.traits(settings, c);
            if c.threads < settings.threads && !c.organization.is_null() {
                traits.notes.push(format!(
                    "{} is one thread; --threads applies to the other rows",
                    c.organization
                ));
            }
            report::row(settings, c, &traits, samples)
        })
        .collect();
    let mut notes = bench.notes(made);
    notes.extend(absent);
    let report = Report::new(settings, build, Host::read(), begun, rows, notes);
    let failed = bench.failures();
    Ok(Report { failed, ..report })
}

/// The configurations that can run here with their backends, and what is to be said of other
/// stacks that are not to be had here: they are left out.
fn there(settings: &Settings) -> Result<Present, Error> {
    let (mut grid, mut backends) = (Vec::new(), Vec::<Box<dyn Backend>>::new());
    let mut absent = Vec::new();
    for configuration in grid::grid(settings) {
        let mut backend = crate::backends::backend_for(settings, &configuration);
        match backend.check(settings, std::slice::from_ref(&configuration)) {
            Err(Error::Unavailable(why))
                if matches!(configuration.organization, Organization::Other(_)) =>
            {
                let note = format!("not measured here: {why}");
                if !absent.contains(&note) {
                    absent.push(note);
                }
                continue;
            }
            checked => checked?,
        }
        grid.push(configuration);
        backends.push(backend);
    }
    match absent.first() {
        Some(note) if grid.is_empty() => Err(Error::Unavailable(note.clone())),
        _ => Ok((grid, backends, absent)),
    }
}

type Present = (Vec<Configuration>, Vec<Box<dyn Backend>>, Vec<String>);

struct Bench<'a> {
    settings: &'a Settings,
    started: Instant,
    budget: Budget,
    grid: Vec<Configuration>,
    backends: Vec<Box<dyn Backend>>,
    set_up: Vec<Duration>,
    samples: Vec<Vec<Sample>>,
    skipped: Vec<bool>,
    /// Why a configuration could not be prepared, and is not tried again.
    failed: Vec<Option<String>>,
}

/// Which runs were made.
#[derive(Debug, Clone, Copy)]
enum Made {
    /// So many passes were complete or begun.
    Passes(u32),
    /// Who watched stopped them.
    Stopped,
}

impl Bench<'_> {
    /// All passes.
    fn run(&mut self, observer: &mut dyn Observer) -> Result<Made, Error> {
        let order = grid::interleaved(self.grid.len(), self.settings.repeat);
        let mut passes = 0;
        for (number, &(pass, index)) in order.iter().enumerate() {
            if pass == passes {
                let fits = self.budget.pass_fits(self.started.elapsed(), &self.set_up);
                if pass > 0 && !fits {
                    break;
                }
                passes += 1;
            }
            // The rest of this pass shares the time, and so do later passes as long as each run
            // can have a good length: half the time is kept for them.
            let rest: Vec<Duration> = order[number..]
                .iter()
                .map(|&(_, i)| self.set_up[i])
                .collect();
            let this_pass = order[number..].iter().filter(|o| o.0 == pass).count();
            let slot = self
                .budget
                .slot(self.started.elapsed(), &rest)
                .filter(|_| rest.len() == this_pass || self.room_for(&rest))
                .or_else(|| self.budget.slot(self.started.elapsed(), &rest[..this_pass]));
            let Some(slot) = slot else {
                self.skipped[index] = self.samples[index].is_empty();
                continue;
            };
            if self.failed[index].is_some() {
                continue;
            }
            observer.started(&Run {
                number: number + 1,
                of: order.len(),
                configuration: &self.grid[index],
                slot,
                left: rest.iter().sum::<Duration>()
                    + (slot.warm_up + slot.measure) * rest.len() as u32,
            });
            let sample = match self.once(index, slot, observer.feed()) {
                // A machine that is busy with other things: left out, not failed.
                Err(Error::Late(_)) if self.budget.limit().is_some() => {
                    self.skipped[index] = self.samples[index].is_empty();
                    continue;
                }
                // What others have shown, or will, is worth a report.
                Err(Error::Late(why)) if self.grid.len() > 1 => {
                    self.failed[index] = Some(why);
                    continue;
                }
                // What is complete is worth a report.
                Err(Error::Stopped) if self.samples.iter().any(|s| !s.is_empty()) => {
                    return Ok(Made::Stopped);
                }
                sample => sample?,
            };
            observer.finished(&sample);
            self.samples[index].push(sample);
        }
        Ok(Made::Passes(passes))
    }

    /// Whether all runs of `rest` fit at twice the shortest length.
    fn room_for(&self, rest: &[Duration]) -> bool {
        let Some(limit) = self.budget.limit() else {
            return true;
        };
        let need: Duration = rest.iter().sum::<Duration>() + 2 * grid::SHORTEST * rest.len() as u32;
        self.started.elapsed() + need <= limit
    }

    fn once(&mut self, index: usize, slot: Slot, feed: Option<&Feed>) -> Result<Sample, Error> {
        let configuration = &self.grid[index];
        let deadline = self.budget.limit().map(|l| self.started + l);
        let backend = &mut *self.backends[index];
        let (sample, overhead) =
            session::once(backend, self.settings, configuration, slot, deadline, feed)?;
        self.set_up[index] = overhead;
        Ok(sample)
    }

    /// What could not be prepared, and why.
    fn failures(&self) -> Vec<String> {
        let of = |why: &String| format!("not measured: {why}");
        self.failed.iter().flatten().map(of).collect()
    }

    fn notes(&self, made: Made) -> Vec<String> {
        let mut notes = Vec::new();
        let limit = grid::QUICK.as_secs();
        let repeat = self.settings.repeat;
        match made {
            Made::Passes(passes) if passes < repeat => {
                notes.push(format!(
                    "--quick: {passes} of {repeat} repeats fit into {limit} s"
                ));
            }
            Made::Passes(_) => {}
            Made::Stopped => notes.push(format!(
                "stopped: {} of {} runs were complete",
                self.samples.iter().map(Vec::len).sum::<usize>(),
                self.grid.len() * repeat as usize
            )),
        }
        let skipped: Vec<String> = self
            .grid
            .iter()
            .zip(&self.skipped)
            .filter(|(_, skipped)| **skipped)
            .map(|(c, _)| format!("{} × {}", c.organization, c.connections))
            .collect();
        if !skipped.is_empty() {
            notes.push(format!(
                "--quick: not measured, as {limit} s are too short for a meaningful number: {}; \
                 list fewer configurations or leave --quick out",
                skipped.join(", ")
            ));
        }
        notes
    }
}

//! `cargo soak`: two stacks back to back in virtual time, over many seeds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use perimeter::OrgSpec;
use perimeter_sim::{Capacity, Mix, Outcome, RunError, Scenario, run, run_traced};
use serde_json::json;

use crate::many::{self, Done, Limits, Only};

/// What to run.
#[derive(ClapArgs)]
pub struct Args {
    /// Seeds of each combination of organization, fault mix, cores and capacity.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Organizations.
    #[arg(long, value_delimiter = ',', default_values_t = OrgSpec::tested())]
    org: Vec<OrgSpec>,
    /// Fault mixes; all unless given.
    #[arg(long, value_delimiter = ',')]
    mix: Vec<Mix>,
    /// Numbers of virtual cores.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    cores: Vec<usize>,
    /// Capacities.
    #[arg(long, value_delimiter = ',', default_value = "normal,shrunken")]
    capacity: Vec<Capacity>,
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    limits: Limits,
    /// Where to write the summary, as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Runs one scenario, as a failure prints it, and shows its traffic.
    #[arg(long, value_name = "SCENARIO")]
    replay: Option<Scenario>,
    /// Lines of traffic to show with `--replay`.
    #[arg(long, default_value_t = 400)]
    lines: usize,
}

/// One organization, mix, number of cores and capacity.
#[derive(Clone)]
struct Cell {
    org: OrgSpec,
    mix: Mix,
    cores: usize,
    capacity: Capacity,
}

/// What the runs of a cell add up to.
#[derive(Clone, Default)]
struct Sum {
    runs: u64,
    failures: u64,
    steps: u64,
    virtual_ns: u64,
    checked: u64,
    segments: u64,
    retransmits: u64,
    faults: u64,
}

impl Sum {
    fn add(&mut self, o: &Outcome) {
        let f = &o.faults;
        self.runs += 1;
        self.steps += o.steps;
        self.virtual_ns += o.virtual_time.nanos();
        self.checked += o.checked;
        self.segments += o.segments;
        self.retransmits += o.retransmits;
        self.faults += f.lost + f.duplicated + f.reordered + f.corrupted + f.fcs_dropped;
    }
}

struct Soak<'a> {
    args: &'a Args,
    cells: Vec<Cell>,
    sums: Mutex<Vec<Sum>>,
}

/// Runs it.
///
/// # Errors
/// Writing the summary.
pub fn run_soak(args: &Args) -> Result<ExitCode> {
    if let Some(sc) = &args.replay {
        return Ok(replay(sc, args.lines));
    }
    let soak = Soak::new(args);
    let total = soak.cells.len() * args.seeds as usize;
    let done = many::run(&args.limits, total, |n| soak.one(n));
    for f in &done.failures {
        println!("{f}\n");
    }
    println!(
        "{} runs, {} failures, {:.0} s",
        done.runs,
        done.failures.len(),
        done.seconds
    );
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&soak.summary(&done))?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(if done.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn replay(sc: &Scenario, lines: usize) -> ExitCode {
    match run_traced(sc, lines) {
        Ok(o) => {
            println!("passes: {o:?}");
            ExitCode::SUCCESS
        }
        Err(f) => {
            println!("{f}");
            ExitCode::FAILURE
        }
    }
}

impl<'a> Soak<'a> {
    fn new(args: &'a Args) -> Soak<'a> {
        let mixes = if args.mix.is_empty() {
            Mix::ALL
        } else {
            &args.mix
        };
        let mut cells = Vec::new();
        for org in &args.org {
            for mix in mixes {
                for cores in &args.cores {
                    for capacity in &args.capacity {
                        cells.push(Cell {
                            org: org.clone(),
                            mix: *mix,
                            cores: *cores,
                            capacity: *capacity,
                        });
                    }
                }
            }
        }
        Soak {
            args,
            sums: Mutex::new(vec![Sum::default(); cells.len()]),
            cells,
        }
    }

    /// Run number `n`: seed by seed over all cells.
    fn one(&self, n: usize) -> Result<(), RunError> {
        let (index, offset) = (n % self.cells.len(), (n / self.cells.len()) as u64);
        let c = &self.cells[index];
        // Cells have seeds of their own, so that each draws its own workloads.
        let seed = (self.args.first + offset).wrapping_mul(4096) + index as u64;
        let sc = Scenario::new(c.org.clone(), c.cores, c.mix, c.capacity, seed);
        let sc = self.args.only.of(sc);
        let result = run(&sc);
        if let Ok(mut sums) = self.sums.lock() {
            match &result {
                Ok(o) => sums[index].add(o),
                Err(_) => {
                    sums[index].runs += 1;
                    sums[index].failures += 1;
                }
            }
        }
        result.map(drop)
    }

    fn summary(&self, done: &Done) -> serde_json::Value {
        let sums = self.sums.lock().map(|s| s.clone()).unwrap_or_default();
        let cells = self.cells.iter().zip(&sums).map(|(c, s)| {
            json!({
                "org": c.org.to_string(), "mix": c.mix.name(), "cores": c.cores,
                "capacity": c.capacity.name(), "runs": s.runs, "failures": s.failures,
                "steps": s.steps, "virtual_seconds": s.virtual_ns as f64 / 1e9,
                "bytes_checked": s.checked, "segments": s.segments,
                "retransmits": s.retransmits, "faults": s.faults,
            })
        });
        let mut by_org: BTreeMap<String, u64> = BTreeMap::new();
        for (c, s) in self.cells.iter().zip(&sums) {
            *by_org.entry(c.org.to_string()).or_default() += s.runs;
        }
        json!({
            "seeds": self.args.seeds, "first": self.args.first,
            "runs": done.runs, "seconds": done.seconds,
            "runs_by_org": by_org,
            "failures": done.failures.iter().map(|f| json!({
                "scenario": f.scenario.to_string(), "detail": f.detail,
            })).collect::<Vec<_>>(),
            "cells": cells.collect::<Vec<_>>(),
        })
    }
}

//! `cargo explore`: tiny scenarios under very many schedules, for every organization.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use anyhow::{Context, Result};
use perimeter::OrgSpec;
use perimeter_sim::{Outcome, RunError, Scenario, Schedule, run, run_length};
use serde_json::json;

use crate::many::{self, Done, Limits, Only};

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// Schedules of each organization, over all numbers of cores.
    #[arg(long, default_value_t = 100_000)]
    runs: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Organizations.
    #[arg(long, value_delimiter = ',', default_values_t = OrgSpec::tested())]
    org: Vec<OrgSpec>,
    /// Numbers of virtual cores.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    cores: Vec<usize>,
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    limits: Limits,
    /// Where to write the summary, as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// One organization on one number of cores.
struct Cell {
    org: OrgSpec,
    cores: usize,
    /// Scheduling points to be expected of a run.
    length: OnceLock<u64>,
    sum: Mutex<Sum>,
}

/// What the runs of a cell add up to.
#[derive(Default)]
struct Sum {
    runs: u64,
    pct: u64,
    failures: u64,
    hashes: HashSet<u64>,
    steps: u64,
    longest: u64,
    virtual_ns: u64,
    checked: u64,
    segments: u64,
    retransmits: u64,
    seconds: f64,
    by_workload: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, sc: &Scenario, result: &Result<Outcome, RunError>, seconds: f64) {
        self.runs += 1;
        self.pct += u64::from(matches!(sc.schedule, Schedule::Pct { .. }));
        self.seconds += seconds;
        *self.by_workload.entry(sc.workload.name()).or_default() += 1;
        let Ok(o) = result else {
            self.failures += 1;
            return;
        };
        self.hashes.insert(o.trace_hash);
        self.steps += o.steps;
        self.longest = self.longest.max(o.steps);
        self.virtual_ns += o.virtual_time.nanos();
        self.checked += o.checked;
        self.segments += o.segments;
        self.retransmits += o.retransmits;
    }
}

impl Cell {
    fn one(&self, seed: u64, only: &Only) -> Result<(), RunError> {
        let length = *self
            .length
            .get_or_init(|| run_length(&self.org, self.cores));
        let sc = Scenario::explored(self.org.clone(), self.cores, seed, length);
        let sc = only.of(sc);
        let start = Instant::now();
        let result = run(&sc);
        if let Ok(mut sum) = self.sum.lock() {
            sum.add(&sc, &result, start.elapsed().as_secs_f64());
        }
        result.map(drop)
    }

    fn json(&self) -> serde_json::Value {
        let Ok(s) = self.sum.lock() else {
            return serde_json::Value::Null;
        };
        json!({
            "org": self.org.to_string(), "cores": self.cores, "runs": s.runs,
            "random": s.runs - s.pct, "pct": s.pct, "failures": s.failures,
            "distinct": s.hashes.len(), "steps": s.steps, "longest": s.longest,
            "virtual_seconds": s.virtual_ns as f64 / 1e9, "bytes_checked": s.checked,
            "segments": s.segments, "retransmits": s.retransmits,
            "runs_per_second_and_thread": s.runs as f64 / s.seconds.max(1e-9),
            "runs_by_workload": s.by_workload,
        })
    }
}

/// Runs it.
///
/// # Errors
/// Writing the summary.
pub fn run_explore(args: &Args) -> Result<ExitCode> {
    let mut cells = Vec::new();
    for org in &args.org {
        for &cores in &args.cores {
            cells.push(Cell {
                org: org.clone(),
                cores,
                length: OnceLock::new(),
                sum: Mutex::new(Sum::default()),
            });
        }
    }
    let each = args.runs.div_ceil(args.cores.len().max(1) as u64);
    // Organization by organization: what fails everywhere shows soon, and a run that is cut
    // short has finished with some.
    let total = cells.len() * each as usize;
    let columns = args.cores.len().max(1);
    let done = many::run(&args.limits, total, |n| {
        let block = columns * each as usize;
        let (row, within) = (n / block, n % block);
        let cell = &cells[row * columns + within % columns];
        // Seeds of its own for each number of cores, which makes no difference to some.
        cell.one(args.first + within as u64, &args.only)
    });
    tell(&cells, &done);
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&summary(args, &cells, &done))?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(if done.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn tell(cells: &[Cell], done: &Done) {
    for f in &done.failures {
        println!("{f}\n");
    }
    for c in cells {
        if let Ok(s) = c.sum.lock()
            && s.runs > 0
        {
            println!(
                "{:28} {} cores: {:7} runs, {:7} distinct, {} failures, {:6} steps each, \
                 {:5.0} runs/s a thread",
                c.org.to_string(),
                c.cores,
                s.runs,
                s.hashes.len(),
                s.failures,
                s.steps / s.runs,
                s.runs as f64 / s.seconds.max(1e-9),
            );
        }
    }
    println!(
        "{} runs, {} failures, {:.0} s",
        done.runs,
        done.failures.len(),
        done.seconds
    );
}

fn summary(args: &Args, cells: &[Cell], done: &Done) -> serde_json::Value {
    let mut by_org: BTreeMap<String, u64> = BTreeMap::new();
    for c in cells {
        let runs = c.sum.lock().map_or(0, |s| s.runs);
        *by_org.entry(c.org.to_string()).or_default() += runs;
    }
    json!({
        "runs_per_org": args.runs, "first": args.first, "runs": done.runs,
        "seconds": done.seconds, "runs_by_org": by_org,
        "failures": done.failures.iter().map(|f| json!({
            "scenario": f.scenario.to_string(), "detail": f.detail,
        })).collect::<Vec<_>>(),
        "cells": cells.iter().map(Cell::json).collect::<Vec<_>>(),
    })
}

//! `cargo soak`: two stacks back to back in virtual time, over many seeds.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use clap::Args as ClapArgs;
use perimeter_sim::{Capacity, Failure, Mix, Outcome, Scenario, run, run_traced};
use serde_json::json;

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
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "up,up:shared,connp-l:8,split"
    )]
    org: Vec<String>,
    /// Fault mixes; all unless given.
    #[arg(long, value_delimiter = ',')]
    mix: Vec<Mix>,
    /// Numbers of virtual cores.
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    cores: Vec<usize>,
    /// Capacities; all unless given.
    #[arg(long, value_delimiter = ',')]
    capacity: Vec<Capacity>,
    /// Threads of this machine.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Stops after this many failures.
    #[arg(long, default_value_t = 20)]
    max_failures: usize,
    /// Stops after this long, whatever is left.
    #[arg(long)]
    minutes: Option<u64>,
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
    org: perimeter::OrgSpec,
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
    next: AtomicUsize,
    done: AtomicU64,
    stop: AtomicBool,
    sums: Mutex<Vec<Sum>>,
    failed: Mutex<Vec<Failure>>,
}

/// Runs it.
///
/// # Errors
/// An argument, or writing the summary.
pub fn run_soak(args: &Args) -> Result<ExitCode> {
    if let Some(sc) = &args.replay {
        return Ok(replay(sc, args.lines));
    }
    let soak = Soak::new(args)?;
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..args.jobs.max(1) {
            s.spawn(|| soak.work());
        }
        soak.report(start);
    });
    let failed = soak.failed.lock().map_err(|e| anyhow!("{e}"))?;
    for f in failed.iter() {
        println!("{f}\n");
    }
    let runs = soak.done.load(Ordering::Relaxed);
    let seconds = start.elapsed().as_secs_f64();
    println!("{runs} runs, {} failures, {seconds:.0} s", failed.len());
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&soak.summary(seconds, &failed))?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(if failed.is_empty() {
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
    fn new(args: &'a Args) -> Result<Soak<'a>> {
        let mixes = if args.mix.is_empty() {
            Mix::ALL
        } else {
            &args.mix
        };
        let caps = if args.capacity.is_empty() {
            Capacity::ALL
        } else {
            &args.capacity
        };
        let mut cells = Vec::new();
        for name in &args.org {
            let org: perimeter::OrgSpec = name.parse().map_err(|e| anyhow!("{e}"))?;
            for mix in mixes {
                for cores in &args.cores {
                    for capacity in caps {
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
        Ok(Soak {
            args,
            sums: Mutex::new(vec![Sum::default(); cells.len()]),
            cells,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failed: Mutex::new(Vec::new()),
        })
    }

    fn total(&self) -> usize {
        self.cells.len() * self.args.seeds as usize
    }

    /// Takes runs, seed by seed over all cells, until none is left.
    fn work(&self) {
        // A panic of a virtual thread is reported with its run; its usual noise is not wanted.
        std::panic::set_hook(Box::new(|_| {}));
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= self.total() {
                break;
            }
            let (index, offset) = (n % self.cells.len(), (n / self.cells.len()) as u64);
            let c = &self.cells[index];
            // Cells have seeds of their own, so that each draws its own workloads.
            let seed = (self.args.first + offset).wrapping_mul(4096) + index as u64;
            let sc = Scenario::new(c.org.clone(), c.cores, c.mix, c.capacity, seed);
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
            if let Err(f) = result
                && let Ok(mut failed) = self.failed.lock()
            {
                eprintln!("\nfailed: cargo soak --replay \"{}\"", f.scenario);
                failed.push(f);
                if failed.len() >= self.args.max_failures {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(&self, start: Instant) {
        let total = self.total() as u64;
        let terminal = std::io::stderr().is_terminal();
        let mut told = 0;
        loop {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let done = self.done.load(Ordering::Relaxed);
            let seconds = start.elapsed().as_secs();
            if self.args.minutes.is_some_and(|m| seconds >= 60 * m) {
                self.stop.store(true, Ordering::Relaxed);
            }
            let over = done >= total || self.stop.load(Ordering::Relaxed);
            if terminal || over || seconds >= told + 30 {
                told = seconds;
                let end = if terminal { "\r" } else { "\n" };
                eprint!("{done} of {total} runs, {seconds} s{end}");
                let _ = std::io::stderr().flush();
            }
            if over {
                return;
            }
        }
    }

    fn summary(&self, seconds: f64, failed: &[Failure]) -> serde_json::Value {
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
            "runs": self.done.load(Ordering::Relaxed), "seconds": seconds,
            "runs_by_org": by_org,
            "failures": failed.iter().map(|f| json!({
                "scenario": f.scenario.to_string(), "detail": f.detail,
            })).collect::<Vec<_>>(),
            "cells": cells.collect::<Vec<_>>(),
        })
    }
}

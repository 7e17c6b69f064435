//! Very many simulations: threads that take one after the other, progress, and limits.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use perimeter_sim::{Family, RunError, Scenario, Workload};

/// How long it goes on, and on how many threads.
#[derive(Args)]
pub struct Limits {
    /// Threads of this machine.
    #[arg(long, default_value_t = 2)]
    pub jobs: usize,
    /// Stops after this many failures.
    #[arg(long, default_value_t = 20)]
    pub max_failures: usize,
    /// Stops after this long, whatever is left.
    #[arg(long)]
    pub minutes: Option<u64>,
}

/// What is run of all that a seed may draw.
#[derive(Args)]
pub struct Only {
    /// This workload alone; under an organization that has not the threads for it, what the seed
    /// draws.
    #[arg(long)]
    workload: Option<Workload>,
    /// This family of IP alone: 4 or 6.
    #[arg(long)]
    family: Option<Family>,
}

impl Only {
    /// The scenario, narrowed to that.
    pub fn of(&self, sc: Scenario) -> Scenario {
        sc.narrowed(self.workload, self.family)
    }
}

/// What has been done.
pub struct Done {
    /// Simulations run.
    pub runs: u64,
    /// Those that failed.
    pub failures: Vec<RunError>,
    /// How long it took.
    pub seconds: f64,
}

/// Runs simulations 0 to `total`, each by `one`, which is told its number.
pub fn run(
    limits: &Limits,
    total: usize,
    one: impl Fn(usize) -> Result<(), RunError> + Sync,
) -> Done {
    let start = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    // A panic of a virtual thread is reported with its run; its usual noise is not wanted.
    std::panic::set_hook(Box::new(|_| {}));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= total {
                break;
            }
            if let Err(f) = one(n)
                && let Ok(mut failures) = failures.lock()
            {
                eprintln!("\nfailed: cargo soak --replay \"{}\"", f.scenario);
                failures.push(f);
                if failures.len() >= limits.max_failures {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| {
        for _ in 0..limits.jobs.max(1) {
            s.spawn(work);
        }
        report(limits, start, total as u64, &done, &stop);
    });
    let _ = std::panic::take_hook();
    Done {
        runs: done.into_inner(),
        failures: failures.into_inner().unwrap_or_default(),
        seconds: start.elapsed().as_secs_f64(),
    }
}

fn report(limits: &Limits, start: Instant, total: u64, done: &AtomicU64, stop: &AtomicBool) {
    let terminal = std::io::stderr().is_terminal();
    let mut told = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let n = done.load(Ordering::Relaxed);
        let seconds = start.elapsed().as_secs();
        if limits.minutes.is_some_and(|m| seconds >= 60 * m) {
            stop.store(true, Ordering::Relaxed);
        }
        let over = n >= total || stop.load(Ordering::Relaxed);
        if terminal || over || seconds >= told + 30 {
            told = seconds;
            let end = if terminal { "\r" } else { "\n" };
            eprint!("{n} of {total} runs, {seconds} s{end}");
            let _ = std::io::stderr().flush();
        }
        if over {
            return;
        }
    }
}

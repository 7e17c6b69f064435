//! `cargo xtask test`: everything that has to pass, after installing what it needs.
//!
//! Tests wait much of their time, for each other and for the kernel. So what time matters to runs by
//! itself, one program after the other, and everything else beside it at the lowest priority.

mod beside;
mod binaries;
mod told;
mod tools;

use std::io::BufReader;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use beside::Beside;
use told::{Skipped, pass_on};

/// One command that has to succeed.
struct Step {
    what: &'static str,
    words: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

/// Another configuration of every crate below: a folder of its own keeps the rest.
const LOOM: &[(&str, &str)] = &[
    ("RUSTFLAGS", "--cfg loom"),
    ("CARGO_TARGET_DIR", "target/loom"),
];

/// What tests run that no test is: they don't build it.
const EXAMPLES: Step = Step {
    what: "examples, which tests run",
    words: &[
        "build",
        "--profile",
        "test",
        "--workspace",
        "--features",
        "perimeter/testing",
        "--examples",
    ],
    env: &[],
};

/// Behind the tests. Where output is to be shown each is compiled alone, not all at once.
const IN_DOCUMENTATION: Step = Step {
    what: "examples in documentation",
    words: &[
        "test",
        "--workspace",
        "--features",
        "perimeter/testing",
        "--doc",
    ],
    env: &[],
};

/// At the end, by itself: threads that wait for each other count, too.
const COUNTS: Step = Step {
    what: "instruction counts",
    words: &["xtask", "counts"],
    env: &[],
};

/// What `cargo xtask supply` uses, where something may be installed.
const TOOLS: Step = Step {
    what: "tools of `cargo xtask supply`",
    words: &["xtask", "supply", "--only-install"],
    env: &[],
};

/// Beside the tests, behind those that run in virtual time.
const STEPS: [Step; 7] = [
    Step {
        what: "the command, which `cargo xtask counts` runs",
        words: &[
            "build",
            "--release",
            "--quiet",
            "--package",
            "perimeter-bench",
            "--package",
            "perimeter-cli",
            "--bin",
            "counts",
            "--bin",
            "perimeter",
        ],
        env: &[],
    },
    Step {
        what: "clippy",
        words: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "perimeter/testing",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        env: &[],
    },
    Step {
        what: "documentation",
        words: &["doc", "--workspace", "--no-deps", "--quiet"],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    Step {
        what: "models of lock-free structures",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-sync",
            "--test",
            "loom_event",
            "--test",
            "loom_fanin",
            "--test",
            "loom_inbox",
            "--test",
            "loom_owned",
            "--test",
            "loom_queue",
            "--test",
            "loom_turnstile",
        ],
        env: LOOM,
    },
    Step {
        what: "models of pages, leases and regions",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-base",
            "--test",
            "loom_pages",
            "--test",
            "loom_region",
        ],
        env: LOOM,
    },
    Step {
        what: "models of readiness and transmit queues",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-stack",
            "--features",
            "testing",
            "--test",
            "loom_poller",
            "--test",
            "loom_port",
            "--test",
            "loom_tasks",
        ],
        env: LOOM,
    },
    Step {
        what: "models of the squeue and of timers that are due",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-org",
            "--features",
            "testing",
            "--lib",
            "models",
        ],
        env: LOOM,
    },
];

impl Step {
    fn command(&self, nice: bool) -> Command {
        let cargo = env!("CARGO");
        let mut command = match nice {
            true => binaries::nicely(cargo),
            false => Command::new(cargo),
        };
        command.args(self.words).envs(self.env.iter().copied());
        command
    }
}

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Install nothing; tests that miss a program are skipped with a note.
    #[arg(long)]
    no_install: bool,
}

/// Installs what is missing, runs all tests, and looks at the sources with clippy and rustdoc.
///
/// # Errors
/// A command can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.no_install {
        tools::install();
    }
    let start = Instant::now();
    let mut skipped = Skipped::new();
    let beside: Vec<&Step> = match args.no_install {
        true => STEPS.iter().collect(),
        false => STEPS.iter().chain([&TOOLS]).collect(),
    };
    let passed = all(&beside, start, &mut skipped)?;
    for (why, tests) in &skipped {
        println!("== skipped ({why}): {}", tests.join(", "));
    }
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs everything, `steps` beside the tests; whether all of it has passed.
fn all(steps: &[&Step], start: Instant, skipped: &mut Skipped) -> Result<bool> {
    let live = |what: &str, command: Command, skipped: &mut Skipped| {
        println!("== {what}");
        let passed = run_live(command, skipped)?;
        let (ended, took) = (if passed { "passed" } else { "failed" }, start.elapsed());
        println!("== {what}: {ended}, {} s so far", took.as_secs());
        Ok::<bool, anyhow::Error>(passed)
    };
    if !live(EXAMPLES.what, EXAMPLES.command(false), skipped)? {
        return Ok(false);
    }
    println!("== what tests are made of");
    let (timeless, timed): (Vec<_>, Vec<_>) = binaries::build()?
        .into_iter()
        .partition(binaries::Binary::is_timeless);
    println!(
        "== what tests are made of: passed, {} s so far",
        start.elapsed().as_secs()
    );
    let others = timeless.iter().map(|b| (b.title(), b.command(true)));
    let steps = steps.iter().map(|s| (s.what.to_owned(), s.command(true)));
    let beside = Beside::start(others.chain(steps).collect(), start);
    for binary in &timed {
        if beside.has_failed() || !live(&binary.title(), binary.command(false), skipped)? {
            return Ok(false);
        }
    }
    if !live(
        IN_DOCUMENTATION.what,
        IN_DOCUMENTATION.command(false),
        skipped,
    )? {
        return Ok(false);
    }
    Ok(beside.finish(skipped)? && live(COUNTS.what, COUNTS.command(false), skipped)?)
}

/// Runs a command and prints what it says as it says it; whether it has succeeded.
fn run_live(mut command: Command, skipped: &mut Skipped) -> Result<bool> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{:?} did not start", command.get_program()))?;
    if let Some(out) = child.stdout.take() {
        pass_on(BufReader::new(out), skipped, |line| println!("{line}"))?;
    }
    Ok(child.wait()?.success())
}

//! `cargo xtask test`: everything that has to pass, after installing what it needs.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};

/// Programs that tests run, and the Debian package of each.
const TOOLS: [(&str, &str); 10] = [
    ("iperf3", "iperf3"),
    ("curl", "curl"),
    ("python3", "python3"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("traceroute", "traceroute"),
    ("tshark", "tshark"),
    ("valgrind", "valgrind"),
    ("chromium", "chromium"),
    ("dnsmasq", "dnsmasq-base"),
];

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

/// All of them, in order.
const STEPS: [Step; 6] = [
    Step {
        what: "tests of all crates",
        words: &["test", "--workspace", "--features", "perimeter/testing"],
        env: &[],
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
    Step {
        what: "instruction counts",
        words: &["xtask", "counts"],
        env: &[],
    },
];

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Install nothing; tests that miss a program are skipped with a note.
    #[arg(long)]
    no_install: bool,
}

/// Installs what is missing and runs all tests.
///
/// # Errors
/// A command can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.no_install {
        install();
    }
    let start = Instant::now();
    for step in &STEPS {
        println!("== {}: cargo {}", step.what, step.words.join(" "));
        let status = Command::new(env!("CARGO"))
            .args(step.words)
            .envs(step.env.iter().copied())
            .status()
            .with_context(|| format!("cargo {} did not start", step.words.join(" ")))?;
        let took = start.elapsed().as_secs();
        if !status.success() {
            println!("== {}: failed after {took} s", step.what);
            return Ok(ExitCode::FAILURE);
        }
        println!("== {}: passed, {took} s so far", step.what);
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs the Debian packages of programs that are missing. Without root, or on another
/// system, it says what to install and goes on.
fn install() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |name: &str| std::env::split_paths(&path).any(|d| Path::new(&d).join(name).exists());
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !here(tool))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return;
    }
    println!("== installing {}", missing.join(" "));
    let apt = |words: &[&str]| {
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(words)
            .stdout(std::process::Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let mut words = vec!["install", "-y", "-q", "--no-install-recommends"];
    words.extend(&missing);
    if !(apt(&["update", "-q"]) && apt(&words)) {
        println!(
            "== could not install them (that needs root and Debian's apt-get); tests that use \
             them are skipped. By hand: apt-get install {}",
            missing.join(" ")
        );
    }
}

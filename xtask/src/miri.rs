//! `cargo xtask miri`: what refers to memory, and what lies next to it, interpreted by Miri, which
//! sees every use of freed memory, every broken borrow and every data race of the runs that it makes.
//!
//! Miri is a part of a nightly toolchain. Where that is absent, this says so and passes.

use std::num::NonZero;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

/// What is run: packages and filters. It is some hundred times slower than the machine, so tests of
/// random input stay out, and so does what calls the kernel. The longest first.
const RUNS: &[(&str, &[&str])] = &[
    ("perimeter-base", &["--skip", "chances_come_out"]),
    (
        "perimeter-sync",
        &[
            "places",
            "owned",
            "a_finished_push_is_seen",
            "dropping_a_queue",
            "boxes_put_by_one_thread",
            "late_destructors",
            "lanes_are_unique",
            "--skip",
            "work_left_for_the_owner",
        ],
    ),
    ("perimeter-wire", &[]),
    (
        "perimeter-tcp",
        &[
            "sndbuf",
            "rcvbuf",
            "--skip",
            "agrees_with",
            "--skip",
            "pin_little",
            "--skip",
            "small_writes_share_pages",
        ],
    ),
    // What has no other threads than it starts itself, and no system calls.
    ("perimeter-link", &["loopback", "pace"]),
];

/// Arguments of `cargo xtask miri`.
#[derive(clap::Args)]
pub struct Args {
    /// The toolchain.
    #[arg(long, default_value = "nightly")]
    toolchain: String,
}

/// Runs Miri over what it can take, if it is installed.
///
/// # Errors
/// It can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    let cargo = |words: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", &args.toolchain, "cargo", "miri"]);
        command.args(words);
        command
    };
    let mut look = cargo(&["--version"]);
    let quiet = look.stdout(Stdio::null()).stderr(Stdio::null());
    if !quiet.status().is_ok_and(|s| s.success()) {
        println!(
            "Miri is skipped: rustup toolchain install {} --component miri,rust-src",
            args.toolchain
        );
        return Ok(ExitCode::SUCCESS);
    }
    let start = Instant::now();
    // Miri runs one thread at a time, so each core takes a package.
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        while let Some((package, filters)) = RUNS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let out = cargo(&["test", "--package", package, "--lib", "--"])
                .args(*filters)
                .env("CARGO_TARGET_DIR", "target/miri")
                .env("MIRIFLAGS", "-Zmiri-disable-isolation")
                .output()
                .context("Miri did not start")?;
            let (words, took) = (filters.join(" "), start.elapsed().as_secs());
            let [told, warned] = [&out.stdout, &out.stderr].map(|o| String::from_utf8_lossy(o));
            println!("== {package} {words}, {took} s so far\n{told}{warned}");
            if !out.status.success() {
                failed.store(true, Ordering::Relaxed);
                println!("== {package}: failed");
            }
        }
        Ok(())
    };
    thread::scope(|s| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let all: Vec<_> = (0..cores.min(RUNS.len())).map(|_| s.spawn(work)).collect();
        let ends = all
            .into_iter()
            .map(|t| t.join().expect("it does not panic"));
        ends.collect::<Result<()>>()
    })?;
    if failed.into_inner() {
        return Ok(ExitCode::FAILURE);
    }
    println!("== passed, {} s", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

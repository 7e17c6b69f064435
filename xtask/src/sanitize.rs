//! `cargo xtask sanitize`: the churn test under a sanitizer, organization by organization.
//!
//! A sanitizer is the compiler's, and of a nightly toolchain only. For data races the standard
//! library has to be built with it as well, which takes the component `rust-src`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Those that have threads of their own kinds; `cargo xtask sanitize --org …` for others.
const ORGS: &str = "up:shared,connp-l:8,msgp,msgp:netisr,squeue,squeue:2,streams,pef:vertical,\
                    pef:horizontal,pef:vertical:events=fine,connp-t:2,connp-t:per-connection=5,\
                    connp-t:per-connection=5:made";

/// What to look for.
#[derive(Copy, Clone, clap::ValueEnum)]
enum Kind {
    /// Data races.
    Thread,
    /// Memory that is used after it was freed, or beyond its end; leaks.
    Address,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Thread => "thread",
            Kind::Address => "address",
        }
    }

    /// How a report of the sanitizer begins.
    fn alarm(self) -> &'static [&'static str] {
        match self {
            Kind::Thread => &["WARNING: ThreadSanitizer", "FATAL: ThreadSanitizer"],
            Kind::Address => &["ERROR: AddressSanitizer", "ERROR: LeakSanitizer"],
        }
    }
}

/// Arguments of `cargo xtask sanitize`.
#[derive(clap::Args)]
pub struct Args {
    /// Which sanitizer.
    #[arg(value_enum, default_value = "thread")]
    kind: Kind,
    /// Organizations.
    #[arg(long, value_delimiter = ',', default_value = ORGS)]
    org: Vec<String>,
    /// Connections of each.
    #[arg(long, default_value_t = 800)]
    connections: u64,
    /// The first seed.
    #[arg(long, default_value_t = 777_000)]
    seed: u64,
    /// The toolchain.
    #[arg(long, default_value = "nightly")]
    toolchain: String,
    /// Where to write the table, as Markdown.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// How it went for one organization.
struct Row {
    org: String,
    alarms: usize,
    passed: bool,
    seconds: f64,
}

/// Builds the test and runs it.
///
/// # Errors
/// The toolchain or a part of it is missing, or the test can't be built.
pub fn run(args: &Args) -> Result<ExitCode> {
    let version = look(args)?;
    let start = Instant::now();
    println!(
        "== building the churn test for the {} sanitizer",
        args.kind.name()
    );
    let built = cargo(args, &["--no-run"]).status().context("cargo")?;
    if !built.success() {
        bail!("the churn test could not be built");
    }
    println!("== built, {:.0} s", start.elapsed().as_secs_f64());
    let mut rows = Vec::new();
    for org in &args.org {
        let row = one(args, org)?;
        let verdict = if row.passed { "passed" } else { "FAILED" };
        println!(
            "{:28} {} reports, {verdict}, {:.1} s",
            row.org, row.alarms, row.seconds
        );
        rows.push(row);
    }
    if let Some(path) = &args.out {
        let text = table(args, &version, &rows);
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let well = rows.iter().all(|r| r.passed && r.alarms == 0);
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The compiler's version, if everything is there.
fn look(args: &Args) -> Result<String> {
    let rustc = |what: &[&str]| -> Result<String> {
        let mut command = Command::new("rustup");
        command.args(["run", &args.toolchain, "rustc"]).args(what);
        let out = command.output().context("rustup is not there")?;
        if !out.status.success() {
            bail!(
                "sanitizers need the toolchain `{0}`: rustup toolchain install {0} --component \
                 rust-src",
                args.toolchain
            );
        }
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
    };
    let version = rustc(&["--version"])?;
    let sysroot = rustc(&["--print", "sysroot"])?;
    let library = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
    if !library.is_dir() {
        bail!(
            "the standard library's sources are missing: rustup component add rust-src \
             --toolchain {}",
            args.toolchain
        );
    }
    Ok(version)
}

/// `cargo test` of the churn test, built for the sanitizer in a folder of its own.
fn cargo(args: &Args, more: &[&str]) -> Command {
    let kind = args.kind.name();
    let mut c = Command::new("rustup");
    c.args(["run", &args.toolchain, "cargo", "test", "-Zbuild-std"]);
    c.args([
        "--target",
        TARGET,
        "--package",
        "perimeter",
        "--test",
        "churn",
    ]);
    c.args(["--features", "testing"]).args(more);
    c.env(
        "RUSTFLAGS",
        format!("-Zsanitizer={kind} -Cforce-frame-pointers=yes"),
    );
    c.env("CARGO_TARGET_DIR", format!("target/sanitize-{kind}"));
    // This program was itself started by a cargo of another toolchain.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        c.env_remove(name);
    }
    c
}

fn one(args: &Args, org: &str) -> Result<Row> {
    let start = Instant::now();
    let mut command = cargo(args, &["--", "--nocapture"]);
    command.env("PERIMETER_ORGS", org);
    command.env("PERIMETER_CHURN", args.connections.to_string());
    command.env("PERIMETER_CHURN_SEED", args.seed.to_string());
    let out = command.output().context("cargo")?;
    let text = [&out.stdout[..], &out.stderr[..]].map(String::from_utf8_lossy);
    let alarm = |line: &&str| args.kind.alarm().iter().any(|a| line.contains(a));
    let alarms = text.iter().flat_map(|t| t.lines()).filter(alarm).count();
    // A name that is none, or an organization of one thread, would pass by doing nothing.
    let did = format!("{org}: {} connections", args.connections);
    let ran = text[0].contains(&did);
    let passed = out.status.success() && ran;
    if !passed || alarms > 0 {
        eprintln!("{}\n{}", text[0], text[1]);
    }
    Ok(Row {
        org: org.to_string(),
        alarms,
        passed,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn table(args: &Args, version: &str, rows: &[Row]) -> String {
    let kind = args.kind.name();
    let mut text = format!(
        "# Churn under the {kind} sanitizer\n\n\
         `cargo xtask sanitize {kind} --connections {} --seed {}`, {version}. Six threads that \
         open connections and six that accept them, over a wire in memory; resets, closes with \
         and without a wait, half closes, both directions at once; every byte checked, and after \
         the end 0 connections but TIME-WAIT and 0 bytes.\n\n\
         | organization | connections | reports | test | seconds |\n|---|---|---|---|---|\n",
        args.connections, args.seed
    );
    for r in rows {
        let verdict = if r.passed { "passed" } else { "failed" };
        text += &format!(
            "| `{}` | {} | {} | {verdict} | {:.1} |\n",
            r.org, args.connections, r.alarms, r.seconds
        );
    }
    text
}

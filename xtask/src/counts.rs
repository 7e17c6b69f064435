//! `cargo xtask counts`: instructions that the hot paths execute, counted by callgrind and
//! compared with those committed.
//!
//! Times on shared machines are noise; instructions are the same in every run of one binary. The
//! slack is for what compilers do to code that did not change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

/// The committed counts, from the root of the workspace.
const FILE: &str = "crates/bench/counts.json";
/// Steps of a path that are counted.
const STEPS: u64 = 64;

/// Arguments of `cargo xtask counts`.
#[derive(clap::Args)]
pub struct Args {
    /// Write what is counted to the committed file instead of comparing.
    #[arg(long)]
    update: bool,
    /// How much more than committed passes, in percent.
    #[arg(long, default_value_t = 3.0)]
    slack: f64,
    /// Count these paths only.
    paths: Vec<String>,
    /// Keep callgrind's files in this directory, for callgrind_annotate.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What was counted of a path.
struct Count {
    /// Instructions for one unit.
    each: f64,
    unit: String,
}

/// Counts and compares.
///
/// # Errors
/// A program does not start or fails, or the committed file is not readable.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !valgrind() {
        println!("instruction counts are skipped: there is no valgrind (apt-get install valgrind)");
        return Ok(ExitCode::SUCCESS);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace has a root")?;
    let binary = build()?;
    let dir = match &args.keep {
        Some(d) => d.clone(),
        None => std::env::temp_dir().join(format!("perimeter-counts-{}", std::process::id())),
    };
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let counts = count_all(&binary, &args.paths, &dir);
    if args.keep.is_none() {
        // What is left behind is small; failing to remove it is no failure of the counts.
        let _ = std::fs::remove_dir_all(&dir);
    }
    let counts = counts?;
    let file = root.join(FILE);
    if args.update {
        ensure!(args.paths.is_empty(), "--update counts all paths");
        let text = serde_json::to_string_pretty(&to_json(&counts)?)?;
        std::fs::write(&file, text + "\n").with_context(|| FILE.to_string())?;
        print(&counts, &BTreeMap::new());
        println!("written to {FILE}");
        return Ok(ExitCode::SUCCESS);
    }
    let (committed, rustc) = read(&file)?;
    let here = rustc_version()?;
    if rustc != here {
        println!("the committed counts are of {rustc}, this is {here}");
    }
    print(&counts, &committed);
    Ok(verdict(&counts, &committed, args.slack))
}

fn valgrind() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Builds the binary; yields where it is.
fn build() -> Result<PathBuf> {
    let out = Command::new(env!("CARGO"))
        // With the features that the command line chooses, so that what both are made of is built
        // once.
        .args(["build", "--release", "--quiet", "-p", "perimeter-bench"])
        .args(["-p", "perimeter-cli", "--bin", "counts"])
        .args(["--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo did not start")?;
    ensure!(out.status.success(), "perimeter-bench does not build");
    let text = String::from_utf8(out.stdout)?;
    text.lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok())
        .filter(|m| m["target"]["name"] == "counts")
        .find_map(|m| m["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| anyhow!("cargo did not say where the binary is"))
}

/// Counts the paths of those names, or all.
fn count_all(binary: &Path, only: &[String], dir: &Path) -> Result<BTreeMap<String, Count>> {
    let list = Command::new(binary)
        .output()
        .context("the binary did not start")?;
    let list = String::from_utf8(list.stdout)?;
    let mut counts = BTreeMap::new();
    for line in list.lines() {
        let (name, unit) = line
            .split_once('\t')
            .with_context(|| format!("`{line}` names no path"))?;
        if only.is_empty() || only.iter().any(|o| o == name) {
            let each = count(binary, name, dir)?;
            let unit = unit.to_string();
            counts.insert(name.to_string(), Count { each, unit });
        }
    }
    ensure!(!counts.is_empty(), "there is no path of that name");
    Ok(counts)
}

/// Instructions for one unit of the path.
fn count(binary: &Path, name: &str, dir: &Path) -> Result<f64> {
    let file = dir.join(format!("callgrind.{}", name.replace([' ', '+'], "-")));
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*measured*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(binary)
        .args([name, &STEPS.to_string()])
        .output()
        .context("valgrind did not start")?;
    if !out.status.success() {
        bail!(
            "path `{name}` failed: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    let units: u64 = String::from_utf8(out.stdout)?.trim().parse()?;
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let total: u64 = text
        .lines()
        .find_map(|l| l.strip_prefix("totals: "))
        .and_then(|t| t.trim().parse().ok())
        .with_context(|| format!("callgrind says no total for `{name}`"))?;
    ensure!(
        total > 0 && units > 0,
        "path `{name}`: nothing was counted; is `measured` inlined?"
    );
    Ok(total as f64 / units as f64)
}

fn rustc_version() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = Command::new(rustc)
        .arg("--version")
        .output()
        .context("rustc did not start")?;
    Ok(String::from_utf8(out.stdout)?.trim().to_string())
}

fn to_json(counts: &BTreeMap<String, Count>) -> Result<Value> {
    let paths: serde_json::Map<String, Value> = counts
        .iter()
        .map(|(name, c)| {
            let each = (c.each * 100.0).round() / 100.0;
            (
                name.clone(),
                json!({ "instructions": each, "unit": c.unit }),
            )
        })
        .collect();
    Ok(json!({ "rustc": rustc_version()?, "paths": paths }))
}

/// The committed counts and the compiler that they are of.
fn read(file: &Path) -> Result<(BTreeMap<String, f64>, String)> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{FILE}; `cargo xtask counts --update` makes it"))?;
    let v: Value = serde_json::from_str(&text).context(FILE)?;
    let paths = v["paths"]
        .as_object()
        .with_context(|| format!("{FILE} has no `paths`"))?;
    let counts = paths
        .iter()
        .map(|(name, p)| {
            let n = p["instructions"].as_f64();
            n.map(|n| (name.clone(), n))
                .with_context(|| format!("{FILE}: `{name}` has no `instructions`"))
        })
        .collect::<Result<_>>()?;
    let rustc = v["rustc"].as_str().unwrap_or("an unknown compiler");
    Ok((counts, rustc.to_string()))
}

fn change(now: f64, before: f64) -> f64 {
    (now / before - 1.0) * 100.0
}

fn print(counts: &BTreeMap<String, Count>, committed: &BTreeMap<String, f64>) {
    println!(
        "{:<14} {:>12} {:>10} {:>8}  per",
        "path", "instructions", "committed", "change"
    );
    for (name, c) in counts {
        let (before, change) = match committed.get(name) {
            Some(b) => (format!("{b:.1}"), format!("{:+.1} %", change(c.each, *b))),
            None => ("-".to_string(), "-".to_string()),
        };
        println!(
            "{name:<14} {:>12.1} {before:>10} {change:>8}  {}",
            c.each, c.unit
        );
    }
}

fn verdict(
    counts: &BTreeMap<String, Count>,
    committed: &BTreeMap<String, f64>,
    slack: f64,
) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (name, c) in counts {
        let Some(before) = committed.get(name) else {
            println!("`{name}` is not in {FILE}: `cargo xtask counts --update`");
            code = ExitCode::FAILURE;
            continue;
        };
        let change = change(c.each, *before);
        if change > slack {
            println!("`{name}` takes {change:.1} % more instructions than committed");
            code = ExitCode::FAILURE;
        } else if change < -slack {
            println!(
                "`{name}` takes {:.1} % less: `cargo xtask counts --update` keeps it so",
                -change
            );
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(each: f64) -> BTreeMap<String, Count> {
        let unit = "segment".to_string();
        BTreeMap::from([("send".to_string(), Count { each, unit })])
    }

    #[test]
    fn only_more_than_the_slack_fails() {
        let committed = BTreeMap::from([("send".to_string(), 100.0)]);
        for (now, good) in [(50.0, true), (100.0, true), (102.9, true), (103.1, false)] {
            let code = verdict(&counted(now), &committed, 3.0);
            assert_eq!(code == ExitCode::SUCCESS, good, "{now}");
        }
    }

    #[test]
    fn a_path_without_a_committed_count_fails() {
        let code = verdict(&counted(1.0), &BTreeMap::new(), 3.0);
        assert_eq!(code, ExitCode::FAILURE);
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = std::env::temp_dir().join(format!("counts-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("counts.json");
        let v = to_json(&counted(123.456)).unwrap();
        std::fs::write(&file, v.to_string()).unwrap();
        let (counts, rustc) = read(&file).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(counts["send"], 123.46);
        assert!(rustc.starts_with("rustc "));
    }
}

//! Programs of tests: what cargo has built, and running them as it would.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The tests of one target.
pub struct Binary {
    /// The target's name.
    pub name: String,
    /// Where it begins, from its package on.
    source: PathBuf,
    /// The folder of its package.
    package: PathBuf,
    program: PathBuf,
}

/// Tests in virtual time, and models that take no time at all: how long anything takes makes no
/// difference to them, so they may run beside those that time matters to.
const TIMELESS: [&str; 6] = ["slice", "explore", "planted", "virtual", "pef", "two_hosts"];

impl Binary {
    /// Whether its tests may run while others have the processor.
    pub fn is_timeless(&self) -> bool {
        TIMELESS.contains(&&*self.name)
    }

    /// What is run, as cargo calls it.
    pub fn title(&self) -> String {
        let package = self.package.file_name().unwrap_or_default();
        format!("{} {}", Path::new(package).display(), self.source.display())
    }

    /// The command that runs it.
    pub fn command(&self, nice: bool) -> Command {
        let mut command = match nice {
            true => nicely(&self.program),
            false => Command::new(&self.program),
        };
        // What a test that was skipped has said is shown only if that is asked for.
        command
            .arg("--show-output")
            .current_dir(&self.package)
            .env("CARGO", env!("CARGO"))
            .env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

/// A program at the lowest priority.
pub fn nicely(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(program);
    nice
}

/// What cargo is told of the tests.
const TESTS: [&str; 5] = [
    "test",
    "--workspace",
    "--features",
    "perimeter/testing",
    "--tests",
];

/// Builds the tests of all crates.
///
/// # Errors
/// They don't build.
pub fn build() -> Result<Vec<Binary>> {
    let mut child = Command::new(env!("CARGO"))
        .args(TESTS)
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo did not start")?;
    let out = child.stdout.take().context("cargo has no output")?;
    let mut found = Vec::new();
    for line in BufReader::new(out).lines() {
        found.extend(binary(&serde_json::from_str(&line?)?));
    }
    if !child.wait()?.success() {
        bail!("the tests don't build");
    }
    // Cargo builds in whatever order; this one is the same each time.
    found.sort_by(|a, b| (&a.package, &a.source).cmp(&(&b.package, &b.source)));
    Ok(found)
}

/// The test program that a message of cargo's tells of, if it tells of one.
fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = message["executable"].as_str()?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let target = &message["target"];
    let source = Path::new(target["src_path"].as_str()?);
    Some(Binary {
        name: target["name"].as_str()?.into(),
        source: source.strip_prefix(package).unwrap_or(source).into(),
        package: package.into(),
        program: program.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn test_programs_are_told_from_others() {
        let message = |reason: &str, test: bool, program: Value| {
            json!({
                "reason": reason,
                "profile": { "test": test },
                "executable": program,
                "manifest_path": "/w/crates/sim/Cargo.toml",
                "target": { "name": "slice", "src_path": "/w/crates/sim/tests/slice.rs" },
            })
        };
        let program = json!("/w/target/debug/deps/slice-1");
        let found = binary(&message("compiler-artifact", true, program.clone())).unwrap();
        assert_eq!(found.title(), "sim tests/slice.rs");
        assert!(found.is_timeless());
        for other in [
            message("build-script-executed", true, program.clone()),
            message("compiler-artifact", false, program),
            message("compiler-artifact", true, Value::Null),
        ] {
            assert!(binary(&other).is_none());
        }
    }
}

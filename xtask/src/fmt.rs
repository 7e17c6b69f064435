//! `cargo xtask fmt`: formats everything. `cargo fmt` follows `mod` declarations, but not those in
//! the list of organizations, which is given to a macro (`crates/org/src/lib.rs`).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

/// Arguments of `cargo xtask fmt`.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail if there is something to change.
    #[arg(long)]
    check: bool,
}

/// Formats, or checks.
///
/// # Errors
/// rustfmt can't be run.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut all = Command::new("cargo");
    all.args(["fmt", "--all"]);
    let mut listed = rustfmt(&organizations()?);
    if args.check {
        all.arg("--check");
        listed.arg("--check");
    }
    for mut command in [all, listed] {
        let ran = command.status().context("rustfmt does not run")?;
        if !ran.success() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// rustfmt over `files` and the modules that they declare.
fn rustfmt(files: &[PathBuf]) -> Command {
    let mut command = Command::new("rustfmt");
    command.args(["--edition", "2024"]).args(files);
    command
}

/// The files of the modules in the list.
fn organizations() -> Result<Vec<PathBuf>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/org/src");
    let text = std::fs::read_to_string(src.join("lib.rs"))?;
    let list = text.split_once("\norganizations! {\n");
    let (list, _) = list
        .and_then(|(_, rest)| rest.split_once("\n}"))
        .context("the list of organizations is not where it was")?;
    let mut files = Vec::new();
    for line in list.lines() {
        let (_, name) = line
            .rsplit_once("mod ")
            .context("a line without a module")?;
        let name = name.trim_end_matches(';');
        let file = [format!("{name}.rs"), format!("{name}/mod.rs")];
        let file = file.iter().map(|f| src.join(f)).find(|f| f.exists());
        files.push(file.with_context(|| format!("no file of {name}"))?);
    }
    ensure!(!files.is_empty(), "the list of organizations is empty");
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn organizations_are_formatted() {
        let files = organizations().unwrap();
        assert!(files.iter().any(|f| f.ends_with("squeue/mod.rs")));
        let said = rustfmt(&files).arg("--check").output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success(), "`cargo xtask fmt` mends:\n{text}");
    }
}

//! Subcommands of cargo that others made, and that the gate uses.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::root;

/// Their names and versions.
const TOOLS: [(&str, &str); 2] = [("deny", "0.20.2"), ("semver-checks", "0.51.0")];

/// Where they are built, from the project's folder.
const FOLDER: &str = "target/tools";

/// They run for seconds, so building them unoptimised saves more time than it costs.
const UNOPTIMISED: [&str; 4] = [
    "profile.dev.debug=false",
    "profile.dev.incremental=false",
    "profile.dev.package.\"*\".opt-level=0",
    "profile.dev.package.\"*\".codegen-units=16",
];

/// Cargo in the project's folder, with the subcommands that were built here.
pub fn cargo(words: &[&str]) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let ours = root().join(FOLDER).join("bin");
    // What the user has comes first.
    let all = std::env::split_paths(&path).chain([ours]);
    let mut command = Command::new("cargo");
    command.args(words).current_dir(root());
    if let Ok(path) = std::env::join_paths(all) {
        command.env("PATH", path);
    }
    command
}

/// Whether a command ended well.
///
/// # Errors
/// It can't be started.
pub fn passes(command: &mut Command) -> Result<bool> {
    let status = command.status();
    Ok(status.context("cargo did not start")?.success())
}

/// Whether cargo has this subcommand.
fn is_there(subcommand: &str) -> Result<bool> {
    let mut look = cargo(&[subcommand, "--version"]);
    passes(look.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Whether cargo has this subcommand; else how to get it is said.
///
/// # Errors
/// Cargo can't be started.
pub fn is_installed(subcommand: &str) -> Result<bool> {
    let found = is_there(subcommand)?;
    if !found {
        println!("{subcommand} is skipped: cargo install --locked cargo-{subcommand}");
    }
    Ok(found)
}

/// Builds those of `wanted` that cargo does not have. Whether that went well shows when they are used.
///
/// # Errors
/// Cargo can't be started.
pub fn install(wanted: &[&str]) -> Result<()> {
    let mut missing = Vec::new();
    for (name, version) in TOOLS {
        if wanted.contains(&name) && !is_there(name)? {
            missing.push(format!("cargo-{name}@{version}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    println!("== building {}", missing.join(" "));
    let mut build = cargo(&["install", "--quiet", "--debug", "--locked"]);
    for setting in UNOPTIMISED {
        build.args(["--config", setting]);
    }
    build.args(["--root", FOLDER]).args(missing);
    passes(build.env("CARGO_TARGET_DIR", root().join(FOLDER).join("build")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_passes() {
        assert!(!is_installed("no-such-subcommand").unwrap());
    }
}

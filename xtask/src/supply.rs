//! `cargo xtask supply`: what comes from others, and what others have from us. `cargo deny` holds all
//! dependencies against `deny.toml`: licences, known vulnerabilities, where they come from. `cargo
//! semver-checks` compares the interface of what is published with that of the last release: what
//! breaks its users needs a version that says so, and where all versions do there is nothing to compare.
//!
//! Both are built where they are missing. Where that fails, as without a network, this says how to
//! install them, and passes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

mod semver;
mod tools;

use tools::{cargo, is_installed, passes};

/// Arguments of `cargo xtask supply`.
#[derive(clap::Args)]
pub struct Args {
    /// Compare interfaces with this tag or commit, in place of the last release.
    #[arg(long)]
    baseline: Option<String>,
    /// Build nothing; what is missing is skipped with a note.
    #[arg(long)]
    no_install: bool,
    /// Only build what is missing.
    #[arg(long, conflicts_with = "no_install")]
    only_install: bool,
}

/// Runs both.
///
/// # Errors
/// A program that is installed can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    let compare = args.baseline.is_some() || semver::is_needed()?;
    if !args.no_install {
        let wanted: &[&str] = if compare {
            &["deny", "semver-checks"]
        } else {
            &["deny"]
        };
        tools::install(wanted)?;
    }
    if args.only_install {
        return Ok(ExitCode::SUCCESS);
    }
    if !deny()? {
        return Ok(ExitCode::FAILURE);
    }
    if !compare {
        println!("== interfaces: versions say that they may differ from those of the last release");
    } else if !semver::run(args.baseline.as_deref())? {
        return Ok(ExitCode::FAILURE);
    }
    println!("== passed");
    Ok(ExitCode::SUCCESS)
}

/// The project's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Dependencies against `deny.toml`.
fn deny() -> Result<bool> {
    if !is_installed("deny")? {
        return Ok(true);
    }
    println!("== licences, bans and sources");
    let quiet = ["deny", "--log-level", "error"];
    let mut ours = cargo(&quiet);
    if !passes(ours.args(["check", "licenses", "bans", "sources"]))? {
        return Ok(false);
    }
    println!("== advisories");
    // They are in a repository of their own. A machine without a network has them from before, or
    // not at all, which must not pass unseen where changes of others are judged.
    let fetched = passes(cargo(&quiet).args(["fetch", "db"]))?;
    if !fetched && std::env::var_os("GITHUB_ACTIONS").is_none() {
        println!("advisories are skipped: their database can't be fetched");
        return Ok(true);
    }
    let mut known = cargo(&quiet);
    Ok(fetched && passes(known.args(["check", "--disable-fetch", "advisories"]))?)
}

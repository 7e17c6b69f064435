//! `cargo xtask supply`: what comes from others, and what others have from us. `cargo deny` holds all
//! dependencies against `deny.toml`: licences, known vulnerabilities, where they come from. `cargo
//! semver-checks` compares the interface of what is published with that of the last release: what
//! breaks its users needs a version that says so.
//!
//! Where one of these is not installed, this says how to install it, and passes.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

/// Features of published crates that belong to their interface, but are no default. Others, as
/// `testing`, are for this project's own tests and change as these need it.
const FEATURES: &[(&str, &str)] = &[("perimeter", "virtual"), ("perimeter-tokio", "gateway")];

/// Arguments of `cargo xtask supply`.
#[derive(clap::Args)]
pub struct Args {
    /// Compare interfaces with this tag or commit, in place of the last tag `v*`.
    #[arg(long)]
    baseline: Option<String>,
}

/// Runs both.
///
/// # Errors
/// A program that is installed can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    for passed in [deny, semver] {
        if !passed(args)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("== passed");
    Ok(ExitCode::SUCCESS)
}

/// The project's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(words).current_dir(root());
    command
}

/// Whether a command ended well.
fn passes(command: &mut Command) -> Result<bool> {
    let status = command.status();
    Ok(status.context("cargo did not start")?.success())
}

/// Whether cargo has this subcommand; else how to get it is said.
fn is_installed(subcommand: &str) -> Result<bool> {
    let mut look = cargo(&[subcommand, "--version"]);
    let found = passes(look.stdout(Stdio::null()).stderr(Stdio::null()))?;
    if !found {
        println!("{subcommand} is skipped: cargo install --locked cargo-{subcommand}");
    }
    Ok(found)
}

/// Dependencies against `deny.toml`.
fn deny(_: &Args) -> Result<bool> {
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
    // not at all, which must not pass unseen where changes are judged.
    let fetched = passes(cargo(&quiet).args(["fetch", "db"]))?;
    if !fetched && std::env::var_os("CI").is_none() {
        println!("advisories are skipped: their database can't be fetched");
        return Ok(true);
    }
    let mut known = cargo(&quiet);
    Ok(fetched && passes(known.args(["check", "--disable-fetch", "advisories"]))?)
}

/// Interfaces against those of the last release.
fn semver(args: &Args) -> Result<bool> {
    if !is_installed("semver-checks")? {
        return Ok(true);
    }
    let baseline = match &args.baseline {
        Some(given) => given.clone(),
        None => match last_release()? {
            Some(tag) => tag,
            None => {
                println!("semver-checks is skipped: there is no tag v*, so nothing was released");
                return Ok(true);
            }
        },
    };
    let mut good = true;
    for Published { name, manifest } in published()? {
        let there = format!("{baseline}:{manifest}");
        let mut look = Command::new("git");
        look.args(["cat-file", "-e", &there]).current_dir(root());
        if !passes(look.stderr(Stdio::null()))? {
            println!("== {name}: not in {baseline}");
            continue;
        }
        println!("== {name} since {baseline}");
        let mut check = cargo(&["semver-checks", "--default-features"]);
        check.args(["--package", &name, "--baseline-rev", &baseline]);
        for (_, feature) in FEATURES.iter().filter(|(of, _)| *of == name) {
            check.args(["--features", feature]);
        }
        good &= passes(&mut check)?;
    }
    Ok(good)
}

/// The last tag of a release before the commit that is checked out.
fn last_release() -> Result<Option<String>> {
    let mut git = Command::new("git");
    git.args(["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let said = git
        .current_dir(root())
        .output()
        .context("git did not start")?;
    let tag = String::from_utf8_lossy(&said.stdout).trim().to_string();
    Ok((said.status.success() && !tag.is_empty()).then_some(tag))
}

/// A crate that is to be published.
struct Published {
    name: String,
    /// Its manifest, from the project's folder.
    manifest: String,
}

fn published() -> Result<Vec<Published>> {
    let said = cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cargo did not start")?;
    ensure!(said.status.success(), "cargo metadata failed");
    let metadata: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let workspace = metadata["workspace_root"].as_str().unwrap_or_default();
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata names no packages")?;
    let mut all = Vec::new();
    for package in packages {
        // Registries that it may go to: none, or any if that is not said.
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        let text = |key: &str| package[key].as_str().context("metadata without a name");
        let manifest = Path::new(text("manifest_path")?).strip_prefix(workspace)?;
        all.push(Published {
            name: text("name")?.to_string(),
            manifest: manifest.display().to_string(),
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_compared_with_the_features_that_users_have() {
        let all = published().unwrap();
        let names: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
        assert!(names.contains(&"perimeter") && !names.contains(&"xtask"));
        for (of, _) in FEATURES {
            assert!(names.contains(of), "{of} is not published");
        }
        let ours = all.iter().find(|p| p.name == "perimeter").unwrap();
        assert_eq!(ours.manifest, "crates/perimeter/Cargo.toml");
    }

    #[test]
    fn what_is_missing_is_named_and_passes() {
        assert!(!is_installed("no-such-subcommand").unwrap());
    }
}

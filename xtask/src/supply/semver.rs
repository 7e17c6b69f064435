//! The interfaces of what is published, against those of the last release.
//!
//! By itself `cargo semver-checks` documents one crate after the other, and builds all that it depends
//! on anew for each. Here cargo documents all crates at once, and `cargo semver-checks` compares the
//! results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::root;
use super::tools::{cargo, is_installed, passes};

/// Features of published crates that belong to their interface, but are no default. Others, as
/// `testing`, are for this project's own tests and change as these need it.
const FEATURES: &[&str] = &["perimeter/virtual", "perimeter-tokio/gateway"];

/// This crate turns on features of others that do not belong to their interface, so it is documented
/// by itself.
const ALONE: &str = "perimeter-testing";

/// Where both are built, from the project's folder.
const FOLDER: &str = "target/semver";

/// What `cargo semver-checks` wants of rustdoc.
const RUSTDOC: &str = "-Z unstable-options --output-format=json --document-private-items \
                       --document-hidden-items --cap-lints=allow";

/// Whether there is anything to compare with the last release: not where each version says already
/// that its interface may differ from that one's, as `cargo semver-checks` then leaves all out.
///
/// # Errors
/// The changelog can't be read, or cargo does not say what is published.
pub fn is_needed() -> Result<bool> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let Some((release, _)) = newest(&changelog) else {
        return Ok(true);
    };
    let all = published(&root())?;
    Ok(all.iter().any(|p| !may_differ(release, &p.version)))
}

/// Whether version `now` says that its interface may differ from that of version `then`: their
/// leftmost numbers that are not 0, or what stands before those, are not the same.
fn may_differ(then: &str, now: &str) -> bool {
    let leading = |version: &str| -> Vec<String> {
        let numbers: Vec<&str> = version.split('.').collect();
        let zeros = numbers.iter().take_while(|n| **n == "0").count();
        numbers
            .into_iter()
            .take(zeros + 1)
            .map(str::to_owned)
            .collect()
    };
    leading(then) != leading(now)
}

/// Compares with `baseline`, or with the last release.
///
/// # Errors
/// Cargo or git can't be started, or one of the interfaces can't be documented.
pub fn run(baseline: Option<&str>) -> Result<bool> {
    if !is_installed("semver-checks")? {
        return Ok(true);
    }
    let baseline = match baseline {
        Some(given) => given.to_owned(),
        None => match last_release()? {
            Some(release) => release,
            None => {
                println!("semver-checks is skipped: the history has no release");
                return Ok(true);
            }
        },
    };
    println!("== interfaces since {baseline}");
    let folder = root().join(FOLDER);
    let source = folder.join("source");
    check_out(&baseline, &source)?;
    let then = document(&source, &folder.join("then"))?;
    let now = document(&root(), &folder.join("now"))?;
    let mut good = true;
    for (name, json) in &now {
        let Some((_, before)) = then.iter().find(|(other, _)| other == name) else {
            println!("== {name}: not in {baseline}");
            continue;
        };
        let mut check = cargo(&["semver-checks", "--current-rustdoc"]);
        check.arg(json).arg("--baseline-rustdoc").arg(before);
        good &= passes(&mut check)?;
    }
    Ok(good)
}

/// What a git command prints, if it succeeds.
fn git(words: &[&str]) -> Result<Option<String>> {
    let mut git = Command::new("git");
    git.args(words).current_dir(root()).stderr(Stdio::inherit());
    let said = git.output().context("git did not start")?;
    let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    Ok(said.status.success().then_some(text))
}

/// The hash of a tag's or another name's commit.
fn commit(name: &str) -> Result<Option<String>> {
    git(&[
        "rev-parse",
        "--quiet",
        "--verify",
        &format!("{name}^{{commit}}"),
    ])
}

/// The newest version that a changelog gives a date, and its heading.
fn newest(changelog: &str) -> Option<(&str, &str)> {
    changelog.lines().find_map(|line| {
        let (version, _) = line.strip_prefix("## ")?.split_once(" - ")?;
        Some((version, line))
    })
}

/// The last release: the tag of the newest version in the changelog, or the commit that gave it a
/// date there.
fn last_release() -> Result<Option<String>> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let Some((version, heading)) = newest(&changelog) else {
        return Ok(None);
    };
    let tag = format!("v{version}");
    if commit(&tag)?.is_some() {
        return Ok(Some(tag));
    }
    // In a history that was cut off, its first commit would seem to have written everything.
    if git(&["rev-parse", "--is-shallow-repository"])?.as_deref() != Some("false") {
        return Ok(None);
    }
    let search = format!("-S{heading}");
    let commits = git(&["log", "--format=%H", &search, "--", "CHANGELOG.md"])?;
    Ok(commits.and_then(|all| all.lines().last().map(str::to_owned)))
}

/// Puts the files of a commit into `to`.
fn check_out(baseline: &str, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let to = to
        .to_str()
        .context("the project's folder has no name in UTF-8")?;
    let commit = commit(baseline)?.with_context(|| format!("{baseline} is no commit"))?;
    for words in [
        &["clone", "--quiet", "--shared", "--no-checkout", ".", to][..],
        &["-C", to, "checkout", "--quiet", "--detach", &commit],
    ] {
        let done = git(words)?;
        ensure!(done.is_some(), "git {} failed", words.join(" "));
    }
    Ok(())
}

/// A crate that is to be published.
struct Published {
    name: String,
    version: String,
    /// Those of [`FEATURES`] that it has.
    features: Vec<&'static str>,
}

/// The crates of the workspace in `folder` that are to be published.
fn published(folder: &Path) -> Result<Vec<Published>> {
    let mut metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let said = metadata.current_dir(folder).output();
    let said = said.context("cargo did not start")?;
    ensure!(said.status.success(), "cargo metadata failed");
    let metadata: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata names no packages")?;
    // Registries that it may go to: none, or any if that is not said.
    let barred = |p: &serde_json::Value| p["publish"].as_array().is_some_and(Vec::is_empty);
    let crates = packages.iter().filter(|p| !barred(p)).map(|p| {
        let text = |field: &str| {
            p[field]
                .as_str()
                .context("metadata without a name or version")
        };
        let name = text("name")?;
        let has = |f: &&&str| {
            let (of, feature) = f.split_once('/').unwrap_or_default();
            of == name && p["features"].get(feature).is_some()
        };
        Ok(Published {
            name: name.to_owned(),
            version: text("version")?.to_owned(),
            features: FEATURES.iter().filter(has).copied().collect(),
        })
    });
    crates.collect()
}

/// Documents crates of the workspace in `folder`: each one's name and file.
fn document(folder: &Path, target: &Path) -> Result<Vec<(String, PathBuf)>> {
    let all = published(folder)?;
    let (alone, together): (Vec<&Published>, Vec<_>) = all.iter().partition(|p| p.name == ALONE);
    for crates in [together, alone].iter().filter(|c| !c.is_empty()) {
        let mut doc = cargo(&["doc", "--quiet", "--lib", "--no-deps"]);
        for p in crates {
            doc.args(["--package", &p.name]);
            for feature in &p.features {
                doc.args(["--features", feature]);
            }
        }
        // JSON is no stable output: this is what `cargo semver-checks` does about that.
        doc.env("RUSTC_BOOTSTRAP", "1").env("RUSTDOCFLAGS", RUSTDOC);
        doc.env("CARGO_TARGET_DIR", target).current_dir(folder);
        ensure!(passes(&mut doc)?, "the interface can't be documented");
    }
    let file = |name: &str| target.join(format!("doc/{}.json", name.replace('-', "_")));
    Ok(all
        .into_iter()
        .map(|p| (p.name.clone(), file(&p.name)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_compared_with_the_features_that_users_have() {
        let all = published(&root()).unwrap();
        let names: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
        assert!(names.contains(&ALONE) && !names.contains(&"xtask"));
        let features = all.iter().map(|p| p.features.len()).sum::<usize>();
        assert_eq!(features, FEATURES.len(), "each is one of what is published");
    }

    #[test]
    fn versions_that_tell_of_another_interface() {
        for (then, now) in [
            ("0.2.0", "0.3.0"),
            ("0.9.1", "1.0.0"),
            ("1.4.2", "2.0.0"),
            ("0.0.1", "0.0.2"),
        ] {
            assert!(may_differ(then, now), "{then} {now}");
        }
        for (then, now) in [("0.2.0", "0.2.1"), ("1.4.2", "1.5.0"), ("0.3.0", "0.3.0")] {
            assert!(!may_differ(then, now), "{then} {now}");
        }
    }

    #[test]
    fn the_newest_version_with_a_date_is_the_last_release() {
        let log =
            "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-11-27\n\n## 0.1.0 - 2026-11-25\n";
        assert_eq!(newest(log), Some(("0.2.0", "## 0.2.0 - 2026-11-27")));
        assert_eq!(newest("## Unreleased\n"), None);
    }
}

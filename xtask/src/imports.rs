//! Which files of a crate import each other in a circle.
//!
//! An arrow goes from a file to the one that defines what it names by a path within the crate:
//! `crate::`, `super::`, `self::`, or a module of its own; in a `use`, with its groups, or in the
//! text. What a file takes from another's `use` or `pub use` is traced to where it is defined, so
//! that a re-export hides nothing. Neither `mod x;` is an arrow nor a `pub use` of what the file's
//! own modules hold and the file itself does not name again. Test modules are left out. Rooms are
//! modules of a crate with all below them: arrows between those of `lab` and of `measure` run one way too.

mod text;
mod tree;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

/// The crates that are held against this.
const CRATES: [&str; 5] = ["lab", "measure", "org", "stack", "tcp"];

/// From file to file, by their paths below `src`.
type Arrow = (String, String);

/// `cargo xtask imports`.
#[derive(clap::Args)]
pub struct Args {
    /// Folders below `crates`; by default those that must have no circle.
    crates: Vec<String>,
    /// Print every arrow, not only those in circles.
    #[arg(long)]
    all: bool,
}

/// Prints the arrows in circles.
///
/// # Errors
/// A source that can't be read.
pub fn run(args: &Args) -> Result<ExitCode> {
    let named = args.crates.iter().map(String::as_str);
    let crates: Vec<&str> = match args.crates.is_empty() {
        true => CRATES.to_vec(),
        false => named.collect(),
    };
    for name in crates {
        let arrows = tree::read(&sources(name))?.arrows();
        let circles = circles(&arrows);
        let inside: usize = circles.iter().map(|c| within(&arrows, c).len()).sum();
        println!(
            "{name}: {} arrows, {inside} of them in circles",
            arrows.len()
        );
        for circle in &circles {
            print!("{}", listed(&within(&arrows, circle)));
        }
        let rooms = rooms(&arrows);
        for circle in self::circles(&rooms) {
            print!("  rooms in a circle:{}", listed(&within(&rooms, &circle)));
        }
        if args.all {
            print!("{}", listed(&arrows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The source folder of a crate.
fn sources(name: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    crates.join(name).join("src")
}

fn listed(arrows: &BTreeSet<Arrow>) -> String {
    let mut out = String::new();
    let mut last = "";
    for (from, to) in arrows {
        let separator = if from == last { ", " } else { "\n  " };
        let _ = match from == last {
            true => write!(out, "{separator}{to}"),
            false => write!(out, "{separator}{from} -> {to}"),
        };
        last = from;
    }
    out + "\n"
}

/// The arrows between the rooms of a crate: its modules, each with all files below it.
fn rooms(arrows: &BTreeSet<Arrow>) -> BTreeSet<Arrow> {
    let room = |file: &String| {
        let first = file.split('/').next().unwrap_or(file);
        first.trim_end_matches(".rs").to_string()
    };
    let pairs = arrows.iter().map(|(from, to)| (room(from), room(to)));
    pairs.filter(|(from, to)| from != to).collect()
}

/// The arrows between files of one set.
fn within(arrows: &BTreeSet<Arrow>, files: &BTreeSet<String>) -> BTreeSet<Arrow> {
    let inside = |(from, to): &&Arrow| files.contains(from) && files.contains(to);
    arrows.iter().filter(inside).cloned().collect()
}

/// Sets of two files and more, each of which reaches each other.
fn circles(arrows: &BTreeSet<Arrow>) -> Vec<BTreeSet<String>> {
    let mut left: BTreeSet<&String> = arrows.iter().flat_map(|(a, b)| [a, b]).collect();
    let mut found = Vec::new();
    while let Some(file) = left.pop_first() {
        let on = reached(arrows, file, |(from, to)| (from, to));
        let back = reached(arrows, file, |(from, to)| (to, from));
        let circle: BTreeSet<String> = on.intersection(&back).map(|f| (*f).clone()).collect();
        left.retain(|f| !circle.contains(*f));
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

/// What is reached from a file by one arrow or more; `way` says which end an arrow leads to.
fn reached<'a>(
    arrows: &'a BTreeSet<Arrow>,
    start: &'a String,
    way: fn(&Arrow) -> (&String, &String),
) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![start];
    while let Some(file) = next.pop() {
        let steps = arrows.iter().map(way).filter(|(from, _)| *from == file);
        for (_, to) in steps {
            if seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests;

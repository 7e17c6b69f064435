//! `perimeter-lab`: carries out `perimeter lab`.
//!
//! A program of its own, as it holds every organization a second time, on virtual cores, and the
//! reports: who only wants to bench need not build them.
#![forbid(unsafe_code)]

mod lab;
mod predict;
mod progress;

use perimeter_command::{STARTED_BY, VERSION, lab::LabCommand, source};
use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

/// The papers' experiments, and reports of them.
#[derive(Debug, clap::Parser)]
#[command(name = "perimeter lab", version = VERSION, propagate_version = false)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    perimeter_command::main(|cli: Cli| {
        if let Some(line) = other_build(env::var(STARTED_BY).ok().as_deref(), source()) {
            // Who reads standard error may have gone.
            let _ = writeln!(io::stderr(), "{line}");
        }
        lab::lab(&cli.command)
    })
}

/// What to say if `perimeter` was built from another commit than this program.
fn other_build(starter: Option<&str>, own: &str) -> Option<String> {
    let starter = starter.filter(|s| *s != own)?;
    Some(format!(
        "perimeter-lab was built from commit {own}, perimeter from {starter}: `cargo build \
         --release --workspace --bins` builds both"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds() {
        assert_eq!(other_build(None, "a"), None);
        assert_eq!(other_build(Some("a"), "a"), None);
        let line = other_build(Some("b"), "a").unwrap();
        assert!(line.contains("commit a") && line.contains("from b"));
    }
}

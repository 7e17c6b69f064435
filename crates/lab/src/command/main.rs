//! `perimeter-lab`: carries out `perimeter lab`.
//!
//! A program of its own, as it holds every organization a second time, on virtual cores, and the
//! reports: who only wants to bench need not build them.
#![forbid(unsafe_code)]

mod lab;
mod predict;

use perimeter_command::{VERSION, lab::LabCommand};
use std::process::ExitCode;

/// The papers' experiments, and reports of them.
#[derive(Debug, clap::Parser)]
#[command(name = "perimeter lab", version = VERSION, propagate_version = false)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    perimeter_command::main(|cli: Cli| lab::lab(&cli.command))
}

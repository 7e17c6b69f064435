//! `cargo soak` and `cargo explore`: very many simulations, optimised.
//!
//! A program of its own, so that whoever runs another task of the project need not build the stack
//! for it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

mod explore;
mod many;
mod soak;

/// Very many simulations.
#[derive(Parser)]
#[command(name = "cargo", bin_name = "cargo", version)]
enum Cli {
    /// Run two stacks back to back in virtual time over many seeds.
    Soak(soak::Args),
    /// Run tiny scenarios under very many schedules, for every organization.
    Explore(explore::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse() {
        Cli::Soak(args) => soak::run_soak(&args),
        Cli::Explore(args) => explore::run_explore(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

//! `cargo xtask attack`: builds `perimeter-attack` optimised and runs it. The arguments are its own,
//! so that there is one description of them.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;

/// What is passed on.
#[derive(ClapArgs)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of `perimeter-attack`; `--help` tells them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs it; its exit code.
///
/// # Errors
/// It can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    let cargo = [
        "run",
        "--quiet",
        "--release",
        "--package",
        "perimeter-attack",
        "--",
    ];
    let status = Command::new(env!("CARGO"))
        .args(cargo)
        .args(&args.args)
        .status()
        .context("cargo")?;
    Ok(status
        .code()
        .map_or(ExitCode::FAILURE, |c| ExitCode::from(c as u8)))
}

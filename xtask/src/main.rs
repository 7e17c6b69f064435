//! Tasks of the project that are neither a test nor a part of the product: each is a module with
//! its arguments and a `run`, and a line in [`Command`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod attack;
mod counts;
mod fmt;
mod forwarding;
mod gateways;
mod imports;
mod miri;
mod namespaces;
mod packetdrill;
mod packetdrill_script;
mod sanitize;
mod supply;
mod test;

/// `cargo xtask <task>`.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    version,
    about = "Tasks of the Perimeter project"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The tasks.
#[derive(Subcommand)]
enum Command {
    /// Run all tests, clippy and rustdoc, after installing the programs that tests use.
    Test(test::Args),
    /// Run packetdrill scripts against our TCP, or against the host's to get a baseline.
    Packetdrill(packetdrill::Args),
    /// Attack the stack over TAP, and hold what is left of its work against bounds. `cargo xtask
    /// attack -- --help` tells how.
    Attack(attack::Args),
    /// Run the churn test under a sanitizer of a nightly toolchain.
    Sanitize(sanitize::Args),
    /// Format all sources, also those that `cargo fmt` does not find.
    Fmt(fmt::Args),
    /// Print which source files import each other in a circle.
    Imports(imports::Args),
    /// Interpret the tests of what refers to memory by Miri, where a nightly toolchain has it.
    Miri(miri::Args),
    /// Measure gateways from a TUN device to a SOCKS5 proxy: ours, and those found in the path.
    Gateways(gateways::Args),
    /// Measure what passes between two hosts through a router: the kernel, or a stack of ours.
    Forwarding(forwarding::Args),
    /// Hold dependencies against `deny.toml`, and the interfaces of what is published against the last
    /// release, by `cargo deny` and `cargo semver-checks`.
    Supply(supply::Args),
    /// Count the instructions of the hot paths and compare them with those committed.
    Counts(counts::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Packetdrill(args) => packetdrill::run(&args),
        Command::Attack(args) => attack::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Fmt(args) => fmt::run(&args),
        Command::Imports(args) => imports::run(&args),
        Command::Miri(args) => miri::run(&args),
        Command::Gateways(args) => gateways::run(&args),
        Command::Forwarding(args) => forwarding::run(&args),
        Command::Supply(args) => supply::run(&args),
        Command::Counts(args) => counts::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

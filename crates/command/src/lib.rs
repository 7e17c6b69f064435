//! What the programs `perimeter` and `perimeter-lab` share: the arguments that both know, how they
//! begin and end, and how they write.
#![forbid(unsafe_code)]

pub mod bench;
pub mod lab;
mod output;

pub use output::{check_writable, print, write_whole};

use perimeter_measure::{Error, bench::report::Build};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

/// Version as printed by `--version`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The variable by which `perimeter` tells `perimeter-lab` its [`source`].
pub const STARTED_BY: &str = "PERIMETER_STARTED_BY";

/// The commit that this program was built from, with `+` if the checkout had changes; empty if
/// there was none.
pub fn source() -> &'static str {
    env!("PERIMETER_COMMIT")
}

/// Parses the command line and has `body` do what it asks for; `body` says with which status the
/// program ends if nothing goes wrong.
pub fn main<Cli: clap::Parser>(body: impl FnOnce(Cli) -> Result<u8, Error>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            // Help and version. A reader that has gone away is no error.
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => return fail(&one_line(&e), 2),
    };
    match body(cli) {
        Ok(code) => ExitCode::from(code),
        Err(e) => fail(&e.to_string(), e.exit_code()),
    }
}

/// Prints one line on standard error.
fn fail(line: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "perimeter: {line}");
    ExitCode::from(code)
}

/// What to say when a command came without its subcommand: `help` is its help.
fn missing_subcommand(help: &str) -> String {
    let usage = help.lines().find_map(|l| l.trim().strip_prefix("Usage: "));
    let words = usage.unwrap_or("perimeter").split_whitespace();
    let command: Vec<&str> = words.take_while(|w| !w.starts_with(['[', '<'])).collect();
    let listed = help.lines().skip_while(|l| l.trim() != "Commands:").skip(1);
    let names = listed.map_while(|l| l.split_whitespace().next());
    let names: Vec<&str> = names.filter(|n| *n != "help").collect();
    format!(
        "`{}` needs a subcommand: {}",
        command.join(" "),
        names.join(", ")
    )
}

/// A usage error in one line: its first paragraph and, if there is one, the tip.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let flat = |p: &str| p.split_whitespace().collect::<Vec<_>>().join(" ");
    // Without a subcommand the whole help comes instead of a message.
    let mut line = match paragraphs.next() {
        Some(first) if first.starts_with("error: ") => flat(&first["error: ".len()..]),
        _ => missing_subcommand(&text),
    };
    if let Some(tip) = paragraphs.find(|p| p.trim_start().starts_with("tip:")) {
        line.push_str("; ");
        line.push_str(&flat(tip));
    }
    line
}

/// Has the first signal to end set `stop`; the second ends the program at once.
///
/// # Errors
/// The system lets none be caught.
pub fn set_by_signal(stop: &Arc<AtomicBool>) -> Result<(), Error> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|source| Error::Io {
                context: "waiting for signals".into(),
                source,
            })?;
    }
    Ok(())
}

/// What made a report.
pub fn build() -> Build {
    Build {
        version: VERSION.into(),
        commit: Some(source().to_string()).filter(|c| !c.is_empty()),
        debug: cfg!(debug_assertions),
    }
}

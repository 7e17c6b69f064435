//! `perimeter`: the command line of the stack and its laboratory.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod gateway;
mod lab;
mod live;
mod screen;
mod serve;
mod shell;

use args::{Cli, Command, Recommend};
use perimeter_command::{
    VERSION, bench::Bench, build, check_writable, print, set_by_signal, write_whole,
};
use perimeter_measure::{
    Error,
    bench::{compare, progress::Bar, recommend, short, table},
    linux, net, organizations,
    organizations::Organization,
    text::wrapped,
};
use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
    sync::atomic::Ordering,
    time::Instant,
};

fn main() -> ExitCode {
    let started = Instant::now();
    perimeter_command::main(|cli: Cli| match cli.command {
        Command::Bench(bench) => run(&bench, started),
        Command::Recommend(args) => recommend(&args),
        Command::Gateway(args) => gateway::gateway(&args).map(|()| 0),
        Command::Lab(_) => lab::lab(),
        Command::Doctor { json } => doctor(json).map(|()| 0),
        Command::Orgs { json } => orgs(json).map(|()| 0),
        Command::Serve(args) => serve::serve(&args).map(|()| 0),
        Command::Ss(ss) => ask::ss(&ss).map(|()| 0),
        Command::Stat(ask) => ask::stat::stat(&ask).map(|()| 0),
        Command::Top(ask) => ask::top::top(&ask).map(|()| 0),
        Command::Pcap(ask) => ask::pcap::pcap(&ask).map(|()| 0),
        Command::Completions { shell } => shell::completions(shell).map(|()| 0),
        Command::Man { directory } => shell::man(&directory).map(|()| 0),
        Command::Trace(trace) => ask::trace(&trace).map(|()| 0),
    })
}

fn doctor(json: bool) -> Result<(), Error> {
    // While this is the only thread. Without success the checks say so.
    linux::gain_namespaces();
    let checks = perimeter_measure::doctor::examine();
    match json {
        true => {
            let text = serde_json::to_string_pretty(&checks);
            print(&(text.map_err(|e| Error::Run(e.to_string()))? + "\n"))
        }
        false => print(&perimeter_measure::doctor::render(&checks)),
    }
}

fn orgs(json: bool) -> Result<(), Error> {
    let list = organizations::canonical();
    if json {
        let text = serde_json::to_string_pretty(&list).map_err(|e| Error::Run(e.to_string()))?;
        return print(&(text + "\n"));
    }
    // Bare names for programs; a terminal has room for what they mean.
    let width = list.iter().map(|e| e.name.len()).max().unwrap_or(0);
    let explain = io::stdout().is_terminal();
    let text: String = list
        .iter()
        .map(|e| match explain {
            true => wrapped(&format!("{:width$}  {}", e.name, e.summary), width + 2),
            false => format!("{}\n", e.name),
        })
        .collect();
    print(&text)
}

/// Exit code of a benchmark that Ctrl-C ended early: that of SIGINT by custom.
const INTERRUPTED: u8 = 130;

/// Runs the benchmark and prints what it found; the exit code.
fn run(bench: &Bench, started: Instant) -> Result<u8, Error> {
    if let Some(at) = &bench.listen {
        return listen(at, bench.runs).map(|()| 0);
    }
    let settings = bench.settings()?;
    settings.check()?;
    let to_stdout = bench.json.as_deref() == Some(Path::new("-"));
    if bench.live && to_stdout {
        let line = "--live has the terminal, so --json needs a file instead of `-`";
        return Err(Error::Input(line.into()));
    }
    let earlier = bench.compare.as_deref().map(compare::read).transpose()?;
    if let Some(path) = bench.json.as_deref().filter(|_| !to_stdout) {
        check_writable("--json", path)?;
    }
    if let Some(path) = &settings.control {
        check_writable("--control", path)?;
    }
    let in_namespace = |o: &Organization| {
        matches!(o, Organization::Linux { .. }) || settings.device.is_to_kernel()
    };
    if settings.connect.is_none() && settings.organizations.iter().any(in_namespace) {
        // While this is the only thread. Without success the backend falls back and says so.
        linux::gain_namespaces();
    }
    let mut bar = Bar::new();
    let report = match bench.live {
        true => live::bench(&settings, build(), started)?,
        false => {
            set_by_signal(bar.stop())?;
            perimeter_measure::bench(&settings, build(), started, &mut bar)?
        }
    };
    let code = match bar.stop().load(Ordering::Relaxed) {
        true => INTERRUPTED,
        false => u8::from(!report.failed.is_empty()),
    };
    if to_stdout {
        return print(&report.to_json()).map(|()| code);
    }
    let mut text = match bench.wide || bench.profile {
        true => table::render(&report),
        false => short::render(&report),
    };
    if let Some(old) = &earlier {
        text.push('\n');
        text.push_str(&compare::render(old, &report));
    }
    let printed = print(&text);
    if let Some(path) = &bench.json {
        write_whole(path, &report.to_json())?;
    }
    printed.map(|()| code)
}

/// Says which organization suits which work; the exit code.
fn recommend(args: &Recommend) -> Result<u8, Error> {
    let candidates = args.org.clone().unwrap_or_else(recommend::candidates);
    if candidates.len() < 2 {
        let line = "--org: there is nothing to choose from; list two organizations or more";
        return Err(Error::Input(line.into()));
    }
    let mut bar = Bar::new();
    set_by_signal(bar.stop())?;
    let mut found = recommend::recommend(&candidates, build(), &mut bar)?;
    if args.cores > 0 && !bar.stop().load(Ordering::Relaxed) {
        match lab::for_more_cores(&candidates, args.cores)? {
            Ok(prediction) => found.prediction = Some(prediction),
            Err(why) => found.notes.push(why),
        }
    }
    print(&match args.json {
        true => found.to_json(),
        false => found.render(),
    })?;
    Ok(match bar.stop().load(Ordering::Relaxed) {
        true => INTERRUPTED,
        false => 0,
    })
}

/// Serves benches on other machines.
fn listen(at: &str, runs: Option<u64>) -> Result<(), Error> {
    let server = net::server::Server::bind(net::resolve(at, false)?, VERSION.into())?;
    print(&format!("listening on {}\n", server.address()?))?;
    // A line that can't be printed is no reason to stop serving.
    server.serve(runs, &|line| {
        let _ = print(&format!("{line}\n"));
    })
}

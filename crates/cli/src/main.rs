//! `perimeter`: the command line of the stack and its laboratory.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod gateway;
mod lab;
mod live;
mod predict;
mod screen;
mod serve;
mod shell;

use args::{Bench, Cli, Command, Recommend};
use clap::Parser;
use perimeter_lab::{
    Error,
    bench::{compare, progress::Bar, recommend, report::Build, short, table},
    host, linux, net, organizations,
    organizations::Organization,
    text::wrapped,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Version as printed by `--version`.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    let started = Instant::now();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            // Help and version. A reader that has gone away is no error.
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => return fail(&one_line(&e), 2),
    };
    let outcome = match cli.command {
        Command::Bench(bench) => run(&bench, started),
        Command::Recommend(args) => recommend(&args),
        Command::Gateway(args) => gateway::gateway(&args).map(|()| 0),
        Command::Lab(args) => lab::lab(&args),
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
    };
    match outcome {
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
fn set_by_signal(stop: &Arc<AtomicBool>) -> Result<(), Error> {
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

/// Prints to standard output; a reader that has gone away is no error.
fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::Io {
            context: "writing to standard output".into(),
            source: e,
        }),
        _ => Ok(()),
    }
}

/// What made a report.
fn build() -> Build {
    Build {
        version: VERSION.into(),
        commit: Some(env!("PERIMETER_COMMIT").to_string()).filter(|c| !c.is_empty()),
        debug: cfg!(debug_assertions),
    }
}

fn doctor(json: bool) -> Result<(), Error> {
    // While this is the only thread. Without success the checks say so.
    linux::gain_namespaces();
    let checks = perimeter_lab::doctor::examine();
    match json {
        true => {
            let text = serde_json::to_string_pretty(&checks);
            print(&(text.map_err(|e| Error::Run(e.to_string()))? + "\n"))
        }
        false => print(&perimeter_lab::doctor::render(&checks)),
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
    let in_namespace = |o: &Organization| match o {
        Organization::Linux { .. } => true,
        Organization::Ours(_) | Organization::Other(_) | Organization::Null => {
            settings.device.is_to_kernel()
        }
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
            perimeter_lab::bench(&settings, build(), started, &mut bar)?
        }
    };
    let code = match bar.stop().load(Ordering::Relaxed) {
        true => INTERRUPTED,
        false => 0,
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
        found.prediction = Some(predict::for_more_cores(&candidates, args.cores)?);
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

/// Finds out before a long run whether its result can be written, without writing anything.
fn check_writable(option: &str, path: &Path) -> Result<(), Error> {
    let input = |why: String| Err(Error::Input(format!("{option} {}: {why}", path.display())));
    if path.as_os_str().is_empty() {
        return input("an empty file name".into());
    }
    if path.is_dir() {
        return input("is a directory".into());
    }
    if path.exists() {
        return match fs::OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(e) => input(e.to_string()),
        };
    }
    match directory_of(path).metadata() {
        Ok(d) if !d.is_dir() => input("its parent is no directory".into()),
        Ok(_) if !host::may_create_in(directory_of(path)) => {
            input("no permission to create files in its directory".into())
        }
        Ok(_) => Ok(()),
        Err(e) => input(format!("its directory: {e}")),
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Writes a file such that nobody ever sees a part of it.
fn write_whole(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Io {
        context: format!("writing {}", path.display()),
        source,
    };
    // A device or a pipe can't be replaced by renaming.
    if path.exists() && !path.is_file() {
        return fs::write(path, text).map_err(failed);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = directory_of(path).join(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&part);
        failed(e)
    })
}

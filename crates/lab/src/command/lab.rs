//! `perimeter lab`: the papers' experiments.

use crate::progress;
use indicatif::ProgressBar;
use perimeter::OrgSpec;
use perimeter_command::{
    build, check_writable,
    lab::{CacheSubject, LabCommand, LabRun},
    print, set_by_signal, write_whole,
};
use perimeter_lab::{
    cache,
    plan::{Mode, Plan, embedded},
    predict::Predictions,
    published::published,
    record::{self, Folder},
    report::{self, lanes},
    runner::{self, Request, Step, Summary, Watcher},
    trace,
};
use perimeter_measure::{
    Error,
    host::steady,
    linux,
    text::{did_you_mean, wrapped},
    units,
    workload::Configuration,
};
use std::{
    io::{self, IsTerminal, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Does what was asked for. The exit code of a run with failed configurations is 1.
pub fn lab(command: &LabCommand) -> Result<u8, Error> {
    match command {
        LabCommand::List { json } => list(*json).map(|()| 0),
        LabCommand::Show { name } => print(&find(name)?.text).map(|()| 0),
        LabCommand::Run(args) => run(args),
        LabCommand::Trace { org, json, svg } => send(org, *json, svg.as_deref()).map(|()| 0),
        LabCommand::Calibrate(args) => crate::predict::calibrate(args).map(|()| 0),
        LabCommand::Predict(args) => crate::predict::predict(args, find),
        LabCommand::Advise { cores, org } => crate::predict::advise(org, *cores).map(|()| 0),
        LabCommand::CacheSubject(args) => cache_subject(args).map(|()| 0),
        LabCommand::Compare { before, now, out } => compare(before, now, out).map(|()| 0),
        LabCommand::Report {
            dir,
            markdown,
            replace,
            predicted,
        } => {
            let stored = record::read_rows(dir)?;
            for file in predicted {
                Predictions::read(file)?.keep(dir)?;
            }
            let written = report::write(dir, &stored, *replace)?;
            match markdown {
                true => print(&written.markdown)?,
                false => print(&format!("{}\n", dir.join(report::HTML).display()))?,
            }
            Ok(0)
        }
    }
}

/// Two folders on one page.
fn compare(before: &Path, now: &Path, out: &Path) -> Result<(), Error> {
    check_writable("--out", out)?;
    let stored = [record::read_rows(before)?, record::read_rows(now)?];
    let names = [before, now].map(|p| p.display().to_string());
    let found = report::compare::compare(&stored[0], &stored[1], [&names[0], &names[1]])?;
    write_whole(out, &found.html)?;
    print(&format!("{}{}\n", found.answer, out.display()))
}

/// What one send does.
fn send(org: &OrgSpec, json: bool, svg: Option<&Path>) -> Result<(), Error> {
    let trace = trace::record(org)?;
    if json {
        let text = serde_json::to_string_pretty(&trace).map_err(|e| Error::Run(e.to_string()))?;
        return print(&(text + "\n"));
    }
    match svg {
        Some(path) if path == Path::new("-") => print(&lanes::file(&trace)),
        Some(path) => {
            check_writable("--svg", path)?;
            write_whole(path, &lanes::file(&trace))
        }
        None => {
            let mut text = trace.text();
            for order in &published().orders {
                if order.series.eq_ignore_ascii_case(&trace.org) {
                    text.push_str(&lanes::agreement(&trace, order));
                    text.push('\n');
                }
            }
            print(&text)
        }
    }
}

fn list(json: bool) -> Result<(), Error> {
    let plans = embedded();
    if json {
        let list: Vec<_> = plans
            .iter()
            .map(|p| {
                let published = p.published.iter().flat_map(|e| &e.places);
                let places: Vec<String> = published
                    .map(|p| format!("{}: {}", p.source, p.place))
                    .collect();
                let estimate = |mode| p.estimate(mode).as_secs();
                serde_json::json!({
                    "name": p.name,
                    "title": p.title,
                    "asks": p.asks,
                    "published": places,
                    "seconds": {
                        "quick": estimate(Mode::Quick),
                        "normal": estimate(Mode::Normal),
                        "full": estimate(Mode::Full),
                    },
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(&list).map_err(|e| Error::Run(e.to_string()))?;
        return print(&(text + "\n"));
    }
    // Bare names for programs; a terminal has room for what they mean.
    if !io::stdout().is_terminal() {
        return print(&plans.iter().fold(String::new(), |t, p| t + &p.name + "\n"));
    }
    let width = plans.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for p in &plans {
        let times = [Mode::Quick, Mode::Normal, Mode::Full].map(|m| units::roughly(p.estimate(m)));
        let line = format!("{:width$}  {} [{}]", p.name, p.title, times.join(", "));
        text.push_str(&wrapped(&line, width + 2));
    }
    text.push_str("\n[estimated time: --quick, default, --full]\n");
    print(&text)
}

/// The embedded plan of that name, or a plan's file.
fn find(name: &str) -> Result<Plan, Error> {
    if let Some(plan) = embedded().into_iter().find(|p| p.name == name) {
        return Ok(plan);
    }
    let path = Path::new(name);
    if path.exists() || name.contains(['/', '.']) {
        return Plan::load(path);
    }
    let known: Vec<String> = embedded().into_iter().map(|p| p.name).collect();
    let meant = did_you_mean(name, known.iter().map(String::as_str).chain([ALL]));
    Err(Error::Input(format!(
        "no plan and no file `{name}`{}",
        match meant {
            none if none.is_empty() => "; `perimeter lab list` lists the plans".into(),
            meant => meant,
        }
    )))
}

fn run(args: &LabRun) -> Result<u8, Error> {
    let request = Request {
        plans: wanted(&args.plans)?,
        mode: mode(args),
        device: args.device,
        seed: args.seed.unwrap_or_else(seed),
        build: build(),
        more: Duration::from_secs(60 * args.more),
    };
    let (request, mut folder, present) = if args.resume {
        let Some(out) = &args.out else {
            return Err(Error::Input(
                "--resume: --out must say with which folder".into(),
            ));
        };
        let (folder, stored) = Folder::resume(out)?;
        let request = request.joined(&stored, args.seed)?;
        (request, folder, stored.rows)
    } else {
        let out = match &args.out {
            Some(out) => out.clone(),
            None => default_out(&args.plans, request.mode)?,
        };
        let folder = Folder::create(&out, &request.header(), &request.plans)?;
        (request, folder, Vec::new())
    };
    // While this is the only thread. Without success the backends fall back and say so.
    linux::gain_namespaces();
    announce(&request, folder.path(), &present);
    // What is modelled does not depend on it.
    if request.plans.iter().any(|p| !p.metric.is_modelled())
        && let Some(sign) = steady::sign()
    {
        let line =
            format!("{sign}: something shares its core, and single runs will differ as much");
        let _ = writeln!(io::stderr(), "{line}");
    }
    let stop = stop_by_signal()?;
    let bar = progress::bar();
    let mut bar = Bar { bar, stop };
    let outcome = runner::run(&request, &mut folder, &present, &mut bar);
    bar.bar.finish_and_clear();
    let summary = outcome?;
    let path = folder.path().to_path_buf();
    let stored = record::read(&path)?;
    let written = report::write(&path, &stored, false)?;
    // Whoever looks wants the answer, and a program all of it.
    match io::stdout().is_terminal() {
        true => print(&written.answer)?,
        false => print(&written.markdown)?,
    }
    tell(&summary, &path);
    if summary.stopped {
        tell_how_to_go_on(args, &path);
        return Ok(1);
    }
    let began = summary.measured + summary.failed + summary.present;
    if began == 0 && summary.unavailable > 0 && args.plans != [ALL] {
        return Err(Error::Unavailable(format!(
            "{}: nothing of it can run here",
            args.plans.join(", ")
        )));
    }
    Ok(u8::from(summary.failed > 0))
}

/// How much time.
fn mode(args: &LabRun) -> Mode {
    match (args.quick, args.full) {
        (true, _) => Mode::Quick,
        (_, true) => Mode::Full,
        _ => Mode::Normal,
    }
}

/// A flag that the first signal to end sets; the second ends the program at once.
fn stop_by_signal() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    set_by_signal(&stop)?;
    Ok(stop)
}

/// The one configuration that the arguments describe, under the observation of a trace.
fn cache_subject(args: &CacheSubject) -> Result<(), Error> {
    let settings = args.bench.settings()?;
    settings.check()?;
    let organization = settings.organizations[0].clone();
    let configuration = Configuration {
        connections: settings.connections[0],
        threads: settings.threads_of(&organization),
        organization,
    };
    let extent = cache::Extent {
        untraced: args.untraced,
        warm: args.warm,
        payload: args.payload,
        all: args.all,
    };
    cache::run_subject(&settings, &configuration, extent, args.seed)
}

/// What stands for every plan.
const ALL: &str = "all";

/// The plans of these names and files, each once.
fn wanted(names: &[String]) -> Result<Vec<Plan>, Error> {
    if names == [ALL] {
        return Ok(all());
    }
    let mut plans: Vec<Plan> = Vec::new();
    for name in names {
        if name == ALL {
            let what = "`all` stands for every plan: give it alone";
            return Err(Error::Input(what.into()));
        }
        let plan = find(name)?;
        if plans.iter().any(|p| p.name == plan.name) {
            let what = format!("{name}: the plan `{}` was given already", plan.name);
            return Err(Error::Input(what));
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Every plan, those that take a model's patience last.
fn all() -> Vec<Plan> {
    let (modelled, mut plans): (Vec<Plan>, _) =
        embedded().into_iter().partition(|p| p.metric.is_modelled());
    plans.extend(modelled);
    plans
}

/// Says beforehand what is coming, on standard error.
fn announce(request: &Request, path: &Path, present: &[record::Row]) {
    let names: Vec<&str> = request.plans.iter().map(|p| &*p.name).collect();
    let there = match present.iter().filter(|r| r.measured().is_some()).count() {
        0 => String::new(),
        n => format!(", {n} runs of it are there"),
    };
    let more = match request.more {
        Duration::ZERO => String::new(),
        more => format!(" and {} more at most", units::roughly(more)),
    };
    let _ = writeln!(
        io::stderr(),
        "{} ({}): about {}{more}{there}; raw data and report in {}",
        names.join(", "),
        request.mode,
        units::roughly(request.estimate()),
        path.display()
    );
}

fn tell(summary: &Summary, path: &Path) {
    let mut parts = vec![format!("{} runs measured", summary.measured)];
    let mut also = |n: usize, what: &str| {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    };
    also(summary.present, "there already");
    also(summary.failed, "failed");
    also(summary.unavailable, "configurations can't run here");
    let report = path.join(report::HTML);
    let _ = writeln!(io::stderr(), "{}; {}", parts.join(", "), report.display());
}

fn tell_how_to_go_on(args: &LabRun, path: &Path) {
    let mode = match mode(args) {
        Mode::Normal => String::new(),
        other => format!(" --{other}"),
    };
    let device = args
        .device
        .map_or(String::new(), |d| format!(" --device {d}"));
    let more = match args.more {
        0 => String::new(),
        more => format!(" --more {more}"),
    };
    let _ = writeln!(
        io::stderr(),
        "stopped; the rest: perimeter lab run {}{mode}{device}{more} --resume --out {}",
        args.plans.join(" "),
        path.display()
    );
}

/// A folder in the working directory that isn't there yet.
fn default_out(plans: &[String], mode: Mode) -> Result<PathBuf, Error> {
    let stem = match plans {
        [one] => Path::new(one).file_stem().unwrap_or_default(),
        _ => "plans".as_ref(),
    };
    let stem = stem.to_string_lossy();
    let name = format!("lab-{stem}-{mode}");
    (1..1000)
        .map(|n| match n {
            1 => PathBuf::from(&name),
            n => PathBuf::from(format!("{name}-{n}")),
        })
        .find(|path| path.symlink_metadata().is_err())
        .ok_or_else(|| Error::Input(format!("{name} and its like are all there; give --out")))
}

/// A seed that the folder records.
fn seed() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ since.as_secs().rotate_left(32)
}

/// A progress bar on standard error, if that is a terminal; remarks always.
struct Bar {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Watcher for Bar {
    fn begins(&mut self, step: &Step<'_>) {
        self.bar.set_length(step.of as u64);
        self.bar.set_position(step.done as u64);
        self.bar.set_message(format!(
            "{}: {} at {}, about {} left",
            step.plan.name,
            step.plan.series[step.cell.series].label,
            step.cell.x,
            units::roughly(step.left)
        ));
    }

    fn remark(&mut self, line: &str) {
        let write = || writeln!(io::stderr(), "{line}");
        let _ = self.bar.suspend(write);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

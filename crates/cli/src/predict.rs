//! `perimeter lab calibrate` and `perimeter lab predict`.

use crate::print;
use clap::Args;
use perimeter::OrgSpec;
use perimeter_lab::{
    Error,
    bench::recommend::Prediction,
    plan::{Mode, Plan},
    predict::{self, Effort, Machine, Question, Time, loads::Load},
    units,
};
use serde_json::json;
use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// The machine that is of this one's kind.
const LIKE: &str = "vm-2core";

/// What `perimeter lab calibrate --help` says at its end.
pub const CALIBRATE_HELP: &str = "\
Times single operations (locks, wakes, switches, a cache line from core to core, memory), runs \
one thread under some organizations and loads, and fits what classes of work cost to those runs. \
Runs of two threads are measured beside them; nothing is fitted to those: `perimeter lab predict` \
holds its predictions against them. What this machine can't tell, such as what a line takes \
between two processors, is taken from the table that --like names.

With --to, nothing is measured: work in the table that --like names is scaled until one thread \
sends what was published for few connections and, where that is given, memory until it does for \
many.

Examples:
  perimeter lab calibrate --out here.toml
  perimeter lab predict throughput --machine here.toml --cores 1,2,4,8,16
  perimeter lab calibrate --like opteron-275 --to 6=4034 --out opteron.toml";

/// What `perimeter lab predict --help` says at its end.
pub const PREDICT_HELP: &str = "\
The stack's own code runs on virtual cores, in virtual time, with the costs of a machine's table; \
the peers are machines of their own. First the table is held against runs that it was not fitted \
to, where there are any; a load for which that fails is marked. Each point runs with several \
seeds, and with each group of costs (work, cache lines, locks, scheduling) times and over 1.5: \
that is its band. A claim of a paper counts as predicted only if it holds throughout the band of \
its ratio.

Examples:
  perimeter lab predict throughput --machine opteron-275 --cores 4
  perimeter lab predict all --quick --machine server-64 --cores 4,16,64 --json predicted.json

Exit status: 0 predicted, 1 the validation fails, 2 the request can't be served.";

/// Arguments of `perimeter lab calibrate`.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// The machine whose table is started from: one that ships with the program, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "vm-2core")]
    like: String,
    /// Scale that table to what one thread was published to send, in Mb/s by connections
    #[arg(long, value_name = "FEW=MBPS[,MANY=MBPS]", value_parser = published)]
    to: Option<Published>,
    /// Short runs, one of each: a look
    #[arg(long, conflicts_with = "to")]
    quick: bool,
    /// Put how many cache lines go with what is touched into that table, from traces (needs
    /// valgrind, and some minutes); nothing else is measured then
    #[arg(long, conflicts_with_all = ["to", "quick"])]
    lines: bool,
    /// Measure nothing: fit that table anew to the runs that are in it
    #[arg(long, conflicts_with_all = ["to", "quick", "lines"])]
    refit: bool,
    /// Where the table goes, in place of a file of that name [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What was published of one thread: connections and Mb/s, of few and of many.
#[derive(Debug, Clone, Copy)]
struct Published((u32, f64), Option<(u32, f64)>);

fn published(text: &str) -> Result<Published, String> {
    let one = |part: &str| {
        let (n, mbps) = part.split_once('=')?;
        let rate = mbps
            .parse()
            .ok()
            .filter(|r: &f64| *r > 0.0 && r.is_finite())?;
        Some((n.parse::<u32>().ok().filter(|n| *n > 0)?, rate))
    };
    let parts: Option<Vec<(u32, f64)>> = text.split(',').map(one).collect();
    match parts.as_deref() {
        Some([few]) => Ok(Published(*few, None)),
        Some([few, many]) if few.0 < many.0 => Ok(Published(*few, Some(*many))),
        _ => Err("one or two of CONNECTIONS=MBPS, the one with fewer connections first".into()),
    }
}

/// Arguments of `perimeter lab predict`.
#[derive(Debug, Args)]
pub struct Predict {
    /// A plan that `perimeter lab list` prints, a plan's file, or `all`
    #[arg(value_name = "NAME|FILE|all")]
    plan: String,
    /// The machine: one that ships with the program (vm-2core, opteron-275, t1, server-64), or a
    /// file that `perimeter lab calibrate` wrote
    #[arg(long, value_name = "NAME|FILE", default_value = "vm-2core")]
    machine: String,
    /// Numbers of cores [default: powers of two up to what the machine has, and that]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = cores)]
    cores: Option<Vec<usize>>,
    /// Runs of each point, each with a seed of its own
    #[arg(long, value_name = "N", default_value = "5", value_parser = seeds)]
    seeds: u64,
    /// Fewer values and shorter runs, one seed each, and no bands
    #[arg(long)]
    quick: bool,
    /// Write everything as JSON to a file, or to standard output (`-`) instead of the text
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

fn cores(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the number of cores", 1..=256)? as usize)
}

fn seeds(text: &str) -> Result<u64, String> {
    units::whole(text, "the number of seeds", 1..=100)
}

fn say(line: &str) {
    // Who reads standard error may have gone.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Does what was asked for.
pub fn calibrate(args: &Calibrate) -> Result<(), Error> {
    if let Some(out) = &args.out {
        crate::check_writable("--out", out)?;
    }
    let like = Machine::find(&args.like)?;
    let machine = match args.to {
        Some(Published(few, many)) => predict::scale(&like, few, many)?,
        None if args.refit => {
            let mut machine = like;
            predict::refit(&mut machine, &mut |line| say(line))?;
            machine
        }
        None if args.lines => {
            let mut machine = like;
            machine.each.extend(predict::lines(&mut |line| say(line))?);
            machine
        }
        None => {
            let time = match args.quick {
                true => Time::QUICK,
                false => Time::USUAL,
            };
            predict::calibrate(&like, time, &mut |line| say(line))?
        }
    };
    let text = machine.text()?;
    match &args.out {
        Some(out) => crate::write_whole(out, &text),
        None => print(&text),
    }
}

/// Does what was asked for; 1 if the table does not hold for a load of the plans.
pub fn predict(args: &Predict, find: impl Fn(&str) -> Result<Plan, Error>) -> Result<u8, Error> {
    let plans = match args.plan.as_str() {
        "all" => perimeter_lab::plan::embedded(),
        name => vec![find(name)?],
    };
    if let Some(file) = args.json.as_deref().filter(|f| *f != Path::new("-")) {
        crate::check_writable("--json", file)?;
    }
    let machine = Machine::find(&args.machine)?;
    let mut list = args.cores.clone().unwrap_or_else(|| usual(machine.cores));
    list.sort_unstable();
    list.dedup();
    let effort = match args.quick {
        true => Effort::QUICK,
        false => Effort::USUAL,
    };
    say(&format!("{}: validating", machine.name));
    let validation = predict::validate(&machine, if args.quick { 1 } else { args.seeds }, effort)?;
    let question = Question {
        machine,
        cores: list,
        mode: match args.quick {
            true => Mode::Quick,
            false => Mode::Normal,
        },
        seeds: if args.quick { 1 } else { args.seeds },
        band: !args.quick,
        effort,
    };
    let mut text = validation.to_string();
    let mut figures = Vec::new();
    for plan in &plans {
        say(&format!("{}: predicting", plan.name));
        let figure = predict::predict(plan, &question, &validation)?;
        // A plan of which nothing can be predicted says so once, by its points.
        text.push_str(&format!("\n{figure}"));
        figures.push(figure);
    }
    let fails = figures.iter().any(|f| !f.caveats.is_empty());
    if let Some(file) = &args.json {
        let whole = json!({
            "schema": "perimeter-predict/1",
            "build": crate::build(),
            "machine": question.machine,
            "cores": question.cores,
            "seeds": question.seeds,
            "validation": validation,
            "figures": figures,
        });
        let whole = serde_json::to_string_pretty(&whole).map_err(|e| Error::Run(e.to_string()))?;
        match file.as_path() == Path::new("-") {
            true => print(&(whole + "\n"))?,
            false => {
                crate::write_whole(file, &(whole + "\n"))?;
                print(&text)?;
            }
        }
    } else {
        print(&text)?;
    }
    Ok(u8::from(fails))
}

/// What is predicted for `cores` cores, with the costs of the machine that is like this one.
pub fn for_more_cores(candidates: &[OrgSpec], cores: usize) -> Result<Prediction, Error> {
    let machine = Machine::find(LIKE)?;
    let here = perimeter_lab::host::cores();
    // Those with as many perimeters as there are cores have as many there.
    let there = |org: &OrgSpec| {
        let name = org.to_string();
        match name.strip_suffix(&format!(":{here}")) {
            Some(family) => format!("{family}:{cores}"),
            None => name,
        }
    };
    let all: Vec<String> = candidates.iter().map(there).collect();
    let advice = predict::advise(&machine, cores, &all)?;
    let said = advice.iter().map(|a| match &a.best {
        Ok((best, lead, next)) => format!("for {} {best}, {lead:.2} × {next}", words(a.load)),
        Err(why) => format!("for {} nothing, as {why}", words(a.load)),
    });
    Ok(Prediction {
        cores,
        machine: machine.title.clone(),
        said: said.collect(),
    })
}

fn words(load: Load) -> &'static str {
    match load {
        Load::Send => "sending",
        Load::Receive => "receiving",
        Load::Messages => "messages",
    }
}

/// Powers of two up to `most`, and that.
fn usual(most: usize) -> Vec<usize> {
    let powers = (0..).map(|n| 1usize << n).take_while(|n| *n < most);
    powers.chain([most]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_cores() {
        assert_eq!(usual(1), [1]);
        assert_eq!(usual(4), [1, 2, 4]);
        assert_eq!(usual(6), [1, 2, 4, 6]);
    }

    #[test]
    fn what_was_published() {
        let Published(few, many) = published("6=4034,16384=2100").unwrap();
        assert_eq!((few, many), ((6, 4034.0), Some((16_384, 2100.0))));
        assert!(published("6=4034").unwrap().1.is_none());
        for wrong in [
            "",
            "6=",
            "6=1,6=2",
            "a=1,b=2",
            "16384=2100,6=4034",
            "0=1,2=3",
        ] {
            assert!(published(wrong).is_err(), "{wrong}");
        }
    }
}

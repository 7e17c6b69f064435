//! Arguments of `perimeter lab`, which the program `perimeter-lab` carries out.

use crate::bench::{Bench, ours};
use clap::{Args, Subcommand};
use perimeter::OrgSpec;
use perimeter_measure::{
    units,
    workload::{Device, Inbound},
};
use std::{path::PathBuf, str::FromStr};

const RUN_HELP: &str = "\
The folder gets lab.json (what was asked for), plans/ (the plans as they ran), runs.jsonl (a line \
a run, with the machine, the version, all settings and the seed), report.html, report.md and \
report.csv. A folder that is there already is left alone, but --resume goes on with one after an \
interruption: each run is on the disk before the next begins. Ctrl-C or SIGTERM ends after the \
present run, with a report of what is there; a second one ends at once.

Every pass runs each configuration once, in an order drawn from the seed. Figures show medians \
with intervals from order statistics; where intervals overlap the report says that no difference \
is seen. Runs that something else on the machine disturbed are marked.

Some hypervisors move cores apart for minutes at a time. Runs with near and with far cores are told \
apart, and a verdict needs five of a kind; --more makes further passes for what lacks them, also of \
a folder that is finished (with --resume).

Examples:
  perimeter lab run throughput --quick
  perimeter lab run throughput contention locks --out tuesday
  perimeter lab run all --quick --out monday
  perimeter lab run all --quick --out monday --resume
  perimeter lab show groups > mine.toml && perimeter lab run mine.toml

Exit status: 0 all measured, 1 a run failed or was stopped, 2 the request can't be served.";

const SEND_HELP: &str = "\
One full segment is sent over an idle connection; the stack's own code runs on virtual cores, so \
that every lock is seen and nobody is in the way. A line is a step: thread, layer, what it does, \
indented by the locks that are held. The paper's counterpart is Figure 4 (Willmann, Rixner, Cox, \
long version): under msgp a last line says whether its order is the same. Innermost locks of the \
platform are left out.

Examples:
  perimeter lab trace --org msgp
  perimeter lab trace --org connp-t:4 --svg send.svg";

/// What `perimeter lab calibrate --help` says at its end.
const CALIBRATE_HELP: &str = "\
Times single operations (locks, wakes, switches, timers, cache lines from core to core, memory, \
payload by where it is), runs one thread under some organizations and loads, and fits what \
classes of work cost to those runs; then one core whose threads take turns, for what switching and handing work \
over cost. \
Runs of two threads are measured beside them; nothing is fitted to those: `perimeter lab predict` \
holds its predictions against them. What this machine can't tell, such as what a line takes \
between two processors, is taken from the table that --like names.

With --to, nothing is measured: work in the table that --like names is scaled until one thread \
sends what was published for few connections and, where that is given, the number of cache lines \
that a connection has for itself until it does for many. With --scheduling, too, what scheduling \
takes is scaled until it spends as much on that. Where stacks are kernels (`preemptive` in a table), \
the one thread is a uniprocessor's application, which NICs interrupt. Numbers of connections are those of the plan `throughput`.

Examples:
  perimeter lab calibrate --out here.toml
  perimeter lab predict throughput --machine here.toml --cores 1,2,4,8,16
  perimeter lab calibrate --like opteron-275 --to 6=4034,16384=2100 --scheduling 6=482 --out opteron.toml";

/// What `perimeter lab predict --help` says at its end.
const PREDICT_HELP: &str = "\
The stack's own code runs on virtual cores, in virtual time, with the costs of a machine's table; \
the peers are machines of their own. First the table is held against runs that it was not fitted \
to, where there are any; a load for which that fails is marked. A point of few connections is \
run once for each look, each time with another seed. One of more connections has two runs, one of \
many a single run, and those are looked at several times. The first run then goes on with each \
group of costs (work, cache lines, locks, scheduling) times and over 1.5: that is the point's band. \
A claim of a paper counts as predicted only if it holds throughout the band of its ratio.

Examples:
  perimeter lab predict throughput --machine opteron-275 --cores 4
  perimeter lab predict throughput --machine server-64 --cores 4,16,64 --nics 64
  perimeter lab predict all --quick --machine server-64 --cores 4,16,64 --json predicted.json
  perimeter lab report monday --predicted predicted.json

Exit status: 0 predicted, 1 the validation fails, 2 the request can't be served.";

/// Arguments of `perimeter lab`.
#[derive(Debug, Args)]
pub struct Lab {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// Subcommands of `perimeter lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Print the plans: a figure or a table of the papers each
    List {
        /// Print JSON with what each asks and how long it takes
        #[arg(long)]
        json: bool,
    },
    /// Print a plan's file, to start one of your own from
    Show {
        /// The plan
        name: String,
    },
    /// Carry out a plan, record each run and make a report
    #[command(after_help = RUN_HELP, allow_negative_numbers = true)]
    Run(LabRun),
    /// Show what one send does: its locks, layers and threads, recorded on virtual cores
    #[command(after_help = SEND_HELP)]
    Trace {
        /// The organization
        #[arg(long, value_parser = ours)]
        org: OrgSpec,
        /// Print JSON
        #[arg(long, conflicts_with = "svg")]
        json: bool,
        /// Draw it into this file, with a lane for each lock (`-`: standard output)
        #[arg(long, value_name = "FILE|-")]
        svg: Option<PathBuf>,
    },
    /// Measure what this machine takes for what, as a table that predictions are made from
    #[command(after_help = CALIBRATE_HELP)]
    Calibrate(Calibrate),
    /// Predict a plan for more cores than there are, or for another machine
    #[command(after_help = PREDICT_HELP, allow_negative_numbers = true)]
    Predict(Predict),
    /// What is predicted for more cores of a machine like this one, for `perimeter recommend`
    #[command(hide = true)]
    Advise {
        /// Number of cores
        cores: usize,
        /// The organizations to choose from
        #[arg(required = true, value_parser = ours)]
        org: Vec<OrgSpec>,
    },
    /// What `lab run cache` traces: one run over virtual cores
    #[command(hide = true)]
    CacheSubject(Box<CacheSubject>),
    /// Make the report of recorded runs again, without running anything
    Report {
        /// The folder of the runs
        dir: PathBuf,
        /// Print the report as Markdown
        #[arg(long)]
        markdown: bool,
        /// Put it in the place of a report that tells of more runs than the record has
        #[arg(long)]
        replace: bool,
        /// Draw what `perimeter lab predict --json` has written, too; it is kept in the folder
        #[arg(long, value_name = "FILE")]
        predicted: Vec<PathBuf>,
    },
    /// Put the runs of two folders on one page: what is better in the second, what is worse
    Compare {
        /// The folder of the earlier runs
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// The folder of the later runs
        #[arg(value_name = "NOW")]
        now: PathBuf,
        /// The page, in place of a file of that name
        #[arg(long, value_name = "FILE", default_value = "lab-compare.html")]
        out: PathBuf,
    },
}

/// Arguments of `perimeter lab run`.
#[derive(Debug, Args)]
pub struct LabRun {
    /// Plans that `perimeter lab list` prints, plans' files, or `all`
    #[arg(value_name = "NAME|FILE|all", required = true)]
    pub plans: Vec<String>,
    /// Short runs over few values: a look
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The papers' durations; how long that takes is said beforehand
    #[arg(long)]
    pub full: bool,
    /// Device of our organizations in place of the plan's: mem, pair, tap, tun, packet or xdp
    #[arg(long, value_parser = Device::from_str)]
    pub device: Option<Device>,
    /// Folder for the raw data and the report [default: lab-NAME-MODE here; lab-plans-MODE for
    /// several]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with the runs of --out where they were interrupted
    #[arg(long)]
    pub resume: bool,
    /// Afterwards run again, for MINUTES at most, what lacks runs with near cores, or with far
    /// ones; first the plan that soonest has enough
    #[arg(long, value_name = "MINUTES", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(..=24 * 60))]
    pub more: u64,
    /// Seed of the order of the runs [default: drawn, and recorded; --resume: the folder's]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed)]
    pub seed: Option<u64>,
}

/// Arguments of `perimeter lab cache-subject`.
#[derive(Debug, Args)]
pub struct CacheSubject {
    /// The run, as the benchmark would make it.
    #[command(flatten)]
    pub bench: Bench,
    /// Bytes of payload before the trace has accesses
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub untraced: u64,
    /// Bytes of payload while which accesses are in it and do not count
    #[arg(long, value_name = "BYTES")]
    pub warm: u64,
    /// Bytes of payload while which they count
    #[arg(long, value_name = "BYTES")]
    pub payload: u64,
    /// Have the accesses of peers and of the simulation in it, too
    #[arg(long)]
    pub all: bool,
    /// Seed of the interleaving
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: u64,
}

/// Arguments of `perimeter lab calibrate`.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// The machine whose table is started from: one that ships with the program, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "vm-2core")]
    pub like: String,
    /// Scale that table to what one thread was published to send, in Mb/s by connections
    #[arg(long, value_name = "FEW=MBPS[,MANY=MBPS]", value_parser = published)]
    pub to: Option<Published>,
    /// Scale what scheduling takes, too, to what one core was published to spend on that, in cycles
    /// for each KB sent
    #[arg(long, value_name = "CONNECTIONS=CYCLES", value_parser = pair, requires = "to")]
    pub scheduling: Option<(u32, f64)>,
    /// Short runs, one of each: a look
    #[arg(long, conflicts_with = "to")]
    pub quick: bool,
    /// Put how many cache lines go with what is touched into that table, from traces (needs
    /// cargo and the sources, and some minutes); nothing else is measured then
    #[arg(long, conflicts_with_all = ["to", "quick"])]
    pub lines: bool,
    /// Measure nothing: fit that table anew to the runs that are in it
    #[arg(long, conflicts_with_all = ["to", "quick", "lines"])]
    pub refit: bool,
    /// Where the table goes, in place of a file of that name [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// What was published of one thread: connections and Mb/s, of few and of many.
#[derive(Debug, Clone, Copy)]
pub struct Published(pub (u32, f64), pub Option<(u32, f64)>);

fn one(text: &str) -> Option<(u32, f64)> {
    let (n, value) = text.split_once('=')?;
    let value = value
        .parse()
        .ok()
        .filter(|v: &f64| *v > 0.0 && v.is_finite())?;
    Some((n.parse::<u32>().ok().filter(|n| *n > 0)?, value))
}

fn pair(text: &str) -> Result<(u32, f64), String> {
    one(text).ok_or_else(|| "CONNECTIONS=CYCLES, both above 0".into())
}

fn published(text: &str) -> Result<Published, String> {
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
    pub plan: String,
    /// The machine: one that ships with the program (vm-2core, opteron-275, t1, server-64), or a
    /// file that `perimeter lab calibrate` wrote
    #[arg(long, value_name = "NAME|FILE", default_value = "vm-2core")]
    pub machine: String,
    /// Numbers of cores [default: powers of two up to what the machine has, and that]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = cores)]
    pub cores: Option<Vec<usize>>,
    /// NICs in place of the plans', but no more than there are threads
    #[arg(long, value_name = "N", value_parser = nics)]
    pub nics: Option<usize>,
    /// Who does inbound work in place of the plans': nic, thread or affine, as in `perimeter bench`
    #[arg(long, value_parser = Inbound::from_str)]
    pub inbound: Option<Inbound>,
    /// How often each point is looked at: in as many runs where there are few connections, else in
    /// two, and in one where there are many
    #[arg(long, value_name = "N", default_value = "5", value_parser = seeds)]
    pub seeds: u64,
    /// Fewer values and shorter runs, one look each, and no bands
    #[arg(long)]
    pub quick: bool,
    /// Write everything as JSON to a file, or to standard output (`-`) instead of the text
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

fn cores(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the number of cores", 1..=256)? as usize)
}

fn nics(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the number of NICs", 1..=256)? as usize)
}

fn seeds(text: &str) -> Result<u64, String> {
    units::whole(text, "the number of seeds", 1..=100)
}

fn seed(text: &str) -> Result<u64, String> {
    units::whole(text, "the seed", 0..=u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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

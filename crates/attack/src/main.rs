//! `perimeter-attack`: the attacks by command. `cargo xtask attack` builds and runs it.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use perimeter::OrgSpec;
use perimeter_attack::attacks::{ALL, Attack, Size};
use perimeter_attack::drops::{self, Cell};
use perimeter_attack::judge::{judge, robust};
use perimeter_attack::run::{self, Measured, Plan};
use perimeter_attack::{report, victim};
use perimeter_interop::namespace;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const HELP: &str = "\
A victim (a server of one thread on the public library, in a process of its own) is attacked over \
a TAP interface, in a network namespace that is made for it and goes with it; legitimate clients \
are the kernel's own TCP, over IPv6 in attacks whose names end in 6, and check every \
byte. For each attack it measures connections a second and goodput before, during and after, the \
victim's processor time, its memory, and what arrives of 100 kB answers whose socket the server \
drops right after the last write.

Bounds (exit code 1 if one is broken):
  work     Legitimate work per second of the victim's processor time that the attack's own frames \
leave: at least 80 % of what it is unattacked, connections and bytes each. The attack's frames \
are charged to the attack at what they cost when it is alone, but at no more than a frame of \
legitimate connections costs: what is above that is charged to the stack. (Of attacks that hold \
connections, frames in and out are counted; of \"closes\", connections.) All measurements during \
it, against all unattacked ones, before it and after each round.
  far      Clients that are 20 and 200 ms away (during floods of SYNs): at least 80 % of those \
that get their data unattacked.
  memory   Config::memory is 64 MiB: resident at most 1.25 times that and 32 MB, at any time.
  lost     Nothing of the answers, during and after; no wrong byte at all.
  counted  Attacks on the network layer show in the stack's counters for them.
  back     After it: no connection fails, at least 80 % of the work per processor time of before, \
and no connection of the attack is left.

It needs root (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN for the namespace) and /dev/net/tun. \
Ctrl-C at any time leaves nothing behind.

Examples:
  cargo xtask attack --quick
  cargo xtask attack --org up,connp-l:8 --attack syn-link16,closes --out attack.json
  cargo xtask attack --drops --out drops.json
  cargo xtask attack --render attack.json";

/// Attacks the stack over TAP and holds what is left of its work against bounds.
#[derive(Parser)]
#[command(name = "attack", after_long_help = HELP)]
struct Cli {
    #[command(subcommand)]
    child: Option<Child>,
    #[command(flatten)]
    args: Options,
}

#[derive(Args)]
struct Options {
    /// Organizations. For --drops, all that are tested unless given
    #[arg(long, value_delimiter = ',', default_values = ["up", "connp-l:8", "squeue", "pef:vertical", "msgp", "connp-t:2"])]
    org: Vec<OrgSpec>,
    /// Attacks, as --list names them; all unless given
    #[arg(long, value_delimiter = ',', value_parser = known)]
    attack: Vec<&'static Attack>,
    /// Length of each measurement, s. One with twice that length says less than two: for a moment
    /// or for minutes the cores of a virtual machine are slower to reach each other
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each flood, and measurements before; of other attacks, measurements before,
    /// during and after
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Runs to add where only work per processor time is below its bound, to be judged with the
    /// first
    #[arg(long, default_value_t = 4, value_name = "RUNS")]
    again: u32,
    /// Two rounds of 0.3 s, and closes at 12,000 a second for 7 s: for a look, not for a record
    #[arg(long)]
    quick: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to write all that was measured, as JSON
    #[arg(long)]
    out: Option<PathBuf>,
    /// Lists the attacks
    #[arg(long)]
    list: bool,
    /// Prints the tables of a file that --out wrote, in Markdown
    #[arg(long, value_name = "FILE")]
    render: Option<PathBuf>,
    /// Instead of attacks: transfers of random sizes whose socket is dropped right after the last
    /// write, over TAP and between two stacks in virtual time, without loss and with 1 %
    #[arg(long)]
    drops: bool,
    /// Transfers of each organization, in all
    #[arg(long, default_value_t = 20_000)]
    transfers: u64,
}

/// What the program starts itself as.
#[derive(Subcommand)]
enum Child {
    /// The victim.
    #[command(hide = true)]
    Victim(victim::Setting),
    /// One that writes and drops.
    #[command(hide = true)]
    Writer(drops::Writer),
}

fn known(name: &str) -> Result<&'static Attack, String> {
    let names = || ALL.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    Attack::find(name).ok_or_else(|| format!("there are: {}", names()))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.1..=600.0).contains(&s) => Ok(s),
        _ => Err("0.1 to 600".to_string()),
    }
}

/// What `--out` writes.
#[derive(Default, Serialize, Deserialize)]
struct Record {
    #[serde(default)]
    commit: String,
    #[serde(default)]
    cores: usize,
    #[serde(default)]
    attacks: Vec<Measured>,
    #[serde(default)]
    drops: Vec<Cell>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.child {
        Some(Child::Victim(setting)) => victim::run(&setting).map(|()| true),
        Some(Child::Writer(writer)) => writer.run().map(|()| true),
        None => command(&cli.args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all bounds hold.
fn command(args: &Options) -> Result<bool> {
    if args.list {
        for a in ALL {
            println!("{:<14} {}", a.name, a.about);
        }
        return Ok(true);
    }
    if let Some(path) = &args.render {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let record: Record = serde_json::from_str(&text)?;
        print!("{}", report::markdown(&record.attacks));
        print!("{}", drops::markdown(&record.drops));
        return Ok(true);
    }
    if let Some(why) = namespace::obstacle() {
        bail!("{why}");
    }
    let exe = std::env::current_exe()?;
    let mut record = Record {
        commit: commit(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        ..Record::default()
    };
    let good = if args.drops {
        all_drops(args, &exe, &mut record)
    } else {
        all_attacks(args, &exe, &mut record)
    };
    if let Some(path) = &args.out {
        write(path, &record)?;
    }
    good
}

fn write(path: &Path, record: &Record) -> Result<()> {
    let text = serde_json::to_string_pretty(record)?;
    std::fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

fn commit() -> String {
    let out = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
    text.unwrap_or_default()
}

fn all_attacks(args: &Options, exe: &Path, record: &mut Record) -> Result<bool> {
    let plan = Plan {
        length: Duration::from_secs_f64(if args.quick { 0.3 } else { args.seconds }),
        rounds: if args.quick { 2 } else { args.rounds.max(1) },
        answers: if args.quick { 50 } else { 200 },
        far: 100,
        size: if args.quick { Size::QUICK } else { Size::WHOLE },
        seed: args.seed,
    };
    let attacks = if args.attack.is_empty() {
        ALL.iter().collect()
    } else {
        args.attack.clone()
    };
    println!("{}", report::HEAD);
    let mut broken = 0;
    for org in &args.org {
        for attack in &attacks {
            let run = || {
                run::attack(exe, org, attack, &plan)
                    .with_context(|| format!("{} on {org}", attack.name))
            };
            let mut m = run()?;
            println!("{}", report::line(&m));
            if robust(&m).is_empty() && !judge(&m).broken.is_empty() {
                for _ in 0..args.again {
                    m.join(run()?);
                }
                println!("{}", report::line(&m));
            }
            broken += usize::from(!judge(&m).broken.is_empty());
            record.attacks.push(m);
            // What there is so far is kept, should this be killed.
            if let Some(path) = &args.out {
                write(path, record)?;
            }
        }
    }
    println!(
        "{} attacks, {broken} with a broken bound",
        record.attacks.len()
    );
    Ok(broken == 0)
}

fn all_drops(args: &Options, exe: &Path, record: &mut Record) -> Result<bool> {
    let given = std::env::args().any(|a| a == "--org" || a.starts_with("--org="));
    let orgs = if given {
        args.org.clone()
    } else {
        OrgSpec::tested()
    };
    let cells = orgs
        .iter()
        .flat_map(|org| drops::cells(org, args.transfers, args.seed));
    let cells: Vec<Cell> = cells.collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new((vec![None; cells.len()], None));
    // More threads than cores: most of the time a cell waits for lost segments to be sent again.
    std::thread::scope(|threads| {
        for _ in 0..4 * record.cores {
            threads.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(n) else { break };
                    let ran = cell.clone().run(exe);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match ran {
                        Ok(cell) => {
                            println!("{}", cell.line());
                            done.0[n] = Some(cell);
                        }
                        Err(e) => {
                            next.store(cells.len(), Ordering::Relaxed);
                            done.1 = Some(e);
                        }
                    }
                }
            });
        }
    });
    let (done, error) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    record.drops = done.into_iter().flatten().collect();
    if let Some(e) = error {
        return Err(e);
    }
    let lost: u64 = record.drops.iter().map(|c| c.lost + c.corrupt).sum();
    let transfers: u64 = record.drops.iter().map(|c| c.transfers).sum();
    println!("{transfers} transfers, {lost} lost without an error");
    Ok(lost == 0)
}

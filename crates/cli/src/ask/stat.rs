//! `perimeter stat`: what a running stack has counted, by name.

use super::{STYLE, connect, error};
use crate::print;
use clap::Args;
use comfy_table::{CellAlignment, Table};
use perimeter::control::{Counters, Greeting};
use perimeter_measure::{Error, units};
use std::{collections::HashMap, fmt::Write as _, path::PathBuf, thread, time::Duration};

pub const HELP: &str = "\
Prints the counters that are not 0, since the stack was built, and its locks by class. Of \
malformed and refused packets each kind has a counter of its own, drop_...; docs/SECURITY.md says \
of the most important ones what they tell. With --interval it prints what was counted in each \
interval, a second, until Ctrl-C or --count.

Examples:
  perimeter stat --control stack.sock
  perimeter stat --control stack.sock drop retransmits
  perimeter stat --control stack.sock --interval 1
  perimeter stat --control stack.sock --json | jq '.counters | map({(.[0]): .[1]}) | add'

Exit status: 0 success, 1 the stack refused, 2 no stack can be reached.";

/// Arguments of `perimeter stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// The stack's control socket [default: PERIMETER_CONTROL of the environment]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Only counters and classes of locks whose names contain one of these
    names: Vec<String>,
    /// Those that are 0 too
    #[arg(long)]
    all: bool,
    /// Print what is counted a second, at intervals of that length
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    interval: Option<Duration>,
    /// End after this many intervals
    #[arg(long, value_name = "N", value_parser = crate::args::count, requires = "interval")]
    count: Option<u64>,
    /// Print JSON; with --interval a line each
    #[arg(long)]
    json: bool,
}

/// Prints the counters.
pub fn stat(ask: &StatArgs) -> Result<(), Error> {
    let mut client = connect(ask.control.as_ref())?;
    let mut before = client.counters().map_err(error)?;
    let stack = client.greeting().clone();
    check(&ask.names, &before)?;
    let Some(interval) = ask.interval else {
        let shown = ask.chosen(&before);
        return match ask.json {
            true => print(&(json(&stack, &shown, true)? + "\n")),
            false => print(&table(&stack, &shown, None)),
        };
    };
    let mut left = ask.count.unwrap_or(u64::MAX);
    while left > 0 {
        thread::sleep(interval);
        let now = client.counters().map_err(error)?;
        let difference = since(&before, &now);
        let shown = ask.chosen(&difference);
        match ask.json {
            true => print(&(json(&stack, &shown, false)? + "\n"))?,
            false => {
                let seconds = difference.time_ns as f64 / 1e9;
                print(&(table(&stack, &shown, Some(seconds)) + "\n"))?;
            }
        }
        before = now;
        left -= 1;
    }
    Ok(())
}

/// A name that fits none of all is a mistake.
fn check(names: &[String], all: &Counters) -> Result<(), Error> {
    let counters = all.counters.iter().map(|(name, _)| name);
    let known: Vec<&String> = counters.chain(all.locks.iter().map(|l| &l.class)).collect();
    match names.iter().find(|n| !known.iter().any(|k| k.contains(*n))) {
        None => Ok(()),
        Some(name) => Err(Error::Input(format!(
            "no counter and no class of locks has `{name}` in its name; `perimeter stat --all` \
             prints all"
        ))),
    }
}

impl StatArgs {
    /// Those that were asked for.
    fn chosen(&self, all: &Counters) -> Counters {
        let named =
            |name: &str| self.names.is_empty() || self.names.iter().any(|n| name.contains(n));
        let mut shown = all.clone();
        let is = |name: &str, n: u64| named(name) && (self.all || n > 0);
        shown.counters.retain(|(name, n)| is(name, *n));
        shown.locks.retain(|l| is(&l.class, l.acquisitions));
        shown
    }
}

/// What was counted between two looks; what is no count is as it is now.
pub(super) fn since(before: &Counters, now: &Counters) -> Counters {
    let old: HashMap<&str, u64> = before
        .counters
        .iter()
        .map(|(n, v)| (n.as_str(), *v))
        .collect();
    let locks: HashMap<&str, _> = before.locks.iter().map(|l| (l.class.as_str(), l)).collect();
    let mut difference = now.clone();
    difference.time_ns = now.time_ns.saturating_sub(before.time_ns);
    for (name, n) in &mut difference.counters {
        *n = n.saturating_sub(old.get(name.as_str()).copied().unwrap_or(0));
    }
    for l in &mut difference.locks {
        if let Some(old) = locks.get(l.class.as_str()) {
            l.acquisitions = l.acquisitions.saturating_sub(old.acquisitions);
            l.contended = l.contended.saturating_sub(old.contended);
            l.wait_ns = l.wait_ns.saturating_sub(old.wait_ns);
        }
    }
    difference
}

fn json(stack: &Greeting, shown: &Counters, pretty: bool) -> Result<String, Error> {
    let mut value = serde_json::to_value(shown).map_err(|e| Error::Run(e.to_string()))?;
    value["stack"] = serde_json::to_value(stack).map_err(|e| Error::Run(e.to_string()))?;
    let text = match pretty {
        true => serde_json::to_string_pretty(&value),
        false => serde_json::to_string(&value),
    };
    text.map_err(|e| Error::Run(e.to_string()))
}

/// Totals, or with `seconds` what they are a second.
fn table(stack: &Greeting, shown: &Counters, seconds: Option<f64>) -> String {
    let mut text = format!(
        "{} in process {}: {} connections, {} of memory\n",
        stack.organization,
        stack.pid,
        shown.connections,
        octets(shown.memory as f64)
    );
    if shown.partial {
        text.push_str("the stack's one thread is busy elsewhere: counters and memory only\n");
    }
    let figure = |n: u64| match seconds {
        None => n.to_string(),
        Some(s) => rate(n as f64 / s.max(1e-9)),
    };
    let new = |header: [&str; 4], columns: usize| {
        let mut table = Table::new();
        table.load_style(STYLE);
        table.set_header(&header[..columns]);
        for column in 1..columns {
            if let Some(c) = table.column_mut(column) {
                c.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    };
    let unit = if seconds.is_some() {
        "a second"
    } else {
        "since the start"
    };
    if !shown.counters.is_empty() {
        let mut counters = new(["counter", unit, "", ""], 2);
        for (name, n) in &shown.counters {
            counters.add_row([name.clone(), figure(*n)]);
        }
        let _ = writeln!(text, "{counters}");
    }
    if !shown.locks.is_empty() {
        let mut locks = new(["lock", unit, "contended", "wait each"], 4);
        for l in &shown.locks {
            let share = 100.0 * l.contended as f64 / l.acquisitions.max(1) as f64;
            let wait = match l.contended {
                0 => "–".into(),
                n => super::time(l.wait_ns as f64 / n as f64 / 1e3),
            };
            locks.add_row([
                l.class.clone(),
                figure(l.acquisitions),
                format!("{share:.2} %"),
                wait,
            ]);
        }
        let _ = writeln!(text, "{locks}");
    }
    text
}

/// A rate in a few digits.
pub(super) fn rate(n: f64) -> String {
    match n {
        n if n >= 100.0 || n == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// Octets, with a prefix that fits.
pub(super) fn octets(n: f64) -> String {
    let prefixes = [(1u64 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let fits = prefixes.into_iter().find(|(size, _)| n >= *size as f64);
    match fits {
        Some((size, prefix)) => format!("{:.1} {prefix}B", n / size as f64),
        None => format!("{n:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_of_counts_alone() {
        let at = |time_ns: u64, n: u64, connections: usize| -> Counters {
            let told = serde_json::json!({
                "time_ns": time_ns,
                "counters": [["rx_frames", n]],
                "connections": connections,
                "memory": 7,
                "locks": [{
                    "class": "group", "acquisitions": n, "contended": n / 2, "wait_ns": 3 * n,
                }],
            });
            serde_json::from_value(told).unwrap()
        };
        let mut want = at(500, 60, 9);
        assert_eq!(since(&at(1000, 40, 3), &at(1500, 100, 9)), want);
        // A class that was not there before.
        let mut before = at(1000, 40, 3);
        before.locks.clear();
        want.locks = at(0, 100, 0).locks;
        assert_eq!(since(&before, &at(1500, 100, 9)), want);
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(octets(0.0), "0 B");
        assert_eq!(octets(1536.0), "1.5 KiB");
        assert_eq!(octets(3.0 * 1024.0 * 1024.0), "3.0 MiB");
        assert_eq!(
            (rate(0.0), rate(0.25), rate(1234.5)),
            ("0".into(), "0.2".into(), "1234".into())
        );
    }
}

//! What is printed: a line for each attack, and tables for the documentation.

use crate::judge::{Verdict, judge, resident};
use crate::run::Measured;
use std::fmt::Write;

/// The heads of the columns of [`line()`].
pub const HEAD: &str = "organization  attack         conn/s before/during/after   Mbit/s before/during/after   \
     work per CPU left   frame us   RSS MB  verdict";

fn three(values: [f64; 3]) -> String {
    values.map(|v| format!("{v:.0}")).join("/")
}

fn verdict(v: &Verdict) -> String {
    if v.broken.is_empty() {
        "holds".to_string()
    } else {
        format!("BROKEN: {}", v.broken.join("; "))
    }
}

/// One attack on one organization in a line.
pub fn line(m: &Measured) -> String {
    let v = judge(m);
    let far = m
        .distant
        .iter()
        .map(|d| format!("{} ms {}/{}", d.rtt_ms, d.good, d.tried));
    let far = far.collect::<Vec<_>>().join(", ");
    format!(
        "{:<13} {:<14} {:<28} {:<28} {:.2} {:.2} (after {:.2} {:.2})  {:.1} ({:.1})  {:.0}  {}{}{}",
        m.org,
        m.attack,
        three(v.connections),
        three(v.mbits),
        v.work[0],
        v.work[1],
        v.back[0],
        v.back[1],
        v.frame_us,
        v.legitimate_us,
        m.rss_peak_kb as f64 / 1e3,
        if m.runs > 1 {
            format!("{} runs: ", m.runs)
        } else {
            String::new()
        },
        verdict(&v),
        if far.is_empty() {
            String::new()
        } else {
            format!(" [{far}]")
        },
    )
}

/// The tables of recorded runs in Markdown: a row for each attack, by organization.
pub fn markdown(all: &[Measured]) -> String {
    let mut out = String::new();
    let mut orgs: Vec<&str> = Vec::new();
    for m in all {
        if !orgs.contains(&m.org.as_str()) {
            orgs.push(&m.org);
        }
    }
    for org in orgs {
        let _ = writeln!(out, "### `{org}`\n");
        let _ = writeln!(
            out,
            "| attack | runs | connections/s before / during / after | Mbit/s before / during / after | \
             work per CPU left: connections, bytes | unattacked, highest by lowest | µs a frame: victim (attacker) | far clients: \
             20 ms, 200 ms | answers lost | RSS, MB | counted, MB | verdict |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for m in all.iter().filter(|m| m.org == org) {
            let _ = writeln!(out, "{}", row(m));
        }
        let _ = writeln!(out);
    }
    out
}

fn row(m: &Measured) -> String {
    let v = judge(m);
    let far: Vec<_> = m
        .distant
        .iter()
        .map(|d| format!("{}/{}", d.good, d.tried))
        .collect();
    let far = if far.is_empty() {
        "–".to_string()
    } else {
        far.join(", ")
    };
    let a = &m.answers;
    format!(
        "| {} | {} | {} | {} | {:.2}, {:.2} | {:.2}, {:.2} | {:.1} ({:.1}) | {far} | {} of {} | {:.0} of {:.0} | {:.1} | {} |",
        m.attack,
        m.runs,
        three(v.connections).replace('/', " / "),
        three(v.mbits).replace('/', " / "),
        v.work[0],
        v.work[1],
        v.spread[0],
        v.spread[1],
        v.frame_us,
        v.attacker_us,
        a.written.saturating_sub(a.arrived),
        a.written,
        m.rss_peak_kb as f64 / 1e3,
        resident(m.limit) as f64 / 1e3,
        m.memory_peak as f64 / 1e6,
        verdict(&v).replace('|', "\\|"),
    )
}

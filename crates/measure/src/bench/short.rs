//! The report in 80 columns: the answer, a line for each organization, and every remark once.

use crate::{
    bench::{
        answer::{Measure, answer, ranked},
        report::{Report, Row},
        table::titled,
    },
    stats::median,
    text::wrapped,
    units::thousands,
    workload::Raw,
};
use std::fmt::Write as _;

/// Rows of a remark that are named one by one.
const NAMED: usize = 3;

/// Renders answer, table and remarks; plain text without escape codes.
pub fn render(report: &Report) -> String {
    let mut out = answer(report);
    if !out.is_empty() {
        out.push('\n');
    }
    let measure = Measure::of(report);
    let _ = writeln!(out, "{}", table(report, measure));
    for (note, rows) in notes(report) {
        out.push_str(&wrapped(&format!("{note}{rows}"), 2));
    }
    for note in report.failed.iter().chain(&report.notes) {
        out.push_str(&wrapped(note, 2));
    }
    out
}

fn table(report: &Report, measure: Measure) -> comfy_table::Table {
    let times = match measure {
        Measure::Goodput => ["range", "CPU ns/seg", "of best"],
        Measure::Datagrams => ["lost", "CPU ns each", "of best"],
        _ => ["mean µs", "p99 µs", "of best"],
    };
    let [a, b, c] = times;
    let mut table = titled(2, ["conns", "org", measure.heading(), a, b, c]);
    let loads = ranked(report, measure);
    for (i, (connections, rows)) in loads.iter().enumerate() {
        if i > 0 && rows.len() > 1 {
            table.add_row([""; 6]);
        }
        let best = rows.iter().find(|r| r.ranked).map(|r| measure.median(r));
        for (n, row) in rows.iter().enumerate() {
            let load = match n {
                0 => thousands(f64::from(*connections)),
                _ => String::new(),
            };
            table.add_row(cells(row, load, measure, best));
        }
    }
    table
}

fn cells(row: &Row, load: String, measure: Measure, best: Option<f64>) -> [String; 6] {
    let values = measure.values(row);
    let value = measure.median(row);
    let ends = values.iter().copied().reduce(f64::min);
    let ends = ends.zip(values.iter().copied().reduce(f64::max));
    let range = match ends {
        Some((least, most)) if values.len() > 1 => {
            format!("{}–{}", measure.show(least), measure.show(most))
        }
        _ => "–".into(),
    };
    let of = |f: &dyn Fn(&Raw) -> Option<f64>| {
        median(&row.samples.iter().filter_map(f).collect::<Vec<_>>())
            .map_or("–".into(), |us| format!("{us:.1}"))
    };
    let [a, b] = match measure {
        Measure::Goodput => {
            let cpu = row.cpu_ns_per_segment;
            [range, cpu.map_or("–".into(), |ns| format!("{ns:.0}"))]
        }
        Measure::Datagrams => {
            let lost = row.lost.map(|share| format!("{:.1} %", share * 100.0));
            let cpu = row.cpu_ns_per_segment.map(|ns| format!("{ns:.0}"));
            [lost, cpu].map(|cell| cell.unwrap_or("–".into()))
        }
        _ => [
            of(&|s| Some(s.latency.as_ref()?.mean_ns / 1e3)),
            of(&|s| Some(s.latency.as_ref()?.p99_ns as f64 / 1e3)),
        ],
    };
    let share = match best {
        _ if !row.valid => "INVALID".into(),
        Some(best) if row.ranked && best > 0.0 => format!("{:.2}", value / best),
        _ => "–".into(),
    };
    [load, row.org.clone(), measure.show(value), a, b, share]
}

/// Whether a remark begins with that organization's name, or its family's.
fn is_about(note: &str, org: &str) -> bool {
    let family = org.split(':').next().unwrap_or(org);
    note.strip_prefix(family)
        .is_some_and(|rest| rest.starts_with([' ', ':']))
}

/// Each remark on rows, once, and whose it is.
fn notes(report: &Report) -> Vec<(String, String)> {
    let mut all: Vec<(&String, Vec<&Row>)> = Vec::new();
    for row in &report.runs {
        for note in &row.notes {
            match all.iter_mut().find(|(n, _)| *n == note) {
                Some((_, rows)) => rows.push(row),
                None => all.push((note, vec![row])),
            }
        }
    }
    let told = |(note, rows): (&String, Vec<&Row>)| {
        let whose = match rows.len() {
            // It says itself whose it is.
            _ if rows.iter().all(|r| is_about(note, &r.org)) => String::new(),
            n if n == report.runs.len() => String::new(),
            n if n > NAMED => format!(" ({n} of {} rows)", report.runs.len()),
            _ => {
                let name = |r: &&Row| format!("{} × {}", r.org, r.connections);
                let names: Vec<String> = rows.iter().map(name).collect();
                format!(" ({})", names.join(", "))
            }
        };
        (note.clone(), whose)
    };
    all.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{example, report, sample};

    #[test]
    fn the_answer_comes_first_and_80_columns_are_enough() {
        let runs = |g: f64| vec![sample(g, Some(1_000_000), 1); 3];
        let long = "connp-t:1:wait=spin:fold";
        let report = report(&[
            ("up", 1, runs(1e9)),
            (long, 2, runs(2e9)),
            ("linux:offload", 2, runs(9e9)),
        ]);
        let text = render(&report);
        assert!(text.starts_with("Fastest on this machine"), "{text}");
        let widest = text.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}\n{text}");
        // The best of those that are ranked is 1; who does other work has no rank.
        let line = |name: &str| text.lines().rfind(|l| l.contains(name)).unwrap();
        assert!(line(long).ends_with("1.00 "), "{text}");
        assert!(line(" up ").ends_with("0.50 "), "{text}");
        assert!(line("linux:offload ").ends_with("– "), "{text}");
        assert_eq!(text.matches("a remark").count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn what_does_not_add_up_is_marked() {
        let text = render(&example());
        assert!(text.contains("INVALID"), "{text}");
    }
}

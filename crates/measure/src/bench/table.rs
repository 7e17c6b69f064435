//! The report as tables for a terminal: all columns, locks, and every remark.

use crate::{
    bench::answer::Measure,
    bench::report::{Report, Row},
    stats::{Sizes, Spread, median},
    units::thousands,
    workload::Locks,
};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use perimeter::{Guards, OrgSpec};
use std::fmt::Write as _;

const HEADER: [&str; 14] = [
    "org",
    "device",
    "inbound",
    "conns",
    "thr",
    "goodput Mb/s",
    "stack ns/seg",
    "peer",
    "app",
    "cpu",
    "Mb/cpu s",
    "least/med",
    "rexmt",
    "switches",
];

/// A line under the header, and no other.
pub(super) const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Renders the table, the locks and all remarks; plain text without escape codes.
pub fn render(report: &Report) -> String {
    let mut table = titled(3, HEADER);
    let mut remarks = Vec::new();
    let measure = Measure::of(report);
    for (i, row) in report.runs.iter().enumerate() {
        if i > 0 && gap(report, i) {
            table.add_row([""; HEADER.len()]);
        }
        table.add_row(cells(row, measure, &mut remarks));
    }
    let mut out = format!("{table}\n");
    locks(report, &mut out);
    profile(report, &mut out);
    for (i, remark) in remarks.iter().enumerate() {
        let _ = writeln!(out, "[{}] {remark}", i + 1);
    }
    for note in report.failed.iter().chain(&report.notes) {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Whether an empty line comes before row `i`: between numbers of connections, where a block has
/// more rows than the eye takes in at once.
fn gap(report: &Report, i: usize) -> bool {
    let of = |i: usize| report.runs[i].connections;
    of(i) != of(i - 1)
        && report
            .runs
            .iter()
            .filter(|r| r.connections == of(i))
            .count()
            > 4
}

fn cells(row: &Row, measure: Measure, remarks: &mut Vec<String>) -> Vec<String> {
    let optional = |v: Option<f64>| v.map_or("–".into(), |v| format!("{v:.0}"));
    let mut org = row.org.clone();
    let more = row.noise().into_iter().chain(rounds(row, measure));
    for note in row.notes.iter().cloned().chain(more) {
        let number = remarks.iter().position(|r| *r == note).unwrap_or_else(|| {
            remarks.push(note);
            remarks.len() - 1
        });
        let _ = write!(org, " [{}]", number + 1);
    }
    let mut goodput = spread(&row.goodput_mbps);
    if !row.valid {
        goodput.push_str(" INVALID");
    }
    vec![
        org,
        row.device.clone(),
        row.inbound.clone(),
        row.connections.to_string(),
        row.threads.to_string(),
        goodput,
        row.stack_ns_per_segment.as_ref().map_or("–".into(), spread),
        optional(row.peer_ns_per_segment),
        optional(row.app_ns_per_segment),
        optional(row.cpu_ns_per_segment),
        optional(row.goodput_mb_per_cpu_second.map(|s| s.median)),
        row.least_served.map_or("–".into(), |v| format!("{v:.2}")),
        row.retransmits.to_string(),
        row.context_switches.to_string(),
    ]
}

/// What exchanges or connections came to: medians over the repeats.
fn rounds(row: &Row, measure: Measure) -> Option<String> {
    let of = |f: &dyn Fn(&crate::workload::Raw) -> Option<f64>| {
        median(&row.samples.iter().filter_map(f).collect::<Vec<_>>())
    };
    let rate = thousands(row.rounds_per_second?.median);
    if measure == Measure::Datagrams {
        let lost = row.lost.unwrap_or(0.0) * 100.0;
        return Some(format!(
            "{rate} datagrams a second received, {lost:.1} % lost"
        ));
    }
    let mean = of(&|s| Some(s.latency.as_ref()?.mean_ns / 1e3))?;
    let p99 = of(&|s| Some(s.latency.as_ref()?.p99_ns as f64 / 1e3))?;
    let each = format!("{mean:.1} µs each on average, 99 in 100 within {p99:.1} µs");
    if measure != Measure::Connections {
        return Some(format!("{rate} round trips a second, {each}"));
    }
    let cpu = of(&|s| Some(s.cpu_ns as f64 / 1e3 / s.rounds as f64))?;
    Some(format!(
        "{rate} connections a second from opening to close, {each}; {cpu:.1} µs of processor \
         time each"
    ))
}

/// `median (min–max)`, without the bracket when there is no spread to show.
fn spread(s: &Spread) -> String {
    let digits = usize::from(s.median < 100.0);
    if s.min == s.max {
        return format!("{:.digits$}", s.median);
    }
    format!(
        "{:.digits$} ({:.digits$}–{:.digits$})",
        s.median, s.min, s.max
    )
}

fn locks(report: &Report, out: &mut String) {
    const HEADER: [&str; 7] = [
        "org",
        "conns",
        "lock class",
        "acquired",
        "contended",
        "wait ns",
        "hold ns",
    ];
    let mut table = titled(3, HEADER);
    let all: usize = report.runs.iter().map(|r| r.locks.len()).sum();
    let mut shown = 0;
    for row in &report.runs {
        let mut first = true;
        for lock in &row.locks {
            if all > LOCKS && !matters(lock) {
                continue;
            }
            shown += 1;
            let each = |ns: u64| format!("{:.0}", ns as f64 / lock.acquisitions.max(1) as f64);
            let contended = lock.contended as f64 * 100.0 / lock.acquisitions.max(1) as f64;
            table.add_row([
                if first { row.org.clone() } else { "".into() },
                if first {
                    row.connections.to_string()
                } else {
                    "".into()
                },
                lock.class.clone(),
                lock.acquisitions.to_string(),
                format!("{contended:.2} %"),
                each(lock.wait_ns),
                each(lock.hold_ns),
            ]);
            first = false;
        }
    }
    if all == 0 {
        return;
    }
    let _ = writeln!(out, "{table}\nwait and hold: per acquisition");
    let alone = |org: &str| org.parse().is_ok_and(|o: OrgSpec| o.single_threaded());
    let counted = |r: &&Row| !r.locks.is_empty() && alone(&r.org);
    if let Some(row) = report.runs.iter().find(counted) {
        let _ = writeln!(
            out,
            "{}: one thread, so its locks are flags without an atomic operation; the calls are \
             counted, as the papers' uniprocessor kernels make them",
            row.org
        );
    }
    if shown < all {
        let _ = writeln!(
            out,
            "{} locks with under {} % contention hidden; --json has them",
            all - shown,
            SHARE * 100.0
        );
    }
}

/// A table whose first columns are words and the others numbers.
pub(super) fn titled<const N: usize>(words: usize, header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What was timed: waits and holds by class, and hand-overs.
fn profile(report: &Report, out: &mut String) {
    const LOCKS: [&str; 10] = [
        "org",
        "conns",
        "lock class",
        "hold p50",
        "p90",
        "p99",
        "p99.9",
        "wait p50",
        "p90",
        "p99",
    ];
    let mut locks = titled(3, LOCKS);
    let mut paths = titled(3, ["org", "conns", "path", "times", "ns each", "ns per KB"]);
    for row in &report.runs {
        for lock in &row.locks {
            let Some(times) = lock.times.as_ref().filter(|t| t.hold.count() > 0) else {
                continue;
            };
            let quantile =
                |of: &Sizes, q| of.quantile(q).map_or("–".into(), |v| format!("{v:.0}"));
            let mut cells = vec![row.org.clone(), row.connections.to_string()];
            cells.push(lock.class.clone());
            cells.extend([0.5, 0.9, 0.99, 0.999].map(|q| quantile(&times.hold, q)));
            cells.extend([0.5, 0.9, 0.99].map(|q| quantile(&times.wait, q)));
            locks.add_row(cells);
        }
        let segments = median(&row.samples.iter().map(|s| s.segments).collect::<Vec<_>>());
        let kilobytes = segments.unwrap_or(0.0) * report.settings.segment_bytes as f64 / 1024.0;
        for p in row.paths.iter().filter(|p| p.count > 0) {
            paths.add_row([
                row.org.clone(),
                row.connections.to_string(),
                p.path.clone(),
                p.count.to_string(),
                format!("{:.0}", p.ns as f64 / p.count.max(1) as f64),
                format!("{:.2}", p.ns as f64 / kilobytes.max(f64::MIN_POSITIVE)),
            ]);
        }
    }
    if !locks.is_empty() {
        let _ = writeln!(
            out,
            "{locks}\nlocks timed: ns held by share of all acquisitions, waited by share of the \
             contended ones"
        );
    }
    if !paths.is_empty() {
        let _ = writeln!(
            out,
            "{paths}\nprocessor time of hand-overs, without the sleep; queues behind locks of class \
             squeue are that lock's"
        );
    }
}

/// Rows of the lock table up to which it is printed whole.
const LOCKS: usize = 24;
/// Contended share of acquisitions from which on a class is always printed.
const SHARE: f64 = 0.01;

/// Whether a lock says something about its organization: one at the heart of it that threads have
/// met at, or another that they have met at often.
fn matters(lock: &Locks) -> bool {
    let heart = lock.guards().is_some_and(Guards::is_shared);
    (heart && lock.contended > 0) || lock.contended as f64 > lock.acquisitions as f64 * SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_and_remark_is_shown_once() {
        let report = crate::bench::report::tests::example();
        let text = render(&report);
        assert!(
            text.contains("connp-l:128") && text.contains("linux"),
            "{text}"
        );
        assert!(text.contains("1158 (1158–2317)"), "{text}");
        assert!(text.contains("20.0 (10.0–30.0)"), "{text}");
        assert!(text.contains("INVALID"));
        assert_eq!(text.matches("a remark").count(), 1, "{text}");
        assert!(text.contains("3.00 %"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn what_was_timed_has_tables_of_its_own() {
        let mut report = crate::bench::report::tests::example();
        assert!(!render(&report).contains("hand-overs"));
        let sizes = |text: &str| serde_json::from_str::<Sizes>(text).unwrap();
        report.runs[0].locks[0].times = Some(crate::workload::LockTimes {
            wait: sizes("[[4096,10]]"),
            hold: sizes("[[64,99],[1024,1]]"),
        });
        report.runs[0].paths = vec![crate::workload::PathTime {
            path: "park".into(),
            count: 4,
            ns: 10_000,
        }];
        let text = render(&report);
        let line = |has: &str| {
            let all: Vec<&str> = text.lines().filter(|l| l.contains(has)).collect();
            all.last().map(|l| l.split_whitespace().collect::<Vec<_>>())
        };
        let group = [
            "connp-l:128",
            "6",
            "group",
            "72",
            "79",
            "80",
            "1254",
            "4608",
            "5018",
            "5110",
        ];
        assert_eq!(line("group").unwrap(), group, "{text}");
        // 100,000 segments of 1448 bytes.
        let park = ["connp-l:128", "6", "park", "4", "2500", "0.07"];
        assert_eq!(line(" park ").unwrap(), park, "{text}");
    }

    #[test]
    fn a_long_report_is_laid_out_for_the_eye() {
        let mut report = crate::bench::report::tests::example();
        let class = |name: &str, contended| Locks {
            class: name.into(),
            acquisitions: 1000,
            contended,
            ..Locks::default()
        };
        let mut row = report.runs[0].clone();
        row.locks = vec![class("group", 1), class("tx_ring", 500), class("leaf", 1)];
        report.runs = [6, 192]
            .into_iter()
            .flat_map(|conns| (0..5).map(move |n| (conns, n)))
            .map(|(connections, n)| Row {
                org: format!("org-{n}"),
                connections,
                ..row.clone()
            })
            .collect();
        let text = render(&report);
        let lines: Vec<&str> = text.lines().collect();
        let body = &lines[2..13];
        assert!(body[5].trim().is_empty(), "{text}");
        assert_eq!(
            body.iter().filter(|l| l.trim().is_empty()).count(),
            1,
            "{text}"
        );
        assert_eq!(text.matches("group").count(), 10, "{text}");
        assert_eq!(text.matches("tx_ring").count(), 10, "{text}");
        assert!(
            !text.contains("leaf") && text.contains("10 locks with under"),
            "{text}"
        );
        // The name stands in the table and once in the lock table.
        assert_eq!(text.matches("org-3").count(), 4, "{text}");
    }
}

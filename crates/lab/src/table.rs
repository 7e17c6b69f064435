//! The report as a table for a terminal.

use crate::{
    report::{Report, Row},
    stats::Spread,
};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use std::fmt::Write as _;

const HEADER: [&str; 13] = [
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
    "least/med",
    "rexmt",
    "switches",
];

/// A line under the header, and no other.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Renders the table, the locks and all remarks; plain text without escape codes.
pub fn render(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(HEADER);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut remarks = Vec::new();
    for row in &report.runs {
        table.add_row(cells(row, &mut remarks));
    }
    let mut out = format!("{table}\n");
    locks(report, &mut out);
    for (i, remark) in remarks.iter().enumerate() {
        let _ = writeln!(out, "[{}] {remark}", i + 1);
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn cells(row: &Row, remarks: &mut Vec<String>) -> Vec<String> {
    let optional = |v: Option<f64>| v.map_or("–".into(), |v| format!("{v:.0}"));
    let mut org = row.org.clone();
    for note in &row.notes {
        let number = remarks.iter().position(|r| r == note).unwrap_or_else(|| {
            remarks.push(note.clone());
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
        row.least_served.map_or("–".into(), |v| format!("{v:.2}")),
        row.retransmits.to_string(),
        row.context_switches.to_string(),
    ]
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
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header([
        "org",
        "conns",
        "lock class",
        "acquired",
        "contended",
        "wait ns",
        "hold ns",
    ]);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut any = false;
    for row in &report.runs {
        for lock in &row.locks {
            any = true;
            let each = |ns: u64| format!("{:.0}", ns as f64 / lock.acquisitions.max(1) as f64);
            let contended = lock.contended as f64 * 100.0 / lock.acquisitions.max(1) as f64;
            table.add_row([
                row.org.clone(),
                row.connections.to_string(),
                lock.class.clone(),
                lock.acquisitions.to_string(),
                format!("{contended:.2} %"),
                each(lock.wait_ns),
                each(lock.hold_ns),
            ]);
        }
    }
    if any {
        let _ = writeln!(out, "{table}\nwait and hold: per acquisition");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_and_remark_is_shown_once() {
        let report = crate::report::tests::example();
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
}

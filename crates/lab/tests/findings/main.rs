//! docs/FINDINGS.md against the records that it cites: its table of claims is what the runs say, with
//! the verdicts that follow, and so are the sentences on why.

mod conclusions;
mod predicted;
mod table;

use conclusions::whole;
use perimeter_lab::{
    metric::Metric,
    record::{Stored, read_rows},
    report::{analysis::results, render},
};
use perimeter_measure::host::apart;
use std::{env, fs, path::PathBuf};

/// The recording of every plan but the cache model's.
const EVERY: &str = "2026-11-27-2core-vm/all";
/// A later one, of a host whose speed changes by up to two from run to run: for what the other lacks.
const LATER: &str = "2026-11-30-2core-vm/all";
/// The cache model's.
const MODEL: &str = "2026-11-30-2core-vm/cache";
/// The last one of every peer: lwIP was not to be had afterwards.
const PEERS: &str = "2026-11-22-2core-vm/lab";
/// The study's plans on another machine.
const XEON: &str = "2026-11-26-2core-vm/lab";

/// What stands before the table of claims, and behind it.
const TABLE: [&str; 2] = [
    "<!-- claims: made by a test -->\n",
    "<!-- end of claims -->\n",
];

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// A recording by its folder in docs/runs.
fn recorded(run: &str) -> Stored {
    read_rows(&docs().join("runs").join(run)).unwrap()
}

/// The numbers of a text, as they are printed.
fn numbers(text: &str) -> Vec<&str> {
    let between = |c: char| !c.is_ascii_digit() && c != '.';
    let all = text.split(between).map(|n| n.trim_matches('.'));
    all.filter(|n| !n.is_empty()).collect()
}

/// Whether a number is what is printed, rounded to as many digits.
fn is_printed(printed: &str, value: f64) -> bool {
    let digits = printed.split_once('.').map_or(0, |p| p.1.len() as i32);
    let said: f64 = printed.parse().unwrap();
    (said - value).abs() <= 0.5001 * 10f64.powi(-digits)
}

/// A table of one row, whose heads are names of organizations: each with its value.
fn cells_of<'a>(text: &'a str, begins: &str) -> Vec<(&'a str, &'a str)> {
    let mut lines = text.lines().skip_while(|l| !l.starts_with(begins));
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim);
    let (head, row) = (lines.next().unwrap(), lines.nth(1).unwrap());
    let names = cells(head).map(|n| n.trim_matches('`'));
    names.zip(cells(row)).collect()
}

/// The sentences that the text lacks.
fn lacking(text: &str, sentences: &[String]) -> Vec<String> {
    let lacks = |s: &&String| !text.contains(s.as_str());
    sentences.iter().filter(lacks).cloned().collect()
}

fn findings() -> String {
    fs::read_to_string(docs().join("FINDINGS.md")).unwrap()
}

/// The table between its marks; with `PERIMETER_FINDINGS=update` it is put there.
#[test]
fn every_claim_stands_as_it_was_judged() {
    let text = findings();
    let (measured, model) = (results(&recorded(EVERY)), results(&recorded(MODEL)));
    let made = table::text(&measured, &model, &predicted::machines());
    let (before, rest) = text.split_once(TABLE[0]).unwrap();
    let (there, behind) = rest.split_once(TABLE[1]).unwrap();
    if env::var("PERIMETER_FINDINGS").is_ok_and(|v| v == "update") {
        let whole = [before, TABLE[0], &made, TABLE[1], behind].concat();
        fs::write(docs().join("FINDINGS.md"), whole).unwrap();
        return;
    }
    let differ: Vec<&str> = made
        .lines()
        .filter(|l| !there.lines().any(|t| t == *l))
        .collect();
    assert!(
        differ.is_empty(),
        "not in FINDINGS.md:\n{}",
        differ.join("\n")
    );
    assert_eq!(
        made, there,
        "PERIMETER_FINDINGS=update makes the table again"
    );
    // Every reason that the table names is there.
    for n in table::reasons() {
        assert!(
            text.contains(&format!("\n{n}. **")),
            "there is no reason {n}"
        );
    }
}

/// Every sentence on why that has figures, and which organization is named for which load.
#[test]
fn conclusions_are_what_was_recorded() {
    let text = findings();
    let all = [EVERY, LATER, MODEL, XEON, PEERS].map(|run| results(&recorded(run)));
    let sentences = conclusions::sentences(all.each_ref().map(|results| &results[..]));
    let lacks = lacking(&text, &sentences);
    assert!(
        lacks.is_empty(),
        "not in FINDINGS.md:\n{}",
        lacks.join("\n")
    );
    assert!(sentences.len() > 30);
}

/// The runs with near and with far cores, and what a cache line took then.
#[test]
fn how_far_apart_the_cores_were_is_what_was_recorded() {
    let text = findings();
    let stored = recorded(EVERY);
    let told = stored
        .rows
        .iter()
        .filter_map(|r| r.measured()?.raw.core_round_trip_ns);
    let (mut far, mut near): (Vec<f64>, Vec<f64>) = told.partition(|ns| apart::is_far(*ns));
    let middle = |of: &mut Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() / 2].round()
    };
    let said = format!(
        "{} ns before {} runs and {} ns before {}",
        middle(&mut near),
        whole(near.len() as f64),
        middle(&mut far),
        whole(far.len() as f64)
    );
    assert!(text.contains(&said), "recorded: {said}");
    let runs = stored
        .rows
        .iter()
        .filter(|r| r.measured().is_some())
        .count();
    // What that makes of goodput is in the report.
    let report = render(&stored).markdown;
    let columns = cells_of(&text, "| `connp-t:4` | `msgp` |");
    for (org, said) in columns {
        let org = if org == "Linux" { "linux" } else { org };
        let row = format!("| {org} | {} |", said.replace('-', "–"));
        assert!(report.contains(&row), "the report has no {row}");
    }
    assert!(
        text.contains(&format!("{} runs of build", whole(runs as f64))),
        "{runs}"
    );
}

/// What large segments do to each organization: goodput without and with, as recorded.
#[test]
fn the_table_of_large_segments_says_what_was_recorded() {
    let text = fs::read_to_string(docs().join("FINDINGS.md")).unwrap();
    let stored = recorded("2026-11-26-2core-vm/offload");
    let all = results(&stored);
    let median = |label: &str, x: u64, metric: Metric| {
        let mut curves = all.iter().flat_map(|r| &r.curves);
        let curve = curves.find(|c| c.label == label).expect(label);
        curve.at(x).unwrap().spread(metric).unwrap().median
    };
    let section = text.split("## When a segment is 64 KB").nth(1).unwrap();
    let rows = section.lines().skip_while(|l| !l.starts_with("| `"));
    let rows: Vec<&str> = rows.take_while(|l| l.starts_with("| `")).collect();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let org = row.split('`').nth(1).unwrap();
        let large = format!("{org}, 64 KB");
        let cells: Vec<&str> = row.split('|').skip(2).map(str::trim).collect();
        let both = |cell: usize, x: u64, metric: Metric, unit: f64| {
            let printed = numbers(cells[cell]);
            let [without, with] = printed[..] else {
                panic!("{row}");
            };
            for (said, label) in [(without, org), (with, &large)] {
                let value = median(label, x, metric) / unit;
                assert!(is_printed(said, value), "{label} at {x}: {said}, {value}");
            }
        };
        for (cell, x) in [1, 6, 192, 16384].into_iter().enumerate() {
            both(cell, x, Metric::Goodput, 1000.0);
        }
        if org != "linux" {
            both(4, 192, Metric::Stack, 1.0);
        }
    }
}

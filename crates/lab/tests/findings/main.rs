//! docs/FINDINGS.md against the records that it cites: each row of its tables of claims says what
//! the runs say, to the digits that are printed, with the verdict that follows; and so do the
//! sentences on why.

mod conclusions;
mod second;

use perimeter_lab::{
    metric::Metric,
    record::{Stored, read_rows},
    report::{
        analysis::{Cores, Evidence, Finding, Judged, results},
        render,
    },
};
use perimeter_measure::host::apart;
use std::{fs, path::PathBuf};

type Result = perimeter_lab::report::analysis::Result;

/// A claim of a plan, with near cores or far ones.
type Cited = (&'static str, &'static str, Cores);

const fn near(plan: &'static str, claim: &'static str) -> Cited {
    (plan, claim, Cores::Near)
}

const fn far(plan: &'static str, claim: &'static str) -> Cited {
    (plan, claim, Cores::Far)
}

/// How a row begins, and what its figures are of: a ratio with its interval for each place of each
/// claim.
const RATIOS: &[(&str, &[Cited])] = &[
    (
        "6 connections: MsgP against",
        &[near("throughput", "msgp-6")],
    ),
    (
        "16,384 connections: MsgP against",
        &[near("throughput", "msgp-16384")],
    ),
    (
        "16,384 connections: ConnP-L(128) against",
        &[near("throughput", "connp-l-16384")],
    ),
    (
        "ConnP-T(4) below the uniprocessor",
        &[near("throughput", "connp-t-6")],
    ),
    (
        "ConnP-T(4) is steady",
        &[near("throughput", "connp-t-steady")],
    ),
    ("the uniprocessor falls", &[near("throughput", "up-falls")]),
    (
        "more groups, more throughput",
        &[
            near("groups", "more-groups-6"),
            near("groups", "more-groups-192"),
            near("groups", "more-groups-16384"),
        ],
    ),
    (
        "128 groups instead of 4",
        &[near("contention", "groups-16384")],
    ),
    (
        "MsgP's contention rises",
        &[near("contention", "msgp-rises")],
    ),
    (
        "ConnP-L(128)'s contention falls",
        &[near("contention", "connp-l-falls")],
    ),
    (
        "MsgP holds the connection's lock",
        &[near("locks", "held-longer")],
    ),
    (
        "the locks of single connections",
        &[near("locks", "met-less")],
    ),
    (
        "in all, getting a connection's lock",
        &[near("locks", "waited-longer")],
    ),
    (
        "ConnP-L(128) spends less than MsgP",
        &[near("scheduler", "connp-l-msgp")],
    ),
    (
        "larger buffers than 256 KB bring nothing: UP",
        &[far("buffers", "up-larger")],
    ),
    ("... MsgP", &[far("buffers", "msgp-larger")]),
    ("... ConnP-L(128)", &[far("buffers", "connp-l-larger")]),
    ("listening and closing costs", &[near("listen", "grows")]),
];

/// The same for claims of throughput in processor time.
const COSTS: &[(&str, &[Cited])] = &[
    ("MsgP at 6", &[near("throughput", "msgp-6")]),
    ("MsgP at 16,384", &[near("throughput", "msgp-16384")]),
    (
        "ConnP-L(128) at 16,384",
        &[near("throughput", "connp-l-16384")],
    ),
    ("ConnP-T(4) at 6", &[near("throughput", "connp-t-6")]),
];

/// Rows of which only the verdict is checked here: their figures are among the sentences, or of one
/// run.
const VERDICTS: &[(&str, &[Cited])] = &[
    (
        "ConnP-L(128) always above the uniprocessor",
        &[near("throughput", "connp-l-up")],
    ),
    (
        "ConnP-T(4) spends more",
        &[near("scheduler", "connp-t-msgp")],
    ),
    (
        "L2 misses a KB",
        &[
            near("cache", "up-least"),
            near("cache", "connp-t-most"),
            near("cache", "connp-l-6"),
        ],
    ),
];

/// The same for rows that give the least and the greatest ratio of all places.
const RANGES: &[(&str, Cited)] = &[
    (
        "ConnP-L(128) above MsgP",
        near("throughput", "connp-l-msgp"),
    ),
    ("one connection, small writes", near("pef-small", "small")),
    (
        "a 20-second run of multiprocessor Linux",
        near("linux", "short"),
    ),
    (
        "ConnP-L(128) contends less than MsgP",
        near("contention", "msgp-connp-l"),
    ),
    // Measured without far cores.
    (
        "locks cost a single core",
        ("lock-cost", "up-mp", Cores::Near),
    ),
    ("one connection, large writes", near("pef-large", "large")),
    (
        "6 to 192 connections, without fan-out",
        near("pef-connections", "off"),
    ),
    ("... with fan-out", near("pef-connections", "on")),
    (
        "equal small reads and writes",
        near("pef-messages", "messages"),
    ),
    ("ping-pong latency", near("pef-latency", "latency")),
];

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// A recording by its folder in docs/runs.
fn recorded(run: &str) -> Stored {
    read_rows(&docs().join("runs").join(run)).unwrap()
}

/// What a row says was found here, its third cell, and its verdict, the fourth.
fn cells<'a>(text: &'a str, begins: &str) -> [&'a str; 2] {
    let row = |l: &&str| l.strip_prefix("| ").is_some_and(|l| l.starts_with(begins));
    let row = text.lines().find(row);
    let row = row.unwrap_or_else(|| panic!("FINDINGS.md has no row `{begins}`"));
    [3, 4].map(|i| row.split('|').nth(i).unwrap().trim())
}

/// The numbers of a text, as they are printed.
fn numbers(text: &str) -> Vec<&str> {
    let between = |c: char| !c.is_ascii_digit() && c != '.';
    let all = text.split(between).map(|n| n.trim_matches('.'));
    all.filter(|n| !n.is_empty()).collect()
}

/// Every ratio with its interval, `1.36 (1.32-1.47)` or `0.2 times (0.1-0.3)`.
fn ratios(cell: &str) -> Vec<[&str; 3]> {
    let mut list = Vec::new();
    for (i, _) in cell.match_indices('(') {
        let inside = cell[i + 1..].split(')').next().unwrap_or_default();
        let before = numbers(&cell[..i]).last().copied();
        if let (Some(ratio), [low, high], true) =
            (before, &numbers(inside)[..], inside.contains('-'))
        {
            list.push([ratio, low, high]);
        }
    }
    list
}

/// Whether a number is what is printed, rounded to as many digits.
fn is_printed(printed: &str, value: f64) -> bool {
    let digits = printed.split_once('.').map_or(0, |p| p.1.len() as i32);
    let said: f64 = printed.parse().unwrap();
    (said - value).abs() <= 0.5001 * 10f64.powi(-digits)
}

fn judged<'a>(all: &'a [Result], cited: &Cited) -> &'a Judged {
    let (plan, claim, cores) = cited;
    let is_far = |c: Cores| c == Cores::Far;
    let mut of = all.iter().filter(|r| r.plan.name == *plan);
    let result = of.find(|r| is_far(r.cores) == is_far(*cores));
    let claims = result.into_iter().flat_map(|r| &r.claims);
    let mut claims = claims.filter(|c| c.claim.id == *claim);
    claims
        .next()
        .unwrap_or_else(|| panic!("{plan} has no claim {claim}"))
}

/// By throughput, or by processor time.
fn evidence(judged: &Judged, is_cost: bool) -> (&[Evidence], Finding) {
    match judged.cost.as_ref().filter(|_| is_cost) {
        Some(cost) => (&cost.evidence, cost.finding),
        None => (&judged.evidence, judged.finding),
    }
}

/// What differs between rows of the text and ratios that were recorded.
fn wrong_ratios(
    text: &str,
    all: &[Result],
    rows: &[(&str, &[Cited])],
    is_cost: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (begins, cited) in rows {
        let found = cited.iter().map(|c| evidence(judged(all, c), is_cost));
        let verdict = conclusions::verdict(found.clone().map(|f| f.1));
        let found: Vec<[f64; 3]> = found
            .flat_map(|f| f.0)
            .map(|e| {
                let i = e.comparison.interval.unwrap();
                [e.comparison.ratio, i.low, i.high]
            })
            .collect();
        let [here, said_verdict] = cells(text, begins);
        let said = ratios(here);
        let same =
            |(s, f): (&[&str; 3], &[f64; 3])| s.iter().zip(f).all(|(s, f)| is_printed(s, *f));
        if said.len() < found.len() || !said.iter().zip(&found).all(same) {
            wrong.push(format!("{begins}: said {said:?}, recorded {found:?}"));
        }
        if said_verdict != verdict {
            wrong.push(format!("{begins}: said {said_verdict}, found {verdict}"));
        }
    }
    wrong
}

/// What differs between rows of the text and verdicts.
fn wrong_verdicts(text: &str, all: &[Result], rows: &[(&str, &[Cited])]) -> Vec<String> {
    let one = |(begins, cited): &(&str, &[Cited])| {
        let verdict = conclusions::verdict(cited.iter().map(|c| judged(all, c).finding));
        let said = cells(text, begins)[1];
        (said != verdict).then(|| format!("{begins}: said {said}, found {verdict}"))
    };
    rows.iter().filter_map(one).collect()
}

/// What differs between the text and the runs of a folder.
fn wrong(
    text: &str,
    all: &[Result],
    ratio_rows: &[(&str, &[Cited])],
    ranges: &[(&str, Cited)],
) -> Vec<String> {
    let mut wrong = wrong_ratios(text, all, ratio_rows, false);
    for (begins, cited) in ranges {
        let (found, finding) = evidence(judged(all, cited), false);
        let found = found.iter().map(|e| e.comparison.ratio);
        let found = [
            found.clone().fold(f64::INFINITY, f64::min),
            found.fold(0.0, f64::max),
        ];
        let [here, verdict] = cells(text, begins);
        let (low, high) = here.split_once(" to ").unwrap_or((here, ""));
        let said = [numbers(low).last().copied(), numbers(high).first().copied()];
        let same = said
            .iter()
            .zip(found)
            .all(|(s, f)| s.is_some_and(|s| is_printed(s, f)));
        if !same {
            wrong.push(format!("{begins}: said {said:?}, recorded {found:?}"));
        }
        if verdict != finding.words() {
            wrong.push(format!(
                "{begins}: said {verdict}, found {}",
                finding.words()
            ));
        }
    }
    wrong
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

#[test]
fn what_was_found_is_what_was_recorded() {
    let text = findings();
    let all = results(&recorded("2026-11-22-2core-vm/lab"));
    let none = Vec::<String>::new();
    assert_eq!(wrong(&text, &all, RATIOS, RANGES), none);
    assert_eq!(wrong_ratios(&text, &all, COSTS, true), none);
    assert_eq!(wrong_verdicts(&text, &all, VERDICTS), none);
    let jumbo: &[(&str, &[Cited])] = &[(
        "jumbo frames help every organization",
        &[
            near("jumbo", "up-gains"),
            near("jumbo", "msgp-gains"),
            near("jumbo", "connp-l-gains"),
        ],
    )];
    let frames = results(&recorded("2026-11-22-2core-vm/lab-jumbo"));
    assert_eq!(wrong(&text, &frames, jumbo, &[]), none);
    // A figure that nobody has measured is seen, and a verdict that does not follow.
    for (right, other) in [
        (
            "0.48 (0.43-0.50) | needs 4 cores",
            "0.49 (0.43-0.50) | needs 4 cores",
        ),
        (
            "0.48 (0.43-0.50) | needs 4 cores",
            "0.48 (0.43-0.50) | opposite",
        ),
        ("1.4 to 2.7", "1.4 to 2.8"),
    ] {
        assert_eq!(text.matches(right).count(), 1, "{right}");
        let lie = text.replace(right, other);
        assert_eq!(wrong(&lie, &all, RATIOS, RANGES).len(), 1, "{right}");
    }
}

/// Every sentence on why that has figures, and which organization is named for which load.
#[test]
fn conclusions_are_what_was_recorded() {
    let text = findings();
    let all = results(&recorded("2026-11-22-2core-vm/lab"));
    let sentences =
        conclusions::sentences(&all, &results(&recorded("2026-11-22-2core-vm/lab-jumbo")));
    let lacks = lacking(&text, &sentences);
    assert!(
        lacks.is_empty(),
        "not in FINDINGS.md:\n{}",
        lacks.join("\n")
    );
    assert!(sentences.len() > 25);
    let lie = text.replace("1.28 of the two cores", "1.92 of the two cores");
    assert_eq!(lacking(&lie, &sentences).len(), 1);
}

/// The tables made from a record are as it makes them, every claim in them, and so are the
/// sentences.
#[test]
fn what_later_recordings_show_is_what_was_recorded() {
    let text = findings();
    let all = [
        "2026-11-26-2core-vm/lab",
        "2026-11-26-2core-vm/earlier",
        "2026-11-27-2core-vm/lab",
    ]
    .map(|run| results(&recorded(run)));
    let [study, earlier, on_time] = all
        .each_ref()
        .map(|all| conclusions::Runs { all, far: false });
    let expected = [
        second::on_time_sentences(on_time),
        second::rows(study, second::STUDY),
        second::sentences(study),
        second::rows(earlier, second::EARLIER),
        second::earlier_sentences(earlier),
    ];
    let lacks = lacking(&text, &expected.concat());
    assert!(
        lacks.is_empty(),
        "not in FINDINGS.md:\n{}",
        lacks.join("\n")
    );
}

/// The runs with near and with far cores, and what a cache line took then.
#[test]
fn how_far_apart_the_cores_were_is_what_was_recorded() {
    let text = findings();
    let stored = recorded("2026-11-22-2core-vm/lab");
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
        "{} ns before {},{:03} runs and {} ns before {}",
        middle(&mut near),
        near.len() / 1000,
        near.len() % 1000,
        middle(&mut far),
        far.len()
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
        text.contains(&format!("{},{:03} runs of build", runs / 1000, runs % 1000)),
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

//! What predictions are worth, and what is predicted for the study's machine, against what was
//! recorded.

use crate::{docs, table::Predicted};
use perimeter_lab::predict::{Figure, Finding, Judged, Place, Predictions, Published, loads::Load};
use std::{collections::BTreeMap, fs};

/// Where the validation was recorded.
const VALIDATED: &str = "runs/2026-11-29-2core-vm/predicted-vm-2core.json";

/// What is predicted for the study's machine.
const OPTERON: &str = "runs/2026-11-30-2core-vm/predicted-opteron-275.json";

/// What is predicted for the machines of the papers.
pub fn machines() -> Predicted {
    Predicted {
        opteron: recorded(OPTERON),
        t1: recorded(T1),
    }
}

/// What is recorded in a file.
fn recorded(file: &str) -> Predictions {
    Predictions::read(&docs().join(file)).unwrap()
}

/// What is recorded in a file, and what FINDINGS says.
fn both(file: &str) -> (Predictions, String) {
    let text = fs::read_to_string(docs().join("FINDINGS.md")).unwrap();
    (recorded(file), text)
}

#[test]
fn the_validation_is_the_recorded_one() {
    let (predictions, text) = both(VALIDATED);
    let recorded = predictions.validation;
    let percent = |error: Option<f64>| format!("{:.0} %", 100.0 * error.unwrap());
    let of = |(all, good): (usize, usize)| format!("{good} of {all}");
    let names = ["sending", "receiving", "messages"];
    for (load, name) in Load::ALL.into_iter().zip(names) {
        let v = recorded.of(load).unwrap();
        let cells = [
            percent(v.median),
            percent(v.worst),
            of(v.order),
            of(v.ratios),
            of(v.contended),
        ];
        let row = format!("| {name} | {} |\n", cells.join(" | "));
        assert!(text.contains(&row), "not in FINDINGS.md: {row}");
    }
}

/// How alike what was published and what is predicted are ordered: Spearman's rank correlation,
/// whose ranks are means where some are equal.
fn ranks_agree(points: &[Published]) -> f64 {
    let ranks = |of: fn(&Published) -> f64| -> Vec<f64> {
        let below = |p: &Published| points.iter().filter(|o| of(o) < of(p)).count();
        let alike = |p: &Published| points.iter().filter(|o| of(o) == of(p)).count();
        let rank = |p| below(p) as f64 + (alike(p) as f64 - 1.0) / 2.0;
        // All of them have the same mean.
        let middle = (points.len() as f64 - 1.0) / 2.0;
        points.iter().map(|p| rank(p) - middle).collect()
    };
    let (a, b) = (ranks(|p| p.published), ranks(|p| p.predicted));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

/// What is judged, by plans and by the claims' names, which are unique in a plan alone.
type Claims<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Judged>>;

fn by_name<'a>(figures: impl Iterator<Item = &'a Figure>) -> Claims<'a> {
    let mut claims = Claims::new();
    for (figure, claim) in figures.flat_map(|f| f.claims.iter().map(move |c| (f, c))) {
        let name = (figure.plan.as_str(), claim.id.as_str());
        claims.entry(name).or_default().push(claim);
    }
    claims
}

/// Of how many claims that is found wherever they are made.
fn throughout(claims: &Claims<'_>, finding: Finding) -> usize {
    let all = |found: &&Vec<&Judged>| found.iter().all(|c| c.finding == finding);
    claims.values().filter(all).count()
}

#[test]
fn what_is_predicted_for_the_study_is_the_recorded_prediction() {
    let (recorded, text) = both(OPTERON);
    let throughput = recorded.figures.iter().find(|f| f.plan == "throughput");
    let points = &throughput.unwrap().published;
    for p in points {
        let row = format!(
            "| {} | {} | {:.0} | {:.0} | {:+.0} % |\n",
            p.series,
            p.x,
            p.published,
            p.predicted,
            100.0 * (p.predicted / p.published - 1.0)
        );
        assert!(text.contains(&row), "not in FINDINGS.md: {row}");
    }
    let is_threads = |p: &&Published| p.series == "ConnP-T(4)";
    let others: Vec<Published> = points.iter().filter(|p| !is_threads(p)).cloned().collect();
    let line = format!(
        "rank correlation {:.2} (without ConnP-T {:.2})",
        ranks_agree(points),
        ranks_agree(&others)
    );
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    // Its other tables.
    for plan in ["contention", "cache", "scheduler"] {
        let points = &recorded.figure(plan).unwrap().published;
        let mut factors: Vec<f64> = points.iter().map(|p| p.predicted / p.published).collect();
        factors.sort_by(f64::total_cmp);
        let row = format!(
            "| `{plan}` | {} | {:.2} | {:.2} |\n",
            points.len(),
            ranks_agree(points),
            factors[factors.len() / 2]
        );
        assert!(text.contains(&row), "not in FINDINGS.md: {row}");
    }
    // `ports` has the same claims, with its own ports.
    let figures = recorded.figures.iter().filter(|f| f.plan != "ports");
    let claims = by_name(figures);
    let all = |finding| throughout(&claims, finding);
    let (hold, turned, alike, open) = (
        all(Finding::Holds),
        all(Finding::TurnedRound),
        all(Finding::Alike),
        all(Finding::NotDecided),
    );
    let alike_too = match alike {
        0 => String::new(),
        n => format!("{n} make no difference, "),
    };
    let line = format!(
        "Of {} claims, {hold} hold wherever the study makes them, {turned} are turned round, {} \
         hold or are turned round at some loads only, {alike_too}and {open} are not decided",
        claims.len(),
        claims.len() - hold - turned - alike - open
    );
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    let line = format!(
        "{} of {} are, at some load",
        claims.len() - open,
        claims.len()
    );
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    // Of messages that leave the scheduler out, over few connections and over many.
    let scheduler = &recorded.figure("scheduler").unwrap().claims;
    let ends = |id: &str| {
        let mut of = scheduler.iter().filter(|c| c.id == id).map(|c| c.ratio.0);
        let first = of.next().unwrap();
        format!("{first:.2} to {:.2} times", of.next_back().unwrap())
    };
    for line in [
        format!("take {} the scheduling", ends("light-scheduling")),
        format!("throughput is {} what it was", ends("light-messages")),
        format!("it is {} what it was", ends("light-folded")),
    ] {
        assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    }
}

/// Where PEF's paper is predicted.
const T1: &str = "runs/2026-11-29-2core-vm/predicted-t1.json";

#[test]
fn what_is_predicted_for_pef_is_the_recorded_prediction() {
    let (recorded, text) = both(T1);
    let of_pef = |plan: &str| plan.starts_with("pef-");
    let figures = recorded.figures.iter().filter(|f| of_pef(&f.plan));
    let claims = by_name(figures);
    let [hold, turned] = [Finding::Holds, Finding::TurnedRound].map(|f| throughout(&claims, f));
    let line = format!(
        "Of {} claims of that paper, {hold} hold wherever the paper makes them, {turned} are \
         turned round, and {} hold at some loads only",
        claims.len(),
        claims.len() - hold - turned
    );
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    let ratios = |id: &str| -> (f64, f64) {
        let named = claims.iter().filter(|((_, of), _)| *of == id);
        let all = named.flat_map(|(_, judged)| judged).map(|c| c.ratio.0);
        all.fold((f64::MAX, 0f64), |(a, b), r| (a.min(r), b.max(r)))
    };
    for id in ["off", "off-before", "on", "on-before"] {
        let (least, most) = ratios(id);
        let line = format!("{least:.2} to {most:.2} times");
        assert!(text.contains(&line), "not in FINDINGS.md: {line} of {id}");
    }
    for id in ["messages", "messages-before"] {
        let [least, most] = <[f64; 2]>::from(ratios(id)).map(|r| 100.0 * (r - 1.0));
        let line = format!("{least:.0} to {most:.0} % over");
        assert!(text.contains(&line), "not in FINDINGS.md: {line} of {id}");
    }
}

/// A present server, with the study's six NICs; with one for each core, and with input steered to the
/// application's core.
const SERVER: &str = "runs/2026-11-28-2core-vm/predicted-server-64.json";
const MORE_NICS: &str = "runs/2026-11-28-2core-vm/predicted-server-64-nics-64-send.json";
const STEERED: &str = "runs/2026-11-28-2core-vm/predicted-server-64-affine-send.json";

/// A point, Gb/s.
fn gbps(figure: &Figure, series: &str, x: u64, cores: usize) -> String {
    let there = |p: &&Place| (p.series.as_str(), p.x, p.cores) == (series, x, cores);
    let value = figure.places.iter().find(there).and_then(|p| p.value);
    match value.unwrap().median / 1000.0 {
        v if v < 1000.0 => format!("{v:.0}"),
        v => format!("{:.0},{:03.0}", (v / 1000.0).floor(), v % 1000.0),
    }
}

#[test]
fn what_is_predicted_for_a_server_is_the_recorded_prediction() {
    let (recorded, text) = both(SERVER);
    let figure = recorded.figure("throughput").unwrap();
    let connections = [6, 192, 16_384];
    let [few, some, many] = connections.map(|x| gbps(figure, "UP", x, 4));
    let line = format!("with {few}, {some} and {many} over");
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    let series = [
        "MsgP",
        "msgp-modern",
        "ConnP-T, a thread a core",
        "ConnP-L(128)",
    ];
    for (x, series) in connections.into_iter().flat_map(|x| series.map(|s| (x, s))) {
        let cells = [4, 16, 64]
            .map(|cores| gbps(figure, series, x, cores))
            .join(" | ");
        let row = format!("| {x} | {series} | {cells} |\n");
        assert!(text.contains(&row), "not in FINDINGS.md: {row}");
    }
}

#[test]
fn what_is_predicted_with_a_nic_for_each_core_is_recorded() {
    let organizations = [
        "msgp-modern",
        "connp-t:{cores}",
        "connp-l:128",
        "connp-l:1024",
        "squeue:{cores}",
        "pef:vertical",
    ];
    let (recorded, text) = both(MORE_NICS);
    let steered = both(STEERED).0;
    let figures = [&recorded, &steered].map(|r| r.figure("server-send").unwrap());
    let all = [192, 16_384].into_iter();
    for (x, org) in all.flat_map(|x| organizations.map(|org| (x, org))) {
        let cells = figures.map(|f| [16, 64].map(|cores| gbps(f, org, x, cores)).join(" | "));
        let row = format!("| {x} | `{org}` | {} |\n", cells.join(" | "));
        assert!(text.contains(&row), "not in FINDINGS.md: {row}");
    }
    let alone = gbps(figures[0], "up", 192, 4);
    let line = format!("One core sends {alone} over");
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    let median = |f: &Figure, org: &str, cores: usize| {
        let there =
            |p: &&Place| (p.org.split(':').next(), p.x, p.cores) == (Some(org), 16_384, cores);
        let values = f.places.iter().filter(there).filter_map(|p| p.value);
        values.map(|v| v.median).collect::<Vec<f64>>()
    };
    let one = median(figures[1], "up", 4)[0];
    let many = ["connp-l", "squeue"]
        .iter()
        .flat_map(|org| median(figures[1], org, 64));
    let (least, most) = many.fold((f64::MAX, 0f64), |(a, b), v| {
        (a.min(v / one), b.max(v / one))
    });
    let groups = median(figures[0], "connp-l", 64);
    for line in [
        format!("send {least:.0} to {most:.0} times as much on 64 cores"),
        format!("1,024 groups do {:.1} times as much", groups[1] / groups[0]),
    ] {
        assert!(text.contains(&line), "not in FINDINGS.md: {line}");
    }
}

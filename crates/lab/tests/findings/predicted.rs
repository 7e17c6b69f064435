//! What predictions are worth, and what is predicted for the study's machine, against what was
//! recorded.

use crate::docs;
use perimeter_lab::predict::{Finding, Predictions, Published, loads::Load};
use std::{collections::BTreeMap, fs};

/// Where the validation was recorded.
const VALIDATED: &str = "runs/2026-11-27-2core-vm/predicted-vm-2core.json";

/// What is predicted for the study's machine.
const OPTERON: &str = "runs/2026-11-27-2core-vm/predicted-opteron-275.json";

#[test]
fn the_validation_is_the_recorded_one() {
    let recorded = Predictions::read(&docs().join(VALIDATED))
        .unwrap()
        .validation;
    let text = fs::read_to_string(docs().join("FINDINGS.md")).unwrap();
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

#[test]
fn what_is_predicted_for_the_study_is_the_recorded_prediction() {
    let recorded = Predictions::read(&docs().join(OPTERON)).unwrap();
    let text = fs::read_to_string(docs().join("FINDINGS.md")).unwrap();
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
    // `ports` has the same claims, with its own ports.
    let figures = recorded.figures.iter().filter(|f| f.plan != "ports");
    let mut claims: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
    for claim in figures.flat_map(|f| &f.claims) {
        claims.entry(&claim.id).or_default().push(claim.finding);
    }
    let all = |finding| {
        let throughout = |found: &&Vec<Finding>| found.iter().all(|f| *f == finding);
        claims.values().filter(throughout).count()
    };
    let (hold, turned, open) = (
        all(Finding::Holds),
        all(Finding::TurnedRound),
        all(Finding::NoDifference),
    );
    let line = format!(
        "Of {} claims, {hold} hold wherever the study makes them, {turned} are turned round, {} \
         hold or are turned round at some loads only, and {open} are not decided",
        claims.len(),
        claims.len() - hold - turned - open
    );
    assert!(text.contains(&line), "not in FINDINGS.md: {line}");
}

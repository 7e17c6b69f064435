//! What predictions are worth, against the validation that was recorded.

use crate::docs;
use perimeter_lab::predict::{Predictions, loads::Load};
use std::fs;

/// The recorded one.
const VALIDATED: &str = "runs/2026-11-27-2core-vm/predicted-vm-2core.json";

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

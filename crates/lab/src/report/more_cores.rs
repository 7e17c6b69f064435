//! Who is predicted to be fastest where there are more cores, in a sentence for each machine.

use super::{analysis::Result, material::Material, svg::number};
use crate::predict::{Figure, Place, Predictions};

/// The plan that tells.
const PLAN: &str = "throughput";
/// Cores that a reader asks about.
const ASKED: usize = 16;

/// The sentences.
pub(super) fn lines(material: &Material<'_>) -> Vec<String> {
    let mut results = material.results.iter();
    let Some(r) = results.find(|r| r.plan.name == PLAN) else {
        return Vec::new();
    };
    let one = |p: &Predictions| line(p, p.figure(PLAN)?, r);
    material.predicted.iter().filter_map(one).collect()
}

fn line(p: &Predictions, figure: &Figure, r: &Result) -> Option<String> {
    let cores = *p.cores.iter().rfind(|n| **n <= ASKED)?;
    let mut xs: Vec<u64> = figure.on(cores).map(|place| place.x).collect();
    xs.sort_unstable();
    let (few, most) = (*xs.first()?, *xs.last()?);
    let mut loads = vec![few, most];
    loads.dedup();
    let led = |x: u64| {
        Some(format!(
            "over {} {}, {}",
            number(x as f64),
            r.plan.axis.of(x),
            leader(figure, cores, x)?
        ))
    };
    let led: Vec<String> = loads.into_iter().filter_map(led).collect();
    let mut text = (!led.is_empty()).then(|| {
        let title = &p.machine.title;
        format!("Predicted for {title}, {cores} cores: {}.", led.join("; "))
    })?;
    if !figure.caveats.is_empty() {
        text.push_str(&format!(" Not borne out: {}.", figure.caveats.join("; ")));
    }
    Some(text)
}

/// Who leads at `x`, by how much, and what holds the next one up.
fn leader(figure: &Figure, cores: usize, x: u64) -> Option<String> {
    let mut at: Vec<&Place> = figure.on(cores).filter(|place| place.x == x).collect();
    at.retain(|place| place.value.is_some());
    let median = |place: &Place| place.value.map_or(0.0, |v| v.median);
    at.sort_by(|a, b| median(b).total_cmp(&median(a)));
    let [first, second, ..] = at.as_slice() else {
        return None;
    };
    if first.value?.min <= second.value?.max {
        return Some(format!("{} and {} are as fast", first.org, second.org));
    }
    let why = second
        .held_up_by
        .as_ref()
        .map_or(String::new(), |(what, share)| {
            format!(" ({what}: {:.0} % of the cores' time)", 100.0 * share)
        });
    let times = median(first) / median(second);
    Some(format!(
        "{} is fastest, {times:.2} times {}{why}",
        first.org, second.org
    ))
}

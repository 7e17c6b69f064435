//! Who is predicted to be fastest where there are more cores, in a sentence for each machine.

use super::{
    analysis::{Cores, Result},
    material::Material,
    svg::number,
};
use crate::predict::{Figure, Place, Predictions};

/// The plan that tells.
const PLAN: &str = "throughput";
/// Cores that a reader asks about.
const ASKED: usize = 16;

/// The sentences.
pub(super) fn lines(material: &Material<'_>) -> Vec<String> {
    let mut results = material.results.iter();
    let Some(r) = results.find(|r| r.plan.name == PLAN && r.cores != Cores::Far) else {
        return Vec::new();
    };
    let one = |p: &Predictions| line(p, p.figure(PLAN)?, r);
    material.predicted.iter().filter_map(one).collect()
}

fn line(p: &Predictions, figure: &Figure, r: &Result) -> Option<String> {
    let cores = *p.cores.iter().rfind(|n| **n <= ASKED)?;
    let most = figure.on(cores).map(|place| place.x).max()?;
    let mut at: Vec<&Place> = figure.on(cores).filter(|place| place.x == most).collect();
    at.retain(|place| place.value.is_some());
    let median = |place: &Place| place.value.map_or(0.0, |v| v.median);
    at.sort_by(|a, b| median(b).total_cmp(&median(a)));
    let [first, second, ..] = at.as_slice() else {
        return None;
    };
    let apart = first.value?.min > second.value?.max;
    let of = r.plan.axis.of(most);
    let mut text = format!(
        "Predicted for {}, {cores} cores, {} {of}: {}",
        p.machine.title,
        number(most as f64),
        first.org
    );
    match apart {
        true => text.push_str(&format!(
            " is fastest, {:.2} times {}",
            median(first) / median(second),
            second.org
        )),
        false => text.push_str(&format!(" and {} are as fast", second.org)),
    }
    if let (true, Some((what, share))) = (apart, &second.held_up_by) {
        let percent = share * 100.0;
        text.push_str(&format!(" ({what}: {percent:.0} % of the cores' time)"));
    }
    text.push('.');
    if !figure.caveats.is_empty() {
        text.push_str(&format!(" Not borne out: {}.", figure.caveats.join("; ")));
    }
    Some(text)
}

//! What the distance of the cores made of goodput: runs for which the hypervisor had them far apart
//! beside runs of the same configurations with near ones.

use super::{
    analysis::{Cores, Result},
    svg::number,
};
use crate::{
    host::apart,
    record::Row,
    stats::{self, ENOUGH, Interval},
};
use maud::{Markup, html};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

/// Runs with near and with far cores.
#[derive(Debug, Default)]
pub(super) struct Apart {
    near: Vec<f64>,
    far: Vec<f64>,
    effects: Vec<Effect>,
}

/// What it made of one organization.
#[derive(Debug)]
struct Effect {
    org: String,
    /// Configurations that were measured with both.
    configurations: usize,
    /// The median of their ratios, far to near.
    ratio: f64,
    interval: Interval,
}

impl Apart {
    /// `None` if the cores were always as near.
    pub(super) fn of(rows: &[Row]) -> Option<Apart> {
        let told = rows.iter().filter_map(|row| {
            let raw = &row.measured()?.raw;
            Some((row, raw.core_round_trip_ns?, raw.goodput_mbps))
        });
        let told: Vec<(&Row, f64, f64)> = told.collect();
        let mut found = Apart::default();
        let mut cells: BTreeMap<_, [Vec<f64>; 2]> = BTreeMap::new();
        for (row, ns, goodput) in told {
            let is_far = apart::is_far(ns);
            match is_far {
                true => found.far.push(ns),
                false => found.near.push(ns),
            }
            // A paced link is the limit, whatever the cores do.
            if goodput > 0.0 && row.settings.link_gbps.is_none() {
                let cell = cells.entry((&row.org, &row.plan, &row.series, row.x));
                cell.or_default()[usize::from(is_far)].push(goodput);
            }
        }
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for ((org, ..), [near, far]) in &cells {
            if let (Some(near), Some(far)) = (stats::median(near), stats::median(far)) {
                ratios.entry(org).or_default().push(far / near);
            }
        }
        for (org, ratios) in ratios {
            let interval = Interval::of_median(&ratios).filter(Interval::is_evidence);
            if let (Some(ratio), Some(interval)) = (stats::median(&ratios), interval) {
                found.effects.push(Effect {
                    org: org.into(),
                    configurations: ratios.len(),
                    ratio,
                    interval,
                });
            }
        }
        found.effects.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        (!found.near.is_empty() && !found.far.is_empty()).then_some(found)
    }

    fn sentence(&self) -> String {
        let ns = |of: &[f64]| number(stats::median(of).unwrap_or(0.0));
        format!(
            "Before {} a cache line took {} ns from one core to another and back, before {} it \
             took {} ns: the hypervisor had placed the cores far apart, which disturbs whatever \
             threads share.{}",
            crate::units::runs(self.near.len()),
            ns(&self.near),
            self.far.len(),
            ns(&self.far),
            match self.effects.is_empty() {
                true => "",
                false =>
                    " Below, by organization: goodput with far cores as a ratio to that of the same \
                     configuration with near ones, the median over all configurations that met both.",
            }
        )
    }

    pub(super) fn section(&self, results: &[Result]) -> Markup {
        html! {
            section #apart {
                h2 { "How far apart the cores were" }
                p { (self.sentence()) }
                p { (lacks(results)) }
                details.more {
                    summary { "Runs of each kind, by plan" }
                    table.values {
                        thead { tr {
                            th { "plan" } th.n { "near" } th.n { "far" }
                            th.n { "points with " (ENOUGH) " and more near" } th.n { "far" }
                        } }
                        tbody { @for k in kinds(results) { tr {
                            th scope="row" { (k.plan) }
                            td.n { (k.near.runs) } td.n { (k.far.runs) }
                            td.n { (k.near) } td.n { (k.far) }
                        } } }
                    }
                }
                @if !self.effects.is_empty() {
                    details.more {
                        summary { "By organization" }
                        table.values {
                            thead { tr {
                                th { "organization" } th.n { "far to near" } th.n { "configurations" }
                            } }
                            tbody { @for e in &self.effects { tr {
                                th scope="row" { (e.org) }
                                td.n { (e.value()) }
                                td.n { (e.configurations) }
                            } } }
                        }
                    }
                }
            }
        }
    }

    pub(super) fn markdown(&self, results: &[Result], out: &mut String) {
        let _ = writeln!(
            out,
            "\n## How far apart the cores were\n\n{}\n\n{}\n",
            self.sentence(),
            lacks(results)
        );
        let head = format!("| plan | near | far | points with {ENOUGH} and more near | far |");
        let _ = writeln!(out, "{head}\n|---|--:|--:|--:|--:|");
        for k in kinds(results) {
            let Kinds { plan, near, far } = &k;
            let _ = writeln!(
                out,
                "| {plan} | {} | {} | {near} | {far} |",
                near.runs, far.runs
            );
        }
        out.push('\n');
        if self.effects.is_empty() {
            return;
        }
        out.push_str("| organization | far to near | configurations |\n|---|--:|--:|\n");
        for e in &self.effects {
            let _ = writeln!(out, "| {} | {} | {} |", e.org, e.value(), e.configurations);
        }
    }
}

/// Runs of a plan with near cores and with far ones.
struct Kinds {
    plan: String,
    near: Kind,
    far: Kind,
}

/// Runs of one of them, and points with enough runs for a verdict, of all.
#[derive(Default)]
struct Kind {
    runs: usize,
    told: usize,
    points: usize,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.told, self.points)
    }
}

impl Kind {
    fn of(r: &Result) -> Kind {
        let (points, few) = r.points();
        Kind {
            runs: r.measured,
            told: points - few,
            points,
        }
    }
}

/// By plan, in the order of the report; those for which the distance does not matter are left out.
fn kinds(results: &[Result]) -> Vec<Kinds> {
    let mut list: Vec<Kinds> = Vec::new();
    for r in results.iter().filter(|r| r.cores != Cores::Any) {
        if list.last().is_none_or(|k| k.plan != r.plan.name) {
            list.push(Kinds {
                plan: r.plan.name.clone(),
                near: Kind::default(),
                far: Kind::default(),
            });
        }
        let Some(last) = list.last_mut() else {
            continue;
        };
        match r.cores {
            Cores::Far => last.far = Kind::of(r),
            Cores::Near | Cores::Any => last.near = Kind::of(r),
        }
    }
    for k in &mut list {
        // A kind without a run has the same points.
        let points = k.near.points.max(k.far.points);
        (k.near.points, k.far.points) = (points, points);
    }
    list
}

/// What there are too few runs of to tell.
fn lacks(results: &[Result]) -> String {
    let all = kinds(results);
    let sum = |of: fn(&Kinds) -> usize| all.iter().map(of).sum::<usize>();
    format!(
        "Runs of the two kinds are never taken together. Of {} points {} have the {ENOUGH} runs \
         with near cores that a verdict needs, and {} have them with far ones; the others say so.",
        sum(|k| k.near.points),
        sum(|k| k.near.told),
        sum(|k| k.far.told)
    )
}

/// What there are too few runs of, for a terminal.
pub(super) fn short(results: &[Result]) -> String {
    let all = kinds(results);
    let sum = |of: fn(&Kinds) -> usize| all.iter().map(of).sum::<usize>();
    format!(
        "Cores were near and far by turns: {} of {} points have the {ENOUGH} near runs of a verdict.",
        sum(|k| k.near.told),
        sum(|k| k.near.points)
    )
}

impl Effect {
    fn value(&self) -> String {
        let Interval { low, high, .. } = self.interval;
        format!("{:.2} ({low:.2}–{high:.2})", self.ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, tests::row};

    /// Six configurations; each third run with far cores, when `msgp` is half as fast.
    fn rows(far_ns: f64) -> Vec<Row> {
        let mut rows = Vec::new();
        for (org, slower) in [("up", 1.0), ("msgp", 0.5)] {
            for x in 1..=6 {
                for repeat in 0..3 {
                    let far = repeat == 2;
                    let goodput = if far { 1000.0 * slower } else { 1000.0 };
                    let mut row = row("small", org, org, x, repeat, goodput);
                    if let Outcome::Measured(m) = &mut row.outcome {
                        m.raw.core_round_trip_ns = Some(if far { far_ns } else { 50.0 });
                    }
                    rows.push(row);
                }
            }
        }
        rows
    }

    #[test]
    fn far_cores_are_told_by_organization() {
        let apart = Apart::of(&rows(300.0)).unwrap();
        assert_eq!((apart.near.len(), apart.far.len()), (24, 12));
        let mut text = String::new();
        apart.markdown(&[], &mut text);
        for part in [
            "Before 24 runs a cache line took 50 ns",
            "before 12 it took 300 ns",
            "| msgp | 0.50 (0.50–0.50) | 6 |\n| up | 1.00 (1.00–1.00) | 6 |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let html = apart.section(&[]).into_string();
        assert!(html.contains("0.50 (0.50–0.50)"), "{html}");
    }

    #[test]
    fn nothing_is_said_of_near_cores_or_unknown_ones() {
        assert!(Apart::of(&rows(60.0)).is_none());
        assert!(Apart::of(&[row("small", "up", "up", 1, 0, 1.0)]).is_none());
        assert!(Apart::of(&[]).is_none());
    }

    #[test]
    fn paced_links_and_few_configurations_are_no_evidence() {
        let mut paced = rows(300.0);
        paced
            .iter_mut()
            .for_each(|r| r.settings.link_gbps = Some(1.0));
        assert!(Apart::of(&paced).unwrap().effects.is_empty());
        let mut few = rows(300.0);
        few.retain(|r| r.x < 5);
        assert!(Apart::of(&few).unwrap().effects.is_empty());
    }
}

//! What the distance of the cores made of goodput: runs for which the hypervisor had them far apart
//! beside runs of the same configurations with near ones.

use super::svg::number;
use crate::{
    host::apart::is_longer,
    record::Row,
    stats::{self, Interval},
};
use maud::{Markup, html};
use std::{collections::BTreeMap, fmt::Write as _};

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
        let best = told.iter().map(|t| t.1).fold(f64::INFINITY, f64::min);
        let mut apart = Apart::default();
        let mut cells: BTreeMap<_, [Vec<f64>; 2]> = BTreeMap::new();
        for (row, ns, goodput) in told {
            let is_far = is_longer(ns, best);
            match is_far {
                true => apart.far.push(ns),
                false => apart.near.push(ns),
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
                apart.effects.push(Effect {
                    org: org.into(),
                    configurations: ratios.len(),
                    ratio,
                    interval,
                });
            }
        }
        apart.effects.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        (!apart.near.is_empty() && !apart.far.is_empty()).then_some(apart)
    }

    fn sentence(&self) -> String {
        let ns = |of: &[f64]| number(stats::median(of).unwrap_or(0.0));
        format!(
            "Before {} runs a cache line took {} ns from one core to another and back, before {} it \
             took {} ns: the hypervisor had placed the cores far apart, which disturbs whatever \
             threads share. Goodput with far cores, as a ratio to that of the same configuration \
             with near ones; the median over all configurations that met both, where there are \
             enough.",
            self.near.len(),
            ns(&self.near),
            self.far.len(),
            ns(&self.far)
        )
    }

    pub(super) fn section(&self) -> Markup {
        html! {
            section #apart {
                h2 { "How far apart the cores were" }
                p { (self.sentence()) }
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

    pub(super) fn markdown(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n## How far apart the cores were\n\n{}\n",
            self.sentence()
        );
        if self.effects.is_empty() {
            return;
        }
        out.push_str("| organization | far to near | configurations |\n|---|--:|--:|\n");
        for e in &self.effects {
            let _ = writeln!(out, "| {} | {} | {} |", e.org, e.value(), e.configurations);
        }
    }
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
        apart.markdown(&mut text);
        for part in [
            "Before 24 runs a cache line took 50 ns",
            "before 12 it took 300 ns",
            "| msgp | 0.50 (0.50–0.50) | 6 |\n| up | 1.00 (1.00–1.00) | 6 |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let html = apart.section().into_string();
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

//! Tables of values.

use super::{
    analysis::{Curve, Point, Result},
    names::Unit,
    svg::number,
    words,
};
use crate::{metric::Metric, published::Experiment};
use maud::{Markup, html};

/// A metric with its unit, for an axis or a caption.
pub(super) fn axis(metric: Metric) -> String {
    let (label, unit) = (metric.label(), Unit::of(metric).name);
    match label.ends_with(unit) {
        true => label.into(),
        false => format!("{label}, {unit}"),
    }
}

/// A field of CSV (RFC 4180), quoted if it has to be.
pub(super) fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// The values, with the published ones beneath them.
pub(super) fn values(r: &Result, metric: Metric, papers: bool) -> Markup {
    let xs = || {
        r.curves
            .first()
            .into_iter()
            .flat_map(|c| &c.points)
            .map(|p| p.x)
    };
    let mut reasons: Vec<&str> = r
        .curves
        .iter()
        .flat_map(|c| &c.points)
        .filter_map(|p| p.missing.as_deref())
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    let by = r.plan.published.map_or(1.0, |e| Unit::published(e).factor);
    let series = |c: &Curve| {
        let e = r.plan.published.filter(|_| papers)?;
        e.series(c.published.as_deref()?)
    };
    html! {
        div.scroll {
            table.values {
                caption { (axis(metric)) ": median (interval)" }
                thead {
                    tr { th { (r.plan.axis.label()) } @for x in xs() { th.n { (number(x as f64)) } } }
                }
                tbody {
                    @for c in &r.curves {
                        tr {
                            th scope="row" {
                                (c.name)
                                @if !c.comparable { " " span.quiet { "not comparable" } }
                            }
                            @for p in &c.points { (cell(p, metric)) }
                        }
                        @if let Some(s) = series(c) {
                            tr.published {
                                th scope="row" { (c.name) ", published" @if let Some(unit) = r.foreign_unit() { " in " (unit) } }
                                @for p in &c.points {
                                    td.n { @if let Some(y) = s.at(p.x as f64) {
                                        span title=[y.note.as_deref()] { (words::published(y, by)) }
                                    } }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if papers {
            @for reason in reasons { p.note { "–: " (reason) } }
        }
    }
}

fn cell(p: &Point, metric: Metric) -> Markup {
    let Some(spread) = p.spread(metric) else {
        return html! { td.n title=[p.missing.as_deref()] { "–" } };
    };
    let interval = p.interval(metric).filter(|i| i.low != i.high);
    let by = Unit::of(metric).factor;
    html! {
        td.n {
            (number(spread.median * by))
            @if p.disturbed > 0 {
                abbr title=(crate::units::noisy(p.disturbed, p.runs.len())) { "†" }
            }
            @if p.invalid > 0 {
                abbr title=(format!("the accounting of {} does not hold", crate::units::runs(p.invalid))) { "‡" }
            }
            @if let Some(i) = interval {
                span.interval { (number(i.low * by)) "–" (number(i.high * by)) }
            }
        }
    }
}

/// An experiment's published numbers alone.
pub(super) fn numbers(e: &'static Experiment) -> Markup {
    let mut xs: Vec<f64> = e
        .series
        .iter()
        .flat_map(|s| &s.points)
        .map(|p| p.span().0)
        .collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let unit = Unit::published(e);
    html! {
        div.scroll {
            table.values {
                caption { "published, " (unit.name) }
                thead { tr { th { (e.x) } @for x in &xs { th.n { (number(*x)) } } } }
                tbody {
                    @for s in &e.series {
                        tr.published {
                            th scope="row" { (s.name) }
                            @for x in &xs {
                                td.n { @if let Some(p) = s.at(*x) { (words::published(p, unit.factor)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

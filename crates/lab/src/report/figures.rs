//! The figures of a plan: first how curves stand to one of them, then values; ours and the papers'
//! on the same axes.

use super::{
    analysis::{Curve, Point, Result, compare_points, in_ratios},
    answer,
    names::Unit,
    stacked::{self, Stacked},
    svg::{self, Bars, Figure, Line, Look, Mark, Origin, number},
    table::{axis, field},
};
use crate::{metric::Metric, misses::Component, plan::Mode, published::Claim};
use maud::{Markup, html};
use std::fmt::Write as _;

/// How a plan's curves look.
pub(super) fn looks(r: &Result) -> Vec<Look> {
    let name = |c: &Curve| {
        let organization = c.organization.as_ref();
        organization.map_or(c.name.clone(), ToString::to_string)
    };
    svg::looks(&r.curves.iter().map(name).collect::<Vec<_>>())
}

/// All figures of a plan.
pub(super) fn all(r: &Result, looks: &[Look]) -> Markup {
    if r.measured == 0 {
        return html! { p.empty { "Not measured here yet." } };
    }
    if r.curves.iter().all(|c| c.points.len() == 1) {
        let bars = bars(r, looks);
        let data = bars
            .rows
            .iter()
            .fold(String::from(HEAD), |text, (name, _, m)| {
                text + &line(name, "measured", m, &bars.axis)
            });
        return html! { figure id=(bars.id) { (bars.draw()) (caption(&bars.id, &data)) } };
    }
    html! {
        @for f in lines(r, looks).iter().filter(|f| !f.is_empty()) {
            (drawn(f))
        }
    }
}

/// A figure with its links.
pub(super) fn drawn(f: &Figure) -> Markup {
    html! { figure id=(f.id) { (f.draw()) (caption(&f.id, &data(f))) } }
}

/// What takes much room and is folded.
pub(super) fn folded(r: &Result) -> Markup {
    html! {
        @if let Some(chart) = by_component(r) {
            details.more {
                summary { "By component, drawn" }
                (chart.legend())
                figure id=(chart.id) { (chart.draw()) (caption(&chart.id, &parts(&chart))) }
            }
        }
    }
}

/// Those with an x and a y axis.
fn lines(r: &Result, looks: &[Look]) -> Vec<Figure> {
    let mut list = Vec::new();
    if let Some(base) = base(r) {
        list.push(relative(r, looks, base));
    }
    let (ours, theirs) = (measured(r, looks), papers(r, looks));
    let ends = ends(&ours, &theirs);
    let figure = |kind: &str, title: &str, unit: &str, lines| Figure {
        id: format!("{}-{kind}", r.id()),
        title: title.into(),
        x: r.plan.axis.label().into(),
        y: unit.into(),
        unit: unit.into(),
        log_x: r.plan.log,
        log_y: false,
        ends,
        rule: None,
        lines,
    };
    let unit = Unit::of(r.plan.metric).name;
    let title = answer::upper(r.plan.metric.label());
    let title = title.as_str();
    if theirs.is_empty() {
        list.push(figure("values", title, unit, ours));
        return list;
    }
    match r.foreign_unit() {
        Some(foreign) => {
            list.push(figure("values", title, unit, ours));
            list.push(figure("published", "What was published", foreign, theirs));
        }
        None => list.push(Figure {
            log_y: !r.plan.same_axes,
            ..figure(
                "values",
                &format!("{title}, here and published"),
                unit,
                [ours, theirs].concat(),
            )
        }),
    }
    list
}

/// Both ends of the x axis of all of a plan's figures.
fn ends(ours: &[Line], theirs: &[Line]) -> Option<(f64, f64)> {
    let xs = || {
        ours.iter()
            .chain(theirs)
            .flat_map(|l| &l.marks)
            .map(|m| m.x)
    };
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
    (low <= high).then_some((low, high))
}

const HEAD: &str = "series,origin,x,value,low,high,unit,runs,disturbed\n";

fn line(name: &str, origin: &str, m: &Mark, unit: &str) -> String {
    let (low, high) = m.bar.map_or((String::new(), String::new()), |b| {
        (b.0.to_string(), b.1.to_string())
    });
    let name = field(name);
    let unit = field(unit);
    format!(
        "{name},{origin},{},{},{low},{high},{unit},{},{}\n",
        m.x, m.y, m.runs.0, m.runs.1
    )
}

/// What a figure shows, as CSV.
fn data(f: &Figure) -> String {
    let mut text = String::from(HEAD);
    for l in &f.lines {
        for m in &l.marks {
            text.push_str(&line(&l.name, l.origin.word(), m, &f.unit));
        }
    }
    text
}

fn parts(chart: &Stacked) -> String {
    let mut text = format!("row,{},published sum\n", chart.names.join(","));
    for r in &chart.rows {
        let values: Vec<String> = r.parts.iter().map(f64::to_string).collect();
        let sum = r.published.map_or(String::new(), |v| v.to_string());
        let _ = writeln!(text, "{},{},{sum}", field(&r.name), values.join(","));
    }
    text
}

/// Links to a figure and to its data, which stand in the page itself.
fn caption(id: &str, csv: &str) -> Markup {
    let mut data = String::from("data:text/csv;charset=utf-8,");
    for b in csv.bytes() {
        match b {
            b if b.is_ascii_alphanumeric() || b"-_.~,:()".contains(&b) => data.push(b.into()),
            b => {
                let _ = write!(data, "%{b:02X}");
            }
        }
    }
    html! {
        figcaption {
            a href=(format!("#{id}")) { "link" } " "
            a download=(format!("{id}.csv")) href=(data) { "data (CSV)" }
        }
    }
}

/// What the values of a figure are.
fn origin(metric: Metric) -> &'static str {
    match metric.is_modelled() {
        true => "Modelled, not measured",
        false => "Measured here",
    }
}

/// Modelled cache misses by component, with the published sums.
fn by_component(r: &Result) -> Option<Stacked> {
    if r.plan.metric != Metric::L2 {
        return None;
    }
    let median = |p: &Point, c| Some(p.spread(Metric::L2Of(c))?.median);
    let mut rows = Vec::new();
    for x in r.plan.values(Mode::Full) {
        for curve in &r.curves {
            let series = || r.plan.published?.series(curve.published.as_deref()?);
            let parts = curve.at(*x).and_then(|p| {
                let parts = Component::ALL.into_iter().map(|c| median(p, c));
                parts.collect::<Option<Vec<f64>>>()
            });
            rows.extend(parts.map(|parts| stacked::Row {
                name: format!(
                    "{}, {} {}",
                    curve.name,
                    number(*x as f64),
                    r.plan.axis.of(*x)
                ),
                parts,
                published: series().and_then(|s| s.at(*x as f64)).map(|p| p.y),
            }));
        }
    }
    (!rows.is_empty()).then(|| Stacked {
        id: format!("{}-components", r.id()),
        title: format!("{}: by component", origin(Metric::L2)),
        axis: axis(Metric::L2),
        names: Component::ALL.map(Component::name).to_vec(),
        rows,
    })
}

fn mark(x: u64, p: &Point, metric: Metric) -> Option<Mark> {
    let spread = p.spread(metric)?;
    let by = Unit::of(metric).factor;
    Some(Mark {
        x: x as f64,
        y: spread.median * by,
        bar: p.interval(metric).map(|i| (i.low * by, i.high * by)),
        runs: (p.runs.len(), p.disturbed),
    })
}

fn measured(r: &Result, looks: &[Look]) -> Vec<Line> {
    let curves = r.curves.iter().zip(looks).enumerate();
    let line = |(series, (c, look)): (usize, (&Curve, &Look))| {
        let marks = c.points.iter();
        Line {
            name: c.name.clone(),
            look: *look,
            series,
            marks: marks.filter_map(|p| mark(p.x, p, r.plan.metric)).collect(),
            origin: Origin::Measured,
        }
    };
    curves.map(line).collect()
}

/// The published curves that have a counterpart here.
pub(super) fn papers(r: &Result, looks: &[Look]) -> Vec<Line> {
    let line = |(series, (c, look)): (usize, (&Curve, &Look))| {
        let e = r.plan.published?;
        let (of, by) = (
            e.series(c.published.as_deref()?)?,
            Unit::published(e).factor,
        );
        let mut marks = Vec::new();
        for p in &of.points {
            let (first, last) = p.span();
            let one = |x| Mark {
                x,
                y: p.y * by,
                bar: None,
                runs: (0, 0),
            };
            marks.push(one(first));
            if last > first {
                marks.push(one(last));
            }
        }
        Some(Line {
            name: c.name.clone(),
            look: *look,
            series,
            marks,
            origin: Origin::Published,
        })
    };
    r.curves
        .iter()
        .zip(looks)
        .enumerate()
        .filter_map(line)
        .collect()
}

/// The curve that others are shown relative to: the plan's, or the one that published ratios are
/// to.
fn base(r: &Result) -> Option<usize> {
    let of_claims = || {
        let e = r.plan.published?;
        let claims = &e.claims;
        // Where there are values besides, ratios to anything but the first curve are an aside.
        let is_base = |i: &usize| *i == 0 || e.series.is_empty();
        let ratio = |c: &&Claim| {
            c.is_of(r.plan.metric)
                && c.range().is_some()
                && c.a.series != c.b.series
                && c.a.x == c.b.x
        };
        let name = &claims.iter().find(ratio)?.b.series;
        r.curves
            .iter()
            .position(|c| c.published.as_ref() == Some(name))
            .filter(is_base)
    };
    r.plan.relative_to.or_else(of_claims)
}

/// Every curve as a multiple of one, measured and published on the same axes.
fn relative(r: &Result, looks: &[Look], base: usize) -> Figure {
    let metric = r.plan.metric;
    let of = &r.curves[base];
    let mut lines = Vec::new();
    for (series, (c, look)) in r.curves.iter().zip(looks).enumerate() {
        if series == base {
            continue;
        }
        let metric = in_ratios(metric, &[c, of]);
        let ratio = |p: &Point| {
            let against = of.at(p.x)?;
            let comparison = compare_points(p, against, metric)?;
            Some(Mark {
                x: p.x as f64,
                y: comparison.ratio,
                bar: comparison.interval.map(|i| (i.low, i.high)),
                runs: (
                    p.runs.len() + against.runs.len(),
                    p.disturbed + against.disturbed,
                ),
            })
        };
        let ours = c.points.iter().filter_map(ratio).collect();
        let theirs: Vec<Mark> = c
            .points
            .iter()
            .filter_map(|p| ratio_of_paper(r, c, of, p.x))
            .collect();
        for (marks, origin) in [(ours, Origin::Measured), (theirs, Origin::Published)] {
            lines.push(Line {
                name: c.name.clone(),
                look: *look,
                series,
                marks,
                origin,
            });
        }
    }
    let (ours, theirs) = (measured(r, looks), papers(r, looks));
    Figure {
        id: format!("{}-relative", r.id()),
        title: format!("Relative to {}", of.name),
        x: r.plan.axis.label().into(),
        y: format!("times {}", of.name),
        unit: format!("times {}", of.name),
        log_x: r.plan.log,
        log_y: false,
        ends: ends(&ours, &theirs),
        rule: Some(1.0),
        lines,
    }
}

/// The published ratio of two curves at `x`, from their numbers or from what the text says.
fn ratio_of_paper(r: &Result, c: &Curve, base: &Curve, x: u64) -> Option<Mark> {
    let e = r.plan.published?;
    let (a, b) = (c.published.as_deref()?, base.published.as_deref()?);
    let x = x as f64;
    let value = |name| Some(e.series(name)?.at(x)?.y);
    let said = || {
        let here = |s: Option<f64>| s.is_none_or(|v| v == x);
        let claims = e
            .claims
            .iter()
            .filter(|c| c.a.series == a && c.b.series == b);
        let own = |c: &&Claim| c.is_of(r.plan.metric);
        let mut there = claims.filter(own).filter(|c| here(c.a.x) && here(c.b.x));
        there.find_map(Claim::range)
    };
    let numbers = || Some(value(a)? / value(b)?);
    let (low, high) = numbers().map(|v| (v, v)).or_else(said)?;
    Some(Mark {
        x,
        y: (low * high).sqrt(),
        bar: (low < high).then_some((low, high)),
        runs: (0, 0),
    })
}

fn bars(r: &Result, looks: &[Look]) -> Bars {
    let rows = r.curves.iter().zip(looks).filter_map(|(c, look)| {
        let p = c.points.first()?;
        Some((c.name.clone(), *look, mark(p.x, p, r.plan.metric)?))
    });
    let first = r.curves.first().and_then(|c| c.points.first());
    let x = first.map_or(0, |p| p.x);
    Bars {
        id: format!("{}-values", r.id()),
        title: format!(
            "{}, {} {}",
            origin(r.plan.metric),
            number(x as f64),
            r.plan.axis.of(x)
        ),
        axis: axis(r.plan.metric),
        rows: rows.collect(),
    }
}

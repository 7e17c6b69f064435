//! The report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use super::{
    analysis::{Cores, Curve, Finding, Judged, Result, compare_points},
    answer, boxes, lanes,
    material::Material,
    names::Unit,
    stacked::{self, Stacked},
    svg::{self, Bars, Figure, Line, Look, Mark, STYLE, number},
    words,
};
use crate::{
    looks,
    metric::Metric,
    misses::Component,
    plan::Mode,
    published::{Experiment, published},
    stats::Interval,
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeMap;

/// The whole page.
pub(super) fn page(material: &Material<'_>) -> Markup {
    let header = &material.stored.header;
    let title = match header.plans.as_slice() {
        [one] => format!("Perimeter lab: {one}"),
        _ => "Perimeter lab".into(),
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(looks::style())) }
            }
            body {
                header {
                    h1 { (title) }
                    p.facts {
                        (words::day(header.started_unix)) " · " (words::machine(&header.host))
                        " · " (words::program(header)) " · mode " (header.mode)
                        " · seed " (header.seed)
                    }
                }
                main {
                    (answer::section(material))
                    (claims(material))
                    (contents(material))
                    @for (i, r) in material.results.iter().enumerate() { (experiment(material, i, r)) }
                    (not_repeated(material))
                    @if let Some(apart) = &material.apart { (apart.section()) }
                    (method(material))
                }
            }
        }
    }
}

fn pill(finding: Finding) -> Markup {
    let class = match finding {
        Finding::Agrees => "pill good",
        Finding::InPart => "pill part",
        Finding::TurnedRound => "pill turned",
        Finding::NoDifference | Finding::Undecided => "pill none",
        Finding::NeedsCores(_) | Finding::TooFew | Finding::NotMeasured => "pill not",
    };
    html! { span class=(class) { (finding.words()) } }
}

/// All claims in one table.
fn claims(material: &Material<'_>) -> Markup {
    let all: Vec<&Judged> = material.results.iter().flat_map(|r| &r.claims).collect();
    if all.is_empty() {
        return html! {};
    }
    let mut kinds: BTreeMap<Finding, usize> = BTreeMap::new();
    for c in &all {
        *kinds.entry(c.finding).or_default() += 1;
    }
    html! {
        section #claims {
            h2 { "What the papers say, and what is found here" }
            p.pills {
                @for (kind, count) in kinds { (pill(kind)) " " (count) " " }
            }
            div.scroll {
                table.cards {
                    thead { tr { th { "claim" } th { "published" } th { "here" } th { "" } } }
                    // Two plans may ask the same of different loads.
                    @for r in material.results.iter().filter(|r| !r.claims.is_empty()) {
                        tbody {
                            tr {
                                th scope="rowgroup" colspan="4" {
                                    a href=(format!("#{}", r.id())) { (r.title()) }
                                }
                            }
                            @for c in &r.claims { tr {
                                td.words { (c.claim.text) }
                                td data-label="published: " { (words::claimed(c.claim)) }
                                td.words data-label="here: " { (brief(c)) }
                                td { (pill(c.finding)) }
                            } }
                        }
                    }
                }
            }
        }
    }
}

/// The range of what was found, for a table.
fn brief(c: &Judged) -> String {
    match c.evidence.as_slice() {
        [] => "–".into(),
        [one] => words::ratio(&one.comparison),
        many => {
            let ratios = || many.iter().map(|e| e.comparison.ratio);
            let least = ratios().fold(f64::INFINITY, f64::min);
            let most = ratios().fold(0.0, f64::max);
            format!(
                "{} to {} times, {} places",
                number(least),
                number(most),
                many.len()
            )
        }
    }
}

fn contents(material: &Material<'_>) -> Markup {
    html! {
        nav aria-label="Experiments" {
            h2 { "Experiments" }
            ul {
                @for r in &material.results {
                    li { a href=(format!("#{}", r.id())) { (r.title()) } }
                }
            }
        }
    }
}

fn experiment(material: &Material<'_>, index: usize, r: &Result) -> Markup {
    let plan = &r.plan;
    let looks = looks(r);
    html! {
        section.experiment id=(r.id()) {
            h2 { (r.title()) }
            p.asks { (plan.asks) }
            @if let Some(e) = plan.published {
                p.facts {
                    "Published: "
                    @for (i, place) in e.places.iter().enumerate() {
                        @if i > 0 { "; " }
                        @if let Some(s) = published().source(&place.source) {
                            (s.authors) ", " cite { (s.title) } ", " (s.venue) ", "
                        }
                        (place.place)
                    }
                    ". " (e.machine) "."
                    @if let Some(note) = &e.note { " " (note) }
                }
            }
            (sends(index, r))
            (figures(index, r, &looks))
            (table(r, plan.metric, true))
            (judged(r))
            @for line in words::against(r) { p.here { (line) "." } }
            (boxes::section(index, r, &looks))
            @if let Some(note) = &plan.note { p.note { (note) } }
            @if let Some(line) = words::cores(r, &material.stored.header.host) { p.note { (line) } }
            @if let Some(line) = words::disturbed(r) { p.note { (line) } }
            @for note in &r.notes { p.note { (note) } }
            @for metric in &plan.also {
                @if has(r, *metric) {
                    details {
                        summary { (axis(*metric)) }
                        (table(r, *metric, false))
                    }
                }
            }
        }
    }
}

/// The recorded sends of a plan that has them, beside the published order.
fn sends(index: usize, r: &Result) -> Markup {
    let Some(order) = r.plan.order.filter(|_| r.cores != Cores::Far) else {
        return html! {};
    };
    html! {
        h3 { (order.title) }
        p.facts {
            "Published (" (order.place.place) "), of " (order.series) ": "
            (order.steps.join(" "))
            @if let Some(note) = &order.note { ". " (note) } @else { "." }
        }
        div.figures {
            @for (i, (curve, trace)) in r.traces().enumerate() {
                figure {
                    (lanes::draw(trace, &format!("s{index}-{i}")))
                    @if curve.published.as_deref() == Some(&order.series) {
                        figcaption { (lanes::agreement(trace, order)) }
                    }
                }
            }
        }
        p.note { "Recorded from the stack's own code on virtual cores, nobody else being there; "
            "innermost locks of the platform are left out." }
    }
}

fn has(r: &Result, metric: Metric) -> bool {
    let mut points = r.curves.iter().flat_map(|c| &c.points);
    points.any(|p| p.spread(metric).is_some())
}

fn looks(r: &Result) -> Vec<Look> {
    let names: Vec<String> = r
        .curves
        .iter()
        .map(|c| {
            c.organization
                .as_ref()
                .map_or(c.label.clone(), ToString::to_string)
        })
        .collect();
    svg::looks(&names)
}

fn figures(index: usize, r: &Result, looks: &[Look]) -> Markup {
    if r.measured == 0 {
        return html! { p.empty { "Not measured here yet." } };
    }
    let plan = &r.plan;
    if r.curves.iter().all(|c| c.points.len() == 1) {
        return html! { div.figures { figure { (bars(index, r, looks).draw()) } } };
    }
    let mut list = vec![measured(index, r, looks)];
    if !plan.same_axes {
        list.push(of_paper(index, r, looks));
    }
    if let Some(base) = plan.relative_to {
        list.push(relative(index, r, looks, base));
    }
    let drawn: Vec<&Figure> = list.iter().filter(|f| !f.is_empty()).collect();
    let papers = drawn.iter().any(|f| f.lines.iter().any(|l| l.published));
    html! {
        ul.legend {
            @for (curve, look) in r.curves.iter().zip(looks) {
                li { (svg::key(*look, false)) (curve.name) }
            }
            @if papers { li.quiet { "thin, hollow: published" } }
            li.quiet { "bars: intervals of the medians" }
        }
        div.figures { @for f in drawn { figure { (f.draw()) } } }
        @if let Some(chart) = by_component(index, r) {
            (chart.legend())
            div.figures { figure { (chart.draw()) } }
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
fn by_component(index: usize, r: &Result) -> Option<Stacked> {
    if r.plan.metric != Metric::L2 {
        return None;
    }
    let median = |p: &super::analysis::Point, c| Some(p.spread(Metric::L2Of(c))?.median);
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
        id: format!("c{index}"),
        title: format!("{}: by component", origin(Metric::L2)),
        axis: axis(Metric::L2),
        names: Component::ALL.map(Component::name).to_vec(),
        rows,
    })
}

fn axis(metric: Metric) -> String {
    format!("{}, {}", metric.label(), Unit::of(metric).name)
}

fn mark(x: u64, p: &super::analysis::Point, metric: Metric) -> Option<Mark> {
    let spread = p.spread(metric)?;
    let by = Unit::of(metric).factor;
    Some(Mark {
        x: x as f64,
        y: spread.median * by,
        bar: p.interval(metric).map(|i| (i.low * by, i.high * by)),
        hollow: 2 * p.disturbed > p.runs.len(),
    })
}

fn measured(index: usize, r: &Result, looks: &[Look]) -> Figure {
    let plan = &r.plan;
    let mut lines: Vec<Line> = r
        .curves
        .iter()
        .zip(looks)
        .map(|(c, look)| Line {
            name: c.name.clone(),
            look: *look,
            marks: c
                .points
                .iter()
                .filter_map(|p| mark(p.x, p, plan.metric))
                .collect(),
            published: false,
        })
        .collect();
    if plan.same_axes {
        lines.extend(papers(r, looks));
    }
    Figure {
        id: format!("m{index}"),
        title: origin(plan.metric).into(),
        x: plan.axis.label().into(),
        y: axis(plan.metric),
        log_x: plan.log,
        rule: None,
        lines,
    }
}

/// The published curves that have a counterpart here.
fn papers(r: &Result, looks: &[Look]) -> Vec<Line> {
    let line = |(c, look): (&Curve, &Look)| {
        let e = r.plan.published?;
        let (series, by) = (
            e.series(c.published.as_deref()?)?,
            Unit::published(e).factor,
        );
        let mut marks = Vec::new();
        for p in &series.points {
            let (first, last) = p.span();
            let one = |x| Mark {
                x,
                y: p.y * by,
                bar: None,
                hollow: true,
            };
            marks.push(one(first));
            if last > first {
                marks.push(one(last));
            }
        }
        Some(Line {
            name: series.name.clone(),
            look: *look,
            marks,
            published: true,
        })
    };
    r.curves.iter().zip(looks).filter_map(line).collect()
}

fn of_paper(index: usize, r: &Result, looks: &[Look]) -> Figure {
    let e = r.plan.published;
    Figure {
        id: format!("p{index}"),
        title: "Published".into(),
        x: e.map_or(String::new(), |e| e.x.clone()),
        y: e.map_or(String::new(), |e| Unit::published(e).name.into()),
        log_x: r.plan.log,
        rule: None,
        lines: papers(r, looks),
    }
}

/// Every curve as a multiple of one, measured and published on the same axes.
fn relative(index: usize, r: &Result, looks: &[Look], base: usize) -> Figure {
    let metric = r.plan.metric;
    let of = &r.curves[base];
    let mut lines = Vec::new();
    for (i, (c, look)) in r.curves.iter().zip(looks).enumerate() {
        if i == base {
            continue;
        }
        let ratio = |p: &super::analysis::Point| {
            let comparison = compare_points(p, of.at(p.x)?, metric)?;
            Some(Mark {
                x: p.x as f64,
                y: comparison.ratio,
                bar: comparison.interval.map(|i| (i.low, i.high)),
                hollow: false,
            })
        };
        lines.push(Line {
            name: c.name.clone(),
            look: *look,
            marks: c.points.iter().filter_map(ratio).collect(),
            published: false,
        });
        lines.extend(relative_of_paper(r, c, of, *look));
    }
    Figure {
        id: format!("r{index}"),
        title: format!("Relative to {}", of.name),
        x: r.plan.axis.label().into(),
        y: format!("times {}", of.name),
        log_x: r.plan.log,
        rule: Some(1.0),
        lines,
    }
}

fn relative_of_paper(r: &Result, c: &Curve, base: &Curve, look: Look) -> Option<Line> {
    let e = r.plan.published?;
    let (a, b) = (
        e.series(c.published.as_deref()?)?,
        e.series(base.published.as_deref()?)?,
    );
    let at = |p: &super::analysis::Point| {
        let x = p.x as f64;
        Some(Mark {
            x,
            y: a.at(x)?.y / b.at(x)?.y,
            bar: None,
            hollow: true,
        })
    };
    Some(Line {
        name: a.name.clone(),
        look,
        marks: c.points.iter().filter_map(at).collect(),
        published: true,
    })
}

fn bars(index: usize, r: &Result, looks: &[Look]) -> Bars {
    let rows = r.curves.iter().zip(looks).filter_map(|(c, look)| {
        let p = c.points.first()?;
        Some((c.name.clone(), *look, mark(p.x, p, r.plan.metric)?))
    });
    let x = r
        .curves
        .first()
        .and_then(|c| c.points.first())
        .map_or(0, |p| p.x);
    Bars {
        id: format!("b{index}"),
        title: format!(
            "{}, {} {}",
            origin(r.plan.metric),
            number(x as f64),
            r.plan.axis.label()
        ),
        axis: axis(r.plan.metric),
        rows: rows.collect(),
    }
}

/// The values, with the published ones beneath them.
fn table(r: &Result, metric: Metric, papers: bool) -> Markup {
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

fn cell(p: &super::analysis::Point, metric: Metric) -> Markup {
    let Some(spread) = p.spread(metric) else {
        return html! { td.n title=[p.missing.as_deref()] { "–" } };
    };
    let interval = p.interval(metric).filter(|i| i.low != i.high);
    let by = Unit::of(metric).factor;
    html! {
        td.n {
            (number(spread.median * by))
            @if p.disturbed > 0 {
                abbr title=(format!("{} of {} runs were disturbed", p.disturbed, p.runs.len())) { "†" }
            }
            @if p.invalid > 0 {
                abbr title=(format!("the accounting of {} runs does not hold", p.invalid)) { "‡" }
            }
            @if let Some(i) = interval {
                span.interval { (number(i.low * by)) "–" (number(i.high * by)) }
            }
        }
    }
}

fn judged(r: &Result) -> Markup {
    html! {
        @if !r.claims.is_empty() {
            ul.claims {
                @for c in &r.claims {
                    li {
                        p { (pill(c.finding)) " " (c.claim.text) ". Published: "
                            (words::claimed(c.claim))
                            @if let Some(note) = &c.claim.note { " (" (note) ")" }
                            "." }
                        @for line in words::here(c) { p.here { "Here " (line) "." } }
                        @if let Some(line) = c.evidence.last().and_then(words::counters) {
                            p.here { (line) }
                        }
                    }
                }
            }
        }
    }
}

/// What the papers published and no plan repeats yet, with the reason: a whole report says so.
fn not_repeated(material: &Material<'_>) -> Markup {
    let whole = material.stored.plans.len() > 1;
    let planned = |e: &Experiment| {
        let of = |r: &Result| r.plan.published.is_some_and(|p| p.id == e.id);
        material.results.iter().any(of)
    };
    let missing = || {
        let all: &'static [Experiment] = &published().experiments;
        all.iter().filter(|e| whole && !planned(e))
    };
    html! {
        @if missing().next().is_some() {
            section #missing {
                h2 { "Published, and not measured here" }
                @for e in missing() {
                    h3 { (e.title) }
                    p { (e.missing.as_deref().unwrap_or("Left out of this run.")) }
                    p.facts { (e.machine) "." }
                    (numbers(e))
                }
            }
        }
    }
}

/// An experiment's published numbers alone.
fn numbers(e: &'static Experiment) -> Markup {
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

fn method(material: &Material<'_>) -> Markup {
    let header = &material.stored.header;
    let coverage = |n: usize| {
        let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
        Interval::of_median(&values).map(|i| format!("{:.0} %", i.coverage * 100.0))
    };
    html! {
        section #method {
            h2 { "How this was measured" }
            p { "Each plan runs in passes: every configuration once, in an order drawn from the "
                "seed, before any runs again. A point is the median of its runs; its interval lies "
                "between two of their order statistics and holds the true median with 95 % "
                "probability, or, with too few runs for that, the whole range with what that gives ("
                (coverage(5).unwrap_or_default()) " with five, "
                (coverage(3).unwrap_or_default()) " with three). Two configurations are compared by "
                "the ratios of the runs of the same pass. A difference is told only where the "
                "interval of these ratios leaves 1 out and the intervals of both medians do not "
                "overlap; else no difference is seen. Of many comparisons a few will differ by "
                "chance. A claim of equality agrees if the interval lies within a tenth of it. "
                "Claims from machines with more cores than this one are not judged. Runs for which "
                "the hypervisor had the cores far apart are never taken together with others." }
            p { "† marks points with runs that something else on the machine disturbed: the "
                "hypervisor took processor time, other processes used it, or threads that had cores "
                "enough waited for them. Such runs are kept; the marks say which to doubt. ‡ marks "
                "points with runs whose parts of the thread time do not sum up within 5 %. A star "
                "after a published number says that it is derived from others, ≈ that the paper "
                "rounds or hedges it; the rest stand in the papers as they are." }
            p { "Raw data: " code { "runs.jsonl" } " beside this page, a line a run with the "
                "machine, the version and all settings. " code { "perimeter lab report DIR" }
                " makes this page again from them." }
            @if !material.stored.notes.is_empty() {
                ul { @for note in &material.stored.notes { li { (note) } } }
            }
            p.facts { (material.stored.rows.len()) " rows; schema " (header.schema) "." }
        }
    }
}

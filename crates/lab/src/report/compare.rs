//! Two folders of runs on one page: what is better in the second, what is worse, and by how much.
//!
//! Runs of two folders took no turns, so there are no pairs. A change is told only where the
//! intervals of both medians have enough runs and do not overlap.

use super::{
    analysis::{self, Cores, Curve, Point, Result},
    answer, choice, figures, frame,
    material::Material,
    names::Unit,
    svg::{self, Figure, Line, Mark, number},
    table::axis,
    words,
};
use crate::{Error, metric::Metric, record::Stored, stats::Interval};
use maud::{Markup, html};
use std::fmt::Write as _;

/// Changes that are listed before the figures.
const LISTED: usize = 12;

/// The comparison in its forms.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The page.
    pub html: String,
    /// What it comes to, in a few lines for a terminal.
    pub answer: String,
}

/// What the second folder says against the first at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Better,
    Worse,
    /// No difference is seen.
    None,
    TooFew,
}

impl Change {
    fn words(self) -> &'static str {
        match self {
            Change::Better => "better",
            Change::Worse => "worse",
            Change::None => "no difference seen",
            Change::TooFew => "too few runs",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Change::Better => "pill good",
            Change::Worse => "pill turned",
            Change::None => "pill none",
            Change::TooFew => "pill not",
        }
    }
}

/// A point that both folders have.
#[derive(Debug)]
struct Pair {
    name: String,
    x: u64,
    before: f64,
    now: f64,
    /// Now to before, with the least and the most that both intervals allow.
    ratio: f64,
    interval: Option<(f64, f64)>,
    runs: (usize, usize),
    change: Change,
}

/// A plan that both folders have, with cores as near.
struct Both<'a> {
    now: &'a Result,
    pairs: Vec<(usize, Vec<Pair>)>,
}

impl Both<'_> {
    fn all(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().flat_map(|p| &p.1)
    }

    /// Whether there are runs enough of any point.
    fn tells(&self) -> bool {
        self.all().any(|p| p.change != Change::TooFew)
    }

    fn of(&self, change: Change) -> usize {
        self.all().filter(|p| p.change == change).count()
    }
}

/// Compares what two folders hold; `names` are what they are called.
///
/// # Errors
/// [`Error::Input`] if there is no point that both have measured.
pub fn compare(
    before: &Stored,
    now: &Stored,
    names: [&str; 2],
) -> std::result::Result<Compared, Error> {
    let materials = [before, now].map(material);
    let both = both(&materials[0].results, &materials[1].results);
    if both.is_empty() {
        return Err(Error::Input(format!(
            "{} and {} have no measured point in common: a comparison needs the same plan",
            names[0], names[1]
        )));
    }
    Ok(Compared {
        html: page(&materials, &both, names).into_string(),
        answer: lines(&materials, &both, names),
    })
}

fn material(stored: &Stored) -> Material<'_> {
    let results = analysis::results(stored);
    let choices = choice::choices(&results);
    Material {
        stored,
        results,
        choices,
        apart: None,
        predicted: Vec::new(),
    }
}

fn both<'a>(before: &'a [Result], now: &'a [Result]) -> Vec<Both<'a>> {
    let is_far = |r: &Result| r.cores == Cores::Far;
    let one = |now: &'a Result| {
        let same = |r: &&Result| {
            (&r.plan.name, is_far(r), r.plan.metric)
                == (&now.plan.name, is_far(now), now.plan.metric)
        };
        let before = before.iter().find(same)?;
        let curves = now.curves.iter().enumerate();
        let pairs = curves.filter_map(|(i, c)| {
            let old = before
                .curves
                .iter()
                .find(|b| b.label == c.label && b.name == c.name)?;
            Some((i, pairs(old, c, now.plan.metric)))
        });
        let pairs: Vec<_> = pairs
            .filter(|p: &(usize, Vec<Pair>)| !p.1.is_empty())
            .collect();
        (!pairs.is_empty()).then_some(Both { now, pairs })
    };
    now.iter().filter_map(one).collect()
}

fn pairs(before: &Curve, now: &Curve, metric: Metric) -> Vec<Pair> {
    let one = |p: &Point| pair(&now.name, before.at(p.x)?, p, metric);
    now.points.iter().filter_map(one).collect()
}

fn pair(name: &str, before: &Point, now: &Point, metric: Metric) -> Option<Pair> {
    let of = |p: &Point| Some((p.spread(metric)?.median, p.interval(metric)));
    let ((was, a), (is, b)) = (of(before)?, of(now)?);
    if was <= 0.0 {
        return None;
    }
    let interval = match (a, b) {
        (Some(a), Some(b)) if a.low > 0.0 => Some((b.low / a.high, b.high / a.low)),
        _ => None,
    };
    let enough = |i: Option<Interval>| i.is_some_and(|i| i.is_evidence());
    let change = match interval {
        Some((low, high)) if enough(a) && enough(b) => match (low > 1.0, high < 1.0) {
            (true, _) => better(metric.more_is_better()),
            (_, true) => better(!metric.more_is_better()),
            _ => Change::None,
        },
        _ => Change::TooFew,
    };
    Some(Pair {
        name: name.into(),
        x: now.x,
        before: was,
        now: is,
        ratio: is / was,
        interval,
        runs: (
            before.runs.len() + now.runs.len(),
            before.disturbed + now.disturbed,
        ),
        change,
    })
}

fn better(is: bool) -> Change {
    match is {
        true => Change::Better,
        false => Change::Worse,
    }
}

/// What differs between the two that no result can be blamed for.
fn circumstances(materials: &[Material<'_>; 2]) -> Vec<String> {
    let [a, b] = [&materials[0].stored.header, &materials[1].stored.header];
    let mut list = Vec::new();
    let mut differ = |what: &str, was: String, is: String| {
        if was != is {
            list.push(format!("{what}: {was}, then {is}"));
        }
    };
    differ("machine", words::machine(&a.host), words::machine(&b.host));
    differ("program", words::program(a), words::program(b));
    differ("mode", a.mode.to_string(), b.mode.to_string());
    let device =
        |h: &crate::record::Header| h.device.map_or("as planned".into(), |d| d.to_string());
    differ("device", device(a), device(b));
    list
}

fn count(both: &[Both<'_>], change: Change) -> usize {
    both.iter().map(|b| b.of(change)).sum()
}

fn sentence(both: &[Both<'_>]) -> String {
    let points: usize = both.iter().map(|b| b.all().count()).sum();
    format!(
        "Of {points} points that both have, {} are better, {} worse, {} without a difference that is \
         seen, and {} have too few runs to tell.",
        count(both, Change::Better),
        count(both, Change::Worse),
        count(both, Change::None),
        count(both, Change::TooFew)
    )
}

/// The changes beyond noise, the largest first.
fn changes<'a>(both: &'a [Both<'_>]) -> Vec<(&'a Both<'a>, &'a Pair)> {
    let told = |p: &&Pair| matches!(p.change, Change::Better | Change::Worse);
    let all = both
        .iter()
        .flat_map(|b| b.all().filter(told).map(move |p| (b, p)));
    let mut all: Vec<_> = all.collect();
    let size = |p: &Pair| p.ratio.ln().abs();
    all.sort_by(|a, b| size(b.1).total_cmp(&size(a.1)));
    all
}

fn said(b: &Both<'_>, p: &Pair) -> String {
    let unit = Unit::of(b.now.plan.metric);
    let (was, is) = (number(p.before * unit.factor), number(p.now * unit.factor));
    format!(
        "{} at {} {}{}: {was}, now {is} {} ({})",
        p.name,
        number(p.x as f64),
        b.now.plan.axis.of(p.x),
        b.now.cores.remark(),
        unit.name,
        times(p)
    )
}

fn times(p: &Pair) -> String {
    let two = choice::two;
    match p.interval {
        Some((low, high)) => format!("{} ×, {}–{}", two(p.ratio), two(low), two(high)),
        None => format!("{} ×", two(p.ratio)),
    }
}

fn lines(materials: &[Material<'_>; 2], both: &[Both<'_>], names: [&str; 2]) -> String {
    let mut out = format!("{} against {}\n{}\n", names[1], names[0], sentence(both));
    for line in circumstances(materials) {
        let _ = writeln!(out, "note: other {line}");
    }
    let all = changes(both);
    for (b, p) in all.iter().take(LISTED) {
        let _ = writeln!(
            out,
            "  {:6} {}: {}",
            p.change.words(),
            b.now.plan.name,
            said(b, p)
        );
    }
    if all.len() > LISTED {
        let _ = writeln!(out, "  and {} more", all.len() - LISTED);
    }
    out
}

fn page(materials: &[Material<'_>; 2], both: &[Both<'_>], names: [&str; 2]) -> Markup {
    let title = format!("Perimeter lab: {} against {}", names[1], names[0]);
    let all = changes(both);
    let header = html! {
        @for (name, m) in names.iter().zip(materials) {
            p.facts {
                strong { (name) } ": " (words::day(m.stored.header.started_unix)) " · "
                (words::machine(&m.stored.header.host)) " · " (words::program(&m.stored.header))
                " · mode " (m.stored.header.mode) " · seed " (m.stored.header.seed)
            }
        }
    };
    let main = html! {
        section #changes {
            p.plain { (sentence(both)) }
            @for line in circumstances(materials) { p.note { "Other " (line) "." } }
            @if !all.is_empty() {
                ul.claims {
                    @for (b, p) in all.iter().take(LISTED) {
                        li { (pill(p.change)) " " a href=(format!("#{}", b.now.id())) { (b.now.plan.name) }
                            ": " (said(b, p)) }
                    }
                }
            }
            @if all.len() > LISTED { p.facts { "And " (all.len() - LISTED) " more, in the tables below." } }
            p.facts { "Runs of two folders took no turns. A change is told only where both medians have "
                "runs enough for an interval, and the intervals do not overlap; of many comparisons a "
                "few will differ by chance. The figures show the second folder as a multiple of the "
                "first; their bars are the least and the most that both intervals allow." }
        }
        @for (i, m) in materials.iter().enumerate() {
            (answer::of_one(m, names[i], ["answer-before", "answer-now"][i]))
        }
        h2 #figures { "Figure by figure" }
        div.row { @for b in both.iter().filter(|b| b.tells()) { (section(b)) } }
        @if both.iter().any(|b| !b.tells()) {
            details {
                summary { "Plans with too few runs to tell anything" }
                div.row { @for b in both.iter().filter(|b| !b.tells()) { (section(b)) } }
            }
        }
    };
    let most = both.iter().map(|b| b.now.curves.len()).max();
    frame::page(&title, most.unwrap_or(0), header, main)
}

fn pill(change: Change) -> Markup {
    html! { span class=(change.class()) { (change.words()) } }
}

fn section(b: &Both<'_>) -> Markup {
    let looks = figures::looks(b.now);
    html! {
        section.exp {
            h3 { (b.now.title()) }
            div.body id=(b.now.id()) {
                p.facts { (axis(b.now.plan.metric)) ": " (b.of(Change::Better)) " better, "
                    (b.of(Change::Worse)) " worse, " (b.of(Change::None)) " without a difference, "
                    (b.of(Change::TooFew)) " with too few runs." }
                ul.legend { @for (i, _) in &b.pairs {
                    li { label title="click to hide or show" {
                        input type="checkbox" class=(format!("k{i}")) checked;
                        (svg::key(looks[*i], false)) (b.now.curves[*i].name)
                    } }
                } }
                div.row { (figures::drawn(&figure(b, &looks))) }
                details.more { summary { "All points" } (table(b)) }
            }
        }
    }
}

/// Every curve as a multiple of what it was.
fn figure(b: &Both<'_>, looks: &[svg::Look]) -> Figure {
    let mark = |p: &Pair| Mark {
        x: p.x as f64,
        y: p.ratio,
        bar: p.interval,
        runs: p.runs,
    };
    let line = |(i, pairs): &(usize, Vec<Pair>)| Line {
        name: b.now.curves[*i].name.clone(),
        look: looks[*i],
        series: *i,
        marks: pairs.iter().map(mark).collect(),
        origin: svg::Origin::Measured,
    };
    Figure {
        id: format!("{}-now", b.now.id()),
        title: "Now, as a multiple of before".into(),
        x: b.now.plan.axis.label().into(),
        y: "times before".into(),
        unit: "times before".into(),
        log_x: b.now.plan.log,
        log_y: false,
        ends: None,
        rule: Some(1.0),
        lines: b.pairs.iter().map(line).collect(),
    }
}

fn table(b: &Both<'_>) -> Markup {
    let unit = Unit::of(b.now.plan.metric);
    html! {
        div.scroll { table.values {
            thead { tr {
                th { "organization" } th.n { (b.now.plan.axis.label()) }
                th.n { "before, " (unit.name) } th.n { "now" } th.n { "now to before" } th { "" }
            } }
            tbody { @for p in b.all() { tr {
                th scope="row" { (p.name) } td.n { (number(p.x as f64)) }
                td.n { (number(p.before * unit.factor)) } td.n { (number(p.now * unit.factor)) }
                td.n { (times(p)) } td { (pill(p.change)) }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests;

//! The section of a plan: its figures, what became of the papers' claims and why, and tables.

use super::{
    analysis::{Cores, Evidence, Finding, Judged, Result, has},
    boxes,
    choice::two,
    figures,
    judge::Cost,
    lanes,
    material::Material,
    predicted,
    svg::{self, Look},
    table::{axis, values},
    words,
};
use crate::{predict::Predictions, published::published};
use maud::{Markup, html};

/// One plan: what was measured with cores near each other, or at any distance, and with far ones.
pub(super) struct Experiment<'a> {
    pub main: &'a Result,
    pub far: Option<&'a Result>,
}

impl<'a> Experiment<'a> {
    /// The plans of a folder.
    pub(super) fn all(results: &'a [Result]) -> Vec<Experiment<'a>> {
        let near = |name: &str| {
            let mut of = results.iter().filter(|o| o.plan.name == name);
            of.any(|o| o.cores != Cores::Far)
        };
        // Far ones are the main thing where there are no others.
        let main = results
            .iter()
            .filter(|r| r.cores != Cores::Far || !near(&r.plan.name));
        let far = |r: &Result| {
            let mut of = results.iter().filter(|o| o.plan.name == r.plan.name);
            of.find(|o| o.cores == Cores::Far && r.cores != Cores::Far)
        };
        main.map(|r| Experiment {
            main: r,
            far: far(r),
        })
        .collect()
    }

    /// Whether the papers have it too.
    pub(super) fn is_published(&self) -> bool {
        self.main.plan.published.is_some() || self.main.plan.order.is_some()
    }

    /// Its section; one that is folded shows its title and how many runs it has.
    pub(super) fn section(&self, material: &Material<'_>, folded: bool) -> Markup {
        let r = self.main;
        let runs = self.runs();
        let body = html! {
            div.body id=(r.id()) {
                p.facts { (r.plan.asks) (self.places()) @if !folded { " " (runs) } }
                (body(material, r, self.far, &material.predicted))
            }
        };
        html! {
            @if folded {
                details.exp { summary { span.title { (r.plan.title) } " " span.quiet { (runs) } } (body) }
            } @else {
                section.exp { h3 { (r.plan.title) } (body) }
            }
        }
    }

    /// How many runs there are of each kind, how many are to be doubted, and what is lacking.
    fn runs(&self) -> String {
        let far = self.far.map(|far| format!("; {}", words::runs(far)));
        format!("{}{}.", words::runs(self.main), far.unwrap_or_default())
    }

    fn places(&self) -> Markup {
        let places = self.main.plan.published.iter().flat_map(|e| &e.places);
        let order = self.main.plan.order.iter().map(|o| &o.place);
        html! {
            @for (i, place) in places.chain(order).enumerate() {
                @if i == 0 { " Published: " } @else { "; " }
                @if let Some(s) = published().source(&place.source) {
                    a href="#sources" title=(s.title) { (s.venue) } ", "
                }
                (place.place)
            }
            @if self.is_published() { "." }
        }
    }
}

/// What was measured, and what is `predicted`.
fn body(
    material: &Material<'_>,
    r: &Result,
    far: Option<&Result>,
    predicted: &[Predictions],
) -> Markup {
    let looks = figures::looks(r);
    let said = said(material, r, far);
    html! {
        (legend(r, &looks))
        div.row { (figures::all(r, &looks)) @if let Some(said) = said { (said) } }
        (more(r, &looks))
        (predicted::sections(predicted, r, &looks))
        @if let Some(far) = far {
            details.more {
                summary { "With cores far apart: " (crate::units::runs(far.measured)) }
                div.body.far id=(far.id()) { (body(material, far, None, &[])) }
            }
        }
    }
}

/// The curves, each with a box that shows or hides it in the figures beside.
fn legend(r: &Result, looks: &[Look]) -> Markup {
    // What has bars is named in them.
    if r.measured == 0 || r.curves.iter().all(|c| c.points.len() == 1) {
        return html! {};
    }
    let shown = |c: &&super::analysis::Curve| c.published.is_some();
    let papers = r
        .plan
        .published
        .is_some_and(|e| !e.series.is_empty() || e.claims.iter().any(|c| c.range().is_some()));
    html! {
        ul.legend {
            @for (i, (curve, look)) in r.curves.iter().zip(looks).enumerate() {
                @if has(curve, r.plan.metric) {
                    li { label title="click to hide or show" {
                        input type="checkbox" class=(format!("k{i}")) checked;
                        (svg::key(*look, false)) (curve.name)
                    } }
                }
            }
            @if papers && r.curves.iter().any(|c| shown(&c)) { li.quiet { "hollow: published" } }
            li.quiet { "bars: intervals" }
        }
    }
}

fn pill_class(finding: Finding) -> &'static str {
    match finding {
        Finding::Same => "pill good",
        Finding::Direction | Finding::Larger | Finding::Smaller | Finding::Mixed => "pill part",
        Finding::Opposite => "pill turned",
        Finding::Inconclusive => "pill none",
        Finding::NeedsCores(_) | Finding::TooFew | Finding::NotMeasured => "pill not",
    }
}

/// A verdict.
pub(super) fn pill(finding: Finding) -> Markup {
    html! { span class=(pill_class(finding)) { (finding.words()) } }
}

/// What stands beside the figures: verdicts with what they rest on, and a cause.
fn said(material: &Material<'_>, r: &Result, far: Option<&Result>) -> Option<Markup> {
    let against = words::against(r);
    let order = order(r);
    if r.claims.is_empty() && against.is_empty() && order.is_none() {
        return None;
    }
    // What is true of all is said once.
    let cores = words::cores(r, &material.stored.header.host);
    let is_judged = |c: &Judged| !matches!(c.finding, Finding::NeedsCores(_));
    let each = cores.is_none() || r.claims.iter().any(is_judged);
    let cause = r.claims.iter().find_map(words::counters);
    let (told, open): (Vec<&Judged>, Vec<&Judged>) = r.claims.iter().partition(|c| is_told(c));
    // A long list stands below the figures, in columns.
    let class = if told.len() > 4 { "said long" } else { "said" };
    let list = |claims: &[&Judged]| {
        html! { ul.claims { @for c in claims { (claim(c, far, each)) } } }
    };
    Some(html! { div class=(class) {
        @if let (false, Some(line), Some(first)) = (each, &cores, r.claims.first()) {
            p { (pill(first.finding)) " " span.quiet { (line) } }
        }
        @if !told.is_empty() { (list(&told)) }
        @if !open.is_empty() {
            details { summary { (words::open(&open)) } (list(&open)) }
        }
        @if let Some(line) = order { p.here { (line) } }
        @for line in against { p.here { (line) "." } }
        @if let Some(line) = cause { p { strong { "Causes. " } span.quiet { (line) } } }
        @if let (true, Some(line)) = (each, cores) { p.note { (line) } }
    } })
}

/// Whether something was found out about a claim: others are folded.
fn is_told(c: &Judged) -> bool {
    c.cost.is_some() || !matches!(c.finding, Finding::NeedsCores(_) | Finding::NotMeasured)
}

/// A claim with what was found with near cores, with far ones, and in processor time.
fn claim(c: &Judged, far: Option<&Result>, with_pill: bool) -> Markup {
    let far = far.and_then(|far| of_far(c, far));
    html! {
        li {
            @if with_pill { (pill(c.finding)) " " }
            (c.claim.text) ". "
            span.quiet {
                "Published " (words::claimed(c.claim))
                @if !c.evidence.is_empty() { ", here " (brief(&c.evidence)) }
                @if let Some(far) = far {
                    ", with far cores " (brief(&far.evidence))
                    @if far.finding != c.finding { " (" (far.finding.words()) ")" }
                }
                "."
            }
            @if let Some(cost) = &c.cost { " " (cost_of(cost)) }
        }
    }
}

/// The same claim with far cores.
pub(super) fn of_far<'a>(c: &Judged, far: &'a Result) -> Option<&'a Judged> {
    let mut same = far.claims.iter().filter(|f| f.claim.id == c.claim.id);
    same.find(|f| !f.evidence.is_empty())
}

/// What a claim about more cores comes to in processor time.
pub(super) fn cost_of(cost: &Cost) -> Markup {
    html! {
        span.quiet {
            "Processor time per byte: " (words::implied(cost)) ", here " (brief(&cost.evidence)) ": "
        }
        (pill(cost.finding))
    }
}

/// The range of what was found.
pub(super) fn brief(evidence: &[Evidence]) -> String {
    match evidence {
        [] => "–".into(),
        [one] => words::ratio(&one.comparison),
        many => {
            let ratios = || many.iter().map(|e| e.comparison.ratio);
            let least = ratios().fold(f64::INFINITY, f64::min);
            let most = ratios().fold(0.0, f64::max);
            let (least, most) = (two(least), two(most));
            format!("{least} to {most} times at {} places", many.len())
        }
    }
}

/// How recorded sends agree with the published order.
fn order(r: &Result) -> Option<String> {
    let order = r.plan.order.filter(|_| r.cores != Cores::Far)?;
    let own = |(curve, _): &(&super::analysis::Curve, _)| {
        curve.published.as_deref() == Some(&order.series)
    };
    let (curve, trace) = r.traces().find(own)?;
    Some(format!(
        "{}: {}: {}",
        order.place.place,
        curve.name,
        lanes::agreement(trace, order)
    ))
}

/// What is folded: tables, remarks, and drawings that take much room.
fn more(r: &Result, looks: &[Look]) -> Markup {
    html! {
        details.more {
            summary { "Tables, all counters, and remarks" }
            (values(r, r.plan.metric, true))
            (judged(r))
            @if let Some(note) = &r.plan.note { p.note { (note) } }
            @if let Some(line) = words::disturbed(r) { p.note { (line) } }
            @for note in &r.notes { p.note { (note) } }
            @if let Some(e) = r.plan.published {
                p.note { "Published on: " (e.machine) "." @if let Some(note) = &e.note { " " (note) } }
            }
            @for metric in &r.plan.also {
                @if r.curves.iter().any(|c| has(c, *metric)) {
                    details { summary { (axis(*metric)) } (values(r, *metric, false)) }
                }
            }
        }
        (figures::folded(r))
        (sends(r))
        (boxes::section(&r.id(), r, looks))
    }
}

/// Every place of every claim, with the counters of both sides.
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
                        @if let Some(cost) = &c.cost {
                            p { (pill(cost.finding)) " In processor time per byte without the ideal \
                                peer's: published " (words::implied(cost)) "." }
                            @for line in words::cost_here(cost) { p.here { "Here " (line) "." } }
                        }
                        @if let Some(line) = words::counters(c) {
                            p.here { (line) }
                        }
                    }
                }
            }
        }
    }
}

/// The recorded sends of a plan that has them, beside the published order.
fn sends(r: &Result) -> Markup {
    let Some(order) = r.plan.order.filter(|_| r.cores != Cores::Far) else {
        return html! {};
    };
    html! {
        details.more {
            summary { (order.title) ", drawn" }
            p.facts {
                "Published (" (order.place.place) "): " (order.steps.join(" "))
                @if let Some(note) = &order.note { ". " (note) } @else { "." }
            }
            div.figures {
                @for (i, (curve, trace)) in r.traces().enumerate() {
                    figure {
                        (lanes::draw(trace, &format!("{}-send-{i}", r.id())))
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
}

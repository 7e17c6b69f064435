//! The report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use super::{
    analysis::{Finding, Judged, Result},
    answer,
    experiment::{self, Experiment},
    frame,
    material::Material,
    table::numbers,
    words,
};
use crate::{
    host::apart::FAR_NS,
    published::{self, published},
    stats::Interval,
};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Plans up to which all of a report is unfolded.
const FEW: usize = 4;

/// Words that a reader may not know, in the order in which they need each other.
const WORDS: [(&str, &str); 7] = [
    (
        "organization",
        "How a stack shares its work among cores: who may touch a connection's state, when, and \
         under what.",
    ),
    (
        "perimeter",
        "What keeps others out while one thread is at a connection's state: a lock, a queue, or \
         that the state belongs to one thread.",
    ),
    (
        "goodput",
        "Payload that has arrived and was acknowledged, without headers and retransmissions, for \
         each second.",
    ),
    (
        "segment time",
        "Processor time in the stack for each segment of payload, without the peer's and the \
         application's.",
    ),
    (
        "contended",
        "Taken while somebody else had it, so that the taker had to wait.",
    ),
    (
        "ideal peer",
        "The other end of a simulated NIC: it acknowledges and sends at once, and costs next to \
         nothing.",
    ),
    (
        "far",
        "The hypervisor has moved the cores apart: a cache line takes several times as long from \
         one to the other.",
    ),
];

/// The whole page.
pub(super) fn page(material: &Material<'_>) -> Markup {
    let header = &material.stored.header;
    let title = match header.plans.as_slice() {
        [one] => format!("Perimeter lab: {one}"),
        _ => "Perimeter lab".into(),
    };
    let facts = html! {
        p.facts {
            (words::day(header.started_unix)) " · " (words::machine(&header.host))
            " · " (words::program(header)) " · mode " (header.mode)
            " · seed " (header.seed)
        }
    };
    let main = html! {
        (answer::section(material))
        (claims(material))
        (experiments(material))
        (not_repeated(material))
        @if let Some(apart) = &material.apart { (apart.section(&material.results)) }
        (method(material))
    };
    let most = material.results.iter().map(|r| r.curves.len()).max();
    frame::page(&title, most.unwrap_or(0), facts, main)
}

/// What the papers have, then what they have not; that stays folded in a long report.
fn experiments(material: &Material<'_>) -> Markup {
    let all = Experiment::all(&material.results);
    let few = all.len() <= FEW;
    let (papers, beyond): (Vec<_>, Vec<_>) = all.iter().partition(|e| e.is_published());
    html! {
        @if !papers.is_empty() {
            h2 #figures { "The papers' figures, theirs and ours" }
            @for e in papers { (e.section(material, false)) }
        }
        @if !beyond.is_empty() {
            h2 #beyond { "Beyond the papers" }
            @for e in beyond { (e.section(material, !few)) }
        }
    }
}

/// The verdicts counted, and all claims in one table.
fn claims(material: &Material<'_>) -> Markup {
    let all: Vec<&Judged> = material.results.iter().flat_map(|r| &r.claims).collect();
    if all.is_empty() {
        return html! {};
    }
    let mut kinds: BTreeMap<Finding, usize> = BTreeMap::new();
    for c in &all {
        *kinds.entry(c.finding).or_default() += 1;
    }
    let costs: Vec<Finding> = all
        .iter()
        .filter_map(|c| Some(c.cost.as_ref()?.finding))
        .collect();
    let mut cost_kinds: BTreeMap<Finding, usize> = BTreeMap::new();
    for finding in &costs {
        *cost_kinds.entry(*finding).or_default() += 1;
    }
    let experiments = Experiment::all(&material.results);
    let has_far = experiments.iter().any(|e| e.far.is_some());
    let of = |e: &&Experiment<'_>| !e.main.claims.is_empty();
    let columns = if has_far { "4" } else { "3" };
    html! {
        section #claims {
            h2 { "What the papers say, and what is found here" }
            p.pills {
                @for (kind, count) in kinds { (experiment::pill(kind)) " " (count) " " }
            }
            @if !costs.is_empty() {
                p.pills {
                    "In processor time per byte, for which the cores do: "
                    @for (kind, count) in cost_kinds { (experiment::pill(kind)) " " (count) " " }
                }
            }
            details.more {
                summary { "All " (all.len()) " claims in a table" }
                table.cards {
                    thead { tr {
                        th { "claim" } th { "published" }
                        @if has_far { th { "here, cores near" } th { "here, cores far" } }
                        @else { th { "here" } }
                    } }
                    // Two plans may ask the same of different loads.
                    @for e in experiments.iter().filter(of) {
                        tbody {
                            tr {
                                th scope="rowgroup" colspan=(columns) {
                                    a href=(format!("#{}", e.main.id())) { (e.main.plan.title) }
                                }
                            }
                            @for c in &e.main.claims { tr {
                                td.words { (c.claim.text) }
                                td data-label="published: " { (words::claimed(c.claim)) }
                                td.words data-label="here: " { (found(c)) }
                                @if has_far {
                                    td.words data-label="far: " {
                                        @if let Some(far) = e.far.and_then(|far| experiment::of_far(c, far)) {
                                            (found(far))
                                        } @else { "–" }
                                    }
                                }
                            } }
                        }
                    }
                }
            }
        }
    }
}

/// What was found of a claim, with its verdict.
fn found(c: &Judged) -> Markup {
    html! {
        (experiment::brief(&c.evidence)) " " (experiment::pill(c.finding))
        @if let Some(cost) = &c.cost { br; (experiment::cost_of(cost)) }
    }
}

/// What the papers published and no plan repeats yet, with the reason: a whole report says so.
fn not_repeated(material: &Material<'_>) -> Markup {
    let whole = material.stored.plans.len() > 1;
    let planned = |e: &published::Experiment| {
        let of = |r: &Result| r.plan.published.is_some_and(|p| p.id == e.id);
        material.results.iter().any(of)
    };
    let missing = || {
        let all: &'static [published::Experiment] = &published().experiments;
        all.iter().filter(|e| whole && !planned(e))
    };
    html! {
        @if missing().next().is_some() {
            section #missing {
                h2 { "Published, and not measured here" }
                details.more { summary { (missing().count()) " of the papers' figures and tables, and why" }
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
}

fn method(material: &Material<'_>) -> Markup {
    let header = &material.stored.header;
    let coverage = |n: usize| {
        let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
        Interval::of_median(&values).map(|i| format!("{:.0} %", i.coverage * 100.0))
    };
    html! {
        section #method {
            h2 { "Method" }
            details.more { summary { "How this was measured, and what marks and words mean" }
            p { "Each plan runs in passes: every configuration once, in an order drawn from the "
                "seed, before any runs again. A point is the median of its runs; its interval lies "
                "between two of their order statistics and holds the true median with 95 % "
                "probability, or, with too few runs for that, the whole range with what that gives ("
                (coverage(5).unwrap_or_default()) " with five, "
                (coverage(3).unwrap_or_default()) " with three). Two configurations are compared by "
                "the ratios of the runs of the same pass. A difference is told only where the "
                "interval of these ratios leaves 1 out and the intervals of both medians do not "
                "overlap; else no difference is seen. Of many comparisons a few will differ by "
                "chance. On the first screen “sure” is a difference by that rule, “likely” one that "
                "every pair shows, by 5 % at least, where pairs are too few for the rule." }
            p { "A claim has the same direction here if a difference of that sign is told. It has "
                "the same size if the interval holds the published ratio, or the ratio is within a "
                "tenth of it; else it is larger or smaller. A claim of equality holds if the "
                "interval lies within a tenth of 1. Where no difference is told, that is "
                "inconclusive. Runs for which the hypervisor had the cores far apart (" (FAR_NS) " ns and "
                "more for a cache line and back) are never taken together with others." }
            p { "Claims from machines with more cores than this one say how many they need. What "
                "of them does not depend on the number is judged: the processor time of a byte, "
                "relative to that of " code { "up" } ", one thread without locks, and without the "
                "ideal peer's time, which the papers' peers spent on machines of their own. The "
                "published one is the number of cores over the published ratio of throughputs; as "
                "that takes all cores for busy, it is the most that it can have been; paced links, "
                "which leave cores idle, are left out. Where no "
                "ratio is published, more throughput than " code { "up" } " on N cores means less "
                "than N times its processor time." }
            p { "† marks points with runs that something else on the machine disturbed: the "
                "hypervisor took processor time, other processes used it, or threads that had cores "
                "enough waited for them. Such runs are kept; the marks say which to doubt. ‡ marks "
                "points with runs whose parts of the thread time do not sum up within 5 %. Hollow marks "
                "in curves are published values. A star "
                "after a published number says that it is derived from others, ≈ that the paper "
                "rounds or hedges it; the rest stand in the papers as they are." }
            table { tbody { @for (word, meaning) in WORDS { tr {
                th scope="row" { (word) }
                td { (meaning) }
            } } } }
            p { "Raw data: " code { "runs.jsonl" } " beside this page, a line a run with the "
                "machine, the version and all settings. " code { "perimeter lab report DIR" }
                " makes this page again from them." }
            @if !material.stored.notes.is_empty() {
                ul { @for note in &material.stored.notes { li { (note) } } }
            }
            p #sources { "The papers:" }
            ul { @for s in &published().sources {
                li { (s.authors) ", " cite { (s.title) } ", " (s.venue) }
            } }
            }
            p.facts { (material.stored.rows.len()) " rows; schema " (header.schema) "." }
        }
    }
}

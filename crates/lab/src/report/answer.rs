//! The answer, before all else: a line in plain words, and a table of loads and connections.

use super::{
    analysis::{Cores, Curve, Result, has, in_ratios},
    choice::{Choice, Lead, Sure, is_rival},
    material::Material,
    more_cores,
    names::Unit,
    svg::number,
};
use crate::looks;
use maud::{Markup, html};
use std::fmt::Write as _;

/// Columns of the table at most: what a desk's screen has room for.
const COLUMNS: usize = 7;

/// The first section of the page.
pub(super) fn section(material: &Material<'_>) -> Markup {
    let (near, far) = by_cores(material);
    html! {
        section #answer {
            @if near.is_empty() {
                p { "None of these plans compares organizations under a load to choose by. "
                    "The plans throughput, receive and one-connection do." }
            } @else {
                p.plain { (plain(material, &near)) }
                @if let Some(why) = why(material, &near) { p.why { (why) } }
                @for line in more_cores::lines(material) { p.why { (line) } }
                (table(material, &near, "answer-near", true))
                p.facts { (caption(material, &near)) }
                @if !far.is_empty() {
                    details {
                        summary { "The same where the hypervisor had the cores far apart" }
                        (table(material, &far, "answer-far", true))
                    }
                }
            }
        }
    }
}

/// The table of one of several folders, folded.
pub(super) fn of_one(material: &Material<'_>, name: &str, id: &str) -> Markup {
    let (near, _) = by_cores(material);
    html! {
        @if !near.is_empty() {
            details.more {
                summary { "Which organization, in " (name) }
                (table(material, &near, id, false))
                p.facts { (caption(material, &near)) }
            }
        }
    }
}

/// The choices, those of far cores apart.
fn by_cores<'a>(material: &'a Material<'_>) -> (Vec<&'a Choice>, Vec<&'a Choice>) {
    let far = |c: &&Choice| material.results[c.result].cores == Cores::Far;
    let (far, near): (Vec<_>, Vec<_>) = material.choices.iter().partition(far);
    match near.is_empty() {
        // They are the answer on a machine whose cores are never near.
        true => (far, near),
        false => (near, far),
    }
}

/// Those of the load that is spread over most numbers of connections.
fn leading<'a>(choices: &[&'a Choice]) -> Vec<&'a Choice> {
    let of = |load: &str| choices.iter().filter(|c| c.load == load).count();
    let most = choices.iter().rev().max_by_key(|c| of(&c.load));
    let load = most.map(|c| c.load.clone()).unwrap_or_default();
    choices.iter().copied().filter(|c| c.load == load).collect()
}

/// The two of them that a reader asks for first: few and many.
fn ends<'a>(choices: &[&'a Choice]) -> Vec<&'a Choice> {
    let of = leading(choices);
    let few = of.iter().find(|c| c.x >= 6).or(of.first());
    let mut two: Vec<&Choice> = few.into_iter().chain(of.last()).copied().collect();
    two.dedup_by_key(|c| c.x);
    two
}

/// Who is fastest for few and for many, in a sentence each.
fn plain(material: &Material<'_>, choices: &[&Choice]) -> Markup {
    let two = ends(choices);
    html! {
        @for (i, c) in two.iter().enumerate() {
            @let plan = &material.results[c.result].plan;
            @if i == 0 { (upper(&c.load)) ": for " } @else { " For " }
            strong { (number(c.x as f64)) " " (plan.axis.of(c.x)) } " "
            @match (&c.lead, c.sure()) {
                (Some(lead), Some(Sure::Tie)) => {
                    (name(&c.best, &c.look)) " and " (name(&lead.second, &lead.look))
                    " are as fast, " (c.value(plan.metric)) " (no difference seen)."
                }
                (Some(lead), Some(sure @ Sure::Open(_))) => {
                    (name(&c.best, &c.look)) " or " (name(&lead.second, &lead.look)) ", "
                    (c.value(plan.metric)) " (" (sure.words()) ")."
                }
                (Some(lead), Some(sure)) => {
                    (name(&c.best, &c.look)) " is fastest, " (c.value(plan.metric)) ", "
                    strong { (super::choice::two(lead.ratio)) " times " } (lead.second)
                    " (" (certain(lead, sure)) ")."
                }
                _ => { (name(&c.best, &c.look)) ", " (c.value(plan.metric)) ", had no rival." }
            }
        }
    }
}

/// How sure, with the interval that says so.
fn certain(lead: &Lead, sure: Sure) -> String {
    match lead.interval.filter(|_| sure == Sure::Yes) {
        Some(i) => format!(
            "sure: {} to {} times",
            super::choice::two(i.low),
            super::choice::two(i.high)
        ),
        None => sure.words(),
    }
}

fn name(name: &str, look: &str) -> Markup {
    html! { strong class=(format!("org c-{}", looks::of(look).0)) { (name) } }
}

/// What tells the fastest from the second at few and at many.
fn why(material: &Material<'_>, choices: &[&Choice]) -> Option<String> {
    let one = |c: &&Choice| {
        let of = material.results[c.result].plan.axis.of(c.x);
        Some(format!(
            "at {} {of} {}",
            number(c.x as f64),
            c.why.as_ref()?
        ))
    };
    let all: Vec<String> = ends(choices).iter().filter_map(one).collect();
    (!all.is_empty()).then(|| format!("Why: {}.", all.join("; ")))
}

/// With a capital letter to begin with.
pub(super) fn upper(words: &str) -> String {
    let mut chars = words.chars();
    let first = chars.next();
    first.map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

/// The numbers that the table has columns for: both ends of every load, and of the others those
/// that most loads have.
fn columns(choices: &[&Choice]) -> Vec<u64> {
    let mut xs: Vec<u64> = choices.iter().map(|c| c.x).collect();
    xs.sort_unstable();
    xs.dedup();
    let count = |x: u64| choices.iter().filter(|c| c.x == x).count();
    let is_end = |x: u64| Some(&x) == xs.first() || Some(&x) == xs.last() || x == 6;
    let mut order: Vec<u64> = xs.clone();
    order.sort_by_key(|&x| (!is_end(x), usize::MAX - count(x), x));
    order.truncate(COLUMNS);
    order.sort_unstable();
    order
}

fn table(material: &Material<'_>, choices: &[&Choice], id: &str, links: bool) -> Markup {
    let xs = columns(choices);
    let mut loads: Vec<&str> = Vec::new();
    for c in choices {
        if !loads.contains(&c.load.as_str()) {
            loads.push(&c.load);
        }
    }
    let axis = choices
        .first()
        .map(|c| material.results[c.result].plan.axis);
    html! {
        table.answer id=(id) {
            thead { tr {
                th scope="col" { (axis.map_or("", |a| a.label())) }
                @for x in &xs { th scope="col" { (number(*x as f64)) } }
            } }
            tbody { @for load in loads { tr {
                th scope="row" { (upper(load)) }
                @for x in &xs {
                    @match choices.iter().find(|c| c.load == load && c.x == *x) {
                        Some(c) => (cell(material, c, links)),
                        None => td.none {},
                    }
                }
            } } }
        }
    }
}

fn cell(material: &Material<'_>, c: &Choice, links: bool) -> Markup {
    let r = &material.results[c.result];
    let sure = c.sure();
    let class = match sure {
        Some(Sure::Yes) | None => "win",
        Some(Sure::Tie) => "win tied",
        Some(Sure::Likely(_)) => "win hint",
        Some(Sure::Open(_)) => "win open",
    };
    let second = c.lead.as_ref().map_or(&c.look, |l| &l.look);
    let short = match sure {
        Some(Sure::Likely(1)) => "a hint".into(),
        Some(Sure::Likely(_)) => "likely".into(),
        Some(Sure::Open(_)) => "few pairs".into(),
        Some(sure) => sure.words(),
        None => "no rival".into(),
    };
    let label = format!("{} {}", number(c.x as f64), r.plan.axis.of(c.x));
    html! {
        td class=(format!("{class} c-{}", looks::of(&c.look).0)) data-label=(label)
            style=(format!("--d:var(--{})", looks::of(second).0)) {
            a href=[links.then(|| format!("#{}", r.id()))] title=(details(c, r)) { (c.winner()) }
            span { (c.value(r.plan.metric)) }
            @if let Some(margin) = c.margin() { span { (margin) } }
            span.sure { (short) (doubts(c)) }
        }
    }
}

/// What of the deciding runs was disturbed or far, in a cell's few letters.
fn doubts(c: &Choice) -> String {
    let mut text = String::new();
    if c.disturbed > 0 {
        let _ = write!(text, " · {}/{} noisy", c.disturbed, c.runs);
    }
    if c.far > 0 {
        let _ = write!(text, " · {} far", c.far);
    }
    text
}

/// Everything about a cell, for who rests on it.
fn details(c: &Choice, r: &Result) -> String {
    let mut text = format!("{} {}", c.best, super::words::advice(c, r.plan.metric));
    let _ = write!(text, ". {}", c.doubts());
    if let Some(why) = &c.why {
        let _ = write!(text, ". {why}");
    }
    text + "."
}

/// What the table is made of.
fn caption(material: &Material<'_>, choices: &[&Choice]) -> String {
    let mut text = String::from(
        "Median of the fastest, its lead over its rival, and how sure that is. “sure”: by the rule \
         under Method. “likely”: every pair of runs says so, but they are too few for the rule. \
         “open”: the pairs do not decide. Hatched: a tie. Empty: not measured.",
    );
    let any = |of: fn(&Choice) -> bool| choices.iter().any(|c| of(c));
    if any(|c| c.disturbed > 0) {
        text.push_str(" “2/14 noisy”: of the 14 runs that decide, 2 were disturbed.");
    }
    if any(|c| c.far > 0) {
        text.push_str(" “3 far”: 3 more had the cores far apart and stand by themselves.");
    }
    let of = choices.iter().map(|c| &material.results[c.result]);
    if of.clone().all(|r| r.cores == Cores::Far) {
        text.push_str(" The cores were far apart in all of these runs.");
    }
    if of
        .clone()
        .any(|r| r.plan.metric == crate::metric::Metric::Goodput)
    {
        text.push_str(
            " Gb/s are of simulated NICs with ideal peers: no wire and no copy by a NIC.",
        );
    }
    let without_peers = |r: &Result| {
        let rivals: Vec<&Curve> = r.curves.iter().filter(|c| is_rival(c)).collect();
        in_ratios(r.plan.metric, &rivals) != r.plan.metric
    };
    if of.clone().any(without_peers) {
        text.push_str(" The time that those take is left out, as if another machine spent it.");
    }
    let linux = |r: &Result| {
        r.curves
            .iter()
            .any(|c| !is_rival(c) && has(c, r.plan.metric))
    };
    if of.into_iter().any(linux) {
        text.push_str(" linux does its peer's work too and is not ranked.");
    }
    text
}

/// The answer for a terminal: a few plain lines.
pub(super) fn lines(material: &Material<'_>) -> String {
    let (near, _) = by_cores(material);
    let mut out = String::new();
    let mut load = "";
    let shown = columns(&near);
    for c in near.iter().filter(|c| shown.contains(&c.x)) {
        let plan = &material.results[c.result].plan;
        if c.load != load {
            load = &c.load;
            let _ = writeln!(out, "Fastest here, {load}:");
        }
        let at = format!("{} {}", number(c.x as f64), plan.axis.of(c.x));
        let margin = c.margin().map_or(String::new(), |m| format!(", {m}"));
        let sure = c.sure().map_or("no rival".into(), Sure::words);
        let _ = writeln!(
            out,
            "  {at:>18}  {} {}{margin} ({sure})",
            c.winner(),
            c.value(plan.metric)
        );
    }
    for c in ends(&near) {
        if let Some(why) = &c.why {
            let _ = writeln!(out, "Why at {}: {why}.", number(c.x as f64));
        }
    }
    if near.is_empty() {
        values(material, &mut out);
    }
    for line in more_cores::lines(material) {
        let _ = writeln!(out, "{line}");
    }
    let (noisy, runs) = near
        .iter()
        .fold((0, 0), |sum, c| (sum.0 + c.disturbed, sum.1 + c.runs));
    if noisy > 0 {
        let _ = writeln!(
            out,
            "{noisy} of the {} that decide this {} disturbed.",
            crate::units::runs(runs),
            crate::units::were(noisy)
        );
    }
    if material.apart.is_some() {
        let _ = writeln!(out, "{}", super::apart::short(&material.results));
    }
    out
}

/// Where there is nothing to choose: what each curve has at both ends of its axis.
fn values(material: &Material<'_>, out: &mut String) {
    let near = material.results.iter().filter(|r| r.cores != Cores::Far);
    for r in near.filter(|r| r.measured > 0) {
        let (metric, unit) = (r.plan.metric, Unit::of(r.plan.metric));
        let _ = writeln!(out, "{}: {}, {}", r.plan.title, metric.label(), unit.name);
        for c in r.curves.iter().filter(|c| has(c, metric)) {
            let at = |p: &super::analysis::Point| {
                let value = number(p.spread(metric)?.median * unit.factor);
                Some(format!(
                    "{value} at {} {}",
                    number(p.x as f64),
                    r.plan.axis.of(p.x)
                ))
            };
            let mut ends: Vec<String> = c.points.iter().filter_map(at).collect();
            if ends.len() > 2 {
                ends.drain(1..ends.len() - 1);
            }
            let _ = writeln!(out, "  {:<20} {}", c.name, ends.join(", "));
        }
    }
}

//! Which organization for which load: who is fastest, by how much, how sure that is, and why.

use super::{
    analysis::{Cores, Curve, Point, Result, compare_points, in_ratios},
    names::Unit,
    svg::number,
};
use crate::{
    metric::Metric,
    organizations::Organization,
    record::Measured,
    stats::{Comparison, Interval, Verdict, median},
};

/// A lead by less is none while the pairs are too few for the rule.
const LEAST: f64 = 1.05;

/// How sure it is that the best one is ahead of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// The rule of all comparisons holds: both intervals say so.
    Yes,
    /// Every one of so many pairs says so; they are too few for the rule.
    Likely(usize),
    /// No difference is seen.
    Tie,
    /// So few pairs, and they contradict each other or hardly differ.
    Open(usize),
}

impl Sure {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Sure::Yes => "sure".into(),
            Sure::Likely(1) => "a hint: one pair of runs".into(),
            Sure::Likely(n) => format!("likely: in {n} of {n} pairs of runs"),
            Sure::Tie => "tie".into(),
            Sure::Open(0) => "open: no pair of runs".into(),
            Sure::Open(1) => "open: one pair of runs".into(),
            Sure::Open(n) => format!("open: {n} pairs of runs do not decide"),
        }
    }
}

/// The best one against its rival: the second by median, unless somebody behind that is as good as
/// the best for all that is seen.
#[derive(Debug, Clone)]
pub struct Lead {
    /// Name of the rival.
    pub second: String,
    /// What it is called in style sheets.
    pub look: String,
    /// How many times as fast the best one is.
    pub ratio: f64,
    /// Interval of that.
    pub interval: Option<Interval>,
    /// How sure it is.
    pub sure: Sure,
}

/// Which organization for one load at one x.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Index of the plan's result.
    pub result: usize,
    /// Load.
    pub load: String,
    /// Where.
    pub x: u64,
    /// Name of the one with the best median.
    pub best: String,
    /// What runs, for its colour.
    pub look: String,
    /// Its median, in the plan's metric.
    pub median: f64,
    /// How it stands to its rival; `None` if it is alone.
    pub lead: Option<Lead>,
    /// Those between which and the best no difference is seen, with the ratio to it.
    pub equals: Vec<(String, f64)>,
    /// Those that are behind it, with the ratio to it.
    pub behind: Vec<(String, f64)>,
    /// Those that there are too few runs of to tell.
    pub unknown: Vec<String>,
    /// Runs of the best and its rival.
    pub runs: usize,
    /// Those of them that something disturbed.
    pub disturbed: usize,
    /// Runs of these two with cores far apart, which stand by themselves.
    pub far: usize,
    /// The largest counter that tells them apart, in words.
    pub why: Option<String>,
}

impl Choice {
    /// The value of the best one, with its unit.
    pub fn value(&self, metric: Metric) -> String {
        let unit = Unit::of(metric);
        format!("{} {}", number(self.median * unit.factor), unit.name)
    }

    /// By how much it leads.
    pub fn margin(&self) -> Option<String> {
        let lead = self.lead.as_ref()?;
        Some(match lead.sure {
            Sure::Tie => format!("as {}", lead.second),
            Sure::Open(_) => format!("{} or {}", self.best, lead.second),
            _ => format!("{} × {}", two(lead.ratio), lead.second),
        })
    }

    /// The best one, unless that is open.
    pub fn winner(&self) -> &str {
        match self.sure() {
            Some(Sure::Open(_)) => "open",
            _ => &self.best,
        }
    }

    /// How sure it is.
    pub fn sure(&self) -> Option<Sure> {
        Some(self.lead.as_ref()?.sure)
    }

    /// What of the runs that decide it is to be doubted.
    pub fn doubts(&self) -> String {
        let mut text = crate::units::noisy(self.disturbed, self.runs);
        if self.far > 0 {
            text.push_str(&format!(", {} far apart left out", self.far));
        }
        text
    }
}

/// A ratio with two digits after the point, more where it is small and fewer where it is large.
pub(super) fn two(ratio: f64) -> String {
    match ratio {
        r if r >= 99.95 => format!("{r:.0}"),
        r if r >= 9.995 => format!("{r:.1}"),
        r if r < 0.095 => format!("{r:.3}"),
        r => format!("{r:.2}"),
    }
}

/// Which organization for which load: for each plan that advises, at each x.
pub fn choices(results: &[Result]) -> Vec<Choice> {
    let mut list = Vec::new();
    for (index, r) in results.iter().enumerate() {
        let Some(load) = &r.plan.advice else { continue };
        let far = results
            .iter()
            .find(|o| o.plan.name == r.plan.name && o.cores == Cores::Far)
            .filter(|_| r.cores != Cores::Far);
        let first = r.curves.first().into_iter();
        for x in first.flat_map(|c| &c.points).map(|p| p.x) {
            let choice = choice(index, r, far, load, x);
            // Of far cores there are as many runs as it happened.
            let told = |c: &Choice| !c.equals.is_empty() || !c.behind.is_empty();
            list.extend(choice.filter(|c| r.cores != Cores::Far || told(c)));
        }
    }
    list
}

/// The host's kernel does its peer's work too, so its goodput is no rival to the others'.
pub(super) fn is_rival(curve: &Curve) -> bool {
    matches!(curve.organization, Some(Organization::Ours(_)))
}

fn choice(index: usize, r: &Result, far: Option<&Result>, load: &str, x: u64) -> Option<Choice> {
    let rivals: Vec<&Curve> = r.curves.iter().filter(|c| is_rival(c)).collect();
    let metric = in_ratios(r.plan.metric, &rivals);
    let of = |c: &Curve| Some(c.at(x)?.spread(metric)?.median);
    let rivals = rivals.into_iter();
    let mut measured: Vec<(&Curve, f64)> = rivals.filter_map(|c| Some((c, of(c)?))).collect();
    measured.sort_by(|a, b| match metric.more_is_better() {
        true => b.1.total_cmp(&a.1),
        false => a.1.total_cmp(&b.1),
    });
    let (&(best, of_best), others) = measured.split_first()?;
    let leads = others
        .iter()
        .filter_map(|(c, _)| Some((*c, lead(best, c, x, metric)?)));
    let leads: Vec<(&Curve, Lead)> = leads.collect();
    let close = |(_, l): &&(&Curve, Lead)| match l.sure {
        Sure::Tie => true,
        Sure::Open(pairs) => pairs > 0,
        Sure::Yes | Sure::Likely(_) => false,
    };
    let (second, lead) = match leads.iter().find(close).or(leads.first()) {
        Some((c, lead)) => (Some(*c), Some(lead.clone())),
        None => (others.first().map(|o| o.0), None),
    };
    let deciding: Vec<&Curve> = [Some(best), second].into_iter().flatten().collect();
    let points = || deciding.iter().filter_map(|c| c.at(x));
    let elsewhere = |c: &&Curve| {
        let there = far?.curves.iter().find(|f| f.label == c.label)?;
        Some(there.at(x)?.runs.len())
    };
    let mut choice = Choice {
        result: index,
        load: load.into(),
        x,
        best: best.name.clone(),
        look: look(best),
        median: of_best,
        lead,
        equals: Vec::new(),
        behind: Vec::new(),
        unknown: Vec::new(),
        runs: points().map(|p| p.runs.len()).sum(),
        disturbed: points().map(|p| p.disturbed).sum(),
        far: deciding.iter().filter_map(elsewhere).sum(),
        why: None,
    };
    let ahead = |l: &Lead| matches!(l.sure, Sure::Yes | Sure::Likely(_));
    if let (Some(second), true) = (second, choice.lead.as_ref().is_some_and(ahead)) {
        choice.why = why(best, second, x, metric);
    }
    for (other, _) in others {
        let name = other.name.clone();
        match compare_points(other.at(x)?, best.at(x)?, metric) {
            None => choice.unknown.push(name),
            Some(c) => match c.verdict {
                Verdict::TooFew => choice.unknown.push(name),
                Verdict::NoDifference => choice.equals.push((name, c.ratio)),
                Verdict::Less | Verdict::Greater => choice.behind.push((name, c.ratio)),
            },
        }
    }
    Some(choice)
}

fn look(c: &Curve) -> String {
    let organization = c.organization.as_ref();
    organization.map_or(c.name.clone(), ToString::to_string)
}

fn lead(best: &Curve, second: &Curve, x: u64, metric: Metric) -> Option<Lead> {
    let (a, b) = match metric.more_is_better() {
        true => (best, second),
        false => (second, best),
    };
    let (a, b) = (a.at(x)?, b.at(x)?);
    let found = compare_points(a, b, metric);
    let medians = || Some(a.spread(metric)?.median / b.spread(metric)?.median);
    Some(Lead {
        second: second.name.clone(),
        look: look(second),
        ratio: found.map(|c| c.ratio).or_else(medians)?,
        interval: found.and_then(|c| c.interval),
        sure: found.map_or(Sure::Open(0), |c| sure(&c)),
    })
}

fn sure(c: &Comparison) -> Sure {
    let all = match c.interval {
        Some(i) => i.low > 1.0 && c.ratio >= LEAST,
        None => c.ratio >= LEAST,
    };
    match c.verdict {
        Verdict::Greater => Sure::Yes,
        Verdict::NoDifference | Verdict::Less => Sure::Tie,
        // With so few pairs the interval is the whole range.
        Verdict::TooFew if all => Sure::Likely(c.pairs),
        Verdict::TooFew => Sure::Open(c.pairs),
    }
}

/// What tells two points apart, most of all: more cores at work, or the time of threads for each
/// unit of the load that the second spends and the best one does not.
fn why(best: &Curve, second: &Curve, x: u64, metric: Metric) -> Option<String> {
    let (a, b) = (best.at(x)?, second.at(x)?);
    let (of, unit): (fn(&Measured) -> f64, _) = match metric {
        Metric::Rounds => (|m| m.raw.rounds as f64, "a round trip"),
        Metric::Connects => (|m| m.raw.rounds as f64, "a connection"),
        Metric::Datagrams => (|m| m.raw.segments, "a datagram"),
        _ => (|m| m.raw.segments, "a segment"),
    };
    let middle = |p: &Point, ns: fn(&Measured) -> Option<u64>| {
        let each = |m: &Measured| Some(ns(m)? as f64 / of(m)).filter(|v| v.is_finite());
        median(&p.runs.values().filter_map(each).collect::<Vec<_>>())
    };
    let cores = |p: &Point| {
        let busy = p
            .runs
            .values()
            .map(|m| m.raw.cpu_ns as f64 / (m.raw.seconds * 1e9));
        median(&busy.collect::<Vec<_>>())
    };
    let (busy, others) = (cores(a)?, cores(b)?);
    let cpu = |p: &Point| middle(p, |m| Some(m.raw.cpu_ns));
    if busy > 1.25 * others && cpu(a)? >= 0.9 * cpu(b)? {
        return Some(format!(
            "{} keeps {busy:.1} cores busy, {} {others:.1}",
            best.name, second.name
        ));
    }
    type Part = (&'static str, fn(&Measured) -> Option<u64>);
    let parts: [Part; 3] = [
        ("in the stack", |m| m.raw.stack_ns),
        ("waiting for locks", |m| {
            Some(m.locks.iter().map(|l| l.wait_ns).sum())
        }),
        ("asleep", |m| Some(m.raw.idle_ns)),
    ];
    let gap = |part: &Part| {
        let (mine, theirs) = (middle(a, part.1)?, middle(b, part.1)?);
        (theirs > mine).then_some((part.0, mine, theirs))
    };
    let gaps = parts.iter().filter_map(gap);
    let (what, mine, theirs) = gaps.max_by(|p, q| (p.2 - p.1).total_cmp(&(q.2 - q.1)))?;
    Some(format!(
        "{} spends {} ns {unit} {what}, {} {}",
        second.name,
        number(theirs),
        best.name,
        number(mine)
    ))
}

//! What the rows of a folder say: points with their intervals, claims compared, an advice. All
//! words of a report come from here or are computed from it.

use crate::{
    organizations::Organization,
    plan::{Metric, Plan},
    published::{self, Claim, Relation},
    record::{Measured, Outcome, Row, Stored},
    stats::{Comparison, Interval, Spread, Verdict, compare},
    trace::Trace,
};
use std::collections::BTreeMap;

/// One point of a curve.
#[derive(Debug, Clone)]
pub struct Point {
    /// Its place on the x axis.
    pub x: u64,
    /// Measurements by pass.
    pub runs: BTreeMap<u32, Measured>,
    /// Why there is none, if there is none.
    pub missing: Option<String>,
    /// Runs that something disturbed.
    pub disturbed: usize,
    /// Runs whose accounting does not hold.
    pub invalid: usize,
}

impl Point {
    /// A metric's value by pass.
    pub fn values(&self, metric: Metric) -> BTreeMap<u32, f64> {
        let value = |(pass, m): (&u32, &Measured)| Some((*pass, metric.of(m)?));
        self.runs.iter().filter_map(value).collect()
    }

    /// Median, least and greatest.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(&self.values(metric).into_values().collect::<Vec<_>>())
    }

    /// Interval of the median.
    pub fn interval(&self, metric: Metric) -> Option<Interval> {
        Interval::of_median(&self.values(metric).into_values().collect::<Vec<_>>())
    }
}

/// One curve.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its label.
    pub label: String,
    /// Its counterpart in the papers.
    pub published: Option<String>,
    /// Organization at the first point.
    pub organization: Option<Organization>,
    /// Whether it may be compared with the others.
    pub comparable: bool,
    /// By x.
    pub points: Vec<Point>,
}

impl Curve {
    /// The point at `x`.
    pub fn at(&self, x: u64) -> Option<&Point> {
        self.points.iter().find(|p| p.x == x)
    }
}

/// Compares two points by a metric, pass by pass.
pub fn compare_points(a: &Point, b: &Point, metric: Metric) -> Option<Comparison> {
    let (a, b) = (a.values(metric), b.values(metric));
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .filter_map(|(pass, a)| Some((*a, *b.get(pass)?)))
        .collect();
    compare(&pairs)
}

/// What the measurements say of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// It holds here.
    Agrees,
    /// It holds at some x and not at others.
    InPart,
    /// The opposite holds here.
    TurnedRound,
    /// No difference is seen.
    NoDifference,
    /// There are too few runs to tell.
    TooFew,
    /// What it is about was not measured.
    NotMeasured,
}

impl Finding {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Finding::Agrees => "agrees",
            Finding::InPart => "agrees in part",
            Finding::TurnedRound => "turned round",
            Finding::NoDifference => "no difference seen",
            Finding::TooFew => "too few runs to tell",
            Finding::NotMeasured => "not measured here",
        }
    }
}

/// One claim at one place.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// x of both sides.
    pub x: (u64, u64),
    /// The comparison.
    pub comparison: Comparison,
    /// What it says of the claim.
    pub finding: Finding,
    /// Counters of both sides that may explain it: name, unit, a's and b's median.
    pub counters: Vec<(Metric, f64, f64)>,
}

/// A claim with what was found.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The claim.
    pub claim: &'static Claim,
    /// What is found in all.
    pub finding: Finding,
    /// By x.
    pub evidence: Vec<Evidence>,
}

/// One plan's results.
#[derive(Debug, Clone)]
pub struct Result {
    /// The plan.
    pub plan: Plan,
    /// Its curves, in the plan's order.
    pub curves: Vec<Curve>,
    /// What became of each claim.
    pub claims: Vec<Judged>,
    /// Runs that measured something.
    pub measured: usize,
    /// Those of them that something disturbed.
    pub disturbed: usize,
    /// Signs of disturbance, the most frequent first, with how many runs had them.
    pub signs: Vec<(String, usize)>,
    /// Remarks on configurations, each once.
    pub notes: Vec<String>,
    /// Recorded sends by curve, where the plan asks for them.
    pub sends: Vec<Option<Trace>>,
}

impl Result {
    /// The curves with their recorded sends.
    pub fn traces(&self) -> impl Iterator<Item = (&Curve, &Trace)> {
        let pairs = self.curves.iter().zip(&self.sends);
        pairs.filter_map(|(c, t)| Some((c, t.as_ref()?)))
    }
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
    /// Label of the curve with the best median.
    pub best: String,
    /// Its median, in the plan's metric.
    pub median: f64,
    /// Those between which and the best no difference is seen, with the ratio to it.
    pub equals: Vec<(String, f64)>,
    /// Those that are behind it, with the ratio to it.
    pub behind: Vec<(String, f64)>,
    /// Those that there are too few runs of to tell.
    pub unknown: Vec<String>,
}

/// The results of each plan that has rows or could have.
pub fn results(stored: &Stored) -> Vec<Result> {
    let one = |plan: &Plan| {
        let rows: Vec<&Row> = stored.rows.iter().filter(|r| r.plan == plan.name).collect();
        result(plan, stored, &rows)
    };
    stored.plans.iter().map(one).collect()
}

fn result(plan: &Plan, stored: &Stored, rows: &[&Row]) -> Result {
    let values = plan.values(stored.header.mode);
    let curves: Vec<Curve> = plan
        .series
        .iter()
        .map(|s| {
            let series = |r: &&Row| r.series == s.label;
            let of: Vec<&Row> = rows.iter().copied().filter(series).collect();
            Curve {
                label: s.label.clone(),
                published: s.published.clone(),
                organization: values.first().and_then(|x| s.organization(*x).ok()),
                comparable: of.iter().all(|r| r.measured().is_none() || r.comparable),
                points: values.iter().map(|&x| point(x, &of)).collect(),
            }
        })
        .collect();
    let all = || rows.iter().filter_map(|r| r.measured());
    let mut signs: BTreeMap<String, usize> = BTreeMap::new();
    for m in all() {
        // Without their numbers, which differ from run to run.
        let kinds: std::collections::BTreeSet<String> =
            m.raw.disturbances.iter().map(|d| kind(d)).collect();
        for k in kinds {
            *signs.entry(k).or_default() += 1;
        }
    }
    let mut signs: Vec<_> = signs.into_iter().collect();
    signs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut notes: Vec<String> = Vec::new();
    for note in rows.iter().flat_map(|r| &r.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let sent = |c: &Curve| {
        let org = c.organization.as_ref()?.to_string();
        stored.sends.iter().find(|t| t.org == org).cloned()
    };
    Result {
        sends: match plan.order {
            Some(_) => curves.iter().map(sent).collect(),
            None => Vec::new(),
        },
        claims: plan
            .published
            .iter()
            .flat_map(|e| &e.claims)
            .map(|c| judge(c, plan, &curves))
            .collect(),
        curves,
        measured: all().count(),
        disturbed: all().filter(|m| !m.raw.disturbances.is_empty()).count(),
        signs,
        notes,
        plan: plan.clone(),
    }
}

/// A sign of disturbance with `N` for its numbers.
fn kind(sign: &str) -> String {
    let mut kind = String::new();
    for c in sign.chars() {
        match c.is_ascii_digit() {
            true if kind.ends_with('N') => {}
            true => kind.push('N'),
            false => kind.push(c),
        }
    }
    kind
}

fn point(x: u64, rows: &[&Row]) -> Point {
    let here = || rows.iter().filter(|r| r.x == x);
    let mut runs = BTreeMap::new();
    for row in here() {
        if let Some(m) = row.measured() {
            runs.insert(row.repeat, m.clone());
        }
    }
    let reason = |r: &&Row| match &r.outcome {
        Outcome::Measured(_) => None,
        Outcome::Failed(why) => Some(format!("failed: {why}")),
        Outcome::Unavailable(why) => Some(why.clone()),
    };
    let missing = runs.is_empty().then(|| {
        here()
            .find_map(reason)
            .unwrap_or_else(|| "not run yet".into())
    });
    Point {
        x,
        missing,
        disturbed: runs
            .values()
            .filter(|m| !m.raw.disturbances.is_empty())
            .count(),
        invalid: runs.values().filter(|m| !m.raw.valid).count(),
        runs,
    }
}

fn judge(claim: &'static Claim, plan: &Plan, curves: &[Curve]) -> Judged {
    let find = |side: &published::Side| {
        curves
            .iter()
            .find(|c| c.published.as_deref() == Some(&side.series))
    };
    let metric = claim.metric.unwrap_or(plan.metric);
    let mut evidence = Vec::new();
    if let (Some(a), Some(b)) = (find(&claim.a), find(&claim.b)) {
        for p in &a.points {
            // Either side names its x, or both stand at the same.
            let fixed = |x: Option<f64>| x.map(|x| x as u64);
            let (ax, bx) = match (fixed(claim.a.x), fixed(claim.b.x)) {
                (None, None) => (p.x, p.x),
                (Some(ax), bx) if ax == p.x => (ax, bx.unwrap_or(ax)),
                (None, Some(bx)) => (p.x, bx),
                _ => continue,
            };
            let (Some(pa), Some(pb)) = (a.at(ax), b.at(bx)) else {
                continue;
            };
            if let Some(comparison) = compare_points(pa, pb, metric) {
                evidence.push(Evidence {
                    x: (ax, bx),
                    finding: finding(claim.relation, &comparison),
                    comparison,
                    counters: counters(metric, pa, pb),
                });
            }
        }
    }
    Judged {
        claim,
        finding: in_all(&evidence),
        evidence,
    }
}

/// How far from 1 a ratio may be that counts as none.
const EQUAL: f64 = 0.1;

fn finding(relation: Relation, here: &Comparison) -> Finding {
    match (relation, here.verdict) {
        (_, Verdict::TooFew) => Finding::TooFew,
        (Relation::Greater, Verdict::Greater) | (Relation::Less, Verdict::Less) => Finding::Agrees,
        (_, Verdict::Greater | Verdict::Less) => Finding::TurnedRound,
        // That no difference was seen speaks for equality only where one would have been seen.
        (Relation::Equal, Verdict::NoDifference)
            if (here.interval).is_some_and(|i| i.low >= 1.0 - EQUAL && i.high <= 1.0 + EQUAL) =>
        {
            Finding::Agrees
        }
        (_, Verdict::NoDifference) => Finding::NoDifference,
    }
}

fn in_all(evidence: &[Evidence]) -> Finding {
    let mut kinds: Vec<Finding> = evidence.iter().map(|e| e.finding).collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds.as_slice() {
        [] => Finding::NotMeasured,
        [one] => *one,
        [Finding::Agrees, ..] => Finding::InPart,
        // What is not the same everywhere, and agrees nowhere, is told by its strongest part.
        [first, ..] => *first,
    }
}

/// Metrics that may explain a difference: all that both sides have, but the one compared.
fn counters(own: Metric, a: &Point, b: &Point) -> Vec<(Metric, f64, f64)> {
    let explain = [
        Metric::Stack,
        Metric::Contended,
        Metric::LockWait,
        Metric::Switches,
        Metric::Cpu,
    ];
    explain
        .into_iter()
        .filter(|m| *m != own)
        .filter_map(|m| Some((m, a.spread(m)?.median, b.spread(m)?.median)))
        .collect()
}

/// Which organization for which load: for each plan that advises, at each x.
pub fn choices(results: &[Result]) -> Vec<Choice> {
    let mut list = Vec::new();
    for (index, r) in results.iter().enumerate() {
        let Some(load) = &r.plan.advice else { continue };
        for &x in r
            .curves
            .first()
            .into_iter()
            .flat_map(|c| &c.points)
            .map(|p| &p.x)
        {
            list.extend(choice(index, r, load, x));
        }
    }
    list
}

fn choice(index: usize, r: &Result, load: &str, x: u64) -> Option<Choice> {
    let metric = r.plan.metric;
    // The host's kernel does its peer's work too, so its goodput is no rival to the others'.
    let rival = |c: &&Curve| matches!(c.organization, Some(Organization::Ours(_)));
    let median = |c: &Curve| Some(c.at(x)?.spread(metric)?.median);
    let mut measured: Vec<(&Curve, f64)> = r
        .curves
        .iter()
        .filter(rival)
        .filter_map(|c| Some((c, median(c)?)))
        .collect();
    let better = |a: f64, b: f64| match metric.more_is_better() {
        true => b.total_cmp(&a),
        false => a.total_cmp(&b),
    };
    measured.sort_by(|a, b| better(a.1, b.1));
    let (&(best, of_best), others) = measured.split_first()?;
    let mut choice = Choice {
        result: index,
        load: load.into(),
        x,
        best: best.label.clone(),
        median: of_best,
        equals: Vec::new(),
        behind: Vec::new(),
        unknown: Vec::new(),
    };
    for (other, _) in others {
        let label = other.label.clone();
        match compare_points(other.at(x)?, best.at(x)?, metric) {
            None => choice.unknown.push(label),
            Some(c) => match c.verdict {
                Verdict::TooFew => choice.unknown.push(label),
                Verdict::NoDifference => choice.equals.push((label, c.ratio)),
                Verdict::Less | Verdict::Greater => choice.behind.push((label, c.ratio)),
            },
        }
    }
    Some(choice)
}

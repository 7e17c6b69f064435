//! What the rows of a folder say: points with their intervals, claims compared, an advice. All
//! words of a report come from here or are computed from it.

use super::names::{Unit, names};
use crate::{
    host::apart,
    metric::Metric,
    organizations::Organization,
    plan::Plan,
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
    /// What runs, as the command line takes it: its one name in figures, tables and sentences.
    pub name: String,
    /// Its label in the plan and in the rows.
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

/// Whether a curve has a value of a metric anywhere.
pub fn has(curve: &Curve, metric: Metric) -> bool {
    curve.points.iter().any(|p| p.spread(metric).is_some())
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
    /// It holds here, and by as much.
    Same,
    /// It holds here; the paper does not say by how much.
    Direction,
    /// It holds here, by more.
    Larger,
    /// It holds here, by less.
    Smaller,
    /// It holds at some x and not at others.
    Mixed,
    /// The opposite holds here.
    Opposite,
    /// No difference is seen, or none that is large enough or small enough to tell.
    Inconclusive,
    /// It is of a machine with more cores than this one has, and so can't be judged here.
    NeedsCores(usize),
    /// There are too few runs to tell.
    TooFew,
    /// What it is about was not measured.
    NotMeasured,
}

impl Finding {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Finding::Same => "same direction and size",
            Finding::Direction => "same direction",
            Finding::Larger => "same direction, larger",
            Finding::Smaller => "same direction, smaller",
            Finding::Mixed => "same direction at some loads",
            Finding::Opposite => "opposite",
            Finding::Inconclusive => "inconclusive",
            Finding::NeedsCores(n) => return format!("needs {n} cores"),
            Finding::TooFew => "inconclusive: too few runs",
            Finding::NotMeasured => "not measured here",
        }
        .into()
    }

    /// Whether the claim holds.
    fn holds(self) -> bool {
        self <= Finding::Smaller
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

/// How far apart the cores were during the runs that a result is of. Runs with near and with far
/// cores differ too much to be taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// As near in all runs of the folder, or nothing is known of it, or it does not matter.
    Any,
    /// Near; there are others with far ones.
    Near,
    /// Far.
    Far,
}

impl Cores {
    /// As a remark behind a title or a load; nothing where there is nothing to tell apart.
    pub fn remark(self) -> &'static str {
        match self {
            Cores::Any => "",
            Cores::Near => ", cores near each other",
            Cores::Far => ", cores far apart",
        }
    }

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Cores::Any => "",
            Cores::Near => "near",
            Cores::Far => "far",
        }
    }
}

/// One plan's results.
#[derive(Debug, Clone)]
pub struct Result {
    /// The plan.
    pub plan: Plan,
    /// How far apart the cores were.
    pub cores: Cores,
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
    /// Its title, with how far apart the cores were.
    pub fn title(&self) -> String {
        format!("{}{}", self.plan.title, self.cores.remark())
    }

    /// A name for it, unique within a report.
    pub fn id(&self) -> String {
        match self.cores {
            Cores::Far => format!("{}-far", self.plan.name),
            Cores::Any | Cores::Near => self.plan.name.clone(),
        }
    }

    /// The unit of what was published, where it is not the one that is measured in.
    pub fn foreign_unit(&self) -> Option<&'static str> {
        let unit = Unit::published(self.plan.published?).name;
        (unit != Unit::of(self.plan.metric).name).then_some(unit)
    }

    /// The curves with their recorded sends.
    pub fn traces(&self) -> impl Iterator<Item = (&Curve, &Trace)> {
        let pairs = self.curves.iter().zip(&self.sends);
        pairs.filter_map(|(c, t)| Some((c, t.as_ref()?)))
    }
}

/// The results of each plan that has rows or could have. Runs with near cores and runs with far ones
/// are results of their own.
pub fn results(stored: &Stored) -> Vec<Result> {
    // What is modelled does not depend on it.
    let told = |r: &Row| {
        let m = r.measured().filter(|m| m.modelled.is_none())?;
        m.raw.core_round_trip_ns
    };
    let best = stored.rows.iter().filter_map(told);
    let best = best.fold(f64::INFINITY, f64::min);
    let is_far = |r: &Row| told(r).is_some_and(|ns| apart::is_longer(ns, best));
    let ever_far = stored.rows.iter().any(is_far);
    let of = |plan: &Plan| {
        let rows = stored.rows.iter().filter(|r| r.plan == plan.name);
        let (far, near): (Vec<&Row>, Vec<&Row>) = rows.partition(|r| is_far(r));
        let cores = match ever_far && near.iter().any(|r| told(r).is_some()) || !far.is_empty() {
            true => Cores::Near,
            false => Cores::Any,
        };
        let first = result(plan, stored, cores, &near, &far);
        let second = (!far.is_empty()).then(|| result(plan, stored, Cores::Far, &far, &near));
        [Some(first), second]
    };
    stored.plans.iter().flat_map(of).flatten().collect()
}

/// The result of `rows`; `others` are of the plan too, with cores of another distance.
fn result(plan: &Plan, stored: &Stored, cores: Cores, rows: &[&Row], others: &[&Row]) -> Result {
    let values = plan.values(stored.header.mode);
    let named = plan.series.iter().zip(names(plan));
    let curves: Vec<Curve> = named
        .map(|(s, name)| {
            let series = |r: &&Row| r.series == s.label;
            let of: Vec<&Row> = rows.iter().copied().filter(series).collect();
            let elsewhere = |x| others.iter().any(|r| series(r) && r.x == x);
            let none = |x| match (cores, elsewhere(x)) {
                (Cores::Far, _) => "no run with cores far apart",
                (_, true) => "only runs with cores far apart",
                (_, false) => "not run yet",
            };
            Curve {
                name,
                label: s.label.clone(),
                published: s.published.clone(),
                organization: values.first().and_then(|x| s.organization(*x).ok()),
                comparable: of.iter().all(|r| r.measured().is_none() || r.comparable),
                points: values.iter().map(|&x| point(x, &of, none(x))).collect(),
            }
        })
        .collect();
    let all = || rows.iter().filter_map(|r| r.measured());
    let mut signs: BTreeMap<String, usize> = BTreeMap::new();
    for m in all() {
        // Without their numbers, which differ from run to run.
        let kinds: std::collections::BTreeSet<String> = signs_of(m).map(kind).collect();
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
    let here = stored.header.host.cores;
    let claims = plan.published.iter().flat_map(|e| &e.claims);
    let mut claims: Vec<Judged> = claims.map(|c| judge(c, plan, &curves, here)).collect();
    if cores == Cores::Far {
        // Far cores are an accident: what there are too few runs of was not to be measured.
        let told = |e: &Evidence| e.comparison.verdict != Verdict::TooFew;
        claims.retain(|c| c.evidence.iter().any(told));
    }
    Result {
        cores,
        sends: match plan.order {
            Some(_) if cores != Cores::Far => curves.iter().map(sent).collect(),
            _ => Vec::new(),
        },
        claims,
        curves,
        measured: all().count(),
        disturbed: all().filter(|m| signs_of(m).next().is_some()).count(),
        signs,
        notes,
        plan: plan.clone(),
    }
}

/// What disturbed a run, but that the cores were far apart: such runs stand by themselves.
fn signs_of(m: &Measured) -> impl Iterator<Item = &str> {
    let signs = m.raw.disturbances.iter().map(String::as_str);
    signs.filter(|s| !apart::is_sign(s))
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

fn point(x: u64, rows: &[&Row], none: &str) -> Point {
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
    let missing = runs
        .is_empty()
        .then(|| here().find_map(reason).unwrap_or_else(|| none.into()));
    Point {
        x,
        missing,
        disturbed: runs
            .values()
            .filter(|m| signs_of(m).next().is_some())
            .count(),
        invalid: runs.values().filter(|m| !m.raw.valid).count(),
        runs,
    }
}

/// Judges a claim on a machine of `cores` cores.
fn judge(claim: &'static Claim, plan: &Plan, curves: &[Curve], cores: usize) -> Judged {
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
                let finding = match plan.cores {
                    Some(needed) if needed > cores => Finding::NeedsCores(needed),
                    _ => finding(claim, &comparison),
                };
                evidence.push(Evidence {
                    x: (ax, bx),
                    finding,
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

fn finding(claim: &Claim, here: &Comparison) -> Finding {
    match (claim.relation, here.verdict) {
        (_, Verdict::TooFew) => Finding::TooFew,
        (Relation::Equal, verdict) => equality(verdict, here.interval),
        (Relation::Greater, Verdict::Greater) | (Relation::Less, Verdict::Less) => {
            size(claim.range(), here)
        }
        (_, Verdict::Greater | Verdict::Less) => Finding::Opposite,
        (_, Verdict::NoDifference) => Finding::Inconclusive,
    }
}

/// How a difference of the published direction compares to the published one: as large if the
/// intervals have a ratio in common, or the nearest published ratio is within a tenth of the one
/// found.
fn size(published: Option<(f64, f64)>, here: &Comparison) -> Finding {
    let Some((low, high)) = published else {
        return Finding::Direction;
    };
    let meets = here
        .interval
        .is_some_and(|i| i.low <= high && low <= i.high);
    let nearest = here.ratio.clamp(low, high);
    if meets || (here.ratio / nearest - 1.0).abs() <= EQUAL {
        return Finding::Same;
    }
    match here.ratio.ln().abs() > nearest.ln().abs() {
        true => Finding::Larger,
        false => Finding::Smaller,
    }
}

/// Equality is within a tenth, whether or not so small a difference can be seen; and that no
/// difference was seen speaks for it only where one would have been seen.
fn equality(verdict: Verdict, interval: Option<Interval>) -> Finding {
    let (low, high) = (1.0 - EQUAL, 1.0 + EQUAL);
    match (interval, verdict) {
        (Some(i), _) if i.low >= low && i.high <= high => Finding::Same,
        (_, Verdict::NoDifference) => Finding::Inconclusive,
        (Some(i), _) if i.low > high || i.high < low => Finding::Opposite,
        _ => Finding::Inconclusive,
    }
}

fn in_all(evidence: &[Evidence]) -> Finding {
    let mut kinds: Vec<Finding> = evidence.iter().map(|e| e.finding).collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds.as_slice() {
        [] => Finding::NotMeasured,
        [one] => *one,
        // Of several sizes, the direction is what they have in common.
        [.., last] if last.holds() => Finding::Direction,
        [first, ..] if first.holds() => Finding::Mixed,
        // What is not the same everywhere, and holds nowhere, is told by its strongest part.
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

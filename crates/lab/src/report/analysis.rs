//! What the rows of a folder say: points with their intervals, claims compared, an advice. All
//! words of a report come from here or are computed from it.

pub use super::{
    curve::{Curve, Point, compare_points, has, in_ratios},
    judge::{Evidence, Finding, Judged},
};
use super::{
    judge::judge,
    names::{Unit, names},
};
use crate::{
    host::apart,
    plan::Plan,
    record::{Measured, Outcome, Row, Stored},
    stats::{ENOUGH, Verdict},
    trace::Trace,
};
use std::collections::BTreeMap;

/// How far apart the cores were during the runs that a result is of. Runs with near and with far
/// cores differ too much to be taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// Near in all runs of the folder, or nothing is known of it, or it does not matter.
    Any,
    /// Near; the folder has others with far ones.
    Near,
    /// Far ([`apart::FAR_NS`] and more for a cache line and back).
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

    /// Points that can be run here, and those of them that have fewer runs than a verdict needs
    /// ([`ENOUGH`]).
    pub fn points(&self) -> (usize, usize) {
        let points = || self.curves.iter().flat_map(|c| &c.points);
        let possible = points().filter(|p| p.possible);
        let few = possible.clone().filter(|p| p.runs.len() < ENOUGH);
        (possible.count(), few.count())
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
    let is_far = |r: &Row| told(r).is_some_and(apart::is_far);
    let ever_far = stored.rows.iter().any(is_far);
    let ever_near = stored.rows.iter().any(|r| told(r).is_some() && !is_far(r));
    let of = |plan: &Plan| {
        let rows = stored.rows.iter().filter(|r| r.plan == plan.name);
        let (far, near): (Vec<&Row>, Vec<&Row>) = rows.partition(|r| is_far(r));
        if far.is_empty() || ever_near {
            let cores = match ever_far && near.iter().any(|r| told(r).is_some()) || !far.is_empty()
            {
                true => Cores::Near,
                false => Cores::Any,
            };
            let first = result(plan, stored, cores, &near, &far);
            let second = (!far.is_empty()).then(|| result(plan, stored, Cores::Far, &far, &near));
            return [Some(first), second];
        }
        // A machine whose cores are never near.
        let all: Vec<&Row> = near.into_iter().chain(far).collect();
        [Some(result(plan, stored, Cores::Far, &all, &[])), None]
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
    let mut signs: BTreeMap<String, Sign> = BTreeMap::new();
    for m in all() {
        let mut of_run = std::collections::BTreeSet::new();
        for sign in signs_of(m) {
            let (kind, numbers) = kind(sign);
            let all = signs.entry(kind.clone()).or_default();
            all.runs += usize::from(of_run.insert(kind));
            all.widen(&numbers);
        }
    }
    let told = |(kind, sign): (String, Sign)| (sign.words(&kind), sign.runs);
    let mut signs: Vec<_> = signs.into_iter().map(told).collect();
    signs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut notes: Vec<String> = Vec::new();
    for note in rows.iter().flat_map(|r| &r.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    if curves
        .iter()
        .any(|c| in_ratios(plan.metric, &[c]) != plan.metric)
    {
        notes.push(WITHOUT_PEER.into());
    }
    let sent = |c: &Curve| {
        let org = c.organization.as_ref()?.to_string();
        stored.sends.iter().find(|t| t.org == org).cloned()
    };
    let here = stored.header.host.cores;
    let claims = plan.published.iter().flat_map(|e| &e.claims);
    let mut claims: Vec<Judged> = claims.map(|c| judge(c, plan, &curves, here)).collect();
    let accident = cores == Cores::Far && !others.is_empty();
    if accident {
        // What there are too few runs of was not to be measured.
        let told = |e: &Evidence| e.comparison.verdict != Verdict::TooFew;
        claims.retain(|c| c.evidence.iter().any(told));
    }
    Result {
        cores,
        sends: match plan.order {
            Some(_) if !accident => curves.iter().map(sent).collect(),
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

/// What is said where it is so.
const WITHOUT_PEER: &str = "Verdicts and relative figures are of throughput without the time of the \
     ideal peer: what would be sent if that time, which another machine spends in a network, were the \
     stack's.";

/// What disturbed a run, but that the cores were far apart: such runs stand by themselves.
fn signs_of(m: &Measured) -> impl Iterator<Item = &str> {
    let signs = m.raw.disturbances.iter().map(String::as_str);
    signs.filter(|s| !apart::is_sign(s))
}

/// Stands for a number in a kind of sign.
const NUMBER: char = '\0';

/// A sign of disturbance without its numbers, and these.
fn kind(sign: &str) -> (String, Vec<u64>) {
    let (mut kind, mut numbers) = (String::new(), Vec::<u64>::new());
    for c in sign.chars() {
        match (c.to_digit(10), numbers.last_mut()) {
            (Some(d), Some(n)) if kind.ends_with(NUMBER) => {
                *n = n.saturating_mul(10).saturating_add(d.into());
            }
            (Some(d), _) => {
                kind.push(NUMBER);
                numbers.push(d.into());
            }
            (None, _) => kind.push(c),
        }
    }
    (kind, numbers)
}

/// The signs of a kind.
#[derive(Default)]
struct Sign {
    /// Runs that had it.
    runs: usize,
    /// The least and the most that each number was.
    ranges: Vec<(u64, u64)>,
}

impl Sign {
    fn widen(&mut self, numbers: &[u64]) {
        if self.ranges.is_empty() {
            self.ranges = numbers.iter().map(|n| (*n, *n)).collect();
        }
        for ((least, most), n) in self.ranges.iter_mut().zip(numbers) {
            (*least, *most) = ((*least).min(*n), (*most).max(*n));
        }
    }

    /// The kind with the ranges of its numbers.
    fn words(&self, kind: &str) -> String {
        let mut parts = kind.split(NUMBER);
        let mut words = parts.next().unwrap_or_default().to_owned();
        for (part, (least, most)) in parts.zip(&self.ranges) {
            words.push_str(&match least == most {
                true => least.to_string(),
                false => format!("{least}–{most}"),
            });
            words.push_str(part);
        }
        words
    }
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
    let unavailable = |r: &&Row| matches!(r.outcome, Outcome::Unavailable(_));
    Point {
        x,
        missing,
        possible: !runs.is_empty() || !here().any(unavailable),
        disturbed: runs
            .values()
            .filter(|m| signs_of(m).next().is_some())
            .count(),
        invalid: runs.values().filter(|m| !m.raw.valid).count(),
        runs,
    }
}

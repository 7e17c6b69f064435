//! A plan, predicted: each of its points on each number of cores, with a band that shows what it
//! hangs on, and its claims judged where the published number of cores is among them.

use super::{
    effort::has_one_core,
    loads::Load,
    made::{Question, make_all, runs},
    pool,
    simulate::Simulated,
    validate::Validation,
};
use crate::{
    Error,
    metric::Metric,
    organizations::Organization,
    plan::{Cell, Mode, Plan},
    published::{EQUAL, Experiment, Pairs, Relation},
    record::Measured,
    stats::{Spread, median},
    workload::{Device, Latency},
};
use perimeter_sync::Touched;
use serde::{Deserialize, Serialize};

/// How far from 1 seeds alone may bring a predicted ratio.
const SEEDS: f64 = 0.01;

/// The unit of what processors counted.
const CYCLES: &str = "cycles/KB";

/// How much of the time a core has something to do that has no time left.
const FULL: f64 = 0.9;

/// A point of a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Label of its series.
    pub series: String,
    /// Organization.
    pub org: String,
    /// Place on the x axis.
    pub x: u64,
    /// Cores.
    pub cores: usize,
    /// Why there is nothing, where there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The plan's metric: median and spread of the looks at it.
    pub value: Option<Spread>,
    /// Least and greatest with each group of costs times and over 1.5.
    pub band: Option<(f64, f64)>,
    /// The plan's other metrics: name, median.
    pub also: Vec<(String, f64)>,
    /// Share of the cores' time with something to do.
    pub busy: Option<f64>,
    /// How many cores have something to do for nine tenths of the time or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<usize>,
    /// What takes the most time beside work: a class of locks waited for, or lines that are
    /// fetched, with the share of all cores' busy time.
    pub held_up_by: Option<(String, f64)>,
    /// The looks at it, with all metrics that claims ask for.
    #[serde(skip)]
    looks: Vec<Measured>,
    /// As many as there are variations of costs, each after the first look.
    #[serde(skip)]
    varied: Vec<Measured>,
}

/// A claim, judged by prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Its name.
    pub id: String,
    /// The statement.
    pub text: String,
    /// Published ratio, or its range.
    pub published: Option<(f64, f64)>,
    /// Where: x of both sides.
    pub x: (u64, u64),
    /// Predicted ratio, with its least and greatest as costs are varied.
    pub ratio: (f64, f64, f64),
    /// What it says.
    pub finding: Finding,
}

/// What a prediction says of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// It holds, however the costs are varied.
    Holds,
    /// The opposite does, however they are varied.
    TurnedRound,
    /// A difference is claimed, and what is predicted is less than a tenth, however they are varied.
    Alike,
    /// It holds with some costs and not with others. Files from before [`Finding::Alike`] existed
    /// call both "no-difference".
    #[serde(alias = "no-difference")]
    NotDecided,
}

impl Finding {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Finding::Holds => "predicted: holds",
            Finding::TurnedRound => "predicted: opposite",
            Finding::Alike => "predicted: no difference",
            Finding::NotDecided => "predicted: not decided",
        }
    }
}

/// A published value beside the predicted one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The series.
    pub series: String,
    /// Where.
    pub x: u64,
    /// Published.
    pub published: f64,
    /// Predicted.
    pub predicted: f64,
}

/// A plan, predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The plan.
    pub plan: String,
    /// Its title.
    pub title: String,
    /// The machine.
    pub machine: String,
    /// Metric, and its unit.
    pub metric: (String, String),
    /// What the validation says of such loads; empty: it holds.
    pub caveats: Vec<String>,
    /// What is otherwise than in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
    /// The points.
    pub places: Vec<Place>,
    /// Published values on as many cores as they are of.
    pub published: Vec<Published>,
    /// Claims, on as many cores as they are of.
    pub claims: Vec<Judged>,
}

impl Figure {
    /// The points on so many cores; one thread is the same on any number of them.
    pub fn on(&self, cores: usize) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| is_on(place, cores))
    }
}

/// Makes all runs that `plans` take, beside each other. Tells how many of how many points are done.
///
/// # Errors
/// A plan is wrong.
pub fn run_all(
    plans: &[Plan],
    question: &Question,
    told: impl Fn(usize, usize) + Sync,
) -> Result<(), Error> {
    let mut all = Vec::new();
    for plan in plans {
        all.extend(points(plan, question)?);
    }
    all.retain(|(_, cell)| hindrance(cell).is_none());
    make_all(question, &all, told);
    Ok(())
}

/// The points of a plan, on each number of cores.
fn points(plan: &Plan, question: &Question) -> Result<Vec<(usize, Cell)>, Error> {
    let mut points = Vec::new();
    for &cores in &question.cores {
        let nics = question.machine.nics.unwrap_or(cores);
        for cell in plan.cells_on(question.mode, cores, nics)? {
            let mut cell = question.machine.cell(cell)?;
            if is_over_kernel(plan, &cell) {
                cell.settings.device = Device::Mem;
            }
            // One core is the same on any number of them.
            let alone = has_one_core(&cell.configuration.organization);
            if !alone || Some(&cores) == question.cores.first() {
                points.push((cores, cell));
            }
        }
    }
    Ok(points)
}

/// What is said of plans with [such](is_over_kernel) cells.
const OVER_A_NIC: &str = "over a NIC in memory with an ideal peer in place of the host's kernel";

/// Whether a cell is of a paper's plan and its peer is the host's kernel: the papers' peers were
/// machines of their own behind a NIC, and so it is on virtual cores.
fn is_over_kernel(plan: &Plan, cell: &Cell) -> bool {
    plan.published.is_some() && cell.settings.device.is_to_kernel()
}

/// Predicts a plan.
///
/// # Errors
/// The plan is wrong. Points that can't be simulated say why.
pub fn predict(plan: &Plan, question: &Question, validation: &Validation) -> Result<Figure, Error> {
    let jobs = points(plan, question)?;
    let places = pool::each(&jobs, |(cores, cell)| place(plan, question, *cores, cell));
    let all = plan.cells_on(question.mode, question.machine.cores, 1)?;
    let otherwise = all.iter().any(|cell| is_over_kernel(plan, cell));
    let mut figure = Figure {
        plan: plan.name.clone(),
        title: plan.title.clone(),
        machine: question.machine.name.clone(),
        metric: (plan.metric.label().into(), plan.metric.unit().into()),
        caveats: caveats(&jobs, validation),
        otherwise: otherwise.then(|| OVER_A_NIC.into()),
        places,
        published: Vec::new(),
        claims: Vec::new(),
    };
    // What a paper measured is held against as many cores as it had, or against the most there are.
    let wanted = plan.cores.unwrap_or(question.machine.cores);
    if question.machine.published && question.cores.contains(&wanted) {
        figure.published = published(plan, &figure, wanted, question.machine.ghz);
        figure.claims = claims(plan, &figure, wanted);
    }
    Ok(figure)
}

fn caveats(jobs: &[(usize, Cell)], validation: &Validation) -> Vec<String> {
    let mut out = Vec::new();
    let loads = jobs.iter().map(|(_, cell)| Load::of(&cell.settings));
    let mut seen: Vec<Option<Load>> = Vec::new();
    for load in loads {
        if seen.contains(&load) {
            continue;
        }
        seen.push(load);
        match load.map(|l| (l, validation.of(l))) {
            None => out.push("no validation is of such a load".to_string()),
            Some((l, None)) => out.push(format!("{l}: nothing was measured to validate with")),
            Some((l, Some(v))) => {
                out.extend(
                    v.fails()
                        .into_iter()
                        .map(|f| format!("{l}: validation fails: {f}")),
                );
            }
        }
    }
    out
}

/// Why a cell can't be predicted; `None`: it can.
fn hindrance(cell: &Cell) -> Option<&'static str> {
    let s = &cell.settings;
    if !matches!(cell.configuration.organization, Organization::Ours(_)) {
        Some("only organizations of ours run on virtual cores")
    } else if s.device != Device::Mem {
        Some("only the memory NIC is there on virtual cores")
    } else if s.udp.is_some() || s.reconnect || cell.listening {
        Some("datagrams, and connections that are opened anew, are not predicted yet")
    } else if cell.counted {
        Some("virtual cores have no counters of a processor's")
    } else {
        None
    }
}

fn place(plan: &Plan, question: &Question, cores: usize, cell: &Cell) -> Place {
    let mut place = Place {
        series: plan.series[cell.series].label.clone(),
        org: cell.configuration.organization.to_string(),
        x: cell.x,
        cores,
        missing: hindrance(cell).map(String::from),
        value: None,
        band: None,
        also: Vec::new(),
        busy: None,
        full: None,
        held_up_by: None,
        looks: Vec::new(),
        varied: Vec::new(),
    };
    if place.missing.is_some() {
        return place;
    }
    match &*runs(question, cores, cell) {
        Ok(runs) => {
            let looks = runs.plain.iter().map(|s| as_measured(cell, s));
            place.looks = looks.collect();
            tell(&mut place, plan, cell, cores, &runs.plain);
            if question.band {
                vary(&mut place, plan, cell, &runs.varied);
            }
        }
        Err(e) => place.missing = Some(e.to_string()),
    }
    place
}

/// The band of a point, by runs with other costs.
fn vary(place: &mut Place, plan: &Plan, cell: &Cell, others: &[Simulated]) {
    let Some(value) = place.value else { return };
    let mut band = (value.min, value.max);
    for s in others {
        let m = as_measured(cell, s);
        if let Some(v) = plan.metric.of(&m) {
            band = (band.0.min(v), band.1.max(v));
        }
        place.varied.push(m);
    }
    place.band = Some(band);
}

/// A simulated run as one that was measured. How long rounds took follows from how many there
/// were, as each connection has one under way at a time (Little's law): a mean, and no quantile.
fn as_measured(cell: &Cell, s: &Simulated) -> Measured {
    let mut sample = s.sample.clone();
    if sample.rounds > 0 {
        let mean_ns = s.time.as_nanos() as f64 * f64::from(cell.configuration.connections)
            / sample.rounds as f64;
        let ns = mean_ns as u64;
        sample.latency = Some(Latency {
            mean_ns,
            p50_ns: ns,
            p90_ns: ns,
            p99_ns: ns,
            p999_ns: ns,
            max_ns: ns,
        });
    }
    Measured::from(&sample)
}

/// Fills in what the runs with the table as it is came to.
fn tell(place: &mut Place, plan: &Plan, cell: &Cell, cores: usize, found: &[Simulated]) {
    let all: Vec<Measured> = found.iter().map(|s| as_measured(cell, s)).collect();
    let values = |m: Metric| -> Vec<f64> { all.iter().filter_map(|r| m.of(r)).collect() };
    place.value = Spread::of(&values(plan.metric));
    let also = plan.also.iter().filter(|m| !quantile(**m));
    place.also = also
        .filter_map(|m| Some((m.name().to_string(), median(&values(*m))?)))
        .collect();
    let first = &found[0];
    let time = first.time.as_nanos() as f64;
    let busy: u64 = first.busy_ns.iter().sum();
    place.busy = Some(busy as f64 / time / first.busy_ns.len().max(1) as f64);
    let full = first.busy_ns.iter().filter(|b| **b as f64 >= FULL * time);
    place.full = Some(full.count());
    place.held_up_by = held_up_by(first, time * cores as f64);
}

/// Quantiles are not predicted.
fn quantile(m: Metric) -> bool {
    matches!(m, Metric::LatencyP50 | Metric::LatencyP99)
}

/// The class of locks that is waited for most, or the lines that take most to fetch, as a share of
/// all cores' time; `None` below a hundredth.
fn held_up_by(s: &Simulated, all_ns: f64) -> Option<(String, f64)> {
    let locks = s.sample.locks.iter();
    let waits = locks.map(|l| (format!("waiting for {}", l.class), l.wait_ns));
    let lines = Touched::all().map(|t| {
        let what = format!("lines of {}", t.name());
        (what, s.lines_ns[t.index()])
    });
    let most = waits.chain(lines).max_by_key(|(_, ns)| *ns)?;
    let share = most.1 as f64 / all_ns;
    (share >= 0.01).then_some((most.0, share))
}

/// The point of a published series at `x`, on `cores` cores.
fn at<'a>(
    plan: &Plan,
    figure: &'a Figure,
    series: &str,
    x: u64,
    cores: usize,
) -> Option<&'a Place> {
    let s = plan
        .series
        .iter()
        .find(|s| s.published.as_deref() == Some(series))?;
    let mut places = figure.places.iter();
    places.find(|p| p.series == s.label && p.x == x && is_on(p, cores))
}

/// Whether a point stands for so many cores: one thread does for all.
fn is_on(place: &Place, cores: usize) -> bool {
    let alone = || {
        let org = crate::backends::parse(&place.org);
        org.is_ok_and(|o| has_one_core(&o))
    };
    place.cores == cores || alone()
}

fn published(plan: &Plan, figure: &Figure, cores: usize, ghz: Option<f64>) -> Vec<Published> {
    let mut out = Vec::new();
    // What was counted in cycles is predicted in ns.
    let in_its_unit = |e: &Experiment| match e.unit == CYCLES {
        true => ghz,
        false => Some(1.0),
    };
    let experiments = plan.published.iter();
    let experiments = experiments.filter_map(|e| Some((&e.series, in_its_unit(e)?)));
    for (s, factor) in experiments.flat_map(|(all, factor)| all.iter().map(move |s| (s, factor))) {
        for x in plan.values(Mode::Normal) {
            let predicted = at(plan, figure, &s.name, *x, cores).and_then(|p| p.value);
            if let (Some(point), Some(value)) = (s.at(*x as f64), predicted) {
                out.push(Published {
                    series: s.name.clone(),
                    x: *x,
                    published: point.y,
                    predicted: value.median * factor,
                });
            }
        }
    }
    out
}

fn claims(plan: &Plan, figure: &Figure, cores: usize) -> Vec<Judged> {
    let claims = plan.published.iter().flat_map(|e| &e.claims);
    let values = |series: &str, x: u64, metric: Metric, runs: fn(&Place) -> &[Measured]| {
        let runs = runs(at(plan, figure, series, x, cores)?).iter();
        let value = |(i, m): (u32, &Measured)| Some((i, metric.of(m)?));
        Some((0..).zip(runs).filter_map(value).collect())
    };
    let mut out = Vec::new();
    for claim in claims {
        let (metrics, xs) = (claim.metrics(plan.metric), plan.values(Mode::Normal));
        let looks = claim.pairs(metrics, xs, |series, x, m| {
            values(series, x, m, |p| &p.looks)
        });
        let varied = claim.pairs(metrics, xs, |series, x, m| {
            values(series, x, m, |p| &p.varied)
        });
        for Pairs { x, values } in looks {
            let varied = varied.iter().find(|v| v.x == x);
            if let Some(ratio) = ratio(&values, varied.map_or(&[][..], |v| &v.values)) {
                out.push(Judged {
                    id: claim.id.clone(),
                    text: claim.text.clone(),
                    published: claim.range(),
                    x,
                    ratio,
                    finding: finding(claim.relation, ratio),
                });
            }
        }
    }
    out
}

/// Predicted a/b, in the middle of the looks, with its least and greatest: by as much as each
/// variation changes that of the first look, so that what moves both sides alike moves no ratio.
fn ratio(looks: &[(f64, f64)], varied: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let of = |pairs: &[(f64, f64)]| -> Vec<f64> {
        let ratios = pairs.iter().map(|(a, b)| a / b);
        ratios.filter(|r| r.is_finite()).collect()
    };
    let looks = of(looks);
    let middle = median(&looks)?;
    let changes = of(varied).into_iter().map(|v| v / looks[0]);
    let changes = changes.filter(|c| c.is_finite());
    let all: Vec<f64> = changes.chain([1.0]).map(|c| middle * c).collect();
    let spread = Spread::of(&all)?;
    Some((middle, spread.min, spread.max))
}

fn finding(relation: Relation, (middle, low, high): (f64, f64, f64)) -> Finding {
    let within = low >= 1.0 - EQUAL && high <= 1.0 + EQUAL;
    let apart = (middle - 1.0).abs() > SEEDS;
    let (more, less) = (apart && low > 1.0, apart && high < 1.0);
    let beyond = low > 1.0 + EQUAL || high < 1.0 - EQUAL;
    let (holds, turned) = match relation {
        Relation::Greater => (more, less),
        Relation::Less => (less, more),
        Relation::Equal => (within, beyond),
    };
    match (holds, turned) {
        (true, _) => Finding::Holds,
        (_, true) => Finding::TurnedRound,
        _ if within => Finding::Alike,
        _ => Finding::NotDecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_the_looks_and_varies_as_the_first() {
        let looks = [(2.0, 1.0), (3.0, 1.0), (8.0, 2.0)];
        let varied = [(2.0, 2.0), (3.0, 1.0)];
        assert_eq!(ratio(&looks, &varied), Some((3.0, 1.5, 4.5)));
        assert_eq!(ratio(&looks, &[]), Some((3.0, 3.0, 3.0)));
        assert_eq!(ratio(&[(1.0, 0.0)], &varied), None);
    }

    #[test]
    fn a_claim_is_decided_where_no_variation_says_otherwise() {
        let (more, less, equal) = (Relation::Greater, Relation::Less, Relation::Equal);
        for (relation, ratio, expected) in [
            (more, (1.4, 1.02, 2.3), Finding::Holds),
            (more, (1.4, 0.98, 2.3), Finding::NotDecided),
            (more, (0.7, 0.6, 0.9), Finding::TurnedRound),
            (less, (0.7, 0.6, 0.9), Finding::Holds),
            (less, (1.4, 1.02, 2.3), Finding::TurnedRound),
            // A difference is claimed where there is none.
            (more, (1.02, 0.95, 1.08), Finding::Alike),
            (less, (0.97, 0.96, 1.07), Finding::Alike),
            // On one side of 1, but no farther from it than seeds bring it.
            (more, (0.995, 0.77, 0.999), Finding::NotDecided),
            (more, (1.005, 1.001, 1.008), Finding::Alike),
            (equal, (1.0, 0.91, 1.09), Finding::Holds),
            (equal, (1.11, 1.08, 1.25), Finding::NotDecided),
            (equal, (1.4, 1.2, 1.5), Finding::TurnedRound),
        ] {
            assert_eq!(finding(relation, ratio), expected, "{relation:?} {ratio:?}");
        }
    }

    #[test]
    fn files_from_before_there_were_two_words_are_read() {
        let read = |word: &str| serde_json::from_str::<Finding>(word).unwrap();
        assert_eq!(read("\"no-difference\""), Finding::NotDecided);
        assert_eq!(read("\"not-decided\""), Finding::NotDecided);
        assert_eq!(read("\"alike\""), Finding::Alike);
    }
}

//! Whether a claim of a paper holds here, and in which sense.
//!
//! A claim about N cores is not judged on fewer: neither "less" nor "more" says anything then, as
//! what loses on two cores may win on four. What does not depend on the number of cores is how much
//! processor time an organization spends on a byte, relative to one thread's without locks (`up`).
//! A published ratio of throughputs bounds that, and so is judged by it wherever the machine is too
//! small for the throughput itself.

use super::curve::{Curve, Point, in_ratios};
use crate::{
    metric::Metric,
    plan::{Mode, Plan},
    published::{Claim, EQUAL, Pairs, Relation},
    stats::{Comparison, Interval, Verdict, compare},
};

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
    pub(super) fn holds(self) -> bool {
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
    /// Names of its two sides here.
    pub sides: (String, String),
    /// What is found in all.
    pub finding: Finding,
    /// By x.
    pub evidence: Vec<Evidence>,
    /// What it comes to in processor time, where only that can be judged here.
    pub cost: Option<Cost>,
}

/// Processor time for each byte, a's to b's, that follows from a claim about their throughputs.
///
/// With cores a and b keep `busy` throughputs are `busy` divided by that time, so a/b of the times is
/// the cores of a over the cores of b, divided by a/b of the throughputs. That takes both for busy all
/// the time: idle cores of a make it less, so it is the most that the claim allows where b has one
/// core and uses it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Implied {
    /// From a published ratio, or from the ends of a range of them: the least and the greatest.
    Size(f64, f64),
    /// No ratio is published: a has more throughput as long as it takes less than this.
    Below(f64),
}

impl Implied {
    /// What a claim implies if `cores` are those of a and of b; `None` if it implies no bound.
    pub fn of(claim: &Claim, cores: (usize, usize)) -> Option<Implied> {
        let most = cores.0 as f64 / cores.1 as f64;
        match (claim.range(), claim.relation) {
            (Some((low, high)), _) => Some(Implied::Size(most / high, most / low)),
            (None, Relation::Greater) => Some(Implied::Below(most)),
            (None, Relation::Less | Relation::Equal) => None,
        }
    }

    /// The ratio as a range, if one follows.
    pub fn range(self) -> Option<(f64, f64)> {
        match self {
            Implied::Size(low, high) => Some((low, high)),
            Implied::Below(_) => None,
        }
    }

    /// What a measured ratio of processor times says of it.
    fn finding(self, here: &Comparison) -> Finding {
        match self {
            Implied::Size(low, high) => finding(direction(low, high), self.range(), here),
            Implied::Below(most) => below(most, here),
        }
    }
}

/// A claim about throughputs with more cores than there are, judged by processor time.
#[derive(Debug, Clone)]
pub struct Cost {
    /// What the claim implies.
    pub implied: Implied,
    /// What is found in all.
    pub finding: Finding,
    /// By x.
    pub evidence: Vec<Evidence>,
}

/// Judges a claim on a machine of `cores` cores.
pub(super) fn judge(claim: &'static Claim, plan: &Plan, curves: &[Curve], cores: usize) -> Judged {
    let find = |series: &str| {
        let mut curves = curves.iter();
        curves.find(|c| c.published.as_deref() == Some(series))
    };
    let all: Option<Vec<&Curve>> = claim.series().map(find).collect();
    let sides = find(&claim.a.series).zip(find(&claim.b.series));
    let (Some(all), Some((a, b))) = (all, sides) else {
        return Judged {
            claim,
            sides: Default::default(),
            finding: Finding::NotMeasured,
            evidence: Vec::new(),
            cost: None,
        };
    };
    let needs_b = needs(b, plan);
    let most = all.iter().map(|c| needs(c, plan)).max().unwrap_or(1);
    let metrics = claim.metrics(plan.metric);
    let both = |m: Metric| metrics == (m, m);
    let paced = is_paced(plan);
    // What a byte costs does not depend on how many cores there are to pay it, as long as they are
    // busy.
    let needed = match both(Metric::CpuOwn) && !paced {
        true => 1,
        false => most,
    };
    let of = |metrics: (Metric, Metric), finding: &dyn Fn(&Comparison) -> Finding| {
        let values = |series: &str, x, m| Some(find(series)?.at(x)?.values(m));
        let compared = (in_ratios(metrics.0, &all), in_ratios(metrics.1, &all));
        let xs: Vec<u64> = a.points.iter().map(|p| p.x).collect();
        let pairs = claim.pairs(compared, &xs, values);
        evidence(pairs, (a, b), metrics.0, finding)
    };
    let evidence = of(metrics, &|here| match needed > cores {
        true => Finding::NeedsCores(needed),
        false => finding(claim.relation, claim.range(), here),
    });
    // Relative to one thread, which is what the cost of all others is a multiple of.
    let is_cost = needed > cores && needs_b == 1 && both(Metric::Goodput) && !paced;
    let implied = Implied::of(claim, (needs(a, plan), needs_b)).filter(|_| is_cost);
    let cost = |implied: Implied| {
        let own = (Metric::CpuOwn, Metric::CpuOwn);
        let evidence = of(own, &|here| implied.finding(here));
        // There is none where the time of the peer was not recorded.
        (!evidence.is_empty()).then(|| Cost {
            implied,
            finding: in_all(&evidence),
            evidence,
        })
    };
    Judged {
        claim,
        sides: (a.name.clone(), b.name.clone()),
        finding: in_all(&evidence),
        evidence,
        cost: implied.and_then(cost),
    }
}

/// Whether links are the limit here: no core is busy all the time then, and what a byte costs is
/// mostly falling asleep and waking.
fn is_paced(plan: &Plan) -> bool {
    let cells = plan.cells(Mode::Normal, None).unwrap_or_default();
    cells.iter().any(|c| c.settings.link_gbps.is_some())
}

/// The cores that a curve's throughput was published for.
fn needs(curve: &Curve, plan: &Plan) -> usize {
    let single = curve.organization.as_ref();
    match single.is_some_and(|o| o.single_threaded()) {
        true => 1,
        false => plan.cores.unwrap_or(1),
    }
}

/// What is found at each place of a claim, whose sides are of `curves`.
fn evidence(
    pairs: Vec<Pairs>,
    curves: (&Curve, &Curve),
    metric: Metric,
    finding: &dyn Fn(&Comparison) -> Finding,
) -> Vec<Evidence> {
    let one = |Pairs { x, values }: Pairs| {
        let comparison = compare(&values)?;
        let points = curves.0.at(x.0).zip(curves.1.at(x.1));
        Some(Evidence {
            x,
            finding: finding(&comparison),
            comparison,
            counters: points.map_or(Vec::new(), |(a, b)| counters(metric, a, b)),
        })
    };
    pairs.into_iter().filter_map(one).collect()
}

/// What a range of ratios says of a against b.
fn direction(low: f64, high: f64) -> Relation {
    match (low > 1.0, high < 1.0) {
        (true, _) => Relation::Greater,
        (_, true) => Relation::Less,
        _ => Relation::Equal,
    }
}

/// What a measured ratio says of a published relation, with its size as a range if it has one.
fn finding(relation: Relation, range: Option<(f64, f64)>, here: &Comparison) -> Finding {
    match (relation, here.verdict) {
        (_, Verdict::TooFew) => Finding::TooFew,
        (Relation::Equal, verdict) => equality(verdict, here.interval),
        (Relation::Greater, Verdict::Greater) | (Relation::Less, Verdict::Less) => {
            size(range, here)
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

/// Whether a ratio is below what a claim without one allows.
fn below(most: f64, here: &Comparison) -> Finding {
    match here.interval.filter(Interval::is_evidence) {
        None => Finding::TooFew,
        Some(i) if i.high < most => Finding::Direction,
        Some(i) if i.low > most => Finding::Opposite,
        Some(_) => Finding::Inconclusive,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::published;

    /// Seven pairs whose ratios go from `low` to `high`, evenly: these are the ends of the interval.
    fn seen(low: f64, high: f64) -> Comparison {
        let ratio = |i: u32| low + (high - low) * f64::from(i) / 6.0;
        let pairs: Vec<(f64, f64)> = (0..7).map(|i| (ratio(i), 1.0)).collect();
        compare(&pairs).unwrap()
    }

    #[test]
    fn equality_is_an_interval_within_a_tenth() {
        let table = [
            (0.98, 0.99, Finding::Same),
            (0.99, 1.01, Finding::Same),
            (1.02, 1.09, Finding::Same),
            (0.90, 1.10, Finding::Same),
            (0.89, 1.00, Finding::Inconclusive),
            (1.05, 1.20, Finding::Inconclusive),
            (0.80, 1.20, Finding::Inconclusive),
            (0.70, 0.85, Finding::Opposite),
            (1.11, 1.30, Finding::Opposite),
        ];
        for (low, high, expected) in table {
            let found = finding(Relation::Equal, None, &seen(low, high));
            assert_eq!(found, expected, "{low} to {high}");
        }
        // As narrow, and of too few pairs.
        let few = compare(&[(0.98, 1.0), (0.99, 1.0)]).unwrap();
        assert_eq!(finding(Relation::Equal, None, &few), Finding::TooFew);
    }

    #[test]
    fn direction_and_size() {
        let table = [
            (2.0, 2.4, Finding::Same),
            // The interval is off, its middle within a tenth.
            (2.40, 2.44, Finding::Same),
            (3.0, 3.5, Finding::Larger),
            (1.2, 1.4, Finding::Smaller),
            (0.9, 1.2, Finding::Inconclusive),
            (0.4, 0.6, Finding::Opposite),
        ];
        for (low, high, expected) in table {
            let found = finding(Relation::Greater, Some((2.26, 2.26)), &seen(low, high));
            assert_eq!(found, expected, "{low} to {high}");
        }
        let none = finding(Relation::Greater, None, &seen(1.2, 1.4));
        assert_eq!(none, Finding::Direction);
        // The other way, a smaller ratio is a larger difference.
        let larger = finding(Relation::Less, Some((0.82, 0.82)), &seen(0.4, 0.5));
        assert_eq!(larger, Finding::Larger);
    }

    /// The study's claims in processor time: 4 cores by the published ratio of throughputs.
    #[test]
    fn what_claims_of_four_cores_imply() {
        let throughput = published().experiment("throughput").unwrap();
        let implied = |id: &str, cores| {
            let claim = throughput.claims.iter().find(|c| c.id == id).unwrap();
            Implied::of(claim, cores)
        };
        let table = [
            ("msgp-6", 4.88),
            ("msgp-16384", 2.47),
            ("connp-l-16384", 1.77),
            ("connp-t-6", 5.19),
        ];
        for (id, expected) in table {
            let (low, high) = implied(id, (4, 1)).unwrap().range().unwrap();
            assert!(low == high && (low - expected).abs() < 0.01, "{id}: {low}");
        }
        assert_eq!(implied("connp-l-up", (4, 1)), Some(Implied::Below(4.0)));
        assert_eq!(implied("connp-t-steady", (4, 1)), None);
    }

    #[test]
    fn processor_time_is_judged_by_what_is_implied() {
        let table = [
            (Implied::Size(4.88, 4.88), 4.9, 5.7, Finding::Same),
            (Implied::Size(2.47, 2.47), 3.4, 4.6, Finding::Larger),
            (Implied::Size(1.77, 1.77), 1.2, 1.4, Finding::Smaller),
            (Implied::Size(1.77, 1.77), 0.6, 0.9, Finding::Opposite),
            (Implied::Size(1.77, 1.77), 0.9, 1.2, Finding::Inconclusive),
            (Implied::Below(4.0), 1.5, 2.5, Finding::Direction),
            (Implied::Below(4.0), 3.5, 4.5, Finding::Inconclusive),
            (Implied::Below(4.0), 4.5, 5.5, Finding::Opposite),
        ];
        for (implied, low, high, expected) in table {
            let found = implied.finding(&seen(low, high));
            assert_eq!(found, expected, "{implied:?}: {low} to {high}");
        }
        let few = compare(&[(2.0, 1.0)]).unwrap();
        assert_eq!(Implied::Below(4.0).finding(&few), Finding::TooFew);
    }
}

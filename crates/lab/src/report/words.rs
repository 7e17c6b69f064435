//! Conclusions in words, each computed from what was measured.

use super::{
    analysis::{Cores, Curve, Evidence, Finding, Judged, Result, compare_points, in_ratios},
    choice::{Choice, two},
    judge::{Cost, Implied},
    names::Unit,
    svg::number,
};
use crate::{
    host::Host,
    metric::Metric,
    published::{Claim, Kind, Point},
    record::Header,
    stats::{Comparison, ENOUGH, Interval, Spread, Verdict},
    units,
};

/// Median with the interval that holds it, in the unit that the metric is shown in.
pub(super) fn value(spread: &Spread, interval: Option<Interval>, metric: Metric) -> String {
    let by = Unit::of(metric).factor;
    let of = |v: f64| number(v * by);
    match interval {
        Some(i) if i.low != i.high => {
            format!("{} ({}–{})", of(spread.median), of(i.low), of(i.high))
        }
        _ => of(spread.median),
    }
}

/// A published number, multiplied to be shown, and marked if it isn't printed as it is.
pub(super) fn published(point: &Point, by: f64) -> String {
    let mark = match point.kind {
        Kind::Exact => "",
        Kind::About => "≈",
        Kind::Derived => "*",
    };
    format!("{}{mark}", number(point.y * by))
}

/// A ratio with its interval.
pub(super) fn ratio(c: &Comparison) -> String {
    let two = |v: f64| match v.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v < 0.095 => format!("{v:.3}"),
        v => format!("{v:.2}"),
    };
    match c.interval {
        Some(i) => format!("{} times ({}–{})", two(c.ratio), two(i.low), two(i.high)),
        None => format!("{} times", two(c.ratio)),
    }
}

/// What a claim says as a ratio.
pub(super) fn claimed(claim: &Claim) -> String {
    match claim.range() {
        Some((low, high)) if low == high => format!("{} times", number(low)),
        Some((low, high)) => format!("{} to {} times", number(low), number(high)),
        None => match claim.relation {
            crate::published::Relation::Greater => "more".into(),
            crate::published::Relation::Less => "less".into(),
            crate::published::Relation::Equal => "no difference".into(),
        },
    }
}

/// Where a comparison stands, for example `at 192`, or `128 against 4`.
fn place(e: &Evidence) -> String {
    match e.x {
        (a, b) if a == b => format!("at {}", number(a as f64)),
        (a, b) => format!("{} vs {}", number(a as f64), number(b as f64)),
    }
}

/// How each curve stands to the one that the plan has others relative to, where no published claim
/// says what is to be compared.
pub(super) fn against(r: &Result) -> Vec<String> {
    let base = r.plan.relative_to.filter(|_| r.plan.published.is_none());
    let Some(base) = base.and_then(|i| r.curves.get(i)) else {
        return Vec::new();
    };
    let others = r.curves.iter().filter(|c| c.name != base.name);
    others.filter_map(|c| stands(c, base, r)).collect()
}

fn stands(curve: &Curve, base: &Curve, r: &Result) -> Option<String> {
    let metric = in_ratios(r.plan.metric, &[curve, base]);
    let at = |p: &super::analysis::Point| {
        let c = compare_points(p, base.at(p.x)?, metric)?;
        let verdict = match c.verdict {
            Verdict::Greater => "more",
            Verdict::Less => "less",
            Verdict::NoDifference => "no significant difference",
            Verdict::TooFew => "too few runs to tell",
        };
        let (x, of) = (number(p.x as f64), r.plan.axis.of(p.x));
        Some(format!("{} at {x} {of}, {verdict}", ratio(&c)))
    };
    let places: Vec<String> = curve.points.iter().filter_map(at).collect();
    let comparable = match curve.comparable {
        true => "",
        false => " (not comparable)",
    };
    let (name, of) = (&curve.name, &base.name);
    let what = short(metric);
    (!places.is_empty()).then(|| {
        format!(
            "{what} of {name}{comparable} vs {of}: {}",
            places.join("; ")
        )
    })
}

/// Places up to which each is told by itself.
const FEW: usize = 3;

/// What was measured for a claim: a sentence for each place, or for all with one finding.
pub(super) fn here(judged: &Judged) -> Vec<String> {
    lines(&judged.evidence, judged.claim.range())
}

/// What a claim about more cores implies for processor time, in words.
pub(super) fn implied(cost: &Cost) -> String {
    match cost.implied {
        Implied::Size(low, high) if low == high => format!("at most {} times", two(low)),
        Implied::Size(low, high) => format!("at most {} to {} times", two(low), two(high)),
        Implied::Below(most) => format!("below {} times", number(most)),
    }
}

/// What was measured of that. The published ratio is a bound, so whether an interval holds it says
/// nothing.
pub(super) fn cost_here(cost: &Cost) -> Vec<String> {
    lines(&cost.evidence, None)
}

fn lines(all: &[Evidence], published: Option<(f64, f64)>) -> Vec<String> {
    if all.len() <= FEW {
        let several = all.len() > 1;
        return all.iter().map(|e| at_one(published, e, several)).collect();
    }
    let mut findings: Vec<_> = all.iter().map(|e| e.finding).collect();
    findings.sort_unstable();
    findings.dedup();
    let with = |f| {
        all.iter()
            .filter(move |e| e.finding == f)
            .collect::<Vec<_>>()
    };
    findings
        .into_iter()
        .map(|f| match f {
            Finding::NeedsCores(_) => at_many("", &with(f)),
            f => at_many(&format!("{} ", f.words()), &with(f)),
        })
        .collect()
}

fn at_one(published: Option<(f64, f64)>, e: &Evidence, several: bool) -> String {
    let pairs = e.comparison.pairs;
    let plural = if pairs == 1 { "" } else { "s" };
    let mut text = format!(
        "{}: {}, {pairs} pair{plural}",
        place(e),
        ratio(&e.comparison)
    );
    if matches!(e.finding, Finding::NeedsCores(_)) {
        return text;
    }
    if several {
        text.push_str(&format!(", {}", e.finding.words()));
    }
    let evidence = e.comparison.interval.filter(Interval::is_evidence);
    if let (Some((low, high)), Some(i)) = (published, evidence) {
        text.push_str(match i.low <= high && low <= i.high {
            true => "; the published ratio is within the interval",
            false => "; the published ratio is outside the interval",
        });
    }
    text
}

fn at_many(finding: &str, evidence: &[&Evidence]) -> String {
    let places: Vec<String> = evidence.iter().map(|e| number(e.x.0 as f64)).collect();
    let ratios = || evidence.iter().map(|e| e.comparison.ratio);
    let least = ratios().fold(f64::INFINITY, f64::min);
    let most = ratios().fold(0.0, f64::max);
    let range = match places.len() {
        1 => format!("{least:.2} times"),
        _ => format!("{least:.2} to {most:.2} times"),
    };
    format!("{finding}at {}: {range}", places.join(", "))
}

/// The counters of a claim's sides at the last of its places, where they differ by more than a tenth.
pub(super) fn counters(judged: &Judged) -> Option<String> {
    let e = judged.evidence.last()?;
    let apart = |a: f64, b: f64| (a - b).abs() > 0.1 * a.abs().max(b.abs());
    let parts: Vec<String> = e
        .counters
        .iter()
        .filter(|(_, a, b)| apart(*a, *b))
        .map(|(m, a, b)| {
            let unit = Unit::of(*m);
            let (a, b) = (number(a * unit.factor), number(b * unit.factor));
            format!("{} {a} vs {b} {}", short(*m), unit.name)
        })
        .collect();
    let sides = match &judged.sides {
        (a, b) if a == b => a.clone(),
        (a, b) => format!("{a} vs {b}"),
    };
    (!parts.is_empty()).then(|| format!("{sides}, {}: {}.", place(e), parts.join("; ")))
}

/// A metric in two words.
fn short(m: Metric) -> &'static str {
    match m {
        Metric::Goodput => "goodput",
        Metric::GoodputOwn => "goodput without the peer's time",
        Metric::GoodputPerCpu => "goodput per CPU second",
        Metric::Stack => "stack time per segment",
        Metric::Cpu => "processor time per segment",
        Metric::CpuOwn => "processor time per segment without the peer's",
        Metric::Contended => "contended acquisitions",
        Metric::RouteContended => "contended acquisitions of the route table's lock",
        Metric::LockWait => "lock waits per segment",
        Metric::Switches => "context switches",
        Metric::Rounds => "round trips",
        Metric::Datagrams => "datagrams",
        Metric::Lost => "datagrams lost",
        Metric::Latency => "mean round trip",
        Metric::LatencyP50 => "median round trip",
        Metric::LatencyP99 => "99th percentile",
        Metric::Hold => "connection locks held",
        Metric::HoldWait => "waiting for connection locks",
        Metric::HoldContended => "contended connection locks",
        Metric::Scheduler => "hand-overs",
        Metric::Migrations => "migrations",
        Metric::Connects => "connections per second",
        Metric::OpenToClose => "from opening to close",
        Metric::OpenToCloseP99 => "from opening to close, 99th percentile",
        Metric::Listens => "listeners per second",
        Metric::ListenToClose => "from listen to close",
        Metric::RunDelay => "waiting for a core",
        m @ (Metric::L2 | Metric::L2Of(_) | Metric::L2Coherence | Metric::L2Here) => m.label(),
        Metric::FirstLevel => "L1 misses",
        Metric::LastLevel => "last-level misses",
        Metric::Instructions => "instructions",
        Metric::Cycles => "cycles",
    }
}

/// What there is to say of the best organization for a load, behind its name.
pub(super) fn advice(choice: &Choice, metric: Metric) -> String {
    let mut text = choice.value(metric);
    if let (Some(margin), Some(sure)) = (choice.margin(), choice.sure()) {
        text.push_str(&format!(", {margin} ({})", sure.words()));
    }
    let list = |items: &[(String, f64)]| {
        let mut items = items.to_vec();
        items.sort_by(|a, b| b.1.total_cmp(&a.1));
        let one = |(name, ratio): &(String, f64)| format!("{name} {ratio:.2} ×");
        items.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    for (what, items) in [("tied", &choice.equals), ("slower", &choice.behind)] {
        if !items.is_empty() {
            text.push_str(&format!("; {what}: {}", list(items)));
        }
    }
    if !choice.unknown.is_empty() {
        let names = choice.unknown.join(", ");
        text.push_str(&format!("; too few runs to compare: {names}"));
    }
    text
}

/// What a reader has to know about how disturbed the runs were.
pub(super) fn disturbed(r: &Result) -> Option<String> {
    if r.disturbed == 0 {
        return None;
    }
    let signs: Vec<String> = r
        .signs
        .iter()
        .map(|(sign, n)| format!("{sign} ({n})"))
        .collect();
    Some(format!(
        "{}: {}.",
        units::noisy(r.disturbed, r.measured),
        signs.join("; ")
    ))
}

/// Whether the machine has the cores that the published figure was measured on.
pub(super) fn cores(r: &Result, host: &Host) -> Option<String> {
    let wanted = r.plan.cores.filter(|n| *n > host.cores)?;
    let costs = match r.claims.iter().any(|c| c.cost.is_some()) {
        true => " Processor time per byte can.",
        false => "",
    };
    Some(format!(
        "Published for {wanted} cores; this machine has {}. What needs more cores cannot be seen here \
         (perimeter lab predict {} --cores {wanted} predicts what virtual cores can run).{costs}",
        host.cores, r.plan.name
    ))
}

/// What is folded of a list of claims, which is not empty.
pub(super) fn open(claims: &[&Judged]) -> String {
    let missing = |c: &&&Judged| c.finding == Finding::NotMeasured;
    let not_measured = claims.iter().filter(missing).count();
    let more = match claims {
        [_] => "1 more claim".to_string(),
        many => format!("{} more claims", many.len()),
    };
    match not_measured {
        0 => format!("{more}, about more cores"),
        n if n == claims.len() => format!("{more}, not measured here"),
        _ => format!("{more}, about more cores or not measured here"),
    }
}

/// How many runs a result has, how many of them are to be doubted, and what it lacks.
pub(super) fn runs(r: &Result) -> String {
    let cores = match r.cores {
        Cores::Any => "",
        Cores::Near => " with near cores",
        Cores::Far => " with far cores",
    };
    let mut text = format!("{}{cores}", units::runs(r.measured));
    if r.disturbed > 0 {
        text.push_str(&format!(", {} disturbed", r.disturbed));
    }
    match r.points() {
        (_, 0) => {}
        (points, few) if points == few => text.push_str(&format!(", no point with {ENOUGH}")),
        (points, few) => {
            let lack = format!(", {few} of {points} points with fewer than {ENOUGH}");
            text.push_str(&lack);
        }
    }
    text
}

/// The machine in a line.
pub(super) fn machine(host: &Host) -> String {
    format!(
        "{}, {} cores, {} GiB, {}, {}",
        host.cpu,
        host.cores,
        (host.memory_bytes + (1 << 29)) >> 30,
        host.kernel,
        host.arch
    )
}

/// The program in a line.
pub(super) fn program(header: &Header) -> String {
    let commit = header.build.commit.as_deref();
    let commit = commit.map_or(String::new(), |c| format!(" ({c})"));
    let debug = match header.build.debug {
        true => ", built without optimisation: the figures mean little",
        false => "",
    };
    format!("perimeter {}{commit}{debug}", header.build.version)
}

/// A day of the proleptic Gregorian calendar, from seconds since 1970 UTC.
///
/// Years are counted from March, so that the day that may be missing is a year's last; 400 years
/// have 146,097 days.
pub(super) fn day(unix: u64) -> String {
    let days = unix / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days() {
        let table = [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_700_000_000, "2023-11-14"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (unix, text) in table {
            assert_eq!(day(unix), text);
        }
    }
}

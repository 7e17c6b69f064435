//! Every claim of the papers that a recording is about, as the table of docs/FINDINGS.md.

use crate::conclusions::whole;
use perimeter_lab::{
    predict::{self, Predictions},
    published::{Claim, Relation},
    report::analysis::{Cores, Evidence, Finding, Judged, Result},
};

/// Which of the numbered reasons in FINDINGS.md is one of a claim: by plan, and by the claims'
/// names; no name stands for all others of the plan.
const WHY: &[(&str, &[&str], &str)] = &[
    ("throughput", &["up-falls"], "1"),
    (
        "throughput",
        &[
            "connp-t-6",
            "connp-t-steady",
            "connp-t-heaviest",
            "perfect-connp-t",
        ],
        "5",
    ),
    (
        "throughput",
        &[
            "connp-l-16384",
            "connp-l-up",
            "connp-l-steady",
            "connp-l-falls",
            "perfect-connp-l",
        ],
        "4",
    ),
    ("throughput", &[], "2"),
    ("linux", &[], "12"),
    ("groups", &[], "7"),
    ("contention", &["route"], "3"),
    ("contention", &["connp-l-falls"], "4"),
    ("contention", &["msgp-rises", "msgp-connp-l"], "2"),
    ("contention", &[], "7"),
    ("locks", &[], "8"),
    ("scheduler", &[], "5"),
    ("lock-cost", &[], "2"),
    ("buffers", &[], "9"),
    ("jumbo", &[], "10"),
    ("listen", &[], "5"),
    ("coarse-locks", &[], "13"),
    ("dispatch", &[], "13"),
    ("threads", &[], "13"),
    ("cache", &[], "11"),
    ("pef-large", &[], "14"),
    ("pef-small", &[], "14"),
    ("pef-connections", &[], "14"),
    ("pef-messages", &[], "14"),
    ("pef-writes", &[], "14"),
    ("pef-latency", &[], "15"),
];

/// A few digits.
fn two(v: f64) -> String {
    match v {
        v if v >= 100.0 => whole(v),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

fn published(claim: &Claim) -> String {
    match (claim.range(), claim.relation) {
        (Some((low, high)), _) if low == high => two(low),
        (Some((low, high)), _) => format!("{} to {}", two(low), two(high)),
        (None, Relation::Greater) => "more".into(),
        (None, Relation::Less) => "less".into(),
        (None, Relation::Equal) => "equal".into(),
    }
}

/// The ratio with its interval and, of several, the least and the greatest.
fn here(evidence: &[Evidence]) -> String {
    let ratios = || evidence.iter().map(|e| e.comparison.ratio);
    match evidence {
        [] => "–".into(),
        [e] => match e.comparison.interval {
            Some(i) => {
                let ratio = two(e.comparison.ratio);
                format!("{ratio} ({}-{})", two(i.low), two(i.high))
            }
            None => two(e.comparison.ratio),
        },
        _ => {
            let least = ratios().fold(f64::INFINITY, f64::min);
            let most = ratios().fold(0.0, f64::max);
            format!("{} to {} at {}", two(least), two(most), evidence.len())
        }
    }
}

/// What is found: by processor time where the claim is about more cores and says something of that.
fn found(c: &Judged) -> (String, Finding) {
    let Some(cost) = &c.cost else {
        return (c.finding.words(), c.finding);
    };
    let implied = cost.implied.range();
    let most = implied.map_or("below 4".into(), |(low, _)| format!("at most {}", two(low)));
    let time = here(&cost.evidence);
    let words = cost.finding.words();
    let text = format!("processor time {most}, here {time}: {words}");
    (text, cost.finding)
}

fn why(plan: &str, claim: &str) -> &'static str {
    let of = |named: bool| {
        let mut all = WHY
            .iter()
            .filter(|(p, ids, _)| *p == plan && ids.is_empty() != named);
        all.find(|(_, ids, _)| !named || ids.contains(&claim))
    };
    let found = of(true).or_else(|| of(false));
    found
        .unwrap_or_else(|| panic!("no reason for {plan}: {claim}"))
        .2
}

/// What is predicted for the papers' own machines.
pub struct Predicted {
    /// The study's.
    pub opteron: Predictions,
    /// Like that of PEF's paper.
    pub t1: Predictions,
}

impl Predicted {
    /// Of a claim: what is found at how many of the loads that it is made for, and the ratios.
    fn of(&self, plan: &str, claim: &str) -> String {
        use predict::Finding::{Alike, Holds, NotDecided, TurnedRound};
        let machine = match plan.starts_with("pef-") {
            true => &self.t1,
            false => &self.opteron,
        };
        let judged = machine.figure(plan).map_or(&[][..], |f| &f.claims);
        let judged: Vec<_> = judged.iter().filter(|c| c.id == claim).collect();
        let n = judged.len();
        if n == 0 {
            return "–".into();
        }
        let words = [
            (Holds, "holds"),
            (TurnedRound, "turned round"),
            (Alike, "no difference"),
            (NotDecided, "not decided"),
        ];
        let parts = words.iter().filter_map(|(finding, word)| {
            match judged.iter().filter(|c| c.finding == *finding).count() {
                0 => None,
                all if all == n => Some(word.to_string()),
                some => Some(format!("{word} at {some} of {n}")),
            }
        });
        let parts: Vec<String> = parts.collect();
        let ratios = || judged.iter().map(|c| c.ratio.0);
        let least = ratios().fold(f64::INFINITY, f64::min);
        let most = ratios().fold(0.0, f64::max);
        let ratio = match n {
            1 => two(least),
            _ => format!("{} to {}", two(least), two(most)),
        };
        format!("{}: {ratio}", parts.join(", "))
    }
}

/// A row: the plan, the claim, what was published, what was found with near cores and with far
/// ones, the verdict, what is predicted, and the number of the reason.
fn row(plan: &str, near: &Judged, far: Option<&Judged>, predicted: &Predicted) -> String {
    let (mut verdict, finding) = found(near);
    let far = far.filter(|f| !f.evidence.is_empty());
    if let Some(far) = far {
        let (other, other_finding) = found(far);
        let tells = !matches!(other_finding, Finding::TooFew | Finding::NotMeasured);
        if other_finding != finding && tells {
            verdict = format!("{verdict}; far cores: {other}");
        }
    }
    format!(
        "| `{plan}` | {} | {} | {} | {} | {verdict} | {} | {} |",
        near.claim.text,
        published(near.claim),
        here(&near.evidence),
        far.map_or("–".into(), |f| here(&f.evidence)),
        predicted.of(plan, &near.claim.id),
        why(plan, &near.claim.id),
    )
}

/// The numbers of the reasons.
pub fn reasons() -> Vec<&'static str> {
    let mut all: Vec<&str> = WHY.iter().map(|w| w.2).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What the claims come to, and the table: of all plans but `cache`, and of that, the model; beside
/// what is predicted.
pub fn text(all: &[Result], model: &[Result], predicted: &Predicted) -> String {
    let measured = all.iter().filter(|r| !LEFT_OUT.contains(&&*r.plan.name));
    let both: Vec<&Result> = measured.chain(model).collect();
    let rows = rows(&both, predicted);
    let counts = tally(&both)
        .into_iter()
        .map(|(words, n)| format!("{words}: {n}"));
    format!(
        "{} claims. {}.\n\n| plan | claim | published | near cores | far cores | verdict | predicted | why \
         |\n|---|---|--:|--:|--:|---|---|--:|\n{}\n",
        rows.len(),
        counts.collect::<Vec<_>>().join("; "),
        rows.join("\n"),
    )
}

/// The same claims with paced ports, which are the limit for every organization: they have a sentence
/// of their own; and what is modelled, of which another recording tells.
const LEFT_OUT: [&str; 2] = ["ports", "cache"];

/// The rows of a recording, in the order of its plans.
fn rows(all: &[&Result], predicted: &Predicted) -> Vec<String> {
    let near = all.iter().filter(|r| r.cores != Cores::Far);
    let rows = near.flat_map(|r| {
        let mut others = all.iter().filter(|o| o.plan.name == r.plan.name);
        let far = others.find(|o| o.cores == Cores::Far);
        r.claims.iter().map(move |claim| {
            let same = |c: &&Judged| c.claim.id == claim.claim.id;
            let far = far.and_then(|f| f.claims.iter().find(same));
            row(&r.plan.name, claim, far, predicted)
        })
    });
    rows.collect()
}

/// What the claims come to: how many of them are judged at all, and how.
fn tally(all: &[&Result]) -> Vec<(String, usize)> {
    let mut tally: Vec<(String, usize)> = Vec::new();
    for claim in all
        .iter()
        .filter(|r| r.cores != Cores::Far)
        .flat_map(|r| &r.claims)
    {
        let words = found(claim).1.words();
        match tally.iter_mut().find(|(w, _)| *w == words) {
            Some((_, n)) => *n += 1,
            None => tally.push((words, 1)),
        }
    }
    tally
}

//! The sections of docs/FINDINGS.md on later recordings: their tables of claims and sentences, made
//! from the record.

use crate::conclusions::{Runs, class, whole};
use perimeter_lab::{
    metric::Metric,
    published::{Claim, Relation},
    record::Measured,
    report::analysis::{Evidence, Judged},
};
use perimeter_measure::workload::Locks;

/// Plans of the parallel study, in the order of the table.
pub const STUDY: &[&str] = &[
    "throughput",
    "linux",
    "groups",
    "contention",
    "locks",
    "scheduler",
    "lock-cost",
    "buffers",
    "jumbo",
    "listen",
];

/// Plans of what earlier studies found.
pub const EARLIER: &[&str] = &["coarse-locks", "dispatch", "threads"];

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

fn here(evidence: &[Evidence]) -> String {
    let ratios = || evidence.iter().map(|e| e.comparison.ratio);
    match evidence {
        [] => "–".into(),
        [e] => {
            let i = e.comparison.interval.unwrap();
            format!(
                "{} ({}-{})",
                two(e.comparison.ratio),
                two(i.low),
                two(i.high)
            )
        }
        _ => {
            let least = ratios().fold(f64::INFINITY, f64::min);
            let most = ratios().fold(0.0, f64::max);
            format!("{} to {} at {}", two(least), two(most), evidence.len())
        }
    }
}

/// A row: the claim, what was published and found, and the verdict, by processor time where the
/// claim is about more cores and says something of that.
fn row(c: &Judged) -> String {
    let verdict = match &c.cost {
        Some(cost) => {
            let implied = cost.implied.range();
            let most = implied.map_or("below 4".into(), |(low, _)| format!("at most {}", two(low)));
            let found = here(&cost.evidence);
            format!(
                "processor time {most}, here {found}: {}",
                cost.finding.words()
            )
        }
        None => c.finding.words(),
    };
    format!(
        "| {} | {} | {} | {verdict} |",
        c.claim.text,
        published(c.claim),
        here(&c.evidence)
    )
}

/// Every row of a table.
pub fn rows(runs: Runs<'_>, plans: &[&str]) -> Vec<String> {
    let of = |plan: &&str| runs.result(plan).claims.iter().map(row).collect::<Vec<_>>();
    plans.iter().flat_map(of).collect()
}

/// Every sentence on earlier studies that has figures.
pub fn earlier_sentences(runs: Runs<'_>) -> Vec<String> {
    let ratio = |plan: &str, a: &str, b: &str, x| runs.ratio(plan, a, b, x).ratio;
    let dispatch = |label: &str, x| ratio("dispatch", label, "direct dispatch", x);
    let many = "16 workers, a lock for each structure";
    let workers = |x| ratio("coarse-locks", many, "a lock for each structure", x);
    let threads = |x, metric| runs.metric("threads", "a thread for each connection", x, metric);
    let rings = |x, of: fn(&Measured, &Locks) -> f64| {
        runs.median("threads", "a thread for each connection", x, |m| {
            of(m, class(m, "tx_ring"))
        })
    };
    let switches = |label: &str| runs.metric("dispatch", label, 192, Metric::Switches);
    vec![
        format!(
            "one worker receives {:.2}, {:.2}, {:.2} and {:.2} of what the NICs' threads do at 1, 6, 192 and 2,048 connections",
            dispatch("one worker", 1),
            dispatch("one worker", 6),
            dispatch("one worker", 192),
            dispatch("one worker", 2048),
        ),
        format!(
            "16 workers send {:.2}, {:.2} and {:.2} of what `msgp` does without them at 1, 6 and 192 connections and receive {:.2} of it at 192, where they switch threads {:.0} times a MB instead of {:.0}",
            workers(1),
            workers(6),
            workers(192),
            dispatch("16 workers", 192),
            switches("16 workers"),
            switches("direct dispatch"),
        ),
        format!(
            "waits {} ns a segment for locks at 384 connections, {} of them for the NICs' transmit rings ({} µs each time), against {} at 6, and switches threads {:.0} times a MB instead of {:.0}",
            whole(threads(384, Metric::LockWait)),
            whole(rings(384, |m, l| l.wait_ns as f64 / m.raw.segments)),
            whole(rings(384, |_, l| l.wait_ns as f64
                / 1e3
                / l.contended as f64)),
            whole(threads(6, Metric::LockWait)),
            threads(384, Metric::Switches),
            threads(6, Metric::Switches),
        ),
    ]
}

/// Every sentence that has figures.
pub fn sentences(runs: Runs<'_>) -> Vec<String> {
    let of = |plan: &str, label: &str, x, metric| runs.metric(plan, label, x, metric);
    let ratio =
        |plan: &str, a: &str, b: &str, x, metric| of(plan, a, x, metric) / of(plan, b, x, metric);
    let sent = |label, x| ratio("throughput", label, "UP", x, Metric::Goodput);
    let interrupts = "UP, driven by interrupts";
    let hold = |label, x| whole(of("locks", label, x, Metric::Hold));
    let (turnstile, l_turnstile) = ("MsgP, turnstile locks", "ConnP-L(128), turnstile locks");
    let entry = |mode: &str, way: &str, x| {
        let (of, process) = (format!("{mode}, {way}"), format!("process, {way}"));
        ratio("entry-modes", &of, &process, x, Metric::Goodput)
    };
    vec![
        format!(
            "`up:shared` on one core, its NIC on a thread of its own, has {:.2} of `up`'s throughput at 6 connections, {:.2} at 192 and {:.2} at 16,384; queueing, parking and waking take {:.0}, {:.0} and {:.0} ns a KB",
            sent(interrupts, 6),
            sent(interrupts, 192),
            sent(interrupts, 16_384),
            of("scheduler", interrupts, 6, Metric::Scheduler),
            of("scheduler", interrupts, 192, Metric::Scheduler),
            of("scheduler", interrupts, 16_384, Metric::Scheduler),
        ),
        format!(
            "`connp-t:2` has {:.2}, {:.2} and {:.2} times the throughput of `connp-t:4` at 6, 192 and 16,384",
            ratio(
                "throughput",
                "ConnP-T, a thread a core",
                "ConnP-T(4)",
                6,
                Metric::Goodput
            ),
            ratio(
                "throughput",
                "ConnP-T, a thread a core",
                "ConnP-T(4)",
                192,
                Metric::Goodput
            ),
            ratio(
                "throughput",
                "ConnP-T, a thread a core",
                "ConnP-T(4)",
                16_384,
                Metric::Goodput
            ),
        ),
        format!(
            "at 16,384 connections a hold of a group's lock takes {} ns on average instead of {}, one of a connection's under MsgP {} instead of {}; at 6 they are alike ({} and {}, {} and {})",
            hold(l_turnstile, 16_384),
            hold("ConnP-L(128)", 16_384),
            hold(turnstile, 16_384),
            hold("MsgP", 16_384),
            hold(l_turnstile, 6),
            hold("ConnP-L(128)", 6),
            hold(turnstile, 6),
            hold("MsgP", 6),
        ),
        format!(
            "`entry=fill` costs {:.0} to {:.0} % of what `entry=process` sends and {:.0} to {:.0} % of what it receives",
            100.0 * (1.0 - entry("fill", "sending", 48)),
            100.0 * (1.0 - entry("fill", "sending", 6)),
            100.0 * (1.0 - entry("fill", "receiving", 48)),
            100.0 * (1.0 - entry("fill", "receiving", 6)),
        ),
    ]
}

/// Every sentence that has figures, of the recording whose sleepers were woken on time.
pub fn on_time_sentences(runs: Runs<'_>) -> Vec<String> {
    let three = |org: &str| {
        let ratio = |x| runs.ratio("throughput", org, "UP", x).ratio;
        [6, 192, 16_384].map(|x| format!("{:.2}", ratio(x)))
    };
    let [l6, l192, l_most] = three("ConnP-L(128)");
    let [m6, m192, m_most] = three("MsgP");
    vec![format!(
        "`connp-l:128` has {l6}, {l192} and {l_most} times `up`'s throughput at 6, 192 and 16,384 connections, `msgp` {m6}, {m192} and {m_most} times"
    )]
}

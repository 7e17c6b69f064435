//! The sentences of docs/FINDINGS.md that rest on figures, made from the records: each must stand
//! there as it is made here.

use perimeter_lab::{
    metric::Metric,
    published::published,
    record::Measured,
    report::{
        analysis::{Cores, Curve, Point, Result, compare_points, in_ratios},
        choice::{Choice, Sure, choices},
    },
};
use perimeter_measure::{
    stats::{Comparison, median},
    workload::Locks,
};

/// Results with near cores, or with far ones.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    pub all: &'a [Result],
    pub far: bool,
}

impl<'a> Runs<'a> {
    pub fn result(self, plan: &str) -> &'a Result {
        let is_far = |r: &Result| r.cores == Cores::Far;
        let mut of = self.all.iter().filter(|r| r.plan.name == plan);
        of.find(|r| is_far(r) == self.far).unwrap()
    }

    /// A curve by its label in the plan.
    fn curve(self, plan: &str, label: &str) -> &'a Curve {
        let mut curves = self.result(plan).curves.iter();
        curves.find(|c| c.label == label).unwrap()
    }

    fn at(self, plan: &str, label: &str, x: u64) -> &'a Point {
        self.curve(plan, label).at(x).unwrap()
    }

    pub fn metric(self, plan: &str, label: &str, x: u64, metric: Metric) -> f64 {
        self.at(plan, label, x).spread(metric).unwrap().median
    }

    pub fn median(self, plan: &str, label: &str, x: u64, of: impl Fn(&Measured) -> f64) -> f64 {
        let runs = self.at(plan, label, x).runs.values();
        median(&runs.map(of).collect::<Vec<_>>()).unwrap()
    }

    /// One curve against another at the same x, by the plan's own metric.
    pub fn ratio(self, plan: &str, a: &str, b: &str, x: u64) -> Comparison {
        let curves = [a, b].map(|name| self.curve(plan, name));
        let metric = in_ratios(self.result(plan).plan.metric, &curves);
        let (a, b) = (self.at(plan, a, x), self.at(plan, b, x));
        compare_points(a, b, metric).unwrap()
    }

    fn xs(self, plan: &str) -> Vec<u64> {
        let points = &self.result(plan).curves[0].points;
        points.iter().map(|p| p.x).collect()
    }
}

pub fn class<'a>(m: &'a Measured, name: &str) -> &'a Locks {
    m.locks.iter().find(|l| l.class == name).unwrap()
}

/// Contended acquisitions, per cent.
fn contended(m: &Measured, name: &str) -> f64 {
    let l = class(m, name);
    100.0 * l.contended as f64 / l.acquisitions as f64
}

/// Least and greatest.
fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    values
        .into_iter()
        .fold(ends, |(low, high), v| (low.min(v), high.max(v)))
}

/// With thousands apart.
pub fn whole(v: f64) -> String {
    let n = v.round() as u64;
    match n {
        0..1000 => n.to_string(),
        _ => format!("{},{:03}", n / 1000, n % 1000),
    }
}

/// All of them: of the recording of every plan, of a later one, of the one of the cache model, of the
/// one on another machine, and of an older one that has all peers.
pub fn sentences([every, later, model, xeon, old]: [&[Result]; 5]) -> Vec<String> {
    let runs = |all, far| Runs { all, far };
    let (near, far) = (runs(every, false), runs(every, true));
    let mut list = Vec::new();
    list.extend(distance(near, far));
    list.extend(costs(near));
    list.extend(locks(near));
    list.extend(groups(near));
    list.extend(interrupts(near));
    list.extend(hand_overs(near));
    list.extend(light_messages_and_latency(runs(later, false)));
    list.extend(conditions(near));
    list.extend(earlier_studies(near));
    list.extend(buffers_and_frames(near));
    list.extend(cache(runs(model, false)));
    list.push(one_thread_falls(near));
    list.extend(pef(near));
    list.extend(peers(runs(old, false)));
    list.extend(which(near, every));
    list.push(throughputs(near));
    list.push(throughputs(runs(xeon, false)));
    list
}

/// Three organizations against one thread, for few connections, more, and most.
fn throughputs(near: Runs<'_>) -> String {
    let three = |org: &str| {
        let ratio = |x| near.ratio("throughput", org, "UP", x).ratio;
        [6, 192, 16_384].map(|x| format!("{:.2}", ratio(x)))
    };
    let [l6, l192, l_most] = three("ConnP-L(128)");
    let [m6, m192, m_most] = three("MsgP");
    format!(
        "`connp-l:128` has {l6}, {l192} and {l_most} times `up`'s throughput at 6, 192 and 16,384 connections, `msgp` {m6}, {m192} and {m_most} times"
    )
}

/// What far cores cost those that receive, and what paced ports leave to tell.
fn distance(near: Runs<'_>, far: Runs<'_>) -> Vec<String> {
    let xs = near.xs("receive").into_iter().filter(|x| *x >= 6);
    let orgs = ["msgp", "squeue", "pef:vertical", "connp-l:128"];
    let one = |(x, label): (u64, &str)| {
        let of = |runs: Runs<'_>| runs.at("receive", label, x).spread(Metric::Goodput);
        Some(of(far)?.median / of(near)?.median)
    };
    let met: Vec<f64> = xs
        .flat_map(|x| orgs.map(|o| (x, o)))
        .filter_map(one)
        .collect();
    let ports = near.result("ports").claims.iter();
    let of_goodput = ports.filter(|c| c.claim.metric.is_none());
    let evidence = of_goodput.flat_map(|c| &c.evidence);
    let (least, most) = range(evidence.map(|e| e.comparison.ratio));
    vec![
        format!(
            "over six connections and more `msgp`, `squeue`, `pef:vertical` and `connp-l:128` have {:.2} times as much (median of the {} configurations that met both)",
            median(&met).unwrap(),
            met.len()
        ),
        format!("with paced ports {least:.2} to {most:.2}, as the ports are the limit"),
    ]
}

/// What MsgP's throughput comes to on two cores.
fn costs(near: Runs<'_>) -> Vec<String> {
    let claims = &near.result("throughput").claims;
    let claim = claims.iter().find(|c| c.claim.id == "msgp-16384").unwrap();
    let of_two = 2.0 * claim.claim.ratio.unwrap() / 4.0;
    vec![format!(
        "would by this reach {of_two:.2} of its uniprocessor on two cores"
    )]
}

fn locks(near: Runs<'_>) -> Vec<String> {
    let of = |label, x, metric| near.metric("throughput", label, x, metric);
    let table = |x, class| near.median("throughput", "MsgP", x, |m| contended(m, class));
    let cost = |label, x| near.metric("lock-cost", label, x, Metric::Stack);
    let one = |x| 100.0 * (cost("up:shared, one lock", x) / cost("up, no locks", x) - 1.0);
    let (least, most) = range([6, 192, 16_384].map(one));
    let many = near.xs("throughput").into_iter().filter(|x| *x > 6);
    let (conn, route) = (
        range(many.clone().map(|x| table(x, "conn_hashtable"))),
        range(many.map(|x| table(x, "route_hashtable"))),
    );
    vec![
        format!(
            "Without locks a segment costs {:.0} ns of stack time at 6 connections; under MsgP {:.0} ns and {:.0} ns of waiting on top, at {:.0} % contention of `conn_hashtable`",
            of("UP", 6, Metric::Stack),
            of("MsgP", 6, Metric::Stack),
            of("MsgP", 6, Metric::LockWait),
            table(6, "conn_hashtable"),
        ),
        format!(
            "({:.0} against {:.0} ns at 16,384), while one lock around the whole stack costs {least:.0} to {most:.0} %",
            cost("up, no locks", 16_384),
            cost("msgp, a lock for each structure", 16_384),
        ),
        format!(
            "A segment costs MsgP {:.0} ns of processor time at 16,384 connections without the ideal peer's, where `up` takes {:.0}",
            of("MsgP", 16_384, Metric::CpuOwn),
            of("UP", 16_384, Metric::CpuOwn),
        ),
        format!(
            "from 24 connections on {:.0} to {:.0} % of its acquisitions are contended, of the connection table's {:.0} to {:.0} %; at 6 connections {:.0} and {:.0} %",
            route.0,
            route.1,
            conn.0,
            conn.1,
            table(6, "route_hashtable"),
            table(6, "conn_hashtable"),
        ),
    ]
}

fn groups(near: Runs<'_>) -> Vec<String> {
    let of = |x, f: fn(&Measured) -> f64| near.median("throughput", "ConnP-L(128)", x, f);
    let busy = |m: &Measured| m.raw.cpu_ns as f64 / (m.raw.seconds * 1e9);
    let idle = |m: &Measured| 100.0 * m.raw.idle_ns as f64 / m.raw.thread_ns as f64;
    let wait = |m: &Measured| {
        let l = class(m, "group");
        l.wait_ns as f64 / l.contended as f64 / 1e3
    };
    let waits = |x| near.median("locks", "ConnP-L(128)", x, wait);
    let hold = |x| near.metric("locks", "ConnP-L(128)", x, Metric::Hold) / 1e3;
    let many = near.xs("throughput").into_iter().filter(|x| *x > 6);
    let up = |x| near.ratio("throughput", "ConnP-L(128)", "UP", x).ratio;
    let (least, most) = range(many.clone().map(up));
    let meet = |label: &str, x| near.metric("contention", label, x, Metric::Contended);
    let gain = near.metric("groups", "192 connections", 128, Metric::Goodput)
        / near.metric("groups", "192 connections", 4, Metric::Goodput);
    vec![
        format!(
            "It keeps {:.2} of the two cores busy, its threads sleep {:.0} % of their time, and {:.2} % of acquisitions of a group's lock are contended",
            of(6, busy),
            of(6, idle),
            of(6, |m| contended(m, "group")),
        ),
        format!(
            "waking them takes {:.1} context switches a MB",
            near.metric("throughput", "ConnP-L(128)", 6, Metric::Switches),
        ),
        format!(
            "{:.2} at 6; {least:.2} to {most:.2} at the ten other loads",
            up(6)
        ),
        format!(
            "with 384 connections it keeps {:.2} of them busy",
            of(384, busy)
        ),
        format!(
            "a wait for a group's lock takes {:.0} µs at 192 connections and {:.0} at 16,384, where a hold takes {:.2} and {:.2} µs on average",
            waits(192),
            waits(16_384),
            hold(192),
            hold(16_384),
        ),
        format!(
            "from 4 to 128 groups contention falls from {:.1} to {:.2} % at 16,384 connections and from {:.1} to {:.2} % at 192, where goodput rises {gain:.2} times",
            meet("ConnP-L(4)", 16_384),
            meet("ConnP-L(128)", 16_384),
            meet("ConnP-L(4)", 192),
            meet("ConnP-L(128)", 192),
        ),
    ]
}

/// What holding interrupts back does, and what tells passes of one configuration apart that differ
/// most.
fn interrupts(near: Runs<'_>) -> Vec<String> {
    let runs = near
        .at("interrupts", "ConnP-L(128), at once", 1536)
        .runs
        .values();
    let one = |m: &Measured| {
        let switches = m.raw.context_switches as f64;
        let forced = m.raw.involuntary_context_switches as f64 / switches;
        let mb = m.raw.goodput_mbps / 8.0 * m.raw.seconds;
        (m.raw.goodput_mbps / 1e3, switches / mb, 100.0 * forced)
    };
    let mut all: Vec<(f64, f64, f64)> = runs.map(one).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (slow, fast) = (all[0], all[all.len() - 1]);
    let (least, most) = range(all.iter().map(|m| m.2));
    let gains = |org: &str| {
        let label = |way| format!("{org}, {way}");
        let (held, once) = (label("held back"), label("at once"));
        let ratio = |x| near.ratio("interrupts", &held, &once, x).ratio;
        [6, 192, 1536, 16_384]
            .map(|x| format!("{:.2}", ratio(x)))
            .join(", ")
    };
    vec![
        format!(
            "at 1,536 connections {} passes of one configuration sent {:.0} to {:.0} Gb/s; the slowest switched threads {:.1} times a MB, the fastest {:.1} times, {least:.0} to {most:.0} % of it forced",
            all.len(),
            slow.0,
            fast.0,
            slow.1,
            fast.1,
        ),
        format!(
            "ConnP-L sends {} times as much at 6, 192, 1,536 and 16,384 connections, MsgP {}, and ConnP-T {}",
            gains("ConnP-L(128)"),
            gains("MsgP"),
            gains("ConnP-T"),
        ),
    ]
}

fn hand_overs(near: Runs<'_>) -> Vec<String> {
    let xs = [6, 192, 16_384];
    let of = |metric| range(xs.map(|x| near.metric("throughput", "ConnP-T(4)", x, metric)));
    let (switches, stack) = (of(Metric::Switches), of(Metric::Stack));
    let handing =
        |label: &str| range(xs.map(|x| near.metric("scheduler", label, x, Metric::Scheduler)));
    let (park, spin) = (handing("ConnP-T(4)"), handing("connp-t:4:wait=spin"));
    let against = |x| near.ratio("scheduler", "ConnP-T(4)", "MsgP", x).ratio;
    let [a, b, c] = xs.map(against);
    let (low, high) = range(
        near.xs("listen")
            .into_iter()
            .map(|x| near.ratio("listen", "ConnP-T", "ConnP-L", x).ratio),
    );
    vec![
        format!(
            "{:.0} to {:.0} context switches a MB, {:.0} to {} ns of stack time a segment",
            switches.0,
            switches.1,
            stack.0,
            whole(stack.1)
        ),
        format!(
            "queueing, parking and waking cost {:.0} to {:.0} ns a KB instead of {:.0} to {:.0}",
            spin.0, spin.1, park.0, park.1
        ),
        format!("{a:.1}, {b:.1} and {c:.0} times at 6, 192 and 16,384"),
        format!("{low:.0} to {high:.0} times ConnP-L's"),
    ]
}

/// Of plans that have these series since: messages that leave the scheduler out, and what lists take
/// of a round trip.
fn light_messages_and_latency(near: Runs<'_>) -> Vec<String> {
    let sent = |label: &str| {
        let of = |label, x| near.metric("scheduler", label, x, Metric::Goodput);
        let [a, b, c] = [6, 192, 16_384].map(|x| of(label, x) / of("ConnP-T(4)", x));
        format!("{a:.2}, {b:.2} and {c:.2}")
    };
    let without = near.ratio("pef-latency", "PEF without running lists", "PEF", 8);
    let interval = without.interval.unwrap();
    let trip = |label| near.metric("pef-latency", label, 8, Metric::Latency);
    vec![
        format!(
            "`connp-t:4:wait=spin` sends {} times what `connp-t:4` does at 6, 192 and 16,384, and {} times with `fold`, where application and protocol share a thread",
            sent("ConnP-T(4), light messages"),
            sent("ConnP-T(4), light messages, folded"),
        ),
        format!(
            "a round trip of 8 octets takes {:.1} µs with lists, {:.1} without, {:.1} under `squeue` and {:.1} under the paper's baseline",
            trip("PEF"),
            trip("PEF without running lists"),
            trip("FireEngine"),
            trip("FireEngine before PEF"),
        ),
        format!(
            "pass by pass {:.2} times as long without lists ({:.2} to {:.2})",
            without.ratio, interval.low, interval.high
        ),
    ]
}

fn buffers_and_frames(near: Runs<'_>) -> Vec<String> {
    let switches = |x| near.metric("buffers", "ConnP-L(128)", x, Metric::Switches);
    let largest = near.metric("jumbo", "ConnP-L(128)", 9000, Metric::Goodput) / 1e3;
    let linux = |x| near.metric("throughput", "linux", x, Metric::Goodput) / 1e3;
    vec![
        format!(
            "windows of 1 MB mean {:.1} context switches a MB instead of {:.1} for ConnP-L(128)",
            switches(1 << 20),
            switches(256 << 10),
        ),
        format!("ConnP-L at {largest:.0} Gb/s"),
        format!(
            "**Linux** over veth moves {:.0} Gb/s at 6 connections and {:.1} at 16,384",
            linux(6),
            linux(16_384)
        ),
    ]
}

fn cache(model: Runs<'_>) -> Vec<String> {
    let rows = ["UP", "MsgP", "ConnP-T(4)", "ConnP-L(128)"];
    let of = |x, metric| rows.map(|label| model.metric("cache", label, x, metric));
    let said = |x, metric| of(x, metric).map(|v| format!("{v:.2}")).join(", ");
    let [few, many, most] = [6, 192, 16_384].map(|x| said(x, Metric::L2));
    vec![
        format!("{few} at 6 connections, {many} at 192, and {most} at 16,384"),
        format!(
            "with lines that other cores wrote {} at 192",
            said(192, Metric::L2Coherence)
        ),
        one_thread(model),
    ]
}

/// How often one thread misses, beside what was counted.
fn one_thread(model: Runs<'_>) -> String {
    let counted = published().experiment("cache").unwrap();
    let at = |x: u64| {
        let published = counted.series("UP").unwrap().at(x as f64).unwrap();
        (model.metric("cache", "UP", x, Metric::L2), published.y)
    };
    let ((few, then_few), (many, then_many)) = (at(6), at(16_384));
    format!(
        "a KB misses the second level {few:.2} times at 6 connections and {many:.2} at 16,384, where the study counted {then_few} and {then_many}"
    )
}

/// How much of its throughput one thread keeps with many connections.
fn one_thread_falls(near: Runs<'_>) -> String {
    let mut claims = near.result("throughput").claims.iter();
    let falls = claims.find(|c| c.claim.id == "up-falls").unwrap();
    format!(
        "`up` sends with 16,384 connections {:.2} times what it does with 6",
        falls.evidence[0].comparison.ratio
    )
}

fn pef(near: Runs<'_>) -> Vec<String> {
    let part = |label: &str| near.metric("pef-parts", label, 6, Metric::Goodput) / 1e3;
    let (both, neither) = (part("both, one perimeter"), part("neither, one perimeter"));
    let trip = |label| near.metric("pef-latency", label, 8, Metric::Latency);
    let at = |label, metric| near.metric("pef-connections", label, 192, metric);
    vec![
        format!(
            "{:.2} of one perimeter at 6 connections; round trip {:.0} instead of {:.0} µs",
            part("both, split perimeters") / both,
            trip("PEF, layers on several cores"),
            trip("PEF"),
        ),
        format!(
            "IP, TCP and socket together take {:.2} µs of stack time a segment at 192 connections",
            at("PEF", Metric::Stack) / 1e3
        ),
        format!(
            "both together are worth {:.2} within one perimeter ({both:.1} against {neither:.1} Gb/s), light TCP alone {:.2}, the light queue alone {:.2}; without running the lists PEF has {:.1} Gb/s, the paper's baseline {:.1} and `squeue` {:.1}",
            both / neither,
            part("light TCP, one perimeter") / neither,
            part("light queue, one perimeter") / neither,
            part("both, without running lists"),
            part("FireEngine before PEF"),
            part("FireEngine"),
        ),
        format!(
            "{:.0} context switches a MB where `squeue` has {:.0}, and {:.0} against {:.0} ns of stack time a segment",
            at("PEF", Metric::Switches),
            at("FireEngine", Metric::Switches),
            at("PEF", Metric::Stack),
            at("FireEngine", Metric::Stack),
        ),
    ]
}

fn peers(near: Runs<'_>) -> Vec<String> {
    let of = |x| {
        let columns = ["up", "connp-l:128", "smoltcp", "lwip", "linux", "gvisor"];
        let values = columns.map(|label| near.metric("peers", label, x, Metric::GoodputPerCpu));
        let most = range(values).1;
        let cell = |v: f64| match v == most {
            true => format!("**{}**", whole(v)),
            false => whole(v),
        };
        format!("| {x} | {} |", values.map(cell).join(" | "))
    };
    let ratio = |plan: &str, label: &str, x| near.ratio(plan, label, "up", x).ratio;
    let tap = |label: &str, x| ratio("peers-tap", label, x);
    let receive = |x| ratio("peers-tap-receive", "smoltcp", x);
    vec![
        of(1),
        of(6),
        of(192),
        format!(
            "(smoltcp {:.2} and {:.2} times, lwIP {:.2} and {:.2})",
            tap("smoltcp", 6),
            tap("smoltcp", 192),
            tap("lwip", 6),
            tap("lwip", 192)
        ),
        format!(
            "smoltcp is ahead of `up` by {:.2}, {:.2} and {:.2} times",
            receive(1),
            receive(6),
            receive(192)
        ),
    ]
}

fn which(near: Runs<'_>, every: &[Result]) -> Vec<String> {
    let choices = choices(every);
    let of = |plan: &str, of: &dyn Fn(&Choice) -> bool| -> Vec<String> {
        let chosen = choices.iter().filter(|c| {
            let r = &every[c.result];
            r.plan.name == plan && r.cores != Cores::Far && of(c)
        });
        chosen.map(|c| whole(c.x as f64)).collect()
    };
    let sending = |of_sure: &dyn Fn(Option<Sure>) -> bool, org: &str| {
        of("throughput", &|c| c.best == org && of_sure(c.sure())).join(", ")
    };
    let yes = |s: Option<Sure>| s == Some(Sure::Yes);
    let lead = |label| near.ratio("receive", label, "up", 1).ratio;
    // What the sentences say without figures.
    for (plan, from) in [("one-connection", 1), ("requests", 1), ("connects", 6)] {
        let others = of(plan, &|c| c.x >= from && c.best != "up");
        assert!(others.is_empty(), "{plan}: {others:?}");
    }
    let surely = |c: &Choice| c.best != "up" && yes(c.sure());
    let others = of("throughput", &surely);
    assert!(others.is_empty(), "{others:?}");
    vec![
        format!("`up` surely at {}", sending(&yes, "up")),
        format!(
            "for receiving `up` surely at {}",
            of("receive", &|c| c.best == "up" && yes(c.sure())).join(", ")
        ),
        format!(
            "receiving over one connection `connp-l:128`, `squeue`, `pef:vertical` and `msgp` have {:.2}, {:.2}, {:.2} and {:.2} times what `up` does",
            lead("connp-l:128"),
            lead("squeue"),
            lead("pef:vertical"),
            lead("msgp"),
        ),
    ]
}

/// What the studies before it found.
fn earlier_studies(runs: Runs<'_>) -> Vec<String> {
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

/// A uniprocessor driven by interrupts, a protocol thread for each core, the locks of 2006, and entry
/// modes.
fn conditions(runs: Runs<'_>) -> Vec<String> {
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
            "`up:shared` on one core, its NIC on a thread of its own, has {:.2} of `up`'s throughput at 6 connections, {:.2} at 192 and {:.2} at 16,384; queueing, parking and waking take {:.0}, {:.0} and {:.0} ns a KB, with 6 {:.2} times what MsgP spends",
            sent(interrupts, 6),
            sent(interrupts, 192),
            sent(interrupts, 16_384),
            of("scheduler", interrupts, 6, Metric::Scheduler),
            of("scheduler", interrupts, 192, Metric::Scheduler),
            of("scheduler", interrupts, 16_384, Metric::Scheduler),
            ratio("scheduler", interrupts, "MsgP", 6, Metric::Scheduler),
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
            "at 16,384 connections a hold of a group's lock takes {} ns on average instead of {}, one of a connection's under MsgP {} instead of {}; at 6 {} instead of {}, and {} instead of {}",
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
            "`entry=fill` sends {:.2} and {:.2} times what `entry=process` does at 6 and 48 connections, and receives {:.2} and {:.2} times as much",
            entry("fill", "sending", 6),
            entry("fill", "sending", 48),
            entry("fill", "receiving", 6),
            entry("fill", "receiving", 48),
        ),
    ]
}

//! The answer before the evidence: which organization is fastest at each number of connections, by
//! how much, how sure that is, and what the difference is made of.

use crate::{
    bench::report::{Report, Row},
    stats::{self, Verdict, median},
    text::wrapped,
    units::thousands,
    workload::{Family, Raw},
};

/// What rows are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Payload in Gb/s.
    Goodput,
    /// Rounds of request and response a second.
    RoundTrips,
    /// Connections from opening to close, a second.
    Connections,
    /// Datagrams received a second.
    Datagrams,
}

impl Measure {
    /// What the runs of a report measured.
    pub fn of(report: &Report) -> Measure {
        match (report.settings.reconnect, report.settings.exchange) {
            _ if report.settings.udp.is_some() => Measure::Datagrams,
            (true, _) => Measure::Connections,
            (false, Some(_)) => Measure::RoundTrips,
            (false, None) => Measure::Goodput,
        }
    }

    /// The value of one run.
    pub fn value(self, run: &Raw) -> f64 {
        match self {
            Measure::Goodput => run.goodput_mbps / 1e3,
            _ => run.rounds as f64 / run.seconds,
        }
    }

    /// What the value of one run is made of: what time is given by.
    pub fn count(self, run: &Raw) -> f64 {
        match self {
            Measure::Goodput | Measure::Datagrams => run.segments,
            _ => run.rounds as f64,
        }
    }

    /// One of what is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::Goodput => "segment",
            Measure::RoundTrips => "round trip",
            Measure::Connections => "connection",
            Measure::Datagrams => "datagram",
        }
    }

    /// Heading of a column of values.
    pub fn heading(self) -> &'static str {
        match self {
            Measure::Goodput => "Gb/s",
            Measure::RoundTrips => "round trips/s",
            Measure::Connections => "connections/s",
            Measure::Datagrams => "datagrams/s",
        }
    }

    /// A value without its unit: three digits that count, or whole thousands.
    pub fn show(self, value: f64) -> String {
        match self {
            Measure::Goodput if value < 10.0 => format!("{value:.2}"),
            Measure::Goodput if value < 100.0 => format!("{value:.1}"),
            Measure::Goodput => format!("{value:.0}"),
            _ => thousands(value),
        }
    }

    /// A value with its unit.
    fn say(self, value: f64) -> String {
        format!("{} {}", self.show(value), self.heading())
    }

    /// The values of a row, a run each, in the order of the passes.
    pub fn values(self, row: &Row) -> Vec<f64> {
        row.samples.iter().map(|s| self.value(s)).collect()
    }

    /// The middle one of them.
    pub fn median(self, row: &Row) -> f64 {
        median(&self.values(row)).unwrap_or(0.0)
    }
}

/// Ratios from which on a lead is one, where every pair of runs agrees.
const LEAD: f64 = 1.03;

/// How two rows compare.
pub struct Compared {
    /// Median of the ratios of runs of the same pass, the better row's over the other's.
    pub ratio: f64,
    /// How sure it is that they differ.
    pub sure: Sure,
}

/// How sure a difference is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// The intervals of the medians are apart.
    Yes,
    /// Every pair of runs says so, of which there are too few for an interval.
    All(usize),
    /// Pairs of runs disagree, or the difference is small.
    Tie,
}

/// Compares the runs of two rows, pass by pass.
pub fn compare(measure: Measure, best: &Row, other: &Row) -> Option<Compared> {
    let (a, b) = (measure.values(best), measure.values(other));
    let pairs: Vec<(f64, f64)> = a.into_iter().zip(b).collect();
    let found = stats::compare(&pairs)?;
    let agree = pairs.iter().all(|(a, b)| a > b) && found.ratio >= LEAD;
    let sure = match found.verdict {
        Verdict::Greater => Sure::Yes,
        Verdict::TooFew if agree => Sure::All(pairs.len()),
        _ => Sure::Tie,
    };
    Some(Compared {
        ratio: found.ratio,
        sure,
    })
}

/// Rows by connections, the best first in each, those that are not ranked last.
pub fn ranked(report: &Report, measure: Measure) -> Vec<(u32, Vec<&Row>)> {
    let mut loads: Vec<(u32, Vec<&Row>)> = Vec::new();
    for row in &report.runs {
        match loads.iter_mut().find(|(n, _)| *n == row.connections) {
            Some((_, rows)) => rows.push(row),
            None => loads.push((row.connections, vec![row])),
        }
    }
    for (_, rows) in &mut loads {
        let key = |r: &Row| (r.ranked, measure.median(r));
        rows.sort_by(|a, b| {
            let ((x, m), (y, n)) = (key(a), key(b));
            y.cmp(&x).then(n.total_cmp(&m))
        });
    }
    loads
}

/// The lines before the table; empty where there is nothing to compare.
pub fn answer(report: &Report) -> String {
    let measure = Measure::of(report);
    let loads = ranked(report, measure);
    let enough = |rows: &[&Row]| rows.iter().filter(|r| r.ranked && r.valid).count() > 1;
    if !loads.iter().any(|(_, rows)| enough(rows)) {
        return String::new();
    }
    let mut out = headline(report);
    let mut noisy = (0, 0);
    for (connections, rows) in &loads {
        // What does not add up decides nothing.
        let part: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|r| r.ranked && r.valid)
            .collect();
        let [best, ref others @ ..] = part[..] else {
            continue;
        };
        // The second, unless somebody behind it is as good as the best for all that is seen.
        let ties = |r: &&&Row| compare(measure, best, r).is_some_and(|c| c.sure == Sure::Tie);
        let Some(second) = others.iter().find(ties).or(others.first()).copied() else {
            continue;
        };
        let plural = if *connections == 1 { "" } else { "s" };
        let load = format!("{} connection{plural}", thousands(f64::from(*connections)));
        let lead = compare(measure, best, second).filter(|c| c.sure != Sure::Tie);
        let why = lead.and_then(|_| reason(measure, best, second));
        let why = why.map_or(String::new(), |w| format!(": {w}"));
        let said = format!("  {load:<19} {}{why}", line(measure, best, second));
        out.push_str(&wrapped(&said, 22));
        for run in [best, second].into_iter().flat_map(|r| &r.samples) {
            noisy.0 += usize::from(!run.disturbances.is_empty());
            noisy.1 += 1;
        }
    }
    bystanders(&loads, measure, &mut out);
    if 2 * noisy.0 > noisy.1 {
        let said = format!(
            "Noisy machine: {} of the {} runs that decide this {} disturbed; --wide says by what.",
            noisy.0,
            noisy.1,
            crate::units::were(noisy.0)
        );
        out.push_str(&wrapped(&said, 2));
    }
    out
}

fn headline(report: &Report) -> String {
    let s = &report.settings;
    let runs = report.runs.iter().map(|r| r.samples.len()).max();
    let over = match s.device.to_string().as_str() {
        "mem" => "simulated NICs".to_string(),
        "pair" => "a wire in memory".to_string(),
        device => format!("device {device}"),
    };
    let over = match s.family {
        Family::Ipv4 => over,
        Family::Ipv6 => format!("IPv6 over {over}"),
    };
    let threads = match s.threads {
        1 => "1 thread".to_string(),
        n => format!("{n} threads"),
    };
    let median = match runs.unwrap_or(0) {
        0 | 1 => "one run each, so no more than hints".to_string(),
        n => format!("median of {n} runs each"),
    };
    let work = match (s.reconnect, s.exchange) {
        (true, _) => "opening connections".to_string(),
        (false, Some(e)) if e.request == e.response => format!("ping-pong of {} bytes", e.request),
        (false, Some(e)) => format!(
            "requests of {} bytes, responses of {}",
            e.request, e.response
        ),
        (false, None) => s.direction.to_string(),
    };
    let work = match s.udp {
        Some(size) => format!("{work} datagrams of {size} bytes"),
        None => work,
    };
    let said = format!("Fastest on this machine: {work}, {over}, {threads}, {median}");
    wrapped(&said, 2)
}

/// Who leads at one load, by how much and how sure.
fn line(measure: Measure, best: &Row, second: &Row) -> String {
    let value = measure.say(measure.median(best));
    let Some(found) = compare(measure, best, second) else {
        return format!("{} {value}", best.org);
    };
    let lead = format!("{:.2} × {}", found.ratio, second.org);
    match found.sure {
        Sure::Yes => format!("{} {value}, {lead}, sure", best.org),
        Sure::All(1) => format!("{} {value}, {lead} in one run", best.org),
        Sure::All(n) => format!("{} {value}, {lead} in all {n} runs", best.org),
        Sure::Tie => format!("tie: {} and {}, {value}", best.org, second.org),
    }
}

/// Thread time that one unit takes, by what it went into, ns.
fn parts(measure: Measure, row: &Row) -> [(Part, f64); 5] {
    let of = |f: &dyn Fn(&Raw) -> f64| {
        let each = row.samples.iter().map(|s| f(s) / measure.count(s).max(1.0));
        median(&each.collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let count = of(&|s| measure.count(s) * measure.count(s));
    let locks: u64 = row.locks.iter().map(|l| l.wait_ns).sum();
    let lock = locks as f64 / count.max(1.0);
    let stack = of(&|s| s.stack_ns.unwrap_or(0) as f64);
    [
        (Part::Stack, (stack - lock).max(0.0)),
        (Part::Locks, lock),
        (Part::Asleep, of(&|s| s.idle_ns as f64)),
        (Part::Spinning, of(&|s| s.spin_ns as f64)),
        (Part::Peer, of(&|s| s.peer_ns.unwrap_or(0) as f64)),
    ]
}

/// What thread time goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Stack,
    Locks,
    Asleep,
    Spinning,
    Peer,
}

/// The largest part of the difference, in words.
fn reason(measure: Measure, best: &Row, other: &Row) -> Option<String> {
    // The kernel does not tell what its stack takes: 0 is no figure to hold another against.
    let counted = |r: &Row| r.samples.iter().all(|s| s.stack_ns.is_some());
    if counted(best) != counted(other) {
        return None;
    }
    let (a, b) = (parts(measure, best), parts(measure, other));
    let all = |parts: &[(Part, f64)]| parts.iter().map(|p| p.1).sum::<f64>();
    // A thread without a connection sleeps, and its time says nothing.
    if best.threads != other.threads
        && (best.connections as usize) < best.threads.max(other.threads)
    {
        return None;
    }
    // More threads, each with no less work for a unit: it is the threads.
    if best.threads > other.threads && all(&a) >= 0.9 * all(&b) {
        return Some(format!(
            "it has {} threads, {} has {}",
            best.threads, other.org, other.threads
        ));
    }
    let gap = |i: &usize| b[*i].1 - a[*i].1;
    let most = (0..a.len()).max_by(|i, j| gap(i).total_cmp(&gap(j)))?;
    if gap(&most) <= 0.0 {
        return None;
    }
    let what = match a[most].0 {
        Part::Stack => "in the stack",
        Part::Locks => "waiting for locks",
        Part::Asleep => "asleep",
        Part::Spinning => "spinning",
        Part::Peer => "in the simulated peer",
    };
    Some(format!(
        "{} spends {} ns a {} {what}, {} {}",
        other.org,
        thousands(b[most].1),
        measure.unit(),
        best.org,
        thousands(a[most].1)
    ))
}

/// What those that are not ranked take for the same bytes, at the largest usual load: their
/// goodput can't be held against the others', as they do the other end's work as well.
fn bystanders(loads: &[(u32, Vec<&Row>)], measure: Measure, out: &mut String) {
    let stands_by = |r: &Row| !r.ranked && r.comparable;
    let told = |(n, rows): &&(u32, Vec<&Row>)| *n <= 1000 && rows.iter().any(|r| stands_by(r));
    let Some((connections, rows)) = loads.iter().rfind(told) else {
        return;
    };
    let first = rows.iter().find(|r| r.ranked);
    let others = rows.iter().filter(|r| stands_by(r));
    let cost = |r: &&Row| Some(format!("{} {:.0}", r.org, r.cpu_ns_per_segment?));
    let said: Vec<String> = first.into_iter().chain(others).filter_map(cost).collect();
    if measure == Measure::Goodput && said.len() > 1 {
        let said = format!(
            "CPU ns a segment at {} connections, both ends: {}",
            thousands(f64::from(*connections)),
            said.join(", ")
        );
        out.push_str(&wrapped(&said, 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{report, sample};

    /// Without its line ends.
    fn flat(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Goodputs in bytes a second, a run each, of two organizations.
    fn two(up: &[f64], connp: &[f64]) -> Report {
        let runs = |of: &[f64]| of.iter().map(|g| sample(*g, Some(1_000_000), 1)).collect();
        report(&[("up", 1, runs(up)), ("connp-l:128", 2, runs(connp))])
    }

    #[test]
    fn the_faster_one_leads_with_its_margin() {
        // Values of up and of connp-l:128, and what is said.
        let table: [(&[f64], &[f64], &str); 5] = [
            (
                &[2e9; 5],
                &[1e9, 1.1e9, 0.9e9, 1e9, 1e9],
                "up 16.0 Gb/s, 2.00 × connp-l:128, sure: ",
            ),
            (&[2e9; 3], &[1e9; 3], "2.00 × connp-l:128 in all 3 runs:"),
            (&[2e9], &[1e9], "2.00 × connp-l:128 in one run:"),
            (
                &[2e9, 1e9, 2e9],
                &[1e9, 2e9, 1e9],
                "tie: up and connp-l:128, 16.0 Gb/s",
            ),
            (&[1.01e9; 3], &[1e9; 3], "tie: up and connp-l:128, 8.08"),
        ];
        for (up, connp, said) in table {
            let text = answer(&two(up, connp));
            assert!(flat(&text).contains(said), "{said}\n{text}");
            assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn the_family_is_said_where_it_is_not_ipv4() {
        let mut report = two(&[2e9; 3], &[1e9; 3]);
        assert!(!answer(&report).contains("IPv"), "{}", answer(&report));
        report.settings.family = Family::Ipv6;
        let text = answer(&report);
        assert!(
            flat(&text).contains("send, IPv6 over simulated NICs"),
            "{text}"
        );
    }

    #[test]
    fn datagrams_are_ranked_by_their_number() {
        let run = |n| {
            let mut run = sample(1e9, Some(1_000_000), 1);
            (run.rounds, run.lost) = (n, Some(0.125));
            vec![run; 3]
        };
        let mut report = report(&[("up", 1, run(3000)), ("connp-l:128", 2, run(1000))]);
        report.settings.udp = Some(64);
        let text = flat(&answer(&report));
        assert!(text.contains("send datagrams of 64 bytes"), "{text}");
        assert!(text.contains("datagrams/s, 3.00 × connp-l:128"), "{text}");
        let table = crate::bench::short::render(&report);
        assert!(
            table.contains("lost") && table.contains("12.5 %"),
            "{table}"
        );
    }

    #[test]
    fn the_reason_is_the_largest_part_of_the_difference() {
        let mut slow = sample(1e9, Some(1_000_000), 1);
        slow.times.idle = 900_000_000;
        let fast = sample(2e9, Some(1_000_000), 1);
        let text = answer(&report(&[
            ("up", 1, vec![fast.clone()]),
            ("msgp", 2, vec![slow]),
        ]));
        let said = "msgp spends 1,303 ns a segment asleep, up 72";
        assert!(flat(&text).contains(said), "{text}");
        // Twice the threads with the same work each.
        let half = sample(1e9, Some(1_000_000), 1);
        let mut both = sample(2e9, Some(2_000_000), 1);
        both.times.idle *= 2;
        both.times.peer = both.times.peer.map(|ns| 2 * ns);
        let text = answer(&report(&[
            ("up", 1, vec![half]),
            ("connp-l:128", 2, vec![both]),
        ]));
        let said = "connp-l:128 has";
        assert!(
            !text.contains(said) && flat(&text).contains("it has 2 threads, up has 1"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_counted_is_no_reason() {
        let mut kernel = sample(2e9, None, 1);
        kernel.valid = true;
        let ours = sample(1e9, Some(1_000_000), 1);
        let rows = [("squeue:2", 2, vec![kernel]), ("msgp", 2, vec![ours])];
        let text = flat(&answer(&report(&rows)));
        assert!(text.contains("2.00 × msgp in one run"), "{text}");
        assert!(!text.contains("spends"), "{text}");
    }

    #[test]
    fn one_organization_has_nobody_to_be_compared_with() {
        assert_eq!(
            answer(&report(&[("up", 1, vec![sample(1e9, Some(1), 0)])])),
            ""
        );
    }

    #[test]
    fn numbers_are_readable() {
        for (value, said) in [
            (0.0, "0"),
            (999.4, "999"),
            (1000.0, "1,000"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(thousands(value), said);
        }
        for (value, said) in [(1.234, "1.23"), (12.34, "12.3"), (123.4, "123")] {
            assert_eq!(Measure::Goodput.show(value), said);
        }
    }
}

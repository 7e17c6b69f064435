//! What the measurements say against the bounds.

use crate::attacks::{Attack, Kind};
use crate::run::{Measured, Phase};

/// Share of unattacked work per unit of processor time left that has to remain.
pub const WORK: f64 = 0.8;
/// Share of clients at a distance that have to get their data, of those that did unattacked.
pub const FAR: f64 = 0.8;

/// Resident memory that a stack may take under a limit, kB: 1.25 times the limit and 32 MB.
pub fn resident(limit: u64) -> u64 {
    (limit + limit / 4 + 32_000_000) / 1024
}

/// One attack on one organization in figures.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Connections a second before, during, after (medians).
    pub connections: [f64; 3],
    /// Goodput before, during, after, Mbit/s (medians).
    pub mbits: [f64; 3],
    /// Work per processor second left, against unattacked: connections, and bytes.
    pub work: [f64; 2],
    /// Work per processor second after the attack, against before: connections, and bytes.
    pub back: [f64; 2],
    /// The highest unattacked work per processor second by the lowest: connections, and bytes.
    pub spread: [f64; 2],
    /// The victim's processor time for a unit of the attack alone, µs.
    pub frame_us: f64,
    /// The victim's processor time for a unit of legitimate connections, µs.
    pub legitimate_us: f64,
    /// The attacker's processor time for a frame, µs.
    pub attacker_us: f64,
    /// Bounds that do not hold.
    pub broken: Vec<String>,
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => all[n / 2],
        _ => (all[n / 2 - 1] + all[n / 2]) / 2.0,
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// What a legitimate client got in a measurement.
type Work = fn(&Phase) -> f64;

const CONNECTIONS: Work = |p| p.connections as f64;
const BYTES: Work = |p| p.bytes as f64;

struct Series<'a> {
    m: &'a Measured,
    what: &'static str,
    work: Work,
}

impl Series<'_> {
    fn at(&self, when: &str) -> Vec<&Phase> {
        let name = format!("{when} {}", self.what);
        self.m.phases.iter().filter(|p| p.name == name).collect()
    }

    fn rate(&self, when: &str) -> f64 {
        median(
            self.at(when)
                .iter()
                .map(|p| ratio((self.work)(p), p.seconds))
                .collect(),
        )
    }

    /// Work per processor second.
    fn yield_of(&self, p: &Phase) -> f64 {
        ratio((self.work)(p), p.cpu_ns as f64 / 1e9)
    }

    /// Work per processor second in all measurements of those times.
    fn total(&self, times: &[&str]) -> f64 {
        let all = || times.iter().flat_map(|when| self.at(when));
        let cpu: u64 = all().map(|p| p.cpu_ns).sum();
        ratio(all().map(self.work).sum(), cpu as f64 / 1e9)
    }

    /// The work per processor second that the attack left, divided by that of all unattacked
    /// measurements, before it and after each round. (An attack that spoils what comes after it is
    /// found by [`Series::back`].)
    fn left(&self, cost: &Cost) -> f64 {
        let during = self.at("during");
        let slices = (during.len() / cost.alone.len().max(1)).max(1);
        let left = during.iter().enumerate().map(|(i, p)| {
            let round = i / slices;
            let own = cost.units_of(round, p) * cost.allowed(round);
            // A twentieth at least: a measure of what is left needs something to be left.
            (p.cpu_ns as f64 - own).max(p.cpu_ns as f64 / 20.0)
        });
        let left: f64 = left.sum();
        let work = during.into_iter().map(self.work).sum();
        ratio(ratio(work, left / 1e9), self.total(&["before", "after"]))
    }

    /// Of all unattacked measurements, the highest work per processor second by the lowest: how
    /// far two measurements of the same may lie apart on this machine at this time.
    fn spread(&self) -> f64 {
        let quiet = self.at("before").into_iter().chain(self.at("after"));
        let all: Vec<f64> = quiet.map(|p| self.yield_of(p)).collect();
        let lowest = all.iter().copied().fold(f64::MAX, f64::min);
        ratio(all.iter().copied().fold(0.0, f64::max), lowest)
    }

    /// Work per processor second after the attack by that before it. What it spoils for good is
    /// missing after each round.
    fn back(&self) -> f64 {
        ratio(self.total(&["after"]), self.total(&["before"]))
    }
}

/// What an attack is charged with, and at most at what price.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// A frame that came, against one of legitimate connections: floods.
    Frame,
    /// A connection, against a legitimate one: connections that the server closes.
    Connection,
    /// A frame that came or went: peers that hold connections, whom timers speak to.
    Segment,
}

impl Unit {
    fn of(attack: &str) -> Unit {
        match Attack::find(attack).map(|a| a.kind) {
            Some(Kind::Closes) => Unit::Connection,
            Some(Kind::OutOfOrder | Kind::ZeroWindow | Kind::SlowReaders) => Unit::Segment,
            _ => Unit::Frame,
        }
    }

    fn count(self, p: &Phase) -> f64 {
        match self {
            Unit::Frame => p.frames as f64,
            // One of the two is 0 where the other is asked for.
            Unit::Connection => (p.connections + p.attack_frames) as f64,
            Unit::Segment => (p.frames + p.sent) as f64,
        }
    }
}

/// What units cost.
struct Cost {
    unit: Unit,
    /// Of each round alone: units a second, and processor time for each, ns.
    alone: Vec<(f64, f64)>,
    /// A unit of legitimate connections, ns.
    legitimate: f64,
}

impl Cost {
    fn new(m: &Measured) -> Cost {
        let unit = Unit::of(&m.attack);
        let named = |name: &'static str| m.phases.iter().filter(move |p| p.name == name);
        let each = |p: &Phase| ratio(p.cpu_ns as f64, unit.count(p));
        Cost {
            unit,
            alone: named("during alone")
                .map(|p| (ratio(unit.count(p), p.seconds), each(p)))
                .collect(),
            legitimate: median(named("before connections").map(each).collect()),
        }
    }

    /// What a unit of the attack may cost: what it does, but no more than a legitimate one. What
    /// is above that is the stack's doing, and is charged to it.
    fn allowed(&self, round: usize) -> f64 {
        self.alone
            .get(round)
            .map_or(0.0, |a| a.1.min(self.legitimate))
    }

    /// Units of the attack in a measurement: at the rate of the attack alone, but no more than
    /// there were in all.
    fn units_of(&self, round: usize, p: &Phase) -> f64 {
        let units = self.alone.get(round).map_or(0.0, |a| a.0) * p.seconds;
        match self.unit {
            Unit::Connection => p.attack_frames as f64,
            unit => units.min(unit.count(p)),
        }
    }
}

/// Holds what was measured against the bounds.
pub fn judge(m: &Measured) -> Verdict {
    let cost = Cost::new(m);
    let [connections, bulk] = [("connections", CONNECTIONS), ("bulk", BYTES)]
        .map(|(what, work)| Series { m, what, work });
    let three = |s: &Series<'_>| ["before", "during", "after"].map(|when| s.rate(when));
    let mut v = Verdict {
        connections: three(&connections),
        mbits: three(&bulk).map(|b| b * 8.0 / 1e6),
        work: [connections.left(&cost), bulk.left(&cost)],
        back: [connections.back(), bulk.back()],
        spread: [connections.spread(), bulk.spread()],
        frame_us: median(cost.alone.iter().map(|a| a.1).collect()) / 1e3,
        legitimate_us: cost.legitimate / 1e3,
        attacker_us: ratio(m.attacker_ns as f64, m.attack_frames as f64) / 1e3,
        broken: Vec::new(),
    };
    v.broken = robust(m);
    for (what, [work, back]) in [
        ("connections", [v.work[0], v.back[0]]),
        ("goodput", [v.work[1], v.back[1]]),
    ] {
        if work < WORK {
            v.broken.push(format!("{what} per CPU left: {work:.2}"));
        }
        if back < WORK {
            v.broken.push(format!("{what} per CPU after it: {back:.2}"));
        }
    }
    v
}

/// The bounds that no clock has a part in: nothing lost, nothing wrong, memory, service during the
/// attack, everything back after it.
pub fn robust(m: &Measured) -> Vec<String> {
    let mut broken = Vec::new();
    if let Some(e) = &m.error {
        broken.push(e.clone());
    }
    let a = &m.answers;
    if a.arrived < a.written {
        broken.push(format!(
            "{} of {} answers lost",
            a.written - a.arrived,
            a.written
        ));
    }
    let corrupt: u64 = m.phases.iter().map(|p| p.corrupt).sum();
    if corrupt > 0 {
        broken.push(format!("{corrupt} connections with wrong bytes"));
    }
    if m.rss_peak_kb > resident(m.limit) {
        broken.push(format!("{} MB resident", m.rss_peak_kb / 1000));
    }
    for d in &m.distant {
        if (d.good as f64) < FAR * d.good_before as f64 {
            let (good, before) = (d.good, d.good_before);
            broken.push(format!("{good} of {before} clients at {} ms", d.rtt_ms));
        }
    }
    for (when, what) in [
        ("during", "service during it"),
        ("after", "service after it"),
    ] {
        let served = |kind: &str, work: Work| {
            let name = format!("{when} {kind}");
            m.phases
                .iter()
                .filter(|p| p.name == name)
                .all(|p| work(p) > 0.0)
        };
        if m.error.is_none() && !(served("connections", CONNECTIONS) && served("bulk", BYTES)) {
            broken.push(format!("no {what}"));
        }
    }
    let after = m.phases.iter().filter(|p| p.name.starts_with("after"));
    let failed: u64 = after.map(|p| p.failed).sum();
    if failed > 0 {
        broken.push(format!("{failed} failed after it"));
    }
    if let Some(attack) = Attack::find(&m.attack)
        && m.error.is_none()
        && !attack.counted.is_empty()
        && !attack.counted.iter().any(|c| m.counts.contains_key(*c))
    {
        broken.push(format!("not counted as {}", attack.counted.join(" or ")));
    }
    if m.left > 1 {
        broken.push(format!("{} connections left", m.left));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, cpu_ns: u64, frames: u64, connections: u64) -> Phase {
        Phase {
            name: name.to_string(),
            seconds: 1.0,
            cpu_ns,
            frames,
            connections,
            bytes: connections,
            ..Phase::default()
        }
    }

    fn measured(alone_ns: u64, during: u64) -> Measured {
        let second = 1_000_000_000;
        let both = |when: &str, cpu, frames, n| {
            ["connections", "bulk"].map(|what| phase(&format!("{when} {what}"), cpu, frames, n))
        };
        // Unattacked: 10,000 connections of ten frames, 10 µs a frame.
        let mut phases = both("before", second, 100_000, 10_000).to_vec();
        phases.push(phase("during alone", alone_ns, 50_000, 0));
        phases.extend(both("during", second, 50_000 + during * 10, during));
        phases.extend(both("after", second, 100_000, 10_000));
        Measured {
            limit: 64 << 20,
            phases,
            ..Measured::default()
        }
    }

    #[test]
    fn cheap_frames_leave_work() {
        // 50,000 frames of 4 µs leave 0.8 s: 8,000 connections are all of it.
        let v = judge(&measured(200_000_000, 8_000));
        assert!((v.work[0] - 1.0).abs() < 0.01, "{:?}", v.work);
        assert!(v.broken.is_empty(), "{:?}", v.broken);
    }

    #[test]
    fn what_a_frame_costs_beyond_a_legitimate_one_is_the_stacks() {
        // 50,000 frames of 18 µs leave 0.1 s; they should have left 0.5.
        let v = judge(&measured(900_000_000, 1_000));
        assert!((v.work[0] - 0.2).abs() < 0.01, "{:?}", v.work);
        assert_eq!(v.broken.len(), 2, "{:?}", v.broken);
    }

    #[test]
    fn each_bound_is_seen() {
        let broken = |f: fn(&mut Measured)| {
            let mut m = measured(200_000_000, 8_000);
            f(&mut m);
            robust(&m)
        };
        assert!(broken(|_| ()).is_empty());
        assert_eq!(broken(|m| m.answers.written = 1).len(), 1);
        assert_eq!(broken(|m| m.rss_peak_kb = resident(m.limit) + 1).len(), 1);
        assert_eq!(broken(|m| m.left = 2).len(), 1);
        assert_eq!(broken(|m| m.phases[3].connections = 0).len(), 1);
        assert_eq!(broken(|m| m.phases[6].failed = 1).len(), 1);
        assert_eq!(broken(|m| m.phases[4].corrupt = 1).len(), 1);
        assert_eq!(broken(|m| m.error = Some("x".into())), ["x"]);
    }
}

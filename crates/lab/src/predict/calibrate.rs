//! The table of this machine: single operations are measured, and classes of work fitted to runs
//! of one thread. Runs of two threads are measured beside them, for a prediction to be checked
//! with; nothing is fitted to those.

use super::{
    effort::Effort,
    fit::{Observed, fit},
    loads::{BESIDE, Load, PAIRS, Point, SINGLE},
    machine::{Machine, Run, thousandths},
    micro::{self, Micro},
    simulate::{Simulated, simulate},
};
use crate::{
    Error,
    host::{
        self,
        apart::{is_far, is_sign},
    },
    metric::Metric,
    ours::Perimeter,
    record::Measured,
    session::{self, Slot},
    stats::median,
    workload::{Inbound, Sample},
};
use perimeter::Work;
use std::time::Duration;

/// What is measured beforehand for each run, and what counts.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Warm-up.
    pub warm_up: Duration,
    /// What counts.
    pub measure: Duration,
    /// How often each run is repeated.
    pub repeats: u32,
}

impl Time {
    /// For a table that is kept: three minutes.
    pub const USUAL: Time = Time {
        warm_up: Duration::from_millis(150),
        measure: Duration::from_millis(500),
        repeats: 3,
    };
    /// For a look.
    pub const QUICK: Time = Time {
        warm_up: Duration::from_millis(60),
        measure: Duration::from_millis(150),
        repeats: 1,
    };
}

/// Told what happens.
pub type Watcher<'a> = &'a mut dyn FnMut(&str);

/// How often counts are taken anew with the costs that were fitted to the last ones: how much is
/// done at a time depends on what things cost.
const TURNS: usize = 4;
/// What the ideal peer is charged for.
const PEER: [Fitted; 3] = [
    Fitted::Unit(Work::Peer),
    Fitted::Charge(Work::Peer),
    Fitted::Unit(Work::PeerBytes),
];
/// How much of a line's way from memory shows at least, as others are under way meanwhile.
const LEAST_SHOWN: f64 = 0.2;
/// Connections from which a core's caches do not hold what belongs to them.
const MANY: u32 = 1000;

/// Measures this machine, starting from the costs of `like`.
///
/// # Errors
/// A run failed.
pub fn calibrate(like: &Machine, time: Time, watcher: Watcher<'_>) -> Result<Machine, Error> {
    watcher("single operations");
    let mut machine = Machine {
        name: "here".into(),
        title: format!("this machine: {}", host::Host::read().cpu),
        sources: vec![
            "Single operations were timed; classes of work were fitted to runs of one thread on \
             this machine, from the table of a like one. What a cache line takes over distances \
             that it did not have then, what further lines take that are touched with it, and how \
             hand-overs of locks grow with those who spin, is as there."
                .into(),
        ],
        cores: host::cores(),
        nics: None,
        link_gbps: None,
        published: false,
        runs: Vec::new(),
        ..like.clone()
    };
    let found = micro::measure();
    let mut seen: Vec<f64> = found.line.into_iter().collect();
    let of = |list: &[(Load, &str, u32)], f: &dyn Fn(Load, &str, u32) -> Result<Point, String>| {
        let points = list.iter().map(|(load, org, n)| f(*load, org, *n));
        points.collect::<Result<Vec<_>, _>>().map_err(Error::Input)
    };
    let mut points = of(SINGLE, &|l, o, n| Point::new(l, o, n, 1))?;
    points.extend(of(BESIDE, &Point::beside)?);
    if host::cores() > 1 {
        points.extend(of(PAIRS, &|l, o, n| Point::new(l, o, n, 2))?);
    } else {
        watcher("two threads: there is one core only, so nothing to check a prediction with");
    }
    for point in points {
        let c = &point.configuration;
        watcher(&format!(
            "{}, {}, {} connections, {} threads",
            c.organization, point.load, c.connections, c.threads
        ));
        if c.threads > 1 {
            seen.extend(micro::line());
        }
        machine.runs.extend(measure(&point, time)?);
    }
    distances(&mut machine, &seen);
    take(&mut machine, &found);
    refit(&mut machine, watcher)?;
    Ok(machine)
}

/// Fits classes of work to a table's own runs of one thread.
///
/// # Errors
/// A simulation failed.
pub fn refit(machine: &mut Machine, watcher: Watcher<'_>) -> Result<(), Error> {
    let memory = machine.lines.memory;
    for turn in 1..=TURNS {
        watcher(&format!("fitting, turn {turn} of {TURNS}"));
        settle(machine, memory)?;
    }
    Ok(())
}

/// Puts measured operations into a table.
fn take(machine: &mut Machine, m: &Micro) {
    let c = &mut machine.costs;
    (c.lock, c.atomic, c.yields) = (m.lock, m.atomic, m.yields);
    (c.slice, c.pause) = (m.slice.max(1e5), m.pause);
    c.preempt = if m.preempts { 1.0 } else { 0.0 };
    // What parking_lot's contenders do before they park: pauses of 2, 4 and 8, and seven yields.
    c.spin = 14.0 * m.pause + 7.0 * m.yields;
    (c.wake, c.park, c.switch) = (m.step, m.step, m.step);
    (c.timer_set, c.timer_interrupt) = (m.timer_set, m.timer_interrupt);
    if m.kick > 0.0 {
        (c.kick, c.wake_latency) = (m.kick, m.wake_latency);
    }
    let l = &mut machine.lines;
    (l.memory, l.shared) = (m.memory, m.shared);
    (l.private_lines, l.shared_lines) = m.caches;
    let p = &mut machine.payload;
    (p.shared, p.memory) = (m.payload.shared, m.payload.memory);
    if let (Some(line), Some(both)) = (m.line, m.payload.other) {
        // The other distance is to this one as a line's.
        let more = l.far / l.near.max(1.0);
        (p.near, p.far) = match micro::is_far(line) {
            true => (both.map(|ns| ns / more), both),
            false => (both, both.map(|ns| ns * more)),
        };
        p.remote = p.far;
    }
}

/// Puts what lines took that were timed, ns, into a table. A distance that was not seen is to the
/// other as in the table that was started from.
fn distances(machine: &mut Machine, seen: &[f64]) {
    let (far, near): (Vec<f64>, Vec<f64>) = seen.iter().partition(|line| micro::is_far(**line));
    let line = |list: &[f64]| median(list).map(thousandths);
    let l = &mut machine.lines;
    let more = l.far / l.near.max(1.0);
    (l.near, l.far) = match (line(&near), line(&far)) {
        (Some(near), Some(far)) => (near, far),
        (Some(near), None) => (near, near * more),
        (None, Some(far)) => (far / more, far),
        (None, None) => return,
    };
    l.remote = l.remote.max(l.far);
}

/// Runs one point on this machine; near and far runs apart.
fn measure(point: &Point, time: Time) -> Result<Vec<Run>, Error> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut clean, mut tries) = (0, 0);
    // A run that something else has disturbed, or during which the cores were moved apart, is
    // none: it is made again, but not for ever.
    while clean < time.repeats && tries < 3 * time.repeats {
        tries += 1;
        let slot = Slot::new(time.warm_up, time.measure).until_grown();
        let mut backend = Perimeter::default();
        let run = session::once(
            &mut backend,
            &point.settings,
            &point.configuration,
            slot,
            None,
            None,
        );
        let sample = run?.0;
        let last = tries == 3 * time.repeats && runs.is_empty();
        let far = sample.core_round_trip_ns.is_some_and(is_far);
        let several = point.configuration.threads > 1;
        let moved = several && host::apart::round_trip().is_some_and(|ns| is_far(ns) != far);
        let disturbed = !sample.disturbances.iter().all(|d| is_sign(d));
        if (disturbed || moved) && !last {
            continue;
        }
        clean += 1;
        let far = far && several;
        let at = match runs.iter().position(|r| r.far == far) {
            Some(at) => at,
            None => {
                runs.push(Run {
                    load: point.load,
                    org: point.configuration.organization.to_string(),
                    connections: point.configuration.connections,
                    threads: point.settings.threads,
                    beside: point.settings.threads == 1
                        && point.settings.inbound == Inbound::Thread,
                    far,
                    goodput: Vec::new(),
                    rounds: Vec::new(),
                    own_ns: Vec::new(),
                    peer_ns: Vec::new(),
                    contended: Vec::new(),
                });
                runs.len() - 1
            }
        };
        note(&mut runs[at], &sample);
    }
    Ok(runs)
}

/// Adds what a sample says.
fn note(run: &mut Run, sample: &Sample) {
    let units = units(run.load, sample);
    let per_unit = |ns: u64| (ns as f64 / units.max(1.0)).round();
    let busy = sample.times.app + sample.times.stack.unwrap_or(0);
    run.goodput.push((sample.goodput * 8.0 / 1e6).round());
    run.own_ns.push(per_unit(busy));
    run.peer_ns.push(per_unit(sample.times.peer.unwrap_or(0)));
    if run.load == Load::Messages {
        let rate = sample.rounds as f64 / sample.elapsed.as_secs_f64();
        run.rounds.push(rate.round());
    }
    let contended = Metric::Contended.of(&Measured::from(sample));
    run.contended.extend(contended.map(thousandths));
}

/// Units of work of a sample: segments of payload, or rounds.
pub fn units(load: Load, sample: &Sample) -> f64 {
    match load {
        Load::Messages => sample.rounds as f64,
        Load::Send | Load::Receive => sample.segments,
    }
}

/// What is fitted.
#[derive(Debug, Clone, Copy)]
enum Fitted {
    /// A unit of work.
    Unit(Work),
    /// A charge of work, whatever its units.
    Charge(Work),
    /// Going on to another thread, whatever that finds in no cache any more.
    Switch,
}

impl Fitted {
    fn all() -> impl Iterator<Item = Fitted> {
        let known = |w: &Work| {
            use Work::{Checksum, Nanos, Peer, PeerBytes};
            matches!(w, Peer | PeerBytes | Nanos | Checksum)
        };
        let units = Work::ALL.into_iter().filter(move |w| !known(w));
        units
            .map(Fitted::Unit)
            .chain([Fitted::Charge(Work::Poll), Fitted::Switch])
    }

    /// Where one thread does everything there is none of it.
    fn is_between_threads(self) -> bool {
        matches!(
            self,
            Fitted::Switch | Fitted::Unit(Work::HandOver | Work::Mail)
        )
    }

    fn cost(self, machine: &Machine) -> f64 {
        let work = |w: Work| machine.work.get(w.name()).copied().unwrap_or_default();
        match self {
            Fitted::Unit(w) => work(w)[1],
            Fitted::Charge(w) => work(w)[0],
            Fitted::Switch => machine.costs.switch,
        }
    }

    fn put(self, machine: &mut Machine, cost: f64) {
        let cost = thousandths(cost);
        match self {
            Fitted::Unit(w) => machine.work.entry(w.name().into()).or_default()[1] = cost,
            Fitted::Charge(w) => machine.work.entry(w.name().into()).or_default()[0] = cost,
            Fitted::Switch => machine.costs.switch = cost,
        }
    }

    /// How many there were in a run.
    fn count(self, s: &Simulated) -> f64 {
        match self {
            Fitted::Unit(w) => s.work[w as usize].1 as f64,
            Fitted::Charge(w) => s.work[w as usize].0 as f64,
            Fitted::Switch => s.sample.context_switches as f64,
        }
    }
}

/// Fits the costs of work to the runs of one thread, once, and then those of handing work over and
/// of switching to the runs of threads that take turns. A line takes `memory` ns from memory.
fn settle(machine: &mut Machine, memory: f64) -> Result<(), Error> {
    let (beside, alone) = Fitted::all().partition::<Vec<_>, _>(|f| f.is_between_threads());
    let (mut peers, mut many) = (Vec::new(), Vec::new());
    for (names, with) in [(alone, false), (beside, true)] {
        let before: Vec<f64> = names.iter().map(|n| n.cost(machine)).collect();
        let mut observed = Vec::new();
        let single = machine.runs.iter().filter(|r| r.threads == 1);
        for run in single.filter(|r| r.beside == with) {
            let point = run.point()?;
            let cores = if run.beside { 1 } else { machine.cores };
            let (settings, configuration) = (&point.settings, &point.configuration);
            let s = simulate(machine, settings, configuration, cores, (1, Effort::QUICK))?;
            let units = s.units.max(1.0);
            let counts: Vec<f64> = names.iter().map(|n| n.count(&s) / units).collect();
            let own = s.sample.times.stack.unwrap_or(0) as f64 / units;
            let charged: f64 = counts.iter().zip(&before).map(|(u, c)| u * c).sum();
            let measured = median(&run.own_ns).unwrap_or(0.0);
            let peer_lines = s.peer_lines_ns() as f64 / units;
            if run.connections >= MANY {
                let lines = s.lines_ns.iter().sum::<u64>() as f64 / units;
                many.push((measured, own, lines - peer_lines));
                continue;
            }
            observed.push(Observed {
                units: counts,
                // What is not fitted, such as locks and wakes, is known.
                ns: measured - (own - charged),
                scale: measured.max(1.0),
            });
            if run.beside {
                continue;
            }
            let peer = median(&run.peer_ns).unwrap_or(0.0);
            peers.push(Observed {
                units: PEER.map(|p| p.count(&s) / units).to_vec(),
                ns: peer - peer_lines,
                scale: peer.max(1.0),
            });
        }
        for (name, cost) in names.into_iter().zip(fit(&observed, &before)) {
            name.put(machine, cost);
        }
    }
    let before = PEER.map(|p| p.cost(machine));
    for (p, cost) in PEER.into_iter().zip(fit(&peers, &before)) {
        p.put(machine, cost);
    }
    // How much of a line's way from memory shows, where much else is under way.
    for (measured, own, lines) in many {
        if lines > 1.0 {
            let shows = (lines + measured - own) / lines;
            let shown = machine.lines.memory * shows;
            machine.lines.memory = shown.clamp(LEAST_SHOWN * memory, memory).round();
        }
    }
    Ok(())
}

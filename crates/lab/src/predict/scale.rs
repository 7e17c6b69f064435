//! The table of a machine that is not here, from what was published of one thread on it.

use super::{
    effort::Effort,
    machine::{Group, Machine, thousandths},
    simulate::{Simulated, simulate},
};
use crate::{
    Error,
    plan::{self, Cell, Mode},
    stats::median,
};

/// The plan whose `up` is scaled.
const PLAN: &str = "throughput";
/// What a connection has for itself: lines of which there are more, the more connections there are.
const OWN: [&str; 6] = ["connection", "rcv", "rcvbuf", "snd", "sndbuf", "tcb"];
/// Steps of each search within a factor of two: the last is within a hundredth.
const STEPS: usize = 6;
/// Turns through both searches, as each moves what the other has found.
const TURNS: usize = 3;

/// What was published of one core, each with the connections that it was measured over.
#[derive(Debug, Clone, Copy)]
pub struct OneCore {
    /// Mb/s sent over few connections.
    pub few: (u32, f64),
    /// And over many.
    pub many: Option<(u32, f64)>,
    /// Cycles spent on scheduling for each KB sent.
    pub scheduling: Option<(u32, f64)>,
}

/// Scales a machine's work until the uniprocessor sends as much over few connections as was
/// published; where more was, what scheduling takes until it spends as much on that, and how many
/// lines a connection has for itself until it sends as much over many. Nothing else is fitted. All of it is that
/// machine's stack and not ours: its code was longer, and so were its sockets, packets and queues.
///
/// # Errors
/// No factor does it, or a simulation failed.
pub fn scale(machine: &Machine, published: OneCore) -> Result<Machine, Error> {
    let mut m = machine.clone();
    let alone = published.scheduling.is_none() && published.many.is_none();
    let turns = if alone { 1 } else { TURNS };
    for _ in 0..turns {
        if let Some(wanted) = published.scheduling {
            let ghz = m.ghz.ok_or_else(|| {
                let line = format!("{}: how long a cycle takes is not known (`ghz`)", m.name);
                Error::Input(line)
            })?;
            let cycles = |s: &Simulated| scheduling_ns(s) * ghz;
            let scheduling = Factor {
                most: 30.0,
                unit: "cycles per KB",
                grows: true,
                scale: |m, by| *m = m.varied(Group::Scheduling, by),
            };
            m = scheduling.search(&m, wanted, cycles)?;
        }
        let work = Factor {
            most: 100.0,
            unit: "Mb/s",
            grows: false,
            scale: |m, by| m.work.values_mut().flatten().for_each(|c| *c *= by),
        };
        m = work.search(&m, published.few, mbps)?;
        let Some(many) = published.many else { continue };
        let lines = Factor {
            most: 100.0,
            scale: |m, by| {
                let own = m
                    .each
                    .iter_mut()
                    .filter(|(name, _)| OWN.contains(&&***name));
                own.for_each(|(_, lines)| *lines *= by);
            },
            ..work
        };
        m = lines.search(&m, many, mbps)?;
    }
    for c in m.work.values_mut().flatten().chain(m.each.values_mut()) {
        *c = thousandths(*c);
    }
    for c in m.costs.scheduling() {
        *c = c.round();
    }
    Ok(m)
}

/// Mb/s sent.
fn mbps(s: &Simulated) -> f64 {
    s.sample.goodput * 8.0 / 1e6
}

/// Time spent on scheduling for each KB sent, ns.
fn scheduling_ns(s: &Simulated) -> f64 {
    let ns: u64 = s.sample.paths.iter().map(|p| p.ns).sum();
    ns as f64 * 1024.0 / (s.sample.goodput * s.time.as_secs_f64())
}

/// What costs are multiplied by.
#[derive(Clone, Copy)]
struct Factor {
    most: f64,
    /// Of what they make, and whether that grows with them.
    unit: &'static str,
    grows: bool,
    scale: fn(&mut Machine, f64),
}

impl Factor {
    /// Finds it: how the costs of `machine` have to grow, or shrink, for `of` to be as published.
    fn search(
        &self,
        machine: &Machine,
        (connections, wanted): (u32, f64),
        of: impl Fn(&Simulated) -> f64,
    ) -> Result<Machine, Error> {
        let grown = |by| {
            let mut m = machine.clone();
            (self.scale)(&mut m, by);
            m
        };
        let too_cheap = |by| {
            let runs = uniprocessor(&grown(by), connections)?;
            let value = middle(&runs, &of);
            Ok::<bool, Error>((value > wanted) != self.grows)
        };
        // From where it is, as runs with large costs take long.
        let cheap = too_cheap(1.0)?;
        let step = if cheap { 2.0 } else { 0.5 };
        let mut at = 1.0;
        while too_cheap(at * step)? == cheap {
            at *= step;
            if !(1.0 / self.most..=self.most).contains(&at) {
                let (most, unit) = (self.most, self.unit);
                return Err(Error::Run(format!(
                    "no factor from 1/{most:.0} to {most:.0} makes it {wanted:.0} {unit} over \
                     {connections} connections"
                )));
            }
        }
        let (mut low, mut high) = (at.min(at * step), at.max(at * step));
        for _ in 0..STEPS {
            let middle = (low * high).sqrt();
            match too_cheap(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(grown((low * high).sqrt()))
    }
}

/// The median of what runs came to.
fn middle(runs: &[Simulated], of: impl Fn(&Simulated) -> f64) -> f64 {
    let all: Vec<f64> = runs.iter().map(of).collect();
    median(&all).expect("there are runs")
}

/// Runs of one core in the study's plan: of few connections several, as they are short and each is
/// a hundredth off.
fn uniprocessor(machine: &Machine, connections: u32) -> Result<Vec<Simulated>, Error> {
    const EFFORT: Effort = Effort::USUAL;
    let mut plans = plan::embedded().into_iter();
    let plan = plans.find(|p| p.name == PLAN).expect("it ships");
    let nics = machine.nics.unwrap_or(1);
    let mut cells = plan
        .cells_on(Mode::Normal, machine.cores, nics)?
        .into_iter();
    let wanted = |cell: &Cell| {
        let c = &cell.configuration;
        c.organization.to_string() == "up" && c.connections == connections
    };
    let cell = cells.find(wanted).ok_or_else(|| {
        let line = format!("the plan {PLAN} does not have {connections} connections");
        Error::Input(line)
    })?;
    let cell = machine.cell(cell)?;
    let settings = machine.settings(&cell);
    let table = machine.peer_elsewhere();
    let seeds = if EFFORT.is_short(connections) { 3 } else { 1 };
    let one = |seed| simulate(&table, &settings, &cell.configuration, 1, (seed, EFFORT));
    (1..=seeds).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_is_sent_then() {
        let like = Machine::find("opteron-275").unwrap();
        for published in [3000.0, 5000.0] {
            let few = OneCore {
                few: (6, published),
                many: None,
                scheduling: None,
            };
            let m = scale(&like, few).unwrap();
            let error = middle(&uniprocessor(&m, 6).unwrap(), mbps) / published - 1.0;
            assert!(error.abs() < 1.0 / 60.0, "{published}: {error}");
            // Lines are left as they were.
            assert_eq!(m.each, like.each);
        }
    }

    #[test]
    fn only_what_the_plan_has_can_be_asked_for() {
        let like = Machine::find("opteron-275").unwrap();
        let seven = OneCore {
            few: (7, 3000.0),
            many: None,
            scheduling: None,
        };
        let error = scale(&like, seven).unwrap_err();
        assert!(error.to_string().contains("7 connections"), "{error}");
    }
}

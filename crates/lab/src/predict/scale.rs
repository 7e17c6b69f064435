//! The table of a machine that is not here, from what was published of one thread on it.

use super::{
    machine::{Machine, thousandths},
    simulate::{Effort, simulate},
};
use crate::{
    Error,
    plan::{self, Cell, Mode},
};

/// The plan whose `up` is scaled.
const PLAN: &str = "throughput";
/// Steps of each search within a factor of two: the last is within a hundredth.
const STEPS: usize = 6;
/// Turns through both searches, as each moves what the other has found.
const TURNS: usize = 3;

/// Scales a machine's work until `up` sends `few.1` Mb/s over `few.0` connections and, where `many`
/// is given, how many lines everything has until it sends `many.1` over `many.0`: nothing else is
/// fitted. Both are the stack's of that machine and not ours: its code was longer, and so were its
/// sockets, packets and queues.
///
/// # Errors
/// No factor does it, or a simulation failed.
pub fn scale(
    machine: &Machine,
    few: (u32, f64),
    many: Option<(u32, f64)>,
) -> Result<Machine, Error> {
    let mut m = machine.clone();
    for _ in 0..TURNS {
        m = search(&m, few, 100.0, |m, by| {
            m.work.values_mut().flatten().for_each(|c| *c *= by);
        })?;
        let Some(many) = many else { break };
        m = search(&m, many, 30.0, |m, by| {
            m.each.values_mut().for_each(|lines| *lines *= by);
        })?;
    }
    for c in m.work.values_mut().flatten().chain(m.each.values_mut()) {
        *c = thousandths(*c);
    }
    Ok(m)
}

/// Finds by what factor costs have to grow, or shrink, for the goodput, up to some `most`.
fn search(
    machine: &Machine,
    (connections, mbps): (u32, f64),
    most: f64,
    grow: impl Fn(&mut Machine, f64),
) -> Result<Machine, Error> {
    let grown = |by| {
        let mut m = machine.clone();
        grow(&mut m, by);
        m
    };
    let too_fast = |by| Ok::<bool, Error>(up(&grown(by), connections)? > mbps);
    // From where it is, as runs with large costs take long.
    let fast = too_fast(1.0)?;
    let step = if fast { 2.0 } else { 0.5 };
    let mut at = 1.0;
    while too_fast(at * step)? == fast {
        at *= step;
        if !(1.0 / most..=most).contains(&at) {
            return Err(Error::Run(format!(
                "no factor from 1/{most:.0} to {most:.0} makes `up` send {mbps:.0} Mb/s over \
                 {connections} connections"
            )));
        }
    }
    let (mut low, mut high) = (at.min(at * step), at.max(at * step));
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        match too_fast(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(grown((low * high).sqrt()))
}

/// What `up` sends in the study's plan, Mb/s.
fn up(machine: &Machine, connections: u32) -> Result<f64, Error> {
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
    let settings = machine.settings(&cell);
    let how = (1, Effort::USUAL);
    let s = simulate(
        &machine.peer_elsewhere(),
        &settings,
        &cell.configuration,
        1,
        how,
    )?;
    Ok(s.sample.goodput * 8.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_is_sent_then() {
        let like = Machine::find("opteron-275").unwrap();
        for published in [3000.0, 5000.0] {
            let m = scale(&like, (6, published), None).unwrap();
            let error = up(&m, 6).unwrap() / published - 1.0;
            assert!(error.abs() < 1.0 / 60.0, "{published}: {error}");
            // Lines are left as they were.
            assert_eq!(m.each, like.each);
        }
    }

    #[test]
    fn only_what_the_plan_has_can_be_asked_for() {
        let like = Machine::find("opteron-275").unwrap();
        let error = scale(&like, (7, 3000.0), None).unwrap_err();
        assert!(error.to_string().contains("7 connections"), "{error}");
    }
}

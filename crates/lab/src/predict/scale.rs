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
    let (mut low, mut high) = (1.0, 1.0);
    match too_fast(1.0)? {
        true => {
            while too_fast(high * 2.0)? {
                high *= 2.0;
                if high > most {
                    return Err(Error::Run(format!(
                        "`up` sends more than {mbps:.0} Mb/s over {connections} connections even \
                         with {high:.0} times the costs"
                    )));
                }
            }
            (low, high) = (high, high * 2.0);
        }
        false => {
            while !too_fast(low / 2.0)? {
                low /= 2.0;
                if low * most < 1.0 {
                    return Err(Error::Run(format!(
                        "`up` does not send {mbps:.0} Mb/s over {connections} connections even \
                         with {low:.3} of the costs"
                    )));
                }
            }
            (low, high) = (low / 2.0, low);
        }
    }
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
        let m = scale(&like, (6, 3000.0), None).unwrap();
        let sent = up(&m, 6).unwrap();
        assert!((2950.0..3050.0).contains(&sent), "{sent}");
        // Lines are left as they were.
        assert_eq!(m.each, like.each);
    }

    #[test]
    fn only_what_the_plan_has_can_be_asked_for() {
        let like = Machine::find("opteron-275").unwrap();
        let error = scale(&like, (7, 3000.0), None).unwrap_err();
        assert!(error.to_string().contains("7 connections"), "{error}");
    }
}

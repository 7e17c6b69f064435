//! The table of a machine that is not here, from what was published of one thread on it.

use super::{
    loads::{Load, Point},
    machine::{Machine, thousandths},
    simulate::{Effort, simulate},
};
use crate::Error;

/// Steps of each search: the last is within a thousandth.
const STEPS: usize = 14;
/// Turns through both searches, as each moves what the other has found.
const TURNS: usize = 3;

/// Scales a machine's work until `up` sends `few.1` Mb/s over `few.0` connections and, where `many`
/// is given, what memory takes until it sends `many.1` over `many.0`: nothing else is fitted.
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
        let base = m.clone();
        m = search(few, 100.0, |by| {
            let mut m = base.clone();
            m.work.values_mut().flatten().for_each(|c| *c *= by);
            m
        })?;
        let Some(many) = many else { break };
        let base = m.clone();
        m = search(many, 10.0, |by| {
            let mut m = base.clone();
            m.lines.memory *= by;
            m
        })?;
    }
    for c in m.work.values_mut().flatten() {
        *c = thousandths(*c);
    }
    m.lines.memory = m.lines.memory.round();
    Ok(m)
}

/// Finds by what factor costs have to grow for the goodput, from one in `most` to `most`.
fn search(
    (connections, mbps): (u32, f64),
    most: f64,
    grown: impl Fn(f64) -> Machine,
) -> Result<Machine, Error> {
    let (mut low, mut high) = (1.0 / most, most);
    let (fast, slow) = (
        up(&grown(low), connections)?,
        up(&grown(high), connections)?,
    );
    if !(slow..=fast).contains(&mbps) {
        return Err(Error::Run(format!(
            "no factor from 1/{most:.0} to {most:.0} makes `up` send {mbps:.0} Mb/s over \
             {connections} connections: it sends {slow:.0} to {fast:.0}"
        )));
    }
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        match up(&grown(middle), connections)? > mbps {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(grown((low * high).sqrt()))
}

/// What `up` sends, Mb/s, to a peer that costs it nothing.
fn up(machine: &Machine, connections: u32) -> Result<f64, Error> {
    let mut point = Point::new(Load::Send, "up", connections, 1).map_err(Error::Input)?;
    point.settings.nics = machine.nics.unwrap_or(1);
    let machine = machine.peer_elsewhere();
    let how = (1, Effort::QUICK);
    let s = simulate(&machine, &point.settings, &point.configuration, 1, how)?;
    Ok(s.sample.goodput * 8.0 / 1e6)
}

//! The table of a machine that is not here, from what was published of one thread on it.

use super::{
    loads::{Load, Point},
    machine::Machine,
    simulate::{Effort, simulate},
};
use crate::Error;

/// Steps of each search: the last is within a thousandth.
const STEPS: usize = 14;
/// Turns through both searches, as each moves what the other has found.
const TURNS: usize = 3;

/// Scales a machine's work until `up` sends `few.1` Mb/s over `few.0` connections, and what memory
/// takes until it sends `many.1` over `many.0`: nothing else is fitted.
///
/// # Errors
/// A simulation failed.
pub fn scale(machine: &Machine, few: (u32, f64), many: (u32, f64)) -> Result<Machine, Error> {
    let mut m = machine.clone();
    for _ in 0..TURNS {
        let base = m.clone();
        m = search(few, |by| {
            let mut m = base.clone();
            m.work.values_mut().flatten().for_each(|c| *c *= by);
            m
        })?;
        let base = m.clone();
        m = search(many, |by| {
            let mut m = base.clone();
            m.lines.memory *= by;
            m
        })?;
    }
    for c in m.work.values_mut().flatten() {
        *c = (*c * 1000.0).round() / 1000.0;
    }
    m.lines.memory = m.lines.memory.round();
    Ok(m)
}

/// Finds by what factor costs have to grow, from a tenth to a hundred, for the goodput.
fn search(
    (connections, mbps): (u32, f64),
    grown: impl Fn(f64) -> Machine,
) -> Result<Machine, Error> {
    let (mut low, mut high) = (0.1f64, 100.0f64);
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

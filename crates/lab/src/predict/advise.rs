//! Which organization does most on more cores than there are, where a prediction can be relied on.

use super::{
    effort::Effort,
    loads::{Load, Point},
    machine::Machine,
    pool,
    simulate::simulate,
    validate::validate,
};
use crate::{Error, stats::Spread};

/// Connections of the loads.
const CONNECTIONS: u32 = 192;
/// Runs of each organization, each with a seed of its own.
const SEEDS: u64 = 3;

/// What is said of one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The load.
    pub load: Load,
    /// The organization that does most, how many times as much as the next, and the next; or why
    /// nothing is said.
    pub best: Best,
}

type Best = Result<(String, f64, String), String>;

/// What `machine` is predicted to do on `cores` cores under each of `organizations`. First its table
/// is held against the runs that are in it; of a load for which that fails nothing is said.
///
/// # Errors
/// A simulation failed.
pub fn advise(
    machine: &Machine,
    cores: usize,
    organizations: &[String],
) -> Result<Vec<Advice>, Error> {
    let validation = validate(machine, 1, Effort::QUICK)?;
    let mut all = Vec::new();
    for load in Load::ALL {
        let fails = match validation.of(load) {
            Some(v) => v.fails(),
            None => vec!["nothing was measured to hold it against".into()],
        };
        let best = match fails.is_empty() {
            true => best(machine, cores, organizations, load)?,
            false => Err(format!(
                "the table of {} does not bear its validation: {}",
                machine.name,
                fails.join("; ")
            )),
        };
        all.push(Advice { load, best });
    }
    Ok(all)
}

fn best(machine: &Machine, cores: usize, orgs: &[String], load: Load) -> Result<Best, Error> {
    let machine = machine.peer_elsewhere();
    let found = pool::each(orgs, |org| {
        let point = Point::new(load, org, CONNECTIONS, cores).map_err(Error::Input)?;
        let mut values = Vec::new();
        for seed in 1..=SEEDS {
            let how = (seed, Effort::QUICK);
            let s = simulate(&machine, &point.settings, &point.configuration, cores, how)?;
            values.push(s.sample.goodput);
        }
        Ok((org.clone(), Spread::of(&values)))
    });
    let found: Vec<(String, Option<Spread>)> = found.into_iter().collect::<Result<_, Error>>()?;
    let mut known: Vec<(String, Spread)> = found
        .into_iter()
        .filter_map(|(org, s)| Some((org, s?)))
        .collect();
    known.sort_by(|a, b| b.1.median.total_cmp(&a.1.median));
    Ok(match known.as_slice() {
        [(first, a), (next, b), ..] if a.min > b.max => {
            Ok((first.clone(), a.median / b.median, next.clone()))
        }
        [(first, _), (next, _), ..] => Err(format!("no difference between {first} and {next}")),
        _ => Err("there is nothing to choose from".into()),
    })
}

//! A lease and a partition that heals: never do two clients hold the thing at once, and all get it
//! again. The same programs with a bug in them are caught.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod programs;

use perimeter_testing::{Link, Sim, seeds};
use programs::{Bug, Held, client, server};
use std::time::Duration;

fn run(seed: u64, bug: Bug) -> Result<(), String> {
    let held = Held::default();
    let link = Link::default()
        .with_delay(Duration::from_millis(5))
        .with_jitter(Duration::from_millis(20))
        .with_loss(0.02);
    let mut sim = Sim::builder(seed).link(link).build();
    sim.host("server", server);
    for name in ["one", "two"] {
        sim.client(name, client(name, held.clone(), bug));
    }
    // When one of them is cut off, and for how long, is the seed's to say.
    let draw = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (cut, lasts) = (500 + (draw >> 40) % 3_000, 1_500 + (draw >> 20) % 3_000);
    let who = if seed.is_multiple_of(2) { "one" } else { "two" };
    let one_way = seed.is_multiple_of(3);
    sim.at(Duration::from_millis(cut), move |sim| match one_way {
        true => sim.partition_one_way("server", who),
        false => sim.partition(who, "server"),
    });
    sim.at(Duration::from_millis(cut + lasts), move |sim| {
        sim.heal(who, "server");
    });
    sim.run().map_err(|e| e.to_string())?;
    let held = held.borrow();
    for pair in held.windows(2) {
        let [(a, _, end), (b, begin, _)] = pair else {
            continue;
        };
        if a != b && begin < end {
            return Err(format!("{a} holds it until {end:?}, {b} from {begin:?}"));
        }
    }
    for name in ["one", "two"] {
        let steps = held.iter().filter(|(who, ..)| who == name).count();
        if steps < 200 {
            return Err(format!("{name} has held it for {steps} steps only"));
        }
    }
    Ok(())
}

#[test]
fn nobody_holds_what_another_holds_and_everybody_gets_it() {
    common::check(100, |seed| run(seed, Bug::None));
}

#[test]
fn a_lease_that_is_counted_from_the_answer_is_found() {
    let found = seeds::find_failure(0..200, |seed| run(seed, Bug::CountsFromAnswer));
    let (seed, what) = found.expect("a bug that no seed finds");
    assert!(what.contains("holds it until"), "{what}");
    assert_eq!(run(seed, Bug::CountsFromAnswer), Err(what));
}

#[test]
fn a_client_that_holds_on_while_it_is_cut_off_is_found() {
    let found = seeds::find_failure(0..200, |seed| run(seed, Bug::HoldsOn));
    let (_, what) = found.expect("a bug that no seed finds");
    assert!(what.contains("holds it until"), "{what}");
}

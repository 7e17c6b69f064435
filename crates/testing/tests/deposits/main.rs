//! A client that retries and a server that crashes: every deposit that the client was told of is on
//! the disk, once. The same programs with a bug in them are caught.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod programs;

use perimeter_testing::{Link, Sim, SimError, seeds};
use programs::{Bug, Disk, client, server};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How many deposits the client makes.
const DEPOSITS: u64 = 20;

/// One run: a slow link that loses packets, and a server whose power fails now and then.
fn run(seed: u64, bug: Bug) -> Result<(), String> {
    run_at_all(seed, bug).map(|_| ())
}

fn run_at_all(seed: u64, bug: Bug) -> Result<(u64, Duration), String> {
    let disk = Rc::new(Disk::default());
    let told = Rc::new(RefCell::new(Vec::new()));
    let link = Link::default()
        .with_delay(Duration::from_millis(10))
        .with_jitter(Duration::from_millis(3))
        .with_loss(0.02);
    let mut sim = Sim::builder(seed).link(link).build();
    let its = disk.clone();
    sim.host("server", move || server(its.clone(), bug));
    sim.client("client", client(DEPOSITS, told.clone(), bug));
    // When power fails is the seed's to say.
    let mut at = 0;
    for n in 0..3 {
        at += 100 + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n * 16) & 0x1ff);
        sim.at(Duration::from_millis(at), |sim| sim.crash("server"));
        at += 150;
        sim.at(Duration::from_millis(at), |sim| sim.restart("server"));
    }
    sim.run().map_err(|e: SimError| e.to_string())?;
    let told = told.borrow();
    for n in 0..DEPOSITS {
        let kept = disk.count(n);
        if told.contains(&n) && kept != 1 {
            return Err(format!("deposit {n} is on the disk {kept} times"));
        }
    }
    if told.len() as u64 != DEPOSITS {
        return Err(format!("the client was told of {} deposits", told.len()));
    }
    Ok((sim.digest(), sim.elapsed()))
}

#[test]
fn no_deposit_is_lost_or_made_twice() {
    common::check(300, |seed| run(seed, Bug::None));
}

#[test]
fn a_server_that_answers_before_it_has_stored_is_found() {
    let found = seeds::find_failure(0..300, |seed| run(seed, Bug::AnswersFirst));
    let (seed, what) = found.expect("a bug that no seed finds");
    assert!(what.contains("0 times"), "{what}");
    // It comes back with its seed.
    assert_eq!(run(seed, Bug::AnswersFirst), Err(what));
}

#[test]
fn a_client_that_does_not_send_again_is_found() {
    let found = seeds::find_failure(0..300, |seed| run(seed, Bug::SendsOnce));
    assert!(found.is_some(), "a bug that no seed finds");
}

#[test]
fn a_server_that_stores_again_what_it_has_is_found() {
    let found = seeds::find_failure(0..300, |seed| run(seed, Bug::StoresAgain));
    let (_, what) = found.expect("a bug that no seed finds");
    assert!(what.contains("2 times"), "{what}");
}

/// What another process prints of a run.
const PRINTED: &str = "the digest is ";

#[test]
fn the_same_seed_is_the_same_run() {
    let first = run_at_all(5, Bug::None).unwrap();
    println!("{PRINTED}{first:?}");
    assert_eq!(run_at_all(5, Bug::None).unwrap(), first);
    assert_ne!(run_at_all(6, Bug::None).unwrap().0, first.0);
    // In another process too, where hash maps and memory are laid out in another way.
    const CHILD: &str = "PERIMETER_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let child = std::process::Command::new(this)
        .args(["--exact", "the_same_seed_is_the_same_run", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(child.stdout).unwrap();
    assert!(text.contains(&format!("{PRINTED}{first:?}")), "{text}");
}

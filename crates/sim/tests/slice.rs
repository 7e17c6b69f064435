//! A slice of the soak: the scenarios that once failed, then some that depend on the commit.

use perimeter::{LockPolicy, OrgSpec};
use perimeter_sim::trace::{Sabotage, Spy};
use perimeter_sim::{Capacity, Drive, Family, Mix, Scenario, Workload, run, run_spied, run_traced};
use std::process::Command;

/// Runs a scenario; a failure is run again for its traffic.
fn check(sc: &Scenario) {
    if let Err(f) = run(sc) {
        let f = run_traced(sc, 300).err().unwrap_or(f);
        panic!("{f}");
    }
}

/// Seeds of this commit: 0 where there is no repository to ask.
fn base() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = head.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
    let head = head.unwrap_or_default();
    u64::from_str_radix(head.get(..12).unwrap_or("0"), 16).unwrap_or(0) << 8
}

/// `PERIMETER_SIM_RUNS`: runs of each mix, 200 unless set, whatever the number of organizations.
fn runs() -> u64 {
    std::env::var("PERIMETER_SIM_RUNS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(200)
}

#[test]
fn what_once_failed() {
    for line in include_str!("../regressions.txt").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        check(&line.parse().unwrap_or_else(|e| panic!("{line}: {e}")));
    }
}

fn slice(mix: Mix) {
    let mut combinations = Vec::new();
    for cores in [2, 4, 8] {
        for capacity in [Capacity::Normal, Capacity::Shrunken] {
            for org in OrgSpec::tested() {
                combinations.push((org, cores, capacity));
            }
        }
    }
    // In turn, from one that depends on the commit; each run draws its own workload.
    let first = base();
    for n in first..first + runs() {
        let (org, cores, capacity) = &combinations[(n % combinations.len() as u64) as usize];
        let seed = n.wrapping_mul(31).wrapping_add(mix as u64 * 1009);
        check(&Scenario::new(org.clone(), *cores, mix, *capacity, seed));
    }
}

#[test]
fn without_faults() {
    slice(Mix::None);
}

#[test]
fn with_1_percent_loss() {
    slice(Mix::Loss1);
}

#[test]
fn with_10_percent_loss() {
    slice(Mix::Loss10);
}

#[test]
fn with_reordering() {
    slice(Mix::Reorder);
}

#[test]
fn with_duplication() {
    slice(Mix::Duplicate);
}

#[test]
fn with_corruption() {
    slice(Mix::Corrupt);
}

#[test]
fn with_three_faults_at_once() {
    slice(Mix::Three);
}

#[test]
fn under_the_lock_policy_of_2006() {
    let organizations = OrgSpec::tested();
    let first = base();
    for n in first..first + runs() / 8 {
        let org = organizations[(n % organizations.len() as u64) as usize].clone();
        let mix = [Mix::None, Mix::Three][(n % 2) as usize];
        let capacity = [Capacity::Normal, Capacity::Shrunken][(n / 2 % 2) as usize];
        let mut sc = Scenario::new(org, 4, mix, capacity, n.wrapping_mul(37));
        sc.locks = LockPolicy::Turnstile;
        check(&sc);
    }
}

/// A scenario from the environment, for debugging: `PERIMETER_SIM="org=… seed=…"`.
#[test]
fn the_one_asked_for() {
    if let Ok(text) = std::env::var("PERIMETER_SIM") {
        let sc: Scenario = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        check(&sc);
    }
}

/// To the step, and whatever else the process has run: nothing depends on addresses or on the keys
/// of hash tables. With four cores a stack has several links and neighbours.
#[test]
fn a_scenario_replays_itself() {
    for org in OrgSpec::tested() {
        let sc = Scenario::new(org, 4, Mix::Three, Capacity::Shrunken, 5);
        let first = run(&sc).unwrap();
        let first = (first.trace_hash, first.steps, first.checked);
        let again = run_traced(&sc, 10).unwrap();
        let again = (again.trace_hash, again.steps, again.checked);
        assert_eq!(first, again, "{sc}");
    }
}

/// Runs a workload with the damage, under every organization; it must fail for one of `reasons`.
fn sabotaged(workload: Workload, family: Family, sabotage: Sabotage, reasons: &[&str]) {
    for org in OrgSpec::tested() {
        let mut sc = Scenario::new(org, 2, Mix::None, Capacity::Normal, 1);
        (sc.family, sc.workload, sc.drive) = (family, workload, Drive::Level);
        sc.early_timer_one_in = 0;
        run(&sc).unwrap_or_else(|f| panic!("without damage: {f}"));
        let spy = Spy {
            sabotage: Some(sabotage),
            ..Spy::default()
        };
        let f = run_spied(&sc, &spy).expect_err("the damage is seen");
        let seen = reasons.iter().any(|r| f.detail.contains(r));
        assert!(seen, "{f}");
    }
}

#[test]
fn a_wrong_bit_is_seen() {
    let bit = Sabotage::WrongBit(7);
    sabotaged(Workload::Download, Family::V4, bit, &["is wrong"]);
    // Where it is in a fragment, the checksum shows it.
    for family in [Family::V4, Family::V6] {
        let reasons = ["is wrong", "drop_bad"];
        sabotaged(Workload::Datagrams, family, bit, &reasons);
    }
}

#[test]
fn datagrams_that_come_twice_or_joined_are_seen() {
    for family in [Family::V4, Family::V6] {
        let seen = |what, reason| sabotaged(Workload::Datagrams, family, what, &[reason]);
        seen(Sabotage::Twice(9), "came 2 times");
        seen(Sabotage::Swapped(9), "is wrong");
        // That shows, but would not where the checksum is not looked at.
        seen(Sabotage::Joined, "drop_bad_udp");
    }
}

#[test]
fn silence_is_seen() {
    // The sender gives up a little before the run is called a hang. Who is silent answers no request
    // for its station either, and that is what the timeout reports (RFC 1122, section 4.2.3.9).
    let silence = Sabotage::Silence(20);
    let reasons = ["no route to host"];
    sabotaged(Workload::Download, Family::V4, silence, &reasons);
    for family in [Family::V4, Family::V6] {
        let reasons = ["did not arrive", "does not refuse"];
        sabotaged(Workload::Datagrams, family, silence, &reasons);
    }
}

//! A slice of the soak: the scenarios that once failed, then some that depend on the commit.

use perimeter::OrgSpec;
use perimeter_sim::{Capacity, Mix, Scenario, run, run_traced};
use std::process::Command;

/// Runs a scenario; a failure is run again for its traffic.
fn check(sc: &Scenario) {
    if let Err(f) = run(sc) {
        let f = run_traced(sc, 300).err().unwrap_or(f);
        panic!("{f}");
    }
}

fn organizations() -> Vec<OrgSpec> {
    let mut all = vec![
        OrgSpec::Up,
        OrgSpec::UpShared,
        OrgSpec::ConnpL { groups: 8 },
    ];
    if cfg!(feature = "testing")
        && let Ok(split) = "split".parse()
    {
        all.push(split);
    }
    all
}

/// Seeds of this commit: 0 where there is no repository to ask.
fn base() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = head.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
    let head = head.unwrap_or_default();
    u64::from_str_radix(head.get(..12).unwrap_or("0"), 16).unwrap_or(0) << 8
}

/// `PERIMETER_SIM_SEEDS`: seeds for each combination, 1 unless set.
fn seeds() -> u64 {
    std::env::var("PERIMETER_SIM_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1)
}

#[test]
fn what_once_failed() {
    for line in include_str!("../regressions.txt").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() || (line.contains("org=split") && !cfg!(feature = "testing")) {
            continue;
        }
        check(&line.parse().unwrap_or_else(|e| panic!("{line}: {e}")));
    }
}

fn slice(mix: Mix) {
    let base = base();
    for seed in base..base + seeds() {
        for org in organizations() {
            for cores in [2, 4] {
                for capacity in [Capacity::Normal, Capacity::Shrunken] {
                    // Each combination has a seed of its own, so that it draws its own workload.
                    let own = seed.wrapping_mul(31).wrapping_add(mix as u64 * 1009)
                        ^ (cores as u64) << 3
                        ^ (capacity as u64) << 5
                        ^ (org.to_string().len() as u64) << 6;
                    check(&Scenario::new(org.clone(), cores, mix, capacity, own));
                }
            }
        }
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

/// A scenario from the environment, for debugging: `PERIMETER_SIM="org=… seed=…"`.
#[test]
fn the_one_asked_for() {
    if let Ok(text) = std::env::var("PERIMETER_SIM") {
        let sc: Scenario = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        check(&sc);
    }
}

#[test]
fn a_scenario_replays_itself() {
    let sc = Scenario::new(
        OrgSpec::ConnpL { groups: 8 },
        2,
        Mix::Three,
        Capacity::Normal,
        5,
    );
    let (a, b) = (run(&sc).unwrap(), run_traced(&sc, 10).unwrap());
    assert_eq!(
        (a.trace_hash, a.steps, a.checked),
        (b.trace_hash, b.steps, b.checked)
    );
}

//! The simulation finds the bugs that it is for: each kind of bug that a parallel stack may
//! have is planted, and found within a thousand seeds of a scheduler and a capacity that are
//! named here. In a process of its own: a bug is planted in all stacks.

use perimeter::Offload;
use perimeter_sim::trace::Spy;
use perimeter_sim::{Capacity, Drive, Family, Mix, Scenario, Workload, run, run_spied};
use perimeter_stack::planted::{Bug, plant};
use perimeter_sync::virt::Schedule;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most seeds that it may take.
const SEEDS: u64 = 1_000;

const ORDER: &str = "lock order violated";
/// Who sleeps for ever may be given up by the peer before, as a peer or as a neighbour.
const HANG: &[&str] = &[
    "deadlock",
    "lost wake-up",
    "a hang",
    "does not come to rest",
    "timed out",
    "no route to host",
];

/// What lies until the next message comes is so late that the peer sends again.
const LATE: &[&str] = &[
    "again or out of order",
    "retransmits",
    "loss_probes",
    "a hang",
    "timed out",
];

/// Where a bug is looked for, and as what it is found.
struct Plan {
    bug: Bug,
    org: &'static str,
    cores: usize,
    schedule: Schedule,
    capacity: Capacity,
    workload: Workload,
    drive: Drive,
    /// Deadlocks only, not the order of locks.
    any_lock_order: bool,
    found_as: &'static [&'static str],
}

const RANDOM: Schedule = Schedule::Random { switch_one_in: 4 };
const PCT: Schedule = Schedule::Pct { depth: 3 };

const PLANS: &[Plan] = &[
    Plan {
        bug: Bug::WakesDropped,
        org: "up:shared",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Shrunken,
        workload: Workload::Shared,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: HANG,
    },
    Plan {
        bug: Bug::OrderSwapped,
        org: "split",
        cores: 4,
        schedule: PCT,
        capacity: Capacity::Normal,
        workload: Workload::Short,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: &[ORDER],
    },
    // Without the check of the order it takes a schedule in which two threads meet.
    Plan {
        bug: Bug::OrderSwapped,
        org: "split",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Normal,
        workload: Workload::Short,
        drive: Drive::Blocking,
        any_lock_order: true,
        found_as: HANG,
    },
    Plan {
        bug: Bug::QueueUnlockedEarly,
        org: "connp-l:8",
        cores: 8,
        schedule: Schedule::Random { switch_one_in: 10 },
        capacity: Capacity::Shrunken,
        workload: Workload::Short,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: HANG,
    },
    Plan {
        bug: Bug::RingFilledLate,
        org: "connp-l:8",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Normal,
        workload: Workload::Upload,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: &["again or out of order"],
    },
    // Segments that are overtaken look like losses to the peer; one that is by the last of its
    // connection is answered by a reset.
    Plan {
        bug: Bug::TicketsIgnored,
        org: "msgp:workers=4",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Normal,
        workload: Workload::Upload,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: &["retransmits", "out of order", "tx_resets"],
    },
    Plan {
        bug: Bug::WaiterAnnouncedLate,
        org: "up:shared",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Shrunken,
        workload: Workload::PingPong,
        drive: Drive::Edge,
        any_lock_order: false,
        found_as: HANG,
    },
    Plan {
        bug: Bug::ProcClearedLate,
        org: "squeue:2",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Normal,
        workload: Workload::PingPong,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: LATE,
    },
    // The peer's window stays shut.
    Plan {
        bug: Bug::BackEnableMissing,
        org: "pef:vertical",
        cores: 4,
        schedule: RANDOM,
        capacity: Capacity::Shrunken,
        workload: Workload::Download,
        drive: Drive::Blocking,
        any_lock_order: false,
        found_as: HANG,
    },
];

impl Plan {
    fn scenario(&self, seed: u64) -> Scenario {
        let org = self.org.parse().expect("a name");
        let mut sc = Scenario::new(org, self.cores, Mix::None, self.capacity, seed);
        (sc.family, sc.workload, sc.drive) = (Family::V4, self.workload, self.drive);
        (sc.schedule, sc.early_timer_one_in) = (self.schedule, 0);
        // What a large segment in place of another does to TCP has other names.
        if sc.offload == Offload::Device {
            sc.offload = Offload::Off;
        }
        sc
    }

    /// The smallest seed that finds the bug, and as what, by two threads.
    fn find(&self) -> Option<(u64, String)> {
        let spy = Spy {
            any_lock_order: self.any_lock_order,
            ..Spy::default()
        };
        let (next, found) = (AtomicU64::new(0), AtomicBool::new(false));
        let search = || {
            while !found.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    break;
                }
                if let Err(f) = run_spied(&self.scenario(seed), &spy) {
                    found.store(true, Ordering::Relaxed);
                    return Some((seed, f.detail));
                }
            }
            None
        };
        std::thread::scope(|s| {
            let threads = [s.spawn(search), s.spawn(search)];
            let ends = threads.map(|t| t.join().expect("a search does not panic"));
            ends.into_iter().flatten().min()
        })
    }
}

/// How the plan went.
fn check(plan: &Plan) -> Result<String, String> {
    let what = format!("{:?} under {} by {}", plan.bug, plan.org, plan.schedule);
    plant(plan.bug);
    let start = std::time::Instant::now();
    let found = plan.find();
    plant(Bug::Nothing);
    let Some((seed, detail)) = found else {
        return Err(format!("{what}: not found within {SEEDS} seeds"));
    };
    if !plan.found_as.iter().any(|kind| detail.contains(kind)) {
        return Err(format!(
            "{what}: found as something else by seed {seed}: {detail}"
        ));
    }
    // It is the bug: without it the same seed finds nothing.
    run(&plan.scenario(seed)).map_err(|f| format!("{what}, not planted: {f}"))?;
    let first = detail.lines().next().unwrap_or_default();
    Ok(format!(
        "{what}: seed {seed}, {:?}: {first}",
        start.elapsed()
    ))
}

#[test]
fn planted_bugs_are_found() {
    let outcomes: Vec<_> = PLANS.iter().map(check).collect();
    let mut missed = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(line) => println!("{line}"),
            Err(e) => missed.push(e),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

//! A slice of the exploration: tiny scenarios under random switching and PCT, for every
//! organization on 2, 4 and 8 cores; then the races of listeners, of timers and of closing, each
//! by itself.

use perimeter::OrgSpec;
use perimeter_sim::{Capacity, Drive, Mix, Scenario, Workload, early, run, run_traced};
use std::process::Command;

const CORES: [usize; 3] = [2, 4, 8];

/// A share of a number of runs: the more organizations there are, the fewer for each, so that
/// all of them together take about the same time. `PERIMETER_EXPLORE` multiplies it.
fn share(runs: u64) -> u64 {
    let times = std::env::var("PERIMETER_EXPLORE").ok();
    let times: u64 = times.and_then(|n| n.parse().ok()).unwrap_or(1);
    (times * runs / OrgSpec::tested().len() as u64).max(1)
}

/// Seeds of this commit: 0 where there is no repository to ask.
fn base() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = head.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
    let head = head.unwrap_or_default();
    u64::from_str_radix(head.get(..12).unwrap_or("0"), 16).unwrap_or(0) << 8
}

fn check(sc: &Scenario) {
    if let Err(f) = run(sc) {
        let f = run_traced(sc, 100).err().unwrap_or(f);
        panic!("{f}");
    }
}

/// About as long as the runs are.
const STEPS: u64 = 5_000;

#[test]
fn random_schedules() {
    for org in OrgSpec::tested() {
        for n in 0..share(3_000) {
            let cores = CORES[n as usize % CORES.len()];
            let seed = base() + n;
            check(&Scenario::explored(org.clone(), cores, seed, STEPS));
        }
    }
}

/// Explores one workload under every organization.
fn targeted(workload: Workload, change: impl Fn(&mut Scenario)) {
    for org in OrgSpec::tested() {
        if org.single_threaded() && workload.needs_threads() {
            continue;
        }
        for n in 0..share(600) {
            let cores = CORES[n as usize % CORES.len()];
            let seed = base() + n;
            let mut sc = Scenario::explored(org.clone(), cores, seed, STEPS);
            sc.workload = workload;
            if workload.needs_threads() {
                sc.drive = Drive::Blocking;
            }
            change(&mut sc);
            check(&sc);
        }
    }
}

/// SYNs that come before the listener is everywhere, while it goes, and connections that nobody
/// has accepted.
#[test]
fn listeners_come_and_go_under_their_clients() {
    targeted(Workload::Reopen, unhurried);
}

/// FIN and RST for what is still in the SYN cache, and for what nobody has accepted.
#[test]
fn clients_give_up_half_way() {
    targeted(Workload::Fickle, unhurried);
}

/// Where the last word of who goes may be lost, the other waits in vain, which takes time.
fn unhurried(sc: &mut Scenario) {
    if sc.mix != Mix::None {
        sc.early_timer_one_in = 0;
    }
}

#[test]
fn threads_at_both_ends_close_one_socket() {
    targeted(Workload::CloseTwice, |_| {});
}

#[test]
fn a_socket_is_closed_under_those_who_use_it() {
    targeted(Workload::CloseBlocked, |_| {});
}

/// Datagrams, their queues and their fragments, by connected sockets and others.
#[test]
fn datagrams_are_answered() {
    targeted(Workload::Datagrams, |_| {});
}

/// Eight threads at one end and five at the other.
#[test]
fn many_threads_share_one_socket() {
    targeted(Workload::Shared, |_| {});
}

/// Time jumps to deadlines at any moment: timers fire, and are queued, while acknowledgments
/// cancel them and connections end.
#[test]
fn timers_fire_while_they_are_cancelled() {
    for workload in [Workload::PingPong, Workload::Abort, Workload::Short] {
        targeted(workload, |sc| {
            sc.early_timer_one_in = early(sc.schedule);
        });
    }
}

/// Both ends close at the same moment.
#[test]
fn both_ends_close_at_once() {
    targeted(Workload::Duplex, |sc| sc.capacity = Capacity::Tiny);
}

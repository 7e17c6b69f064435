//! One run on virtual cores: the same benchmark, stack and organizations as on the machine, in
//! virtual time with a machine's costs.

use super::{
    effort::{Counting, Effort, used},
    machine::{Machine, PEER_LINES},
    missed::{Missed, modelled},
};
use crate::{
    Error,
    ours::virtual_cores,
    workload::{
        Configuration, Control, Direction, Locks, PathTime, Phase, SEGMENT, Sample, Settings, Times,
    },
};
use perimeter::{LockClass, LockStats, Virtual, Work, link::mem::PeerHandle};
use perimeter_base::Time;
use perimeter_sync::{
    Platform, Thread, Touched,
    virt::{CostTable, Report, Schedule, VirtualConfig},
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How much virtual costs vary: enough that threads do not run in lockstep.
const JITTER: u32 = 5;
/// Longest time of a run on the machine that simulates.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often who looks on does so, in virtual time.
const LOOK: Duration = Duration::from_micros(20);
/// Longest warm-up, and longest measurement, in virtual time.
const LONGEST: Duration = Duration::from_secs(120);
/// Most scheduling points of a run: some minutes of a simulating machine.
const MOST_STEPS: u64 = 4_000_000_000;

/// Congestion windows that connections begin with, in segments: all that a usual buffer holds, as
/// when slow start is long over and nothing was lost. With the usual ten, windows are still growing
/// when 64 cores have sent what counts.
const GROWN: u32 = 255;

/// Round trips before anything counts: all begin at the same moment.
const SETTLED: u32 = 20;

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// As what is measured on a machine is told.
    pub sample: Sample,
    /// Virtual time that was counted.
    pub time: Duration,
    /// How often each class of work was charged meanwhile, and of how many units.
    pub work: [(u64, u64); Work::COUNT],
    /// What lines took, by what they belong to, ns.
    pub lines_ns: [u64; Touched::COUNT],
    /// Time in which each core had something to do, ns.
    pub busy_ns: Vec<u64>,
    /// Units of work done: segments of payload, or rounds.
    pub units: f64,
}

impl Simulated {
    /// What lines of the ideal peer took, ns.
    pub fn peer_lines_ns(&self) -> u64 {
        of_peer(&self.lines_ns)
    }
}

fn of_peer(lines_ns: &[u64; Touched::COUNT]) -> u64 {
    PEER_LINES.map(|t| lines_ns[t.index()]).iter().sum()
}

/// What was there at one moment.
struct Look {
    at: Time,
    moved: u64,
    report: Report,
}

/// Runs `configuration` on `cores` cores of `machine`, of which one thread alone uses one. The same
/// seed gives the same run.
///
/// # Errors
/// What went wrong; the configuration can't run on virtual cores.
pub fn simulate(
    machine: &Machine,
    settings: &Settings,
    configuration: &Configuration,
    cores: usize,
    how: (u64, Effort),
) -> Result<Simulated, Error> {
    let mut all = simulate_all(&[machine], settings, configuration, cores, how)?;
    Ok(all.swap_remove(0))
}

/// The same on the first of `machines`, and then, going on from there, with the costs of each of
/// the others: as many as there was time for.
///
/// # Errors
/// As there.
pub fn simulate_all(
    machines: &[&Machine],
    settings: &Settings,
    configuration: &Configuration,
    cores: usize,
    (seed, effort): (u64, Effort),
) -> Result<Vec<Simulated>, Error> {
    let machine = machines[0];
    let cores = used(configuration, cores);
    let counting = effort.counting(machine, settings, cores);
    let config = VirtualConfig::default()
        .with_seed(seed)
        .with_cores(cores)
        // For who looks on.
        .with_spare_cores(1)
        .with_schedule(Schedule::Time {
            jitter_percent: JITTER,
        })
        .with_costs(machine.table())
        .with_max_steps(MOST_STEPS)
        .with_max_time(Time::from_millis(u64::from(u32::MAX)))
        .with_lock_policy(settings.locks)
        .with_priorities(settings.preemptive)
        .with_one_run_queue(!settings.bound)
        .with_check_lock_order(false);
    let (settings2, configuration2) = (settings.clone(), configuration.clone());
    let others = machines[1..].iter().map(|m| m.table()).collect();
    let how = How {
        effort,
        counting,
        others,
    };
    let body = move |p: Virtual| carry_out(&p, &settings2, &configuration2, how);
    let looks = match Virtual::run(config, body) {
        Ok((result, _)) => result?,
        Err(failure) => return Err(Error::Run(failure.to_string())),
    };
    let told = |(m, looks): (&&Machine, _)| told(m, settings, cores, looks);
    Ok(machines.iter().zip(&looks).map(told).collect())
}

/// What is looked at, and with what costs after that.
struct How {
    effort: Effort,
    counting: Counting,
    others: Vec<CostTable>,
}

fn carry_out(
    p: &Virtual,
    settings: &Settings,
    configuration: &Configuration,
    how: How,
) -> Result<Vec<[Look; 2]>, Error> {
    let deadline = Instant::now() + PATIENCE;
    let (workers, peers) =
        virtual_cores::open(p, (settings, Some(GROWN)), configuration, deadline)?;
    let control = Arc::new(Control::default());
    let ready = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(Mutex::new(None));
    let n = workers.len();
    let first = failed.clone();
    let fails = move |e| {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(e);
    };
    let set = (&control, &ready);
    let mut threads = virtual_cores::start(p, workers, set, (LOOK, settings.bound), fails);
    let looks = Arc::new(Mutex::new(None));
    let watch = Watch {
        p: p.clone(),
        peers,
        settings: settings.clone(),
        connections: u64::from(configuration.connections),
        how,
        deadline,
        failed: failed.clone(),
    };
    let seen = looks.clone();
    let body = move || {
        let done = watch.watch(&ready, n, &control);
        control.advance(Phase::Stop);
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = done;
    };
    threads.push(p.spawn_aside("observer", 0, Box::new(body)));
    for t in threads {
        t.join().map_err(Error::Run)?;
    }
    let error = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    let looks = looks.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (error, looks) {
        (Some(e), _) => Err(e),
        (None, Some(looks)) => Ok(looks),
        (None, None) => Err(Error::Late("nothing moved in time".into())),
    }
}

/// Who looks on.
struct Watch {
    p: Virtual,
    peers: Vec<PeerHandle<Virtual>>,
    settings: Settings,
    connections: u64,
    how: How,
    deadline: Instant,
    failed: Arc<Mutex<Option<Error>>>,
}

impl Watch {
    fn watch(
        &self,
        ready: &AtomicUsize,
        workers: usize,
        control: &Control,
    ) -> Option<Vec<[Look; 2]>> {
        while ready.load(Ordering::Acquire) < workers {
            if self.is_over() {
                return None;
            }
            self.p.sleep_until(self.p.now() + LOOK);
        }
        control.advance(Phase::Warm);
        let Effort {
            warm_least,
            warm_segments,
            warm_most,
            ..
        } = self.how.effort;
        let unit = unit(&self.settings);
        let warm = match self.settings.exchange {
            Some(_) => self.connections * 20,
            None => {
                (self.connections * warm_segments).min(warm_most.max(self.connections * warm_least))
            }
        };
        let held_back = self.settings.interrupt_delay + self.settings.interrupt_gap;
        let trips = SETTLED * (self.settings.rtt() + held_back);
        self.until((warm * unit, trips))?;
        let counting = self.how.counting;
        let seen = |before: Look| [before, self.look()];
        let before = self.look();
        self.count(counting)?;
        let mut all = vec![seen(before)];
        for costs in &self.how.others {
            self.p.set_costs(*costs);
            let again = || {
                self.count(counting.settling())?;
                let before = self.look();
                self.count(counting.again())?;
                Some(seen(before))
            };
            let Some(looks) = again() else { break };
            all.push(looks);
        }
        Some(all)
    }

    fn is_over(&self) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some() || Instant::now() > self.deadline
    }

    /// Bytes that all connections have moved.
    fn moved(&self) -> u64 {
        let flows = self.peers.iter().flat_map(PeerHandle::flows);
        let moved = flows.map(
            |f| match (self.settings.exchange, self.settings.direction) {
                (Some(_), _) | (None, Direction::Send) => f.acked,
                (None, Direction::Receive) => f.delivered,
                (None, Direction::Both) => f.acked + f.delivered,
            },
        );
        moved.sum()
    }

    fn look(&self) -> Look {
        Look {
            at: self.p.now(),
            moved: self.moved(),
            report: self.p.report(),
        }
    }

    /// Waits until as much has happened as is to count. `None`: that takes too long.
    fn count(&self, counting: Counting) -> Option<()> {
        let bytes = counting.segments * unit(&self.settings);
        self.until((bytes, counting.time))?;
        let mut turns = Vec::new();
        while !counting.is_enough(&turns) {
            let before = self.moved();
            self.until((0, counting.turn))?;
            turns.push((self.moved() - before) as f64);
        }
        Some(())
    }

    /// Waits until `bytes` more were moved and `time` has passed, in virtual time. `None`: that
    /// takes too long.
    fn until(&self, (bytes, time): (u64, Duration)) -> Option<()> {
        let begun = self.p.now();
        let frames = || self.peers.iter().map(|p| p.counts().frames).sum::<u64>();
        let (first, from) = (self.moved(), frames());
        // Asking all flows takes its time: so not before half of the frames that are lacking came.
        let half =
            |lacking: u64| lacking / self.settings.write_size.max(SEGMENT as usize) as u64 / 2;
        let mut least = from + half(bytes);
        loop {
            self.p.sleep_until(self.p.now() + LOOK);
            let passed = self.p.now().nanos_since(begun);
            let came = frames();
            if passed >= time.as_nanos() as u64 && came >= least {
                match bytes.saturating_sub(self.moved() - first) {
                    0 => return Some(()),
                    lacking => least = came + half(lacking),
                }
            }
            if passed > LONGEST.as_nanos() as u64 || self.is_over() {
                return None;
            }
        }
    }
}

/// Bytes of a unit of work: of a segment, or of a request.
fn unit(settings: &Settings) -> u64 {
    match settings.exchange {
        Some(e) => e.request.max(1) as u64,
        None => SEGMENT,
    }
}

fn told(machine: &Machine, settings: &Settings, cores: usize, looks: &[Look; 2]) -> Simulated {
    let [before, after] = looks;
    let ns = after.at.nanos_since(before.at).max(1);
    let bytes = after.moved - before.moved;
    let units = bytes as f64 / unit(settings) as f64;
    let mut work = [(0, 0); Work::COUNT];
    for (i, w) in work.iter_mut().enumerate() {
        let (a, b) = (after.report.work[i], before.report.work[i]);
        *w = (a.0 - b.0, a.1 - b.1);
    }
    let lines_ns: [u64; Touched::COUNT] =
        std::array::from_fn(|i| after.report.lines_ns[i] - before.report.lines_ns[i]);
    let missed: Missed = std::array::from_fn(|i| {
        let (a, b) = (after.report.missed[i], before.report.missed[i]);
        [a[0] - b[0], a[1] - b[1]]
    });
    let scheduling = PathTime {
        path: "scheduler".into(),
        count: after.report.turns - before.report.turns,
        ns: after.report.scheduling_ns - before.report.scheduling_ns,
    };
    let idle = |core: usize| {
        let (a, b) = (after.report.idle_ns[core], before.report.idle_ns[core]);
        // Clocks are some steps apart: the first look may count as idle what a core then spends busy.
        a.saturating_sub(b).min(ns)
    };
    let busy_ns: Vec<u64> = (0..cores).map(|core| ns - idle(core)).collect();
    let busy: u64 = busy_ns.iter().sum();
    let costs = machine.table().work;
    let peer = [Work::Peer, Work::PeerBytes].map(|w| {
        let (cost, (times, of)) = (costs[w as usize], work[w as usize]);
        times * u64::from(cost.base_ns) + of * u64::from(cost.unit_ps) / 1000
    });
    let peer_ns = (peer.iter().sum::<u64>() + of_peer(&lines_ns)).min(busy);
    let rounds = match settings.exchange {
        Some(_) => units as u64,
        None => 0,
    };
    let both = |e: crate::workload::Exchange| (e.request + e.response) as f64;
    let payload = settings.exchange.map_or(bytes as f64, |e| units * both(e));
    let seconds = ns as f64 / 1e9;
    let locks = LockClass::ALL.iter().map(|class| {
        let i = *class as usize;
        counted(*class, after.report.locks[i].since(before.report.locks[i]))
    });
    let sample = Sample {
        elapsed: Duration::from_nanos(ns),
        goodput: payload / seconds,
        segments: payload / SEGMENT as f64,
        times: Times {
            elapsed: ns * cores as u64,
            cpu: busy,
            stack: Some(busy - peer_ns),
            peer: Some(peer_ns),
            idle: ns * cores as u64 - busy,
            ..Times::default()
        },
        cpu_ns: busy,
        rounds,
        locks: locks.filter(|l| l.acquisitions > 0).collect(),
        context_switches: after.report.turns - before.report.turns,
        modelled: Some(modelled(machine, cores, payload as u64, &missed)),
        paths: vec![scheduling],
        valid: bytes > 0,
        ..Sample::default()
    };
    Simulated {
        sample,
        time: Duration::from_nanos(ns),
        work,
        lines_ns,
        busy_ns,
        units,
    }
}

fn counted(class: LockClass, stats: LockStats) -> Locks {
    Locks {
        class: class.name().into(),
        acquisitions: stats.acquisitions,
        contended: stats.contended,
        wait_ns: stats.wait_ns,
        hold_ns: stats.hold_ns,
        times: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        predict::loads::{Load, Point},
        stats::median,
    };

    const LITTLE: Effort = Effort {
        warm_least: 10,
        warm_segments: 40,
        warm_most: 1000,
        segments: 2000,
        time: Duration::from_micros(500),
        turns: 0,
    };

    fn run(machine: &Machine, load: Load, org: &str, cores: usize, seed: u64) -> Simulated {
        let point = Point::new(load, org, 12, cores).unwrap();
        let how = (seed, LITTLE);
        let settings = machine.its(&point.settings);
        simulate(machine, &settings, &point.configuration, cores, how)
            .unwrap_or_else(|e| panic!("{org}, {load}, {cores}: {e}"))
    }

    fn machine() -> Machine {
        Machine::find("server-64").unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let m = machine();
        for org in ["up", "msgp", "connp-l:8", "squeue"] {
            let [a, b] = [1, 1].map(|seed| run(&m, Load::Send, org, 2, seed));
            assert_eq!(
                (a.time, a.units, a.work),
                (b.time, b.units, b.work),
                "{org}"
            );
            assert_eq!(a.lines_ns, b.lines_ns, "{org}");
        }
    }

    /// Every organization, under every load, on one core and on several, as a program and as a kernel:
    /// something is done, and the account of it adds up.
    #[test]
    fn every_organization_is_simulated() {
        let kernel = Machine::find("opteron-275").unwrap();
        assert!(kernel.preemptive && kernel.one_run_queue);
        let runs = [(Load::Send, 1), (Load::Receive, 3), (Load::Messages, 2)];
        for org in perimeter::OrgSpec::tested() {
            let org = org.to_string();
            let both = [machine(), kernel.clone()];
            for (m, (load, cores)) in both.iter().flat_map(|m| runs.map(|r| (m, r))) {
                let s = run(m, load, &org, cores, 1);
                assert!(s.units >= 2000.0, "{org}, {load}: {}", s.units);
                let ns = s.time.as_nanos() as u64;
                assert!(s.busy_ns.iter().all(|b| *b <= ns), "{org}, {load}");
                assert!(
                    s.sample.times.valid(),
                    "{org}, {load}: {:?}",
                    s.sample.times
                );
                let (calls, _) = s.work[Work::SockCall as usize];
                assert!(calls > 0, "{org}, {load}: no call");
            }
        }
    }

    /// What is copied is charged to whoever copies it, under every organization: to a reader each octet
    /// that it gets. What is sent here are a file's pages, which nobody copies.
    #[test]
    fn copies_are_charged() {
        let loads = [
            (Load::Send, 0.0),
            (Load::Receive, 1.0),
            (Load::Messages, 1.0),
        ];
        // Readers may have got what came before anything counted: three buffers of 256 KB.
        const SEGMENTS: u64 = 8_000;
        let effort = Effort {
            segments: SEGMENTS,
            ..LITTLE
        };
        let least = 3.0 * f64::from(256 << 10) / (SEGMENTS * SEGMENT) as f64;
        for org in perimeter::OrgSpec::tested() {
            let org = org.to_string();
            for (load, times) in loads {
                let Point {
                    settings,
                    configuration,
                    ..
                } = Point::new(load, &org, 3, 2).unwrap();
                let s = simulate(&machine(), &settings, &configuration, 2, (1, effort)).unwrap();
                let (_, copied) = s.work[Work::Copy as usize];
                let found = copied as f64 / (s.units * unit(&settings) as f64);
                assert!(
                    (found - times).abs() < least,
                    "{org}, {load}: {found} of {times}"
                );
            }
        }
    }

    /// A run that goes on with other costs is what one with those would be.
    #[test]
    fn costs_may_change_on_the_way() {
        let m = machine();
        let mut slow = m.clone();
        slow.work.values_mut().flatten().for_each(|c| *c *= 3.0);
        let point = Point::new(Load::Send, "connp-l:8", 12, 2).unwrap();
        let effort = Effort {
            segments: 16_000,
            turns: 0,
            ..Effort::QUICK
        };
        let of = |machines: &[&Machine]| -> Vec<f64> {
            let (settings, configuration) = (&point.settings, &point.configuration);
            let all = simulate_all(machines, settings, configuration, 2, (1, effort)).unwrap();
            all.iter().map(|s| s.sample.goodput).collect()
        };
        let middle = |list: &[f64]| median(list).unwrap();
        // Once it has got going.
        let alone = middle(&of(&[&slow; 6])[3..]);
        let all = of(&[&m, &m, &m, &slow, &slow, &slow, &m, &m, &m]);
        assert_eq!(all.len(), 9, "some did not come to an end");
        let [first, then, back] = [0, 3, 6].map(|i| middle(&all[i..i + 3]));
        assert!(first > 1.5 * alone, "{first} {alone}");
        for (a, b) in [(then, alone), (back, first)] {
            assert!(
                (0.9..1.1).contains(&(a / b)),
                "{first} {then} {back}, {alone}"
            );
        }
    }

    /// A core without a thread is idle.
    #[test]
    fn cores_without_threads_are_idle() {
        let point = Point::new(Load::Send, "connp-l:8", 2, 8).unwrap();
        let mut settings = point.settings.clone();
        settings.nics = 2;
        let how = (1, LITTLE);
        let s = simulate(&machine(), &settings, &point.configuration, 8, how).unwrap();
        let busy = s.busy_ns.iter().filter(|ns| **ns > 0).count();
        assert_eq!(busy, 2, "{:?}", s.busy_ns);
    }

    /// An inbound thread lets who reads on its core run when it has taken its budget, and not before
    /// its turn is over without one.
    #[test]
    fn readers_run_within_a_budget() {
        let mut m = machine();
        m.costs.preempt = 0.0;
        let turns = |org: &str, budget: usize| {
            let mut point = Point::beside(Load::Receive, org, 12).unwrap();
            point.settings.budget = budget;
            let s = simulate(&m, &point.settings, &point.configuration, 1, (1, LITTLE)).unwrap();
            s.sample.context_switches as f64 / (s.units * SEGMENT as f64)
        };
        const BUDGET: usize = 64 << 10;
        // It looks after each burst, of 64 frames at most.
        let least = 1.0 / (BUDGET + 64 * 1514) as f64;
        for org in ["connp-l:8", "msgp", "squeue:1", "streams", "pef:vertical"] {
            let (without, with) = (turns(org, 0), turns(org, BUDGET));
            assert!(
                with >= least && without < least,
                "{org}: {without} {with}, {least}"
            );
        }
    }

    #[test]
    fn what_crosses_cores_costs_more_when_they_are_far() {
        let mut m = machine();
        m.lines.far = 10.0 * m.lines.near;
        let goodput = |far| run(&m.apart(far), Load::Send, "msgp", 2, 1).sample.goodput;
        assert!(goodput(true) < 0.8 * goodput(false));
        // One thread has nothing to fetch from others.
        let alone = |far| run(&m.apart(far), Load::Send, "up", 2, 1).sample.goodput;
        assert_eq!(alone(true), alone(false));
    }

    #[test]
    fn a_peer_elsewhere_takes_no_time() {
        let m = machine();
        let here = run(&m, Load::Send, "up", 1, 1);
        let elsewhere = run(&m.peer_elsewhere(), Load::Send, "up", 1, 1);
        assert_eq!(elsewhere.sample.times.peer, Some(0));
        assert!(here.sample.times.peer > Some(0));
        let own = |s: &Simulated| s.sample.cpu_ns as f64 / s.units;
        assert!(own(&elsewhere) < own(&here));
    }
}

//! What a figure shows of a run.

use crate::{
    cache::{Counted, model::Miss, places::Component},
    record::Measured,
    workload::Locks,
};
use perimeter::{Guards, LockClass};
use std::{fmt, str::FromStr};

/// A value of a run that figures and tables can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Payload per second.
    Goodput,
    /// Payload per second of processor time of the whole machine.
    GoodputPerCpu,
    /// Processor time in the stack, per 1448 bytes of payload.
    Stack,
    /// Processor time of the whole machine, per 1448 bytes of payload.
    Cpu,
    /// Share of the acquisitions of the organization's central locks whose first attempt failed.
    Contended,
    /// Time waited for locks, per 1448 bytes of payload.
    LockWait,
    /// Time for which the lock around a connection is held, per acquisition.
    Hold,
    /// Time waited for that lock, per acquisition.
    HoldWait,
    /// Share of that lock's acquisitions whose first attempt failed.
    HoldContended,
    /// Processor time in queues between threads, in parking and in waking, per KB of payload.
    Scheduler,
    /// Context switches per MB of payload.
    Switches,
    /// Moves of threads from core to core per second.
    Migrations,
    /// Time for which threads were ready to run while others had the core, per KB of payload.
    RunDelay,
    /// Rounds of request and response per second.
    Rounds,
    /// Connections opened, used and closed per second.
    Connects,
    /// The median time from opening a connection to its close.
    OpenToClose,
    /// What 99 connections in 100 stay within.
    OpenToCloseP99,
    /// Listeners made and closed per second.
    Listens,
    /// The median time from making a listener to its close.
    ListenToClose,
    /// Mean time of a round.
    Latency,
    /// The median of it.
    LatencyP50,
    /// What 99 rounds in 100 stay within.
    LatencyP99,
    /// Modelled data misses of the second-level caches of the paper's machine, per KB of payload.
    L2,
    /// Those of one component.
    L2Of(Component),
    /// Those on lines that another core wrote.
    L2Coherence,
    /// The same as [`Metric::L2`] with the caches of this machine.
    L2Here,
    /// Reads of data that missed the first-level cache, as the processor counts them, per KB of
    /// payload.
    FirstLevel,
    /// Those that missed the last level.
    LastLevel,
    /// Instructions, as the processor counts them, per KB of payload.
    Instructions,
    /// Cycles, likewise.
    Cycles,
}

/// The class of locks that stand around a run's connections, if they have any: their own rather
/// than their group's.
fn around(m: &Measured) -> Option<&Locks> {
    let around = |l: &&Locks| l.guards().is_some_and(Guards::is_around_tcp);
    let most = m.locks.iter().filter(around);
    let most = most.max_by_key(|l| LockClass::named(&l.class).map(LockClass::level));
    most.filter(|l| l.acquisitions > 0)
}

/// Time spent on handing work over: on the paths that were timed, and at the locks of queues.
fn handing(m: &Measured) -> Option<u64> {
    (!m.raw.paths.is_empty()).then_some(())?;
    let paths: u64 = m.raw.paths.iter().map(|p| p.ns).sum();
    let queues = m.locks.iter();
    let queues = queues.filter(|l| l.guards() == Some(Guards::Queue));
    Some(paths + queues.map(|l| l.hold_ns + l.wait_ns).sum::<u64>())
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 34] = [
        Metric::Goodput,
        Metric::GoodputPerCpu,
        Metric::Stack,
        Metric::Cpu,
        Metric::Contended,
        Metric::LockWait,
        Metric::Hold,
        Metric::HoldWait,
        Metric::HoldContended,
        Metric::Scheduler,
        Metric::Switches,
        Metric::Migrations,
        Metric::RunDelay,
        Metric::Rounds,
        Metric::Connects,
        Metric::OpenToClose,
        Metric::OpenToCloseP99,
        Metric::Listens,
        Metric::ListenToClose,
        Metric::Latency,
        Metric::LatencyP50,
        Metric::LatencyP99,
        Metric::L2,
        Metric::L2Of(Component::Stack),
        Metric::L2Of(Component::Scheduler),
        Metric::L2Of(Component::Lock),
        Metric::L2Of(Component::Driver),
        Metric::L2Of(Component::Application),
        Metric::L2Coherence,
        Metric::L2Here,
        Metric::FirstLevel,
        Metric::LastLevel,
        Metric::Instructions,
        Metric::Cycles,
    ];

    /// Name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Goodput => "goodput",
            Metric::GoodputPerCpu => "goodput-per-cpu",
            Metric::Stack => "stack",
            Metric::Cpu => "cpu",
            Metric::Contended => "contended",
            Metric::LockWait => "lock-wait",
            Metric::Hold => "hold",
            Metric::HoldWait => "hold-wait",
            Metric::HoldContended => "hold-contended",
            Metric::Scheduler => "scheduler",
            Metric::Switches => "switches",
            Metric::Migrations => "migrations",
            Metric::RunDelay => "run-delay",
            Metric::Rounds => "rounds",
            Metric::Connects => "connects",
            Metric::OpenToClose => "open-to-close",
            Metric::OpenToCloseP99 => "open-to-close-p99",
            Metric::Listens => "listens",
            Metric::ListenToClose => "listen-to-close",
            Metric::Latency => "latency",
            Metric::LatencyP50 => "latency-p50",
            Metric::LatencyP99 => "latency-p99",
            Metric::L2 => "l2-misses",
            Metric::L2Of(Component::Stack) => "l2-stack",
            Metric::L2Of(Component::Scheduler) => "l2-scheduler",
            Metric::L2Of(Component::Lock) => "l2-lock",
            Metric::L2Of(Component::Driver) => "l2-driver",
            Metric::L2Of(Component::Application) => "l2-application",
            Metric::L2Coherence => "l2-coherence",
            Metric::L2Here => "l2-misses-here",
            Metric::FirstLevel => "l1-misses-counted",
            Metric::LastLevel => "last-level-misses-counted",
            Metric::Instructions => "instructions",
            Metric::Cycles => "cycles",
        }
    }

    /// What it is, for an axis.
    pub fn label(self) -> &'static str {
        match self {
            Metric::Goodput => "goodput",
            Metric::GoodputPerCpu => "goodput per processor second",
            Metric::Stack => "stack time per segment",
            Metric::Cpu => "processor time per segment, whole machine",
            Metric::Contended => "contention for central locks",
            Metric::LockWait => "waiting for locks per segment",
            Metric::Hold => "hold of the lock around a connection",
            Metric::HoldWait => "wait for the lock around a connection",
            Metric::HoldContended => "contention for locks around connections",
            Metric::Scheduler => "queueing, parking and waking per KB",
            Metric::Switches => "context switches per MB",
            Metric::Migrations => "threads moved between cores",
            Metric::RunDelay => "ready and waiting for a core, per KB",
            Metric::Rounds => "round trips",
            Metric::Connects => "connections opened and closed",
            Metric::OpenToClose => "median time from opening a connection to its close",
            Metric::OpenToCloseP99 => "99th percentile from opening a connection to its close",
            Metric::Listens => "listeners made and closed",
            Metric::ListenToClose => "median time from making a listener to its close",
            Metric::Latency => "mean round trip",
            Metric::LatencyP50 => "median round trip",
            Metric::LatencyP99 => "99th percentile of round trips",
            Metric::L2 => "L2 data misses, modelled",
            Metric::L2Of(Component::Stack) => "L2 data misses in the stack, modelled",
            Metric::L2Of(Component::Scheduler) => "L2 data misses in the scheduler, modelled",
            Metric::L2Of(Component::Lock) => "L2 data misses in locks, modelled",
            Metric::L2Of(Component::Driver) => "L2 data misses in the driver, modelled",
            Metric::L2Of(Component::Application) => "L2 data misses in the application, modelled",
            Metric::L2Coherence => "L2 data misses on lines that other cores wrote, modelled",
            Metric::L2Here => "L2 data misses with this machine's caches, modelled",
            Metric::FirstLevel => "L1 data read misses, counted",
            Metric::LastLevel => "last-level data read misses, counted",
            Metric::Instructions => "instructions, counted",
            Metric::Cycles => "processor cycles, counted",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Goodput => "Mb/s",
            Metric::GoodputPerCpu => "Mb per CPU s",
            Metric::Stack | Metric::Cpu | Metric::LockWait => "ns",
            Metric::Hold | Metric::HoldWait => "ns",
            Metric::Scheduler | Metric::RunDelay => "ns per KB",
            Metric::Contended | Metric::HoldContended => "%",
            Metric::Switches => "per MB",
            Metric::Rounds | Metric::Connects | Metric::Listens | Metric::Migrations => "per s",
            Metric::OpenToClose
            | Metric::OpenToCloseP99
            | Metric::ListenToClose
            | Metric::Latency
            | Metric::LatencyP50
            | Metric::LatencyP99 => "µs",
            Metric::L2 | Metric::L2Of(_) | Metric::L2Coherence | Metric::L2Here => "per KB",
            Metric::FirstLevel | Metric::LastLevel => "per KB",
            Metric::Instructions | Metric::Cycles => "per KB",
        }
    }

    /// Whether it comes from a model, and from no measurement.
    pub fn is_modelled(self) -> bool {
        matches!(
            self,
            Metric::L2 | Metric::L2Of(_) | Metric::L2Coherence | Metric::L2Here
        )
    }

    /// Whether the processor has to count it.
    pub fn is_counted(self) -> bool {
        matches!(
            self,
            Metric::FirstLevel | Metric::LastLevel | Metric::Instructions | Metric::Cycles
        )
    }

    /// Whether it is of listeners, and of no connections.
    pub fn is_of_listeners(self) -> bool {
        matches!(self, Metric::Listens | Metric::ListenToClose)
    }

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        matches!(
            self,
            Metric::Goodput
                | Metric::GoodputPerCpu
                | Metric::Rounds
                | Metric::Connects
                | Metric::Listens
        )
    }

    /// Its value of a run; `None` where the run can't tell.
    pub fn of(self, m: &Measured) -> Option<f64> {
        let per_segment = |ns: u64| (m.raw.segments > 0.0).then(|| ns as f64 / m.raw.segments);
        let misses = |machine, component, kind| {
            m.modelled
                .as_ref()
                .and_then(|c| c.per_kb(machine, component, kind))
        };
        let megabytes = m.raw.goodput_mbps / 8.0 * m.raw.seconds;
        // As the paper's: 1024 bytes.
        let kilobytes = megabytes * 1e6 / 1024.0;
        let per_kilobyte = |ns: u64| (kilobytes > 0.0).then(|| ns as f64 / kilobytes);
        // Payload went at the same rate while the counters ran: that is not quite the same time.
        let counted = |of: fn(&Counted) -> Option<u64>| {
            let c = m.counted.as_ref()?;
            per_kilobyte((of(c)? as f64 / c.seconds * m.raw.seconds) as u64)
        };
        let each = |l: &Locks, of: u64| of as f64 / l.acquisitions as f64;
        match self {
            Metric::Goodput => Some(m.raw.goodput_mbps),
            Metric::GoodputPerCpu => {
                let seconds = m.raw.cpu_ns as f64 / 1e9;
                (seconds > 0.0).then(|| megabytes * 8.0 / seconds)
            }
            Metric::Stack => per_segment(m.raw.stack_ns?),
            Metric::Cpu => per_segment(m.raw.cpu_ns),
            Metric::Contended => {
                let central = |l: &&Locks| l.guards().is_some_and(Guards::is_shared);
                let sum = |f: fn(&Locks) -> u64| m.locks.iter().filter(central).map(f).sum::<u64>();
                let all = sum(|l| l.acquisitions);
                (all > 0).then(|| sum(|l| l.contended) as f64 * 100.0 / all as f64)
            }
            Metric::LockWait => {
                (!m.locks.is_empty()).then_some(())?;
                per_segment(m.locks.iter().map(|l| l.wait_ns).sum())
            }
            // Connections that are opened anew, and listeners, are counted and timed as rounds are.
            Metric::Rounds | Metric::Connects | Metric::Listens => {
                let rate = m.raw.rounds as f64 / m.raw.seconds;
                (m.raw.rounds > 0 && m.raw.seconds > 0.0).then_some(rate)
            }
            Metric::Latency => Some(m.raw.latency?.mean_ns / 1e3),
            Metric::LatencyP50 | Metric::OpenToClose | Metric::ListenToClose => {
                Some(m.raw.latency?.p50_ns as f64 / 1e3)
            }
            Metric::LatencyP99 | Metric::OpenToCloseP99 => Some(m.raw.latency?.p99_ns as f64 / 1e3),
            Metric::Hold => around(m).map(|l| each(l, l.hold_ns)),
            Metric::HoldWait => around(m).map(|l| each(l, l.wait_ns)),
            Metric::HoldContended => around(m).map(|l| 100.0 * each(l, l.contended)),
            Metric::Scheduler => per_kilobyte(handing(m)?),
            Metric::RunDelay => per_kilobyte(m.raw.preempted_ns),
            Metric::Migrations => {
                let rate = m.raw.migrations? as f64 / m.raw.seconds;
                (m.raw.seconds > 0.0).then_some(rate)
            }
            Metric::L2 => misses(0, None, None),
            Metric::L2Of(component) => misses(0, Some(component), None),
            Metric::L2Coherence => misses(0, None, Some(Miss::Coherence)),
            Metric::L2Here => misses(1, None, None),
            Metric::FirstLevel => counted(|c| c.first_level),
            Metric::LastLevel => counted(|c| c.last_level),
            Metric::Instructions => counted(|c| c.instructions),
            Metric::Cycles => counted(|c| c.cycles),
            Metric::Switches => {
                (megabytes > 0.0).then(|| m.raw.context_switches as f64 / megabytes)
            }
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        Metric::ALL
            .into_iter()
            .find(|m| m.name() == text)
            .ok_or_else(|| {
                let known = Metric::ALL.map(Metric::name).join(", ");
                format!("unknown metric `{text}` (known: {known})")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for m in Metric::ALL {
            assert_eq!(m.name().parse(), Ok(m));
        }
        assert!("speed".parse::<Metric>().unwrap_err().contains("goodput"));
    }

    #[test]
    fn values_of_a_known_run() {
        let mut m = crate::record::tests::measured(800.0);
        // 800 Mb/s for 2 s are 200 MB.
        m.raw.seconds = 2.0;
        m.raw.segments = 1000.0;
        m.raw.cpu_ns = 4_000_000_000;
        m.raw.stack_ns = Some(70_000);
        m.raw.context_switches = 400;
        let class = |class: &str, acquisitions, contended, wait_ns| Locks {
            class: class.into(),
            acquisitions,
            contended,
            wait_ns,
            hold_ns: 10 * acquisitions,
            times: None,
        };
        m.locks = vec![
            class("group", 100, 5, 3000),
            class("leaf", 1000, 1000, 2000),
        ];
        m.raw.migrations = Some(8);
        m.raw.preempted_ns = 1_000_000;
        let expected = [
            (Metric::Goodput, 800.0),
            (Metric::GoodputPerCpu, 400.0),
            (Metric::Stack, 70.0),
            (Metric::Cpu, 4_000_000.0),
            (Metric::Contended, 5.0),
            (Metric::LockWait, 5.0),
            (Metric::Switches, 2.0),
            (Metric::Hold, 10.0),
            (Metric::HoldWait, 30.0),
            (Metric::HoldContended, 5.0),
            (Metric::Migrations, 4.0),
            (Metric::RunDelay, 5.12),
        ];
        for (metric, value) in expected {
            assert_eq!(metric.of(&m), Some(value), "{metric}");
        }
        assert_eq!(Metric::Scheduler.of(&m), None, "not timed");
        assert_eq!(Metric::LastLevel.of(&m), None, "not counted");
        // In half of the time, so of half of the 200 MB.
        m.counted = Some(Counted {
            seconds: 1.0,
            last_level: Some(97_656_250),
            ..Counted::default()
        });
        assert_eq!(Metric::LastLevel.of(&m), Some(1000.0));
        assert_eq!(Metric::Cycles.of(&m), None, "an event that there is not");
        let path = |path: &str, ns| crate::workload::PathTime {
            path: path.into(),
            count: 1,
            ns,
        };
        m.raw.paths = vec![path("queue", 100_000), path("park", 200_000)];
        m.locks.push(class("squeue", 60_000, 1, 100_000));
        assert_eq!(Metric::Scheduler.of(&m), Some(5.12));
        m.locks.push(class("connection", 1000, 0, 7000));
        assert_eq!(Metric::HoldWait.of(&m), Some(7.0), "before the group's");
        m.locks.clear();
        m.raw.stack_ns = None;
        m.raw.rounds = 500;
        m.raw.latency = Some(crate::workload::Latency {
            mean_ns: 1500.0,
            p50_ns: 1000,
            p90_ns: 2000,
            p99_ns: 3000,
            p999_ns: 4000,
            max_ns: 5000,
        });
        assert_eq!(Metric::Rounds.of(&m), Some(250.0));
        assert_eq!(Metric::Latency.of(&m), Some(1.5));
        assert_eq!(Metric::LatencyP99.of(&m), Some(3.0));
        (m.raw.rounds, m.raw.latency) = (0, None);
        assert_eq!(
            (Metric::Rounds.of(&m), Metric::Latency.of(&m)),
            (None, None)
        );
        for metric in [
            Metric::Contended,
            Metric::LockWait,
            Metric::Stack,
            Metric::Hold,
        ] {
            assert_eq!(metric.of(&m), None);
        }
    }
}

//! What a figure shows of a run.

use crate::misses::Component;
use std::{fmt, str::FromStr};

/// A value of a run that figures and tables can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Payload per second.
    Goodput,
    /// Payload per second, had the stack also the processor time that the ideal peer took: in a network
    /// another machine spends that.
    GoodputOwn,
    /// Payload per second of processor time of the whole machine.
    GoodputPerCpu,
    /// Processor time in the stack, per 1448 bytes of payload.
    Stack,
    /// Processor time of the whole machine, per 1448 bytes of payload.
    Cpu,
    /// The same without the ideal peer's time, which a network's other end spends elsewhere.
    CpuOwn,
    /// Share of the acquisitions of the organization's central locks whose first attempt failed.
    Contended,
    /// Share of the acquisitions of the route table's lock whose first attempt failed.
    RouteContended,
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
    /// Datagrams received per second.
    Datagrams,
    /// Share of the datagrams sent that nobody received.
    Lost,
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

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 39] = [
        Metric::Goodput,
        Metric::GoodputOwn,
        Metric::GoodputPerCpu,
        Metric::Stack,
        Metric::Cpu,
        Metric::CpuOwn,
        Metric::Contended,
        Metric::RouteContended,
        Metric::LockWait,
        Metric::Hold,
        Metric::HoldWait,
        Metric::HoldContended,
        Metric::Scheduler,
        Metric::Switches,
        Metric::Migrations,
        Metric::RunDelay,
        Metric::Rounds,
        Metric::Datagrams,
        Metric::Lost,
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
            Metric::GoodputOwn => "goodput-own",
            Metric::GoodputPerCpu => "goodput-per-cpu",
            Metric::Stack => "stack",
            Metric::Cpu => "cpu",
            Metric::CpuOwn => "cpu-own",
            Metric::Contended => "contended",
            Metric::RouteContended => "contended-route",
            Metric::LockWait => "lock-wait",
            Metric::Hold => "hold",
            Metric::HoldWait => "hold-wait",
            Metric::HoldContended => "hold-contended",
            Metric::Scheduler => "scheduler",
            Metric::Switches => "switches",
            Metric::Migrations => "migrations",
            Metric::RunDelay => "run-delay",
            Metric::Rounds => "rounds",
            Metric::Datagrams => "datagrams",
            Metric::Lost => "lost",
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
            Metric::GoodputOwn => "goodput without the ideal peer's time",
            Metric::GoodputPerCpu => "goodput per processor second",
            Metric::Stack => "stack time per segment",
            Metric::Cpu => "processor time per segment, whole machine",
            Metric::CpuOwn => "processor time per segment without the ideal peer's",
            Metric::Contended => "contention for central locks",
            Metric::RouteContended => "contention for the lock of the route table",
            Metric::LockWait => "waiting for locks per segment",
            Metric::Hold => "hold of the lock around a connection",
            Metric::HoldWait => "wait for the lock around a connection",
            Metric::HoldContended => "contention for locks around connections",
            Metric::Scheduler => "queueing, parking and waking per KB",
            Metric::Switches => "context switches per MB",
            Metric::Migrations => "threads moved between cores",
            Metric::RunDelay => "ready and waiting for a core, per KB",
            Metric::Rounds => "round trips",
            Metric::Datagrams => "datagrams received",
            Metric::Lost => "datagrams lost",
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
            Metric::Goodput | Metric::GoodputOwn => "Mb/s",
            Metric::GoodputPerCpu => "Mb per CPU s",
            Metric::Stack | Metric::Cpu | Metric::CpuOwn | Metric::LockWait => "ns",
            Metric::Hold | Metric::HoldWait => "ns",
            Metric::Scheduler | Metric::RunDelay => "ns per KB",
            Metric::Contended | Metric::RouteContended | Metric::HoldContended => "%",
            Metric::Switches => "per MB",
            Metric::Rounds | Metric::Connects | Metric::Listens | Metric::Migrations => "per s",
            Metric::Datagrams => "per s",
            Metric::Lost => "%",
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
                | Metric::GoodputOwn
                | Metric::GoodputPerCpu
                | Metric::Rounds
                | Metric::Datagrams
                | Metric::Connects
                | Metric::Listens
        )
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
}

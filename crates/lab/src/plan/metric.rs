//! What a figure shows of a run.

use crate::{record::Measured, workload::Locks};
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
    /// Context switches per MB of payload.
    Switches,
    /// Rounds of request and response per second.
    Rounds,
    /// Mean time of a round.
    Latency,
    /// The median of it.
    LatencyP50,
    /// What 99 rounds in 100 stay within.
    LatencyP99,
}

/// Classes of the locks that all or many connections share: the connection hash table, connection
/// groups, squeues.
pub const CENTRAL: [&str; 3] = ["conn_hashtable", "group", "squeue"];

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 11] = [
        Metric::Goodput,
        Metric::GoodputPerCpu,
        Metric::Stack,
        Metric::Cpu,
        Metric::Contended,
        Metric::LockWait,
        Metric::Switches,
        Metric::Rounds,
        Metric::Latency,
        Metric::LatencyP50,
        Metric::LatencyP99,
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
            Metric::Switches => "switches",
            Metric::Rounds => "rounds",
            Metric::Latency => "latency",
            Metric::LatencyP50 => "latency-p50",
            Metric::LatencyP99 => "latency-p99",
        }
    }

    /// What it is, for an axis.
    pub fn label(self) -> &'static str {
        match self {
            Metric::Goodput => "goodput",
            Metric::GoodputPerCpu => "goodput per processor second",
            Metric::Stack => "stack time per segment",
            Metric::Cpu => "processor time per segment, whole machine",
            Metric::Contended => "contended acquisitions of central locks",
            Metric::LockWait => "waiting for locks per segment",
            Metric::Switches => "context switches per MB",
            Metric::Rounds => "round trips",
            Metric::Latency => "mean round trip",
            Metric::LatencyP50 => "median round trip",
            Metric::LatencyP99 => "99th percentile of round trips",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Goodput => "Mb/s",
            Metric::GoodputPerCpu => "Mb per CPU s",
            Metric::Stack | Metric::Cpu | Metric::LockWait => "ns",
            Metric::Contended => "%",
            Metric::Switches => "per MB",
            Metric::Rounds => "per s",
            Metric::Latency | Metric::LatencyP50 | Metric::LatencyP99 => "µs",
        }
    }

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        matches!(
            self,
            Metric::Goodput | Metric::GoodputPerCpu | Metric::Rounds
        )
    }

    /// Its value of a run; `None` where the run can't tell.
    pub fn of(self, m: &Measured) -> Option<f64> {
        let per_segment = |ns: u64| (m.raw.segments > 0.0).then(|| ns as f64 / m.raw.segments);
        let megabytes = m.raw.goodput_mbps / 8.0 * m.raw.seconds;
        match self {
            Metric::Goodput => Some(m.raw.goodput_mbps),
            Metric::GoodputPerCpu => {
                let seconds = m.raw.cpu_ns as f64 / 1e9;
                (seconds > 0.0).then(|| megabytes * 8.0 / seconds)
            }
            Metric::Stack => per_segment(m.raw.stack_ns?),
            Metric::Cpu => per_segment(m.raw.cpu_ns),
            Metric::Contended => {
                let central = |l: &&Locks| CENTRAL.contains(&l.class.as_str());
                let sum = |f: fn(&Locks) -> u64| m.locks.iter().filter(central).map(f).sum::<u64>();
                let all = sum(|l| l.acquisitions);
                (all > 0).then(|| sum(|l| l.contended) as f64 * 100.0 / all as f64)
            }
            Metric::LockWait => {
                (!m.locks.is_empty()).then_some(())?;
                per_segment(m.locks.iter().map(|l| l.wait_ns).sum())
            }
            Metric::Rounds => {
                let rate = m.raw.rounds as f64 / m.raw.seconds;
                (m.raw.rounds > 0 && m.raw.seconds > 0.0).then_some(rate)
            }
            Metric::Latency => Some(m.raw.latency?.mean_ns / 1e3),
            Metric::LatencyP50 => Some(m.raw.latency?.p50_ns as f64 / 1e3),
            Metric::LatencyP99 => Some(m.raw.latency?.p99_ns as f64 / 1e3),
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
            hold_ns: 0,
        };
        m.locks = vec![
            class("group", 100, 5, 3000),
            class("leaf", 1000, 1000, 2000),
        ];
        let expected = [
            (Metric::Goodput, 800.0),
            (Metric::GoodputPerCpu, 400.0),
            (Metric::Stack, 70.0),
            (Metric::Cpu, 4_000_000.0),
            (Metric::Contended, 5.0),
            (Metric::LockWait, 5.0),
            (Metric::Switches, 2.0),
        ];
        for (metric, value) in expected {
            assert_eq!(metric.of(&m), Some(value), "{metric}");
        }
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
        for metric in [Metric::Contended, Metric::LockWait, Metric::Stack] {
            assert_eq!(metric.of(&m), None);
        }
    }
}

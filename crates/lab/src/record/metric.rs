//! What runs come to in the metrics that plans name.

use super::Measured;
use crate::{
    metric::Metric,
    misses::{Counted, Miss},
    workload::Locks,
};
use perimeter::{Guards, LockClass};

/// The class of locks that stand around a run's connections, if they have any: their own rather
/// than their group's.
fn around(m: &Measured) -> Option<&Locks> {
    let around = |l: &&Locks| l.guards().is_some_and(Guards::is_around_tcp);
    let most = m.locks.iter().filter(around);
    let most = most.max_by_key(|l| LockClass::named(&l.class).map(LockClass::level));
    most.filter(|l| l.acquisitions > 0)
}

/// Share of the acquisitions of locks like these whose first attempt failed, percent.
fn contended(m: &Measured, like: impl Fn(&Locks) -> bool) -> Option<f64> {
    let sum = |f: fn(&Locks) -> u64| m.locks.iter().filter(|l| like(l)).map(f).sum::<u64>();
    let all = sum(|l| l.acquisitions);
    (all > 0).then(|| sum(|l| l.contended) as f64 * 100.0 / all as f64)
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
            Metric::GoodputOwn => {
                let own = m.raw.cpu_ns.checked_sub(m.raw.peer_ns?)?;
                (own > 0).then(|| m.raw.goodput_mbps * m.raw.cpu_ns as f64 / own as f64)
            }
            Metric::GoodputPerCpu => {
                let seconds = m.raw.cpu_ns as f64 / 1e9;
                (seconds > 0.0).then(|| megabytes * 8.0 / seconds)
            }
            Metric::Stack => per_segment(m.raw.stack_ns?),
            Metric::Cpu => per_segment(m.raw.cpu_ns),
            Metric::CpuOwn => per_segment(m.raw.cpu_ns.checked_sub(m.raw.peer_ns?)?),
            Metric::Contended => contended(m, |l| l.guards().is_some_and(Guards::is_shared)),
            Metric::RouteContended => contended(m, |l| l.class == LockClass::RouteHashtable.name()),
            Metric::LockWait => {
                (!m.locks.is_empty()).then_some(())?;
                per_segment(m.locks.iter().map(|l| l.wait_ns).sum())
            }
            Metric::Lost => m.raw.lost.map(|share| share * 100.0),
            // Datagrams, connections that are opened anew, and listeners, are counted and timed as rounds are.
            Metric::Rounds | Metric::Datagrams | Metric::Connects | Metric::Listens => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_known_run() {
        let mut m = super::super::tests::measured(800.0);
        // 800 Mb/s for 2 s are 200 MB.
        m.raw.seconds = 2.0;
        m.raw.segments = 1000.0;
        m.raw.cpu_ns = 4_000_000_000;
        m.raw.stack_ns = Some(70_000);
        m.raw.peer_ns = Some(1_000_000_000);
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
            class("route_hashtable", 50, 1, 0),
            class("leaf", 950, 999, 2000),
        ];
        m.raw.migrations = Some(8);
        m.raw.preempted_ns = 1_000_000;
        let expected = [
            (Metric::Goodput, 800.0),
            (Metric::GoodputOwn, 800.0 * 4.0 / 3.0),
            (Metric::GoodputPerCpu, 400.0),
            (Metric::Stack, 70.0),
            (Metric::Cpu, 4_000_000.0),
            (Metric::CpuOwn, 3_000_000.0),
            (Metric::Contended, 5.0),
            (Metric::RouteContended, 2.0),
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
        m.raw.peer_ns = None;
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
            Metric::RouteContended,
            Metric::LockWait,
            Metric::Stack,
            Metric::CpuOwn,
            Metric::GoodputOwn,
            Metric::Hold,
        ] {
            assert_eq!(metric.of(&m), None);
        }
    }
}

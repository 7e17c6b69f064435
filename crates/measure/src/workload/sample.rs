//! What one run measured, and how the time of its threads divides.

use super::{Latency, SEGMENT, Tally, rounds};
use crate::{
    host::{self, Machine, disturb::Evidence},
    misses::{Counted, Modelled},
    stats::{self, Sizes},
};
use perimeter::{Guards, LockClass};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Share of elapsed thread time by which the accounted parts may differ from it.
pub const TOLERANCE: f64 = 0.05;

/// Counters of one lock class over a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locks {
    /// Name of the class.
    pub class: String,
    /// Acquisitions, contended or not.
    pub acquisitions: u64,
    /// Those whose first attempt failed because another thread held the lock.
    pub contended: u64,
    /// Time spent waiting, in ns.
    pub wait_ns: u64,
    /// Time held, in ns.
    pub hold_ns: u64,
    /// Waits and holds by size, where they were timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<LockTimes>,
}

impl Locks {
    /// What they protect of the protocol.
    pub fn guards(&self) -> Option<Guards> {
        LockClass::named(&self.class)?.guards()
    }
}

/// Waits for locks of a class, and how long they were held, by size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockTimes {
    /// Contended acquisitions by how long they waited.
    pub wait: Sizes,
    /// All acquisitions by how long they held the lock.
    pub hold: Sizes,
}

impl LockTimes {
    /// Adds those of `other`.
    pub fn add(&mut self, other: &LockTimes) {
        self.wait.add(&other.wait);
        self.hold.add(&other.hold);
    }
}

/// What threads spent on handing work to each other in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTime {
    /// In which: `queue`, `park` or `wake`.
    pub path: String,
    /// How often.
    pub count: u64,
    /// Processor time, in ns.
    pub ns: u64,
}

/// Division of thread time, in ns, summed over the threads under test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Elapsed time of all threads.
    pub elapsed: u64,
    /// Their CPU clocks.
    pub cpu: u64,
    /// Ready to run while others had the core: a disturbance, part of no other share.
    pub preempted: u64,
    /// In the application's event loop.
    pub app: u64,
    /// In the stack; `None` where it can't be told from the peer.
    pub stack: Option<u64>,
    /// In the ideal peer; `None` where it can't be told from the stack.
    pub peer: Option<u64>,
    /// Spinning or polling without result; uses the processor.
    pub spin: u64,
    /// Parked, without a processor.
    pub idle: u64,
}

impl Times {
    /// Sums what the threads under test report. Time inside an endpoint's calls that is neither
    /// peer, spinning nor idle is the stack's.
    pub fn of(tallies: &[Tally]) -> Times {
        let mut times = Times::default();
        let mut told = true;
        let (mut stack, mut peer) = (0u64, 0u64);
        for t in tallies {
            times.elapsed += t.elapsed_ns;
            times.cpu += t.cpu_ns;
            times.app += t.app_ns;
            if let Some(inside) = t.inside {
                peer += inside.peer_ns;
                times.spin += inside.spin_ns;
                times.idle += inside.idle_ns;
                let rest = inside.peer_ns + inside.spin_ns + inside.idle_ns;
                stack += (t.call_ns + t.wait_ns).saturating_sub(rest);
            } else {
                told = false;
                times.idle += t.elapsed_ns.saturating_sub(t.cpu_ns + t.delay_ns);
            }
            times.preempted += t.delay_ns;
        }
        if told && !tallies.is_empty() {
            (times.stack, times.peer) = (Some(stack), Some(peer));
        }
        times
    }

    /// Whether the accounting holds within [`TOLERANCE`] of elapsed thread time: the parts, and the
    /// time for which others had the core, sum to it, and the parts that use the processor agree
    /// with the threads' CPU clocks, which are read from another source. Where stack and peer can't be told apart, the application and idle
    /// parts must leave room for them.
    pub fn valid(&self) -> bool {
        if self.elapsed == 0 {
            return false;
        }
        let slack = self.elapsed as f64 * TOLERANCE;
        let near = |a: u64, b: u64| (a.abs_diff(b) as f64) <= slack;
        match (self.stack, self.peer) {
            (Some(stack), Some(peer)) => {
                let busy = self.app + stack + peer + self.spin;
                near(busy + self.idle + self.preempted, self.elapsed) && near(busy, self.cpu)
            }
            _ => (self.app + self.idle) as f64 <= self.elapsed as f64 + slack,
        }
    }
}

/// What the receiving threads of a run counted, each in its own window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Received {
    /// Bytes per second.
    pub goodput: f64,
    /// Bytes.
    pub bytes: u64,
    /// Those of the connection that received least.
    pub least: u64,
    /// Those of the median connection.
    pub median: u64,
    /// Bytes that were compared with what they had to be.
    pub verified: u64,
}

impl Received {
    /// The sum of what threads have counted; those that only send count for nothing.
    pub fn of(tallies: &[Tally]) -> Received {
        let sinks = || tallies.iter().filter(|t| t.sink);
        let mut each: Vec<u64> = sinks().flat_map(|t| t.received.clone()).collect();
        let (least, median) = stats::least_and_median(&mut each);
        Received {
            goodput: sinks().map(|t| t.per_second(t.sunk())).sum(),
            bytes: each.iter().sum(),
            least,
            median,
            verified: tallies.iter().map(|t| t.verified).sum(),
        }
    }
}

/// What one run measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Measured wall time.
    pub elapsed: Duration,
    /// Payload per second, in bytes.
    pub goodput: f64,
    /// Payload in full-segment units of [`SEGMENT`] bytes.
    pub segments: f64,
    /// Division of the time of the threads under test.
    pub times: Times,
    /// CPU time of the whole machine for this run, in ns.
    pub cpu_ns: u64,
    /// Whole rounds of request and response, or connections from opening to close where they are
    /// opened anew, or datagrams received.
    pub rounds: u64,
    /// How long those took.
    pub latency: Option<Latency>,
    /// Share of the datagrams sent that nobody received.
    pub lost: Option<f64>,
    /// Lock counters by class; empty where there are none to see.
    pub locks: Vec<Locks>,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Voluntary and involuntary context switches of the process.
    pub context_switches: u64,
    /// Involuntary ones of those.
    pub involuntary_switches: u64,
    /// Moves of threads from core to core, where the kernel counts them.
    pub migrations: Option<u64>,
    /// What a cache line took from one core to another and back before the run, in ns.
    pub core_round_trip_ns: Option<f64>,
    /// What hand-overs took, where they were timed.
    pub paths: Vec<PathTime>,
    /// Bytes of the least-served connection.
    pub connection_min: u64,
    /// Bytes of the median connection.
    pub connection_median: u64,
    /// Received bytes that were compared with their expected content.
    pub verified_bytes: u64,
    /// Whether the accounting holds.
    pub valid: bool,
    /// Signs that something else disturbed the run.
    pub disturbances: Vec<String>,
    /// Cache misses, of a run that was traced and not measured.
    pub modelled: Option<Modelled>,
    /// What the processor counted, of a run of which that was asked.
    pub counted: Option<Counted>,
}

impl Sample {
    /// Where the threads of both ends are this program's: payload is what the receiving ones
    /// counted, each in its own window. Of `threads` threads in all, those under test have `times`.
    /// Without locks, and without retransmissions.
    pub fn received(
        tallies: &[Tally],
        (machine, elapsed): (Machine, Duration),
        threads: usize,
        times: Times,
    ) -> Sample {
        let received = Received::of(tallies);
        let (rounds, latency) = rounds(tallies);
        Sample {
            elapsed,
            goodput: received.goodput,
            segments: received.bytes as f64 / SEGMENT as f64,
            times,
            cpu_ns: machine.cpu_ns(),
            rounds,
            latency,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            connection_min: received.least,
            connection_median: received.median,
            verified_bytes: received.verified,
            valid: times.valid() && (received.bytes > 0 || rounds > 0),
            disturbances: disturbances(&machine, elapsed, threads, &times),
            ..Sample::default()
        }
    }
}

/// A sample as it is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// Measured time in s.
    pub seconds: f64,
    /// Payload, Mb/s.
    pub goodput_mbps: f64,
    /// Payload in units of [`SEGMENT`] bytes.
    pub segments: f64,
    /// Elapsed time of the threads under test, ns.
    pub thread_ns: u64,
    /// Their CPU clocks, ns.
    pub thread_cpu_ns: u64,
    /// Application, ns.
    pub app_ns: u64,
    /// Stack, ns.
    pub stack_ns: Option<u64>,
    /// Peer, ns.
    pub peer_ns: Option<u64>,
    /// Spinning, ns.
    pub spin_ns: u64,
    /// Parked, or asleep before a lock, ns.
    pub idle_ns: u64,
    /// Ready to run while others had the core, ns; part of no other time.
    pub preempted_ns: u64,
    /// Whole machine, ns.
    pub cpu_ns: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Context switches.
    pub context_switches: u64,
    /// Involuntary ones.
    pub involuntary_context_switches: u64,
    /// Moves of threads from core to core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations: Option<u64>,
    /// A cache line from one core to another and back, before the run, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_round_trip_ns: Option<f64>,
    /// What hand-overs took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathTime>,
    /// Bytes of the least-served connection.
    pub connection_bytes_min: u64,
    /// Bytes of the median connection.
    pub connection_bytes_median: u64,
    /// Whole rounds of request and response, or connections from opening to close, or datagrams
    /// received; `segments` are datagrams then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rounds: u64,
    /// How long those took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Share of the datagrams sent that nobody received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// Whether the accounting holds.
    pub valid: bool,
    /// Signs of disturbance.
    pub disturbances: Vec<String>,
}

pub(crate) fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl From<&Sample> for Raw {
    fn from(s: &Sample) -> Raw {
        Raw {
            seconds: s.elapsed.as_secs_f64(),
            goodput_mbps: s.goodput * 8.0 / 1e6,
            segments: s.segments,
            thread_ns: s.times.elapsed,
            thread_cpu_ns: s.times.cpu,
            app_ns: s.times.app,
            stack_ns: s.times.stack,
            peer_ns: s.times.peer,
            spin_ns: s.times.spin,
            idle_ns: s.times.idle,
            preempted_ns: s.times.preempted,
            cpu_ns: s.cpu_ns,
            retransmits: s.retransmits,
            context_switches: s.context_switches,
            involuntary_context_switches: s.involuntary_switches,
            migrations: s.migrations,
            core_round_trip_ns: s.core_round_trip_ns,
            paths: s.paths.clone(),
            connection_bytes_min: s.connection_min,
            connection_bytes_median: s.connection_median,
            rounds: s.rounds,
            latency: s.latency,
            lost: s.lost,
            valid: s.valid,
            disturbances: s.disturbances.clone(),
        }
    }
}

/// Signs that something else disturbed a run of `threads` threads (those of a peer in this process
/// included), of which those under test have `times`.
pub fn disturbances(
    machine: &Machine,
    elapsed: Duration,
    threads: usize,
    times: &Times,
) -> Vec<String> {
    disturbances_on(host::cores(), machine, elapsed, threads, times)
}

/// The same where those threads are bound to some of the cores.
pub fn disturbances_on(
    bound: usize,
    machine: &Machine,
    elapsed: Duration,
    threads: usize,
    times: &Times,
) -> Vec<String> {
    let evidence = Evidence {
        machine: *machine,
        wall_ns: elapsed.as_nanos() as u64,
        cores: host::cores(),
        bound: bound.min(host::cores()),
        threads,
        thread_ns: times.elapsed,
        preempted_ns: times.preempted,
    };
    evidence.signs()
}

#[cfg(test)]
impl Sample {
    /// A run of 200 ms, or a longer one if a busy machine has not shown what is to be `seen` in it.
    pub fn once_seen(seen: impl Fn(&Self) -> bool, run: impl Fn(Duration) -> Self) -> Self {
        let run = |ms| run(Duration::from_millis(ms));
        let short = [200, 1000].into_iter().map(run).find(seen);
        short.unwrap_or_else(|| run(4000))
    }

    /// Every connection has moved bytes, and some of them were compared with what was sent.
    pub fn all_moved(&self) -> bool {
        self.connection_min > 0 && self.verified_bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Inside;

    fn tally(elapsed: u64, cpu: u64, app: u64, inside: Option<Inside>) -> Tally {
        Tally {
            elapsed_ns: elapsed,
            cpu_ns: cpu,
            app_ns: app,
            call_ns: (elapsed - app) / 2,
            wait_ns: elapsed - app - (elapsed - app) / 2,
            inside,
            ..Tally::default()
        }
    }

    #[test]
    fn parts_that_agree_with_the_cpu_clock_are_valid() {
        let inside = Inside {
            peer_ns: 200,
            spin_ns: 50,
            idle_ns: 100,
        };
        let times = Times::of(&[tally(1000, 900, 150, Some(inside))]);
        assert_eq!(times.stack, Some(500));
        assert!(times.valid());
        // The thread was off its core for 10 % of the time: the wall-clock parts are wrong.
        assert!(!Times::of(&[tally(1000, 800, 150, Some(inside))]).valid());
        // More idle than there was time: the endpoint's own clock is wrong.
        let wrong = Inside {
            idle_ns: 1000,
            ..inside
        };
        assert!(!Times::of(&[tally(1000, 900, 150, Some(wrong))]).valid());
        assert!(!Times::default().valid());
    }

    #[test]
    fn without_division_stack_and_peer_are_unknown() {
        let times = Times::of(&[tally(1000, 900, 150, None)]);
        assert_eq!((times.stack, times.peer, times.idle), (None, None, 100));
        assert!(times.valid());
    }
}

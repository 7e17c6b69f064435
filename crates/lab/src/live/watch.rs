//! When a crew is asked what it does, and what is made of its answers.

use super::{Feed, News, Perimeter};
use crate::{
    host::{Machine, SoftirqThreads},
    workload::{Configuration, Locks, Phase, SEGMENT, Tally, Times},
};
use std::time::{Duration, Instant};

/// Time between two questions, unless the answers cost too much.
const EVERY: Duration = Duration::from_millis(250);
/// Share of a thread's time that answering may take.
pub const SHARE: f64 = 0.005;

/// What a session saw of its run since it looked before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Payload per second in bytes; `None`: nobody can tell while it runs.
    pub goodput: Option<f64>,
    /// Rounds per second, or connections from opening to close, where there are such. The crew
    /// counts them, whatever its session sees.
    pub rounds: Option<f64>,
    /// How the time of the threads under test divides, where that is known in between.
    pub times: Option<Times>,
    /// Length of what the stack's counters cover, in ns.
    pub window_ns: u64,
    /// Processor time of threads that run the protocol and nothing else, in ns.
    pub protocol_ns: u64,
    /// Locks by class; empty where there are none to see.
    pub locks: Vec<Locks>,
    /// Work is done by a program of its own, whose processor time is known at the end only.
    pub elsewhere: bool,
}

/// Bytes per second of all that was told, each over its own time, counted by `bytes`; `None` if
/// nothing was told.
pub(crate) fn rate(told: &[Option<Tally>], bytes: impl Fn(&Tally) -> u64) -> Option<f64> {
    let told = || told.iter().flatten();
    let rate = |t: &Tally| bytes(t) as f64 * 1e9 / t.elapsed_ns.max(1) as f64;
    told().next().map(|_| told().map(rate).sum())
}

/// Bytes that a thread received if receiving is its part: what counts where both ends are here.
pub(crate) fn sunk(tally: &Tally) -> u64 {
    match tally.sink {
        true => tally.received.iter().sum(),
        false => 0,
    }
}

/// A class of locks.
#[derive(Debug, Clone, PartialEq)]
pub struct LockGlance {
    /// Name of the class.
    pub class: String,
    /// Acquisitions per second.
    pub taken: f64,
    /// Contended acquisitions per second.
    pub contended: f64,
}

impl LockGlance {
    /// Contended acquisitions as a share of all.
    pub fn share(&self) -> f64 {
        match self.taken > 0.0 {
            true => self.contended / self.taken,
            false => 0.0,
        }
    }

    /// Of several classes, the one with the most contended acquisitions.
    pub fn hottest(locks: &[LockGlance]) -> Option<&LockGlance> {
        locks
            .iter()
            .max_by(|a, b| a.contended.total_cmp(&b.contended))
    }
}

/// What is to be told of a run between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Glance {
    /// Time between the looks.
    pub span: Duration,
    /// It was measured, not warmed up.
    pub counts: bool,
    /// Payload, Mb/s.
    pub goodput_mbps: Option<f64>,
    /// Rounds per second, or connections from opening to close, where there are such.
    pub rounds: Option<f64>,
    /// Cores that this process, and the kernel's interrupt threads, used on average.
    pub cores: Option<f64>,
    /// Their processor time per [`SEGMENT`] bytes of payload, in ns.
    pub ns_per_segment: Option<f64>,
    /// Locks by class, those with most contended acquisitions first.
    pub locks: Vec<LockGlance>,
    /// Threads within the organization's [`Perimeter`]s at a time, on average.
    pub occupancy: Option<f64>,
}

/// Looks at one run, from the thread that controls it.
pub struct Watch {
    feed: Feed,
    perimeter: Option<Perimeter>,
    softirq: SoftirqThreads,
    counts: bool,
    due: Instant,
    asked: Instant,
    /// At the last answer: the machine's counters, and when.
    before: Option<(Machine, Instant)>,
}

impl Watch {
    pub(super) fn new(feed: Feed, configuration: &Configuration) -> Watch {
        let now = Instant::now();
        Watch {
            feed,
            perimeter: Perimeter::of(&configuration.organization),
            softirq: SoftirqThreads::find(),
            counts: false,
            due: now,
            asked: now,
            before: None,
        }
    }

    /// The run moves to a phase that takes so long.
    pub(crate) fn phase(&mut self, phase: Phase, time: Duration) {
        self.counts = phase == Phase::Measure;
        self.feed.tell(News::Phase(phase, time));
    }

    /// Whether the run is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.feed.is_stopped()
    }

    /// Whether the event loops are to be asked now.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.due;
        if due {
            (self.asked, self.due) = (now, now + EVERY);
        }
        due
    }

    /// The event loops have answered, at this cost for the one that paid most, and this was seen.
    /// The first answers reach back to when nothing happened yet, and only say from when on to
    /// count.
    pub(crate) fn saw(&mut self, seen: &Seen, cost: Duration) {
        self.due = self.asked + pause(cost);
        let now = (Machine::read(&self.softirq), Instant::now());
        let Some((machine, at)) = self.before.replace(now) else {
            return;
        };
        let (cpu, span) = (now.0.since(&machine).cpu_ns(), now.1 - at);
        let mut glance = glance(seen, self.perimeter, cpu, span);
        glance.counts = self.counts;
        self.feed.tell(News::Seen(glance));
    }
}

/// Time from one question to the next when answers cost so much.
fn pause(cost: Duration) -> Duration {
    EVERY.max(cost.div_f64(SHARE))
}

/// What is to be told, given the processor time of the process in ns over `span`.
pub(super) fn glance(
    seen: &Seen,
    perimeter: Option<Perimeter>,
    cpu_ns: u64,
    span: Duration,
) -> Glance {
    let cores = cpu_ns as f64 / (span.as_nanos() as f64).max(1.0);
    let cores = (!seen.elsewhere).then_some(cores);
    let segments = seen.goodput.map(|g| g / SEGMENT as f64);
    let each = cores.zip(segments.filter(|s| *s > 0.0));
    let per_second = |n: u64| n as f64 * 1e9 / seen.window_ns.max(1) as f64;
    let mut locks: Vec<LockGlance> = seen
        .locks
        .iter()
        .map(|l| LockGlance {
            class: l.class.clone(),
            taken: per_second(l.acquisitions),
            contended: per_second(l.contended),
        })
        .collect();
    locks.sort_by(|a, b| b.contended.total_cmp(&a.contended));
    Glance {
        span,
        counts: false,
        goodput_mbps: seen.goodput.map(|g| g * 8.0 / 1e6),
        rounds: seen.rounds,
        cores,
        ns_per_segment: each.map(|(cores, segments)| cores * 1e9 / segments),
        locks,
        occupancy: perimeter.and_then(|p| p.occupancy(seen)),
    }
}

//! When a crew is asked what it does, and what is made of its answers.

use super::{Feed, Figures, News, Perimeter};
use crate::{
    host::{Machine, SoftirqThreads},
    workload::{Configuration, Locks, Phase, Tally, Times},
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
    let rate = |t: &Tally| t.per_second(bytes(t));
    told().next().map(|_| told().map(rate).sum())
}

/// What is to be told of a run between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Glance {
    /// Time between the looks.
    pub span: Duration,
    /// All of it was measured, not warmed up.
    pub counts: bool,
    /// Processor time that the look took on the thread where it took most.
    pub cost: Duration,
    /// What was seen.
    pub figures: Figures,
}

/// Looks at one run, from the thread that controls it.
pub struct Watch {
    feed: Feed,
    perimeter: Option<Perimeter>,
    softirq: SoftirqThreads,
    measuring: bool,
    /// It was measured already when the event loops answered before.
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
            measuring: false,
            counts: false,
            due: now,
            asked: now,
            before: None,
        }
    }

    /// The run moves to a phase that takes so long.
    pub(crate) fn phase(&mut self, phase: Phase, time: Duration) {
        self.measuring = phase == Phase::Measure;
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
        let counts = std::mem::replace(&mut self.counts, self.measuring);
        let now = (Machine::read(&self.softirq), Instant::now());
        let Some((machine, at)) = self.before.replace(now) else {
            return;
        };
        let (cpu, span) = (now.0.since(&machine).cpu_ns(), now.1 - at);
        self.feed.tell(News::Seen(Glance {
            span,
            counts,
            cost,
            figures: Figures::seen(seen, self.perimeter, cpu, span.as_nanos() as f64),
        }));
    }
}

/// Time from one question to the next when answers cost so much.
fn pause(cost: Duration) -> Duration {
    EVERY.max(cost.div_f64(SHARE))
}

//! When workers are asked what they do, and what is made of their answers.

use super::{Feed, Figures, Glance, News, Perimeter, Seen};
use crate::{
    Error,
    host::{Machine, SoftirqThreads},
    workload::{Configuration, Phase},
};
use std::time::{Duration, Instant};

/// Time between two questions, unless the answers cost too much.
const EVERY: Duration = Duration::from_millis(250);
/// Share of a thread's time that answering may take.
pub const SHARE: f64 = 0.005;

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
    /// Looks at a run of `configuration` that is about to begin.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub(crate) fn begin(feed: &Feed, configuration: &Configuration) -> Result<Watch, Error> {
        match feed.is_stopped() {
            true => Err(Error::Stopped),
            false => Ok(Watch::new(feed.clone(), configuration)),
        }
    }

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
        let due = self.feed.is_watched() && now >= self.due;
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

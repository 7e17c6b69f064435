//! What a run does while it is under way, for somebody who watches: goodput, processor time, lock
//! contention and how occupied the perimeters are, by organization.
//!
//! A few times a second the thread that controls a run asks its event loops what they did since
//! they were asked before ([`Watch`]). Each answers at its next turn, by its own counters; the first
//! thread of a stack of ours reads the stack's besides. So nobody counts or shares anything more on
//! the way of a segment, and what is seen in between is made by the code that makes the result. What
//! remains is a load in each turn of an event loop, and the readings: they are made the more rarely
//! the longer they take, so that they use at most [`SHARE`] of a thread. That time falls into the
//! application's share of a result.
//!
//! | file | what |
//! |---|---|
//! | `watch.rs` | when a crew is asked, and what is made of its answers |
//! | `occupancy.rs` | what a perimeter is in each organization, and how occupied it is |
//! | `figures.rs` | what is shown, of a moment or of complete runs |
//! | `board.rs` | all that has been told, in order, for a view |

mod board;
mod figures;
mod occupancy;
#[cfg(test)]
mod tests;
mod watch;

pub use board::{Board, Now, Row};
pub use figures::{Figures, LockRates};
pub use occupancy::Perimeter;
pub(crate) use watch::rate;
pub use watch::{Glance, SHARE, Seen, Watch};

use crate::{
    Error,
    bench::progress::{Observer, Run},
    workload::{Configuration, Phase, Sample},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// What happens, in order.
#[derive(Debug)]
pub enum News {
    /// These configurations will run, in the order of the report, so often each.
    Planned(Vec<Configuration>, u32),
    /// A run begins: its connections are being established.
    Started {
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// What runs.
        configuration: Configuration,
        /// Estimate of what is left of the whole benchmark.
        left: Duration,
    },
    /// It moves to a phase that takes so long.
    Phase(Phase, Duration),
    /// What it did lately.
    Seen(Glance),
    /// It ended with this result.
    Finished(Box<Sample>),
}

/// Where what happens goes to, and where the word to stop comes from.
#[derive(Debug, Clone)]
pub struct Feed {
    news: mpsc::Sender<News>,
    stop: Arc<AtomicBool>,
}

impl Feed {
    /// A feed, and what comes out of it. The latter ends when the feed and all its clones have
    /// gone.
    pub fn new() -> (Feed, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        (Feed { news, stop }, receiver)
    }

    /// Ends the present run soon and lets no other begin: set it to true.
    pub fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Whether the runs are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Looks at a run of `configuration` that is about to begin.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub(crate) fn watch(&self, configuration: &Configuration) -> Result<Watch, Error> {
        match self.is_stopped() {
            true => Err(Error::Stopped),
            false => Ok(Watch::new(self.clone(), configuration)),
        }
    }

    /// Nobody need be there any more to hear it.
    fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }
}

impl Observer for Feed {
    fn planned(&mut self, grid: &[Configuration], repeat: u32) {
        self.tell(News::Planned(grid.to_vec(), repeat));
    }

    fn started(&mut self, run: &Run<'_>) {
        self.tell(News::Started {
            number: run.number,
            of: run.of,
            configuration: run.configuration.clone(),
            left: run.left,
        });
    }

    fn finished(&mut self, sample: &Sample) {
        self.tell(News::Finished(Box::new(sample.clone())));
    }

    fn done(&mut self) {}

    fn feed(&self) -> Option<&Feed> {
        Some(self)
    }
}

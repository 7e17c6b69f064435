//! What happens, from those who run to somebody who watches.

use super::Figures;
use crate::workload::{Configuration, Phase, Sample};
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

/// Where what happens goes to, and where the word to stop comes from.
#[derive(Debug, Clone)]
pub struct Feed {
    news: mpsc::Sender<News>,
    stop: Arc<AtomicBool>,
    /// Whether somebody wants to see runs as they happen, which costs them a little.
    watched: bool,
}

impl Feed {
    /// A feed, and what comes out of it. The latter ends when the feed and all its clones have
    /// gone.
    pub fn new() -> (Feed, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let feed = Feed {
            news,
            stop,
            watched: true,
        };
        (feed, receiver)
    }

    /// A feed that only brings the word to stop: nobody looks at the runs.
    pub fn to_stop() -> Feed {
        Feed {
            watched: false,
            ..Feed::new().0
        }
    }

    /// Whether somebody wants to see runs as they happen.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Ends the present run soon and lets no other begin: set it to true.
    pub fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Whether the runs are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Nobody need be there any more to hear it.
    pub(crate) fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }
}

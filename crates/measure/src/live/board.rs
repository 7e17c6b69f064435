//! All that has been told of the runs, in order.

use super::{Figures, Glance, News, Perimeter};
use crate::workload::{Configuration, Phase};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Glances that are kept for the curves: more than terminals have columns.
const HISTORY: usize = 1024;

/// One configuration.
#[derive(Debug, Clone)]
pub struct Row {
    /// What runs.
    pub configuration: Configuration,
    /// Its complete runs.
    pub runs: Vec<Figures>,
}

impl Row {
    fn new(configuration: Configuration) -> Row {
        Row {
            configuration,
            runs: Vec::new(),
        }
    }

    /// What its perimeter is.
    pub fn perimeter(&self) -> Option<Perimeter> {
        Perimeter::of(&self.configuration.organization)
    }
}

/// The run that is under way.
#[derive(Debug, Clone)]
pub struct Now {
    /// Its row.
    pub row: usize,
    /// Its number, from 1.
    pub number: usize,
    /// How many runs there are.
    pub of: usize,
    /// Its phase; [`Phase::Set`] while connections are established.
    pub phase: Phase,
    /// When that began.
    pub since: Instant,
    /// How long the phase takes; zero: not known.
    pub takes: Duration,
    /// Estimate of what is left of everything, made when the run began.
    pub left: Duration,
    /// When it began.
    pub begun: Instant,
    /// What was seen of its occupancy while it was measured: the sum by time, and that time in s.
    within: (f64, f64),
    /// What was seen last.
    pub last: Option<Figures>,
    /// Share of a thread's time that looking took then.
    pub cost: f64,
}

/// All that has been told.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Configurations in the order of the report.
    pub rows: Vec<Row>,
    /// Runs of each.
    pub repeat: u32,
    /// What is under way.
    pub now: Option<Now>,
    /// What was seen of all runs, by row: the oldest first, and `None` between two runs.
    pub history: VecDeque<Option<(usize, Figures)>>,
}

impl Board {
    /// One more thing has happened.
    pub fn hear(&mut self, news: News) {
        match news {
            News::Planned(grid, repeat) => {
                self.rows = grid.into_iter().map(Row::new).collect();
                self.repeat = repeat;
            }
            News::Started {
                number,
                of,
                configuration,
                left,
            } => {
                let row = self.row(configuration);
                if self.now.is_some() {
                    self.keep(None);
                }
                let now = Instant::now();
                self.now = Some(Now {
                    row,
                    number,
                    of,
                    phase: Phase::Set,
                    since: now,
                    takes: Duration::ZERO,
                    left,
                    begun: now,
                    within: (0.0, 0.0),
                    last: None,
                    cost: 0.0,
                });
            }
            News::Phase(phase, takes) => {
                if let Some(now) = &mut self.now {
                    (now.phase, now.takes, now.since) = (phase, takes, Instant::now());
                }
            }
            News::Seen(Glance {
                span,
                counts,
                cost,
                figures,
            }) => {
                let Some(now) = &mut self.now else { return };
                if let Some(occupancy) = figures.occupancy.filter(|_| counts) {
                    let time = span.as_secs_f64();
                    now.within.0 += occupancy * time;
                    now.within.1 += time;
                }
                now.cost = cost.as_secs_f64() / span.as_secs_f64().max(1e-9);
                now.last = Some(figures.clone());
                let row = now.row;
                self.keep(Some((row, figures)));
            }
            News::Finished(sample) => {
                let Some(now) = &mut self.now else { return };
                now.phase = Phase::Stop;
                let (sum, time) = now.within;
                let occupancy = (time > 0.0).then_some(sum / time);
                let figures = Figures::measured(&sample, occupancy);
                self.rows[now.row].runs.push(figures);
            }
        }
    }

    /// The row of a configuration, made if it is new.
    fn row(&mut self, configuration: Configuration) -> usize {
        let same = |r: &Row| r.configuration == configuration;
        self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row::new(configuration));
            self.rows.len() - 1
        })
    }

    fn keep(&mut self, entry: Option<(usize, Figures)>) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(entry);
    }

    /// What a row shows: of the run under way what was seen last, else the medians of its complete
    /// runs.
    pub fn figures(&self, row: usize) -> Figures {
        let now = self
            .now
            .as_ref()
            .filter(|n| n.row == row && n.phase != Phase::Stop);
        match now.and_then(|n| n.last.clone()) {
            Some(figures) => figures,
            None => Figures::medians(&self.rows[row].runs),
        }
    }
}

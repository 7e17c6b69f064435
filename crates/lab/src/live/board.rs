//! All that has been told of the runs, in order.

use super::{Glance, LockGlance, News, Perimeter};
use crate::{
    stats::median,
    workload::{Configuration, Phase, Sample},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Glances that are kept for the curves: an hour of four a second.
const HISTORY: usize = 4 * 3600;

/// One configuration.
#[derive(Debug, Clone)]
pub struct Row {
    /// What runs.
    pub configuration: Configuration,
    /// Complete runs.
    pub runs: usize,
    goodput: Vec<f64>,
    rounds: Vec<f64>,
    cores: Vec<f64>,
    each: Vec<f64>,
    occupancy: Vec<f64>,
    /// Of all complete runs together.
    locks: Vec<LockGlance>,
}

/// Medians over the complete runs of a configuration, or what was seen of the present one last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Payload, Mb/s.
    pub goodput_mbps: Option<f64>,
    /// Rounds per second, or connections from opening to close.
    pub rounds: Option<f64>,
    /// Cores used.
    pub cores: Option<f64>,
    /// Processor time in ns per full segment.
    pub ns_per_segment: Option<f64>,
    /// The class of locks with the most contended acquisitions; of complete runs together.
    pub hottest: Option<LockGlance>,
    /// Threads within perimeters at a time.
    pub occupancy: Option<f64>,
}

impl From<&Glance> for Figures {
    fn from(g: &Glance) -> Figures {
        Figures {
            goodput_mbps: g.goodput_mbps,
            rounds: g.rounds,
            cores: g.cores,
            ns_per_segment: g.ns_per_segment,
            hottest: LockGlance::hottest(&g.locks).cloned(),
            occupancy: g.occupancy,
        }
    }
}

impl Row {
    fn new(configuration: Configuration) -> Row {
        Row {
            configuration,
            runs: 0,
            goodput: Vec::new(),
            rounds: Vec::new(),
            cores: Vec::new(),
            each: Vec::new(),
            occupancy: Vec::new(),
            locks: Vec::new(),
        }
    }

    /// What its perimeter is.
    pub fn perimeter(&self) -> Option<Perimeter> {
        Perimeter::of(&self.configuration.organization)
    }

    /// Medians over its complete runs.
    pub fn medians(&self) -> Figures {
        Figures {
            goodput_mbps: median(&self.goodput),
            rounds: median(&self.rounds),
            cores: median(&self.cores),
            ns_per_segment: median(&self.each),
            hottest: LockGlance::hottest(&self.locks).cloned(),
            occupancy: median(&self.occupancy),
        }
    }

    /// A run is complete. Occupancy is in no sample: it is the mean of what was `seen` while
    /// measuring.
    fn complete(&mut self, sample: &Sample, seen: &[Glance]) {
        self.runs += 1;
        self.goodput.push(sample.goodput * 8.0 / 1e6);
        let elapsed = (sample.elapsed.as_nanos() as f64).max(1.0);
        if sample.rounds > 0 {
            self.rounds.push(sample.rounds as f64 * 1e9 / elapsed);
        }
        self.cores.push(sample.cpu_ns as f64 / elapsed);
        if sample.segments > 0.0 {
            self.each.push(sample.cpu_ns as f64 / sample.segments);
        }
        for l in &sample.locks {
            let rate = |n: u64| n as f64 * 1e9 / elapsed;
            let (taken, contended) = (rate(l.acquisitions), rate(l.contended));
            match self.locks.iter_mut().find(|sum| sum.class == l.class) {
                Some(sum) => {
                    (sum.taken, sum.contended) = (sum.taken + taken, sum.contended + contended)
                }
                None => self.locks.push(LockGlance {
                    class: l.class.clone(),
                    taken,
                    contended,
                }),
            }
        }
        let within = seen
            .iter()
            .filter_map(|g| Some((g.occupancy?, g.span.as_secs_f64())));
        let (sum, time) = within.fold((0.0, 0.0), |(sum, time), (o, s)| (sum + o * s, time + s));
        if time > 0.0 {
            self.occupancy.push(sum / time);
        }
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
    /// What was seen of it while it was measured.
    measured: Vec<Glance>,
    /// What was seen last.
    pub last: Option<Glance>,
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
    pub history: VecDeque<Option<(usize, Glance)>>,
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
                    measured: Vec::new(),
                    last: None,
                });
            }
            News::Phase(phase, takes) => {
                if let Some(now) = &mut self.now {
                    (now.phase, now.takes, now.since) = (phase, takes, Instant::now());
                }
            }
            News::Seen(glance) => {
                let Some(now) = &mut self.now else { return };
                let row = now.row;
                if glance.counts {
                    now.measured.push(glance.clone());
                }
                now.last = Some(glance.clone());
                self.keep(Some((row, glance)));
            }
            News::Finished(sample) => {
                let Some(now) = &mut self.now else { return };
                now.phase = Phase::Stop;
                let seen = std::mem::take(&mut now.measured);
                self.rows[now.row].complete(&sample, &seen);
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

    fn keep(&mut self, entry: Option<(usize, Glance)>) {
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
        match now.and_then(|n| n.last.as_ref()) {
            Some(glance) => Figures::from(glance),
            None => self.rows[row].medians(),
        }
    }
}

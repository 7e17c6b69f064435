//! Progress on a terminal, silence elsewhere.

use crate::{
    live::{Feed, News},
    session::Slot,
    units,
    workload::{Configuration, Sample},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// A run that is about to begin.
#[derive(Debug)]
pub struct Run<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// What runs.
    pub configuration: &'a Configuration,
    /// For how long.
    pub slot: Slot,
    /// Estimate of what is left of the whole benchmark, this run and all set-ups included.
    pub left: Duration,
}

/// Told about each run as it starts and ends.
pub trait Observer {
    /// These will run so often each, in the order of the report.
    fn planned(&mut self, grid: &[Configuration], repeat: u32) {
        let _ = (grid, repeat);
    }
    /// A run begins.
    fn started(&mut self, run: &Run<'_>);
    /// That run ended with this.
    fn finished(&mut self, sample: &Sample);
    /// All runs have ended.
    fn done(&mut self);
    /// Where what happens during a run goes, if somebody watches. He may also stop the runs.
    fn feed(&self) -> Option<&Feed> {
        None
    }
}

/// An observer that shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn started(&mut self, _: &Run<'_>) {}
    fn finished(&mut self, _: &Sample) {}
    fn done(&mut self) {}
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

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    feed: Feed,
}

impl Bar {
    /// A bar, or a hidden one when standard error isn't a terminal.
    pub fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4))
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {bar:24} {elapsed} {msg}") {
            bar.set_style(style);
        }
        Bar {
            bar,
            feed: Feed::to_stop(),
        }
    }

    /// Ends the present run soon and lets no other begin: set it to true. What is complete is
    /// reported.
    pub fn stop(&self) -> &Arc<AtomicBool> {
        self.feed.stop()
    }
}

impl Default for Bar {
    fn default() -> Self {
        Bar::new()
    }
}

impl Observer for Bar {
    fn started(&mut self, run: &Run<'_>) {
        self.bar.set_length(run.of as u64);
        self.bar.set_position(run.number as u64 - 1);
        let total: Duration = run.slot.warm_up + run.slot.measure;
        self.bar.set_message(format!(
            "{} × {} connections ({:.1} s), {} left",
            run.configuration.organization,
            run.configuration.connections,
            total.as_secs_f64(),
            units::roughly(run.left)
        ));
    }

    fn finished(&mut self, _: &Sample) {
        self.bar.inc(1);
    }

    fn done(&mut self) {
        self.bar.finish_and_clear();
    }

    fn feed(&self) -> Option<&Feed> {
        Some(&self.feed)
    }
}

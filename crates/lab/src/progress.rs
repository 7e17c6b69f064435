//! Progress on a terminal, silence elsewhere.

use crate::plan::{Configuration, Slot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{io::IsTerminal, time::Duration};

/// Told about each run as it starts and ends.
pub trait Observer {
    /// Run `number` (from 1) of `of` begins.
    fn started(&mut self, number: usize, of: usize, configuration: &Configuration, slot: Slot);
    /// That run ended with this goodput in Mb/s.
    fn finished(&mut self, goodput_mbps: f64);
    /// All runs have ended.
    fn done(&mut self);
}

/// An observer that shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn started(&mut self, _: usize, _: usize, _: &Configuration, _: Slot) {}
    fn finished(&mut self, _: f64) {}
    fn done(&mut self) {}
}

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
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
        Bar { bar }
    }
}

impl Default for Bar {
    fn default() -> Self {
        Bar::new()
    }
}

impl Observer for Bar {
    fn started(&mut self, number: usize, of: usize, configuration: &Configuration, slot: Slot) {
        self.bar.set_length(of as u64);
        self.bar.set_position(number as u64 - 1);
        let total: Duration = slot.warm_up + slot.measure;
        self.bar.set_message(format!(
            "{} × {} connections ({:.1} s)",
            configuration.organization,
            configuration.connections,
            total.as_secs_f64()
        ));
    }

    fn finished(&mut self, _goodput_mbps: f64) {
        self.bar.inc(1);
    }

    fn done(&mut self) {
        self.bar.finish_and_clear();
    }
}

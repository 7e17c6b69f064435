//! Progress of what takes long, on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::Duration,
};

/// A progress bar, if standard error is a terminal.
pub fn bar() -> ProgressBar {
    let bar = match io::stderr().is_terminal() {
        true => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4)),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {bar:24} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

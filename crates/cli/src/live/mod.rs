//! `perimeter bench --live`: the runs as they happen, on the whole terminal.
//!
//! The runs are controlled from the main thread, as always; a thread of its own draws what they
//! tell ([`perimeter_measure::live`]) and reads the keys.

mod draw;

use crate::screen::{Screen, Wanted};
use draw::Look;
use perimeter_measure::{
    Error, Report,
    bench::report::Build,
    live::{Board, Feed, News},
    workload::Settings,
};
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use std::{
    env, io,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Who wants the terminal.
const WANTED: Wanted = Wanted {
    by: "--live",
    instead: "without one, use --json FILE",
};
/// Exit code after a second request to stop, which waits for nothing: that of SIGINT by custom.
const AT_ONCE: i32 = 130;
/// Longest time between two frames while something runs: its clock goes on.
const FRAME: Duration = Duration::from_millis(500);
/// How often keys and news are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Runs the benchmark and shows it. The terminal is as it was when this returns.
///
/// # Errors
/// [`Error::Input`] if there is no terminal to draw on; [`Error::Stopped`] if it was ended before a
/// run was complete; else as [`perimeter_measure::bench()`].
pub fn bench(settings: &Settings, build: Build, started: Instant) -> Result<Report, Error> {
    settings.check()?;
    let look = Look {
        about: format!(
            "{}, {}, {}",
            settings.device, settings.direction, settings.inbound
        ),
        rounds: match (settings.reconnect, settings.exchange) {
            (true, _) => Some("connections"),
            (false, Some(_)) => Some("rounds"),
            (false, None) => None,
        },
        colour: env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        stopping: false,
    };
    Screen::check(WANTED)?;
    let (mut feed, news) = Feed::new();
    let stop = feed.stop().clone();
    let view = thread::Builder::new().name("view".into());
    let view = view.spawn(move || show(&news, &stop, look));
    let view = view.map_err(|source| Error::Io {
        context: "starting a thread".into(),
        source,
    })?;
    let report = perimeter_measure::bench(settings, build, started, &mut feed);
    // The end of the news is the end of the view.
    drop(feed);
    match view.join() {
        Ok(Ok(())) => report,
        Ok(Err(e @ Error::Input(_))) => Err(e),
        // What was measured is worth more than what was not seen of it.
        Ok(Err(e)) => report.map(|mut report| {
            report.notes.push(format!("the live view ended early: {e}"));
            report
        }),
        Err(_) => Err(Error::Run("the live view panicked".into())),
    }
}

/// Draws until the news end. The terminal is taken with the first of them: before that a peer's
/// adapter may be built, and a request be refused, in plain lines.
///
/// # Errors
/// [`Error::Input`]: the terminal can't be taken; the runs are told to end.
fn show(news: &mpsc::Receiver<News>, stop: &AtomicBool, look: Look) -> Result<(), Error> {
    let Ok(first) = news.recv() else {
        return Ok(());
    };
    let mut board = Board::default();
    board.hear(first);
    let screen = Screen::open(WANTED).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
    follow(screen, board, news, stop, look).map_err(|source| Error::Io {
        context: "drawing on the terminal".into(),
        source,
    })
}

fn follow(
    mut screen: Screen,
    mut board: Board,
    news: &mpsc::Receiver<News>,
    stop: &AtomicBool,
    mut look: Look,
) -> io::Result<()> {
    let mut drawn: Option<Instant> = None;
    loop {
        let mut changed = drawn.is_none_or(|at| at.elapsed() >= FRAME);
        loop {
            match news.try_recv() {
                Ok(n) => {
                    board.hear(n);
                    changed = true;
                }
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return screen.close(),
            }
        }
        let asked = screen.was_signalled() || read_keys(&mut screen, &mut changed)?;
        if asked && stop.swap(true, Ordering::Relaxed) {
            let _ = screen.close();
            std::process::exit(AT_ONCE);
        }
        if asked {
            (look.stopping, changed) = (true, true);
        }
        if changed {
            screen.draw(|frame| draw::draw(frame, &board, &look, Instant::now()))?;
            drawn = Some(Instant::now());
        }
    }
}

/// Reads what was typed, waiting a little for it; whether it asks to stop.
fn read_keys(screen: &mut Screen, changed: &mut bool) -> io::Result<bool> {
    let mut asked = false;
    let mut patience = TICK;
    while let Some(event) = screen.event(patience)? {
        patience = Duration::ZERO;
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                asked |= match key.code {
                    KeyCode::Char('c') => control,
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
                    _ => false,
                };
            }
            Event::Resize(..) => *changed = true,
            _ => {}
        }
    }
    Ok(asked)
}

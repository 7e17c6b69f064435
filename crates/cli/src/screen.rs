//! The terminal while a view has it. However the program ends, short of being killed, it is given
//! back as it was: by [`Screen::close`], by dropping it, or by the panic hook.

use perimeter_measure::Error;
use ratatui::{
    Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor,
        event::{self, Event},
        execute,
        terminal::{self, EnterAlternateScreen, LeaveAlternateScreen},
    },
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    env,
    io::{self, BufWriter, IsTerminal, Stdout, Write as _},
    panic,
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Whether the view has the terminal. Whoever draws or gives back holds it, so that nothing is drawn
/// on what has been given back.
static TAKEN: Mutex<bool> = Mutex::new(false);

/// Who wants the terminal.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// As the user asked for it.
    pub by: &'static str,
    /// What to do without a terminal.
    pub instead: &'static str,
}

/// The terminal, in its alternate screen, without echo and line editing.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    signalled: Arc<AtomicBool>,
}

impl Screen {
    /// Whether there is a terminal to draw on and to read keys from.
    ///
    /// # Errors
    /// [`Error::Input`] if not.
    pub fn check(Wanted { by, instead }: Wanted) -> Result<(), Error> {
        for (is, what) in [
            (io::stdout().is_terminal(), ""),
            (io::stdin().is_terminal(), " to read keys from"),
        ] {
            if !is {
                return Err(Error::Input(format!(
                    "{by} needs a terminal{what}; {instead}"
                )));
            }
        }
        match env::var_os("TERM") {
            Some(term) if term == "dumb" => Err(Error::Input(format!(
                "{by}: the terminal is `dumb` (TERM) and can't be drawn on; {instead}"
            ))),
            _ => Ok(()),
        }
    }

    /// Takes the terminal.
    ///
    /// # Errors
    /// [`Error::Input`] if it can't be had.
    pub fn open(Wanted { by, instead }: Wanted) -> Result<Screen, Error> {
        let refused = |e: io::Error| Error::Input(format!("{by}: the terminal: {e}; {instead}"));
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, signalled.clone()).map_err(refused)?;
        }
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _ = give_back();
            before(info);
        }));
        take().map_err(refused)?;
        let backend = CrosstermBackend::new(BufWriter::new(io::stdout()));
        let screen = Terminal::new(backend).map(|terminal| Screen {
            terminal,
            signalled,
        });
        screen.map_err(|e| {
            let _ = give_back();
            refused(e)
        })
    }

    /// Draws a frame, unless the terminal was given back.
    ///
    /// # Errors
    /// The terminal can't be written to.
    pub fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if *taken {
            self.terminal.draw(frame)?;
        }
        Ok(())
    }

    /// What was typed, or another size; `None` if nothing happens for as long as `patience`.
    ///
    /// # Errors
    /// The terminal can't be read.
    pub fn event(&mut self, patience: Duration) -> io::Result<Option<Event>> {
        match event::poll(patience) {
            Ok(true) => event::read().map(Some),
            Ok(false) => Ok(None),
            // A signal is looked at by the caller.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether a signal that ends programs has come since this was asked before.
    pub fn was_signalled(&self) -> bool {
        self.signalled.swap(false, Ordering::Relaxed)
    }

    /// Gives the terminal back.
    ///
    /// # Errors
    /// It can't be written to.
    pub fn close(&mut self) -> io::Result<()> {
        give_back()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

fn take() -> io::Result<()> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    terminal::enable_raw_mode()?;
    *taken = true;
    let drawn = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide);
    drop(taken);
    drawn.inspect_err(|_| {
        let _ = give_back();
    })
}

/// Gives the terminal back if it was taken. Waits a little for a frame that is being drawn, and no
/// longer: the thread that draws it may have panicked there.
fn give_back() -> io::Result<()> {
    let mut taken = None;
    for _ in 0..20 {
        taken = match TAKEN.try_lock() {
            Ok(taken) => Some(taken),
            Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if taken.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    if taken.as_deref() == Some(&false) {
        return Ok(());
    }
    if let Some(taken) = &mut taken {
        **taken = false;
    }
    let mut out = io::stdout();
    let shown = execute!(out, LeaveAlternateScreen, cursor::Show).and_then(|()| out.flush());
    terminal::disable_raw_mode()?;
    shown
}

#[cfg(test)]
#[allow(dead_code, reason = "shared with the tests of the whole command")]
#[path = "../tests/pty/mod.rs"]
mod pty;

#[cfg(test)]
mod tests {
    use super::*;

    const PANICS: &str = "PERIMETER_TEST_PANICS";

    /// The program that the test below runs on a pseudo-terminal; by itself it does nothing.
    #[test]
    fn panics() {
        if env::var_os(PANICS).is_none() {
            return;
        }
        let mut screen = Screen::open(Wanted {
            by: "a test",
            instead: "none",
        })
        .unwrap();
        let show = |screen: &mut Screen, text| {
            screen
                .draw(|frame| frame.render_widget(text, frame.area()))
                .unwrap();
        };
        show(&mut screen, "a frame");
        // As a worker may, while the view goes on.
        assert!(thread::spawn(|| panic!("a worker's")).join().is_err());
        show(&mut screen, "too late");
        panic!("its own");
    }

    /// What is said of a panic can be read, and the terminal is as it was.
    #[test]
    fn a_panic_gives_the_terminal_back() {
        let program = env::current_exe().unwrap();
        let test = ["--exact", "screen::tests::panics", "--nocapture"];
        let Some(session) = pty::Session::start(&program, &test, &[(PANICS, "1")]) else {
            return;
        };
        let (status, rest) = session.end();
        assert_eq!(status.code(), Some(101), "{rest}");
        assert!(
            rest.contains("a worker's") && rest.contains("its own"),
            "{rest}"
        );
        assert!(!rest.contains("too late"), "{rest}");
    }
}

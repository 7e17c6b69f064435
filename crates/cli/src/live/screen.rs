//! The terminal while the view has it. However the program ends, short of being killed, it is given
//! back as it was: by [`Screen::close`], by dropping it, or by the panic hook.

use perimeter_lab::Error;
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

/// The terminal, in its alternate screen, without echo and line editing.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    signalled: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// [`Error::Input`] if there is none, or it can't be drawn on.
    pub fn open() -> Result<Screen, Error> {
        let instead = "leave --live out, and --json FILE has all figures";
        for (is, what) in [
            (io::stdout().is_terminal(), "standard output"),
            (io::stdin().is_terminal(), "standard input"),
        ] {
            if !is {
                return Err(Error::Input(format!(
                    "--live draws on a terminal, and {what} is none; {instead}"
                )));
            }
        }
        if env::var_os("TERM").is_some_and(|t| t == "dumb") {
            return Err(Error::Input(format!(
                "--live: the terminal is `dumb` (TERM) and can't be drawn on; {instead}"
            )));
        }
        let refused = |e: io::Error| Error::Input(format!("--live: the terminal: {e}; {instead}"));
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

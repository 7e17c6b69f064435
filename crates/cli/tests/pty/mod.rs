//! A program on a pseudo-terminal of its own, and what that shows.

#[path = "../patience/mod.rs"]
mod patience;

use patience::Patience;
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read, Write as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Columns and lines.
pub const SIZE: (u16, u16) = (110, 30);
/// Longest that anything may take.
const LONG: Duration = Duration::from_secs(40);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(30);
/// Enters it.
const ENTER: &str = "\x1b[?1049h";
/// Leaves the alternate screen.
const LEAVE: &str = "\x1b[?1049l";

/// What the test writes when the program has ended.
const END: &str = "\x1b]the end\x07";

/// The program on a pseudo-terminal of its own.
pub struct Session {
    pub child: Child,
    /// What is written here is typed.
    pub keys: File,
    /// The terminal itself.
    pub slave: File,
    /// All that the program has written.
    pub written: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

impl Session {
    /// `None` with a printed reason where there is no `setsid` to give it a controlling terminal.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Session> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let slave: File = rustix::fs::open(name, flags, Mode::empty()).unwrap().into();
        tcsetwinsize(&slave, size(SIZE.0, SIZE.1)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["-c", "-w"])
            .arg(program)
            .args(arguments)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .envs(environment.iter().copied())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(e) => {
                eprintln!("skipped: setsid: {e}");
                return None;
            }
        };
        let mut master: File = master.into();
        let keys = master.try_clone().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = written.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = master.read(&mut buffer) {
                to.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Some(Session {
            child,
            keys,
            slave,
            written,
            before,
        })
    }

    /// All that the program has written.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until the screen shows what `is` looks for.
    pub fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) {
        let mut patience = Patience::new(LONG);
        loop {
            let shown = screen(&self.text());
            if is(&shown) {
                return;
            }
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "ended before {what}:\n{shown}"
            );
            assert!(patience.lasts(), "{what} never came:\n{shown}");
            thread::sleep(LOOK);
        }
    }

    /// Waits for the end: the exit status, and what was printed when the view had closed. The
    /// terminal is as it was.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut patience = Patience::new(LONG);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            let shown = || screen(&self.text());
            assert!(patience.lasts(), "it does not end:\n{}", shown());
            thread::sleep(LOOK);
        };
        // The reader may be behind, on a busy machine by long. A terminal keeps the order: what was
        // written before this has been read when this is.
        self.slave.write_all(END.as_bytes()).unwrap();
        let mut behind = Patience::new(LONG);
        while !self.text().contains(END) && behind.lasts() {
            thread::sleep(LOOK);
        }
        let after = tcgetattr(&self.slave).unwrap();
        let modes = |t: &Termios| {
            (
                t.input_modes,
                t.output_modes,
                t.control_modes,
                t.local_modes,
            )
        };
        assert_eq!(
            modes(&after),
            modes(&self.before),
            "the terminal is not as it was"
        );
        let text = self.text();
        let text = text.strip_suffix(END).unwrap_or(&text);
        let left = text.rsplit_once(LEAVE);
        let (view, rest) = left.unwrap_or_else(|| panic!("the screen was not left: {text:?}"));
        assert!(view.contains(ENTER));
        assert!(rest.contains("\x1b[?25h"), "the cursor stays hidden");
        (status, rest.into())
    }
}

/// A terminal's size.
pub fn size(ws_col: u16, ws_row: u16) -> Winsize {
    Winsize {
        ws_col,
        ws_row,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a terminal shows that got `text` in its alternate screen: enough of one for the view, which
/// moves the cursor, clears and writes.
pub fn screen(text: &str) -> String {
    let (width, height) = (usize::from(SIZE.0), usize::from(SIZE.1));
    let mut cells = vec![vec![' '; width]; height];
    let (mut x, mut y) = (0, 0);
    let shown = text.rsplit_once(ENTER).map_or("", |(_, shown)| shown);
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            if let Some(cell) = cells.get_mut(y).and_then(|l| l.get_mut(x)) {
                *cell = c;
            }
            x += 1;
            continue;
        }
        chars.next();
        let mut parameters = String::new();
        let last = chars.by_ref().find(|c| {
            let is_last = c.is_ascii_alphabetic();
            if !is_last {
                parameters.push(*c);
            }
            is_last
        });
        match last {
            Some('H') => {
                let mut numbers = parameters.split(';').map(|n| n.parse().unwrap_or(1));
                y = numbers.next().unwrap_or(1) - 1;
                x = numbers.next().unwrap_or(1) - 1;
            }
            Some('J') => cells.iter_mut().flatten().for_each(|c| *c = ' '),
            _ => {}
        }
    }
    let lines = cells.iter().map(|l| l.iter().collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a line of the screen contains all of `parts`.
pub fn has(shown: &str, parts: &[&str]) -> bool {
    shown.lines().any(|l| parts.iter().all(|p| l.contains(p)))
}

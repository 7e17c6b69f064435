//! `perimeter bench --live` on a pseudo-terminal, as a user meets it.

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const SIZE: (u16, u16) = (110, 30);
/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(40);
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// The program on a pseudo-terminal of its own.
struct Session {
    child: Child,
    keys: File,
    slave: File,
    written: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

impl Session {
    /// `None` with a printed reason where there is no `setsid` to give it a controlling terminal.
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Option<Session> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let slave: File = rustix::fs::open(name, flags, Mode::empty()).unwrap().into();
        let size = Winsize {
            ws_col: SIZE.0,
            ws_row: SIZE.1,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["-c", "-w"])
            .arg(assert_cmd::cargo::cargo_bin("perimeter"))
            .args(["bench", "--live"])
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

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until the screen shows what `is` looks for.
    fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let shown = screen(&self.text());
            if is(&shown) {
                return;
            }
            assert!(Instant::now() < end, "{what} never came:\n{shown}");
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "ended before {what}:\n{shown}"
            );
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits for the end: the exit status, and what was printed when the view had closed. The
    /// terminal is as it was.
    fn end(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < end,
                "it does not end:\n{}",
                screen(&self.text())
            );
            thread::sleep(Duration::from_millis(30));
        };
        // The reader may be a little behind.
        thread::sleep(Duration::from_millis(200));
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
        let (view, rest) = text.rsplit_once(LEAVE).expect("the screen was not left");
        assert!(view.contains(ENTER));
        assert!(rest.contains("\x1b[?25h"), "the cursor stays hidden");
        (status, rest.into())
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
fn screen(text: &str) -> String {
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

/// The line of the screen that contains all of `parts`.
fn has(shown: &str, parts: &[&str]) -> bool {
    shown.lines().any(|l| parts.iter().all(|p| l.contains(p)))
}

#[test]
fn the_runs_are_shown_and_the_table_printed_afterwards() {
    let t = tempfile::tempdir().unwrap();
    let json = t.path().join("result.json");
    let json = json.to_str().unwrap();
    let arguments = [
        "--org",
        "up,connp-l:8",
        "--conns",
        "6",
        "--seconds",
        "1",
        "--repeat",
        "1",
        "--json",
        json,
    ];
    let Some(mut session) = Session::start(&arguments, &[]) else {
        return;
    };
    session.until("the first run", |s| has(s, &["mem, send, nic", "of 3"]));
    let text = session.text();
    assert!(text.contains("\x1b[38;2;"), "no colours");
    let (status, table) = session.end();
    assert_eq!(status.code(), Some(0), "{table}");
    for row in ["goodput Mb/s", "null", "up", "connp-l:8"] {
        assert!(table.contains(row), "{row} is missing:\n{table}");
    }
    let report = std::fs::read_to_string(Path::new(json)).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 3);
}

/// q ends runs that would take half an hour, in order, and prints what was complete.
#[test]
fn quitting_prints_what_is_complete() {
    let arguments = ["--org", "connp-l:8", "--conns", "2", "--seconds", "600"];
    let Some(mut session) = Session::start(&arguments, &[("NO_COLOR", "1")]) else {
        return;
    };
    session.until("what connp-l does", |s| {
        has(s, &["▲ connp-l:8 × 2 connections, ", "measuring"])
            && has(s, &["▶▲ connp-l:8", "0/3", "group"])
            && has(s, &["goodput ", " Mb/s", "CPU ", " cores"])
            && has(s, &["within 0.", "threads in a perimeter"])
            && has(s, &["locks ", "group "])
    });
    session.keys.write_all(b"q").unwrap();
    let text = session.written.clone();
    let (status, table) = session.end();
    assert_eq!(status.code(), Some(0), "{table}");
    assert!(
        table.contains("null") && table.contains("stopped: 1 of 6 runs"),
        "{table}"
    );
    let text = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
    let coloured = ["\x1b[38;", "\x1b[48;"].iter().any(|c| text.contains(c));
    assert!(!coloured, "NO_COLOR is not honoured");
}

/// A signal from outside ends it like a key. Before a run is complete there is nothing to print.
#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let arguments = ["--org", "linux", "--conns", "2", "--seconds", "600"];
    let Some(mut session) = Session::start(&arguments, &[]) else {
        return;
    };
    session.until("a run", |s| has(s, &["✕ linux × 2", "measuring"]));
    let kill = Command::new("kill")
        .arg(session.child.id().to_string())
        .status();
    assert!(kill.unwrap().success());
    let (status, rest) = session.end();
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.contains("stopped before a run was complete"), "{rest}");
}

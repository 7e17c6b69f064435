//! `perimeter bench --live` on a pseudo-terminal, as a user meets it.

mod pty;

use pty::{Session, has, size};
use rustix::termios::tcsetwinsize;
use std::{io::Write as _, path::Path, process::Command};

fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Option<Session> {
    let program = assert_cmd::cargo::cargo_bin("perimeter");
    let arguments = [&["bench", "--live"], arguments].concat();
    Session::start(&program, &arguments, environment)
}

#[test]
fn the_runs_are_shown_and_the_table_printed_afterwards() {
    let t = tempfile::tempdir().unwrap();
    let json = t.path().join("result.json");
    let json = json.to_str().unwrap();
    let arguments = [
        "--org",
        "null,up,connp-l:8",
        "--conns",
        "6",
        "--seconds",
        "1",
        "--repeat",
        "1",
        "--json",
        json,
    ];
    let Some(mut session) = start(&arguments, &[]) else {
        return;
    };
    session.until("the first run", |s| has(s, &["mem, send, nic", "of 3"]));
    let text = session.text();
    assert!(text.contains("\x1b[38;5;"), "no colours");
    let (status, table) = session.end();
    assert_eq!(status.code(), Some(0), "{table}");
    for row in ["Fastest on this machine", "Gb/s", "null", "up", "connp-l:8"] {
        assert!(table.contains(row), "{row} is missing:\n{table}");
    }
    let report = std::fs::read_to_string(Path::new(json)).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 3);
}

/// q ends runs that would take half an hour, in order, and prints what was complete.
#[test]
fn quitting_prints_what_is_complete() {
    let arguments = [
        "--org",
        "null,connp-l:8",
        "--conns",
        "2",
        "--seconds",
        "600",
    ];
    let Some(mut session) = start(&arguments, &[("NO_COLOR", "1")]) else {
        return;
    };
    session.until("what connp-l does", |s| {
        has(s, &["▲ connp-l:8 × 2 connections, ", "measuring"])
            && has(s, &["▶▲ connp-l:8", "0/3", "group"])
            && has(s, &["goodput ", " Mb/s", "CPU ", " cores"])
            && has(s, &["within 0.", "threads in a perimeter"])
            && has(s, &["locks ", "group "])
    });
    // Smaller: the kernel tells the program.
    tcsetwinsize(&session.slave, size(60, 14)).unwrap();
    session.until("the smaller screen", |s| {
        !s.contains('┌') && has(s, &["goodput "]) && has(s, &["▶▲ connp-l:8"])
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
    let Some(mut session) = start(&arguments, &[]) else {
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

/// A run that fails is told of in a plain line, on a terminal as it was.
#[test]
fn a_failure_can_be_read() {
    let Some(session) = start(&["--connect", "127.0.0.1:1", "--conns", "1"], &[]) else {
        return;
    };
    let (status, rest) = session.end();
    assert_eq!(status.code(), Some(2), "{rest}");
    let why = "127.0.0.1:1: Connection refused";
    assert!(
        rest.contains(why) && rest.contains("is `perimeter bench --listen` running there?"),
        "{rest}"
    );
}

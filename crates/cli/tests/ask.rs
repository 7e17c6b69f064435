//! `perimeter ss` and `perimeter trace` as a user meets them: against stacks in this process, and
//! against a benchmark in another.

mod patience;

use assert_cmd::cargo::CommandCargoExt as _;
use patience::Patience;
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack, TcpStream};
use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("perimeter").unwrap();
    command
        .args(arguments)
        .env("NO_COLOR", "1")
        .env_remove("PERIMETER_CONTROL");
    command
}

fn perimeter(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a command that was refused says, in one line, with its exit code.
fn refusal(arguments: &[&str]) -> (String, i32) {
    let output = perimeter(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    (stderr, output.status.code().unwrap())
}

/// A stack of organization `org` with a control socket and an established connection, while
/// `body` runs on another thread; this one, which owns the stack, serves it.
fn with_stack(org: &str, control: &Path, body: impl FnOnce(TcpStream) + Send) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let builder = Stack::builder()
        .on_native(native)
        .organization(org)
        .unwrap();
    let stack = builder
        .control(control)
        .interface(a, &["10.0.0.1/24"])
        .unwrap()
        .build()
        .unwrap();
    let peer = Stack::builder().on_native(native).org(OrgSpec::default());
    let peer = peer
        .interface(b, &["10.0.0.2/24"])
        .unwrap()
        .build()
        .unwrap();
    let listener = stack.listen("10.0.0.1:80").unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let over = &over;
        let t = s.spawn(move || {
            struct Done<'a>(&'a AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Release);
                }
            }
            let _done = Done(over);
            body(peer.connect("10.0.0.1:80").unwrap());
        });
        let (mut conn, _) = listener.accept().unwrap();
        conn.set_nonblocking(true).unwrap();
        let mut buf = [0; 4096];
        while !over.load(Ordering::Acquire) {
            if let Ok(n) = conn.read(&mut buf) {
                let _ = conn.write(&buf[..n]);
            }
            if stack.drive().unwrap() == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        t.join().unwrap();
    });
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stack.sock");
    (dir, path)
}

#[test]
fn connections_are_shown() {
    for (org, perimeter_of) in [
        ("up", "stack"),
        ("up:shared", "stack"),
        ("connp-l:8", "group "),
    ] {
        let (_dir, path) = socket();
        with_stack(org, &path, |mut conn| {
            conn.write_all(b"twelve bytes").unwrap();
            conn.read_exact(&mut [0; 12]).unwrap();
            let at = path.to_str().unwrap();
            let output = perimeter(&["ss", "--control", at]);
            let table = text(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            let pid = std::process::id();
            assert!(
                table.starts_with(&format!("{org} in process {pid}\n")),
                "{table}"
            );
            for want in [
                "LISTEN",
                "ESTABLISHED",
                "10.0.0.1:80",
                "10.0.0.2:",
                perimeter_of,
                " @",
            ] {
                assert!(table.contains(want), "{want}: {table}");
            }
            assert!(!table.contains('\u{1b}'), "{table}");
            // By the environment, as JSON.
            let mut command = command(&["ss", "--json"]);
            let output = command.env("PERIMETER_CONTROL", at).output().unwrap();
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["stack"]["organization"], org);
            let c = &json["connections"][0];
            assert_eq!(c["state"], "ESTABLISHED");
            assert_eq!(c["bytes_received"], 12);
            assert!(c["cwnd"].as_u64().unwrap() > 1000, "{c}");
            assert!(c["rtt_us"].as_f64().unwrap() > 0.0, "{c}");
            for (layer, name) in c["layers"]
                .as_array()
                .unwrap()
                .iter()
                .zip(["ip", "tcp", "socket"])
            {
                assert_eq!(layer["layer"], name);
                assert!(
                    layer["perimeter"]
                        .as_str()
                        .unwrap()
                        .starts_with(perimeter_of),
                    "{c}"
                );
                assert!(layer["ran"][0].is_u64(), "{c}");
            }
            // Nothing to trace here.
            let id = c["id"].as_str().unwrap();
            let (line, code) = refusal(&["trace", "--control", at, id, "--count", "1"]);
            assert!(
                line.contains("only connections under pef") && line.contains(org),
                "{line}"
            );
            assert_eq!(code, 1);
        });
        assert!(!path.exists(), "{org}");
    }
}

#[test]
fn who_cannot_be_asked_is_named() {
    let (dir, path) = socket();
    let at = path.to_str().unwrap();
    for ask in [
        &["ss"][..],
        &["trace", "0:0.1"],
        &["stat"],
        &["pcap"],
        &["top", "--batch"],
    ] {
        let with = |control: &str| refusal(&[ask, &["--control", control]].concat());
        let (line, code) = refusal(ask);
        assert!(
            line.contains("--control") && line.contains("PERIMETER_CONTROL"),
            "{line}"
        );
        assert_eq!(code, 2);
        let (line, code) = with(at);
        assert!(
            line.contains(at) && line.contains("no control socket"),
            "{line}"
        );
        assert_eq!(code, 2);
    }
    drop(UnixListener::bind(&path).unwrap());
    let (line, code) = refusal(&["ss", "--control", at]);
    assert!(line.contains(at) && line.contains("has ended"), "{line}");
    assert_eq!(code, 2);
    let other = dir.path().join("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let newer = thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        s.write_all(b"{\"perimeter\":\"7.0.0\",\"protocol\":9}\n")
            .unwrap();
    });
    let (line, code) = refusal(&["ss", "--control", other.to_str().unwrap()]);
    assert!(
        line.contains("perimeter 7.0.0") && line.contains("version 9"),
        "{line}"
    );
    assert_eq!(code, 2);
    newer.join().unwrap();
    for (arguments, want) in [
        (&["ss", "extra"][..], "extra"),
        (&["ss", "--jsn"], "--json"),
        (&["trace"], "<CONNECTION>"),
        (&["trace", "0:0.1", "--count", "0"], "the number"),
        (&["trace", "0:0.1", "--count", "-1"], "-1"),
        (&["trace", "0:0.1", "--seconds", "x"], "x"),
        (&["stat", "--count", "3"], "--interval"),
        (&["stat", "--interval", "0"], "0"),
        (&["pcap", "port", "http"], "`http` is not a port"),
        (&["pcap", "--snap-len", "0"], "0"),
        (&["pcap", "--json", "-w", "x"], "--write"),
        (&["top"], "top needs a terminal"),
    ] {
        let (line, code) = refusal(arguments);
        assert!(line.contains(want), "{arguments:?}: {line}");
        assert_eq!(code, 2, "{arguments:?}");
    }
    for command in ["ss", "stat", "top", "pcap", "trace"] {
        let help = text(&perimeter(&[command, "--help"]).stdout);
        for want in ["Examples:", "Exit status:", "--control"] {
            assert!(help.contains(want), "{command} {want}: {help}");
        }
    }
}

/// Ended when the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_benchmark_can_be_watched() {
    for org in ["up", "connp-l:8"] {
        let (_dir, path) = socket();
        let at = path.to_str().unwrap();
        let bench = command(&[
            "bench",
            "--org",
            org,
            "--conns",
            "12",
            "--seconds",
            "3",
            "--repeat",
            "1",
            "--control",
            at,
            "--json",
            "-",
        ])
        .stdout(std::process::Stdio::null())
        .spawn();
        let mut bench = Running(bench.unwrap());
        let mut patience = Patience::new(Duration::from_secs(30));
        // The null stack's row comes first, and has no connections.
        loop {
            let output = perimeter(&["ss", "--control", at, "--json"]);
            let stdout = text(&output.stdout);
            if stdout.matches("\"ESTABLISHED\"").count() == 12 {
                assert!(
                    stdout.contains("172.") || stdout.contains("10."),
                    "{stdout}"
                );
                break;
            }
            assert!(patience.lasts(), "{org}: {} {stdout}", text(&output.stderr));
            thread::sleep(Duration::from_millis(50));
        }
        assert!(bench.0.wait().unwrap().success(), "{org}");
        assert!(!path.exists(), "{org}");
    }
}

/// Counters, the busiest connections, and frames as lines and as a file, of a stack of each kind.
#[test]
fn a_stack_is_looked_at() {
    for org in ["up", "connp-l:8", "squeue:2"] {
        let (dir, path) = socket();
        let file = dir.path().join("out.pcapng");
        with_stack(org, &path, |mut conn| {
            let at = path.to_str().unwrap();
            let ok = |arguments: &[&str]| {
                let output = perimeter(&[arguments, &["--control", at]].concat());
                assert!(output.status.success(), "{org}: {}", text(&output.stderr));
                text(&output.stdout)
            };
            let mut talk = || {
                conn.write_all(b"twelve bytes").unwrap();
                conn.read_exact(&mut [0; 12]).unwrap();
            };
            talk();
            let table = ok(&["stat"]);
            for want in ["rx_segments", "tx_bytes", "1 connections", org] {
                assert!(table.contains(want), "{org}: {want}: {table}");
            }
            assert!(!table.contains("drop_not_ours"), "{table}");
            assert!(ok(&["stat", "--all", "drop_not"]).contains("drop_not_ours"));
            let json: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json"])).unwrap();
            let counters = json["counters"].as_array().unwrap();
            let bytes = counters.iter().find(|c| c[0] == "tx_bytes").unwrap();
            assert_eq!(bytes[1], 12, "{org}");
            let (line, code) = refusal(&["stat", "--control", at, "drop_nothing"]);
            assert!(line.contains("`drop_nothing`"), "{line}");
            assert_eq!(code, 2);
            // While something passes.
            let watched = |arguments: &[&str], talk: &mut dyn FnMut()| {
                let watch = command(&[arguments, &["--control", at]].concat())
                    .stdout(std::process::Stdio::piped())
                    .stderr(std::process::Stdio::piped())
                    .spawn();
                let mut watch = Running(watch.unwrap());
                let mut patience = Patience::new(Duration::from_secs(30));
                while watch.0.try_wait().unwrap().is_none() {
                    talk();
                    thread::sleep(Duration::from_millis(1));
                    assert!(patience.lasts(), "{org}: {arguments:?}");
                }
                let (mut out, mut err) = (String::new(), String::new());
                let pipes = (watch.0.stdout.take(), watch.0.stderr.take());
                pipes.0.unwrap().read_to_string(&mut out).unwrap();
                pipes.1.unwrap().read_to_string(&mut err).unwrap();
                assert!(watch.0.wait().unwrap().success(), "{org}: {err}");
                (out, err)
            };
            let top = ["top", "--batch", "--count", "2", "--interval", "0.3"];
            let (out, _) = watched(&top, &mut talk);
            assert_eq!(out.matches("10.0.0.1:80 > 10.0.0.2:").count(), 2, "{out}");
            assert!(out.contains("1 listeners"), "{out}");
            let rates = ["stat", "--interval", "0.3", "--count", "1", "rx_segments"];
            let (out, _) = watched(&rates, &mut talk);
            assert!(out.contains("a second"), "{out}");
            let lines = ["pcap", "-c", "6", "tcp port 80 and inbound"];
            let (out, err) = watched(&lines, &mut talk);
            assert_eq!(out.lines().count(), 6, "{out}");
            assert!(
                out.lines()
                    .all(|l| l.contains(" < 10.0.0.2:") && l.contains(" TCP ")),
                "{out}"
            );
            assert!(err.contains("6 frames"), "{err}");
            let none = ["pcap", "--seconds", "0.2", "udp"];
            let (out, err) = watched(&none, &mut talk);
            assert!(out.is_empty() && err.contains("0 frames"), "{out} {err}");
            let name = file.to_str().unwrap();
            watched(&["pcap", "-c", "9", "-s", "60", "-w", name], &mut talk);
            assert_eq!(frames(&std::fs::read(&file).unwrap()), 9, "{org}");
            let (line, code) = refusal(&["pcap", "--control", at, "-w", "/no/such/file"]);
            assert!(line.contains("/no/such/file"), "{line}");
            assert_eq!(code, 2);
        });
    }
}

/// Enhanced packet blocks in a pcapng file of whole blocks.
fn frames(mut file: &[u8]) -> usize {
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    assert_eq!((word(file, 0), word(file, 8)), (0x0a0d_0d0a, 0x1a2b_3c4d));
    let mut n = 0;
    while !file.is_empty() {
        let len = word(file, 4) as usize;
        assert_eq!(word(file, len - 4) as usize, len, "a part of a block");
        if word(file, 0) == 6 {
            n += 1;
            assert!(word(file, 20) <= 60 && word(file, 20) <= word(file, 24));
        }
        file = &file[len..];
    }
    n
}

/// The segments of a live connection under PEF, and that the events are off again afterwards.
#[test]
fn a_connection_is_traced() {
    if !text(&perimeter(&["orgs"]).stdout).contains("pef:horizontal") {
        eprintln!("skipped: this build has no pef");
        return;
    }
    for org in ["pef:vertical", "pef:horizontal"] {
        let (_dir, path) = socket();
        with_stack(org, &path, |mut conn| {
            let at = path.to_str().unwrap();
            let connections = || -> serde_json::Value {
                let output = perimeter(&["ss", "--control", at, "--json"]);
                let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                all["connections"][0].clone()
            };
            // A connection that is being made has no lists yet.
            let mut patience = Patience::new(Duration::from_secs(10));
            let mut c = connections();
            while c["receive_events"].is_null() && patience.lasts() {
                thread::sleep(Duration::from_millis(10));
                c = connections();
            }
            let id = c["id"].as_str().unwrap();
            let events = |c: &serde_json::Value| {
                let list = |name: &str| c[name].as_array().unwrap().clone();
                [list("receive_events"), list("transmit_events")].concat()
            };
            let before = events(&c);
            assert!(before.len() >= 6, "{c}");
            for (limit, json) in [(["--count", "20"], true), (["--seconds", "0.5"], false)] {
                let mut arguments = vec!["trace", "--control", at, id, limit[0], limit[1]];
                if json {
                    arguments.push("--json");
                }
                let trace = command(&arguments)
                    .stdout(std::process::Stdio::piped())
                    .spawn();
                let mut trace = Running(trace.unwrap());
                // Read all along: a full pipe would hold it up.
                let mut pipe = trace.0.stdout.take().unwrap();
                let reader = std::thread::spawn(move || {
                    let mut out = String::new();
                    pipe.read_to_string(&mut out).map(|_| out)
                });
                let mut patience = Patience::new(Duration::from_secs(30));
                // Traffic for as long as it watches: eleven bytes there and back.
                while trace.0.try_wait().unwrap().is_none() {
                    conn.write_all(b"eleven byte").unwrap();
                    conn.read_exact(&mut [0; 11]).unwrap();
                    assert!(patience.lasts(), "{org}");
                }
                assert!(trace.0.wait().unwrap().success(), "{org}");
                let out = reader.join().unwrap().unwrap();
                if json {
                    assert_eq!(out.lines().count(), 20, "{org}: {out}");
                    let segments: Vec<serde_json::Value> = out
                        .lines()
                        .map(|l| serde_json::from_str(l).unwrap())
                        .collect();
                    for received in [true, false] {
                        let data = segments.iter().filter(|s| s["received"] == received);
                        let data: Vec<_> = data.filter(|s| s["len"] == 11).collect();
                        assert!(data.len() > 3, "{org}: {out}");
                        // In order: each begins where the one before ended.
                        for pair in data.windows(2) {
                            let seq = |s: &serde_json::Value| s["seq"].as_u64().unwrap() as u32;
                            assert_eq!(seq(pair[0]).wrapping_add(11), seq(pair[1]), "{org}: {out}");
                        }
                    }
                    for pair in segments.windows(2) {
                        let time = |s: &serde_json::Value| s["time"].as_f64().unwrap();
                        assert!(time(&pair[0]) <= time(&pair[1]), "{org}: {out}");
                    }
                    assert!(
                        segments.iter().all(|s| s["cwnd"].as_u64() > Some(1000)),
                        "{out}"
                    );
                } else {
                    let line = out.lines().next().unwrap();
                    assert!(line.contains(" seq ") && line.contains(" cwnd "), "{line}");
                    assert!(!out.contains('{'), "{out}");
                }
            }
            // Off again: with the next packets at the latest.
            let mut patience = Patience::new(Duration::from_secs(10));
            while events(&connections()) != before {
                conn.write_all(b"eleven byte").unwrap();
                conn.read_exact(&mut [0; 11]).unwrap();
                assert!(patience.lasts(), "{org}: {:?}", events(&connections()));
            }
            let (line, code) = refusal(&["trace", "--control", at, "0:4000.7", "--count", "1"]);
            assert!(line.contains("no connection 0:4000.7"), "{line}");
            assert_eq!(code, 1);
        });
    }
}

/// A connection at full speed brings segments faster than they are told: the trace ends when its
/// time is over, and says how many it has left out.
#[test]
fn a_trace_at_full_speed_ends_in_time() {
    if !text(&perimeter(&["orgs"]).stdout).contains("pef:horizontal") {
        eprintln!("skipped: this build has no pef");
        return;
    }
    let (_dir, path) = socket();
    with_stack("pef:vertical", &path, |mut conn| {
        let at = path.to_str().unwrap();
        let output = perimeter(&["ss", "--control", at, "--json"]);
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = all["connections"][0]["id"].as_str().unwrap().to_string();
        let arguments = ["trace", "--control", at, &id, "--seconds", "0.5", "--json"];
        let begun = Instant::now();
        let trace = command(&arguments)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        let mut trace = Running(trace.unwrap());
        let mut pipe = trace.0.stdout.take().unwrap();
        // Whoever reads does so slowly: what is told waits, and what is collected behind it.
        let reader = std::thread::spawn(move || {
            let (mut buf, mut n) = ([0; 4096], 0);
            while let Ok(got @ 1..) = pipe.read(&mut buf) {
                n += buf[..got].iter().filter(|b| **b == b'\n').count();
                thread::sleep(Duration::from_millis(1));
            }
            n
        });
        while trace.0.try_wait().unwrap().is_none() {
            conn.write_all(b"eleven byte").unwrap();
            conn.read_exact(&mut [0; 11]).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        let took = begun.elapsed();
        let mut notes = String::new();
        let mut stderr = trace.0.stderr.take().unwrap();
        stderr.read_to_string(&mut notes).unwrap();
        assert!(trace.0.wait().unwrap().success(), "{notes}");
        assert!(reader.join().unwrap() > 100);
        assert!(notes.contains("segments were left out"), "{notes:?}");
        // A loaded machine starts programs slowly.
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
}

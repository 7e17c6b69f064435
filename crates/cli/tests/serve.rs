//! `perimeter serve` with this host's kernel as the client, in network namespaces.

use perimeter::link::host;
use perimeter_interop::namespace;
use perimeter_interop::program::{self, Outcome, Program};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "perimeter0";

/// Whether namespaces and TAP can be had; else says what is skipped.
fn possible() -> bool {
    let Some(why) = namespace::obstacle() else {
        return true;
    };
    let required = std::env::var("PERIMETER_INTEROP");
    let required = required.is_ok_and(|v| v.split(',').any(|w| w == "require"));
    assert!(!required, "{why}");
    println!("skipped: {why}");
    false
}

/// The command, serving: what it has said so far, a line each.
fn serving(arguments: &[&str]) -> (Program, Vec<String>) {
    let all = ["serve"].iter().chain(arguments);
    let mut program = Program::start(env!("CARGO_BIN_EXE_perimeter"), all, LIMIT);
    let mut said = vec![program.line()];
    while !said.iter().any(|l| l.starts_with(['{', 'C'])) {
        said.push(program.line());
    }
    (program, said)
}

fn run(arguments: &[&str]) -> Outcome {
    let all = ["serve"].iter().chain(arguments);
    Program::start(env!("CARGO_BIN_EXE_perimeter"), all, LIMIT).finish()
}

fn refused(outcome: &Outcome, says: &str) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
    assert!(outcome.err.contains(says), "{says}: {outcome:?}");
    assert!(outcome.out.is_empty(), "{outcome:?}");
}

/// Ends it by Ctrl-C; its last line. Nothing is left.
fn ended(program: Program, name: &str) -> String {
    let pid = program.id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(killed.unwrap().success());
    let outcome = program.finish();
    assert_eq!(outcome.err, "", "{outcome:?}");
    let said = outcome.ok();
    assert!(host::index(name).is_err(), "the interface is left");
    said.trim_end().to_string()
}

/// What comes for a request on a connection of its own, until the server closes.
fn asked(at: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    String::from_utf8(all).unwrap()
}

/// Without IPv6 on this host there is one address.
fn addresses(said: &[String]) -> Vec<&'static str> {
    let mut all = vec!["10.99.0.2:80"];
    if said.iter().any(|l| l.contains("[fd99::2]")) {
        all.push("[fd99::2]:80");
    }
    all
}

fn http(org: &str) {
    let (program, said) = serving(&["--org", org]);
    let at = addresses(&said);
    assert_eq!(
        at.len(),
        1 + usize::from(fs::exists("/proc/sys/net/ipv6").unwrap())
    );
    for at in &at {
        let text = asked(at, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(
            text.contains(&format!("organization  {org}\n")),
            "{org}: {text}"
        );
        // Three on one connection, in two pieces, one with a body that is longer than a head may be.
        let body = "b".repeat(100_000);
        let put = format!(
            "PUT /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let text = asked(
            at,
            &format!(
                "HEAD /bytes/7 HTTP/1.1\r\n\r\n{put}GET /bytes/300000 HTTP/1.1\r\nConnection: \
                 close\r\n\r\n"
            ),
        );
        assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 3);
        assert!(text.contains("taken\n") && text.contains("Content-Length: 7\r\n"));
        assert!(text.ends_with(&"x".repeat(300_000)));
    }
    if program::installed("curl") {
        let curl = ["-s", "--noproxy", "*", "http://10.99.0.2/"];
        let text = Program::start("curl", curl, LIMIT).finish().ok();
        assert!(text.contains("you are       10.99.0.1:"), "{text}");
    }
    let said = ended(program, NAME);
    assert!(said.starts_with("accepted "), "{said}");
    assert!(!said.contains("failed"), "{said}");
}

/// At once, over both families, under one organization of each kind; Ctrl-C leaves nothing.
#[test]
fn http_works_at_once_under_every_kind_of_organization() {
    if !possible() {
        return;
    }
    for org in [
        "up",
        "up:shared",
        "connp-l:8",
        "msgp",
        "squeue:2",
        "connp-t:2",
        "pef:vertical",
    ] {
        namespace::within(|| http(org));
    }
}

/// What no client of good will sends is answered and closed, and the server goes on.
#[test]
fn bad_requests_are_answered() {
    if !possible() {
        return;
    }
    namespace::within(|| {
        let (program, _) = serving(&["--address", "10.99.0.2/24", "--json"]);
        let long = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(20_000));
        for (request, answer) in [
            ("\u{1}\u{2}\r\n\r\n", "400 Bad Request"),
            ("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400 "),
            (
                "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                "400 ",
            ),
            (
                "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "501 ",
            ),
            (&long, "431 "),
            ("GET /none HTTP/1.0\r\n\r\n", "404 "),
            ("DELETE / HTTP/1.0\r\n\r\n", "405 "),
            ("GET /bytes/x HTTP/1.0\r\n\r\n", "400 "),
        ] {
            let text = asked("10.99.0.2:80", request);
            assert!(
                text.starts_with(&format!("HTTP/1.1 {answer}")),
                "{answer}: {text}"
            );
        }
        let text = asked("10.99.0.2:80", "GET /stats HTTP/1.0\r\n\r\n");
        let json = text.split("\r\n\r\n").nth(1).unwrap();
        let stats: Value = serde_json::from_str(json).unwrap();
        assert_eq!(
            (&stats["accepted"], &stats["requests"]),
            (&9.into(), &8.into())
        );
        let last: Value = serde_json::from_str(&ended(program, NAME)).unwrap();
        assert_eq!((&last["requests"], &last["failed"]), (&9.into(), &0.into()));
    });
}

#[test]
fn echo_over_tun_and_json() {
    if !possible() {
        return;
    }
    namespace::within(|| {
        let (program, said) =
            serving(&["--echo", "--json", "--device", "tun:e-7", "--port", "7007"]);
        let said: Value = serde_json::from_str(&said[0]).unwrap();
        assert_eq!(said["serving"][0], "10.99.0.2:7007");
        assert_eq!(
            (&said["interface"], &said["host"][0]),
            (&"e-7".into(), &"10.99.0.1".into())
        );
        let mut stream = TcpStream::connect("10.99.0.2:7007").unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut back = Vec::new();
        std::thread::scope(|s| {
            let mut writer = stream.try_clone().unwrap();
            let data = &data;
            s.spawn(move || {
                writer.write_all(data).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            stream.read_to_end(&mut back).unwrap();
        });
        assert!(back == data, "{} of {}", back.len(), data.len());
        let last: Value = serde_json::from_str(&ended(program, "e-7")).unwrap();
        assert_eq!(
            (&last["accepted"], &last["sent_bytes"]),
            (&1.into(), &3_000_000.into())
        );
    });
}

/// What is taken is told, with what to do, and neither the interface nor an address is left.
#[test]
fn what_is_taken_is_told() {
    if !possible() {
        return;
    }
    namespace::within(|| {
        let (program, _) = serving(&[]);
        // Its subnet, by another interface; then its interface.
        refused(
            &run(&["--device", "tap:e-8"]),
            "10.99.0.2/24 is in use: this host has 10.99.0.1",
        );
        assert!(host::index("e-8").is_err());
        refused(&run(&[]), "'perimeter0' is in use");
        let other = ["--address", "10.98.0.2/24"];
        refused(&run(&other), "exists and is left as it is");
        let lo = ["--device", "tap:lo", "--address", "10.97.0.2/24"];
        refused(&run(&lo), "`lo` exists");
        ended(program, NAME);
    });
}

#[test]
fn without_privilege_one_line_says_what_to_do() {
    if !possible() || !program::installed("setpriv") {
        println!("skipped: needs root and setpriv");
        return;
    }
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let copy = directory.path().join("perimeter");
    program::copy(env!("CARGO_BIN_EXE_perimeter"), &copy);
    namespace::within(|| {
        let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let copy = copy.to_str().unwrap();
        let all = nobody.iter().chain([&copy, &"serve"]);
        let outcome = Program::start("setpriv", all, LIMIT).finish();
        refused(&outcome, "no permission for ");
        assert!(outcome.err.contains("unshare -Urn"), "{outcome:?}");
        assert!(host::index(NAME).is_err());
    });
}

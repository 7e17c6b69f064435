//! Metrics of a running stack over HTTP.

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

fn build(org: &str, at: SocketAddr) -> Result<(Stack, Stack), perimeter::BuildError> {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let near = Stack::builder().on_native(native).organization(org)?;
    let near = near.metrics(at).interface(a, &["10.0.0.1/24"])?.build()?;
    let far = Stack::builder().on_native(native).org(OrgSpec::default());
    Ok((near, far.interface(b, &["10.0.0.2/24"])?.build()?))
}

fn ask(at: SocketAddr, request: &str) -> String {
    let mut s = TcpStream::connect(at).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    s.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    s.read_to_string(&mut answer).unwrap();
    answer
}

fn value(answer: &str, series: &str) -> f64 {
    let line = answer
        .lines()
        .find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series}: {answer}"))
        .parse()
        .unwrap()
}

#[test]
fn what_is_counted_can_be_scraped() {
    for org in ["up", "up:shared", "connp-l:8", "squeue:2", "msgp"] {
        let any = "127.0.0.1:0".parse().unwrap();
        let (stack, far) = build(org, any).unwrap();
        let at = stack.metrics().unwrap();
        assert_ne!(at.port(), 0);
        // Another one can't have the same.
        let taken = build(org, at).expect_err("taken").to_string();
        assert!(taken.contains(&at.to_string()), "{taken}");
        let listener = stack.listen("10.0.0.1:80").unwrap();
        thread::scope(|s| {
            let t = s.spawn(|| {
                let mut conn = far.connect("10.0.0.1:80").unwrap();
                conn.write_all(b"hello").unwrap();
                // Of a stack of one thread the first answer may be a part.
                let end = Instant::now() + Duration::from_secs(30);
                let answer = loop {
                    let answer = ask(at, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
                    let whole = answer.contains("perimeter_connections 1");
                    if whole || Instant::now() > end {
                        break answer;
                    }
                };
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                assert!(value(&answer, "perimeter_rx_frames_total") >= 2.0);
                assert!(value(&answer, "perimeter_memory_bytes") >= 0.0);
                assert_eq!(value(&answer, "perimeter_connections"), 1.0, "{org}");
                assert!(
                    answer.contains(&format!("organization=\"{org}\"")),
                    "{answer}"
                );
                for (request, status) in [
                    ("GET / HTTP/1.0\r\n\r\n", "200"),
                    ("HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
                    ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", "200"),
                    ("GET /other HTTP/1.1\r\n\r\n", "404"),
                    ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
                ] {
                    let answer = ask(at, request);
                    assert!(
                        answer.starts_with(&format!("HTTP/1.1 {status} ")),
                        "{answer}"
                    );
                }
            });
            let (conn, _) = listener.accept().unwrap();
            while !t.is_finished() {
                if stack.drive().unwrap() == 0 {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            drop(conn);
        });
    }
}

/// Who says nothing, too much, or nonsense gets no answer, keeps nobody else out for longer than
/// the patience, and does not hold the stack's end up.
#[test]
fn a_bad_client_is_bounded() {
    let (stack, _far) = build("up:shared", "127.0.0.1:0".parse().unwrap()).unwrap();
    let at = stack.metrics().unwrap();
    let long = "x".repeat(1 << 20);
    let mut s = TcpStream::connect(at).unwrap();
    // It is sent away in the middle.
    let _ = s.write_all(long.as_bytes());
    let _ = s.read_to_end(&mut Vec::new());
    let silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
    let answer = ask(at, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let again: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
    let begun = Instant::now();
    drop(stack);
    // Three patiences would be six seconds.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    drop((silent, again));
    assert!(TcpStream::connect(at).is_err());
}

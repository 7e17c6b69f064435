//! What a stack has counted, for Prometheus: an HTTP server of the host's that answers one question.
//!
//! Opt-in ([`Builder::metrics`](crate::Builder::metrics)). One client at a time, a request of at most
//! [`LONGEST`] bytes, within [`PATIENCE`]; nothing on the data path waits for it.

use crate::error::BuildError;
use perimeter_org::Stats;
use perimeter_org::engine::Engine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest request, bytes.
const LONGEST: usize = 8192;
/// How long a client may take for its request, and again for taking the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server with its thread.
pub(crate) struct Server {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// The process that it was started in.
    process: u64,
}

impl Server {
    /// Starts to answer for `engine` at `addr`.
    ///
    /// # Errors
    /// [`BuildError::Metrics`].
    pub fn start(addr: SocketAddr, engine: &Arc<dyn Engine>) -> Result<Server, BuildError> {
        let start = || -> io::Result<Server> {
            let listener = TcpListener::bind(addr)?;
            listener.set_nonblocking(true)?;
            let addr = listener.local_addr()?;
            let (wake, woken) = UnixStream::pair()?;
            let stop = Arc::new(AtomicBool::new(false));
            let (engine, theirs) = (Arc::downgrade(engine), stop.clone());
            let thread = thread::Builder::new()
                .name("metrics".into())
                .spawn(move || serve(&listener, &woken, &theirs, &engine))?;
            Ok(Server {
                addr,
                stop,
                wake,
                thread: Some(thread),
                process: perimeter_sync::process::register(),
            })
        };
        start().map_err(|e| BuildError::Metrics(format!("{addr}: {e}")))
    }

    /// Where it is.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if perimeter_sync::process::current() != self.process {
            // A fork: the thread is the parent's.
            core::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.write_all(&[0]);
        // A thread that panicked has said so already.
        let _ = thread.join();
    }
}

fn serve(listener: &TcpListener, woken: &UnixStream, stop: &AtomicBool, engine: &Weak<dyn Engine>) {
    while !stop.load(Ordering::Acquire) {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
        match listener.accept() {
            // Who goes away or breaks the rules is not told.
            Ok((stream, _)) => drop(answer(stream, woken, engine)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, perhaps: not in a circle.
            Err(_) => {
                let pause = Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                };
                let _ = poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&pause));
            }
        }
    }
}

/// One request.
fn answer(mut stream: TcpStream, woken: &UnixStream, engine: &Weak<dyn Engine>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let line = match request(&mut stream, woken)? {
        Some(line) => line,
        None => return Ok(()),
    };
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics" | "/") => match engine.upgrade() {
            Some(e) => ("200 OK", render(&e.spec().to_string(), &e.stats())),
            None => (
                "503 Service Unavailable",
                "the stack is going away\n".into(),
            ),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "there is /metrics\n".into()),
        _ => ("405 Method Not Allowed", "GET only\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    // What the client still sends would reset the connection before it has read the answer.
    stream.shutdown(std::net::Shutdown::Write)
}

/// The first line of a request whose head has come; `None` if it does not come, or the server is to
/// end.
fn request(stream: &mut TcpStream, woken: &UnixStream) -> io::Result<Option<String>> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    loop {
        let mut part = [0; 1024];
        match stream.read(&mut part) {
            Ok(0) => return Ok(None),
            Ok(n) => head.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                let left = Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: i64::from(left.subsec_nanos()),
                };
                let mut fds = [
                    PollFd::new(stream, PollFlags::IN),
                    PollFd::new(woken, PollFlags::IN),
                ];
                poll(&mut fds, Some(&left))?;
                if !fds[1].revents().is_empty() {
                    return Ok(None);
                }
            }
            Err(e) => return Err(e),
        }
        if head.windows(4).any(|w| w == b"\r\n\r\n") {
            let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
            return Ok(String::from_utf8(line.to_vec()).ok());
        }
        if head.len() > LONGEST || Instant::now() >= end {
            return Ok(None);
        }
    }
}

/// Prometheus' text format, version 0.0.4.
fn render(organization: &str, stats: &Stats) -> String {
    let mut out = String::new();
    let kind = |out: &mut String, name: &str, kind: &str| {
        let _ = writeln!(out, "# TYPE perimeter_{name} {kind}");
    };
    kind(&mut out, "info", "gauge");
    let _ = writeln!(
        out,
        "perimeter_info{{organization=\"{}\",version=\"{}\"}} 1",
        escaped(organization),
        env!("CARGO_PKG_VERSION")
    );
    for (name, n) in &stats.counts {
        let name = format!("{name}_total");
        kind(&mut out, &name, "counter");
        let _ = writeln!(out, "perimeter_{name} {n}");
    }
    kind(&mut out, "memory_bytes", "gauge");
    let _ = writeln!(out, "perimeter_memory_bytes {}", stats.memory);
    if stats.partial {
        return out;
    }
    kind(&mut out, "connections", "gauge");
    let _ = writeln!(out, "perimeter_connections {}", stats.connections);
    type Value = fn(&perimeter_sync::LockStats) -> String;
    let locks: [(&str, Value); 3] = [
        ("lock_acquisitions_total", |l| l.acquisitions.to_string()),
        ("lock_contended_total", |l| l.contended.to_string()),
        ("lock_wait_seconds_total", |l| {
            format!("{:.9}", l.wait_ns as f64 / 1e9)
        }),
    ];
    for (name, value) in locks {
        if !stats.locks.is_empty() {
            kind(&mut out, name, "counter");
        }
        for (class, l) in &stats.locks {
            let _ = writeln!(
                out,
                "perimeter_{name}{{class=\"{}\"}} {}",
                escaped(class),
                value(l)
            );
        }
    }
    out
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn every_series_has_a_type_and_a_value() {
        let mut stats = Stats::default();
        stats.counts = vec![("rx_frames".into(), 7), ("drop_not_ours".into(), 0)];
        stats.connections = 3;
        let mut lock = perimeter_sync::LockStats::default();
        lock.acquisitions = 10;
        lock.contended = 1;
        lock.wait_ns = 1500;
        stats.locks.insert("group", lock);
        let text = render("connp-l:8", &stats);
        for want in [
            "perimeter_info{organization=\"connp-l:8\",version=",
            "# TYPE perimeter_rx_frames_total counter\nperimeter_rx_frames_total 7\n",
            "perimeter_drop_not_ours_total 0\n",
            "# TYPE perimeter_connections gauge\nperimeter_connections 3\n",
            "perimeter_lock_contended_total{class=\"group\"} 1\n",
            "perimeter_lock_wait_seconds_total{class=\"group\"} 0.000001500\n",
        ] {
            assert!(text.contains(want), "{want}: {text}");
        }
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split([' ', '{']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
        }
        stats.partial = true;
        assert!(!render("up", &stats).contains("perimeter_connections"));
    }
}

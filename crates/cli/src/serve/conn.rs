//! One connection of the server: what has come, what is to be sent, and what becomes of either.

use super::Service;
use perimeter::{Interest, TcpStream};
use perimeter_command::VERSION;
use std::{
    fmt::Write as _,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The longest request head that is read, bytes.
const HEAD: usize = 16 * 1024;
/// Header fields that a request may have.
const FIELDS: usize = 64;
/// What is made of a body at a time, bytes.
const PIECE: usize = 64 * 1024;
/// Turns of one connection before others have theirs.
const TURNS: usize = 16;
/// How long a client may be silent in HTTP.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a client that has its last answer may take to close.
const PARTING: Duration = Duration::from_secs(5);

/// What the server counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections.
    pub accepted: AtomicU64,
    /// Those that ended by an error, or because their client was silent.
    pub failed: AtomicU64,
    /// Those that were closed at once, as there were too many.
    pub refused: AtomicU64,
    /// Answers.
    pub requests: AtomicU64,
    /// Bytes.
    pub received: AtomicU64,
    /// Bytes.
    pub sent: AtomicU64,
}

impl Counts {
    /// All by name.
    pub fn all(&self) -> [(&'static str, u64); 6] {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        [
            ("accepted", of(&self.accepted)),
            ("failed", of(&self.failed)),
            ("refused", of(&self.refused)),
            ("requests", of(&self.requests)),
            ("received_bytes", of(&self.received)),
            ("sent_bytes", of(&self.sent)),
        ]
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let map = self.all().map(|(name, n)| (name.to_string(), n.into()));
        serde_json::Value::Object(map.into_iter().collect())
    }
}

/// What a connection is to wait for.
pub enum Turn {
    /// This.
    Wait(Interest),
    /// Nothing: it is over.
    Done,
}

/// A connection.
pub struct Conn {
    /// Its socket.
    pub stream: TcpStream,
    peer: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of `output` has gone.
    at: usize,
    /// What of a request's body is still to come, and thrown away.
    body: u64,
    /// What of an answer's body is still to be made.
    fill: u64,
    /// This answer is the last.
    last: bool,
    /// Our side is shut down.
    parted: bool,
    /// When something passed last.
    active: Instant,
}

impl Conn {
    /// One that has just been accepted.
    pub fn new(stream: TcpStream, peer: SocketAddr) -> Conn {
        Conn {
            stream,
            peer,
            input: Vec::new(),
            output: Vec::new(),
            at: 0,
            body: 0,
            fill: 0,
            last: false,
            parted: false,
            active: Instant::now(),
        }
    }

    /// Whether its client has been silent for too long. Echo waits as long as the client likes.
    pub fn is_silent(&self, service: &Service) -> bool {
        let most = match (self.parted, service.echo) {
            (true, _) => PARTING,
            (false, true) => return false,
            (false, false) => SILENCE,
        };
        self.active.elapsed() > most
    }

    /// Reads, answers and writes until none of it goes on.
    pub fn turn(&mut self, service: &Service, buf: &mut [u8]) -> io::Result<Turn> {
        for _ in 0..TURNS {
            if !self.flush(service)? {
                return Ok(Turn::Wait(Interest::WRITABLE));
            }
            if self.last && !self.parted {
                self.stream.shutdown(Shutdown::Write)?;
                self.parted = true;
            }
            if !service.echo && !self.last && self.answer(service) {
                continue;
            }
            let n = match self.stream.read(buf) {
                Ok(0) if self.parted => return Ok(Turn::Done),
                Ok(0) => {
                    self.last = true;
                    continue;
                }
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Ok(Turn::Wait(Interest::READABLE));
                }
                Err(e) => return Err(e),
            };
            service
                .counts
                .received
                .fetch_add(n as u64, Ordering::Relaxed);
            // What comes after the last answer is thrown away: closing with it unread would reset
            // the connection, and the client might lose that answer.
            if self.parted {
                continue;
            }
            self.active = Instant::now();
            match service.echo {
                true => self.output.extend_from_slice(&buf[..n]),
                false => self.take(&buf[..n]),
            }
        }
        // The others first; it is told again at once, as readiness is a level.
        Ok(Turn::Wait(match self.output.is_empty() && self.fill == 0 {
            true => Interest::READABLE,
            false => Interest::WRITABLE,
        }))
    }

    /// Takes what has come: what belongs to a request's body is thrown away.
    fn take(&mut self, data: &[u8]) {
        let skipped = self.body.min(data.len() as u64);
        self.body -= skipped;
        self.input.extend_from_slice(&data[skipped as usize..]);
    }

    /// Sends what there is; whether all of it has gone.
    fn flush(&mut self, service: &Service) -> io::Result<bool> {
        loop {
            while self.at < self.output.len() {
                match self.stream.write(&self.output[self.at..]) {
                    Ok(n) => {
                        self.at += n;
                        self.active = Instant::now();
                        service.counts.sent.fetch_add(n as u64, Ordering::Relaxed);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(e) => return Err(e),
                }
            }
            self.output.clear();
            self.at = 0;
            if self.fill == 0 {
                return Ok(true);
            }
            let n = self.fill.min(PIECE as u64);
            self.fill -= n;
            self.output.resize(n as usize, b'x');
        }
    }

    /// Answers one request, if it is there whole.
    fn answer(&mut self, service: &Service) -> bool {
        if self.body > 0 {
            return false;
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        let length = match request.parse(&self.input) {
            Ok(httparse::Status::Complete(n)) => n,
            Ok(httparse::Status::Partial) if self.input.len() < HEAD => return false,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return self.refuse(service, "431 Request Header Fields Too Large");
            }
            Err(_) => return self.refuse(service, "400 Bad Request"),
        };
        let asked = Asked::of(&request);
        let Some(body) = asked.body else {
            return self.refuse(service, asked.refusal);
        };
        let method = request.method.unwrap_or_default().to_string();
        let path = request.path.unwrap_or_default().to_string();
        self.input.drain(..length);
        if asked.expects && body > 0 {
            self.output
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.body = body;
        let had = std::mem::take(&mut self.input);
        self.take(&had);
        let answer = Answer::to(&method, &path, self.peer, service);
        self.say(service, &answer, asked.close, method == "HEAD");
        true
    }

    /// The last answer: what comes behind can't be told from a request.
    fn refuse(&mut self, service: &Service, status: &'static str) -> bool {
        self.input.clear();
        let answer = Answer::text(status, format!("{status}\n"));
        self.say(service, &answer, true, false);
        true
    }

    fn say(&mut self, service: &Service, answer: &Answer, close: bool, head: bool) {
        let length = answer.text.len() as u64 + answer.fill;
        let mut out = format!(
            "HTTP/1.1 {}\r\nServer: perimeter/{VERSION}\r\nContent-Type: {}\r\nContent-Length: \
             {length}\r\n",
            answer.status, answer.kind
        );
        if answer.status.starts_with("405") {
            out.push_str("Allow: GET, HEAD, POST, PUT\r\n");
        }
        if close {
            out.push_str("Connection: close\r\n");
        }
        out.push_str("\r\n");
        if !head {
            out.push_str(&answer.text);
            self.fill = answer.fill;
        }
        self.output.extend_from_slice(out.as_bytes());
        self.last |= close;
        service.counts.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a request's head says, beside method and path.
struct Asked {
    /// Bytes of its body; `None` where that can't be told.
    body: Option<u64>,
    /// What is answered then.
    refusal: &'static str,
    /// It waits to be asked for its body.
    expects: bool,
    /// The connection is to be closed afterwards.
    close: bool,
}

impl Asked {
    fn of(request: &httparse::Request<'_, '_>) -> Asked {
        let values = |name: &str| {
            let named = request.headers.iter();
            let named = named.filter(move |h| h.name.eq_ignore_ascii_case(name));
            let text = named.map(|h| String::from_utf8_lossy(h.value).trim().to_ascii_lowercase());
            text.collect::<Vec<_>>()
        };
        let lengths = values("content-length");
        let body = match &lengths[..] {
            [] => Some(0),
            // Digits alone: `+1` is no length (RFC 9110, section 8.6).
            [one, more @ ..] if more.iter().all(|m| m == one) => one
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| one.parse().ok())
                .flatten(),
            _ => None,
        };
        let chunked = !values("transfer-encoding").is_empty();
        let is = |name: &str, word: &str| {
            let all = values(name);
            all.iter()
                .any(|v| v.split(',').any(|part| part.trim() == word))
        };
        let new = request.version == Some(1);
        Asked {
            body: body.filter(|_| !chunked),
            refusal: match chunked {
                true => "501 Not Implemented",
                false => "400 Bad Request",
            },
            expects: new && is("expect", "100-continue"),
            close: match new {
                true => is("connection", "close"),
                false => true,
            },
        }
    }
}

/// An answer.
struct Answer {
    status: &'static str,
    kind: &'static str,
    text: String,
    /// Bytes that follow the text.
    fill: u64,
}

impl Answer {
    fn text(status: &'static str, text: String) -> Answer {
        Answer {
            status,
            kind: "text/plain; charset=utf-8",
            text,
            fill: 0,
        }
    }

    fn to(method: &str, path: &str, peer: SocketAddr, service: &Service) -> Answer {
        match method {
            "GET" | "HEAD" => {}
            // The body has been, or will be, thrown away.
            "POST" | "PUT" => return Answer::text("200 OK", "taken\n".into()),
            _ => return Answer::text("405 Method Not Allowed", "GET, HEAD, POST, PUT\n".into()),
        }
        let path = path.split('?').next().unwrap_or_default();
        if let Some(n) = path.strip_prefix("/bytes/") {
            return match n.parse() {
                Ok(fill) => Answer {
                    status: "200 OK",
                    kind: "application/octet-stream",
                    text: String::new(),
                    fill,
                },
                Err(_) => Answer::text("400 Bad Request", "/bytes/N: N is a number\n".into()),
            };
        }
        match path {
            "/" => Answer::text("200 OK", welcome(peer, service)),
            "/stats" => Answer {
                kind: "application/json",
                ..Answer::text("200 OK", format!("{}\n", service.counts.json()))
            },
            _ => Answer::text("404 Not Found", "there are /, /bytes/N and /stats\n".into()),
        }
    }
}

fn welcome(peer: SocketAddr, service: &Service) -> String {
    let mut text = format!("Hello from a TCP/IP stack in user space, perimeter {VERSION}.\n\n");
    let _ = write!(
        text,
        "organization  {}\nyou are       {peer}\n\n/bytes/N      N bytes\n/stats        counters\n",
        service.org
    );
    text
}

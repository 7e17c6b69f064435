//! An HTTP server: GET serves one file zero-copy, PUT takes an upload and answers with its
//! SHA-256. A thread per connection. Under `up`, which has one thread, requests are collected from
//! all clients as they come and answered one after another, so that one who says nothing keeps
//! nobody waiting. (A slow reader does, for as long as it goes on reading: a server of one thread
//! that must not wait for that either writes as example `poll` does.)
//!
//! Over memory a client in the same process fetches the file and uploads it again:
//! `cargo run --release --example http_server -- Cargo.lock`
//!
//! Over TAP, as root, the host's own programs are the clients:
//! `http_server --device tap --org connp-l:8 FILE`, then `curl http://10.99.0.2/ | sha256sum`
//! and `curl -T FILE http://10.99.0.2/upload`.

mod common;

use clap::Parser;
use common::{Ends, Result, hex, receive, send_file};
use perimeter::{Events, Interest, Poll, SharedFile, Stack, TcpListener, TcpStream, Token};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest request head that is read, bytes.
const HEAD: u64 = 16 * 1024;

/// A client that stays silent for this long, or does not read, is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Clients whose requests are awaited at a time under `up`; the oldest makes room.
const CALLERS: usize = 256;

/// The listener's token.
const LISTENER: Token = Token(usize::MAX);

#[derive(Parser)]
#[command(about = "Serves FILE over HTTP; PUT answers with the upload's SHA-256")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port to listen on
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// End after this many connections
    #[arg(long)]
    connections: Option<usize>,
    /// The file to serve
    file: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let setup = SharedFile::open(&args.file)
        .map_err(|e| format!("{}: {e}", args.file.display()).into())
        .and_then(|f| Ok((args.net.open()?, Arc::new(f))));
    let (ends, file) = match setup {
        Ok((e, f)) => (Ok(e), Some(f)),
        Err(e) => (Err(e), None),
    };
    common::main(ends, |ends| {
        run(&args, &ends, &file.expect("opened together"))
    })
}

fn run(args: &Args, ends: &Ends, file: &Arc<SharedFile>) -> Result<()> {
    let listener = ends.stack.listen(ends.at(args.port))?;
    println!(
        "listening on {} ({})",
        listener.local_addr()?,
        ends.stack.organization()
    );
    let client = ends.peer.clone().map(|peer| {
        let (at, file) = (ends.at(args.port), file.clone());
        std::thread::spawn(move || visit(&peer, at, &file))
    });
    let connections = if client.is_some() {
        Some(2)
    } else {
        args.connections
    };
    let connections = connections.unwrap_or(usize::MAX);
    if ends.stack.organization().single_threaded() {
        Alone::new(&ends.stack, listener)?.serve(file, connections)?;
    } else {
        serve(&listener, file, connections)?;
    }
    common::end(&ends.stack, client)
}

/// A thread per connection.
fn serve(listener: &TcpListener, file: &Arc<SharedFile>, connections: usize) -> Result<()> {
    let mut threads = Vec::new();
    for s in listener.incoming().take(connections) {
        let (s, file) = (s?, file.clone());
        threads.push(std::thread::spawn(move || {
            told(answer(&s, &[], &file).and_then(|()| part(&s)));
        }));
        threads.retain(|t| !t.is_finished());
    }
    for t in threads {
        t.join().map_err(|_| "a connection's thread panicked")?;
    }
    Ok(())
}

fn told(outcome: io::Result<()>) {
    if let Err(e) = outcome {
        eprintln!("connection failed: {e}");
    }
}

/// A client whose request is not there yet, or who has its answer and is to close.
struct Caller {
    stream: TcpStream,
    head: Vec<u8>,
    answered: bool,
    until: Instant,
}

impl Caller {
    /// Answers; others wait meanwhile.
    fn serve(&mut self, file: &SharedFile) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        answer(&self.stream, &self.head, file)?;
        self.stream.set_nonblocking(true)?;
        self.answered = true;
        self.until = Instant::now() + PATIENCE;
        Ok(())
    }

    /// Takes what has come; whether the request head is whole or the client has closed.
    fn is_ready(&mut self) -> io::Result<bool> {
        let mut buf = [0; 2048];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => return Ok(true),
                Ok(_) if self.answered => continue,
                Ok(n) => self.head.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
            // Longer than it may be: that is found out by whoever reads it.
            let long = self.head.len() as u64 >= HEAD;
            if long || self.head.windows(4).any(|w| w == b"\r\n\r\n") {
                return Ok(true);
            }
        }
    }
}

/// The server of one thread.
struct Alone {
    poll: Poll,
    listener: TcpListener,
    /// By arrival, the oldest first.
    callers: BTreeMap<usize, Caller>,
    accepted: usize,
    done: usize,
}

impl Alone {
    fn new(stack: &Stack, listener: TcpListener) -> io::Result<Alone> {
        let poll = stack.poll()?;
        listener.set_nonblocking(true)?;
        let registry = poll.registry();
        registry.register(&listener, LISTENER, Interest::READABLE)?;
        Ok(Alone {
            poll,
            listener,
            callers: BTreeMap::new(),
            accepted: 0,
            done: 0,
        })
    }

    fn serve(&mut self, file: &SharedFile, connections: usize) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        while self.done < connections {
            let oldest = self.callers.first_key_value();
            let wait = oldest.map(|(_, c)| c.until.saturating_duration_since(Instant::now()));
            self.poll.poll(&mut events, wait)?;
            for e in events.iter() {
                match e.token() {
                    LISTENER => self.accept(connections)?,
                    Token(n) => self.turn(n, file),
                }
            }
            let now = Instant::now();
            while let Some(first) = self.callers.first_entry()
                && first.get().until <= now
            {
                first.remove();
                self.done += 1;
            }
        }
        Ok(())
    }

    fn accept(&mut self, connections: usize) -> io::Result<()> {
        while self.accepted < connections {
            let stream = match self.listener.accept() {
                Ok((s, _)) => s,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            stream.set_nonblocking(true)?;
            let token = Token(self.accepted);
            let registry = self.poll.registry();
            registry.register(&stream, token, Interest::READABLE)?;
            if self.callers.len() >= CALLERS {
                self.callers.pop_first();
                self.done += 1;
            }
            let caller = Caller {
                stream,
                head: Vec::new(),
                answered: false,
                until: Instant::now() + PATIENCE,
            };
            self.callers.insert(self.accepted, caller);
            self.accepted += 1;
        }
        Ok(())
    }

    /// A caller's request may be there.
    fn turn(&mut self, n: usize, file: &SharedFile) {
        let Some(caller) = self.callers.get_mut(&n) else {
            return;
        };
        let outcome = loop {
            match caller.is_ready() {
                Ok(false) => return,
                Ok(true) if caller.answered => break Ok(()),
                Ok(true) => {
                    if let Err(e) = caller.serve(file) {
                        break Err(e);
                    }
                }
                Err(e) => break Err(e),
            }
        };
        told(outcome);
        self.callers.remove(&n);
        self.done += 1;
    }
}

/// What a request head says.
struct Request {
    method: String,
    path: String,
    length: u64,
    expect: bool,
}

fn read_head(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_string());
    let mut head = from.take(HEAD);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(bad("no request line"));
    };
    let mut r = Request {
        method,
        path,
        length: 0,
        expect: false,
    };
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(bad("the request head ends early or is too long"));
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(Some(r));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            r.length = value
                .parse()
                .map_err(|_| bad("Content-Length is no number"))?;
        } else if name.eq_ignore_ascii_case("expect") {
            r.expect = value.eq_ignore_ascii_case("100-continue");
        }
    }
}

/// Answers the request that begins with `read` and goes on in `s`.
fn answer(s: &TcpStream, read: &[u8], file: &SharedFile) -> io::Result<()> {
    s.set_read_timeout(Some(PATIENCE))?;
    s.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::with_capacity(64 * 1024, read.chain(s));
    let Some(r) = read_head(&mut reader)? else {
        return Ok(());
    };
    let head = |status: &str, length: u64| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let mut w = s;
    match r.method.as_str() {
        "GET" if r.path == "/" => {
            s.send_more(head("200 OK", file.len()).as_bytes())?;
            let digest = send_file(s, file)?;
            println!("GET {} {} {digest}", r.path, file.len());
        }
        "HEAD" if r.path == "/" => w.write_all(head("200 OK", file.len()).as_bytes())?,
        "GET" | "HEAD" => w.write_all(head("404 Not Found", 0).as_bytes())?,
        "PUT" => {
            if r.expect {
                w.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let (digest, n) = receive(&mut reader, &mut io::sink(), r.length)?;
            if n < r.length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            println!("PUT {} {n} {digest}", r.path);
            let body = format!("{digest}\n");
            w.write_all((head("201 Created", body.len() as u64) + &body).as_bytes())?;
        }
        _ => w.write_all(head("405 Method Not Allowed", 0).as_bytes())?,
    }
    s.shutdown(Shutdown::Write)
}

/// Takes what a client goes on sending after its answer, until it closes: unread input would turn
/// the close into a reset, which may overtake the answer. A client that stays is not waited for.
fn part(mut s: &TcpStream) -> io::Result<()> {
    match io::copy(&mut s, &mut io::sink()) {
        Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
        _ => Ok(()),
    }
}

/// The client over memory: fetches the file, uploads it, compares.
fn visit(stack: &Stack, at: SocketAddr, file: &SharedFile) -> io::Result<()> {
    let body = |s: &TcpStream| -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        (&*s).read_to_end(&mut all)?;
        let end = all
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(all.split_off(end + 4))
    };
    let mut s = stack.connect(at)?;
    s.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
    let mut digest = Sha256::new();
    digest.update(body(&s)?);
    let got = hex(digest);
    drop(s);
    let mut s = stack.connect(at)?;
    write!(
        s,
        "PUT /copy HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n",
        file.len()
    )?;
    let sent = send_file(&s, file)?;
    let back = String::from_utf8_lossy(&body(&s)?).trim().to_string();
    println!("fetched {got}\nsent    {sent}\nanswer  {back}");
    if got != sent || back != sent {
        return Err(io::Error::other("the digests differ"));
    }
    Ok(())
}

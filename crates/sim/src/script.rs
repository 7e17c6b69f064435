//! What one end of a connection does, step by step, checking every byte. The same machine runs
//! on a blocking socket and, call by call, in an event loop.

use crate::content::{self, Histogram};
use crate::scenario::{Capacity, Drive, Scenario, Workload};
use bytes::Bytes;
use perimeter::TcpStream;
use perimeter_link::rng::SplitMix64;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Octets that a client introduces its connection with: the number and its complement.
pub const HELLO: usize = 8;

/// How bytes are handed to the stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// `write`.
    Copy,
    /// `send_zero_copy`.
    ZeroCopy,
}

/// A step of one end.
#[derive(Clone, Debug)]
pub enum Step {
    /// Client: introduces the connection.
    Hello,
    /// Server: learns which connection it is, and its script.
    Greet,
    /// Sends that many octets.
    Send(u64, How),
    /// Receives exactly that many.
    Recv(u64),
    /// Both at once.
    Exchange(u64, u64),
    /// Ends its direction.
    Shut,
    /// The peer has ended its direction, and nothing is before that.
    End,
    /// Everything sent by zero-copy has been given back.
    Released,
    /// Waits until something is unread.
    Unread,
    /// Sends until the peer's reset is seen.
    UntilReset,
    /// Aborts.
    Abort,
}

/// What all ends of a run share.
pub struct Ledger {
    /// Anything that moves on moves this on.
    pub progress: AtomicU64,
    /// Bytes checked.
    pub checked: AtomicU64,
    /// Pages handed over by zero-copy that somebody still holds.
    pub pages: AtomicUsize,
    /// How often each connection was greeted.
    pub greeted: Box<[AtomicUsize]>,
    /// Ends that are done.
    pub finished: AtomicUsize,
}

impl Ledger {
    /// For `connections`.
    pub fn new(connections: usize) -> Ledger {
        Ledger {
            progress: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            pages: AtomicUsize::new(0),
            greeted: (0..connections).map(|_| AtomicUsize::new(0)).collect(),
            finished: AtomicUsize::new(0),
        }
    }

    /// Something moved on.
    pub fn step(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
}

/// A page that counts those alive.
struct Page {
    bytes: Vec<u8>,
    ledger: Arc<Ledger>,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.ledger.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream of connection `conn` that the client (or the server) sends.
pub fn stream_of(conn: usize, client: bool) -> u64 {
    conn as u64 * 2 + u64::from(client)
}

/// What the client does on connection `conn`, after its introduction.
pub fn client(sc: &Scenario, conn: usize) -> Vec<Step> {
    let n = sc.bulk();
    let mut steps = vec![Step::Hello];
    steps.extend(match sc.workload {
        Workload::Upload => vec![Step::Send(n, How::Copy), Step::Shut, Step::End],
        Workload::Download => vec![Step::Recv(n), Step::End],
        Workload::Duplex => vec![Step::Exchange(n / 2, n / 2), Step::Shut, Step::End],
        Workload::PingPong => {
            let mut v = Vec::new();
            for (a, b) in messages(sc, conn) {
                v.extend([Step::Send(a, How::Copy), Step::Recv(b)]);
            }
            v.extend([Step::Shut, Step::End]);
            v
        }
        Workload::Short => {
            vec![
                Step::Send(200, How::Copy),
                Step::Recv(300),
                Step::Shut,
                Step::End,
            ]
        }
        Workload::HalfClose => {
            vec![
                Step::Send(n / 4, How::Copy),
                Step::Shut,
                Step::Recv(n / 2),
                Step::End,
            ]
        }
        Workload::Unread => vec![Step::Recv(100), Step::Unread],
        Workload::Abort => vec![Step::Recv(n / 8), Step::Abort],
        Workload::ZeroCopy => {
            vec![
                Step::Send(n, How::ZeroCopy),
                Step::Shut,
                Step::End,
                Step::Released,
            ]
        }
        Workload::Shared
        | Workload::CloseBlocked
        | Workload::CloseTwice
        | Workload::Reopen
        | Workload::Fickle
        | Workload::Datagrams => Vec::new(),
    });
    steps
}

/// What the server does on connection `conn`, once it knows it.
pub fn server(sc: &Scenario, conn: usize) -> Vec<Step> {
    let n = sc.bulk();
    match sc.workload {
        Workload::Upload | Workload::ZeroCopy => vec![Step::Recv(n), Step::End],
        Workload::Download => vec![Step::Send(n, How::Copy), Step::Shut, Step::End],
        Workload::Duplex => vec![Step::Exchange(n / 2, n / 2), Step::Shut, Step::End],
        Workload::PingPong => {
            let mut v = Vec::new();
            for (a, b) in messages(sc, conn) {
                v.extend([Step::Recv(a), Step::Send(b, How::Copy)]);
            }
            v.push(Step::End);
            v
        }
        Workload::Short => vec![Step::Recv(200), Step::Send(300, How::Copy), Step::End],
        Workload::HalfClose => {
            vec![
                Step::Recv(n / 4),
                Step::End,
                Step::Send(n / 2, How::Copy),
                Step::Shut,
            ]
        }
        Workload::Unread | Workload::Abort => vec![Step::UntilReset],
        Workload::Shared
        | Workload::CloseBlocked
        | Workload::CloseTwice
        | Workload::Reopen
        | Workload::Fickle
        | Workload::Datagrams => Vec::new(),
    }
}

/// Sizes of the messages of a ping-pong.
fn messages(sc: &Scenario, conn: usize) -> Vec<(u64, u64)> {
    let mut rng = SplitMix64::new(sc.seed ^ ((conn as u64) << 32));
    let rounds = match sc.capacity {
        Capacity::Normal => 12,
        Capacity::Shrunken => 6,
        Capacity::Tiny => 2,
    };
    (0..rounds)
        .map(|_| (1 + rng.below(3000), 1 + rng.below(3000)))
        .collect()
}

/// What a machine waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: all steps are done.
    Nothing,
    /// Readiness in a direction, or both.
    Wait {
        /// To read.
        read: bool,
        /// To write.
        write: bool,
    },
}

/// One end of one connection on its way through its script.
pub struct Machine {
    sc: Scenario,
    ledger: Arc<Ledger>,
    client: bool,
    conn: usize,
    steps: VecDeque<Step>,
    /// Stream offsets.
    sent: u64,
    received: u64,
    /// How far the current step is, by direction.
    out: u64,
    inn: u64,
    hello: [u8; HELLO],
    rng: SplitMix64,
    chunk: u64,
}

impl Machine {
    /// The client's end of connection `conn`.
    pub fn client(sc: &Scenario, ledger: &Arc<Ledger>, conn: usize) -> Machine {
        Machine::new(sc, ledger, true, conn, client(sc, conn))
    }

    /// The server's end of a connection that it is to learn.
    pub fn server(sc: &Scenario, ledger: &Arc<Ledger>) -> Machine {
        Machine::new(sc, ledger, false, 0, vec![Step::Greet])
    }

    fn new(
        sc: &Scenario,
        ledger: &Arc<Ledger>,
        client: bool,
        conn: usize,
        steps: Vec<Step>,
    ) -> Machine {
        let mut m = Machine {
            sc: sc.clone(),
            ledger: ledger.clone(),
            client,
            conn,
            steps: steps.into(),
            sent: 0,
            received: 0,
            out: 0,
            inn: 0,
            hello: [0; HELLO],
            rng: SplitMix64::new(0),
            chunk: 1,
        };
        m.named(conn);
        m
    }

    /// Which connection it is.
    pub fn conn(&self) -> usize {
        self.conn
    }

    fn named(&mut self, conn: usize) {
        self.conn = conn;
        let id = (conn as u32).to_le_bytes();
        let not = (!(conn as u32)).to_le_bytes();
        self.hello = [id[0], id[1], id[2], id[3], not[0], not[1], not[2], not[3]];
        self.rng = SplitMix64::new(self.sc.seed ^ (stream_of(conn, self.client) << 20));
        // Sizes of calls differ by two orders between connections.
        self.chunk = [700, 3000, 20_000][self.rng.below(3) as usize];
    }

    /// A part of this machine that runs one step of an exchange by itself.
    pub fn part(&self, step: Step) -> Machine {
        let mut m = Machine::new(&self.sc, &self.ledger, self.client, self.conn, vec![step]);
        (m.sent, m.received) = (self.sent, self.received);
        m
    }

    /// The current step.
    pub fn step(&self) -> Option<&Step> {
        self.steps.front()
    }

    /// The current step is done, by other means.
    pub fn skip(&mut self, sent: u64, received: u64) {
        self.sent += sent;
        self.received += received;
        self.next();
    }

    fn next(&mut self) {
        self.steps.pop_front();
        self.out = 0;
        self.inn = 0;
        self.ledger.step();
    }

    fn wrong(&self, what: impl core::fmt::Display) -> String {
        let end = if self.client { "client" } else { "server" };
        format!(
            "{end} of connection {} at {:?} (sent {}, received {}; {} and {} of this step): {what}",
            self.conn,
            self.steps.front(),
            self.sent,
            self.received,
            self.out,
            self.inn
        )
    }

    /// Goes on until the script ends or the socket has nothing to offer.
    ///
    /// # Errors
    /// A byte, a result or an order that is not as it must be.
    pub fn advance(&mut self, s: &TcpStream) -> Result<Need, String> {
        while !self.steps.is_empty() {
            match self.advance_one(s)? {
                Need::Nothing => {}
                need => return Ok(need),
            }
        }
        Ok(Need::Nothing)
    }

    /// As [`Machine::advance`], one step; [`Need::Nothing`]: it is done.
    ///
    /// # Errors
    /// As [`Machine::advance`].
    pub fn advance_one(&mut self, s: &TcpStream) -> Result<Need, String> {
        if let Some(step) = self.steps.front().cloned() {
            let (read, write) = match step {
                Step::Hello => (false, self.say_hello(s)?),
                Step::Greet => (self.greet(s)?, false),
                Step::Send(n, how) => (false, self.send(s, n, how)?),
                Step::Recv(n) => (self.receive(s, n)?, false),
                Step::Exchange(out, inn) => {
                    let write = self.send(s, out, How::Copy)?;
                    (self.receive(s, inn)?, write)
                }
                Step::Shut => {
                    s.shutdown(Shutdown::Write).map_err(|e| self.wrong(e))?;
                    (false, false)
                }
                Step::End => (self.end(s)?, false),
                Step::Released => {
                    let got = s.zero_copy_progress().map_err(|e| self.wrong(e))?;
                    let all = self.sent + HELLO as u64;
                    if got.0 != all || got.1 > all {
                        return Err(self.wrong(format!("{got:?} released of {all}")));
                    }
                    // All is acknowledged, but a later descriptor may still wait for the
                    // doorbell that another thread is about to ring. No event tells of that;
                    // a thread looks again, and a loop's pages are missed at the end.
                    (got.1 < all && self.sc.drive == Drive::Blocking, false)
                }
                Step::Unread => match s.peek(&mut [0]) {
                    Ok(1) => (false, false),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => (true, false),
                    other => return Err(self.wrong(format!("peek gives {other:?}"))),
                },
                Step::UntilReset => (false, self.until_reset(s)?),
                Step::Abort => {
                    s.abort().map_err(|e| self.wrong(e))?;
                    (false, false)
                }
            };
            if read || write {
                return Ok(Need::Wait { read, write });
            }
            self.next();
        }
        Ok(Need::Nothing)
    }

    /// Whether a failed call is to be tried again when the socket is ready.
    fn blocked(&self, e: &Error) -> Result<bool, String> {
        match e.kind() {
            ErrorKind::WouldBlock => Ok(true),
            _ => Err(self.wrong(e)),
        }
    }

    fn say_hello(&mut self, mut s: &TcpStream) -> Result<bool, String> {
        while self.out < HELLO as u64 {
            match s.write(&self.hello[self.out as usize..]) {
                Ok(n) => self.out += n as u64,
                Err(e) => return self.blocked(&e),
            }
        }
        Ok(false)
    }

    fn greet(&mut self, mut s: &TcpStream) -> Result<bool, String> {
        let mut hello = self.hello;
        if self.inn == 0 {
            hello = [0; HELLO];
        }
        while self.inn < HELLO as u64 {
            match s.read(&mut hello[self.inn as usize..]) {
                Ok(0) => return Err(self.wrong("closed before its introduction")),
                Ok(n) => self.inn += n as u64,
                Err(e) => {
                    self.hello = hello;
                    return self.blocked(&e);
                }
            }
        }
        let word = |at: usize| {
            u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]])
        };
        let conn = word(0) as usize;
        if word(0) != !word(4) || conn >= self.ledger.greeted.len() {
            return Err(self.wrong(format!("introduced by {hello:?}")));
        }
        if self.ledger.greeted[conn].fetch_add(1, Ordering::Relaxed) != 0 {
            return Err(self.wrong(format!("connection {conn} came twice")));
        }
        self.named(conn);
        self.steps.extend(server(&self.sc, conn));
        Ok(false)
    }

    fn send(&mut self, s: &TcpStream, all: u64, how: How) -> Result<bool, String> {
        while self.out < all {
            match self.push(s, all - self.out, how) {
                Ok(0) => return Err(self.wrong("a write of nothing")),
                Ok(n) => {
                    self.out += n as u64;
                    self.sent += n as u64;
                    self.ledger.step();
                }
                Err(e) => return self.blocked(&e),
            }
        }
        Ok(false)
    }

    fn push(&mut self, mut s: &TcpStream, most: u64, how: How) -> std::io::Result<usize> {
        let len = (1 + self.rng.below(self.chunk)).min(most) as usize;
        let mut bytes = vec![0; len];
        content::fill(stream_of(self.conn, self.client), self.sent, &mut bytes);
        match how {
            // More follows only if more does: nothing else would let a partial segment go.
            How::Copy if (len as u64) < most && self.rng.below(8) == 0 => s.send_more(&bytes),
            How::Copy => s.write(&bytes),
            How::ZeroCopy => {
                self.ledger.pages.fetch_add(1, Ordering::Relaxed);
                let page = Page {
                    bytes,
                    ledger: self.ledger.clone(),
                };
                let page = Bytes::from_owner(page);
                let cut = self.rng.below(len as u64) as usize;
                s.send_zero_copy(&[page.slice(..cut), page.slice(cut..)])
            }
        }
    }

    fn receive(&mut self, mut s: &TcpStream, all: u64) -> Result<bool, String> {
        while self.inn < all {
            let most = (1 + self.rng.below(self.chunk)).min(all - self.inn) as usize;
            let mut bytes = vec![0; most];
            match s.read(&mut bytes) {
                Ok(0) => return Err(self.wrong("the stream ended early")),
                Ok(n) => {
                    let from = stream_of(self.conn, !self.client);
                    if let Some(at) = content::mismatch(from, self.received, &bytes[..n]) {
                        return Err(self.wrong(format!("octet {at} is wrong")));
                    }
                    self.inn += n as u64;
                    self.received += n as u64;
                    self.ledger.checked.fetch_add(n as u64, Ordering::Relaxed);
                    self.ledger.step();
                }
                Err(e) => return self.blocked(&e),
            }
        }
        Ok(false)
    }

    fn end(&mut self, mut s: &TcpStream) -> Result<bool, String> {
        match s.read(&mut [0; 64]) {
            Ok(0) => Ok(false),
            Ok(n) => Err(self.wrong(format!("{n} octets too many"))),
            Err(e) => self.blocked(&e),
        }
    }

    fn until_reset(&mut self, s: &TcpStream) -> Result<bool, String> {
        loop {
            match self.push(s, u64::MAX, How::Copy) {
                Ok(n) => {
                    self.sent += n as u64;
                    self.ledger.step();
                }
                Err(e) => match e.kind() {
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(false),
                    ErrorKind::WouldBlock => return Ok(true),
                    _ => return Err(self.wrong(e)),
                },
            }
            if self.sent > 10_000_000 {
                return Err(self.wrong("no reset after 10 MB"));
            }
        }
    }
}

/// What several writers of one socket send: in each octet the writer's number (two bits) and a
/// count (six). Wherever the stream is cut, each writer's counts follow one another.
pub struct Parts {
    /// Octets of each value.
    pub seen: Histogram,
    /// The count that comes next, by writer, once one was seen.
    next: [Option<u8>; WRITERS],
}

/// Writers of a shared socket, at most.
pub const WRITERS: usize = 4;

impl Parts {
    /// Nothing seen yet. `from_start`: what comes first is the beginning of the stream.
    pub fn new(from_start: bool) -> Parts {
        Parts {
            seen: Histogram::default(),
            next: [from_start.then_some(0); WRITERS],
        }
    }

    /// Checks a piece of the stream; `follows`: it comes right behind the one before.
    ///
    /// # Errors
    /// An octet is missing, doubled or out of place.
    pub fn check(&mut self, piece: &[u8], follows: bool) -> Result<(), String> {
        if !follows {
            self.next = [None; WRITERS];
        }
        for (at, b) in piece.iter().enumerate() {
            let (writer, count) = (usize::from(b >> 6), b & 63);
            let want = self.next[writer].replace((count + 1) & 63);
            if want.is_some_and(|w| w != count) {
                return Err(format!(
                    "octet {at} of {}: count {count} of writer {writer} follows {want:?} less one",
                    piece.len()
                ));
            }
        }
        self.seen.add(piece);
        Ok(())
    }

    /// What is seen in the end if each of `writers` sends `len` octets.
    pub fn whole(writers: usize, len: u64) -> Histogram {
        let mut h = Histogram::default();
        for writer in 0..writers {
            for at in 0..len {
                h.add(&[part(writer, at)]);
            }
        }
        h
    }
}

fn part(writer: usize, at: u64) -> u8 {
    (writer as u8) << 6 | (at & 63) as u8
}

/// Reads to the end of the stream and checks: one of several readers of a socket, or the only
/// one.
///
/// # Errors
/// What reading says, or a wrong octet.
pub fn drain(
    mut s: &TcpStream,
    ledger: &Ledger,
    chunk: usize,
    only: bool,
) -> Result<Histogram, String> {
    let mut parts = Parts::new(only);
    let mut bytes = vec![0; chunk.max(1)];
    loop {
        match s.read(&mut bytes) {
            Ok(0) => return Ok(parts.seen),
            Ok(n) => {
                parts.check(&bytes[..n], only)?;
                ledger.checked.fetch_add(n as u64, Ordering::Relaxed);
                ledger.step();
            }
            Err(e) => return Err(format!("one of several readers: {e}")),
        }
    }
}

/// Writes `len` octets: one of several writers of a socket.
///
/// # Errors
/// What writing says.
pub fn pour(
    mut s: &TcpStream,
    ledger: &Ledger,
    writer: usize,
    len: u64,
    chunk: usize,
) -> Result<(), String> {
    let mut at = 0;
    while at < len {
        let end = len.min(at + chunk.max(1) as u64);
        let bytes: Vec<u8> = (at..end).map(|i| part(writer, i)).collect();
        let n = s
            .write(&bytes)
            .map_err(|e| format!("one of several writers: {e}"))?;
        at += n as u64;
        ledger.step();
    }
    Ok(())
}

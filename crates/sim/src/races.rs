//! Races of listeners: clients that come before the listener, while it closes and after it has
//! closed; handshakes that are given up half-way, and connections that end before anybody has
//! accepted them.
//!
//! Whatever happens to an attempt, a connection that was accepted is served to its end, and each
//! client is served once.

use crate::run::{Host, PORT, spawn};
use crate::scenario::{Drive, Mix, Workload};
use perimeter::{Stack, State, TcpListener, TcpStream};
use perimeter_link::rng::SplitMix64;
use perimeter_sync::virt::Schedule;
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a client says: its number and the complement.
const HELLO: usize = 8;
/// What it is answered.
const SERVED: u8 = 0x5e;
/// How often a client may be turned away.
const ATTEMPTS: u32 = 2_000;
/// Between two looks of those who poll; longer, up to `LOOKS` doublings, while nothing happens.
const LOOK: Duration = Duration::from_micros(20);
const LOOKS: u32 = 11;

fn hello(conn: usize) -> [u8; HELLO] {
    let id = (conn as u32).to_le_bytes();
    let not = (!(conn as u32)).to_le_bytes();
    [id[0], id[1], id[2], id[3], not[0], not[1], not[2], not[3]]
}

/// How long a client waits for its answer: longer than all the clients that went without a word
/// that arrived, and whose connections come before its own, can keep a server's thread.
const CLIENT: Duration = Duration::from_secs(100);
/// The same where one thread looks after many, so that none keeps another.
const POLLING: Duration = Duration::from_secs(20);
/// How long a server waits for a client to introduce itself: longer than any run of losses.
const SERVER: Duration = Duration::from_secs(15);

/// `limit`. Where time jumps to deadlines there is none: it would be one more deadline.
fn patience(h: &Host, limit: Duration) -> Option<Duration> {
    (!h.sc.jumps()).then_some(limit)
}

/// Errors of an attempt that finds no listener, or one that closes.
fn turned_away(h: &Host, e: ErrorKind) -> bool {
    match e {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => true,
        // The reset was lost, and nothing is left to say that would be answered by another.
        ErrorKind::WouldBlock => h.sc.mix != Mix::None,
        _ => false,
    }
}

/// An attempt of a client has failed: it may come again unless it has been served.
fn again(h: &Host, conn: usize, e: ErrorKind, attempts: u32) -> Result<(), String> {
    let greeted = h.ledger.greeted[conn].load(Ordering::Relaxed);
    if !turned_away(h, e) || greeted > 0 {
        return Err(format!(
            "attempt {attempts} of client {conn}, accepted {greeted} times, ends with {e}"
        ));
    }
    if attempts > ATTEMPTS {
        return Err(format!("client {conn} was turned away {attempts} times"));
    }
    Ok(())
}

/// Passes a random number of scheduling points, or a random time.
fn dawdle(h: &Host, rng: &mut SplitMix64, round: u64) {
    // Where time jumps, only scheduling points tell how much others could do.
    let jumps = h.sc.jumps();
    if jumps && matches!(h.sc.schedule, Schedule::Pct { .. }) {
        // Who comes first by priority goes on until it yields.
        for _ in 0..rng.below(4 + round) {
            h.p.yield_now();
        }
    } else if jumps || round < 8 && rng.below(2) == 0 {
        let most = if jumps { round.min(9) } else { round.min(5) };
        for _ in 0..rng.below(30 << most) {
            h.p.checkpoint();
        }
    } else {
        // Longer each time, so that there is a round in which everybody gets through.
        let micros = rng.below(100 << round.min(14));
        h.p.sleep_until(h.p.now() + Duration::from_micros(micros));
    }
}

/// Runs the clients to their end.
pub fn clients(host: &Arc<Host>, stack: &Stack) {
    let threads = host.sc.threads();
    let work = |t: usize| {
        let (h, stack) = (host.clone(), stack.clone());
        move || {
            let mine = (t..h.sc.connections()).step_by(threads);
            if h.sc.drive == Drive::Blocking {
                for conn in mine {
                    blocking_client(&h, &stack, conn)?;
                }
                return Ok(());
            }
            let mut all: Vec<Client> = mine.map(|c| Client::new(&h, c)).collect();
            let mut idle = 0;
            while !all.is_empty() {
                look_around(&h, &stack, idle)?;
                idle += 1;
                let mut left = Vec::new();
                for mut c in all {
                    match c.step(&h, &stack)? {
                        Moved::Done => continue,
                        Moved::On => idle = 0,
                        Moved::Not => {}
                    }
                    left.push(c);
                }
                all = left;
            }
            Ok(())
        }
    };
    each(host, "client", threads, work);
}

/// Runs the server until all clients have been served.
pub fn servers(host: &Arc<Host>, stack: &Stack) -> Result<(), String> {
    let mut rng = SplitMix64::new(host.sc.seed ^ 0x6c69_7374);
    let reopens = host.sc.workload == Workload::Reopen;
    dawdle(host, &mut rng, 0);
    for round in 0.. {
        let any = SocketAddr::new(host.sc.any(), PORT);
        let l = stack.listen_with(any, host.knobs.backlog, stack.tcp_config());
        let l = Arc::new(l.map_err(|e| format!("listen, round {round}: {e}"))?);
        if host.sc.drive == Drive::Blocking {
            blocking_round(host, &l, &mut rng, round, reopens)?;
        } else {
            polled_round(host, stack, &l, &mut rng, round, reopens)?;
        }
        if all_served(host) {
            return Ok(());
        }
        dawdle(host, &mut rng, 0);
    }
    Ok(())
}

fn all_served(h: &Host) -> bool {
    let served = |g: &std::sync::atomic::AtomicUsize| g.load(Ordering::Relaxed) > 0;
    h.ledger.greeted.iter().all(served)
}

fn each<F, B>(host: &Arc<Host>, name: &str, threads: usize, make: F)
where
    F: Fn(usize) -> B,
    B: FnOnce() -> Result<(), String> + Send + 'static,
{
    if threads == 1 {
        return make(0)().unwrap_or_else(|e| panic!("{e}"));
    }
    let all: Vec<_> = (0..threads)
        .map(|t| spawn(&host.p, &format!("{name}-{t}"), Some(t), make(t)))
        .collect();
    for t in all {
        t.join().expect("a panic would have ended the run");
    }
}

/// Whether somebody who polls has got on.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Moved {
    Not,
    On,
    Done,
}

/// A moment passes in which the stack is served; nothing has happened for `idle` of them.
fn look_around(h: &Host, stack: &Stack, idle: u32) -> Result<(), String> {
    stack.drive().map_err(|e| format!("drive: {e}"))?;
    h.p.sleep_until(h.p.now() + LOOK * (1 << (idle / 4).min(LOOKS)));
    Ok(())
}

// ---- threads that block -----------------------------------------------------------------

fn blocking_client(h: &Host, stack: &Stack, conn: usize) -> Result<(), String> {
    let mut rng = SplitMix64::new(h.sc.seed ^ (conn as u64 + 1) << 24);
    for attempts in 0.. {
        if h.sc.workload == Workload::Fickle && attempts < 3 {
            blocking_fickle(h, stack, conn, &mut rng)?;
        }
        match ask(h, stack, conn) {
            Ok(()) => break,
            Err(e) => again(h, conn, e, attempts)?,
        }
        dawdle(h, &mut rng, 1 + u64::from(attempts.min(8)));
    }
    h.ledger.step();
    h.ledger.finished.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn ask(h: &Host, stack: &Stack, conn: usize) -> Result<(), ErrorKind> {
    let kind = |e: std::io::Error| e.kind();
    let mut s = stack.connect(h.server_addr(conn)).map_err(kind)?;
    s.set_read_timeout(patience(h, CLIENT)).map_err(kind)?;
    s.write_all(&hello(conn)).map_err(kind)?;
    let mut answer = [0];
    s.read_exact(&mut answer).map_err(kind)?;
    if answer[0] != SERVED {
        return Err(ErrorKind::InvalidData);
    }
    Ok(())
}

/// Opens connections and thinks better of it.
fn blocking_fickle(
    h: &Host,
    stack: &Stack,
    conn: usize,
    rng: &mut SplitMix64,
) -> Result<(), String> {
    for _ in 0..=rng.below(2) {
        let start = || {
            let s = stack.start_connect(h.server_addr(conn));
            s.map_err(|e| format!("client {conn}: {e}"))
        };
        let how = rng.below(5);
        if how < 2 {
            let s = start()?;
            dawdle(h, rng, 0);
            if how == 0 {
                let _ = s.abort();
            }
            continue;
        }
        match stack.connect(h.server_addr(conn)) {
            Ok(mut s) => match how {
                2 => drop(s),
                3 => _ = s.abort(),
                // Half of an introduction, and a reset behind it.
                _ => _ = s.write(&hello(conn)[..4]).and_then(|_| s.abort()),
            },
            Err(e) if turned_away(h, e.kind()) => {}
            Err(e) => return Err(format!("client {conn} opens in vain: {e}")),
        }
    }
    Ok(())
}

fn blocking_round(
    host: &Arc<Host>,
    l: &Arc<TcpListener>,
    rng: &mut SplitMix64,
    round: u64,
    reopens: bool,
) -> Result<(), String> {
    let acceptors: Vec<_> = (0..host.sc.threads())
        .map(|t| {
            let (h, l) = (host.clone(), l.clone());
            spawn(&host.p, &format!("server-{t}"), Some(t), move || {
                while let Ok((s, _)) = l.accept() {
                    serve(&h, &s)?;
                    if !reopens && all_served(&h) {
                        // The others are blocked.
                        let _ = l.close();
                    }
                }
                Ok(())
            })
        })
        .collect();
    if reopens {
        dawdle(host, rng, round);
        l.close().map_err(|e| format!("close: {e}"))?;
    }
    for t in acceptors {
        t.join().expect("a panic would have ended the run");
    }
    Ok(())
}

/// Serves an accepted connection; a client that thought better of it is none.
fn serve(h: &Host, mut s: &TcpStream) -> Result<(), String> {
    let limit = |limit| {
        s.set_read_timeout(patience(h, limit))
            .map_err(|e| e.to_string())
    };
    limit(SERVER)?;
    let mut said = [0; HELLO];
    match s.read_exact(&mut said) {
        Ok(()) => greet(h, said)?,
        Err(e) => return no_client(h, e.kind()),
    }
    limit(CLIENT)?;
    s.write_all(&[SERVED]).map_err(|e| format!("answer: {e}"))?;
    match s.read(&mut said) {
        Ok(0) => {}
        other => return Err(format!("a client that was served: {other:?}")),
    }
    h.ledger.finished.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn greet(h: &Host, said: [u8; HELLO]) -> Result<(), String> {
    let conn = u32::from_le_bytes([said[0], said[1], said[2], said[3]]) as usize;
    let known = conn < h.ledger.greeted.len() && said == hello(conn);
    if !known || h.ledger.greeted[conn].fetch_add(1, Ordering::Relaxed) > 0 {
        return Err(format!("introduced by {said:?}, twice or never"));
    }
    h.ledger.step();
    Ok(())
}

/// An accepted connection on which nobody introduces himself.
fn no_client(h: &Host, e: ErrorKind) -> Result<(), String> {
    let gone = matches!(
        e,
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::WouldBlock
    );
    // A SYN of a closed connection that came twice, and an acknowledgment of it, make another.
    let ghost = matches!(h.sc.mix, Mix::Duplicate | Mix::Three) && e == ErrorKind::WouldBlock;
    // A listener that closes resets the handshakes under way. Until that reset arrives, the client
    // may repeat its SYN to the next listener: that handshake is completed, and then reset.
    let late_reset = h.sc.workload == Workload::Reopen && e == ErrorKind::ConnectionReset;
    if h.sc.workload == Workload::Fickle && gone || ghost || late_reset {
        return Ok(());
    }
    Err(format!("an accepted connection ends before its hello: {e}"))
}

// ---- threads that poll ------------------------------------------------------------------

/// A client on its way.
struct Client {
    conn: usize,
    attempts: u32,
    /// Openings in vain that are left, and the one under way.
    fickle: u64,
    vain: Option<(TcpStream, u64)>,
    real: Option<TcpStream>,
    since: perimeter_base::Time,
    told: usize,
    wait: u64,
    rng: SplitMix64,
}

impl Client {
    fn new(h: &Host, conn: usize) -> Client {
        let mut rng = SplitMix64::new(h.sc.seed ^ (conn as u64 + 1) << 24);
        let fickle = if h.sc.workload == Workload::Fickle {
            1 + rng.below(4)
        } else {
            0
        };
        Client {
            conn,
            attempts: 0,
            fickle,
            vain: None,
            real: None,
            since: h.p.now(),
            told: 0,
            wait: 0,
            rng,
        }
    }

    fn open(&self, h: &Host, stack: &Stack) -> Result<TcpStream, String> {
        let s = stack.start_connect(h.server_addr(self.conn));
        let s = s.map_err(|e| format!("client {}: {e}", self.conn))?;
        s.set_nonblocking(true).map_err(|e| e.to_string())?;
        Ok(s)
    }

    fn step(&mut self, h: &Host, stack: &Stack) -> Result<Moved, String> {
        if self.wait > 0 {
            self.wait -= 1;
            return Ok(Moved::On);
        }
        if let Some((mut s, how)) = self.vain.take() {
            let state = s.info().map(|i| i.tcp.state);
            let early = how < 2;
            if !early && matches!(state, Ok(State::SynSent)) {
                self.vain = Some((s, how));
                return Ok(Moved::Not);
            }
            match how {
                0 | 3 => _ = s.abort(),
                4 => _ = s.write(&hello(self.conn)[..4]).and_then(|_| s.abort()),
                _ => drop(s),
            }
            return Ok(Moved::On);
        }
        if self.fickle > 0 {
            self.fickle -= 1;
            let how = self.rng.below(5);
            self.vain = Some((self.open(h, stack)?, how));
            self.wait = self.rng.below(3);
            return Ok(Moved::On);
        }
        let s = match self.real.take() {
            Some(s) => s,
            None => {
                (self.told, self.since) = (0, h.p.now());
                self.open(h, stack)?
            }
        };
        let late = patience(h, POLLING).is_some_and(|p| h.p.now().since(self.since) > p);
        match self.talk(&s) {
            Ok(()) => {
                h.ledger.step();
                h.ledger.finished.fetch_add(1, Ordering::Relaxed);
                Ok(Moved::Done)
            }
            Err(ErrorKind::WouldBlock) if !late => {
                self.real = Some(s);
                Ok(Moved::Not)
            }
            Err(e) => {
                again(h, self.conn, e, self.attempts)?;
                self.attempts += 1;
                self.wait = self.rng.below(4 << self.attempts.min(8));
                Ok(Moved::On)
            }
        }
    }

    fn talk(&mut self, mut s: &TcpStream) -> Result<(), ErrorKind> {
        while self.told < HELLO {
            let n = s.write(&hello(self.conn)[self.told..]);
            self.told += n.map_err(|e| e.kind())?;
        }
        let mut answer = [0];
        match s.read(&mut answer) {
            Ok(1) if answer[0] == SERVED => Ok(()),
            Ok(0) => Err(ErrorKind::UnexpectedEof),
            Ok(_) => Err(ErrorKind::InvalidData),
            Err(e) => Err(e.kind()),
        }
    }
}

/// A connection that the server has accepted.
struct Guest {
    s: TcpStream,
    said: [u8; HELLO],
    got: usize,
    answered: bool,
    since: perimeter_base::Time,
}

impl Guest {
    fn step(&mut self, h: &Host) -> Result<Moved, String> {
        let mut s = &self.s;
        let mut moved = Moved::Not;
        while self.got < HELLO {
            match s.read(&mut self.said[self.got..]) {
                Ok(0) => return no_client(h, ErrorKind::UnexpectedEof).map(|()| Moved::Done),
                Ok(n) => {
                    self.got += n;
                    moved = Moved::On;
                }
                Err(e) if e.kind() != ErrorKind::WouldBlock => {
                    return no_client(h, e.kind()).map(|()| Moved::Done);
                }
                Err(_) if patience(h, SERVER).is_some_and(|p| h.p.now().since(self.since) > p) => {
                    return no_client(h, ErrorKind::WouldBlock).map(|()| Moved::Done);
                }
                Err(_) => return Ok(moved),
            }
        }
        if !self.answered {
            greet(h, self.said)?;
            self.answered = true;
            s.write_all(&[SERVED]).map_err(|e| format!("answer: {e}"))?;
        }
        match s.read(&mut [0]) {
            Ok(0) => {
                h.ledger.finished.fetch_add(1, Ordering::Relaxed);
                Ok(Moved::Done)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(moved),
            other => Err(format!("a client that was served: {other:?}")),
        }
    }
}

fn polled_round(
    h: &Host,
    stack: &Stack,
    l: &TcpListener,
    rng: &mut SplitMix64,
    round: u64,
    reopens: bool,
) -> Result<(), String> {
    l.set_nonblocking(true).map_err(|e| e.to_string())?;
    let mut looks = if reopens {
        rng.below(10 << round.min(12))
    } else {
        u64::MAX
    };
    let mut guests: Vec<Guest> = Vec::new();
    let mut open = true;
    let mut idle = 0;
    while open || !guests.is_empty() {
        look_around(h, stack, idle)?;
        // While others are to come, not too long.
        idle = if reopens {
            (idle + 1).min(16)
        } else {
            idle + 1
        };
        // What is accepted may end before it is looked at, and the listener close in between.
        while open && rng.below(4) > 0 {
            match l.accept() {
                Ok((s, _)) => {
                    s.set_nonblocking(true).map_err(|e| e.to_string())?;
                    idle = 0;
                    guests.push(Guest {
                        s,
                        said: [0; HELLO],
                        got: 0,
                        answered: false,
                        since: h.p.now(),
                    });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(format!("accept: {e}")),
            }
        }
        let mut left = Vec::new();
        for mut g in guests {
            match g.step(h)? {
                Moved::Done => continue,
                Moved::On => idle = 0,
                Moved::Not => {}
            }
            left.push(g);
        }
        guests = left;
        looks = looks.saturating_sub(1);
        if open && (looks == 0 || all_served(h)) {
            open = false;
            l.close().map_err(|e| format!("close: {e}"))?;
        }
    }
    Ok(())
}

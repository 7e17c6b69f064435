//! Many threads open and end connections in every manner at once, and check every byte: what
//! sanitizers are to see (`cargo xtask sanitize`), and a short run of it for every test run.
//!
//! `PERIMETER_CHURN` sets how many connections each organization gets, `PERIMETER_CHURN_SEED` the
//! first seed, `PERIMETER_ORGS` the organizations.

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack, TcpConfig, TcpListener, TcpStream};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that open connections, and threads that accept them.
const CLIENTS: u64 = 6;
const SERVERS: usize = 6;

/// Longer than anything may take: then it hangs.
const LONG: Duration = Duration::from_secs(60);

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}: {e}")),
        Err(_) => otherwise,
    }
}

/// A generator of choices (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The byte at place `i` of stream `seed`.
fn byte(seed: u64, i: usize) -> u8 {
    (seed as usize)
        .wrapping_add(i.wrapping_mul(7))
        .wrapping_add(i / 251) as u8
}

/// How one connection goes.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Manner {
    /// Everything both ways, then half closes.
    Whole,
    /// The server answers before it reads, and ends its direction first.
    ServerFirst,
    /// The client resets in the middle.
    ClientAborts,
    /// The client closes in the middle, with data unread.
    ClientLeaves,
    /// The server resets in the middle.
    ServerAborts,
    /// The server closes in the middle.
    ServerLeaves,
    /// Both directions at once, by two threads of the client.
    Duplex,
}

const MANNERS: [Manner; 7] = [
    Manner::Whole,
    Manner::ServerFirst,
    Manner::ClientAborts,
    Manner::ClientLeaves,
    Manner::ServerAborts,
    Manner::ServerLeaves,
    Manner::Duplex,
];

/// The first words of a connection.
#[derive(Copy, Clone, Debug)]
struct Plan {
    seed: u64,
    manner: Manner,
    up: usize,
    down: usize,
}

const HEAD: usize = 17;

impl Plan {
    fn new(seed: u64) -> Plan {
        let mut dice = Dice(seed);
        // Most are short, some fill the buffers.
        let mut size = || match dice.below(8) {
            0 => 200_000 + dice.below(100_000) as usize,
            1 | 2 => dice.below(20_000) as usize,
            _ => dice.below(1_500) as usize,
        };
        let (mut up, mut down) = (size(), size());
        let manner = MANNERS[dice.below(MANNERS.len() as u64) as usize];
        // Where one end does not read while it writes, the other's data must fit the buffers.
        match manner {
            Manner::Whole | Manner::Duplex => {}
            Manner::ServerFirst | Manner::ClientAborts | Manner::ClientLeaves => up %= 20_000,
            Manner::ServerAborts | Manner::ServerLeaves => down %= 20_000,
        }
        Plan {
            seed,
            manner,
            up,
            down,
        }
    }

    fn head(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.seed.to_le_bytes());
        head[8] = MANNERS.iter().position(|m| *m == self.manner).unwrap_or(0) as u8;
        head[9..13].copy_from_slice(&(self.up as u32).to_le_bytes());
        head[13..].copy_from_slice(&(self.down as u32).to_le_bytes());
        head
    }

    fn parse(head: &[u8; HEAD]) -> Plan {
        let plan = Plan::new(u64::from_le_bytes(head[..8].try_into().unwrap()));
        assert_eq!(plan.head(), *head, "a head that nobody has sent");
        plan
    }

    /// Whether every byte must come, and none may be refused.
    fn is_whole(self) -> bool {
        use Manner::{Duplex, ServerFirst, Whole};
        matches!(self.manner, Whole | ServerFirst | Duplex)
    }
}

/// Writes the bytes from 0 to `to` of stream `seed`.
fn send(s: &TcpStream, seed: u64, to: usize) -> Result<(), Error> {
    let mut block = [0; 8192];
    let mut at = 0;
    while at < to {
        let n = block.len().min(to - at);
        for (i, b) in block[..n].iter_mut().enumerate() {
            *b = byte(seed, at + i);
        }
        { s }.write_all(&block[..n])?;
        at += n;
    }
    Ok(())
}

/// Reads and checks until `to` bytes or the end of the stream; how many.
fn receive(s: &TcpStream, seed: u64, to: usize) -> Result<usize, Error> {
    let mut block = [0; 8192];
    let mut at = 0;
    while at < to {
        let most = block.len().min(to - at);
        let n = { s }.read(&mut block[..most])?;
        for (i, b) in block[..n].iter().enumerate() {
            assert_eq!(*b, byte(seed, at + i), "byte {} of {to}", at + i);
        }
        if n == 0 {
            break;
        }
        at += n;
    }
    Ok(at)
}

/// Reads and checks all of it, and the end of the stream behind it.
fn receive_all(s: &TcpStream, seed: u64, to: usize) -> Result<(), Error> {
    assert_eq!(receive(s, seed, to)?, to, "the stream ends early");
    let mut more = [0; 16];
    assert_eq!({ s }.read(&mut more)?, 0, "more than was sent");
    Ok(())
}

/// One end stops in the middle: by a reset, by closing at once, or by closing with a wait.
fn leave(s: TcpStream, abort: bool, dice: &mut Dice) {
    if abort {
        let _ = s.abort();
    } else if dice.below(2) == 0 {
        let _ = s.set_linger(Some(Duration::from_millis(dice.below(30))));
    }
    drop(s);
}

fn client(s: TcpStream, plan: Plan) -> Result<(), Error> {
    let Plan { seed, up, down, .. } = plan;
    let mut dice = Dice(!seed);
    { &s }.write_all(&plan.head())?;
    match plan.manner {
        Manner::Whole | Manner::ServerFirst => {
            send(&s, seed, up)?;
            s.shutdown(Shutdown::Write)?;
            receive_all(&s, !seed, down)
        }
        Manner::Duplex => {
            let other = s.try_clone()?;
            let writer = std::thread::spawn(move || {
                send(&other, seed, up)?;
                other.shutdown(Shutdown::Write)
            });
            let read = receive_all(&s, !seed, down);
            writer.join().expect("it does not panic").and(read)
        }
        Manner::ClientAborts | Manner::ClientLeaves => {
            send(&s, seed, dice.below(up as u64 + 1) as usize)?;
            let some = dice.below(down as u64 + 1) as usize;
            receive(&s, !seed, some)?;
            leave(s, plan.manner == Manner::ClientAborts, &mut dice);
            Ok(())
        }
        Manner::ServerAborts | Manner::ServerLeaves => {
            send(&s, seed, up)?;
            receive(&s, !seed, down).map(drop)
        }
    }
}

fn server(s: TcpStream, plan: Plan) -> Result<(), Error> {
    let Plan { seed, up, down, .. } = plan;
    let mut dice = Dice(seed ^ 0x5555);
    match plan.manner {
        Manner::Whole => {
            receive_all(&s, seed, up)?;
            send(&s, !seed, down)?;
            s.shutdown(Shutdown::Write)
        }
        Manner::ServerFirst => {
            send(&s, !seed, down)?;
            s.shutdown(Shutdown::Write)?;
            receive_all(&s, seed, up)
        }
        Manner::Duplex => {
            let other = s.try_clone()?;
            let writer = std::thread::spawn(move || {
                send(&other, !seed, down)?;
                other.shutdown(Shutdown::Write)
            });
            let read = receive_all(&s, seed, up);
            writer.join().expect("it does not panic").and(read)
        }
        Manner::ClientAborts | Manner::ClientLeaves => {
            send(&s, !seed, down)?;
            receive(&s, seed, up).map(drop)
        }
        Manner::ServerAborts | Manner::ServerLeaves => {
            let some = dice.below(up as u64 + 1) as usize;
            receive(&s, seed, some)?;
            send(&s, !seed, dice.below(down as u64 + 1) as usize)?;
            leave(s, plan.manner == Manner::ServerAborts, &mut dice);
            Ok(())
        }
    }
}

/// What the other end's leaving may look like.
fn is_leaving(e: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected];
    kinds.contains(&e.kind())
}

fn judge(who: &str, plan: Plan, result: Result<(), Error>) {
    if let Err(e) = result {
        assert!(!plan.is_whole() && is_leaving(&e), "{who}, {plan:?}: {e:?}");
    }
}

fn limits(s: &TcpStream) {
    s.set_read_timeout(Some(LONG)).unwrap();
    s.set_write_timeout(Some(LONG)).unwrap();
}

/// Accepts until the clients are done.
fn serve(l: &TcpListener, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let s = match l.accept() {
            Ok((s, _)) => s,
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => continue,
            Err(e) => panic!("accept: {e:?}"),
        };
        limits(&s);
        let mut head = [0; HEAD];
        match { &s }.read_exact(&mut head) {
            Ok(()) => {
                let plan = Plan::parse(&head);
                judge("server", plan, server(s, plan));
            }
            // Of those that leave in the middle some do so before they have said a word.
            Err(e) => assert!(
                is_leaving(&e) || e.kind() == ErrorKind::UnexpectedEof,
                "head: {e:?}"
            ),
        }
    }
}

fn churn(org: &OrgSpec, connections: u64, first: u64) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let stack = |end, addr: &str| {
        let b = Stack::builder().on_native(native).org(org.clone());
        // TIME-WAIT is to pass while the test looks.
        let b = b.tcp(TcpConfig::default().with_time_wait(Duration::from_millis(500)));
        b.interface(end, &[addr]).unwrap().build().unwrap()
    };
    let (s, peer) = (stack(a, "10.0.0.1/24"), stack(b, "10.0.0.2/24"));
    let listener = s.listen("10.0.0.1:80").unwrap();
    let patience = Some(Duration::from_millis(20));
    listener.set_accept_timeout(patience).unwrap();
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let servers = || serve(&listener, &over);
        for _ in 0..SERVERS {
            scope.spawn(servers);
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= connections {
                            return;
                        }
                        let plan = Plan::new(first + n);
                        let c = peer.connect("10.0.0.1:80").unwrap();
                        limits(&c);
                        judge("client", plan, client(c, plan));
                    }
                })
            })
            .collect();
        let ends: Vec<_> = clients.into_iter().map(|t| t.join()).collect();
        over.store(true, Ordering::Release);
        for end in ends {
            end.expect("a client has failed");
        }
    });
    drop(listener);
    settled(org, &[&s, &peer]);
}

/// After a while no connection is left, and no memory is held.
fn settled(org: &OrgSpec, stacks: &[&Stack]) {
    let end = Instant::now() + LONG;
    for s in stacks {
        loop {
            let connections = s.connections();
            let left = connections.len();
            let stats = s.stats();
            let held = stats.count("memory_charged") - stats.count("memory_released");
            if left == 0 && held == 0 {
                break;
            }
            let who = connections.first();
            assert!(
                Instant::now() < end,
                "{org}: {left} connections, {held} bytes are left: {who:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn connections_come_and_go_in_every_manner() {
    let connections = number("PERIMETER_CHURN", 150);
    let first = number("PERIMETER_CHURN_SEED", 777_000);
    for org in OrgSpec::tested() {
        // One thread can't be at both ends of its own connections.
        if org.single_threaded() {
            continue;
        }
        let start = Instant::now();
        churn(&org, connections, first);
        println!("{org}: {connections} connections, {:?}", start.elapsed());
    }
}

//! The victim: a process of its own with a stack over TAP and a server of one thread on the
//! public library. What it is asked on standard input it answers on standard output, a line each;
//! it ends when that is closed.

use crate::content;
use anyhow::{Context, Result};
use clap::Args;
use perimeter::link::Device;
use perimeter::link::fault::{FaultConfig, Faulty};
use perimeter::link::tap::{Tap, TapConfig};
use perimeter::{
    Config, Event, Events, Interest, Ipv6Config, OrgSpec, Poll, Registry, Stack, State,
};
use perimeter::{TcpListener, TcpStream, Token, Waker};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The victim's address.
pub const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The kernel's address: legitimate clients' and the gateway's.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The same two over IPv6.
pub const VICTIM6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// See [`VICTIM6`].
pub const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// Where the victim listens.
pub const PORT: u16 = 7000;
/// The TAP interface.
pub const IFACE: &str = "attack0";

/// The first byte that a client sends: what it wants. Four bytes with a length follow.
pub mod op {
    /// So many bytes; then the client closes.
    pub const KEEP: u8 = b'K';
    /// So many bytes, and the socket is dropped right after the last was written.
    pub const CLOSE: u8 = b'C';
    /// As [`CLOSE`], but not counted among the answers that have to arrive.
    pub const DROP: u8 = b'D';
    /// Bytes without end.
    pub const STREAM: u8 = b'S';
}

/// The stack of a victim.
#[derive(Args, Clone, Debug)]
pub struct Setting {
    /// Organization
    #[arg(long)]
    pub org: OrgSpec,
    /// Prefix length of the interface's address
    #[arg(long, default_value_t = 24)]
    pub prefix: u8,
    /// `Config::memory`, bytes
    #[arg(long, default_value_t = 64 << 20)]
    pub memory: u64,
    /// It has addresses of both families, and listens at that of IPv6
    #[arg(long)]
    pub v6: bool,
    /// Probability that a packet is lost, in either direction
    #[arg(long, default_value_t = 0.0)]
    pub loss: f64,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Setting {
    /// The setting of an organization with the default memory limit, on a /24 without loss.
    pub fn new(org: &OrgSpec) -> Setting {
        Setting {
            org: org.clone(),
            prefix: 24,
            memory: 64 << 20,
            v6: false,
            loss: 0.0,
            seed: 1,
        }
    }

    /// As arguments of the victim's command.
    pub fn arguments(&self) -> Vec<String> {
        let pairs = [
            ("--org", self.org.to_string()),
            ("--prefix", self.prefix.to_string()),
            ("--memory", self.memory.to_string()),
            ("--loss", self.loss.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        let pairs = pairs.into_iter().flat_map(|(k, v)| [k.to_string(), v]);
        pairs.chain(self.v6.then(|| "--v6".to_string())).collect()
    }

    /// Where it listens.
    pub fn listens(&self) -> IpAddr {
        match self.v6 {
            true => VICTIM6.into(),
            false => VICTIM.into(),
        }
    }

    /// Opens TAP interface and stack, says `ready` and waits until the other side has
    /// configured the kernel's end.
    ///
    /// # Errors
    /// As the stack's builder.
    pub fn open(&self) -> Result<Stack> {
        // With losses, checksums are complete on the wire: faults need whole frames.
        let config = TapConfig::new(IFACE).with_checksum_offload(self.loss == 0.0);
        let tap = Tap::open(&config)?;
        println!("ready");
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        let faults = |seed| FaultConfig::default().with_seed(seed).with_loss(self.loss);
        if self.loss == 0.0 {
            return self.build(tap);
        }
        let (tx, rx) = (faults(self.seed), faults(self.seed.wrapping_add(1)));
        self.build(Faulty::new(Box::new(tap), tx, rx).0)
    }

    fn build(&self, device: impl Device + 'static) -> Result<Stack> {
        let config = Config::default().with_memory(self.memory).with_ipv6(
            Ipv6Config::default()
                // Nobody else is there, and it is to listen at once.
                .with_dad_transmits(0),
        );
        let mut addrs = vec![format!("{VICTIM}/{}", self.prefix)];
        addrs.extend(self.v6.then(|| format!("{VICTIM6}/64")));
        let addrs: Vec<&str> = addrs.iter().map(String::as_str).collect();
        let b = Stack::builder().org(self.org.clone()).config(config);
        let b = b.interface(device, &addrs)?;
        let mut b = b.route("0.0.0.0/0", Some(&KERNEL.to_string()), 0)?;
        if self.v6 {
            b = b.route("::/0", Some(&KERNEL6.to_string()), 0)?;
        }
        Ok(b.build()?)
    }
}

/// What a victim tells of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// Connections accepted.
    pub accepted: u64,
    /// Answers wholly written, whose socket was then dropped, that have to arrive.
    pub closed: u64,
    /// Calls to accept or write that returned an error.
    pub errors: u64,
    /// Connections that the stack has, those that linger included.
    pub connections: usize,
    /// Memory as the stack counts it, bytes.
    pub memory: u64,
    /// Connections by state; only when asked for with `census`.
    pub states: BTreeMap<String, u64>,
    /// The stack's counters that are not zero.
    pub counts: BTreeMap<String, u64>,
}

/// What becomes of a connection.
enum Doing {
    /// Its request, as far as it has come.
    Ask([u8; 5], usize),
    /// Sends; the second is the end.
    Send(u8, u64, u64),
    /// Waits for the client to close.
    Stay,
}

struct Conn {
    stream: TcpStream,
    doing: Doing,
    want: Interest,
}

enum Turn {
    Wait(Interest),
    Done,
}

struct Server {
    stack: Stack,
    poll: Poll,
    registry: Registry,
    listener: TcpListener,
    conns: HashMap<usize, Conn>,
    next: usize,
    stat: Stat,
}

const LISTENER: Token = Token(usize::MAX);
/// Writes in a turn, so that a fast reader does not keep the others waiting.
const TURN: usize = 4;

/// Runs a victim until standard input ends.
///
/// # Errors
/// The stack can't be had.
pub fn run(setting: &Setting) -> Result<()> {
    let stack = setting.open()?;
    let listener = stack
        .listen((setting.listens(), PORT))
        .context("listening")?;
    let poll = stack.poll()?;
    let registry = poll.registry();
    listener.set_nonblocking(true)?;
    registry.register(&listener, LISTENER, Interest::READABLE)?;
    let orders = orders(poll.waker());
    println!("listening");
    let mut server = Server {
        stack,
        poll,
        registry,
        listener,
        conns: HashMap::new(),
        next: 0,
        stat: Stat::default(),
    };
    server.serve(&orders)
}

/// The lines of standard input.
fn orders(waker: Waker) -> Receiver<String> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if tx.send(line).is_err() {
                return;
            }
            waker.wake();
        }
        // The one who started it has gone, or has seen enough: nothing here is to be kept.
        std::process::exit(0);
    });
    rx
}

impl Server {
    fn serve(&mut self, orders: &Receiver<String>) -> Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            self.poll
                .poll(&mut events, Some(Duration::from_millis(50)))?;
            for e in events.iter() {
                if e.token() == LISTENER {
                    self.accept();
                } else {
                    self.event(e);
                }
            }
            for order in orders.try_iter() {
                let told = self.tell(order == "census");
                println!("{}", serde_json::to_string(&told)?);
            }
        }
    }

    fn tell(&self, census: bool) -> Stat {
        let stats = self.stack.stats();
        let mut told = Stat {
            connections: stats.connections,
            memory: stats.memory,
            counts: stats.counts.into_iter().filter(|(_, n)| *n > 0).collect(),
            ..self.stat.clone()
        };
        if census {
            for c in self.stack.connections() {
                let name = match c.tcp.state {
                    State::TimeWait => "time-wait".to_string(),
                    state => format!("{state:?}"),
                };
                *told.states.entry(name).or_default() += 1;
            }
        }
        told
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((s, _)) => s,
                Err(e) => {
                    self.stat.errors += u64::from(e.kind() != ErrorKind::WouldBlock);
                    return;
                }
            };
            self.stat.accepted += 1;
            let (token, want) = (Token(self.next), Interest::READABLE);
            let ready = stream
                .set_nonblocking(true)
                .and_then(|()| self.registry.register(&stream, token, want));
            if ready.is_err() {
                self.stat.errors += 1;
                continue;
            }
            let doing = Doing::Ask([0; 5], 0);
            let conn = Conn {
                stream,
                doing,
                want,
            };
            self.conns.insert(self.next, conn);
            self.next += 1;
        }
    }

    fn event(&mut self, e: Event) {
        let number = e.token().0;
        let Some(conn) = self.conns.get_mut(&number) else {
            return;
        };
        match conn.turn() {
            Ok(Turn::Wait(want)) if want == conn.want => return,
            Ok(Turn::Wait(want)) => {
                conn.want = want;
                let again = self.registry.reregister(&conn.stream, e.token(), want);
                if again.is_ok() {
                    return;
                }
                self.stat.errors += 1;
            }
            Ok(Turn::Done) => {
                let counts = matches!(conn.doing, Doing::Send(op::CLOSE, ..));
                self.stat.closed += u64::from(counts);
            }
            Err(_) => self.stat.errors += 1,
        }
        // The last handle goes, and so the socket is closed.
        self.conns.remove(&number);
    }
}

impl Conn {
    /// Goes on as far as it can.
    fn turn(&mut self) -> io::Result<Turn> {
        for _ in 0..TURN {
            match &mut self.doing {
                Doing::Ask(head, got) => match self.stream.read(&mut head[*got..]) {
                    Ok(0) => return Ok(Turn::Done),
                    Ok(n) => {
                        *got += n;
                        if *got == head.len() {
                            let [op, len @ ..] = *head;
                            let end = match op {
                                op::STREAM => u64::MAX,
                                _ => u64::from(u32::from_be_bytes(len)),
                            };
                            self.doing = Doing::Send(op, 0, end);
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        return Ok(Turn::Wait(Interest::READABLE));
                    }
                    Err(e) => return Err(e),
                },
                Doing::Send(op::KEEP, at, end) if at == end => self.doing = Doing::Stay,
                Doing::Send(_, at, end) if at == end => return Ok(Turn::Done),
                Doing::Send(_, at, end) => {
                    match self.stream.write(content::piece(*at, *end - *at)) {
                        Ok(n) => *at += n as u64,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {
                            return Ok(Turn::Wait(Interest::WRITABLE));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Doing::Stay => match self.stream.read(&mut [0; 16]) {
                    Ok(0) => return Ok(Turn::Done),
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        return Ok(Turn::Wait(Interest::READABLE));
                    }
                    Err(e) => return Err(e),
                },
            }
        }
        // Level-triggered: what is ready is told again.
        Ok(Turn::Wait(match self.doing {
            Doing::Send(_, at, end) if at < end => Interest::WRITABLE,
            Doing::Send(..) => Interest::WRITABLE,
            _ => Interest::READABLE,
        }))
    }
}

//! Transfers whose socket is dropped right after the last write: every byte arrives, or whoever
//! wrote was told of an error.

use crate::content;
use crate::handle::Victim;
use crate::victim::{KERNEL, PORT, Setting, VICTIM};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use perimeter::Platform;
use perimeter::link::fault::FaultConfig;
use perimeter::link::rng::SplitMix64;
use perimeter::link::wire::{WireConfig, pair};
use perimeter::virt::VirtualConfig;
use perimeter::{Events, Interest, OrgSpec, Stack, State, TcpListener, TcpStream, Token, Virtual};
use perimeter_interop::namespace;
use perimeter_sync::Thread;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where the kernel listens for writers that connect.
const SINK: u16 = 7001;
/// A transfer's head: number and length.
const HEAD: usize = 8;

/// How the writer gets its connection, and what it does at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// It connects, and its process goes on until all is delivered.
    Connect,
    /// It accepts, likewise.
    Accept,
    /// It connects, and `main` returns after the last drop.
    Exit,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Connect => "connect",
            Way::Accept => "accept",
            Way::Exit => "exit",
        }
    }
}

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// TAP: the kernel reads.
    Tap,
    /// A wire to a second stack, in virtual time.
    Pair,
}

/// Transfers of one kind and what became of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Organization.
    pub org: String,
    /// What carries the packets.
    pub carrier: Carrier,
    /// How the writer gets its connection.
    pub way: Way,
    /// Probability that a packet is lost, in either direction.
    pub loss: f64,
    /// Seed of sizes and losses.
    pub seed: u64,
    /// How many.
    pub transfers: u64,
    /// Of these, transfers that came whole.
    pub arrived: u64,
    /// Transfers that did not, whose writer was told of an error.
    pub errors: u64,
    /// Transfers that did not, and nobody was told.
    pub lost: u64,
    /// Transfers with wrong bytes.
    pub corrupt: u64,
    /// Bytes that arrived.
    pub bytes: u64,
}

/// The cells of an organization, `transfers` in all: over TAP and between two stacks, without loss
/// and with 1 %, by sockets that connected and that were accepted; and processes that end.
pub fn cells(org: &OrgSpec, transfers: u64, seed: u64) -> Vec<Cell> {
    let mut all = Vec::new();
    for carrier in [Carrier::Tap, Carrier::Pair] {
        for loss in [0.0, 0.01] {
            for way in [Way::Connect, Way::Accept] {
                all.push((carrier, loss, way, transfers.div_ceil(8)));
            }
        }
    }
    all.push((Carrier::Tap, 0.0, Way::Exit, transfers.div_ceil(200)));
    let cell = |(n, (carrier, loss, way, transfers))| Cell {
        org: org.to_string(),
        carrier,
        way,
        loss,
        seed: SplitMix64::new(seed ^ ((n as u64) << 32)).next(),
        transfers,
        arrived: 0,
        errors: 0,
        lost: 0,
        corrupt: 0,
        bytes: 0,
    };
    all.into_iter().enumerate().map(cell).collect()
}

/// The length of transfer `id`: a quarter a few bytes, a half up to 20 kB, a quarter up to 200.
fn length(seed: u64, id: u32) -> u32 {
    let mut rng = SplitMix64::new(seed ^ (u64::from(id) << 24));
    let most = [100, 20_000, 20_000, 200_000][rng.below(4) as usize];
    rng.below(most) as u32
}

/// Byte `at` of transfer `id` is that of the common stream at this place.
fn origin(id: u32) -> u64 {
    u64::from(id) * 257
}

/// What readers have had.
#[derive(Default)]
struct Had {
    whole: HashSet<u32>,
    corrupt: u64,
    bytes: u64,
    ended: u64,
}

/// A transfer as its reader sees it.
#[derive(Default)]
struct Incoming {
    head: Vec<u8>,
    at: u64,
    wrong: bool,
}

impl Incoming {
    fn take(&mut self, mut bytes: &[u8]) {
        let missing = HEAD - self.head.len();
        if missing > 0 {
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
        }
        if let (Some((id, _)), false) = (self.known(), bytes.is_empty()) {
            self.wrong |= !content::matches(origin(id) + self.at, bytes);
            self.at += bytes.len() as u64;
        }
    }

    fn known(&self) -> Option<(u32, u32)> {
        let word = |b: &[u8]| Some(u32::from_be_bytes(b.try_into().ok()?));
        Some((word(self.head.get(..4)?)?, word(self.head.get(4..8)?)?))
    }

    /// It has ended, in order or not.
    fn end(&self, in_order: bool, had: &mut Had) {
        had.ended += 1;
        had.bytes += self.at;
        if let Some((id, len)) = self.known() {
            let too_long = self.at > u64::from(len);
            had.corrupt += u64::from(self.wrong || too_long);
            if in_order && !self.wrong && self.at == u64::from(len) {
                had.whole.insert(id);
            }
        }
    }
}

/// Where a side's connections come from.
enum From {
    Connect(SocketAddr),
    Accept(TcpListener),
}

/// What one end does with its connections.
enum Part {
    Write(Outgoing),
    Read(Incoming),
}

struct Outgoing {
    id: u32,
    head: [u8; HEAD],
    len: u64,
    at: u64,
}

impl Outgoing {
    fn new(seed: u64, id: u32) -> Outgoing {
        let len = length(seed, id);
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&id.to_be_bytes());
        head[4..].copy_from_slice(&len.to_be_bytes());
        Outgoing {
            id,
            head,
            len: HEAD as u64 + u64::from(len),
            at: 0,
        }
    }

    /// Writes what goes; whether that is all.
    fn turn(&mut self, s: &mut TcpStream) -> io::Result<bool> {
        while self.at < self.len {
            let piece = match self.at {
                at if at < HEAD as u64 => &self.head[at as usize..],
                at => content::piece(origin(self.id) + at - HEAD as u64, self.len - at),
            };
            match s.write(piece) {
                Ok(n) => self.at += n as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

/// One end of `count` transfers, several at a time on one thread.
struct End<'a> {
    stack: &'a Stack,
    from: From,
    writes: bool,
    count: u32,
    parallel: usize,
    seed: u64,
    had: Had,
    /// Transfers whose writer was told of an error.
    errors: Vec<u32>,
}

impl End<'_> {
    /// Runs until `count` connections are through with, or `over` says so; yields what was had.
    fn run(&mut self, over: impl Fn() -> bool) -> io::Result<()> {
        let poll = self.stack.poll()?;
        let registry = poll.registry();
        if let From::Accept(l) = &self.from {
            l.set_nonblocking(true)?;
            registry.register(l, Token(usize::MAX), Interest::READABLE)?;
        }
        let want = if self.writes {
            Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let (mut next, mut done) = (0, 0);
        let mut open: HashMap<usize, (TcpStream, Part)> = HashMap::new();
        let mut events = Events::with_capacity(64);
        let mut buf = vec![0; 64 * 1024];
        while done < self.count && !over() {
            while next < self.count && open.len() < self.parallel {
                match self.open() {
                    Ok(Some(s)) => {
                        s.set_nonblocking(true)?;
                        registry.register(&s, Token(next as usize), want)?;
                        let part = match self.writes {
                            true => Part::Write(Outgoing::new(self.seed, next)),
                            false => Part::Read(Incoming::default()),
                        };
                        open.insert(next as usize, (s, part));
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.errors.push(next);
                        done += 1;
                    }
                }
                next += 1;
            }
            poll.poll(&mut events, Some(Duration::from_millis(20)))?;
            for e in events.iter() {
                let Some((s, part)) = open.get_mut(&e.token().0) else {
                    continue;
                };
                let through = match part {
                    Part::Write(out) => match s.take_error().and_then(|e| e.map_or(Ok(()), Err)) {
                        Ok(()) => out.turn(s),
                        Err(e) => Err(e),
                    },
                    Part::Read(incoming) => read(s, incoming, &mut buf, &mut self.had),
                };
                if let (Err(_), Part::Write(out)) = (&through, &part) {
                    self.errors.push(out.id);
                }
                if !matches!(through, Ok(false)) {
                    // The only handle: here the socket is dropped.
                    open.remove(&e.token().0);
                    done += 1;
                }
            }
        }
        Ok(())
    }

    fn open(&self) -> io::Result<Option<TcpStream>> {
        match &self.from {
            From::Connect(to) => self.stack.start_connect(*to).map(Some),
            From::Accept(l) => match l.accept() {
                Ok((s, _)) => Ok(Some(s)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(e) => Err(e),
            },
        }
    }

    /// Goes on until nothing is left to deliver.
    fn linger(&self, mut turns: u32) -> io::Result<()> {
        let poll = self.stack.poll()?;
        let mut events = Events::with_capacity(1);
        let rests = |s| matches!(s, State::TimeWait | State::Closed);
        while turns > 0 && !self.stack.connections().iter().all(|c| rests(c.tcp.state)) {
            poll.poll(&mut events, Some(Duration::from_millis(20)))?;
            turns -= 1;
        }
        Ok(())
    }
}

/// Reads what is there; whether the stream has ended, in order or not.
fn read(s: &mut TcpStream, i: &mut Incoming, buf: &mut [u8], had: &mut Had) -> io::Result<bool> {
    loop {
        match s.read(buf) {
            Ok(0) => {
                i.end(true, had);
                return Ok(true);
            }
            Ok(n) => i.take(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => {
                i.end(false, had);
                return Err(e);
            }
        }
    }
}

/// The process that writes over TAP.
#[derive(Args, Clone, Debug)]
pub struct Writer {
    #[command(flatten)]
    setting: Setting,
    #[arg(long)]
    way: Way,
    #[arg(long)]
    count: u32,
    #[arg(long)]
    sizes: u64,
    #[arg(long)]
    first: u32,
}

impl Writer {
    /// Writes and drops.
    ///
    /// # Errors
    /// The stack can't be had.
    pub fn run(&self) -> Result<()> {
        let stack = self.setting.open()?;
        let from = match self.way {
            Way::Accept => From::Accept(stack.listen((VICTIM, PORT))?),
            _ => From::Connect((KERNEL, SINK).into()),
        };
        println!("listening");
        let mut end = End {
            stack: &stack,
            from,
            writes: true,
            count: self.count,
            parallel: 16,
            // Each process of several has sizes of its own.
            seed: self.sizes ^ (u64::from(self.first) << 40),
            had: Had::default(),
            errors: Vec::new(),
        };
        end.run(|| false)?;
        println!("{}", serde_json::to_string(&end.errors)?);
        if self.way != Way::Exit {
            end.linger(3_000)?;
        }
        Ok(())
    }
}

/// How long a cell may take, by its number of transfers.
fn limit(transfers: u64) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(40 * transfers)
}

impl Cell {
    /// Runs it. `exe` is this crate's program.
    ///
    /// # Errors
    /// The stack can't be had, or its process does not end.
    pub fn run(mut self, exe: &Path) -> Result<Cell> {
        let org: OrgSpec = self.org.parse().map_err(|e| anyhow!("{e}"))?;
        let name = format!("{self:?}");
        match (self.carrier, self.way) {
            (Carrier::Pair, _) => self.over_a_pair(&org),
            (_, Way::Exit) => namespace::within(|| self.processes_that_end(exe, &org)),
            _ => namespace::within(|| self.over_tap(exe, &org)),
        }
        .context(name)?;
        Ok(self)
    }

    fn note(&mut self, had: &Had, errors: &[u32]) {
        let arrived = had.whole.len() as u64;
        let errors = errors.iter().filter(|id| !had.whole.contains(id)).count() as u64;
        self.arrived += arrived;
        self.errors += errors;
        self.corrupt += had.corrupt;
        self.bytes += had.bytes;
        self.lost = self.transfers.saturating_sub(self.arrived + self.errors);
    }

    fn writer(&self, exe: &Path, org: &OrgSpec, count: u64, first: u64) -> Result<Victim> {
        let setting = Setting {
            loss: self.loss,
            seed: self.seed,
            memory: 1 << 30,
            ..Setting::new(org)
        };
        let more = [
            ("--way", self.way.name().to_string()),
            ("--count", count.to_string()),
            ("--sizes", self.seed.to_string()),
            ("--first", first.to_string()),
        ];
        let more: Vec<_> = more
            .into_iter()
            .flat_map(|(k, v)| [k.to_string(), v])
            .collect();
        let mut v = Victim::start(exe, "writer", &setting, &more)?;
        v.expect("listening")?;
        Ok(v)
    }

    fn over_tap(&mut self, exe: &Path, org: &OrgSpec) -> Result<()> {
        let kernel = Kernel::start(Kernel::listener(self.way)?, self.transfers);
        let mut writer = self.writer(exe, org, self.transfers, 0)?;
        kernel.go();
        let told = writer.line_within(limit(self.transfers));
        let errors: Vec<u32> = serde_json::from_str(&told?)?;
        // It stays until its stack has nothing left to deliver; what it is told then comes too.
        writer.finish(limit(0) + Duration::from_secs(30))?;
        let had = kernel.end();
        self.note(&had, &errors);
        Ok(())
    }

    fn processes_that_end(&mut self, exe: &Path, org: &OrgSpec) -> Result<()> {
        const EACH: u64 = 4;
        self.transfers = self.transfers.div_ceil(EACH) * EACH;
        let listener = Kernel::listener(self.way)?;
        for first in (0..self.transfers).step_by(EACH as usize) {
            let kernel = Kernel::start(listener.clone(), EACH);
            let mut writer = self.writer(exe, org, EACH, first)?;
            kernel.go();
            let errors: Vec<u32> = serde_json::from_str(&writer.line()?)?;
            writer.finish(limit(0))?;
            let had = kernel.end();
            self.note(&had, &errors);
        }
        Ok(())
    }

    fn over_a_pair(&mut self, org: &OrgSpec) -> Result<()> {
        // Runs of some hundred, so that none takes long and each has a seed of its own.
        const RUN: u64 = 250;
        let (mut left, mut seeds) = (self.transfers, SplitMix64::new(self.seed));
        while left > 0 {
            let count = left.min(RUN);
            let (had, errors) = paired(org, self.way, self.loss, count as u32, seeds.next())?;
            left -= count;
            self.note(&had, &errors);
        }
        Ok(())
    }

    /// Its result in a line.
    pub fn line(&self) -> String {
        format!(
            "{:<28} {:<5} {:<8} loss {:<4} {:>6} transfers, {:>6} arrived, {} told of an error, \
             {} lost, {} corrupt, {:.0} MB",
            self.org,
            if self.carrier == Carrier::Tap {
                "tap"
            } else {
                "pair"
            },
            self.way.name(),
            self.loss,
            self.transfers,
            self.arrived,
            self.errors,
            self.lost,
            self.corrupt,
            self.bytes as f64 / 1e6,
        )
    }
}

/// The kernel's readers.
struct Kernel {
    state: Arc<(AtomicBool, AtomicBool, Mutex<Had>)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Kernel {
    /// Where writers connect to, if they do. One for all of a namespace: while another cell
    /// starts a program, its child holds the port of one that was closed.
    fn listener(way: Way) -> Result<Option<Arc<std::net::TcpListener>>> {
        if way == Way::Accept {
            return Ok(None);
        }
        let l = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, SINK))?;
        l.set_nonblocking(true)?;
        Ok(Some(Arc::new(l)))
    }

    fn start(listener: Option<Arc<std::net::TcpListener>>, transfers: u64) -> Kernel {
        let state: Arc<(AtomicBool, AtomicBool, Mutex<Had>)> = Arc::default();
        let next = Arc::new(AtomicU64::new(0));
        let threads = (0..16).map(|_| {
            let (state, listener, next) = (state.clone(), listener.clone(), next.clone());
            std::thread::spawn(move || {
                let mut buf = vec![0; 64 * 1024];
                while !state.1.load(Ordering::Relaxed) {
                    let stream = match &listener {
                        _ if !state.0.load(Ordering::Relaxed) => Err(ErrorKind::WouldBlock.into()),
                        Some(l) => l.accept().map(|(s, _)| s),
                        None if next.fetch_add(1, Ordering::Relaxed) < transfers => {
                            let to = SocketAddr::from((VICTIM, PORT));
                            std::net::TcpStream::connect_timeout(&to, Duration::from_secs(60))
                        }
                        None => return,
                    };
                    match stream {
                        Ok(s) => swallow(s, &mut buf, &state.2),
                        Err(_) => std::thread::sleep(Duration::from_micros(200)),
                    }
                }
            })
        });
        let threads = threads.collect();
        Kernel { state, threads }
    }

    /// The interface is there.
    fn go(&self) {
        self.state.0.store(true, Ordering::Relaxed);
    }

    fn end(self) -> Had {
        // What was acknowledged is in the kernel's buffers, and read at once.
        std::thread::sleep(Duration::from_millis(50));
        self.state.1.store(true, Ordering::Relaxed);
        for t in self.threads {
            let _ = t.join();
        }
        std::mem::take(&mut *self.state.2.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

fn swallow(mut s: std::net::TcpStream, buf: &mut [u8], had: &Mutex<Had>) {
    // Longer than the retransmissions of what 1 % of loss makes likely. The stack has gone with
    // its process: whoever waits then waits for nothing.
    let patient = s
        .set_nonblocking(false)
        .and_then(|()| s.set_read_timeout(Some(Duration::from_secs(20))));
    let mut incoming = Incoming::default();
    let in_order = patient.is_ok()
        && loop {
            match s.read(buf) {
                Ok(0) => break true,
                Ok(n) => incoming.take(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
    if let Ok(mut had) = had.lock() {
        incoming.end(in_order, &mut had);
    }
}

/// Two stacks over a wire in virtual time; what the reader had, and what the writer was told.
fn paired(org: &OrgSpec, way: Way, loss: f64, count: u32, seed: u64) -> Result<(Had, Vec<u32>)> {
    let config = VirtualConfig::default().with_seed(seed).with_cores(4);
    let org = org.clone();
    let result = Virtual::run(config, move |p| ends(&p, &org, way, loss, count, seed));
    let (out, _) = result.map_err(|f| anyhow!("seed {seed}: {f}"))?;
    out.map_err(|e| anyhow!("seed {seed}: {e}"))
}

const ENDS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn ends(
    p: &Virtual,
    org: &OrgSpec,
    way: Way,
    loss: f64,
    count: u32,
    seed: u64,
) -> std::result::Result<(Had, Vec<u32>), String> {
    let mut wire = WireConfig::default();
    for (n, end) in wire.ends.iter_mut().enumerate() {
        end.faults = FaultConfig::default()
            .with_seed(seed ^ n as u64)
            .with_loss(loss);
    }
    let ([a, b], _) = pair(p, wire);
    // Whoever accepts is number 0.
    let ready = Arc::new(AtomicBool::new(false));
    let finished = Arc::new(AtomicU64::new(0));
    let out: Arc<Mutex<(Had, Vec<u32>)>> = Arc::default();
    let fault: Arc<Mutex<Option<String>>> = Arc::default();
    let mut joins = Vec::new();
    for (n, device) in [a, b].into_iter().enumerate() {
        let writes = (way == Way::Accept) == (n == 0);
        let (p2, org, ready, out) = (p.clone(), org.clone(), ready.clone(), out.clone());
        let (finished, fault) = (finished.clone(), fault.clone());
        let body = move || {
            let side = || -> io::Result<()> {
                let b = Stack::builder().on_virtual(p2.clone()).org(org);
                let b = b.interface(device, &[&format!("{}/24", ENDS[n])])?;
                let stack = b.build()?;
                let from = if n == 0 {
                    let l = stack.listen((ENDS[0], PORT))?;
                    ready.store(true, Ordering::Relaxed);
                    From::Accept(l)
                } else {
                    while !ready.load(Ordering::Relaxed) {
                        p2.sleep_until(p2.now() + Duration::from_micros(100));
                    }
                    let ip: Ipv4Addr = ENDS[0].parse().map_err(io::Error::other)?;
                    From::Connect((ip, PORT).into())
                };
                let mut end = End {
                    stack: &stack,
                    from,
                    writes,
                    count,
                    parallel: if n == 0 { usize::MAX } else { 8 },
                    seed,
                    had: Had::default(),
                    errors: Vec::new(),
                };
                // Who accepts does not hear of connections that never came: the other one tells.
                end.run(|| finished.load(Ordering::Relaxed) > 0)?;
                end.linger(10_000)?;
                if let Ok(mut out) = out.lock() {
                    if writes {
                        out.1 = std::mem::take(&mut end.errors);
                    } else {
                        out.0 = std::mem::take(&mut end.had);
                    }
                }
                finished.fetch_add(1, Ordering::Relaxed);
                // The other end's last words are answered until it has finished too.
                for _ in 0..1_000 {
                    if finished.load(Ordering::Relaxed) == 2 {
                        break;
                    }
                    let _ = stack.drive();
                    p2.sleep_until(p2.now() + Duration::from_millis(20));
                }
                Ok(())
            };
            if let (Err(e), Ok(mut fault)) = ({ side }(), fault.lock()) {
                *fault = Some(e.to_string());
                finished.fetch_add(1, Ordering::Relaxed);
            }
        };
        joins.push(p.spawn("end", Some(n), Box::new(body)));
    }
    for j in joins {
        j.join()?;
    }
    if let Some(e) = fault.lock().ok().and_then(|mut f| f.take()) {
        return Err(e);
    }
    let mut out = out.lock().map_err(|e| e.to_string())?;
    Ok(std::mem::take(&mut *out))
}

/// The table of recorded runs in Markdown: a row for each organization.
pub fn markdown(all: &[Cell]) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "| organization | transfers | arrived whole | writer told of an error | lost | corrupt |\n\
         |---|---|---|---|---|---|"
    );
    let mut orgs: Vec<&str> = all.iter().map(|c| c.org.as_str()).collect();
    orgs.dedup();
    for org in orgs {
        let sum = |f: fn(&Cell) -> u64| all.iter().filter(|c| c.org == org).map(f).sum::<u64>();
        let _ = writeln!(
            out,
            "| `{org}` | {} | {} | {} | {} | {} |",
            sum(|c| c.transfers),
            sum(|c| c.arrived),
            sum(|c| c.errors),
            sum(|c| c.lost),
            sum(|c| c.corrupt)
        );
    }
    out
}

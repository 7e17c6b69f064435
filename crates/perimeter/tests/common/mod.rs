//! Two stacks in virtual time: one under test, of any organization, and its peer.
#![allow(dead_code, reason = "each test crate uses a part of this")]

pub mod model;

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Builder, Config, OrgSpec, Stack, TcpListener, TcpStream, Virtual};
use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_sync::virt::{Schedule, VirtualConfig};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The organization of that name.
pub fn named(name: &str) -> OrgSpec {
    name.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// Every organization, the one that exists for tests included.
pub fn organizations() -> Vec<OrgSpec> {
    OrgSpec::tested()
}

/// What most simulations run on, with a bound that none of them comes near.
pub fn two_cores() -> VirtualConfig {
    VirtualConfig::default()
        .with_cores(2)
        .with_max_steps(20_000_000)
}

/// Runs `body` under every organization, each in a simulation of its own. What fails says which.
pub fn each_simulated(
    config: &VirtualConfig,
    body: impl Fn(Virtual, OrgSpec) + Clone + Send + 'static,
) {
    for org in organizations() {
        let (name, body) = (org.to_string(), body.clone());
        let run = Virtual::run(config.clone(), move |p| body(p, org));
        run.unwrap_or_else(|f| panic!("{name}: {f}"));
    }
}

/// So many milliseconds pass for a stack whose network is the test, which drives it.
pub fn drive(p: &Virtual, s: &Stack, ms: u64) {
    let end = p.now().plus(ms * 1_000_000);
    while p.now() < end {
        s.drive().unwrap();
        p.sleep_until(p.now().plus(200_000));
    }
}

/// How many seeds each organization gets where `of_four` are right for four of them: the more
/// organizations there are, the fewer, so that all of them take about the same time.
pub fn share(of_four: u64) -> u64 {
    (4 * of_four / organizations().len() as u64).max(1)
}

/// Those that take calls from several threads.
pub fn shared_organizations() -> Vec<OrgSpec> {
    organizations()
        .into_iter()
        .filter(|o| !o.single_threaded())
        .collect()
}

/// Whether it is always the writer who enters the connection, and not another thread for it.
pub fn written_here(org: &OrgSpec) -> bool {
    let name = org.to_string();
    let here = ["up", "connp-l", "msgp", "squeue"];
    here.iter().any(|p| name.starts_with(p))
}

/// Which IP two stacks speak with each other.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// That of the variable `PERIMETER_FAMILY`, 4 or 6. Where it says nothing, every test runs
    /// about half of the organizations over IPv6, and each organization about half of the tests:
    /// which ones follows from both names.
    fn of(org: &OrgSpec) -> Family {
        match std::env::var("PERIMETER_FAMILY").as_deref() {
            Ok("4") => return Family::V4,
            Ok("6") => return Family::V6,
            Ok(other) => panic!("PERIMETER_FAMILY is {other}, and may be 4 or 6"),
            Err(_) => {}
        }
        // The harness names threads after their tests.
        let test = std::thread::current();
        let names = format!("{} {org}", test.name().unwrap_or_default());
        // FNV-1a, so that it is the same everywhere; its lowest bits know of few bytes.
        let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = names.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        match (hash >> 32).is_multiple_of(2) {
            true => Family::V4,
            false => Family::V6,
        }
    }

    /// What `PERIMETER_FAMILY` says for it.
    fn number(self) -> u8 {
        match self {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }

    /// The addresses of the stack under test and of its peer.
    pub fn hosts(self) -> [IpAddr; 2] {
        [1u8, 2].map(|n| match self {
            Family::V4 => Ipv4Addr::new(10, 0, 0, n).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into(),
        })
    }

    fn prefix(self) -> u8 {
        match self {
            Family::V4 => 24,
            Family::V6 => 64,
        }
    }
}

/// What a world is made of.
#[derive(Clone)]
pub struct Setup {
    pub org: OrgSpec,
    pub family: Family,
    pub config: Config,
    pub peer: Config,
    pub wire: WireConfig,
    pub virt: VirtualConfig,
}

impl Setup {
    pub fn new(org: OrgSpec) -> Setup {
        let wire = WireConfig::default().with_latency_ns(1_000_000);
        let virt = two_cores();
        Setup {
            family: Family::of(&org),
            org,
            config: Config::default(),
            peer: Config::default(),
            wire,
            virt,
        }
    }

    pub fn schedule(mut self, schedule: Schedule, seed: u64, cores: usize) -> Setup {
        self.virt = self
            .virt
            .with_schedule(schedule)
            .with_seed(seed)
            .with_cores(cores);
        self
    }

    /// Runs `body` in this world; a failure names organization, family, seed and schedule.
    pub fn run(self, body: impl FnOnce(World) + Send + 'static) {
        if let Err(f) = self.try_run(body) {
            panic!("{f}");
        }
    }

    /// As [`Setup::run`], for bodies that may fail.
    pub fn try_run(
        self,
        body: impl FnOnce(World) + Send + 'static,
    ) -> std::result::Result<(), String> {
        let (org, family) = (self.org.clone(), self.family.number());
        let result = Virtual::run(self.virt.clone(), move |p| body(World::new(p, self)));
        let failed = |f| format!("{org}, PERIMETER_FAMILY={family}: {f}");
        result.map(drop).map_err(failed)
    }
}

/// Runs `body` under every organization.
pub fn under_all(change: impl Fn(&mut Setup), body: impl FnOnce(World) + Copy + Send + 'static) {
    for org in organizations() {
        let mut setup = Setup::new(org);
        change(&mut setup);
        setup.run(body);
    }
}

/// A stack under test, at 10.0.0.1 or fd00::1, and its peer, at 10.0.0.2 or fd00::2, which any
/// thread may use.
pub struct World {
    pub p: Virtual,
    pub s: Stack,
    pub peer: Stack,
    /// The addresses of both.
    pub hosts: [IpAddr; 2],
    next_port: Cell<u16>,
}

pub const LONG: Duration = Duration::from_secs(200);

impl World {
    fn new(p: Virtual, setup: Setup) -> World {
        let ([a, b], _) = pair(&p, setup.wire);
        let build = |org, config, end, addr| {
            let b: Builder = Stack::builder()
                .on_virtual(p.clone())
                .org(org)
                .config(config);
            let addr = format!("{addr}/{}", setup.family.prefix());
            b.interface(end, &[&addr]).unwrap().build().unwrap()
        };
        let hosts = setup.family.hosts();
        let s = build(setup.org, setup.config, a, hosts[0]);
        let peer = build(OrgSpec::default(), setup.peer, b, hosts[1]);
        World {
            p,
            s,
            peer,
            hosts,
            next_port: Cell::new(1000),
        }
    }

    pub fn now(&self) -> Time {
        self.p.now()
    }

    /// A little time passes, in which everybody works who has work: less at the beginning of
    /// what began at `start`.
    fn step(&self, start: Time) {
        for s in [&self.s, &self.peer] {
            match s.drive() {
                // It was stopped.
                Err(e) if e.kind() == ErrorKind::NotConnected => {}
                r => drop(r.unwrap()),
            }
        }
        let now = self.p.now();
        let early = now.since(start) < Duration::from_millis(100);
        self.p
            .sleep_until(now.plus(if early { 200_000 } else { 3_000_000 }));
    }

    pub fn pass(&self, d: Duration) {
        let (start, end) = (self.p.now(), self.p.now() + d);
        while self.p.now() < end {
            self.step(start);
        }
    }

    /// Steps until `cond` holds; fails after a long time.
    pub fn until(&self, what: &str, mut cond: impl FnMut() -> bool) {
        let (start, end) = (self.p.now(), self.p.now() + LONG);
        while !cond() {
            assert!(
                self.p.now() < end,
                "{}: {what} never came",
                self.s.organization()
            );
            self.step(start);
        }
    }

    /// Steps until `f` no longer would block.
    pub fn wait<T>(&self, what: &str, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let mut out = None;
        self.until(what, || match f() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => false,
            r => {
                out = Some(r);
                true
            }
        });
        out.unwrap()
    }

    /// An address of the stack under test.
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.hosts[0], port).into()
    }

    /// An address of its peer.
    pub fn there(&self, port: u16) -> SocketAddr {
        (self.hosts[1], port).into()
    }

    /// An address of their network that no host has.
    pub fn nobody(&self, port: u16) -> SocketAddr {
        let ip = match self.hosts[0] {
            IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 77).into(),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 77)),
        };
        (ip, port).into()
    }

    /// Waits until both may use their addresses: those of IPv6 are probed for duplicates first
    /// (RFC 4862, section 5.4).
    pub fn settle(&self) {
        if self.hosts[0].is_ipv6() {
            self.pass(Duration::from_secs(2));
        }
    }

    pub fn port(&self) -> u16 {
        self.next_port.set(self.next_port.get() + 1);
        self.next_port.get()
    }

    /// A connection that the stack under test opened, and the peer's end; neither blocks.
    pub fn open(&self) -> (TcpStream, TcpStream) {
        let addr = SocketAddr::from((self.hosts[1], self.port()));
        let l = self.peer.listen(addr).unwrap();
        self.connect(&self.s, &l, addr)
    }

    /// A connection that the peer opened, the end under test first; neither blocks.
    pub fn opened(&self) -> (TcpStream, TcpStream) {
        let addr = SocketAddr::from((self.hosts[0], self.port()));
        let l = self.s.listen(addr).unwrap();
        let (theirs, ours) = self.connect(&self.peer, &l, addr);
        (ours, theirs)
    }

    /// Connects from `stack` to `l`; neither end blocks.
    pub fn connect(
        &self,
        stack: &Stack,
        l: &TcpListener,
        addr: SocketAddr,
    ) -> (TcpStream, TcpStream) {
        l.set_nonblocking(true).unwrap();
        let a = stack.start_connect(addr).unwrap();
        let (b, _) = self.wait("connection", || l.accept()).unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    /// What reading yields once it does not block.
    pub fn read(&self, s: &TcpStream) -> Result<Vec<u8>> {
        let mut buf = vec![0; 65536];
        let n = self.wait("data", || (&*s).read(&mut buf))?;
        buf.truncate(n);
        Ok(buf)
    }

    /// Writes all of it.
    pub fn write(&self, s: &TcpStream, mut data: &[u8]) {
        while !data.is_empty() {
            let n = self.wait("room", || (&*s).write(data)).unwrap();
            data = &data[n..];
        }
    }

    /// Reads to the end of the stream.
    pub fn read_all(&self, s: &TcpStream) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let part = self.read(s)?;
            if part.is_empty() {
                return Ok(all);
            }
            all.extend(part);
        }
    }
}

/// Writes until there is no room; how much that was.
pub fn fill(s: &TcpStream) -> usize {
    let mut total = 0;
    loop {
        match (&*s).write(&[b'x'; 4096]) {
            Ok(n) => total += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return total,
            Err(e) => panic!("{e}"),
        }
    }
}

pub fn kind<T>(r: Result<T>) -> Option<ErrorKind> {
    r.err().map(|e| e.kind())
}

/// Content that tells places apart.
pub fn content(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

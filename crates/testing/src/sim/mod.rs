//! Asynchronous programs on tokio, in virtual time.

mod host;
mod runtime;
pub(crate) mod world;

use crate::error::{Result, SimError, What};
use crate::link::{Link, nanos};
use host::{Host, Software};
use perimeter::TcpConfig;
use perimeter_base::Time;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use world::{Command, World};

/// How finely tokio's timers count, ns: programs run at whole milliseconds only. Stacks and links
/// are exact to the nanosecond.
const TICK: u64 = 1_000_000;

/// How often something may happen at one moment. More is an endless loop.
const AT_ONCE: u32 = 1_000_000;

/// What a test does at a given time.
type Act = Box<dyn FnOnce(&mut Sim)>;

/// Collects what a simulation is made of.
#[derive(Clone, Debug)]
pub struct Builder {
    seed: u64,
    link: Link,
    limit: Duration,
    tcp: TcpConfig,
}

impl Builder {
    /// What every link is like unless [`Sim::link`] says otherwise. Default: 5 ms each way, no
    /// faults.
    pub fn link(mut self, link: Link) -> Builder {
        self.link = link;
        self
    }

    /// How long [`Sim::run`] lets time pass, in the simulation's own time, before it gives up on
    /// clients that have not ended. Default 10 minutes.
    pub fn time_limit(mut self, limit: Duration) -> Builder {
        self.limit = limit;
        self
    }

    /// What connections are made with on every host.
    pub fn tcp(mut self, tcp: TcpConfig) -> Builder {
        self.tcp = tcp;
        self
    }

    /// A simulation without hosts.
    pub fn build(self) -> Sim {
        Sim {
            world: Rc::new(World::new(self.seed, &self.link)),
            hosts: Vec::new(),
            now: Time::ZERO,
            limit: self.limit,
            tcp: self.tcp,
            acts: BTreeMap::new(),
            numbered: 0,
        }
        .begun()
    }
}

/// A simulation: hosts with a stack of their own each, links between them, and programs.
///
/// All of it runs on the calling thread, and nothing waits for real time: where all programs wait
/// for a timer or a packet, the clock jumps there. The same seed gives the same run, as far as
/// programs take their time, their randomness and their network from here
/// ([what remains](crate#what-a-seed-does-not-cover)).
pub struct Sim {
    // Before the hosts, which ask it to the end.
    hosts: Vec<Host>,
    world: Rc<World>,
    /// How far programs have run. The clock is there while they do.
    now: Time,
    limit: Duration,
    tcp: TcpConfig,
    /// What is to be done when, in order.
    acts: BTreeMap<(Time, u64), Act>,
    numbered: u64,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// A simulation with the usual settings.
    pub fn new(seed: u64) -> Sim {
        Sim::builder(seed).build()
    }

    /// Starts to collect settings.
    pub fn builder(seed: u64) -> Builder {
        Builder {
            seed,
            link: Link::default(),
            limit: Duration::from_secs(600),
            tcp: TcpConfig::default(),
        }
    }

    fn begun(mut self) -> Sim {
        self.now = self.world.now();
        self
    }

    /// Adds a host, at the next free address from 10.0.0.1 on, and starts it. `program` is called
    /// whenever the host starts: now, and after each [`Sim::restart`].
    ///
    /// # Panics
    /// If there is a host of that name.
    pub fn host<P, F>(&mut self, name: &str, program: P)
    where
        P: Fn() -> F + 'static,
        F: Future<Output = Result> + 'static,
    {
        self.add(name, None, serving(program));
    }

    /// As [`Sim::host`], at that address.
    ///
    /// # Panics
    /// If there is a host of that name or at that address.
    pub fn host_at<P, F>(&mut self, name: &str, addr: IpAddr, program: P)
    where
        P: Fn() -> F + 'static,
        F: Future<Output = Result> + 'static,
    {
        self.add(name, Some(addr), serving(program));
    }

    /// Adds a host whose program [`Sim::run`] waits for.
    ///
    /// # Panics
    /// If there is a host of that name.
    pub fn client(&mut self, name: &str, program: impl Future<Output = Result> + 'static) {
        self.add(name, None, Software::Client(Some(Box::pin(program))));
    }

    /// As [`Sim::client`], at that address.
    ///
    /// # Panics
    /// If there is a host of that name or at that address.
    pub fn client_at(
        &mut self,
        name: &str,
        addr: IpAddr,
        program: impl Future<Output = Result> + 'static,
    ) {
        self.add(name, Some(addr), Software::Client(Some(Box::pin(program))));
    }

    fn add(&mut self, name: &str, addr: Option<IpAddr>, software: Software) {
        let known = self.world.add(name, addr);
        let mut host = Host::new(self.hosts.len(), known, software, self.tcp.clone());
        host.start(&self.world);
        self.hosts.push(host);
    }

    /// Makes the link between two hosts, given by name or address, behave as `link` says, in both
    /// directions.
    ///
    /// # Panics
    /// If there is no such host; as all calls that name one.
    pub fn link(&mut self, a: &str, b: &str, link: &Link) {
        self.link_one_way(a, b, link);
        self.link_one_way(b, a, link);
    }

    /// As [`Sim::link`], for packets from `from` to `to` only.
    pub fn link_one_way(&mut self, from: &str, to: &str, link: &Link) {
        let (from, to) = self.world.ports(from, to);
        self.world.network.link(from, to, &link.faults());
    }

    /// Cuts the link between two hosts: packets that are sent from now on are lost, those under way
    /// arrive. Neither host is told.
    pub fn partition(&mut self, a: &str, b: &str) {
        self.world.cut(a, b);
        self.world.cut(b, a);
    }

    /// As [`Sim::partition`], for packets from `from` to `to` only.
    pub fn partition_one_way(&mut self, from: &str, to: &str) {
        self.world.cut(from, to);
    }

    /// Heals what [`Sim::partition`] and [`Sim::partition_one_way`] cut between two hosts.
    pub fn heal(&mut self, a: &str, b: &str) {
        self.world.mend(a, b);
        self.world.mend(b, a);
    }

    /// Power fails on a host: its tasks are dropped where they stand, and its connections vanish
    /// without a packet. What its peers send is lost until it starts again, and then answered by
    /// resets. Nothing happens if it is down.
    pub fn crash(&mut self, host: &str) {
        let n = self.world.host(host);
        self.hosts[n].crash();
    }

    /// Starts a host again, after a crash if it is up. A client has no program then.
    pub fn restart(&mut self, host: &str) {
        let n = self.world.host(host);
        self.restart_host(n);
    }

    fn restart_host(&mut self, n: usize) {
        self.hosts[n].crash();
        self.hosts[n].start(&self.world);
    }

    /// Whether a host is up.
    pub fn is_up(&self, host: &str) -> bool {
        self.hosts[self.world.host(host)].is_up()
    }

    /// Does `act` when the simulation has run for `elapsed`, or at once if it has, before programs
    /// that run at the same time.
    pub fn at(&mut self, elapsed: Duration, act: impl FnOnce(&mut Sim) + 'static) {
        let at = self.world.after(elapsed);
        self.numbered += 1;
        self.acts.insert((at, self.numbered), Box::new(act));
    }

    /// The address of a host.
    pub fn lookup(&self, host: &str) -> IpAddr {
        self.hosts[self.world.host(host)].known.addr
    }

    /// How long the simulation has run, in its own time.
    pub fn elapsed(&self) -> Duration {
        self.world.elapsed()
    }

    /// A hash over every packet so far: when and by whom it was sent, what it holds, when it
    /// arrives. Runs with equal digests have had equal traffic.
    pub fn digest(&self) -> u64 {
        self.world.network.digest()
    }

    /// What the network has done so far.
    pub fn counts(&self) -> perimeter_link::network::NetworkCounts {
        self.world.network.counts()
    }

    /// Runs until every client has ended.
    ///
    /// # Errors
    /// A program has failed, or time is up.
    pub fn run(&mut self) -> std::result::Result<(), SimError> {
        let end = self.world.after(self.limit);
        loop {
            self.settle()?;
            if !self.hosts.iter().any(Host::is_awaited) {
                return Ok(());
            }
            if self.now >= end {
                let late = self.hosts.iter().filter(|h| h.is_awaited());
                let late = late.map(|h| h.known.name.clone()).collect();
                return Err(self.failed(What::TimeUp(late)));
            }
            self.go_on(end);
        }
    }

    /// Runs for that long, in the simulation's own time, whether clients have ended or not.
    ///
    /// # Errors
    /// A program has failed.
    pub fn run_for(&mut self, time: Duration) -> std::result::Result<(), SimError> {
        let end = next_tick(self.now.plus(nanos(time)));
        loop {
            self.settle()?;
            if self.now >= end {
                return Ok(());
            }
            self.go_on(end);
        }
    }

    /// Ends all programs, whose sockets are closed as when a process ends, heals nothing, and lets
    /// stacks come to rest: for as long as it takes, but for at most `time`.
    ///
    /// # Errors
    /// Some stack still has connections then, or packets that it has not sent. A peer that is down
    /// or cut off leaves its connections until their retransmissions have been tried, for a quarter
    /// of an hour.
    pub fn wind_down(&mut self, time: Duration) -> std::result::Result<(), SimError> {
        for host in &mut self.hosts {
            host.end_program();
        }
        let end = next_tick(self.now.plus(nanos(time)));
        loop {
            self.settle()?;
            let left: Vec<String> = self.hosts.iter().flat_map(Host::left).collect();
            if left.is_empty() && self.world.network.in_flight() == 0 {
                return Ok(());
            }
            if self.now >= end {
                return Err(self.failed(What::Left(left)));
            }
            self.go_on(end);
        }
    }

    fn failed(&self, what: What) -> SimError {
        SimError {
            seed: self.world.seed,
            after: self.world.elapsed(),
            what,
        }
    }

    /// Everything that happens up to now, in the test, in the stacks and in the programs.
    fn settle(&mut self) -> std::result::Result<(), SimError> {
        for _ in 0..AT_ONCE {
            self.catch_up();
            while let Some(act) = self.act_due() {
                act(self);
            }
            let mut quiet = true;
            for n in 0..self.hosts.len() {
                let host = &mut self.hosts[n];
                // Who is ahead goes on when the others have come there.
                if !host.ready || host.clock() > Some(self.now) {
                    continue;
                }
                host.ready = false;
                quiet = false;
                let ran = host.run();
                ran.map_err(|what| self.failed(what))?;
                self.obey();
            }
            if quiet && self.stacks_due().0 > self.now {
                return Ok(());
            }
        }
        panic!(
            "programs run on and on, and time stands still at {:?}",
            self.elapsed()
        );
    }

    fn act_due(&mut self) -> Option<Act> {
        let first = self.acts.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    /// Does what programs have asked for.
    fn obey(&mut self) {
        loop {
            let commands = std::mem::take(&mut *self.world.commands.borrow_mut());
            if commands.is_empty() {
                return;
            }
            for command in commands {
                match command {
                    Command::Crash(n) => self.hosts[n].crash(),
                    Command::Restart(n) => self.restart_host(n),
                }
            }
        }
    }

    /// When the first stack has something to do, and whose that is.
    fn stacks_due(&self) -> (Time, usize) {
        let due = self.hosts.iter().map(Host::stack_due);
        let due = due.enumerate().map(|(n, at)| (at, n));
        due.min().unwrap_or((Time::NEVER, 0))
    }

    /// Lets stacks do what is due up to now, each at its time and in order.
    fn catch_up(&mut self) {
        for _ in 0..AT_ONCE {
            let (due, n) = self.stacks_due();
            if due > self.now {
                self.world.set_clock(self.now);
                return;
            }
            self.world.set_clock(due.max(self.world.now()));
            self.hosts[n].drive(self.now);
        }
        panic!("a stack always has something to do at {:?}", self.elapsed());
    }

    /// Lets time pass until something may happen, at most until `end`.
    ///
    /// Programs of different hosts reach each other through packets only, and no packet arrives
    /// sooner than the shortest delay after it was sent. A host whose programs have been found to
    /// have nothing to do up to some time sends nothing before. So each may go ahead of the one that
    /// is behind by as much as the shortest delay, or to where the first packet arrives that is under
    /// way already.
    fn go_on(&mut self, end: Time) {
        let ahead = (self.world.network.shortest_delay() / TICK * TICK).max(TICK);
        let act = self
            .acts
            .first_key_value()
            .map_or(Time::NEVER, |(k, _)| k.0);
        let until = end.min(next_tick(self.stacks_due().0.min(act)));
        for n in 0..self.hosts.len() {
            if self.hosts[n].clock() != Some(self.now) {
                continue;
            }
            let others = self
                .hosts
                .iter()
                .filter(|h| h.known.port != self.hosts[n].known.port);
            let behind = others.filter_map(Host::clock).min().unwrap_or(Time::NEVER);
            self.hosts[n].advance(until.min(behind.plus(ahead)));
        }
        let clocks = self.hosts.iter().filter_map(Host::clock);
        self.now = clocks.min().unwrap_or(until).min(until);
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // In an order that is the same each time.
        self.hosts.clear();
    }
}

/// The address of a host of the simulation that the calling program runs in; of a host by its name.
/// `None`: there is none of that name.
///
/// # Panics
/// Outside of hosts of a simulation, as all functions here.
pub fn lookup(host: &str) -> Option<IpAddr> {
    world::within(|here| here.world.address(host))
}

/// The name of the host that the calling program runs on.
pub fn host_name() -> String {
    world::within(|here| here.world.hosts.borrow()[here.host].name.clone())
}

/// How long the simulation has run, in its own time.
pub fn elapsed() -> Duration {
    world::within(|here| here.world.elapsed())
}

/// As [`Sim::partition`], for programs under test.
pub fn partition(a: &str, b: &str) {
    world::within(|here| {
        here.world.cut(a, b);
        here.world.cut(b, a);
    });
}

/// As [`Sim::heal`], for programs under test.
pub fn heal(a: &str, b: &str) {
    world::within(|here| {
        here.world.mend(a, b);
        here.world.mend(b, a);
    });
}

/// As [`Sim::crash`], for programs under test: done when the calling host's tasks wait.
pub fn crash(host: &str) {
    command(host, Command::Crash);
}

/// As [`Sim::restart`], for programs under test: done when the calling host's tasks wait.
pub fn restart(host: &str) {
    command(host, Command::Restart);
}

fn command(host: &str, command: fn(usize) -> Command) {
    world::within(|here| {
        let n = here.world.host(host);
        here.world.commands.borrow_mut().push(command(n));
    });
}

fn serving<P, F>(program: P) -> Software
where
    P: Fn() -> F + 'static,
    F: Future<Output = Result> + 'static,
{
    Software::Host(Box::new(move || Box::pin(program())))
}

/// The first tick that is not before `at`.
fn next_tick(at: Time) -> Time {
    match at {
        Time::NEVER => Time::NEVER,
        Time(ns) => Time(ns.div_ceil(TICK).saturating_mul(TICK)),
    }
}

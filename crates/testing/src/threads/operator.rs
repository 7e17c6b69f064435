//! Who starts the hosts, does to them what the test wants, and waits for their end.

use super::host::{self, Host, Life};
use super::{Network, Report, Spec};
use crate::error::What;
use crate::link::Link;
use perimeter::{OrgSpec, TcpConfig, Virtual};
use perimeter_base::Time;
use perimeter_link::network::{self, PortId};
use perimeter_sync::{Event, Platform};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is done at some time.
pub(super) type Act = Box<dyn FnOnce(&Operator) + Send>;

/// How often who waits for quiet looks.
const LOOK: Duration = Duration::from_millis(20);

/// A host, up or not.
pub(super) struct Place {
    pub(super) spec: Spec,
    pub(super) port: PortId,
    life: Option<Arc<Life>>,
    /// Its program is one that is waited for, and runs.
    awaited: bool,
}

/// What all threads of a simulation share. Its lock is never held while a thread could wait.
pub(super) struct Shared {
    pub(super) p: Virtual,
    pub(super) network: network::Network,
    pub(super) org: OrgSpec,
    pub(super) tcp: TcpConfig,
    begin: Time,
    places: Mutex<Vec<Place>>,
    /// The first failure, and when.
    failure: Mutex<Option<(Duration, What)>>,
    /// A client has ended, or something has failed.
    news: <Virtual as Platform>::Event,
}

impl Shared {
    pub(super) fn elapsed(&self) -> Duration {
        self.p.now().since(self.begin)
    }

    pub(super) fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<(Duration, What)>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure is what is told.
    pub(super) fn fail(&self, what: What) {
        let after = self.elapsed();
        self.failure().get_or_insert((after, what));
        self.news.set();
    }

    /// The address of the host of that name.
    pub(super) fn lookup(&self, name: &str) -> Option<IpAddr> {
        let places = self.places();
        let found = places.iter().find(|h| h.spec.name == name);
        found.map(|h| h.spec.addr)
    }

    /// The number of the host of that name or address.
    ///
    /// # Panics
    /// If there is none: a mistake in the test.
    pub(super) fn number(&self, host: &str) -> usize {
        let addr = host.parse::<IpAddr>().ok();
        let is = |h: &Place| h.spec.name == host || Some(h.spec.addr) == addr;
        let found = self.places().iter().position(is);
        found.unwrap_or_else(|| panic!("there is no host `{host}` in this simulation"))
    }

    fn port(&self, host: &str) -> PortId {
        let n = self.number(host);
        self.places()[n].port
    }

    pub(super) fn cut(&self, from: &str, to: &str, cut: bool) {
        let (from, to) = (self.port(from), self.port(to));
        match cut {
            true => self.network.cut(from, to),
            false => self.network.mend(from, to),
        }
    }

    fn link(&self, from: &str, to: &str, link: &Link) {
        let (from, to) = (self.port(from), self.port(to));
        self.network.link(from, to, &link.faults());
    }

    /// Takes a host's power away.
    pub(super) fn crash(&self, n: usize) {
        let (port, life) = {
            let mut places = self.places();
            let place = &mut places[n];
            place.awaited = false;
            (place.port, place.life.take())
        };
        self.network.unplug(port);
        if let Some(life) = life {
            life.end();
        }
        self.news.set();
    }

    pub(super) fn start(self: &Arc<Shared>, n: usize) {
        self.crash(n);
        let (spec, port) = {
            let mut places = self.places();
            let place = &mut places[n];
            place.awaited = place.spec.client;
            (place.spec.clone(), place.port)
        };
        let life = Arc::new(Life::default());
        self.places()[n].life = Some(life.clone());
        host::start(self, n, spec, port, life);
    }

    /// A host's program has ended; of the life before a crash nobody is told.
    pub(super) fn ended(&self, n: usize, life: &Arc<Life>) {
        let mut places = self.places();
        let now = places[n].life.as_ref();
        if now.is_some_and(|now| Arc::ptr_eq(now, life)) {
            places[n].awaited = false;
            drop(places);
            self.news.set();
        }
    }

    fn awaited(&self) -> Vec<String> {
        let places = self.places();
        let late = places.iter().filter(|h| h.awaited);
        late.map(|h| h.spec.name.clone()).collect()
    }

    /// What is left on hosts that are up.
    fn left(&self) -> Vec<String> {
        let lives: Vec<_> = {
            let places = self.places();
            let up = places
                .iter()
                .filter_map(|h| Some((h.spec.name.clone(), h.life.clone()?)));
            up.collect()
        };
        let mut left = Vec::new();
        for (name, life) in lives {
            let Some(stack) = life.stack() else { continue };
            match stack.try_connections() {
                Ok(all) => left.extend(all.iter().map(|c| crate::error::left(&name, c))),
                Err(e) => left.push(format!("`{name}` can't be asked: {e}")),
            }
        }
        left
    }
}

/// What a test can do to a simulation while it runs.
pub struct Operator {
    shared: Arc<Shared>,
}

impl Operator {
    /// Cuts the link between two hosts, given by name or address: packets that are sent from now on
    /// are lost, those under way arrive.
    ///
    /// # Panics
    /// If there is no such host; as all calls that name one.
    pub fn partition(&self, a: &str, b: &str) {
        self.shared.cut(a, b, true);
        self.shared.cut(b, a, true);
    }

    /// As [`Operator::partition`], for packets from `from` to `to` only.
    pub fn partition_one_way(&self, from: &str, to: &str) {
        self.shared.cut(from, to, true);
    }

    /// Heals what was cut between two hosts.
    pub fn heal(&self, a: &str, b: &str) {
        self.shared.cut(a, b, false);
        self.shared.cut(b, a, false);
    }

    /// Changes the link between two hosts, in both directions.
    pub fn link(&self, a: &str, b: &str, link: &Link) {
        self.shared.link(a, b, link);
        self.shared.link(b, a, link);
    }

    /// Power fails on a host: its connections vanish without a packet, and what its peers send is
    /// lost until it starts again, and then answered by resets. Its threads end at their next call of
    /// a socket or of their [`Host`], or in the one that they are in: not in the middle of a
    /// computation, as nobody can stop a thread there.
    pub fn crash(&self, host: &str) {
        self.shared.crash(self.shared.number(host));
    }

    /// Starts a host again, after a crash if it is up.
    pub fn restart(&self, host: &str) {
        self.shared.start(self.shared.number(host));
    }

    /// How long the simulation has run, in its own time.
    pub fn elapsed(&self) -> Duration {
        self.shared.elapsed()
    }
}

/// The simulation's first thread.
pub(super) fn run(p: Virtual, net: Network) -> Result<Report, (Duration, What)> {
    let network = network::Network::new(net.seed, net.link.faults());
    let place = |spec: &Spec| {
        let port = network.port();
        network.assign(spec.addr, port);
        Place {
            spec: spec.clone(),
            port,
            life: None,
            awaited: false,
        }
    };
    let places: Vec<Place> = net.hosts.iter().map(place).collect();
    let shared = Arc::new(Shared {
        begin: p.now(),
        network,
        org: net.org,
        tcp: net.tcp,
        places: Mutex::new(places),
        failure: Mutex::default(),
        news: p.event(),
        p,
    });
    for (a, b, link) in &net.links {
        shared.link(a, b, link);
    }
    for n in 0..net.hosts.len() {
        shared.start(n);
    }
    watch(&shared, net.acts, net.limit);
    let failed = shared.failure().is_some();
    if let Some(time) = net.quiet.filter(|_| !failed) {
        come_to_rest(&shared, time);
    }
    let elapsed = shared.elapsed();
    for n in 0..net.hosts.len() {
        shared.crash(n);
    }
    let failure = shared.failure().take();
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Report {
            elapsed,
            digest: shared.network.digest(),
            counts: shared.network.counts(),
        }),
    }
}

/// Waits until nothing is left in any stack, for at most `time`.
fn come_to_rest(shared: &Shared, time: Duration) {
    let end = shared.p.now() + time;
    loop {
        let left = shared.left();
        if left.is_empty() && shared.network.in_flight() == 0 {
            return;
        }
        if shared.p.now() >= end {
            return shared.fail(What::Left(left));
        }
        shared.p.sleep_until(shared.p.now() + LOOK);
    }
}

/// Does what is to be done at its time, until the clients have ended, something has failed, or time
/// is up.
fn watch(shared: &Arc<Shared>, mut acts: Vec<(Duration, Act)>, limit: Duration) {
    let operator = Operator {
        shared: shared.clone(),
    };
    // The first at the end; of those for one time the first that was given.
    acts.sort_by_key(|(at, _)| *at);
    acts.reverse();
    let end = shared.begin + limit;
    loop {
        let due = acts
            .last()
            .map_or(Time::NEVER, |(at, _)| shared.begin + *at);
        if due <= shared.p.now() {
            if let Some((_, act)) = acts.pop() {
                act(&operator);
            }
            continue;
        }
        let late = shared.awaited();
        let failed = shared.failure().is_some();
        if late.is_empty() || failed {
            return;
        }
        if shared.p.now() >= end {
            return shared.fail(What::TimeUp(late));
        }
        shared.news.wait(due.min(end));
    }
}

impl Host {
    /// As [`Operator::partition`].
    pub fn partition(&self, a: &str, b: &str) {
        self.operator().partition(a, b);
    }

    /// As [`Operator::heal`].
    pub fn heal(&self, a: &str, b: &str) {
        self.operator().heal(a, b);
    }

    /// What the test can do from outside, for its programs.
    pub fn operator(&self) -> Operator {
        Operator {
            shared: self.shared().clone(),
        }
    }
}

//! Who starts the hosts, does to them what the test wants, and waits for their end.

use super::host::{self, Spec};
use super::shared::{Place, Shared};
use crate::error::What;
use crate::link::Link;
use perimeter::{OrgSpec, TcpConfig, Virtual};
use perimeter_base::Time;
use perimeter_link::network;
use perimeter_sync::{Event, Platform};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done at some time.
pub(super) type Act = Box<dyn FnOnce(&Operator) + Send>;

/// How often who waits for quiet looks.
const LOOK: Duration = Duration::from_millis(20);

/// What a test can do to a simulation while it runs.
pub struct Operator {
    shared: Arc<Shared>,
    specs: Vec<Spec>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
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
    /// a socket or of their [`Host`](super::Host), or in the one that they are in: not in the middle of a
    /// computation, as nobody can stop a thread there.
    pub fn crash(&self, host: &str) {
        self.shared.crash(self.shared.number(host));
    }

    /// Starts a host again, after a crash if it is up.
    pub fn restart(&self, host: &str) {
        let n = self.shared.number(host);
        host::start(&self.shared, n, &self.specs[n]);
    }

    /// How long the simulation has run, in its own time.
    pub fn elapsed(&self) -> Duration {
        self.shared.elapsed()
    }
}

/// How a simulation went.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// How long it ran, in its own time.
    pub elapsed: Duration,
    /// As [`Sim::digest`](crate::Sim::digest).
    pub digest: u64,
    /// What the network has done.
    pub counts: network::NetworkCounts,
}

/// What a simulation is made of.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) usual: Link,
    pub(super) links: Vec<(String, String, Link)>,
    pub(super) org: OrgSpec,
    pub(super) tcp: TcpConfig,
    pub(super) limit: Duration,
    pub(super) quiet: Option<Duration>,
    pub(super) hosts: Vec<Spec>,
    pub(super) acts: Vec<(Duration, Act)>,
}

/// The simulation's first thread.
pub(super) fn run(p: Virtual, plan: Plan) -> Result<Report, (Duration, What)> {
    let network = network::Network::new(plan.seed, plan.usual.faults());
    let place = |spec: &Spec| {
        let port = network.port();
        network.assign(spec.addr, port);
        Place {
            name: spec.name.clone(),
            addr: spec.addr,
            port,
            life: None,
            awaited: false,
        }
    };
    let places: Vec<Place> = plan.hosts.iter().map(place).collect();
    let shared = Arc::new(Shared {
        begin: p.now(),
        network,
        org: plan.org,
        tcp: plan.tcp,
        places: Mutex::new(places),
        failure: Mutex::default(),
        news: p.event(),
        p,
    });
    let operator = Operator {
        shared: shared.clone(),
        specs: plan.hosts,
    };
    for (a, b, link) in &plan.links {
        shared.link(a, b, link);
    }
    for (n, spec) in operator.specs.iter().enumerate() {
        host::start(&shared, n, spec);
    }
    watch(&operator, plan.acts, plan.limit);
    let failed = shared.failure().is_some();
    if let Some(time) = plan.quiet.filter(|_| !failed) {
        come_to_rest(&shared, time);
    }
    let elapsed = shared.elapsed();
    for n in 0..operator.specs.len() {
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
fn watch(operator: &Operator, mut acts: Vec<(Duration, Act)>, limit: Duration) {
    let shared = &*operator.shared;
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
                act(operator);
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

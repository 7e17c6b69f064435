//! Programs with blocking calls, in virtual time.
//!
//! Hosts are as in [`Sim`](crate::Sim), but their programs are written as for `std::net`, may have
//! several threads, and their stacks may be of any organization: threads are virtual ones
//! ([`perimeter::virt`]), of which one runs at a time, and work takes time. Time passes while
//! threads wait.
//!
//! ```
//! use perimeter_testing::threads::Network;
//! use std::io::{Read, Write};
//! use std::time::Duration;
//!
//! let mut net = Network::new(7);
//! net.host("server", "10.0.0.1", |host| {
//!     for stream in host.listen(80)?.incoming() {
//!         stream?.write_all(b"hello")?;
//!     }
//!     Ok(())
//! });
//! net.client("client", "10.0.0.2", |host| {
//!     host.sleep(Duration::from_secs(1));
//!     let mut text = String::new();
//!     host.connect("server:80")?.read_to_string(&mut text)?;
//!     assert_eq!(text, "hello");
//!     // The partition that the test makes meanwhile delays it until it heals.
//!     assert!(host.elapsed() > Duration::from_secs(5));
//!     Ok(())
//! });
//! net.at(Duration::from_millis(500), |net| net.partition("client", "server"));
//! net.at(Duration::from_secs(5), |net| net.heal("client", "server"));
//! net.run()?;
//! # Ok::<(), perimeter_testing::SimError>(())
//! ```

mod host;
mod life;
mod net;
mod operator;
mod shared;

pub use host::{Host, HostThread};
pub use net::{TcpListener, TcpStream};
pub use operator::{Operator, Report};

use crate::error::{Result, SimError, What};
use crate::link::{Link, nanos};
use host::Spec;
use operator::Plan;
use perimeter::virt::{Schedule, VirtualConfig};
use perimeter::{OrgSpec, TcpConfig, Virtual};
use perimeter_base::Time;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Hosts, the network between them, and what is to happen to them. Runs once, when all has been
/// said.
pub struct Network {
    plan: Plan,
    virt: VirtualConfig,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// Without hosts; links are as [`Link::default`] says, stacks of the organization `up:shared`, and
    /// there are four cores.
    pub fn new(seed: u64) -> Network {
        let plan = Plan {
            seed,
            usual: Link::default(),
            links: Vec::new(),
            org: OrgSpec::default(),
            tcp: TcpConfig::default(),
            limit: Duration::from_secs(600),
            quiet: None,
            hosts: Vec::new(),
            acts: Vec::new(),
        };
        let virt = VirtualConfig::default()
            .with_seed(seed)
            .with_max_steps(u64::MAX)
            .with_max_time(Time::NEVER);
        Network { plan, virt }
    }

    /// What every link is like unless [`Network::link`] says otherwise.
    pub fn links(&mut self, link: Link) -> &mut Network {
        self.plan.usual = link;
        self
    }

    /// What the link between two hosts is like, in both directions.
    pub fn link(&mut self, a: &str, b: &str, link: Link) -> &mut Network {
        self.plan
            .links
            .push((a.to_owned(), b.to_owned(), link.clone()));
        self.plan.links.push((b.to_owned(), a.to_owned(), link));
        self
    }

    /// The organization of all stacks, as `perimeter orgs` lists them. Under those of one thread
    /// (`up`) a host's program may not have several.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn organization(&mut self, name: &str) -> &mut Network {
        self.plan.org = name.parse().unwrap_or_else(|e| panic!("{e}"));
        self
    }

    /// Virtual cores, at least 1, and the order in which threads run on them.
    pub fn cores(&mut self, cores: usize, schedule: Schedule) -> &mut Network {
        self.virt.cores = cores;
        self.virt.schedule = schedule;
        self
    }

    /// What connections are made with on every host.
    pub fn tcp(&mut self, tcp: TcpConfig) -> &mut Network {
        self.plan.tcp = tcp;
        self
    }

    /// How long the simulation lasts, in its own time, before it gives up on clients that have not
    /// ended. Default 10 minutes.
    pub fn time_limit(&mut self, limit: Duration) -> &mut Network {
        self.plan.limit = limit;
        self
    }

    /// After the clients have ended nothing may be left: within `time` every connection of every
    /// host that is up has to be over, TIME-WAIT included.
    pub fn expect_quiet(&mut self, time: Duration) -> &mut Network {
        self.plan.quiet = Some(time);
        self
    }

    /// Adds a host. `program` runs when the host starts: at the beginning, and after each
    /// [`Operator::restart`].
    ///
    /// # Panics
    /// If there is a host of that name or address, or `addr` is no address.
    pub fn host(
        &mut self,
        name: &str,
        addr: &str,
        program: impl Fn(&Host) -> Result + Send + Sync + 'static,
    ) -> &mut Network {
        self.add(name, addr, program, false)
    }

    /// Adds a host whose program [`Network::run`] waits for. If it is started again, its program
    /// starts again.
    ///
    /// # Panics
    /// As [`Network::host`].
    pub fn client(
        &mut self,
        name: &str,
        addr: &str,
        program: impl Fn(&Host) -> Result + Send + Sync + 'static,
    ) -> &mut Network {
        self.add(name, addr, program, true)
    }

    fn add(
        &mut self,
        name: &str,
        addr: &str,
        program: impl Fn(&Host) -> Result + Send + Sync + 'static,
        client: bool,
    ) -> &mut Network {
        let parsed = addr.parse::<IpAddr>();
        let addr = parsed.unwrap_or_else(|_| panic!("`{addr}` is not an address"));
        let same = |h: &Spec| h.name == name || h.addr == addr;
        assert!(
            !self.plan.hosts.iter().any(same),
            "`{name}` or {addr} is there already"
        );
        self.plan.hosts.push(Spec {
            name: name.to_owned(),
            addr,
            program: Arc::new(program),
            client,
        });
        self
    }

    /// Does `act` when the simulation has run for `elapsed`.
    pub fn at(
        &mut self,
        elapsed: Duration,
        act: impl FnOnce(&Operator) + Send + 'static,
    ) -> &mut Network {
        self.plan.acts.push((elapsed, Box::new(act)));
        self
    }

    /// Runs until every client has ended.
    ///
    /// # Errors
    /// A program has failed, time is up, or something is left that must not be.
    pub fn run(self) -> std::result::Result<Report, SimError> {
        let Network { plan, virt } = self;
        let seed = plan.seed;
        let failed = move |after: Time, what| SimError {
            seed,
            after: Duration::from_nanos(after.0),
            what,
        };
        match Virtual::run(virt, move |p| operator::run(p, plan)) {
            Ok((Ok(report), _)) => Ok(report),
            Ok((Err((after, what)), _)) => Err(failed(Time(nanos(after)), what)),
            Err(e) => {
                let at = e.at;
                Err(failed(at, What::Threads(e.to_string())))
            }
        }
    }
}

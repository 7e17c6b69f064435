//! What programs under test can reach of the simulation that they run in.

use crate::link::{Link, nanos};
use perimeter_base::Time;
use perimeter_link::network::{Network, PortId};
use perimeter_tokio::{Net, Resolve, Resolved};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// When simulations begin, by their platform's clock, ns: not at zero, which some take for never.
const START: u64 = 1_000_000_000;

/// A host as others know it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) addr: IpAddr,
    pub(crate) port: PortId,
}

/// What a program asked for that can't be done while it runs.
pub(crate) enum Command {
    Crash(usize),
    Restart(usize),
}

/// The simulation as its hosts share it.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) network: Network,
    pub(crate) hosts: RefCell<Vec<Known>>,
    pub(crate) commands: RefCell<Vec<Command>>,
    pub(crate) names: Names,
}

/// The hosts' addresses by name.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<HashMap<String, IpAddr>>>);

impl Resolve for Names {
    fn resolve(&self, host: &str, port: u16) -> Resolved {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = names
            .get(host)
            .map(|addr| vec![SocketAddr::new(*addr, port)]);
        let found = found.ok_or_else(|| {
            let text = format!("there is no host `{host}` in this simulation");
            Error::new(ErrorKind::NotFound, text)
        });
        Box::pin(std::future::ready(found))
    }
}

impl World {
    pub(crate) fn new(seed: u64, link: &Link) -> World {
        World {
            seed,
            clock: Arc::new(AtomicU64::new(START)),
            network: Network::new(seed, link.faults()),
            hosts: RefCell::default(),
            commands: RefCell::default(),
            names: Names::default(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    pub(crate) fn set_clock(&self, at: Time) {
        self.clock.store(at.0, Ordering::Relaxed);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now().0 - START)
    }

    /// The time so long after the beginning.
    pub(crate) fn after(&self, elapsed: Duration) -> Time {
        Time(START).plus(nanos(elapsed))
    }

    /// Makes a host known, at `addr` or at a free address.
    pub(crate) fn add(&self, name: &str, addr: Option<IpAddr>) -> Known {
        let mut hosts = self.hosts.borrow_mut();
        assert!(
            hosts.iter().all(|h| h.name != name),
            "there is a host `{name}` already"
        );
        let taken = |addr: &IpAddr| hosts.iter().any(|h| h.addr == *addr);
        let addr = addr.unwrap_or_else(|| {
            let mut all = (1..).map(|n| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)));
            all.find(|a| !taken(a)).expect("2^24 addresses")
        });
        assert!(!taken(&addr), "there is a host at {addr} already");
        let port = self.network.port();
        self.network.assign(addr, port);
        let mut names = self.names.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name.to_owned(), addr);
        drop(names);
        let known = Known {
            name: name.to_owned(),
            addr,
            port,
        };
        hosts.push(known.clone());
        known
    }

    /// The number of the host of that name or address.
    pub(crate) fn find(&self, host: &str) -> Option<usize> {
        let addr = host.parse::<IpAddr>().ok();
        let hosts = self.hosts.borrow();
        hosts
            .iter()
            .position(|h| h.name == host || Some(h.addr) == addr)
    }

    /// As [`World::find`].
    ///
    /// # Panics
    /// If there is none: a mistake in the test.
    pub(crate) fn host(&self, host: &str) -> usize {
        self.find(host)
            .unwrap_or_else(|| panic!("there is no host `{host}` in this simulation"))
    }

    /// The address of the host of that name.
    pub(crate) fn address(&self, host: &str) -> Option<IpAddr> {
        let n = self.find(host)?;
        Some(self.hosts.borrow()[n].addr)
    }

    fn port(&self, host: &str) -> PortId {
        let n = self.host(host);
        self.hosts.borrow()[n].port
    }

    /// Both ports of a link.
    pub(crate) fn ports(&self, a: &str, b: &str) -> (PortId, PortId) {
        (self.port(a), self.port(b))
    }

    pub(crate) fn cut(&self, from: &str, to: &str) {
        let (from, to) = self.ports(from, to);
        self.network.cut(from, to);
    }

    pub(crate) fn mend(&self, from: &str, to: &str) {
        let (from, to) = self.ports(from, to);
        self.network.mend(from, to);
    }
}

thread_local! {
    /// The simulation and the host whose programs run.
    static HERE: RefCell<Option<Rc<Here>>> = const { RefCell::new(None) };
}

/// Where a program runs.
pub(crate) struct Here {
    pub(crate) world: Rc<World>,
    pub(crate) host: usize,
    pub(crate) net: Net,
}

/// Runs `f` as that host's program.
pub(crate) fn enter<R>(here: &Rc<Here>, f: impl FnOnce() -> R) -> R {
    struct Leave(Option<Rc<Here>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            let outer = self.0.take();
            HERE.with(|h| *h.borrow_mut() = outer);
        }
    }
    let _leave = Leave(HERE.with(|h| h.replace(Some(here.clone()))));
    let _net = here.net.enter();
    f()
}

/// Calls `f` with where the calling program runs.
///
/// # Panics
/// Outside of simulations.
pub(crate) fn within<R>(f: impl FnOnce(&Here) -> R) -> R {
    HERE.with(|h| {
        let here = h.borrow();
        let here = here.as_ref();
        f(here.expect("called outside of the hosts of a simulation"))
    })
}

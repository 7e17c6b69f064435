//! A host as its programs see it.

use super::life::{Life, uncrashed};
use super::net::{TcpListener, TcpStream};
use super::shared::Shared;
use crate::error::{Result, What};
use perimeter::{Config, Events, Stack, Virtual};
use perimeter_link::network::PortId;
use perimeter_sync::{Platform, Thread};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long who serves a stack of one thread, as nobody else does, sleeps at a time.
const SERVE: Duration = Duration::from_secs(3600);

/// What a host runs.
pub(super) type Program = Arc<dyn Fn(&Host) -> Result + Send + Sync>;

/// A host to be.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) addr: IpAddr,
    pub(super) program: Program,
    /// The simulation ends when all of these have.
    pub(super) client: bool,
}

/// The host that a program runs on. Cheap to clone: a handle.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
    name: Arc<str>,
    life: Arc<Life>,
    stack: Stack,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A thread of a host beside the one that its program began on.
pub struct HostThread {
    thread: <Virtual as Platform>::Thread,
    result: Arc<Mutex<Option<std::result::Result<(), String>>>>,
}

impl std::fmt::Debug for HostThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostThread").finish_non_exhaustive()
    }
}

impl HostThread {
    /// Waits for its end.
    ///
    /// # Errors
    /// The error that it ended with; or its host has crashed.
    pub fn join(self) -> Result {
        self.thread.join()?;
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        match result.take() {
            Some(result) => Ok(result?),
            None => Err("the host has crashed".into()),
        }
    }
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its stack, for what is not here.
    pub fn stack(&self) -> &Stack {
        self.life.live();
        &self.stack
    }

    /// Listens on `port` at every address; 0 picks a free one.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn listen(&self, port: u16) -> std::io::Result<TcpListener> {
        let any: IpAddr = match self.shared.lookup(&self.name) {
            Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let any = SocketAddr::new(any, port);
        let inner = self.life.during(|| self.stack.listen(any))?;
        let life = self.life.clone();
        Ok(TcpListener { inner, life })
    }

    /// Connects to `addr`, which may name a host: `"server:80"`.
    ///
    /// # Errors
    /// As [`Stack::connect`]; `NotFound`: there is no host of that name.
    pub fn connect(&self, addr: &str) -> std::io::Result<TcpStream> {
        let addr = self.resolve(addr)?;
        self.stream(|| self.stack.connect(addr))
    }

    /// As [`Host::connect`], for at most `timeout`.
    ///
    /// # Errors
    /// As [`Host::connect`]; `TimedOut`.
    pub fn connect_timeout(&self, addr: &str, timeout: Duration) -> std::io::Result<TcpStream> {
        let addr = self.resolve(addr)?;
        self.stream(|| self.stack.connect_timeout(addr, timeout))
    }

    fn stream(
        &self,
        connect: impl FnOnce() -> std::io::Result<perimeter::TcpStream>,
    ) -> std::io::Result<TcpStream> {
        let inner = self.life.during(connect)?;
        let life = self.life.clone();
        Ok(TcpStream { inner, life })
    }

    /// The address that `addr` stands for, which may name a host: `"server:80"`.
    ///
    /// # Errors
    /// `NotFound`: there is no host of that name; `InvalidInput`: that is neither an address nor a
    /// name, with a port.
    pub fn resolve(&self, addr: &str) -> std::io::Result<SocketAddr> {
        if let Ok(addr) = addr.parse() {
            return Ok(addr);
        }
        let named = addr.rsplit_once(':');
        let named = named.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = named else {
            let text = format!("`{addr}` is not an address or a host with a port");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        };
        let unknown = || {
            let text = format!("there is no host `{host}` in this simulation");
            Error::new(ErrorKind::NotFound, text)
        };
        let ip = self.shared.lookup(host).ok_or_else(unknown)?;
        Ok(SocketAddr::new(ip, port))
    }

    /// How long the simulation has run, in its own time.
    pub fn elapsed(&self) -> Duration {
        self.life.during(|| self.shared.elapsed())
    }

    /// Sleeps for that long. A stack of one thread (`up`) is served meanwhile.
    pub fn sleep(&self, time: Duration) {
        let until = self.shared.p.now() + time;
        while !self.life.is_over() && self.shared.p.now() < until {
            let left = until.since(self.shared.p.now());
            if !serve(&self.stack, left) {
                self.shared.p.sleep_until(until);
            }
        }
        self.life.live();
    }

    /// Cuts the link between two hosts, given by name or address: packets that are sent from now on
    /// are lost, those under way arrive.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn partition(&self, a: &str, b: &str) {
        self.shared.cut(a, b, true);
        self.shared.cut(b, a, true);
    }

    /// Heals what was cut between two hosts.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn heal(&self, a: &str, b: &str) {
        self.shared.cut(a, b, false);
        self.shared.cut(b, a, false);
    }

    /// Runs `f` on another thread of this host. Not on stacks of one thread (`up`), whose calls fail
    /// on any other.
    pub fn spawn(&self, f: impl FnOnce(&Host) -> Result + Send + 'static) -> HostThread {
        self.life.live();
        let result = Arc::new(Mutex::new(None));
        let (host, out) = (self.clone(), result.clone());
        let body = move || {
            let ended = uncrashed(|| f(&host).map_err(|e| e.to_string()));
            *out.lock().unwrap_or_else(PoisonError::into_inner) = ended;
        };
        HostThread {
            thread: self.shared.p.spawn(&self.name, None, Box::new(body)),
            result,
        }
    }
}

/// Serves a stack of one thread for `time`, or until it ends; `false` if it is of another kind.
fn serve(stack: &Stack, time: Duration) -> bool {
    if !stack.organization().single_threaded() {
        return false;
    }
    let Ok(poll) = stack.poll() else {
        return false;
    };
    let mut events = Events::with_capacity(1);
    poll.poll(&mut events, Some(time)).is_ok()
}

/// Starts host number `n`, after a crash if it is up: a thread that makes its stack and runs its
/// program.
pub(super) fn start(shared: &Arc<Shared>, n: usize, spec: &Spec) {
    shared.crash(n);
    let life = Arc::new(Life::default());
    let port = {
        let mut places = shared.places();
        let place = &mut places[n];
        place.awaited = spec.client;
        place.life = Some(life.clone());
        place.port
    };
    let (mine, spec) = (shared.clone(), spec.clone());
    let body = move || {
        let Some(stack) = life.begin(stack(&mine, &spec, port)) else {
            return;
        };
        let host = Host {
            shared: mine.clone(),
            name: spec.name.as_str().into(),
            life: life.clone(),
            stack,
        };
        run(&host, &spec.program);
        mine.ended(n, &life);
        // The stack goes on without its program.
        while !life.is_over() && serve(&host.stack, SERVE) {}
    };
    drop(
        shared
            .p
            .spawn(&format!("host {n}"), Some(n), Box::new(body)),
    );
}

fn run(host: &Host, program: &Program) {
    let ended = uncrashed(|| program(host).map_err(|e| e.to_string()));
    // What a crash makes of a program is no failure of it.
    if let Some(Err(error)) = ended
        && !host.life.is_over()
    {
        host.shared.fail(What::Program {
            host: host.name.to_string(),
            error,
        });
    }
}

/// The stack of a host.
fn stack(shared: &Shared, spec: &Spec, port: PortId) -> Stack {
    let plug = shared.network.plug(&shared.p, port, &spec.name, 1500);
    let (prefix, everywhere) = match spec.addr.is_ipv4() {
        true => (32, "0.0.0.0/0"),
        false => (128, "::/0"),
    };
    let config = Config::default()
        .with_tcp(shared.tcp.clone())
        .with_drain(Duration::ZERO);
    Stack::builder()
        .on_virtual(shared.p.clone())
        .org(shared.org.clone())
        .config(config)
        .interface(plug, &[&format!("{}/{prefix}", spec.addr)])
        .and_then(|b| b.route(everywhere, None, 0))
        .and_then(perimeter::Builder::build)
        .unwrap_or_else(|e| panic!("`{}`: {e}", spec.name))
}

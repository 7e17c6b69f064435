//! The kernel's sockets as an [`Endpoint`], and how their connections are established.

use super::veth::{self, Namespace};
use crate::{
    Error,
    error::Context as _,
    live::{self, Seen},
    workload::{
        BUFFER, Coalescing, Configuration, Control, Endpoint, Family, Phase, Ready, Reconnects,
        Roles, Settings, Tally, reconnect::LISTENERS,
    },
};
use nix::sched::CloneFlags;
use rustix::{
    buffer::spare_capacity,
    event::epoll,
    fd::OwnedFd,
    fs::MemfdFlags,
    net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::Timespec,
};
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Connections to one address and port: fewer than the 28,232 ports that the kernel picks from by
/// default (net.ipv4.ip_local_port_range).
const PER_PORT: usize = 16_384;
/// Congestion control of every socket: the host's default may pace (bbr), and our stack's is CUBIC.
const CONGESTION: &str = "cubic";
/// Descriptors of a thread besides its connections': listeners for up to 256 NICs, pollers, the
/// file, standard streams.
const SPARE_DESCRIPTORS: u64 = 600;
/// Longest wait until all data connections of a run between machines are there.
pub(crate) const ESTABLISHING: Duration = Duration::from_secs(30);
/// Longest time to establish one connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Events taken from one wait.
const EVENTS: usize = 128;

/// Makes room for the descriptors of a thread with `connections`, each of which needs one. Worker
/// threads have descriptor tables of their own ([`enter`]), so this is not per process.
///
/// # Errors
/// [`Error::Unavailable`] if the system doesn't permit that many.
pub fn allow_descriptors(connections: u32, threads: usize) -> Result<(), Error> {
    let need = u64::from(connections).div_ceil(threads as u64) + SPARE_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|n| n >= need) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|m| m.max(need));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(need),
            maximum,
        },
    );
    raised.map_err(|_| {
        Error::Unavailable(format!(
            "linux: {connections} connections on {threads} threads need {need} descriptors for \
             each thread, but the limit is {}; raise it (`ulimit -Hn`) or list fewer connections",
            limit.maximum.unwrap_or(0)
        ))
    })
}

/// Makes room for the descriptors of the threads of all `configurations`.
///
/// # Errors
/// As [`allow_descriptors`].
pub(crate) fn allow_all(configurations: &[Configuration]) -> Result<(), Error> {
    let mut all = configurations.iter();
    all.try_for_each(|c| allow_descriptors(c.connections, c.threads))
}

/// A file in memory with the given content.
///
/// # Errors
/// What the system says.
pub fn memory_file(content: &[u8]) -> Result<OwnedFd, Error> {
    let file = rustix::fs::memfd_create("perimeter-bench", MemfdFlags::CLOEXEC)
        .context("making a file in memory")?;
    let mut done = 0;
    while done < content.len() {
        done += rustix::io::pwrite(&file, &content[done..], done as u64)
            .context("filling the file in memory")?;
    }
    Ok(file)
}

/// What sockets are set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Send and receive buffer, bytes.
    pub buffer: usize,
    /// When small writes become segments.
    pub coalescing: Coalescing,
    /// Connections are opened anew, so they are closed in order.
    pub reconnect: bool,
    /// What they are of.
    pub family: Family,
}

impl Options {
    /// Those that `settings` ask for.
    pub fn of(settings: &Settings) -> Options {
        Options {
            buffer: settings.buffer,
            coalescing: settings.coalescing,
            reconnect: settings.reconnect,
            family: settings.family,
        }
    }

    /// Applies the way of coalescing to a connected socket.
    pub(crate) fn coalesce(self, socket: &OwnedFd) -> Result<(), Error> {
        match self.coalescing {
            Coalescing::Cork => sockopt::set_tcp_cork(socket, true).context("corking a socket"),
            Coalescing::NoDelay => {
                sockopt::set_tcp_nodelay(socket, true).context("switching Nagle's algorithm off")
            }
            Coalescing::Nagle => Ok(()),
        }
    }
}

/// Moves the calling thread to a namespace, if one is given, and gives it a descriptor table of
/// its own. The limit on descriptors holds per table, and many hosts set it below what 16,384
/// connections need in one; besides, calls on a table that isn't shared skip an atomic reference
/// count, which is in the kernel's favour.
///
/// # Errors
/// What the system says.
pub(crate) fn enter(namespace: Option<&Namespace>) -> Result<(), Error> {
    if let Some(namespace) = namespace {
        namespace.enter()?;
    }
    nix::sched::unshare(CloneFlags::CLONE_FILES).context("separating descriptor tables")
}

/// Where one thread makes its sockets.
#[derive(Debug, Clone)]
pub struct Worksite {
    /// The namespace of its side; loopback without.
    pub namespace: Option<Arc<Namespace>>,
    /// What its sockets are set to.
    pub options: Options,
    /// When establishing has to be over.
    pub deadline: Option<Instant>,
}

impl Worksite {
    /// [`enter`], on its side.
    fn enter(&self) -> Result<(), Error> {
        enter(self.namespace.as_deref())
    }

    /// Whether there is time left after `done` of so many connections of a thread.
    ///
    /// # Errors
    /// [`Error::Late`]: the deadline has passed.
    fn in_time(&self, done: usize, connections: usize) -> Result<(), Error> {
        match self.deadline {
            Some(deadline) if Instant::now() > deadline => Err(Error::Late(format!(
                "out of time after {done} of {connections} connections of a thread"
            ))),
            _ => Ok(()),
        }
    }
}

/// Waits for the end of the run after the other side has given up: the error that comes first is
/// then the cause, not its consequence.
pub fn give_up(control: &Control) -> Error {
    while control.phase() != Phase::Stop {
        thread::sleep(Duration::from_millis(1));
    }
    Error::Run("the other side of the connections gave up".into())
}

/// The near side of one thread's connections: connects to what the far side tells.
#[derive(Debug)]
pub struct Near {
    /// NIC of each connection, in order.
    pub nics: Vec<usize>,
    /// From the far side: one listening address for each NIC and block of [`PER_PORT`].
    pub listening: mpsc::Receiver<Vec<SocketAddr>>,
    /// To the far side: the listener of each connection that was made.
    pub connected: mpsc::SyncSender<usize>,
}

/// The far side of one thread's connections: listens and accepts.
#[derive(Debug)]
pub struct Far {
    /// Number of connections to accept.
    pub connections: usize,
    /// Number of NICs.
    pub nics: usize,
    /// To the near side.
    pub listening: mpsc::SyncSender<Vec<SocketAddr>>,
    /// From the near side.
    pub connected: mpsc::Receiver<usize>,
}

/// What a thread's sockets are made of.
#[derive(Debug)]
pub enum Made {
    /// Connections.
    Established(Vec<OwnedFd>),
    /// Where each of its connections is opened to, over and over.
    Opens(Vec<SocketAddr>, Worksite),
    /// Listeners, and how many connections there may be at a time.
    Accepts(Vec<OwnedFd>, usize, Options),
}

/// Both sides for one thread whose connections use the given NICs (of `of` NICs).
pub fn sides(nics: Vec<usize>, of: usize) -> (Near, Far) {
    let (tell_listening, listening) = mpsc::sync_channel(1);
    // The near side stays this far ahead at most, well within the listeners' backlog.
    let (tell_connected, connected) = mpsc::sync_channel(64);
    let connections = nics.len();
    let near = Near {
        nics,
        listening,
        connected: tell_connected,
    };
    let far = Far {
        connections,
        nics: of,
        listening: tell_listening,
        connected,
    };
    (near, far)
}

impl Near {
    /// The listener, by its place in what the far side told, of this side's `k`-th connection.
    pub fn listener(&self, k: usize, nic: usize) -> usize {
        nic * ports(self.nics.len()) + k / PER_PORT
    }

    /// Establishes all connections, on the calling thread.
    ///
    /// # Errors
    /// What the system says, or that the deadline passed.
    pub fn establish(self, site: &Worksite, control: &Control) -> Result<Made, Error> {
        site.enter()?;
        let Ok(listening) = self.listening.recv() else {
            return Err(give_up(control));
        };
        if site.options.reconnect {
            let to = |(k, nic): (usize, &usize)| listening[self.listener(k, *nic)];
            let to = self.nics.iter().enumerate().map(to).collect();
            return Ok(Made::Opens(to, site.clone()));
        }
        let mut sockets = Vec::with_capacity(self.nics.len());
        for (k, nic) in self.nics.iter().enumerate() {
            site.in_time(k, self.nics.len())?;
            let listener = self.listener(k, *nic);
            sockets.push(connect(site, &listening[listener])?);
            if self.connected.send(listener).is_err() {
                return Err(give_up(control));
            }
        }
        Ok(Made::Established(sockets))
    }
}

impl Far {
    /// Accepts all connections, on the calling thread, in the order in which they were made.
    ///
    /// # Errors
    /// What the system says.
    pub fn establish(self, site: &Worksite, control: &Control) -> Result<Made, Error> {
        site.enter()?;
        let mut listeners = Vec::new();
        let mut listening = Vec::new();
        for nic in 0..self.nics {
            let ip = match site.namespace {
                Some(_) => veth::far_end(site.options.family, nic),
                None if site.options.family.is_ipv6() => Ipv6Addr::LOCALHOST.into(),
                None => Ipv4Addr::LOCALHOST.into(),
            };
            for _ in 0..ports(self.connections) {
                let (listener, address) = listen(site, ip)?;
                listeners.push(listener);
                listening.push(address);
            }
        }
        if self.listening.send(listening).is_err() {
            return Err(give_up(control));
        }
        if site.options.reconnect {
            for listener in &listeners {
                rustix::io::ioctl_fionbio(listener, true).context("a socket option")?;
            }
            let made = Made::Accepts(listeners, self.connections, site.options);
            return Ok(made);
        }
        let mut sockets = Vec::with_capacity(self.connections);
        while sockets.len() < self.connections {
            let Ok(i) = self.connected.recv() else {
                return Err(give_up(control));
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = net::accept_with(&listeners[i], flags).context("accepting")?;
            site.options.coalesce(&socket)?;
            sockets.push(socket);
        }
        Ok(Made::Established(sockets))
    }
}

/// Listening ports per NIC for one thread's connections.
pub(crate) fn ports(connections: usize) -> usize {
    connections.div_ceil(PER_PORT).max(1)
}

/// A TCP socket with the benchmark's buffers and congestion control, which accepted ones inherit.
fn socket(site: &Worksite) -> Result<OwnedFd, Error> {
    let socket = net::socket_with(
        match site.options.family {
            Family::Ipv4 => AddressFamily::INET,
            Family::Ipv6 => AddressFamily::INET6,
        },
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .context("opening a socket")?;
    prepare(&socket, site.options)?;
    let chosen = sockopt::set_tcp_congestion(&socket, CONGESTION);
    // A host may reserve it to privileged processes; loopback isn't comparable in any case.
    if site.namespace.is_some() {
        chosen.context("choosing cubic congestion control")?;
    }
    Ok(socket)
}

/// Gives a socket, or a listener for those that it accepts, the benchmark's buffers and way of
/// ending.
///
/// # Errors
/// What the system says.
pub(crate) fn prepare(socket: &OwnedFd, options: Options) -> Result<(), Error> {
    let buffer = options.buffer;
    // Without privilege over the host the forced forms are refused, and the plain ones are cut off
    // at net.core.{w,r}mem_max. The kernel doubles the value for its own bookkeeping.
    sockopt::set_socket_send_buffer_size_force(socket, buffer)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, buffer))
        .context("setting the send buffer")?;
    sockopt::set_socket_recv_buffer_size_force(socket, buffer)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, buffer))
        .context("setting the receive buffer")?;
    if !options.reconnect {
        // An abort at the end instead of thousands of connections in TIME_WAIT.
        sockopt::set_socket_linger(socket, Some(Duration::ZERO)).context("setting linger")?;
    }
    Ok(())
}

/// So many connections to `to`, each of which begins with `greeting`, on the calling thread and a
/// descriptor table of its own.
///
/// # Errors
/// What the system says, or that the deadline passed.
pub(crate) fn open_to(
    site: &Worksite,
    to: SocketAddr,
    connections: usize,
    greeting: &[u8],
) -> Result<Made, Error> {
    site.enter()?;
    let mut sockets = Vec::with_capacity(connections);
    for k in 0..connections {
        site.in_time(k, connections)?;
        let socket = connect(site, &to)?;
        if !greeting.is_empty() {
            // The first bytes of an empty buffer: taken whole. They go out now, corked or not.
            sockopt::set_tcp_cork(&socket, false).context("a socket option")?;
            rustix::io::write(&socket, greeting).context("saying the token")?;
            site.options.coalesce(&socket)?;
        }
        sockets.push(socket);
    }
    Ok(Made::Established(sockets))
}

/// A listener on a port that the kernel picks.
fn listen(site: &Worksite, ip: IpAddr) -> Result<(OwnedFd, SocketAddr), Error> {
    let socket = socket(site)?;
    net::bind(&socket, &SocketAddr::new(ip, 0)).context("binding a listener")?;
    net::listen(&socket, 1024).context("listening")?;
    // Accepting waits only for the last packet of a handshake that is all but done.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))
        .context("setting a timeout")?;
    let address = net::getsockname(&socket).context("asking a listener's address")?;
    let address = SocketAddr::try_from(address).context("asking a listener's address")?;
    Ok((socket, address))
}

/// A connection to `to`, established, non-blocking and corked. The route to a NIC's far end leads
/// over that NIC and gives its near end as the source.
fn connect(site: &Worksite, to: &SocketAddr) -> Result<OwnedFd, Error> {
    let near = socket(site)?;
    sockopt::set_socket_timeout(&near, sockopt::Timeout::Send, Some(PATIENCE))
        .context("setting a timeout")?;
    net::connect(&near, to).context("connecting")?;
    rustix::io::ioctl_fionbio(&near, true).context("making a socket non-blocking")?;
    site.options.coalesce(&near)?;
    Ok(near)
}

/// Waits for events, for so long at most; `events` has those that came, as far as it has capacity.
///
/// # Errors
/// What the system says; a signal is none, and ends the wait.
pub(super) fn await_events(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Duration,
) -> io::Result<()> {
    events.clear();
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as _,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match epoll::wait(epoll, spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// What there is to see of the kernel's sockets: what arrived.
pub(super) fn seen(told: &[Option<Tally>]) -> Seen {
    Seen {
        goodput: live::rate(told, Tally::sunk),
        ..Seen::default()
    }
}

/// One thread's kernel sockets with their epoll, level-triggered but where they are opened anew.
pub struct KernelEndpoint {
    epoll: OwnedFd,
    sockets: Vec<Option<OwnedFd>>,
    /// Where connections are opened anew.
    opens: Option<(Vec<SocketAddr>, Worksite)>,
    /// Where they are accepted anew.
    listeners: Vec<OwnedFd>,
    options: Option<Options>,
    /// Indices of no connection, the longest unused first.
    free: VecDeque<usize>,
    /// Whether what is accepted is read from.
    reads: bool,
    file: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
}

impl KernelEndpoint {
    /// Registers what was `made` for what `roles` need.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(made: Made, file: Arc<OwnedFd>, roles: Roles) -> Result<KernelEndpoint, Error> {
        let mut this = KernelEndpoint {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("making a poller")?,
            sockets: Vec::new(),
            opens: None,
            listeners: Vec::new(),
            options: None,
            free: VecDeque::new(),
            reads: roles.talk.is_some(),
            file,
            events: Vec::with_capacity(EVENTS),
            scratch: vec![0; 2 * BUFFER],
        };
        match made {
            Made::Established(sockets) => {
                let mut interest = epoll::EventFlags::empty();
                interest.set(epoll::EventFlags::OUT, roles.source);
                interest.set(epoll::EventFlags::IN, roles.sink);
                for (i, socket) in sockets.iter().enumerate() {
                    this.register(socket, i, interest)?;
                }
                this.sockets = sockets.into_iter().map(Some).collect();
            }
            Made::Opens(to, site) => {
                this.sockets.resize_with(to.len(), || None);
                this.opens = Some((to, site));
            }
            Made::Accepts(listeners, most, options) => {
                for listener in &listeners {
                    this.register(listener, LISTENERS, epoll::EventFlags::IN)?;
                }
                this.sockets.resize_with(most, || None);
                this.free = (0..most).collect();
                (this.listeners, this.options) = (listeners, Some(options));
            }
        }
        Ok(this)
    }

    fn register(&self, s: &OwnedFd, index: usize, for_: epoll::EventFlags) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.epoll, s, data, for_).context("registering a socket")
    }

    fn socket(&self, connection: usize) -> io::Result<&OwnedFd> {
        let socket = self.sockets[connection].as_ref();
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Reconnects for KernelEndpoint {
    fn open(&mut self, connection: usize) -> Result<(), Error> {
        let Some((to, site)) = &self.opens else {
            return Err(Error::Run("this side accepts".into()));
        };
        let socket = socket(site)?;
        rustix::io::ioctl_fionbio(&socket, true).context("making a socket non-blocking")?;
        match net::connect(&socket, &to[connection]) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            refused => refused.context("opening a connection")?,
        }
        site.options.coalesce(&socket)?;
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        self.register(&socket, connection, both)?;
        self.sockets[connection] = Some(socket);
        Ok(())
    }

    fn opened(&mut self, connection: usize) -> Result<(), Error> {
        let socket = self.socket(connection).context("opening a connection")?;
        let error = sockopt::socket_error(socket).context("asking a socket")?;
        error.context("opening a connection")
    }

    fn accept(&mut self) -> Result<Option<usize>, Error> {
        let (Some(&connection), Some(options)) = (self.free.front(), self.options) else {
            return Ok(None);
        };
        for listener in &self.listeners {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match net::accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN) => continue,
                refused => refused.context("accepting")?,
            };
            options.coalesce(&socket)?;
            if self.reads {
                self.register(&socket, connection, epoll::EventFlags::IN)?;
            }
            self.sockets[connection] = Some(socket);
            self.free.pop_front();
            return Ok(Some(connection));
        }
        Ok(None)
    }

    fn close(&mut self, connection: usize) {
        self.sockets[connection] = None;
        if self.opens.is_none() {
            self.free.push_back(connection);
        }
    }
}

impl Endpoint for KernelEndpoint {
    fn connections(&self) -> usize {
        self.sockets.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        await_events(&self.epoll, &mut self.events, timeout)?;
        for event in &self.events {
            let flags = event.flags;
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            ready.push(Ready {
                connection: event.data.u64() as usize,
                readable: broken || flags.contains(epoll::EventFlags::IN),
                writable: broken || flags.contains(epoll::EventFlags::OUT),
            });
        }
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let mut offset = at as u64;
        Ok(rustix::fs::sendfile(
            self.socket(connection)?,
            &*self.file,
            Some(&mut offset),
            len,
        )?)
    }

    fn discard(&mut self, connection: usize, max: usize) -> io::Result<usize> {
        let max = max.min(self.scratch.len());
        let socket = self.sockets[connection].as_ref();
        let socket = socket.ok_or(io::ErrorKind::NotConnected)?;
        // tcp(7): with MSG_TRUNC the kernel drops the bytes and leaves the buffer alone.
        let (_, n) = net::recv(socket, &mut self.scratch[..max], RecvFlags::TRUNC)?;
        Ok(n)
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let (n, _) = net::recv(self.socket(connection)?, buffer, RecvFlags::empty())?;
        Ok(n)
    }
}

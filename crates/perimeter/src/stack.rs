//! Building and owning a stack.

use crate::addr;
use crate::batch::Batch;
use crate::builder::Builder;
use crate::check;
use crate::control::Server;
use crate::error::io;
use crate::listen::Listen;
use crate::metrics;
use crate::names::{Names, ToSocketAddrs};
use crate::poll::Poll;
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::{UdpConfig, UdpSocket};
use perimeter_org::engine::Engine;
use perimeter_org::{OrgSpec, Stats, Undelivered};
use perimeter_stack::listener::{At, ListenSpec};
use perimeter_stack::{Cidr, ConnInfo, Lease};
use perimeter_tcp::Config as TcpConfig;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A TCP/IP stack. Cheap to clone: a handle. Sockets and pollers hold one each.
///
/// ```
/// # use std::io::{Read, Write};
/// use perimeter::{Native, Stack, link};
///
/// // Two stacks, back to back over a wire in memory.
/// let native = Native::default();
/// let ([a, b], _) = link::wire::pair(&native, Default::default());
/// let build = |device, addr| Stack::builder().on_native(native).interface(device, &[addr])?.build();
/// let (server, client) = (build(a, "10.0.0.1/24")?, build(b, "10.0.0.2/24")?);
/// let listener = server.listen("10.0.0.1:80")?;
/// let mut stream = client.connect("10.0.0.1:80")?;
/// stream.write_all(b"hello")?;
/// let (mut accepted, _) = listener.accept()?;
/// let mut text = [0; 5];
/// accepted.read_exact(&mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # The end of a stack
///
/// When the last handle goes, everything that was written is delivered first: the thread that
/// drops it waits until peers have acknowledged all data and the FINs (not for TIME-WAIT), for at
/// most [`Config::drain`](crate::Config::drain), and for [`Config::drain_stall`](crate::Config::drain_stall) without any progress. Then what is left
/// of the connections is reset and the stack's threads end. What was not delivered is told on
/// standard error, as nobody else is left to be told; [`Stack::shutdown`] does the same and
/// returns it.
///
/// Nothing is delivered after the process has ended, as there is no kernel behind it. So it is
/// lost what a program leaves to `std::process::exit`, to a signal, to threads that still run
/// when `main` returns, or to a `static`, which is never dropped: such programs call
/// [`Stack::shutdown`] before they end.
///
/// Under `up` only the thread that the stack belongs to can deliver: the last handle is to be
/// dropped there, or anywhere once that thread has ended. Sockets, listeners and pollers may be dropped by any thread; they are closed
/// when the stack's own looks at the devices the next time.
///
/// In a forked child every call fails, and dropping a handle does nothing.
#[derive(Clone)]
pub struct Stack {
    /// Goes before the engine, and with the last handle: its threads ask the engine.
    pub(crate) _control: Option<Arc<Server>>,
    pub(crate) metrics: Option<Arc<metrics::Server>>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) names: Names,
}

impl Stack {
    /// Starts to build a stack.
    /// See [`Builder`].
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Listens on `addr`; port 0 picks a free one. Of several addresses the first that can be
    /// had. The backlog is 1024. On `[::]` it takes connections of both families.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let (_server, peer) = listener.accept()?;
    /// assert_eq!(peer, client.local_addr()?);
    ///
    /// let error = stack.listen("10.0.0.1:80").expect_err("somebody listens there");
    /// assert_eq!(error.kind(), ErrorKind::AddrInUse);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `InvalidInput` for a setting out of its range or a
    /// link-local address of no interface, or what parsing `addr` says.
    pub fn listen(&self, addr: impl ToSocketAddrs) -> std::io::Result<TcpListener> {
        self.listen_with(addr, 1024, self.tcp_config())
    }

    /// Listens with a backlog, and settings for the connections to come.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let tcp = stack.tcp_config().with_tos(46 << 2);
    /// let listener = stack.listen_with("10.0.0.1:80", 128, tcp)?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.0.tos()?, 184);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn listen_with(
        &self,
        addr: impl ToSocketAddrs,
        backlog: u32,
        config: TcpConfig,
    ) -> std::io::Result<TcpListener> {
        self.names.each(&self.engine, addr, |addr| {
            self.listen_as(&Listen::at(addr).backlog(backlog).tcp(config.clone()))
        })
    }

    /// As [`Stack::listen_with`], on IPv6 addresses only: on `[::]` it takes connections over IPv6
    /// only, and another listener may have the same port on `0.0.0.0`.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let v6 = stack.listen_only_v6("[::]:80", 128, stack.tcp_config())?;
    /// assert!(v6.only_v6()?);
    /// // So the same port is free over IPv4.
    /// let v4 = stack.listen("0.0.0.0:80")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::listen`]; `InvalidInput` for an address of IPv4.
    pub fn listen_only_v6(
        &self,
        addr: impl ToSocketAddrs,
        backlog: u32,
        config: TcpConfig,
    ) -> std::io::Result<TcpListener> {
        self.names.each(&self.engine, addr, |addr| {
            let listen = Listen::at(addr).only_v6().backlog(backlog);
            self.listen_as(&listen.tcp(config.clone()))
        })
    }

    /// Listens as `listen` says: also for all addresses and ports, and deciding of each SYN
    /// ([`TcpListener::request`]).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen_as(&Listen::any().backlog(64))?;
    /// let client = stack.connect("10.0.0.1:4711")?;
    /// let (_server, wanted, _peer) = listener.accept_ends()?;
    /// assert_eq!(wanted.port(), 4711);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::listen`]; `NotFound`: there is no interface of the name that it is to be bound to.
    pub fn listen_as(&self, listen: &Listen) -> std::io::Result<TcpListener> {
        use std::io::{Error, ErrorKind};
        let config = listen.config.clone();
        let config = config.unwrap_or_else(|| self.tcp_config());
        callable(&config)?;
        let addr = addr::inward(&*self.engine, listen.addr)?;
        if listen.only_v6 && addr.is_ipv4() {
            let what = format!("{addr}: a listener for IPv6 only can't have an IPv4 address");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let device = addr::interface(&*self.engine, listen.device.as_deref())?;
        // `[::]` stands for both families, unless it is said that it does not.
        let both = addr.ip().is_unspecified() && addr.is_ipv6() && !listen.only_v6;
        let spec = ListenSpec {
            addr: (!both).then_some(addr.ip()),
            at: match addr.port() {
                _ if listen.all_ports => At::All,
                0 => At::Free,
                port => At::Port(port),
            },
            backlog: listen.backlog,
            config,
            hold: listen.hold,
            reuse_port: listen.reuse_port,
            device,
        };
        let (id, port) = self.engine.listen(&spec).map_err(io)?;
        let local = addr::outward(addr.ip(), port);
        let only_v6 = addr.is_ipv6() && !both;
        Ok(TcpListener::new(self.engine.clone(), id, (local, only_v6)))
    }

    /// Connects to `addr` and waits until that has succeeded or failed. Several addresses, or those
    /// of a name, are tried one after another. Names are looked up by the stack's own resolver if it
    /// has name servers ([`Stack::lookup_host`]), else by the host's.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let stream = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(stream.peer_addr()?.port(), 80);
    ///
    /// let error = stack.connect("10.0.0.1:81").expect_err("nobody listens there");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable`, … as `std::net`; the last address's. Or
    /// what the resolver says.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> std::io::Result<TcpStream> {
        self.names.each(&self.engine, addr, |addr| {
            let s = self.start_connect(addr)?;
            s.finish_connect(None)?;
            Ok(s)
        })
    }

    /// The addresses of a host, in the order in which [`Stack::connect`] tries them, as
    /// `std::net::ToSocketAddrs` finds them: text is an address with a port, or a name with one. Asks
    /// the name servers that the stack was built with
    /// ([`Builder::name_servers`](crate::Builder::name_servers), feature `dns`), over the stack;
    /// without any, the host's resolver.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let mut addrs = stack.lookup_host(("10.0.0.1", 80))?;
    /// assert_eq!(addrs.next(), Some("10.0.0.1:80".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: it is neither an address nor a name with a port. Of the stack's own resolver:
    /// `NotFound`: there is no such name. `AddrNotAvailable`: it has no address of a family that the
    /// stack has addresses of. `TimedOut`: no name server has answered. `Other`: one could not
    /// answer, or would not, and no other did. The `LookupError` is within. Of the host's: what that says.
    pub fn lookup_host<H: ToSocketAddrs>(
        &self,
        host: H,
    ) -> std::io::Result<impl Iterator<Item = SocketAddr> + use<H>> {
        self.names.addrs(&self.engine, host.target()?)
    }

    /// As [`Stack::connect`], for at most `timeout`.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // Nobody has this address.
    /// let late = stack.connect_timeout("10.0.0.9:80".parse()?, Duration::from_millis(10));
    /// assert_eq!(late.expect_err("no answer").kind(), ErrorKind::TimedOut);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::connect`].
    pub fn connect_timeout(
        &self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> std::io::Result<TcpStream> {
        let s = self.start_connect(addr)?;
        s.finish_connect(Some(timeout))?;
        Ok(s)
    }

    /// Starts to connect and returns at once: the stream becomes writable when it is
    /// connected, and [`TcpStream::take_error`] tells of failure.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let stream = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let poll = stack.poll()?;
    /// poll.registry().register(&stream, Token(0), Interest::WRITABLE)?;
    /// poll.poll(&mut Events::with_capacity(1), Some(Duration::from_secs(10)))?;
    /// assert!(stream.take_error()?.is_none(), "it is connected");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route, `AddrInUse` without a free port, `InvalidInput` for a setting out of its range or a link-local address of no
    /// interface.
    pub fn start_connect(&self, addr: SocketAddr) -> std::io::Result<TcpStream> {
        self.connect_with(None, addr, &self.tcp_config())
    }

    /// Starts to connect from a local address (port 0: any) with settings of its own.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let tcp = stack.tcp_config().with_congestion(CcKind::NewReno);
    /// let from = "10.0.0.1:4000".parse()?;
    /// let stream = stack.connect_with(Some(from), "10.0.0.1:80".parse()?, &tcp)?;
    /// assert_eq!(listener.accept()?.1, from);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::start_connect`].
    pub fn connect_with(
        &self,
        local: Option<SocketAddr>,
        addr: SocketAddr,
        config: &TcpConfig,
    ) -> std::io::Result<TcpStream> {
        self.connect_by(None, local, addr, config)
    }

    /// As [`Stack::connect_with`], bound to the interface of that name, if there is one.
    pub(crate) fn connect_by(
        &self,
        device: Option<&str>,
        local: Option<SocketAddr>,
        addr: SocketAddr,
        config: &TcpConfig,
    ) -> std::io::Result<TcpStream> {
        callable(config)?;
        let device = addr::interface(&*self.engine, device)?;
        let addr = addr::inward(&*self.engine, addr)?;
        let local = local.map(|l| addr::inward(&*self.engine, l)).transpose()?;
        let from = match local {
            Some(l) => ((!l.ip().is_unspecified()).then_some(l.ip()), l.port()),
            None => (None, 0),
        };
        let connected = self.engine.connect_by(device, from, addr, config);
        let id = connected.map_err(io)?;
        Ok(TcpStream::new(self.engine.clone(), id))
    }

    /// Opens a UDP socket bound to `addr`; port 0 picks a free one. Of several addresses the first
    /// that can be had.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let (a, b) = (stack.bind_udp("10.0.0.1:53")?, stack.bind_udp("10.0.0.1:0")?);
    /// b.send_to(b"question", "10.0.0.1:53")?;
    /// let mut buf = [0; 100];
    /// let (len, from) = a.recv_from(&mut buf)?;
    /// assert_eq!((&buf[..len], from), (&b"question"[..], b.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `OutOfMemory`, or what parsing `addr` says.
    pub fn bind_udp(&self, addr: impl ToSocketAddrs) -> std::io::Result<UdpSocket> {
        self.bind_udp_with(addr, &UdpConfig::default())
    }

    /// The same, with settings.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let config = UdpConfig::default().with_recv_buffer(1 << 20);
    /// let socket = stack.bind_udp_with("10.0.0.1:53", &config)?;
    /// assert_eq!(socket.recv_buffer_size()?, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::bind_udp`].
    pub fn bind_udp_with(
        &self,
        addr: impl ToSocketAddrs,
        config: &UdpConfig,
    ) -> std::io::Result<UdpSocket> {
        self.names.each(&self.engine, addr, |addr| {
            let v6 = addr.is_ipv6() && !addr.ip().to_canonical().is_ipv4();
            let addr = addr::inward(&*self.engine, addr)?;
            let (id, _) = self.engine.udp_bind(addr, config).map_err(io)?;
            let socket = UdpSocket::new(self.engine.clone(), id, v6);
            Ok(socket.with_names(self.names.clone()))
        })
    }

    /// A new poller.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // One for each thread that waits; a socket may be registered with several.
    /// let (here, there) = (stack.poll()?, stack.poll()?);
    /// let socket = stack.bind_udp("10.0.0.1:53")?;
    /// here.registry().register(&socket, Token(0), Interest::READABLE)?;
    /// there.registry().register(&socket, Token(0), Interest::WRITABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// there.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There are too many.
    pub fn poll(&self) -> std::io::Result<Poll> {
        Poll::new(self)
    }

    /// What connections are made with unless told otherwise.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.tcp(TcpConfig::default().with_nodelay(true)).build()?;
    /// assert!(stack.tcp_config().nodelay);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tcp_config(&self) -> TcpConfig {
        self.engine.tcp_config()
    }

    /// What looks names up for this stack, if it has name servers; for adapters that wait otherwise
    /// than by blocking.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.name_servers(&["10.0.0.53:53".parse()?]).build()?;
    /// let resolver = stack.resolver().ok_or("it has a name server")?;
    /// assert_eq!(resolver.servers(), ["10.0.0.53:53".parse()?]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "dns")]
    pub fn resolver(&self) -> Option<&Arc<crate::dns::Resolver>> {
        self.names.own(&self.engine)
    }

    /// Starts to look a name up, for the families that the stack has addresses of; `None`: it has no
    /// name servers. For adapters.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.name_servers(&["10.0.0.53:53".parse()?]).build()?;
    /// let mut lookup = stack.start_lookup("example.org").ok_or("it has no name server")?;
    /// // Whoever drives it sends what it says, and tells it what comes back.
    /// let dns::Step::Ask(queries) = lookup.step(stack.engine().now()) else { return Ok(()) };
    /// assert_eq!(queries[0].server, "10.0.0.53:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "dns")]
    pub fn start_lookup(&self, host: &str) -> Option<crate::dns::Lookup> {
        let families = crate::dns::families(&*self.engine);
        let now = self.engine.now();
        let own = self.names.own(&self.engine)?;
        Some(own.lookup(host, families, now))
    }

    /// The addresses of each interface, in the order in which they were added: IPv4's, then those
    /// of IPv6, of which more may be found while the stack lives ([`Ipv6Config`](crate::Ipv6Config)).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// for (number, addrs) in stack.addresses().iter().enumerate() {
    ///     for a in addrs {
    ///         println!("interface {number}: {a}");
    ///     }
    /// }
    /// assert_eq!(stack.addresses()[0][0].to_string(), "10.0.0.1/24");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn addresses(&self) -> Vec<Vec<Cidr>> {
        let mut all = self.engine.addrs();
        for a in all.iter_mut().flatten() {
            a.addr = addr::outward(a.addr, 0).ip();
        }
        all
    }

    /// The IPv4 addresses that servers gave to interfaces, and what came along
    /// ([`Builder::interface_dhcp`]). Under `up`, asked by another thread than the stack's own, that one
    /// answers when it looks at the devices the next time; none if it does not within a second.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// for lease in stack.leases() {
    ///     println!("{} from {}, name servers {:?}", lease.addr, lease.server, lease.name_servers);
    /// }
    /// // This stack was given its address by whoever has built it.
    /// assert!(stack.leases().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leases(&self) -> Vec<Lease> {
        self.engine.leases()
    }

    /// The names of the interfaces, in the order in which they were added, and of the loopback, by which
    /// what the stack sends to itself goes. Where several have one name, that means the first of them.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// assert_eq!(stack.interfaces(), ["wire1", "lo"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interfaces(&self) -> Vec<String> {
        self.engine.interfaces()
    }

    /// IPv6 addresses that were to be this stack's and that somebody else on the link turned out
    /// to have (RFC 4862, section 5.4), with the numbers of their interfaces. They are not used.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// for (interface, addr) in stack.duplicate_addresses() {
    ///     eprintln!("interface {interface}: somebody else has {addr}");
    /// }
    /// assert!(stack.duplicate_addresses().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn duplicate_addresses(&self) -> Vec<(usize, IpAddr)> {
        let all = self.engine.duplicates().into_iter();
        all.map(|(n, ip)| (n.into(), addr::outward(ip.into(), 0).ip()))
            .collect()
    }

    /// Where its metrics can be asked for ([`Builder::metrics`]).
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.metrics("127.0.0.1:0".parse()?).build()?;
    /// let at = stack.metrics().ok_or("it was asked for them")?;
    /// println!("http://{at}/metrics");
    /// assert_ne!(at.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|m| m.addr())
    }

    /// The organization.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// assert_eq!(stack.organization().to_string(), "up:shared");
    /// assert!(!stack.organization().single_threaded());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn organization(&self) -> &OrgSpec {
        self.engine.spec()
    }

    /// What the stack has counted. Under `up`, asked by another thread than the stack's own, that
    /// one answers when it looks at the devices the next time, and is waited for; for a second at
    /// most ([`Stats::partial`]).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let server = listener.accept()?;
    /// let stats = stack.stats();
    /// assert_eq!(stats.connections, 2, "both ends are here");
    /// assert_eq!(stats.count("retransmits"), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// All connections with their state; none of a stack that [`Stack::try_connections`] can't
    /// ask.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let server = listener.accept()?;
    /// for c in stack.connections() {
    ///     println!("{}:{} {:?}", c.key.remote, c.key.remote_port, c.tcp.state);
    /// }
    /// assert_eq!(stack.connections().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connections(&self) -> Vec<ConnInfo> {
        self.try_connections().unwrap_or_default()
    }

    /// All connections with their state. Under `up`, asked by another thread than the stack's own,
    /// that one answers when it looks at the devices the next time, and is waited for.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let server = listener.accept()?;
    /// let all = stack.try_connections()?;
    /// assert!(all.iter().all(|c| c.tcp.state == State::Established));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `TimedOut`: it did not come by within a second.
    pub fn try_connections(&self) -> std::io::Result<Vec<ConnInfo>> {
        self.engine.connections().map_err(io)
    }

    /// Serves all devices and timers once, without waiting; yields how many frames that were.
    /// Needed only under `up`, when no call is made that waits.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.organization("up")?.build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// listener.set_nonblocking(true)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let peer = loop {
    ///     stack.drive()?;
    ///     if let Ok((_server, peer)) = listener.accept() {
    ///         break peer;
    ///     }
    /// };
    /// assert_eq!(peer, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another thread owns the stack.
    pub fn drive(&self) -> std::io::Result<usize> {
        self.engine.drive(&self.engine.queues()).map_err(io)
    }

    /// Begins a batch: until it is dropped, what the calling thread sends goes to the devices together.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let batch = stack.batch();
    /// client.write_all(b"a small message, ")?;
    /// client.write_all(b"and another")?;
    /// drop(batch);
    /// let mut both = [0; 28];
    /// server.read_exact(&mut both)?;
    /// assert_eq!(&both, b"a small message, and another");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The back of the facade, for adapters.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// assert_eq!(stack.engine().spec(), stack.organization());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Ends the stack in order: closes the listeners, resets what nobody has accepted, shuts down
    /// the write side of every connection, and waits until peers have acknowledged everything, the
    /// FINs too, for at most `timeout`. Then stops it as [`Stack::stop`] does. Returns what was
    /// left, which is lost.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"that is all")?;
    /// // All that was written arrives, if the peer takes it within 10 s.
    /// let undelivered = stack.shutdown(Duration::from_secs(10))?;
    /// assert!(undelivered.is_none(), "{undelivered}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another thread owns the stack (`up`), or it has ended already.
    pub fn shutdown(&self, timeout: Duration) -> std::io::Result<Undelivered> {
        self.engine.finish(timeout).map_err(io)
    }

    /// Resets all connections and stops the stack's threads, now. All calls fail from now on with
    /// `NotConnected`, those that are blocked now too. Under `up`, from another thread than the
    /// stack's own, the connections are reset when that one makes its next call.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// stack.stop();
    /// let error = client.write(b"late").expect_err("the stack has ended");
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop(&self) {
        self.engine.stop();
    }
}

/// Whether a call with these settings can be meant.
fn callable(config: &TcpConfig) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    check::tcp(config).map_err(|e| Error::new(ErrorKind::InvalidInput, e))
}

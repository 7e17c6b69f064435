//! smoltcp as a peer: one thread with its interface, its sockets and the application.

mod link;
pub(super) mod setup;

use super::kernel::Kernel;
use crate::{
    Error,
    error::Context as _,
    workload::{Coalescing, Content, Control, Endpoint, Phase, Ready, Roles},
};
use link::Link;
use smoltcp::{
    iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet},
    phy::{Medium, TunTapInterface},
    socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State},
    time::Instant as Stamp,
    wire::{EthernetAddress, IpCidr},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

/// Port that the far end listens on.
const PORT: u16 = 5001;
/// First local port of the near end.
const FIRST_PORT: u16 = 10_000;
/// Most connections of a run: each has a local port of its own.
const MOST: u32 = (u16::MAX - FIRST_PORT) as u32;
/// Connections that may be opening at a time.
const OPENING: usize = 64;
/// Most frames taken in before others go out, and about as many the other way.
const BURST: usize = 64;
/// Buffer of a direction in which nothing but handshakes goes, bytes.
const UNUSED: usize = 4096;
/// Shortest sleep, for sockets that want to send and find no room on the link.
const SHORTEST: Duration = Duration::from_micros(50);
/// Longest time to establish all connections without a deadline.
const PATIENCE: Duration = Duration::from_secs(60);

/// How one end is set up.
#[derive(Debug, Clone)]
struct Setting {
    /// Its address.
    pub address: Ipv4Addr,
    /// Prefix length of the subnet.
    pub prefix: u8,
    /// Connections.
    pub connections: usize,
    /// What it does with them.
    pub roles: Roles,
    /// Socket buffers, bytes.
    pub buffer: usize,
    /// When small writes become segments.
    pub coalescing: Coalescing,
    /// When establishing has to be over.
    pub deadline: Option<Instant>,
}

/// Where an end's connections go.
enum Remote {
    /// To another smoltcp at this address.
    Smoltcp(Ipv4Addr),
    /// To the kernel's sockets.
    Kernel(Kernel),
}

impl Setting {
    /// Receive and send buffer of a socket. smoltcp has them whole from the beginning, so a
    /// direction without use gets a small one.
    fn buffers(&self) -> (usize, usize) {
        let talks = self.roles.talk.is_some();
        let of = |used: bool| if used { self.buffer } else { UNUSED };
        (of(self.roles.sink || talks), of(self.roles.source || talks))
    }

    /// Bytes of all its sockets' buffers.
    fn memory(&self) -> u64 {
        let (receive, send) = self.buffers();
        (receive + send) as u64 * self.connections as u64
    }
}

/// Makes the TAP interface `name` in the calling thread's namespace.
///
/// # Errors
/// What the system says.
fn tap(name: &str) -> Result<TunTapInterface, Error> {
    TunTapInterface::new(name, Medium::Ethernet).context("making a TAP interface for smoltcp")
}

/// Milliseconds since the first call, for timestamp options (RFC 7323).
fn milliseconds() -> u32 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_millis() as u32
}

/// A socket's two kinds of news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Receive,
    Send,
}

type News = Arc<Mutex<Vec<(usize, Side)>>>;

/// What a socket wakes: it leaves a note of which it was.
struct Note {
    connection: usize,
    side: Side,
    news: News,
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.push((self.connection, self.side));
    }
}

/// One connection of an endpoint.
struct Connection {
    handle: SocketHandle,
    receive: Waker,
    send: Waker,
    /// Has not said `WouldBlock` since it was last found ready.
    readable: bool,
    writable: bool,
    /// It is in the list of ready ones.
    listed: bool,
}

/// One thread's smoltcp.
struct SmoltcpEndpoint<L> {
    interface: Interface,
    link: L,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    ready: Vec<usize>,
    news: News,
    content: Content,
    epoch: Instant,
    setting: Setting,
}

impl<L: Link> SmoltcpEndpoint<L> {
    fn new(mut link: L, setting: Setting, content: &Content) -> Self {
        let last = setting.address.octets()[3];
        let mac = EthernetAddress([2, 0x73, 0x6d, 0x6f, 0x6c, last]);
        let mut config = Config::new(mac.into());
        config.random_seed = u64::from(last);
        let mut interface = Interface::new(config, &mut link, Stamp::ZERO);
        interface.update_ip_addrs(|list| {
            // An empty list has room for one.
            let _ = list.push(IpCidr::new(setting.address.into(), setting.prefix));
        });
        SmoltcpEndpoint {
            interface,
            link,
            sockets: SocketSet::new(Vec::with_capacity(setting.connections)),
            connections: Vec::with_capacity(setting.connections),
            ready: Vec::new(),
            news: News::default(),
            content: content.clone(),
            epoch: Instant::now(),
            setting,
        }
    }

    /// An endpoint whose connections the other end opens; says by `listening` when it may.
    ///
    /// # Errors
    /// That it takes too long, or that the run was stopped.
    fn accept(
        link: L,
        setting: Setting,
        content: &Content,
        listening: &mpsc::SyncSender<()>,
        control: &Control,
    ) -> Result<Self, Error> {
        let mut endpoint = Self::new(link, setting, content);
        for _ in 0..endpoint.setting.connections {
            let socket = endpoint.socket();
            let listens = endpoint.sockets.get_mut::<Socket<'_>>(socket).listen(PORT);
            listens.map_err(|e| Error::Run(format!("smoltcp can't listen: {e}")))?;
        }
        // The other end may have given up; then the phase says so.
        let _ = listening.send(());
        endpoint.establish(None, control)?;
        Ok(endpoint)
    }

    /// An endpoint that opens its connections, to another one or to the kernel.
    ///
    /// # Errors
    /// That it takes too long, that a connection is refused, or that the run was stopped.
    fn connect(
        link: L,
        setting: Setting,
        content: &Content,
        to: &Remote,
        control: &Control,
    ) -> Result<Self, Error> {
        let mut endpoint = Self::new(link, setting, content);
        endpoint.establish(Some(to), control)?;
        Ok(endpoint)
    }

    /// Serves until all connections are established; opens them if `to` says where to.
    fn establish(&mut self, to: Option<&Remote>, control: &Control) -> Result<(), Error> {
        let deadline = self.setting.deadline;
        let deadline = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let wanted = self.setting.connections;
        let mut done = 0;
        while done < wanted {
            if control.phase() == Phase::Stop {
                return Err(Error::Run("stopped while connecting".into()));
            }
            if Instant::now() > deadline {
                return Err(Error::Late(format!(
                    "smoltcp: out of time with {done} of {wanted} connections established"
                )));
            }
            if let Some(to) = to {
                while self.connections.len() < wanted.min(done + OPENING) {
                    self.open(to)?;
                }
            }
            if !self.turn() {
                let slept = self.link.sleep(Duration::from_millis(2));
                slept.context("waiting for frames")?;
            }
            while done < self.connections.len() && self.established(done)? {
                if let Some(Remote::Kernel(kernel)) = to {
                    kernel.connected(done, control)?;
                }
                done += 1;
            }
        }
        // The last of the handshakes' packets must not wait for traffic.
        while self.turn() {}
        for connection in 0..wanted {
            self.note(connection, Side::Receive);
            self.note(connection, Side::Send);
        }
        Ok(())
    }

    /// Whether a connection is established.
    fn established(&mut self, connection: usize) -> Result<bool, Error> {
        match self.get(connection).state() {
            State::Established => Ok(true),
            State::Listen | State::SynSent | State::SynReceived => Ok(false),
            other => Err(Error::Run(format!(
                "smoltcp: connection {connection} ended while it was opened ({other})"
            ))),
        }
    }

    /// Starts the next connection.
    fn open(&mut self, to: &Remote) -> Result<(), Error> {
        let k = self.connections.len();
        let remote = match to {
            Remote::Smoltcp(address) => SocketAddrV4::new(*address, PORT),
            Remote::Kernel(kernel) => kernel.address(k),
        };
        // There are at most `MOST`.
        let local = FIRST_PORT + k as u16;
        let handle = self.socket();
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        socket
            .connect(self.interface.context(), remote, local)
            .map_err(|e| Error::Run(format!("smoltcp can't connect: {e}")))
    }

    /// Adds a socket.
    fn socket(&mut self) -> SocketHandle {
        let (receive, send) = self.setting.buffers();
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(receive), buffer(send));
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.set_nagle_enabled(self.setting.coalescing != Coalescing::NoDelay);
        socket.set_tsval_generator(Some(milliseconds));
        let handle = self.sockets.add(socket);
        let connection = self.connections.len();
        let waker = |side| {
            Waker::from(Arc::new(Note {
                connection,
                side,
                news: self.news.clone(),
            }))
        };
        self.connections.push(Connection {
            handle,
            receive: waker(Side::Receive),
            send: waker(Side::Send),
            readable: false,
            writable: false,
            listed: false,
        });
        handle
    }

    fn get(&mut self, connection: usize) -> &mut Socket<'static> {
        self.sockets.get_mut(self.connections[connection].handle)
    }

    fn now(&self) -> Stamp {
        Stamp::from_micros(self.epoch.elapsed().as_micros() as i64)
    }

    /// Takes frames in and sends others, a bounded number of both; whether there were any.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let mut moved = false;
        for _ in 0..BURST {
            let (link, sockets) = (&mut self.link, &mut self.sockets);
            match self.interface.poll_ingress_single(now, link, sockets) {
                PollIngressSingleResult::None => break,
                _ => moved = true,
            }
        }
        // Each round is a frame of every socket that has one.
        for _ in 0..BURST.div_ceil(self.connections.len().max(1)) {
            let (link, sockets) = (&mut self.link, &mut self.sockets);
            match self.interface.poll_egress(now, link, sockets) {
                PollResult::None => break,
                PollResult::SocketStateChanged => moved = true,
            }
        }
        self.link.flush();
        moved
    }

    /// Takes note that a socket may have become ready.
    fn note(&mut self, connection: usize, side: Side) {
        let roles = self.setting.roles;
        let c = &mut self.connections[connection];
        match side {
            Side::Receive => c.readable |= roles.sink,
            Side::Send => c.writable |= roles.source,
        }
        if (c.readable || c.writable) && !c.listed {
            c.listed = true;
            self.ready.push(connection);
        }
    }

    /// Hears what sockets were woken.
    fn hear(&mut self) {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = std::mem::take(&mut *news);
        drop(news);
        for (connection, side) in heard {
            self.note(connection, side);
        }
    }

    /// The outcome of a call that moved `n` bytes or found none to move.
    fn moved(&mut self, connection: usize, side: Side, n: usize) -> io::Result<usize> {
        if n > 0 {
            return Ok(n);
        }
        let c = &mut self.connections[connection];
        let socket: &mut Socket<'_> = self.sockets.get_mut(c.handle);
        match side {
            Side::Receive => {
                c.readable = false;
                socket.register_recv_waker(&c.receive);
            }
            Side::Send => {
                c.writable = false;
                socket.register_send_waker(&c.send);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive(
        &mut self,
        connection: usize,
        take: impl FnOnce(&mut Socket<'_>) -> Result<usize, RecvError>,
    ) -> io::Result<usize> {
        match take(self.get(connection)) {
            Ok(n) => self.moved(connection, Side::Receive, n),
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl<L: Link> Endpoint for SmoltcpEndpoint<L> {
    fn connections(&self) -> usize {
        self.connections.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        let connections = &mut self.connections;
        self.ready.retain(|&i| {
            let c = &mut connections[i];
            c.listed = c.readable || c.writable;
            c.listed
        });
        let moved = self.turn();
        self.hear();
        if self.ready.is_empty() && !moved {
            let now = self.now();
            let soon = self.interface.poll_delay(now, &self.sockets);
            let soon = soon.map_or(timeout, |d| Duration::from_micros(d.total_micros()));
            self.link
                .sleep(soon.clamp(SHORTEST, timeout.max(SHORTEST)))?;
            self.turn();
            self.hear();
        }
        let one = |&connection: &usize| Ready {
            connection,
            readable: self.connections[connection].readable,
            writable: self.connections[connection].writable,
        };
        ready.extend(self.ready.iter().map(one));
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let content = self.content.clone();
        match self
            .get(connection)
            .send_slice(&content.bytes()[at..at + len])
        {
            Ok(n) => self.moved(connection, Side::Send, n),
            Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn discard(&mut self, connection: usize, max: usize) -> io::Result<usize> {
        self.receive(connection, |socket| {
            socket.recv(|bytes| {
                let n = bytes.len().min(max);
                (n, n)
            })
        })
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(connection, |socket| socket.recv_slice(buffer))
    }
}

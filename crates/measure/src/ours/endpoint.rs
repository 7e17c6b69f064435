//! One application thread's sockets of our stack, with their poller.

use super::times::Marks;
use crate::{
    Error,
    error::Context as _,
    linux::sockets::{self, Near, give_up},
    workload::{Content, Control, Endpoint, Phase, Ready, Reconnects, Roles, reconnect::LISTENERS},
};
use perimeter::{
    Bytes, Events, Interest, Poll, Stack, TcpListener, TcpStream, Token, link::rss::Rss,
};
use perimeter_sync::Touched;
use std::{
    collections::VecDeque,
    hint::black_box,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Port of the ideal peer.
const PEER_PORT: u16 = 5001;
/// First local port of steered connections.
const FIRST_PORT: u16 = 10_000;
/// Connections of a thread that may be opening at a time: well within a transmit ring.
const OPENING: usize = 64;
/// Connections that may wait at a listener.
const BACKLOG: u32 = 1024;
/// Longest time to establish all connections without a deadline.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events taken from one wait.
const EVENTS: usize = 256;
/// Largest single read, bytes. A smaller buffer stays in the core's cache.
const READ: usize = 64 * 1024;

/// How a thread comes by its stack.
pub(super) enum Founder {
    /// It builds it and owns it: under `up` a stack belongs to one thread.
    Build(Box<perimeter::Builder>),
    /// It shares it.
    Join(Stack),
}

/// How a thread comes by its connections.
pub(super) enum Far {
    /// It opens them to the ideal peer.
    Ideal,
    /// It opens them to the kernel's sockets, by this one of their [`sockets::sides`].
    Kernel(Near),
    /// It opens them to another stack of ours, by this one of their sides.
    Stack(Near),
    /// It accepts them, by the other side.
    Opener(sockets::Far),
}

/// Where a thread's connections go.
struct Remotes {
    listening: Vec<SocketAddr>,
    near: Option<Near>,
    /// They go to the kernel's sockets, which accept what they are told of.
    kernel: bool,
}

impl Remotes {
    fn ideal() -> Remotes {
        Remotes {
            listening: Vec::new(),
            near: None,
            kernel: false,
        }
    }

    fn find(near: Near, kernel: bool, control: &Control) -> Result<Remotes, Error> {
        let Ok(listening) = near.listening.recv() else {
            return Err(give_up(control));
        };
        Ok(Remotes {
            listening,
            near: Some(near),
            kernel,
        })
    }

    /// Where the `k`-th connection goes, from `host` on `nic`.
    fn address(&self, k: usize, nic: usize, host: IpAddr) -> SocketAddr {
        match (&self.near, host) {
            (None, IpAddr::V4(ip)) => (Ipv4Addr::from_bits(ip.to_bits() + 1), PEER_PORT).into(),
            (None, IpAddr::V6(ip)) => (Ipv6Addr::from_bits(ip.to_bits() + 1), PEER_PORT).into(),
            (Some(near), _) => self.listening[near.listener(k, nic)],
        }
    }

    /// The `k`-th connection is established.
    fn connected(&self, k: usize, nic: usize, control: &Control) -> Result<(), Error> {
        match &self.near {
            Some(near) if self.kernel && near.connected.send(near.listener(k, nic)).is_err() => {
                Err(give_up(control))
            }
            _ => Ok(()),
        }
    }
}

/// What one thread has to do.
pub(super) struct Task {
    /// Its number.
    pub thread: usize,
    /// How many there are.
    pub threads: usize,
    /// NIC of each of its connections.
    pub nics: Vec<usize>,
    /// The stack's address on each NIC.
    pub hosts: Vec<IpAddr>,
    /// Choose ports such that the NIC steers the connection's packets to this thread's queue.
    pub steered: bool,
    /// Receive queues that it serves while it waits.
    pub serve: Vec<u16>,
    /// What it does with its connections.
    pub roles: Roles,
    /// It reads what it receives in the stack's memory, instead of having it copied.
    pub in_place: bool,
    /// Connections of all threads together; each counts at each end that is ours.
    pub all: usize,
    /// How many of those are established.
    pub established: Arc<AtomicUsize>,
    /// What each connection begins with.
    pub greeting: Arc<[u8]>,
    /// Where to put readings of the stack's counters, if that is this thread's job.
    pub marks: Option<Marks>,
    /// When establishing has to be over.
    pub deadline: Option<Instant>,
}

/// An [`Endpoint`] of our stack. Streams come first, so that they close before the poller and the
/// stack go.
pub(super) struct StackEndpoint {
    streams: Vec<Option<TcpStream>>,
    listeners: Vec<TcpListener>,
    /// Where each connection is opened anew.
    to: Vec<SocketAddr>,
    /// Where connections are accepted anew: the indices of none, the longest unused first.
    free: VecDeque<usize>,
    /// Whether what is accepted is read from.
    reads: bool,
    /// See [`Task::in_place`].
    in_place: bool,
    poll: Poll,
    events: Events,
    file: Bytes,
    scratch: Vec<u8>,
    marks: Option<Marks>,
    stack: Stack,
}

impl StackEndpoint {
    /// Establishes the connections of `task` on the calling thread, and goes on serving until
    /// those of all threads are established. None, where they are opened anew: then the run
    /// itself opens them.
    pub(super) fn establish(
        founder: Founder,
        far: Far,
        task: Task,
        content: &Content,
        control: &Control,
    ) -> Result<Self, Error> {
        let stack = match founder {
            Founder::Build(builder) => builder.build().map_err(|e| Error::Run(e.to_string()))?,
            Founder::Join(stack) => stack,
        };
        let mut poll = stack.poll().context("making a poller")?;
        poll.serve(&task.serve);
        let mut endpoint = StackEndpoint {
            streams: Vec::with_capacity(task.nics.len()),
            listeners: Vec::new(),
            to: Vec::new(),
            free: VecDeque::new(),
            reads: task.roles.talk.is_some(),
            in_place: task.in_place,
            poll,
            events: Events::with_capacity(EVENTS),
            file: Bytes::copy_from_slice(content.bytes()),
            scratch: vec![0; READ],
            marks: task.marks.clone(),
            stack,
        };
        let anew = task.roles.part.is_some();
        let remotes = match far {
            Far::Ideal => Remotes::ideal(),
            Far::Kernel(near) => Remotes::find(near, true, control)?,
            Far::Stack(near) => Remotes::find(near, false, control)?,
            Far::Opener(far) => {
                endpoint.listen(&task, &far, control)?;
                match anew {
                    true => {
                        endpoint.streams.resize_with(far.connections, || None);
                        endpoint.free = (0..far.connections).collect();
                    }
                    false => endpoint.accept_all(&task, control)?,
                }
                return Ok(endpoint);
            }
        };
        match anew {
            true => {
                let address =
                    |(k, nic): (usize, &usize)| remotes.address(k, *nic, task.hosts[*nic]);
                endpoint.to = task.nics.iter().enumerate().map(address).collect();
                endpoint.streams.resize_with(task.nics.len(), || None);
            }
            false => endpoint.open_all(&task, &remotes, control)?,
        }
        Ok(endpoint)
    }

    /// The stack that it is an end of.
    pub(super) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Serves the stack, calling `step` with each poll's events, until all threads have their
    /// connections: who has its own goes on, as others' packets may come by its queues.
    fn until_established(
        &mut self,
        task: &Task,
        control: &Control,
        mut step: impl FnMut(&mut Self, &[Token]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let deadline = task.deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let mut tokens = Vec::new();
        while task.established.load(Ordering::Acquire) < task.all {
            if control.phase() == Phase::Stop {
                return Err(Error::Run("stopped while connecting".into()));
            }
            if Instant::now() > deadline {
                return Err(Error::Late(format!(
                    "out of time with {} of {} connections established",
                    task.established.load(Ordering::Relaxed),
                    task.all
                )));
            }
            step(self, &tokens)?;
            let wait = Some(Duration::from_millis(2));
            self.poll.poll(&mut self.events, wait).context("polling")?;
            tokens.clear();
            tokens.extend(self.events.iter().map(|e| e.token()));
        }
        Ok(())
    }

    fn open_all(&mut self, task: &Task, remotes: &Remotes, control: &Control) -> Result<(), Error> {
        let mut port = FIRST_PORT;
        let mut opened = 0;
        self.until_established(task, control, |this, tokens| {
            for token in tokens {
                opened += 1;
                this.established(token.0)?;
                this.greet(token.0, &task.greeting)?;
                remotes.connected(token.0, task.nics[token.0], control)?;
                task.established.fetch_add(1, Ordering::AcqRel);
            }
            while this.streams.len() < task.nics.len() && this.streams.len() - opened < OPENING {
                this.open(task, remotes, &mut port)?;
            }
            Ok(())
        })?;
        for stream in self.streams.iter().flatten() {
            let registry = self.poll.registry();
            registry.deregister(stream).context("a registration")?;
        }
        self.arm(task.roles)
    }

    /// Listens on each NIC and tells the other end where.
    fn listen(&mut self, task: &Task, far: &sockets::Far, control: &Control) -> Result<(), Error> {
        let mut listening = Vec::new();
        for host in &task.hosts {
            for _ in 0..sockets::ports(far.connections) {
                let config = self.stack.tcp_config();
                let listener = self.stack.listen_with((*host, 0), BACKLOG, config);
                let listener = listener.context("listening")?;
                listener.set_nonblocking(true).context("a socket option")?;
                let at = listener.local_addr().context("a listener's address")?;
                let registry = self.poll.registry();
                registry
                    .register(&listener, Token(LISTENERS), Interest::READABLE)
                    .context("registering a listener")?;
                self.listeners.push(listener);
                listening.push(at);
            }
        }
        far.listening.send(listening).map_err(|_| give_up(control))
    }

    /// Accepts the connections of this thread. Their order is that of their arrival, so an index
    /// is no NIC here.
    fn accept_all(&mut self, task: &Task, control: &Control) -> Result<(), Error> {
        self.until_established(task, control, |this, tokens| {
            while !tokens.is_empty()
                && let Some(stream) = this.waiting()?
            {
                this.streams.push(Some(stream));
                task.established.fetch_add(1, Ordering::AcqRel);
            }
            Ok(())
        })?;
        self.listeners.clear();
        self.arm(task.roles)
    }

    /// A connection that waits at a listener.
    fn waiting(&self) -> Result<Option<TcpStream>, Error> {
        for listener in &self.listeners {
            match listener.accept() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                accepted => {
                    let (stream, _) = accepted.context("accepting")?;
                    stream.set_nonblocking(true).context("a socket option")?;
                    return Ok(Some(stream));
                }
            }
        }
        Ok(None)
    }

    /// Asks for what the roles need. Only now: until all are established, a connection that is
    /// must not be reported again.
    fn arm(&self, roles: Roles) -> Result<(), Error> {
        let interest = match (roles.source, roles.sink) {
            (true, true) => Interest::BOTH,
            (true, false) => Interest::WRITABLE,
            _ => Interest::READABLE,
        };
        let registry = self.poll.registry();
        for (i, stream) in self.streams.iter().flatten().enumerate() {
            registry
                .register(stream, Token(i), interest)
                .context("registering a socket")?;
        }
        Ok(())
    }

    /// Starts the next connection.
    fn open(&mut self, task: &Task, remotes: &Remotes, port: &mut u16) -> Result<(), Error> {
        let token = self.streams.len();
        let nic = task.nics[token];
        let host = task.hosts[nic];
        let remote = remotes.address(token, nic, host);
        let stream = if task.steered {
            let local = self.steered(task, (host, remote), remotes, port)?;
            let config = self.stack.tcp_config();
            self.stack.connect_with(Some(local), remote, &config)
        } else {
            self.stack.start_connect(remote)
        };
        let stream = stream.context("opening a connection")?;
        stream.set_nonblocking(true).context("a socket option")?;
        // Writable means established; told once, as each is counted once.
        let interest = Interest::WRITABLE.oneshot();
        self.poll
            .registry()
            .register(&stream, Token(token), interest)
            .context("registering a socket")?;
        self.streams.push(Some(stream));
        Ok(())
    }

    /// A local address whose packets the NIC steers to this thread's queue.
    fn steered(
        &self,
        task: &Task,
        (host, remote): (IpAddr, SocketAddr),
        remotes: &Remotes,
        port: &mut u16,
    ) -> Result<SocketAddr, Error> {
        // The kernel steers a flow to the queue that it was sent by, devices in memory by RSS,
        // whose hash is the same at both ends; the stack's choice of a transmit queue is the hash
        // modulo their number.
        let rss = Rss::even(task.threads);
        let here = |hash: u32| match remotes.kernel {
            false => rss.queue(hash) == task.thread,
            true => hash as usize % task.threads == task.thread,
        };
        loop {
            let local = SocketAddr::from((host, *port));
            *port = port
                .checked_add(1)
                .ok_or_else(|| Error::Run("no port left that is steered to its thread".into()))?;
            let hash = self.stack.engine().flow_hash(local, remote);
            if here(hash) {
                return Ok(local);
            }
        }
    }

    /// Sends the first bytes of a connection at once, held back by no cork.
    fn greet(&self, connection: usize, greeting: &[u8]) -> Result<(), Error> {
        if greeting.is_empty() {
            return Ok(());
        }
        let mut stream = self.stream(connection).context("saying the token")?;
        let corked = self.stack.tcp_config().cork;
        stream.set_cork(false).context("a socket option")?;
        stream.write_all(greeting).context("saying the token")?;
        stream.set_cork(corked).context("a socket option")
    }

    /// A connection was established, or failed.
    fn established(&self, connection: usize) -> Result<(), Error> {
        let stream = self.stream(connection).context("asking a socket")?;
        if let Some(e) = stream.take_error().context("asking a socket")? {
            return Err(Error::Io {
                context: "connecting to the peer".into(),
                source: e,
            });
        }
        Ok(())
    }
}

impl StackEndpoint {
    fn stream(&self, connection: usize) -> io::Result<&TcpStream> {
        let stream = self.streams[connection].as_ref();
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Reads a byte of each cache line of `piece`, so that they come into the core's cache, as they do where
/// somebody uses or copies them.
fn look_at(piece: &[u8]) {
    black_box(
        piece
            .iter()
            .step_by(Touched::LINE)
            .fold(0, |sum, byte| sum ^ byte),
    );
}

impl Reconnects for StackEndpoint {
    fn open(&mut self, connection: usize) -> Result<(), Error> {
        let stream = self.stack.start_connect(self.to[connection]);
        let stream = stream.context("opening a connection")?;
        stream.set_nonblocking(true).context("a socket option")?;
        self.poll
            .registry()
            .register(&stream, Token(connection), Interest::BOTH.edge())
            .context("registering a socket")?;
        self.streams[connection] = Some(stream);
        Ok(())
    }

    fn opened(&mut self, connection: usize) -> Result<(), Error> {
        self.established(connection)
    }

    fn accept(&mut self) -> Result<Option<usize>, Error> {
        let Some(&connection) = self.free.front() else {
            return Ok(None);
        };
        let Some(stream) = self.waiting()? else {
            return Ok(None);
        };
        if self.reads {
            self.poll
                .registry()
                .register(&stream, Token(connection), Interest::READABLE)
                .context("registering a socket")?;
        }
        self.streams[connection] = Some(stream);
        self.free.pop_front();
        Ok(Some(connection))
    }

    fn close(&mut self, connection: usize) {
        self.streams[connection] = None;
        if self.to.is_empty() {
            self.free.push_back(connection);
        }
    }
}

impl Endpoint for StackEndpoint {
    fn connections(&self) -> usize {
        self.streams.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        self.poll.poll(&mut self.events, Some(timeout))?;
        for event in self.events.iter() {
            let broken = event.is_error();
            ready.push(Ready {
                connection: event.token().0,
                readable: broken || event.is_readable(),
                writable: broken || event.is_writable(),
            });
        }
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let page = [self.file.slice(at..at + len)];
        self.stream(connection)?.send_zero_copy(&page)
    }

    fn discard(&mut self, connection: usize, max: usize) -> io::Result<usize> {
        let max = max.min(self.scratch.len());
        let stream = self.streams[connection].as_ref();
        let mut stream = stream.ok_or(io::ErrorKind::NotConnected)?;
        match self.in_place {
            true => stream.read_with(max, look_at),
            false => stream.read(&mut self.scratch[..max]),
        }
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream(connection)?.read(buffer)
    }

    fn mark(&mut self) {
        if let Some(marks) = &self.marks {
            marks.mark(&self.stack);
        }
    }

    fn look(&mut self) {
        if let Some(marks) = &self.marks {
            marks.look(&self.stack);
        }
    }
}

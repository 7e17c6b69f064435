//! Readiness in mio's shape: register sockets with tokens, wait for events. O(ready). Any
//! number of threads may wait on one poller and share one socket.

use crate::error::io;
use crate::stack::Stack;
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::UdpSocket;
use perimeter_base::Time;
use perimeter_org::engine::Engine;
use perimeter_stack::SockId;
use perimeter_stack::poller::{Alarm, Notify, Ready};
pub use perimeter_stack::ready::Trigger;
use perimeter_stack::ready::{self, Want};
use perimeter_sync::native::watch::{self, Bell};
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Names a registration in events.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// // The place of a socket in a table: what is ready is found there.
/// let listeners = [stack.listen("10.0.0.1:80")?, stack.listen("10.0.0.1:443")?];
/// let poll = stack.poll()?;
/// for (n, listener) in listeners.iter().enumerate() {
///     poll.registry().register(listener, Token(n), Interest::READABLE)?;
/// }
/// let client = stack.connect("10.0.0.1:443")?;
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// let Token(n) = events.iter().next().ok_or("no event")?.token();
/// assert_eq!(listeners[n].accept()?.1, client.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub usize);

/// What to be told of.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// let poll = stack.poll()?;
/// poll.registry().register(&client, Token(1), Interest::READABLE | Interest::WRITABLE)?;
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// // There is room to write, and nothing to read yet.
/// let event = events.iter().next().ok_or("no event")?;
/// assert!(event.is_writable() && !event.is_readable());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    bits: u8,
    trigger: Trigger,
    exclusive: bool,
}

impl Interest {
    /// Data, end of stream, or a connection to accept.
    pub const READABLE: Interest = Interest::of(ready::IN | ready::RDHUP);
    /// Room to write, or the connection was established.
    pub const WRITABLE: Interest = Interest::of(ready::OUT);
    /// Either.
    pub const BOTH: Interest = Interest::of(ready::IN | ready::RDHUP | ready::OUT);

    const fn of(bits: u8) -> Interest {
        Interest {
            bits,
            trigger: Trigger::Level,
            exclusive: false,
        }
    }

    /// Told whenever something new arrives, not as long as it is there (`EPOLLET`).
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&server, Token(1), Interest::READABLE.edge())?;
    /// client.write_all(b"hello")?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert_eq!(events.len(), 1);
    /// // Nothing new has come since, though all of it is still there.
    /// poll.poll(&mut events, Some(Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn edge(mut self) -> Interest {
        self.trigger = Trigger::Edge;
        self
    }

    /// Told once (`EPOLLONESHOT`).
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// let once = Interest::WRITABLE.oneshot();
    /// poll.registry().register(&client, Token(1), once)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// poll.poll(&mut events, Some(Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// // Armed again.
    /// poll.registry().reregister(&client, Token(1), once)?;
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn oneshot(mut self) -> Interest {
        self.trigger = Trigger::OneShot;
        self
    }

    /// Of all exclusive registrations of a socket, one is told (`EPOLLEXCLUSIVE`).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // Each worker has a poller; a connection wakes one of them.
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let workers = [stack.poll()?, stack.poll()?];
    /// for poll in &workers {
    ///     poll.registry().register(&listener, Token(0), Interest::READABLE.exclusive())?;
    /// }
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let mut events = Events::with_capacity(8);
    /// for poll in workers.iter().cycle().take(1000) {
    ///     poll.poll(&mut events, Some(Duration::from_millis(10)))?;
    ///     if !events.is_empty() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn exclusive(mut self) -> Interest {
        self.exclusive = true;
        self
    }

    /// Both, told as `self` is. `READABLE | WRITABLE` is the same.
    ///
    /// ```
    /// # use perimeter::Interest;
    /// const EITHER: Interest = Interest::READABLE.add(Interest::WRITABLE);
    /// assert_eq!(EITHER, Interest::READABLE | Interest::WRITABLE);
    /// assert_eq!(EITHER, Interest::BOTH);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn add(mut self, other: Interest) -> Interest {
        self.bits |= other.bits;
        self
    }

    fn want(self) -> Want {
        Want {
            interest: self.bits,
            trigger: self.trigger,
            exclusive: self.exclusive,
        }
    }
}

/// What either names. How they are told is that of the left one.
impl core::ops::BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        self.add(other)
    }
}

/// An event.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// let poll = stack.poll()?;
/// poll.registry().register(&server, Token(7), Interest::READABLE)?;
/// client.write_all(b"hello")?;
/// client.shutdown(Shutdown::Write)?;
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// for event in &events {
///     assert_eq!(event.token(), Token(7));
///     assert!(event.is_readable() && !event.is_error());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event(Ready);

impl Event {
    /// The token that the socket was registered with.
    /// See [`Event`].
    pub fn token(&self) -> Token {
        Token(self.0.token)
    }

    /// Reading does not block.
    /// See [`Event`].
    pub fn is_readable(&self) -> bool {
        self.0.bits & (ready::IN | ready::RDHUP | ready::ALWAYS) != 0
    }

    /// Writing does not block.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let stream = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let poll = stack.poll()?;
    /// poll.registry().register(&stream, Token(0), Interest::WRITABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// // The handshake is over.
    /// assert!(events.iter().all(|e| e.is_writable() && !e.is_error()));
    /// assert_eq!((&stream).write(b"hello")?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_writable(&self) -> bool {
        self.0.bits & (ready::OUT | ready::ALWAYS) != 0
    }

    /// An error is pending.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let stream = stack.start_connect("10.0.0.1:81".parse()?)?;
    /// let poll = stack.poll()?;
    /// poll.registry().register(&stream, Token(0), Interest::WRITABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// // Nobody listens there.
    /// assert!(events.iter().all(|e| e.is_error()));
    /// assert!(stream.take_error()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_error(&self) -> bool {
        self.0.bits & ready::ERR != 0
    }

    /// The peer has closed its direction.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&server, Token(0), Interest::READABLE)?;
    /// client.shutdown(Shutdown::Write)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// let event = events.iter().next().ok_or("no event")?;
    /// assert!(event.is_read_closed() && !event.is_write_closed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_read_closed(&self) -> bool {
        self.0.bits & (ready::RDHUP | ready::HUP) != 0
    }

    /// Both directions are finished.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&server, Token(0), Interest::READABLE)?;
    /// client.abort()?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// let event = events.iter().next().ok_or("no event")?;
    /// assert!(event.is_write_closed() && event.is_read_closed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_write_closed(&self) -> bool {
        self.0.bits & ready::HUP != 0
    }
}

/// Room for events.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// let poll = stack.poll()?;
/// poll.registry().register(&client, Token(1), Interest::WRITABLE)?;
/// poll.registry().register(&server, Token(2), Interest::WRITABLE)?;
/// // Made once: every call fills it anew, with so many at most. More are told by the next call.
/// let mut events = Events::with_capacity(1);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// assert_eq!(events.len(), 1);
/// assert!(events.iter().all(|e| e.is_writable()));
/// # poll.registry().deregister(&client)?;
/// # poll.registry().deregister(&server)?;
/// poll.poll(&mut events, Some(Duration::ZERO))?;
/// assert!(events.is_empty(), "both were taken off");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Events {
    ready: Vec<Ready>,
    capacity: usize,
}

impl Events {
    /// Room for up to `capacity` events at a time.
    /// See [`Poll`].
    pub fn with_capacity(capacity: usize) -> Events {
        let capacity = capacity.max(1);
        Events {
            ready: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// The events of the last [`Poll::poll`].
    /// See [`Event`].
    pub fn iter(&self) -> EventsIter<'_> {
        EventsIter(self.ready.iter())
    }

    /// How many there are.
    /// See [`Poll::poll`].
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether there are none.
    /// See [`Poll::poll`].
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

/// The events of an [`Events`], one after the other. See [`Event`].
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// let poll = stack.poll()?;
/// poll.registry().register(&client, Token(1), Interest::WRITABLE)?;
/// poll.registry().register(&server, Token(2), Interest::WRITABLE)?;
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// // It knows how many are left.
/// let mut left: poll::EventsIter = events.iter();
/// while let Some(event) = left.next() {
///     println!("{:?}, and {} more", event.token(), left.len());
/// }
/// assert_eq!(left.len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventsIter<'a>(core::slice::Iter<'a, Ready>);

impl Iterator for EventsIter<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.0.next().map(|r| Event(*r))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for EventsIter<'_> {}

impl<'a> IntoIterator for &'a Events {
    type Item = Event;
    type IntoIter = EventsIter<'a>;

    fn into_iter(self) -> EventsIter<'a> {
        self.iter()
    }
}

/// A socket that can be registered.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// // For sockets of any kind.
/// fn watch(poll: &Poll, token: usize, socket: &impl Source) -> std::io::Result<()> {
///     poll.registry().register(socket, Token(token), Interest::READABLE)
/// }
/// let poll = stack.poll()?;
/// watch(&poll, 0, &listener)?;
/// watch(&poll, 1, &server)?;
/// watch(&poll, 2, &stack.bind_udp("10.0.0.1:53")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Source {
    /// Its stack and name.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// use perimeter::Source;
    /// let (_stack, name) = client.source();
    /// assert_eq!(name, client.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn source(&self) -> (&Arc<dyn Engine>, SockId);
}

impl Source for TcpStream {
    fn source(&self) -> (&Arc<dyn Engine>, SockId) {
        self.raw()
    }
}

impl Source for UdpSocket {
    fn source(&self) -> (&Arc<dyn Engine>, SockId) {
        self.raw()
    }
}

impl Source for TcpListener {
    fn source(&self) -> (&Arc<dyn Engine>, SockId) {
        self.raw()
    }
}

struct Inner {
    engine: Arc<dyn Engine>,
    number: u32,
    fd: OnceLock<Arc<Exported>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.engine.poller_close(self.number);
    }
}

/// The poller's descriptors.
struct Exported {
    /// Readable while events wait.
    events: OwnedFd,
    /// Where the stack has no threads of its own: readable while events wait, or while the stack
    /// has something else to do.
    any: Option<OwnedFd>,
}

/// Rings when a stack of one thread has something to do.
struct StackBell(Bell);

impl Alarm for StackBell {
    fn raise(&self) {
        self.0.raise();
    }

    fn lower(&self) {
        self.0.lower();
    }

    fn after(&self, ns: Option<u64>) {
        self.0.after(ns);
    }

    fn fds(&self) -> [RawFd; 2] {
        self.0.fds()
    }
}

impl Notify for Exported {
    fn raise(&self) {
        // Full means readable already.
        let _ = rustix::io::write(&self.events, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.events, &mut [0u8; 8]);
    }
}

/// Waits for readiness.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let listener = stack.listen("10.0.0.1:80")?;
/// let poll = stack.poll()?;
/// poll.registry().register(&listener, Token(0), Interest::READABLE)?;
/// let client = stack.connect("10.0.0.1:80")?;
/// let mut events = Events::with_capacity(64);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// for event in &events {
///     match event.token() {
///         Token(0) => assert_eq!(listener.accept()?.1, client.local_addr()?),
///         other => println!("connection {other:?}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Poll {
    inner: Arc<Inner>,
    queues: Vec<u16>,
}

/// Registers sockets with a [`Poll`]; may be cloned and used by any thread.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// let poll = stack.poll()?;
/// let registry = poll.registry();
/// // Another thread may register what this one waits for.
/// let thread = thread::spawn(move || {
///     registry.register(&client, Token(1), Interest::WRITABLE)?;
///     Ok::<_, std::io::Error>(client)
/// });
/// let client = thread.join().expect("no panic")?;
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
/// assert_eq!(events.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

/// Wakes a thread out of [`Poll::poll`], from any thread.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let poll = stack.poll()?;
/// let waker = poll.waker();
/// let thread = thread::spawn(move || waker.wake());
/// let mut events = Events::with_capacity(8);
/// poll.poll(&mut events, None)?;
/// assert!(events.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Waker(Arc<Inner>);

impl Waker {
    /// Wakes one thread that waits; the call returns without events.
    /// See [`Waker`].
    pub fn wake(&self) {
        self.0.engine.poller_wake(self.0.number);
    }
}

impl Registry {
    /// Registers a socket. Level-triggered unless `interest` says otherwise; a socket may be
    /// registered with several pollers.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&client, Token(1), Interest::READABLE)?;
    /// let again = poll.registry().register(&client, Token(2), Interest::READABLE);
    /// assert_eq!(again.expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone, belongs to another stack, or is registered with this poller already
    /// (`AlreadyExists`).
    pub fn register(&self, source: &impl Source, token: Token, interest: Interest) -> Result<()> {
        let (engine, id) = source.source();
        if !Arc::ptr_eq(engine, &self.0.engine) {
            let text = "the socket belongs to another stack";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        engine
            .register(self.0.number, id, token.0, interest.want())
            .map_err(io)
    }

    /// Changes token or interest; arms a one-shot registration again.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&client, Token(1), Interest::READABLE)?;
    /// // The answer is written when there is room.
    /// poll.registry().reregister(&client, Token(1), Interest::WRITABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert!(events.iter().all(|e| e.is_writable()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket is not registered.
    pub fn reregister(&self, source: &impl Source, token: Token, interest: Interest) -> Result<()> {
        self.deregister(source)?;
        self.register(source, token, interest)
    }

    /// Removes a registration.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&client, Token(1), Interest::WRITABLE)?;
    /// poll.registry().deregister(&client)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket is not registered.
    pub fn deregister(&self, source: &impl Source) -> Result<()> {
        let (engine, id) = source.source();
        engine.deregister(self.0.number, id).map_err(io)
    }
}

impl Poll {
    /// A poller of that stack. Where application threads serve the devices, a thread that
    /// waits serves all of them; see [`Poll::serve`].
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let poll = Poll::new(&stack)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_millis(1)))?;
    /// assert!(events.is_empty(), "nothing is registered");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There are too many.
    pub fn new(stack: &Stack) -> Result<Poll> {
        let engine = stack.engine.clone();
        let number = engine.poller().map_err(io)?;
        let queues = if engine.inline() {
            engine.queues()
        } else {
            Vec::new()
        };
        Ok(Poll {
            inner: Arc::new(Inner {
                engine,
                number,
                fd: OnceLock::new(),
            }),
            queues,
        })
    }

    /// Sets which receive queues a thread that waits here serves meanwhile: none for those of
    /// the stack's own threads.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.inbound(Inbound::Inline).build()?;
    /// let mut poll = stack.poll()?;
    /// // This thread takes packets of the first queue while it waits, and no others.
    /// poll.serve(&[0]);
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// poll.registry().register(&listener, Token(0), Interest::READABLE)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(&mut self, queues: &[u16]) {
        self.queues = queues.to_vec();
    }

    /// For registering sockets.
    /// See [`Registry`].
    pub fn registry(&self) -> Registry {
        Registry(self.inner.clone())
    }

    /// For waking a thread that waits.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // A thread that waits for sockets is told of something else.
    /// let poll = stack.poll()?;
    /// let waker = poll.waker();
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let thread = thread::spawn(move || {
    ///     tell.send("no more connections, please").expect("it listens");
    ///     waker.wake();
    /// });
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, None)?;
    /// assert_eq!(told.try_recv()?, "no more connections, please");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waker(&self) -> Waker {
        Waker(self.inner.clone())
    }

    /// Waits until at least one socket is ready, `timeout` has passed, or a [`Waker`] wakes.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let poll = stack.poll()?;
    /// poll.registry().register(&server, Token(0), Interest::READABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// poll.poll(&mut events, Some(Duration::from_millis(1)))?;
    /// assert!(events.is_empty(), "nothing has come in time");
    /// client.write_all(b"hello")?;
    /// poll.poll(&mut events, Some(Duration::from_secs(10)))?;
    /// assert_eq!(events.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another thread owns the stack (`up`).
    pub fn poll(&self, events: &mut Events, timeout: Option<Duration>) -> Result<()> {
        let deadline = match timeout {
            None => Time::NEVER,
            Some(Duration::ZERO) => Time::ZERO,
            Some(t) => self.inner.engine.now() + t,
        };
        events.ready.clear();
        let e = &self.inner.engine;
        e.poll(
            self.inner.number,
            &self.queues,
            &mut events.ready,
            events.capacity,
            deadline,
        )
        .map_err(io)?;
        Ok(())
    }
}

impl Poll {
    /// The descriptor, made when it is first asked for.
    fn exported(&self) -> &OwnedFd {
        let exported = self.inner.fd.get_or_init(|| {
            let flags =
                rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
            // Descriptors run out like memory does; there is no error to report it with here.
            let fd = rustix::event::eventfd(0, flags).expect("a free file descriptor");
            let bell = || -> Arc<dyn Alarm> {
                Arc::new(StackBell(Bell::new().expect("free file descriptors")))
            };
            let any = self.inner.engine.alarm(&bell).map(|(alarm, mut fds)| {
                fds.extend(alarm.fds());
                fds.push(fd.as_raw_fd());
                watch::any_of(&fds).expect("a free file descriptor")
            });
            let exported = Arc::new(Exported { events: fd, any });
            self.inner
                .engine
                .poller_notify(self.inner.number, exported.clone());
            exported
        });
        exported.any.as_ref().unwrap_or(&exported.events)
    }
}

impl AsFd for Poll {
    /// A descriptor that is readable while events wait: to nest this poller in another one, of
    /// the host's. On the machine only.
    ///
    /// Under `up` nobody but the stack's own thread serves the devices and the timers, so there the
    /// descriptor is readable also when a frame has come or a timer is due: whenever it is, call
    /// [`Poll::poll`] with a timeout of zero until it yields no event, on the stack's thread, which
    /// also must be the first to ask for the descriptor. Under [`Inbound::Inline`](crate::Inbound)
    /// the service thread sees to it, within [`Config::service`](crate::Config::service).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exported().as_fd()
    }
}

impl AsRawFd for Poll {
    /// As [`Poll::as_fd`](AsFd::as_fd).
    fn as_raw_fd(&self) -> RawFd {
        self.exported().as_raw_fd()
    }
}

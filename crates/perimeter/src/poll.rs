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
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub usize);

/// What to be told of.
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
    pub const fn edge(mut self) -> Interest {
        self.trigger = Trigger::Edge;
        self
    }

    /// Told once (`EPOLLONESHOT`).
    pub const fn oneshot(mut self) -> Interest {
        self.trigger = Trigger::OneShot;
        self
    }

    /// Of all exclusive registrations of a socket, one is told (`EPOLLEXCLUSIVE`).
    pub const fn exclusive(mut self) -> Interest {
        self.exclusive = true;
        self
    }

    /// Both, told as `self` is. `READABLE | WRITABLE` is the same.
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
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event(Ready);

impl Event {
    /// The token that the socket was registered with.
    pub fn token(&self) -> Token {
        Token(self.0.token)
    }

    /// Reading does not block.
    pub fn is_readable(&self) -> bool {
        self.0.bits & (ready::IN | ready::RDHUP | ready::ALWAYS) != 0
    }

    /// Writing does not block.
    pub fn is_writable(&self) -> bool {
        self.0.bits & (ready::OUT | ready::ALWAYS) != 0
    }

    /// An error is pending.
    pub fn is_error(&self) -> bool {
        self.0.bits & ready::ERR != 0
    }

    /// The peer has closed its direction.
    pub fn is_read_closed(&self) -> bool {
        self.0.bits & (ready::RDHUP | ready::HUP) != 0
    }

    /// Both directions are finished.
    pub fn is_write_closed(&self) -> bool {
        self.0.bits & ready::HUP != 0
    }
}

/// Room for events.
pub struct Events {
    ready: Vec<Ready>,
    capacity: usize,
}

impl Events {
    /// Room for up to `capacity` events at a time.
    pub fn with_capacity(capacity: usize) -> Events {
        let capacity = capacity.max(1);
        Events {
            ready: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// The events of the last [`Poll::poll`].
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.ready.iter().map(|r| Event(*r))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

/// A socket that can be registered.
pub trait Source {
    /// Its stack and name.
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
pub struct Poll {
    inner: Arc<Inner>,
    queues: Vec<u16>,
}

/// Registers sockets with a [`Poll`]; may be cloned and used by any thread.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

/// Wakes a thread out of [`Poll::poll`], from any thread.
#[derive(Clone)]
pub struct Waker(Arc<Inner>);

impl Waker {
    /// Wakes one thread that waits; the call returns without events.
    pub fn wake(&self) {
        self.0.engine.poller_wake(self.0.number);
    }
}

impl Registry {
    /// Registers a socket. Level-triggered unless `interest` says otherwise; a socket may be
    /// registered with several pollers.
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
    /// # Errors
    /// The socket is not registered.
    pub fn reregister(&self, source: &impl Source, token: Token, interest: Interest) -> Result<()> {
        self.deregister(source)?;
        self.register(source, token, interest)
    }

    /// Removes a registration.
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
    pub fn serve(&mut self, queues: &[u16]) {
        self.queues = queues.to_vec();
    }

    /// For registering sockets.
    pub fn registry(&self) -> Registry {
        Registry(self.inner.clone())
    }

    /// For waking a thread that waits.
    pub fn waker(&self) -> Waker {
        Waker(self.inner.clone())
    }

    /// Waits until at least one socket is ready, `timeout` has passed, or a [`Waker`] wakes.
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

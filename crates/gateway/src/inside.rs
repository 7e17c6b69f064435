//! The inside's sockets, for tasks: a listener whose SYNs are held, and its streams.
//!
//! One poller of the stack's tells of all of them. What it tells goes to one task (`drive`), which
//! wakes the others: the stack's own threads only wake that one, once for all that a burst has
//! brought. Nothing here is a thread or a timer.

use crate::relay::Abort;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicU8, Ordering};
use core::task::{Context, Poll, Waker};
use perimeter::{Listen, Request, Stack, TcpListener, TcpStream, UdpConfig, UdpSocket};
use perimeter_base::Time;
use perimeter_org::engine::{Engine, EngineError};
use perimeter_stack::SockId;
use perimeter_stack::poller::{Notify, Ready};
use perimeter_stack::ready::{self, Trigger, Want};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Events that are taken at once.
const EVENTS: usize = 256;
/// A socket can be read, or be written, as far as is known.
const READ: u8 = 1;
const WRITE: u8 = 2;

fn held<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it protects is whole after each statement.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a socket, and who waits.
#[derive(Default)]
struct Slot {
    ready: AtomicU8,
    read: Mutex<Option<Waker>>,
    write: Mutex<Option<Waker>>,
}

impl Slot {
    fn tell(&self, bits: u8) {
        self.ready.fetch_or(bits, Ordering::SeqCst);
        for (bit, waker) in [(READ, &self.read), (WRITE, &self.write)] {
            if bits & bit != 0
                && let Some(w) = held(waker).take()
            {
                w.wake();
            }
        }
    }

    /// Tries `f` as long as there is reason to, else has the task woken when there is.
    fn attempt<T>(
        &self,
        bit: u8,
        cx: &Context<'_>,
        mut f: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let waker = if bit == READ { &self.read } else { &self.write };
        loop {
            // Taken off first: what comes while `f` looks is not lost.
            if self.ready.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                match f() {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    other => {
                        self.ready.fetch_or(bit, Ordering::SeqCst);
                        return Poll::Ready(other);
                    }
                }
            }
            *held(waker) = Some(cx.waker().clone());
            if self.ready.load(Ordering::SeqCst) & bit == 0 {
                return Poll::Pending;
            }
        }
    }
}

#[derive(Default)]
struct Slots {
    all: Vec<Option<Arc<Slot>>>,
    free: Vec<usize>,
}

/// The task that is to look.
#[derive(Default)]
struct Bell(Mutex<(bool, Option<Waker>)>);

impl Notify for Bell {
    fn raise(&self) {
        let waker = {
            let mut b = held(&self.0);
            b.0 = true;
            b.1.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }

    fn clear(&self) {}
}

struct Shared {
    engine: Arc<dyn Engine>,
    poller: u32,
    slots: Mutex<Slots>,
    bell: Arc<Bell>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.engine.poller_close(self.poller);
    }
}

/// Tells tasks of the readiness of a stack's sockets. Cheap to clone.
#[derive(Clone)]
pub struct Readiness(Arc<Shared>);

impl Readiness {
    /// For a stack that threads of its own serve. [`Readiness::drive`] must run.
    ///
    /// # Errors
    /// The stack has too many pollers, belongs to one thread (`up`), or has ended.
    pub fn new(stack: &Stack) -> io::Result<Readiness> {
        let engine = stack.engine().clone();
        let poller = stack.engine().poller().map_err(other)?;
        let bell = Arc::new(Bell::default());
        engine.poller_notify(poller, bell.clone());
        Ok(Readiness(Arc::new(Shared {
            engine,
            poller,
            slots: Mutex::default(),
            bell,
        })))
    }

    /// Wakes those whose sockets are ready, for ever: for a task of its own. Ends when the stack has.
    pub async fn drive(self) {
        let mut events: Vec<Ready> = Vec::with_capacity(EVENTS);
        poll_fn(|cx| {
            loop {
                {
                    let mut bell = held(&self.0.bell.0);
                    bell.0 = false;
                    bell.1 = Some(cx.waker().clone());
                }
                events.clear();
                let (engine, poller) = (&self.0.engine, self.0.poller);
                let looked = engine.poll(poller, &[], &mut events, EVENTS, Time::ZERO);
                let Ok(n) = looked else {
                    // Everybody is to ask, and hear it.
                    let slots = held(&self.0.slots);
                    slots
                        .all
                        .iter()
                        .flatten()
                        .for_each(|s| s.tell(READ | WRITE));
                    return Poll::Ready(());
                };
                for e in &events {
                    let slot = held(&self.0.slots).all.get(e.token).cloned().flatten();
                    let mut bits = 0;
                    if e.bits & (ready::IN | ready::RDHUP | ready::ALWAYS) != 0 {
                        bits |= READ;
                    }
                    if e.bits & (ready::OUT | ready::ALWAYS) != 0 {
                        bits |= WRITE;
                    }
                    if let Some(slot) = slot {
                        slot.tell(bits);
                    }
                }
                if n < EVENTS && !held(&self.0.bell.0).0 {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    fn watch(&self, id: SockId) -> io::Result<Watched> {
        let slot = Arc::new(Slot::default());
        slot.ready.store(READ | WRITE, Ordering::SeqCst);
        let token = {
            let mut slots = held(&self.0.slots);
            let token = slots.free.pop().unwrap_or(slots.all.len());
            match slots.all.get_mut(token) {
                Some(place) => *place = Some(slot.clone()),
                None => slots.all.push(Some(slot.clone())),
            }
            token
        };
        let watched = Watched {
            readiness: self.clone(),
            id,
            token,
            slot,
        };
        let want = Want {
            interest: ready::IN | ready::RDHUP | ready::OUT,
            trigger: Trigger::Edge,
            exclusive: false,
        };
        let (engine, poller) = (&self.0.engine, self.0.poller);
        engine.register(poller, id, token, want).map_err(other)?;
        Ok(watched)
    }
}

fn other(e: EngineError) -> io::Error {
    io::Error::other(format!("the stack: {e:?}"))
}

/// A socket's place in a [`Readiness`].
struct Watched {
    readiness: Readiness,
    id: SockId,
    token: usize,
    slot: Arc<Slot>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let shared = &self.readiness.0;
        // It may have gone with its socket.
        let _ = shared.engine.deregister(shared.poller, self.id);
        let mut slots = held(&shared.slots);
        slots.all[self.token] = None;
        slots.free.push(self.token);
    }
}

/// A listener whose SYNs are held.
pub struct Incoming {
    watched: Watched,
    listener: TcpListener,
}

impl Incoming {
    /// Listens as `listen` says.
    ///
    /// # Errors
    /// As [`Stack::listen_as`].
    pub fn new(stack: &Stack, readiness: &Readiness, listen: &Listen) -> io::Result<Incoming> {
        let listener = stack.listen_as(listen)?;
        listener.set_nonblocking(true)?;
        let watched = readiness.watch(listener.id())?;
        Ok(Incoming { watched, listener })
    }

    /// The next SYN that is to be decided.
    ///
    /// # Errors
    /// The listener or the stack has gone.
    pub async fn request(&self) -> io::Result<Request> {
        poll_fn(|cx| {
            self.watched
                .slot
                .attempt(WRITE, cx, || self.listener.request())
        })
        .await
    }

    /// The next connection: its stream, where the peer wanted to, and the peer.
    ///
    /// # Errors
    /// The listener or the stack has gone.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr, SocketAddr)> {
        let accept = || self.listener.accept_ends();
        let slot = &self.watched.slot;
        let (s, local, peer) = poll_fn(|cx| slot.attempt(READ, cx, accept)).await?;
        s.set_nonblocking(true)?;
        let watched = self.watched.readiness.watch(s.id())?;
        let s = Stream { watched, s };
        Ok((s, local, peer))
    }

    /// Closes it: what waits there is reset.
    pub fn close(&self) {
        // It may have gone with the stack.
        let _ = self.listener.close();
    }
}

/// A stream of the inside.
pub struct Stream {
    // First, so that it is off the poller before the socket goes.
    watched: Watched,
    s: TcpStream,
}

impl Stream {
    /// The stack's.
    pub fn get_ref(&self) -> &TcpStream {
        &self.s
    }
}

impl Abort for Stream {
    fn abort(&self) {
        // It may be over already.
        let _ = self.s.abort();
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &*self;
        let n = core::task::ready!(
            me.watched
                .slot
                .attempt(READ, cx, || { (&me.s).read(buf.initialize_unfilled()) })
        )?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = &*self;
        me.watched.slot.attempt(WRITE, cx, || (&me.s).write(buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.s.shutdown(Shutdown::Write))
    }
}

/// A socket for datagrams of any destination.
pub struct Datagrams {
    watched: Watched,
    socket: UdpSocket,
}

impl Datagrams {
    /// Opens it, with [`UdpConfig::any`] set in `config`.
    ///
    /// # Errors
    /// As [`Stack::bind_udp_with`].
    pub fn new(stack: &Stack, readiness: &Readiness, config: &UdpConfig) -> io::Result<Datagrams> {
        let socket = stack.bind_udp_with("[::]:0", config)?;
        socket.set_nonblocking(true)?;
        let watched = readiness.watch(socket.id())?;
        Ok(Datagrams { watched, socket })
    }

    /// Receives what has come, at least one datagram.
    ///
    /// # Errors
    /// The socket or the stack has gone.
    pub async fn recv_many(&self, batch: &mut perimeter::Datagrams) -> io::Result<usize> {
        let slot = &self.watched.slot;
        poll_fn(|cx| slot.attempt(READ, cx, || self.socket.recv_many(batch))).await
    }

    /// Sends one datagram from one address to another; does not wait for room.
    ///
    /// # Errors
    /// `WouldBlock`; as [`UdpSocket::send_from`].
    pub fn send_from(&self, from: SocketAddr, to: SocketAddr, data: &[u8]) -> io::Result<usize> {
        self.socket.send_from(from, to, data)
    }
}

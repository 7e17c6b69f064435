//! What sockets of all kinds have in common: a socket of the stack's that does not block, and the
//! tasks that wait for it.

use perimeter::Source;
use perimeter::task::{self, Half, Place, Tasks};
use std::borrow::Cow;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};
use tokio::task::coop;

/// How often a poll tries again that was told of readiness and found none, which another task has
/// taken meanwhile, before it lets others go on.
const TRIES: usize = 4;

/// A socket, and who waits for it. The stack is told of them when somebody waits for the first
/// time: a connection that never does is not registered.
pub(crate) struct Socket<S> {
    pub(crate) inner: S,
    tasks: OnceLock<Arc<Tasks>>,
}

impl<S: Source> Socket<S> {
    /// A socket that does not block.
    pub(crate) fn new(inner: S) -> Socket<S> {
        Socket {
            inner,
            tasks: OnceLock::new(),
        }
    }

    fn tasks(&self) -> &Arc<Tasks> {
        if let Some(tasks) = self.tasks.get() {
            return tasks;
        }
        // No lock is held while the stack is called: of two who come at once the later's is told
        // of readiness too, and nobody waits there.
        let tasks = Arc::new(Tasks::default());
        if task::watch(&self.inner, &tasks).is_err() {
            // Nobody will set readiness: the next call tells why.
            tasks.end();
        }
        self.tasks.get_or_init(|| tasks)
    }

    /// Whether a call is worth it: known to find nothing otherwise.
    fn may(&self, half: Half) -> bool {
        self.tasks.get().is_none_or(|t| t.ready(half) != 0)
    }

    /// Runs `f` until it does something, for the one task that reads, or writes.
    pub(crate) fn poll_io<R>(
        &self,
        half: Half,
        cx: &mut Context<'_>,
        mut f: impl FnMut(&S) -> Result<R>,
    ) -> Poll<Result<R>> {
        self.attempt(half, cx, &mut f, |tasks, cx| tasks.poll(half, cx))
    }

    /// Runs `f` until it does something; `wait` is asked in between, and leaves a waker if there is no
    /// readiness.
    fn attempt<R>(
        &self,
        half: Half,
        cx: &mut Context<'_>,
        f: &mut impl FnMut(&S) -> Result<R>,
        mut wait: impl FnMut(&Tasks, &mut Context<'_>) -> Poll<u8>,
    ) -> Poll<Result<R>> {
        let coop = ready!(coop::poll_proceed(cx));
        for _ in 0..TRIES {
            if self.may(half) {
                match f(&self.inner) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    done => {
                        coop.made_progress();
                        return Poll::Ready(done);
                    }
                }
            }
            ready!(wait(self.tasks(), cx));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for readiness, for the one task that reads, or writes.
    pub(crate) fn poll_ready(&self, half: Half, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let coop = ready!(coop::poll_proceed(cx));
        ready!(self.tasks().poll(half, cx));
        coop.made_progress();
        Poll::Ready(Ok(()))
    }

    /// Runs `f` until it does something, for any number of tasks. Nothing is awaited after that, so
    /// what `f` took is not lost when the future is dropped.
    pub(crate) async fn io<R>(&self, half: Half, mut f: impl FnMut(&S) -> Result<R>) -> Result<R> {
        let mut waiting = Waiting {
            socket: self,
            half,
            place: Place::default(),
        };
        std::future::poll_fn(|cx| {
            let place = &mut waiting.place;
            self.attempt(half, cx, &mut f, |tasks, cx| tasks.wait(half, place, cx))
        })
        .await
    }

    /// Waits until one of the directions that `interest` names is ready; what is.
    pub(crate) async fn ready(&self, interest: Interest) -> Result<Ready> {
        let halves = halves(interest)?;
        self.wait(halves).await;
        Ok(self.readiness(halves))
    }

    fn readiness(&self, halves: [Option<Half>; 2]) -> Ready {
        let tasks = self.tasks();
        halves
            .into_iter()
            .flatten()
            .fold(Ready::EMPTY, |all, half| {
                all | as_ready(half, tasks.ready(half))
            })
    }

    /// Runs `f` if a direction of `interest` is ready.
    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce(&S) -> Result<R>,
    ) -> Result<R> {
        if self.readiness(halves(interest)?).is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        f(&self.inner)
    }

    /// Runs `f` whenever a direction of `interest` is ready until it does something.
    pub(crate) async fn async_io<R>(
        &self,
        interest: Interest,
        mut f: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let halves = halves(interest)?;
        loop {
            self.wait(halves).await;
            match f() {
                // Ready and yet nothing to do: what `f` does may depend on something else, too.
                Err(e) if e.kind() == ErrorKind::WouldBlock => tokio::task::yield_now().await,
                done => return done,
            }
        }
    }

    /// Waits until one of the directions is ready.
    async fn wait(&self, halves: [Option<Half>; 2]) {
        let mut waiting = halves.map(|half| {
            half.map(|half| Waiting {
                socket: self,
                half,
                place: Place::default(),
            })
        });
        std::future::poll_fn(|cx| {
            let coop = ready!(coop::poll_proceed(cx));
            for w in waiting.iter_mut().flatten() {
                if self.tasks().wait(w.half, &mut w.place, cx).is_ready() {
                    coop.made_progress();
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// A future's wait for one direction: dropped, it waits no more.
struct Waiting<'a, S> {
    socket: &'a Socket<S>,
    half: Half,
    place: Place,
}

impl<S> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        if let Some(tasks) = self.socket.tasks.get() {
            tasks.leave(self.half, &mut self.place);
        }
    }
}

/// The directions of an interest.
fn halves(interest: Interest) -> Result<[Option<Half>; 2]> {
    let halves = [
        interest.is_readable().then_some(Half::Read),
        interest.is_writable().then_some(Half::Write),
    ];
    if halves == [None; 2] {
        let text = "the interest is neither in reading nor in writing";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(halves)
}

/// The stack's bits in tokio's terms.
fn as_ready(half: Half, bits: u8) -> Ready {
    let mut ready = Ready::EMPTY;
    if bits & task::ERR != 0 {
        ready |= Ready::ERROR;
    }
    match half {
        Half::Read => {
            if bits != 0 {
                ready |= Ready::READABLE;
            }
            if bits & (task::RDHUP | task::HUP) != 0 {
                ready |= Ready::READ_CLOSED;
            }
        }
        Half::Write => {
            if bits != 0 {
                ready |= Ready::WRITABLE;
            }
            if bits & task::HUP != 0 {
                ready |= Ready::WRITE_CLOSED;
            }
        }
    }
    ready
}

/// The name of an interface, which tokio has in octets: none of ours has one that is no text.
pub(crate) fn as_name(interface: Option<&[u8]>) -> Option<Cow<'_, str>> {
    interface.map(String::from_utf8_lossy)
}

/// A type of service, as tokio has it.
pub(crate) fn eight_bits(tos: u32) -> Result<u8> {
    let text = || format!("a type of service of {tos}; it has eight bits");
    u8::try_from(tos).map_err(|_| Error::new(ErrorKind::InvalidInput, text()))
}

/// What sockets with a peer have alike, be it streams or datagrams: `$socket` is a tuple of one
/// [`Socket`] around `$inner`.
macro_rules! common {
    ($socket:ty, $inner:ty) => {
        impl $socket {
            /// The stack's socket, for what only that one can.
            ///
            /// ```
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/examples/pair.txt"))]
            /// client.get_ref().set_user_timeout(Some(Duration::from_secs(10)))?;
            /// assert_eq!(client.get_ref().info()?.tos, 0);
            /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
            /// ```
            pub fn get_ref(&self) -> &$inner {
                &self.0.inner
            }

            /// Gives the stack's socket back. It still does not block.
            ///
            /// ```
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/examples/pair.txt"))]
            /// let stream = client.into_perimeter();
            /// stream.set_nonblocking(false)?;
            /// assert_eq!(stream.peer_addr()?, server.local_addr()?);
            /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
            /// ```
            pub fn into_perimeter(self) -> $inner {
                self.0.inner
            }

            /// Its address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn local_addr(&self) -> Result<SocketAddr> {
                self.0.inner.local_addr()
            }

            /// Its peer's address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// `NotConnected`: it has none; or the socket has gone.
            pub fn peer_addr(&self) -> Result<SocketAddr> {
                self.0.inner.peer_addr()
            }

            /// SO_ERROR: the pending error, which is thereby cleared.
            /// See [`perimeter::TcpStream::take_error`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn take_error(&self) -> Result<Option<Error>> {
                self.0.inner.take_error()
            }

            /// Waits until the socket is ready for one of what `interest` names; what it is ready for.
            ///
            /// ```
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/examples/pair.txt"))]
            /// let either = Interest::READABLE | Interest::WRITABLE;
            /// let ready = client.ready(either).await?;
            /// assert!(ready.is_writable() && !ready.is_readable());
            /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
            /// ```
            ///
            /// # Errors
            /// `InvalidInput`: the interest is neither in reading nor in writing.
            ///
            /// # Cancel safety
            /// Nothing is lost when the future is dropped: readiness stays.
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                self.0.ready(interest).await
            }

            /// Waits until there is something to take: data, the end of a stream, or an error.
            /// See [`TcpStream::try_read`](crate::TcpStream::try_read).
            ///
            /// # Errors
            /// None today; as tokio's.
            ///
            /// # Cancel safety
            /// As [`ready`](Self::ready).
            pub async fn readable(&self) -> Result<()> {
                self.ready(Interest::READABLE).await.map(drop)
            }

            /// Waits until there is room to send, or an error.
            /// See [`TcpStream::try_write`](crate::TcpStream::try_write).
            ///
            /// # Errors
            /// None today; as tokio's.
            ///
            /// # Cancel safety
            /// As [`ready`](Self::ready).
            pub async fn writable(&self) -> Result<()> {
                self.ready(Interest::WRITABLE).await.map(drop)
            }

            /// Runs `f` if the socket is ready for one of what `interest` names.
            ///
            /// ```
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/examples/pair.txt"))]
            /// client.write_all(b"hello").await?;
            /// server.readable().await?;
            /// // What only the stack's socket can, where tokio's readiness is kept.
            /// let len = server.try_io(Interest::READABLE, || server.get_ref().read_with(100, |_| {}))?;
            /// assert_eq!(len, 5);
            /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
            /// ```
            ///
            /// # Errors
            /// `WouldBlock`: it is not; or what `f` says.
            pub fn try_io<R>(
                &self,
                interest: Interest,
                f: impl FnOnce() -> Result<R>,
            ) -> Result<R> {
                self.0.try_io(interest, |_| f())
            }

            /// Runs `f` whenever the socket is ready for one of what `interest` names, until it says
            /// something else than `WouldBlock`.
            ///
            /// ```
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/examples/pair.txt"))]
            /// client.write_all(b"hello").await?;
            /// let read = || server.get_ref().read_with(100, |_| {});
            /// assert_eq!(server.async_io(Interest::READABLE, read).await?, 5);
            /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
            /// ```
            ///
            /// # Errors
            /// What `f` says.
            ///
            /// # Cancel safety
            /// After `f` has said something else nothing is awaited.
            pub async fn async_io<R>(
                &self,
                interest: Interest,
                f: impl FnMut() -> Result<R>,
            ) -> Result<R> {
                self.0.async_io(interest, f).await
            }
        }
    };
}

pub(crate) use common;

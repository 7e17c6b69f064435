//! Streams.

use crate::addr::ToSocketAddrs;
use crate::net::Net;
use crate::socket::{Socket, common, eight_bits};
use crate::tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf, owned, split};
use bytes::BufMut;
use perimeter::Keepalive;
use perimeter::task::Half;
use std::fmt;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// A TCP connection, as [`tokio::net::TcpStream`].
///
/// Reading and writing are done with the methods of tokio's `AsyncReadExt` and `AsyncWriteExt`.
/// Dropped, it is closed as by `close(2)`: what was written is still delivered, but when received
/// data was not read, the connection is reset. [`shutdown`](tokio::io::AsyncWriteExt::shutdown) ends
/// the direction of writing alone.
///
/// ```
#[doc = include_str!("../examples/net.txt")]
/// let listener = net.listen("10.0.0.1:80").await?;
/// let mut client = net.connect("10.0.0.1:80").await?;
/// let (mut server, _) = listener.accept().await?;
/// client.write_all(b"hello").await?;
/// client.shutdown().await?;
/// let mut text = String::new();
/// server.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
pub struct TcpStream(pub(super) Socket<perimeter::TcpStream>);

/// Reads what there is room for in `buf`.
fn read_buf(s: &perimeter::TcpStream, buf: &mut ReadBuf<'_>) -> Result<()> {
    s.read_with(buf.remaining(), |piece| buf.put_slice(piece))
        .map(drop)
}

fn room(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

impl TcpStream {
    pub(crate) fn new(inner: perimeter::TcpStream) -> Result<TcpStream> {
        inner.set_nonblocking(true)?;
        Ok(TcpStream(Socket::new(inner)))
    }

    /// Waits until it is connected, or that has failed.
    pub(crate) async fn connected(&self) -> Result<()> {
        self.writable().await?;
        self.take_error()?.map_or(Ok(()), Err)
    }

    /// Connects to `addr` on the current stack ([`Net::current`]); else as [`Net::connect`].
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let _serving = net.serve_runtime(&tokio::runtime::Handle::current());
    /// let listener = TcpListener::bind("10.0.0.1:80").await?;
    /// let stream = TcpStream::connect("10.0.0.1:80").await?;
    /// assert_eq!(listener.accept().await?.1, stream.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// There is no current stack; or as [`Net::connect`].
    ///
    /// # Cancel safety
    /// When the future is dropped the attempt is given up.
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> Result<TcpStream> {
        Net::current()?.connect(addr).await
    }

    /// Takes a stream of the stack's. It does not block from now on, nor do its other handles.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// # let listener = net.listen("10.0.0.1:80").await?;
    /// let blocking = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let stream = TcpStream::from_perimeter(blocking)?;
    /// stream.writable().await?;
    /// assert!(stream.take_error()?.is_none(), "it is connected");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn from_perimeter(stream: perimeter::TcpStream) -> Result<TcpStream> {
        TcpStream::new(stream)
    }

    /// As [`TcpStream::readable`], for the one task that reads: that which polls last is woken.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.write_all(b"hello").await?;
    /// poll_fn(|cx| server.poll_read_ready(cx)).await?;
    /// assert_eq!(server.try_read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(Half::Read, cx)
    }

    /// As [`TcpStream::writable`], for the one task that writes: that which polls last is woken.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// poll_fn(|cx| client.poll_write_ready(cx)).await?;
    /// assert_eq!(client.try_write(b"hello")?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(Half::Write, cx)
    }

    /// Reads what there is, without waiting. 0 is the end of the stream, or an empty buffer.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.write_all(b"hello").await?;
    /// let mut buf = [0; 100];
    /// let len = loop {
    ///     server.readable().await?;
    ///     match server.try_read(&mut buf) {
    ///         Err(e) if e.kind() == ErrorKind::WouldBlock => {}
    ///         done => break done?,
    ///     }
    /// };
    /// assert_eq!(&buf[..len], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`: there is nothing; or what reading says.
    pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(buf)])
    }

    /// As [`TcpStream::try_read`], into several buffers, one after the other.
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let (mut at, mut filled) = (0, 0);
        self.0.inner.read_with(room(bufs), |mut piece| {
            while !piece.is_empty() {
                let free = &mut bufs[at][filled..];
                let n = free.len().min(piece.len());
                free[..n].copy_from_slice(&piece[..n]);
                (piece, filled) = (&piece[n..], filled + n);
                if filled == bufs[at].len() {
                    (at, filled) = (at + 1, 0);
                }
            }
        })
    }

    /// As [`TcpStream::try_read`], to the end of `buf`, as much as it has room for (a `Vec` makes
    /// some), and advances it.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.write_all(b"hello").await?;
    /// let mut text = Vec::with_capacity(4096);
    /// server.readable().await?;
    /// server.try_read_buf(&mut text)?;
    /// assert_eq!(text, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> Result<usize> {
        // The room that it has now, so that a buffer that grows does not take everything.
        let room = buf.chunk_mut().len().min(buf.remaining_mut());
        self.0.inner.read_with(room, |piece| buf.put_slice(piece))
    }

    /// Writes as much as there is room for, without waiting.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.writable().await?;
    /// assert_eq!(client.try_write(b"hello")?, 5);
    /// server.read_exact(&mut [0; 5]).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`: there is none; or what writing says.
    pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
        (&self.0.inner).write(buf)
    }

    /// As [`TcpStream::try_write`], several buffers, one after the other.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        (&self.0.inner).write_vectored(bufs)
    }

    /// Reads without taking (MSG_PEEK), waiting until there is something.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.write_all(b"hello").await?;
    /// let mut first = [0; 1];
    /// server.peek(&mut first).await?;
    /// assert_eq!(first, *b"h");
    /// // It is still there.
    /// assert_eq!(server.read(&mut [0; 100]).await?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As reading.
    ///
    /// # Cancel safety
    /// Nothing is taken in either case.
    pub async fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.io(Half::Read, |s| s.peek(buf)).await
    }

    /// As [`TcpStream::peek`], for the one task that reads.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<usize>> {
        self.0.poll_io(Half::Read, cx, |s| {
            s.peek_with(buf.remaining(), |piece| buf.put_slice(piece))
        })
    }

    pub(super) fn poll_read_priv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.0.poll_io(Half::Read, cx, |s| read_buf(s, buf))
    }

    pub(super) fn poll_write_priv(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.0.poll_io(Half::Write, cx, |mut s| s.write(buf))
    }

    pub(super) fn poll_write_vectored_priv(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.0
            .poll_io(Half::Write, cx, |mut s| s.write_vectored(bufs))
    }

    /// Ends the direction of writing: the peer reads the end of the stream after what was written.
    pub(super) fn shutdown_write(&self) -> Result<()> {
        match self.0.inner.shutdown(Shutdown::Write) {
            // It is over already: as tokio, no error of ours.
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    /// TCP_NODELAY: partial segments are sent at once.
    /// See [`perimeter::TcpStream::set_nodelay`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.0.inner.set_nodelay(on)
    }

    /// TCP_NODELAY.
    /// See [`perimeter::TcpStream::set_nodelay`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn nodelay(&self) -> Result<bool> {
        self.0.inner.nodelay()
    }

    /// SO_KEEPALIVE with its times, as [`perimeter::TcpStream::set_keepalive`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_keepalive(&self, k: Option<Keepalive>) -> Result<()> {
        self.0.inner.set_keepalive(k)
    }

    /// SO_KEEPALIVE with its times; `None`: it is off.
    /// See [`perimeter::TcpStream::set_keepalive`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn keepalive(&self) -> Result<Option<Keepalive>> {
        self.0.inner.keepalive()
    }

    /// IP_TTL, over IPv6 IPV6_UNICAST_HOPS.
    /// See [`perimeter::TcpStream::set_ttl`].
    ///
    /// # Errors
    /// `InvalidInput`: not 1 to 255; or the socket has gone.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.0.inner.set_ttl(ttl)
    }

    /// IP_TTL.
    /// See [`perimeter::TcpStream::set_ttl`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn ttl(&self) -> Result<u32> {
        self.0.inner.ttl()
    }

    /// IP_TOS, over IPv6 IPV6_TCLASS.
    /// See [`perimeter::TcpStream::set_tos`].
    ///
    /// # Errors
    /// `InvalidInput`: more than eight bits; or the socket has gone.
    pub fn set_tos(&self, tos: u32) -> Result<()> {
        self.0.inner.set_tos(eight_bits(tos)?)
    }

    /// IP_TOS.
    /// See [`perimeter::TcpStream::set_tos`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn tos(&self) -> Result<u32> {
        self.0.inner.tos().map(u32::from)
    }

    /// TCP_QUICKACK, as [`perimeter::TcpStream::set_quickack`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_quickack(&self, on: bool) -> Result<()> {
        self.0.inner.set_quickack(on)
    }

    /// SO_LINGER. A time of zero makes closing a reset. Dropping never waits, whatever the time:
    /// what was written is delivered in the background.
    /// See [`TcpStream::set_zero_linger`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
        self.0.inner.set_linger(time)
    }

    /// SO_LINGER, as it was set; `None`: not at all.
    /// See [`TcpStream::set_zero_linger`].
    ///
    /// # Errors
    /// None today.
    pub fn linger(&self) -> Result<Option<Duration>> {
        self.0.inner.linger()
    }

    /// SO_LINGER of zero: dropping resets the connection.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_zero_linger()?;
    /// assert_eq!(client.linger()?, Some(Duration::ZERO));
    /// drop(client);
    /// let error = server.read(&mut [0; 100]).await.expect_err("dropping sent a reset");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_zero_linger(&self) -> Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Splits it into a half that reads and one that writes, which borrow it. Cheaper than
    /// [`TcpStream::into_split`].
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // All that comes goes back, until the peer has sent everything.
    /// let echo = tokio::spawn(async move {
    ///     let (mut read, mut write) = server.split();
    ///     tokio::io::copy(&mut read, &mut write).await
    /// });
    /// client.write_all(b"hello").await?;
    /// client.shutdown().await?;
    /// let mut text = String::new();
    /// client.read_to_string(&mut text).await?;
    /// assert_eq!((text.as_str(), echo.await??), ("hello", 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(self)
    }

    /// Splits it into a half that reads and one that writes, for tasks of their own. When the
    /// writing half is dropped, that direction is shut down.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// let (mut read, mut write) = client.into_split();
    /// let sender = tokio::spawn(async move { write.write_all(b"hello").await });
    /// let (mut theirs, _write) = server.into_split();
    /// let mut text = String::new();
    /// // The writing half has gone after that, which is the end of the stream.
    /// theirs.read_to_string(&mut text).await?;
    /// assert_eq!(text, "hello");
    /// # sender.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        owned::split(self)
    }
}

common!(TcpStream, perimeter::TcpStream);

/// A future that is dropped has read nothing.
impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.poll_read_priv(cx, buf)
    }
}

/// A future that is dropped has written nothing. What was written is with the stack: `flush` does
/// nothing, and `shutdown` waits for nothing.
impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.poll_write_priv(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.poll_write_vectored_priv(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(self.shutdown_write())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("TcpStream");
        if let Ok(a) = self.local_addr() {
            d.field("addr", &a);
        }
        if let Ok(a) = self.peer_addr() {
            d.field("peer", &a);
        }
        d.finish_non_exhaustive()
    }
}

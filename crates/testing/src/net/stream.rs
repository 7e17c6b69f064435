//! Streams.

use super::addr::ToSocketAddrs;
use super::io::Io;
use super::listener::no_address;
use super::reactor::{Direction, Reactor};
use crate::sim::world;
use perimeter::{Source, State};
use perimeter_stack::ready;
use std::fmt;
use std::io::{ErrorKind, IoSlice, Read, Result, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Inner = Io<perimeter::TcpStream>;

/// As tokio's `TcpStream`.
pub struct TcpStream(Arc<Inner>);

impl TcpStream {
    pub(super) fn new(stream: perimeter::TcpStream, reactor: &Arc<Reactor>) -> Result<TcpStream> {
        stream.set_nonblocking(true)?;
        Ok(TcpStream(Arc::new(Io::new(stream, reactor)?)))
    }

    /// Connects from this host to `addr`. Of several addresses the first that can be had.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, …; `NotFound`: no host has the name.
    ///
    /// # Panics
    /// Outside of hosts of a simulation.
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> Result<TcpStream> {
        let mut last = None;
        for addr in addr.resolve()? {
            match TcpStream::connect_to(addr).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    async fn connect_to(addr: SocketAddr) -> Result<TcpStream> {
        let stream = world::within(|here| {
            let stream = here.stack.start_connect(addr)?;
            TcpStream::new(stream, &here.reactor)
        })?;
        stream.0.call(Direction::Write, connected).await?;
        Ok(stream)
    }

    /// Waits until reading does not block.
    ///
    /// # Errors
    /// None: what is wrong is told by the next read.
    pub async fn readable(&self) -> Result<()> {
        let readable = |s: &_| ready_for(s, ready::IN | ready::RDHUP);
        self.0.call(Direction::Read, readable).await
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is there yet.
    pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
        (&self.0.socket).read(buf)
    }

    /// Waits until writing does not block.
    ///
    /// # Errors
    /// None: what is wrong is told by the next write.
    pub async fn writable(&self) -> Result<()> {
        let writable = |s: &_| ready_for(s, ready::OUT);
        self.0.call(Direction::Write, writable).await
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// `WouldBlock`: there is none.
    pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
        (&self.0.socket).write(buf)
    }

    /// Reads without taking what is read off the stream.
    ///
    /// # Errors
    /// As reading.
    pub async fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.call(Direction::Read, |s| s.peek(buf)).await
    }

    /// The address of this end.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.0.socket.peer_addr()
    }

    /// The error that is pending, and takes it off.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn take_error(&self) -> Result<Option<std::io::Error>> {
        self.0.socket.take_error()
    }

    /// Turns Nagle's algorithm off or on.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.0.socket.set_nodelay(on)
    }

    /// `SO_LINGER`: with zero, closing resets.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
        self.0.socket.set_linger(time)
    }

    /// Both directions, borrowed.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Both directions, owned. When the one that writes is dropped, the end of the stream is sent.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let write = OwnedWriteHalf {
            stream: TcpStream(self.0.clone()),
            shut_down_on_drop: true,
        };
        (OwnedReadHalf(self), write)
    }

    fn poll_read_here(&self, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let into = buf.initialize_unfilled();
        let read = self.0.poll(Direction::Read, cx, |mut s| s.read(into));
        read.map_ok(|n| buf.advance(n))
    }

    fn poll_write_here(&self, cx: &Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        self.0
            .poll(Direction::Write, cx, |mut s| s.write_vectored(bufs))
    }

    fn shut_down(&self) -> Result<()> {
        match self.0.socket.shutdown(Shutdown::Write) {
            // It has ended anyway.
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}

/// Whether a connection is established.
fn connected(stream: &perimeter::TcpStream) -> Result<()> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    match stream.info()?.tcp.state {
        State::SynSent | State::SynReceived => Err(ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Whether a socket is ready for any of that.
fn ready_for(stream: &perimeter::TcpStream, bits: u8) -> Result<()> {
    let (engine, id) = stream.source();
    match engine.readiness(id) {
        Ok(ready) if ready & (bits | ready::ALWAYS) == 0 => Err(ErrorKind::WouldBlock.into()),
        // A connection that has gone says so when it is used.
        _ => Ok(()),
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.poll_read_here(cx, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.0.poll(Direction::Write, cx, |mut s| s.write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.poll_write_here(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(self.shut_down())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.local_addr().ok(), self.peer_addr().ok());
        let mut f = f.debug_struct("TcpStream");
        f.field("addr", &local).field("peer", &peer).finish()
    }
}

/// The reading half of [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writing half of [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The reading half of [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(TcpStream);

/// The writing half of [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: TcpStream,
    shut_down_on_drop: bool,
}

/// Two halves that are not of one stream.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves are not of one stream")
    }
}

impl std::error::Error for ReuniteError {}

impl OwnedReadHalf {
    /// The stream of both halves.
    ///
    /// # Errors
    /// They are not of one stream.
    pub fn reunite(self, other: OwnedWriteHalf) -> std::result::Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0.0, &other.stream.0) {
            return Err(ReuniteError(self, other));
        }
        other.forget();
        Ok(self.0)
    }
}

impl OwnedWriteHalf {
    /// Lets go of it; the end of the stream is not sent.
    pub fn forget(mut self) {
        self.shut_down_on_drop = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shut_down_on_drop {
            let _ = self.stream.shut_down();
        }
    }
}

macro_rules! reads {
    ($half:ty) => {
        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                &self.0
            }
        }

        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<()>> {
                self.0.poll_read_here(cx, buf)
            }
        }
    };
}

macro_rules! writes {
    ($half:ty, $stream:tt) => {
        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                &self.$stream
            }
        }

        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<Result<usize>> {
                let io = &self.$stream.0;
                io.poll(Direction::Write, cx, |mut s| s.write(buf))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<Result<usize>> {
                self.$stream.poll_write_here(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
                Poll::Ready(self.$stream.shut_down())
            }
        }
    };
}

reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);
writes!(WriteHalf<'_>, 0);
writes!(OwnedWriteHalf, stream);

//! Streams and listeners, as in `std::net`.

use crate::error::{io, tcp, would_block};
use bytes::Bytes;
use perimeter_base::{PktBuf, Time};
use perimeter_org::engine::{Engine, Fault};
use perimeter_stack::ops::{Data, How, Setting};
use perimeter_stack::{ConnInfo, SockError, SockId, ready};
use perimeter_tcp::{Keepalive, State};
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The most that one copying call moves into the stack: a bound on the copy that is thrown
/// away when there is less room.
const COPY: usize = 64 * 1024;
/// Writes up to this size are copied into a shared chunk of the send buffer; larger ones get
/// pages of their own, so that the copy happens outside the perimeter.
const SMALL: usize = 2048;

/// The first address that `addr` gives.
pub(crate) fn resolve(addr: impl ToSocketAddrs) -> Result<SocketAddr> {
    addr.to_socket_addrs()?
        .next()
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "no address given"))
}

/// A socket's handle: closes it when the last clone goes.
struct Handle {
    engine: Arc<dyn Engine>,
    id: SockId,
    nonblocking: AtomicBool,
    /// Time limits in ns; 0 is none.
    read_limit: AtomicU64,
    write_limit: AtomicU64,
    linger: AtomicU64,
}

impl Handle {
    fn new(engine: Arc<dyn Engine>, id: SockId) -> Arc<Handle> {
        Arc::new(Handle {
            engine,
            id,
            nonblocking: AtomicBool::new(false),
            read_limit: AtomicU64::new(0),
            write_limit: AtomicU64::new(0),
            linger: AtomicU64::new(0),
        })
    }

    fn deadline(&self, limit: &AtomicU64) -> Time {
        match limit.load(Ordering::Relaxed) {
            0 => Time::NEVER,
            ns => self.engine.now().plus(ns),
        }
    }

    /// Runs `f` until it does something, waiting for `direction` in between unless the socket
    /// does not block.
    fn block<T>(
        &self,
        direction: u8,
        limit: &AtomicU64,
        mut f: impl FnMut() -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let mut deadline = None;
        loop {
            match f() {
                Ok(v) => return Ok(v),
                Err(e) if would_block(&e) && !self.nonblocking.load(Ordering::Relaxed) => {}
                Err(e) => return Err(io(e)),
            }
            let deadline = *deadline.get_or_insert_with(|| self.deadline(limit));
            match self.engine.wait(self.id, direction, deadline) {
                Ok(()) => {}
                // As `std::net`: a passed time limit is `WouldBlock`.
                Err(Fault::TimedOut) => return Err(ErrorKind::WouldBlock.into()),
                Err(e) => return Err(io(e)),
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let linger = self.linger.load(Ordering::Relaxed);
        if linger > 1 && !self.nonblocking.load(Ordering::Relaxed) {
            self.linger_for(linger - 1);
        }
        // Nobody is left to tell of a failure.
        let _ = self.engine.close(self.id, false);
    }
}

impl Handle {
    /// Waits until everything sent is acknowledged, for at most `ns`.
    fn linger_for(&self, ns: u64) {
        let deadline = self.engine.now().plus(ns);
        let _ = self.engine.shutdown(self.id, How::Write);
        while self.engine.now() < deadline {
            match self.engine.look(self.id) {
                // Unread data makes it a reset, for which nobody waits; nor does what was sent on a
                // connection that is over go anywhere.
                Ok(i) if i.rcv_queued > 0 || i.tcp.state == State::Closed => return,
                Ok(i) if i.snd_queued > 0 || fin_unacknowledged(i.tcp.state) => {}
                _ => return,
            }
            // The end of the connection wakes; an acknowledgment does not, so look every
            // millisecond.
            let step = self.engine.now().plus(1_000_000).min(deadline);
            let _ = self.engine.wait(self.id, ready::HUP, step);
        }
        let _ = self.engine.close(self.id, true);
    }
}

fn fin_unacknowledged(state: State) -> bool {
    matches!(state, State::FinWait1 | State::Closing | State::LastAck)
}

/// A TCP connection. Clones ([`TcpStream::try_clone`]) are the same socket; any thread may use
/// any of them, at the same time.
pub struct TcpStream {
    h: Arc<Handle>,
}

impl TcpStream {
    pub(crate) fn new(engine: Arc<dyn Engine>, id: SockId) -> TcpStream {
        TcpStream {
            h: Handle::new(engine, id),
        }
    }

    pub(crate) fn raw(&self) -> (&Arc<dyn Engine>, SockId) {
        (&self.h.engine, self.h.id)
    }

    pub(crate) fn finish_connect(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.map_or(Time::NEVER, |t| self.h.engine.now() + t);
        loop {
            let (error, state) = self.h.engine.take_error(self.h.id).map_err(io)?;
            if let Some(e) = error {
                return Err(tcp(e));
            }
            if !matches!(state, State::SynSent | State::SynReceived) {
                return Ok(());
            }
            self.h
                .engine
                .wait(self.h.id, ready::OUT, deadline)
                .map_err(io)?;
        }
    }

    /// Another handle to the same socket.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn try_clone(&self) -> Result<TcpStream> {
        Ok(TcpStream { h: self.h.clone() })
    }

    /// The name of the socket within its stack.
    pub fn id(&self) -> SockId {
        self.h.id
    }

    /// State, windows, round-trip time and the like.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn info(&self) -> Result<ConnInfo> {
        self.h.engine.look(self.h.id).map_err(io)
    }

    /// Our address.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let key = self.info()?.key;
        Ok(SocketAddr::new(key.local, key.local_port))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let key = self.info()?.key;
        Ok(SocketAddr::new(key.remote, key.remote_port))
    }

    /// Calls do not wait but fail with `WouldBlock`, or wait again.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long a read waits; `None` is no limit.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    /// Limits how long a write waits; `None` is no limit.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.write_limit, limit)
    }

    fn set(&self, s: Setting) -> Result<()> {
        self.h.engine.set(self.h.id, s).map_err(io)
    }

    /// TCP_NODELAY: partial segments are sent at once.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.set(Setting::NoDelay(on))
    }

    /// TCP_CORK: partial segments are held back, for up to 200 ms, until this is taken off.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_cork(&self, on: bool) -> Result<()> {
        self.set(Setting::Cork(on))
    }

    /// SO_KEEPALIVE with its times.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_keepalive(&self, k: Option<Keepalive>) -> Result<()> {
        self.set(Setting::Keepalive(k))
    }

    /// TCP_USER_TIMEOUT (RFC 5482): how long sent data may stay unacknowledged.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_user_timeout(&self, t: Option<Duration>) -> Result<()> {
        self.set(Setting::UserTimeout(t))
    }

    /// SO_LINGER: closing waits this long for what was sent to be acknowledged; zero makes it
    /// a reset.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_linger(&self, t: Option<Duration>) -> Result<()> {
        let ns = t.map_or(0, |t| {
            u64::try_from(t.as_nanos()).unwrap_or(u64::MAX - 1) + 1
        });
        self.h.linger.store(ns, Ordering::Relaxed);
        self.set(Setting::Linger(t))
    }

    /// SO_SNDBUF, bytes.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_send_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::SendBuffer(bytes))
    }

    /// SO_RCVBUF, bytes.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::RecvBuffer(bytes))
    }

    /// SO_ERROR: the pending error, which is thereby cleared.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let (e, _) = self.h.engine.take_error(self.h.id).map_err(io)?;
        Ok(e.map(tcp))
    }

    /// Shuts down one or both directions.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let how = match how {
            Shutdown::Read => How::Read,
            Shutdown::Write => How::Write,
            Shutdown::Both => How::Both,
        };
        self.h.engine.shutdown(self.h.id, how).map_err(io)
    }

    /// Closes the socket with a reset, for all its handles.
    ///
    /// # Errors
    /// It has gone already.
    pub fn abort(&self) -> Result<()> {
        self.h.engine.close(self.h.id, true).map_err(io)
    }

    /// Closes the socket for all its handles: calls blocked on it fail.
    ///
    /// # Errors
    /// It has gone already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }

    /// Reads without taking (MSG_PEEK).
    ///
    /// # Errors
    /// As `read`.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, true)
    }

    fn receive(&self, buf: &mut [u8], peek: bool) -> Result<usize> {
        let got = self.h.block(ready::IN, &self.h.read_limit, || {
            self.h.engine.recv(self.h.id, buf.len(), peek)
        })?;
        let mut n = 0;
        for b in &got {
            let end = n + b.len();
            buf[n..end].copy_from_slice(b.as_slice());
            n = end;
        }
        if n > 0 {
            self.h.engine.recycle(got);
        }
        Ok(n)
    }

    fn transmit(&self, buf: &[u8], more: bool) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let buf = &buf[..buf.len().min(COPY)];
        self.h.block(ready::OUT, &self.h.write_limit, || {
            let data = if buf.len() <= SMALL {
                Data::Copy(PktBuf::copy_of(buf))
            } else {
                Data::Pages([Bytes::copy_from_slice(buf)].into_iter().collect())
            };
            self.h.engine.send(self.h.id, data, more)
        })
    }

    /// Sends with MSG_MORE: more follows at once, so a partial segment is held back.
    ///
    /// # Errors
    /// As `write`.
    pub fn send_more(&self, buf: &[u8]) -> Result<usize> {
        self.transmit(buf, true)
    }

    /// Sends pages by reference: they are held until acknowledged and done by the device, and
    /// read again for retransmission. Returns how many bytes were taken, from the front.
    ///
    /// # Errors
    /// As `write`.
    pub fn send_zero_copy(&self, pages: &[Bytes]) -> Result<usize> {
        if pages.iter().all(Bytes::is_empty) {
            return Ok(0);
        }
        self.h.block(ready::OUT, &self.h.write_limit, || {
            let data = Data::Pages(pages.iter().cloned().collect());
            self.h.engine.send(self.h.id, data, false)
        })
    }

    /// How far zero-copy sending has completed: bytes ever taken from the application, and
    /// bytes whose memory the stack and its devices no longer refer to.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn zero_copy_progress(&self) -> Result<(u64, u64)> {
        self.h.engine.released(self.h.id).map_err(io)
    }
}

fn set_limit(place: &AtomicU64, limit: Option<Duration>) -> Result<()> {
    if limit == Some(Duration::ZERO) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a time limit of zero; use `None`",
        ));
    }
    let ns = limit.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    place.store(ns, Ordering::Relaxed);
    Ok(())
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, false)
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, false)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.transmit(buf, false)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        // One call into the stack for the whole vector.
        let mut joined = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum::<usize>().min(COPY));
        for b in bufs {
            let room = COPY - joined.len();
            joined.extend_from_slice(&b[..b.len().min(room)]);
            if joined.len() == COPY {
                break;
            }
        }
        self.transmit(&joined, false)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.transmit(buf, false)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A listening socket.
pub struct TcpListener {
    h: Arc<Handle>,
    local: SocketAddr,
}

impl TcpListener {
    pub(crate) fn new(engine: Arc<dyn Engine>, id: SockId, local: SocketAddr) -> TcpListener {
        TcpListener {
            h: Handle::new(engine, id),
            local,
        }
    }

    pub(crate) fn raw(&self) -> (&Arc<dyn Engine>, SockId) {
        (&self.h.engine, self.h.id)
    }

    /// Takes the next connection, waiting for one unless the socket does not block.
    ///
    /// # Errors
    /// `WouldBlock`; or the listener was closed.
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        loop {
            let id = self.h.block(ready::IN, &self.h.read_limit, || {
                self.h.engine.accept(self.h.id)
            })?;
            let s = TcpStream::new(self.h.engine.clone(), id);
            match self.h.engine.look(id) {
                Ok(i) => return Ok((s, SocketAddr::new(i.key.remote, i.key.remote_port))),
                // Reset and gone between: the next one.
                Err(Fault::Sock(SockError::Closed)) => {}
                Err(e) => return Err(io(e)),
            }
        }
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.local)
    }

    /// `accept` does not wait but fails with `WouldBlock`, or waits again.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long `accept` waits; `None` is no limit.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_accept_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    /// Closes the listener: calls blocked on it fail, handshakes under way are forgotten, and
    /// connections that nobody has accepted are reset.
    ///
    /// # Errors
    /// It was closed already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }

    /// The connections as they come.
    pub fn incoming(&self) -> impl Iterator<Item = Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(s, _)| s))
    }
}

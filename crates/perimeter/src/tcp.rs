//! Streams and listeners, as in `std::net`.

use crate::addr;
use crate::error::{io, tcp, would_block};
use bytes::Bytes;
use perimeter_base::{PktBuf, Time};
use perimeter_org::engine::{Engine, EngineError};
use perimeter_stack::copies;
use perimeter_stack::ops::{Data, How};
use perimeter_stack::{ConnInfo, SockError, SockId, ready};
use perimeter_tcp::State;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

mod listener;
mod options;

pub use listener::TcpListener;

/// The most that one copying call moves into the stack: a bound on the copy of which a part is
/// thrown away when there is less room.
const COPY: usize = 64 * 1024;
/// Writes up to this size are copied into a shared chunk of the send buffer; larger ones get
/// pages of their own, so that the copy happens outside the perimeter.
const SMALL: usize = 2048;

/// A write does not wait: there is room, or an error to be told.
const WRITABLE: u8 = ready::OUT | ready::ALWAYS;

/// A socket's handle: closes it when the last clone goes.
pub(crate) struct Handle {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) id: SockId,
    pub(crate) nonblocking: AtomicBool,
    /// Time limits in ns; 0 is none.
    pub(crate) read_limit: AtomicU64,
    pub(crate) write_limit: AtomicU64,
    linger: AtomicU64,
    /// The last write left no room, or found none: a hint.
    full: AtomicBool,
}

impl Handle {
    pub(crate) fn new(engine: Arc<dyn Engine>, id: SockId) -> Arc<Handle> {
        Arc::new(Handle {
            engine,
            id,
            nonblocking: AtomicBool::new(false),
            read_limit: AtomicU64::new(0),
            write_limit: AtomicU64::new(0),
            linger: AtomicU64::new(0),
            full: AtomicBool::new(false),
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
    pub(crate) fn block<T>(
        &self,
        direction: u8,
        limit: &AtomicU64,
        mut f: impl FnMut() -> std::result::Result<T, EngineError>,
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
                Err(EngineError::TimedOut) => return Err(ErrorKind::WouldBlock.into()),
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
        self.engine.release(self.id);
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
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let listener = stack.listen("10.0.0.1:80")?;
/// let mut client = stack.connect("10.0.0.1:80")?;
/// let (mut server, peer) = listener.accept()?;
/// assert_eq!(peer, client.local_addr()?);
///
/// client.write_all(b"hello")?;
/// client.shutdown(Shutdown::Write)?;
/// let mut text = String::new();
/// server.read_to_string(&mut text)?;
/// assert_eq!(text, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// // One thread reads while this one writes.
    /// let mut reader = server.try_clone()?;
    /// let echo = thread::spawn(move || -> std::io::Result<String> {
    ///     let mut text = String::new();
    ///     reader.read_to_string(&mut text)?;
    ///     Ok(text)
    /// });
    /// client.write_all(b"hello")?;
    /// client.shutdown(Shutdown::Write)?;
    /// assert_eq!(echo.join().expect("no panic")?, "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn try_clone(&self) -> Result<TcpStream> {
        Ok(TcpStream { h: self.h.clone() })
    }

    /// The name of the socket within its stack.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// assert_eq!(client.id(), client.try_clone()?.id());
    /// let mut all = stack.connections().into_iter();
    /// let found = all.find(|c| c.id == client.id()).ok_or("gone")?;
    /// assert_eq!(found.key.remote_port, 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(&self) -> SockId {
        self.h.id
    }

    /// State, windows, round-trip time and the like.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let info = client.info()?;
    /// assert_eq!(info.tcp.state, State::Established);
    /// println!("round trip {:?}, window {} bytes", info.tcp.srtt, info.tcp.snd_wnd);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn info(&self) -> Result<ConnInfo> {
        self.h.engine.look(self.h.id).map_err(io)
    }

    /// Our address.
    /// See [`TcpStream::peer_addr`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let key = self.info()?.key;
        Ok(addr::local(&key))
    }

    /// The peer's address.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// assert_eq!(client.peer_addr()?.to_string(), "10.0.0.1:80");
    /// assert_eq!(client.local_addr()?, server.peer_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let key = self.info()?.key;
        Ok(addr::remote(&key))
    }

    /// SO_ERROR: the pending error, which is thereby cleared.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let stream = stack.start_connect("10.0.0.1:81".parse()?)?;
    /// let poll = stack.poll()?;
    /// poll.registry().register(&stream, Token(0), Interest::WRITABLE)?;
    /// poll.poll(&mut Events::with_capacity(1), Some(Duration::from_secs(10)))?;
    /// let error = stream.take_error()?.ok_or("nobody listens there")?;
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// assert!(stream.take_error()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let (e, _) = self.h.engine.take_error(self.h.id).map_err(io)?;
        Ok(e.map(tcp))
    }

    /// Shuts down one or both directions.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"that is all")?;
    /// client.shutdown(Shutdown::Write)?;
    /// let mut text = String::new();
    /// server.read_to_string(&mut text)?;
    /// // The other direction goes on.
    /// server.write_all(b"thanks")?;
    /// assert_eq!(client.read(&mut [0; 100])?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.abort()?;
    /// let error = server.read(&mut [0; 100]).expect_err("the connection was reset");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It has gone already.
    pub fn abort(&self) -> Result<()> {
        self.h.engine.close(self.h.id, true).map_err(io)
    }

    /// Closes the socket for all its handles: calls blocked on it fail.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let other = client.try_clone()?;
    /// client.close()?;
    /// assert!({ &other }.write(b"late").is_err());
    /// // The peer sees the end of the stream.
    /// assert_eq!(server.read(&mut [0; 100])?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It has gone already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }

    /// Reads without taking (MSG_PEEK).
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"GET / HTTP/1.1\r\n")?;
    /// let mut first = [0; 1];
    /// server.peek(&mut first)?;
    /// assert_eq!(first, *b"G");
    /// // It is still there.
    /// let mut method = [0; 3];
    /// server.read_exact(&mut method)?;
    /// assert_eq!(method, *b"GET");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.receive(buf, true)
    }

    fn receive(&self, buf: &mut [u8], peek: bool) -> Result<usize> {
        let mut rest = &mut *buf;
        self.pieces(rest.len(), peek, |piece| {
            let (here, left) = core::mem::take(&mut rest).split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = left;
        })
    }

    /// Reads up to `max` bytes and gives them to `f` in pieces, where they lie: for a caller whose
    /// buffer is not one initialised slice. Returns how many bytes that were.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"hello")?;
    /// let mut text = Vec::new();
    /// while text.len() < 5 {
    ///     server.read_with(4096, |piece| text.extend_from_slice(piece))?;
    /// }
    /// assert_eq!(text, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub fn read_with(&self, max: usize, f: impl FnMut(&[u8])) -> Result<usize> {
        self.pieces(max, false, f)
    }

    /// As [`TcpStream::read_with`], without taking (MSG_PEEK).
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"hello")?;
    /// let mut lines = 0;
    /// let seen = server.peek_with(4096, |piece| lines += piece.iter().filter(|b| **b == b'\n').count())?;
    /// assert_eq!((seen, lines), (5, 0));
    /// assert_eq!(server.read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub fn peek_with(&self, max: usize, f: impl FnMut(&[u8])) -> Result<usize> {
        self.pieces(max, true, f)
    }

    fn pieces(&self, max: usize, peek: bool, mut f: impl FnMut(&[u8])) -> Result<usize> {
        let got = self.h.block(ready::IN, &self.h.read_limit, || {
            self.h.engine.recv(self.h.id, max, peek)
        })?;
        let mut n = 0;
        for b in &got {
            f(b.as_slice());
            n += b.len();
        }
        if n > 0 {
            self.h.engine.recycle(got);
        }
        Ok(n)
    }

    /// Copies the first [`COPY`] bytes of `bufs` to the stream.
    ///
    /// A refused write costs no copy: when the last one left no room there is a look first. (A copy
    /// is made in vain when another thread, or want of memory, has taken the room since.)
    fn transmit(&self, bufs: &[IoSlice<'_>], more: bool) -> Result<usize> {
        let len = bufs.iter().map(|b| b.len()).sum::<usize>().min(COPY);
        if len == 0 {
            return Ok(0);
        }
        let h = &*self.h;
        h.block(ready::OUT, &h.write_limit, || {
            if h.full.load(Ordering::Relaxed) && h.engine.readiness(h.id)? & WRITABLE == 0 {
                return Err(SockError::WouldBlock.into());
            }
            let here = (len <= SMALL).then(|| h.engine.write(h.id, bufs, more));
            let sent = match here.flatten() {
                Some(sent) => sent,
                None => h.engine.send(h.id, owned(bufs, len), more),
            };
            // One flag for all threads that write, as a hint: a wrong one costs a look, or a copy.
            let full = sent.map_or_else(|e| would_block(&e), |s| s.full);
            h.full.store(full, Ordering::Relaxed);
            Ok(sent?.taken)
        })
    }

    /// Sends with MSG_MORE: more follows at once, so a partial segment is held back.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.send_more(b"HTTP/1.1 200 OK\r\n\r\n")?;
    /// // What is written without it goes at once, and takes what waits along.
    /// client.write_all(b"hello")?;
    /// let mut text = [0; 24];
    /// server.read_exact(&mut text)?;
    /// assert!(text.ends_with(b"\r\n\r\nhello"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `write`.
    pub fn send_more(&self, buf: &[u8]) -> Result<usize> {
        self.transmit(&[IoSlice::new(buf)], true)
    }

    /// Sends pages by reference: they are held until acknowledged and done by the device, and
    /// read again for retransmission. Returns how many bytes were taken, from the front.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let page = Bytes::from(vec![7; 10_000]);
    /// let sent = client.send_zero_copy(&[page.slice(..100), page.slice(500..600)])?;
    /// let mut all = vec![0; sent];
    /// server.read_exact(&mut all)?;
    /// assert_eq!(all, [7; 200]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As `write`.
    pub fn send_zero_copy(&self, pages: &[Bytes]) -> Result<usize> {
        if pages.iter().all(Bytes::is_empty) {
            return Ok(0);
        }
        self.h.block(ready::OUT, &self.h.write_limit, || {
            let data = Data::Pages(pages.iter().cloned().collect());
            Ok(self.h.engine.send(self.h.id, data, false)?.taken)
        })
    }

    /// How far zero-copy sending has completed: bytes ever taken from the application, and
    /// bytes whose memory the stack and its devices no longer refer to.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// let sent = client.send_zero_copy(&[Bytes::from_static(b"hello")])?;
    /// server.read_exact(&mut vec![0; sent])?;
    /// let (taken, done) = client.zero_copy_progress()?;
    /// assert!(taken == 5 && done <= taken);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn zero_copy_progress(&self) -> Result<(u64, u64)> {
        self.h.engine.released(self.h.id).map_err(io)
    }
}

pub(crate) fn set_limit(place: &AtomicU64, limit: Option<Duration>) -> Result<()> {
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

/// What [`set_limit`] has set.
pub(crate) fn limit(place: &AtomicU64) -> Option<Duration> {
    match place.load(Ordering::Relaxed) {
        0 => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// A time to live, or hop limit.
pub(crate) fn hops(n: u32) -> Result<u8> {
    match u8::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("a time to live of {n}; it can be 1 to 255"),
        )),
    }
}

/// Copies `bufs`, one after another, until `out` is full.
fn gather(bufs: &[IoSlice<'_>], mut out: &mut [u8]) {
    for b in bufs {
        let (here, rest) = out.split_at_mut(b.len().min(out.len()));
        here.copy_from_slice(&b[..here.len()]);
        out = rest;
    }
}

/// The first `len` bytes of `bufs`, copied once: small ones so that they can be merged with what is
/// queued, others as a page.
fn owned(bufs: &[IoSlice<'_>], len: usize) -> Data<'static> {
    copies::note(len);
    if let [b] = bufs {
        let b = &b[..len];
        return match len {
            ..=SMALL => Data::Small(PktBuf::copy_of(b)),
            _ => Data::Copied(Bytes::copy_from_slice(b)),
        };
    }
    if len <= SMALL {
        let mut joined = PktBuf::with_capacity(len);
        gather(bufs, joined.raw_mut());
        joined.set_window(0, len);
        return Data::Small(joined);
    }
    let mut joined = vec![0; len];
    gather(bufs, &mut joined);
    Data::Copied(Bytes::from(joined))
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

/// A write copies the data once, and one that is refused does not, with these exceptions. Where
/// calls are handed over to other threads (`connp-t`, `squeue`, `streams`, `pef`), up to 2 KiB behind
/// data that is still queued are copied into the message, which has to own them, and from there to
/// what is queued, to be sent with it. Of a larger write for which there is room in part, that part
/// is copied again, so that it does not keep the rest. And while the stack's memory is short, a
/// refused write may have been copied.
impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.transmit(&[IoSlice::new(buf)], false)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        // One call into the stack for the whole vector.
        self.transmit(bufs, false)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// As for [`&TcpStream`](#impl-Write-for-%26TcpStream).
impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.transmit(&[IoSlice::new(buf)], false)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

//! Datagram sockets, as in `std::net`, and batches of datagrams.

use crate::addr::{inward, outward};
use crate::error::io;
use crate::names::{Names, ToSocketAddrs};
use crate::stack::Stack;
use crate::tcp::Handle;
use perimeter_org::engine::{CopiedOut, Engine, Transmit};
use perimeter_stack::udp::{Rx, UdpInfo};
use perimeter_stack::{SockId, ready};
use smallvec::SmallVec;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

mod options;

pub use perimeter_stack::udp::UdpConfig;

/// A UDP socket. Clones ([`UdpSocket::try_clone`]) are the same socket; any thread may use any of
/// them, at the same time.
///
/// What does not fit the caller's buffer is lost, as with `std::net`. A datagram whose neighbour's
/// station is not known yet waits for it, and 15 more; then the oldest goes.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let server = stack.bind_udp("10.0.0.1:53")?;
/// let client = stack.bind_udp("10.0.0.1:0")?;
/// client.send_to(b"question", "10.0.0.1:53")?;
/// let mut buf = [0; 2000];
/// let (len, from) = server.recv_from(&mut buf)?;
/// assert_eq!(&buf[..len], b"question");
/// server.send_to(b"answer", from)?;
/// assert_eq!(client.recv_from(&mut buf)?.0, 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UdpSocket {
    h: Arc<Handle>,
    /// Bound to an address of IPv6: it knows IPv4's as mapped ones (RFC 4291, section 2.5.5.2).
    v6: bool,
    names: Names,
}

/// A datagram to be sent, or several of one length: an entry of a batch.
///
/// ```
#[doc = include_str!("examples/udp.txt")]
/// // Two datagrams of 400 bytes and one of 200, in one entry.
/// let all = Outgoing { to: Some(b.local_addr()?), from: None, data: &[7; 1000], segment_size: Some(400) };
/// assert_eq!(a.send_many(&[all])?, 1);
/// let mut lengths = Vec::new();
/// while lengths.len() < 3 {
///     lengths.push(b.recv_from(&mut buf)?.0);
/// }
/// assert_eq!(lengths, [400, 400, 200]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug)]
pub struct Outgoing<'a> {
    /// To whom; `None`: the socket's peer.
    pub to: Option<SocketAddr>,
    /// From which address and port; `None`: the socket's own. Others need a socket of
    /// [`UdpConfig::any`].
    pub from: Option<SocketAddr>,
    /// The data.
    pub data: &'a [u8],
    /// It is several datagrams of so many bytes each, but for the last one; `None`: it is one.
    pub segment_size: Option<u16>,
}

impl<'a> Outgoing<'a> {
    fn entry(&self, engine: &dyn Engine) -> Result<Transmit<'a>> {
        let end = |addr| meant(engine, addr);
        Ok(Transmit {
            to: self.to.map(end).transpose()?,
            from: self.from.map(end).transpose()?,
            data: self.data,
            segment: self.segment_size.unwrap_or(0),
        })
    }
}

/// An address as the stack has it.
fn meant(engine: &dyn Engine, addr: SocketAddr) -> Result<(IpAddr, u16)> {
    let addr = inward(engine, addr)?;
    Ok((addr.ip(), addr.port()))
}

/// A received datagram, in a batch.
///
/// ```
#[doc = include_str!("examples/udp.txt")]
/// a.set_tos(46 << 2)?;
/// a.send_to(b"hello", b.local_addr()?)?;
/// let mut batch = Datagrams::with_capacity(32);
/// b.recv_many(&mut batch)?;
/// for Datagram { source, data, tos, ttl, .. } in batch.iter() {
///     println!("{} bytes from {source}, {ttl} hops left", data.len());
///     assert_eq!((source, tos >> 2), (a.local_addr()?, 46));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// The address and port that it was sent to.
    pub destination: SocketAddr,
    /// The data.
    pub data: &'a [u8],
    /// The number of the interface that it came by.
    pub interface: usize,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Hops that it had left.
    pub ttl: u8,
}

/// Received datagrams, in the memory that they came in. Filled by [`UdpSocket::recv_many`].
///
/// ```
#[doc = include_str!("examples/udp.txt")]
/// a.send_to(b"hello", "10.0.0.1:5000")?;
/// let mut batch = Datagrams::with_capacity(32);
/// b.recv_many(&mut batch)?;
/// for d in batch.iter() {
///     println!("{} bytes from {}", d.data.len(), d.source);
/// }
/// assert_eq!(batch.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Datagrams {
    all: Vec<Rx>,
    capacity: usize,
    v6: bool,
    engine: Option<Arc<dyn Engine>>,
}

impl Datagrams {
    /// Room for up to `capacity` datagrams at a time.
    /// See [`Datagrams`].
    pub fn with_capacity(capacity: usize) -> Datagrams {
        let capacity = capacity.max(1);
        Datagrams {
            all: Vec::with_capacity(capacity),
            capacity,
            v6: false,
            engine: None,
        }
    }

    /// The datagrams of the last [`UdpSocket::recv_many`], in order of arrival.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", "10.0.0.1:5000")?;
    /// let mut batch = Datagrams::with_capacity(32);
    /// b.recv_many(&mut batch)?;
    /// let first = batch.iter().next().ok_or("none has come")?;
    /// assert_eq!(first.data, b"hello");
    /// assert_eq!((first.source, first.destination), (a.local_addr()?, b.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let v6 = self.v6;
        self.all.iter().map(move |rx| Datagram {
            source: seen(v6, rx.src),
            destination: seen(v6, rx.dst),
            data: rx.data.as_slice(),
            interface: rx.iface.into(),
            tos: rx.tos,
            ttl: rx.hop_limit,
        })
    }

    /// How many there are.
    /// See [`Datagrams`].
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let mut batch = Datagrams::with_capacity(32);
    /// assert!(batch.is_empty(), "nothing was received yet");
    /// b.recv_many(&mut batch)?;
    /// assert!(!batch.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Gives their memory back to the stack.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", "10.0.0.1:5000")?;
    /// let mut batch = Datagrams::with_capacity(32);
    /// b.recv_many(&mut batch)?;
    /// batch.clear();
    /// assert!(batch.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&mut self) {
        if let Some(engine) = self.engine.take()
            && !self.all.is_empty()
        {
            engine.recycle(self.all.drain(..).map(|rx| rx.data).collect());
        }
        self.all.clear();
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.clear();
    }
}

/// An address as a socket of that family sees it.
fn seen(v6: bool, (ip, port): (IpAddr, u16)) -> SocketAddr {
    match ip {
        IpAddr::V4(a) if v6 => SocketAddr::new(IpAddr::V6(a.to_ipv6_mapped()), port),
        ip => outward(ip, port),
    }
}

impl UdpSocket {
    pub(crate) fn new(engine: Arc<dyn Engine>, id: SockId, v6: bool) -> UdpSocket {
        UdpSocket {
            h: Handle::new(engine, id),
            v6,
            names: Names::default(),
        }
    }

    /// With the stack's way to find the addresses of names.
    pub(crate) fn with_names(self, names: Names) -> UdpSocket {
        UdpSocket { names, ..self }
    }

    pub(crate) fn raw(&self) -> (&Arc<dyn Engine>, SockId) {
        (&self.h.engine, self.h.id)
    }

    /// A socket of `stack` bound to `addr`: as [`Stack::bind_udp`].
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = UdpSocket::bind(&stack, "10.0.0.1:53")?;
    /// assert_eq!(socket.local_addr()?.to_string(), "10.0.0.1:53");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn bind(stack: &Stack, addr: impl ToSocketAddrs) -> Result<UdpSocket> {
        stack.bind_udp(addr)
    }

    /// Another handle to the same socket.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// // One thread receives while this one sends.
    /// let receiver = b.try_clone()?;
    /// let thread = std::thread::spawn(move || receiver.recv_from(&mut [0; 100]));
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let (len, from) = thread.join().expect("no panic")?;
    /// assert_eq!((len, from), (5, a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn try_clone(&self) -> Result<UdpSocket> {
        Ok(UdpSocket {
            h: self.h.clone(),
            v6: self.v6,
            names: self.names.clone(),
        })
    }

    /// The name of the socket within its stack.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// assert_eq!(a.id(), a.try_clone()?.id());
    /// assert_ne!(a.id(), b.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(&self) -> SockId {
        self.h.id
    }

    /// Addresses, what is queued, what was dropped, and settings.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// b.peek_from(&mut buf)?;
    /// let info = b.info()?;
    /// assert_eq!((info.queued, info.drops), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn info(&self) -> Result<UdpInfo> {
        self.h.engine.udp_look(self.h.id).map_err(io)
    }

    /// Its address: unspecified if it is bound to all and has no peer.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.bind_udp("10.0.0.1:0")?;
    /// println!("receiving at {}", socket.local_addr()?);
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let info = self.info()?;
        let any = match self.v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        Ok(match info.local {
            Some(a) => seen(self.v6, (a, info.port)),
            None => SocketAddr::new(any, info.port),
        })
    }

    /// Its peer.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// let error = a.peer_addr().expect_err("it is not connected");
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// a.connect("10.0.0.1:5000")?;
    /// assert_eq!(a.peer_addr()?.port(), 5000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotConnected`: it has none.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let peer = self.info()?.remote;
        let peer = peer.ok_or(ErrorKind::NotConnected)?;
        Ok(seen(self.v6, peer))
    }

    /// Gives the socket a peer: from now on it receives from that one alone, [`UdpSocket::send`]
    /// sends there, and errors of the network about what it has sent are told by the next call.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.connect("10.0.0.1:5000")?;
    /// assert_eq!(a.peer_addr()?, b.local_addr()?);
    /// a.send(b"hello")?;
    /// assert_eq!(b.recv_from(&mut buf)?, (5, a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NetworkUnreachable`: there is no route; `AddrInUse`: another socket has that flow.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<()> {
        self.names.each(&self.h.engine, addr, |addr| {
            let to = self.meant(addr)?;
            self.h.engine.udp_connect(self.h.id, to).map_err(io)
        })
    }

    fn meant(&self, addr: SocketAddr) -> Result<(IpAddr, u16)> {
        meant(&*self.h.engine, addr)
    }

    fn transmit(&self, t: &Transmit<'_>) -> Result<usize> {
        let h = &*self.h;
        h.block(ready::OUT, &h.write_limit, || h.engine.udp_send(h.id, t))
    }

    /// Sends a datagram to `addr`, the first that it parses to.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", "10.0.0.1:5000")?;
    /// let (len, from) = b.recv_from(&mut buf)?;
    /// assert_eq!(&buf[..len], b"hello");
    ///
    /// let error = a.send_to(&[0; 65_536], "10.0.0.1:5000").expect_err("too long for IPv4");
    /// println!("{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`: the transmit ring is full; `NetworkUnreachable`; EMSGSIZE: it is too long; the
    /// error that the network has sent about an earlier one.
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> Result<usize> {
        let to = self.names.first(&self.h.engine, addr.target()?)?;
        self.transmit(&Transmit {
            to: Some(self.meant(to)?),
            from: None,
            data: buf,
            segment: 0,
        })
    }

    /// Sends a datagram to the peer.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.connect("10.0.0.1:5000")?;
    /// assert_eq!(a.send(b"hello")?, 5);
    /// let error = b.send(b"hello").expect_err("it has no peer");
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `NotConnected`: there is no peer.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        self.transmit(&Transmit {
            to: None,
            from: None,
            data: buf,
            segment: 0,
        })
    }

    /// Sends a datagram from `local` to `remote`: on a socket of [`UdpConfig::any`] from any
    /// address and port, on others from their own port and any address of the stack.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// let (ours, server) = ("10.0.0.1:53".parse()?, stack.bind_udp("0.0.0.0:53")?);
    /// server.send_from(ours, a.local_addr()?, b"answer")?;
    /// assert_eq!(a.recv_from(&mut buf)?, (6, ours));
    ///
    /// let error = server.send_from("192.0.2.7:53".parse()?, a.local_addr()?, b"answer");
    /// let error = error.expect_err("no address of this stack");
    /// assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `AddrNotAvailable`: it may not send from there.
    pub fn send_from(&self, local: SocketAddr, remote: SocketAddr, buf: &[u8]) -> Result<usize> {
        self.transmit(&Transmit {
            to: Some(self.meant(remote)?),
            from: Some(self.meant(local)?),
            data: buf,
            segment: 0,
        })
    }

    /// Sends `buf` cut into datagrams of `segment_size` bytes each, but for the last one, in one
    /// call (UDP_SEGMENT); how many bytes were sent, which may be fewer where the transmit ring has
    /// no room for all. Datagrams longer than the path's MTU go in fragments, unless
    /// [`UdpSocket::set_dont_fragment`] forbids it. `to`: `None` for the peer.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// // Three datagrams in one call: 1000, 1000 and 500 bytes.
    /// let sent = a.send_segments(&[7; 2500], 1000, Some(b.local_addr()?))?;
    /// assert_eq!(sent, 2500);
    /// let mut lengths = Vec::new();
    /// while lengths.len() < 3 {
    ///     lengths.push(b.recv_from(&mut buf)?.0);
    /// }
    /// assert_eq!(lengths, [1000, 1000, 500]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn send_segments(
        &self,
        buf: &[u8],
        segment_size: u16,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        if segment_size == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.transmit(&Transmit {
            to: to.map(|to| self.meant(to)).transpose()?,
            from: None,
            data: buf,
            segment: segment_size,
        })
    }

    /// Sends a batch in one call; how many entries were sent, the last perhaps in part. One way in
    /// and out of the stack, and one doorbell, for all.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// let one = |data| Outgoing { to: Some(([10, 0, 0, 1], 5000).into()), from: None, data, segment_size: None };
    /// let sent = a.send_many(&[one(b"hello"), one(b"world")])?;
    /// assert_eq!(sent, 2);
    /// assert_eq!(b.recv_from(&mut buf)?.0, 5);
    /// assert_eq!(&buf[..5], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`], of the first.
    pub fn send_many(&self, batch: &[Outgoing<'_>]) -> Result<usize> {
        if batch.is_empty() {
            return Ok(0);
        }
        let h = &*self.h;
        let all = batch.iter().map(|o| o.entry(&*h.engine));
        let all = all.collect::<Result<SmallVec<[Transmit<'_>; 32]>>>()?;
        h.block(ready::OUT, &h.write_limit, || {
            h.engine.udp_send_many(h.id, &all)
        })
    }

    fn receive(&self, buf: &mut [u8], peek: bool) -> Result<CopiedOut> {
        let h = &*self.h;
        h.block(ready::IN, &h.read_limit, || {
            h.engine.udp_recv(h.id, buf, peek)
        })
    }

    /// Receives a datagram: how many bytes of it are in `buf`, and who sent it.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let (len, from) = b.recv_from(&mut buf)?;
    /// assert_eq!((&buf[..len], from), (&b"hello"[..], a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`; the error that the network has sent about what this socket has sent.
    pub fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let got = self.receive(buf, false)?;
        Ok((got.copied, seen(self.v6, got.src)))
    }

    /// As [`UdpSocket::recv_from`], and the address that it was sent to: bytes, source,
    /// destination.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // Bound to all addresses: it answers from the one that was asked.
    /// let server = stack.bind_udp("0.0.0.0:53")?;
    /// let client = stack.bind_udp("10.0.0.1:4000")?;
    /// client.send_to(b"question", "10.0.0.1:53")?;
    /// let (_, from, asked) = server.recv_from_to(&mut [0; 100])?;
    /// server.send_from(asked, from, b"answer")?;
    /// assert_eq!(client.recv_from(&mut [0; 100])?.1, "10.0.0.1:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_from_to(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr, SocketAddr)> {
        let got = self.receive(buf, false)?;
        Ok((got.copied, seen(self.v6, got.src), seen(self.v6, got.dst)))
    }

    /// As [`UdpSocket::recv_from`], and leaves the datagram there.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// assert_eq!(b.peek_from(&mut buf)?, (5, a.local_addr()?));
    /// // It is still there.
    /// assert_eq!(b.recv_from(&mut buf)?.0, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let got = self.receive(buf, true)?;
        Ok((got.copied, seen(self.v6, got.src)))
    }

    /// Receives a datagram from the peer.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// b.connect(a.local_addr()?)?;
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let len = b.recv(&mut buf)?;
    /// assert_eq!(&buf[..len], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]; `NotConnected`: there is no peer.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.receive(buf, false)?.copied)
    }

    /// As [`UdpSocket::recv`], and leaves the datagram there.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// b.connect(a.local_addr()?)?;
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// assert_eq!((b.peek(&mut buf)?, b.recv(&mut buf)?), (5, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.receive(buf, true)?.copied)
    }

    /// Receives what has come, at least one datagram and as many as there is room for, without a
    /// copy. What `batch` held goes back to the stack.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_segments(b"onetwosix", 3, Some(b.local_addr()?))?;
    /// let (mut batch, mut words) = (Datagrams::with_capacity(32), Vec::new());
    /// while words.len() < 3 {
    ///     b.recv_many(&mut batch)?;
    ///     words.extend(batch.iter().map(|d| d.data.to_vec()));
    /// }
    /// assert_eq!(words, [b"one", b"two", b"six"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_many(&self, batch: &mut Datagrams) -> Result<usize> {
        let h = &*self.h;
        // Those of another stack do not go to this one.
        if batch
            .engine
            .as_ref()
            .is_none_or(|e| !Arc::ptr_eq(e, &h.engine))
        {
            batch.clear();
            batch.engine = Some(h.engine.clone());
        }
        batch.v6 = self.v6;
        let (max, all) = (batch.capacity, &mut batch.all);
        h.block(ready::IN, &h.read_limit, || {
            h.engine.udp_recv_many(h.id, max, all)
        })
    }

    /// SO_ERROR: the pending error, which is thereby cleared.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// // Nobody is there: that is told of once.
    /// a.connect("10.0.0.1:9")?;
    /// a.send(b"hello")?;
    /// let error = loop {
    ///     if let Some(e) = a.take_error()? {
    ///         break e;
    ///     }
    ///     std::thread::yield_now();
    /// };
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// assert!(a.take_error()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let e = self.h.engine.udp_take_error(self.h.id).map_err(io)?;
        Ok(e.map(io))
    }

    /// Closes the socket for all its handles: calls blocked on it fail.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// let other = a.try_clone()?;
    /// a.close()?;
    /// let error = other.recv_from(&mut buf).expect_err("it is closed");
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It has gone already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }
}

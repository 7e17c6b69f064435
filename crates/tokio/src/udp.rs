//! Datagrams.

use crate::addr::{self, ToSocketAddrs, target};
use crate::net::Net;
use crate::socket::{Socket, as_name, common, eight_bits};
use perimeter::task::Half;
use perimeter::{Datagrams, Outgoing};
use std::fmt;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use tokio::io::{Interest, ReadBuf, Ready};

/// A UDP socket, as [`tokio::net::UdpSocket`]. Any number of tasks may use it at the same time, in an
/// `Arc`.
///
/// ```
/// # use perimeter_tokio::Net;
/// # async fn example(net: Net) -> std::io::Result<()> {
/// let socket = net.bind_udp("0.0.0.0:7").await?;
/// let mut buf = [0; 1500];
/// loop {
///     let (len, from) = socket.recv_from(&mut buf).await?;
///     socket.send_to(&buf[..len], from).await?;
/// }
/// # }
/// ```
pub struct UdpSocket(Socket<perimeter::UdpSocket>);

impl UdpSocket {
    /// A socket bound to `addr` on the current stack ([`Net::current`]); else as [`Net::bind_udp`].
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let _serving = net.serve_runtime(&tokio::runtime::Handle::current());
    /// let socket = UdpSocket::bind("10.0.0.1:53").await?;
    /// assert_eq!(socket.local_addr()?.port(), 53);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// There is no current stack; or as [`Net::bind_udp`].
    ///
    /// # Cancel safety
    /// When the future is dropped, nothing is bound.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> Result<UdpSocket> {
        Net::current()?.bind_udp(addr).await
    }

    /// Takes a socket of the stack's. It does not block from now on, nor do its other handles.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let socket = UdpSocket::from_perimeter(stack.bind_udp("10.0.0.1:53")?)?;
    /// let nothing_yet = socket.try_recv(&mut [0; 100]).expect_err("nobody has sent anything");
    /// assert_eq!(nothing_yet.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn from_perimeter(socket: perimeter::UdpSocket) -> Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        Ok(UdpSocket(Socket::new(socket)))
    }

    /// Gives the socket a peer: it receives from that one alone, and [`UdpSocket::send`] sends there.
    /// Of several addresses the first that can be had.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.connect("10.0.0.1:5000").await?;
    /// assert_eq!(a.peer_addr()?, b.local_addr()?);
    /// a.send(b"hello").await?;
    /// assert_eq!(b.recv_from(&mut buf).await?, (5, a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `NetworkUnreachable`: there is no route; or what the resolver says.
    ///
    /// # Cancel safety
    /// When the future is dropped, the peer is as it was.
    pub async fn connect<A: ToSocketAddrs>(&self, addr: A) -> Result<()> {
        let net = Net::current().ok();
        let mut failed = None;
        for addr in addr::resolve(net.as_ref(), target(addr)?).await? {
            match self.0.inner.connect(addr) {
                Ok(()) => return Ok(()),
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.unwrap_or_else(addr::none))
    }

    /// As [`UdpSocket::readable`], for the one task that receives by polling: that which polls last
    /// is woken.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// poll_fn(|cx| b.poll_recv_ready(cx)).await?;
    /// assert_eq!(b.try_recv_from(&mut buf)?.0, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(Half::Read, cx)
    }

    /// As [`UdpSocket::writable`], for the one task that sends by polling: that which polls last is
    /// woken.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// poll_fn(|cx| a.poll_send_ready(cx)).await?;
    /// assert_eq!(a.try_send_to(b"hello", b.local_addr()?)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(Half::Write, cx)
    }

    /// Sends a datagram to the peer.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.connect("10.0.0.1:5000").await?;
    /// assert_eq!(a.send(b"hello").await?, 5);
    /// let error = b.send(b"hello").await.expect_err("it has no peer");
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::send_to`].
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing.
    pub async fn send(&self, buf: &[u8]) -> Result<usize> {
        self.0.io(Half::Write, |s| s.send(buf)).await
    }

    /// As [`UdpSocket::send`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_send(&self, buf: &[u8]) -> Result<usize> {
        self.0.inner.send(buf)
    }

    /// As [`UdpSocket::send`], for the one task that sends by polling.
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.0.poll_io(Half::Write, cx, |s| s.send(buf))
    }

    /// Sends a datagram to `target`: the first address, where there are several.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", "10.0.0.1:5000").await?;
    /// let (len, from) = b.recv_from(&mut buf).await?;
    /// assert_eq!((&buf[..len], from), (&b"hello"[..], a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::send_to`]; or what the resolver says.
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing.
    pub async fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], target: A) -> Result<usize> {
        let target = addr::target(target)?;
        let to = match &target {
            addr::Target::Addr(addr) => Some(*addr),
            addr::Target::Addrs(all) => all.first().copied(),
            addr::Target::Name(..) => {
                let net = Net::current().ok();
                addr::resolve(net.as_ref(), target).await?.first().copied()
            }
        };
        let to = to.ok_or_else(addr::none)?;
        self.0.io(Half::Write, |s| s.send_to(buf, to)).await
    }

    /// As [`UdpSocket::send_to`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_send_to(&self, buf: &[u8], target: SocketAddr) -> Result<usize> {
        self.0.inner.send_to(buf, target)
    }

    /// As [`UdpSocket::send_to`], for the one task that sends by polling.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        target: SocketAddr,
    ) -> Poll<Result<usize>> {
        self.0.poll_io(Half::Write, cx, |s| s.send_to(buf, target))
    }

    /// Sends a datagram from `local` to `remote`, as [`perimeter::UdpSocket::send_from`].
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// // Bound to all addresses: it answers from the one that was asked.
    /// let server = net.bind_udp("0.0.0.0:53").await?;
    /// let client = net.bind_udp("10.0.0.1:4000").await?;
    /// client.send_to(b"question", "10.0.0.1:53").await?;
    /// let (_, from, asked) = server.recv_from_to(&mut [0; 100]).await?;
    /// server.send_from(asked, from, b"answer").await?;
    /// assert_eq!(client.recv_from(&mut [0; 100]).await?.1, "10.0.0.1:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing.
    pub async fn send_from(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        buf: &[u8],
    ) -> Result<usize> {
        self.0
            .io(Half::Write, |s| s.send_from(local, remote, buf))
            .await
    }

    /// As [`UdpSocket::send_from`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_send_from(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        buf: &[u8],
    ) -> Result<usize> {
        self.0.inner.send_from(local, remote, buf)
    }

    /// Sends `buf` cut into datagrams of `segment_size` bytes each, but for the last one, in one call
    /// (UDP_SEGMENT), as [`perimeter::UdpSocket::send_segments`].
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// // Three datagrams in one call.
    /// a.send_segments(b"onetwosix", 3, Some(b.local_addr()?)).await?;
    /// for word in [b"one", b"two", b"six"] {
    ///     assert_eq!(b.recv(&mut buf).await?, 3);
    ///     assert_eq!(&buf[..3], word);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing.
    pub async fn send_segments(
        &self,
        buf: &[u8],
        segment_size: u16,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        self.0
            .io(Half::Write, |s| s.send_segments(buf, segment_size, to))
            .await
    }

    /// As [`UdpSocket::send_segments`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_send_segments(
        &self,
        buf: &[u8],
        segment_size: u16,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        self.0.inner.send_segments(buf, segment_size, to)
    }

    /// Sends a batch in one call, waiting for room for the first; how many entries were sent, the last
    /// perhaps in part.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// let to = Some(b.local_addr()?);
    /// let one = |data| Outgoing { to, from: None, data, segment_size: None };
    /// assert_eq!(a.send_many(&[one(b"hello"), one(b"world")]).await?, 2);
    /// assert_eq!(b.recv(&mut buf).await?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::send_to`].
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing.
    pub async fn send_many(&self, batch: &[Outgoing<'_>]) -> Result<usize> {
        self.0.io(Half::Write, |s| s.send_many(batch)).await
    }

    /// As [`UdpSocket::send_many`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_send_many(&self, batch: &[Outgoing<'_>]) -> Result<usize> {
        self.0.inner.send_many(batch)
    }

    /// Receives a datagram from the peer. What does not fit `buf` is lost.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// let len = b.recv(&mut buf).await?;
    /// assert_eq!(&buf[..len], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.io(Half::Read, |s| s.recv(buf)).await
    }

    /// As [`UdpSocket::recv`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.inner.recv(buf)
    }

    /// As [`UdpSocket::recv`], for the one task that receives by polling.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.0.poll_io(Half::Read, cx, |s| {
            let n = s.recv(buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(())
        })
    }

    /// Receives a datagram: how many bytes of it are in `buf`, and who sent it. What does not fit is
    /// lost.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// let (len, from) = b.recv_from(&mut buf).await?;
    /// assert_eq!((&buf[..len], from), (&b"hello"[..], a.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.0.io(Half::Read, |s| s.recv_from(buf)).await
    }

    /// As [`UdpSocket::recv_from`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.0.inner.recv_from(buf)
    }

    /// As [`UdpSocket::recv_from`], for the one task that receives by polling.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<SocketAddr>> {
        self.0.poll_io(Half::Read, cx, |s| {
            let (n, from) = s.recv_from(buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(from)
        })
    }

    /// As [`UdpSocket::recv_from`], and the address that it was sent to: bytes, source, destination.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// let ends = b.recv_from_to(&mut buf).await?;
    /// assert_eq!(ends, (5, a.local_addr()?, b.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn recv_from_to(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr, SocketAddr)> {
        self.0.io(Half::Read, |s| s.recv_from_to(buf)).await
    }

    /// As [`UdpSocket::recv_from_to`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_recv_from_to(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr, SocketAddr)> {
        self.0.inner.recv_from_to(buf)
    }

    /// Receives what has come, at least one datagram and as many as `batch` has room for, without a
    /// copy.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_segments(b"onetwosix", 3, Some(b.local_addr()?)).await?;
    /// let (mut batch, mut words) = (Datagrams::with_capacity(32), Vec::new());
    /// while words.len() < 3 {
    ///     b.recv_many(&mut batch).await?;
    ///     words.extend(batch.iter().map(|d| d.data.to_vec()));
    /// }
    /// assert_eq!(words, [b"one", b"two", b"six"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn recv_many(&self, batch: &mut Datagrams) -> Result<usize> {
        self.0.io(Half::Read, |s| s.recv_many(batch)).await
    }

    /// As [`UdpSocket::recv_many`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_recv_many(&self, batch: &mut Datagrams) -> Result<usize> {
        self.0.inner.recv_many(batch)
    }

    /// As [`UdpSocket::recv_from`], and leaves the datagram there.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// assert_eq!(b.peek_from(&mut buf).await?, (5, a.local_addr()?));
    /// // It is still there.
    /// assert_eq!(b.recv(&mut buf).await?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn peek_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.0.io(Half::Read, |s| s.peek_from(buf)).await
    }

    /// As [`UdpSocket::peek_from`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.0.inner.peek_from(buf)
    }

    /// As [`UdpSocket::recv`], and leaves the datagram there.
    ///
    /// ```
    #[doc = include_str!("examples/udp.txt")]
    /// a.send_to(b"hello", b.local_addr()?).await?;
    /// assert_eq!((b.peek(&mut buf).await?, b.recv(&mut buf).await?), (5, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::UdpSocket::recv_from`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no datagram.
    pub async fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.io(Half::Read, |s| s.peek(buf)).await
    }

    /// As [`UdpSocket::peek`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; or as there.
    pub fn try_peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.inner.peek(buf)
    }

    /// As [`UdpSocket::recv_many`], for the one task that receives by polling.
    pub fn poll_recv_many(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Datagrams,
    ) -> Poll<Result<usize>> {
        self.0.poll_io(Half::Read, cx, |s| s.recv_many(batch))
    }

    /// SO_BROADCAST: it may send to all stations of a link.
    /// See [`perimeter::UdpSocket::set_broadcast`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_broadcast(&self, on: bool) -> Result<()> {
        self.0.inner.set_broadcast(on)
    }

    /// SO_BROADCAST.
    /// See [`perimeter::UdpSocket::set_broadcast`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn broadcast(&self) -> Result<bool> {
        self.0.inner.broadcast()
    }

    /// SO_BINDTODEVICE, as [`perimeter::UdpSocket::bind_device`].
    ///
    /// # Errors
    /// `NotFound`: the stack has no interface of that name; or the socket has gone.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> Result<()> {
        self.0.inner.bind_device(as_name(interface).as_deref())
    }

    /// SO_BINDTODEVICE: the name of the interface that it is bound to.
    /// See [`perimeter::UdpSocket::bind_device`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn device(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.0.inner.device()?.map(String::into_bytes))
    }

    /// IP_TTL: time to live of what it sends to one host, 1 to 255.
    /// See [`perimeter::UdpSocket::set_ttl`].
    ///
    /// # Errors
    /// `InvalidInput`: out of range.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.0.inner.set_ttl(ttl)
    }

    /// IP_TTL; 0: the stack's.
    /// See [`perimeter::UdpSocket::set_ttl`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn ttl(&self) -> Result<u32> {
        self.0.inner.ttl()
    }

    /// IP_MTU_DISCOVER with IP_PMTUDISC_DO, as [`perimeter::UdpSocket::set_dont_fragment`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_dont_fragment(&self, on: bool) -> Result<()> {
        self.0.inner.set_dont_fragment(on)
    }

    /// Whether datagrams are never cut into fragments.
    /// See [`perimeter::UdpSocket::set_dont_fragment`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn dont_fragment(&self) -> Result<bool> {
        self.0.inner.dont_fragment()
    }

    /// IP_MTU and IPV6_MTU, as [`perimeter::UdpSocket::path_mtu`].
    ///
    /// # Errors
    /// `NotConnected`: the socket has no peer, or no route leads there any more.
    pub fn path_mtu(&self) -> Result<u32> {
        self.0.inner.path_mtu()
    }

    /// IP_TOS: DSCP in the upper six bits, ECN in the lower two.
    /// See [`perimeter::UdpSocket::set_tos`].
    ///
    /// # Errors
    /// `InvalidInput`: more than eight bits; or the socket has gone.
    pub fn set_tos(&self, tos: u32) -> Result<()> {
        self.0.inner.set_tos(eight_bits(tos)?)
    }

    /// IP_TOS.
    /// See [`perimeter::UdpSocket::set_tos`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn tos(&self) -> Result<u32> {
        self.0.inner.tos().map(u32::from)
    }

    /// IPV6_V6ONLY, as it was bound with.
    /// See [`perimeter::UdpSocket::only_v6`].
    ///
    /// # Errors
    /// The socket has gone.
    pub fn only_v6(&self) -> Result<bool> {
        self.0.inner.only_v6()
    }
}

common!(UdpSocket, perimeter::UdpSocket);

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("UdpSocket");
        if let Ok(a) = self.local_addr() {
            d.field("addr", &a);
        }
        d.finish_non_exhaustive()
    }
}

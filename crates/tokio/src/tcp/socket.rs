//! Sockets that are set up before they connect or listen.

use crate::net::Net;
use crate::socket::{as_name, eight_bits};
use crate::tcp::{TcpListener, TcpStream};
use perimeter::Keepalive;
use std::io::Result;
use std::net::SocketAddr;
use std::time::Duration;

/// A TCP socket that neither connects nor listens yet, as [`tokio::net::TcpSocket`]: options are
/// set, and it is bound, before either.
///
/// ```
/// # use perimeter_tokio::Net;
/// # async fn example(net: Net) -> std::io::Result<()> {
/// let socket = net.tcp_socket_v4();
/// socket.set_nodelay(true)?;
/// socket.bind("10.0.0.1:4000".parse().unwrap())?;
/// let stream = socket.connect("10.0.0.2:80".parse().unwrap()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpSocket(perimeter::TcpSocket);

impl Net {
    /// A TCP socket over IPv4 that is set up before it connects or listens.
    /// See [`TcpSocket::connect`].
    pub fn tcp_socket_v4(&self) -> TcpSocket {
        TcpSocket(self.stack().tcp_socket_v4())
    }

    /// The same over IPv6.
    /// See [`perimeter::Stack::tcp_socket_v6`].
    pub fn tcp_socket_v6(&self) -> TcpSocket {
        TcpSocket(self.stack().tcp_socket_v6())
    }
}

impl TcpSocket {
    /// One over IPv4, of the current stack ([`Net::current`]).
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let _serving = net.serve_runtime(&tokio::runtime::Handle::current());
    /// let socket = TcpSocket::new_v4()?;
    /// socket.bind("10.0.0.1:80".parse()?)?;
    /// assert_eq!(socket.listen(128)?.local_addr()?.port(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// There is no current stack.
    pub fn new_v4() -> Result<TcpSocket> {
        Ok(Net::current()?.tcp_socket_v4())
    }

    /// One over IPv6, of the current stack ([`Net::current`]).
    /// See [`TcpSocket::new_v4`].
    ///
    /// # Errors
    /// There is no current stack.
    pub fn new_v6() -> Result<TcpSocket> {
        Ok(Net::current()?.tcp_socket_v6())
    }

    /// The stack's socket, for what only that one can.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let socket = net.tcp_socket_v4();
    /// socket.get_ref().set_ttl(8)?;
    /// assert_eq!(socket.get_ref().ttl()?, Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn get_ref(&self) -> &perimeter::TcpSocket {
        &self.0
    }

    /// TCP_NODELAY: partial segments are sent at once.
    /// See [`perimeter::TcpSocket::set_nodelay`].
    ///
    /// # Errors
    /// None today.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.0.set_nodelay(on)
    }

    /// TCP_NODELAY.
    /// See [`perimeter::TcpSocket::set_nodelay`].
    ///
    /// # Errors
    /// None today.
    pub fn nodelay(&self) -> Result<bool> {
        self.0.nodelay()
    }

    /// SO_KEEPALIVE, with the usual times ([`Keepalive::default`]); others by
    /// [`TcpSocket::get_ref`].
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let socket = net.tcp_socket_v4();
    /// socket.set_keepalive(true)?;
    /// assert!(socket.keepalive()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn set_keepalive(&self, on: bool) -> Result<()> {
        self.0.set_keepalive(on.then(Keepalive::default))
    }

    /// SO_KEEPALIVE.
    /// See [`TcpSocket::set_keepalive`].
    ///
    /// # Errors
    /// None today.
    pub fn keepalive(&self) -> Result<bool> {
        Ok(self.0.keepalive()?.is_some())
    }

    /// SO_REUSEADDR, as [`perimeter::TcpSocket::set_reuseaddr`].
    ///
    /// # Errors
    /// `Unsupported`: it can't be switched off.
    pub fn set_reuseaddr(&self, on: bool) -> Result<()> {
        self.0.set_reuseaddr(on)
    }

    /// SO_REUSEADDR: `true`.
    /// See [`perimeter::TcpSocket::set_reuseaddr`].
    ///
    /// # Errors
    /// None today.
    pub fn reuseaddr(&self) -> Result<bool> {
        self.0.reuseaddr()
    }

    /// SO_REUSEPORT, as [`perimeter::TcpSocket::set_reuseport`].
    ///
    /// # Errors
    /// None today.
    pub fn set_reuseport(&self, on: bool) -> Result<()> {
        self.0.set_reuseport(on)
    }

    /// SO_REUSEPORT.
    /// See [`perimeter::TcpSocket::set_reuseport`].
    ///
    /// # Errors
    /// None today.
    pub fn reuseport(&self) -> Result<bool> {
        self.0.reuseport()
    }

    /// SO_BINDTODEVICE, as [`perimeter::TcpSocket::bind_device`].
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let socket = net.tcp_socket_v4();
    /// socket.bind_device(Some(b"lo"))?;
    /// assert_eq!(socket.device()?.as_deref(), Some(&b"lo"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `NotFound`: the stack has no interface of that name.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> Result<()> {
        self.0.bind_device(as_name(interface).as_deref())
    }

    /// SO_BINDTODEVICE: the name of the interface that it is bound to.
    /// See [`TcpSocket::bind_device`].
    ///
    /// # Errors
    /// None today.
    pub fn device(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.0.device()?.map(String::into_bytes))
    }

    /// SO_SNDBUF, bytes.
    /// See [`perimeter::TcpSocket::set_send_buffer_size`].
    ///
    /// # Errors
    /// None here; a size out of range is an error of connecting and listening.
    pub fn set_send_buffer_size(&self, bytes: u32) -> Result<()> {
        self.0.set_send_buffer_size(bytes)
    }

    /// SO_SNDBUF, bytes.
    /// See [`perimeter::TcpSocket::set_send_buffer_size`].
    ///
    /// # Errors
    /// None today.
    pub fn send_buffer_size(&self) -> Result<u32> {
        self.0.send_buffer_size()
    }

    /// SO_RCVBUF, bytes.
    /// See [`perimeter::TcpSocket::set_recv_buffer_size`].
    ///
    /// # Errors
    /// None here; a size out of range is an error of connecting and listening.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.0.set_recv_buffer_size(bytes)
    }

    /// SO_RCVBUF, bytes.
    /// See [`perimeter::TcpSocket::set_recv_buffer_size`].
    ///
    /// # Errors
    /// None today.
    pub fn recv_buffer_size(&self) -> Result<u32> {
        self.0.recv_buffer_size()
    }

    /// SO_LINGER of the stream that [`TcpSocket::connect`] gives.
    /// See [`perimeter::TcpSocket::set_linger`].
    ///
    /// # Errors
    /// None today.
    pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
        self.0.set_linger(time)
    }

    /// SO_LINGER of zero: dropping resets the connection.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let socket = net.tcp_socket_v4();
    /// socket.set_zero_linger()?;
    /// assert_eq!(socket.linger()?, Some(Duration::ZERO));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn set_zero_linger(&self) -> Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// SO_LINGER.
    /// See [`perimeter::TcpSocket::set_linger`].
    ///
    /// # Errors
    /// None today.
    pub fn linger(&self) -> Result<Option<Duration>> {
        self.0.linger()
    }

    /// IP_TOS, over IPv6 IPV6_TCLASS.
    /// See [`perimeter::TcpSocket::set_tos`].
    ///
    /// # Errors
    /// `InvalidInput`: more than eight bits.
    pub fn set_tos(&self, tos: u32) -> Result<()> {
        self.0.set_tos(eight_bits(tos)?)
    }

    /// IP_TOS.
    /// See [`perimeter::TcpSocket::set_tos`].
    ///
    /// # Errors
    /// None today.
    pub fn tos(&self) -> Result<u32> {
        self.0.tos().map(u32::from)
    }

    /// Where it connects from, or listens, as [`perimeter::TcpSocket::bind`]: the port is taken when
    /// it connects or listens.
    ///
    /// # Errors
    /// `InvalidInput`: the address is of the other family, or it is bound already.
    pub fn bind(&self, addr: SocketAddr) -> Result<()> {
        self.0.bind(addr)
    }

    /// What it is bound to: the unspecified address with port 0 if it is not.
    /// See [`perimeter::TcpSocket::bind`].
    ///
    /// # Errors
    /// None today.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Connects.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?;
    /// let socket = net.tcp_socket_v4();
    /// socket.bind("10.0.0.1:4000".parse()?)?;
    /// let stream = socket.connect("10.0.0.1:80".parse()?).await?;
    /// assert_eq!(stream.local_addr()?.port(), 4000);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::TcpSocket::connect`].
    ///
    /// # Cancel safety
    /// When the future is dropped the attempt is given up, and the peer told if it had answered.
    pub async fn connect(self, addr: SocketAddr) -> Result<TcpStream> {
        let stream = TcpStream::new(self.0.start_connect(addr)?)?;
        stream.connected().await?;
        Ok(stream)
    }

    /// Listens; as many connections as `backlog` says may wait to be accepted.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let socket = net.tcp_socket_v4();
    /// socket.bind("10.0.0.1:80".parse()?)?;
    /// let listener = socket.listen(128)?;
    /// let client = net.connect("10.0.0.1:80").await?;
    /// assert_eq!(listener.accept().await?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; or a setting is out of its range.
    pub fn listen(self, backlog: u32) -> Result<TcpListener> {
        TcpListener::from_perimeter(self.0.listen(backlog)?)
    }
}

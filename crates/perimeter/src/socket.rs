//! A TCP socket that is set up before it connects or listens.

use crate::addr;
use crate::listen::Listen;
use crate::stack::Stack;
use crate::tcp::{TcpListener, TcpStream, hops};
use perimeter_stack::ops::Setting;
use perimeter_tcp::{Config, Keepalive};
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A TCP socket that neither connects nor listens yet: options are set, and it is bound, before
/// either. In the names of tokio's `TcpSocket`.
///
/// What it sends has its options from the SYN or SYN-ACK on; what a listener accepts begins with them,
/// but for `linger`.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let listener = stack.listen("10.0.0.1:80")?;
/// let socket = stack.tcp_socket_v4();
/// socket.set_nodelay(true)?;
/// socket.set_ttl(8)?;
/// socket.bind("10.0.0.1:4000".parse()?)?;
/// let stream = socket.connect("10.0.0.1:80".parse()?)?;
/// assert_eq!((stream.nodelay()?, stream.ttl()?), (true, 8));
/// assert_eq!(listener.accept()?.1.port(), 4000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpSocket {
    stack: Stack,
    v6: bool,
    made: Mutex<Made>,
}

/// What was set.
struct Made {
    config: Config,
    local: Option<SocketAddr>,
    linger: Option<Duration>,
    only_v6: bool,
    reuse_port: bool,
    device: Option<String>,
}

fn invalid<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, what.into()))
}

impl Stack {
    /// A TCP socket over IPv4 that is set up before it connects or listens.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// // A connection whose SYN, too, may pass one router only.
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_ttl(1)?;
    /// let stream = socket.connect("10.0.0.1:80".parse()?)?;
    /// assert_eq!(stream.ttl()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tcp_socket_v4(&self) -> TcpSocket {
        TcpSocket::new(self.clone(), false)
    }

    /// The same over IPv6. Bound to `[::]` it listens for both families unless
    /// [`TcpSocket::set_only_v6`] says otherwise.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v6();
    /// socket.bind("[::]:80".parse()?)?;
    /// let listener = socket.listen(128)?;
    /// // It takes connections of both families.
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tcp_socket_v6(&self) -> TcpSocket {
        TcpSocket::new(self.clone(), true)
    }
}

impl TcpSocket {
    fn new(stack: Stack, v6: bool) -> TcpSocket {
        let made = Mutex::new(Made {
            config: stack.tcp_config(),
            local: None,
            linger: None,
            only_v6: false,
            reuse_port: false,
            device: None,
        });
        TcpSocket { stack, v6, made }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, s: Setting) -> Result<()> {
        s.configure(&mut self.made().config);
        Ok(())
    }

    /// All settings of the connection at once, in place of those set so far (but for `linger`).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_config(socket.config().with_congestion(CcKind::NewReno));
    /// assert_eq!(socket.config().congestion, CcKind::NewReno);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_config(&self, config: Config) {
        self.made().config = config;
    }

    /// The settings of the connection to come.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// // The stack's settings, until something is set.
    /// assert_eq!(socket.config().congestion, stack.tcp_config().congestion);
    /// socket.set_nodelay(true)?;
    /// assert!(socket.config().nodelay);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn config(&self) -> Config {
        self.made().config.clone()
    }

    /// TCP_NODELAY, as [`TcpStream::set_nodelay`].
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_nodelay(true)?;
    /// assert!(socket.nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.set(Setting::NoDelay(on))
    }

    /// TCP_NODELAY.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// // What the stack's connections are made with is what a socket begins with.
    /// let stack = builder.tcp(TcpConfig::default().with_nodelay(true)).build()?;
    /// assert!(stack.tcp_socket_v4().nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn nodelay(&self) -> Result<bool> {
        Ok(self.made().config.nodelay)
    }

    /// SO_KEEPALIVE with its times.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// let probes = Keepalive::default().with_idle(Duration::from_secs(60));
    /// socket.set_keepalive(Some(probes))?;
    /// assert_eq!(socket.keepalive()?, Some(probes));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None here; times out of range are an error of connecting and listening.
    pub fn set_keepalive(&self, k: Option<Keepalive>) -> Result<()> {
        self.set(Setting::Keepalive(k))
    }

    /// SO_KEEPALIVE with its times; `None`: it is off.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let probes = Keepalive::default().with_probes(3);
    /// let stack = builder.tcp(TcpConfig::default().with_keepalive(Some(probes))).build()?;
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.keepalive()?.map(|k| k.probes), Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn keepalive(&self) -> Result<Option<Keepalive>> {
        Ok(self.made().config.keepalive)
    }

    /// SO_SNDBUF, bytes.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_send_buffer_size(256 * 1024)?;
    /// assert_eq!(socket.send_buffer_size()?, 256 * 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None here; a size out of range is an error of connecting and listening.
    pub fn set_send_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::SendBuffer(bytes))
    }

    /// SO_SNDBUF, bytes.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// // Twice what the stack's connections have.
    /// socket.set_send_buffer_size(2 * socket.send_buffer_size()?)?;
    /// assert_eq!(socket.send_buffer_size()?, 2 * stack.tcp_config().snd_buf);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn send_buffer_size(&self) -> Result<u32> {
        Ok(self.made().config.snd_buf)
    }

    /// SO_RCVBUF, bytes. Set before the handshake it decides how far the window can be scaled.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_recv_buffer_size(100)?;
    /// assert_eq!(socket.recv_buffer_size()?, 100);
    /// let error = socket.connect("10.0.0.1:80".parse()?).expect_err("too small");
    /// assert_eq!(error.to_string(), "setting `tcp.rcv_buf` is 100; it can be 1024 to 1073741824");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None here; a size out of range is an error of connecting and listening.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::RecvBuffer(bytes))
    }

    /// SO_RCVBUF, bytes.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_recv_buffer_size(socket.recv_buffer_size()?.max(1 << 20))?;
    /// assert_eq!(socket.recv_buffer_size()?, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn recv_buffer_size(&self) -> Result<u32> {
        Ok(self.made().config.rcv_buf)
    }

    /// SO_LINGER of the stream that [`TcpSocket::connect`] gives.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_linger(Some(Duration::from_secs(5)))?;
    /// assert_eq!(socket.linger()?, Some(Duration::from_secs(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn set_linger(&self, t: Option<Duration>) -> Result<()> {
        self.made().linger = t;
        Ok(())
    }

    /// SO_LINGER.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.linger()?, None, "closing returns at once");
    /// socket.set_linger(Some(Duration::ZERO))?;
    /// assert_eq!(socket.linger()?, Some(Duration::ZERO), "closing is a reset");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn linger(&self) -> Result<Option<Duration>> {
        Ok(self.made().linger)
    }

    /// IP_TOS, over IPv6 IPV6_TCLASS, as [`TcpStream::set_tos`].
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// // Expedited Forwarding (RFC 3246), of the SYN too.
    /// socket.set_tos(46 << 2)?;
    /// assert_eq!(socket.tos()?, 184);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(Setting::Tos(tos))
    }

    /// IP_TOS.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.tos()?, 0, "best effort");
    /// // The lower two bits stay as they are.
    /// socket.set_tos(10 << 2 | socket.tos()? & 3)?;
    /// assert_eq!(socket.tos()? >> 2, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.made().config.tos)
    }

    /// IP_TTL, over IPv6 IPV6_UNICAST_HOPS.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.ttl()?, None);
    /// socket.set_ttl(1)?;
    /// assert_eq!(socket.ttl()?, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: not 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.set(Setting::Ttl(hops(ttl)?))
    }

    /// IP_TTL, if it was set; `None`: the stack's.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.config(Config::default().with_ttl(32)).build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.ttl()?, None, "not its own");
    /// let stream = socket.connect("10.0.0.1:80".parse()?)?;
    /// assert_eq!(stream.ttl()?, 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn ttl(&self) -> Result<Option<u32>> {
        Ok(self.made().config.ttl.map(u32::from))
    }

    /// IPV6_V6ONLY: bound to `[::]` it listens for IPv6 only.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v6();
    /// socket.set_only_v6(true)?;
    /// socket.bind("[::]:80".parse()?)?;
    /// assert!(socket.listen(128)?.only_v6()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: it is a socket of IPv4.
    pub fn set_only_v6(&self, on: bool) -> Result<()> {
        if !self.v6 {
            return invalid("a socket of IPv4 has no IPV6_V6ONLY");
        }
        self.made().only_v6 = on;
        Ok(())
    }

    /// IPV6_V6ONLY.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// assert!(!stack.tcp_socket_v6().only_v6()?, "on `[::]` it takes both families");
    /// let error = stack.tcp_socket_v4().only_v6().expect_err("there is nothing to ask");
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: it is a socket of IPv4.
    pub fn only_v6(&self) -> Result<bool> {
        match self.v6 {
            true => Ok(self.made().only_v6),
            false => invalid("a socket of IPv4 has no IPV6_V6ONLY"),
        }
    }

    /// SO_REUSEADDR: connections that wait for their end (TIME-WAIT) keep no listener from their
    /// port. Always so.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_reuseaddr(true)?;
    /// assert!(socket.reuseaddr()?);
    /// assert!(socket.set_reuseaddr(false).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Unsupported`: it can't be switched off.
    pub fn set_reuseaddr(&self, on: bool) -> Result<()> {
        if on {
            return Ok(());
        }
        let what = "SO_REUSEADDR is always on: connections that wait keep no port";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// SO_REUSEADDR: `true`.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // A server may start anew while connections of the last one are in TIME-WAIT.
    /// assert!(stack.tcp_socket_v4().reuseaddr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None; as tokio's.
    pub fn reuseaddr(&self) -> Result<bool> {
        Ok(true)
    }

    /// SO_REUSEPORT, as [`Listen::reuse_port`]. It changes nothing for one that connects.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_reuseport(true)?;
    /// assert!(socket.reuseport()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn set_reuseport(&self, on: bool) -> Result<()> {
        self.made().reuse_port = on;
        Ok(())
    }

    /// SO_REUSEPORT.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let first = stack.tcp_socket_v4();
    /// assert!(!first.reuseport()?, "the port is its own");
    /// first.set_reuseport(true)?;
    /// // Who wants to share it says the same.
    /// let second = stack.tcp_socket_v4();
    /// second.set_reuseport(first.reuseport()?)?;
    /// for socket in [&first, &second] {
    ///     socket.bind("10.0.0.1:80".parse()?)?;
    /// }
    /// let listeners = (first.listen(8)?, second.listen(8)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn reuseport(&self) -> Result<bool> {
        Ok(self.made().reuse_port)
    }

    /// SO_BINDTODEVICE: it gets what comes by that interface, and nothing else; and what it sends
    /// leaves by that interface, so that only routes that lead there are routes, also where its own
    /// address is chosen. Of the loopback, `lo`, only what the stack sends to itself comes, and no
    /// other interface leads to the stack's own addresses. `None`: any interface.
    ///
    /// Two that listen at one port on different interfaces do not get in each other's way. There
    /// is one connection between two addresses and ports, whatever it is bound to.
    ///
    /// ```
    #[doc = include_str!("examples/apart.txt")]
    /// let listener = far.listen("10.0.0.2:80")?;
    /// let socket = near.tcp_socket_v4();
    /// socket.bind_device(Some("wire1"))?;
    /// assert_eq!(socket.device()?.as_deref(), Some("wire1"));
    /// let stream = socket.start_connect("10.0.0.2:80".parse()?)?;
    /// assert_eq!(stream.device()?.as_deref(), Some("wire1"));
    ///
    /// let socket = near.tcp_socket_v4();
    /// let error = socket.bind_device(Some("eth9")).expect_err("there is none of that name");
    /// assert_eq!(error.to_string(), "this stack has no interface `eth9`; it has wire1, lo");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: the stack has no interface of that name ([`Stack::interfaces`]).
    pub fn bind_device(&self, interface: Option<&str>) -> Result<()> {
        addr::interface(&**self.stack.engine(), interface)?;
        self.made().device = interface.map(str::to_owned);
        Ok(())
    }

    /// SO_BINDTODEVICE: the name of the interface that it is bound to.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.device()?, None, "any interface");
    /// socket.bind_device(Some("lo"))?;
    /// assert_eq!(socket.device()?.as_deref(), Some("lo"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn device(&self) -> Result<Option<String>> {
        Ok(self.made().device.clone())
    }

    /// Where it connects from, or listens; port 0 is any free one. The port is taken when it
    /// connects or listens (as with Linux's IP_BIND_ADDRESS_NO_PORT): that it is in use, or the
    /// address not one of the stack's, is told then.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let socket = stack.tcp_socket_v4();
    /// socket.bind("10.0.0.1:4000".parse()?)?;
    /// assert_eq!(socket.local_addr()?.port(), 4000);
    /// let stream = socket.connect("10.0.0.1:80".parse()?)?;
    /// assert_eq!(stream.local_addr()?.port(), 4000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: the address is of the other family, or it is bound already.
    pub fn bind(&self, addr: SocketAddr) -> Result<()> {
        self.same_family(addr)?;
        let mut made = self.made();
        if let Some(at) = made.local {
            return invalid(format!("bound to {at} already"));
        }
        made.local = Some(addr);
        Ok(())
    }

    fn same_family(&self, addr: SocketAddr) -> Result<()> {
        if addr.is_ipv6() == self.v6 {
            return Ok(());
        }
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        invalid(format!(
            "{addr} is no address of {family}, which the socket is of"
        ))
    }

    fn any(&self) -> SocketAddr {
        match self.v6 {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// What it is bound to: the unspecified address with port 0 if it is not.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// assert_eq!(socket.local_addr()?, "0.0.0.0:0".parse()?);
    /// // Port 0 becomes one when it listens.
    /// socket.bind("10.0.0.1:0".parse()?)?;
    /// assert_eq!(socket.local_addr()?.port(), 0);
    /// assert_ne!(socket.listen(8)?.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.made().local.unwrap_or_else(|| self.any()))
    }

    /// Connects, and waits until that has succeeded or failed.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_nodelay(true)?;
    /// let stream = socket.connect("10.0.0.1:80".parse()?)?;
    /// assert!(stream.nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: the address is of the other family, or a setting out of its range; else as
    /// [`Stack::connect_with`] and [`Stack::connect`].
    pub fn connect(self, addr: SocketAddr) -> Result<TcpStream> {
        let s = self.start_connect(addr)?;
        s.finish_connect(None)?;
        Ok(s)
    }

    /// Starts to connect, as [`Stack::start_connect`].
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let stream = stack.tcp_socket_v4().start_connect("10.0.0.1:80".parse()?)?;
    /// // Whoever accepts waits for the handshake.
    /// let (_server, peer) = listener.accept()?;
    /// assert_eq!(peer, stream.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpSocket::connect`].
    pub fn start_connect(self, addr: SocketAddr) -> Result<TcpStream> {
        self.same_family(addr)?;
        let made = self.made();
        let (device, config) = (made.device.as_deref(), &made.config);
        let s = self.stack.connect_by(device, made.local, addr, config)?;
        if made.linger.is_some() {
            s.set_linger(made.linger)?;
        }
        Ok(s)
    }

    /// Listens; as many connections as `backlog` says may wait to be accepted.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_nodelay(true)?;
    /// socket.bind("10.0.0.1:80".parse()?)?;
    /// let listener = socket.listen(128)?;
    /// // What it accepts begins with the socket's settings.
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert!(listener.accept()?.0.nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::listen_as`].
    pub fn listen(self, backlog: u32) -> Result<TcpListener> {
        let made = self.made();
        let at = Listen::at(made.local.unwrap_or_else(|| self.any()));
        let listen = at.backlog(backlog).tcp(made.config.clone());
        self.stack.listen_as(&Listen {
            only_v6: made.only_v6,
            reuse_port: made.reuse_port,
            device: made.device.clone(),
            ..listen
        })
    }
}

impl core::fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut d = f.debug_struct("TcpSocket");
        d.field("v6", &self.v6).field("local", &self.made().local);
        d.finish_non_exhaustive()
    }
}

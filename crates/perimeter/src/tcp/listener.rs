//! Listening sockets.

use super::{Handle, TcpStream, hops, set_limit};
use crate::addr;
use crate::error::io;
use crate::listen::Request;
use perimeter_org::engine::{Engine, Listening};
use perimeter_stack::ops::Setting;
use perimeter_stack::{SockId, ready};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A listening socket.
///
/// ```
#[doc = include_str!("../examples/stack.txt")]
/// let listener = stack.listen("10.0.0.1:80")?;
/// let client = stack.connect("10.0.0.1:80")?;
/// let (server, peer) = listener.accept()?;
/// assert_eq!(server.peer_addr()?, peer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpListener {
    h: Arc<Handle>,
    local: SocketAddr,
    only_v6: bool,
}

impl TcpListener {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        id: SockId,
        (local, only_v6): (SocketAddr, bool),
    ) -> TcpListener {
        TcpListener {
            h: Handle::new(engine, id),
            local,
            only_v6,
        }
    }

    /// Another handle to the same listener.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// // Two threads take connections.
    /// let second = listener.try_clone()?;
    /// let thread = thread::spawn(move || second.accept().map(|(_, peer)| peer));
    /// let clients = [stack.connect("10.0.0.1:80")?, stack.connect("10.0.0.1:80")?];
    /// let peers = [listener.accept()?.1, thread.join().expect("no panic")?];
    /// assert!(peers.contains(&clients[0].local_addr()?) && peers.contains(&clients[1].local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn try_clone(&self) -> Result<TcpListener> {
        Ok(TcpListener {
            h: self.h.clone(),
            local: self.local,
            only_v6: self.only_v6,
        })
    }

    /// Whether it takes connections over IPv6 only. One on `[::]` takes both families unless it
    /// was made by [`Stack::listen_only_v6`](crate::Stack::listen_only_v6).
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("[::]:80")?;
    /// assert!(!listener.only_v6()?, "it takes IPv4, too");
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as socket libraries have it.
    pub fn only_v6(&self) -> Result<bool> {
        Ok(self.only_v6)
    }

    pub(crate) fn raw(&self) -> (&Arc<dyn Engine>, SockId) {
        (&self.h.engine, self.h.id)
    }

    /// The name of the socket within its stack.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let (http, https) = (stack.listen("10.0.0.1:80")?, stack.listen("10.0.0.1:443")?);
    /// assert_ne!(http.id(), https.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(&self) -> SockId {
        self.h.id
    }

    /// Takes the next connection, waiting for one unless the socket does not block. The peer may
    /// have reset it meanwhile: then the first call on the stream says so. An IPv4 peer of a
    /// listener for both families has its IPv4 address, not one that is mapped to IPv6.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("0.0.0.0:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let (mut server, peer) = listener.accept()?;
    /// assert_eq!(peer, client.local_addr()?);
    /// server.write_all(b"welcome")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`; or the listener was closed.
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        let (id, key) = self.h.block(ready::IN, &self.h.read_limit, || {
            self.h.engine.accept(self.h.id)
        })?;
        let s = TcpStream::new(self.h.engine.clone(), id);
        Ok((s, addr::remote(&key)))
    }

    /// As [`TcpListener::accept`], with both ends of the connection: ours, where the peer wanted to,
    /// and the peer's.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("0.0.0.0:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let (_server, ours, peers) = listener.accept_ends()?;
    /// assert_eq!(ours.to_string(), "10.0.0.1:80");
    /// assert_eq!(peers, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn accept_ends(&self) -> Result<(TcpStream, SocketAddr, SocketAddr)> {
        let (id, key) = self.h.block(ready::IN, &self.h.read_limit, || {
            self.h.engine.accept(self.h.id)
        })?;
        let s = TcpStream::new(self.h.engine.clone(), id);
        Ok((s, addr::local(&key), addr::remote(&key)))
    }

    /// Takes the next SYN that is held, waiting for one unless the socket does not block: of a
    /// listener that [holds](crate::Listen::hold) them. In a poller that is
    /// [`Interest::WRITABLE`](crate::Interest::WRITABLE).
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = stack.listen_as(&listen)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let request = listener.request()?;
    /// if request.peer_addr().ip().to_string() == "10.0.0.1" {
    ///     request.allow()?;
    /// }
    /// let (_server, peer) = listener.accept()?;
    /// assert_eq!(peer, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `WouldBlock`; the listener was closed; `InvalidInput`: it holds none.
    pub fn request(&self) -> Result<Request> {
        let found = self.h.block(ready::OUT, &self.h.read_limit, || {
            self.h.engine.request(self.h.id)
        })?;
        Ok(Request::new(self.h.engine.clone(), self.h.id, found))
    }

    /// The address that it listens on; port 0 if it has all ports.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:0")?;
    /// println!("listening on {}", listener.local_addr()?);
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.local)
    }

    /// `accept` does not wait but fails with `WouldBlock`, or waits again.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// listener.set_nonblocking(true)?;
    /// let nobody = listener.accept().expect_err("nobody has connected");
    /// assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long `accept` waits; `None` is no limit.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// listener.set_accept_timeout(Some(Duration::from_millis(10)))?;
    /// let nobody = listener.accept().expect_err("nobody connects");
    /// assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_accept_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    pub(crate) fn set(&self, s: Setting) -> Result<()> {
        self.h.engine.set(self.h.id, s).map_err(io)
    }

    fn info(&self) -> Result<Listening> {
        self.h.engine.listening(self.h.id).map_err(io)
    }

    /// IP_TTL, over IPv6 IPV6_UNICAST_HOPS: of SYN-ACKs that are sent from now on, and what
    /// connections begin with that they lead to. Default: [`Config::ttl`](crate::Config).
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// // Peers are on the same link (RFC 5082).
    /// listener.set_ttl(255)?;
    /// assert_eq!(listener.ttl()?, 255);
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.0.ttl()?, 255);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: not 1 to 255; or the listener was closed.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.set(Setting::Ttl(hops(ttl)?))
    }

    /// IP_TTL.
    ///
    /// ```
    #[doc = include_str!("../examples/builder.txt")]
    /// let stack = builder.config(Config::default().with_ttl(32)).build()?;
    /// // The stack's, unless it has one of its own.
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// assert_eq!(listener.ttl()?, 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed.
    pub fn ttl(&self) -> Result<u32> {
        Ok(self.info()?.ttl.into())
    }

    /// IP_TOS, over IPv6 IPV6_TCLASS: of SYN-ACKs that are sent from now on, and what connections
    /// begin with that they lead to. Default 0.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// // Expedited Forwarding (RFC 3246).
    /// listener.set_tos(46 << 2)?;
    /// assert_eq!(listener.tos()?, 184);
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.0.tos()?, 184);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(Setting::Tos(tos))
    }

    /// IP_TOS.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let tcp = stack.tcp_config().with_tos(10 << 2);
    /// let listener = stack.listen_with("10.0.0.1:80", 128, tcp)?;
    /// assert_eq!(listener.tos()? >> 2, 10, "the DSCP that it was made with");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.info()?.tos)
    }

    /// SO_BINDTODEVICE: the name of the interface that it is bound to.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?);
    /// let own = stack.listen_as(&listen.clone().bind_device("lo"))?;
    /// let others = stack.listen_as(&listen.bind_device("wire1"))?;
    /// for listener in [&own, &others] {
    ///     println!("{} by {:?}", listener.local_addr()?, listener.device()?);
    /// }
    /// assert_eq!(others.device()?.as_deref(), Some("wire1"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed.
    pub fn device(&self) -> Result<Option<String>> {
        let device = self.info()?.device;
        Ok(addr::name(&*self.h.engine, device))
    }

    /// SO_ERROR: none is ever pending. What goes wrong with a connection before it is accepted is told
    /// by that connection, or by nobody.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// assert!(listener.take_error()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed.
    pub fn take_error(&self) -> Result<Option<Error>> {
        self.info().map(|_| None)
    }

    /// Closes the listener: calls blocked on it fail, and handshakes under way and connections that
    /// nobody has accepted are reset. Where others share its port
    /// ([`Listen::reuse_port`](crate::Listen::reuse_port)), handshakes go on with them.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// listener.close()?;
    /// let refused = stack.connect("10.0.0.1:80").expect_err("nobody listens");
    /// assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It was closed already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }

    /// The connections as they come.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let clients = [stack.connect("10.0.0.1:80")?, stack.connect("10.0.0.1:80")?];
    /// let mut seen = Vec::new();
    /// for stream in listener.incoming().take(clients.len()) {
    ///     seen.push(stream?.peer_addr()?);
    /// }
    /// assert!(seen.contains(&clients[0].local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incoming(&self) -> impl Iterator<Item = Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(s, _)| s))
    }
}

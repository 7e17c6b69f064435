//! Listeners.

use crate::addr::ToSocketAddrs;
use crate::net::Net;
use crate::socket::Socket;
use crate::tcp::TcpStream;
use perimeter::Request;
use perimeter::task::Half;
use std::fmt;
use std::io::Result;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

/// A listening socket, as [`tokio::net::TcpListener`].
///
/// Any number of tasks may accept from it at the same time. Dropped, it is closed: handshakes under
/// way and connections that nobody has accepted are reset.
///
/// ```
/// # use perimeter_tokio::Net;
/// # async fn example(net: Net) -> std::io::Result<()> {
/// let listener = net.listen("0.0.0.0:80").await?;
/// loop {
///     let (mut stream, peer) = listener.accept().await?;
///     tokio::spawn(async move {
///         let (mut r, mut w) = stream.split();
///         if let Err(e) = tokio::io::copy(&mut r, &mut w).await {
///             eprintln!("{peer}: {e}");
///         }
///     });
/// }
/// # }
/// ```
pub struct TcpListener(Socket<perimeter::TcpListener>);

fn accepted((s, peer): (perimeter::TcpStream, SocketAddr)) -> Result<(TcpStream, SocketAddr)> {
    Ok((TcpStream::new(s)?, peer))
}

impl TcpListener {
    /// Listens on `addr` on the current stack ([`Net::current`]); else as [`Net::listen`].
    /// See [`TcpStream::connect`].
    ///
    /// # Errors
    /// There is no current stack; or as [`Net::listen`].
    ///
    /// # Cancel safety
    /// When the future is dropped, nobody listens.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> Result<TcpListener> {
        Net::current()?.listen(addr).await
    }

    /// Takes a listener of the stack's. It does not block from now on, nor do its other handles.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).backlog(16);
    /// let listener = TcpListener::from_perimeter(stack.listen_as(&listen)?)?;
    /// let client = net.connect("10.0.0.1:80").await?;
    /// assert_eq!(listener.accept().await?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn from_perimeter(listener: perimeter::TcpListener) -> Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener(Socket::new(listener)))
    }

    /// The stack's listener, for what only that one can.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?;
    /// let again = listener.get_ref().try_clone()?;
    /// assert_eq!(again.id(), listener.get_ref().id());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn get_ref(&self) -> &perimeter::TcpListener {
        &self.0.inner
    }

    /// Gives the stack's listener back. It still does not block.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?.into_perimeter();
    /// let nobody = listener.accept().expect_err("it still does not block");
    /// assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn into_perimeter(self) -> perimeter::TcpListener {
        self.0.inner
    }

    /// Takes the next connection, and its peer's address.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?;
    /// let client = net.connect("10.0.0.1:80").await?;
    /// let (mut server, peer) = listener.accept().await?;
    /// assert_eq!(peer, client.local_addr()?);
    /// server.write_all(b"welcome").await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// The stack has ended, or its last interface has gone.
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no connection.
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        self.0
            .io(Half::Read, perimeter::TcpListener::accept)
            .await
            .and_then(accepted)
    }

    /// As [`TcpListener::accept`], for one task: that which polls last is woken.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?;
    /// let client = net.connect("10.0.0.1:80").await?;
    /// let (_server, peer) = poll_fn(|cx| listener.poll_accept(cx)).await?;
    /// assert_eq!(peer, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(TcpStream, SocketAddr)>> {
        let accept = perimeter::TcpListener::accept;
        let conn = ready!(self.0.poll_io(Half::Read, cx, accept));
        Poll::Ready(conn.and_then(accepted))
    }

    /// As [`TcpListener::accept`], and where the peer wanted to: the stream, that address, and the
    /// peer's. They differ from the listener's where it listens for
    /// [any address](perimeter::Listen::any).
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listener = TcpListener::from_perimeter(stack.listen_as(&Listen::any())?)?;
    /// let client = net.connect("10.0.0.1:4711").await?;
    /// let (_server, wanted, _peer) = listener.accept_ends().await?;
    /// assert_eq!(wanted.port(), 4711);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    ///
    /// # Cancel safety
    /// A future that is dropped has taken no connection.
    pub async fn accept_ends(&self) -> Result<(TcpStream, SocketAddr, SocketAddr)> {
        let accept = perimeter::TcpListener::accept_ends;
        let (s, local, peer) = self.0.io(Half::Read, accept).await?;
        Ok((TcpStream::new(s)?, local, peer))
    }

    /// The next SYN that is to be decided, if the listener [holds](perimeter::Listen::hold) them.
    ///
    /// ```
    #[doc = include_str!("../examples/net.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = TcpListener::from_perimeter(stack.listen_as(&listen)?)?;
    /// let connecting = net.clone();
    /// let client = tokio::spawn(async move { connecting.connect("10.0.0.1:80").await });
    /// listener.request().await?.allow()?;
    /// let (_server, peer) = listener.accept().await?;
    /// assert_eq!(peer, client.await??.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`perimeter::TcpListener::request`], but for `WouldBlock`.
    ///
    /// # Cancel safety
    /// A future that is dropped has taken none.
    pub async fn request(&self) -> Result<Request> {
        // Requests make a listener writable.
        let request = perimeter::TcpListener::request;
        self.0.io(Half::Write, request).await
    }

    /// IPV6_V6ONLY, as [`perimeter::TcpListener::only_v6`].
    /// See [`perimeter::Stack::listen_only_v6`].
    ///
    /// # Errors
    /// None today.
    pub fn only_v6(&self) -> Result<bool> {
        self.0.inner.only_v6()
    }

    /// IP_TTL of SYN-ACKs, and what connections begin with, as [`perimeter::TcpListener::set_ttl`].
    ///
    /// # Errors
    /// `InvalidInput`: not 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.0.inner.set_ttl(ttl)
    }

    /// IP_TTL.
    /// See [`perimeter::TcpListener::set_ttl`].
    ///
    /// # Errors
    /// None today.
    pub fn ttl(&self) -> Result<u32> {
        self.0.inner.ttl()
    }

    /// The address that it listens on.
    /// See [`Net::listen`](crate::Net::listen).
    ///
    /// # Errors
    /// None today; as tokio's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.0.inner.local_addr()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("TcpListener");
        if let Ok(a) = self.local_addr() {
            d.field("addr", &a);
        }
        d.finish_non_exhaustive()
    }
}

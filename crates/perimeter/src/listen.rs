//! What a listener is to be, and the SYNs that one holds.

use crate::addr;
use crate::error::io;
use perimeter_org::engine::Engine;
use perimeter_stack::SockId;
use perimeter_stack::hold::{Hold, Name, Verdict};
use perimeter_tcp::Config;
use std::io::Result;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// What a listener is to be, for [`Stack::listen_as`](crate::Stack::listen_as).
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let listen = Listen::at("10.0.0.1:80".parse()?)
///     .backlog(16)
///     .tcp(stack.tcp_config().with_nodelay(true));
/// let listener = stack.listen_as(&listen)?;
/// let client = stack.connect("10.0.0.1:80")?;
/// assert!(listener.accept()?.0.nodelay()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Listen {
    pub(crate) addr: SocketAddr,
    pub(crate) all_ports: bool,
    pub(crate) only_v6: bool,
    pub(crate) backlog: u32,
    pub(crate) config: Option<Config>,
    pub(crate) hold: Option<Hold>,
    pub(crate) reuse_port: bool,
    pub(crate) device: Option<String>,
}

impl Listen {
    /// At that address; port 0: any free one.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen_as(&Listen::at("10.0.0.1:80".parse()?))?;
    /// assert_eq!(listener.local_addr()?.port(), 80);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at(addr: SocketAddr) -> Listen {
        Listen {
            addr,
            all_ports: false,
            only_v6: false,
            backlog: 1024,
            config: None,
            hold: None,
            reuse_port: false,
            device: None,
        }
    }

    /// At every address of both families, and every port that no other listener has. With an interface that takes
    /// any destination ([`Accept::Any`](crate::Accept::Any)) this is where all connections go;
    /// [`TcpStream::local_addr`](crate::TcpStream::local_addr) tells where the peer wanted to.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let http = stack.listen("10.0.0.1:80")?;
    /// let rest = stack.listen_as(&Listen::any())?;
    /// let client = stack.connect("10.0.0.1:12345")?;
    /// let (server, _) = rest.accept()?;
    /// assert_eq!(server.local_addr()?.to_string(), "10.0.0.1:12345");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn any() -> Listen {
        Listen {
            all_ports: true,
            ..Listen::at((Ipv6Addr::UNSPECIFIED, 0).into())
        }
    }

    /// Over IPv6 only: `[::]` is no address of IPv4 then.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let v6 = stack.listen_as(&Listen::at("[::]:80".parse()?).only_v6())?;
    /// assert!(v6.only_v6()?);
    /// // So the same port is free over IPv4.
    /// let v4 = stack.listen("0.0.0.0:80")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn only_v6(self) -> Listen {
        Listen {
            only_v6: true,
            ..self
        }
    }

    /// SO_REUSEPORT: other listeners that say so may have the same address and port. Each connection
    /// goes to one of them, by the hash of its flow: of as many listeners as there are receive
    /// queues each gets those of one queue. When one of them closes, handshakes under way go on with
    /// the others. Default: the port is one listener's.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).reuse_port();
    /// let (one, two) = (stack.listen_as(&listen)?, stack.listen_as(&listen)?);
    /// assert_eq!(one.local_addr()?, two.local_addr()?);
    /// // Who does not share finds the port taken.
    /// let alone = stack.listen("10.0.0.1:80").expect_err("it is in use");
    /// assert_eq!(alone.kind(), ErrorKind::AddrInUse);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reuse_port(self) -> Listen {
        Listen {
            reuse_port: true,
            ..self
        }
    }

    /// SO_BINDTODEVICE: it gets connections that come by that interface, and they stay on it. Others
    /// may have the same address and port on other interfaces; where one that is bound to none may
    /// have it too, as both share it ([`Listen::reuse_port`]), this one gets what comes by its
    /// interface. Else as [`TcpSocket::bind_device`](crate::TcpSocket::bind_device).
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// // For this program's own connections alone.
    /// let listen = Listen::at("10.0.0.1:80".parse()?).bind_device("lo");
    /// let listener = stack.listen_as(&listen)?;
    /// assert_eq!(listener.device()?.as_deref(), Some("lo"));
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    ///
    /// let nowhere = listen.bind_device("eth9");
    /// let error = stack.listen_as(&nowhere).expect_err("there is no such interface");
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn bind_device(self, interface: &str) -> Listen {
        Listen {
            device: Some(interface.to_owned()),
            ..self
        }
    }

    /// How many connections may wait to be accepted. Default 1024.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen_as(&Listen::at("10.0.0.1:80".parse()?).backlog(8))?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn backlog(self, backlog: u32) -> Listen {
        Listen { backlog, ..self }
    }

    /// Settings for the connections to come. Default: the stack's.
    /// See [`Listen`].
    #[must_use]
    pub fn tcp(self, config: Config) -> Listen {
        let config = Some(config);
        Listen { config, ..self }
    }

    /// Every SYN is held until it is decided ([`TcpListener::request`](crate::TcpListener::request)).
    /// Default: every SYN is answered.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let few = Hold::default().with_requests(64).with_time(Duration::from_secs(5));
    /// let listener = stack.listen_as(&Listen::at("10.0.0.1:80".parse()?).hold(few))?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let request = listener.request()?;
    /// assert_eq!(request.peer_addr(), client.local_addr()?);
    /// assert!(request.allow()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn hold(self, hold: Hold) -> Listen {
        let hold = Some(hold);
        Listen { hold, ..self }
    }
}

/// A SYN that waits for its listener's owner to decide. One that is dropped undecided is as
/// [`Request::ignore`]d.
///
/// ```
#[doc = include_str!("examples/stack.txt")]
/// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
/// let listener = stack.listen_as(&listen)?;
/// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
/// let request = listener.request()?;
/// println!("{} wants to {}", request.peer_addr(), request.local_addr());
/// assert!(request.allow()?, "it was still there");
/// let (server, _) = listener.accept()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "its peer waits"]
pub struct Request {
    engine: Arc<dyn Engine>,
    listener: SockId,
    name: Name,
    decided: bool,
}

impl Request {
    pub(crate) fn new(engine: Arc<dyn Engine>, listener: SockId, name: Name) -> Request {
        Request {
            engine,
            listener,
            name,
            decided: false,
        }
    }

    /// Where the peer wants to: the address that the stream will have as its own.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listener = stack.listen_as(&Listen::any().hold(Hold::default()))?;
    /// let client = stack.start_connect("10.0.0.1:12345".parse()?)?;
    /// let request = listener.request()?;
    /// assert_eq!(request.local_addr().port(), 12345);
    /// request.allow()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        addr::local(&self.name.0)
    }

    /// The peer.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = stack.listen_as(&listen)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// let request = listener.request()?;
    /// // Decided by who asks.
    /// match request.peer_addr().ip().to_string().starts_with("10.") {
    ///     true => assert!(request.allow()?),
    ///     false => request.ignore(),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_addr(&self) -> SocketAddr {
        addr::remote(&self.name.0)
    }

    fn decide(&mut self, verdict: Verdict) -> Result<bool> {
        self.decided = true;
        self.engine
            .decide(self.listener, self.name, verdict)
            .map_err(io)
    }

    /// The handshake goes on: the SYN-ACK is sent, and when the peer has acknowledged it, the
    /// listener accepts the connection. Yields whether the request was still there: its time may
    /// be over, or the peer have given up.
    ///
    /// A handshake that is begun need not end. Who keeps something for the connection gives it
    /// up some time after this.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = stack.listen_as(&listen)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// if !listener.request()?.allow()? {
    ///     println!("it has given up");
    /// }
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener or the stack has gone.
    pub fn allow(mut self) -> Result<bool> {
        self.decide(Verdict::Allow)
    }

    /// Refuses the connection by a reset, unless strangers were sent too many lately. Yields whether
    /// the request was still there.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = stack.listen_as(&listen)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// assert!(listener.request()?.reset()?);
    /// let refused = { &client }.read(&mut [0; 100]).expect_err("it was refused");
    /// assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener or the stack has gone.
    pub fn reset(mut self) -> Result<bool> {
        self.decide(Verdict::Reset)
    }

    /// Sends nothing. The peer sends its SYN again, which is a new request.
    ///
    /// ```
    #[doc = include_str!("examples/stack.txt")]
    /// let listen = Listen::at("10.0.0.1:80".parse()?).hold(Hold::default());
    /// let listener = stack.listen_as(&listen)?;
    /// let client = stack.start_connect("10.0.0.1:80".parse()?)?;
    /// listener.request()?.ignore();
    /// // Nobody has said anything to the client: it still waits.
    /// assert_eq!(client.info()?.tcp.state, State::SynSent);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ignore(self) {}
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.decided {
            // It may have gone; then there is nothing to forget.
            let _ = self.decide(Verdict::Drop);
        }
    }
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} -> {}", self.peer_addr(), self.local_addr())
    }
}

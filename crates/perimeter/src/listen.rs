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
#[derive(Clone, Debug)]
pub struct Listen {
    pub(crate) addr: SocketAddr,
    pub(crate) all_ports: bool,
    pub(crate) only_v6: bool,
    pub(crate) backlog: u32,
    pub(crate) config: Option<Config>,
    pub(crate) hold: Option<Hold>,
}

impl Listen {
    /// At that address; port 0: any free one.
    pub fn at(addr: SocketAddr) -> Listen {
        Listen {
            addr,
            all_ports: false,
            only_v6: false,
            backlog: 1024,
            config: None,
            hold: None,
        }
    }

    /// At every address of both families, and every port that no other listener has. With an interface that takes
    /// any destination ([`Accept::Any`](crate::Accept::Any)) this is where all connections go;
    /// [`TcpStream::local_addr`](crate::TcpStream::local_addr) tells where the peer wanted to.
    pub fn any() -> Listen {
        Listen {
            all_ports: true,
            ..Listen::at((Ipv6Addr::UNSPECIFIED, 0).into())
        }
    }

    /// Over IPv6 only: `[::]` is no address of IPv4 then.
    #[must_use]
    pub fn only_v6(self) -> Listen {
        Listen {
            only_v6: true,
            ..self
        }
    }

    /// How many connections may wait to be accepted. Default 1024.
    #[must_use]
    pub fn backlog(self, backlog: u32) -> Listen {
        Listen { backlog, ..self }
    }

    /// Settings for the connections to come. Default: the stack's.
    #[must_use]
    pub fn tcp(self, config: Config) -> Listen {
        let config = Some(config);
        Listen { config, ..self }
    }

    /// Every SYN is held until it is decided ([`TcpListener::request`](crate::TcpListener::request)).
    /// Default: every SYN is answered.
    #[must_use]
    pub fn hold(self, hold: Hold) -> Listen {
        let hold = Some(hold);
        Listen { hold, ..self }
    }
}

/// A SYN that waits for its listener's owner to decide. One that is dropped undecided is as
/// [`Request::ignore`]d.
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
    pub fn local_addr(&self) -> SocketAddr {
        addr::local(&self.name.0)
    }

    /// The peer.
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
    /// # Errors
    /// The listener or the stack has gone.
    pub fn allow(mut self) -> Result<bool> {
        self.decide(Verdict::Allow)
    }

    /// Refuses the connection by a reset, unless strangers were sent too many lately. Yields whether
    /// the request was still there.
    ///
    /// # Errors
    /// The listener or the stack has gone.
    pub fn reset(mut self) -> Result<bool> {
        self.decide(Verdict::Reset)
    }

    /// Sends nothing. The peer sends its SYN again, which is a new request.
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

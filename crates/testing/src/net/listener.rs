//! Listeners.

use super::addr::ToSocketAddrs;
use super::io::Io;
use super::reactor::Direction;
use super::stream::TcpStream;
use crate::sim::world;
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// As tokio's `TcpListener`.
pub struct TcpListener(Io<perimeter::TcpListener>);

impl TcpListener {
    /// Listens on this host at `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `NotFound`: no host has the name.
    ///
    /// # Panics
    /// Outside of hosts of a simulation.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> Result<TcpListener> {
        let mut last = None;
        for addr in addr.resolve()? {
            match world::within(|here| {
                let listener = here.stack.listen(addr)?;
                listener.set_nonblocking(true)?;
                Io::new(listener, &here.reactor)
            }) {
                Ok(io) => return Ok(TcpListener(io)),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// The stack has ended.
    pub async fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`TcpListener::accept`], for who polls.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(TcpStream, SocketAddr)>> {
        let accepted = self
            .0
            .poll(Direction::Read, cx, perimeter::TcpListener::accept);
        accepted.map(|accepted| {
            let (stream, peer) = accepted?;
            Ok((TcpStream::new(stream, self.0.reactor())?, peer))
        })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// None; as tokio's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.0.socket.local_addr()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = self.local_addr().ok();
        f.debug_struct("TcpListener").field("addr", &addr).finish()
    }
}

pub(super) fn no_address() -> Error {
    Error::new(ErrorKind::InvalidInput, "no address given")
}

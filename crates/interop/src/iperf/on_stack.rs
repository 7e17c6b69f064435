//! A stack's connections, waited for with a poller.

use super::Net;
use perimeter::{Events, Interest, Poll, Registry, Stack, TcpListener, TcpStream, Token};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// Connections of a [`Stack`], under any organization. One thread does everything.
pub struct OnStack {
    stack: Stack,
    listener: Option<TcpListener>,
    target: Option<SocketAddr>,
    poll: Poll,
    registry: Registry,
    events: Events,
    streams: usize,
}

impl OnStack {
    fn new(stack: &Stack) -> io::Result<OnStack> {
        let poll = stack.poll()?;
        Ok(OnStack {
            stack: stack.clone(),
            listener: None,
            target: None,
            registry: poll.registry(),
            poll,
            events: Events::with_capacity(64),
            streams: 0,
        })
    }

    /// Accepts connections on `at`.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn server(stack: &Stack, at: SocketAddr) -> io::Result<OnStack> {
        let listener = Some(stack.listen(at)?);
        Ok(OnStack {
            listener,
            ..OnStack::new(stack)?
        })
    }

    /// Connects to `to`.
    ///
    /// # Errors
    /// There are too many pollers.
    pub fn client(stack: &Stack, to: SocketAddr) -> io::Result<OnStack> {
        Ok(OnStack {
            target: Some(to),
            ..OnStack::new(stack)?
        })
    }

    /// Limits how long a server waits for a connection.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_accept_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.listener {
            Some(l) => l.set_accept_timeout(limit),
            None => Ok(()),
        }
    }

    fn watch(&mut self, s: TcpStream) -> io::Result<TcpStream> {
        s.set_nonblocking(true)?;
        self.registry
            .register(&s, Token(self.streams), Interest::BOTH.edge())?;
        self.streams += 1;
        Ok(s)
    }
}

impl Net for OnStack {
    type Stream = TcpStream;

    fn connect(&mut self) -> io::Result<TcpStream> {
        let to = self.target.ok_or(ErrorKind::Unsupported)?;
        let s = self.stack.connect(to)?;
        self.watch(s)
    }

    fn accept(&mut self) -> io::Result<TcpStream> {
        let l = self.listener.as_ref().ok_or(ErrorKind::Unsupported)?;
        let (s, _) = l.accept()?;
        self.watch(s)
    }

    fn wait(&mut self) -> io::Result<()> {
        self.poll
            .poll(&mut self.events, Some(Duration::from_millis(50)))
    }
}

//! The stack's own resolver, which asks name servers by sockets of the stack.
//!
//! [`Builder::name_servers`](crate::Builder::name_servers) gives a stack one. Names are taken as they
//! are, without a search list; the host's `/etc/hosts` and `/etc/resolv.conf` are not looked at.
//! `localhost`, `invalid` and `onion` and what ends in them are asked of nobody.
//!
//! Both families that the stack has addresses of are asked for at the same time, each query from a
//! socket of its own, with a port and an identification drawn at random, which hears the server
//! alone (RFC 5452). What is cut is asked for again over TCP.

use crate::addr::inward;
use crate::error::io;
use crate::tcp::TcpStream;
use crate::udp::{UdpConfig, UdpSocket};
use perimeter_org::engine::{Engine, EngineError};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use perimeter_dns::{
    DnsConfig, Families, Lookup, LookupError, MAX_STRAY, Query, Resolver, Step,
};

/// The longest datagram that is read: servers keep to the 1,232 octets that they are asked for.
const LONGEST: usize = 4096;
/// How many ports are tried.
const PORTS: usize = 16;

/// The families that a stack has addresses of.
pub(crate) fn families(engine: &dyn Engine) -> Families {
    let own: Vec<IpAddr> = engine.addrs().iter().flatten().map(|a| a.addr).collect();
    Families::of(&own)
}

/// A datagram socket for one query to `server`, at a port that nobody can guess. It hears that server
/// alone.
pub(crate) fn socket(
    resolver: &Resolver,
    engine: &Arc<dyn Engine>,
    server: SocketAddr,
) -> Result<UdpSocket> {
    let server = inward(&**engine, server)?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Room for all that guess at once, and for the answer.
    let config = UdpConfig::default().with_recv_buffer(256 << 10);
    let drawn = (0..PORTS).map(|_| resolver.port());
    // Where so many are taken, the stack knows which are free.
    for port in drawn.chain([0]) {
        match engine.udp_bind(SocketAddr::new(any, port), &config) {
            Ok((id, _)) => {
                let socket = UdpSocket::new(engine.clone(), id, server.is_ipv6());
                let to = (server.ip(), server.port());
                engine.udp_connect(id, to).map_err(io)?;
                return Ok(socket);
            }
            Err(EngineError::AddrInUse) => {}
            Err(e) => return Err(io(e)),
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Starts to connect to `server`.
pub(crate) fn connect(engine: &Arc<dyn Engine>, server: SocketAddr) -> Result<TcpStream> {
    let server = inward(&**engine, server)?;
    let id = engine.connect((None, 0), server, &engine.tcp_config());
    Ok(TcpStream::new(engine.clone(), id.map_err(io)?))
}

/// Where a query went from.
enum Asked {
    Datagram(UdpSocket),
    Stream(TcpStream),
}

fn begin(resolver: &Resolver, engine: &Arc<dyn Engine>, query: &Query) -> Result<Asked> {
    if query.stream {
        return Ok(Asked::Stream(connect(engine, query.server)?));
    }
    let socket = socket(resolver, engine, query.server)?;
    socket.send(&query.message)?;
    Ok(Asked::Datagram(socket))
}

/// Sends a query over its stream. Only then is the answer to another one waited for, as a server may
/// answer one stream after the other.
fn send(engine: &dyn Engine, query: &Query, asked: &Asked) -> Result<()> {
    let Asked::Stream(stream) = asked else {
        return Ok(());
    };
    stream.finish_connect(Some(left(engine, query)?))?;
    stream.set_write_timeout(Some(left(engine, query)?))?;
    { stream }.write_all(&framed(&query.message))
}

fn left(engine: &dyn Engine, query: &Query) -> Result<Duration> {
    Lookup::left(query, engine.now()).ok_or_else(|| ErrorKind::TimedOut.into())
}

/// Waits for the answer.
///
/// # Errors
/// `TimedOut`; or what the socket says.
fn finish(lookup: &mut Lookup, engine: &dyn Engine, query: &Query, asked: Asked) -> Result<()> {
    match asked {
        Asked::Datagram(socket) => {
            let mut buf = [0; LONGEST];
            for _ in 0..MAX_STRAY {
                socket.set_read_timeout(Some(left(engine, query)?))?;
                let len = socket.recv(&mut buf)?;
                if lookup.answered(query.number, &buf[..len], engine.now()) {
                    return Ok(());
                }
            }
            Err(ErrorKind::InvalidData.into())
        }
        Asked::Stream(stream) => {
            let mut len = [0; 2];
            read(engine, query, &stream, &mut len)?;
            let mut message = vec![0; u16::from_be_bytes(len).into()];
            read(engine, query, &stream, &mut message)?;
            match lookup.answered(query.number, &message, engine.now()) {
                true => Ok(()),
                false => Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// A message as it goes over a stream.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], message].concat()
}

/// Fills `buf`, however slowly it comes, until the query's time is over.
fn read(engine: &dyn Engine, query: &Query, mut stream: &TcpStream, buf: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while at < buf.len() {
        stream.set_read_timeout(Some(left(engine, query)?))?;
        match stream.read(&mut buf[at..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => at += n,
        }
    }
    Ok(())
}

/// The addresses of `host`, in the order in which they are to be tried.
///
/// # Errors
/// As [`LookupError`]; or the stack has ended, or belongs to another thread.
pub(crate) fn ask(
    resolver: &Arc<Resolver>,
    engine: &Arc<dyn Engine>,
    host: &str,
) -> Result<Vec<IpAddr>> {
    let mut lookup = resolver.lookup(host, families(&**engine), engine.now());
    loop {
        let queries = match lookup.step(engine.now()) {
            Step::Done(done) => return done.map_err(Error::from),
            Step::Ask(queries) => queries,
            _ => return Err(ErrorKind::Unsupported.into()),
        };
        // All are on their way before the first is waited for.
        let mut begun = Vec::with_capacity(queries.len());
        for query in queries {
            match begin(resolver, engine, &query) {
                Ok(asked) => begun.push((query, asked)),
                Err(e) if is_ours(&e) => return Err(e),
                Err(e) => lookup.failed(query.number, e.kind()),
            }
        }
        begun.retain(|(query, asked)| {
            let sent = send(&**engine, query, asked);
            note(&mut lookup, query, &sent);
            sent.is_ok()
        });
        for (query, asked) in begun {
            let answered = finish(&mut lookup, &**engine, &query, asked);
            note(&mut lookup, &query, &answered);
        }
    }
}

/// Tells the lookup what has become of a query.
fn note(lookup: &mut Lookup, query: &Query, done: &Result<()>) {
    match done {
        Ok(()) => {}
        // Its time is over: the next step sees to that.
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {}
        Err(e) => lookup.failed(query.number, e.kind()),
    }
}

/// Whether it is not about the server: the stack has ended, or belongs to another thread, or there is
/// no memory.
pub(crate) fn is_ours(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotConnected | ErrorKind::Unsupported | ErrorKind::OutOfMemory
    )
}

/// What a driver of a [`Lookup`] needs that waits otherwise than by blocking
/// ([`Stack::start_lookup`](crate::Stack::start_lookup)).
#[doc(hidden)]
pub mod adapter {
    use crate::{Stack, TcpStream, UdpSocket};
    use std::io::{Error, ErrorKind, Result};
    use std::net::SocketAddr;

    /// A datagram socket for one query, at a port that nobody can guess.
    /// See [`Stack::start_lookup`].
    ///
    /// # Errors
    /// `NotConnected`: the stack has no name servers, or has ended. Or as those of sockets.
    pub fn socket(stack: &Stack, server: SocketAddr) -> Result<UdpSocket> {
        let resolver = stack.resolver().ok_or(ErrorKind::NotConnected)?;
        super::socket(resolver, stack.engine(), server)
    }

    /// Starts to connect.
    ///
    /// # Errors
    /// As [`Stack::start_connect`].
    pub fn connect(stack: &Stack, server: SocketAddr) -> Result<TcpStream> {
        super::connect(stack.engine(), server)
    }

    /// A message as it goes over a stream.
    /// See [`Stack::start_lookup`].
    pub fn framed(message: &[u8]) -> Vec<u8> {
        super::framed(message)
    }

    /// Whether the error ends the lookup.
    /// See [`Stack::start_lookup`].
    pub fn is_ours(e: &Error) -> bool {
        super::is_ours(e)
    }
}

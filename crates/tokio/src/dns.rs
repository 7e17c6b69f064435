//! The stack's own resolver, driven by a task.

use crate::tcp::TcpStream;
use crate::udp::UdpSocket;
use perimeter::Stack;
use perimeter::dns::{Lookup, MAX_STRAY, Query, Step, adapter};
use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The longest datagram that is read: servers keep to the 1,232 octets that they are asked for.
const LONGEST: usize = 4096;

/// Where a query went from.
enum Asked {
    Datagram(UdpSocket),
    Stream(TcpStream),
}

async fn begin(stack: &Stack, query: &Query) -> Result<Asked> {
    if query.stream {
        let stream = adapter::connect(stack, query.server)?;
        return Ok(Asked::Stream(TcpStream::from_perimeter(stream)?));
    }
    let socket = UdpSocket::from_perimeter(adapter::socket(stack, query.server)?)?;
    socket.send(&query.message).await?;
    Ok(Asked::Datagram(socket))
}

/// Sends a query over its stream. Only then is the answer to another one waited for, as a server may
/// answer one stream after the other.
async fn send(query: &Query, asked: &mut Asked) -> Result<()> {
    if let Asked::Stream(stream) = asked {
        stream.connected().await?;
        stream.write_all(&adapter::framed(&query.message)).await?;
    }
    Ok(())
}

/// Waits for the answer.
async fn finish(
    stack: &Stack,
    lookup: &mut Lookup,
    query: &Query,
    asked: &mut Asked,
) -> Result<()> {
    match asked {
        Asked::Datagram(socket) => {
            let mut buf = vec![0; LONGEST];
            for _ in 0..MAX_STRAY {
                let len = socket.recv(&mut buf).await?;
                if lookup.answered(query.number, &buf[..len], stack.engine().now()) {
                    return Ok(());
                }
            }
        }
        Asked::Stream(stream) => {
            let len = stream.read_u16().await?;
            let mut message = vec![0; len.into()];
            stream.read_exact(&mut message).await?;
            if lookup.answered(query.number, &message, stack.engine().now()) {
                return Ok(());
            }
        }
    }
    Err(ErrorKind::InvalidData.into())
}

/// How long from now the query waits.
fn left(stack: &Stack, query: &Query) -> Duration {
    Lookup::left(query, stack.engine().now()).unwrap_or_default()
}

/// The addresses of `host`, in the order in which they are to be tried; `None`: the stack has no name
/// servers.
pub(crate) async fn ask(stack: &Stack, host: &str) -> Option<Result<Vec<IpAddr>>> {
    let lookup = stack.start_lookup(host)?;
    Some(drive(stack, lookup).await)
}

async fn drive(stack: &Stack, mut lookup: Lookup) -> Result<Vec<IpAddr>> {
    loop {
        let queries = match lookup.step(stack.engine().now()) {
            Step::Done(done) => return done.map_err(Error::from),
            Step::Ask(queries) => queries,
            _ => return Err(ErrorKind::Unsupported.into()),
        };
        // All are on their way before the first is waited for.
        let mut begun = Vec::with_capacity(queries.len());
        for query in queries {
            match timeout(left(stack, &query), begin(stack, &query)).await {
                Ok(Ok(asked)) => begun.push((query, asked)),
                Ok(Err(e)) if adapter::is_ours(&e) => return Err(e),
                Ok(Err(e)) => lookup.failed(query.number, e.kind()),
                // Its time is over: the next step sees to that.
                Err(_) => {}
            }
        }
        for (query, asked) in &mut begun {
            if let Ok(Err(e)) = timeout(left(stack, query), send(query, asked)).await {
                lookup.failed(query.number, e.kind());
            }
        }
        for (query, mut asked) in begun {
            let answer = finish(stack, &mut lookup, &query, &mut asked);
            if let Ok(Err(e)) = timeout(left(stack, &query), answer).await {
                lookup.failed(query.number, e.kind());
            }
        }
    }
}

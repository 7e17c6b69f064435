//! Two streams made one: what arrives at either goes out by the other.
//!
//! A direction holds memory only while it has bytes that the other side does not take; what it
//! reads meanwhile is nothing, so a slow side stops the other. An end of one is passed on as
//! the end of that direction, and a failure as a reset.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Octets that are taken from a stream at once.
pub const CHUNK: usize = 64 * 1024;
/// Reads in one turn of a direction, before others have theirs.
const TURNS: usize = 16;
/// Buffers that a thread keeps.
const KEPT: usize = 16;

/// A stream that can be closed by a reset.
/// See [`relay`].
pub trait Abort {
    /// Its peer is told by a reset, when it is dropped at the latest.
    /// See [`relay`].
    fn abort(&self);
}

impl Abort for tokio::net::TcpStream {
    fn abort(&self) {
        // If it can't be set, dropping closes it as it is.
        let _ = self.set_zero_linger();
    }
}

impl Abort for crate::TcpStream {
    fn abort(&self) {
        // It may be over already.
        let _ = self.get_ref().abort();
    }
}

/// How a relay ended.
/// See [`relay`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relayed {
    /// Octets from the first to the second, and back.
    pub bytes: [u64; 2],
    /// It ended by a failure of one of them, and the other was reset.
    pub failed: bool,
}

thread_local! {
    static POOL: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn take() -> Box<[u8]> {
    let kept = POOL.with_borrow_mut(Vec::pop);
    kept.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice())
}

fn give(buf: Box<[u8]>) {
    POOL.with_borrow_mut(|pool| {
        if pool.len() < KEPT {
            pool.push(buf);
        }
    });
}

/// One direction.
#[derive(Default)]
struct Way {
    /// What was read and not taken yet, and how far.
    held: Option<(Box<[u8]>, usize, usize)>,
    bytes: u64,
    /// The end was read, and passed on.
    ended: bool,
    done: bool,
}

impl Way {
    /// As far as it gets now; ready when its end was passed on.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, r: &mut R, w: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        for _ in 0..TURNS {
            if self.ended {
                ready!(Pin::new(&mut *w).poll_shutdown(cx))?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            let (buf, mut at, end) = match self.held.take() {
                Some(held) => held,
                None => {
                    let mut buf = take();
                    let mut read = ReadBuf::new(&mut buf);
                    let polled = Pin::new(&mut *r).poll_read(cx, &mut read);
                    let n = read.filled().len();
                    match polled {
                        Poll::Ready(Ok(())) if n > 0 => (buf, 0, n),
                        Poll::Ready(Ok(())) => {
                            give(buf);
                            self.ended = true;
                            continue;
                        }
                        Poll::Ready(Err(e)) => {
                            give(buf);
                            return Poll::Ready(Err(e));
                        }
                        Poll::Pending => {
                            give(buf);
                            return Poll::Pending;
                        }
                    }
                }
            };
            while at < end {
                match Pin::new(&mut *w).poll_write(cx, &buf[at..end]) {
                    Poll::Ready(Ok(0)) => {
                        give(buf);
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Ok(n)) => {
                        at += n;
                        self.bytes += n as u64;
                    }
                    Poll::Ready(Err(e)) => {
                        give(buf);
                        return Poll::Ready(Err(e));
                    }
                    Poll::Pending => {
                        self.held = Some((buf, at, end));
                        return Poll::Pending;
                    }
                }
            }
            give(buf);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Relays until both directions have ended; or one stream has failed, or `stop` is ready: then both
/// are reset. `counted` is told of octets as they go, from the first to the second and back.
///
/// ```
#[doc = include_str!("../examples/host.txt")]
/// // Whoever connects to this listener is connected with the server.
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// let (inside, _) = listener.accept().await?;
/// let outside = TcpStream::connect(here).await?;
/// let relayed = tokio::spawn(relay(inside, outside, pending::<()>(), |[there, back]| {
///     println!("{there} octets there, {back} back");
/// }));
/// client.write_all(b"hello").await?;
/// client.shutdown().await?;
/// let mut text = String::new();
/// client.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// assert_eq!(relayed.await?.bytes, [5, 5]);
///
/// // Whoever is to be relayed can be reset. That is seen as an error of its peer.
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// let (inside, _) = listener.accept().await?;
/// inside.abort();
/// drop(inside);
/// assert!(client.read_u8().await.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
pub async fn relay<A, B>(
    mut a: A,
    mut b: B,
    stop: impl Future,
    counted: impl Fn([u64; 2]),
) -> Relayed
where
    A: AsyncRead + AsyncWrite + Abort + Unpin,
    B: AsyncRead + AsyncWrite + Abort + Unpin,
{
    let (mut there, mut back) = (Way::default(), Way::default());
    let mut stop = pin!(stop);
    let mut told = [0; 2];
    let ended: io::Result<()> = poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::Interrupted.into()));
        }
        let one = there.poll(cx, &mut a, &mut b);
        let other = back.poll(cx, &mut b, &mut a);
        let now = [there.bytes, back.bytes];
        if now != told {
            counted([now[0] - told[0], now[1] - told[1]]);
            told = now;
        }
        match (one?, other?) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    })
    .await;
    if ended.is_err() {
        a.abort();
        b.abort();
    }
    Relayed {
        bytes: [there.bytes, back.bytes],
        failed: ended.is_err(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::pending;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    async fn pair() -> (TcpStream, TcpStream) {
        let l = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = l.local_addr().unwrap();
        let (a, b) = tokio::join!(TcpStream::connect(to), l.accept());
        (a.unwrap(), b.unwrap().0)
    }

    fn byte(i: usize) -> u8 {
        (i * 7 + i / 251) as u8
    }

    #[tokio::test]
    async fn bytes_and_ends_are_passed_on() {
        let ((mut client, a), (b, mut server)) = (pair().await, pair().await);
        let relay = tokio::spawn(relay(a, b, pending::<()>(), |_| ()));
        let n = 5_000_000;
        let data: Vec<u8> = (0..n).map(byte).collect();
        let sent = data.clone();
        let t = tokio::spawn(async move {
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            // The other direction is still open.
            server.write_all(&all).await.unwrap();
            server
        });
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let server = t.await.unwrap();
        drop(server);
        let mut back = Vec::new();
        client.read_to_end(&mut back).await.unwrap();
        assert!(back == data);
        let r = relay.await.unwrap();
        assert_eq!((r.bytes, r.failed), ([n as u64; 2], false));
    }

    #[tokio::test]
    async fn a_reset_is_passed_on_either_way() {
        for first in [true, false] {
            let ((mut client, a), (b, mut server)) = (pair().await, pair().await);
            let relay = tokio::spawn(relay(a, b, pending::<()>(), |_| ()));
            client.write_all(b"x").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'x');
            let left = match first {
                true => (client, server),
                false => (server, client),
            };
            left.0.abort();
            drop(left.0);
            let mut other = left.1;
            let e = other.read_u8().await.unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
            assert!(relay.await.unwrap().failed);
        }
    }

    #[tokio::test]
    async fn a_slow_side_stops_the_other() {
        let ((mut client, a), (b, mut server)) = (pair().await, pair().await);
        let relay = tokio::spawn(relay(a, b, pending::<()>(), |_| ()));
        let chunk = vec![7; 1 << 16];
        let mut sent = 0;
        // Nobody reads: it ends when all buffers on the way are full.
        while let Ok(n) = timeout(Duration::from_millis(300), client.write(&chunk)).await {
            sent += n.unwrap();
            assert!(sent < 64 << 20, "no end");
        }
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), sent);
        drop(server);
        drop(client);
        relay.await.unwrap();
    }
}

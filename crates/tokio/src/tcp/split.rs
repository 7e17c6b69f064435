//! Halves that borrow their stream, and what all halves can.

use crate::tcp::TcpStream;
use bytes::BufMut;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// The reading half of a stream that [`TcpStream::split`] has split.
/// See [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writing half of a stream that [`TcpStream::split`] has split. Dropping it does not shut down
/// anything; `shutdown` does.
/// See [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

pub(super) fn split(stream: &mut TcpStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

/// What a reading half can: as its stream.
macro_rules! reading {
    ($half:ty) => {
        impl $half {
            /// As [`TcpStream::peek`].
            ///
            /// # Errors
            /// As reading.
            ///
            /// # Cancel safety
            /// Nothing is taken in either case.
            pub async fn peek(&mut self, buf: &mut [u8]) -> Result<usize> {
                self.0.peek(buf).await
            }

            /// As [`TcpStream::poll_peek`]. See [`TcpStream::peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<usize>> {
                self.0.poll_peek(cx, buf)
            }

            /// As [`TcpStream::ready`].
            ///
            /// # Errors
            /// As [`TcpStream::ready`].
            ///
            /// # Cancel safety
            /// As [`TcpStream::ready`].
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                self.0.ready(interest).await
            }

            /// As [`TcpStream::readable`].
            ///
            /// # Errors
            /// None today; as tokio's.
            ///
            /// # Cancel safety
            /// As [`TcpStream::ready`].
            pub async fn readable(&self) -> Result<()> {
                self.0.readable().await
            }

            /// As [`TcpStream::try_read`].
            ///
            /// # Errors
            /// As [`TcpStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> Result<usize> {
                self.0.try_read(buf)
            }

            /// As [`TcpStream::try_read_vectored`].
            ///
            /// # Errors
            /// As [`TcpStream::try_read`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
                self.0.try_read_vectored(bufs)
            }

            /// As [`TcpStream::try_read_buf`].
            ///
            /// # Errors
            /// As [`TcpStream::try_read`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> Result<usize> {
                self.0.try_read_buf(buf)
            }

            /// The peer's address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn peer_addr(&self) -> Result<SocketAddr> {
                self.0.peer_addr()
            }

            /// Our address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn local_addr(&self) -> Result<SocketAddr> {
                self.0.local_addr()
            }
        }

        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<()>> {
                self.0.poll_read_priv(cx, buf)
            }
        }
    };
}

/// What a writing half can: as its stream; `$shut` runs when it was shut down.
macro_rules! writing {
    ($half:ty, $shut:expr) => {
        impl $half {
            /// As [`TcpStream::ready`].
            ///
            /// # Errors
            /// As [`TcpStream::ready`].
            ///
            /// # Cancel safety
            /// As [`TcpStream::ready`].
            pub async fn ready(&self, interest: Interest) -> Result<Ready> {
                self.0.ready(interest).await
            }

            /// As [`TcpStream::writable`].
            ///
            /// # Errors
            /// None today; as tokio's.
            ///
            /// # Cancel safety
            /// As [`TcpStream::ready`].
            pub async fn writable(&self) -> Result<()> {
                self.0.writable().await
            }

            /// As [`TcpStream::try_write`].
            ///
            /// # Errors
            /// As [`TcpStream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> Result<usize> {
                self.0.try_write(buf)
            }

            /// As [`TcpStream::try_write_vectored`].
            ///
            /// # Errors
            /// As [`TcpStream::try_write`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> Result<usize> {
                self.0.try_write_vectored(bufs)
            }

            /// The peer's address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn peer_addr(&self) -> Result<SocketAddr> {
                self.0.peer_addr()
            }

            /// Our address.
            /// See [`perimeter::TcpStream::peer_addr`].
            ///
            /// # Errors
            /// The socket has gone.
            pub fn local_addr(&self) -> Result<SocketAddr> {
                self.0.local_addr()
            }
        }

        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<Result<usize>> {
                self.0.poll_write_priv(cx, buf)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<Result<usize>> {
                self.0.poll_write_vectored_priv(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
                let done = self.0.shutdown_write();
                if done.is_ok() {
                    let shut: fn(&mut $half) = $shut;
                    shut(&mut self);
                }
                Poll::Ready(done)
            }
        }
    };
}

pub(super) use {reading, writing};

reading!(ReadHalf<'_>);
writing!(WriteHalf<'_>, |_| {});

//! Halves that own their stream together.

use crate::tcp::TcpStream;
use crate::tcp::split::{reading, writing};
use bytes::BufMut;
use std::fmt;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// The reading half of a stream that [`TcpStream::into_split`] has split.
/// See [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The writing half of a stream that [`TcpStream::into_split`] has split. Dropping it shuts down
/// the direction of writing, as `shutdown` does.
/// See [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<TcpStream>, Closing);

/// Whether dropping the writing half shuts down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Closing {
    OnDrop,
    Done,
}

pub(super) fn split(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    (
        OwnedReadHalf(stream.clone()),
        OwnedWriteHalf(stream, Closing::OnDrop),
    )
}

/// Two halves are not of one stream: they come back.
///
/// ```
#[doc = include_str!("../examples/pair.txt")]
/// let (read, _write) = client.into_split();
/// let (_read, write) = server.into_split();
/// let error = read.reunite(write).expect_err("they are two streams");
/// assert_eq!(error.to_string(), "the halves are not of the same stream");
/// let ReuniteError(_clients, _servers) = error;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are not of the same stream")
    }
}

impl std::error::Error for ReuniteError {}

fn reunite(
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
) -> std::result::Result<TcpStream, ReuniteError> {
    if !Arc::ptr_eq(&read.0, &write.0) {
        return Err(ReuniteError(read, write));
    }
    write.forget();
    Ok(Arc::into_inner(read.0).expect("there are two halves, and one has gone"))
}

impl OwnedReadHalf {
    /// Puts the two halves of a stream together again.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// let (read, write) = client.into_split();
    /// let mut client = read.reunite(write)?;
    /// client.write_all(b"hello").await?;
    /// assert_eq!(server.read(&mut [0; 100]).await?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// They are of two streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> std::result::Result<TcpStream, ReuniteError> {
        reunite(self, other)
    }
}

impl OwnedWriteHalf {
    /// Puts the two halves of a stream together again.
    /// See [`OwnedReadHalf::reunite`].
    ///
    /// # Errors
    /// They are of two streams.
    pub fn reunite(self, other: OwnedReadHalf) -> std::result::Result<TcpStream, ReuniteError> {
        reunite(other, self)
    }

    /// Drops it without shutting down the direction of writing.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// let (mut read, write) = client.into_split();
    /// write.forget();
    /// server.write_all(b"hello").await?;
    /// assert_eq!(read.read(&mut [0; 100]).await?, 5);
    /// // The peer has not been told of any end.
    /// let late = server.try_read(&mut [0; 100]).expect_err("nothing has come");
    /// assert_eq!(late.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn forget(mut self) {
        self.1 = Closing::Done;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.1 == Closing::OnDrop {
            // Nobody is left to be told.
            let _ = self.0.shutdown_write();
        }
    }
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

reading!(OwnedReadHalf);
writing!(OwnedWriteHalf, |half| half.1 = Closing::Done);

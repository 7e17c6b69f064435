//! Sockets of a host that may crash.

use super::life::Life;
use perimeter::{TcpListener as Inner, TcpStream as InnerStream};
use std::io::{IoSlice, Read, Result, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// As `std`'s `TcpListener`. When its host crashes, the thread that calls it ends.
pub struct TcpListener {
    pub(super) inner: Inner,
    pub(super) life: Arc<Life>,
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

/// As `std`'s `TcpStream`; what is not here is [`perimeter::TcpStream`]'s. When its host crashes, the
/// thread that reads or writes it ends.
pub struct TcpStream {
    pub(super) inner: InnerStream,
    pub(super) life: Arc<Life>,
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl TcpListener {
    /// Waits for a connection.
    ///
    /// # Errors
    /// As [`perimeter::TcpListener::accept`].
    pub fn accept(&self) -> Result<(TcpStream, SocketAddr)> {
        let (inner, peer) = self.life.during(|| self.inner.accept())?;
        let life = self.life.clone();
        Ok((TcpStream { inner, life }, peer))
    }

    /// All connections to come.
    pub fn incoming(&self) -> impl Iterator<Item = Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As [`perimeter::TcpListener::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.life.during(|| self.inner.local_addr())
    }
}

impl TcpStream {
    /// Another handle of the same socket.
    ///
    /// # Errors
    /// As [`perimeter::TcpStream::try_clone`].
    pub fn try_clone(&self) -> Result<TcpStream> {
        Ok(TcpStream {
            inner: self.inner.try_clone()?,
            life: self.life.clone(),
        })
    }
}

impl Deref for TcpStream {
    type Target = InnerStream;

    fn deref(&self) -> &InnerStream {
        &self.inner
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.life.during(|| (&self.inner).read(buf))
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        self.life.during(|| (&self.inner).write(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        self.life.during(|| (&self.inner).write_vectored(bufs))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

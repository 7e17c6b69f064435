//! Sockets of a host in a [`Sim`](crate::Sim), with the names and the behaviour of tokio's: in a
//! program under test `tokio::net` becomes `perimeter_testing::net`, and nothing else changes.
//!
//! Behind them is the stack of the host that the program runs on. Addresses may name hosts:
//! `"server:80"`.

mod addr;
mod io;
mod listener;
mod reactor;
mod stream;

pub use addr::ToSocketAddrs;
pub use listener::TcpListener;
pub(crate) use reactor::Reactor;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpStream, WriteHalf};

/// The halves of a [`TcpStream`], where tokio has them.
pub mod tcp {
    pub use super::stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
}

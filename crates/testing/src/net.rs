//! Sockets of a host in a [`Sim`](crate::Sim): those of [`perimeter_tokio`], with tokio's names and
//! behaviour. In a program under test `tokio::net` becomes `perimeter_testing::net`, or
//! `perimeter_tokio` if that is what it uses anyway, and nothing else changes.
//!
//! They belong to the stack of the host that the program runs on. Addresses may name hosts:
//! `"server:80"`; nothing outside of the simulation is asked.

pub use perimeter_tokio::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket, lookup_host};

/// The halves of a [`TcpStream`], where tokio has them.
pub mod tcp {
    pub use perimeter_tokio::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
}

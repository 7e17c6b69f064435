//! Why calls fail.

use crate::pef::event::AlterError;
use perimeter_stack::udp::UdpError;
use perimeter_stack::{Over, SockError};

/// Why a call failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The organization has one thread, and this is another.
    WrongThread,
    /// No route to the address.
    NoRoute,
    /// The local address is not ours.
    NotOurs,
    /// Address or port is in use.
    AddrInUse,
    /// Connections pin all the memory that they may.
    NoMemory,
    /// The socket says.
    Sock(SockError),
    /// A time limit passed.
    TimedOut,
    /// The thread that the stack belongs to did not come by in time.
    Absent,
    /// All pollers are in use.
    TooManyPollers,
    /// The socket is registered with this poller already, or is not.
    Registered(bool),
    /// The organization has nothing of the kind.
    Unsupported,
    /// A list of events could not be altered.
    Events(AlterError),
    /// The stack was stopped.
    Stopped,
    /// A thread panicked in the stack; which one.
    Failed(&'static str),
    /// This process is a fork of the one that the stack belongs to.
    Forked,
    /// The interface has gone; of a listener, all have.
    NetDown,
    /// There is no interface of that number.
    NoInterface,
    /// The datagram is longer than can be sent.
    TooLong,
    /// It would go to all stations, which the socket has not said that it wants.
    Permission,
}

impl From<SockError> for EngineError {
    fn from(e: SockError) -> EngineError {
        EngineError::Sock(e)
    }
}

impl From<AlterError> for EngineError {
    fn from(e: AlterError) -> EngineError {
        match e {
            AlterError::Gone => EngineError::Sock(SockError::Closed),
            e => EngineError::Events(e),
        }
    }
}

impl From<UdpError> for EngineError {
    fn from(e: UdpError) -> EngineError {
        match e {
            UdpError::WouldBlock => EngineError::Sock(SockError::WouldBlock),
            UdpError::Closed => EngineError::Sock(SockError::Closed),
            UdpError::NotConnected => EngineError::Sock(SockError::NotConnected),
            UdpError::Failed(e) => EngineError::Sock(SockError::Tcp(e)),
            UdpError::TooLong => EngineError::TooLong,
            UdpError::Permission => EngineError::Permission,
            UdpError::Invalid => EngineError::Sock(SockError::Invalid),
            UdpError::NoInterface => EngineError::NoInterface,
            UdpError::NotOurs => EngineError::NotOurs,
            UdpError::InUse => EngineError::AddrInUse,
            UdpError::NoMemory => EngineError::NoMemory,
            // The crate below has no other now.
            _ => EngineError::Sock(SockError::Invalid),
        }
    }
}

impl From<Over> for EngineError {
    fn from(o: Over) -> EngineError {
        match o {
            Over::Stopped => EngineError::Stopped,
            Over::Failed(cause) => EngineError::Failed(cause),
            Over::Forked => EngineError::Forked,
        }
    }
}

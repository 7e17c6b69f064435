//! Errors as `std::io` knows them.

use perimeter_org::pef::event::AlterError;
use perimeter_org::{SpecError, engine::EngineError};
use perimeter_stack::SockError;
use perimeter_tcp::TcpError;
use std::io::{Error, ErrorKind};

/// Why a stack can't be built.
///
/// ```
/// # use perimeter::{BuildError, Stack};
/// let error = Stack::builder().organization("fastest").expect_err("there is none of that name");
/// assert!(matches!(error, BuildError::Organization(_)));
/// println!("{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The organization's name.
    #[error(transparent)]
    Organization(#[from] SpecError),
    /// An address or prefix.
    #[error("{0}")]
    Address(String),
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(String),
    /// A device of the host's can't be opened.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Device(#[from] perimeter_link::named::HostError),
    /// No server has given an interface an address in time.
    #[error("{0}")]
    NoLease(String),
    /// Something is missing.
    #[error("{0}")]
    Missing(&'static str),
    /// The control socket.
    #[error("control socket {0}")]
    Control(String),
    /// The address for metrics.
    #[error("metrics at {0}")]
    Metrics(String),
}

perimeter_base::debug_is_text!(BuildError);

impl From<BuildError> for Error {
    fn from(e: BuildError) -> Error {
        let kind = match e {
            BuildError::NoLease(_) => ErrorKind::TimedOut,
            _ => ErrorKind::InvalidInput,
        };
        Error::new(kind, e)
    }
}

/// The error kind of a failed connection.
pub fn tcp(e: TcpError) -> Error {
    let kind = match e {
        TcpError::Refused => ErrorKind::ConnectionRefused,
        TcpError::Reset => ErrorKind::ConnectionReset,
        TcpError::TimedOut => ErrorKind::TimedOut,
        TcpError::HostUnreachable => ErrorKind::HostUnreachable,
        TcpError::NetUnreachable => ErrorKind::NetworkUnreachable,
        TcpError::ProtocolUnreachable => ErrorKind::ConnectionRefused,
        TcpError::Aborted => ErrorKind::ConnectionAborted,
        TcpError::NetDown => ErrorKind::NetworkDown,
    };
    Error::new(kind, e)
}

/// The error of a failed call.
pub fn io(f: EngineError) -> Error {
    match f {
        EngineError::WrongThread => Error::new(
            ErrorKind::Unsupported,
            "organization `up` belongs to one thread; use `up:shared` for several",
        ),
        EngineError::NoRoute => Error::new(
            ErrorKind::NetworkUnreachable,
            "no route to the host from this stack's interfaces",
        ),
        EngineError::NotOurs => Error::new(
            ErrorKind::AddrNotAvailable,
            "the local address is not one of this stack's",
        ),
        EngineError::AddrInUse => Error::new(ErrorKind::AddrInUse, "address already in use"),
        EngineError::NoMemory => Error::new(
            ErrorKind::OutOfMemory,
            "connections hold all the memory that they may (`Config::memory`)",
        ),
        EngineError::TimedOut => Error::new(ErrorKind::TimedOut, "timed out"),
        EngineError::Absent => Error::new(
            ErrorKind::TimedOut,
            "the thread that owns this stack did not respond within 1 s",
        ),
        EngineError::TooManyPollers => {
            Error::new(ErrorKind::QuotaExceeded, "too many pollers in this stack")
        }
        EngineError::Registered(false) => Error::new(
            ErrorKind::NotFound,
            "the socket is not registered with this poller",
        ),
        EngineError::Registered(true) => {
            Error::new(ErrorKind::AlreadyExists, "the socket is registered already")
        }
        EngineError::Unsupported => Error::new(
            ErrorKind::Unsupported,
            "this organization has no lists of events; use `pef`",
        ),
        EngineError::Events(AlterError::Gone) => ErrorKind::NotConnected.into(),
        EngineError::Events(AlterError::NoEvent) => {
            Error::new(ErrorKind::NotFound, "there is no such event on the lists")
        }
        EngineError::Events(AlterError::Late) => {
            Error::new(ErrorKind::InvalidInput, "too late to change that")
        }
        EngineError::Events(AlterError::Off) => Error::new(
            ErrorKind::InvalidInput,
            "the connection's lists of events are switched off",
        ),
        EngineError::Events(AlterError::Panicked) => {
            Error::other("the event's callback panicked, and it was taken off its lists")
        }
        EngineError::Stopped => Error::new(ErrorKind::NotConnected, "the stack was stopped"),
        EngineError::Failed(cause) => Error::other(format!("the stack has failed: {cause}")),
        EngineError::Forked => Error::new(
            ErrorKind::Unsupported,
            "the stack belongs to the process that this one is a fork of",
        ),
        // As the host's kernel says it, so that programs know it by its number.
        EngineError::TooLong => rustix::io::Errno::MSGSIZE.into(),
        EngineError::NoInterface => Error::new(
            ErrorKind::NotFound,
            "this stack has no interface of that number",
        ),
        EngineError::Permission => Error::new(
            ErrorKind::PermissionDenied,
            "a datagram to all stations needs `set_broadcast`",
        ),
        EngineError::NetDown => Error::new(ErrorKind::NetworkDown, "the interface has gone"),
        EngineError::Sock(e) => sock(e),
        // The crates below have no other now.
        other => Error::other(format!("{other:?}")),
    }
}

fn sock(e: SockError) -> Error {
    match e {
        SockError::WouldBlock => ErrorKind::WouldBlock.into(),
        SockError::Closed => Error::new(ErrorKind::NotConnected, "the socket was closed"),
        SockError::Tcp(e) => tcp(e),
        SockError::NotConnected => ErrorKind::NotConnected.into(),
        SockError::BrokenPipe => ErrorKind::BrokenPipe.into(),
        SockError::Invalid => ErrorKind::InvalidInput.into(),
        other => Error::other(format!("{other:?}")),
    }
}

/// Whether a call found nothing to do.
pub fn would_block(f: &EngineError) -> bool {
    matches!(f, EngineError::Sock(SockError::WouldBlock))
}

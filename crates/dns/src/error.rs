//! Why a name has no addresses for the caller.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;

/// Why a lookup has failed. As an [`io::Error`](std::io::Error) each has a kind of its own, and is
/// within it ([`get_ref`](std::io::Error::get_ref)).
///
/// ```
/// use perimeter_dns::LookupError;
/// use std::io::{Error, ErrorKind};
///
/// let error = Error::from(LookupError::NoName { host: "example.invalid".into() });
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// let inner = error.get_ref().and_then(|e| e.downcast_ref::<LookupError>());
/// assert!(matches!(inner, Some(LookupError::NoName { .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// It can't be a host's name. Kind `InvalidInput`.
    #[error("`{host}` is no host's name: {why}")]
    Invalid {
        /// What was given.
        host: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no such name (NXDOMAIN). Kind `NotFound`.
    #[error("there is no host `{host}`")]
    NoName {
        /// What was asked for.
        host: String,
    },
    /// The name exists, and has no address of a family that was asked for. Kind `AddrNotAvailable`.
    #[error("`{host}` has no address of a family that this stack has addresses of")]
    NoAddress {
        /// What was asked for.
        host: String,
    },
    /// A name server could not, or would not, answer, and no other did. Kind `Other`.
    #[error("no answer about `{host}`: the name server {server} {what}")]
    Server {
        /// What was asked for.
        host: String,
        /// Who.
        server: SocketAddr,
        /// What it did.
        what: &'static str,
    },
    /// No name server answered in time. Kind `TimedOut`.
    #[error("no answer about `{host}`: the name server {server} did not answer in time")]
    TimedOut {
        /// What was asked for.
        host: String,
        /// The one that was asked last.
        server: SocketAddr,
    },
    /// The name server that was asked last can't be reached. Of the kind given.
    #[error("no answer about `{host}`: the name server {server} can't be reached: {error}")]
    Unreachable {
        /// What was asked for.
        host: String,
        /// Who.
        server: SocketAddr,
        /// The kind of the socket's error.
        error: ErrorKind,
    },
    /// There is nobody to ask. Kind `NotConnected`.
    #[error("there is no name server to ask about `{host}`")]
    NoServer {
        /// What was asked for.
        host: String,
    },
}

impl LookupError {
    /// The kind that it has as an [`io::Error`](std::io::Error).
    pub fn kind(&self) -> ErrorKind {
        match self {
            LookupError::Invalid { .. } => ErrorKind::InvalidInput,
            LookupError::NoName { .. } => ErrorKind::NotFound,
            LookupError::NoAddress { .. } => ErrorKind::AddrNotAvailable,
            LookupError::Server { .. } => ErrorKind::Other,
            LookupError::TimedOut { .. } => ErrorKind::TimedOut,
            LookupError::Unreachable { error, .. } => *error,
            LookupError::NoServer { .. } => ErrorKind::NotConnected,
        }
    }
}

impl From<LookupError> for Error {
    fn from(e: LookupError) -> Error {
        Error::new(e.kind(), e)
    }
}

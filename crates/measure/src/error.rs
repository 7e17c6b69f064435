//! What can go wrong, and which exit code it deserves.

use std::io;

/// An error of the lab. Its `Display` is one line fit for a terminal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong: an unknown name, a number out of range.
    #[error("{0}")]
    Input(String),
    /// The request is well formed, but this machine or process can't serve it (no privilege, no
    /// such device, a limit too low).
    #[error("{0}")]
    Unavailable(String),
    /// A system call failed while a run was under way.
    #[error("{context}: {source}")]
    Io {
        /// What was being attempted.
        context: String,
        /// What the system said.
        source: io::Error,
    },
    /// A run could not be prepared in time.
    #[error("{0}")]
    Late(String),
    /// A run went wrong in a way that no system call reports: bytes that differ, a thread that
    /// panicked.
    #[error("{0}")]
    Run(String),
    /// Who watched the runs ended them before one was complete.
    #[error("stopped before a run was complete")]
    Stopped,
}

impl Error {
    /// Exit code for the command line: 2 for what the user can correct, 1 for a failed run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Input(_) | Error::Unavailable(_) => 2,
            Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 2,
            Error::Io { .. } | Error::Late(_) | Error::Run(_) | Error::Stopped => 1,
        }
    }
}

/// Names what was being attempted when a system call failed.
pub trait Context<T> {
    /// Turns the error into [`Error::Io`] with `context`.
    fn context(self, context: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, context: impl Into<String>) -> Result<T, Error> {
        self.map_err(|e| Error::Io {
            context: context.into(),
            source: e.into(),
        })
    }
}

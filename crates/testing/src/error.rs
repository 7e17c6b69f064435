//! What ends a simulation early.

use std::time::Duration;

/// What a program under test comes to. Any error will do.
pub type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Why a simulation has failed. What is shown names the seed, with which the same run comes back.
#[derive(thiserror::Error)]
#[error("seed {seed}, after {after:?}: {what}")]
#[non_exhaustive]
pub struct SimError {
    /// The seed.
    pub seed: u64,
    /// How long the simulation had run, in its own time.
    pub after: Duration,
    /// What has happened.
    pub what: What,
}

perimeter_base::debug_is_text!(SimError);

/// What has happened in a simulation that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum What {
    /// A program returned an error.
    #[error("`{host}` returned an error: {error}")]
    Program {
        /// The host that it ran on.
        host: String,
        /// The error, as it shows itself.
        error: String,
    },
    /// A program panicked.
    #[error("`{host}` panicked: {message}")]
    Panic {
        /// The host that it ran on.
        host: String,
        /// The panic's message.
        message: String,
    },
    /// Time is up, and some clients have not ended.
    #[error("time is up, and these have not ended: {}", .0.join(", "))]
    TimeUp(Vec<String>),
    /// Virtual threads have failed: one has panicked, or all wait for each other.
    #[error("{0}")]
    Threads(String),
    /// Something is left in the hosts' stacks after their programs have ended.
    #[error("something is left: {}", .0.join("; "))]
    Left(Vec<String>),
}

/// A connection that is left on host `name`.
pub(crate) fn left(name: &str, c: &perimeter::ConnInfo) -> String {
    let (key, state) = (&c.key, c.tcp.state);
    let local = std::net::SocketAddr::new(key.local, key.local_port);
    let remote = std::net::SocketAddr::new(key.remote, key.remote_port);
    format!("`{name}` has a connection from {local} to {remote} in {state:?}")
}

/// The text of a panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or(payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
        .to_owned()
}

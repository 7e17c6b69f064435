//! What threads do with their connections.

use super::Side;

/// What a thread does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Sends the file.
    pub source: bool,
    /// Receives, discards and samples.
    pub sink: bool,
    /// Most bytes of one send call.
    pub write_size: usize,
    /// Most bytes of one receive call.
    pub read_size: usize,
    /// Requests and responses instead of a stream. It neither sources nor sinks then: it receives,
    /// and sends what it owes.
    pub talk: Option<Side>,
    /// Connections are opened anew, by [`super::drive_any`]; `talk` says for what then.
    pub part: Option<Part>,
}

/// Which part a thread has in opening connections anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It opens them.
    Opens,
    /// It accepts them, and closes first.
    Accepts,
}

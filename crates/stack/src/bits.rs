//! What a socket can be ready for, a bit each.

/// Readable: data, end of stream, an accepted connection, or an error.
pub const IN: u8 = 1;
/// Writable: room in the send buffer, or an error.
pub const OUT: u8 = 2;
/// An error is pending.
pub const ERR: u8 = 4;
/// Both directions are finished.
pub const HUP: u8 = 8;
/// The peer has closed its direction.
pub const RDHUP: u8 = 16;
/// Reported whether asked for or not, as in `epoll`.
pub const ALWAYS: u8 = ERR | HUP;

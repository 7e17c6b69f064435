//! A running stack's control socket: a Unix socket that tells what the stack is doing.
//!
//! Opt-in ([`Builder::control`](crate::Builder::control)), for the user who runs the stack only
//! (permissions 0600), removed when the last [`Stack`](crate::Stack) handle goes. JSON, one value
//! a line: the stack greets ([`Greeting`]), the client asks ([`Request`]), the stack answers
//! ([`Reply`]). Requests are bounded in length, clients in number, and both in time; everything
//! runs on threads of its own. A stack of one thread answers from that thread, when it looks at
//! its devices the next time; one that does not come by within [`PATIENCE`] is told of as an
//! error.
//!
//! Frames are captured at the interfaces, under every organization: whoever serves one copies them
//! while somebody looks ([`crate::link::capture`]), and looks at one word for each burst otherwise.
//!
//! Asking for connections enters each perimeter as a socket call does, once, for as long as
//! copying what is known of its connections takes.

mod capture;
mod client;
mod protocol;
mod server;

pub use client::{Client, ControlError};
pub(crate) use protocol::name;
pub use protocol::{
    Connection, Counters, Datagrams, End, Frame, Greeting, Interface, LONGEST_REQUEST, Layer,
    Listener, LockCounts, PROTOCOL, Reply, Request, Segment,
};
pub(crate) use server::Server;

/// How long a stack of one thread may take to come by.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

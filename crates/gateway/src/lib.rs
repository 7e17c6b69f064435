//! A gateway: it takes what an interface brings, whatever the destination, and carries it on by the
//! host's own sockets. What `perimeter gateway` runs.
//!
//! [`gateway`] ties together which destinations are allowed ([`rules`]), how they are reached
//! ([`upstream`]: directly, or by a proxy that speaks [SOCKS5](socks) or [HTTP](http)), the
//! sockets of the stack ([`inside`]), and how bytes get from one stream to another
//! ([`mod@relay`]). Each is of use by itself.
#![forbid(unsafe_code)]

pub mod counts;
pub mod gateway;
pub mod http;
pub mod inside;
pub mod packets;
pub mod relay;
pub mod rules;
mod sessions;
mod shared;
pub mod socks;
pub mod upstream;

pub use counts::Counts;
pub use gateway::Gateway;
pub use shared::Settings;
pub use upstream::{SocketOptions, Target, Upstream};

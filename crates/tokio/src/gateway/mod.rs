//! A gateway: it takes what an interface brings, whatever the destination, and carries it on by the
//! host's own sockets. What `perimeter gateway` runs.
//!
//! [`Gateway`] ties together which destinations are allowed ([`rules`]), how they are reached
//! ([`upstream`]: directly, or by a proxy that speaks [SOCKS5](socks) or [HTTP](http)), and how bytes
//! get from one stream to another ([`mod@relay`]). Each is of use by itself. The inside's sockets are
//! this crate's own: a [`TcpListener`](crate::TcpListener) that [holds SYNs](perimeter::Listen::hold),
//! its streams, and a [`UdpSocket`](crate::UdpSocket) for datagrams of any destination.

mod carry;
pub mod counts;
pub mod http;
pub mod packets;
pub mod relay;
pub mod rules;
mod sessions;
mod shared;
pub mod socks;
pub mod upstream;

pub use carry::Gateway;
pub use counts::Counts;
pub use shared::Settings;
pub use upstream::{SocketOptions, Target, Upstream};

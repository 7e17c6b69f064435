//! IP, routes, neighbours, connection tables, sockets and readiness, and the glue between them
//! and TCP. Generic over the platform and over who may touch what: it never knows which
//! organization it works for.
#![forbid(unsafe_code)]

pub mod aside;
mod asleep;
mod bits;
mod config;
pub mod conn;
pub mod copies;
pub mod count;
pub mod ctx;
pub mod datagram;
pub mod ends;
pub mod flow;
mod forward;
pub mod fragment;
pub mod glue;
pub mod groups;
mod hash;
pub mod hold;
pub mod id;
pub mod input;
mod ipv4;
pub mod ipv6;
mod joined;
pub mod kind;
pub mod late;
pub mod life;
pub mod lifecycle;
pub mod limit;
pub mod listener;
pub mod marks;
pub mod memory;
pub mod merge;
mod neighbour;
pub mod net;
pub mod ops;
pub mod output;
pub mod own;
pub mod passive;
mod path;
pub mod patience;
pub(crate) mod pieces;
pub mod planted;
pub mod pmtu;
pub mod poller;
pub mod port;
pub mod quota;
pub mod ready;
mod received;
pub mod route;
pub mod segment;
pub mod setting;
pub mod shard;
pub mod shared;
pub mod sockets;
pub mod tasks;
mod transit;
pub mod udp;
pub mod wheel;

pub use asleep::Sleeper;
pub use config::Config;
pub use conn::{Access, Bufs, Cell, Conn, ConnInfo, Ran};
pub use count::Count;
pub use ctx::Ctx;
pub use id::SockId;
pub use ipv4::client::{DhcpConfig, Lease};
pub use ipv6::autoconf::Ipv6Config;
pub use kind::{Kind, Lk};
pub use life::{Life, Over};
pub use lifecycle::Flow;
pub use listener::Listener;
pub use net::{Cidr, Route};
pub use ops::{Op, SockError};
pub use own::Own;
pub use port::Offload;
pub use segment::{Seg, Segs};
pub use shard::Shard;
pub use shared::{IfaceSpec, SharedState};
pub use sockets::{Others, Sockets};

/// Frames taken from a device at once.
pub const BURST: usize = 64;

//! Perimeter: a user-space TCP/IP stack in which the parallel organization (who may touch
//! connection state, when, and under what) is chosen at run time.
//!
//! The types follow `std::net` and `mio`: [`TcpListener`] and [`TcpStream`] block or not,
//! [`Poll`] tells readiness. A [`Stack`] owns devices and addresses; sockets belong to a stack
//! and may be shared between threads, except under the one-threaded organization `up`.
//!
//! ```
//! use perimeter::{Stack, link};
//! use std::io::{Read, Write};
//!
//! // Two stacks, back to back over a wire in memory.
//! let native = perimeter::Native::default();
//! let ([a, b], _) = link::wire::pair(&native, link::wire::WireConfig::default());
//! let stack = |org: &str, end, addr: &str| -> Result<Stack, perimeter::BuildError> {
//!     Stack::builder().on_native(native).organization(org)?.interface(end, &[addr])?.build()
//! };
//! let server = stack("connp-l:4", a, "10.0.0.1/24")?;
//! let client = stack("up:shared", b, "10.0.0.2/24")?;
//! let listener = server.listen("10.0.0.1:80")?;
//! let t = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut s, _peer) = listener.accept()?;
//!     s.write_all(b"hello")
//! });
//! let mut text = String::new();
//! client.connect("10.0.0.1:80")?.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//! t.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod addr;
mod batch;
mod builder;
mod check;
pub mod control;
mod debug;
#[cfg(feature = "dns")]
pub mod dns;
mod error;
pub mod file;
mod listen;
mod metrics;
mod names;
pub mod pef;
mod platforms;
pub mod poll;
mod socket;
mod stack;
pub mod task;
mod tcp;
mod udp;

pub use batch::Batch;
pub use builder::Builder;
pub use bytes::Bytes;
#[cfg(feature = "dns")]
pub use dns::{DnsConfig, LookupError};
pub use error::BuildError;
pub use file::SharedFile;
pub use listen::{Listen, Request};
pub use names::{Target, ToSocketAddrs};
#[doc(inline)]
pub use perimeter_link as link;
/// What an organization, a protocol or a device from outside is written with: the crates below this
/// one, so that it is the only one to depend on. `examples/tiny_org.rs` is an organization on it.
///
/// These follow the stack's own needs and change with it, more often than the rest of this crate.
pub mod seam {
    pub use perimeter_base as base;
    pub use perimeter_org as org;
    pub use perimeter_stack as stack;
    pub use perimeter_sync as sync;
    pub use perimeter_tcp as tcp;
    pub use perimeter_wire as wire;
}
/// What there is to know of organizations without running one.
pub mod families {
    pub use perimeter_org::organizations::{families, family, hand_over};
    pub use perimeter_org::spec::{Colour, Family, Look, Marker, Occupancy, Variant};
}
pub use perimeter_org::{Inbound, OrgSpec, SpecError, Stats, Undelivered};
pub use perimeter_stack::hold::Hold;
pub use perimeter_stack::net::Accept;
pub use perimeter_stack::{Cidr, Config, ConnInfo, DhcpConfig, Ipv6Config, Lease, Offload, Route};
pub use perimeter_sync::{Guards, Layer as WorkLayer, Lending, LockClass, LockPolicy, LockStats};
pub use perimeter_sync::{Native, Platform, Work, profile};
#[cfg(feature = "virtual")]
pub use perimeter_sync::{Virtual, virt};
pub use perimeter_tcp::syncache::Cookies as SynCookies;
pub use perimeter_tcp::{CaState, CcKind, Config as TcpConfig, Info, Keepalive, State};
pub use poll::{Event, Events, Interest, Poll, Registry, Source, Token, Trigger, Waker};
pub use socket::TcpSocket;
pub use stack::Stack;
pub use tcp::{TcpListener, TcpStream};
pub use udp::{Datagram, Datagrams, Outgoing, UdpConfig, UdpSocket};

//! Fragments of datagrams, of either family: put together with bounded memory, and cut.
//!
//! Whoever can send us a frame can send fragments that never become a datagram, so what they may
//! pin is bounded: for all together ([`crate::Config::fragments`]), of which one source may have a
//! quarter; beyond the bound the oldest datagram goes, beyond its share a source's new fragments
//! do. Fragments that overlap others kill their datagram, and what else of it comes (RFC 5722,
//! section 4; RFC 8900, section 4.5, wants it for IPv4 too), unless they repeat one exactly (RFC
//! 8200, section 4.5).

mod arriving;
mod cut;
mod reassembly;

pub(crate) use arriving::arrived;
pub use arriving::{abandon, expire};
pub(crate) use cut::{number, send};
pub use reassembly::{REASSEMBLY, Reassembly};

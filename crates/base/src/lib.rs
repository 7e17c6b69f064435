//! What every room shares: time, packet buffers, transmit descriptors.
//!
//! This crate knows no protocol and no thread. It is one of the few rooms where `unsafe` is
//! allowed, for one reason: [`desc::Part`], a payload reference that a device reads the way a
//! DMA engine would, without counting references per segment.

pub mod buf;
pub mod desc;
pub mod rng;
pub mod time;

pub use buf::{PktBuf, PktPool};
pub use bytes::Bytes;
pub use desc::{Part, TxDesc, TxRing};
pub use time::Time;

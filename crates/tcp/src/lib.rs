//! A TCP connection as a pure state machine: no I/O, no lock, no thread, no clock.
#![forbid(unsafe_code)]

pub mod cc;
pub mod isn;
pub mod reasm;
pub mod rtt;
pub mod sack;
pub mod syncache;

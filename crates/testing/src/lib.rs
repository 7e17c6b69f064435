//! Tests of networked programs in virtual time.
#![forbid(unsafe_code)]

mod error;
mod link;
pub mod net;
pub mod seeds;
mod sim;

pub use error::{Result, SimError, What};
pub use link::Link;
pub use sim::{
    Builder, Sim, crash, elapsed, heal, host_name, lookup, partition, restart,
};

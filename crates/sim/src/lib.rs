//! Two stacks back to back in virtual time.
//!
//! A [`Scenario`] names an organization, a number of virtual cores, what the wire does to frames,
//! how much room there is, what the applications do, and how threads are scheduled; everything
//! random follows from its seed. [`run`] plays it through the public library and checks that
//! every byte is right, that both ends close as they should, and that nothing is left: no
//! connection, memory, page, descriptor, frame or thread. A failure's text replays it.
//!
//! ```
//! use perimeter_sim::{Capacity, Mix, Scenario};
//!
//! let org = "connp-l:4".parse()?;
//! let outcome = perimeter_sim::run(&Scenario::new(org, 2, Mix::Loss1, Capacity::Normal, 1))?;
//! assert!(outcome.segments > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod blocking;
pub mod content;
mod datagrams;
mod events;
mod junk;
mod knobs;
mod payload;
mod races;
mod run;
mod scenario;
mod script;
pub mod trace;

pub use perimeter_sync::virt::Schedule;
pub use run::{Outcome, RunError, run, run_length, run_spied, run_traced};
pub use scenario::{Capacity, Drive, Family, Mix, ParseError, Scenario, Workload, early};

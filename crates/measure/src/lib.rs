//! The parallel TCP benchmark: what runs, over what, and what was measured.
//!
//! Rooms, of which none imports one that comes later: [`workload`] (what runs: settings, the event
//! loop of every backend, what a run measured), [`live`] and [`session`] (one run: its threads and
//! its phases), its backends [`linux`] (the host kernel's own sockets), [`net`] (between two
//! machines), [`ours`] (Perimeter's organizations) and [`peers`] (other stacks), any of which [`counted`] watches by the processor's counters; [`bench()`] (one
//! grid of configurations, as a table or JSON) and [`doctor`] (what of the machine can be used).
//! Below all of them [`stats`] and [`misses`] (what is told of a run), and [`host`] (what is known
//! about the machine, and whether it was disturbed).
#![forbid(unsafe_code)]

pub mod backends;
pub mod bench;
pub mod counted;
pub mod doctor;
pub mod error;
pub mod host;
pub mod linux;
pub mod live;
pub mod looks;
pub mod misses;
pub mod net;
pub mod organizations;
pub mod ours;
pub mod peers;
pub mod session;
pub mod stats;
pub mod text;
pub mod units;
pub mod workload;

pub use bench::{bench, report::Report};
pub use error::Error;
pub use workload::Settings;

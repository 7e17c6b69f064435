//! The lab: the parallel TCP benchmark, from its settings to its report.
//!
//! Rooms: [`settings`] (what was asked for, checked), [`plan`] (which runs, in which order, for how
//! long), [`workload`] (the event loop that every backend runs), [`run`] (prepare, warm up,
//! measure, tear down), [`stats`], [`report`] (JSON) and [`table`] (terminal), [`host`] (what is
//! known about the machine). Backends: [`linux`] (the host kernel's own sockets) and [`ours`]
//! (Perimeter's organizations).
//!
//! The workload is the one of Willmann, Rixner and Cox (USENIX ATC 2006, section 3): as many
//! threads as cores, each with an event loop; connections spread evenly over threads and NICs;
//! each thread sends one file, without copying it, over all its connections.
#![forbid(unsafe_code)]

pub mod content;
pub mod error;
pub mod host;
pub mod linux;
pub mod organizations;
pub mod ours;
pub mod plan;
pub mod progress;
pub mod report;
pub mod run;
pub mod settings;
pub mod stats;
pub mod table;
pub mod units;
pub mod workload;

pub use error::Error;
pub use report::Report;
pub use run::bench;
pub use settings::Settings;

//! The lab: the papers' experiments, from a plan to a report.
//!
//! Rooms, of which none imports one that comes later: [`workload`] (what runs: settings, the event
//! loop of every backend, what a run measured), [`live`] and [`session`] (one run: its threads and
//! its phases), its backends [`linux`] (the host kernel's own sockets), [`net`] (between two
//! machines), [`ours`] (Perimeter's organizations), [`cache`] (those, and what they miss) and
//! [`peers`] (other stacks); [`bench()`] (one grid of configurations, as a table or JSON); [`plan`]
//! (each figure and table as a file), [`runner`] (carries plans out), [`record`] (the raw results),
//! [`mod@report`] (HTML, Markdown and CSV from them); [`published`] (what the papers found). Below
//! all of them [`stats`], [`misses`] and [`metric`] (what is told of a run), and [`host`] (what is
//! known about the machine, and whether it was disturbed).
#![forbid(unsafe_code)]

pub mod backends;
pub mod bench;
pub mod cache;
pub mod doctor;
pub mod error;
pub mod host;
pub mod linux;
pub mod live;
pub mod looks;
pub mod metric;
pub mod misses;
pub mod net;
pub mod organizations;
pub mod ours;
pub mod peers;
pub mod plan;
pub mod predict;
pub mod published;
pub mod record;
pub mod report;
pub mod runner;
pub mod session;
pub mod stats;
pub mod text;
pub mod trace;
pub mod units;
pub mod workload;

pub use bench::{bench, report::Report};
pub use error::Error;
pub use workload::Settings;

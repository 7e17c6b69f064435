//! The lab: the papers' experiments, from a plan to a report.
//!
//! It measures with [`perimeter_measure`]. Its rooms, of which none imports one that comes later:
//! [`metric`] (what is told of a run), [`cache`] (what our organizations miss on virtual cores),
//! [`plan`] (each figure and table as a file), [`runner`] (carries plans out), [`record`] (the raw
//! results), [`mod@report`] (HTML, Markdown and CSV from them); [`published`] (what the papers
//! found); [`trace`] (what one send does) and [`predict`] (plans for machines that are not there).
#![forbid(unsafe_code)]

pub mod cache;
mod files;
pub mod metric;
pub mod plan;
pub mod predict;
pub mod published;
pub mod record;
pub mod report;
pub mod runner;
pub mod trace;

use perimeter_measure::{
    Error, backends, bench, counted, error, host, looks, misses, organizations, ours, session,
    stats, text, units, workload,
};

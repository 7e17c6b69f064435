//! Perimeter attacked: a stack over TAP in a process of its own, legitimate clients on the kernel's
//! TCP, an attacker with raw frames, all in a network namespace that goes with the last of them.
//!
//! [`run::attack`] measures one attack on one organization, [`judge`] holds that against the
//! bounds, [`drops`] counts what arrives when a socket is dropped right after the last write.
//! The program `perimeter-attack` (`cargo xtask attack`) is all of it by command.
#![forbid(unsafe_code)]

pub mod attacks;
pub mod client;
pub mod content;
pub mod drops;
pub mod flood;
pub mod frame;
pub mod handle;
pub mod hoard;
pub mod judge;
pub mod net;
pub mod raw;
pub mod report;
pub mod run;
pub mod victim;
pub mod wire;

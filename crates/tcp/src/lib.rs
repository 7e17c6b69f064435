//! A TCP connection as a pure state machine: no I/O, no lock, no thread, no clock.
//!
//! Everything takes the time as an argument and returns what to do. A connection is three
//! values, because an organization may protect them separately:
//!
//! - [`Tcb`], the transmission control block: sequence numbers, windows, timers, congestion
//!   control, the scoreboard and the out-of-order queue;
//! - [`SndBuf`], the bytes from SND.UNA on, held by reference until they are acknowledged;
//! - [`RcvBuf`], the bytes in order that the application has not yet read.
//!
//! The caller feeds segments to [`Tcb::input`], moves what comes out into the buffers, asks
//! [`Tcb::plan`] for segments until there is none, and keeps one timer at [`Tcb::deadline`].
//! Connections being set up by a peer live in the [`SynCache`].
//!
//! It needs no std, only an allocator: without the default feature `std` that is true of
//! `perimeter_base` below it too.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cc;
pub mod config;
pub mod info;
pub mod isn;
pub mod rcvbuf;
pub mod reasm;
pub mod rtt;
pub mod sack;
pub mod sndbuf;
pub mod syncache;
pub mod tcb;

pub use cc::CcKind;
pub use config::{Config, Keepalive, Layers};
pub use info::{CaState, Info};
pub use rcvbuf::RcvBuf;
pub use sndbuf::{CHUNK, SndBuf};
pub use syncache::{Established, SynCache};
pub use tcb::types::{
    Events, Input, Large, Path, Queued, Repeats, Rst, Run, SegPlan, TcpError, TimerOutcome, Timers,
    Unreachable,
};
pub use tcb::{State, Tcb};

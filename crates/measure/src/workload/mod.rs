//! The parallel TCP workload: one event loop per thread over any kind of socket.
//!
//! The workload is that of Willmann, Rixner and Cox (USENIX ATC 2006, section 3): as many threads
//! as cores, each with an event loop; connections spread evenly over threads and NICs; each thread
//! sends one file, without copying it, over all its connections. [`settings`] says what is to run,
//! a session runs it once, [`sample`] is what comes of it; `bench` and the lab's plans are made of
//! those three.
//!
//! A backend implements [`Endpoint`]: one thread's sockets with their poller. [`drive()`] is the
//! event loop, written once, of which each thread of a session runs one.

pub mod content;
mod control;
pub mod datagrams;
mod drive;
mod exchange;
mod latency;
pub mod reconnect;
mod roles;
pub mod sample;
pub mod settings;
mod spread;
mod tally;

pub use content::{Content, FILE_SIZE};
#[cfg(test)]
pub(crate) use control::Answer;
pub use control::{Control, Phase};
pub use drive::drive;
pub use exchange::{Exchange, Side};
pub(crate) use latency::latencies;
pub use latency::{Latency, summary};
pub use reconnect::{Reconnects, drive_any};
pub use roles::{Part, Roles};
pub use sample::{LockTimes, Locks, PathTime, Raw, Received, Sample, TOLERANCE, Times};
pub use settings::{
    BUFFER, Coalescing, Configuration, Device, Direction, Family, Inbound, MTU, SEGMENT, Settings,
    payload,
};
pub use spread::{Place, spread};
pub use tally::{Tally, rounds};

use std::{io, time::Duration};

/// Longest time that an event loop sleeps without looking at the phase of the run.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// One socket's readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Index of the connection within its endpoint.
    pub connection: usize,
    /// Data, end of stream or an error can be read.
    pub readable: bool,
    /// There is room to send.
    pub writable: bool,
}

/// What an endpoint knows about the time spent inside its calls, cumulative, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inside {
    /// Work of the ideal peer on this thread.
    pub peer_ns: u64,
    /// Spinning: polling or waiting for a lock without result.
    pub spin_ns: u64,
    /// Parked, using no processor.
    pub idle_ns: u64,
}

/// One thread's sockets and poller. Connections are named by index, from 0 to
/// [`Endpoint::connections`] − 1. All calls are non-blocking but [`Endpoint::wait`]; a socket that
/// can't go on returns [`io::ErrorKind::WouldBlock`]. Readiness is level-triggered, or
/// edge-triggered if the endpoint reports a socket again until it has returned `WouldBlock`.
pub trait Endpoint {
    /// Number of connections.
    fn connections(&self) -> usize;

    /// Replaces `ready` by the sockets that are ready, sleeping at most `timeout` while there is
    /// none. An empty result is no error. Costs in proportion to what is ready.
    ///
    /// # Errors
    /// What the poller reports.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()>;

    /// Sends, without copying, at most `len` bytes of the file from position `at`; `at + len` is
    /// within the file. Returns how many were taken, at least 1.
    ///
    /// # Errors
    /// `WouldBlock` without room; else what the socket reports.
    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize>;

    /// Discards at most `max` received bytes without looking at them. Returns how many; 0 at the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` without data; else what the socket reports.
    fn discard(&mut self, connection: usize, max: usize) -> io::Result<usize>;

    /// Reads received bytes into `buffer`. Returns how many; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` without data; else what the socket reports.
    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize>;

    /// How the time inside this endpoint's calls divides; `None` where the host's kernel does the
    /// work and nobody can tell, or where the stack counts for all its threads together.
    fn inside(&self) -> Option<Inside> {
        None
    }

    /// Called when counting begins and when it ends, for endpoints that keep counters of their own.
    fn mark(&mut self) {}

    /// Called when somebody watches, for the same counters since it was called before.
    fn look(&mut self) {}

    /// Bytes that the endpoint itself has compared with what they must be: of datagrams, whose
    /// place in a stream says nothing. The event loop compares none then.
    fn verified(&self) -> Option<u64> {
        None
    }

    /// Bytes acknowledged by the peer on `connection` since it was opened, if the stack tells;
    /// else the event loop counts what the stack took.
    fn acknowledged(&self, connection: usize) -> Option<u64> {
        let _ = connection;
        None
    }
}

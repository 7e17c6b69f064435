//! What threads count.

use super::{Inside, Latency, summary};
use hdrhistogram::Histogram;

/// What one thread did between the phases [`super::Phase::Measure`] and [`super::Phase::Stop`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Length of the thread's window in ns.
    pub elapsed_ns: u64,
    /// The thread's CPU clock in ns.
    pub cpu_ns: u64,
    /// Ready to run while others had the core, in ns.
    pub delay_ns: u64,
    /// Outside the endpoint's calls, in ns.
    pub app_ns: u64,
    /// Inside the endpoint's calls that send or receive, in ns.
    pub call_ns: u64,
    /// Inside the endpoint's [`super::Endpoint::wait`], in ns.
    pub wait_ns: u64,
    /// How the time inside divides, if the endpoint can tell.
    pub inside: Option<Inside>,
    /// Bytes sent, by connection: acknowledged ones where the stack tells, else taken ones.
    pub sent: Vec<u64>,
    /// Bytes received, by connection.
    pub received: Vec<u64>,
    /// Whether the thread's connections receive at all.
    pub sink: bool,
    /// Send and receive calls.
    pub calls: u64,
    /// Received bytes that were compared with the file, over the whole life of the thread.
    pub verified: u64,
    /// On the side that opens exchanges: rounds, and how long they took.
    pub talked: Option<(u64, Histogram<u64>)>,
}

impl Tally {
    /// So many of something in the thread's window, as a rate per second.
    pub fn per_second(&self, n: u64) -> f64 {
        n as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Bytes received, if receiving is the thread's part: what counts where both ends are here.
    pub fn sunk(&self) -> u64 {
        match self.sink {
            true => self.received.iter().sum(),
            false => 0,
        }
    }
}

/// Rounds of all threads together, and how long they took.
pub fn rounds(tallies: &[Tally]) -> (u64, Option<Latency>) {
    let talked = || tallies.iter().filter_map(|t| t.talked.as_ref());
    let rounds = talked().map(|t| t.0).sum();
    (rounds, summary(talked().map(|t| t.1.clone())))
}

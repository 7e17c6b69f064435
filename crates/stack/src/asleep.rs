//! How long threads sleep, so that a benchmark can tell a parked thread from a busy one.

use crate::count::Count;
use crate::kind::Kind;
use crate::shared::SharedState;
use perimeter_sync::Platform;

/// One wait in this many is looked at for what it costs.
const SAMPLE: u64 = 16;

/// Whose thread sleeps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// One that has called the stack.
    Caller,
    /// One of the stack's, which serves devices or runs the protocol, for want of work.
    Server,
}

impl<K: Kind> SharedState<K> {
    /// Runs `f`, which parks the calling thread, and counts the time in there: every wait for
    /// work, or for another thread's answer, belongs in here. Falling asleep and waking up are
    /// work, and so is a wait that returns at once; as reading a thread's CPU clock costs as much
    /// as that, one of a caller's waits in `SAMPLE` tells how much it is. The clock's low bits
    /// choose which. (A server's CPU clock says all about it: it does nothing but serve.)
    pub fn asleep<R>(&self, who: Sleeper, f: impl FnOnce() -> R) -> R {
        let lane = self.p.lane();
        let start = self.p.now();
        let sampled = who == Sleeper::Caller && start.0.is_multiple_of(SAMPLE);
        let cpu = sampled.then(|| self.p.cpu_ns());
        let out = f();
        if let Some(cpu) = cpu {
            self.count(lane, Count::ParkCpuNs, SAMPLE * (self.p.cpu_ns() - cpu));
        }
        let idle = match who {
            Sleeper::Caller => Count::IdleNs,
            Sleeper::Server => Count::ServerIdleNs,
        };
        self.count(lane, idle, self.p.now().nanos_since(start));
        out
    }
}

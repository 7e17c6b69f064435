//! How much of a run counts.

use super::machine::{KERNEL, Machine};
use crate::organizations::Organization;
use crate::workload::{Configuration, Direction, Settings};
use std::time::Duration;

/// Each core has turns of its own, so less time has to count where there are many: half of it on
/// twice so many cores.
const MANY_CORES: u32 = 8;
/// Turns that may count at least, however many cores there are.
const LEAST_TURNS: u32 = 2;

/// Turns that count at least, however well they agree; and where costs were varied.
const LEAST_COUNTED: u32 = 3;
const LEAST_AGAIN: u32 = 2;
/// They do agree when their mean is known to that part of it (its standard error).
const AGREE: f64 = 0.02;

/// Before a run is looked at again it goes on for one part of what counts, and then another counts.
const SETTLE: u32 = 4;
const AGAIN: u32 = 2;

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Segments of each connection before anything counts: what its buffer holds, 181 of them, is
    /// written before the first is sent, and until that is acknowledged its application has no turn.
    pub warm_least: u64,
    /// As many, where they come to no more than `warm_most` in all: windows that are longer than those
    /// of the beginning (`GROWN`) have grown by then.
    pub warm_segments: u64,
    /// See there.
    pub warm_most: u64,
    /// Segments that count, at least.
    pub segments: u64,
    /// Virtual time that counts, at least, on few cores.
    pub time: Duration,
    /// Turns of threads that share a core which count, at most, on few cores when receiving: how much
    /// waits for readers, and whether caches still hold it, goes up and down with those. Fewer do as
    /// soon as they agree.
    pub turns: u32,
}

impl Effort {
    /// Whether what so many connections send before anything counts is most of a run.
    pub fn is_long(&self, connections: u32) -> bool {
        u64::from(connections) * self.warm_least > self.warm_most
    }

    /// Whether what so many connections send before anything counts is a small part of a run.
    pub fn is_short(&self, connections: u32) -> bool {
        /// What is sent before anything counts is one part of so many of `warm_most`, or less.
        const PART: u64 = 4;
        u64::from(connections) * self.warm_segments * PART <= self.warm_most
    }

    /// What counts on `cores` cores of a machine.
    pub(super) fn counting(
        &self,
        machine: &Machine,
        settings: &Settings,
        cores: usize,
    ) -> Counting {
        let fewer = (cores as u32 / MANY_CORES).max(1);
        let most = match settings.direction {
            Direction::Receive => (self.turns / fewer).max(LEAST_TURNS.min(self.turns)),
            _ => 0,
        };
        Counting {
            segments: self.segments,
            time: self.time / fewer,
            turn: Duration::from_nanos(machine.costs.slice as u64),
            turns: (LEAST_COUNTED.min(most), most),
        }
    }

    /// About how many segments a run comes to, of which `parts` parts count: which of several takes
    /// longest to simulate.
    pub fn length(
        &self,
        machine: &Machine,
        settings: &Settings,
        configuration: &Configuration,
        (cores, parts): (usize, u64),
    ) -> u64 {
        /// Time that a core takes for a segment, about, ns.
        const SEGMENT_NS: u64 = 2000;
        let cores = used(configuration, cores);
        let counting = self.counting(machine, settings, cores);
        let time = (counting.time + counting.turns.0 * counting.turn).as_nanos() as u64;
        let counted = self.segments.max(time * cores as u64 / SEGMENT_NS);
        u64::from(configuration.connections) * self.warm_least + parts * counted
    }

    /// For a prediction.
    pub const USUAL: Effort = Effort {
        warm_least: 190,
        warm_segments: 360,
        warm_most: 120_000,
        segments: 40_000,
        time: Duration::from_millis(10),
        turns: 10,
    };
    /// For a look.
    pub const QUICK: Effort = Effort {
        warm_least: 190,
        warm_segments: 360,
        warm_most: 40_000,
        segments: 15_000,
        time: Duration::from_millis(4),
        turns: 3,
    };
}

/// Whether what runs has one core however many there are: one thread, or a uniprocessor's kernel, in
/// which NICs interrupt the one application.
pub(super) fn has_one_core(of: &Organization) -> bool {
    of.single_threaded() || of.to_string() == KERNEL
}

/// On how many of `cores` cores it runs.
pub(super) fn used(configuration: &Configuration, cores: usize) -> usize {
    match has_one_core(&configuration.organization) && configuration.threads <= 1 {
        true => 1,
        false => cores.max(1),
    }
}

/// What counts: segments and time, and where threads take turns, as many of those as agree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Counting {
    /// Segments, at least.
    pub segments: u64,
    /// Virtual time, at least.
    pub time: Duration,
    /// How long a turn is.
    pub turn: Duration,
    /// Turns, at least and at most.
    pub turns: (u32, u32),
}

impl Counting {
    fn part(self, of: u32, turns: (u32, u32)) -> Counting {
        Counting {
            segments: self.segments / u64::from(of),
            time: self.time / of,
            turns,
            ..self
        }
    }

    /// What passes once costs have changed before anything counts again.
    pub fn settling(self) -> Counting {
        let one = self.turns.1.min(1);
        self.part(SETTLE, (one, one))
    }

    /// What counts then.
    pub fn again(self) -> Counting {
        let most = self.turns.1.div_ceil(AGAIN);
        self.part(AGAIN, (LEAST_AGAIN.min(most), most))
    }

    /// Whether what was moved in each of these turns is enough.
    pub fn is_enough(&self, moved: &[f64]) -> bool {
        let (least, most) = self.turns;
        let n = moved.len() as u32;
        n >= most || (n >= least && agree(moved))
    }
}

fn agree(moved: &[f64]) -> bool {
    let n = moved.len() as f64;
    let mean = moved.iter().sum::<f64>() / n;
    let squares: f64 = moved.iter().map(|m| (m - mean).powi(2)).sum();
    n > 1.0 && (squares / (n - 1.0) / n).sqrt() <= AGREE * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_connections_have_runs_of_their_own_and_many_share_one() {
        let usual = Effort::USUAL;
        let of = |n| (usual.is_short(n), usual.is_long(n));
        assert_eq!(
            [6, 24, 192, 16_384].map(of),
            [(true, false), (true, false), (false, false), (false, true)]
        );
    }

    #[test]
    fn turns_count_until_they_agree() {
        let counting = Counting {
            segments: 1000,
            time: Duration::from_millis(1),
            turn: Duration::from_millis(4),
            turns: (3, 10),
        };
        let enough = |moved: &[f64]| counting.is_enough(moved);
        assert!(!enough(&[]) && !enough(&[5.0, 5.0]));
        assert!(enough(&[5.0, 5.0, 5.1]));
        // Every third turn is another one's.
        assert!(!enough(&[5.0, 5.0, 8.0, 5.0, 5.0, 8.0]));
        assert!(enough(&[5.0, 8.0].repeat(5)), "no more than ten");
        let again = counting.again();
        assert_eq!(
            (again.segments, again.turns, counting.settling().turns),
            (500, (2, 5), (1, 1))
        );
        let none = Counting {
            turns: (0, 0),
            ..counting
        };
        assert!(none.is_enough(&[]) && none.again().is_enough(&[]));
        assert!(none.settling().is_enough(&[]));
    }
}

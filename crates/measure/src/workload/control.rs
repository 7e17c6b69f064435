//! What the threads of a run share: its phase, and what they are asked.

use super::Tally;
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Phase of a run, common to all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Endpoints are being made; event loops wait.
    Set,
    /// Traffic flows and isn't counted.
    Warm,
    /// Traffic is counted.
    Measure,
    /// Counting has ended; event loops return.
    Stop,
}

/// The phase, as shared by the threads of a run. It only moves forward.
#[derive(Debug, Default)]
pub struct Control {
    phase: AtomicU8,
    counting: AtomicUsize,
    /// The other end, elsewhere, may stop first.
    second: bool,
    /// How often somebody who watches has asked what was done since he asked before.
    asked: AtomicU32,
    told: Mutex<Vec<Answer>>,
}

/// What an event loop did since it was asked before.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its thread.
    pub from: ThreadId,
    /// What it did.
    pub tally: Tally,
    /// Rounds that it completed, if that is its part.
    pub rounds: Option<u64>,
    /// Processor time that it took to find out.
    pub cost: Duration,
}

/// How long the stop may take to follow the end of a connection.
const FOLLOWS: Duration = Duration::from_secs(3);

impl Control {
    /// Of a run whose other end may stop first.
    pub(crate) fn second() -> Control {
        Control {
            second: true,
            ..Control::default()
        }
    }

    /// Whether an error is the end of the run, and so none: it comes with the stop, or before it
    /// if the other end stops first.
    pub(super) fn excuses(&self) -> bool {
        let until = Instant::now() + FOLLOWS;
        while self.second && self.phase() == Phase::Measure && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.phase() == Phase::Stop
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Set,
            1 => Phase::Warm,
            2 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    /// How many event loops have begun to count.
    pub fn counting(&self) -> usize {
        self.counting.load(Ordering::Acquire)
    }

    /// One more has begun to count.
    pub fn begins_to_count(&self) {
        self.counting.fetch_add(1, Ordering::AcqRel);
    }

    /// Moves on to `phase`; going back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    /// Asks every event loop what it did since it was asked before. Each answers at its next turn,
    /// so none of them counts for anybody while nobody asks.
    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// How often that was asked.
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// The answers so far; who asks again clears them.
    pub(crate) fn answers(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_advance() {
        let control = Control::default();
        assert_eq!(control.phase(), Phase::Set);
        control.advance(Phase::Stop);
        control.advance(Phase::Warm);
        assert_eq!(control.phase(), Phase::Stop);
    }
}

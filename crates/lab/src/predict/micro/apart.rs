//! What a cache line takes from one core to another.

use crate::{host, stats::median};
use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

/// Rounds of a batch, and batches.
const ROUNDS: u32 = 200;
const BATCHES: u32 = 15;
/// Looks in vain after which the other core is busy with something else.
const PATIENCE: u32 = 1 << 20;

/// What it takes, ns: the median of batches, as threads that share lines meet that and not the
/// fastest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Apart(pub f64);

/// A line, and the one that is fetched with it.
#[repr(align(128))]
struct Line(AtomicU32);

impl Apart {
    /// Measures it; `None` with one core, or where one was busy. Takes some milliseconds.
    pub fn measure() -> Option<Apart> {
        if host::cores() < 2 {
            return None;
        }
        let turn = Line(AtomicU32::new(0));
        let side = |me: u32| {
            host::pin(me as usize);
            let mut batches = Vec::new();
            for batch in 0..BATCHES {
                let before = Instant::now();
                for round in batch * ROUNDS..(batch + 1) * ROUNDS {
                    let mine = || turn.0.load(Ordering::Acquire) == 2 * round + me;
                    let look = |_| {
                        hint::spin_loop();
                        mine()
                    };
                    if !mine() && !(0..PATIENCE).any(look) {
                        return None;
                    }
                    turn.0.store(2 * round + me + 1, Ordering::Release);
                }
                batches.push(before.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
            }
            median(&batches)
        };
        let round = thread::scope(|s| {
            let other = s.spawn(|| side(1));
            let mine = s.spawn(|| side(0)).join().ok().flatten();
            other.join().ok().flatten().and(mine)
        });
        // There and back.
        round.map(|ns| Apart(ns / 2.0))
    }

    /// Whether that is far.
    pub fn is_far(&self) -> bool {
        host::apart::is_far(2.0 * self.0)
    }
}

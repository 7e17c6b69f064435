//! What cache lines take from one core to another: one alone, and several that are asked for one
//! before the other has come.

use crate::{host, stats::median};
use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

/// Lines that are touched at a time, beside the one that says whose turn it is.
const LINES: usize = 8;
/// Rounds of a batch, and batches.
const ROUNDS: u32 = 200;
const BATCHES: u32 = 15;
/// Looks in vain after which the other core is busy with something else.
const PATIENCE: u32 = 1 << 20;

/// What was found, ns. Medians of batches: threads that share lines meet those, and not the fastest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Apart {
    /// A line.
    pub line: f64,
    /// Each of some that come together.
    pub each: f64,
}

/// A line, and the one that is fetched with it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

impl Apart {
    /// Measures it; `None` with one core, or where one was busy. Takes some milliseconds.
    pub fn measure() -> Option<Apart> {
        let [alone, some] = [0, LINES].map(round);
        let (alone, some) = (alone?, some?);
        Some(Apart {
            // Both sides fetch all of them.
            line: alone / 2.0,
            each: ((some - alone) / (2 * LINES) as f64).max(0.0),
        })
    }

    /// Whether that is far.
    pub fn is_far(&self) -> bool {
        host::apart::is_far(2.0 * self.line)
    }
}

/// Two cores take turns at changing `n` lines: a round, ns.
fn round(n: usize) -> Option<f64> {
    if host::cores() < 2 {
        return None;
    }
    let lines: Vec<Line> = (0..n).map(|_| Line::default()).collect();
    let turn = Line::default();
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
                for line in &lines {
                    let was = line.0.load(Ordering::Relaxed);
                    line.0.store(was + 1, Ordering::Relaxed);
                }
                turn.0.store(2 * round + me + 1, Ordering::Release);
            }
            batches.push(before.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
        median(&batches)
    };
    thread::scope(|s| {
        let other = s.spawn(|| side(1));
        let mine = s.spawn(|| side(0)).join().ok().flatten();
        other.join().ok().flatten().and(mine)
    })
}

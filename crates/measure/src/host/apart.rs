//! How far apart two cores are: what a cache line takes from one to the other and back.
//!
//! On a virtual machine this changes while nothing else seems to: the hypervisor places its cores
//! now side by side, now at two ends of the processor. Whatever threads share then costs several
//! times as much, and no counter of the guest shows it.

use std::{
    hint,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Instant,
};

/// Rounds of a batch, of which the fastest counts: others were interrupted.
const ROUNDS: u32 = 200;
/// Batches.
const BATCHES: u32 = 8;
/// Looks in vain after which the other core is busy with something else.
const PATIENCE: u32 = 1 << 20;
/// Says that nobody answers any more.
const OVER: u32 = u32::MAX;
/// From how many ns on, for a line there and back, cores are far apart. Two threads of one core need
/// some 25 ns, cores with a common cache 40 to 70, others 200 and more; of the recorded runs
/// none had a line take between 80 and 260. Some machines have 100 to 160 all the time: those are
/// near, and a bound amid them would sort their runs by chance. It is a fixed time, so that a
/// recording made with far cores alone is not taken for one with near ones.
pub const FAR_NS: f64 = 200.0;

/// What every [`sign`] begins with.
const SIGN: &str = "slow core-to-core transfers";
/// What they began with in records of version 0.1 and before.
const SIGN_BEFORE: &str = "cores were far apart";

/// Whether a sign that was recorded is one of those.
pub fn is_sign(sign: &str) -> bool {
    sign.starts_with(SIGN) || sign.starts_with(SIGN_BEFORE)
}

/// The shortest that was seen in this process, ns.
static BEST: Mutex<f64> = Mutex::new(f64::INFINITY);

#[repr(align(128))]
struct Line(AtomicU32);

impl Line {
    /// Whether it came to hold `value` within patience.
    fn becomes(&self, value: u32) -> bool {
        for _ in 0..PATIENCE {
            match self.0.load(Ordering::Acquire) {
                v if v == value => return true,
                OVER => return false,
                _ => hint::spin_loop(),
            }
        }
        self.0.store(OVER, Ordering::Release);
        false
    }

    /// The time of a round in each batch, ns, on the core that begins.
    fn lead(&self) -> Option<Vec<f64>> {
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let begun = Instant::now();
            for round in batch * ROUNDS..(batch + 1) * ROUNDS {
                self.0.store(2 * round + 1, Ordering::Release);
                if !self.becomes(2 * round + 2) {
                    return None;
                }
            }
            batches.push(begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
        Some(batches)
    }

    fn follow(&self) {
        for round in 0..ROUNDS * BATCHES {
            if !self.becomes(2 * round + 1) {
                return;
            }
            self.0.store(2 * round + 2, Ordering::Release);
        }
    }
}

/// What a line takes from the first core that this process may use to the second and back, in ns.
/// `None` with one core, or where one of the two is busy. Takes well below a millisecond, and
/// some at most.
pub fn round_trip() -> Option<f64> {
    let ns = batches()?.into_iter().fold(f64::INFINITY, f64::min);
    let mut best = BEST.lock().unwrap_or_else(PoisonError::into_inner);
    *best = best.min(ns);
    Some(ns)
}

/// The median of some batches in place of the fastest: what threads that share lines meet.
pub fn usual_round_trip() -> Option<f64> {
    crate::stats::median(&batches()?)
}

fn batches() -> Option<Vec<f64>> {
    if super::cores() < 2 {
        return None;
    }
    let line = Line(AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            super::pin(1);
            line.follow();
        });
        let leader = scope.spawn(|| {
            super::pin(0);
            line.lead()
        });
        leader.join().ok().flatten()
    })
}

/// What is to be said of a line that took so long, with the shortest of this process beside it.
pub fn sign(ns: f64) -> Option<String> {
    let best = *BEST.lock().unwrap_or_else(PoisonError::into_inner);
    is_far(ns).then(|| format!("{SIGN} ({ns:.0} ns for a cache line and back, {best:.0} at best)"))
}

/// Whether cores between which a line takes `ns`, there and back, are far apart.
pub fn is_far(ns: f64) -> bool {
    ns >= FAR_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_and_comes() {
        if crate::host::cores() < 2 {
            assert_eq!(round_trip(), None);
            return;
        }
        // Other tests may have a core for a while.
        let ns = (0..100).find_map(|_| round_trip());
        let ns = ns.expect("the cores were busy a hundred times");
        assert!((1.0..1e6).contains(&ns), "{ns}");
    }

    #[test]
    fn nobody_waits_for_ever() {
        let line = Line(AtomicU32::new(0));
        assert_eq!(line.lead(), None);
        assert_eq!(line.0.load(Ordering::Relaxed), OVER);
        line.follow();
    }

    #[test]
    fn near_and_far_are_told_apart() {
        for (ns, far) in [
            (25.0, false),
            (40.0, false),
            (63.0, false),
            (150.0, false),
            (199.0, false),
            (200.0, true),
            (300.0, true),
        ] {
            assert_eq!(is_far(ns), far, "{ns}");
            assert_eq!(sign(ns).is_some_and(|s| is_sign(&s)), far, "{ns}");
        }
    }
}

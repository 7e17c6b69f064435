//! How long a thread looks around before it goes to sleep.
//!
//! Falling asleep and being woken takes some microseconds of both cores, and ten times that until the
//! sleeper runs where cores have gone to sleep as well. So a thread whose waits have been short lately
//! looks around for that long first. How long adapts as KVM's halt polling does: it doubles when a wait
//! was so short that looking around would have caught it, and is halved when it was longer, down to
//! nothing.
//!
//! A thread that looks around yields its core, as the thread that it waits for may be on the same one. If
//! another thread keeps the core, the kernel would have woken a sleeper long before. Then the thread does
//! not look around for a while, and for longer if that happens again soon.

use perimeter_base::Time;

/// The least that a thread looks around, if at all, ns.
const LEAST: u32 = 5_000;

/// A yield that takes this long has given the core to a thread that keeps it, ns.
pub const LOST: u64 = 500_000;

/// The shortest and the longest time for which a thread that has lost its core does not look around,
/// ns.
const PAUSES: (u64, u64) = (32_000_000, 1_000_000_000);

/// A loss within this many pauses after the last one makes the next pause longer.
const SOON: u64 = 8;

/// How long a thread looks around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    ns: u32,
    /// The last pause, and its end.
    pause: u64,
    pause_ends: Time,
}

impl Patience {
    /// How long to look around from `now` on, ns.
    pub fn at(&self, now: Time) -> u32 {
        match now < self.pause_ends {
            true => 0,
            false => self.ns,
        }
    }

    /// A wait of `waited` ns was not cut short by looking around, which takes at most `most` ns.
    pub fn slept(&mut self, waited: u64, most: u32) {
        self.ns = match waited <= most.into() {
            true => self.ns.saturating_mul(2).clamp(LEAST.min(most), most),
            false if self.ns / 2 < LEAST => 0,
            false => self.ns / 2,
        };
    }

    /// Another thread kept the core until `now`.
    pub fn lost(&mut self, now: Time) {
        let (least, most) = PAUSES;
        let soon = now < self.pause_ends.plus(SOON * self.pause);
        self.pause = match soon {
            true => (2 * self.pause).clamp(least, most),
            false => least,
        };
        self.pause_ends = now.plus(self.pause);
        self.ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_waits() {
        let after = |patience, waits: &[u64]| {
            let mut p = Patience {
                ns: patience,
                ..Patience::default()
            };
            waits.iter().for_each(|waited| p.slept(*waited, 50_000));
            p.at(Time(1))
        };
        assert_eq!(after(0, &[20_000]), 5_000);
        assert_eq!(after(0, &[20_000, 30_000, 50_000]), 20_000);
        assert_eq!(after(0, &[20_000; 9]), 50_000);
        assert_eq!(after(50_000, &[50_001]), 25_000);
        assert_eq!(after(50_000, &[1_000_000; 4]), 0);
        let mut short = Patience::default();
        short.slept(1_000, 3_000);
        assert_eq!(short.at(Time(1)), 3_000);
        short.slept(4_000, 3_000);
        assert_eq!(short.at(Time(1)), 0);
    }

    #[test]
    fn who_loses_the_core_again_and_again_hardly_looks_around() {
        let mut p = Patience::default();
        let mut now = Time(1_000_000);
        let mut losses = 0;
        let end = now.plus(20_000_000_000);
        while now < end {
            // Each wait is short, and each look around costs the core for 3 ms.
            if p.at(now) > 0 {
                now = now.plus(3_000_000);
                p.lost(now);
                losses += 1;
            } else {
                p.slept(10_000, 50_000);
                now = now.plus(10_000);
            }
        }
        assert!((10..=30).contains(&losses), "{losses} in 20 s");
        // Ten seconds later nothing is left of it.
        now = now.plus(10_000_000_000);
        p.slept(10_000, 50_000);
        assert!(p.at(now) > 0);
        p.lost(now);
        assert_eq!(p.at(now), 0);
        p.slept(10_000, 50_000);
        assert!(p.at(now.plus(PAUSES.0)) > 0, "the shortest pause");
    }
}

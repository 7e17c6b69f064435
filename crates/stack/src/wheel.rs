//! The timer wheel: hierarchical, O(1) to insert, re-armed lazily.
//!
//! A connection has at most one live entry. Moving its deadline later is a store in the
//! connection; when the entry comes due it is put back at the new deadline. Only moving a
//! deadline earlier inserts again, and the superseded entry is ignored when it comes due.

use perimeter_base::Time;

/// Log2 of the tick in nanoseconds: 2^20 ns, about 1.05 ms. TCP's finest timer is the delayed
/// ACK (40 ms), so a tick of lateness is under 3 %.
const TICK_SHIFT: u32 = 20;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Eight levels of 64 slots cover every time there is: 2^64 ns are 2^44 ticks. With fewer, a
/// near deadline across the last level's boundary would have no slot of its own.
const LEVELS: usize = 8;

/// What is due: a socket's place, and the time it was armed for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Slot of the connection in its shard.
    pub slot: u32,
    /// Generation of the connection.
    pub generation: u32,
    /// When the entry was armed to fire.
    pub at: Time,
}

/// A hierarchical timer wheel.
pub struct Wheel {
    tick: u64,
    /// What [`Wheel::next`] says: asked after every packet, so not searched for.
    next: Time,
    occupied: [u64; LEVELS],
    slots: Box<[[Vec<Due>; SLOTS]; LEVELS]>,
    len: usize,
}

impl Wheel {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Time) -> Wheel {
        Wheel {
            tick: now.0 >> TICK_SHIFT,
            next: Time::NEVER,
            occupied: [0; LEVELS],
            slots: Box::new(core::array::from_fn(|_| {
                core::array::from_fn(|_| Vec::new())
            })),
            len: 0,
        }
    }

    /// Entries, superseded ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry. One that is already due fires at the next [`Wheel::expire`].
    pub fn insert(&mut self, due: Due) {
        // Round up: never early.
        let t = (due.at.0.saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT).max(self.tick + 1);
        self.len += 1;
        self.place(t, due);
    }

    fn place(&mut self, t: u64, due: Due) {
        // The level is that of the highest digit in which `t` differs from now: within a
        // level, slots ahead of the hand in the same turn are unambiguous.
        let diff = t ^ self.tick;
        let level = if diff == 0 {
            0
        } else {
            ((63 - diff.leading_zeros()) / LEVEL_BITS) as usize
        };
        let index = (t >> (LEVEL_BITS * level as u32)) as usize & (SLOTS - 1);
        let shift = LEVEL_BITS * level as u32;
        let start = Time((t >> shift << shift).saturating_mul(1 << TICK_SHIFT));
        self.next = self.next.min(start);
        self.slots[level][index].push(due);
        self.occupied[level] |= 1 << index;
    }

    /// The earliest time at which [`Wheel::expire`] has something to do: exact to a tick for
    /// near deadlines, early for far ones.
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    fn search(&self) -> Time {
        for level in 0..LEVELS {
            let bits = self.occupied[level];
            if bits == 0 {
                continue;
            }
            let shift = LEVEL_BITS * level as u32;
            let hand = (self.tick >> shift) as u32 & (SLOTS as u32 - 1);
            let ahead = bits.rotate_right(hand + 1).trailing_zeros() + 1;
            let t = ((self.tick >> shift) + u64::from(ahead)) << shift;
            return Time(t.saturating_mul(1 << TICK_SHIFT));
        }
        Time::NEVER
    }

    /// Moves the hand to `now` and appends what came due to `out`.
    pub fn expire(&mut self, now: Time, out: &mut Vec<Due>) {
        let target = now.0 >> TICK_SHIFT;
        while self.tick < target {
            let next = self.next().0 >> TICK_SHIFT;
            if next > target {
                self.tick = target;
                return;
            }
            self.tick = next;
            self.turn(out);
            self.next = self.search();
        }
    }

    /// Empties the slots under the hand, highest level first; what is not due yet moves down.
    fn turn(&mut self, out: &mut Vec<Due>) {
        for level in (0..LEVELS).rev() {
            let shift = LEVEL_BITS * level as u32;
            if self.tick & ((1u64 << shift) - 1) != 0 {
                continue;
            }
            let index = (self.tick >> shift) as usize & (SLOTS - 1);
            if self.occupied[level] & (1 << index) == 0 {
                continue;
            }
            self.occupied[level] &= !(1 << index);
            let mut entries = core::mem::take(&mut self.slots[level][index]);
            for due in entries.drain(..) {
                let t = due.at.0.saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT;
                if t <= self.tick {
                    self.len -= 1;
                    out.push(due);
                } else {
                    self.place(t, due);
                }
            }
            // Keep the allocation, unless the slot was refilled while it was drained.
            if self.slots[level][index].is_empty() {
                self.slots[level][index] = entries;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(slot: u32, ms: u64) -> Due {
        Due {
            slot,
            generation: 1,
            at: Time::from_millis(ms),
        }
    }

    #[test]
    fn fires_once_never_early_and_at_most_a_tick_late() {
        let mut w = Wheel::new(Time::from_millis(12_345));
        let mut x = 88172645463325252u64;
        let mut want = std::collections::BTreeMap::new();
        for slot in 0..5_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // From past to a month ahead, log-distributed.
            let ahead = x % (1 << (1 + (x >> 40) % 41));
            let at = Time(Time::from_millis(12_000).0 + ahead * 1_000);
            want.insert(slot, at);
            w.insert(Due {
                slot,
                generation: 1,
                at,
            });
        }
        let mut out = Vec::new();
        let mut guard = 0;
        while !w.is_empty() {
            guard += 1;
            assert!(guard < 1_000_000, "spins");
            let now = w.next();
            assert_ne!(now, Time::NEVER);
            w.expire(now, &mut out);
            for d in out.drain(..) {
                assert_eq!(want.remove(&d.slot), Some(d.at));
                assert!(d.at <= now, "early: {:?} at {now:?}", d.at);
                let floor = d.at.max(Time::from_millis(12_345));
                assert!(
                    now.nanos_since(floor) <= 2 << TICK_SHIFT,
                    "late: {:?} at {now:?}",
                    d.at
                );
            }
        }
        assert!(want.is_empty());
    }

    #[test]
    fn a_long_jump_fires_everything_between() {
        let mut w = Wheel::new(Time::ZERO);
        for i in 0..100 {
            w.insert(due(i, u64::from(i) * 997));
        }
        let mut out = Vec::new();
        w.expire(Time::from_millis(50 * 997 + 2), &mut out);
        assert_eq!(out.len(), 51);
        assert_eq!(w.len(), 49);
        w.expire(Time::from_millis(1_000_000), &mut out);
        assert_eq!(out.len(), 100);
        assert_eq!(w.next(), Time::NEVER);
    }

    #[test]
    fn a_near_deadline_across_any_boundary_is_near() {
        for bits in [6, 12, 18, 24, 30, 36, 42] {
            let boundary = 1u64 << (bits + TICK_SHIFT);
            let mut w = Wheel::new(Time(boundary - 1_500_000));
            let at = Time(boundary + 3_000_000);
            w.insert(Due {
                slot: 1,
                generation: 1,
                at,
            });
            let mut out = Vec::new();
            for _ in 0..4 {
                let next = w.next();
                w.expire(next, &mut out);
                if !out.is_empty() {
                    assert!(next.nanos_since(at) <= 1 << TICK_SHIFT, "{bits}: {next:?}");
                    break;
                }
            }
            assert_eq!(out.len(), 1, "{bits}");
        }
    }

    #[test]
    fn next_is_never_late() {
        let mut w = Wheel::new(Time::from_millis(777));
        w.insert(due(1, 60_000));
        assert!(w.next() <= Time::from_millis(60_002));
        w.insert(due(2, 800));
        assert!(w.next() <= Time::from_millis(802) && w.next() >= Time::from_millis(800));
    }
}

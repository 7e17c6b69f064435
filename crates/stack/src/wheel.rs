//! The timer wheel: hierarchical, O(1) to insert, re-armed lazily.
//!
//! A connection has at most one live entry. Moving its deadline later is a store in the
//! connection; when the entry comes due it is put back at the new deadline. Only moving a
//! deadline earlier inserts again, and the superseded entry is ignored when it comes due. So that
//! a peer that moves deadlines to and fro can't pile such entries up, and connections that ended
//! long before their last deadline leave none for long, they are thrown away when there are twice
//! as many entries as the last time left. What a wheel holds depends on its entries alone: where
//! there are many wheels, each has a few of the connections.

use core::cmp::Reverse;
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

/// Superseded entries that are not worth a look.
const SPARE: usize = 1024;

/// An entry. Of those for one slot the one that was made last is not superseded.
#[derive(Copy, Clone)]
struct Entry {
    due: Due,
    /// From 1; anew after each sweep, which leaves one entry for a slot.
    made: u32,
}

/// A hierarchical timer wheel.
pub struct Wheel {
    tick: u64,
    /// What [`Wheel::next`] says: asked after every packet, so not searched for.
    next: Time,
    occupied: [u64; LEVELS],
    slots: Box<[[Vec<Entry>; SLOTS]; LEVELS]>,
    len: usize,
    /// With more entries than this it is swept: twice as many as the last sweep left, and some.
    most: usize,
    made: u32,
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
            most: SPARE,
            made: 0,
        }
    }

    /// Adds an entry. One that is already due fires at the next [`Wheel::expire`].
    pub fn insert(&mut self, due: Due) {
        // Round up: never early.
        let t = (due.at.0.saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT).max(self.tick + 1);
        self.len += 1;
        self.made += 1;
        let made = self.made;
        self.place(t, Entry { due, made });
        if self.len > self.most {
            self.sweep();
        }
    }

    /// Throws away what was superseded: at most one entry is left for each slot. As many were
    /// inserted since the last time, so it costs each of them little.
    #[cold]
    fn sweep(&mut self) {
        let all = self.slots.iter().flatten().flatten();
        let mut last: Vec<(u32, u32)> = all.map(|e| (e.due.slot, e.made)).collect();
        // The last one of each slot comes first, and stays.
        last.sort_unstable_by_key(|&(slot, made)| (slot, Reverse(made)));
        last.dedup_by_key(|&mut (slot, _)| slot);
        self.len = 0;
        for (level, occupied) in self.slots.iter_mut().zip(&mut self.occupied) {
            for (index, entries) in level.iter_mut().enumerate() {
                entries.retain_mut(|e| {
                    let keep = last.binary_search(&(e.due.slot, e.made)).is_ok();
                    e.made = 1;
                    keep
                });
                if entries.capacity() > 4 * entries.len() {
                    entries.shrink_to(2 * entries.len());
                }
                self.len += entries.len();
                if entries.is_empty() {
                    *occupied &= !(1 << index);
                }
            }
        }
        self.most = 2 * self.len + SPARE;
        self.made = 1;
        self.next = self.search();
    }

    fn place(&mut self, t: u64, entry: Entry) {
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
        self.slots[level][index].push(entry);
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
        // Until the next time it is swept before that many more have been inserted.
        if self.made > u32::MAX / 2 {
            self.sweep();
        }
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
            for entry in entries.drain(..) {
                let due = entry.due;
                let t = due.at.0.saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT;
                if t <= self.tick {
                    self.len -= 1;
                    out.push(due);
                } else {
                    self.place(t, entry);
                }
            }
            // Keep the allocation, unless the slot was refilled while it was drained, or the
            // allocation is that of an unusual number of connections.
            if self.slots[level][index].is_empty() && entries.capacity() <= SPARE {
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
        while w.len > 0 {
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
        assert_eq!(w.len, 49);
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
    fn deadlines_that_move_to_and_fro_pile_nothing_up() {
        let mut w = Wheel::new(Time::ZERO);
        let mut out = Vec::new();
        // Connections with a far deadline, keepalive's or TIME-WAIT's, that have something to do
        // every 40 ms: the far entry is superseded, and made again.
        for turn in 0..1000 {
            for slot in 0..10 {
                w.insert(due(slot, 7_200_000));
                w.insert(due(slot, 40 * (turn + 1)));
            }
            w.expire(Time::from_millis(40 * (turn + 1) + 2), &mut out);
            assert_eq!(out.len(), 10, "{turn}");
            out.clear();
            assert!(w.len <= 2 * 10 + SPARE + 20, "{}", w.len);
        }
        // Nothing that counts was lost.
        for slot in 0..10 {
            w.insert(due(slot, 7_200_000));
        }
        w.sweep();
        assert_eq!(w.len, 10);
        w.expire(Time::from_millis(7_200_010), &mut out);
        assert_eq!(out.len(), 10);
        assert_eq!((w.len, w.next()), (0, Time::NEVER));
    }

    #[test]
    fn memory_follows_the_entries() {
        let mut w = Wheel::new(Time::ZERO);
        let bytes = |w: &Wheel| {
            let slots = w.slots.iter().flatten().map(Vec::capacity);
            slots.sum::<usize>() * size_of::<Entry>()
        };
        // One of many wheels, which has one in a hundred of the connections.
        for slot in 0..1000 {
            w.insert(due(100 * slot, 60_000));
        }
        assert!(bytes(&w) <= 2 * 1024 * size_of::<Entry>());
        // When many have waited, their memory goes with them.
        for slot in 0..100_000 {
            w.insert(due(slot, 60_000 + u64::from(slot)));
        }
        let mut out = Vec::new();
        for s in 0..300 {
            w.expire(Time::from_millis(s * 1000), &mut out);
        }
        assert!(w.len == 0);
        assert!(bytes(&w) < 1 << 20, "{}", bytes(&w));
    }

    #[test]
    fn superseded_entries_are_told_apart_for_ever() {
        let mut w = Wheel::new(Time::ZERO);
        w.insert(due(1, 500));
        w.made = u32::MAX / 2;
        w.insert(due(1, 400));
        w.insert(due(1, 300));
        let mut out = Vec::new();
        w.expire(Time::from_millis(10), &mut out);
        assert_eq!((w.len, w.made), (1, 1));
        w.insert(due(1, 200));
        w.sweep();
        w.expire(Time::from_millis(1000), &mut out);
        assert_eq!(out, [due(1, 200)]);
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

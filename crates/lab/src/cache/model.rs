//! Data caches of several cores, kept coherent by snooping: MESI (Papamarcos and Patel, ISCA
//! 1984), write-allocate, least recently used lines replaced.
//!
//! A core has two levels to itself; what is behind them is memory. Only lines are modelled: no
//! time, no prefetching, no write buffers, and no shared third level, as a miss is counted where
//! the second level has not got the line, wherever it comes from.

use crate::misses::{
    Miss, Outcome,
    geometry::{Caches, Geometry, Sharing},
};
use std::collections::HashMap;

/// State of a line in one core's caches; a line that is not there is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Differs from memory, nowhere else.
    Modified,
    /// Agrees with memory, nowhere else.
    Exclusive,
    /// Agrees with memory, perhaps elsewhere too.
    Shared,
}

/// A line, and its state.
type Held = (u64, State);

/// Lines by set, the most recently used first.
#[derive(Debug)]
struct Level {
    sets: Vec<Vec<Held>>,
    ways: usize,
}

impl Level {
    fn new(geometry: &Geometry) -> Level {
        Level {
            sets: vec![Vec::new(); geometry.sets()],
            ways: geometry.ways.max(1),
        }
    }

    fn index(&self, line: u64) -> usize {
        (line % self.sets.len() as u64) as usize
    }

    fn state(&self, line: u64) -> Option<State> {
        let set = &self.sets[self.index(line)];
        set.iter().find(|h| h.0 == line).map(|h| h.1)
    }

    /// Gives a line another state; whether it is there.
    fn change(&mut self, line: u64, to: State) -> bool {
        let index = self.index(line);
        let found = self.sets[index].iter_mut().find(|h| h.0 == line);
        found.map(|h| h.1 = to).is_some()
    }

    /// Makes it the most recently used; whether it is there.
    fn touch(&mut self, line: u64) -> bool {
        let index = self.index(line);
        let set = &mut self.sets[index];
        let Some(at) = set.iter().position(|h| h.0 == line) else {
            return false;
        };
        set[..=at].rotate_right(1);
        true
    }

    /// Takes it in; the line that had to go for it.
    fn insert(&mut self, held: Held) -> Option<Held> {
        let index = self.index(held.0);
        let set = &mut self.sets[index];
        let gone = match set.len() < self.ways {
            true => None,
            false => set.pop(),
        };
        set.insert(0, held);
        gone
    }

    /// Whether it was there.
    fn remove(&mut self, line: u64) -> bool {
        let index = self.index(line);
        let set = &mut self.sets[index];
        let before = set.len();
        set.retain(|h| h.0 != line);
        set.len() < before
    }
}

/// One core's caches. A line that both levels have is in the same state in both.
#[derive(Debug)]
struct Core {
    l1: Level,
    l2: Level,
    sharing: Sharing,
    /// Why lines that it had are not there any more.
    lost: HashMap<u64, Miss>,
}

impl Core {
    fn new(caches: &Caches) -> Core {
        Core {
            l1: Level::new(&caches.l1),
            l2: Level::new(&caches.l2),
            sharing: caches.sharing,
            lost: HashMap::new(),
        }
    }

    fn state(&self, line: u64) -> Option<State> {
        self.l1.state(line).or_else(|| self.l2.state(line))
    }

    /// Gives a line another state, wherever it is; whether it is anywhere.
    fn change(&mut self, line: u64, to: State) -> bool {
        self.l1.change(line, to) | self.l2.change(line, to)
    }

    /// Brings a line into the first level; whether it was there. Where there is a copy it has that
    /// state already.
    fn fetch(&mut self, (line, state): Held) -> bool {
        if self.l1.touch(line) {
            return true;
        }
        let gone = match self.sharing {
            Sharing::Exclusive => {
                self.l2.remove(line);
                let dropped = self.l1.insert((line, state));
                [dropped.and_then(|held| self.l2.insert(held)), None]
            }
            Sharing::Inclusive | Sharing::Independent => {
                let dropped = match self.l2.touch(line) {
                    true => None,
                    false => self.l2.insert((line, state)),
                };
                if let (Sharing::Inclusive, Some((l, _))) = (self.sharing, dropped) {
                    self.l1.remove(l);
                }
                [dropped, self.l1.insert((line, state))]
            }
        };
        for (line, _) in gone.into_iter().flatten() {
            if self.state(line).is_none() {
                self.lost.insert(line, Miss::Capacity);
            }
        }
        false
    }

    /// Takes a line away, if it is there.
    fn invalidate(&mut self, line: u64, why: Miss) {
        if self.l1.remove(line) | self.l2.remove(line) || self.lost.contains_key(&line) {
            // Of a line that is not there: it would have been taken away by now, had there been
            // room for it.
            self.lost.insert(line, why);
        }
    }
}

/// The cores of a machine.
#[derive(Debug)]
pub struct System {
    cores: Vec<Core>,
    line: u64,
    upgrades: u64,
}

impl System {
    /// So many cores with empty caches.
    pub fn new(caches: &Caches, cores: usize) -> System {
        System {
            cores: (0..cores).map(|_| Core::new(caches)).collect(),
            line: caches.l2.line,
            upgrades: 0,
        }
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Writes that had the line and had to take it away from others first: no misses.
    pub fn upgrades(&self) -> u64 {
        self.upgrades
    }

    /// State of the line at `address` on a core; `None` is invalid.
    pub fn state(&self, core: usize, address: u64) -> Option<State> {
        let line = address / self.line;
        self.cores[core].state(line)
    }

    /// The lines of `len` bytes from `address`.
    fn lines(&self, address: u64, len: u64) -> std::ops::RangeInclusive<u64> {
        let last = address.saturating_add(len.max(1) - 1);
        address / self.line..=last / self.line
    }

    /// A core reads or writes `len` bytes. What becomes of the line that fares worst.
    pub fn access(&mut self, core: usize, address: u64, len: u64, write: bool) -> Outcome {
        self.lines(address, len)
            .map(|line| self.access_line(core, line, write))
            .max()
            .unwrap_or(Outcome::First)
    }

    fn access_line(&mut self, core: usize, line: u64, write: bool) -> Outcome {
        let before = self.cores[core].state(line);
        let missed = before.is_none().then(|| self.why(core, line));
        let others = match (before, write) {
            // Nobody else has it.
            (Some(State::Modified | State::Exclusive), _) | (Some(State::Shared), false) => false,
            (Some(State::Shared), true) => {
                self.upgrades += 1;
                self.snoop(core, line, true)
            }
            (None, _) => self.snoop(core, line, write),
        };
        let after = match (before, write) {
            (_, true) => State::Modified,
            (Some(state), false) => state,
            (None, false) if others => State::Shared,
            (None, false) => State::Exclusive,
        };
        let me = &mut self.cores[core];
        if before.is_some_and(|state| state != after) {
            me.change(line, after);
        }
        let first = me.fetch((line, after));
        match missed {
            Some(why) => Outcome::Missed(why),
            None if first => Outcome::First,
            None => Outcome::Second,
        }
    }

    /// Tells the other cores of a read or a write. Whether any of them keeps the line.
    fn snoop(&mut self, core: usize, line: u64, write: bool) -> bool {
        let mut kept = false;
        for (i, other) in self.cores.iter_mut().enumerate() {
            if i == core {
                continue;
            }
            match write {
                true => other.invalidate(line, Miss::Coherence),
                false => kept |= other.change(line, State::Shared),
            }
        }
        kept
    }

    /// Why a core that has not got a line misses it.
    fn why(&self, core: usize, line: u64) -> Miss {
        let mut states = self.cores.iter().map(|c| c.state(line));
        if states.any(|s| s == Some(State::Modified)) {
            return Miss::Coherence;
        }
        let lost = self.cores[core].lost.get(&line);
        lost.copied().unwrap_or(Miss::Cold)
    }

    /// A device writes `len` bytes of memory: no core has them any more. What it reads moves
    /// nothing.
    pub fn device_write(&mut self, address: u64, len: u64) {
        for line in self.lines(address, len) {
            for core in &mut self.cores {
                core.invalidate(line, Miss::Device);
                // Also where it never was: whoever looks misses it because of the device.
                core.lost.insert(line, Miss::Device);
            }
        }
    }
}

#[cfg(test)]
mod tests;

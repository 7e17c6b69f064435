//! Cache lines of virtual cores: who wrote them last, who still has them, and what it takes to
//! fetch them.
//!
//! Lines are counted and not addressed: a [`Tag`] stands for all lines of a socket, say. A core
//! loses what it has when another one writes, and when it has fetched more lines since than its
//! own caches hold. Both levels are bounded that way: what a core has to itself, and what it
//! shares with those near it. Ways, sets and prefetching are left out.

use core::fmt;
use std::cell::Cell;

use super::config::LineCosts;
use super::state::{NONE, State};
use super::{beacon, trace};
use crate::class::Touched;

/// Lines are counted in thousandths, as averages of what was seen are no whole numbers.
pub(super) const MILLI: u64 = 1000;

/// Lines that go from core to core together. A new one is with no core.
#[derive(Default)]
pub struct VirtualTag {
    /// Its place among those of the simulation, from 1; 0: none yet, as touching the lines has cost
    /// nothing. Four octets, as a connection has several of these; places are never given back.
    /// Of payload: its place among queues of that.
    pub(super) place: Cell<u32>,
}

// SAFETY: `place` is used by the running virtual thread only, which has the baton.
unsafe impl Sync for VirtualTag {}

impl fmt::Debug for VirtualTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTag").finish_non_exhaustive()
    }
}

/// Where lines are.
#[derive(Copy, Clone, Debug)]
pub(super) struct Place {
    /// The core that wrote them last, if no other has read them since.
    writer: u32,
    /// Who else has them: the place among those of the simulation, from 1. 0 as long as they are
    /// written only and no cache is ever full, as the words of locks are by default: then the last
    /// writer has them.
    kept: u32,
}

/// Who has lines.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Cores that had them, and how much each had fetched when it touched them last.
    held: Vec<(u32, u64)>,
    /// The same for caches that several cores share.
    shared: Vec<(u32, u64)>,
}

impl Place {
    /// The core that wrote last, if no other has read since.
    pub(super) fn writer(&self) -> u32 {
        self.writer
    }
}

impl Default for Place {
    fn default() -> Place {
        Place {
            writer: NONE,
            kept: 0,
        }
    }
}

/// How many lines caches have fetched so far, in thousandths.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) own: Vec<u64>,
    pub(super) shared: Vec<u64>,
}

impl Fetched {
    pub(super) fn new(cores: usize, lines: &LineCosts) -> Fetched {
        let groups = cores.div_ceil(lines.near_cores.max(1) as usize);
        Fetched {
            own: vec![0; cores],
            shared: vec![0; if lines.near_cores == 0 { 1 } else { groups }],
        }
    }
}

impl LineCosts {
    /// The group of cores around a shared cache that a core belongs to.
    pub(super) fn group(&self, core: u32) -> u32 {
        core.checked_div(self.near_cores).unwrap_or(0)
    }

    fn socket(&self, core: u32) -> u32 {
        core.checked_div(self.socket_cores).unwrap_or(0)
    }

    /// What a line takes from core `a` to core `b`, ns.
    pub(super) fn between(&self, a: u32, b: u32) -> u64 {
        if a == b {
            return 0;
        }
        let all = [self.near_ns, self.far_ns, self.remote_ns];
        u64::from(self.by_distance(a, b, all))
    }

    /// What holds between core `a` and another core `b`, of what does between those that share a
    /// cache, those of a processor, and others.
    pub(super) fn by_distance<T>(&self, a: u32, b: u32, [near, far, remote]: [T; 3]) -> T {
        if self.group(a) == self.group(b) {
            near
        } else if self.socket(a) == self.socket(b) {
            far
        } else {
            remote
        }
    }

    /// Lines that are touched at a time, as the number that would take as long one after the other;
    /// both in thousandths.
    fn together(&self, milli: u64) -> u64 {
        let first = milli.min(MILLI);
        first + (milli - first) * u64::from(self.further_percent) / 100
    }

    /// What the holder of a lock pays for `spinners` others that look at its word while it hands
    /// it on, beside one move of the line, ns.
    pub(super) fn crowd(&self, a: u32, b: u32, spinners: usize) -> u64 {
        let percent = u64::from(self.crowd_percent) * spinners as u64;
        self.between(a, b) * percent / 100
    }
}

/// Whether what was touched when a cache had fetched `at` is still there.
pub(super) fn stays(at: u64, fetched: u64, lines: u32) -> bool {
    lines == 0 || fetched.saturating_sub(at) <= u64::from(lines) * MILLI
}

impl State {
    /// Core `core` touches `milli` thousandths of a line that are at `place`: what that takes, ns.
    pub(super) fn fetch_for(
        &mut self,
        core: u32,
        place: &mut Place,
        milli: u64,
        write: bool,
    ) -> u64 {
        let lines = &self.cfg.costs.lines;
        let own = &self.fetched.own;
        let unbounded = lines.private_lines == 0 && lines.shared_lines == 0;
        if write && unbounded && place.kept == 0 {
            let ns = match core::mem::replace(&mut place.writer, core) {
                NONE => u64::from(lines.memory_ns),
                writer => lines.between(writer, core),
            };
            return lines.together(milli) * ns / MILLI;
        }
        let writer = place.writer;
        if place.kept == 0 {
            let had = |who, fetched: &[u64]| vec![(who, fetched[who as usize])];
            self.kept.push(match writer {
                NONE => Kept::default(),
                _ => Kept {
                    held: had(writer, own),
                    shared: had(lines.group(writer), &self.fetched.shared),
                },
            });
            place.kept = self.kept.len() as u32;
        }
        let kept = &self.kept[place.kept as usize - 1];
        let has = |(c, at): &(u32, u64)| stays(*at, own[*c as usize], lines.private_lines);
        let here = kept.held.iter().any(|h| h.0 == core && has(h));
        let others = kept.held.iter().filter(|h| h.0 != core && has(h));
        let group = lines.group(core);
        let in_group = |(g, at): &(u32, u64)| {
            *g == group && stays(*at, self.fetched.shared[*g as usize], lines.shared_lines)
        };
        let ns = if here {
            // Others are told that theirs are void: as far as the farthest.
            let farthest = others.map(|h| lines.between(h.0, core)).max();
            farthest.filter(|_| write).unwrap_or(0)
        } else if writer != NONE && writer != core {
            let last = kept.held.iter().find(|h| h.0 == writer);
            match last.is_some_and(has) {
                true => lines.between(writer, core),
                // Written back meanwhile.
                false if kept.shared.iter().any(in_group) => u64::from(lines.shared_ns),
                false => u64::from(lines.memory_ns),
            }
        } else if kept.shared.iter().any(in_group) {
            u64::from(lines.shared_ns)
        } else if let Some(nearest) = others.map(|h| lines.between(h.0, core)).min() {
            nearest
        } else {
            u64::from(lines.memory_ns)
        };
        if !here {
            self.fetched.own[core as usize] += milli;
            if !kept.shared.iter().any(in_group) {
                self.fetched.shared[group as usize] += milli;
            }
        }
        self.settle(place, (core, group), write);
        self.cfg.costs.lines.together(milli) * ns / MILLI
    }

    /// Core `core` of group `group` has touched what is at `place`.
    fn settle(&mut self, place: &mut Place, (core, group): (u32, u32), write: bool) {
        let kept = &mut self.kept[place.kept as usize - 1];
        if write {
            kept.held.retain(|h| h.0 == core);
            kept.shared.retain(|s| s.0 == group);
            place.writer = core;
        } else if place.writer != core {
            place.writer = NONE;
        }
        let note = |list: &mut Vec<(u32, u64)>, who, at| match list.iter_mut().find(|h| h.0 == who)
        {
            Some(h) => h.1 = at,
            None => list.push((who, at)),
        };
        note(&mut kept.held, core, self.fetched.own[core as usize]);
        note(&mut kept.shared, group, self.fetched.shared[group as usize]);
    }

    /// The running thread touches `items` items of a tag that stands for `what`; payload goes
    /// [its own way](State::payload).
    #[inline]
    pub(super) fn touch(&mut self, tag: &VirtualTag, what: Touched, items: usize, write: bool) {
        if what == Touched::Payload {
            return self.payload(tag, items as u64, write);
        }
        if !self.clocked {
            return;
        }
        let milli = u64::from(self.cfg.costs.lines.each[what.index()]) * items as u64;
        if milli == 0 && !trace::is_on() {
            return;
        }
        if tag.place.get() == 0 {
            self.places.push(Place::default());
            tag.place.set(self.places.len() as u32);
        }
        let at = tag.place.get() as usize - 1;
        let mut place = self.places[at];
        beacon::touched(what);
        let core = self.threads[self.running as usize].core as u32;
        if self.is_elsewhere(place, core) {
            self.moved[what.index()] += items as u64;
        }
        let ns = self.fetch_for(core, &mut place, milli, write);
        self.places[at] = place;
        self.lines_ns[what.index()] += ns;
        self.spend(ns);
    }

    /// Whether other cores had what is at `place` since core `core` did.
    fn is_elsewhere(&self, place: Place, core: u32) -> bool {
        let Some(at) = place.kept.checked_sub(1) else {
            return place.writer != NONE && place.writer != core;
        };
        let held = &self.kept[at as usize].held;
        !held.is_empty() && !held.iter().any(|h| h.0 == core)
    }

    /// `bytes` bytes have gone through the running thread's caches.
    pub(super) fn stream(&mut self, bytes: u64) {
        const LINE: u64 = Touched::LINE as u64;
        if self.clocked && self.running != NONE {
            let core = self.threads[self.running as usize].core;
            self.fetched.own[core] += bytes * MILLI / LINE;
            self.pay_payload();
        }
    }
}

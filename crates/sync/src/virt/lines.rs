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
    /// The core that has had them since nobody else did; [`NONE`]: nobody has had them.
    core: u32,
    /// How much that core, and the cache that it shares with others, had fetched when it touched
    /// them last.
    own: u64,
    shared: u64,
    /// Where several cores have had them: the place among those of the simulation, from 1, of who
    /// has; the three above say nothing then. Most lines are written by whoever touches them, and
    /// need none.
    kept: u32,
}

/// Who has lines, where several cores have had them.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Cores that had them, and how much each had fetched when it touched them last.
    held: Vec<(u32, u64)>,
    /// The same for caches that several cores share.
    shared: Vec<(u32, u64)>,
}

/// Who has what, of all places that several cores have had.
#[derive(Debug, Default)]
pub(super) struct AllKept {
    all: Vec<Kept>,
    /// Those that no place needs any more.
    free: Vec<u32>,
}

impl AllKept {
    /// A new one, of lines that only core `place.core` of group `group` has had.
    fn add(&mut self, place: &Place, group: u32) -> u32 {
        let new = self.free.pop().unwrap_or_else(|| {
            self.all.push(Kept::default());
            self.all.len() as u32
        });
        let kept = &mut self.all[new as usize - 1];
        kept.held.clear();
        kept.shared.clear();
        kept.held.push((place.core, place.own));
        kept.shared.push((group, place.shared));
        new
    }
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
            core: NONE,
            own: 0,
            shared: 0,
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
    /// Core `core` touches `milli` thousandths of a line of `what` that are at `place`; without that,
    /// they are words of locks. What it takes, ns.
    pub(super) fn fetch_for(
        &mut self,
        core: u32,
        (place, what): (&mut Place, Option<Touched>),
        milli: u64,
        write: bool,
    ) -> u64 {
        let lines = &self.cfg.costs.lines;
        let group = lines.group(core);
        let (all_own, all_shared) = (&self.fetched.own, &self.fetched.shared);
        let stays_own = |who: u32, at| stays(at, all_own[who as usize], lines.private_lines);
        let stays_shared = |at| stays(at, all_shared[group as usize], lines.shared_lines);
        let (here, in_group, from_core, ns) = match place.kept {
            0 => {
                let somebody = place.core != NONE;
                let held = somebody && stays_own(place.core, place.own);
                let here = held && place.core == core;
                let in_group =
                    somebody && lines.group(place.core) == group && stays_shared(place.shared);
                // A cache that both share has what was not written since.
                let from_core = held && (place.writer != NONE || !in_group);
                let ns = if here {
                    0
                } else if from_core {
                    lines.between(place.core, core)
                } else if in_group {
                    u64::from(lines.shared_ns)
                } else {
                    u64::from(lines.memory_ns)
                };
                (here, in_group, from_core, ns)
            }
            kept => {
                let kept = &self.kept.all[kept as usize - 1];
                let has = |(c, at): &(u32, u64)| stays_own(*c, *at);
                let here = kept.held.iter().any(|h| h.0 == core && has(h));
                let others = kept.held.iter().filter(|h| h.0 != core && has(h));
                let in_group = kept
                    .shared
                    .iter()
                    .any(|s| s.0 == group && stays_shared(s.1));
                let far = others.map(|h| lines.between(h.0, core));
                let (from_core, ns) = if here {
                    // Others are told that theirs are void: as far as the farthest.
                    let farthest = if write { far.max() } else { None };
                    (false, farthest.unwrap_or(0))
                } else if in_group {
                    (false, u64::from(lines.shared_ns))
                } else if let Some(nearest) = far.min() {
                    (true, nearest)
                } else {
                    (false, u64::from(lines.memory_ns))
                };
                (here, in_group, from_core, ns)
            }
        };
        if !here {
            self.fetched.own[core as usize] += milli;
            let missed = &mut self.missed[what.map_or(Touched::COUNT, Touched::index)];
            missed[usize::from(!from_core)] += milli;
            if !in_group {
                self.fetched.shared[group as usize] += milli;
            }
        }
        self.settle(place, (core, group), write);
        self.cfg.costs.lines.together(milli) * ns / MILLI
    }

    /// Core `core` of group `group` has touched what is at `place`.
    fn settle(&mut self, place: &mut Place, (core, group): (u32, u32), write: bool) {
        let own = self.fetched.own[core as usize];
        let shared = self.fetched.shared[group as usize];
        let alone = place.core == core || place.core == NONE;
        if write || (place.kept == 0 && alone) {
            if place.kept != 0 {
                self.kept.free.push(core::mem::take(&mut place.kept));
            }
            (place.core, place.own, place.shared) = (core, own, shared);
            if write {
                place.writer = core;
            }
            return;
        }
        if place.kept == 0 {
            let group = self.cfg.costs.lines.group(place.core);
            place.kept = self.kept.add(place, group);
        }
        // Whoever wrote it has company now.
        place.writer = NONE;
        let kept = &mut self.kept.all[place.kept as usize - 1];
        let note = |list: &mut Vec<(u32, u64)>, who, at| match list.iter_mut().find(|h| h.0 == who)
        {
            Some(h) => h.1 = at,
            None => list.push((who, at)),
        };
        note(&mut kept.held, core, own);
        note(&mut kept.shared, group, shared);
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
        let each = &self.cfg.costs.lines.each;
        let frees = each[Touched::Completion.index()] > 0;
        match what {
            Touched::Descriptor | Touched::Completion if frees => {
                return self.ring(tag, what, items as u64);
            }
            Touched::Completion => return,
            _ => {}
        }
        let milli = u64::from(each[what.index()]) * items as u64;
        if milli == 0 && !trace::is_on() {
            return;
        }
        let at = self.place_of(tag);
        let mut place = self.places[at];
        beacon::touched(what);
        let core = self.threads[self.running as usize].core as u32;
        if self.is_elsewhere(place, core) {
            self.moved[what.index()] += items as u64;
        }
        let ns = self.fetch_for(core, (&mut place, Some(what)), milli, write);
        self.places[at] = place;
        self.lines_ns[what.index()] += ns;
        self.spend(ns);
    }

    /// Where the lines are that `tag` stands for, among all places.
    pub(super) fn place_of(&mut self, tag: &VirtualTag) -> usize {
        if tag.place.get() == 0 {
            self.places.push(Place::default());
            tag.place.set(self.places.len() as u32);
        }
        tag.place.get() as usize - 1
    }

    /// Core `core` is about to run a thread, with all that that has for itself.
    pub(super) fn bring(&mut self, core: usize, slot: u32) {
        let what = Touched::Thread;
        let milli = u64::from(self.cfg.costs.lines.each[what.index()]);
        if milli == 0 {
            return;
        }
        let mut place = self.threads[slot as usize].lines;
        let ns = self.fetch_for(core as u32, (&mut place, Some(what)), milli, true);
        self.threads[slot as usize].lines = place;
        self.lines_ns[what.index()] += ns;
        self.cores[core].clock += ns;
    }

    /// Whether other cores had what is at `place` since core `core` did.
    fn is_elsewhere(&self, place: Place, core: u32) -> bool {
        match place.kept {
            0 => place.core != NONE && place.core != core,
            kept => !self.kept.all[kept as usize - 1]
                .held
                .iter()
                .any(|h| h.0 == core),
        }
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

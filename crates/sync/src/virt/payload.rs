//! Where payload is: the memory that segments are written into as they arrive, and that readers
//! give back.
//!
//! Such memory goes round: a thread takes first what it has given back last, and threads exchange
//! what they have too much of (`perimeter_base::pool`). So what a line of payload costs depends
//! on how much is under way and on who gave its memory back, not on the connection: with little
//! under way all of it stays in a core's own caches.

use std::cell::Cell;
use std::collections::VecDeque;

use super::lines::{VirtualTag, stays};
use super::state::{NONE, State};
use super::{beacon, trace};
use crate::class::Touched;

/// Lines that go from thread to thread together: 64 segments'.
const MAGAZINE: u64 = 64 * 23;

/// Lines that a core has touched one after the other are one run: so many lines in between make no
/// difference to what its caches hold.
const TOGETHER: u64 = 64 * super::lines::MILLI;

/// Lines in a row, and when a core has touched them last.
#[derive(Copy, Clone)]
struct Run {
    lines: u64,
    /// [`NONE`]: they are in no cache.
    core: u32,
    /// What that core, and those it shares caches with, had fetched by then.
    own: u64,
    shared: u64,
}

impl Run {
    /// Takes at most `lines` off.
    fn split(&mut self, lines: u64) -> Run {
        let n = lines.min(self.lines);
        self.lines -= n;
        Run { lines: n, ..*self }
    }

    /// Whether a core has touched both about at the same time, this one first.
    fn is_with(&self, next: &Run) -> bool {
        let near = |first: u64, next: u64| next.wrapping_sub(first) <= TOGETHER;
        self.core == next.core && near(self.own, next.own) && near(self.shared, next.shared)
    }

    /// Adds the lines of the next one, if both can be one: what is taken in pieces of any size would
    /// be in ever smaller ones.
    fn join(&mut self, next: &Run) -> bool {
        let joins = self.is_with(next);
        if joins {
            self.lines += next.lines;
        }
        joins
    }
}

/// A thread's free memory, last in, first out.
#[derive(Default)]
struct Free {
    runs: Vec<Run>,
    lines: u64,
}

impl Free {
    /// At most `lines` from the top; `None`: there are none.
    fn pop(&mut self, lines: u64) -> Option<Run> {
        let top = self.runs.last_mut()?;
        let run = top.split(lines);
        if top.lines == 0 {
            self.runs.pop();
        }
        self.lines -= run.lines;
        Some(run)
    }

    fn push(&mut self, run: Run) {
        self.lines += run.lines;
        let top = self.runs.last_mut();
        if !top.is_some_and(|top| top.join(&run)) {
            self.runs.push(run);
        }
    }

    /// Moves a magazine from the top to the top of another.
    fn pass(&mut self, to: &mut Free) {
        let mut left = MAGAZINE;
        let mut moved = Vec::new();
        while let Some(run) = self.pop(left) {
            left -= run.lines;
            moved.push(run);
            if left == 0 {
                break;
            }
        }
        moved.into_iter().rev().for_each(|r| to.push(r));
    }
}

/// All payload.
#[derive(Default)]
pub(super) struct Payload {
    /// What waits for readers, by tag.
    waiting: Vec<VecDeque<Run>>,
    /// By thread.
    free: Vec<Free>,
    /// What threads had too much of.
    depot: Free,
    /// Who writes what arrives, by tag: a thread and its core.
    writers: Vec<(usize, u32)>,
    /// What threads have yet to pay, ps.
    owed: Vec<u64>,
}

/// The value that a tag stands for; a new one if it is a new tag.
fn entry<'a, T: Default>(place: &Cell<u32>, all: &'a mut Vec<T>) -> &'a mut T {
    if place.get() == 0 {
        all.push(T::default());
        place.set(all.len() as u32);
    }
    &mut all[place.get() as usize - 1]
}

/// The value of thread `thread`.
fn entry_at<T: Default>(thread: usize, all: &mut Vec<T>) -> &mut T {
    if all.len() <= thread {
        all.resize_with(thread + 1, T::default);
    }
    &mut all[thread]
}

impl Payload {
    /// At most `lines` of free memory for thread `thread`.
    fn take(&mut self, thread: usize, lines: u64) -> Run {
        let free = entry_at(thread, &mut self.free);
        if free.lines == 0 {
            self.depot.pass(free);
        }
        let none = Run {
            lines,
            core: NONE,
            own: 0,
            shared: 0,
        };
        free.pop(lines).unwrap_or(none)
    }

    /// Thread `thread` gives memory back.
    fn give(&mut self, thread: usize, run: Run) {
        let free = entry_at(thread, &mut self.free);
        free.push(run);
        if free.lines > 2 * MAGAZINE {
            free.pass(&mut self.depot);
        }
    }
}

impl State {
    /// The running thread tells that it writes what [`arrived`](State::arrived) by `tag` from then
    /// on; or it takes the first `lines` lines of what waits there away, and gives their memory
    /// back.
    pub(super) fn payload(&mut self, tag: &VirtualTag, lines: u64, write: bool) {
        if !self.has_payload() {
            return;
        }
        beacon::touched(Touched::Payload);
        let me = self.me_here();
        let (thread, core) = me;
        if write {
            *entry(&tag.place, &mut self.payload.writers) = me;
            return self.pay_payload();
        }
        let mut left = lines;
        while left > 0 {
            let waiting = entry(&tag.place, &mut self.payload.waiting);
            let Some(first) = waiting.front_mut() else {
                return;
            };
            let run = first.split(left);
            if first.lines == 0 {
                waiting.pop_front();
            }
            left -= run.lines;
            let (now, ps) = self.fetch_payload(core, run, false);
            self.payload.give(thread, now);
            *entry_at(thread, &mut self.payload.owed) += ps;
        }
    }

    /// `lines` lines of payload wait by `tag` that the thread has written which told so by `by`. It
    /// pays when it tells so again.
    pub(super) fn arrived(&mut self, by: &VirtualTag, tag: &VirtualTag, lines: u64) {
        if !self.has_payload() || lines == 0 {
            return;
        }
        let writer = match by.place.get() {
            0 => self.me_here(),
            place => self.payload.writers[place as usize - 1],
        };
        let ps = self.write_payload(writer, tag, lines);
        *entry_at(writer.0, &mut self.payload.owed) += ps;
    }

    fn has_payload(&self) -> bool {
        self.clocked && (!self.cfg.costs.lines.payload.is_nothing() || trace::is_on())
    }

    /// The running thread, and the core that it is on.
    fn me_here(&self) -> (usize, u32) {
        let me = self.running as usize;
        (me, self.threads[me].core as u32)
    }

    /// A thread writes lines that wait by `tag`; what that takes, ps.
    fn write_payload(&mut self, (thread, core): (usize, u32), tag: &VirtualTag, lines: u64) -> u64 {
        let (mut left, mut all) = (lines, 0);
        while left > 0 {
            let run = self.payload.take(thread, left);
            left -= run.lines;
            let (now, ps) = self.fetch_payload(core, run, true);
            let waiting = entry(&tag.place, &mut self.payload.waiting);
            if !waiting.back_mut().is_some_and(|last| last.join(&now)) {
                waiting.push_back(now);
            }
            all += ps;
        }
        all
    }

    /// The running thread pays for what it has read, now that it is copied, or written.
    pub(super) fn pay_payload(&mut self) {
        let owed = entry_at(self.running as usize, &mut self.payload.owed);
        let ps = core::mem::take(owed);
        self.pay(ps);
    }

    fn pay(&mut self, ps: u64) {
        self.lines_ns[Touched::Payload.index()] += ps / 1000;
        self.spend(ps / 1000);
    }

    /// What lines are once core `core` has them in its caches, and what that takes, ps.
    fn fetch_payload(&mut self, core: u32, run: Run, write: bool) -> (Run, u64) {
        let ps = self.payload_ps(&run, core, write) * run.lines;
        let group = self.cfg.costs.lines.group(core);
        let now = Run {
            lines: run.lines,
            core,
            own: self.fetched.own[core as usize],
            shared: self.fetched.shared[group as usize],
        };
        (now, ps)
    }

    /// What each line of `run` takes core `core`, ps. What it has not got it has fetched then.
    fn payload_ps(&mut self, run: &Run, core: u32, write: bool) -> u64 {
        let lines = &self.cfg.costs.lines;
        let costs = &lines.payload;
        let fetched = &mut self.fetched;
        let of = |list: [u32; 2]| u64::from(list[usize::from(!write)]);
        let held =
            run.core != NONE && stays(run.own, fetched.own[run.core as usize], lines.private_lines);
        if held && run.core == core {
            return 0;
        }
        if run.core != NONE && run.core != core {
            self.moved[Touched::Payload.index()] += run.lines;
        }
        let milli = run.lines * super::lines::MILLI;
        fetched.own[core as usize] += milli;
        if held {
            let all = [costs.near, costs.far, costs.remote];
            return of(lines.by_distance(run.core, core, all));
        }
        let group = lines.group(core);
        let mine = run.core != NONE && lines.group(run.core) == group;
        if mine
            && stays(
                run.shared,
                fetched.shared[group as usize],
                lines.shared_lines,
            )
        {
            return of(costs.shared);
        }
        fetched.shared[group as usize] += milli;
        of(costs.memory)
    }
}

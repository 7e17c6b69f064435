//! Priorities of threads on cores with clocks, and their lending to owners of locks.

use super::state::{Core, Doing, NEVER, NONE, State};
use crate::policy::Priority;
use std::collections::VecDeque;

/// Where a thread waits for its turn.
#[derive(Copy, Clone)]
pub(super) enum Queued {
    /// At this place among the core's own.
    Here(usize),
    /// At this place among those that run anywhere.
    Anywhere(usize),
}

impl State {
    /// How urgent a thread is: as it was started, or as a waiter has lent it.
    #[inline]
    pub(super) fn urgency(&self, slot: u32) -> Priority {
        if !self.ranked {
            return Priority::ORDINARY;
        }
        let t = &self.threads[slot as usize];
        t.base.max(t.lent)
    }

    /// Calls `f` with each thread that waits for core `c`, and where it does, in their order.
    #[inline]
    fn each_waiting(&self, c: &Core, mut f: impl FnMut(Queued, u32)) {
        for (i, &s) in c.queue.iter().enumerate() {
            f(Queued::Here(i), s);
        }
        if c.takes_any {
            for (i, &s) in self.floating.iter().enumerate() {
                f(Queued::Anywhere(i), s);
            }
        }
    }

    /// Whether all threads are equals on a core, and only its own wait for it: the first one is next.
    #[inline]
    fn takes_first(&self, c: &Core) -> bool {
        !self.ranked && !c.takes_any
    }

    /// When the thread is ready that comes next on a core, or by the core's own time if that is later;
    /// `NEVER` if none waits.
    #[inline]
    pub(super) fn next_at(&self, c: &Core) -> u64 {
        let ready_at = |s: u32| self.threads[s as usize].ready_at;
        let mut soonest = NEVER;
        if self.takes_first(c) {
            soonest = c.queue.front().map_or(NEVER, |&s| ready_at(s));
        } else {
            self.each_waiting(c, |_, s| soonest = soonest.min(ready_at(s)));
        }
        soonest.max(c.clock)
    }

    /// Where the thread is queued that comes next on a core, and its slot: of those ready by the time
    /// that one is, the most urgent, and of these the one that waits longest.
    pub(super) fn head(&self, c: &Core) -> Option<(Queued, u32)> {
        if self.takes_first(c) {
            return c.queue.front().map(|&s| (Queued::Here(0), s));
        }
        let by = self.next_at(c);
        let mut best: Option<(Queued, u32)> = None;
        self.each_waiting(c, |place, s| {
            let better = |(_, b)| self.urgency(s) > self.urgency(b);
            if self.threads[s as usize].ready_at <= by && best.is_none_or(better) {
                best = Some((place, s));
            }
        });
        best
    }

    /// Whether a thread waits for a core that could run there now, and whose urgency is `enough`
    /// beside that of the core's occupant.
    #[inline]
    fn is_wanted(&self, c: &Core, enough: fn(&Priority, &Priority) -> bool) -> bool {
        let occupant = self.urgency(c.current);
        let may_run = |s: u32| {
            self.threads[s as usize].ready_at <= c.clock && enough(&self.urgency(s), &occupant)
        };
        if self.takes_first(c) {
            return c.queue.front().is_some_and(|&s| may_run(s));
        }
        let mut found = false;
        self.each_waiting(c, |_, s| found |= may_run(s));
        found
    }

    /// The queue that a thread waits in for its turn.
    pub(super) fn queue_of(&mut self, slot: u32) -> &mut VecDeque<u32> {
        let t = &self.threads[slot as usize];
        match t.floats {
            true => &mut self.floating,
            false => &mut self.cores[t.core].queue,
        }
    }

    /// Takes a thread out of the queue that core `core` has found it in: it is that core's now.
    pub(super) fn take(&mut self, core: usize, (place, slot): (Queued, u32)) {
        match place {
            Queued::Here(i) => self.cores[core].queue.remove(i),
            Queued::Anywhere(i) => self.floating.remove(i),
        };
        self.threads[slot as usize].core = core;
    }

    /// Whether another thread of the core has a right to run now that the occupant's turn is
    /// over.
    pub(super) fn due(&self, core: usize) -> bool {
        self.is_wanted(&self.cores[core], Priority::ge)
    }

    /// If a more urgent thread can run on the core, its occupant goes back to the queue, before
    /// its equals.
    pub(super) fn preempt(&mut self, core: usize) -> bool {
        let c = &self.cores[core];
        let occupant = c.current;
        let outranked = self.is_wanted(c, Priority::gt);
        if outranked {
            self.queue_of(occupant).push_front(occupant);
            let c = &mut self.cores[core];
            c.current = NONE;
            self.threads[occupant as usize].ready_at = c.clock;
            self.stop_spinning_for(occupant);
        }
        outranked
    }

    /// A thread has left its core: under the turnstile's policy those who spin for its locks
    /// sleep from now on, and lend it their priority.
    pub(super) fn stop_spinning_for(&mut self, owner: u32) {
        if !self.turnstile || !self.clocked {
            return;
        }
        let now = self.cores[self.threads[owner as usize].core].clock;
        for i in 0..self.cores.len() {
            let c = &self.cores[i];
            if !c.spinning {
                continue;
            }
            let spinner = c.current;
            if self.holds(owner, self.threads[spinner as usize].blocked_on) {
                let c = &mut self.cores[i];
                (c.spinning, c.current) = (false, NONE);
                c.clock = c.clock.max(now);
                self.go_to_sleep(i);
                self.lend();
                // Others may spin for what this one holds.
                self.stop_spinning_for(spinner);
            }
        }
    }

    fn holds(&self, slot: u32, lock: u32) -> bool {
        let mut held = self.threads[slot as usize].held.iter();
        lock != NONE && held.any(|h| h.id == lock)
    }

    /// Settles what is lent: each owner of a lock has the priority of the most urgent thread
    /// that sleeps for it, lent ones included.
    pub(super) fn lend(&mut self) {
        if !self.turnstile || !self.clocked || self.cfg.planted_no_lending {
            return;
        }
        for t in &mut self.threads {
            t.lent = Priority::ORDINARY;
        }
        // A chain of owners that wait is as long as there are threads, at most.
        for _ in 0..self.threads.len() {
            let mut settled = true;
            for w in 0..self.threads.len() as u32 {
                let t = &self.threads[w as usize];
                let (lock, level) = (t.blocked_on, t.base.max(t.lent));
                if !matches!(t.doing, Doing::Lock(_)) || self.spins(w, 0) {
                    continue;
                }
                let owner = (0..self.threads.len()).find(|&o| self.holds(o as u32, lock));
                let Some(owner) = owner else { continue };
                let o = &mut self.threads[owner];
                if o.base.max(o.lent) < level {
                    o.lent = level;
                    settled = false;
                }
            }
            if settled {
                return;
            }
        }
    }
}

//! Scheduling: what happens at a scheduling point, who runs next, parking, waking, timers.

use perimeter_base::Time;
use std::cmp::Reverse;

use super::config::{FailureKind, Schedule};
use super::lock::LockHead;
use super::state::{Core, Doing, NEVER, NONE, OUTSIDE, Op, State};

/// Scheduling points that one thread may pass alone under PCT while others could run. PCT
/// assumes that threads end or block; one that polls must not starve what it polls for.
const PCT_PATIENCE: u64 = 10_000;

impl State {
    // ---- scheduling points ------------------------------------------------------------

    /// The running thread passes a scheduling point. True: it must suspend (it is queued).
    #[inline]
    pub(super) fn step(&mut self, op: Op, object: u32) -> bool {
        self.steps += 1;
        let me = self.running;
        self.mix((op as u64) << 56 | u64::from(me) << 32 | u64::from(object));
        if self.steps > self.step_limit {
            self.step_limit_hit();
            return true;
        }
        let costs = &self.cfg.costs;
        let ns = match op {
            Op::Yield => costs.yield_ns,
            Op::Checkpoint | Op::Set | Op::Take | Op::TryLock => costs.atomic_ns,
            _ => costs.point_ns,
        };
        let ns = u64::from(ns.max(1));
        if !self.clocked {
            self.spend(ns);
        } else {
            let core = self.threads[me as usize].core;
            match op {
                Op::Yield => self.schedule(core, ns),
                _ => self.spend(ns),
            }
            if self.ranked && self.preempt(core) {
                return true;
            }
            let c = &self.cores[core];
            if c.clock <= self.horizon && c.clock < c.slice_end && op != Op::Yield {
                return false;
            }
            return self.step_clocked(op);
        }
        self.step_flat(op)
    }

    #[inline]
    fn mix(&mut self, x: u64) {
        self.hash = (self.hash ^ x)
            .wrapping_mul(0x9fb2_1c65_1e98_df25)
            .rotate_left(29);
    }

    #[cold]
    fn step_limit_hit(&mut self) {
        let d = self.describe();
        self.fail(FailureKind::StepLimit, d);
    }

    fn step_clocked(&mut self, op: Op) -> bool {
        let me = self.running;
        let core = self.threads[me as usize].core;
        let slice = u64::from(self.cfg.costs.slice_ns);
        let c = &mut self.cores[core];
        if c.clock >= c.slice_end || op == Op::Yield {
            (c.slice_began, c.slice_end) = (c.clock, c.clock.saturating_add(slice));
            if self.due(core) {
                self.queue_of(me).push_back(me);
                let c = &mut self.cores[core];
                self.threads[me as usize].ready_at = c.clock;
                c.current = NONE;
                self.stop_spinning_for(me);
                return true;
            }
        }
        // Nobody else is behind this clock: go on without a switch.
        self.cores[core].clock > self.horizon
    }

    /// Core `core` does the scheduler's work for `ns`; where there is one scheduler, it waits for that.
    pub(super) fn schedule(&mut self, core: usize, ns: u64) {
        let ns = self.jittered(ns);
        let clock = &mut self.cores[core].clock;
        let began = *clock;
        let mut from = began;
        if self.cfg.costs.one_scheduler && ns > 0 {
            let (since, until) = self.scheduler;
            // Cores' clocks are some steps apart: who comes later may have been there before.
            if from + ns > since {
                from = from.max(until);
                self.scheduler = (from, from + ns);
            }
        }
        *clock = from + ns;
        self.scheduling_ns += *clock - began;
    }

    /// Core `core` leaves a thread that goes to sleep.
    pub(super) fn go_to_sleep(&mut self, core: usize) {
        self.schedule(core, u64::from(self.cfg.costs.park_ns));
    }

    fn step_flat(&mut self, op: Op) -> bool {
        if let Some(&Reverse((at, ..))) = self.timers.peek()
            && at <= self.clock
            && !self.embedded
        {
            self.fire(self.clock);
        }
        let early = u64::from(self.cfg.early_timer_one_in);
        if early != 0
            && !self.embedded
            && self.rng.below(early) == 0
            && let Some(at) = self.next_deadline()
        {
            self.clock = self.clock.max(at);
            self.fire(at);
        }
        let me = self.running;
        match self.cfg.schedule {
            Schedule::Time { .. } => {
                if op != Op::Yield || self.ready.is_empty() {
                    return false;
                }
            }
            Schedule::Random { switch_one_in } => {
                if self.ready.is_empty()
                    || (op != Op::Yield && self.rng.below(u64::from(switch_one_in)) != 0)
                {
                    return false;
                }
                let i = self.rng.below(self.ready.len() as u64) as usize;
                self.next = self.ready.swap_remove_back(i).unwrap_or(NONE);
            }
            Schedule::Pct { .. } => {
                if !self.step_pct(op) {
                    return false;
                }
            }
        }
        self.ready.push_back(me);
        true
    }

    /// PCT: lowers the running thread at points of change, when it yields and when it runs
    /// alone for too long; tells whether another one comes first now.
    fn step_pct(&mut self, op: Op) -> bool {
        let mut lower = None;
        while let Some(&at) = self.changes.get(self.changed) {
            if self.steps < at {
                break;
            }
            // Below every initial priority, and each change below the one before.
            lower = Some((1 << 30) - self.changed as u64);
            self.changed += 1;
        }
        self.alone += 1;
        if op == Op::Yield || self.alone > PCT_PATIENCE {
            self.alone = 0;
            self.lowest = self.lowest.saturating_sub(1);
            lower = Some(self.lowest);
        }
        if let Some(p) = lower {
            self.me().priority = p;
            self.resched = true;
        }
        if !self.resched {
            return false;
        }
        self.resched = false;
        let mine = self.me().priority;
        self.first_by_priority()
            .is_some_and(|(_, slot)| self.threads[slot as usize].priority > mine)
    }

    /// Index and slot of the runnable thread with the highest priority, not the running one.
    fn first_by_priority(&self) -> Option<(usize, u32)> {
        self.ready
            .iter()
            .copied()
            .enumerate()
            .max_by_key(|&(i, s)| (self.threads[s as usize].priority, Reverse(i)))
    }

    // ---- choosing ---------------------------------------------------------------------

    /// Who runs next; none when nobody can at this time, or after a failure.
    pub(super) fn pick(&mut self) -> Option<u32> {
        if self.teardown {
            return None;
        }
        let slot = if self.clocked {
            self.pick_clocked()?
        } else {
            self.pick_flat()?
        };
        let serial = self.threads[slot as usize].serial;
        if serial != self.last_run {
            self.last_run = serial;
            self.switches += 1;
            self.alone = 0;
            self.mix(self.clock ^ serial << 48);
        }
        Some(slot)
    }

    fn pick_flat(&mut self) -> Option<u32> {
        if self.clock > self.cfg.max_time.0 && !self.embedded {
            self.time_limit_hit();
            return None;
        }
        let next = std::mem::replace(&mut self.next, NONE);
        if next != NONE {
            return Some(next);
        }
        match self.cfg.schedule {
            Schedule::Time { .. } => self.ready.pop_front(),
            Schedule::Random { .. } => {
                let i = self.rng.below(self.ready.len() as u64) as usize;
                self.ready.swap_remove_back(i)
            }
            Schedule::Pct { .. } => {
                let (i, _) = self.first_by_priority()?;
                self.resched = false;
                self.ready.swap_remove_back(i)
            }
        }
    }

    #[cold]
    fn time_limit_hit(&mut self) {
        let d = self.describe();
        self.fail(FailureKind::TimeLimit, d);
    }

    /// When the core could go on: with its occupant, with its queue, or by parking a spinner
    /// that others wait behind.
    fn key(&self, c: &Core) -> u64 {
        if c.current != NONE && !c.spinning {
            return c.clock;
        }
        let at = self.next_at(c);
        if !c.spinning {
            return at;
        }
        let Some((_, head)) = self.head(c) else {
            return NEVER;
        };
        if self.urgency(head) <= self.urgency(c.current) {
            return at.max(self.threads[c.current as usize].spin_until);
        }
        at
    }

    /// Brings [`State::keys`] up to date: of the core that ran last and of those that others
    /// changed.
    fn refresh_keys(&mut self) {
        if self.turnstile || self.one_queue {
            // Priorities that are lent, owners that leave their cores, and what any core may take,
            // change any.
            self.changed_cores.clear();
            self.changed_cores.extend(0..self.cores.len());
        } else {
            self.changed_cores.push(self.ran);
        }
        while let Some(core) = self.changed_cores.pop() {
            self.keys[core] = self.key(&self.cores[core]);
        }
        debug_assert!(
            (0..)
                .zip(&self.keys)
                .all(|(i, k)| *k == self.key(&self.cores[i]))
        );
    }

    fn pick_clocked(&mut self) -> Option<u32> {
        loop {
            self.refresh_keys();
            let (mut best, mut first, mut second) = (usize::MAX, NEVER, NEVER);
            let n = self.keys.len();
            // Of cores that can go on at the same time the first one does: with one queue for all,
            // none is first each time.
            let from = match self.one_queue {
                true => self.rng.below(n as u64) as usize,
                false => 0,
            };
            for i in (from..n).chain(0..from) {
                let k = self.keys[i];
                if k < first {
                    (best, second, first) = (i, first, k);
                } else if k < second {
                    second = k;
                }
            }
            self.drop_stale();
            let timer = self.timers.peek().map_or(NEVER, |t| t.0.0);
            if first == NEVER {
                // Idle: the driver looks around before it lets time jump.
                return None;
            }
            if timer <= first {
                self.clock = self.clock.max(timer);
                self.fire(timer);
                continue;
            }
            if first > self.cfg.max_time.0 {
                self.time_limit_hit();
                return None;
            }
            self.ran = best;
            let c = &mut self.cores[best];
            if c.spinning {
                let spinner = c.current;
                (c.spinning, c.current, c.clock) = (false, NONE, first);
                self.go_to_sleep(best);
                self.stop_spinning_for(spinner);
                self.lend();
                continue;
            }
            if self.ranked && c.current != NONE && self.preempt(best) {
                continue;
            }
            let c = &self.cores[best];
            if c.current == NONE {
                let (place, slot) = self.head(c)?;
                self.take(best, (place, slot));
                let c = &mut self.cores[best];
                c.idle_ns += first - c.clock;
                c.clock = first;
                c.current = slot;
                let other = c.last != slot;
                c.last = slot;
                if other {
                    self.turns += 1;
                    self.schedule(best, u64::from(self.cfg.costs.switch_ns));
                    self.bring(best, slot);
                }
                let c = &mut self.cores[best];
                c.slice_began = c.clock;
                c.slice_end = c.clock.saturating_add(u64::from(self.cfg.costs.slice_ns));
                continue;
            }
            self.clock = self.clock.max(first);
            self.horizon = second.min(timer);
            return Some(c.current);
        }
    }

    // ---- blocking and waking ----------------------------------------------------------

    /// The running thread stops running until it is woken, or `deadline`. It must suspend.
    pub(super) fn park(&mut self, doing: Doing, deadline: u64) {
        self.leave_core(doing, deadline);
        self.stop_spinning_for(self.running);
    }

    fn leave_core(&mut self, doing: Doing, deadline: u64) {
        let slot = self.running;
        let seq = if deadline == NEVER {
            0
        } else {
            self.timer_seq += 1;
            self.timers.push(Reverse((deadline, self.timer_seq, slot)));
            self.timer_seq
        };
        let t = &mut self.threads[slot as usize];
        (t.doing, t.timer, t.timed_out) = (doing, seq, false);
        if self.clocked {
            let core = t.core;
            let c = &mut self.cores[core];
            (c.current, c.spinning) = (NONE, false);
        }
    }

    /// The running thread waits for a lock whose owner is `owner`; with cores' clocks it spins
    /// first if the owner runs on another core.
    pub(super) fn park_lock(&mut self, id: u32, head: *const LockHead, owner: u32) {
        let slot = self.running;
        self.leave_core(Doing::Lock(head), NEVER);
        self.threads[slot as usize].blocked_on = id;
        if self.clocked && owner < OUTSIDE && self.cfg.costs.spin_ns != 0 {
            let (oc, mc) = (
                self.threads[owner as usize].core,
                self.threads[slot as usize].core,
            );
            let o = &self.cores[oc];
            // A thread that spins runs: FreeBSD's spins for it; and only the end of its time
            // slice, if others wait for the core, stops it.
            if oc != mc && o.current == owner && (self.turnstile || !o.spinning) {
                let c = &mut self.cores[mc];
                let since = match self.cfg.costs.pause_ns {
                    0 => c.clock,
                    // It has spun for a while already where it has looked in vain.
                    _ => self.threads[slot as usize].waits_since,
                };
                self.threads[slot as usize].spin_until = if self.turnstile {
                    c.slice_end
                } else {
                    since + u64::from(self.cfg.costs.spin_ns)
                };
                (c.current, c.spinning) = (slot, true);
                return;
            }
        }
        if self.clocked {
            self.go_to_sleep(self.threads[slot as usize].core);
        }
        self.stop_spinning_for(slot);
        self.lend();
    }

    /// Whether a waiter for a lock still spins at `now`.
    pub(super) fn spins(&self, slot: u32, now: u64) -> bool {
        let t = &self.threads[slot as usize];
        self.on_core(slot) && (t.spin_until >= now || self.turnstile)
    }

    /// When a contender that spins looks at the lock's word next, from `now` on.
    pub(super) fn looks_at(&self, slot: u32, now: u64) -> u64 {
        let costs = &self.cfg.costs;
        let since = self.threads[slot as usize].waits_since;
        let pauses = [2, 6, 14].map(|n| since + n * u64::from(costs.pause_ns));
        let yields = u64::from(costs.yield_ns.max(1));
        let next = pauses.into_iter().find(|at| *at >= now);
        next.unwrap_or_else(|| {
            let done = now - pauses[2];
            pauses[2] + done.div_ceil(yields) * yields
        })
    }

    /// Whether a waiter for a lock spins.
    fn on_core(&self, slot: u32) -> bool {
        let c = self.cores.get(self.threads[slot as usize].core);
        c.is_some_and(|c| c.spinning && c.current == slot)
    }

    /// A spinner has got its lock at `at`: it goes on on its core.
    pub(super) fn unspin(&mut self, slot: u32, at: u64) {
        let t = &mut self.threads[slot as usize];
        (t.doing, t.blocked_on) = (Doing::Ready, NONE);
        let core = t.core;
        let c = &mut self.cores[core];
        c.spinning = false;
        c.clock = c.clock.max(at);
        self.horizon = self.horizon.min(c.clock);
        self.changed_cores.push(core);
    }

    /// Makes a parked thread runnable.
    pub(super) fn wake(&mut self, slot: u32) {
        let mut latency = 0;
        if self.clocked && self.running != NONE {
            let here = self.me().core;
            let costs = &self.cfg.costs;
            let mut ns = u64::from(costs.wake_ns);
            if self.runs_elsewhere(slot, here) {
                ns += u64::from(costs.kick_ns);
                latency = u64::from(costs.wake_latency_ns);
            }
            self.schedule(here, ns);
        }
        let at = self.now() + latency;
        let t = &mut self.threads[slot as usize];
        if t.timer != 0 {
            t.timer = 0;
            self.stale += 1;
        }
        self.make_ready(slot, at);
        if self.stale > 64 && self.stale > self.timers.len() / 2 {
            let threads = &self.threads;
            self.timers
                .retain(|&Reverse((_, seq, s))| threads[s as usize].timer == seq);
            self.stale = 0;
        }
    }

    /// Whether a thread that core `core` wakes is another core's to run.
    fn runs_elsewhere(&self, slot: u32, core: usize) -> bool {
        let t = &self.threads[slot as usize];
        let idle = |c: &Core| c.takes_any && c.current == NONE;
        match t.floats {
            true => self.cores.iter().any(idle),
            false => t.core != core,
        }
    }

    pub(super) fn make_ready(&mut self, slot: u32, at: u64) {
        let t = &mut self.threads[slot as usize];
        (t.doing, t.blocked_on) = (Doing::Ready, NONE);
        t.ready_at = at;
        if !self.clocked {
            self.ready.push_back(slot);
            self.resched = true;
            return;
        }
        let core = t.core;
        let c = &mut self.cores[core];
        if c.spinning && c.current == slot {
            // It stopped spinning unnoticed, having nobody behind it.
            (c.spinning, c.current) = (false, NONE);
        }
        self.queue_of(slot).push_back(slot);
        let floats = self.threads[slot as usize].floats;
        let c = &mut self.cores[core];
        let preempt = u64::from(self.cfg.costs.preempt_ns);
        if preempt > 0 && !floats {
            c.slice_end = c.slice_end.min(at.max(c.slice_began + preempt));
        }
        self.changed_cores.push(core);
        let mine = match self.running {
            NONE => None,
            me => Some(self.threads[me as usize].core),
        };
        let may_run = |c: &usize| (floats && self.cores[*c].takes_any) || *c == core;
        let others = (0..self.cores.len()).filter(|c| may_run(c) && Some(*c) != mine);
        let soonest = others.map(|c| self.key(&self.cores[c])).min();
        self.horizon = self.horizon.min(soonest.unwrap_or(NEVER));
    }

    // ---- timers -----------------------------------------------------------------------

    /// The running thread is about to sleep until `deadline`: whether its core's timer was set for
    /// that.
    pub(super) fn set_timer(&mut self, deadline: Time) -> bool {
        let costs = &self.cfg.costs;
        let (slice, cost) = (u64::from(costs.slice_ns), u64::from(costs.timer_set_ns));
        let set = self.clocked && deadline.nanos_since(Time(self.now())) < slice;
        if set {
            self.spend(cost);
        }
        set
    }

    /// The running thread's sleep is over. If the timer was `set`, it has ended that with an
    /// interrupt, or has to be set for what is due next.
    pub(super) fn timer_over(&mut self, set: bool) {
        if !set {
            return;
        }
        let cost = match self.me().timed_out {
            true => self.cfg.costs.timer_interrupt_ns,
            false => self.cfg.costs.timer_set_ns,
        };
        self.spend(u64::from(cost));
    }

    fn drop_stale(&mut self) {
        while let Some(&Reverse((_, seq, slot))) = self.timers.peek() {
            if self.threads[slot as usize].timer == seq {
                return;
            }
            self.timers.pop();
            self.stale = self.stale.saturating_sub(1);
        }
    }

    /// Wakes every thread whose deadline is not after `until`.
    pub(super) fn fire(&mut self, until: u64) {
        loop {
            self.drop_stale();
            match self.timers.peek() {
                Some(&Reverse((at, _, slot))) if at <= until => {
                    self.timers.pop();
                    let t = self.thread(slot);
                    (t.timer, t.timed_out) = (0, true);
                    self.make_ready(slot, at);
                }
                _ => return,
            }
        }
    }

    /// The earliest deadline of a parked thread.
    pub(super) fn next_deadline(&mut self) -> Option<u64> {
        self.drop_stale();
        self.timers.peek().map(|t| t.0.0)
    }
}

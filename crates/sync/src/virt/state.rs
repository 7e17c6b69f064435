//! All state of one simulation: threads, cores, timers, counts. No function here suspends or
//! runs code of the simulated program, so a `&mut State` never lives across either.

use corosensei::{Coroutine, Yielder, stack::DefaultStack};
use perimeter_base::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::thread::ThreadId;

use super::config::{Failure, FailureKind, Report, Schedule, VirtualConfig};
use super::event::EventHead;
use super::lock::LockHead;
use super::rng::Rng;
use crate::class::{LockClass, LockStats, Work};

/// No thread.
pub(super) const NONE: u32 = u32::MAX;
/// Owner of a lock taken by code that is not a virtual thread.
pub(super) const OUTSIDE: u32 = u32::MAX - 1;

/// Later than everything.
const NEVER: u64 = u64::MAX;

/// Scheduling points that one thread may pass alone under PCT while others could run. PCT
/// assumes that threads end or block; one that polls must not starve what it polls for.
const PCT_PATIENCE: u64 = 10_000;

/// The coroutine of a thread.
pub(super) type Coro = Coroutine<(), (), (), DefaultStack>;
/// The body of a thread.
pub(super) type Body = Box<dyn FnOnce() + Send + 'static>;
/// A check of the program's own.
pub(super) type Hook = Box<dyn FnMut() -> Result<(), String> + Send>;

/// What passes a scheduling point, for the trace.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Op {
    Lock = 1,
    TryLock,
    Unlock,
    Set,
    Wait,
    Take,
    Checkpoint,
    Yield,
    Sleep,
    Spawn,
    Join,
}

/// What a thread is doing.
#[derive(Copy, Clone)]
pub(super) enum Doing {
    /// Free slot.
    Nothing,
    /// Running, or waiting for its turn.
    Ready,
    /// In the queue of a lock. The pointer is good while the thread is in this state: its
    /// suspended stack borrows the lock.
    Lock(*const LockHead),
    /// Parked at an event; the same holds.
    Event(*const EventHead),
    /// Asleep.
    Sleep,
    /// Waiting for the end of the thread with this serial number.
    Join(u64),
}

/// A virtual thread. The slot number is its lane.
pub(super) struct Thd {
    pub name: String,
    pub serial: u64,
    pub core: usize,
    pub doing: Doing,
    pub body: Option<Body>,
    /// Boxed: it stays in place while the list of threads grows under a running thread.
    pub coro: Option<Box<Coro>>,
    pub yielder: *const Yielder<(), ()>,
    /// Not before this time (its wake-up is under way).
    pub ready_at: u64,
    /// Sequence number of the timer that may wake it; 0: none.
    pub timer: u64,
    /// Why it was woken: by its timer?
    pub timed_out: bool,
    /// End of its spinning for a lock.
    pub spin_until: u64,
    /// Locks held: id and class.
    pub held: Vec<(u32, LockClass)>,
    pub priority: u64,
    /// Being unwound: it must not be unwound again, and its destructors must not wait.
    pub unwinding: bool,
    /// Operations tried while being unwound.
    pub torn_ops: u32,
}

/// A core under [`Schedule::Time`].
#[derive(Default)]
pub(super) struct Core {
    clock: u64,
    /// Who occupies it (`NONE` when nobody).
    current: u32,
    /// The occupant spins for a lock.
    spinning: bool,
    /// Who ran last: another one costs a switch.
    last: u32,
    slice_end: u64,
    queue: VecDeque<u32>,
    idle_ns: u64,
}

/// One simulation.
pub(super) struct State {
    pub cfg: VirtualConfig,
    /// Cores have clocks of their own ([`Schedule::Time`], not embedded).
    pub clocked: bool,
    pub embedded: bool,
    pub rng: Rng,
    pub threads: Vec<Thd>,
    free: BinaryHeap<Reverse<u32>>,
    pub live: usize,
    pub serial: u64,
    pub running: u32,
    /// The thread that takes over at the switch under way; `NONE`: choose.
    next: u32,
    /// The one clock; with cores' clocks, that of the core chosen last.
    pub clock: u64,
    /// The running core may go on while its clock is not past this.
    horizon: u64,
    pub cores: Vec<Core>,
    next_core: usize,
    /// Runnable threads but the running one (without cores' clocks).
    ready: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    timer_seq: u64,
    stale: usize,
    pub steps: u64,
    pub step_limit: u64,
    switches: u64,
    last_run: u64,
    hash: u64,
    /// Steps at which PCT lowers the running thread, ascending, and how many are done.
    changes: Vec<u64>,
    changed: usize,
    /// PCT: the set of runnable threads or a priority has changed.
    resched: bool,
    lowest: u64,
    alone: u64,
    pub failure: Option<Box<Failure>>,
    /// The simulation has failed: threads are being unwound.
    pub teardown: bool,
    /// Nothing will ever run again.
    pub finished: bool,
    pub class_stats: [LockStats; LockClass::ALL.len()],
    pub hooks: Vec<Hook>,
    pub idle_hooks: Vec<Hook>,
    /// Some event has a condition to be checked when nobody runs.
    pub conditions: bool,
    pub foreign: HashMap<ThreadId, u32>,
}

impl State {
    pub(super) fn new(mut cfg: VirtualConfig, embedded: bool) -> State {
        cfg.cores = cfg.cores.max(1);
        let clocked = !embedded && matches!(cfg.schedule, Schedule::Time { .. });
        let mut rng = Rng::new(cfg.seed, 1);
        let mut changes = Vec::new();
        if let Schedule::Pct { depth } = cfg.schedule {
            let k = cfg.pct_steps.max(1);
            changes = (1..depth).map(|_| 1 + rng.below(k)).collect();
            changes.sort_unstable();
        }
        let cores = (0..if clocked { cfg.cores } else { 0 })
            .map(|_| Core {
                current: NONE,
                last: NONE,
                ..Core::default()
            })
            .collect();
        State {
            clocked,
            embedded,
            rng,
            threads: Vec::new(),
            free: BinaryHeap::new(),
            live: 0,
            serial: 0,
            running: NONE,
            next: NONE,
            clock: 0,
            horizon: 0,
            cores,
            next_core: 0,
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_seq: 0,
            stale: 0,
            steps: 0,
            step_limit: cfg.max_steps,
            switches: 0,
            last_run: 0,
            hash: cfg.seed ^ 0x5bd1_e995_9d1b_54a7,
            changes,
            changed: 0,
            resched: false,
            lowest: 1 << 29,
            alone: 0,
            failure: None,
            teardown: false,
            finished: false,
            class_stats: [LockStats::default(); LockClass::ALL.len()],
            hooks: Vec::new(),
            idle_hooks: Vec::new(),
            conditions: false,
            foreign: HashMap::new(),
            cfg,
        }
    }

    /// The running thread's record.
    #[inline]
    pub(super) fn me(&mut self) -> &mut Thd {
        &mut self.threads[self.running as usize]
    }

    #[inline]
    pub(super) fn thread(&mut self, slot: u32) -> &mut Thd {
        &mut self.threads[slot as usize]
    }

    // ---- time -------------------------------------------------------------------------

    /// The time now, where the running thread is.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        if self.clocked && self.running != NONE {
            self.cores[self.threads[self.running as usize].core].clock
        } else {
            self.clock
        }
    }

    /// Lets `ns` pass for the running thread, jittered. Free when embedded.
    #[inline]
    pub(super) fn spend(&mut self, ns: u64) {
        if self.embedded || self.running == NONE {
            return;
        }
        if !self.clocked {
            self.clock = self.clock.saturating_add(ns);
            return;
        }
        let ns = self.jittered(ns);
        let core = self.threads[self.running as usize].core;
        let c = &mut self.cores[core].clock;
        *c = c.saturating_add(ns);
    }

    #[inline]
    fn jittered(&mut self, ns: u64) -> u64 {
        let Schedule::Time { jitter_percent: j } = self.cfg.schedule else {
            return ns;
        };
        if j == 0 || ns == 0 {
            return ns;
        }
        // Uniform over ns (1 ± j/100); the extra 99 rounds up so that short costs vary too.
        let span = ns.saturating_mul(2 * u64::from(j.min(100))) / 100;
        (ns - span / 2).saturating_add(self.rng.below(span + 1))
    }

    /// Virtual cost of work.
    #[inline]
    pub(super) fn charge(&mut self, work: Work, units: u64) {
        let ns = self.cfg.costs.work[work as usize].nanos(units);
        self.spend(ns);
    }

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
        self.spend(u64::from(self.cfg.costs.point_ns));
        if self.clocked {
            let c = &self.cores[self.threads[me as usize].core];
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
            c.slice_end = c.clock.saturating_add(slice);
            let due = c
                .queue
                .front()
                .is_some_and(|&h| self.threads[h as usize].ready_at <= c.clock);
            if due {
                c.queue.push_back(me);
                self.threads[me as usize].ready_at = c.clock;
                c.current = NONE;
                return true;
            }
        }
        // Nobody else is behind this clock: go on without a switch.
        self.cores[core].clock > self.horizon
    }

    fn step_flat(&mut self, op: Op) -> bool {
        if let Some(&Reverse((at, ..))) = self.timers.peek()
            && at <= self.clock
            && !self.embedded
        {
            self.fire(self.clock);
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
        if self.clock > self.cfg.max_time.0 {
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
        let Some(&head) = c.queue.front() else {
            return NEVER;
        };
        let at = c.clock.max(self.threads[head as usize].ready_at);
        if c.spinning {
            return at.max(self.threads[c.current as usize].spin_until);
        }
        at
    }

    fn pick_clocked(&mut self) -> Option<u32> {
        loop {
            let (mut best, mut first, mut second) = (usize::MAX, NEVER, NEVER);
            for (i, c) in self.cores.iter().enumerate() {
                let k = self.key(c);
                if k < first {
                    (best, second, first) = (i, first, k);
                } else if k < second {
                    second = k;
                }
            }
            self.drop_stale();
            let timer = self.timers.peek().map_or(NEVER, |t| t.0.0);
            if timer <= first && timer != NEVER {
                self.clock = self.clock.max(timer);
                self.fire(timer);
                continue;
            }
            if best == usize::MAX {
                return None;
            }
            if first > self.cfg.max_time.0 {
                self.time_limit_hit();
                return None;
            }
            let c = &mut self.cores[best];
            if c.spinning {
                (c.spinning, c.current, c.clock) = (false, NONE, first);
                continue;
            }
            if c.current == NONE {
                let slot = c.queue.pop_front()?;
                c.idle_ns += first - c.clock;
                c.clock = first;
                c.current = slot;
                let other = c.last != slot;
                c.last = slot;
                if other {
                    let ns = self.jittered(u64::from(self.cfg.costs.switch_ns));
                    self.cores[best].clock += ns;
                }
                let c = &mut self.cores[best];
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
    pub(super) fn park_lock(&mut self, head: *const LockHead, owner: u32) {
        let slot = self.running;
        self.park(Doing::Lock(head), NEVER);
        if !self.clocked || owner >= OUTSIDE || self.cfg.costs.spin_ns == 0 {
            return;
        }
        let (oc, mc) = (
            self.threads[owner as usize].core,
            self.threads[slot as usize].core,
        );
        let o = &self.cores[oc];
        if oc != mc && o.current == owner && !o.spinning {
            let until = self.cores[mc].clock + u64::from(self.cfg.costs.spin_ns);
            self.threads[slot as usize].spin_until = until;
            let c = &mut self.cores[mc];
            (c.current, c.spinning) = (slot, true);
        }
    }

    /// Whether a waiter for a lock still spins at `now`.
    pub(super) fn spins(&self, slot: u32, now: u64) -> bool {
        let t = &self.threads[slot as usize];
        let c = &self.cores[t.core];
        c.spinning && c.current == slot && t.spin_until >= now
    }

    /// A spinner has got its lock at `at`: it goes on on its core.
    pub(super) fn unspin(&mut self, slot: u32, at: u64) {
        let t = &mut self.threads[slot as usize];
        t.doing = Doing::Ready;
        let core = t.core;
        let c = &mut self.cores[core];
        c.spinning = false;
        c.clock = c.clock.max(at);
        self.horizon = self.horizon.min(c.clock);
    }

    /// Makes a parked thread runnable.
    pub(super) fn wake(&mut self, slot: u32) {
        let me = self.running;
        let by_core = if me == NONE || !self.clocked {
            NONE
        } else {
            self.spend(u64::from(self.cfg.costs.wake_ns));
            self.threads[me as usize].core as u32
        };
        let now = self.now();
        let latency = u64::from(self.cfg.costs.wake_latency_ns);
        let t = &mut self.threads[slot as usize];
        if t.timer != 0 {
            t.timer = 0;
            self.stale += 1;
        }
        let at = if by_core == NONE || by_core == t.core as u32 {
            now
        } else {
            now + latency
        };
        self.make_ready(slot, at);
        if self.stale > 64 && self.stale > self.timers.len() / 2 {
            let threads = &self.threads;
            self.timers
                .retain(|&Reverse((_, seq, s))| threads[s as usize].timer == seq);
            self.stale = 0;
        }
    }

    fn make_ready(&mut self, slot: u32, at: u64) {
        let t = &mut self.threads[slot as usize];
        t.doing = Doing::Ready;
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
        c.queue.push_back(slot);
        let k = self.key(&self.cores[core]);
        let mine = self.running != NONE && self.threads[self.running as usize].core == core;
        if !mine {
            self.horizon = self.horizon.min(k);
        }
    }

    // ---- timers -----------------------------------------------------------------------

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

    // ---- threads ----------------------------------------------------------------------

    /// Adds a thread; its slot and serial number.
    pub(super) fn add(&mut self, name: &str, core: Option<usize>, body: Body) -> (u32, u64) {
        let core = core.unwrap_or_else(|| {
            self.next_core += 1;
            self.next_core
        }) % self.cfg.cores;
        self.serial += 1;
        self.live += 1;
        // PCT's initial priorities are above those that changes give.
        let priority = (1 << 32) | (self.rng.next() >> 1);
        let slot = self.slot();
        let serial = self.serial;
        let t = self.thread(slot);
        t.name.clear();
        t.name.push_str(name);
        (t.serial, t.core, t.body, t.priority) = (serial, core, Some(body), priority);
        (t.timer, t.timed_out, t.unwinding, t.torn_ops) = (0, false, false, 0);
        let now = self.now();
        self.make_ready(slot, now);
        (slot, serial)
    }

    /// A free slot, the smallest there is.
    fn slot(&mut self) -> u32 {
        if let Some(Reverse(s)) = self.free.pop() {
            return s;
        }
        self.threads.push(Thd {
            name: String::new(),
            serial: 0,
            core: 0,
            doing: Doing::Nothing,
            body: None,
            coro: None,
            yielder: std::ptr::null(),
            ready_at: 0,
            timer: 0,
            timed_out: false,
            spin_until: 0,
            held: Vec::new(),
            priority: 0,
            unwinding: false,
            torn_ops: 0,
        });
        (self.threads.len() - 1) as u32
    }

    /// A lane for an OS thread that is not a virtual thread; it keeps it.
    pub(super) fn foreign_lane(&mut self, id: ThreadId) -> u32 {
        if let Some(&s) = self.foreign.get(&id) {
            return s;
        }
        let s = self.slot();
        self.foreign.insert(id, s);
        s
    }

    /// The thread in `slot` has ended: frees the slot and wakes who joins it.
    pub(super) fn retire(&mut self, slot: u32) {
        let t = &mut self.threads[slot as usize];
        let serial = std::mem::take(&mut t.serial);
        t.doing = Doing::Nothing;
        t.yielder = std::ptr::null();
        t.held.clear();
        if t.timer != 0 {
            t.timer = 0;
            self.stale += 1;
        }
        if self.clocked {
            let core = t.core;
            let c = &mut self.cores[core];
            if c.current == slot {
                (c.current, c.spinning) = (NONE, false);
            }
            if c.last == slot {
                c.last = NONE;
            }
        }
        self.live -= 1;
        self.free.push(Reverse(slot));
        if self.teardown {
            return;
        }
        for s in 0..self.threads.len() as u32 {
            if matches!(self.threads[s as usize].doing, Doing::Join(j) if j == serial) {
                self.wake(s);
            }
        }
    }

    /// Retires one thread that never ran; its body.
    pub(super) fn drop_unstarted(&mut self) -> Option<Body> {
        let slot = self.threads.iter().position(|t| t.body.is_some())?;
        let body = self.threads[slot].body.take();
        self.retire(slot as u32);
        body
    }

    // ---- failing and reporting --------------------------------------------------------

    /// Records the first failure; everything is torn down from here on.
    pub(super) fn fail(&mut self, kind: FailureKind, detail: String) {
        if self.failure.is_none() {
            self.failure = Some(Box::new(Failure {
                kind,
                detail,
                config: self.cfg.clone(),
                steps: self.steps,
                at: Time(self.now()),
                trace_hash: self.hash,
            }));
        }
        self.teardown = true;
    }

    /// Name and lane of a lock's owner.
    fn owner(&self, owner: u32) -> String {
        match owner {
            NONE => "nobody".to_owned(),
            OUTSIDE => "code outside the simulation".to_owned(),
            s => format!("thread {s} \"{}\"", self.threads[s as usize].name),
        }
    }

    /// One line per unfinished thread: what it does, what it waits for, what it holds.
    pub(super) fn describe(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for (slot, t) in self.threads.iter().enumerate() {
            let doing = match t.doing {
                Doing::Nothing => continue,
                Doing::Ready if slot == self.running as usize => "runs".to_owned(),
                Doing::Ready => "can run".to_owned(),
                Doing::Lock(h) => {
                    // SAFETY: the thread is suspended inside `lock` and borrows the lock.
                    let h = unsafe { &*h };
                    format!(
                        "waits for lock {} #{} held by {}",
                        h.class.name(),
                        h.id,
                        self.owner(h.owner)
                    )
                }
                Doing::Event(h) => {
                    // SAFETY: the thread is suspended inside `wait` and borrows the event.
                    let h = unsafe { &*h };
                    format!("waits for event {}", h.name())
                }
                Doing::Sleep => "sleeps".to_owned(),
                Doing::Join(serial) => match self.threads.iter().position(|o| o.serial == serial) {
                    Some(o) => format!("waits for the end of {}", self.owner(o as u32)),
                    None => "waits for the end of a thread".to_owned(),
                },
            };
            let _ = write!(
                out,
                "\n  thread {slot} \"{}\" (core {}): {doing}",
                t.name, t.core
            );
            if t.timer != 0 {
                let at = self.timers.iter().find(|e| e.0.1 == t.timer);
                if let Some(Reverse((at, ..))) = at {
                    let _ = write!(out, " until {:?}", Time(*at));
                }
            }
            if !t.held.is_empty() {
                out.push_str("; holds");
                for (id, class) in &t.held {
                    let _ = write!(out, " {} #{id}", class.name());
                }
            }
        }
        out
    }

    /// How the run went so far.
    pub(super) fn report(&self) -> Report {
        let end = self.cores.iter().map(|c| c.clock).max().unwrap_or(0);
        Report {
            steps: self.steps,
            switches: self.switches,
            virtual_time: Time(end.max(self.clock)),
            trace_hash: self.hash,
            threads: self.serial,
            locks: self.class_stats,
            idle_ns: self.cores.iter().map(|c| c.idle_ns).collect(),
        }
    }
}

//! All state of one simulation: threads, cores, timers, counts. No function here suspends or
//! runs code of the simulated program, so a `&mut State` never lives across either.

use core::fmt;
use core::panic::Location;
use corosensei::{Coroutine, Yielder, stack::DefaultStack};
use perimeter_base::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::thread::ThreadId;

use super::config::{FailureKind, Report, RunError, Schedule, VirtualConfig};
use super::event::EventHead;
use super::lines::{AllKept, Fetched, Place};
use super::lock::LockHead;
use super::payload::Payload;
use super::record::{Act, Entry};
use super::rings::Rings;
use crate::class::{LockClass, LockStats, Touched, Work};
use crate::policy::{LockPolicy, Priority};
use perimeter_base::rng::SplitMix64;

/// No thread.
pub(super) const NONE: u32 = u32::MAX;
/// Owner of a lock taken by code that is not a virtual thread.
pub(super) const OUTSIDE: u32 = u32::MAX - 1;

/// Later than everything.
pub(super) const NEVER: u64 = u64::MAX;

/// The coroutine of a thread.
pub(super) type Coro = Coroutine<(), (), (), DefaultStack>;
/// The body of a thread.
pub(super) type Body = Box<dyn FnOnce() + Send + 'static>;
/// A check of the program's own.
pub(super) type Hook = Box<dyn FnMut() -> Result<(), String> + Send>;

/// Where a thread runs.
#[derive(Copy, Clone)]
pub(super) enum On {
    /// A core that the program knows of, modulo their number.
    Core(usize),
    /// Any of those.
    Any,
    /// A core behind them, likewise; if there is none, the first.
    Spare(usize),
}

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

/// A lock that a thread holds.
#[derive(Copy, Clone)]
pub(super) struct Held {
    /// `NONE` for locks that are not this platform's.
    pub(super) id: u32,
    pub(super) class: LockClass,
    pub(super) at: &'static Location<'static>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.class.name())?;
        if self.id != NONE {
            write!(f, " #{}", self.id)?;
        }
        write!(f, " (taken at {})", self.at)
    }
}

/// A virtual thread. The slot number is its lane.
pub(super) struct Thd {
    pub(super) name: Arc<str>,
    pub(super) serial: u64,
    pub(super) core: usize,
    /// Whether any core may run it.
    pub(super) floats: bool,
    pub(super) doing: Doing,
    pub(super) body: Option<Body>,
    /// Boxed: it stays in place while the list of threads grows under a running thread.
    pub(super) coro: Option<Box<Coro>>,
    pub(super) yielder: *const Yielder<(), ()>,
    /// Where its own lines are.
    pub(super) lines: Place,
    /// Not before this time (its wake-up is under way).
    pub(super) ready_at: u64,
    /// Sequence number of the timer that may wake it; 0: none.
    pub(super) timer: u64,
    /// Why it was woken: by its timer?
    pub(super) timed_out: bool,
    /// Since when it waits for a lock, and the end of its spinning.
    pub(super) waits_since: u64,
    pub(super) spin_until: u64,
    /// Locks held, in order of acquisition.
    pub(super) held: Vec<Held>,
    /// Where the lock that it takes, or waits for, is taken in the program.
    pub(super) at: &'static Location<'static>,
    /// PCT's.
    pub(super) priority: u64,
    /// The priority that it was started with, and what waiters have lent it.
    pub(super) base: Priority,
    pub(super) lent: Priority,
    /// The lock that it waits for.
    pub(super) blocked_on: u32,
    /// Being unwound: it must not be unwound again, and its destructors must not wait.
    pub(super) unwinding: bool,
    /// Operations tried while being unwound.
    pub(super) torn_ops: u32,
}

/// A core under [`Schedule::Time`].
#[derive(Default)]
pub(super) struct Core {
    pub(super) clock: u64,
    /// Whether it takes threads that are bound to none.
    pub(super) takes_any: bool,
    /// Who occupies it (`NONE` when nobody).
    pub(super) current: u32,
    /// The occupant spins for a lock.
    pub(super) spinning: bool,
    /// Who ran last: another one costs a switch.
    pub(super) last: u32,
    /// When its turn began, and when it ends if others wait.
    pub(super) slice_began: u64,
    pub(super) slice_end: u64,
    pub(super) queue: VecDeque<u32>,
    pub(super) idle_ns: u64,
}

/// One simulation.
pub(super) struct State {
    pub(super) cfg: VirtualConfig,
    /// Cores have clocks of their own ([`Schedule::Time`], not embedded).
    pub(super) clocked: bool,
    /// On each core the most urgent thread runs.
    pub(super) ranked: bool,
    /// Threads that are not bound to a core wait in one queue for all cores.
    pub(super) one_queue: bool,
    /// The lock policy is [`LockPolicy::Turnstile`].
    pub(super) turnstile: bool,
    pub(super) embedded: bool,
    pub(super) rng: SplitMix64,
    pub(super) threads: Vec<Thd>,
    pub(super) free: BinaryHeap<Reverse<u32>>,
    pub(super) live: usize,
    pub(super) serial: u64,
    pub(super) running: u32,
    /// The thread that takes over at the switch under way; `NONE`: choose.
    pub(super) next: u32,
    /// The one clock; with cores' clocks, that of the core chosen last.
    pub(super) clock: u64,
    /// The running core may go on while its clock is not past this.
    pub(super) horizon: u64,
    pub(super) cores: Vec<Core>,
    /// When each of them could go on, the one that ran last, and those that others have changed
    /// since that was found out.
    pub(super) keys: Vec<u64>,
    pub(super) ran: usize,
    pub(super) changed_cores: Vec<usize>,
    pub(super) next_core: usize,
    /// Those of them that wait for any core.
    pub(super) floating: VecDeque<u32>,
    /// Runnable threads but the running one (without cores' clocks).
    pub(super) ready: VecDeque<u32>,
    pub(super) timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pub(super) timer_seq: u64,
    pub(super) stale: usize,
    pub(super) steps: u64,
    pub(super) step_limit: u64,
    pub(super) switches: u64,
    /// How often a core went on to another thread.
    pub(super) turns: u64,
    pub(super) last_run: u64,
    pub(super) hash: u64,
    /// Steps at which PCT lowers the running thread, ascending, and how many are done.
    pub(super) changes: Vec<u64>,
    pub(super) changed: usize,
    /// PCT: the set of runnable threads or a priority has changed.
    pub(super) resched: bool,
    pub(super) lowest: u64,
    pub(super) alone: u64,
    pub(super) failure: Option<Box<RunError>>,
    /// The simulation has failed: threads are being unwound.
    pub(super) teardown: bool,
    /// The driving OS thread counts as panicking for reasons of its own: it drives from a
    /// destructor, or an earlier simulation had to leak a thread in the middle of unwinding.
    pub(super) base_panicking: bool,
    /// Nothing will ever run again.
    pub(super) finished: bool,
    /// There are no virtual threads: nobody can be waited for.
    pub(super) alone_here: bool,
    pub(super) class_stats: [LockStats; LockClass::ALL.len()],
    /// How often each class of work was declared, and of how many units.
    pub(super) work: [(u64, u64); Work::COUNT],
    /// What caches have fetched.
    pub(super) fetched: Fetched,
    /// Where payload is.
    pub(super) payload: Payload,
    /// Where the lines of tags are, by their numbers.
    pub(super) places: Vec<Place>,
    /// Who has what is at places that several cores have had.
    pub(super) kept: AllKept,
    /// Transmit rings whose descriptors are freed by who looks after them.
    pub(super) rings: Rings,
    /// What that has cost, by [`Touched::index`].
    pub(super) lines_ns: [u64; Touched::COUNT],
    /// How many items were touched that other cores had had since.
    pub(super) moved: [u64; Touched::COUNT],
    /// Lines that cores lacked: see [`Report::missed`].
    pub(super) missed: [[u64; 2]; Touched::COUNT + 1],
    /// What scheduling took, and since when, and until when, the one scheduler was busy last.
    pub(super) scheduling_ns: u64,
    pub(super) scheduler: (u64, u64),
    pub(super) hooks: Vec<Hook>,
    /// Some event has a condition to be checked when nobody runs.
    pub(super) conditions: bool,
    pub(super) foreign: HashMap<ThreadId, u32>,
    /// What threads do, while somebody wants to know.
    pub(super) record: Option<Vec<Entry>>,
}

/// The generator behind the choices of a simulation; `stream` keeps independent uses of one seed
/// apart.
pub(super) fn draws(seed: u64, stream: u64) -> SplitMix64 {
    let mut rng = SplitMix64::new(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
    // The first outputs of neighbouring seeds are the ones that schedules depend on most.
    rng.next();
    rng
}

impl State {
    pub(super) fn new(mut cfg: VirtualConfig, embedded: bool) -> State {
        cfg.cores = cfg.cores.max(1);
        let clocked = !embedded && matches!(cfg.schedule, Schedule::Time { .. });
        let mut rng = draws(cfg.seed, 1);
        let mut changes = Vec::new();
        if let Schedule::Pct { depth } = cfg.schedule {
            let k = cfg.pct_steps.max(1);
            changes = (1..depth).map(|_| 1 + rng.below(k)).collect();
            changes.sort_unstable();
        }
        let all = cfg.cores + cfg.spare_cores;
        let cores: Vec<Core> = (0..if clocked { all } else { 0 })
            .map(|n| Core {
                takes_any: cfg.one_run_queue && n < cfg.cores,
                current: NONE,
                last: NONE,
                ..Core::default()
            })
            .collect();
        State {
            clocked,
            ranked: clocked && cfg.priorities,
            one_queue: clocked && cfg.one_run_queue,
            turnstile: cfg.lock_policy == LockPolicy::Turnstile,
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
            keys: vec![NEVER; cores.len()],
            ran: 0,
            changed_cores: Vec::new(),
            cores,
            next_core: 0,
            floating: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_seq: 0,
            stale: 0,
            steps: 0,
            step_limit: cfg.max_steps,
            switches: 0,
            turns: 0,
            last_run: 0,
            hash: 0x5bd1_e995_9d1b_54a7,
            changes,
            changed: 0,
            resched: false,
            lowest: 1 << 29,
            alone: 0,
            failure: None,
            teardown: false,
            base_panicking: false,
            finished: false,
            alone_here: false,
            class_stats: [LockStats::default(); LockClass::ALL.len()],
            work: [(0, 0); Work::COUNT],
            fetched: Fetched::new(all, &cfg.costs.lines),
            payload: Payload::default(),
            places: Vec::new(),
            rings: Rings::default(),
            kept: AllKept::default(),
            lines_ns: [0; Touched::COUNT],
            moved: [0; Touched::COUNT],
            missed: [[0; 2]; Touched::COUNT + 1],
            scheduling_ns: 0,
            scheduler: (0, 0),
            hooks: Vec::new(),
            conditions: false,
            foreign: HashMap::new(),
            record: None,
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

    /// Whether the running thread panics. Only the OS thread's count of panics can tell, so
    /// nobody is suspended in the middle of unwinding until the simulation is torn down.
    #[inline]
    pub(super) fn panicking(&self) -> bool {
        std::thread::panicking() && !self.base_panicking
    }

    /// For waiting outside: panics if nothing will ever happen again.
    pub(super) fn expect_more(&self, what: &str) {
        assert!(
            !self.alone_here,
            "{what} would block for ever: nothing but this thread runs here, so use calls that do \
             not wait"
        );
        assert!(
            !self.finished,
            "{what} would block forever: the simulation has ended"
        );
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
    pub(super) fn jittered(&mut self, ns: u64) -> u64 {
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
        if self.record.is_some() {
            self.note(self.running, Act::Work { work, units });
        }
        let (times, of) = &mut self.work[work as usize];
        *times += 1;
        *of += units;
        if matches!(work, Work::Copy | Work::Checksum) {
            self.stream(units);
        }
        let ns = self.cfg.costs.work[work as usize].nanos(units);
        self.spend(ns);
    }

    // ---- threads ----------------------------------------------------------------------

    /// Adds a thread; its slot and serial number.
    pub(super) fn add(&mut self, urgency: Priority, name: &str, on: On, body: Body) -> (u32, u64) {
        let cores = self.cfg.cores;
        let core = match on {
            On::Core(core) => core % cores,
            On::Any => {
                self.next_core += 1;
                self.next_core % cores
            }
            On::Spare(core) => match self.cfg.spare_cores {
                0 => 0,
                spare => cores + core % spare,
            },
        };
        let floats = self.one_queue && matches!(on, On::Any);
        self.serial += 1;
        self.live += 1;
        // PCT's initial priorities are above those that changes give.
        let priority = (1 << 32) | (self.rng.next() >> 1);
        let slot = self.slot();
        let serial = self.serial;
        let t = self.thread(slot);
        t.name = name.into();
        (t.serial, t.core, t.body, t.priority) = (serial, core, Some(body), priority);
        t.floats = floats;
        (t.base, t.lent, t.blocked_on) = (urgency, Priority::ORDINARY, NONE);
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
            name: "".into(),
            serial: 0,
            core: 0,
            floats: false,
            doing: Doing::Nothing,
            body: None,
            coro: None,
            yielder: std::ptr::null(),
            lines: Place::default(),
            ready_at: 0,
            timer: 0,
            timed_out: false,
            waits_since: 0,
            spin_until: 0,
            held: Vec::new(),
            at: Location::caller(),
            priority: 0,
            base: Priority::ORDINARY,
            lent: Priority::ORDINARY,
            blocked_on: NONE,
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
            self.failure = Some(Box::new(RunError {
                kind,
                detail,
                config: Box::new(self.cfg.clone()),
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
                        "waits at {} for lock {} #{} held by {}",
                        t.at,
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
                for h in &t.held {
                    let _ = write!(out, " {h}");
                }
            }
        }
        out
    }

    /// How the run went so far.
    pub(super) fn report(&self) -> Report {
        let end = self.cores.iter().map(|c| c.clock).max().unwrap_or(0);
        // Until now, if nobody occupies it: by the clock of who asks, which has gone on since its core
        // was chosen.
        let now = self.now().max(self.clock);
        let idle = |c: &Core| match c.current {
            NONE => c.idle_ns + now.saturating_sub(c.clock),
            _ => c.idle_ns,
        };
        Report {
            steps: self.steps,
            switches: self.switches,
            turns: self.turns,
            virtual_time: Time(end.max(self.clock)),
            trace_hash: self.hash,
            threads: self.serial,
            locks: self.class_stats,
            idle_ns: self.cores.iter().map(idle).collect(),
            work: self.work,
            lines_ns: self.lines_ns,
            moved: self.moved,
            missed: self.missed,
            scheduling_ns: self.scheduling_ns,
        }
    }
}

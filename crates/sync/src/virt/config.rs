//! What a simulation is told, and what it tells.

use core::fmt;
use perimeter_base::Time;

use crate::class::{LockClass, LockStats, Touched, Work};
use crate::policy::LockPolicy;

/// Who runs next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Schedule {
    /// Virtual-time order, for prediction: every core has a clock, and the thread on the core
    /// whose clock is smallest runs. Without jitter the seed makes no difference.
    Time {
        /// Every cost varies by up to this many percent either way, 0 to 100.
        jitter_percent: u32,
    },
    /// At each scheduling point a switch to a random runnable thread, for exploration. Cores
    /// play no part: any runnable thread may run.
    Random {
        /// A switch happens with probability one in this many (1: always).
        switch_one_in: u32,
    },
    /// Probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010): random priorities,
    /// lowered at random points. A bug that takes `depth` ordering constraints in a run of n
    /// threads and k steps is found with probability at least 1/(n k^(depth-1)) per seed.
    Pct {
        /// How many ordering constraints to look for, from 1; there are `depth - 1` points of
        /// change among the first [`VirtualConfig::pct_steps`] steps.
        depth: u32,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Time { jitter_percent } => write!(f, "time:jitter={jitter_percent}"),
            Schedule::Random { switch_one_in } => write!(f, "random:one_in={switch_one_in}"),
            Schedule::Pct { depth } => write!(f, "pct:depth={depth}"),
        }
    }
}

/// What a class of work costs: `base_ns` plus `unit_ps` for each unit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Cost {
    /// Nanoseconds per charge.
    pub base_ns: u32,
    /// Picoseconds per unit (a frame, a segment, a byte).
    pub unit_ps: u32,
}

impl Cost {
    /// The cost in nanoseconds of `units` units.
    #[inline]
    pub const fn nanos(self, units: u64) -> u64 {
        (self.base_ns as u64).saturating_add(units.saturating_mul(self.unit_ps as u64) / 1000)
    }
}

perimeter_base::setters! {
    Cost {
        with_base_ns(base_ns: u32),
        with_unit_ps(unit_ps: u32),
    }
}

/// What cache lines cost that go from core to core, or come from memory. With the defaults only
/// the words of locks move, over one distance; the rest is of machines that were measured.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LineCosts {
    /// From the caches of a core that shares a cache with this one, ns.
    pub near_ns: u32,
    /// From those of another core of the same processor, ns.
    pub far_ns: u32,
    /// From those of another processor, ns.
    pub remote_ns: u32,
    /// From a cache that this core shares, ns.
    pub shared_ns: u32,
    /// From memory, ns.
    pub memory_ns: u32,
    /// Cores that share a cache; 0: all.
    pub near_cores: u32,
    /// Cores of a processor; 0: all.
    pub socket_cores: u32,
    /// Lines that a core has room for in the caches that are its own; 0: no bound.
    pub private_lines: u32,
    /// Lines that cores which share a cache have room for there; 0: no bound.
    pub shared_lines: u32,
    /// By how much handing a lock on takes longer for each other core that spins for it, percent
    /// of a move of its line.
    pub crowd_percent: u32,
    /// What each further line that is touched at a time takes, percent of the first: the core asks
    /// for it before that has come.
    pub further_percent: u32,
    /// How many lines each item has, in thousandths, by [`Touched::index`]; payload has costs of
    /// its own.
    pub each: [u32; Touched::COUNT],
    /// Payload's.
    pub payload: PayloadCosts,
}

/// What a line of payload takes beyond one in the core's own caches, as [written, read], ps. Many
/// are fetched side by side, so it is less than a line of [`LineCosts`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PayloadCosts {
    /// Where it is in a cache that the core shares.
    pub shared: [u32; 2],
    /// Where it is in memory.
    pub memory: [u32; 2],
    /// Where another core has it that shares a cache with this one.
    pub near: [u32; 2],
    /// Where another core of the same processor has it.
    pub far: [u32; 2],
    /// Where a core of another processor has it.
    pub remote: [u32; 2],
}

impl PayloadCosts {
    /// Whether payload costs nothing wherever it is.
    pub(super) fn is_nothing(&self) -> bool {
        *self == PayloadCosts::default()
    }
}

perimeter_base::setters! {
    PayloadCosts {
        with_shared(shared: [u32; 2]),
        with_memory(memory: [u32; 2]),
        with_near(near: [u32; 2]),
        with_far(far: [u32; 2]),
        with_remote(remote: [u32; 2]),
    }
}

impl Default for LineCosts {
    fn default() -> Self {
        LineCosts {
            near_ns: 70,
            far_ns: 70,
            remote_ns: 70,
            shared_ns: 0,
            memory_ns: 0,
            near_cores: 0,
            socket_cores: 0,
            private_lines: 0,
            shared_lines: 0,
            crowd_percent: 0,
            further_percent: 100,
            each: [0; Touched::COUNT],
            payload: PayloadCosts::default(),
        }
    }
}

perimeter_base::setters! {
    LineCosts {
        with_near_ns(near_ns: u32),
        with_far_ns(far_ns: u32),
        with_remote_ns(remote_ns: u32),
        with_shared_ns(shared_ns: u32),
        with_memory_ns(memory_ns: u32),
        with_near_cores(near_cores: u32),
        with_socket_cores(socket_cores: u32),
        with_private_lines(private_lines: u32),
        with_shared_lines(shared_lines: u32),
        with_crowd_percent(crowd_percent: u32),
        with_further_percent(further_percent: u32),
        with_each(each: [u32; Touched::COUNT]),
        with_payload(payload: PayloadCosts),
    }
}

/// What everything costs in virtual time. The defaults are of a 3 GHz server core with the
/// caches warm, to be replaced by a calibration on the machine that is predicted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CostTable {
    /// By class of work, indexed by `Work as usize`.
    pub work: [Cost; Work::COUNT],
    /// Passing a scheduling point, ns. At least 1, or a thread that polls would stop time.
    pub point_ns: u32,
    /// Yielding (a system call), ns.
    pub yield_ns: u32,
    /// An operation on shared memory: an attempt at a lock, an event's flag, either side of a
    /// queue operation, ns.
    pub atomic_ns: u32,
    /// Taking and releasing a free lock whose line is in the own cache, ns.
    pub lock_ns: u32,
    /// Lines that move: the word of a lock last held on another core, and whatever is touched.
    pub lines: LineCosts,
    /// Going to sleep (a futex call), paid by who sleeps, ns.
    pub park_ns: u32,
    /// Waking a parked thread, paid by the waker (a futex call), ns.
    pub wake_ns: u32,
    /// What that takes beyond, where the thread belongs to another core, which is interrupted, ns.
    pub kick_ns: u32,
    /// From the wake-up until a thread on an idle core could run (interrupt, leaving the idle
    /// state), ns.
    pub wake_latency_ns: u32,
    /// Setting a core's timer, which a thread does that goes to sleep until a deadline, and does
    /// again when it is woken before that, ns. Only for deadlines within `slice_ns`: for those
    /// beyond, the timer is set already.
    pub timer_set_ns: u32,
    /// The interrupt of a timer that ends a thread's sleep, ns.
    pub timer_interrupt_ns: u32,
    /// A core goes on to another thread, ns.
    pub switch_ns: u32,
    /// Creating a thread, ns.
    pub spawn_ns: u32,
    /// Unit of a contender's looks at a lock's word, ns: it looks again after 2, 4 and 8 of them,
    /// and then each time that it has yielded (as parking_lot's does); who comes meanwhile and
    /// finds the lock free has it. 0: it sees each release at once, and the lock is handed to it.
    pub pause_ns: u32,
    /// Whether the scheduler has one lock for all cores, which whoever goes to sleep, wakes somebody,
    /// yields or switches has meanwhile, and for which others spin.
    pub one_scheduler: bool,
    /// How long a contender spins before it parks, while the owner runs on another core, ns.
    /// Under [`LockPolicy::Turnstile`] it spins as long as that.
    pub spin_ns: u32,
    /// A parked contender that has waited this long gets the lock handed over, so that those
    /// who spin can't starve it (parking_lot's eventual fairness), ns.
    pub fair_ns: u32,
    /// Threads that share a core take turns after this long, at their scheduling points, ns.
    pub slice_ns: u32,
    /// After how long a thread leaves the core to one that is woken, ns; 0: at the end of its turn
    /// only.
    pub preempt_ns: u32,
}

impl Default for CostTable {
    fn default() -> Self {
        let mut work = [Cost::default(); Work::COUNT];
        let mut set = |w: Work, base_ns, unit_ps| work[w as usize] = Cost { base_ns, unit_ps };
        set(Work::RxFrame, 0, 15_000);
        set(Work::Lookup, 0, 10_000);
        set(Work::TcpFast, 0, 30_000);
        set(Work::TcpSlow, 0, 120_000);
        set(Work::TcpOutput, 0, 40_000);
        set(Work::Timer, 0, 60_000);
        set(Work::SockCall, 0, 40_000);
        set(Work::Copy, 10, 60);
        set(Work::Checksum, 5, 100);
        set(Work::Doorbell, 0, 40_000);
        set(Work::Peer, 0, 60_000);
        set(Work::HandOver, 0, 40_000);
        set(Work::Mail, 0, 40_000);
        set(Work::IpOutput, 0, 15_000);
        set(Work::SockInput, 0, 15_000);
        set(Work::Nanos, 0, 1_000);
        CostTable {
            work,
            point_ns: 1,
            yield_ns: 400,
            atomic_ns: 6,
            lock_ns: 12,
            lines: LineCosts::default(),
            park_ns: 0,
            wake_ns: 900,
            kick_ns: 0,
            wake_latency_ns: 2_500,
            timer_set_ns: 0,
            timer_interrupt_ns: 0,
            switch_ns: 1_300,
            spawn_ns: 5_000,
            pause_ns: 0,
            one_scheduler: false,
            spin_ns: 20_000,
            fair_ns: 500_000,
            slice_ns: 3_000_000,
            preempt_ns: 0,
        }
    }
}

perimeter_base::setters! {
    CostTable {
        with_work(work: [Cost; Work::COUNT]),
        with_point_ns(point_ns: u32),
        with_yield_ns(yield_ns: u32),
        with_atomic_ns(atomic_ns: u32),
        with_lock_ns(lock_ns: u32),
        with_lines(lines: LineCosts),
        with_park_ns(park_ns: u32),
        with_wake_ns(wake_ns: u32),
        with_kick_ns(kick_ns: u32),
        with_wake_latency_ns(wake_latency_ns: u32),
        with_timer_set_ns(timer_set_ns: u32),
        with_timer_interrupt_ns(timer_interrupt_ns: u32),
        with_switch_ns(switch_ns: u32),
        with_spawn_ns(spawn_ns: u32),
        with_pause_ns(pause_ns: u32),
        with_one_scheduler(one_scheduler: bool),
        with_spin_ns(spin_ns: u32),
        with_fair_ns(fair_ns: u32),
        with_slice_ns(slice_ns: u32),
        with_preempt_ns(preempt_ns: u32),
    }
}

/// A simulation: the same configuration gives the same run, step by step.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VirtualConfig {
    /// Every choice is drawn from it.
    pub seed: u64,
    /// Virtual cores, at least 1.
    pub cores: usize,
    /// Cores behind those, which the program does not know of: for threads that are bound there
    /// to look on.
    pub spare_cores: usize,
    /// Who runs next.
    pub schedule: Schedule,
    /// What things cost.
    pub costs: CostTable,
    /// More scheduling points than this are a livelock (embedded: per command).
    pub max_steps: u64,
    /// More virtual time than this is a livelock.
    pub max_time: Time,
    /// Estimated length of a run in steps, for [`Schedule::Pct`]: take it from the
    /// [`Report`] of an earlier run.
    pub pct_steps: u64,
    /// In exploration time moves by little while anybody can run, so timers would fire at rest
    /// only. With probability one in this many, a scheduling point lets time jump to the next
    /// deadline all the same, as if everybody had been delayed (0: never).
    pub early_timer_one_in: u32,
    /// Whether taking a lock against the order of [`LockClass`] fails the run. Without it only
    /// those seeds fail that do deadlock.
    pub check_lock_order: bool,
    /// How contenders wait for locks.
    pub lock_policy: LockPolicy,
    /// Whether of the threads that can run on a core the most urgent does
    /// ([`crate::Priority`]). For [`Schedule::Time`]: exploration has no cores, and tries orders
    /// that no priority would.
    pub priorities: bool,
    /// Whether threads that are bound to no core wait in one queue, and run on whichever core comes
    /// to them next, as under the 4BSD scheduler. Without it each stays on one core of the
    /// simulation's choice. For [`Schedule::Time`].
    pub one_run_queue: bool,
    /// How many threads there may be at a time for
    /// [`Platform::try_spawn_at`](crate::Platform::try_spawn_at), which is refused beyond, as a
    /// host refuses threads; who must have one gets it all the same.
    pub most_threads: usize,
    /// A bug for tests to find: nobody lends a priority.
    #[doc(hidden)]
    pub planted_no_lending: bool,
}

impl Default for VirtualConfig {
    fn default() -> Self {
        VirtualConfig {
            seed: 0,
            cores: 4,
            spare_cores: 0,
            schedule: Schedule::Time { jitter_percent: 5 },
            costs: CostTable::default(),
            max_steps: 50_000_000,
            max_time: Time::from_millis(3_600_000),
            pct_steps: 2_000,
            early_timer_one_in: 0,
            check_lock_order: true,
            lock_policy: LockPolicy::Modern,
            priorities: false,
            one_run_queue: false,
            most_threads: usize::MAX,
            planted_no_lending: false,
        }
    }
}

perimeter_base::setters! {
    VirtualConfig {
        with_seed(seed: u64),
        with_cores(cores: usize),
        with_spare_cores(spare_cores: usize),
        with_schedule(schedule: Schedule),
        with_costs(costs: CostTable),
        with_max_steps(max_steps: u64),
        with_max_time(max_time: Time),
        with_pct_steps(pct_steps: u64),
        with_early_timer_one_in(early_timer_one_in: u32),
        with_check_lock_order(check_lock_order: bool),
        with_lock_policy(lock_policy: LockPolicy),
        with_priorities(priorities: bool),
        with_one_run_queue(one_run_queue: bool),
        with_most_threads(most_threads: usize),
    }
}

/// How a run went.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Scheduling points passed.
    pub steps: u64,
    /// Switches from one thread to another.
    pub switches: u64,
    /// How often a core with a clock of its own went on to another thread than it had before.
    pub turns: u64,
    /// Virtual time at the end: the largest clock of all cores.
    pub virtual_time: Time,
    /// Hash over every scheduling point: which thread, which operation, on what, when. Equal
    /// hashes mean equal runs.
    pub trace_hash: u64,
    /// Threads started, the first included.
    pub threads: u64,
    /// What the locks of each class have seen, indexed by level.
    pub locks: [LockStats; LockClass::ALL.len()],
    /// Virtual time that each core has spent with nothing to run, ns. Empty in exploration, where
    /// there is one clock.
    pub idle_ns: Vec<u64>,
    /// How often each class of work was declared, and of how many units, by number of the class.
    pub work: [(u64, u64); Work::COUNT],
    /// What fetching lines has cost by what they belong to ([`Touched::index`]), ns; words of locks
    /// are not in it.
    pub lines_ns: [u64; Touched::COUNT],
    /// How many items were touched that other cores had had since, likewise. Counted where their
    /// lines cost something, or while the simulation is traced.
    pub moved: [u64; Touched::COUNT],
    /// Lines that cores had not in caches of their own, likewise, in thousandths: those that came
    /// from another core, and those that did not. Words of locks come last; payload is not in it.
    pub missed: [[u64; 2]; Touched::COUNT + 1],
    /// What sleeping, waking, switching and yielding took, with waiting for the one scheduler where
    /// there is one, ns.
    pub scheduling_ns: u64,
}

/// What kind of failure ended a run.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// Nobody can run, nobody has a deadline, and threads have not finished.
    Deadlock,
    /// A lock was taken against the order of [`LockClass`], or by its own holder.
    LockOrder,
    /// More scheduling points than [`VirtualConfig::max_steps`].
    StepLimit,
    /// More virtual time than [`VirtualConfig::max_time`].
    TimeLimit,
    /// A virtual thread panicked.
    Panic,
    /// A thread sleeps on an event although what it waits for is there.
    LostWakeup,
    /// A quiescence check said no.
    Quiescence,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailureKind::Deadlock => "deadlock",
            FailureKind::LockOrder => "lock order violated",
            FailureKind::StepLimit => "step limit exceeded (livelock?)",
            FailureKind::TimeLimit => "time limit exceeded (livelock?)",
            FailureKind::Panic => "panic",
            FailureKind::LostWakeup => "lost wake-up",
            FailureKind::Quiescence => "quiescence check failed",
        })
    }
}

/// Why a run failed, and how to see it again: [`RunError::config`] replays it step by step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunError {
    /// What kind.
    pub kind: FailureKind,
    /// What happened, with each thread and what it waits for; several lines.
    pub detail: String,
    /// The configuration that replays the run.
    pub config: Box<VirtualConfig>,
    /// At which scheduling point.
    pub steps: u64,
    /// When, in virtual time.
    pub at: Time,
    /// The trace hash at that point.
    pub trace_hash: u64,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} [seed {} schedule {} cores {} step {} time {:?} trace {:016x}]:{}{}",
            self.kind,
            self.config.seed,
            self.config.schedule,
            self.config.cores,
            self.steps,
            self.at,
            self.trace_hash,
            if self.detail.starts_with('\n') {
                ""
            } else {
                " "
            },
            self.detail
        )
    }
}

impl std::error::Error for RunError {}

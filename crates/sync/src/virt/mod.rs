//! N virtual cores in virtual time: the platform for exploring interleavings from a seed, and
//! for predicting core counts that the machine lacks.
//!
//! Virtual threads are stackful coroutines, one of which runs at a time; all of a simulation
//! runs on one OS thread, and any number of simulations may run on different OS threads. The
//! scheduler decides at *scheduling points*: lock, try-lock and unlock, event operations,
//! [`Platform::checkpoint`], yielding, sleeping, starting and joining. Nothing else switches,
//! so code between two points is atomic: a loop without a point never ends.
//!
//! A simulation that fails names its seed; [`RunError::config`] replays it step by step. Its
//! threads are unwound: operations that wait end by unwinding, except in destructors of a
//! thread that is being unwound already, where locks work as usual, events time out at once and
//! nothing switches voluntarily.
//!
//! ```
//! use perimeter_sync::virt::{Schedule, Virtual, VirtualConfig};
//! use perimeter_sync::{Lock, LockClass, Platform, Thread};
//! use std::sync::Arc;
//!
//! let cfg = VirtualConfig::default()
//!     .with_seed(7)
//!     .with_schedule(Schedule::Random { switch_one_in: 2 });
//! let (sum, report) = Virtual::run(cfg, |p| {
//!     let sum = Arc::new(p.lock(LockClass::Leaf, 0));
//!     let threads: Vec<_> = (0..4)
//!         .map(|i| {
//!             let sum = sum.clone();
//!             p.spawn("adder", None, Box::new(move || *sum.lock() += i))
//!         })
//!         .collect();
//!     for t in threads {
//!         t.join().unwrap();
//!     }
//!     let sum = *sum.lock();
//!     sum
//! })
//! .unwrap();
//! assert_eq!(sum, 6);
//! assert_eq!(report.locks[LockClass::Leaf as usize].acquisitions, 5);
//! ```

mod beacon;
mod config;
mod embedded;
mod event;
mod explore;
mod lines;
mod lock;
mod payload;
mod rank;
mod record;
mod rings;
mod sched;
mod shared;
mod stacks;
mod state;
mod thread;
pub mod trace;

#[cfg(test)]
mod tests;

use core::panic::Location;
use core::sync::atomic::AtomicU64;
use parking_lot::Mutex;
use perimeter_base::Time;
use std::sync::Arc;

use crate::class::{LockClass, Touched, Work};
use crate::platform::{Beacon, Platform};
use crate::policy::{Lending, LockPolicy, Priority};
use shared::Shared;
use state::{Doing, Held, NONE, On, Op};

pub use config::{
    Cost, CostTable, FailureKind, LineCosts, PayloadCosts, Report, RunError, Schedule,
    VirtualConfig,
};
pub use embedded::Embedded;
pub use event::VirtualEvent;
pub use explore::{Explored, explore};
pub use lines::VirtualTag;
pub use lock::{VirtualGuard, VirtualLock};
pub use record::{Act, Entry};
pub use stacks::stacks_alive;
pub use thread::VirtualThread;

/// This file, for [`sources`](crate::sources).
pub(crate) const FILE: &str = file!();

/// The handle of one simulation.
///
/// Usable from OS threads outside the simulation too, where waiting sleeps in the kernel; in a
/// simulation started by [`Virtual::run`] such a thread gets its turn when the run has ended.
///
/// ```
/// use perimeter_sync::virt::{Virtual, VirtualConfig};
/// use perimeter_sync::{Lock, LockClass, Platform};
///
/// let (taken, report) = Virtual::run(VirtualConfig::default().with_seed(7), |p| {
///     // At the end of the run nobody may have been forgotten.
///     p.quiescence(|| Ok(()));
///     p.record();
///     *p.lock(LockClass::Group, 0).lock() += 1;
///     let all = p.recorded();
///     all.iter().filter(|e| e.act.locked() == Some(LockClass::Group)).count()
/// })?;
/// assert_eq!(taken, 1);
/// assert_eq!(report.locks[LockClass::Group as usize].acquisitions, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Virtual {
    shared: Arc<Shared>,
}

impl Virtual {
    /// Runs `main` as a virtual thread on core 0 until all virtual threads have ended, on the
    /// calling OS thread.
    ///
    /// # Errors
    /// What ended the run early: deadlock, livelock, a broken lock order, a panic, a lost
    /// wake-up, a failed check. All virtual threads have been unwound then.
    pub fn run<R: Send + 'static>(
        cfg: VirtualConfig,
        main: impl FnOnce(Virtual) -> R + Send + 'static,
    ) -> Result<(R, Report), RunError> {
        let shared = Shared::new(cfg.clone(), false, None);
        let handle = Virtual {
            shared: shared.clone(),
        };
        let result = Arc::new(Mutex::new(None));
        let out = result.clone();
        let body = Box::new(move || {
            let r = main(handle);
            *out.lock() = Some(r);
        });
        let (failure, report) = shared.drive(|| {
            shared.with(|st| st.add(Priority::ORDINARY, "main", On::Core(0), body));
            shared.run_all();
            shared.finish()
        });
        match (failure, result.lock().take()) {
            (None, Some(r)) => Ok((r, report)),
            (Some(f), _) => Err(f),
            // Without a failure `main` has returned, for all threads have ended.
            (None, None) => unreachable!("a run without failure and without result"),
        }
    }

    /// A platform without virtual threads, in time that `clock` tells in nanoseconds: for stacks of
    /// one thread, several of which the calling thread drives by itself. It alone has lane 0;
    /// whatever would wait panics, as nobody could end the wait. Nothing here sets the clock, and it
    /// must not go back.
    ///
    /// ```
    /// use perimeter_sync::{Platform, Virtual};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// // A simulator's own clock.
    /// let clock = Arc::new(AtomicU64::new(0));
    /// let platform = Virtual::by_clock(7, clock.clone());
    /// clock.store(1_500, Ordering::Relaxed);
    /// assert_eq!(platform.now().nanos(), 1_500);
    /// ```
    pub fn by_clock(seed: u64, clock: Arc<AtomicU64>) -> Virtual {
        Virtual {
            shared: Shared::by_clock(seed, clock),
        }
    }

    /// Registers a check for the end of the run (and for a deadlock, where its complaint is
    /// added): queues empty, all bytes acknowledged, nobody waiting for what is there.
    ///
    /// It runs outside the virtual threads and must not wait for a lock.
    pub fn quiescence(&self, check: impl FnMut() -> Result<(), String> + Send + 'static) {
        self.shared.with(|st| st.hooks.push(Box::new(check)));
    }

    /// Starts a thread on the spare core of that number (modulo
    /// [`VirtualConfig::spare_cores`]), where it takes no time from the program: for who looks on.
    /// Without spare cores it is on the first core.
    ///
    /// ```
    /// use perimeter_sync::virt::{Virtual, VirtualConfig};
    /// use perimeter_sync::{Platform, Thread, Work};
    ///
    /// let config = VirtualConfig::default().with_cores(1).with_spare_cores(1);
    /// let (_, report) = Virtual::run(config, |p| {
    ///     let watcher = p.clone();
    ///     let t = p.spawn_aside("watcher", 0, Box::new(move || watcher.charge(Work::Nanos, 5_000)));
    ///     t.join().unwrap();
    /// })?;
    /// assert!(report.idle_ns[0] > 4_000, "the program's core has waited");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn_aside(
        &self,
        name: &str,
        core: usize,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> VirtualThread {
        thread::spawn(
            &self.shared,
            Priority::ORDINARY,
            name,
            On::Spare(core),
            body,
        )
    }

    /// How the run has gone so far.
    ///
    /// ```
    /// use perimeter_sync::virt::VirtualConfig;
    /// use perimeter_sync::{Platform, Virtual, Work};
    ///
    /// let (so_far, all) = Virtual::run(VirtualConfig::default(), |p| {
    ///     p.charge(Work::Nanos, 100);
    ///     let so_far = p.report();
    ///     p.charge(Work::Nanos, 200);
    ///     so_far
    /// })?;
    /// let work = |r: &perimeter_sync::virt::Report| r.work[Work::Nanos as usize];
    /// assert_eq!((work(&so_far), work(&all)), ((1, 100), (2, 300)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report(&self) -> Report {
        self.shared.with(|st| st.report())
    }

    /// Everything costs what this table says from now on.
    ///
    /// ```
    /// use perimeter_sync::virt::{Cost, CostTable, VirtualConfig};
    /// use perimeter_sync::{Platform, Virtual, Work};
    ///
    /// let (took, _) = Virtual::run(VirtualConfig::default(), |p| {
    ///     let took = || {
    ///         let before = p.now();
    ///         p.charge(Work::Lookup, 1);
    ///         p.now().nanos_since(before)
    ///     };
    ///     let usual = took();
    ///     let mut costs = CostTable::default();
    ///     costs.work[Work::Lookup as usize] = Cost::default().with_base_ns(5000);
    ///     p.set_costs(costs);
    ///     (usual, took())
    /// })?;
    /// assert!(took.0 < 1000 && took.1 > 4000, "{took:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_costs(&self, costs: CostTable) {
        self.shared.with(|st| st.cfg.costs = costs);
    }
}

impl Platform for Virtual {
    type Lock<T: Send + 'static> = VirtualLock<T>;
    type Event = VirtualEvent;
    type Thread = VirtualThread;
    type Tag = VirtualTag;

    #[inline]
    fn now(&self) -> Time {
        self.shared.now()
    }

    fn torn_down(&self) -> bool {
        !self.shared.inside() || self.shared.tearing()
    }

    #[inline]
    fn charge(&self, work: Work, units: u64) {
        if self.shared.inside() {
            // SAFETY: inside; the reference ends here.
            unsafe { self.shared.st() }.charge(work, units);
        }
    }

    #[inline]
    fn touch(&self, tag: &VirtualTag, what: Touched, items: usize, write: bool) {
        if self.shared.inside() {
            // SAFETY: inside; the reference ends here.
            unsafe { self.shared.st() }.touch(tag, what, items, write);
        }
    }

    #[inline]
    fn arrived(&self, by: &VirtualTag, tag: &VirtualTag, lines: usize) {
        if self.shared.inside() {
            // SAFETY: inside; the reference ends here.
            unsafe { self.shared.st() }.arrived(by, tag, lines as u64);
        }
    }

    fn cores(&self) -> usize {
        self.shared.cores
    }

    fn core(&self) -> usize {
        if !self.shared.inside() {
            return 0;
        }
        self.shared.with(|st| st.me().core)
    }

    #[inline]
    fn lane(&self) -> usize {
        if self.shared.inside() {
            // SAFETY: inside; the reference ends here.
            return unsafe { self.shared.st() }.running as usize;
        }
        if self.shared.is_alone_here() {
            return 0;
        }
        let me = std::thread::current().id();
        self.shared.with(|st| st.foreign_lane(me)) as usize
    }

    fn lock<T: Send + 'static>(&self, class: LockClass, value: T) -> VirtualLock<T> {
        VirtualLock::new(self.shared.clone(), class, value)
    }

    fn event(&self) -> VirtualEvent {
        VirtualEvent::new(self.shared.clone())
    }

    fn spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> VirtualThread {
        thread::spawn(
            &self.shared,
            priority,
            name,
            core.map_or(On::Any, On::Core),
            body,
        )
    }

    fn try_spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> std::io::Result<VirtualThread> {
        let full = |st: &mut state::State| st.live >= st.cfg.most_threads;
        if self.shared.with(full) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        Ok(self.spawn_at(priority, name, core, body))
    }

    fn lending(&self) -> Lending {
        self.shared.with(|st| match st.cfg.lock_policy {
            LockPolicy::Modern => Lending::None,
            LockPolicy::Turnstile => Lending::Lent,
        })
    }

    fn yield_now(&self) {
        if self.shared.inside() {
            self.shared.point(Op::Yield, 0);
        }
    }

    fn pause(&self) {
        if self.shared.inside() {
            // SAFETY: inside; the reference ends here.
            unsafe { self.shared.st() }.spend(500);
        }
        self.checkpoint();
    }

    fn note_lock(&self, class: LockClass, at: &'static Location<'static>) {
        if self.shared.inside() {
            lock::check_order(&self.shared, NONE, class, at);
            let id = NONE;
            self.shared.with(|st| {
                st.me().held.push(Held { id, class, at });
                if st.record.is_some() {
                    st.note(st.running, Act::Lock { class, id: None });
                }
            });
        }
    }

    fn note_unlock(&self, class: LockClass) {
        if self.shared.inside() {
            self.shared.with(|st| {
                let held = &mut st.me().held;
                let mine = |h: &Held| h.id == NONE && h.class == class;
                if let Some(i) = held.iter().rposition(mine) {
                    held.remove(i);
                }
                if st.record.is_some() {
                    st.note(st.running, Act::Unlock { class, id: None });
                }
            });
        }
    }

    fn sleep_until(&self, until: Time) {
        let sh = &*self.shared;
        if !sh.inside() {
            let told = sh.told();
            return sh.outside("sleeping", |st| {
                if told.map_or_else(|| st.now(), |t| t.0) >= until.0 {
                    return Some(());
                }
                st.expect_more("sleeping");
                None
            });
        }
        sh.point(Op::Sleep, 0);
        if sh.tearing() {
            return sh.step_aside();
        }
        let timed = {
            // SAFETY: inside; the reference ends before the suspension.
            let st = unsafe { sh.st() };
            if until.0 <= st.now() {
                return;
            }
            let timed = st.set_timer(until);
            st.park(Doing::Sleep, until.0);
            timed
        };
        sh.suspend();
        // SAFETY: inside; the reference ends here.
        unsafe { sh.st() }.timer_over(timed);
    }

    fn secret(&self) -> [u64; 2] {
        self.shared.secret
    }

    fn beacon(&self, b: Beacon<'_>) {
        beacon::beacon(b);
    }

    #[inline]
    fn checkpoint(&self) {
        if self.shared.inside() {
            self.shared.point(Op::Checkpoint, 0);
        }
    }
}

//! The machine: threads of the operating system, the time-stamp counter, futexes.

mod clock;
pub mod event;
mod futex;
mod lock;
pub(crate) mod mark;
mod meter;
mod pi;
mod thread;
pub mod turnstile;
pub mod watch;

use core::panic::Location;

use perimeter_base::Time;

use crate::class::{LockClass, Touched, Work};
use crate::platform::Platform;
use crate::policy::{Lending, LockPolicy, Priority};
use crate::profile::{Path, Profile};
use clock::Ticks;
pub use event::NativeEvent;
pub use lock::{NativeGuard, NativeLock};
pub use meter::Profiling;
use meter::Which;
pub use thread::NativeThread;

/// The machine as a [`Platform`].
///
/// A plain copy: no count is kept. Each value made by [`Native::new`] has its own epoch; copies
/// share it, and so must everything that compares times.
///
/// ```
/// use perimeter_sync::native::Profiling;
/// use perimeter_sync::{Lending, LockPolicy, Native, Platform};
///
/// let native = Native::new();
/// // Copies have one clock, with whatever locks.
/// let turnstiles = native.with_policy(LockPolicy::Turnstile);
/// assert_ne!(turnstiles.lending(), Lending::None);
/// let profiling = Profiling::begin().ok_or("eight are under way")?;
/// let timed = turnstiles.with_profiling(&profiling);
/// let earlier = native.now();
/// std::thread::sleep(std::time::Duration::from_millis(1));
/// assert!(timed.now() > earlier);
/// assert!(timed.profile().is_some() && native.profile().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug)]
pub struct Native {
    ticks: &'static Ticks,
    /// The counter at creation: the epoch.
    origin: u64,
    policy: LockPolicy,
    profiled: Which,
}

impl Native {
    /// The machine, with the epoch now. The first one in a process calibrates the clock, which
    /// takes up to 200 ms.
    pub fn new() -> Native {
        let ticks = Ticks::get();
        // What is computed once is computed here, not in somebody's fast path.
        thread::cpus();
        Native {
            ticks,
            origin: ticks.raw(),
            policy: LockPolicy::Modern,
            profiled: Which::NONE,
        }
    }

    /// The machine, with locks of another policy; clocks are the same. Under
    /// [`LockPolicy::Turnstile`] a contender spins at most 20 µs, and only while the owner has
    /// not marked itself parked: nobody can see whether a thread runs. [`Platform::lending`]
    /// tells whether priorities are lent.
    #[must_use]
    pub fn with_policy(self, policy: LockPolicy) -> Native {
        Native { policy, ..self }
    }

    /// The machine, whose locks, queues and events note for `profiling` what they take; clocks are
    /// the same.
    #[must_use]
    pub fn with_profiling(self, profiling: &Profiling) -> Native {
        Native {
            profiled: profiling.which(),
            ..self
        }
    }

    /// As [`Platform::lending`]: tried out once in a process.
    pub fn lending(&self) -> Lending {
        match self.policy {
            LockPolicy::Modern => Lending::None,
            LockPolicy::Turnstile if turnstile::permitted() => Lending::Lent,
            LockPolicy::Turnstile => Lending::NotPermitted,
        }
    }
}

impl Default for Native {
    fn default() -> Self {
        Native::new()
    }
}

impl Platform for Native {
    type Lock<T: Send + 'static> = NativeLock<T>;
    type Event = NativeEvent;
    type Thread = NativeThread;
    type Tag = ();

    /// Does not go back within a thread. The counter is read without a fence, which would cost
    /// as much as the reading (10 ns): against a time that another thread has just passed on it
    /// can be behind by some ten nanoseconds.
    #[inline]
    fn now(&self) -> Time {
        self.ticks.since(self.origin)
    }

    fn cpu_ns(&self) -> u64 {
        thread::cpu_ns()
    }

    fn profile(&self) -> Option<Profile> {
        meter::read(self.profiled)
    }

    #[inline(always)]
    fn queueing<R>(&self, f: impl FnOnce() -> R) -> R {
        match self.profiled.meter() {
            None => f(),
            Some(m) => m.by_clock(Path::Queue, f),
        }
    }

    #[inline(always)]
    fn charge(&self, _work: Work, _units: u64) {}

    #[inline(always)]
    fn touch(&self, _tag: &(), _what: Touched, _items: usize, _write: bool) {}

    #[inline(always)]
    fn arrived(&self, _by: &(), _tag: &(), _lines: usize) {}

    fn cores(&self) -> usize {
        thread::cpus().len()
    }

    fn may_look_around(&self) -> bool {
        thread::cpus().len() > 1
    }

    fn core(&self) -> usize {
        thread::core()
    }

    #[inline(always)]
    fn lane(&self) -> usize {
        crate::lane::current()
    }

    fn lock<T: Send + 'static>(&self, class: LockClass, value: T) -> NativeLock<T> {
        NativeLock::new(self.policy, self.profiled, class, value)
    }

    fn event(&self) -> NativeEvent {
        NativeEvent::new(*self)
    }

    /// # Panics
    /// If the system refuses another thread.
    fn spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> NativeThread {
        NativeThread::spawn(priority, name, core, body)
            .unwrap_or_else(|e| panic!("can't start thread `{name}`: {e}"))
    }

    fn try_spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> std::io::Result<NativeThread> {
        NativeThread::spawn(priority, name, core, body)
    }

    fn keep_lane(&self) {
        crate::lane::keep();
    }

    fn release_lane(&self, lane: usize) {
        crate::lane::release(lane);
    }

    fn stand_in(&self, lane: usize, body: &mut (dyn FnMut() + Send)) -> bool {
        std::thread::scope(|threads| {
            let run = move || {
                let mine = crate::lane::claim(lane);
                if mine {
                    body();
                }
                mine
            };
            let thread = std::thread::Builder::new().name("stand-in".to_string());
            let thread = thread.spawn_scoped(threads, run);
            thread.is_ok_and(|t| t.join().unwrap_or(false))
        })
    }

    fn lending(&self) -> Lending {
        Native::lending(self)
    }

    fn pause(&self) {
        for _ in 0..8 {
            core::hint::spin_loop();
        }
    }

    fn yield_now(&self) {
        std::thread::yield_now();
    }

    fn note_lock(&self, class: LockClass, at: &'static Location<'static>) {
        crate::order::check(class, at);
        crate::order::taken(class, at);
    }

    fn note_unlock(&self, class: LockClass) {
        crate::order::released(class);
    }

    fn sleep_until(&self, until: Time) {
        loop {
            let left = until.since(self.now());
            if left.is_zero() {
                return;
            }
            // A year at a time: the sum with the system's clock must not overflow.
            std::thread::sleep(left.min(core::time::Duration::from_secs(31_536_000)));
        }
    }

    fn secret(&self) -> [u64; 2] {
        thread::secret()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod turnstile_tests;

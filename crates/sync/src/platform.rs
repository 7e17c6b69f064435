//! The traits of the platform seam.

use core::ops::DerefMut;
use core::panic::Location;
use perimeter_base::Time;
use std::os::fd::RawFd;

use crate::class::{LockClass, LockStats, Touched, Work};
use crate::policy::{Lending, Priority};
use crate::profile::Profile;

/// Only this crate makes platforms, because memory safety rests on them: [`crate::PerLane`] and
/// [`crate::SoloLock`] hand out `&mut` on the word of [`Platform::lane`].
mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Native {}
    impl Sealed for crate::Virtual {}
    #[cfg(loom)]
    impl Sealed for crate::model::Model {}
}

/// The machine that stack and organizations run on. Cheap to clone: a handle. Sealed: see
/// [`Platform::lane`] for what implementations must guarantee.
///
/// ```
/// use perimeter_sync::virt::{Virtual, VirtualConfig};
/// use perimeter_sync::{Lock, LockClass, Native, Platform, Thread};
/// use std::sync::Arc;
///
/// /// On whatever machine.
/// fn count<P: Platform>(p: &P) -> u32 {
///     let sum = Arc::new(p.lock(LockClass::Leaf, 0));
///     let other = sum.clone();
///     let thread = p.spawn("adder", None, Box::new(move || *other.lock() += 1));
///     thread.join().expect("no panic");
///     *sum.lock()
/// }
/// assert_eq!(count(&Native::default()), 1);
/// let (sum, report) = Virtual::run(VirtualConfig::default(), |p| count(&p))?;
/// assert_eq!((sum, report.threads), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Platform: Clone + Send + Sync + sealed::Sealed + 'static {
    /// A counted mutual-exclusion lock.
    type Lock<T: Send + 'static>: Lock<T>;
    /// A place where one thread parks.
    type Event: Event;
    /// A started thread.
    type Thread: Thread;
    /// Stands for cache lines, see [`Platform::touch`]: nothing on the machine, whose caches know
    /// by themselves.
    type Tag: core::fmt::Debug + Default + Send + Sync + 'static;

    /// Whether a thread may look around in a loop before it sleeps: time passes meanwhile, and there
    /// are other cores. Only on the machine.
    fn may_look_around(&self) -> bool {
        false
    }

    /// The time now. Reading costs 15–20 ns on the machine: read once a burst.
    fn now(&self) -> Time;

    /// Whether a wait returns without waiting and time no longer passes, because what runs the
    /// calling thread is being torn down. Never on the machine.
    fn torn_down(&self) -> bool {
        false
    }

    /// CPU time that the calling thread has used, ns; always 0 where time passes only by what is
    /// charged for (virtual cores). A system call on the machine: read around sleeps, never in a
    /// fast path.
    fn cpu_ns(&self) -> u64 {
        0
    }

    /// What has been timed; `None` where nothing is.
    fn profile(&self) -> Option<Profile> {
        None
    }

    /// Runs `f`, a visit to a queue between threads that may be behind locks: timed where the
    /// platform is profiled ([`crate::profile::Path::Queue`]), else `f` and nothing more.
    #[inline(always)]
    fn queueing<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    /// Declares protocol work of `units` units. Compiles to nothing on the machine; costs
    /// virtual time on virtual cores. Never a scheduling point.
    fn charge(&self, work: Work, units: u64);

    /// Declares that the calling thread reads, or writes, the lines of `items` items of `what`,
    /// for which `tag` stands. Compiles to nothing on the machine; on virtual cores it costs what
    /// fetching them takes from where they were written last, or from memory. Never a scheduling
    /// point. Payload has a way of its own: who writes what arrives tells so by a tag of his, of
    /// no items; a reader takes that many lines of [`Touched::LINE`] bytes away from the
    /// connection's tag, and pays with the copy that follows.
    fn touch(&self, tag: &Self::Tag, what: Touched, items: usize, write: bool);

    /// Declares that `lines` lines of payload wait by `tag` from now on, written by the thread that
    /// has told so by `by`, which pays when it tells so again. Compiles to nothing on the machine.
    fn arrived(&self, by: &Self::Tag, tag: &Self::Tag, lines: usize);

    /// How many cores there are.
    fn cores(&self) -> usize;

    /// The core that the calling thread is on now, 0 to [`Platform::cores`] − 1: for affinity and
    /// counts, never for exclusion, as a thread that is not pinned may be moved at once. A few
    /// nanoseconds on the machine; on virtual cores the thread's own. Threads on a core that is
    /// not among the platform's count as on core 0.
    fn core(&self) -> usize;

    /// A small number that identifies the calling thread while it lives, dense from 0. Numbers
    /// of ended threads are given out again, unless they are kept ([`Platform::keep_lane`]).
    ///
    /// Safety of other types rests on this: two threads that may run between two scheduling
    /// points of each other never have the same lane, and all that a lane's earlier thread did
    /// happens before its number is given out again.
    fn lane(&self) -> usize;

    /// A new lock around `value`.
    fn lock<T: Send + 'static>(&self, class: LockClass, value: T) -> Self::Lock<T>;

    /// A new event, not set.
    fn event(&self) -> Self::Event;

    /// Starts a thread of ordinary priority, pinned to `core` (modulo [`Platform::cores`]) if
    /// one is given.
    fn spawn(
        &self,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> Self::Thread {
        self.spawn_at(Priority::ORDINARY, name, core, body)
    }

    /// Starts a thread of that priority. A wish, as the core is: on the machine it needs the
    /// permission for `SCHED_FIFO`, on virtual cores the setting
    /// [`crate::virt::VirtualConfig::priorities`].
    fn spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> Self::Thread;

    /// As [`Platform::spawn_at`], for who can do without the thread.
    ///
    /// # Errors
    /// The host refuses it: `body` is dropped, and was not run.
    fn try_spawn_at(
        &self,
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> std::io::Result<Self::Thread> {
        Ok(self.spawn_at(priority, name, core, body))
    }

    /// Keeps the calling thread's lane from being given to others when it ends, until
    /// [`Platform::release_lane`] has been called as often as this.
    fn keep_lane(&self) {}

    /// Ends one [`Platform::keep_lane`], of whichever thread.
    fn release_lane(&self, lane: usize) {
        let _ = lane;
    }

    /// Runs `body` on a new thread that has lane `lane`, which is kept and whose thread has ended,
    /// and waits for it: what belonged to that thread belongs to the new one meanwhile. `false`, and
    /// nothing is run, where the thread lives, or lanes can't be had so.
    fn stand_in(&self, lane: usize, body: &mut (dyn FnMut() + Send)) -> bool {
        let _ = (lane, body);
        false
    }

    /// Whether those who wait for a lock lend their priority to its owner.
    fn lending(&self) -> Lending;

    /// Lets others run: a scheduling point on virtual cores, `sched_yield` on the machine.
    fn yield_now(&self);

    /// Lets a little time pass, some hundred nanoseconds, between two looks at what another core
    /// is about to change. A scheduling point on virtual cores.
    fn pause(&self);

    /// A place where another thread may come in between: called around every operation on a
    /// shared queue. Nothing on the machine; a scheduling point on virtual cores.
    #[inline(always)]
    fn checkpoint(&self) {}

    /// Shows something to who reads a trace of the program's memory accesses ([`crate::virt::trace`]).
    /// Nothing on the machine.
    #[inline(always)]
    fn beacon(&self, b: Beacon<'_>) {
        let _ = b;
    }

    /// Tells the order checker that the calling thread takes a lock of `class` which is not one
    /// of [`Platform::lock`] (a [`crate::SoloLock`]). Called in debug builds only.
    ///
    /// # Panics
    /// If the class is out of order.
    fn note_lock(&self, class: LockClass, at: &'static Location<'static>) {
        let _ = (class, at);
    }

    /// The counterpart of [`Platform::note_lock`], at release.
    fn note_unlock(&self, class: LockClass) {
        let _ = class;
    }

    /// Sleeps until `until`.
    fn sleep_until(&self, until: Time);

    /// 128 bits of secret for keyed hashes and initial sequence numbers: from the kernel on the
    /// machine, from the seed on virtual cores.
    fn secret(&self) -> [u64; 2];
}

/// What [`Platform::beacon`] shows.
pub enum Beacon<'a> {
    /// From here the calling thread does the work of a peer in memory, which is not under test.
    PeerBegins,
    /// The peer's work is over.
    PeerEnds,
    /// The device wrote these, not the calling thread.
    DeviceWrote(&'a mut dyn Iterator<Item = &'a [u8]>),
    /// From here accesses count.
    CountingBegins,
    /// From here they do not.
    CountingEnds,
}

/// A started thread.
pub trait Thread: Send + 'static {
    /// Waits for its end.
    ///
    /// # Errors
    /// The panic message, if it ended by panic.
    fn join(self) -> Result<(), String>;
}

/// A counted lock. Counts are kept under the lock itself, so that counting adds no sharing.
pub trait Lock<T: Send + 'static>: Send + Sync + 'static {
    /// Access to the value; releases when dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// Takes the lock, waiting as long as it takes.
    fn lock(&self) -> Self::Guard<'_>;

    /// Takes the lock if nobody has it. A failure counts as neither acquisition nor contention.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;

    /// What the lock has seen so far. Takes the lock, without counting that.
    fn stats(&self) -> LockStats;

    /// The class.
    fn class(&self) -> LockClass;
}

/// Why [`Event::wait_fds`] returned.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The event was set.
    Set,
    /// A descriptor is readable.
    Readable,
    /// The deadline passed.
    Timeout,
}

/// A place where one thread parks: an auto-reset flag with at most one waiter at a time.
///
/// Setting it when nobody is parked costs one atomic operation and no system call; a set before
/// the wait is not lost.
pub trait Event: Send + Sync + 'static {
    /// Sets the flag and wakes the waiter, if there is one.
    fn set(&self);

    /// Waits until the flag is set or `deadline` has passed ([`Time::NEVER`]: no deadline).
    /// Clears the flag; tells whether it was set.
    fn wait(&self, deadline: Time) -> bool;

    /// Clears the flag without waiting; tells whether it was set.
    fn take(&self) -> bool;

    /// As [`Event::wait`], but also returns when one of `fds` is readable. Descriptors exist on
    /// the machine only; virtual platforms take an empty list.
    fn wait_fds(&self, fds: &[RawFd], deadline: Time) -> Woken;
}

/// Which kind of lock an organization puts around what all its threads share (queues of the
/// NIC, routes, pools, pollers): real ones, or none where there is one thread.
pub trait Locks<P: Platform>: Send + Sync + 'static {
    /// The lock type.
    type Of<T: Send + 'static>: Lock<T>;

    /// Whether several threads may meet at them.
    const SHARED: bool;

    /// A new lock of this kind.
    fn new<T: Send + 'static>(platform: &P, class: LockClass, value: T) -> Self::Of<T>;
}

/// The platform's real locks.
pub struct Shared;

impl<P: Platform> Locks<P> for Shared {
    type Of<T: Send + 'static> = P::Lock<T>;

    const SHARED: bool = true;

    fn new<T: Send + 'static>(platform: &P, class: LockClass, value: T) -> P::Lock<T> {
        platform.lock(class, value)
    }
}

/// No lock: a plain flag, for organizations in which one thread does everything (`up`). Its
/// locks are [`crate::SoloLock`].
pub struct Solo;

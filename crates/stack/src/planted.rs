//! Bugs that tests plant, to see that the models find them. Not for use: without the feature
//! `testing` all of this is constant and compiled away.

#[cfg(feature = "testing")]
use core::sync::atomic::{AtomicU8, Ordering};

/// A bug of the kinds that parallel stacks have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// None.
    Nothing = 0,
    /// A thread goes to sleep on a poller without another look at the ready list.
    PollerSleepsUnlooked,
    /// An entry that has gone stale leaves the ready list, but counts as being on it.
    PollerForgetsEntry,
    /// A call blocks without another look at the readiness.
    CallSleepsUnlooked,
    /// Of those whom a burst wakes only the first is woken.
    WakesDropped,
    /// The global table's lock is taken while a connection is held, where it comes first.
    OrderSwapped,
    /// A listener's queue is let go before it is told how many connections are in it.
    QueueUnlockedEarly,
    /// Segments enter the transmit ring when their connection has been let go.
    RingFilledLate,
    /// A thread that is to wait on a poller looks at the ready list in one critical section, and
    /// says that it waits in a second.
    WaiterAnnouncedLate,
    /// An squeue's PROC is cleared in another critical section than the one that found the
    /// queue empty.
    ProcClearedLate,
    /// A receive queue that is no longer full does not enable TCP again.
    BackEnableMissing,
    /// Workers enter TCP in any order, whatever their tickets say.
    TicketsIgnored,
    /// Both halves of a registration's readiness are kept in one byte.
    HalvesShared,
    /// Who has rung a doorbell does not look again for what was placed meanwhile.
    DoorbellLeavesLate,
    /// Who asks a device for its counts or its carrier does not look for doorbells that found it busy.
    CountsHideDoorbell,
    /// Room in a transmit ring is looked for in one critical section, and set aside in another.
    AsideUnlocked,
    /// An squeue's worker looks at the queue in one critical section, and says that it sleeps in
    /// another.
    WorkerSleepsUnlooked,
    /// A task looks at a socket's word in one step, and says that it waits in another.
    TaskAnnouncedLate,
    /// Readiness is stored in a socket's word without taking who waits in the same step.
    TaskWordStored,
    /// A thread that ends with its connection looks for messages first, and says that it ends
    /// afterwards.
    ThreadEndsUnlooked,
}

#[cfg(feature = "testing")]
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in every stack of this process.
#[cfg(feature = "testing")]
pub fn plant(bug: Bug) {
    PLANTED.store(bug as u8, Ordering::Relaxed);
}

/// Whether the bug is planted.
#[inline(always)]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "testing")]
    return PLANTED.load(Ordering::Relaxed) == bug as u8;
    #[cfg(not(feature = "testing"))]
    return {
        let _ = bug;
        false
    };
}

/// Models under loom, one at a time: planted bugs are the process's.
#[cfg(all(loom, feature = "testing"))]
pub mod models {
    use super::{Bug, plant};
    use perimeter_sync::model;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes through the interleavings of `model`, as [`model::holds`] does.
    ///
    /// # Panics
    /// If one fails.
    pub fn holds(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let _alone = alone();
        model::holds(preemptions, model);
    }

    /// Goes through them with `bug` planted.
    ///
    /// # Panics
    /// If none fails.
    pub fn found(bug: Bug, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let _alone = alone();
        plant(bug);
        let found = model::fails(preemptions, model);
        plant(Bug::Nothing);
        assert!(found, "{bug:?} is not found");
    }
}

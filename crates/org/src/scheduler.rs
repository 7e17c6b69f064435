//! `wake=inside`: sleepers are woken under the lock of what they wait for, as the study's kernel
//! woke them, and under the scheduler's one lock.

use crate::Kd;
use perimeter_stack::{Ctx, SharedState};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};

/// What an organization holds while it wakes sleepers within its own locks. Nothing, where they are
/// woken once nothing is held.
pub(crate) struct Scheduler<P: Platform>(Option<P::Lock<()>>);

impl<P: Platform> Scheduler<P> {
    pub(crate) fn new(wakes_held: bool, sh: &SharedState<Kd<P>>) -> Scheduler<P> {
        Scheduler(wakes_held.then(|| sh.p.lock(LockClass::Scheduler, ())))
    }

    /// Wakes who is to be woken by now. The caller holds the lock of what they wait for.
    #[inline]
    pub(crate) fn wake(&self, cx: &mut Ctx<Kd<P>>) {
        if let Some(lock) = &self.0
            && !cx.deferred.wakes.is_empty()
        {
            let _held = lock.lock();
            cx.sh.pollers.wake_threads(&mut cx.own.deferred.wakes);
        }
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        if let Some(lock) = &self.0 {
            add(LockClass::Scheduler, lock.stats());
        }
    }
}

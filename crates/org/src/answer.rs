//! Asking another thread and waiting for its answer: one rule for all organizations in which a
//! call may be run by another thread than the caller's.
//!
//! Who waits sleeps inside [`SharedState::asleep`], so that its time counts as idle and a
//! benchmark's account adds up; and nobody waits without a bound for a thread that may have gone: after
//! [`PATIENCE`] the caller does what it can for its message itself, and sleeps again.

use perimeter_base::Time;
use perimeter_stack::{Ctx, Kind, Sleeper};
use perimeter_sync::{Event, Lock, LockClass, Platform};
use std::sync::Arc;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(crate) const FILE: &str = file!();

/// How long a caller waits for an answer before it looks whether anybody is at work, ns.
pub const PATIENCE: u64 = 1_000_000;

enum Slot<R> {
    Waiting,
    Given(R),
    /// Whoever was to answer has gone.
    Lost,
}

struct Shared<P: Platform, R: Send + 'static> {
    slot: P::Lock<Slot<R>>,
    event: P::Event,
}

/// The end that waits for an answer that another thread is to give.
pub(crate) struct Pending<P: Platform, R: Send + 'static>(Arc<Shared<P, R>>);

/// The end that answers: once, or never if it is dropped, which is told as well.
pub(crate) struct Answer<P: Platform, R: Send + 'static>(Option<Arc<Shared<P, R>>>);

/// Both ends.
pub(crate) fn question<P: Platform, R: Send + 'static>(p: &P) -> (Pending<P, R>, Answer<P, R>) {
    let shared = Arc::new(Shared {
        slot: p.lock(LockClass::Leaf, Slot::Waiting),
        event: p.event(),
    });
    (Pending(shared.clone()), Answer(Some(shared)))
}

impl<P: Platform, R: Send + 'static> Pending<P, R> {
    /// Waits for the answer; whenever that takes longer than [`PATIENCE`], `help` is to run what
    /// nobody else may come for. `None`: there will be no answer, as a panic has stopped whoever
    /// was to give it.
    pub(crate) fn wait<K: Kind<P = P>>(
        self,
        cx: &mut Ctx<K>,
        mut help: impl FnMut(&mut Ctx<K>),
    ) -> Option<R> {
        loop {
            if let Some(out) = self.take() {
                return out;
            }
            let until = cx.sh.p.now().plus(PATIENCE);
            let told = cx.sh.asleep(Sleeper::Caller, || self.0.event.wait(until));
            // Time has passed.
            cx.forget_now();
            if !told {
                help(cx);
            }
        }
    }

    /// Waits for the answer until `deadline`, on a thread that is not one of the stack's: its time
    /// is nobody's account. `None`: there is none.
    pub(crate) fn by(self, deadline: Time) -> Option<R> {
        self.0.event.wait(deadline);
        self.take().flatten()
    }

    /// The answer if it is there; `Some(None)` if there will be none.
    fn take(&self) -> Option<Option<R>> {
        match core::mem::replace(&mut *self.0.slot.lock(), Slot::Waiting) {
            Slot::Waiting => None,
            Slot::Given(r) => Some(Some(r)),
            Slot::Lost => Some(None),
        }
    }
}

impl<P: Platform, R: Send + 'static> Answer<P, R> {
    pub(crate) fn give(mut self, r: R) {
        if let Some(shared) = self.0.take() {
            *shared.slot.lock() = Slot::Given(r);
            shared.event.set();
        }
    }
}

impl<P: Platform, R: Send + 'static> Drop for Answer<P, R> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            *shared.slot.lock() = Slot::Lost;
            shared.event.set();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kd;
    use perimeter_stack::{Config, Count, Own, SharedState};
    use perimeter_sync::virt::VirtualConfig;
    use perimeter_sync::{Thread, Virtual};

    fn world(body: impl FnOnce(Virtual, Ctx<Kd<Virtual>>) + Send + 'static) {
        let config = VirtualConfig::default().with_cores(2);
        let run = Virtual::run(config, move |p| {
            let sh = SharedState::new(p.clone(), Config::default(), Vec::new(), Vec::new());
            let mut own = Own::new(p.lane(), sh.packets.clone());
            body(p, Ctx::new(&sh, &mut own));
        });
        run.unwrap_or_else(|f| panic!("{f}"));
    }

    /// All but the cost of the calls themselves is idle time, also when the wait is interrupted
    /// by looks for work.
    #[test]
    fn a_wait_is_idle_time() {
        for ns in [400_000, 7_300_000] {
            world(move |p, mut cx| {
                let (pending, answer) = question(&p);
                let giver = p.clone();
                let body = move || {
                    giver.sleep_until(giver.now().plus(ns));
                    answer.give(5);
                };
                let before = cx.now();
                let other = p.spawn("other", Some(1), Box::new(body));
                let mut helped = 0;
                assert_eq!(pending.wait(&mut cx, |_| helped += 1), Some(5));
                other.join().unwrap();
                assert_eq!(helped, ns / PATIENCE, "looks after each {PATIENCE} ns");
                let took = cx.now().nanos_since(before);
                assert!(took >= ns, "the clock is read anew after a wait");
                let idle = cx.sh.counters.sum(Count::IdleNs as usize);
                assert!(
                    idle <= took && idle * 100 >= took * 95,
                    "{idle} of {took} ns"
                );
            });
        }
    }

    #[test]
    fn who_helps_gets_the_answer_and_who_dies_is_told_of() {
        world(|p, mut cx| {
            let (pending, answer) = question(&p);
            let mut answer = Some(answer);
            let help = |_: &mut Ctx<_>| {
                if let Some(a) = answer.take() {
                    a.give(7);
                }
            };
            assert_eq!(pending.wait(&mut cx, help), Some(7));
            let (pending, answer) = question::<_, u8>(&p);
            drop(answer);
            assert_eq!(pending.wait(&mut cx, |_| ()), None);
            let (pending, answer) = question::<_, u8>(&p);
            assert_eq!(pending.by(p.now().plus(1000)), None);
            drop(answer);
        });
    }
}

//! An squeue: a queue of messages whose worker, or whoever brings one, runs them one at a time.
//!
//! One lock protects the queue and the flags. It is *not* held while a message runs: the flag
//! PROC excludes instead. Here PROC is the absence of what the squeue protects: whoever takes
//! the lock, finds it there and takes it along processes; it comes back under the lock. So
//! nobody can reach it without PROC, nor set or clear PROC anywhere else.
//!
//! An squeue is not a mutex. Who finds it busy leaves a message and goes: [`Door::put`]. While
//! messages wait, either somebody holds PROC or the worker has been told.

use core::ops::{Deref, DerefMut};
use perimeter_base::Time;
use perimeter_stack::planted::{Bug, planted};
use perimeter_sync::atomic::{AtomicU8, Ordering};
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Touched, Work};
use std::collections::VecDeque;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Messages between two looks at the clock during a drain.
const LOOK: usize = 16;

/// How packets and writes enter an squeue.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SqueueEntry {
    /// Run it if the squeue is idle and empty, then drain what came meanwhile; queue it if the
    /// squeue is busy.
    #[default]
    Process,
    /// Run this one if the squeue is idle and empty; never drain others.
    NoDrain,
    /// Queue it; the worker runs it.
    Fill,
}

/// On whose behalf a thread drains.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// An inbound thread, with packets.
    Inbound,
    /// An application thread, with a call.
    Writer,
    /// The squeue's own.
    Worker,
}

/// How squeues behave.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Settings {
    /// The longest that an inbound thread, a writer and the worker drain without a break, ns.
    pub(crate) quanta: [u64; 3],
    /// How long a worker lets a message wait before it wakes, ns.
    pub(crate) delay: u64,
}

/// What an squeue protects, together with what its present holder needs.
pub(crate) struct Inside<T: Protected> {
    data: T,
    /// Within a re-entry.
    again: bool,
    /// A chain that was detached; empty between two drains.
    chain: VecDeque<Message<T>>,
}

/// Work for whoever holds the squeue.
type Message<T> = <T as Protected>::Message;

/// What can be protected by an squeue.
pub(crate) trait Protected: Send + 'static {
    /// What is left for it.
    type Message: Send + 'static;
}

impl<T: Protected> Inside<T> {
    /// Re-entry by the thread that processes: allowed once at a time, for a connection that is
    /// not the present one and has nothing else in the squeue. `None`: not again, leave it as a
    /// message.
    pub(crate) fn reenter<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.again {
            return None;
        }
        self.again = true;
        let out = f(self);
        self.again = false;
        Some(out)
    }
}

impl<T: Protected> Deref for Inside<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T: Protected> DerefMut for Inside<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

/// What the lock protects: queue and flags.
pub(crate) struct State<T: Protected> {
    /// Not there: PROC.
    inside: Option<Box<Inside<T>>>,
    queue: VecDeque<Message<T>>,
    /// How many at its front were detached before, and put back as a quantum was over.
    put_back: usize,
    /// The worker is parked, or about to be, and nobody has told it.
    asleep: bool,
    /// When the worker is to wake, if that was put off; else [`Time::NEVER`].
    wake_at: Time,
    /// The stack has ended: the worker parks no more.
    ended: bool,
    /// Who found the queue full: to be enabled again when it is not.
    waiting: u8,
}

/// The core of an squeue that has none: whoever holds it drains, wherever that is.
pub(crate) const ANY_CORE: usize = usize::MAX;

type Guard<'a, P, T> = <<P as Platform>::Lock<State<T>> as Lock<State<T>>>::Guard<'a>;

/// An squeue on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Squeue<P: Platform, T: Protected> {
    p: P,
    /// The core that its worker is bound to.
    core: usize,
    settings: Settings,
    state: P::Lock<State<T>>,
    /// Where the worker parks.
    bell: P::Event,
    /// Who is to be enabled again, of those who found the queue full.
    enabled: AtomicU8,
    /// Cache lines of the messages that wait.
    lines: P::Tag,
}

/// How a thread entered.
pub(crate) enum Entered<'a, P: Platform, T: Protected> {
    /// The squeue was idle and empty: the thread holds PROC and runs its message.
    In(Proc<'a, P, T>),
    /// It is to leave a message.
    Busy(Door<'a, P, T>),
}

impl<P: Platform, T: Protected> Squeue<P, T> {
    /// An idle squeue around `data`.
    pub(crate) fn new(p: &P, core: usize, settings: Settings, data: T) -> Squeue<P, T> {
        let inside = Inside {
            data,
            again: false,
            chain: VecDeque::new(),
        };
        let state = State {
            inside: Some(Box::new(inside)),
            queue: VecDeque::new(),
            put_back: 0,
            asleep: false,
            wake_at: Time::NEVER,
            ended: false,
            waiting: 0,
        };
        Squeue {
            core: if core == ANY_CORE {
                core
            } else {
                core % p.cores().max(1)
            },
            enabled: AtomicU8::new(0),
            lines: P::Tag::default(),
            settings,
            state: p.lock(LockClass::Squeue, state),
            bell: p.event(),
            p: p.clone(),
        }
    }

    /// The core that the worker is bound to.
    pub(crate) fn core(&self) -> usize {
        self.core
    }

    /// Enters with one message, the way `entry` says.
    #[inline]
    pub(crate) fn enter(&self, entry: SqueueEntry) -> Entered<'_, P, T> {
        let mut state = self.state.lock();
        if entry != SqueueEntry::Fill
            && state.queue.is_empty()
            && let Some(inside) = state.inside.take()
        {
            drop(state);
            return Entered::In(Proc {
                squeue: self,
                inside: Some(inside),
                drains: entry == SqueueEntry::Process,
            });
        }
        Entered::Busy(Door {
            squeue: self,
            state,
            entry,
        })
    }

    /// Leaves a message and tells nobody: the caller sees to it soon, by [`Squeue::work`].
    pub(crate) fn push(&self, m: Message<T>) {
        let mut state = self.state.lock();
        self.note_left();
        state.queue.push_back(m);
    }

    /// A message is being left; the lock is held.
    #[inline(always)]
    fn note_left(&self) {
        self.p.charge(Work::HandOver, 1);
        self.p.touch(&self.lines, Touched::Message, 1, true);
    }

    /// As [`Squeue::push`], unless `high` messages wait already: then it comes back, and `who`, a
    /// bit, is to be enabled when there is room.
    pub(crate) fn push_below(&self, high: usize, who: u8, m: Message<T>) -> Result<(), Message<T>> {
        let mut state = self.state.lock();
        if state.queue.len() >= high {
            state.waiting |= who;
            return Err(m);
        }
        self.note_left();
        state.queue.push_back(m);
        Ok(())
    }

    /// Takes PROC if nobody has it, whatever waits: for the worker, and for who has waited long
    /// enough for an answer.
    pub(crate) fn take(&self) -> Option<Proc<'_, P, T>> {
        let inside = self.state.lock().inside.take()?;
        Some(Proc {
            squeue: self,
            inside: Some(inside),
            drains: true,
        })
    }

    /// As [`Squeue::take`], waiting for who has it. Not for the data path.
    pub(crate) fn seize(&self) -> Proc<'_, P, T> {
        loop {
            if let Some(proc) = self.take() {
                return proc;
            }
            self.p.sleep_until(self.p.now().plus(SEIZE));
        }
    }

    /// The worker's turn: drains until the queue is empty or its quantum is over; returns how
    /// many messages that were. Also for others, as `who`, where the worker may have gone.
    pub(crate) fn work(&self, who: Who, run: impl FnMut(&mut Inside<T>, Message<T>)) -> usize {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            return 0;
        }
        let Some(inside) = state.inside.take() else {
            return 0;
        };
        drop(state);
        let proc = Proc {
            squeue: self,
            inside: Some(inside),
            drains: true,
        };
        proc.drain(who, run)
    }

    /// Parks the worker until there is something for it to do, or `deadline`.
    pub(crate) fn park(&self, deadline: Time) {
        {
            let mut state = self.state.lock();
            if state.ended || (!state.queue.is_empty() && state.inside.is_some()) {
                return;
            }
            if planted(Bug::WorkerSleepsUnlooked) {
                drop(state);
                state = self.state.lock();
            }
            state.asleep = true;
        }
        let told = self.bell.wait(deadline);
        let mut state = self.state.lock();
        if told && state.wake_at < Time::NEVER && !state.ended {
            // Not yet: until then others may run what waits.
            let until = deadline.min(state.wake_at);
            drop(state);
            self.bell.wait(until);
            state = self.state.lock();
        }
        state.asleep = false;
        state.wake_at = Time::NEVER;
    }

    /// The stack has ended: the worker, parked or about to be, looks for itself.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.bell.set();
    }

    /// Whether a thread on the present core drains.
    #[inline]
    fn here(&self) -> bool {
        self.core == ANY_CORE || self.p.core() == self.core
    }

    /// Those who found the queue full and were not enabled since, now that it is not: the caller
    /// is to enable them. Looked at after [`Squeue::work`].
    pub(crate) fn take_enabled(&self) -> u8 {
        self.p.checkpoint();
        if self.enabled.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.enabled.swap(0, Ordering::AcqRel)
    }

    /// Tells the worker if messages wait and nobody is at them.
    pub(crate) fn nudge(&self) {
        let state = self.state.lock();
        if !state.queue.is_empty() && state.inside.is_some() {
            self.rouse(state);
        }
    }

    /// Messages that wait or run. Exact when nobody is at it.
    pub(crate) fn pending(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + usize::from(state.inside.is_none())
    }

    /// Counts of the lock.
    pub(crate) fn stats(&self) -> LockStats {
        self.state.stats()
    }

    /// The same critical section, unless a bug is planted.
    #[inline(always)]
    fn again<'a>(&'a self, state: Guard<'a, P, T>) -> Guard<'a, P, T> {
        if planted(Bug::ProcClearedLate) {
            drop(state);
            return self.state.lock();
        }
        state
    }

    /// Messages wait and nobody holds PROC: the worker is told to wake, now or later. It sees to the
    /// time itself: nobody else need be awake then.
    fn rouse(&self, mut state: Guard<'_, P, T>) {
        if !state.asleep {
            return;
        }
        if self.settings.delay == 0 {
            state.asleep = false;
            drop(state);
            return self.bell.set();
        }
        if state.wake_at == Time::NEVER {
            state.wake_at = self.p.now().plus(self.settings.delay);
            drop(state);
            self.bell.set();
        }
    }
}

/// Time between two attempts of [`Squeue::seize`], ns.
const SEIZE: u64 = 20_000;

/// PROC: the right to process, until it is given back.
pub(crate) struct Proc<'a, P: Platform, T: Protected> {
    squeue: &'a Squeue<P, T>,
    /// Always there, but for the moment of giving back.
    inside: Option<Box<Inside<T>>>,
    drains: bool,
}

impl<P: Platform, T: Protected> Proc<'_, P, T> {
    /// Gives PROC back. What came meanwhile is drained first, if the entry mode says so and
    /// the thread is on the squeue's core, until the quantum of `who` is over; what is left then
    /// is the worker's. Returns how many messages were run.
    #[inline]
    pub(crate) fn leave(mut self, who: Who, run: impl FnMut(&mut Inside<T>, Message<T>)) -> usize {
        let squeue = self.squeue;
        let mut state = squeue.state.lock();
        if state.queue.is_empty() {
            state = squeue.again(state);
            state.inside = self.inside.take();
            return 0;
        }
        if self.drains && squeue.here() {
            drop(state);
            return self.drain(who, run);
        }
        state.inside = self.inside.take();
        squeue.rouse(state);
        0
    }

    /// Takes the whole chain, runs it outside the lock, and so on.
    fn drain(mut self, who: Who, mut run: impl FnMut(&mut Inside<T>, Message<T>)) -> usize {
        let squeue = self.squeue;
        let Some(inside) = self.inside.as_mut() else {
            return 0;
        };
        let until = squeue.p.now().plus(squeue.settings.quanta[who as usize]);
        let mut over = false;
        let mut n = 0;
        loop {
            let mut state = squeue.state.lock();
            if over {
                // The rest of the chain goes back to the front. What came meanwhile is moved behind
                // it, as there may be much more of the rest, quantum after quantum.
                state.put_back = inside.chain.len();
                inside.chain.append(&mut state.queue);
                core::mem::swap(&mut state.queue, &mut inside.chain);
            }
            if over || state.queue.is_empty() {
                let rest = !state.queue.is_empty();
                state = squeue.again(state);
                state.inside = self.inside.take();
                if rest {
                    squeue.rouse(state);
                }
                return n;
            }
            core::mem::swap(&mut state.queue, &mut inside.chain);
            let fresh = inside.chain.len() - core::mem::take(&mut state.put_back);
            squeue.p.touch(&squeue.lines, Touched::Message, fresh, true);
            if state.waiting != 0 {
                // An empty queue is below any low-water mark.
                let waiting = core::mem::take(&mut state.waiting);
                if !planted(Bug::BackEnableMissing) {
                    squeue.enabled.fetch_or(waiting, Ordering::AcqRel);
                }
            }
            drop(state);
            let mut chain = core::mem::take(&mut inside.chain);
            while let Some(m) = chain.pop_front() {
                run(inside, m);
                n += 1;
                if n % LOOK == 0 && squeue.p.now() >= until {
                    over = true;
                    break;
                }
            }
            inside.chain = chain;
            over = over || squeue.p.now() >= until;
        }
    }
}

impl<P: Platform, T: Protected> Deref for Proc<'_, P, T> {
    type Target = Inside<T>;

    #[inline]
    fn deref(&self) -> &Inside<T> {
        self.inside.as_ref().expect("PROC is held")
    }
}

impl<P: Platform, T: Protected> DerefMut for Proc<'_, P, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inside<T> {
        self.inside.as_mut().expect("PROC is held")
    }
}

/// Whoever holds PROC and is unwound by a panic, or has nothing more to do with it, gives it
/// back all the same.
impl<P: Platform, T: Protected> Drop for Proc<'_, P, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut inside) = self.inside.take() {
            inside.again = false;
            let mut state = self.squeue.state.lock();
            state.inside = Some(inside);
            if !state.queue.is_empty() {
                self.squeue.rouse(state);
            }
        }
    }
}

/// The lock of an squeue that is busy, or that is not to be run by this thread.
pub(crate) struct Door<'a, P: Platform, T: Protected> {
    squeue: &'a Squeue<P, T>,
    state: Guard<'a, P, T>,
    entry: SqueueEntry,
}

impl<'a, P: Platform, T: Protected> Door<'a, P, T> {
    /// Leaves a message: [`Door::push`] and [`Door::close`].
    pub(crate) fn put(mut self, m: Message<T>) -> Option<Proc<'a, P, T>> {
        self.push(m);
        self.close()
    }

    /// Appends one message of several.
    pub(crate) fn push(&mut self, m: Message<T>) {
        self.squeue.note_left();
        self.state.queue.push_back(m);
    }

    /// Leaves. `Some`: nobody is at the queue, and the caller is one who drains, on the
    /// squeue's core; it is to [`Proc::leave`].
    pub(crate) fn close(mut self) -> Option<Proc<'a, P, T>> {
        let squeue = self.squeue;
        if self.entry == SqueueEntry::Process && squeue.here() {
            let inside = self.state.inside.take()?;
            return Some(Proc {
                squeue,
                inside: Some(inside),
                drains: true,
            });
        }
        // Whoever holds PROC looks at the queue before giving it back.
        self.state.inside.as_ref()?;
        squeue.rouse(self.state);
        None
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;

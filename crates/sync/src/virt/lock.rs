//! Locks in virtual time.

use core::panic::Location;
use core::sync::atomic::AtomicU32;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::beacon;
use super::config::FailureKind;
use super::lines::{MILLI, Place, VirtualTag};
use super::record::Act;
use super::shared::Shared;
use super::state::{Held, NONE, OUTSIDE, Op, State};
use crate::class::{LockClass, LockStats, Touched};
use crate::platform::Lock;

/// All of a lock but its value.
pub(super) struct LockHead {
    pub(super) id: u32,
    pub(super) class: LockClass,
    /// Slot of the holder, `NONE` or `OUTSIDE`.
    pub(super) owner: u32,
    waiters: VecDeque<u32>,
    stats: LockStats,
    since: u64,
    /// Where its word is.
    word: Place,
    /// Where what it protects is.
    behind: VirtualTag,
}

/// A lock of a [`super::Virtual`] platform. Its order is checked at every acquisition, attempts
/// included, as in debug builds of the native platform.
///
/// Under [`super::Schedule::Time`] a contender spins while the owner runs on another core, up
/// to [`super::CostTable::spin_ns`], and gets the lock handed over; a parked one is woken and
/// tries again, so others may come first. In exploration the next owner, and whether the lock
/// is handed over or left open, are drawn from the seed. Embedded: first come, first served.
///
/// Under [`crate::LockPolicy::Turnstile`] who owns a lock and whether the owner runs is known
/// exactly: a contender spins just as long as the owner runs on another core, and sleeps at the
/// moment at which it does not.
///
/// On lines of its own, as the machine's.
#[repr(align(64))]
pub struct VirtualLock<T> {
    shared: Arc<Shared>,
    /// Stands for the machine's lock in a trace of memory accesses.
    word: AtomicU32,
    id: u32,
    class: LockClass,
    head: UnsafeCell<LockHead>,
    value: UnsafeCell<T>,
}

// SAFETY: `head` is used under the baton only, `value` by the owner only.
unsafe impl<T: Send> Send for VirtualLock<T> {}
// SAFETY: as above; the value is handed from thread to thread, hence `T: Send`.
unsafe impl<T: Send> Sync for VirtualLock<T> {}

/// Access to the value of a [`VirtualLock`].
pub struct VirtualGuard<'a, T: Send + 'static> {
    lock: &'a VirtualLock<T>,
    /// Released by the thread that took it.
    here: PhantomData<*const ()>,
}

impl<T: Send + 'static> VirtualLock<T> {
    pub(super) fn new(shared: Arc<Shared>, class: LockClass, value: T) -> VirtualLock<T> {
        let id = shared.id();
        VirtualLock {
            head: UnsafeCell::new(LockHead {
                id,
                class,
                owner: NONE,
                waiters: VecDeque::new(),
                stats: LockStats::default(),
                since: 0,
                word: Place::default(),
                behind: VirtualTag::default(),
            }),
            value: UnsafeCell::new(value),
            word: AtomicU32::new(0),
            id,
            class,
            shared,
        }
    }

    /// The head.
    ///
    /// # Safety
    /// As for [`Shared::st`].
    #[inline]
    #[allow(clippy::mut_from_ref)]
    unsafe fn head(&self) -> &mut LockHead {
        // SAFETY: by the contract.
        unsafe { &mut *self.head.get() }
    }

    fn guard(&self) -> VirtualGuard<'_, T> {
        VirtualGuard {
            lock: self,
            here: PhantomData,
        }
    }

    /// Waits for the lock, which somebody has.
    #[cold]
    fn lock_slow(&self) {
        let sh = &*self.shared;
        // SAFETY: inside; the references end here.
        if unsafe { sh.st() }.panicking() {
            sh.dying();
        }
        // SAFETY: as above.
        let (me, start) = unsafe {
            self.head().stats.contended += 1;
            let st = sh.st();
            st.class_stats[self.head().class as usize].contended += 1;
            let now = st.now();
            st.me().waits_since = now;
            if st.record.is_some() {
                let owner = st.name_of(self.head().owner);
                let (class, id) = (self.class, self.id);
                st.note(st.running, Act::LockWait { class, id, owner });
            }
            (st.running, now)
        };
        let waiting = Waiting { lock: self, me };
        let mut again = false;
        loop {
            {
                // SAFETY: inside; the references end before the suspension.
                let (st, head) = unsafe { (sh.st(), self.head()) };
                if again {
                    head.waiters.push_front(me);
                } else {
                    head.waiters.push_back(me);
                }
                let owner = head.owner;
                st.park_lock(self.id, self.head.get(), owner);
            }
            again = true;
            sh.suspend();
            beacon::lock(&self.word);
            // SAFETY: inside again; the references end before the next suspension.
            let (st, head) = unsafe { (sh.st(), self.head()) };
            if head.owner == NONE {
                head.acquire(st, me);
            }
            if head.owner == me {
                let waited = st.now().saturating_sub(start);
                head.enter(st);
                head.stats.wait_ns += waited;
                st.class_stats[head.class as usize].wait_ns += waited;
                break;
            }
            if st.record.is_some() {
                let (class, id) = (self.class, self.id);
                st.note(me, Act::LockAgain { class, id });
            }
        }
        std::mem::forget(waiting);
    }

    /// Takes the lock from outside the virtual threads.
    fn lock_outside(&self) -> VirtualGuard<'_, T> {
        let name = || format!("lock {} #{}", self.class.name(), self.id);
        self.shared.outside("a lock", |st| {
            // SAFETY: under the baton.
            let head = unsafe { self.head() };
            if head.owner == NONE {
                head.acquire_outside();
                return Some(());
            }
            if head.owner != OUTSIDE || st.alone_here {
                st.expect_more(&name());
            }
            None
        });
        self.guard()
    }
}

/// Checks whether the running thread may take a lock of `class`, and notes where it does.
#[inline]
pub(super) fn check_order(
    shared: &Shared,
    id: u32,
    class: LockClass,
    at: &'static Location<'static>,
) {
    // SAFETY: inside; the reference ends before `fail`.
    let st = unsafe { shared.st() };
    let check = st.cfg.check_lock_order;
    let me = st.me();
    me.at = at;
    if !check {
        return;
    }
    let bad = me.held.iter().find(|h| {
        h.class.level() > class.level() || (h.class == class && !class.nests_with_itself())
    });
    if let Some(&held) = bad {
        let new = Held { id, class, at };
        let same = if id == held.id && id != NONE {
            ", the same lock"
        } else {
            ""
        };
        let text = format!(
            "thread {} \"{}\": {new} while it holds {held}{same}",
            st.running, st.threads[st.running as usize].name,
        );
        shared.fail(FailureKind::LockOrder, text);
    }
}

/// Takes a waiter out of the queue again if its thread is unwound.
struct Waiting<'a, T: Send + 'static> {
    lock: &'a VirtualLock<T>,
    me: u32,
}

impl<T: Send + 'static> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        // SAFETY: inside, on the thread that is being unwound.
        let (st, head) = unsafe { (self.lock.shared.st(), self.lock.head()) };
        head.waiters.retain(|&w| w != self.me);
        if head.owner == self.me {
            // Handed over before the simulation failed.
            head.release(st, false);
        }
    }
}

impl LockHead {
    /// Gives the free lock to `slot`.
    #[inline]
    fn acquire(&mut self, st: &mut State, slot: u32) {
        self.owner = slot;
        self.stats.acquisitions += 1;
        st.class_stats[self.class as usize].acquisitions += 1;
        let core = {
            let t = st.thread(slot);
            t.held.push(Held {
                id: self.id,
                class: self.class,
                at: t.at,
            });
            t.core as u32
        };
        if st.clocked {
            let moves = st.fetch_for(core, (&mut self.word, None), MILLI, true);
            if slot == st.running {
                let taking = u64::from(st.cfg.costs.lock_ns);
                st.spend(taking + moves);
            }
        }
        self.since = st.now();
        if st.record.is_some() {
            let (class, id) = (self.class, Some(self.id));
            st.note(slot, Act::Lock { class, id });
        }
    }

    /// The running thread, which has just got the lock, reads and writes what it protects.
    #[inline]
    fn enter(&mut self, st: &mut State) {
        if st.clocked {
            st.touch(&self.behind, Touched::Behind(self.class), 1, true);
        }
    }

    /// Gives the lock, free since `now`, to `w`, who spins for it.
    fn hand_on(&mut self, st: &mut State, w: u32, now: u64) {
        let to = st.threads[w as usize].core as u32;
        let from = self.word.writer();
        let crowd = self.waiters.iter().filter(|s| st.spins(**s, now)).count();
        let lines = &st.cfg.costs.lines;
        let moves = match from {
            NONE => u64::from(lines.near_ns),
            from => lines.between(from, to) + lines.crowd(from, to, crowd),
        };
        self.acquire(st, w);
        self.since = now + moves;
        st.unspin(w, now + moves);
    }

    /// Somebody who spins has looked at the word: to write to it the owner, who releases it, has to
    /// fetch it back. When that is done.
    fn called_back(&self, st: &mut State, spinner: u32, now: u64) -> u64 {
        let from = st.threads[spinner as usize].core as u32;
        let to = self.word.writer();
        if to != NONE && st.running != NONE {
            let ns = st.cfg.costs.lines.between(from, to);
            st.spend(ns);
        }
        st.now().max(now)
    }

    /// The lock is free since `now`: of those who spin, the one that looks first finds it so, unless
    /// somebody else has come before. `false`: nobody spins any more.
    fn leave_open(&mut self, st: &mut State, now: u64) -> bool {
        let all = self.waiters.iter().enumerate();
        let spinning = all.filter(|(_, w)| st.spins(**w, now));
        let mut looks: Vec<_> = spinning.map(|(i, w)| (st.looks_at(*w, now), i)).collect();
        looks.sort_unstable();
        if let Some(&(at, i)) = looks.first()
            && let Some(w) = self.waiters.remove(i)
        {
            let (from, to) = (self.word.writer(), st.threads[w as usize].core as u32);
            let crowd = match from {
                NONE => 0,
                from => st.cfg.costs.lines.crowd(from, to, looks.len() - 1),
            };
            st.unspin(w, at + crowd);
            return true;
        }
        false
    }

    fn acquire_outside(&mut self) {
        self.owner = OUTSIDE;
        self.stats.acquisitions += 1;
    }

    /// Releases the lock and lets the next one in.
    fn release(&mut self, st: &mut State, explores: bool) {
        let now = st.now();
        let owner = std::mem::replace(&mut self.owner, NONE);
        if owner < OUTSIDE {
            if st.record.is_some() {
                let (class, id) = (self.class, Some(self.id));
                st.note(owner, Act::Unlock { class, id });
            }
            let held = now.saturating_sub(self.since);
            self.stats.hold_ns += held;
            st.class_stats[self.class as usize].hold_ns += held;
            let id = self.id;
            let list = &mut st.thread(owner).held;
            if let Some(i) = list.iter().rposition(|h| h.id == id) {
                list.remove(i);
            }
        }
        if !self.waiters.is_empty() {
            self.release_to(st, now, explores);
        }
    }

    /// The turnstile's release: whoever spins sees it first; all who sleep are woken, and try
    /// again when they run.
    fn broadcast(&mut self, st: &mut State, now: u64) {
        let spinning = |st: &State, w: u32| st.clocked && st.spins(w, now);
        if let Some(i) = self.waiters.iter().position(|&w| spinning(st, w)) {
            let w = self.waiters.remove(i).unwrap_or(NONE);
            self.hand_on(st, w, now);
        }
        let asleep: Vec<u32> = self.waiters.iter().copied().collect();
        self.waiters.retain(|&w| spinning(st, w));
        for w in asleep {
            if !self.waiters.contains(&w) {
                st.wake(w);
            }
        }
        st.lend();
    }

    #[cold]
    fn release_to(&mut self, st: &mut State, now: u64, explores: bool) {
        if st.teardown {
            // Only who is being unwound already may still get it: its destructor wants it.
            let threads = &st.threads;
            let next = self
                .waiters
                .iter()
                .position(|&w| threads[w as usize].unwinding);
            if let Some(w) = next.and_then(|i| self.waiters.remove(i)) {
                self.acquire(st, w);
                st.wake(w);
            }
            return;
        }
        if st.turnstile {
            return self.broadcast(st, now);
        }
        if st.clocked {
            let fair = u64::from(st.cfg.costs.fair_ns);
            let first = self.waiters[0];
            let overdue = now > st.thread(first).waits_since.saturating_add(fair);
            if overdue && !st.spins(first, now) {
                self.waiters.pop_front();
                self.acquire(st, first);
                st.wake(first);
                return;
            }
            let spinner = self.waiters.iter().position(|&w| st.spins(w, now));
            let now = match spinner {
                Some(i) if st.cfg.costs.pause_ns != 0 => self.called_back(st, self.waiters[i], now),
                _ => now,
            };
            let looks = st.cfg.costs.pause_ns != 0;
            if looks && self.leave_open(st, now) {
                return;
            }
            let spinner = spinner.filter(|_| !looks);
            if let Some(w) = spinner.and_then(|i| self.waiters.remove(i)) {
                self.hand_on(st, w, now);
            } else if let Some(w) = self.waiters.pop_front() {
                st.wake(w);
            }
            return;
        }
        let i = if explores {
            st.rng.below(self.waiters.len() as u64) as usize
        } else {
            0
        };
        if let Some(w) = self.waiters.remove(i) {
            if !explores || st.rng.below(2) == 0 {
                self.acquire(st, w);
            }
            st.wake(w);
        }
    }
}

impl<T: Send + 'static> Lock<T> for VirtualLock<T> {
    type Guard<'a> = VirtualGuard<'a, T>;

    #[inline]
    #[track_caller]
    fn lock(&self) -> VirtualGuard<'_, T> {
        if !self.shared.inside() {
            return self.lock_outside();
        }
        check_order(&self.shared, self.id, self.class, Location::caller());
        self.shared.point(Op::Lock, self.id);
        beacon::lock(&self.word);
        // SAFETY: inside; the references end here.
        let (st, head) = unsafe { (self.shared.st(), self.head()) };
        if head.owner == NONE {
            head.acquire(st, st.running);
            head.enter(st);
        } else {
            self.lock_slow();
        }
        self.guard()
    }

    #[track_caller]
    fn try_lock(&self) -> Option<VirtualGuard<'_, T>> {
        if !self.shared.inside() {
            let free = self.shared.with(|_| {
                // SAFETY: under the baton.
                let head = unsafe { self.head() };
                (head.owner == NONE).then(|| head.acquire_outside())
            });
            return free.map(|()| self.guard());
        }
        check_order(&self.shared, self.id, self.class, Location::caller());
        self.shared.point(Op::TryLock, self.id);
        beacon::lock(&self.word);
        // SAFETY: inside; the references end here.
        let (st, head) = unsafe { (self.shared.st(), self.head()) };
        if head.owner != NONE {
            return None;
        }
        head.acquire(st, st.running);
        head.enter(st);
        Some(self.guard())
    }

    fn stats(&self) -> LockStats {
        // SAFETY: under the baton.
        self.shared.with(|_| unsafe { self.head() }.stats)
    }

    fn class(&self) -> LockClass {
        self.class
    }
}

impl<T: Send + 'static> Deref for VirtualGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the lock's only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Send + 'static> DerefMut for VirtualGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the lock's only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Send + 'static> Drop for VirtualGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let lock = self.lock;
        let sh = &*lock.shared;
        if !sh.inside() {
            sh.with(|st| {
                // SAFETY: under the baton.
                unsafe { lock.head() }.release(st, false);
            });
            sh.kick();
            return;
        }
        // The point may unwind this thread (a failure elsewhere): it releases all the same.
        let release = Release(lock);
        sh.point(Op::Unlock, lock.id);
        drop(release);
        if sh.explores {
            // Between the release and what the thread does next to shared memory.
            sh.point(Op::Unlock, lock.id);
        }
    }
}

struct Release<'a, T: Send + 'static>(&'a VirtualLock<T>);

impl<T: Send + 'static> Drop for Release<'_, T> {
    #[inline]
    fn drop(&mut self) {
        beacon::lock(&self.0.word);
        // SAFETY: inside; the references end here.
        let (st, head) = unsafe { (self.0.shared.st(), self.0.head()) };
        head.release(st, self.0.shared.explores);
    }
}

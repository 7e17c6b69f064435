//! The lock policy of 2006 on the machine: FreeBSD's adaptive mutexes and turnstiles.
//!
//! | word | means |
//! |---|---|
//! | 0 | free |
//! | owner | held, and nobody sleeps for it |
//! | owner, `CONTESTED` | held; the release goes by the desk and wakes all |
//!
//! Taking and releasing an uncontested lock is one compare-and-swap each. All else is done at
//! the *desk*, in mutual exclusion: who is about to sleep sets CONTESTED there, and reads the
//! count of releases; a release of a contested lock raises the count there, frees the word, and
//! wakes all who sleep on the count. CONTESTED is set on a held word only, so the owner's
//! compare-and-swap fails from then on, and it comes to the desk, where the sleeper has been.
//!
//! There is one desk for all locks, as FreeBSD's lending went under one lock: priorities pass
//! along chains of locks. Only who has spun in vain, or releases a lock for which somebody
//! sleeps, comes there.
//!
//! Inferences, for no thread can see whether another runs: a contender spins for at most
//! `SPIN_NS` while the owner has not marked itself parked. What is lent is a `SCHED_FIFO`
//! priority, so only a thread that has one lends, and only where the process may set one.

use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::OnceLock;

use super::clock::Ticks;
use super::futex;
use super::mark::{self, Parked};
use super::pi::PiMutex;
use crate::shim::{AtomicU32, Ordering};

/// Who sleeps is to be woken by the release.
const CONTESTED: u32 = 1 << 31;

/// How long a contender spins, ns.
const SPIN_NS: u64 = 20_000;

/// What the state machine asks of its surroundings; the loom models put their own in its place.
#[doc(hidden)]
pub trait Host {
    /// How far a contender's spinning has gone.
    type Spin: Default;

    /// Lets a moment pass. False: enough of spinning for `owner`.
    fn spin(&self, spin: &mut Self::Spin, owner: u32) -> bool;
    /// Runs `f` in mutual exclusion with all others at the desk. `f` tells whose turn it is: the
    /// owner for whom the caller is to sleep, or the caller's own number after a release.
    fn at_desk<R>(&self, lock: &Core, f: impl FnOnce() -> (Turn, R)) -> R;
    /// Sleeps while `word` is `expected`, until [`Host::wake_all`]; may return for no reason.
    fn sleep(&self, word: &AtomicU32, expected: u32);
    /// Wakes all sleepers on `word`.
    fn wake_all(&self, word: &AtomicU32);
    /// After a contested release, when all have been woken.
    fn released(&self) {}
}

/// What has been done at the desk.
#[doc(hidden)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing.
    None,
    /// The caller is about to sleep for this owner.
    Sleeps(u32),
    /// The lock has been released, by the caller.
    Released,
}

/// The state machine.
#[doc(hidden)]
#[derive(Debug)]
pub struct Core {
    word: AtomicU32,
    /// Releases while somebody slept.
    releases: AtomicU32,
}

impl Default for Core {
    fn default() -> Core {
        Core {
            word: AtomicU32::new(0),
            releases: AtomicU32::new(0),
        }
    }
}

impl Core {
    /// Takes the lock for `me`, a number from 1 below 2^31, if it is free.
    #[inline]
    pub fn try_lock(&self, me: u32) -> bool {
        self.word
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock.
    #[cold]
    pub fn lock_contended<H: Host>(&self, host: &H, me: u32) {
        loop {
            let mut spin = H::Spin::default();
            loop {
                let word = self.word.load(Ordering::Relaxed);
                if word == 0 {
                    if self.try_lock(me) {
                        return;
                    }
                } else if !host.spin(&mut spin, word & !CONTESTED) {
                    break;
                }
            }
            let releases = host.at_desk(self, || {
                let word = self.word.load(Ordering::Relaxed);
                let held = word != 0
                    && (word & CONTESTED != 0
                        || self
                            .word
                            .compare_exchange(
                                word,
                                word | CONTESTED,
                                Ordering::Relaxed,
                                Ordering::Relaxed,
                            )
                            .is_ok());
                if !held {
                    return (Turn::None, None);
                }
                let owner = word & !CONTESTED;
                // Before the release that will wake us: it raises the count at the desk.
                (
                    Turn::Sleeps(owner),
                    Some(self.releases.load(Ordering::Relaxed)),
                )
            });
            if let Some(releases) = releases {
                host.sleep(&self.releases, releases);
            }
        }
    }

    /// Releases the lock, which `me` has.
    #[inline]
    pub fn unlock<H: Host>(&self, host: &H, me: u32) {
        let quiet = self
            .word
            .compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
        if quiet.is_err() {
            self.unlock_contested(host);
        }
    }

    #[cold]
    fn unlock_contested<H: Host>(&self, host: &H) {
        host.at_desk(self, || {
            self.releases.fetch_add(1, Ordering::Relaxed);
            self.word.store(0, Ordering::Release);
            (Turn::Released, ())
        });
        host.wake_all(&self.releases);
        host.released();
    }
}

/// Somebody who sleeps, or is about to.
#[derive(Debug)]
struct Sleeper {
    lane: usize,
    /// Address of the lock: while it is here, its owner is who it was.
    lock: usize,
    owner: usize,
    level: i32,
}

/// A thread with a lent priority, and how it was scheduled without.
#[derive(Debug)]
struct Debtor {
    lane: usize,
    level: i32,
    policy: i32,
    own: i32,
}

#[derive(Debug)]
struct Desk {
    sleepers: Vec<Sleeper>,
    debtors: Vec<Debtor>,
}

static DESK: PiMutex<Desk> = PiMutex::new(Desk {
    sleepers: Vec::new(),
    debtors: Vec::new(),
});

/// How many threads there are with a lent priority.
static DEBTORS: AtomicUsize = AtomicUsize::new(0);

/// The kernel has refused to raise a priority.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A bug for tests to find: nobody lends.
#[cfg(test)]
pub(super) static PLANTED_NO_LENDING: AtomicBool = AtomicBool::new(false);

/// Policy and level of a thread (0: the calling one); `None` if the kernel does not tell.
fn scheduling(tid: i32) -> Option<(i32, i32)> {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` is writable for the kernel's answer.
    let policy = unsafe {
        if libc::sched_getparam(tid, &raw mut param) != 0 {
            return None;
        }
        libc::sched_getscheduler(tid)
    };
    (policy >= 0).then_some((policy, param.sched_priority))
}

/// Sets policy and level of a thread (0: the calling one).
pub(super) fn schedule(tid: i32, policy: i32, level: i32) -> bool {
    let param = libc::sched_param {
        sched_priority: level,
    };
    // SAFETY: `param` is readable for the call.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const param) == 0 }
}

/// Whether this process may lend priorities: tried out once, by a thread on itself.
pub(super) fn permitted() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    let tried = TRIED.get_or_init(|| {
        let thread = std::thread::Builder::new().spawn(|| schedule(0, libc::SCHED_FIFO, 1));
        thread.is_ok_and(|t| t.join().unwrap_or(false))
    });
    *tried && !REFUSED.load(Ordering::Relaxed)
}

impl Desk {
    /// The level of the thread in `lane` without what it was lent.
    fn own_level(&self, lane: usize) -> i32 {
        if let Some(d) = self.debtors.iter().find(|d| d.lane == lane) {
            return d.own;
        }
        let tid = mark::tid(lane).unwrap_or(0);
        scheduling(tid).map_or(0, |(_, level)| level)
    }

    /// What each owner is to be lent now: the highest level of those who sleep for it, what
    /// these were lent included. In no order; an owner may be missing that is lent nothing.
    fn due(&self) -> Vec<(usize, i32)> {
        let mut due: Vec<(usize, i32)> = Vec::new();
        // A chain of owners that sleep is as long as there are sleepers, at most.
        for _ in 0..self.sleepers.len() {
            let mut settled = true;
            for s in &self.sleepers {
                let lent = due.iter().find(|d| d.0 == s.lane).map_or(0, |d| d.1);
                let level = s.level.max(lent);
                if level == 0 {
                    continue;
                }
                match due.iter_mut().find(|d| d.0 == s.owner) {
                    Some(d) if d.1 >= level => continue,
                    Some(d) => d.1 = level,
                    None => due.push((s.owner, level)),
                }
                settled = false;
            }
            if settled {
                break;
            }
        }
        due
    }

    /// Makes the threads' priorities what they are to be, but that of `later`: who is lowered
    /// may not run any more, and has to wake others first.
    fn settle(&mut self, later: Option<usize>) {
        if self.debtors.is_empty() && self.sleepers.iter().all(|s| s.level == 0) {
            return;
        }
        #[cfg(test)]
        if PLANTED_NO_LENDING.load(Ordering::Relaxed) {
            return;
        }
        let due = self.due();
        let lent = |lane: usize| due.iter().find(|d| d.0 == lane).map_or(0, |d| d.1);
        self.debtors.retain_mut(|d| {
            if later == Some(d.lane) {
                return true;
            }
            let level = lent(d.lane);
            let tid = mark::tid(d.lane);
            if level > d.own {
                if level != d.level && tid.is_some_and(|t| schedule(t, libc::SCHED_FIFO, level)) {
                    d.level = level;
                }
                return true;
            }
            if let Some(tid) = tid {
                schedule(tid, d.policy, d.own);
            }
            false
        });
        for &(lane, level) in &due {
            if self.debtors.iter().any(|d| d.lane == lane) {
                continue;
            }
            let Some(tid) = mark::tid(lane) else { continue };
            let Some((policy, own)) = scheduling(tid) else {
                continue;
            };
            if own >= level {
                continue;
            }
            if schedule(tid, libc::SCHED_FIFO, level) {
                self.debtors.push(Debtor {
                    lane,
                    level,
                    policy,
                    own,
                });
            } else {
                REFUSED.store(true, Ordering::Relaxed);
            }
        }
        DEBTORS.store(self.debtors.len(), Ordering::Relaxed);
    }
}

/// Linux, for the thread in this lane.
#[derive(Copy, Clone, Debug)]
pub(super) struct Linux(pub(super) usize);

impl Linux {
    /// The calling thread's number in lock words.
    #[inline]
    pub(super) fn me(self) -> u32 {
        self.0 as u32 + 1
    }
}

/// When a contender has begun to spin, by the counter; 0: not yet.
#[derive(Default)]
pub(super) struct Since(u64);

impl Host for Linux {
    type Spin = Since;

    fn spin(&self, since: &mut Since, owner: u32) -> bool {
        let ticks = Ticks::get();
        let now = ticks.raw();
        if since.0 == 0 {
            since.0 = now.max(1);
        }
        core::hint::spin_loop();
        ticks.to_ns(ticks.between(since.0, now)) < SPIN_NS && !mark::is_parked(owner as usize - 1)
    }

    fn at_desk<R>(&self, lock: &Core, f: impl FnOnce() -> (Turn, R)) -> R {
        let mut desk = DESK.lock();
        let address = core::ptr::from_ref(lock).addr();
        // Who comes here does not sleep any more.
        let me = self.0;
        desk.sleepers.retain(|s| s.lane != me);
        let (turn, out) = f();
        match turn {
            Turn::None => {}
            Turn::Sleeps(owner) => {
                let level = desk.own_level(me);
                desk.sleepers.push(Sleeper {
                    lane: me,
                    lock: address,
                    owner: owner as usize - 1,
                    level,
                });
            }
            Turn::Released => desk.sleepers.retain(|s| s.lock != address),
        }
        desk.settle((turn == Turn::Released).then_some(me));
        out
    }

    fn sleep(&self, word: &AtomicU32, expected: u32) {
        let _parked = Parked::new();
        futex::wait(word, expected, None);
    }

    fn wake_all(&self, word: &AtomicU32) {
        futex::wake(word, i32::MAX);
    }

    fn released(&self) {
        // Whoever has lent this thread something did so at the desk, before the release.
        if DEBTORS.load(Ordering::Relaxed) > 0 {
            DESK.lock().settle(None);
        }
    }
}

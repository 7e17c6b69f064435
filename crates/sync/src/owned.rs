//! What one thread at a time owns: ownership is tried for, and never waited for.
//!
//! For state that belongs to a thread rather than to a lock: its thread takes it for as long as
//! it has work to do, and others hand their work to that thread. Where a second thread may stand
//! in for the first (it shares the core, or the first has ended), the flag decides which of the
//! two it is.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::platform::Platform;
use crate::shim::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// This file, for [`sources`](crate::sources).
pub(crate) const FILE: &str = file!();

const FREE: usize = 0;
/// The owner panicked: what it left behind may be half done, and nobody gets it.
const BROKEN: usize = usize::MAX;

/// The flag and what it stands for, apart from the platform: for the loom models.
#[doc(hidden)]
#[derive(Debug)]
pub struct Core<T> {
    /// [`FREE`], [`BROKEN`], or the owner's lane plus one.
    holder: Padded<AtomicUsize>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached through `Core::with` only, by the thread whose compare-exchange
// took `holder` from FREE, until it gives it back with a release store, which the next
// compare-exchange acquires. The value is used by different threads in turn: `T: Send`.
unsafe impl<T: Send> Sync for Core<T> {}

impl<T> Core<T> {
    /// Owned by nobody.
    pub fn new(value: T) -> Core<T> {
        Core {
            holder: Padded(AtomicUsize::new(FREE)),
            value: UnsafeCell::new(value),
        }
    }

    /// Makes the thread of `lane` the owner, if there is none.
    #[inline(always)]
    pub fn take(&self, lane: usize) -> bool {
        // SeqCst, as `give`: whoever leaves work for the owner looks at the flag afterwards, and
        // the owner looks for work after it has let go. One of them sees the other.
        self.holder
            .0
            .compare_exchange(FREE, lane + 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Lets go.
    #[inline(always)]
    pub fn give(&self, whole: bool) {
        let to = if whole { FREE } else { BROKEN };
        self.holder.0.swap(to, Ordering::SeqCst);
    }

    /// The owner: its lane plus one; 0, nobody.
    #[inline(always)]
    pub fn holder(&self) -> usize {
        self.holder.0.load(Ordering::SeqCst)
    }

    /// Runs `f` on the value.
    ///
    /// # Safety
    /// The caller is the owner, and no other reference to the value lives.
    #[inline(always)]
    pub unsafe fn with<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.value.with_mut(f)
    }
}

/// A value that one thread at a time owns.
#[derive(Debug)]
pub struct Owned<P, T> {
    platform: P,
    core: Core<T>,
}

/// Ownership, until dropped. Stays on its thread. Dropped by a panic it is never given back.
#[derive(Debug)]
pub struct OwnedGuard<'a, P: Platform, T> {
    cell: &'a Owned<P, T>,
    /// Neither `Send` nor `Sync`: the flag names the thread.
    here: PhantomData<*const ()>,
}

impl<P: Platform, T: Send> Owned<P, T> {
    /// A value without owner.
    pub fn new(platform: P, value: T) -> Owned<P, T> {
        Owned {
            platform,
            core: Core::new(value),
        }
    }

    /// Ownership, unless another thread has it, or this one already.
    #[inline]
    pub fn try_own(&self) -> Option<OwnedGuard<'_, P, T>> {
        self.platform.checkpoint();
        // Lazily: a guard that is made and dropped gives back what another thread has.
        let taken = self.core.take(self.platform.lane());
        taken.then(|| OwnedGuard {
            cell: self,
            here: PhantomData,
        })
    }

    /// Whether somebody owns it now: it will look for work once more after letting go.
    #[inline]
    pub fn is_owned(&self) -> bool {
        self.platform.checkpoint();
        !matches!(self.core.holder(), FREE | BROKEN)
    }

    /// Whether an owner panicked: nobody will own it again.
    pub fn is_broken(&self) -> bool {
        self.core.holder() == BROKEN
    }
}

impl<P: Platform, T> Deref for OwnedGuard<'_, P, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the owner's, there is one, and it lends what it is asked for.
        unsafe { self.cell.core.with(|p| &*p) }
    }
}

impl<P: Platform, T> DerefMut for OwnedGuard<'_, P, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` excludes other references from this guard.
        unsafe { self.cell.core.with(|p| &mut *p) }
    }
}

impl<P: Platform, T> Drop for OwnedGuard<'_, P, T> {
    #[inline]
    fn drop(&mut self) {
        let whole = !std::thread::panicking();
        if whole {
            self.cell.platform.checkpoint();
        }
        self.cell.core.give(whole);
        if whole {
            self.cell.platform.checkpoint();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::virt::{Schedule, VirtualConfig};
    use crate::{Native, Platform, Thread, Virtual};
    use std::sync::Arc;

    #[test]
    fn there_is_one_owner_at_a_time() {
        let c = Owned::new(Native::new(), 1);
        let mut g = c.try_own().unwrap();
        assert!(c.try_own().is_none() && c.is_owned());
        *g = 2;
        drop(g);
        assert!(!c.is_owned());
        assert_eq!(*c.try_own().unwrap(), 2);
    }

    #[test]
    fn what_a_panic_left_is_nobodys() {
        let c = Arc::new(Owned::new(Native::new(), 1));
        let d = c.clone();
        let t = std::thread::spawn(move || {
            let _g = d.try_own().unwrap();
            panic!("on purpose");
        });
        assert!(t.join().is_err());
        assert!(c.is_broken() && !c.is_owned() && c.try_own().is_none());
    }

    /// Ownership goes round among threads that leave each other work: the one that can't have it
    /// leaves its work, whoever lets go looks again, and no work is left lying.
    #[test]
    fn work_left_for_the_owner_is_found() {
        for seed in 0..300 {
            let cfg = VirtualConfig {
                seed,
                schedule: Schedule::Random { switch_one_in: 2 },
                ..VirtualConfig::default()
            };
            let run = Virtual::run(cfg, |p| {
                let cell = Arc::new(Owned::new(p.clone(), 0u32));
                let work = Arc::new(crate::Mpsc::new(p.clone(), 16));
                let threads: Vec<_> = (0..3)
                    .map(|_| {
                        let (cell, work) = (cell.clone(), work.clone());
                        let body = move || {
                            for _ in 0..3 {
                                work.push(1u32).unwrap();
                                while !work.is_empty() {
                                    let Some(mut done) = cell.try_own() else {
                                        break;
                                    };
                                    while let Some(n) = work.pop() {
                                        *done += n;
                                    }
                                }
                            }
                        };
                        p.spawn("worker", None, Box::new(body))
                    })
                    .collect();
                for t in threads {
                    t.join().unwrap();
                }
                assert_eq!((*cell.try_own().unwrap(), work.len()), (9, 0));
            });
            run.unwrap_or_else(|f| panic!("{f}"));
        }
    }
}

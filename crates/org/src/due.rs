//! When a perimeter's timers are due: published by the thread inside, read by threads outside.

use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_sync::atomic::{AtomicU64, Ordering};

/// When a perimeter's timers are due, for threads that are not inside.
///
/// No deadline is lost. The thread inside publishes the next one after everything that it has run.
/// A thread outside takes a deadline ([`Due::take`]) only to send a message that has the timers
/// run: whoever runs that message is inside, and publishes the next deadline.
pub(crate) struct Due(AtomicU64);

/// One that lies on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DueLine(Due);

impl core::ops::Deref for DueLine {
    type Target = Due;

    fn deref(&self) -> &Due {
        &self.0
    }
}

impl Default for Due {
    fn default() -> Due {
        Due(AtomicU64::new(u64::MAX))
    }
}

impl Due {
    /// Inside: the timers are due at `at`. Returns whether that is earlier than published before.
    #[inline]
    pub(crate) fn publish(&self, p: &impl Platform, at: Time) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        if before != at.0 {
            p.checkpoint();
            self.0.store(at.0, Ordering::SeqCst);
        }
        at.0 < before
    }

    /// Outside: whether the timers are due at `now`; the deadline is taken, so that no other thread
    /// finds it. `false` where the thread inside publishes another one at this moment, which stays.
    pub(crate) fn take(&self, p: &impl Platform, now: Time) -> bool {
        let at = self.0.load(Ordering::SeqCst);
        if at > now.0 {
            return false;
        }
        p.checkpoint();
        let (order, or) = (Ordering::SeqCst, Ordering::SeqCst);
        self.0.compare_exchange(at, u64::MAX, order, or).is_ok()
    }

    /// Outside: when the timers are due.
    #[inline]
    pub(crate) fn at(&self) -> Time {
        Time(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use perimeter_sync::model::Model;
    use perimeter_sync::{Lock, LockClass};
    use std::sync::Arc;

    /// The thread inside puts off timers that are due while a thread outside takes their deadline:
    /// in the end the published deadline is the one inside.
    #[test]
    fn no_deadline_is_lost() {
        loom::model(|| {
            let due = Arc::new(Due::default());
            let inside = Arc::new(Model.lock(LockClass::Group, Time(5)));
            due.publish(&Model, Time(5));
            let (theirs, perimeter) = (due.clone(), inside.clone());
            let holder = thread::spawn(move || {
                let mut at = perimeter.lock();
                *at = Time(10);
                theirs.publish(&Model, *at);
            });
            if due.take(&Model, Time(5)) {
                let at = inside.lock();
                due.publish(&Model, *at);
            }
            holder.join().unwrap();
            assert_eq!(due.at(), *inside.lock());
        });
    }
}

//! When timers are due: said by who holds a perimeter, looked at by who does not.

use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_sync::atomic::{AtomicU64, Ordering};

/// When a perimeter's timers are due, for those outside. On cache lines of its own.
///
/// A word about timers can't get lost. Who is inside says anew when they are due, after everything
/// that it has run. Who is outside takes the word back ([`Due::take`]) only to send a message that
/// has the timers run: whoever runs it is inside, and says anew.
#[repr(align(128))]
pub(crate) struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Due {
        Due(AtomicU64::new(u64::MAX))
    }
}

impl Due {
    /// Inside: they are due at `at`. Whether that is earlier than what was said before.
    #[inline]
    pub(crate) fn say(&self, p: &impl Platform, at: Time) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        if before != at.0 {
            p.checkpoint();
            self.0.store(at.0, Ordering::SeqCst);
        }
        at.0 < before
    }

    /// Outside: whether they are due at `now`, of which from here on nobody else is told. Not where
    /// who is inside says otherwise at this moment: what that one says must stay.
    pub(crate) fn take(&self, p: &impl Platform, now: Time) -> bool {
        let at = self.0.load(Ordering::SeqCst);
        if at > now.0 {
            return false;
        }
        p.checkpoint();
        let (order, or) = (Ordering::SeqCst, Ordering::SeqCst);
        self.0.compare_exchange(at, u64::MAX, order, or).is_ok()
    }

    /// Outside: when they are due.
    #[inline]
    pub(crate) fn at(&self) -> Time {
        Time(self.0.load(Ordering::Acquire))
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use perimeter_sync::model::Model;
    use perimeter_sync::{Lock, LockClass};
    use std::sync::Arc;

    /// Timers that are due are put off inside while somebody outside takes the word about them:
    /// in the end those outside know what is so inside.
    #[test]
    fn the_last_word_is_heard() {
        loom::model(|| {
            let due = Arc::new(Due::default());
            let inside = Arc::new(Model.lock(LockClass::Group, Time(5)));
            due.say(&Model, Time(5));
            let (theirs, perimeter) = (due.clone(), inside.clone());
            let holder = thread::spawn(move || {
                let mut at = perimeter.lock();
                *at = Time(10);
                theirs.say(&Model, *at);
            });
            if due.take(&Model, Time(5)) {
                let at = inside.lock();
                due.say(&Model, *at);
            }
            holder.join().unwrap();
            assert_eq!(due.at(), *inside.lock());
        });
    }
}

//! Whether a stack lives: what every call asks first, and what threads that wait look at.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// Takes every call.
const RUNNING: u32 = 0;
/// Being shut down: what is open goes on, nothing new is opened.
const CLOSING: u32 = 1;
/// Stopped by the application.
const STOPPED: u32 = 2;
/// A thread panicked in it.
const FAILED: u32 = 3;

/// Why a stack takes no calls any more.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The application stopped it.
    Stopped,
    /// A thread panicked in it; what that said.
    Failed(&'static str),
    /// This process is a fork of the one that the stack belongs to.
    Forked,
}

/// Whether a stack lives. Goes one way only: running, perhaps closing, then stopped or failed.
pub struct Life {
    word: AtomicU32,
    /// What a thread said that panicked. Leaked: at most one text for each stack that fails.
    cause: OnceLock<&'static str>,
    /// The process that the stack was made in.
    process: u64,
}

impl Default for Life {
    fn default() -> Life {
        Life {
            word: AtomicU32::new(RUNNING),
            cause: OnceLock::new(),
            process: perimeter_sync::process::register(),
        }
    }
}

impl Life {
    /// Whether calls are taken: three loads of what hardly ever changes.
    #[inline]
    pub fn on(&self) -> bool {
        self.word.load(Ordering::Acquire) <= CLOSING && !self.forked()
    }

    /// Whether this process is a fork of the one that the stack belongs to: its threads, and
    /// perhaps its locks' owners, do not exist here.
    #[inline]
    pub fn forked(&self) -> bool {
        perimeter_sync::process::current() != self.process
    }

    /// Whether connections and listeners may be opened.
    pub fn opens(&self) -> bool {
        self.word.load(Ordering::Acquire) == RUNNING
    }

    /// Whether it has stopped or failed: its threads end.
    #[inline]
    pub fn ended(&self) -> bool {
        self.word.load(Ordering::Acquire) >= STOPPED
    }

    /// Why no call is taken; for who has seen that none is.
    #[cold]
    pub fn over(&self) -> Over {
        if self.forked() {
            return Over::Forked;
        }
        if self.word.load(Ordering::Acquire) == FAILED {
            return Over::Failed(self.cause.get().copied().unwrap_or("a thread panicked"));
        }
        Over::Stopped
    }

    /// Whether a thread has panicked in it.
    pub fn failed(&self) -> bool {
        self.word.load(Ordering::Acquire) == FAILED
    }

    /// Nothing new is opened from now on.
    pub fn close(&self) {
        let _ = self
            .word
            .compare_exchange(RUNNING, CLOSING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Stops it; `false` if it had ended already.
    pub fn stop(&self) -> bool {
        self.end(STOPPED)
    }

    /// A thread panicked in it and said `cause`; `false` if it had ended already.
    #[cold]
    pub fn fail(&self, cause: &str) -> bool {
        if self.ended() {
            return false;
        }
        // Before the word: who sees that it failed also sees why.
        let text = || -> &'static str { Box::leak(cause.to_string().into_boxed_str()) };
        self.cause.get_or_init(text);
        self.end(FAILED)
    }

    fn end(&self, how: u32) -> bool {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
                (w <= CLOSING).then_some(how)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_goes_one_way() {
        let life = Life::default();
        assert!(life.on() && life.opens() && !life.ended());
        life.close();
        assert!(life.on() && !life.opens() && !life.ended());
        assert!(life.stop());
        assert!(!life.on() && life.ended());
        assert!(!life.stop() && !life.fail("too late"));
        assert_eq!(life.over(), Over::Stopped);

        let life = Life::default();
        assert!(life.fail("why"));
        assert!(!life.stop());
        life.close();
        assert_eq!(life.over(), Over::Failed("why"));
    }
}

//! Protocol threads that an organization has made while the stack runs, beside those that it has
//! from the beginning.

use perimeter_sync::{Lock, LockClass, LockStats, Platform, Thread};

/// Makes a protocol thread of that number, which has none or whose last one is about to end.
pub type MakeThread = Box<dyn Fn(usize) -> Making + Send + Sync>;

/// What came of it.
///
/// ```
/// use perimeter_org::Making;
///
/// // Who runs what was left for a thread that is to be made.
/// let who = |making| match making {
///     Making::Made => "the thread",
///     Making::Refused => "another protocol thread",
///     Making::Over => "whoever waits for it",
/// };
/// assert_eq!(who(Making::Over), "whoever waits for it");
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Making {
    /// It begins.
    Made,
    /// The host has none to give now.
    Refused,
    /// The stack ends: none is made any more.
    Over,
}

/// The threads of one number: they follow each other.
struct Line<T> {
    now: Option<T>,
    /// The one before, until it has been joined.
    before: Option<T>,
}

/// Who has been made, by number.
pub(crate) struct Made<P: Platform> {
    /// The numbers below are of threads that the stack has from the beginning.
    first: usize,
    /// Innermost of all locks: threads are made wherever a message is left.
    lines: Box<[P::Lock<Line<P::Thread>>]>,
}

impl<P: Platform> Made<P> {
    /// None yet of those with numbers from `first` to `most`.
    pub(crate) fn new(p: &P, first: usize, most: usize) -> Made<P> {
        let none = || Line {
            now: None,
            before: None,
        };
        Made {
            first,
            lines: (first..most)
                .map(|_| p.lock(LockClass::Leaf, none()))
                .collect(),
        }
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for line in &self.lines {
            add(LockClass::Leaf, line.stats());
        }
    }

    /// Makes protocol thread `worker` by `start`, unless the stack is `over`. What `start` is given
    /// tells whether the thread has to wait for the end of the one before
    /// ([`Made::await_the_one_before`]), which has said that it ends: so there are never two, and
    /// who makes one waits for nobody.
    pub(crate) fn make(
        &self,
        worker: usize,
        over: impl FnOnce() -> bool,
        start: impl FnOnce(bool) -> std::io::Result<P::Thread>,
    ) -> Making {
        let Some(line) = self.line(worker) else {
            return Making::Refused;
        };
        let mut line = line.lock();
        if over() {
            return Making::Over;
        }
        if line.before.is_none() {
            line.before = line.now.take();
        }
        match start(line.before.is_some()) {
            Ok(thread) => {
                line.now = Some(thread);
                Making::Made
            }
            Err(_) => Making::Refused,
        }
    }

    fn line(&self, worker: usize) -> Option<&P::Lock<Line<P::Thread>>> {
        self.lines.get(worker.checked_sub(self.first)?)
    }

    /// By a new thread, before anything else.
    pub(crate) fn await_the_one_before(&self, worker: usize) {
        let before = self.line(worker).and_then(|l| l.lock().before.take());
        if let Some(thread) = before {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }

    /// Waits for the end of all of them. The stack has ended: as who makes one looks at that while
    /// it holds the line's lock, none comes to a line that was visited here.
    pub(crate) fn join(&self) {
        for line in &self.lines {
            let mut line = line.lock();
            let both = [line.before.take(), line.now.take()];
            drop(line);
            for thread in both.into_iter().flatten() {
                // One that panicked has said so already.
                let _ = thread.join();
            }
        }
    }
}

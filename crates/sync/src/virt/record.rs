//! A record of what virtual threads do, for tests that compare it with what an organization
//! says it does: locks, protocol work, hand-overs, events, in order.

use core::fmt;
use perimeter_base::Time;
use std::sync::Arc;

use super::Virtual;
use super::state::{NONE, OUTSIDE, State};
use crate::class::{LockClass, Work};

/// What a virtual thread did.
///
/// Locks and events have a number each, unlike any other of the simulation. A
/// [`crate::SoloLock`] has none, and is recorded only in builds with debug assertions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Took a lock.
    Lock {
        /// Its class.
        class: LockClass,
        /// Its number.
        id: Option<u32>,
    },
    /// Released a lock.
    Unlock {
        /// Its class.
        class: LockClass,
        /// Its number.
        id: Option<u32>,
    },
    /// Found a lock taken and waits for it; [`Act::Lock`] follows.
    LockWait {
        /// Its class.
        class: LockClass,
        /// Its number.
        id: u32,
        /// Name of the thread that has it; `None`: code outside the virtual threads.
        owner: Option<Arc<str>>,
    },
    /// Was woken for a lock that it waits for, and found it taken again.
    LockAgain {
        /// Its class.
        class: LockClass,
        /// Its number.
        id: u32,
    },
    /// Declared work by [`crate::Platform::charge`]: the layer of that work ran here.
    Work {
        /// The class.
        work: Work,
        /// How many units.
        units: u64,
    },
    /// Set an event.
    Set {
        /// Its number.
        event: u32,
        /// Name of the thread that this woke; `None`: nobody waited.
        woke: Option<Arc<str>>,
    },
    /// Parked at an event.
    Wait {
        /// Its number.
        event: u32,
    },
    /// Went on after [`Act::Wait`].
    Woken {
        /// The event's number.
        event: u32,
        /// Whether it was set; else the deadline passed.
        set: bool,
    },
    /// Found an event set, and cleared it, without parking.
    Took {
        /// Its number.
        event: u32,
    },
}

impl Act {
    /// The class of the lock that was taken, if one was.
    pub fn locked(&self) -> Option<LockClass> {
        match *self {
            Act::Lock { class, .. } => Some(class),
            _ => None,
        }
    }

    /// The class of the lock that was released, if one was.
    pub fn unlocked(&self) -> Option<LockClass> {
        match *self {
            Act::Unlock { class, .. } => Some(class),
            _ => None,
        }
    }

    /// The class of the work that was declared, if any was.
    pub fn work(&self) -> Option<Work> {
        match *self {
            Act::Work { work, .. } => Some(work),
            _ => None,
        }
    }
}

/// A number if `on` (`{:#}`), for the eyes; numbers change with unrelated code.
struct Id(bool, Option<u32>);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Id(true, Some(n)) => write!(f, " #{n}"),
            _ => Ok(()),
        }
    }
}

/// `lock group`, `work tcp_fast 3`, `set, wakes server-0`. The alternate form adds the numbers
/// of locks and events.
impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |n| Id(f.alternate(), n);
        match self {
            Act::Lock { class, id: n } => write!(f, "lock {}{}", class.name(), id(*n)),
            Act::Unlock { class, id: n } => write!(f, "unlock {}{}", class.name(), id(*n)),
            Act::LockWait {
                class,
                id: n,
                owner,
            } => {
                let owner = owner.as_deref().unwrap_or("code outside");
                write!(f, "wait for {}{} of {owner}", class.name(), id(Some(*n)))
            }
            Act::LockAgain { class, id: n } => {
                write!(f, "wait again for {}{}", class.name(), id(Some(*n)))
            }
            Act::Work { work, units: 1 } => write!(f, "work {}", work.name()),
            Act::Work { work, units } => write!(f, "work {} {units}", work.name()),
            Act::Set { event, woke } => {
                write!(f, "set{}", id(Some(*event)))?;
                match woke {
                    Some(name) => write!(f, ", wakes {name}"),
                    None => Ok(()),
                }
            }
            Act::Wait { event } => write!(f, "park{}", id(Some(*event))),
            Act::Woken { event, set } => {
                let how = if *set { "woken" } else { "timed out" };
                write!(f, "{how}{}", id(Some(*event)))
            }
            Act::Took { event } => write!(f, "was set{}", id(Some(*event))),
        }
    }
}

/// One line of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When, in virtual time.
    pub at: Time,
    /// The thread's name.
    pub thread: Arc<str>,
    /// Its lane: tells threads of one name apart.
    pub lane: usize,
    /// The core that it is bound to.
    pub core: usize,
    /// What it did.
    pub act: Act,
}

/// `server-0@1 lock group`: thread, core, act. The alternate form adds time and numbers, which
/// change with the seed and with unrelated code.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            write!(f, "{:>12} ", self.at.nanos())?;
            write!(f, "{}@{} {:#}", self.thread, self.core, self.act)
        } else {
            write!(f, "{}@{} {}", self.thread, self.core, self.act)
        }
    }
}

impl State {
    /// Notes what the thread in `slot` does. Callers look first whether anybody listens.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&mut self, slot: u32, act: Act) {
        if slot >= OUTSIDE {
            return;
        }
        let at = Time(self.now());
        let t = &self.threads[slot as usize];
        let entry = Entry {
            at,
            thread: t.name.clone(),
            lane: slot as usize,
            core: t.core,
            act,
        };
        if let Some(list) = &mut self.record {
            list.push(entry);
        }
    }

    /// The name of the thread in `slot`; `None` if that is none.
    pub(super) fn name_of(&self, slot: u32) -> Option<Arc<str>> {
        (slot < OUTSIDE && slot != NONE).then(|| self.threads[slot as usize].name.clone())
    }
}

impl Virtual {
    /// Records from now on what virtual threads do, in the order in which it happens: also what
    /// the calling one does. What was recorded before and not fetched is dropped. Recording
    /// changes nothing about the run.
    pub fn record(&self) {
        self.shared.with(|st| st.record = Some(Vec::new()));
    }

    /// Ends recording; what was recorded. Empty if nobody had started it.
    pub fn recorded(&self) -> Vec<Entry> {
        self.shared.with(|st| st.record.take()).unwrap_or_default()
    }
}

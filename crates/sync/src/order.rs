//! The order of locks, checked: which classes a thread holds and where it took them.
//!
//! The rule is [`LockClass`]'s: only upwards. A thread that breaks it panics at the second
//! acquisition, whether or not another thread is there to make a deadlock of it; so any test
//! that walks both paths once finds the cycle.

use core::cell::RefCell;
use core::panic::Location;

use crate::class::LockClass;

/// The lock classes that one thread (or one coroutine) holds, with the place of acquisition.
#[derive(Debug, Default)]
pub struct Held(Vec<(LockClass, &'static Location<'static>)>);

/// An acquisition against the order.
#[derive(Copy, Clone, Debug)]
pub struct LockOrderError {
    /// The class that was asked for.
    pub wanted: LockClass,
    /// Where it was asked for.
    pub at: &'static Location<'static>,
    /// The class that is held and comes later in the order (or is the same class).
    pub held: LockClass,
    /// Where that one was taken.
    pub held_at: &'static Location<'static>,
}

impl core::fmt::Display for LockOrderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "lock order: `{}` (level {}) wanted at {} while `{}` (level {}) is held since {}",
            self.wanted.name(),
            self.wanted.level(),
            self.at,
            self.held.name(),
            self.held.level(),
            self.held_at,
        )
    }
}

impl std::error::Error for LockOrderError {}

impl Held {
    /// Nothing held.
    pub const fn new() -> Held {
        Held(Vec::new())
    }

    /// Whether a lock of `wanted` may be taken now.
    ///
    /// # Errors
    /// Both classes and both places, if not.
    pub fn check(
        &self,
        wanted: LockClass,
        at: &'static Location<'static>,
    ) -> Result<(), LockOrderError> {
        // The highest one is named. Not always the last: locks may be released in any order
        // (hand over hand), but as all were taken upwards the last of them is the highest.
        match self.0.last() {
            Some(&(held, held_at))
                if held > wanted || (held == wanted && !wanted.nests_with_itself()) =>
            {
                Err(LockOrderError {
                    wanted,
                    at,
                    held,
                    held_at,
                })
            }
            _ => Ok(()),
        }
    }

    /// Records an acquisition.
    pub fn push(&mut self, class: LockClass, at: &'static Location<'static>) {
        self.0.push((class, at));
    }

    /// Records a release, in any order.
    pub fn pop(&mut self, class: LockClass) {
        if let Some(i) = self.0.iter().rposition(|&(c, _)| c == class) {
            self.0.remove(i);
        }
    }

    /// What is held, in the order in which it was taken.
    pub fn iter(&self) -> impl Iterator<Item = (LockClass, &'static Location<'static>)> + '_ {
        self.0.iter().copied()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held::new()) };
}

/// Checks the calling operating-system thread's order without taking anything.
///
/// # Panics
/// If `class` may not be taken now.
pub(crate) fn check(class: LockClass, at: &'static Location<'static>) {
    // Destructors of other thread-locals may lock after HELD is gone: nothing to check with.
    let verdict = HELD.try_with(|h| h.borrow().check(class, at));
    if let Ok(Err(e)) = verdict {
        panic!("{e}");
    }
}

/// Records an acquisition by the calling operating-system thread.
pub(crate) fn taken(class: LockClass, at: &'static Location<'static>) {
    let _ = HELD.try_with(|h| h.borrow_mut().push(class, at));
}

/// Records a release by the calling operating-system thread.
pub(crate) fn released(class: LockClass) {
    let _ = HELD.try_with(|h| h.borrow_mut().pop(class));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_upwards() {
        let at = Location::caller();
        for held in LockClass::ALL {
            for wanted in LockClass::ALL {
                let mut h = Held::new();
                h.push(held, at);
                let ok = wanted.level() > held.level();
                assert_eq!(h.check(wanted, at).is_ok(), ok, "{held:?} then {wanted:?}");
                h.pop(held);
                assert!(h.check(wanted, at).is_ok());
            }
        }
    }

    #[test]
    fn hand_over_hand() {
        let at = Location::caller();
        let mut h = Held::new();
        h.push(LockClass::ConnHashtable, at);
        h.push(LockClass::Connection, at);
        h.pop(LockClass::ConnHashtable);
        assert!(h.check(LockClass::Group, at).is_err());
        assert!(h.check(LockClass::Sndbuf, at).is_ok());
        h.pop(LockClass::Connection);
        assert!(h.is_empty());
    }

    #[test]
    fn the_message_names_both_classes_and_places() {
        let mut h = Held::new();
        h.push(LockClass::Route, Location::caller());
        let text = h
            .check(LockClass::Group, Location::caller())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`group`") && text.contains("`route`"),
            "{text}"
        );
        assert_eq!(text.matches("order.rs:").count(), 2, "{text}");
    }
}

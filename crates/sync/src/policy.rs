//! How contenders wait for a lock, and how urgent threads are.

use core::fmt;
use core::str::FromStr;

/// How contenders wait for a lock of [`crate::Platform::lock`], and what a release does: a
/// setting of the platform, the same for all its locks.
///
/// ```
/// use perimeter_sync::LockPolicy;
///
/// // From the command line, say.
/// let policy: LockPolicy = "turnstile".parse()?;
/// assert_eq!(policy, LockPolicy::Turnstile);
/// assert_eq!(LockPolicy::ALL.map(LockPolicy::name), ["modern", "turnstile"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum LockPolicy {
    /// Today's: spin for a bounded time, then park; a release wakes one, which tries again, and
    /// one that has waited long gets the lock handed over. Priorities play no part.
    #[default]
    Modern,
    /// FreeBSD's adaptive mutexes of 2006: spin while the owner runs on another core, else sleep
    /// with the waiter's priority lent to the owner, and on to whom that one waits for; a
    /// release wakes all who sleep.
    Turnstile,
}

impl LockPolicy {
    /// All of them.
    pub const ALL: [LockPolicy; 2] = [LockPolicy::Modern, LockPolicy::Turnstile];

    /// Its name in settings and results.
    pub const fn name(self) -> &'static str {
        match self {
            LockPolicy::Modern => "modern",
            LockPolicy::Turnstile => "turnstile",
        }
    }
}

impl fmt::Display for LockPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockPolicy {
    type Err = String;

    fn from_str(s: &str) -> Result<LockPolicy, String> {
        let found = LockPolicy::ALL.into_iter().find(|p| p.name() == s);
        found.ok_or_else(|| format!("`{s}` is no lock policy: modern, turnstile"))
    }
}

/// How urgent a thread is. 0, the default, is ordinary and shares its core by time slices; 1 to
/// 99 come before all that are lower, as under `SCHED_FIFO`. Higher values count as 99.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(u8);

impl Priority {
    /// Shares its core.
    pub const ORDINARY: Priority = Priority(0);

    /// The priority `level`, at most 99.
    pub const fn new(level: u8) -> Priority {
        Priority(if level > 99 { 99 } else { level })
    }

    /// 0 to 99.
    pub const fn level(self) -> u8 {
        self.0
    }
}

/// Whether waiters lend their priority to the owners of locks.
///
/// ```
/// use perimeter_sync::{Lending, LockPolicy, Native};
///
/// match Native::default().with_policy(LockPolicy::Turnstile).lending() {
///     Lending::NotPermitted => println!("threads' priorities need a privilege"),
///     other => assert_eq!(other, Lending::Lent),
/// }
/// assert_eq!(Native::default().lending(), Lending::None);
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lending {
    /// The lock policy has none.
    None,
    /// It has, but this process may not raise threads' priorities: nothing is lent.
    NotPermitted,
    /// They do.
    Lent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for p in LockPolicy::ALL {
            assert_eq!(p.to_string().parse(), Ok(p));
        }
        assert!("adaptive".parse::<LockPolicy>().is_err());
        assert_eq!(Priority::new(200).level(), 99);
    }
}

//! The one type parameter of this crate.

use perimeter_sync::{LockClass, Locks, Platform};

/// A platform together with the kind of lock that the organization puts around what all its
/// threads share: real ones, or none where one thread does everything.
pub trait Kind: Sized + Send + Sync + 'static {
    /// The platform.
    type P: Platform;
    /// The locks around shared services.
    type L: Locks<Self::P>;
}

/// A lock of the kind's choosing.
pub type Lk<K, T> = <<K as Kind>::L as Locks<<K as Kind>::P>>::Of<T>;

/// What stands for cache lines on the kind's platform.
pub type Tag<K> = <<K as Kind>::P as Platform>::Tag;

/// A new lock of the kind's choosing.
pub fn lock<K: Kind, T: Send + 'static>(p: &K::P, class: LockClass, value: T) -> Lk<K, T> {
    <K::L as Locks<K::P>>::new(p, class, value)
}

/// One thread of the machine, no locks: for tests of parts.
#[cfg(test)]
pub(crate) struct OneThread;

#[cfg(test)]
impl Kind for OneThread {
    type P = perimeter_sync::Native;
    type L = perimeter_sync::Solo;
}

//! What every piece of work is given.

use crate::count::Count;
use crate::kind::Kind;
use crate::own::Own;
use crate::shared::SharedState;
use core::ops::{Deref, DerefMut};
use perimeter_base::Time;

/// What every piece of work in the stack is given: what all threads share, and what this thread
/// carries. Fields of [`Own`] are reached through it.
pub struct Ctx<'a, K: Kind> {
    /// What all threads share.
    pub sh: &'a SharedState<K>,
    /// What this thread carries.
    pub own: &'a mut Own<K>,
}

impl<K: Kind> Deref for Ctx<'_, K> {
    type Target = Own<K>;

    #[inline(always)]
    fn deref(&self) -> &Own<K> {
        self.own
    }
}

impl<K: Kind> DerefMut for Ctx<'_, K> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Own<K> {
        self.own
    }
}

impl<'a, K: Kind> Ctx<'a, K> {
    /// The calling thread's way through the stack `sh`, with what it carries.
    #[inline]
    pub fn new(sh: &'a SharedState<K>, own: &'a mut Own<K>) -> Ctx<'a, K> {
        Ctx { sh, own }
    }

    /// The same, for as long as this one is lent.
    #[inline]
    pub fn again(&mut self) -> Ctx<'_, K> {
        Ctx::new(self.sh, self.own)
    }

    /// Both parts: for loops that stay here, whose compiler then keeps both in registers.
    #[inline(always)]
    pub fn split(&mut self) -> (&'a SharedState<K>, &mut Own<K>) {
        (self.sh, self.own)
    }

    /// Counts `n` of what `what` says.
    #[inline]
    pub fn count(&self, what: Count, n: u64) {
        self.sh.count(self.own.lane, what, n);
    }

    /// Counts `n` more in counter `which` of the organization's own.
    #[inline]
    pub fn count_own(&self, which: usize, n: u64) {
        self.sh.count_own(self.own.lane, which, n);
    }

    /// The time of this burst or call: the clock is read once, when first asked for.
    #[inline]
    pub fn now(&mut self) -> Time {
        self.own.now(&self.sh.p)
    }

    /// As [`now`](Ctx::now), and not before `at`, which another thread has read already.
    #[inline]
    pub fn now_from(&mut self, at: Time) -> Time {
        let now = self.now().max(at);
        self.own.set_now(now);
        now
    }
}

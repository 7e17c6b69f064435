//! The answer to a message, and who waits for it.

use perimeter_sync::{Event, Lock, LockClass, Platform};
use std::sync::Arc;

enum Slot<R> {
    Waiting,
    Given(R),
    /// Whoever was to answer has gone.
    Lost,
}

struct Shared<P: Platform, R: Send + 'static> {
    slot: P::Lock<Slot<R>>,
    event: P::Event,
}

/// The end that waits.
pub(crate) struct Reply<P: Platform, R: Send + 'static>(Arc<Shared<P, R>>);

/// The end that answers: once, or never if it is dropped, which is told as well.
pub(crate) struct Answer<P: Platform, R: Send + 'static>(Option<Arc<Shared<P, R>>>);

impl<P: Platform, R: Send + 'static> Reply<P, R> {
    pub(crate) fn new(p: &P) -> Reply<P, R> {
        Reply(Arc::new(Shared {
            slot: p.lock(LockClass::Leaf, Slot::Waiting),
            event: p.event(),
        }))
    }

    /// The other end. To be made once.
    pub(crate) fn answer(&self) -> Answer<P, R> {
        Answer(Some(self.0.clone()))
    }

    /// Where to wait.
    pub(crate) fn event(&self) -> &P::Event {
        &self.0.event
    }

    /// The answer if it is there; `Some(None)` if there will be none.
    pub(crate) fn take(&self) -> Option<Option<R>> {
        match core::mem::replace(&mut *self.0.slot.lock(), Slot::Waiting) {
            Slot::Waiting => None,
            Slot::Given(r) => Some(Some(r)),
            Slot::Lost => Some(None),
        }
    }
}

impl<P: Platform, R: Send + 'static> Answer<P, R> {
    pub(crate) fn give(mut self, r: R) {
        if let Some(shared) = self.0.take() {
            *shared.slot.lock() = Slot::Given(r);
            shared.event.set();
        }
    }
}

impl<P: Platform, R: Send + 'static> Drop for Answer<P, R> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            *shared.slot.lock() = Slot::Lost;
            shared.event.set();
        }
    }
}

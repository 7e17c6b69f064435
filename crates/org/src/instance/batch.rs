//! Doorbells that wait for more of a batch: [`perimeter_stack::kept`].

use super::Instance;
use crate::Org;
use perimeter_stack::{Count, Ctx};

impl<O: Org> Instance<O> {
    /// Whether the doorbells of the call that ends here can wait. If not, they are joined by those that
    /// have waited; so they are where somebody waits for room in a ring (`full`).
    #[inline]
    pub(super) fn keep(&self, cx: &mut Ctx<O::K>, full: bool) -> bool {
        let own = &mut *cx.own;
        let waits = own.kept.keep(&mut own.deferred.doorbells, full);
        if waits {
            cx.count(Count::DoorbellsKept, 1);
        }
        waits
    }

    /// Rings what has waited, as the calling thread serves devices now, and from now on at once. How many
    /// batches it sends, which is to be put back.
    #[inline]
    pub(super) fn leave_batches(&self, cx: &mut Ctx<O::K>) -> u32 {
        let batches = core::mem::take(&mut cx.kept.batches);
        if !cx.kept.is_empty() {
            for q in cx.kept.take() {
                cx.deferred.ring(q);
            }
            self.finish(cx);
        }
        batches
    }

    /// Rings what has waited, before the calling thread waits itself.
    pub(crate) fn ring_kept(&self) {
        self.with(|i, cx| cx.kept.batches = i.leave_batches(cx));
    }

    /// The calling thread begins to send a batch, or ends one.
    pub(crate) fn batch(&self, begins: bool) {
        self.with(|i, cx| {
            let batches = i.leave_batches(cx);
            cx.kept.batches = match begins {
                true => batches + 1,
                false => batches.saturating_sub(1),
            };
        });
    }
}

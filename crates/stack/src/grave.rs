//! What outlives a connection: pages that a device may still be reading.

use crate::commons::Commons;
use crate::conn::{RcvSide, SndSide};
use crate::kind::{Kind, Own};
use perimeter_base::Bytes;
use perimeter_sync::Lock;

/// Pages of connections that have gone, each with the transmit queue and the ticket whose
/// completion frees it.
#[derive(Default)]
pub struct Graveyard {
    pages: Vec<(u16, u64, Bytes)>,
}

impl<K: Kind> Commons<K> {
    /// Gives back what a connection held, which sent by `txq` up to `ticket`; pages that the
    /// device may still be reading are kept until [`Commons::sweep`] finds that it is done.
    pub fn bury(
        &self,
        own: &mut Own<K>,
        (txq, ticket): (u16, u64),
        snd: &mut SndSide<K>,
        rcv: &RcvSide<K>,
    ) {
        own.charge(snd.charged() + rcv.charged(), 0);
        let pinned = !snd.buf.is_empty() || !snd.held.is_empty();
        if !pinned || self.tx[usize::from(txq)].completed() >= ticket {
            return;
        }
        let pages = &mut self.graveyard.lock().pages;
        snd.buf.clear(&mut |page| pages.push((txq, ticket, page)));
        for (ticket, _, page) in snd.held.drain(..) {
            pages.push((txq, ticket, page));
        }
    }

    /// Lets go of pages that the devices are done with.
    pub fn sweep(&self) {
        let pages = &mut self.graveyard.lock().pages;
        pages.retain(|(q, t, _)| self.tx[usize::from(*q)].completed() < *t);
    }
}

//! What outlives a connection: pages that a device may still be reading.

use crate::commons::Commons;
use crate::conn::{RcvSide, SndSide};
use crate::kind::{Ctx, Kind};
use perimeter_base::Bytes;

/// Pages of connections that have gone, each with the transmit queue and the ticket whose
/// completion frees it.
#[derive(Default)]
pub struct Graveyard {
    pages: Vec<(u16, u64, Bytes)>,
}

impl Graveyard {
    /// Gives back what a connection held, which sent by `txq` up to `ticket`.
    pub fn bury<K: Kind>(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        (txq, ticket): (u16, u64),
        snd: &mut SndSide<K>,
        rcv: &RcvSide<K>,
    ) {
        sh.charge(cx.lane, snd.memory() + rcv.buf.memory(), 0);
        if sh.tx[usize::from(txq)].completed() < ticket {
            let pages = &mut self.pages;
            snd.buf.clear(&mut |page| pages.push((txq, ticket, page)));
            for (ticket, _, page) in snd.held.drain(..) {
                pages.push((txq, ticket, page));
            }
        }
        self.sweep(sh);
    }

    /// Lets go of pages that the devices are done with.
    pub fn sweep<K: Kind>(&mut self, sh: &Commons<K>) {
        if !self.pages.is_empty() {
            self.pages
                .retain(|(q, t, _)| sh.tx[usize::from(*q)].completed() < *t);
        }
    }
}

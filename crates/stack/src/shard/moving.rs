//! Connections that move from shard to shard. Their names stay what they were, and so do the parts
//! that live outside; who calls for one must know which shard it is in.

use super::Shard;
use crate::conn::Cell;
use crate::ctx::Ctx;
use crate::id::SockId;
use crate::kind::Kind;
use perimeter_base::Time;

impl<K: Kind, C: Cell<K = K>> Shard<K, C> {
    /// Slot and generation here of the connection of that name.
    #[inline]
    pub(super) fn place(&self, id: SockId) -> (u32, u32) {
        if id.shard() == self.index {
            return (id.slot(), id.generation());
        }
        self.place_of_guest(id)
    }

    #[cold]
    fn place_of_guest(&self, id: SockId) -> (u32, u32) {
        match self.guests.get(&id) {
            Some(slot) => (*slot, self.conns.generation(*slot)),
            // No slot has that number, and no value that generation.
            None => (u32::MAX, 0),
        }
    }

    /// Takes a connection out that goes on in another shard. `None`: it is not here, or over, or no
    /// application holds it: then it ends where it is.
    pub fn depart(&mut self, id: SockId) -> Option<C> {
        let (slot, generation) = self.place(id);
        let conn = self.conns.get_mut(slot, generation)?;
        let meta = &mut conn.tcb().meta;
        if meta.closed || meta.orphan {
            return None;
        }
        // Its entry on the wheel here is nobody's from now on.
        meta.armed = Time::NEVER;
        let key = meta.key;
        self.strike(&key, slot);
        if id.shard() == self.index {
            return self.conns.lend(slot, generation);
        }
        self.guests.remove(&id);
        self.conns.remove(slot, generation)
    }

    /// A connection comes that has departed elsewhere.
    pub fn arrive(&mut self, cx: &mut Ctx<K>, conn: C) {
        let meta = &conn.peek().meta;
        let (id, key) = (meta.id, meta.key);
        let slot = if id.shard() == self.index {
            self.conns.put_back(id.slot(), conn);
            id.slot()
        } else {
            let slot = self.conns.insert(conn);
            self.guests.insert(id, slot);
            slot
        };
        self.enter(&key, slot);
        self.update(slot, cx);
    }
}

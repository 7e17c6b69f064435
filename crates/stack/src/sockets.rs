//! What a perimeter protects: sockets, whatever their protocol.

use crate::conn::ConnInfo;
use crate::ctx::Ctx;
use crate::hold::Syn;
use crate::kind::Kind;
use crate::listener::Listener;
use crate::ops::Icmp;
use core::any::{Any, TypeId};
use perimeter_base::Time;
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// The sockets of one perimeter, for who is inside: TCP's, and those of other protocols.
pub trait Sockets<K: Kind> {
    /// Adds a listener's wildcard entry.
    fn listen(&mut self, l: Arc<Listener<K>>);

    /// Removes a listener's wildcard entry, and the handshakes under way for it.
    fn unlisten(&mut self, cx: &mut Ctx<K>, l: &Listener<K>);

    /// A SYN that this listener held is allowed: it is answered.
    fn admit(&mut self, cx: &mut Ctx<K>, l: &Listener<K>, syn: &Syn);

    /// An ICMP error for the TCP flow `key`.
    fn icmp(&mut self, cx: &mut Ctx<K>, key: &FlowKey, what: Icmp);

    /// Appends what there is to say about every connection.
    fn inspect(&mut self, now: Time, out: &mut Vec<ConnInfo>);

    /// Resets every connection and drops the sockets of other protocols: the stack is being
    /// dropped.
    fn abort_all(&mut self, cx: &mut Ctx<K>);

    /// The sockets of other protocols.
    fn others(&mut self) -> &mut Others;
}

/// Sockets of protocols other than TCP. A protocol keeps a table of its own in each perimeter and
/// finds it by its type; what is in it only who is inside can reach.
#[derive(Debug, Default)]
pub struct Others(Vec<(TypeId, Box<dyn Any + Send>)>);

impl Others {
    /// The table of type `T`; an empty one when it is asked for first.
    pub fn table<T: Any + Send + Default>(&mut self) -> &mut T {
        // The type stands beside the table, so that finding it takes no virtual call.
        let of = TypeId::of::<T>();
        let at = self.0.iter().position(|(t, _)| *t == of);
        let at = at.unwrap_or_else(|| self.add::<T>());
        let (_, table) = &mut self.0[at];
        table.downcast_mut().expect("it was found by its type")
    }

    #[cold]
    fn add<T: Any + Send + Default>(&mut self) -> usize {
        self.0.push((TypeId::of::<T>(), Box::new(T::default())));
        self.0.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_a_table_of_its_own() {
        let mut others = Others::default();
        others.table::<Vec<u8>>().push(7);
        others.table::<Vec<u16>>().push(9);
        others.table::<Vec<u8>>().push(8);
        assert_eq!(*others.table::<Vec<u8>>(), [7, 8]);
        assert_eq!(*others.table::<Vec<u16>>(), [9]);
    }
}

//! Datagrams on their way to a perimeter, as organizations see them: of whatever protocol.

use perimeter_stack::{Ctx, Kind, Sockets};
use perimeter_wire::FlowKey;

/// Datagrams of a burst for sockets of one perimeter, on their way there.
pub trait Arrivals<K: Kind>: Send + 'static {
    /// Checks each and drops what is no good, unless that was done before. An organization in which IP
    /// has a turn of its own calls it then; it needs no perimeter.
    fn check(&mut self, cx: &mut Ctx<K>);

    /// Shows each that was checked: its ends from this host's point of view, the interface that it came
    /// by, and its data. Where `look` says `false` it goes no further.
    fn look(&mut self, cx: &mut Ctx<K>, look: &mut dyn FnMut(&FlowKey, u16, &mut [u8]) -> bool);

    /// Gives them to their sockets, inside the perimeter; checked first, if nobody has done so.
    fn deliver(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>);
}

//! Datagrams that the application sends, as organizations see them: of whatever protocol.

use perimeter_stack::{Ctx, Kind, Sockets};
use perimeter_wire::FlowKey;

/// What one call sends by sockets of one perimeter, between the turns of the socket layer and of IP.
pub trait Departures<K: Kind>: Send + 'static {
    /// The socket layer's turn, inside the perimeter: ways are found. `false`: nothing goes further.
    fn call(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>) -> bool;

    /// Shows each datagram: its ends from this host's point of view, the interface that it leaves by,
    /// and its data. Where `look` says `false` it goes no further.
    fn look(&mut self, cx: &mut Ctx<K>, look: &mut dyn FnMut(&FlowKey, u16, &mut [u8]) -> bool);

    /// IP's turn, which needs no perimeter: descriptors are written. Whether the socket layer has
    /// another turn ([`Departures::rest`]).
    fn place(&mut self, cx: &mut Ctx<K>) -> bool;

    /// The socket layer's other turn, inside the perimeter: it sees to what did not leave.
    fn rest(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>);
}

//! Lists of events of the packet event framework (`pef:…`): how programs put their own events on
//! the lists that a connection's packets run through, and watch a connection's segments.
//!
//! Under other organizations all of this is an error of kind `Unsupported`.

use crate::error::io;
use crate::poll::Source;
use crate::{Stack, TcpStream};
use std::io::Result;
use std::sync::Arc;

pub use perimeter_org::Binding;
pub use perimeter_org::pef::event::{
    Direction, End, EventId, EventSpec, Layer, Packet, PacketEvent, Peek, Traced, Under, Verdict,
};

impl Stack {
    /// Adds an event to the lists that connections start with, at the back of its major layer:
    /// at start-up, before there are any sockets. Or, at any time, to the list of packets that
    /// belong to no connection.
    ///
    /// # Errors
    /// There are, or were, sockets; or the organization has no lists.
    pub fn register_event(&self, spec: EventSpec) -> Result<EventId> {
        self.engine().register_event(spec).map_err(io)
    }

    /// Sends a whole frame by interface number `iface`, as it is: the other half of a protocol
    /// that is added by events for packets without a connection ([`Direction::Unbound`]).
    ///
    /// # Errors
    /// The stack belongs to another thread.
    pub fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<()> {
        self.engine().send_frame(iface, frame).map_err(io)
    }
}

impl TcpStream {
    /// Adds an event to its major layer in one of the connection's lists, at one end. Packets
    /// under way finish on the list that they started with.
    ///
    /// # Errors
    /// The connection has gone, its lists are switched off, or the organization has none.
    pub fn insert_event(&self, end: End, spec: EventSpec) -> Result<EventId> {
        let (engine, id) = self.source();
        engine.insert_event(id, end, spec).map_err(io)
    }

    /// Takes an event off: no packet enters it any more. What a thread is doing in it at this
    /// moment it finishes.
    ///
    /// # Errors
    /// The connection has gone, or has no such event; or the event's callback has panicked and it
    /// is off already (kind `Other`).
    pub fn disable_event(&self, event: EventId) -> Result<()> {
        let (engine, id) = self.source();
        engine.disable_event(id, event).map_err(io)
    }

    /// Tells `sink` of each segment that this connection receives or sends from now on, in its
    /// order, until that answers `false`. It is called inside TCP's perimeter, so it should hand
    /// on and not wait. Returns the names of the two tracing events.
    ///
    /// # Errors
    /// As [`TcpStream::insert_event`].
    pub fn trace(
        &self,
        sink: impl Fn(&Traced) -> bool + Send + Sync + 'static,
    ) -> Result<[EventId; 2]> {
        let (engine, id) = self.source();
        engine.trace(id, Arc::new(sink)).map_err(io)
    }

    /// SO_PEFON: whether the connection's packets run through its lists of events. Off, they
    /// take the path of `squeue`; on again, the lists are as they were.
    ///
    /// # Errors
    /// The connection has gone, or the organization has no lists.
    pub fn set_events_on(&self, on: bool) -> Result<()> {
        let (engine, id) = self.source();
        engine.set_events_on(id, on).map_err(io)
    }

    /// SO_SETSQP: the squeue, modulo how many there are, that a layer of this connection runs
    /// under from now on. TCP's can't be changed.
    ///
    /// # Errors
    /// The connection has gone, the layer is TCP, or the organization has no squeues to choose.
    pub fn set_squeue(&self, layer: Layer, squeue: u16) -> Result<()> {
        let (engine, id) = self.source();
        engine.set_squeue(id, layer, squeue).map_err(io)
    }

    /// Perimeters, cores and lists of events of the connection's layers, as far as the
    /// organization has any.
    pub fn binding(&self) -> Binding {
        let (engine, id) = self.source();
        engine.binding(id)
    }
}

//! Altering the lists of live connections.

use super::event::{AlterError, Direction, End, EventId, EventSpec, Events, Layer, Packet};
use super::flows::Found;
use super::framework::Pef;
use super::link::Link;
use super::list::ListRef;
use core::sync::atomic::Ordering;
use perimeter_stack::SockId;
use perimeter_sync::{Lock, Platform};
use perimeter_wire::FlowKey;
use std::sync::Arc;

impl<P: Platform> Pef<P> {
    fn link(&self, id: SockId) -> Result<&Link<P>, AlterError> {
        if id.is_listener() {
            return Err(AlterError::Gone);
        }
        self.tables(id).links.get(id.slot()).ok_or(AlterError::Gone)
    }

    /// The classifier is told that a connection's lists were altered, or its layers moved.
    fn altered(&self, key: &FlowKey, id: SockId) {
        let note = |found: &mut Found| found.altered |= found.id == id;
        self.flows.with(key, note);
    }

    /// As long as that event is on a list somewhere, received packets stay as they come.
    fn noted(&self, mut spec: EventSpec) -> EventSpec {
        if spec.direction == Direction::Receive {
            let (event, looking) = (spec.event, self.looking.clone());
            spec.event = Arc::new(move |packet: &mut Packet<'_>| {
                let _ = &looking;
                event.on_packet(packet)
            });
        }
        spec
    }

    /// An event has taken itself off: the next version is without it.
    pub(super) fn sweep(&self, id: SockId) {
        if let Ok(link) = self.link(id)
            && let Ok(key) = link.sweep((id, self.first_version(id)))
        {
            self.altered(&key, id);
        }
    }
}

impl<P: Platform> Events for Pef<P> {
    fn register(&self, spec: EventSpec) -> Result<EventId, AlterError> {
        let direction = spec.direction;
        if direction.is_of_connection() && self.opened.load(Ordering::Acquire) {
            return Err(AlterError::Late);
        }
        let spec = self.noted(spec);
        let mut d = self.manner.defaults.lock();
        let list = match direction {
            Direction::Receive => &mut d.lists[0],
            Direction::Transmit => &mut d.lists[1],
            Direction::Datagram | Direction::SentDatagram => {
                let which = usize::from(direction == Direction::SentDatagram);
                self.watched[which].store(true, Ordering::Release);
                &mut d.datagrams[which]
            }
            Direction::Unbound => {
                self.wanted.store(true, Ordering::Release);
                &mut d.unbound
            }
        };
        let (next, id) = list.with(direction, End::Back, spec);
        *list = ListRef::new(next);
        Ok(id)
    }

    fn insert(&self, id: SockId, end: End, spec: EventSpec) -> Result<EventId, AlterError> {
        if !spec.direction.is_of_connection() {
            return Err(AlterError::NoEvent);
        }
        let spec = self.noted(spec);
        let (event, key) = self
            .link(id)?
            .insert((id, self.first_version(id)), end, spec)?;
        self.altered(&key, id);
        Ok(event)
    }

    fn disable(&self, id: SockId, event: EventId) -> Result<(), AlterError> {
        let key = self
            .link(id)?
            .disable((id, self.first_version(id)), event)?;
        self.altered(&key, id);
        Ok(())
    }

    fn switch(&self, id: SockId, on: bool) -> Result<(), AlterError> {
        if id.is_listener() {
            // What it accepts is told so.
            return Ok(());
        }
        let key = self.link(id)?.switch((id, self.first_version(id)), on)?;
        self.altered(&key, id);
        Ok(())
    }

    fn designate(&self, id: SockId, layer: Layer, squeue: u16) -> Result<(), AlterError> {
        if id.is_listener() {
            self.listeners_tell.store(true, Ordering::Release);
            return Ok(());
        }
        let link = self.link(id)?;
        let squeue = squeue % self.n();
        if layer == Layer::Tcp {
            // Before anybody can go by it: a packet that comes to where TCP is to be asks whether it is
            // there yet.
            self.moved.store(true, Ordering::Release);
        }
        let key = link.designate((id, self.first_version(id)), layer, squeue)?;
        self.altered(&key, id);
        if layer == Layer::Tcp {
            self.ask_to_move(id);
        }
        Ok(())
    }
}

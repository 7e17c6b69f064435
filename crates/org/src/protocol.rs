//! Protocols beside TCP.
//!
//! A protocol keeps its sockets inside perimeters ([`Others`](perimeter_stack::Others)): it says
//! which perimeter a datagram belongs to, and [`Org::inside`] and [`Org::leave`] bring it there as
//! the organization would a call. No organization knows of it.

use crate::Org;
use perimeter_stack::Ctx;
use perimeter_stack::aside::Trouble;
use perimeter_stack::datagram::Datagram;
use perimeter_wire::FlowKey;

/// A protocol over IP.
pub trait Protocol<O: Org>: Send + Sync {
    /// Its number in IP's header.
    fn number(&self) -> u8;

    /// Its datagrams of a burst, in order of arrival, to be taken out of the list. The inbound thread
    /// is in no perimeter.
    fn input(&self, org: &O, cx: &mut Ctx<O::K>, datagrams: &mut Vec<Datagram>);

    /// An ICMP error about a datagram that had these ends. The inbound thread is in no perimeter.
    fn error(&self, org: &O, cx: &mut Ctx<O::K>, ends: &FlowKey, what: Trouble);
}

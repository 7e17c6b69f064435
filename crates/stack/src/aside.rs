//! What a burst of frames holds beside segments of TCP.

use crate::datagram::Datagram;
use crate::id::SockId;
use crate::ops::Icmp;
pub use crate::received::Trouble;
use perimeter_base::PktBuf;
use perimeter_wire::FlowKey;

/// What a burst held beside TCP segments, for the organization to act on.
#[derive(Default)]
pub struct Aside {
    /// ICMP errors and the flows that they are about.
    pub icmp: Vec<(FlowKey, Icmp)>,
    /// Connections whose neighbour was resolved.
    pub resolved: Vec<SockId>,
    /// Connections that waited for an address which turned out to be somebody else's.
    pub failed: Vec<SockId>,
    /// Whole frames that belong to no connection and that nothing here answers, if they are
    /// wanted: datagrams of other protocols or for other hosts.
    pub unbound: Vec<PktBuf>,
    /// Datagrams of protocols that are wanted.
    pub datagrams: Vec<Datagram>,
    /// Errors about such datagrams of ours: the protocol, the ends, and what is wrong.
    pub errors: Vec<(u8, FlowKey, Trouble)>,
}

/// What a stack takes beside TCP.
#[derive(Copy, Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Packets that belong to no connection: see [`Aside::unbound`].
    pub unbound: bool,
    /// Protocols, by their numbers in IP's header.
    pub protocols: &'a [u8],
    /// Frames may be large segments.
    pub large: bool,
    /// How many segments of TCP that follow each other may become one: see [`crate::merge`]. 0:
    /// nothing is merged, acknowledgments neither.
    pub merged: u16,
    /// IP's part of plain segments of TCP is for [`crate::late::input`], which the organization
    /// calls where its IP has a turn of its own.
    pub late: bool,
}

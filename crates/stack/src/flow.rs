//! The flow of a connection that is to be made.

use crate::kind::Kind;
use crate::listener::Listener;
use crate::segment::Seg;
use perimeter_wire::FlowKey;

/// A complete flow to be opened.
#[derive(Copy, Clone, Debug)]
pub struct Flow {
    /// Its ends.
    pub key: FlowKey,
    /// Its hash.
    pub hash: u32,
    /// The interface that it leaves by.
    pub iface: u16,
    /// The interface that it is bound to (SO_BINDTODEVICE), if it is.
    pub device: Option<u16>,
}

impl Flow {
    /// The flow of a segment that arrived for that listener, to whose interface it is bound.
    pub fn of<K: Kind>(seg: &Seg, l: &Listener<K>) -> Flow {
        Flow {
            key: seg.frame.key,
            hash: seg.hash,
            iface: seg.iface,
            device: l.device,
        }
    }
}

//! The classifier, at the bottom of IP (section 3.2.3): from a flow to its connection and to
//! what its packets run through. Asked once for each received packet, outside any perimeter.

use super::bind::Bind;
use perimeter_stack::SockId;

/// The connection table.
pub(super) type Flows<P> = crate::flows::Flows<P, Found>;

/// What the classifier knows of a flow.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Found {
    /// The connection; its shard is the squeue of its TCP layer.
    pub(crate) id: SockId,
    /// Where its layers run.
    pub(crate) bind: Bind,
    /// Its lists were altered, or its layers moved: ask there.
    pub(crate) altered: bool,
    /// The connection is yet to be made, under the squeue of [`Found::id`], which names no
    /// connection.
    pub(crate) soon: bool,
}

impl Found {
    /// Of a flow whose connection is about to be made under squeue `q`.
    pub(crate) fn soon(q: u16) -> Found {
        Found {
            id: SockId::conn(q, 0, 0),
            bind: Bind::whole(q, 1),
            altered: false,
            soon: true,
        }
    }
}

//! Initial sequence numbers (RFC 6528), timestamp offsets (RFC 7323) and ephemeral ports
//! (RFC 6056).

use perimeter_base::Time;
use perimeter_wire::{FlowKey, Seq};

/// Derives what must be unpredictable from a secret. Cheap to clone; share one secret per
/// perimeter.
#[derive(Clone)]
pub struct IsnGen {
    secret: (u64, u64),
}

impl IsnGen {
    /// A generator keyed by 128 secret random bits.
    pub fn new(k0: u64, k1: u64) -> IsnGen {
        IsnGen { secret: (k0, k1) }
    }

    /// The initial sequence number for a connection of `key` opened at `now`: a clock that
    /// ticks every 4 µs plus a keyed hash of the tuple (RFC 6528, section 3).
    pub fn iss(&self, key: &FlowKey, now: Time) -> Seq {
        let _ = (key, now, self.secret);
        Seq(0)
    }

    /// The offset added to the timestamp clock of connections of `key` (RFC 7323,
    /// section 7.1): the same for one tuple, so that its timestamps rise across connections.
    pub fn ts_offset(&self, key: &FlowKey) -> u32 {
        let _ = key;
        0
    }

    /// The offset into the ephemeral port range at which the search for a free port to the
    /// remote end of `key` starts (RFC 6056, algorithm 4; the key's local port is ignored).
    pub fn port_offset(&self, key: &FlowKey) -> u32 {
        let _ = key;
        0
    }
}

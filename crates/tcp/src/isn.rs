//! Initial sequence numbers (RFC 6528), timestamp offsets (RFC 7323) and ephemeral ports
//! (RFC 6056): what a stranger must not be able to guess.

use core::hash::Hasher;
use core::net::IpAddr;

use perimeter_base::Time;
use perimeter_wire::{FlowKey, Seq};
use siphasher::sip::SipHasher24;

/// What a hash is for; one secret serves several without relating their outputs.
#[derive(Copy, Clone)]
#[repr(u8)]
enum Purpose {
    Isn = 1,
    Timestamp = 2,
    PortOffset = 3,
    PortSlot = 4,
    PortStep = 5,
    Bucket = 6,
}

/// Derives unguessable values from a secret. One per perimeter; cheap to clone.
#[derive(Clone)]
pub struct IsnGen {
    secret: (u64, u64),
}

impl core::fmt::Debug for IsnGen {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IsnGen(secret)")
    }
}

impl IsnGen {
    /// A generator keyed by 128 secret random bits.
    pub fn new(k0: u64, k1: u64) -> IsnGen {
        IsnGen { secret: (k0, k1) }
    }

    /// The initial sequence number for a connection of `key` opened at `now`: a clock that
    /// ticks every 4 µs plus a keyed hash of the tuple (RFC 6528, section 3). For one tuple it
    /// rises with time; across tuples nothing relates.
    pub fn iss(&self, key: &FlowKey, now: Time) -> Seq {
        let clock = (now.micros() / 4) as u32;
        Seq((self.hash(Purpose::Isn, key, 0) as u32).wrapping_add(clock))
    }

    /// The offset added to the timestamp clock of connections of `key` (RFC 7323,
    /// section 7.1): the same for one tuple, so that its timestamps rise from one connection
    /// to the next, and silent about uptime.
    pub fn ts_offset(&self, key: &FlowKey) -> u32 {
        self.hash(Purpose::Timestamp, key, 0) as u32
    }

    /// The offset into the ephemeral port range at which the search for a free port to the
    /// remote end of `key` starts (RFC 6056, section 3.3.3). The key's local port is ignored.
    pub fn port_offset(&self, key: &FlowKey) -> u32 {
        self.hash(Purpose::PortOffset, &portless(key), 0) as u32
    }

    /// The bucket hash of a table that strangers fill.
    pub(crate) fn bucket(&self, key: &FlowKey) -> u64 {
        self.hash(Purpose::Bucket, key, 0)
    }

    fn hash(&self, purpose: Purpose, key: &FlowKey, extra: u64) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        // Fixed layout per family, and the family in the tag: no two keys share an input.
        let mut input = [0u8; 48];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            input[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let v6 = u8::from(key.local.is_ipv6()) | u8::from(key.remote.is_ipv6()) << 1;
        put(&[purpose as u8, v6]);
        for addr in [key.local, key.remote] {
            match addr {
                IpAddr::V4(a) => put(&a.octets()),
                IpAddr::V6(a) => put(&a.octets()),
            }
        }
        put(&key.local_port.to_be_bytes());
        put(&key.remote_port.to_be_bytes());
        put(&extra.to_be_bytes());
        h.write(&input[..at]);
        h.finish()
    }
}

fn portless(key: &FlowKey) -> FlowKey {
    FlowKey {
        local_port: 0,
        ..*key
    }
}

/// The value of a connection's timestamp clock (TSval): milliseconds plus the connection's
/// offset. RFC 7323, section 5.4, wants a tick between 1 ms and 1 s; it wraps after 49 days.
#[inline]
pub fn ts_clock(now: Time, ts_offset: u32) -> u32 {
    (now.millis() as u32).wrapping_add(ts_offset)
}

/// Slots of step counters; destinations that share one see each other's port use only as
/// random steps.
const SLOTS: usize = 1024;
/// Largest step between ports tried for one destination (RFC 6056, section 3.3.5).
const MAX_STEP: u64 = 256;

/// Chooses ephemeral ports: RFC 6056's double-hash selection (section 3.3.4) with random
/// increments (section 3.3.5), so that neither the ports to other destinations nor the next
/// one to the same destination can be predicted, and one tuple's port is not reused soon.
pub struct PortPicker {
    r#gen: IsnGen,
    first: u16,
    count: u32,
    table: Box<[u32]>,
    drawn: u64,
}

impl PortPicker {
    /// Picks from `first..=last` (RFC 6056 suggests 1024 to 65535, Linux uses 32768 to 60999).
    /// Swapped bounds are put in order; port 0 is never picked.
    pub fn new(r#gen: IsnGen, first: u16, last: u16) -> PortPicker {
        let (first, last) = (first.min(last).max(1), first.max(last).max(1));
        PortPicker {
            r#gen,
            first,
            count: u32::from(last - first) + 1,
            table: vec![0; SLOTS].into_boxed_slice(),
            drawn: 0,
        }
    }

    /// A local port for a connection to the remote end of `key` (whose local port is ignored)
    /// that `free` accepts; `None` if none of the range is. Asks at most once per port.
    pub fn pick(&mut self, key: &FlowKey, free: &mut dyn FnMut(u16) -> bool) -> Option<u16> {
        let key = portless(key);
        let offset = self.r#gen.port_offset(&key);
        let slot = self.r#gen.hash(Purpose::PortSlot, &key, 0) as usize % SLOTS;
        self.drawn = self.drawn.wrapping_add(1);
        let step = self.r#gen.hash(Purpose::PortStep, &key, self.drawn) % MAX_STEP + 1;
        self.table[slot] = self.table[slot].wrapping_add(step as u32);
        let start = offset.wrapping_add(self.table[slot]);
        for i in 0..self.count {
            let index = start.wrapping_add(i) % self.count;
            let port = self.first + index as u16;
            if free(port) {
                self.table[slot] = self.table[slot].wrapping_add(i);
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

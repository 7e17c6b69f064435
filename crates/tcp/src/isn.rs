//! Initial sequence numbers (RFC 6528), timestamp offsets (RFC 7323) and ephemeral ports
//! (RFC 6056): what a stranger must not be able to guess.

use alloc::boxed::Box;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};

use perimeter_base::Time;
use perimeter_wire::{FlowKey, Seq};
use siphasher::sip::SipHasher24;

/// What a hash is for; one secret serves several without relating their outputs.
#[derive(Copy, Clone)]
#[repr(u8)]
enum Purpose {
    Isn = 1,
    Timestamp = 2,
    Port = 3,
    PortStep = 4,
    Ident = 5,
    Bucket = 6,
    Cookie = 7,
    InterfaceId = 8,
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

    /// The IP identification that the datagrams of a connection of `key` count up from (RFC 7739
    /// on IPv6's holds as well here): unrelated from one connection to the next, and silent about
    /// every other secret.
    pub fn ident(&self, key: &FlowKey) -> u16 {
        self.hash(Purpose::Ident, key, 0) as u16
    }

    /// The interface identifier of an IPv6 address (RFC 7217, section 5): of a prefix of 64 bits,
    /// of the interface of that name, and of how many were tried before.
    pub fn interface_id(&self, prefix: u64, name: &[u8], tries: u64) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        h.write(&[Purpose::InterfaceId as u8]);
        h.write(&prefix.to_be_bytes());
        h.write(&tries.to_be_bytes());
        h.write(name);
        h.finish()
    }

    /// The bucket hash of a table that strangers fill.
    pub(crate) fn bucket(&self, key: &FlowKey) -> u64 {
        self.hash(Purpose::Bucket, key, 0)
    }

    /// The hash in a SYN cookie, of the ends and all else that must come back unchanged.
    pub(crate) fn cookie(&self, key: &FlowKey, words: [u64; 2]) -> u64 {
        self.hash_of(Purpose::Cookie, key, &words)
    }

    fn hash(&self, purpose: Purpose, key: &FlowKey, extra: u64) -> u64 {
        self.hash_of(purpose, key, &[extra])
    }

    /// Of at most two words beside the key.
    #[inline]
    fn hash_of(&self, purpose: Purpose, key: &FlowKey, words: &[u64]) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        // Fixed layout per family, and the family in the tag: no two keys share an input.
        let mut input = [0u8; 56];
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
        for word in words {
            put(&word.to_be_bytes());
        }
        h.write(&input[..at]);
        h.finish()
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
/// Largest step between ports tried for one destination (RFC 6056, section 3.3.5): large enough to
/// be no certainty, small enough that a port comes back to one destination only after thousands of
/// connections, when the last one's TIME-WAIT there is likely over.
const MAX_STEP: u64 = 8;

/// Chooses ephemeral ports: RFC 6056's double-hash selection (section 3.3.4) with random
/// increments (section 3.3.5), so that the ports to other destinations can't be predicted, the next
/// one to the same destination not for certain, and one tuple's port is not reused soon.
///
/// Threads may pick at the same time. They write to the same counter only for destinations that
/// share a slot.
pub struct PortPicker {
    r#gen: IsnGen,
    first: u16,
    count: u32,
    table: Box<[AtomicU32]>,
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
            table: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// What `take` makes of the first port that it takes, for a connection to the remote end of
    /// `key` (whose local port is ignored); `None` if it takes none of the range. Asks once per
    /// port.
    pub fn pick<T>(&self, key: &FlowKey, mut take: impl FnMut(u16) -> Option<T>) -> Option<T> {
        let key = FlowKey {
            local_port: 0,
            ..*key
        };
        // The two keyed hashes of the algorithm are two parts of one that share no bits.
        let hash = self.r#gen.hash(Purpose::Port, &key, 0);
        let (offset, slot) = (hash as u32, (hash >> 32) as usize % SLOTS);
        let counter = &self.table[slot];
        let seen = counter.load(Ordering::Relaxed);
        let step = self.r#gen.hash(Purpose::PortStep, &key, u64::from(seen)) % MAX_STEP + 1;
        let at = counter.fetch_add(step as u32, Ordering::Relaxed);
        let start = offset.wrapping_add(at).wrapping_add(step as u32) % self.count;
        for i in 0..self.count {
            let port = self.first + ((start + i) % self.count) as u16;
            if let Some(taken) = take(port) {
                if i > 0 {
                    counter.fetch_add(i, Ordering::Relaxed);
                }
                return Some(taken);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

//! What connections may pin together, and what gives way when that is short.
//!
//! Everything is charged to the stack: send and receive buffers with the packet buffers that they
//! pin, whole, however little of one is data; what has arrived out of order; scoreboards; pages
//! that a device may still be reading, until the connection ends; and for each connection
//! [`CONNECTION`] bytes, which cover
//! its state, its places in tables, and what is set aside so that one segment in each direction
//! always goes through ([`SET_ASIDE`]). So a connection can always make progress, if slowly, and
//! waiting for another one's progress is never a deadlock.
//!
//! From three eighths of the limit on, a connection may pin in each direction no more than its
//! share: 1/16 of what is left until 7/8 of the limit, as it is at the moment. (Dynamic thresholds,
//! as switches have them: whoever takes much lowers everybody's share, and something is always left
//! for those who come later.) What gives way, in this order:
//!
//! 1. from three eighths on: a writer gets no more than its share, and no more than it is trusted
//!    with ([`Trust`]): one segment, and twice as much each time that the peer has taken
//!    everything soon. Windows do not grow beyond the share, and data that arrives beyond it is
//!    dropped before it is acknowledged, so that the peer sends it again;
//! 2. from three quarters on: what has arrived out of order goes, from those who hold most, also
//!    if it was reported by SACK (RFC 2018, section 8, allows that);
//! 3. at seven eighths shares are down to what is set aside, and the last eighth is for new
//!    connections;
//! 4. at the limit there are no new connections: handshakes are not completed (the peer tries
//!    again), and opening one is an error.
//!
//! What was acknowledged and what the application has written is never dropped. A state is left
//! when an eighth (at the limit, a sixteenth) less is used than where it was entered.
//!
//! Threads count what they charge by themselves and report it when it comes to a batch: so nothing is
//! shared per segment, and the stack knows what is used to within a batch for each thread. That is
//! 64 KiB at most, or up to 1 MiB as long as less than a quarter of the limit is used. All threads
//! take one lock to report: if a usual write was a batch, those of 64 cores would stand in line.

mod shares;

use crate::id::SockId;
use crate::kind::{Kind, Lk, lock};
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a direction that a connection may always pin: a packet buffer or a first chunk of the
/// send buffer, and the bookkeeping that goes with it.
pub const SET_ASIDE: usize = 2048 + 256;

/// Bytes of data that fit what is set aside.
pub const ONE_SEGMENT: usize = 2048;

/// Bytes that a connection counts for being there.
pub const CONNECTION: usize = WAITING + 2 * SET_ASIDE;

/// Bytes that it counts once it only waits, and nothing is set aside any more: its state and its
/// places in tables, as they are under the organization that takes most (under `pef` about 2,980
/// bytes, under `up` 1,350).
pub const WAITING: usize = 3 * 1024;

/// Out-of-order data that makes a connection one of those who are asked to drop it, bytes.
pub const HOARD: usize = 16 * 1024;

/// How many of those are asked at once.
const ASKED: usize = 512;

/// How long a peer may take, ns, for what a connection was allowed to pin, to be trusted with twice
/// as much: longer than the round trip by a satellite, and so short that whoever takes less than
/// some 3 KB/s is trusted with one segment.
const SOON: u64 = 700_000_000;

/// How much a connection is trusted with while memory is short: one segment at first, and twice
/// as much each time that its peer has taken all of it soon. So those who only hold what they are
/// sent do not take the shares of those who are served.
#[derive(Copy, Clone, Debug, Default)]
pub struct Trust {
    since: Time,
    /// Bytes, but for those set aside.
    more: u32,
}

impl Trust {
    /// Bytes that may be pinned now. `empty` says that the peer has taken everything.
    pub fn bytes(&mut self, empty: bool, now: Time) -> usize {
        if empty {
            let soon = now.nanos_since(self.since) <= SOON;
            self.more = if soon {
                (2 * self.more).clamp(ONE_SEGMENT as u32, 1 << 30)
            } else {
                0
            };
            self.since = now;
        }
        SET_ASIDE + self.more as usize
    }
}

/// No connection is held to a share.
const PLENTY: u32 = u32::MAX;

/// The account of the whole stack.
pub(crate) struct Memory<K: Kind> {
    /// Bytes, as far as threads have reported.
    reported: Lk<K, i64>,
    /// A connection's share in bytes, at least 1; [`PLENTY`]; or 0: the limit is reached.
    share: AtomicU32,
    /// Connections that hold much out of order, those who began first in front.
    hoards: Lk<K, VecDeque<SockId>>,
    limit: u64,
    /// What a thread charges or releases before it reports it while memory is short, bytes.
    batch: u64,
}

/// The most batches that a thread keeps to itself while little is used. It keeps no more than 1/64 of
/// what is missing to a quarter of the limit, so 64 threads hide that much at most.
const BATCHES: u64 = 16;

impl<K: Kind> Memory<K> {
    pub(crate) fn new(p: &K::P, limit: u64) -> Memory<K> {
        Memory {
            reported: lock::<K, _>(p, LockClass::Leaf, 0),
            share: AtomicU32::new(PLENTY),
            hoards: lock::<K, _>(p, LockClass::Leaf, VecDeque::new()),
            limit,
            batch: (limit / 1024).clamp(1024, 64 * 1024),
        }
    }

    /// What a thread may keep to itself until it reports again, bytes, as `used` are pinned.
    fn batch_at(&self, used: u64) -> u64 {
        let left = (self.limit / 4).saturating_sub(used);
        (left / 64).clamp(self.batch, BATCHES * self.batch)
    }

    /// Settles the shares, as `used` bytes are pinned.
    fn weigh(&self, used: u64) {
        let part = |n: u64| self.limit / 16 * n;
        let was = self.share.load(Ordering::Relaxed);
        let short = if was == PLENTY { part(6) } else { part(4) };
        let full = if was == 0 { part(15) } else { self.limit };
        let next = if used < short {
            PLENTY
        } else if used >= full {
            0
        } else {
            // In powers of two, so that the word is rarely written.
            let share = part(14).saturating_sub(used) / 16;
            let share = 1 << share.max(1).ilog2();
            share.min(u64::from(PLENTY) / 2) as u32
        };
        if next != was {
            self.share.store(next, Ordering::Relaxed);
        }
    }
}

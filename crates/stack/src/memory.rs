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
//! Threads count what they charge by themselves and report it when it comes to a batch, at most
//! 64 KiB: so nothing is shared per segment, and the stack knows what is used to within a batch
//! for each thread.

use crate::commons::Commons;
use crate::count::Count;
use crate::id::SockId;
use crate::kind::{Kind, Lk, lock};
use crate::own::Own;
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
    batch: u64,
}

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

impl<K: Kind> Commons<K> {
    /// Counts what a burst or call has charged, and reports it when it has come to a batch; and how
    /// many segments were predicted.
    #[inline]
    pub fn book(&self, own: &mut Own<K>) {
        let predicted = core::mem::take(&mut own.predicted);
        self.count(own.lane, Count::RxFast, u64::from(predicted));
        let n = core::mem::take(&mut own.charged);
        if n > 0 {
            self.count(own.lane, Count::MemCharged, n.unsigned_abs());
        } else {
            self.count(own.lane, Count::MemReleased, n.unsigned_abs());
        }
        own.unreported += n;
        if own.unreported.unsigned_abs() >= self.memory.batch {
            self.report(own);
        }
    }

    #[cold]
    fn report(&self, own: &mut Own<K>) {
        let used = {
            let mut reported = self.memory.reported.lock();
            *reported += core::mem::take(&mut own.unreported);
            *reported
        };
        self.memory.weigh(used.max(0) as u64);
    }

    /// Memory that connections pin, and what is set aside for them, bytes: a sum over threads,
    /// not a snapshot.
    pub fn memory(&self) -> u64 {
        let charged = self.counters.sum(Count::MemCharged as usize);
        charged.saturating_sub(self.counters.sum(Count::MemReleased as usize))
    }

    /// Looks how much memory is used. Called by timers.
    pub fn watch_memory(&self) {
        self.memory.weigh(self.memory());
    }

    /// Whether connections are held to their shares.
    #[inline]
    pub fn memory_short(&self) -> bool {
        self.memory.share.load(Ordering::Relaxed) != PLENTY
    }

    /// Whether there is none for new connections.
    #[inline]
    pub fn memory_full(&self) -> bool {
        self.memory.share.load(Ordering::Relaxed) == 0
    }

    /// What one direction of a connection may pin now, bytes. Not less than [`SET_ASIDE`].
    #[inline]
    pub fn share(&self) -> usize {
        (self.memory.share.load(Ordering::Relaxed) as usize).max(SET_ASIDE)
    }

    /// How many bytes a writer may append now to a send side that pins `held` bytes, or nothing
    /// if `empty`, while memory is short: within its share, and within what it is `trusted` with
    /// ([`Trust`]). `chunk` is what appending a little may cost.
    pub fn room_to_write(&self, held: usize, empty: bool, chunk: usize, trusted: usize) -> usize {
        let share = self.share().min(trusted);
        if empty {
            return ONE_SEGMENT.max(share - (SET_ASIDE - ONE_SEGMENT));
        }
        // Short of that, a page for a few bytes would go beyond the share.
        match share.saturating_sub(held) {
            room if room >= chunk.max(ONE_SEGMENT) => room,
            _ => 0,
        }
    }

    /// A connection holds much that is out of order.
    #[cold]
    pub(crate) fn hoards(&self, id: SockId) {
        self.memory.hoards.lock().push_back(id);
    }

    /// Connections that are to drop what they hold out of order, if memory is short, or to say
    /// whether they still do, if there are many: a few at a time. And whether they are to drop it.
    pub fn hoarders(&self) -> (VecDeque<SockId>, bool) {
        let drop = self.memory() >= self.memory.limit / 4 * 3;
        let mut all = self.memory.hoards.lock();
        if !drop && all.len() <= 8 * ASKED {
            return (VecDeque::new(), false);
        }
        let n = all.len().min(ASKED);
        (all.drain(..n).collect(), drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use perimeter_sync::Native;

    #[test]
    fn who_takes_nothing_gets_one_segment() {
        let config = crate::commons::Config::default();
        let m = Commons::<OneThread>::new(Native::default(), config, Vec::new(), Vec::new());
        for rtt in [1, 100, 300, 600] {
            let mut t = Trust::default();
            let mut at = 10_000;
            let mut room = |after| {
                at += after;
                m.room_to_write(0, true, 0, t.bytes(true, Time::from_millis(at)))
            };
            // The peer takes it in a round trip each time.
            assert_eq!(room(0), ONE_SEGMENT);
            assert_eq!(room(rtt), 2 * ONE_SEGMENT);
            assert_eq!(room(rtt), 3 * ONE_SEGMENT);
            assert_eq!(room(rtt), 5 * ONE_SEGMENT);
            for _ in 0..100 {
                room(rtt);
            }
            assert!(room(rtt) >= 1 << 20);
            // 2,048 bytes in 0.8 s.
            for _ in 0..10 {
                assert_eq!(room(800), ONE_SEGMENT);
            }
            // What is under way counts.
            let trusted = t.bytes(false, Time::from_millis(at + 1));
            assert_eq!(m.room_to_write(1000, false, 0, trusted), 0);
        }
    }

    #[test]
    fn shares_shrink_as_memory_fills_and_states_last_a_while() {
        let mib = 1 << 20;
        let m = Memory::<OneThread>::new(&Native::default(), 64 * mib);
        let at = |used| {
            m.weigh(used);
            m.share.load(Ordering::Relaxed)
        };
        assert_eq!(at(0), PLENTY);
        assert_eq!(at(24 * mib - 1), PLENTY);
        let mut last = PLENTY;
        for used in 24..64 {
            let share = at(used * mib);
            assert!(share >= 1 && share <= last, "{used}: {share}");
            assert!(u64::from(share) * 16 <= (56 * mib).saturating_sub(used * mib).max(16));
            last = share;
        }
        assert_eq!(last, 1);
        assert_eq!(at(64 * mib), 0);
        assert_eq!(at(60 * mib), 0, "still full");
        assert_eq!(at(59 * mib), 1);
        assert!(at(23 * mib) < PLENTY, "still short");
        assert_eq!(at(15 * mib), PLENTY);
        assert_eq!(at(u64::MAX), 0);
    }
}

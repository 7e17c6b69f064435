//! Stocks of packet buffers, and of the memory that queues of them take: a core's own, and what
//! cores exchange.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::fmt;

use crate::atomics::{AtomicUsize, List, Ordering};
use crate::buf::{CAPACITIES, POOLED, PktBuf, roomy};

/// Packet buffers in a row: what has arrived on a connection, or what a reader takes. Where they
/// come and go by the thousand, [`PktPool::reserve`] makes room in one and [`PktPool::put_all`] takes
/// its memory back.
pub type PktQueue = VecDeque<PktBuf>;

/// How many usual buffers go to a depot or come from it at once: a magazine.
const MAGAZINE: usize = 64;

/// Places in the queues of the two kinds that are kept: a short exchange's, and a burst's.
const PLACES: [usize; 2] = [4, 64];

/// How many queues go to a depot or come from it at once.
const QUEUES: usize = 16;

/// Of buffers of each of [`CAPACITIES`], how many go to a depot or come from it at once, and how many a
/// core keeps that has one.
const KINDS: [(usize, usize); CAPACITIES.len()] = [
    (MAGAZINE, 8 * MAGAZINE),
    (32, 128),
    (MAGAZINE, 2 * MAGAZINE),
    (8, 64),
    (4, 32),
    (2, 16),
];

/// A core's stock of packet buffers, of several capacities from [`POOLED`] to
/// [`POOLED_LARGE`](crate::buf::POOLED_LARGE), and of queues for them. Not shared, so it needs no
/// lock; where one core takes what another gives back, a [`PktDepot`] is between them.
pub struct PktPool {
    bufs: [Stock<PktBuf>; CAPACITIES.len()],
    queues: [Stock<PktQueue>; 2],
    /// Buffers that had to be allocated because there was none in stock.
    pub misses: u64,
}

/// Where cores exchange packet buffers, 64 at a time, and queues: one core often takes buffers for
/// what its NIC receives, and another, where the application reads, gives them back. Without it the
/// first would allocate all of them and the second free them, and freeing may wait for the first
/// core's allocator. (Bonwick and Adams, "Magazines and Vmem", 2001, section 3.) Cheap to clone.
#[derive(Clone)]
pub struct PktDepot {
    bufs: [Arc<Magazines<PktBuf>>; CAPACITIES.len()],
    queues: [Arc<Magazines<PktQueue>>; 2],
}

impl PktDepot {
    /// An empty one that keeps at most `bytes` of memory of each size of buffers, or one magazine,
    /// and as much for queues.
    #[must_use]
    pub fn new(bytes: usize) -> PktDepot {
        let queues = |places| {
            let each = places * size_of::<PktBuf>();
            Arc::new(Magazines::new(bytes / 2, each, QUEUES))
        };
        let bufs = |kind: usize| Arc::new(Magazines::new(bytes, CAPACITIES[kind], KINDS[kind].0));
        PktDepot {
            bufs: core::array::from_fn(bufs),
            queues: PLACES.map(queues),
        }
    }
}

impl fmt::Debug for PktDepot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PktDepot")
    }
}

/// A depot's magazines of one kind.
struct Magazines<T> {
    full: List<Vec<T>>,
    /// Those that were emptied, to be filled again.
    emptied: List<Vec<T>>,
    /// The number of full ones, so that nobody locks an empty list.
    count: AtomicUsize,
    /// The most full ones that there may be.
    limit: usize,
    /// How many a full one holds.
    size: usize,
}

impl<T> Magazines<T> {
    /// For what takes `each` bytes, of `bytes` together at most, or one magazine of `size`.
    fn new(bytes: usize, each: usize, size: usize) -> Magazines<T> {
        Magazines {
            full: List::new(),
            emptied: List::new(),
            count: AtomicUsize::new(0),
            limit: (bytes / (size * each)).max(1),
            size,
        }
    }

    /// Adds a full magazine's to `to`; whether there was one.
    fn take(&self, to: &mut Vec<T>) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let taken = {
            let mut full = self.full.lock();
            let taken = full.pop();
            self.count.store(full.len(), Ordering::Relaxed);
            taken
        };
        let Some(mut magazine) = taken else {
            return false;
        };
        to.append(&mut magazine);
        let mut emptied = self.emptied.lock();
        if emptied.len() < self.limit {
            emptied.push(magazine);
        }
        true
    }

    /// Takes all of `from` behind the first `keep`. What is too much is dropped.
    fn put(&self, from: &mut Vec<T>, keep: usize) {
        let emptied = self.emptied.lock().pop();
        let mut magazine = emptied.unwrap_or_else(|| Vec::with_capacity(self.size));
        magazine.extend(from.drain(keep.min(from.len())..));
        // Let go before one magazine too many is dropped.
        let mut full = self.full.lock();
        if full.len() < self.limit {
            full.push(magazine);
            self.count.store(full.len(), Ordering::Relaxed);
        }
    }
}

/// A core's stock of one kind.
struct Stock<T> {
    free: Vec<T>,
    limit: usize,
    /// What `limit` may grow to.
    most: usize,
    depot: Option<Arc<Magazines<T>>>,
}

impl<T> Stock<T> {
    fn new(limit: usize, depot: Option<Arc<Magazines<T>>>) -> Stock<T> {
        // Until it needs them again: a core that only gives back keeps few.
        let first = depot.as_ref().map_or(limit, |d| limit.min(2 * d.size));
        Stock {
            free: Vec::new(),
            limit: first,
            most: limit,
            depot,
        }
    }

    #[inline]
    fn take(&mut self) -> Option<T> {
        self.free.pop().or_else(|| self.fetch())
    }

    #[cold]
    fn fetch(&mut self) -> Option<T> {
        let depot = self.depot.as_ref()?;
        if !depot.take(&mut self.free) {
            return None;
        }
        // It would have had these if it might keep more.
        self.limit = self.most.min(self.limit + depot.size);
        self.free.pop()
    }

    #[inline]
    fn put(&mut self, one: T) {
        if self.free.len() == self.limit {
            return self.full(one);
        }
        self.free.push(one);
    }

    /// Takes one back though there are as many as there may be. Those that came last leave: they are
    /// the likeliest to be in a cache.
    #[cold]
    fn full(&mut self, one: T) {
        let Some(depot) = &self.depot else { return };
        depot.put(&mut self.free, self.limit.saturating_sub(depot.size));
        self.free.push(one);
    }
}

impl PktPool {
    /// A pool that keeps at most `limit` buffers of usual size, and of others in proportion. What is
    /// too many is freed.
    pub fn new(limit: usize) -> PktPool {
        let part = |(_, most)| limit * most / KINDS[0].1;
        PktPool {
            bufs: KINDS.map(|kind| Stock::new(part(kind), None)),
            queues: PLACES.map(|_| Stock::new(limit / 4, None)),
            misses: 0,
        }
    }

    /// A pool of one of several cores that have `depot` in common. It keeps at most half as many
    /// as [`PktPool::default`], and fewer as long as it is asked for few.
    pub fn of(depot: PktDepot) -> PktPool {
        let bufs = |kind: usize| Stock::new(KINDS[kind].1, Some(depot.bufs[kind].clone()));
        PktPool {
            bufs: core::array::from_fn(bufs),
            queues: depot.queues.map(|d| Stock::new(8 * QUEUES, Some(d))),
            misses: 0,
        }
    }

    /// A buffer with an empty window and at least `capacity` bytes of memory (contents are
    /// whatever the last user left: fill before reading).
    #[inline]
    pub fn take(&mut self, capacity: usize) -> PktBuf {
        if capacity <= POOLED
            && let Some(mut b) = self.bufs[0].free.pop()
        {
            b.set_window(0, 0);
            return b;
        }
        self.take_other(capacity)
    }

    /// As [`PktPool::take`] where the stock of usual buffers has none.
    fn take_other(&mut self, capacity: usize) -> PktBuf {
        let kind = CAPACITIES.iter().position(|c| capacity <= *c);
        if let Some(mut b) = kind.and_then(|kind| self.bufs[kind].take()) {
            b.set_window(0, 0);
            return b;
        }
        self.misses += 1;
        PktBuf::with_capacity(roomy(capacity))
    }

    /// Takes a buffer back; one of another size, or a device's frame, is freed, and so is one too
    /// many if there is no depot.
    #[inline]
    pub fn put(&mut self, b: PktBuf) {
        if b.is_heap_of(POOLED) {
            return self.bufs[0].put(b);
        }
        if let Some(kind) = CAPACITIES.iter().position(|c| b.is_heap_of(*c)) {
            self.bufs[kind].put(b);
        }
    }

    /// Makes room for `more` buffers in a queue.
    #[inline]
    pub fn reserve(&mut self, queue: &mut PktQueue, more: usize) {
        let places = queue.len() + more;
        if places > queue.capacity() {
            self.grow(queue, places);
        }
    }

    /// Moves what is queued to a queue of `places`, or of more.
    fn grow(&mut self, queue: &mut PktQueue, places: usize) {
        let kinds = PLACES.iter().zip(&mut self.queues);
        let mut larger = match kinds.into_iter().find(|(most, _)| places <= **most) {
            Some((most, stock)) => stock
                .take()
                .unwrap_or_else(|| PktQueue::with_capacity(*most)),
            None => PktQueue::with_capacity(places.max(2 * queue.capacity())),
        };
        larger.append(queue);
        self.put_queue(core::mem::replace(queue, larger));
    }

    /// Takes back a queue with all buffers in it.
    #[inline]
    pub fn put_all(&mut self, mut queue: PktQueue) {
        for b in queue.drain(..) {
            self.put(b);
        }
        self.put_queue(queue);
    }

    /// Takes back the memory of an empty queue.
    #[inline]
    pub fn put_queue(&mut self, queue: PktQueue) {
        debug_assert!(queue.is_empty());
        let kind = PLACES.iter().position(|n| *n == queue.capacity());
        if let Some(kind) = kind {
            self.queues[kind].put(queue);
        }
    }

    /// Buffers in stock.
    pub fn len(&self) -> usize {
        self.bufs.iter().map(|s| s.free.len()).sum()
    }

    /// Whether the stock is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for PktPool {
    fn default() -> PktPool {
        PktPool::new(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{POOLED_JUMBO, POOLED_LARGE};
    use alloc::collections::BTreeSet;

    #[test]
    fn pool_recycles_only_its_own_sizes() {
        let mut p = PktPool::new(4);
        let b = p.take(9014);
        assert_eq!((b.capacity(), p.misses), (POOLED_JUMBO, 1));
        p.put(b);
        p.put(PktBuf::with_capacity(POOLED_JUMBO));
        assert_eq!(p.len(), 1, "over a quarter of the limit is freed");
        assert_eq!(p.take(100).capacity(), POOLED, "not for small frames");
        assert_eq!(p.take(9000).capacity(), POOLED_JUMBO);
        assert_eq!((p.len(), p.misses), (0, 2));
        assert_eq!(p.take(POOLED + 1).capacity(), POOLED_JUMBO / 2);
        assert_eq!(p.take(40_000).capacity(), POOLED_LARGE);
        assert_eq!(p.take(70_000).capacity(), 70_000);
        for len in POOLED..POOLED_LARGE {
            let capacity = p.take(len).capacity();
            assert!(
                capacity >= len && 5 * len > 2 * capacity,
                "{len}: {capacity}"
            );
        }

        let mut p = PktPool::new(1);
        let b = p.take(100);
        assert_eq!((b.capacity(), p.misses), (POOLED, 1));
        p.put(b);
        p.put(PktBuf::with_capacity(100));
        assert_eq!(p.len(), 1);
        p.put(PktBuf::with_capacity(POOLED));
        assert_eq!(p.len(), 1, "over the limit is freed");
        assert_eq!(p.take(9000).capacity(), POOLED_JUMBO);
        assert_eq!(p.len(), 1, "a large request leaves the stock alone");
    }

    #[test]
    fn what_one_core_gives_back_another_takes() {
        let depot = PktDepot::new(1 << 20);
        let (mut nic, mut reader) = (PktPool::of(depot.clone()), PktPool::of(depot));
        let mut allocated = 0;
        for round in 0..100 {
            let burst: Vec<_> = (0..100).map(|_| nic.take(1514)).collect();
            burst.into_iter().for_each(|b| reader.put(b));
            if round == 20 {
                allocated = nic.misses;
            }
        }
        // The reader's stock fills once; from then on nothing is allocated.
        assert_eq!(nic.misses, allocated);
        assert!(allocated <= 128 + 200, "{allocated}");
        assert!(reader.len() <= 128);
    }

    #[test]
    fn who_takes_many_keeps_many() {
        let mut pool = PktPool::of(PktDepot::new(1 << 20));
        for round in 0..10 {
            let all: Vec<_> = (0..400).map(|_| pool.take(1514)).collect();
            all.into_iter().for_each(|b| pool.put(b));
            assert!(pool.len() <= 400, "{round}");
        }
        assert_eq!(pool.len(), 400, "its stock has grown to what it needs");
    }

    #[test]
    fn a_depot_has_an_end() {
        const KEPT: usize = 3 * MAGAZINE;
        let depot = PktDepot::new(KEPT * POOLED + 1);
        let mut pool = PktPool::of(depot.clone());
        for _ in 0..10 * KEPT {
            pool.put(PktBuf::with_capacity(POOLED));
        }
        assert_eq!(depot.bufs[0].full.lock().len() * MAGAZINE, KEPT);
        let mut other = PktPool::of(depot);
        let all: Vec<_> = (0..=KEPT).map(|_| other.take(9)).collect();
        assert_eq!((other.misses, all[0].len()), (1, 0));
    }

    #[test]
    fn queues_go_round_among_cores() {
        let depot = PktDepot::new(1 << 20);
        let (mut nic, mut reader) = (PktPool::of(depot.clone()), PktPool::of(depot));
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let mut queue = PktQueue::new();
            for _ in 0..PLACES[1] {
                nic.reserve(&mut queue, 1);
                queue.push_back(nic.take(1514));
            }
            seen.insert(queue.as_slices().0.as_ptr() as usize);
            reader.put_all(queue);
        }
        // What the two have in stock, and what is between them.
        assert!(seen.len() <= 5 * QUEUES, "{} were allocated", seen.len());
    }

    #[test]
    fn queues_of_other_sizes_are_freed() {
        let mut pool = PktPool::new(8);
        for places in [0, 3, 4, 5, 64, 65, 1000] {
            pool.put_all(PktQueue::with_capacity(places));
        }
        assert_eq!(pool.queues.each_ref().map(|s| s.free.len()), [1, 1]);
        let mut queue = PktQueue::new();
        pool.reserve(&mut queue, 200);
        assert!(queue.capacity() >= 200);
    }
}

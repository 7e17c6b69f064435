//! Bounded queues to one consumer, a ring for each thread that sends: no atomic
//! read-modify-write, and no line that two senders write.

use std::cell::UnsafeCell;

use super::spsc;
use crate::class::Touched;
use crate::lane::{LANES, LaneTable};
use crate::platform::Platform;
use crate::shim::{AtomicUsize, Mutex, Once, Ordering, Padded};

/// The sending side: shared by all threads.
#[derive(Debug)]
pub struct Fanin<P: Platform, T> {
    platform: P,
    /// What waits, of all senders.
    lines: P::Tag,
    /// By lane.
    ends: LaneTable<Padded<End<T>>>,
    rings: Rings<T>,
}

/// What senders and consumer share, apart from the platform and from whose end is whose: for the
/// loom models.
#[doc(hidden)]
#[derive(Debug)]
pub struct Rings<T> {
    capacity: usize,
    /// In order of making.
    watches: Box<[Once<spsc::Watch<T>>]>,
    /// How many rings there are.
    made: AtomicUsize,
    /// Ends that the consumer has not fetched yet. Not the platform's lock: entered when a ring
    /// is made only.
    fresh: Mutex<Vec<spsc::Consumer<T>>>,
}

impl<T: Send> Rings<T> {
    /// No ring yet, and room for `most`, of `capacity` places each.
    pub fn new(most: usize, capacity: usize) -> Rings<T> {
        Rings {
            capacity,
            watches: (0..most).map(|_| Once::new()).collect(),
            made: AtomicUsize::new(0),
            fresh: Mutex::new(Vec::new()),
        }
    }

    /// Makes a ring: the end of a sender that has none. At most as often as there is room for.
    #[cold]
    pub fn join(&self) -> spsc::Producer<T> {
        let (producer, consumer) = spsc::channel(self.capacity);
        let mut fresh = self.fresh.lock();
        let made = self.made.load(Ordering::Relaxed);
        let _ = self.watches[made].set(consumer.watch());
        fresh.push(consumer);
        // Before the first push: whoever is told of that finds the ring.
        self.made.store(made + 1, Ordering::SeqCst);
        producer
    }

    /// How many values wait, of all senders.
    pub fn len(&self) -> usize {
        let made = self.made.load(Ordering::SeqCst);
        let watches = self.watches[..made].iter().filter_map(Once::get);
        watches.map(spsc::Watch::len).sum()
    }

    /// Whether no value waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let made = self.made.load(Ordering::SeqCst);
        let mut watches = self.watches[..made].iter().filter_map(Once::get);
        watches.all(|w| w.len() == 0)
    }

    /// Fetches the ends of rings that are new, and moves up to `max` values to the end of `out`.
    #[inline]
    pub fn pop_many(&self, to: &mut FaninConsumer<T>, out: &mut Vec<T>, max: usize) -> usize {
        self.fetch(to);
        to.pop_many(out, max)
    }

    #[inline]
    fn fetch(&self, to: &mut FaninConsumer<T>) {
        if self.made.load(Ordering::SeqCst) != to.rings.len() {
            to.rings.append(&mut self.fresh.lock());
        }
    }
}

/// A lane's end of its ring.
#[derive(Debug)]
struct End<T>(UnsafeCell<Option<spsc::Producer<T>>>);

// SAFETY: an end is reached through `Fanin` only, which touches it only from the live thread that
// has its lane (`Platform` is sealed and promises that there is one, and that an earlier owner's
// use happens before). Values move between threads: `T: Send`.
unsafe impl<T: Send> Sync for End<T> {}

/// The receiving side. There is one for each [`Fanin`].
#[derive(Debug)]
pub struct FaninConsumer<T> {
    rings: Vec<spsc::Consumer<T>>,
    /// Whose turn it is.
    next: usize,
}

impl<P: Platform, T: Send> Fanin<P, T> {
    /// Both sides; each sender's ring has `capacity` places.
    ///
    /// # Panics
    /// If `capacity` is zero or beyond a quarter of the address space.
    pub fn new(platform: P, capacity: usize) -> (Fanin<P, T>, FaninConsumer<T>) {
        assert!(
            (1..=usize::MAX / 4).contains(&capacity),
            "a queue of {capacity} places"
        );
        let fanin = Fanin {
            lines: P::Tag::default(),
            platform,
            ends: LaneTable::new(),
            // There are as many as lanes, and each lane makes one.
            rings: Rings::new(LANES, capacity),
        };
        (fanin, FaninConsumer::new())
    }

    /// Runs `f` on the calling lane's end, made at its first use; `None` beyond lane 512, which
    /// has none.
    #[inline(always)]
    fn end<R>(&self, f: impl FnOnce(&mut spsc::Producer<T>) -> R) -> Option<R> {
        let end = self
            .ends
            .get(self.platform.lane(), || Padded(End(UnsafeCell::new(None))))?;
        // SAFETY: only this thread touches its end (see `End`), and neither `f`, which is a
        // method of the ring, nor `join` calls anything that could come here again or switch
        // coroutines: no other reference exists.
        let end = unsafe { &mut *end.0.0.get() };
        Some(f(end.get_or_insert_with(|| self.rings.join())))
    }

    /// Appends `value` to the calling thread's ring.
    ///
    /// # Errors
    /// Gives `value` back when the ring is full, or the thread has none because it is beyond
    /// lane 512.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        self.platform.checkpoint();
        let mut value = Some(value);
        let done = self.platform.queueing(|| {
            self.end(|end| match value.take() {
                Some(v) => end.push(v),
                None => Ok(()),
            })
        });
        self.platform.touch(&self.lines, Touched::Message, 1, true);
        self.platform.checkpoint();
        match (done, value) {
            (Some(done), _) => done,
            (None, Some(v)) => Err(v),
            (None, None) => Ok(()),
        }
    }

    /// Whether the calling thread's ring is over half full.
    pub fn is_crowded(&self) -> bool {
        self.end(|end| end.len() > end.capacity() / 2)
            .unwrap_or(false)
    }

    /// How many values wait, of all senders.
    pub fn len(&self) -> usize {
        self.platform.checkpoint();
        self.rings.len()
    }

    /// Whether no value waits. Sequentially consistent: of a push followed by a
    /// `fence(SeqCst)`, and this preceded by one, one sees the other.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.platform.checkpoint();
        self.rings.is_empty()
    }

    /// Moves up to `max` values to the end of `out`; how many. Each sender's come in its order,
    /// and senders take turns.
    #[inline]
    pub fn pop_many(&self, to: &mut FaninConsumer<T>, out: &mut Vec<T>, max: usize) -> usize {
        self.platform.checkpoint();
        self.rings.fetch(to);
        let n = self.platform.queueing(|| to.pop_many(out, max));
        self.platform
            .touch(&self.lines, Touched::Message, n.max(1), n > 0);
        self.platform.checkpoint();
        n
    }
}

impl<T: Send> FaninConsumer<T> {
    /// Of no ring yet.
    #[doc(hidden)]
    pub fn new() -> FaninConsumer<T> {
        FaninConsumer {
            rings: Vec::new(),
            next: 0,
        }
    }

    fn pop_many(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        let rings = self.rings.len();
        let mut n = 0;
        for i in 0..rings {
            if n == max {
                self.next = (self.next + i) % rings;
                break;
            }
            let ring = (self.next + i) % rings;
            n += self.rings[ring].pop_many(out, max - n);
        }
        n
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::virt::{Schedule, VirtualConfig};
    use crate::{Native, Thread, Virtual};
    use std::sync::Arc;

    #[test]
    fn a_ring_fills_and_empties() {
        let (q, mut to) = Fanin::new(Native::new(), 2);
        assert!(q.is_empty() && !q.is_crowded());
        assert_eq!((q.push(1), q.push(2), q.push(3)), (Ok(()), Ok(()), Err(3)));
        assert!(q.is_crowded() && q.len() == 2);
        let mut out = Vec::new();
        assert_eq!(q.pop_many(&mut to, &mut out, 1), 1);
        assert_eq!(q.pop_many(&mut to, &mut out, 9), 1);
        assert_eq!(q.pop_many(&mut to, &mut out, 9), 0);
        assert_eq!(out, [1, 2]);
        assert!(q.is_empty());
    }

    /// Each sender's values come in order, none is lost, and senders with full rings do not
    /// starve one that has a single value.
    #[test]
    fn every_sender_is_heard_in_order() {
        for seed in 0..100 {
            let cfg = VirtualConfig {
                seed,
                schedule: Schedule::Random { switch_one_in: 2 },
                ..VirtualConfig::default()
            };
            let run = Virtual::run(cfg, |p| {
                let (q, mut to) = Fanin::new(p.clone(), 2);
                let q = Arc::new(q);
                let threads: Vec<_> = (0..3usize)
                    .map(|who| {
                        let (q, p2) = (q.clone(), p.clone());
                        let body = move || {
                            for i in 0..5usize {
                                while q.push((who, i)).is_err() {
                                    p2.yield_now();
                                }
                            }
                        };
                        p.spawn("sender", None, Box::new(body))
                    })
                    .collect();
                let mut got = Vec::new();
                while got.len() < 15 {
                    if q.pop_many(&mut to, &mut got, 2) == 0 {
                        p.yield_now();
                    }
                }
                for t in threads {
                    t.join().unwrap();
                }
                assert!(q.is_empty());
                for who in 0..3 {
                    let theirs: Vec<_> = got.iter().filter(|v| v.0 == who).map(|v| v.1).collect();
                    assert_eq!(theirs, [0, 1, 2, 3, 4]);
                }
            });
            run.unwrap_or_else(|f| panic!("{f}"));
        }
    }

    #[test]
    fn senders_take_turns() {
        let (q, mut to) = Fanin::new(Native::new(), 8);
        for i in 0..8 {
            q.push((0, i)).unwrap();
        }
        let q = Arc::new(q);
        let other = q.clone();
        std::thread::spawn(move || other.push((1, 0)).unwrap())
            .join()
            .unwrap();
        let mut out = Vec::new();
        q.pop_many(&mut to, &mut out, 2);
        q.pop_many(&mut to, &mut out, 2);
        assert!(out.contains(&(1, 0)), "{out:?}");
    }
}

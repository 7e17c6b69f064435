//! The ring of many producers.
//!
//! Each slot has a stamp that says whose turn it is, after Vyukov's bounded queue. A position is
//! a lap and an index in one word: the index in the low bits, below `lap`. The slot at position p
//! has stamp p when it may be written, p + 1 when it may be read, and p + `lap`, its position of
//! the next lap, when it has been read.
//!
//! Vyukov's queue calls itself empty when the slot at the head is claimed but not yet written,
//! though a later push may have returned; and full likewise. That is not linearizable, and here
//! would be a message overtaken by the wake-up that follows it. So both compare head and tail
//! then, and wait if they differ for whoever is in the middle of its few instructions.

use core::mem::MaybeUninit;

use crate::shim::{AtomicUsize, Backoff, Ordering, Padded, UnsafeCell, fence};

struct Slot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The ring.
pub struct Ring<T> {
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
    slots: Box<[Slot<T>]>,
    /// The distance of laps: a power of two above the capacity, so that position + 1 of the last
    /// index is not yet the next lap.
    lap: usize,
}

// SAFETY: a slot's value is touched only by the one thread whose compare-exchange moved `tail`
// (to write) or `head` (to read) past it while the stamp allowed it, until that thread stores
// the next stamp with release, which the next one acquires. Values move between threads.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// A ring of `capacity` places.
    ///
    /// # Panics
    /// If `capacity` is zero or beyond a quarter of the address space.
    pub fn new(capacity: usize) -> Self {
        assert!(
            (1..=usize::MAX / 4).contains(&capacity),
            "a queue of {capacity} places"
        );
        Ring {
            head: Padded(AtomicUsize::new(0)),
            tail: Padded(AtomicUsize::new(0)),
            slots: (0..capacity)
                .map(|i| Slot {
                    stamp: AtomicUsize::new(i),
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect(),
            lap: (capacity + 1).next_power_of_two(),
        }
    }

    fn index(&self, pos: usize) -> usize {
        pos & (self.lap - 1)
    }

    #[inline]
    fn slot(&self, pos: usize) -> &Slot<T> {
        &self.slots[self.index(pos)]
    }

    #[inline]
    fn next(&self, pos: usize) -> usize {
        if self.index(pos) + 1 < self.slots.len() {
            pos + 1
        } else {
            (pos & !(self.lap - 1)).wrapping_add(self.lap)
        }
    }

    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let mut backoff = Backoff::new();
        let mut tail = self.tail.0.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(tail);
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == tail {
                // SeqCst, with the fence in `pop`: a pop that finds no value here sees either
                // this or an order of the two in which it came first.
                match self.tail.0.compare_exchange_weak(
                    tail,
                    self.next(tail),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        slot.value.with_mut(|p| {
                            // SAFETY: the stamp said free, and moving `tail` made it ours.
                            unsafe { (*p).write(value) };
                        });
                        slot.stamp.store(tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => {
                        tail = now;
                        continue;
                    }
                }
            }
            if stamp.wrapping_add(self.lap) == tail + 1 {
                // Unread since the last lap. Full, unless a consumer has just claimed it.
                fence(Ordering::SeqCst);
                let head = self.head.0.load(Ordering::Relaxed);
                if head.wrapping_add(self.lap) == tail {
                    return Err(value);
                }
            }
            // Our tail is old, or a consumer is reading the slot.
            backoff.wait();
            tail = self.tail.0.load(Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn pop(&self) -> Option<T> {
        let mut backoff = Backoff::new();
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let stamp = self.slot(head).stamp.load(Ordering::Acquire);
            if stamp == head + 1 {
                match self.claim(head, self.next(head)) {
                    // SAFETY: claimed by us when the stamp said that it can be read.
                    Ok(()) => return Some(unsafe { self.read(head) }),
                    Err(now) => {
                        head = now;
                        continue;
                    }
                }
            }
            if stamp == head {
                // Unwritten. Empty, unless a producer has just claimed it.
                fence(Ordering::SeqCst);
                let tail = self.tail.0.load(Ordering::Relaxed);
                if tail == head {
                    return None;
                }
            }
            // Our head is old, or a producer is writing the slot.
            backoff.wait();
            head = self.head.0.load(Ordering::Relaxed);
        }
    }

    /// Pops up to `max` values by one claim: the run of readable slots at the head. Readable
    /// slots at and after the head change only by consumers that moved the head, so if it is
    /// still there at the claim, they are as they were seen.
    pub fn pop_many(&self, out: &mut Vec<T>, max: usize) -> usize {
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let mut end = head;
            let mut n = 0;
            while n < max.min(self.slots.len())
                && self.slot(end).stamp.load(Ordering::Acquire) == end + 1
            {
                end = self.next(end);
                n += 1;
            }
            if n == 0 {
                // Empty, or a wait for somebody: `pop` knows which.
                let one = if max == 0 { None } else { self.pop() };
                let n = usize::from(one.is_some());
                out.extend(one);
                return n;
            }
            // Before anything moves: growing may panic.
            out.reserve(n);
            if let Err(now) = self.claim(head, end) {
                head = now;
                continue;
            }
            while head != end {
                // SAFETY: claimed by us when their stamps said that they can be read.
                out.push(unsafe { self.read(head) });
                head = self.next(head);
            }
            return n;
        }
    }

    /// Moves the head from `from` to `to`, or gives the present one.
    #[inline]
    fn claim(&self, from: usize, to: usize) -> Result<(), usize> {
        self.head
            .0
            .compare_exchange_weak(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .map(|_| ())
    }

    /// Moves the value at `pos` out and frees its slot for the next lap.
    ///
    /// # Safety
    /// The caller moved the head past `pos` while its stamp was `pos + 1`.
    #[inline]
    unsafe fn read(&self, pos: usize) -> T {
        let slot = self.slot(pos);
        // SAFETY: the stamp said written, and the head's move made it the caller's.
        let value = slot.value.with(|p| unsafe { (*p).assume_init_read() });
        slot.stamp
            .store(pos.wrapping_add(self.lap), Ordering::Release);
        value
    }

    pub fn len(&self) -> usize {
        let mut tail = self.tail.0.load(Ordering::SeqCst);
        // The two must be of one moment; after a few tries, of nearly one.
        for _ in 0..8 {
            let head = self.head.0.load(Ordering::SeqCst);
            let again = self.tail.0.load(Ordering::SeqCst);
            if again == tail {
                return self.between(head, tail);
            }
            tail = again;
        }
        self.between(self.head.0.load(Ordering::SeqCst), tail)
    }

    fn between(&self, head: usize, tail: usize) -> usize {
        if head == tail {
            return 0;
        }
        match (self.index(head), self.index(tail)) {
            (h, t) if t > h => t - h,
            (h, t) => self.slots.len() - h + t,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T> core::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} of {}", self.len(), self.capacity())
    }
}

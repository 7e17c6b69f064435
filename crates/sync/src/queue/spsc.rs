//! The ring of one producer and one consumer.
//!
//! `tail` counts values ever pushed and is written by the producer, `head` values ever popped
//! and is written by the consumer. Each end remembers what it last saw of the other's count and
//! looks again only when that says full or empty: so the lines of the counts move between cores
//! once a lap, not once a value, when the queue is neither (Lee et al., "Efficient lock-free
//! queues", 2010, section 3).

use core::mem::MaybeUninit;
use std::sync::Arc;

use crate::shim::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// Counts are free running; the slot of count n is n modulo the number of slots, a power of two.
struct Ring<T> {
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    capacity: usize,
}

// SAFETY: slots [head, tail) belong to the consumer and the rest to the producer; a slot changes
// hands by a release store of a count that the other acquires. There is one of each end, neither
// can be cloned, and both need `&mut self`. Values move between threads: `T: Send`.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn slot(&self, count: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[count & (self.slots.len() - 1)]
    }

    fn len(&self) -> usize {
        // Head first: tail is then not behind it.
        let head = self.head.0.load(Ordering::Acquire);
        let tail = self.tail.0.load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.capacity)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: slots between the counts hold values, and nobody else has the ring.
            self.slot(head)
                .with_mut(|p| unsafe { (*p).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

impl<T> core::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} of {}", self.len(), self.capacity)
    }
}

/// The pushing end.
#[derive(Debug)]
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    /// This end's count: only it writes `ring.tail`.
    tail: usize,
    /// The other's count when last looked at.
    head: usize,
}

/// The popping end.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// This end's count: only it writes `ring.head`.
    head: usize,
    /// The other's count when last looked at.
    tail: usize,
}

/// Sees how many values wait, from neither end.
#[derive(Debug)]
pub struct Watch<T>(Arc<Ring<T>>);

impl<T> Watch<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A ring of `capacity` places.
///
/// # Panics
/// If `capacity` is zero or beyond a quarter of the address space.
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(
        (1..=usize::MAX / 4).contains(&capacity),
        "a queue of {capacity} places"
    );
    let ring = Arc::new(Ring {
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        slots: (0..capacity.next_power_of_two())
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
        capacity,
    });
    let producer = Producer {
        ring: ring.clone(),
        tail: 0,
        head: 0,
    };
    let consumer = Consumer {
        ring,
        head: 0,
        tail: 0,
    };
    (producer, consumer)
}

impl<T> Producer<T> {
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head) >= self.ring.capacity {
            // Acquire: the consumer has read the slots up to here.
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) >= self.ring.capacity {
                return Err(value);
            }
        }
        self.ring.slot(self.tail).with_mut(|p| {
            // SAFETY: fewer than `capacity` values lie from `head` on, so this slot is free, and
            // ours until `tail` passes it.
            unsafe { (*p).write(value) };
        });
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.ring.capacity
    }
}

impl<T> Consumer<T> {
    pub fn watch(&self) -> Watch<T> {
        Watch(self.ring.clone())
    }

    /// How many values are ready, looking again if none was known of.
    #[inline]
    fn ready(&mut self) -> usize {
        if self.tail == self.head {
            // Acquire: the producer has written the slots up to here.
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head)
    }

    /// Moves the value of count `n` out.
    ///
    /// # Safety
    /// `n` is in [head, tail), and `head` passes it before it is read again.
    #[inline]
    unsafe fn read(&self, n: usize) -> T {
        // SAFETY: the caller's promise: the slot holds a value, and is the consumer's.
        self.ring
            .slot(n)
            .with(|p| unsafe { (*p).assume_init_read() })
    }

    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.ready() == 0 {
            return None;
        }
        // SAFETY: one is ready, and `head` passes it just below.
        let value = unsafe { self.read(self.head) };
        self.head = self.head.wrapping_add(1);
        self.ring.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    #[inline]
    pub fn pop_many(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        let n = self.ready().min(max);
        // Before anything moves: growing may panic.
        out.reserve(n);
        for i in 0..n {
            // SAFETY: `n` are ready; nothing between here and the store of `head` can panic, the
            // room being reserved.
            out.push(unsafe { self.read(self.head.wrapping_add(i)) });
        }
        if n > 0 {
            self.head = self.head.wrapping_add(n);
            self.ring.head.0.store(self.head, Ordering::Release);
        }
        n
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.ring.capacity
    }
}

//! Lanes: small dense thread numbers, and what is kept per lane.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;

use core::cell::UnsafeCell;
use parking_lot::Mutex;

use crate::platform::Platform;
use crate::shim::Padded;

/// Lanes that per-lane structures give a place of their own. Threads beyond share one.
pub const LANES: usize = 512;

/// Lanes in a chunk: memory is taken as lanes appear.
const CHUNK: usize = 64;
const CHUNKS: usize = LANES / CHUNK;

const NONE: usize = usize::MAX;

thread_local! {
    /// The calling thread's lane, or [`NONE`]. Const and without destructor: one load relative
    /// to the thread pointer.
    static LANE: Cell<usize> = const { Cell::new(NONE) };
    /// Returns the lane when the thread ends.
    static RETURN: Return = const { Return };
}

/// Numbers given out and returned.
struct Numbers {
    next: usize,
    /// Smallest first, to stay dense.
    free: BinaryHeap<Reverse<usize>>,
    /// Numbers that are kept, as often as they are.
    kept: Vec<usize>,
    /// Those of them whose threads have ended.
    ended: Vec<usize>,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    next: 0,
    free: BinaryHeap::new(),
    kept: Vec::new(),
    ended: Vec::new(),
});

impl Numbers {
    /// The thread of that number has ended.
    fn give_back(&mut self, lane: usize) {
        match self.kept.contains(&lane) {
            true => self.ended.push(lane),
            false => self.free.push(Reverse(lane)),
        }
    }
}

/// Takes the first `lane` out of `list`; whether it was there.
fn remove(list: &mut Vec<usize>, lane: usize) -> bool {
    let at = list.iter().position(|l| *l == lane);
    at.map(|at| list.swap_remove(at)).is_some()
}

/// Keeps the calling thread's lane from being given to another thread, but by [`claim`], also when
/// it has ended, until [`release`].
pub(crate) fn keep() {
    let lane = current();
    NUMBERS.lock().kept.push(lane);
}

/// Ends one [`keep`].
pub(crate) fn release(lane: usize) {
    let mut numbers = NUMBERS.lock();
    remove(&mut numbers.kept, lane);
    if !numbers.kept.contains(&lane) && remove(&mut numbers.ended, lane) {
        numbers.free.push(Reverse(lane));
    }
}

struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        // Destructors of other thread-locals may still ask: they get a number of their own (see
        // `assign`), never this one, which another thread may have by then.
        let lane = LANE.replace(NONE);
        if lane != NONE {
            // The mutex makes all that this thread did happen before the number's next use.
            NUMBERS.lock().give_back(lane);
        }
    }
}

/// The calling operating-system thread's lane.
#[inline(always)]
pub(crate) fn current() -> usize {
    let lane = LANE.get();
    if lane != NONE { lane } else { assign() }
}

#[cold]
#[inline(never)]
fn assign() -> usize {
    // Registering the destructor fails when it has run already. Such a thread is in its last
    // destructors; its number is not returned, which costs one number per such thread.
    let returned = RETURN.try_with(|_| ()).is_ok();
    let mut numbers = NUMBERS.lock();
    let lane = match numbers.free.pop() {
        Some(Reverse(lane)) if returned => lane,
        unused => {
            numbers.free.extend(unused);
            numbers.next += 1;
            numbers.next - 1
        }
    };
    LANE.set(lane);
    drop(numbers);
    crate::native::mark::arrived(lane);
    lane
}

/// Gives `lane`, which is kept, to the calling thread, which must be new; `false` if its thread
/// lives.
pub(crate) fn claim(lane: usize) -> bool {
    let returned = RETURN.try_with(|_| ()).is_ok();
    let mut numbers = NUMBERS.lock();
    if !returned || LANE.get() != NONE || !remove(&mut numbers.ended, lane) {
        return false;
    }
    LANE.set(lane);
    drop(numbers);
    crate::native::mark::arrived(lane);
    true
}

/// A table with a place per lane, in chunks that come to be when first used.
#[derive(Debug)]
pub(crate) struct LaneTable<S> {
    chunks: [OnceLock<Box<[S; CHUNK]>>; CHUNKS],
}

impl<S> LaneTable<S> {
    pub(crate) const fn new() -> Self {
        LaneTable {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The lane's place; `None` beyond [`LANES`].
    #[inline(always)]
    pub(crate) fn get(&self, lane: usize, make: impl Fn() -> S) -> Option<&S> {
        let cell = self.chunks.get(lane / CHUNK)?;
        let chunk = match cell.get() {
            Some(chunk) => chunk,
            None => Self::fill(cell, make),
        };
        Some(&chunk[lane % CHUNK])
    }

    #[cold]
    #[inline(never)]
    fn fill(cell: &OnceLock<Box<[S; CHUNK]>>, make: impl Fn() -> S) -> &[S; CHUNK] {
        // Made on the heap: the stacks of virtual threads are small, and a chunk is not.
        cell.get_or_init(|| {
            let all: Box<[S]> = (0..CHUNK).map(|_| make()).collect();
            let whole = all.try_into().ok();
            whole.expect("as many as a chunk has")
        })
    }

    /// All places that exist.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.chunks
            .iter()
            .filter_map(|c| c.get())
            .flat_map(|c| c.iter())
    }
}

/// How many boxes a lane keeps for itself; of more, half go where any lane can take them.
const STOCK: usize = 32;

/// How many go there, and come from there, at once.
const HALF: usize = STOCK / 2;

/// A stock of boxes per thread: scratch space and buffers that are taken and put back at every
/// entry, without sharing and without an atomic read-modify-write.
///
/// A thread's own stock holds 32. Half of it goes to a common list under a lock when one more is
/// put, and a thread whose own stock is empty takes as many from there. So boxes that one thread
/// takes and another puts back find their way, and neither takes the lock, nor asks the allocator,
/// for each. Threads beyond lane 512 have the common list alone.
///
/// Not for signal handlers: one that interrupts `take` or `put` must not call them.
#[derive(Debug)]
pub struct PerLane<P, T> {
    platform: P,
    slots: LaneTable<Padded<Slot<T>>>,
    /// The length of `common`, so that an empty stock costs a load and no lock.
    common_len: AtomicUsize,
    /// Not the platform's lock: it must not be a scheduling point.
    common: Mutex<Vec<Box<T>>>,
}

#[derive(Debug)]
struct Slot<T>(UnsafeCell<Vec<Box<T>>>);

// SAFETY: a slot is reached through `PerLane` only, which touches it only from the live thread
// that has the slot's lane (`Platform` is sealed and promises that there is one, and that an
// earlier owner's use happens before). Boxes move between threads, hence `T: Send`; no `&T` is
// ever shared.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<P: Platform, T: Send> PerLane<P, T> {
    /// An empty stock.
    pub fn new(platform: P) -> Self {
        PerLane {
            platform,
            slots: LaneTable::new(),
            common_len: AtomicUsize::new(0),
            common: Mutex::new(Vec::new()),
        }
    }

    /// The calling thread's own stock.
    #[inline(always)]
    fn own(&self) -> Option<&UnsafeCell<Vec<Box<T>>>> {
        let slot = self.slots.get(self.platform.lane(), || {
            Padded(Slot(UnsafeCell::new(Vec::new())))
        })?;
        Some(&slot.0.0)
    }

    /// A box from the stock, if there is one: the one that this thread put last.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        if let Some(own) = self.own() {
            // SAFETY: only this thread touches its slot (see `Slot`), and `take` and `put` call
            // nothing that could enter them again or switch coroutines: no other reference
            // exists.
            let own = unsafe { &mut *own.get() };
            if let Some(boxed) = own.pop() {
                return Some(boxed);
            }
        }
        if self.common_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.take_common()
    }

    #[cold]
    fn take_common(&self) -> Option<Box<T>> {
        let own = self.own();
        let mut common = self.common.lock();
        let boxed = common.pop();
        if let Some(own) = own {
            // SAFETY: as in `take`; moving boxes calls nothing but the allocator.
            let own = unsafe { &mut *own.get() };
            let rest = common.len().saturating_sub(HALF - 1);
            own.extend(common.drain(rest..));
        }
        self.common_len.store(common.len(), Ordering::Relaxed);
        boxed
    }

    /// Puts a box into the stock.
    #[inline]
    pub fn put(&self, boxed: Box<T>) {
        if let Some(own) = self.own() {
            // SAFETY: as in `take`; growing the vector calls the allocator, which does not call
            // back.
            let own = unsafe { &mut *own.get() };
            if own.len() == STOCK {
                self.put_common(own.drain(HALF..));
            }
            return own.push(boxed);
        }
        self.put_common(core::iter::once(boxed));
    }

    #[cold]
    fn put_common(&self, boxes: impl Iterator<Item = Box<T>>) {
        let mut common = self.common.lock();
        common.extend(boxes);
        self.common_len.store(common.len(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

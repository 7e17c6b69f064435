//! Places that are looked up by number without a lock, and stay where they are: what others may
//! wait for, or read, while the tables that lead there change.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use parking_lot::Mutex;

/// log2 of the places in the first block; each block has twice as many as the one before.
const FIRST: u32 = 6;
/// Enough for 2^28 places, the most that a name can tell apart.
const BLOCKS: usize = 23;
/// Places are made so many at a time. A block is address space only until then: made at once, a
/// table that has just outgrown a block would hold twice the memory that it needs, and whoever
/// is the first to be too many would wait for as many places as there were before.
const GROUP: u32 = 16;

/// Places by number: blocks are added and never move, so that a place can be looked up without
/// a lock.
pub struct Places<T> {
    blocks: [Block<T>; BLOCKS],
    making: Mutex<()>,
    owned: PhantomData<std::sync::OnceLock<Box<[T]>>>,
}

/// Places one behind the other, of which the first few are made.
struct Block<T> {
    first: AtomicPtr<T>,
    /// How many are made. Written under `making`, after they are.
    made: AtomicU32,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        let block = || Block {
            first: AtomicPtr::new(core::ptr::null_mut()),
            made: AtomicU32::new(0),
        };
        Places {
            blocks: core::array::from_fn(|_| block()),
            making: Mutex::new(()),
            owned: PhantomData,
        }
    }
}

/// Block and index of a place.
fn locate(slot: u32) -> (usize, u32) {
    let n = slot + (1 << FIRST);
    let top = 31 - n.leading_zeros();
    ((top - FIRST) as usize, n - (1 << top))
}

/// How many places a block has room for.
const fn room(block: usize) -> u32 {
    1 << (block as u32 + FIRST)
}

impl<T> Block<T> {
    /// The places that are made.
    fn made(&self) -> &[T] {
        let n = self.made.load(Ordering::Acquire) as usize;
        if n == 0 {
            return &[];
        }
        // SAFETY: that many places were written before `made` was stored, behind a pointer that
        // was stored before; they stay until the block is dropped and are never written again.
        unsafe { core::slice::from_raw_parts(self.first.load(Ordering::Relaxed), n) }
    }

    /// Makes places until there are `n`. `making` is held by the caller.
    #[cold]
    fn make(&self, n: u32, room: u32, make: &mut impl FnMut() -> T) {
        let mut first = self.first.load(Ordering::Relaxed);
        if first.is_null() {
            let places = Box::<[T]>::new_uninit_slice(room as usize);
            first = Box::into_raw(places).cast();
            self.first.store(first, Ordering::Relaxed);
        }
        for i in self.made.load(Ordering::Relaxed)..n.min(room) {
            let place = make();
            // SAFETY: `i` is less than `room`, for which the block was allocated; nobody reads
            // beyond `made`, and nobody else writes, as `making` is held.
            unsafe { first.add(i as usize).write(place) };
            self.made.store(i + 1, Ordering::Release);
        }
    }
}

impl<T> Places<T> {
    /// The place of that number, if it has been made.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (block, index) = locate(slot);
        let b = self.blocks.get(block)?;
        if index >= b.made.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: as in `Block::made`; this is on the path of every segment and asks no more.
        Some(unsafe { &*b.first.load(Ordering::Relaxed).add(index as usize) })
    }

    /// Runs `f` on every place that was made.
    pub fn each(&self, f: impl FnMut(&T)) {
        self.blocks.iter().flat_map(Block::made).for_each(f);
    }

    /// The place, made by `make` if it was not yet, with those before it in its block and a few
    /// behind it. `None`: there are not that many numbers.
    pub fn get_or_make(&self, slot: u32, mut make: impl FnMut() -> T) -> Option<&T> {
        let (block, index) = locate(slot);
        let b = self.blocks.get(block)?;
        if index >= b.made.load(Ordering::Acquire) {
            let _making = self.making.lock();
            b.make((index | (GROUP - 1)) + 1, room(block), &mut make);
        }
        self.get(slot)
    }
}

impl<T> Drop for Places<T> {
    fn drop(&mut self) {
        for (i, block) in self.blocks.iter_mut().enumerate() {
            let first = *block.first.get_mut();
            if first.is_null() {
                continue;
            }
            let made = *block.made.get_mut() as usize;
            let all = core::ptr::slice_from_raw_parts_mut(
                first.cast::<MaybeUninit<T>>(),
                room(i) as usize,
            );
            // SAFETY: so many places were made, and nobody refers to them any more.
            unsafe { core::ptr::slice_from_raw_parts_mut(first, made).drop_in_place() };
            // SAFETY: this is what `Block::make` took from its box, and no place is dropped twice.
            drop(unsafe { Box::from_raw(all) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, GROUP, Places, locate, room};
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut want = (0, 0);
        for slot in 0..100_000 {
            assert_eq!(locate(slot), want, "{slot}");
            want.1 += 1;
            if want.1 == room(want.0) {
                want = (want.0 + 1, 0);
            }
        }
        // The last of 2^28 places is in the last block.
        assert_eq!(locate((1 << 28) - 1).0, BLOCKS - 1);
    }

    #[test]
    fn no_more_places_are_made_than_are_asked_for_and_a_few() {
        let made = AtomicU32::new(0);
        let make = || made.fetch_add(1, Ordering::Relaxed);
        let places = Places::default();
        assert_eq!(places.get(0), None);
        for slot in 0..5000 {
            assert_eq!(places.get_or_make(slot, make), Some(&slot));
            assert!(made.load(Ordering::Relaxed) <= slot + GROUP);
        }
        let mut n = 0;
        places.each(|_| n += 1);
        assert_eq!(n, made.load(Ordering::Relaxed));
        assert!((0..n).all(|slot| places.get(slot) == Some(&slot)));
        assert_eq!(places.get(n), None);
        assert_eq!(places.get_or_make((1 << 29) - 64, make), None);
    }

    #[test]
    fn one_far_ahead_is_made_with_those_before_it() {
        let places = Places::default();
        assert_eq!(places.get_or_make(100, || 7), Some(&7));
        // Of its own block, which begins at 64; the one before is made when it is asked for.
        assert_eq!(places.get(64), Some(&7));
        assert_eq!(places.get(0), None);
    }

    #[test]
    fn each_is_made_and_dropped_once_whoever_asks() {
        struct Counted<'a>(&'a AtomicU32);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (made, dropped) = (AtomicU32::new(0), AtomicU32::new(0));
        let places = Places::default();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        Counted(&dropped)
                    };
                    for slot in 0..2000 {
                        let at: *const _ = places.get_or_make(slot, make).unwrap();
                        assert!(core::ptr::eq(at, places.get(slot).unwrap()));
                    }
                });
            }
        });
        drop(places);
        assert_eq!(made.into_inner(), dropped.into_inner());
    }

    #[test]
    fn a_panic_while_one_is_made_leaves_those_before_it() {
        let mut n = 0;
        let places = Places::default();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            places.get_or_make(9, || {
                n += 1;
                assert!(n <= 5, "as planned");
                n
            })
        }));
        assert!(panics.is_err());
        assert_eq!((places.get(4), places.get(5)), (Some(&5), None));
        assert_eq!(places.get_or_make(9, || 0), Some(&0));
    }
}

//! Parts of connections that are reached without entering what protects the connection: by
//! number, without a lock around the table of them, and with the generation that may use them.

use core::ops::{Deref, DerefMut};
use perimeter_stack::Kind;
use perimeter_stack::conn::{RcvSide, SndSide};
use perimeter_sync::{Lock, Platform};
use std::sync::OnceLock;

/// A part of a connection and who may use it from outside: the generation of the handle. 0: no
/// application.
pub(crate) struct Part<T> {
    pub(crate) generation: u32,
    pub(crate) value: T,
}

impl<T> Part<T> {
    /// `value`, closed to applications.
    pub(crate) fn closed(value: T) -> Part<T> {
        Part {
            generation: 0,
            value,
        }
    }
}

/// What holding one of the platform's locks looks like.
pub(crate) type Guard<'a, P, T> = <<P as Platform>::Lock<T> as Lock<T>>::Guard<'a>;

/// A buffer's side for as long as its lock is held; or a dead one, for who came too late.
pub(crate) enum Side<'a, P: Platform, T: Send + 'static> {
    Held(Guard<'a, P, Part<T>>),
    Gone(&'a mut T),
}

impl<P: Platform, T: Send + 'static> Deref for Side<'_, P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Side::Held(g) => &g.value,
            Side::Gone(t) => t,
        }
    }
}

impl<P: Platform, T: Send + 'static> DerefMut for Side<'_, P, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Side::Held(g) => &mut g.value,
            Side::Gone(t) => t,
        }
    }
}

/// A send side that belongs to nobody: nothing can be sent.
pub(crate) fn no_snd<K: Kind>() -> SndSide<K> {
    SndSide {
        shut: true,
        ..SndSide::new(0)
    }
}

/// A receive side that belongs to nobody: nothing will come.
pub(crate) fn no_rcv<K: Kind>() -> RcvSide<K> {
    RcvSide {
        shut: true,
        eof: true,
        ..RcvSide::new(0, 0)
    }
}

/// log2 of the places in the first block; each block has twice as many as the one before.
const FIRST: u32 = 6;
/// Enough for 2^28 places, the most that a name can tell apart.
const BLOCKS: usize = 23;

/// Places by number: blocks are added and never move, so that a place can be looked up without
/// a lock.
pub(crate) struct Places<T> {
    blocks: [OnceLock<Box<[T]>>; BLOCKS],
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places {
            blocks: [const { OnceLock::new() }; BLOCKS],
        }
    }
}

/// Block and index of a place.
fn locate(slot: u32) -> (usize, usize) {
    let n = slot + (1 << FIRST);
    let top = 31 - n.leading_zeros();
    ((top - FIRST) as usize, (n - (1 << top)) as usize)
}

impl<T> Places<T> {
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let (block, index) = locate(slot);
        self.blocks.get(block)?.get()?.get(index)
    }

    /// The place, made with its whole block by `make` if it is the first of that.
    pub(crate) fn get_or_make(&self, slot: u32, mut make: impl FnMut() -> T) -> Option<&T> {
        let (block, index) = locate(slot);
        let fresh = || {
            (0..1usize << (block as u32 + FIRST))
                .map(|_| make())
                .collect()
        };
        self.blocks.get(block)?.get_or_init(fresh).get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, locate};

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut want = (0, 0);
        for slot in 0..100_000 {
            assert_eq!(locate(slot), want, "{slot}");
            want.1 += 1;
            if want.1 == 1 << (want.0 + 6) {
                want = (want.0 + 1, 0);
            }
        }
        // The last of 2^28 places is in the last block.
        assert_eq!(locate((1 << 28) - 1).0, BLOCKS - 1);
    }
}

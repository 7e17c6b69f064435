//! Places that are looked up by number without a lock, and stay where they are: what others may
//! wait for, or read, while the tables that lead there change.

use std::sync::OnceLock;

/// log2 of the places in the first block; each block has twice as many as the one before.
const FIRST: u32 = 6;
/// Enough for 2^28 places, the most that a name can tell apart.
const BLOCKS: usize = 23;

/// Places by number: blocks are added and never move, so that a place can be looked up without
/// a lock.
pub struct Places<T> {
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
    /// The place of that number, if its block has been made.
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (block, index) = locate(slot);
        self.blocks.get(block)?.get()?.get(index)
    }

    /// Runs `f` on every place that was made.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        blocks.flatten().for_each(&mut f);
    }

    /// The place, made with its whole block by `make` if it is the first of that. `None`: there are
    /// not that many numbers.
    pub fn get_or_make(&self, slot: u32, mut make: impl FnMut() -> T) -> Option<&T> {
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

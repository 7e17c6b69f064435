//! Where connections live: three locks that stay where they are, whoever moves in.

use super::Kd;
use perimeter_stack::Conn;
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use std::sync::OnceLock;

/// A part of a connection and who may use it from outside: the generation of the handle. 0: no
/// application.
pub(super) struct Part<T> {
    pub(super) generation: u32,
    pub(super) value: T,
}

/// The parts of one connection, each behind its lock.
pub(super) struct Place<P: Platform> {
    pub(super) tcb: P::Lock<Option<TcbSide<Kd<P>>>>,
    pub(super) snd: P::Lock<Part<SndSide<Kd<P>>>>,
    pub(super) rcv: P::Lock<Part<RcvSide<Kd<P>>>>,
}

/// A send side that belongs to nobody: nothing can be sent.
pub(super) fn no_snd<P: Platform>() -> SndSide<Kd<P>> {
    SndSide {
        shut: true,
        ..SndSide::new(0)
    }
}

/// A receive side that belongs to nobody: nothing will come.
pub(super) fn no_rcv<P: Platform>() -> RcvSide<Kd<P>> {
    RcvSide {
        shut: true,
        eof: true,
        ..RcvSide::new(0, 0)
    }
}

impl<P: Platform> Place<P> {
    fn new(p: &P) -> Place<P> {
        Place {
            tcb: p.lock(LockClass::Connection, None),
            snd: p.lock(
                LockClass::Sndbuf,
                Part {
                    generation: 0,
                    value: no_snd::<P>(),
                },
            ),
            rcv: p.lock(
                LockClass::Rcvbuf,
                Part {
                    generation: 0,
                    value: no_rcv::<P>(),
                },
            ),
        }
    }

    /// A connection moves in. The table is held, so nobody else looks for this place; a late
    /// holder of its predecessor's name may still be at one of the locks.
    pub(super) fn fill(&self, conn: Conn<Kd<P>>) {
        let generation = conn.tcb.meta.id.generation();
        let mut tcb = self.tcb.lock();
        *self.snd.lock() = Part {
            generation,
            value: conn.snd,
        };
        *self.rcv.lock() = Part {
            generation,
            value: conn.rcv,
        };
        *tcb = Some(conn.tcb);
    }

    pub(super) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Connection, self.tcb.stats());
        add(LockClass::Sndbuf, self.snd.stats());
        add(LockClass::Rcvbuf, self.rcv.stats());
    }
}

/// log2 of the places in the first block; each block has twice as many as the one before.
const FIRST: u32 = 6;
/// Enough for 2^28 places, the most that a name can tell apart.
const BLOCKS: usize = 23;

/// Places by number: blocks are added and never move, so that a place can be looked up without
/// a lock.
pub(super) struct Places<P: Platform> {
    blocks: [OnceLock<Box<[Place<P>]>>; BLOCKS],
}

impl<P: Platform> Default for Places<P> {
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

impl<P: Platform> Places<P> {
    pub(super) fn get(&self, slot: u32) -> Option<&Place<P>> {
        let (block, index) = locate(slot);
        self.blocks.get(block)?.get()?.get(index)
    }

    /// The place, made if it is the first of its block.
    pub(super) fn get_or_make(&self, p: &P, slot: u32) -> Option<&Place<P>> {
        let (block, index) = locate(slot);
        let fresh = || {
            (0..1usize << (block as u32 + FIRST))
                .map(|_| Place::new(p))
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

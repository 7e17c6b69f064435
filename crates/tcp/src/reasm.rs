//! Reassembly of data that arrived out of order.

use perimeter_base::PktBuf;
use perimeter_wire::{SackBlocks, Seq};

/// What became of a segment given to [`Reassembly::insert`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Octets that were new and are now held.
    pub stored: u32,
    /// Part of the segment was there already: report it as D-SACK (RFC 2883).
    pub duplicate: Option<(Seq, Seq)>,
    /// The segment, or part of it, was dropped because a bound was reached. Nothing was
    /// acknowledged, so the peer will send it again.
    pub dropped: bool,
}

/// Segments above `RCV.NXT`, held until the gap before them fills.
#[derive(Debug, Default)]
pub struct Reassembly {
    memory: usize,
}

impl Reassembly {
    /// An empty queue.
    pub fn new() -> Reassembly {
        Reassembly::default()
    }

    /// Whether neither data nor a FIN is held.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Octets of data held.
    pub fn len(&self) -> u32 {
        0
    }

    /// Octets of memory pinned, bookkeeping included.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Takes the payload `data` that starts at `seq`. What lies before `rcv_nxt` is cut; where
    /// it overlaps what is held, the octets that came first are kept. `limit` bounds
    /// [`Reassembly::memory`]; the caller has already cut the segment to the receive window.
    pub fn insert(&mut self, seq: Seq, data: PktBuf, rcv_nxt: Seq, limit: usize) -> Inserted {
        let _ = (seq, data, rcv_nxt, limit);
        Inserted::default()
    }

    /// Remembers that the peer's FIN stands at `seq` (the octet after its last data). The
    /// first one stays.
    pub fn set_fin(&mut self, seq: Seq) {
        let _ = seq;
    }

    /// Whether the FIN is next: all data before it has been delivered.
    pub fn fin_reached(&self, rcv_nxt: Seq) -> bool {
        let _ = rcv_nxt;
        false
    }

    /// The next data in order, if the gap at `rcv_nxt` is filled. The caller advances
    /// `RCV.NXT` by its length.
    pub fn pop(&mut self, rcv_nxt: Seq) -> Option<PktBuf> {
        let _ = rcv_nxt;
        None
    }

    /// Writes the SACK blocks to send, the one with the latest arrival first (RFC 2018,
    /// section 4), at most what `out` holds.
    pub fn sack_blocks(&self, out: &mut SackBlocks) {
        let _ = out;
    }

    /// Drops everything held.
    pub fn clear(&mut self) {}
}

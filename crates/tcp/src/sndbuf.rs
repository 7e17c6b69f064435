//! The send buffer: what the application has queued and the peer not yet acknowledged.

use perimeter_base::{Bytes, Completions, Lease, Lent, PktBuf, PktPool, TxPages, TxSlot};

use crate::tcb::types::Queued;

/// Memory of further owned pages, in octets.
pub use perimeter_base::pages::PAGE as CHUNK;

/// From this many octets on, a small write stays in the memory that it was copied to
/// ([`SndBuf::adopt`]). Below, another copy behind what is queued costs as little as a further
/// page and a further part of a descriptor (measured: `docs/PLAN-foundations.md`, section 2).
const ALONE: usize = 1024;

/// A queue of pages that starts at SND.UNA.
///
/// They are held until they are acknowledged and no descriptor refers to them, and read again for
/// retransmission. An empty buffer owns no payload memory and, once it has been used, a queue of
/// four slots.
#[derive(Debug, Default)]
pub struct SndBuf {
    /// What is queued, and where it is; with what devices may still be reading.
    pub pages: TxPages,
    len: u32,
    limit: u32,
    more: bool,
    unpushed: u32,
}

impl SndBuf {
    /// An empty buffer that wants to hold at most `limit` octets.
    pub fn new(limit: u32) -> SndBuf {
        SndBuf {
            limit,
            ..SndBuf::default()
        }
    }

    /// Octets queued, sent or not.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that the buffer wants to hold.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Changes the limit; what is queued stays.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Octets until the limit.
    #[inline]
    pub fn space(&self) -> u32 {
        self.limit.saturating_sub(self.len)
    }

    /// Octets of memory that the buffer pins, bookkeeping and what devices may still be reading
    /// included.
    #[inline]
    pub fn memory(&self) -> usize {
        self.pages.memory()
    }

    /// What [`plan`](crate::Tcb::plan) needs to know.
    #[inline]
    pub fn queued(&self) -> Queued {
        Queued {
            len: self.len,
            more_coming: self.more,
            unpushed: self.unpushed,
        }
    }

    /// Says whether what is pushed from now on is announced to be followed by more at once
    /// (MSG_MORE): call it before pushing, for every send. An acknowledgment ends the
    /// announcement, as in Linux: it concerns the send at hand, not the connection.
    pub fn set_more(&mut self, more: bool) {
        self.more = more;
    }

    /// `n` octets were appended.
    #[inline]
    fn grown(&mut self, n: u32) {
        self.len += n;
        self.unpushed = if self.more { self.unpushed + n } else { 0 };
    }

    /// Queues `bytes` by reference. The limit is the caller's to check; at most 2³¹ octets
    /// may be queued in all.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.grown(bytes.len() as u32);
        self.pages.push(bytes);
    }

    /// Queues a copy of as much of `bytes` as the limit allows; returns how much that is.
    pub fn push_copy(&mut self, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(self.space() as usize);
        self.pages.push_copy(&bytes[..accepted]);
        self.grown(accepted as u32);
        accepted
    }

    /// Queues the octets of a small write in the memory that they are in, unless they are few and
    /// would better be merged with what is queued. Then, or when they do not fit, they come back,
    /// for [`SndBuf::push_copy`].
    ///
    /// # Errors
    /// They come back.
    pub fn adopt(&mut self, buf: PktBuf) -> Result<(), PktBuf> {
        let merged = buf.len() < ALONE && !self.pages.is_empty();
        if merged || buf.is_empty() || buf.len() > self.space() as usize {
            return Err(buf);
        }
        let bytes = buf.into_vec()?;
        self.grown(bytes.len() as u32);
        self.pages.adopt(bytes);
        Ok(())
    }

    /// The first `n` octets are acknowledged. Pages that are acknowledged completely go as soon as
    /// no descriptor refers to them.
    #[inline]
    pub fn ack(&mut self, n: u32) {
        debug_assert!(n <= self.len);
        let n = n.min(self.len);
        self.more = false;
        self.len -= n;
        self.unpushed = self.unpushed.min(self.len);
        self.pages.take_off(n as usize);
    }

    /// Refers to the `len` octets that start `off` octets after SND.UNA in the descriptor that was
    /// just placed, as [`TxPages::refer`]. They must be queued; what is not is left out.
    #[inline(always)]
    pub fn refer(&mut self, off: u32, len: u32, slot: &mut TxSlot<'_>, pool: &mut PktPool) {
        let len = self.queued_of(off, len);
        self.pages.refer(off as usize, len, slot, pool);
    }

    /// As [`SndBuf::refer`], for a segment that comes to the ring behind `to` later: its number in
    /// `lease`.
    pub fn lend(
        &mut self,
        (off, len): (u32, u32),
        to: &Completions,
        pool: &mut PktPool,
        lease: &mut Lease,
    ) -> u32 {
        let len = self.queued_of(off, len);
        self.pages.lend(off as usize, len, to, pool, lease)
    }

    /// As [`SndBuf::lend`], for a segment that the caller places itself, before it asks for the
    /// next.
    #[inline]
    pub fn lend_here<'a>(
        &mut self,
        (off, len): (u32, u32),
        to: &Completions,
        pool: &mut PktPool,
        lease: &'a mut Lease,
    ) -> Lent<'a> {
        let len = self.queued_of(off, len);
        self.pages.lend_here(off as usize, len, to, pool, lease)
    }

    /// Takes back a lease that [`SndBuf::lend`] has filled, as [`TxPages::take_back`].
    #[inline]
    pub fn take_back(&mut self, lease: Lease) {
        self.pages.take_back(lease);
    }

    #[inline]
    fn queued_of(&self, off: u32, len: u32) -> usize {
        debug_assert!(off + len <= self.len);
        len.min(self.len.saturating_sub(off)) as usize
    }

    /// Copies the octets that start `off` octets after SND.UNA into `out`; returns how many
    /// there were.
    pub fn copy(&self, off: u32, out: &mut [u8]) -> usize {
        self.pages.copy(off as usize, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_base::TxRing;
    use proptest::prelude::*;

    /// Octets of the slots that a used buffer keeps, at most.
    const IDLE: usize = 4 * 40;

    /// The payload that a descriptor gets: where it is, and its octets.
    fn read(b: &mut SndBuf, off: u32, len: u32, pool: &mut PktPool) -> (Vec<*const u8>, Vec<u8>) {
        let mut ring = TxRing::new(1);
        b.refer(off, len, &mut ring.push().unwrap(), pool);
        let spans = ring.pending()[0].payload();
        let (mut at, mut out) = (Vec::new(), Vec::new());
        for span in spans.filter(|s| !s.is_empty()) {
            at.push(span.as_ptr());
            out.extend_from_slice(span);
        }
        (at, out)
    }

    fn gone(page: &Bytes) -> bool {
        page.is_unique()
    }

    #[test]
    fn empty_owns_next_to_nothing() {
        let mut b = SndBuf::new(10_000);
        assert_eq!(b.memory(), 0);
        b.push_copy(&[1; 100]);
        assert!(b.memory() > 0);
        b.ack(100);
        assert_eq!(b.len(), 0);
        assert!(b.memory() <= IDLE);
    }

    #[test]
    fn small_writes_share_pages() {
        let mut b = SndBuf::new(1 << 20);
        for _ in 0..100_000 {
            b.push_copy(b"abcdefgh");
        }
        assert!(b.memory() <= 800_000 + 2 * CHUNK + 64 * 1024);
    }

    #[test]
    fn the_first_small_write_brings_its_memory_and_the_next_ones_share() {
        let mut b = SndBuf::new(100);
        b.adopt(PktBuf::copy_of(&[1; 20])).unwrap();
        assert_eq!(b.len(), 20);
        assert!((20..=20 + IDLE).contains(&b.memory()));
        assert!(b.adopt(PktBuf::copy_of(&[2; 20])).is_err(), "to be merged");
        assert_eq!(b.push_copy(&[2; 20]), 20);
        let two = b.memory();
        b.push_copy(&[3; 20]);
        assert_eq!(b.memory(), two);
        b.ack(60);
        let big = b.adopt(PktBuf::copy_of(&[1; 101])).unwrap_err();
        assert_eq!(
            (big.len(), b.len()),
            (101, 0),
            "more than there is room for"
        );
        assert!(b.adopt(PktBuf::default()).is_err());
    }

    #[test]
    fn a_write_that_is_not_so_small_stays_where_it_is() {
        let mut b = SndBuf::new(10_000);
        b.push_copy(&[1; 20]);
        let small = b.adopt(PktBuf::copy_of(&[2; ALONE - 1])).unwrap_err();
        b.push_copy(small.as_slice());
        b.adopt(PktBuf::copy_of(&[3; ALONE])).unwrap();
        b.push_copy(&[4; 20]);
        let mut all = vec![0; b.len() as usize];
        assert_eq!(b.copy(0, &mut all), 20 + ALONE - 1 + ALONE + 20);
        let runs: Vec<_> = all
            .chunk_by(|x, y| x == y)
            .map(|r| (r[0], r.len()))
            .collect();
        assert_eq!(runs, [(1, 20), (2, ALONE - 1), (3, ALONE), (4, 20)]);
    }

    #[test]
    fn copies_stop_at_the_limit() {
        let mut b = SndBuf::new(10);
        assert_eq!(b.push_copy(&[0; 7]), 7);
        assert_eq!(b.push_copy(&[0; 7]), 3);
        assert_eq!((b.push_copy(&[0; 7]), b.space()), (0, 0));
    }

    #[test]
    fn a_page_is_released_when_its_last_octet_is_acknowledged() {
        let mut b = SndBuf::new(1 << 20);
        let page = Bytes::from(vec![7; 4096]);
        b.push(page.clone());
        let mut pool = PktPool::new(1);
        let (at, _) = read(&mut b, 0, 4096, &mut pool);
        assert_eq!(at, [page.as_ptr()], "by reference, not copied");
        b.ack(4095);
        assert!(!gone(&page));
        b.ack(1);
        assert!(gone(&page));
        assert_eq!(b.pages.released(), 4096);
    }

    #[test]
    fn more_lasts_until_an_acknowledgment() {
        let mut b = SndBuf::new(100);
        b.set_more(true);
        b.push_copy(&[1; 20]);
        assert!(b.queued().more_coming);
        b.ack(1);
        let q = b.queued();
        assert_eq!((q.more_coming, q.unpushed), (false, 19));
        b.push_copy(&[1; 1]);
        assert_eq!(b.queued().unpushed, 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_flat_buffer(ops in prop::collection::vec((0u8..6, 0usize..5000), 1..200)) {
            let mut b = SndBuf::new(1 << 20);
            let mut model: Vec<u8> = Vec::new();
            let mut pool = PktPool::new(4);
            let mut next = 0u8;
            let mut acked = 0usize;
            for (op, n) in ops {
                match op {
                    0 | 1 | 5 => {
                        let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                        next = next.wrapping_add(n as u8).wrapping_add(13);
                        model.extend_from_slice(&bytes);
                        match op {
                            0 => prop_assert_eq!(b.push_copy(&bytes), n),
                            1 => b.push(Bytes::from(bytes)),
                            _ => if let Err(bytes) = b.adopt(PktBuf::copy_of(&bytes)) {
                                prop_assert_eq!(b.push_copy(bytes.as_slice()), n);
                            },
                        }
                    }
                    2 => {
                        let n = n.min(model.len());
                        model.drain(..n);
                        acked += n;
                        b.ack(n as u32);
                        prop_assert!(b.pages.released() as usize <= acked);
                    }
                    _ => {
                        if model.is_empty() { continue; }
                        let off = (n * 7) % model.len();
                        let len = (n % 1500).min(model.len() - off);
                        let (_, got) = read(&mut b, off as u32, len as u32, &mut pool);
                        prop_assert_eq!(&got[..], &model[off..off + len]);
                        let mut copy = vec![0; len];
                        prop_assert_eq!(b.copy(off as u32, &mut copy), len);
                        prop_assert_eq!(&copy[..], &model[off..off + len]);
                    }
                }
                prop_assert_eq!(b.len() as usize, model.len());
            }
        }
    }
}

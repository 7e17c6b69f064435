//! The send buffer: what the application has queued and the peer not yet acknowledged.

use std::collections::VecDeque;

use bytes::Bytes;
use perimeter_base::{Part, PktBuf, PktPool};

use crate::tcb::types::Queued;

/// Memory of the first owned chunk of a burst of small writes, in octets: one segment and a
/// little, so that a request-response connection pins no more.
const FIRST_CHUNK: usize = 2048;

/// Memory of further owned chunks: large enough that a segment rarely spans three.
pub const CHUNK: usize = 16 * 1024;

/// Slots for chunks that an empty buffer keeps, so that short exchanges don't allocate.
const IDLE_SLOTS: usize = 4;

/// The payload of one segment: references into the buffer, or a copy.
#[derive(Debug)]
pub struct Payload {
    /// References to at most two consecutive stretches, in order; unused ones are empty.
    pub parts: [Part; 2],
    /// A copy, if the segment spans more than two chunks; `parts` are empty then.
    pub owned: Option<PktBuf>,
}

impl Payload {
    /// No payload.
    pub const EMPTY: Payload = Payload {
        parts: [Part::EMPTY; 2],
        owned: None,
    };
}

/// A stretch of the stream in memory that never moves while it is queued.
#[derive(Debug)]
enum Chunk {
    /// The application's, shared by reference.
    Shared(Bytes),
    /// Small writes, copied. Grows only within its capacity: in-flight descriptors refer to
    /// it.
    Owned(Vec<u8>),
}

impl Chunk {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Shared(b) => b,
            Chunk::Owned(v) => v,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Chunk::Shared(b) => b.len(),
            Chunk::Owned(v) => v.len(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Chunk::Shared(b) => b.len(),
            Chunk::Owned(v) => v.capacity(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Chunk::Shared(b) => b,
            // Keeps the allocation, so references into it stay valid.
            Chunk::Owned(v) => Bytes::from(v),
        }
    }
}

/// A queue of byte chunks that starts at SND.UNA.
///
/// Chunks are held until they are acknowledged and read again for retransmission. An empty
/// buffer owns no payload memory and, once it has been used, a queue of four slots.
#[derive(Debug, Default)]
pub struct SndBuf {
    chunks: VecDeque<Chunk>,
    /// Octets of the first chunk that are acknowledged already.
    head: usize,
    /// The chunk that the last [`SndBuf::parts`] ended in, and where it starts, counted from
    /// the start of the first chunk: makes sequential reading constant-time.
    cur: usize,
    cur_start: usize,
    len: u32,
    limit: u32,
    memory: usize,
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

    /// Octets of memory that the buffer pins, bookkeeping included. A shared chunk counts with
    /// its own length, whatever larger allocation it is a part of.
    pub fn memory(&self) -> usize {
        self.memory + self.chunks.capacity() * size_of::<Chunk>()
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
        self.memory += bytes.len();
        self.chunks.push_back(Chunk::Shared(bytes));
    }

    /// Queues a copy of as much of `bytes` as the limit allows; returns how much that is.
    ///
    /// Consecutive copies share chunks, so the number of chunks stays in proportion to the
    /// octets queued however small the writes are.
    pub fn push_copy(&mut self, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(self.space() as usize);
        let mut rest = &bytes[..accepted];
        if let Some(Chunk::Owned(tail)) = self.chunks.back_mut() {
            let fit = rest.len().min(tail.capacity() - tail.len());
            tail.extend_from_slice(&rest[..fit]);
            rest = &rest[fit..];
        }
        if !rest.is_empty() {
            let usual = if self.memory < FIRST_CHUNK {
                FIRST_CHUNK
            } else {
                CHUNK
            };
            let mut chunk = Vec::with_capacity(rest.len().max(usual));
            chunk.extend_from_slice(rest);
            self.memory += chunk.capacity();
            self.chunks.push_back(Chunk::Owned(chunk));
        }
        self.grown(accepted as u32);
        accepted
    }

    /// Queues the octets of a small write in the memory that they are in, when nothing is queued
    /// that they would better be merged with. Otherwise, or when they do not fit, they come
    /// back, for [`SndBuf::push_copy`].
    ///
    /// # Errors
    /// They come back.
    pub fn adopt(&mut self, buf: PktBuf) -> Result<(), PktBuf> {
        if !self.chunks.is_empty() || buf.is_empty() || buf.len() > self.space() as usize {
            return Err(buf);
        }
        let bytes = buf.into_vec()?;
        self.grown(bytes.len() as u32);
        self.memory += bytes.capacity();
        self.chunks.push_back(Chunk::Owned(bytes));
        Ok(())
    }

    /// The first `n` octets are acknowledged. Chunks that are acknowledged completely go to
    /// `release`, which keeps them until no descriptor refers to them any more.
    pub fn ack(&mut self, n: u32, release: &mut dyn FnMut(Bytes)) {
        debug_assert!(n <= self.len);
        let n = n.min(self.len);
        self.more = false;
        self.len -= n;
        self.unpushed = self.unpushed.min(self.len);
        self.head += n as usize;
        while let Some(front) = self.chunks.front() {
            let len = front.len();
            if self.head < len {
                return;
            }
            self.head -= len;
            self.memory -= front.memory();
            if self.cur > 0 {
                self.cur -= 1;
                self.cur_start -= len;
            } else {
                self.cur_start = 0;
            }
            if let Some(chunk) = self.chunks.pop_front() {
                release(chunk.into_bytes());
            }
        }
        self.cur = 0;
        self.cur_start = 0;
        if self.chunks.capacity() > IDLE_SLOTS {
            self.chunks = VecDeque::new();
        }
    }

    /// Drops everything (the connection is gone) through `release`.
    pub fn clear(&mut self, release: &mut dyn FnMut(Bytes)) {
        self.ack(self.len, release);
    }

    /// Gives back the slots that an empty buffer keeps, for a connection that will send no more
    /// data.
    pub fn shrink(&mut self) {
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// The `len` octets that start `off` octets after SND.UNA. They must be queued; what is
    /// not is left out.
    ///
    /// Sequential calls cost constant time. A segment that spans more than two chunks is
    /// copied into a buffer from `pool`.
    #[inline]
    pub fn parts(&mut self, off: u32, len: u32, pool: &mut PktPool) -> Payload {
        debug_assert!(off + len <= self.len);
        let len = len.min(self.len.saturating_sub(off)) as usize;
        if len == 0 {
            return Payload::EMPTY;
        }
        let at = self.head + off as usize;
        self.seek(at);
        let skip = at - self.cur_start;
        let first = &self.chunks[self.cur].bytes()[skip..];
        if first.len() >= len {
            return Payload {
                parts: [Part::new(&first[..len]), Part::EMPTY],
                owned: None,
            };
        }
        let rest = len - first.len();
        let second = self.chunks[self.cur + 1].bytes();
        if second.len() >= rest {
            return Payload {
                parts: [Part::new(first), Part::new(&second[..rest])],
                owned: None,
            };
        }
        self.copied(skip, len, pool)
    }

    /// Copies the octets that start `off` octets after SND.UNA into `out`; returns how many
    /// there were.
    pub fn copy(&self, off: u32, out: &mut [u8]) -> usize {
        let mut skip = self.head + off as usize;
        let mut filled = 0;
        for chunk in &self.chunks {
            let bytes = chunk.bytes();
            let tail = bytes.get(skip..).unwrap_or(&[]);
            skip = skip.saturating_sub(bytes.len());
            let n = tail.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&tail[..n]);
            filled += n;
            if filled == out.len() {
                break;
            }
        }
        filled
    }

    /// Moves the cursor to the chunk with the octet `at`, counted from the start of the first.
    #[inline]
    fn seek(&mut self, at: usize) {
        while at < self.cur_start {
            self.cur -= 1;
            self.cur_start -= self.chunks[self.cur].len();
        }
        loop {
            let len = self.chunks[self.cur].len();
            if at < self.cur_start + len {
                return;
            }
            self.cur_start += len;
            self.cur += 1;
        }
    }

    #[cold]
    fn copied(&self, skip: usize, len: usize, pool: &mut PktPool) -> Payload {
        let mut buf = pool.take(len);
        let mut filled = 0;
        let mut skip = skip;
        for chunk in self.chunks.iter().skip(self.cur) {
            let bytes = &chunk.bytes()[skip..];
            let n = bytes.len().min(len - filled);
            buf.raw_mut()[filled..filled + n].copy_from_slice(&bytes[..n]);
            filled += n;
            skip = 0;
            if filled == len {
                break;
            }
        }
        buf.set_window(0, filled);
        Payload {
            parts: [Part::EMPTY; 2],
            owned: Some(buf),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where a payload's octets stand in the buffer, by address, and a copy of the owned part.
    fn read(b: &SndBuf, p: &Payload) -> Vec<u8> {
        if let Some(o) = &p.owned {
            return o.as_slice().to_vec();
        }
        let mut out = Vec::new();
        for part in &p.parts {
            if part.is_empty() {
                continue;
            }
            let found = b.chunks.iter().find_map(|c| {
                let bytes = c.bytes();
                let at = (part.addr() as usize).checked_sub(bytes.as_ptr() as usize)?;
                bytes.get(at..at + part.len())
            });
            out.extend_from_slice(found.expect("a part lies within a chunk"));
        }
        out
    }

    #[test]
    fn empty_owns_next_to_nothing() {
        let mut b = SndBuf::new(10_000);
        assert_eq!(b.memory(), 0);
        b.push_copy(&[1; 100]);
        assert!(b.memory() > 0);
        b.ack(100, &mut |_| {});
        assert_eq!((b.memory, b.len()), (0, 0));
        assert!(b.memory() <= 4 * size_of::<Chunk>());
    }

    #[test]
    fn small_writes_share_chunks() {
        let mut b = SndBuf::new(1 << 20);
        for _ in 0..100_000 {
            b.push_copy(b"abcdefgh");
        }
        assert!(b.chunks.len() <= 2 + 800_000 / CHUNK);
        assert!(b.memory() <= 800_000 + 2 * CHUNK + 64 * 1024);
    }

    #[test]
    fn the_first_small_write_brings_its_memory_and_the_next_ones_share() {
        let mut b = SndBuf::new(100);
        b.adopt(PktBuf::copy_of(&[1; 20])).unwrap();
        assert_eq!((b.len(), b.memory), (20, 20));
        assert!(b.adopt(PktBuf::copy_of(&[2; 20])).is_err(), "to be merged");
        assert_eq!(b.push_copy(&[2; 20]), 20);
        assert_eq!((b.chunks.len(), b.memory), (2, 20 + FIRST_CHUNK));
        b.push_copy(&[3; 20]);
        assert_eq!(b.chunks.len(), 2);
        b.clear(&mut |_| {});
        let big = b.adopt(PktBuf::copy_of(&[1; 101])).unwrap_err();
        assert_eq!(
            (big.len(), b.len()),
            (101, 0),
            "more than there is room for"
        );
        assert!(b.adopt(PktBuf::default()).is_err());
    }

    #[test]
    fn copies_stop_at_the_limit() {
        let mut b = SndBuf::new(10);
        assert_eq!(b.push_copy(&[0; 7]), 7);
        assert_eq!(b.push_copy(&[0; 7]), 3);
        assert_eq!((b.push_copy(&[0; 7]), b.space()), (0, 0));
    }

    #[test]
    fn a_chunk_is_released_when_its_last_octet_is_acknowledged() {
        let mut b = SndBuf::new(1 << 20);
        let page = Bytes::from(vec![7; 4096]);
        b.push(page.clone());
        b.push(page.slice(..10));
        let mut out = Vec::new();
        b.ack(4095, &mut |c| out.push(c));
        assert!(out.is_empty());
        b.ack(1, &mut |c| out.push(c));
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].as_ptr(), page.as_ptr(), "by reference, not copied");
        b.clear(&mut |c| out.push(c));
        assert_eq!((out.len(), b.memory), (2, 0));
    }

    #[test]
    fn more_lasts_until_an_acknowledgment() {
        let mut b = SndBuf::new(100);
        b.set_more(true);
        b.push_copy(&[1; 20]);
        assert!(b.queued().more_coming);
        b.ack(1, &mut |_| {});
        let q = b.queued();
        assert_eq!((q.more_coming, q.unpushed), (false, 19));
        b.push_copy(&[1; 1]);
        assert_eq!(b.queued().unpushed, 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_flat_buffer(ops in prop::collection::vec((0u8..5, 0usize..5000), 1..200)) {
            let mut b = SndBuf::new(1 << 20);
            let mut model: Vec<u8> = Vec::new();
            let mut pool = PktPool::new(4);
            let mut next = 0u8;
            let mut released = 0usize;
            let mut acked = 0usize;
            for (op, n) in ops {
                match op {
                    0 | 1 => {
                        let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                        next = next.wrapping_add(n as u8).wrapping_add(13);
                        model.extend_from_slice(&bytes);
                        if op == 0 {
                            prop_assert_eq!(b.push_copy(&bytes), n);
                        } else {
                            b.push(Bytes::from(bytes));
                        }
                    }
                    2 => {
                        let n = n.min(model.len());
                        model.drain(..n);
                        acked += n;
                        b.ack(n as u32, &mut |c| released += c.len());
                        prop_assert!(released <= acked);
                    }
                    _ => {
                        if model.is_empty() { continue; }
                        let off = (n * 7) % model.len();
                        let len = (n % 1500).min(model.len() - off);
                        let p = b.parts(off as u32, len as u32, &mut pool);
                        prop_assert_eq!(read(&b, &p), &model[off..off + len]);
                        let mut copy = vec![0; len];
                        prop_assert_eq!(b.copy(off as u32, &mut copy), len);
                        prop_assert_eq!(&copy[..], &model[off..off + len]);
                    }
                }
                prop_assert_eq!(b.len() as usize, model.len());
                prop_assert_eq!(b.chunks.iter().map(Chunk::memory).sum::<usize>(), b.memory);
            }
        }
    }
}

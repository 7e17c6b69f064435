//! The receive buffer: what has arrived in order and the application has not read.

use alloc::vec::Vec;

use perimeter_base::{PktBuf, PktPool, PktQueue};

/// Whether a buffer is pinned for less than half of itself: only then a copy is worth it.
#[inline]
fn wasteful(buf: &PktBuf) -> bool {
    buf.len() * 2 < buf.capacity()
}

/// A queue of packet buffers in the order of the stream.
///
/// Small segments are gathered into the tail room of the last buffer, so that the memory
/// pinned stays near twice the octets held, however they were cut. An empty buffer owns no
/// memory: also that of the queue comes from the core's pool and goes back there.
#[derive(Debug, Default)]
pub struct RcvBuf {
    bufs: PktQueue,
    len: u32,
    limit: u32,
    memory: usize,
}

impl RcvBuf {
    /// An empty buffer that wants to hold at most `limit` octets.
    pub fn new(limit: u32) -> RcvBuf {
        RcvBuf {
            limit: RcvBuf::in_bounds(limit),
            ..RcvBuf::default()
        }
    }

    /// The nearest limit that makes sense, octets: at least 1, at most 1 GiB, the largest window
    /// (RFC 7323, section 2.3).
    #[must_use]
    pub fn in_bounds(limit: u32) -> u32 {
        limit.clamp(1, 1 << 30)
    }

    /// By how many octets the space of a buffer of `limit` must grow before TCP is told of it and
    /// the peer in turn (RFC 9293, section 3.8.6.2.2): two segments of `mss`, or half the buffer.
    ///
    /// The socket layer counts what was read by this, and TCP decides about window updates by it,
    /// with the same limit. If they differed, one could wait for more than the other's window lets
    /// come.
    #[inline]
    #[must_use]
    pub fn step(limit: u32, mss: u16) -> u32 {
        (2 * u32::from(mss)).min(limit / 2).max(1)
    }

    /// Octets held.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no data is held.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that the buffer wants to hold.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Changes the limit; what is held stays.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = RcvBuf::in_bounds(limit);
    }

    /// Octets until the limit: what [`app_read`](crate::Tcb::app_read) is to be told.
    #[inline]
    pub fn space(&self) -> u32 {
        self.limit.saturating_sub(self.len)
    }

    /// Octets of memory that the buffer pins, bookkeeping included.
    pub fn memory(&self) -> usize {
        self.memory + self.bufs.capacity() * size_of::<PktBuf>()
    }

    /// Appends the next data in order. A buffer whose data was moved into the one before goes to
    /// `pool`.
    #[inline]
    pub fn push(&mut self, mut buf: PktBuf, pool: &mut PktPool) {
        let n = buf.len();
        if n == 0 {
            return pool.put(buf);
        }
        self.len += n as u32;
        if let Some(tail) = self.bufs.back_mut()
            && tail.tail_room() > 0
            && (wasteful(&buf) || wasteful(tail))
        {
            let moved = tail.append(buf.as_slice());
            buf.trim_front(moved);
            if buf.is_empty() {
                return pool.put(buf);
            }
        }
        self.memory += buf.capacity();
        pool.reserve(&mut self.bufs, 1);
        self.bufs.push_back(buf);
    }

    /// Appends all of `run`, in order, as [`RcvBuf::push`] does one after the other.
    pub fn push_run(&mut self, run: &mut Vec<PktBuf>, pool: &mut PktPool) {
        // Full segments, nearly always.
        if !self.bufs.back().is_some_and(wasteful) && !run.iter().any(wasteful) {
            for buf in run.iter() {
                self.len += buf.len() as u32;
                self.memory += buf.capacity();
            }
            pool.reserve(&mut self.bufs, run.len());
            return self.bufs.extend(run.drain(..));
        }
        for buf in run.drain(..) {
            self.push(buf, pool);
        }
    }

    /// Moves whole buffers to the end of `out`, of at most `max` octets together; how many octets
    /// that was. What is left of `max` is for [`RcvBuf::pop`].
    pub fn pop_whole(&mut self, max: usize, out: &mut PktQueue, pool: &mut PktPool) -> usize {
        if self.len as usize <= max && out.is_empty() {
            // Nothing is moved but the queue itself.
            core::mem::swap(&mut self.bufs, out);
            let octets = self.len as usize;
            self.memory = 0;
            self.consumed(octets, pool);
            return octets;
        }
        let (mut n, mut octets, mut memory) = (0, 0, 0);
        for buf in &self.bufs {
            if octets + buf.len() > max {
                break;
            }
            n += 1;
            octets += buf.len();
            memory += buf.capacity();
        }
        pool.reserve(out, n);
        out.extend(self.bufs.drain(..n));
        self.memory -= memory;
        self.consumed(octets, pool);
        octets
    }

    /// Takes the next buffer out, or the first `max` octets of it ([`PktBuf::split_to`]). `None` if
    /// there is no data or `max` is 0.
    ///
    /// Moving buffers out lets the copy to the application happen outside any lock.
    pub fn pop(&mut self, max: usize, pool: &mut PktPool) -> Option<PktBuf> {
        let front = self.bufs.front_mut()?;
        let out = if front.len() <= max {
            let out = self.bufs.pop_front()?;
            self.memory -= out.capacity();
            out
        } else if max == 0 {
            return None;
        } else {
            self.memory -= front.capacity();
            let out = front.split_to(max);
            self.memory += front.capacity();
            out
        };
        self.consumed(out.len(), pool);
        Some(out)
    }

    /// Copies as much as fits into `out` and leaves the buffer as it is (MSG_PEEK).
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        for buf in &self.bufs {
            let n = buf.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&buf.as_slice()[..n]);
            filled += n;
            if filled == out.len() {
                break;
            }
        }
        filled
    }

    #[inline]
    fn consumed(&mut self, n: usize, pool: &mut PktPool) {
        self.len -= n as u32;
        if self.bufs.is_empty() {
            pool.put_queue(core::mem::take(&mut self.bufs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A received frame: 66 octets of headers, payload, room behind it.
    fn frame(payload: &[u8]) -> PktBuf {
        let mut b = PktBuf::with_capacity(2048);
        b.raw_mut()[66..66 + payload.len()].copy_from_slice(payload);
        b.set_window(66, payload.len());
        b
    }

    #[test]
    fn tiny_segments_pin_little() {
        let mut pool = PktPool::default();
        for n in [1, 7, 100, 700, 991, 1023, 1025, 1448] {
            let mut r = RcvBuf::new(1 << 20);
            while r.len() < 100_000 {
                r.push(frame(&vec![1; n]), &mut pool);
                r.push(frame(&[2]), &mut pool);
            }
            let bound = 23 * r.len() as usize / 10 + 2 * 2048;
            assert!(r.memory <= bound, "{n}: {} for {}", r.memory, r.len());
        }
    }

    #[test]
    fn an_emptied_buffer_comes_back() {
        let (mut r, mut pool) = (RcvBuf::new(1 << 20), PktPool::default());
        r.push(frame(b"abc"), &mut pool);
        assert!(pool.is_empty());
        r.push(frame(b"def"), &mut pool);
        assert_eq!(pool.len(), 1);
        r.push(frame(b""), &mut pool);
        assert_eq!(pool.len(), 2);
        assert!(r.memory() > 2048);
        assert_eq!(r.pop(100, &mut pool).expect("data").as_slice(), b"abcdef");
        assert_eq!((r.memory(), r.len()), (0, 0), "nor a queue");
        assert!(r.pop(100, &mut pool).is_none());
    }

    proptest! {
        #[test]
        fn agrees_with_a_flat_buffer(ops in prop::collection::vec((0u8..5, 0usize..2000), 1..200)) {
            let (mut r, mut pool) = (RcvBuf::new(1 << 20), PktPool::default());
            let mut model: Vec<u8> = Vec::new();
            let mut next = 0u8;
            for (op, n) in ops {
                match op {
                    0..=2 => {
                        let mut run = Vec::new();
                        for _ in 0..if op == 2 { 1 } else { 1 + n % 40 } {
                            let n = if op == 0 { n % 1449 } else { n % 50 };
                            let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                            next = next.wrapping_add(n as u8).wrapping_add(31);
                            model.extend_from_slice(&bytes);
                            run.push(frame(&bytes));
                        }
                        if run.len() == 1 {
                            r.push(run.remove(0), &mut pool);
                        } else {
                            r.push_run(&mut run, &mut pool);
                        }
                    }
                    3 => {
                        let mut got = Vec::new();
                        let mut whole = PktQueue::new();
                        let octets = r.pop_whole(n, &mut whole, &mut pool);
                        got.extend(whole.iter().flat_map(|b| b.as_slice().to_vec()));
                        prop_assert_eq!(got.len(), octets);
                        while let Some(b) = r.pop(n - got.len(), &mut pool) {
                            got.extend_from_slice(b.as_slice());
                        }
                        prop_assert_eq!(got.len(), n.min(model.len()));
                        let want: Vec<u8> = model.drain(..got.len()).collect();
                        prop_assert_eq!(got, want);
                    }
                    _ => {
                        let mut out = vec![0; n];
                        let saw = r.peek(&mut out);
                        prop_assert_eq!(saw, n.min(model.len()));
                        prop_assert_eq!(&out[..saw], &model[..saw]);
                    }
                }
                prop_assert_eq!(r.len() as usize, model.len());
                prop_assert_eq!(r.bufs.iter().map(PktBuf::capacity).sum::<usize>(), r.memory);
            }
        }
    }
}

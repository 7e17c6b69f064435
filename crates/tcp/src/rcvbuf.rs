//! The receive buffer: what has arrived in order and the application has not read.

use alloc::{collections::VecDeque, vec::Vec};

use perimeter_base::PktBuf;

/// Slots for buffers that an empty queue keeps, so that short exchanges don't allocate.
const IDLE_SLOTS: usize = 4;

/// Slots that a queue has beyond those: a burst's, at once.
const BURST_SLOTS: usize = 32;

/// Whether a buffer is pinned for less than half of itself: only then a copy is worth it.
#[inline]
fn wasteful(buf: &PktBuf) -> bool {
    buf.len() * 2 < buf.capacity()
}

/// A queue of packet buffers in the order of the stream.
///
/// Small segments are gathered into the tail room of the last buffer, so that the memory
/// pinned stays near twice the octets held, however they were cut. An empty buffer owns no
/// payload memory and, once it has been used, a queue of four slots.
#[derive(Debug, Default)]
pub struct RcvBuf {
    bufs: VecDeque<PktBuf>,
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

    /// Appends the next data in order. Returns the buffer, emptied, if its data was moved
    /// into the one before: it can be recycled.
    #[inline]
    pub fn push(&mut self, mut buf: PktBuf) -> Option<PktBuf> {
        let n = buf.len();
        if n == 0 {
            return Some(buf);
        }
        self.len += n as u32;
        if let Some(tail) = self.bufs.back_mut()
            && tail.tail_room() > 0
            && (wasteful(&buf) || wasteful(tail))
        {
            let moved = tail.append(buf.as_slice());
            buf.trim_front(moved);
            if buf.is_empty() {
                return Some(buf);
            }
        }
        self.memory += buf.capacity();
        if self.bufs.len() == self.bufs.capacity() {
            self.grow(self.bufs.len() + 1);
        }
        self.bufs.push_back(buf);
        None
    }

    /// Appends all of `run`, in order, as [`RcvBuf::push`] does one after the other; `recycle` gets
    /// the buffers that were emptied.
    pub fn push_run(&mut self, run: &mut Vec<PktBuf>, mut recycle: impl FnMut(PktBuf)) {
        // Full segments, nearly always.
        if !self.bufs.back().is_some_and(wasteful) && !run.iter().any(wasteful) {
            for buf in run.iter() {
                self.len += buf.len() as u32;
                self.memory += buf.capacity();
            }
            let slots = self.bufs.len() + run.len();
            if slots > self.bufs.capacity() {
                self.grow(slots);
            }
            return self.bufs.extend(run.drain(..));
        }
        for buf in run.drain(..) {
            if let Some(empty) = self.push(buf) {
                recycle(empty);
            }
        }
    }

    /// Makes room for `slots` buffers, and for some more.
    #[cold]
    fn grow(&mut self, slots: usize) {
        let wanted = match slots {
            n if n <= IDLE_SLOTS => IDLE_SLOTS,
            n if n <= BURST_SLOTS => BURST_SLOTS,
            _ => slots.max(2 * self.bufs.capacity()),
        };
        self.bufs.reserve_exact(wanted - self.bufs.len());
    }

    /// Moves whole buffers to the end of `out`, of at most `max` octets together; how many octets
    /// that was. What is left of `max` is for [`RcvBuf::pop`].
    pub fn pop_whole(&mut self, max: usize, out: &mut impl Extend<PktBuf>) -> usize {
        let (mut n, mut octets, mut memory) = (0, 0, 0);
        for buf in &self.bufs {
            if octets + buf.len() > max {
                break;
            }
            n += 1;
            octets += buf.len();
            memory += buf.capacity();
        }
        out.extend(self.bufs.drain(..n));
        self.memory -= memory;
        self.consumed(octets);
        octets
    }

    /// Takes the next buffer out, or the first `max` octets of it ([`PktBuf::split_to`]). `None` if
    /// there is no data or `max` is 0.
    ///
    /// Moving buffers out lets the copy to the application happen outside any lock.
    pub fn pop(&mut self, max: usize) -> Option<PktBuf> {
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
        self.consumed(out.len());
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

    /// Gives back the slots that an empty buffer keeps, for a connection that will hold no more
    /// data.
    pub fn shrink(&mut self) {
        if self.bufs.is_empty() {
            self.bufs = VecDeque::new();
        }
    }

    #[inline]
    fn consumed(&mut self, n: usize) {
        self.len -= n as u32;
        if self.bufs.is_empty() && self.bufs.capacity() > IDLE_SLOTS {
            self.bufs = VecDeque::new();
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
        for n in [1, 7, 100, 700, 991, 1023, 1025, 1448] {
            let mut r = RcvBuf::new(1 << 20);
            while r.len() < 100_000 {
                r.push(frame(&vec![1; n]));
                r.push(frame(&[2]));
            }
            let bound = 23 * r.len() as usize / 10 + 2 * 2048;
            assert!(r.memory <= bound, "{n}: {} for {}", r.memory, r.len());
        }
    }

    #[test]
    fn an_emptied_buffer_comes_back() {
        let mut r = RcvBuf::new(1 << 20);
        assert!(r.push(frame(b"abc")).is_none());
        assert!(r.push(frame(b"def")).is_some_and(|b| b.is_empty()));
        assert!(r.push(frame(b"")).is_some());
        assert_eq!(r.pop(100).expect("data").as_slice(), b"abcdef");
        assert_eq!((r.memory, r.len()), (0, 0));
        assert!(r.pop(100).is_none());
    }

    proptest! {
        #[test]
        fn agrees_with_a_flat_buffer(ops in prop::collection::vec((0u8..5, 0usize..2000), 1..200)) {
            let mut r = RcvBuf::new(1 << 20);
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
                            r.push(run.remove(0));
                        } else {
                            r.push_run(&mut run, drop);
                        }
                    }
                    3 => {
                        let mut got = Vec::new();
                        let mut whole: Vec<PktBuf> = Vec::new();
                        let octets = r.pop_whole(n, &mut whole);
                        got.extend(whole.iter().flat_map(|b| b.as_slice().to_vec()));
                        prop_assert_eq!(got.len(), octets);
                        while let Some(b) = r.pop(n - got.len()) {
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

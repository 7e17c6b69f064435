//! Buffers whose memory others have, too: what a wire hands on of another stack's send buffer.

use super::{PktBuf, Shape, Window};
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use core::ptr::NonNull;

/// Where [`PktBuf::at`] of such a buffer leads.
pub(super) struct Shared {
    bytes: Bytes,
    behind: Vec<Bytes>,
}

impl PktBuf {
    /// A buffer of memory that is shared, its window all of `bytes`; and what of the same frame is
    /// in other memory behind it. It is only read: who writes to it gets a copy of `bytes` first.
    ///
    /// # Panics
    /// 4 GiB or more.
    pub fn shared(bytes: Bytes, behind: Vec<Bytes>) -> PktBuf {
        let window = Window::new(0, bytes.len());
        let shape = Shape::shared(bytes.len());
        let at = Box::into_raw(Box::new(Shared { bytes, behind }));
        // SAFETY: a box is never null.
        let at = unsafe { NonNull::new_unchecked(at.cast::<u8>()) };
        PktBuf { at, shape, window }
    }

    #[inline]
    fn sharer(&self) -> Option<&Shared> {
        // SAFETY: of such a buffer it is a box of this, which lives as long as the buffer, and
        // changes only while that is borrowed exclusively.
        (self.shape.is_shared()).then(|| unsafe { self.at.cast().as_ref() })
    }

    /// Where shared memory is.
    #[cold]
    pub(super) fn shared_start(&self) -> *const u8 {
        self.sharer()
            .map_or(self.at.as_ptr().cast_const(), |s| s.bytes.as_ptr())
    }

    /// What of the frame is in other memory behind this.
    #[inline]
    pub fn behind(&self) -> &[Bytes] {
        self.sharer().map_or(&[], |s| &s.behind)
    }

    /// Takes off what is behind this.
    pub fn take_behind(&mut self) -> Vec<Bytes> {
        if !self.shape.is_shared() {
            return Vec::new();
        }
        // SAFETY: as in `sharer`, and borrowed exclusively.
        core::mem::take(unsafe { &mut self.at.cast::<Shared>().as_mut().behind })
    }

    /// Octets that are behind this.
    #[inline]
    pub fn behind_len(&self) -> usize {
        self.behind().iter().map(Bytes::len).sum()
    }

    /// Copies the window and what is behind it into memory of its own, where something is.
    #[inline(always)]
    pub fn join(&mut self) {
        if self.shape.is_shared() {
            self.join_shared();
        }
    }

    #[cold]
    fn join_shared(&mut self) {
        if !self.behind().is_empty() {
            let behind = self.behind().iter().map(|b| &b[..]);
            let all: Vec<&[u8]> = core::iter::once(self.as_slice()).chain(behind).collect();
            *self = PktBuf::from_vec(all.concat());
        }
    }

    /// The first `n` octets of the window, in memory of their own unless that is shared; they are
    /// the window's no more. The smaller side is copied.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> PktBuf {
        assert!(n <= self.len(), "so many octets");
        if let Some(s) = self.sharer() {
            let from = self.window.off();
            let first = PktBuf::shared(s.bytes.slice(from..from + n), Vec::new());
            self.trim_front(n);
            return first;
        }
        if n <= self.len() / 2 {
            let first = PktBuf::copy_of(&self.as_slice()[..n]);
            self.trim_front(n);
            return first;
        }
        let rest = PktBuf::copy_of(&self.as_slice()[n..]);
        let mut first = core::mem::replace(self, rest);
        first.truncate(n);
        first
    }

    /// Has memory of its own from here on, if it had not.
    #[cold]
    pub(super) fn own(&mut self) {
        debug_assert!(
            self.behind().is_empty(),
            "what is written to is in one piece"
        );
        let mut copy = PktBuf::copy_of(self.data());
        copy.window = self.window;
        *self = copy;
    }

    /// Lets go of memory that is shared.
    ///
    /// # Safety
    /// It is, and the buffer is used no more.
    pub(super) unsafe fn let_go(&mut self) {
        // SAFETY: it was a box of this, and is being dropped.
        drop(unsafe { Box::from_raw(self.at.cast::<Shared>().as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PktPool;
    use alloc::vec;

    #[test]
    fn shared_memory_is_where_it_was() {
        let page = Bytes::from(vec![7u8; 3000]);
        let mut b = PktBuf::shared(page.slice(100..2148), Vec::new());
        assert_eq!(b.as_slice().as_ptr(), page[100..].as_ptr());
        assert_eq!((b.len(), b.capacity(), b.tail_room()), (2048, 2048, 0));
        b.truncate(10);
        assert_eq!((b.tail_room(), b.append(b"more")), (0, 0));
        b.trim_front(4);
        assert_eq!((b.as_slice(), b.before(2)), (&[7; 6][..], None));
        assert!(!b.is_of_region());
        let b = b.into_vec().unwrap_err();
        // It looks like one of the pool's, and is none.
        let mut pool = PktPool::new(8);
        pool.put(b);
        assert!(pool.is_empty());
        assert!(page.is_unique(), "let go");
    }

    #[test]
    fn who_writes_gets_a_copy() {
        let page = Bytes::from(vec![7u8; 30]);
        let mut b = PktBuf::shared(page.clone(), Vec::new());
        b.trim_front(5);
        b.as_mut_slice()[0] = 9;
        assert_eq!(
            (b.as_slice()[0], b.len(), b.before(1)),
            (9, 25, Some(&[7][..]))
        );
        assert!(page.iter().all(|o| *o == 7) && page.is_unique());
        let mut b = PktBuf::shared(page.clone(), Vec::new());
        b.raw_mut()[0] = 9;
        assert_eq!((page[0], b.raw()[0]), (7, 9));
    }

    #[test]
    fn pieces_lie_behind_the_headers() {
        let page = Bytes::from(vec![7u8; 100]);
        let head = Bytes::from_static(b"head");
        let mut b = PktBuf::shared(head, vec![page.slice(..60), page.slice(60..)]);
        assert_eq!((b.as_slice(), b.behind().len()), (&b"head"[..], 2));
        assert_eq!(b.behind_len(), 100);
        let mut joined = PktBuf::shared(b.sharer().unwrap().bytes.clone(), b.behind().to_vec());
        joined.join();
        assert_eq!(
            (joined.len(), &joined.as_slice()[..5]),
            (104, &b"head\x07"[..])
        );
        assert!(joined.behind().is_empty());
        let at = joined.as_slice().as_ptr();
        joined.join();
        assert_eq!(joined.as_slice().as_ptr(), at, "it is in one piece");
        let pieces = b.take_behind();
        assert_eq!(pieces[1].as_ptr(), page[60..].as_ptr());
        assert!(b.behind().is_empty() && b.take_behind().is_empty());
        drop((b, pieces));
        assert!(page.is_unique());
        assert!(PktBuf::copy_of(b"x").take_behind().is_empty());
    }

    #[test]
    fn a_buffer_splits_in_two() {
        let page = Bytes::from_static(b"to be split");
        for shared in [false, true] {
            let mut b = match shared {
                true => PktBuf::shared(page.clone(), Vec::new()),
                false => PktBuf::copy_of(&page),
            };
            b.trim_front(3);
            let at = b.as_slice().as_ptr();
            let first = b.split_to(2);
            assert_eq!(
                (first.as_slice(), b.as_slice()),
                (&b"be"[..], &b" split"[..])
            );
            let most = b.split_to(5);
            assert_eq!((most.as_slice(), b.as_slice()), (&b" spli"[..], &b"t"[..]));
            let rest = b.split_to(1);
            assert_eq!((rest.as_slice(), b.len()), (&b"t"[..], 0));
            assert!(
                shared == (first.as_slice().as_ptr() == at),
                "shared or copied"
            );
        }
    }
}

//! One page of a send buffer.

use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;

/// A stretch of the stream in memory that never moves, and whose bytes never change.
#[derive(Debug)]
pub(super) enum Page {
    /// The application's, shared by reference.
    Shared(Bytes),
    /// Small writes, copied. Grows only within its capacity: descriptors refer to it.
    Owned(Vec<u8>),
    /// That, when others have got it too: it grows no more. With what it has cost from the beginning.
    Sealed(Box<(Bytes, usize)>),
}

impl Page {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Page::Shared(b) => b,
            Page::Owned(v) => v,
            Page::Sealed(s) => &s.0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Page::Shared(b) => b.len(),
            Page::Owned(v) => v.len(),
            Page::Sealed(s) => s.0.len(),
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Page::Shared(b) => b.len(),
            Page::Owned(v) => v.capacity(),
            Page::Sealed(s) => s.1,
        }
    }

    /// Its memory, for others to have as well: from here on it grows no more.
    pub(super) fn share(&mut self) -> Bytes {
        let memory = self.memory();
        let bytes = match self {
            Page::Shared(b) => return b.clone(),
            Page::Sealed(s) => return s.0.clone(),
            // The vector moves, its memory does not.
            Page::Owned(v) => Bytes::from_owner(core::mem::take(v)),
        };
        *self = Page::Sealed(Box::new((bytes.clone(), memory)));
        bytes
    }
}

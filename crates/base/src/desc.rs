//! Transmit descriptors: headers by value, payload by reference.
//!
//! A segment on its way out is its headers, written into the descriptor, and references into pages
//! ([`TxPages`](crate::TxPages)), any number of them; or a buffer that the descriptor owns. Only a
//! ring holds descriptors with references ([`TxStage`](crate::TxStage), [`TxRing`](crate::TxRing)),
//! and lends them out only to be read: so none is left when the ring's completion says so.

use crate::buf::PktBuf;
use alloc::{boxed::Box, vec::Vec};
use bytes::Bytes;
use core::ops::Deref;

/// Bytes of header room in a descriptor: Ethernet 14, IPv6 40, TCP 60, and a little slack.
pub const HEADERS: usize = 118;

/// A stretch of a page: an address and a length.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Part(*const u8, u32);

impl Part {
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8]) -> Part {
        Part(bytes.as_ptr(), bytes.len() as u32)
    }

    /// The bytes referred to.
    ///
    /// # Safety
    /// The page must be kept, and these bytes of it unchanged, for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: it was made from a slice of a page, which the caller knows to be kept.
        unsafe { core::slice::from_raw_parts(self.0, self.1 as usize) }
    }
}

/// References to stretches of pages, in order; two in place. As good as raw pointers, so nobody
/// outside this crate has any.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Parts {
    ptr: [*const u8; 2],
    len: [u32; 2],
    more: Option<Box<More>>,
}

/// Parts beyond the second; and, where a device hands on what it is given, the memory that all
/// parts are of, in order.
#[derive(Debug, Default)]
struct More {
    parts: Vec<Part>,
    pages: Vec<Bytes>,
}

// SAFETY: addresses and lengths; who reads through them must know that the pages are kept, which
// does not depend on the thread.
unsafe impl Send for Parts {}
// SAFETY: as for `Send`; the bytes behind them are never written while they are in use.
unsafe impl Sync for Parts {}

impl Default for Parts {
    #[inline]
    fn default() -> Parts {
        Parts {
            ptr: [core::ptr::NonNull::dangling().as_ptr(); 2],
            len: [0; 2],
            more: None,
        }
    }
}

impl Parts {
    #[inline(always)]
    fn reset(&mut self) {
        self.len = [0; 2];
        if self.more.is_some() {
            self.forget_more();
        }
    }

    #[cold]
    fn forget_more(&mut self) {
        self.more = None;
    }

    /// Sets one of the first two.
    #[inline(always)]
    pub(crate) fn set(&mut self, i: usize, bytes: &[u8]) {
        self.ptr[i] = bytes.as_ptr();
        self.len[i] = bytes.len() as u32;
    }

    /// Adds one at the end.
    #[cold]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if let Some(i) = self.len.iter().position(|len| *len == 0)
            && self.more.is_none()
        {
            return self.set(i, bytes);
        }
        self.more
            .get_or_insert_default()
            .parts
            .push(Part::new(bytes));
    }

    /// Adds one at the end, and keeps its memory for a device that hands it on. All of a
    /// descriptor's parts are such, or none.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        self.add(&bytes);
        self.more.get_or_insert_default().pages.push(bytes);
    }

    /// Takes the memory that all parts are of, if it is kept.
    #[inline]
    pub(crate) fn take_pages(&mut self) -> Vec<Bytes> {
        let more = self.more.as_deref_mut();
        more.map_or_else(Vec::new, |m| core::mem::take(&mut m.pages))
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == [0; 2]
    }

    #[inline(always)]
    fn total(&self) -> usize {
        let more = |m: &More| m.parts.iter().map(|p| p.1 as usize).sum();
        let rest = self.more.as_deref().map_or(0, more);
        self.len[0] as usize + self.len[1] as usize + rest
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Part {
        Part(self.ptr[i], self.len[i])
    }

    /// The bytes referred to.
    ///
    /// # Safety
    /// The pages must be kept, and these bytes of them unchanged, for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn bytes<'a>(&self) -> impl Iterator<Item = &'a [u8]> + use<'a, '_> {
        let more = self.more.as_deref().map_or(&[][..], |m| &m.parts);
        let parts = [self.get(0), self.get(1)];
        let all = parts.into_iter().chain(more.iter().copied());
        // SAFETY: the caller knows that they are kept.
        all.map(|part| unsafe { part.bytes() })
    }
}

/// What a device has to do to a frame.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where the checksummed region starts (0 means: nothing to do).
    pub csum_start: u8,
    /// Where the 16-bit checksum stands, counted from `csum_start`. The field holds the folded
    /// pseudo-header sum.
    pub csum_offset: u8,
    /// Payload of each segment that the device is to cut the frame into, bytes; 0: the frame is
    /// one segment. Only devices that announce large frames are given any.
    pub segment_size: u16,
}

/// What of a descriptor is there by value: everything but references to pages.
#[repr(C)]
pub struct TxHead {
    /// Payload that the descriptor owns, such as a received frame that is handed on or the stack's
    /// own; follows what it refers to.
    pub owned: Option<PktBuf>,
    /// Work left to the device.
    pub offload: Offload,
    /// How many bytes of `hdr` are valid.
    pub hdr_len: u8,
    /// Headers from the link layer up.
    pub hdr: [u8; HEADERS],
}

impl TxHead {
    /// Nothing.
    pub fn empty() -> TxHead {
        TxHead {
            owned: None,
            offload: Offload::default(),
            hdr_len: 0,
            hdr: [0; HEADERS],
        }
    }

    /// The valid header bytes.
    pub fn headers(&self) -> &[u8] {
        &self.hdr[..usize::from(self.hdr_len)]
    }
}

/// One frame to send.
#[repr(C, align(64))]
pub struct TxDesc {
    parts: Parts,
    head: TxHead,
}

// The first 67 bytes of headers, an acknowledgment with timestamps, end with the second line.
const _: () = assert!(size_of::<TxDesc>() == 192 && core::mem::offset_of!(TxDesc, head.hdr) == 61);

impl Deref for TxDesc {
    type Target = TxHead;

    #[inline(always)]
    fn deref(&self) -> &TxHead {
        &self.head
    }
}

impl TxDesc {
    /// A descriptor without payload.
    pub fn empty() -> TxDesc {
        TxDesc {
            parts: Parts::default(),
            head: TxHead::empty(),
        }
    }

    /// Forgets what it was before: only header bytes stay.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        self.parts.reset();
        self.head.owned = None;
        self.head.offload = Offload::default();
    }

    #[inline(always)]
    pub(crate) fn head_mut(&mut self) -> &mut TxHead {
        &mut self.head
    }

    #[inline(always)]
    pub(crate) fn payload_mut(&mut self) -> (&mut Parts, &mut Option<PktBuf>) {
        (&mut self.parts, &mut self.head.owned)
    }

    /// The payload's stretches, in order. The first two are there in any case, if need be empty.
    #[inline]
    pub fn payload(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: a descriptor with parts lies in a ring, among those that are not completed, for
        // as long as it is borrowed: parts are set through a `TxSlot`, a borrow of the ring that
        // ends before anybody reads, and rings never give a descriptor away. The pages that parts
        // refer to are kept until the ring's completion (`TxPages`, `Lease`).
        let parts = unsafe { self.parts.bytes() };
        parts.chain(self.head.owned.as_ref().map(PktBuf::as_slice))
    }

    /// Payload length in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.parts.total() + self.head.owned.as_ref().map_or(0, PktBuf::len)
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        usize::from(self.head.hdr_len) + self.payload_len()
    }
}

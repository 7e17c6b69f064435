//! Transmit descriptors: headers by value, payload by reference.
//!
//! A segment on its way out is its headers, written into the descriptor, and up to two
//! references into the application's pages. No reference is counted per segment. Instead each
//! transmit queue numbers its descriptors; whoever owns a page keeps it until the queue has
//! completed the last descriptor that could refer to it (see [`TxRing::ticket`]), exactly as a
//! driver does with a DMA engine.

use crate::buf::PktBuf;

/// Bytes of header room in a descriptor: Ethernet 14, IPv6 40, TCP 60, and a little slack.
pub const HEADERS: usize = 118;

/// A reference to payload that outlives the borrow it was made from: an address and a length, of
/// no more use than a raw pointer until [`TxDesc::refer`] places it in a descriptor.
#[derive(Copy, Clone, Debug)]
pub struct Part {
    ptr: *const u8,
    len: u32,
}

// SAFETY: a `Part` is an address and a length; reading through it is unsafe and bound to the
// completion rule above, which does not depend on the thread.
unsafe impl Send for Part {}
// SAFETY: as for `Send`; the memory behind it is never written while a `Part` exists.
unsafe impl Sync for Part {}

impl Part {
    /// Refers to nothing.
    pub const EMPTY: Part = Part {
        ptr: core::ptr::NonNull::dangling().as_ptr(),
        len: 0,
    };

    /// Refers to `bytes`. Whoever places it in a descriptor ([`TxDesc::refer`]) promises that
    /// they stay where they are until the descriptor completes.
    pub fn new(bytes: &[u8]) -> Part {
        Part {
            ptr: bytes.as_ptr(),
            len: bytes.len() as u32,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it refers to nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for a device that only passes it on (or models one that does).
    pub fn addr(&self) -> *const u8 {
        self.ptr
    }

    /// The bytes referred to.
    ///
    /// # Safety
    /// The descriptor must not have been completed: call only from a device, on descriptors
    /// that it took from the ring and has not yet completed.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller holds an uncompleted descriptor, so by the completion rule the
        // page is still owned and unchanged.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) }
    }
}

/// What a device has to do to a frame.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where the checksummed region starts (0 means: nothing to do).
    pub csum_start: u16,
    /// Where the 16-bit checksum stands, counted from `csum_start`. The field holds the folded
    /// pseudo-header sum.
    pub csum_offset: u16,
}

/// One frame to send.
#[repr(C, align(64))]
pub struct TxDesc {
    /// Payload references, in order; unused ones are empty. Devices read through them without
    /// asking, so that only [`TxDesc::refer`] sets them.
    parts: [Part; 2],
    /// Payload that could not be referred to (it lies in more than two pages, or is the
    /// stack's own); follows `parts`.
    pub owned: Option<PktBuf>,
    /// Checksum work left to the device.
    pub offload: Offload,
    /// How many bytes of `hdr` are valid.
    pub hdr_len: u8,
    /// Headers from the link layer up.
    pub hdr: [u8; HEADERS],
}

impl TxDesc {
    /// An empty descriptor.
    pub fn empty() -> TxDesc {
        TxDesc {
            parts: [Part::EMPTY; 2],
            owned: None,
            offload: Offload::default(),
            hdr_len: 0,
            hdr: [0; HEADERS],
        }
    }

    /// Refers to payload that is not copied: at most two stretches, in order.
    ///
    /// # Safety
    /// The bytes behind `parts` must neither move, change nor be freed until the queue that the
    /// descriptor is placed in has completed it, or the descriptor is dropped without a doorbell.
    /// The stack guarantees it so: a connection's send buffer gives up an acknowledged page only
    /// after the queue's completion has passed the connection's last ticket
    /// ([`TxRing::ticket`]), and a dropped stack drops its devices first.
    ///
    /// Without the promise, a program in safe code would read freed memory:
    ///
    /// ```compile_fail,E0133
    /// # #![forbid(unsafe_code)]
    /// use perimeter_base::{Part, TxRing};
    /// let mut ring = TxRing::new(1);
    /// let page = vec![7u8; 64];
    /// ring.push().unwrap().refer([Part::new(&page), Part::EMPTY]);
    /// drop(page); // and now a doorbell
    /// ```
    ///
    /// Nor can the references be set behind its back:
    ///
    /// ```compile_fail,E0616
    /// # use perimeter_base::{Part, TxRing};
    /// # let mut ring = TxRing::new(1);
    /// # let page = vec![7u8; 64];
    /// ring.push().unwrap().parts[0] = Part::new(&page);
    /// ```
    #[inline(always)]
    pub unsafe fn refer(&mut self, parts: [Part; 2]) {
        self.parts = parts;
    }

    /// The payload references, in order; unused ones are empty.
    #[inline(always)]
    pub fn parts(&self) -> &[Part; 2] {
        &self.parts
    }

    /// The valid header bytes.
    pub fn headers(&self) -> &[u8] {
        &self.hdr[..usize::from(self.hdr_len)]
    }

    /// Payload length in bytes.
    pub fn payload_len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len() + self.owned.as_ref().map_or(0, PktBuf::len)
    }

    /// Length of the whole frame in bytes.
    pub fn frame_len(&self) -> usize {
        usize::from(self.hdr_len) + self.payload_len()
    }
}

/// One transmit queue's descriptors between the stack and the device.
///
/// The stack appends inside its protection; the device consumes at the doorbell. Tickets count
/// descriptors from the queue's beginning.
pub struct TxRing {
    slots: Vec<TxDesc>,
    /// The oldest waiting descriptor. Descriptors do not wrap around: a ring that the device
    /// consumes in parts is filled again only when it is empty.
    head: usize,
    used: usize,
    first_ticket: u64,
}

impl TxRing {
    /// A ring of `capacity` descriptors.
    pub fn new(capacity: usize) -> TxRing {
        let mut slots = Vec::with_capacity(capacity);
        slots.resize_with(capacity, TxDesc::empty);
        TxRing {
            slots,
            head: 0,
            used: 0,
            first_ticket: 0,
        }
    }

    /// How many descriptors it can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many descriptors wait for the device.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many more fit now.
    pub fn room(&self) -> usize {
        self.slots.len() - self.head - self.used
    }

    /// The next free descriptor, to be filled; `None` when the ring is full. It counts as
    /// placed at once. Its header bytes are stale, its payload is empty.
    #[inline]
    pub fn push(&mut self) -> Option<&mut TxDesc> {
        let d = self.slots.get_mut(self.head + self.used)?;
        self.used += 1;
        d.parts = [Part::EMPTY; 2];
        d.owned = None;
        d.offload = Offload::default();
        Some(d)
    }

    /// The ticket after the last descriptor placed. A page referred to by descriptors placed
    /// so far may go once the queue's completion count has reached this.
    pub fn ticket(&self) -> u64 {
        self.first_ticket + self.used as u64
    }

    /// The descriptors that wait, oldest first.
    pub fn pending(&mut self) -> &mut [TxDesc] {
        &mut self.slots[self.head..self.head + self.used]
    }

    /// Removes the first `n` waiting descriptors, keeping the order of the rest.
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.used);
        self.used -= n;
        self.head = if self.used == 0 { 0 } else { self.head + n };
        self.first_ticket += n as u64;
    }

    /// Removes all waiting descriptors.
    pub fn clear(&mut self) {
        self.first_ticket += self.used as u64;
        self.head = 0;
        self.used = 0;
    }

    /// Hands the waiting descriptors over for a fresh, empty ring of the same queue:
    /// `spare` must be empty. Appending can then go on while the device reads.
    pub fn swap_out(&mut self, spare: &mut TxRing) {
        debug_assert!(spare.is_empty());
        spare.first_ticket = self.ticket();
        core::mem::swap(self, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(r: &mut TxRing, tag: u8) {
        let d = r.push().expect("room");
        d.hdr[0] = tag;
        d.hdr_len = 1;
    }

    #[test]
    fn tickets_count_across_consumption_and_swaps() {
        let mut r = TxRing::new(4);
        let mut spare = TxRing::new(4);
        for t in 0..3 {
            place(&mut r, t);
        }
        assert_eq!((r.ticket(), r.room()), (3, 1));
        r.consume(1);
        assert_eq!(r.pending()[0].hdr[0], 1);
        assert_eq!((r.ticket(), r.len()), (3, 2));
        r.swap_out(&mut spare);
        assert!(r.is_empty());
        assert_eq!((r.ticket(), spare.ticket(), spare.len()), (3, 3, 2));
        place(&mut r, 9);
        assert_eq!(r.ticket(), 4);
        spare.clear();
        assert_eq!(spare.ticket(), 3);
    }

    #[test]
    fn a_full_ring_refuses() {
        let mut r = TxRing::new(1);
        place(&mut r, 0);
        assert!(r.push().is_none());
    }

    #[test]
    fn a_descriptor_adds_up_its_parts() {
        let page = [7u8; 100];
        let mut d = TxDesc::empty();
        d.hdr_len = 54;
        // SAFETY: `page` outlives the descriptor.
        unsafe { d.refer([Part::new(&page[..60]), Part::new(&page[60..])]) };
        d.owned = Some(PktBuf::copy_of(b"xy"));
        assert_eq!(d.frame_len(), 54 + 102);
        // SAFETY: `page` is alive and unchanged.
        assert_eq!(unsafe { d.parts[1].bytes() }, &page[60..]);
    }
}

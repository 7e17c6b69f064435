//! Receive buffers: owned, movable, recycled through a [pool](crate::pool) that one core owns.

use alloc::{boxed::Box, vec, vec::Vec};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use crate::region;

mod shared;

/// Capacity of a pooled buffer, in bytes: an MTU-1500 frame with room to spare.
pub const POOLED: usize = 2048;

/// Capacity of a pooled buffer for jumbo frames, in bytes: an MTU of 9216 with room to spare.
pub const POOLED_JUMBO: usize = 9 * 1024 + 256;

/// Capacity of a pooled buffer for large segments, in bytes: the largest IP datagram with room to
/// spare.
pub const POOLED_LARGE: usize = 64 * 1024 + 128;

/// All capacities of pooled buffers, in bytes. Each is about twice the one before, so that a frame
/// fills about half or more of the smallest that has room for it: what fills less than half, receive
/// buffers copy.
pub(crate) const CAPACITIES: [usize; 6] = [
    POOLED,
    POOLED_JUMBO / 2,
    POOLED_JUMBO,
    2 * POOLED_JUMBO,
    34 * 1024,
    POOLED_LARGE,
];

/// The capacity, in bytes, of a buffer for frames of up to `len` bytes: the least that pools keep, or
/// `len` where that is more than any.
#[inline]
pub fn roomy(len: usize) -> usize {
    let pooled = CAPACITIES.into_iter().find(|c| len <= *c);
    pooled.unwrap_or(len)
}

/// Which bytes of a buffer are of interest: the first one's place, and behind it how many.
///
/// One word, always written whole. A buffer is moved soon after its window was set, which reads the
/// word: were it written in halves, a processor could not take the value from its store buffer, and
/// would wait until all earlier stores, often a frame's copy into another core's lines, are done.
#[derive(Clone, Copy, Default)]
struct Window(u64);

impl Window {
    fn new(off: usize, len: usize) -> Window {
        Window(off as u64 | (len as u64) << 32)
    }

    fn off(self) -> usize {
        self.0 as u32 as usize
    }

    fn len(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn range(self) -> core::ops::Range<usize> {
        self.off()..self.off() + self.len()
    }
}

/// What kind of memory a buffer has, and how much.
///
/// One word for the same reason as [`Window`]: its length, and above that its
/// [origin](region::Origin), or zero for memory of the heap, or [`Shape::SHARED`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    /// In place of an origin: memory that others have, too. No region has this bit, which is looked
    /// at most quickly.
    const SHARED: u64 = 1 << 63;

    fn heap(len: usize) -> Shape {
        assert!(len <= u32::MAX as usize, "a packet buffer has below 4 GiB");
        Shape(len as u64)
    }

    fn shared(len: usize) -> Shape {
        Shape(Shape::SHARED | Shape::heap(len).0)
    }

    #[inline(always)]
    fn is_shared(self) -> bool {
        self.0 & Shape::SHARED != 0
    }

    fn len(self) -> usize {
        self.0 as u32 as usize
    }

    fn is_heap(self) -> bool {
        self.0 <= u64::from(u32::MAX)
    }

    fn origin(self) -> region::Origin {
        region::Origin((self.0 >> 32) as u32)
    }
}

/// An owned packet buffer and the window of it that is still of interest.
///
/// A received frame travels in one of these from the device to the socket without a copy:
/// each layer narrows the window. Its memory is the heap's, or a frame of a device's
/// [region], or [shared](PktBuf::shared). Dropping one frees it, or gives the frame back to the
/// device; the fast path gives the heap's back to the core's [`PktPool`](crate::PktPool) instead.
pub struct PktBuf {
    /// The heap's: of a boxed slice as long as `shape` says. A region's: the start of a frame that
    /// nobody else refers to. Shared: of a box that says where it is.
    at: NonNull<u8>,
    shape: Shape,
    /// Within the memory, always.
    window: Window,
}

// SAFETY: an owner of octets, like a boxed slice; frames of a region may be dropped on any thread.
unsafe impl Send for PktBuf {}
// SAFETY: shared, it only gives out shared slices of octets.
unsafe impl Sync for PktBuf {}

impl PktBuf {
    fn new(memory: Box<[u8]>, window: Window) -> PktBuf {
        let shape = Shape::heap(memory.len());
        // SAFETY: a box is never null.
        let at = unsafe { NonNull::new_unchecked(Box::into_raw(memory).cast::<u8>()) };
        PktBuf { at, shape, window }
    }

    /// A zeroed buffer of `capacity` bytes with an empty window at its start.
    ///
    /// # Panics
    /// 4 GiB or more.
    pub fn with_capacity(capacity: usize) -> PktBuf {
        PktBuf::new(vec![0; capacity].into_boxed_slice(), Window::default())
    }

    /// A buffer that holds a copy of `bytes`.
    ///
    /// # Panics
    /// As for [`PktBuf::with_capacity`].
    pub fn copy_of(bytes: &[u8]) -> PktBuf {
        PktBuf::new(bytes.into(), Window::new(0, bytes.len()))
    }

    /// Bytes as they are, without a copy; memory beyond them is given back.
    ///
    /// # Panics
    /// As for [`PktBuf::with_capacity`].
    pub fn from_vec(bytes: Vec<u8>) -> PktBuf {
        let len = bytes.len();
        PktBuf::new(bytes.into_boxed_slice(), Window::new(0, len))
    }

    /// A frame of a region, with an empty window.
    ///
    /// # Safety
    /// The `len` octets from `at` are initialised, a frame of the region that `origin` leads to
    /// from `at` (see there), counted as out; and nobody else refers to them until it is dropped.
    pub(crate) unsafe fn of_region(at: NonNull<u8>, len: u32, origin: region::Origin) -> PktBuf {
        debug_assert!(origin.0 != 0 && origin.0 >> 31 == 0);
        PktBuf {
            at,
            shape: Shape(u64::from(origin.0) << 32 | u64::from(len)),
            window: Window::default(),
        }
    }

    /// The frame and the region it is of, for whoever takes it over; itself, if the heap's.
    pub(crate) fn into_region(self) -> Result<(NonNull<u8>, region::Origin), PktBuf> {
        if !self.is_of_region() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        Ok((this.at, this.shape.origin()))
    }

    /// The boxed slice that memory of the heap was.
    #[inline(always)]
    fn boxed(&self) -> *mut [u8] {
        core::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.shape.len())
    }

    /// Where the memory starts.
    #[inline(always)]
    fn start(&self) -> *const u8 {
        match self.shape.is_shared() {
            true => self.shared_start(),
            false => self.at.as_ptr(),
        }
    }

    #[inline(always)]
    fn data(&self) -> &[u8] {
        // SAFETY: memory that this buffer owns or shares, initialised, as long as its shape says.
        unsafe { core::slice::from_raw_parts(self.start(), self.shape.len()) }
    }

    #[inline(always)]
    fn data_mut(&mut self) -> &mut [u8] {
        if self.shape.is_shared() {
            self.own();
        }
        // SAFETY: as in `data`, not shared, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.shape.len()) }
    }

    /// Frees what is not empty.
    #[inline(never)]
    fn free(&mut self) {
        if self.shape.is_heap() {
            // SAFETY: it was a box of this length, and is used no more: it is being dropped.
            drop(unsafe { Box::from_raw(self.boxed()) });
        } else if self.shape.is_shared() {
            // SAFETY: it is shared, and is being dropped.
            unsafe { self.let_go() };
        } else {
            // SAFETY: a frame as `of_region` asks for, which nobody uses any more.
            unsafe { region::give_back(self.at, self.shape.origin()) };
        }
    }

    /// Whether its memory is the heap's, of `capacity` octets.
    #[inline]
    pub(crate) fn is_heap_of(&self, capacity: usize) -> bool {
        self.shape == Shape(capacity as u64)
    }

    /// Whether its memory is a frame of a device's region, which the device will want back.
    #[inline]
    pub fn is_of_region(&self) -> bool {
        !self.shape.is_heap() && !self.shape.is_shared()
    }

    /// Bytes of memory that this buffer pins, whatever its window; where that is shared, what it was
    /// made of.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shape.len()
    }

    /// Length of the window.
    #[inline]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether the window is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in the window.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the window is within the memory, which `data` says all about.
        unsafe {
            core::slice::from_raw_parts(self.start().add(self.window.off()), self.window.len())
        }
    }

    /// The `n` bytes in front of the window, such as headers that [`PktBuf::trim_front`] has
    /// dropped; `None`: there are fewer, or the memory is shared.
    pub fn before(&self, n: usize) -> Option<&[u8]> {
        if self.shape.is_shared() {
            return None;
        }
        let end = self.window.off();
        self.data().get(end.checked_sub(n)?..end)
    }

    /// The memory from `n` bytes in front of the window to its end, which is mostly far behind the
    /// window's: what lies there is whatever the last user left. `None`: there are fewer in front,
    /// or the memory is shared.
    #[inline]
    pub fn onward(&self, n: usize) -> Option<&[u8]> {
        if self.shape.is_shared() {
            return None;
        }
        self.data().get(self.window.off().checked_sub(n)?..)
    }

    /// The bytes in the window, to change.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let window = self.window.range();
        &mut self.data_mut()[window]
    }

    /// The whole memory, for a device to fill; follow with [`PktBuf::set_window`].
    #[inline]
    pub fn raw_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    /// The whole memory.
    #[inline]
    pub fn raw(&self) -> &[u8] {
        self.data()
    }

    /// Sets the window to `len` bytes from `off`, clamped to the memory.
    #[inline]
    pub fn set_window(&mut self, off: usize, len: usize) {
        let off = off.min(self.shape.len());
        self.window = Window::new(off, len.min(self.shape.len() - off));
    }

    /// Drops `n` bytes from the front of the window (all of it when there are fewer).
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        let n = n.min(self.len());
        self.window = Window::new(self.window.off() + n, self.len() - n);
    }

    /// Takes back the `n` bytes in front of the window, as [`PktBuf::trim_front`] has left them there
    /// (as many as there are when there are fewer).
    #[inline]
    pub fn widen_front(&mut self, n: usize) {
        let n = n.min(self.window.off());
        self.window = Window::new(self.window.off() - n, self.len() + n);
    }

    /// Keeps the first `n` bytes of the window (all of it when there are fewer).
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.window = Window::new(self.window.off(), n.min(self.len()));
    }

    /// The memory of a buffer whose window begins where it does, with nothing copied; another
    /// one comes back.
    ///
    /// # Errors
    /// The window begins further behind, or the memory is a device's or shared.
    pub fn into_vec(self) -> Result<Vec<u8>, PktBuf> {
        if self.window.off() > 0 || !self.shape.is_heap() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: it was a box of this length, and is not dropped here.
        let mut bytes = unsafe { Box::from_raw(this.boxed()) }.into_vec();
        bytes.truncate(this.window.len());
        Ok(bytes)
    }

    /// Room behind the window, in bytes; none in memory that is shared.
    pub fn tail_room(&self) -> usize {
        match self.shape.is_shared() {
            true => 0,
            false => self.shape.len() - self.window.range().end,
        }
    }

    /// Appends as much of `bytes` as fits behind the window; returns how much that was.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.tail_room());
        if n == 0 {
            return 0;
        }
        let end = self.window.range().end;
        self.data_mut()[end..end + n].copy_from_slice(&bytes[..n]);
        self.window = Window::new(self.window.off(), self.len() + n);
        n
    }
}

impl Default for PktBuf {
    /// A buffer without memory.
    fn default() -> PktBuf {
        PktBuf::new(Box::default(), Window::default())
    }
}

impl Drop for PktBuf {
    #[inline]
    fn drop(&mut self) {
        if self.shape.0 != 0 {
            self.free();
        }
    }
}

impl fmt::Debug for PktBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PktBuf({}+{} of {})",
            self.window.off(),
            self.len(),
            self.shape.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_never_leaves_the_memory() {
        let mut b = PktBuf::copy_of(b"hello world");
        assert_eq!((b.before(0), b.before(1)), (Some(&b""[..]), None));
        b.trim_front(6);
        assert_eq!(b.as_slice(), b"world");
        assert_eq!(b.before(6), Some(&b"hello "[..]));
        assert_eq!((b.before(2), b.before(7)), (Some(&b"o "[..]), None));
        b.truncate(1);
        assert_eq!((b.onward(2), b.onward(7)), (Some(&b"o world"[..]), None));
        b.widen_front(2);
        assert_eq!(b.as_slice(), b"o w");
        b.widen_front(100);
        assert_eq!(b.as_slice(), b"hello w");
        b.trim_front(6);
        b.set_window(6, 5);
        b.truncate(100);
        assert_eq!(b.len(), 5);
        b.trim_front(100);
        assert!(b.is_empty());
        b.set_window(4, 1000);
        assert_eq!(b.as_slice(), b"o world");
        b.set_window(1000, 1);
        assert!(b.is_empty());
    }

    #[test]
    fn memory_comes_out_as_it_is() {
        let mut b = PktBuf::copy_of(b"hello");
        b.truncate(4);
        let at = b.as_slice().as_ptr();
        let bytes = b.into_vec().unwrap();
        assert_eq!((&bytes[..], bytes.as_ptr()), (&b"hell"[..], at));
        let mut b = PktBuf::copy_of(b"hello");
        b.trim_front(1);
        assert_eq!(b.into_vec().unwrap_err().as_slice(), b"ello");
    }

    #[test]
    fn append_stops_at_the_end() {
        let mut b = PktBuf::with_capacity(8);
        assert_eq!(b.append(b"12345"), 5);
        assert_eq!(b.append(b"6789"), 3);
        assert_eq!(b.as_slice(), b"12345678");
        assert_eq!(b.tail_room(), 0);
    }
}

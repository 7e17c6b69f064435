//! Memory that a device shares with the host's kernel, or with hardware: frames of one size in one
//! region, divided into stocks.
//!
//! A frame is in one of three places. At *home*, in its stock; with the *kernel*, which reads or
//! writes it ([`Stock::give`], [`Stock::lend`]); or *out*, as a [`PktBuf`], which travels through
//! the stack like any other and comes home when it is dropped, on whatever thread. [`Stock`] knows
//! which, so a frame can't be in two of them, whatever safe code does and whatever number a kernel
//! names.
//!
//! The region's memory is given back when all of its stocks are gone and no frame is out. Nothing
//! is counted per frame across threads but the return itself: a stock counts for itself what it
//! lets out, and what has come home; only when it goes does it tell the frames that are out, the
//! last of which takes the region along.

use crate::atomics::{Arc, AtomicU32, AtomicUsize, List, Ordering};
use crate::buf::PktBuf;
use alloc::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// Octets at the start of a region that are no frames, and that no kernel is told of: where a
/// frame finds what it belongs to. A page, so that frames begin at one.
pub const HEAD: usize = 4096;

/// The head of a list of frames that came home: none, or the stock has gone. Else a frame's number
/// and one.
const NONE: u32 = 0;
const CLOSED: u32 = u32::MAX;

/// What leads from a frame's address to its region and stock: the logarithm of the region's
/// alignment in the lowest 8 bits, never 0, and the stock's number above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(pub(crate) u32);

impl Origin {
    fn new(stock: usize, log: u32) -> Origin {
        Origin((stock as u32) << 8 | log)
    }

    fn stock(self) -> usize {
        (self.0 >> 8) as usize
    }

    fn align(self) -> usize {
        1 << (self.0 & 0xff)
    }
}

/// Memory for a region, and how it is given back.
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

// SAFETY: an owner of octets; who gives them back may do so on any thread.
unsafe impl Send for Memory {}
// SAFETY: shared, it gives out nothing.
unsafe impl Sync for Memory {}

impl Memory {
    /// Octets that somebody else has allocated; `release` gives them back.
    ///
    /// # Safety
    /// Until `release` is called, the `len` octets from `at` are initialised, may be read and
    /// written by one pointer derived from `at`, and nobody else refers to them but a kernel that
    /// accesses frames only while it has them. `at` is aligned to `len`, rounded up to a power of
    /// two.
    pub unsafe fn new(
        at: NonNull<u8>,
        len: usize,
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Memory {
        Memory {
            at,
            len,
            release: Some(Box::new(release)),
        }
    }

    /// Memory of the heap, for a region that no kernel is told of.
    ///
    /// # Panics
    /// It is empty, or there is no such alignment.
    pub fn heap(len: usize) -> Memory {
        assert!(len > 0, "a region is not empty");
        let layout = core::alloc::Layout::from_size_align(len, len.next_power_of_two());
        let layout = layout.expect("a possible alignment");
        // SAFETY: not of size 0.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else {
            handle_alloc_error(layout)
        };
        struct Owner(NonNull<u8>);
        // SAFETY: an owner of octets.
        unsafe impl Send for Owner {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for Owner {}
        let owner = Owner(at);
        let release = move || {
            let owner = owner;
            // SAFETY: allocated above with this layout, and given back once.
            unsafe { dealloc(owner.0.as_ptr(), layout) }
        };
        // SAFETY: allocated above, zeroed, aligned as asked, and nobody else's.
        unsafe { Memory::new(at, len, release) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// All of it. Kept by its stocks, and by frames of stocks that are gone.
struct Region {
    stocks: Box<[Returns]>,
    frame: usize,
    memory: Memory,
}

impl Region {
    fn log(&self) -> u32 {
        self.memory.len.next_power_of_two().trailing_zeros()
    }

    /// Where frame `n` of the region begins.
    fn at(&self, n: usize) -> NonNull<u8> {
        let off = HEAD + n * self.frame;
        debug_assert!(off + self.frame <= self.memory.len);
        // SAFETY: within the memory, as all numbers are below the number of frames.
        unsafe { self.memory.at.add(off) }
    }

    /// A frame of stock `stock` comes home. If it was the last of those that were out, and its
    /// stock has gone, the region comes along.
    fn came_home(&self, at: NonNull<u8>, stock: usize) -> Option<Arc<Region>> {
        let mine = &self.stocks[stock];
        let off = at.as_ptr().addr() - self.memory.at.as_ptr().addr() - HEAD;
        let n = off / self.frame - mine.first;
        let order = Ordering::Release;
        #[cfg(loom)]
        let order = match crate::planted::is(crate::planted::Bug::FrameReturnsUnordered) {
            true => Ordering::Relaxed,
            false => order,
        };
        let mut head = mine.head.load(Ordering::Relaxed);
        while head != CLOSED {
            mine.next[n].store(head, Ordering::Relaxed);
            let new = n as u32 + 1;
            match mine
                .head
                .compare_exchange_weak(head, new, order, Ordering::Relaxed)
            {
                Ok(_) => return None,
                Err(other) => head = other,
            }
        }
        mine.settle(1)
    }
}

/// What other threads know of a stock; on lines of its own.
#[repr(align(128))]
struct Returns {
    /// The number of its first frame within the region.
    first: usize,
    /// The frame that came home last, [`NONE`] or [`CLOSED`].
    head: AtomicU32,
    /// Of each frame that came home, the one before.
    next: Box<[AtomicU32]>,
    /// Once the stock has gone: frames that are out. Before, and while it goes, wrapped below 0.
    left: AtomicUsize,
    /// The region, for the last of them.
    keep: List<Arc<Region>>,
}

impl Returns {
    /// `n` frames fewer are out; the region, if that was the last.
    fn settle(&self, n: usize) -> Option<Arc<Region>> {
        // Whoever frees the region comes after all that others did to its frames.
        let order = Ordering::AcqRel;
        #[cfg(loom)]
        let order = match crate::planted::is(crate::planted::Bug::RegionGoesUnordered) {
            true => Ordering::Relaxed,
            false => order,
        };
        let before = self.left.fetch_sub(n, order);
        (before == n).then(|| self.keep())?
    }

    fn keep(&self) -> Option<Arc<Region>> {
        self.keep.lock().pop()
    }

    /// Frames of the list that begins with `head`, each once.
    fn list(&self, head: u32) -> impl Iterator<Item = u32> {
        let mut at = head;
        core::iter::from_fn(move || {
            let n = at.checked_sub(1)?;
            at = self.next[n as usize].load(Ordering::Relaxed);
            Some(n)
        })
    }
}

/// Takes back a frame that was out.
///
/// # Safety
/// `at` is a frame's, of the region that `origin` says, and out; nobody refers to it any more.
pub(crate) unsafe fn give_back(at: NonNull<u8>, origin: Origin) {
    let start = at.as_ptr().map_addr(|a| a & !(origin.align() - 1));
    // SAFETY: that is the region's first octet, where the address of `Region` was written before
    // any frame went out; `at` was derived from a pointer to all of the memory. It is aligned.
    let region = unsafe { start.cast::<*const Region>().read() };
    // SAFETY: the region is kept while a frame is out, by its stock or in `keep`.
    let last = unsafe { (*region).came_home(at, origin.stock()) };
    // Only now: the region itself may go with it.
    drop(last);
}

/// Frames of a region, of which one queue of a device has charge.
///
/// A frame that it gives to a kernel is named by an offset from [`Stock::frames`].
pub struct Stock {
    region: Arc<Region>,
    index: usize,
    /// Its frames by number: those at home.
    home: Vec<u32>,
    /// Whether the kernel has it, by number.
    lent: Vec<bool>,
    /// How many are out, of which some may have come home without having been looked at.
    out: usize,
}

/// Divides memory into frames of `frame` octets, and these into stocks of so many frames each.
///
/// # Panics
/// `frame` is no power of two from 64 to 65,536, there are more than 2^24 stocks, or the memory is
/// smaller than [`size`].
pub fn divide(memory: Memory, frame: usize, stocks: &[usize]) -> Vec<Stock> {
    assert!(frame.is_power_of_two() && (64..=1 << 16).contains(&frame));
    let frames = stocks.iter().sum::<usize>();
    assert!(stocks.len() < 1 << 24 && frames < CLOSED as usize);
    assert!(memory.len >= size(frame, frames), "room for all frames");
    let align = memory.len.next_power_of_two();
    assert!(memory.at.as_ptr().addr().is_multiple_of(align));
    let mut first = 0;
    let returns = stocks.iter().map(|&n| {
        first += n;
        Returns {
            first: first - n,
            head: AtomicU32::new(NONE),
            next: (0..n).map(|_| AtomicU32::new(NONE)).collect(),
            left: AtomicUsize::new(0),
            keep: List::new(),
        }
    });
    let region = Arc::new(Region {
        stocks: returns.collect(),
        frame,
        memory,
    });
    let to: *const Region = &raw const *region;
    // SAFETY: the memory's first octets, which are no frame; aligned, and large enough.
    unsafe { region.memory.at.cast::<*const Region>().write(to) };
    let stock = |(index, &n): (usize, &usize)| Stock {
        region: region.clone(),
        index,
        home: (0..n as u32).rev().collect(),
        lent: vec![false; n],
        out: 0,
    };
    stocks.iter().enumerate().map(stock).collect()
}

/// Octets that a region of so many frames of `frame` octets takes.
pub const fn size(frame: usize, frames: usize) -> usize {
    HEAD + frame * frames
}

impl Stock {
    fn returns(&self) -> &Returns {
        &self.region.stocks[self.index]
    }

    /// Octets of a frame.
    pub fn frame(&self) -> usize {
        self.region.frame
    }

    /// Where the frames of all stocks of the region are, for a kernel to be told. It may access
    /// those that it is given, while it has them.
    pub fn frames(&self) -> *mut [u8] {
        let memory = &self.region.memory;
        core::ptr::slice_from_raw_parts_mut(self.region.at(0).as_ptr(), memory.len - HEAD)
    }

    /// How many frames it has charge of.
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// How many are at home, of those that have been looked at.
    #[inline]
    pub fn home(&self) -> usize {
        self.home.len()
    }

    /// How many are out: all that are not at home nor with the kernel. Some may have come home
    /// since [`Stock::reclaim`].
    #[inline]
    pub fn out(&self) -> usize {
        self.out
    }

    /// Looks for frames that came home.
    #[inline]
    pub fn reclaim(&mut self) {
        let returns = &self.region.stocks[self.index];
        if self.out == 0 || returns.head.load(Ordering::Relaxed) == NONE {
            return;
        }
        // Acquires what was done to all of them: each was added by a read-modify-write.
        let head = returns.head.swap(NONE, Ordering::Acquire);
        let before = self.home.len();
        self.home.extend(returns.list(head));
        self.out -= self.home.len() - before;
    }

    /// A frame from home, to be filled, with an empty window.
    #[inline]
    pub fn take(&mut self) -> Option<PktBuf> {
        let n = self.home.pop()?;
        Some(self.buffer(n))
    }

    fn buffer(&mut self, n: u32) -> PktBuf {
        self.out += 1;
        let at = self.region.at(self.returns().first + n as usize);
        let origin = Origin::new(self.index, self.region.log());
        // SAFETY: a frame of this region's, initialised, which was at home or with the kernel, and
        // is out from now on.
        unsafe { PktBuf::of_region(at, self.region.frame as u32, origin) }
    }

    #[inline]
    fn offset(&self, n: u32) -> u64 {
        ((self.returns().first + n as usize) * self.region.frame) as u64
    }

    /// The number of the frame that an offset of the kernel's lies in, if it has that.
    #[inline]
    fn lent_at(&self, offset: u64) -> Option<u32> {
        let n = usize::try_from(offset).ok()? / self.region.frame;
        let n = n.checked_sub(self.returns().first)?;
        (self.lent.get(n) == Some(&true)).then_some(n as u32)
    }

    /// Gives a frame from home to the kernel; where it is. `None`: none is at home.
    #[inline]
    pub fn lend(&mut self) -> Option<u64> {
        let n = self.home.pop()?;
        self.lent[n as usize] = true;
        Some(self.offset(n))
    }

    /// Gives a frame that is out to the kernel; where it is.
    ///
    /// # Errors
    /// It is none of this stock's: it comes back.
    #[inline]
    pub fn give(&mut self, buf: PktBuf) -> Result<u64, PktBuf> {
        let (len, at) = (buf.capacity(), buf.raw().as_ptr().addr());
        let start = self.region.at(0).as_ptr().addr();
        let n = at.wrapping_sub(start) / self.region.frame;
        let n = n.wrapping_sub(self.returns().first);
        if !buf.is_of_region() || len != self.region.frame || n >= self.lent.len() {
            return Err(buf);
        }
        let _ = buf.into_region()?;
        self.out -= 1;
        self.lent[n] = true;
        Ok(self.offset(n as u32))
    }

    /// A frame comes back from the kernel as a buffer, whose window are the `len` octets from
    /// `offset` on, as far as they are in the frame. `None`: the kernel hasn't it.
    #[inline]
    pub fn filled(&mut self, offset: u64, len: usize) -> Option<PktBuf> {
        let n = self.lent_at(offset)?;
        self.lent[n as usize] = false;
        let mut buf = self.buffer(n);
        buf.set_window(offset as usize % self.region.frame, len);
        Some(buf)
    }

    /// A frame comes home from the kernel; whether it had it.
    #[inline]
    pub fn done(&mut self, offset: u64) -> bool {
        let Some(n) = self.lent_at(offset) else {
            return false;
        };
        self.lent[n as usize] = false;
        self.home.push(n);
        true
    }
}

impl Drop for Stock {
    /// The kernel must have been told before: what it has counts as home.
    fn drop(&mut self) {
        let returns = &self.region.stocks[self.index];
        // Before the list is closed, as the last frame takes it.
        returns.keep.lock().push(self.region.clone());
        let head = returns.head.swap(CLOSED, Ordering::AcqRel);
        let out = self.out - returns.list(head).count();
        // What comes home meanwhile has taken one from 0 each, so that the sum is 0 only when all
        // are home and this has been added.
        let before = returns.left.fetch_add(out, Ordering::AcqRel);
        if before.wrapping_add(out) == 0 {
            // This stock's own reference is another.
            drop(returns.keep());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! The memory of a send buffer: pages that descriptors refer to, and that are kept until the last
//! of those is completed.

use crate::atomics::{Arc, AtomicU64, List, Ordering};
use crate::buf::{POOLED, PktBuf};
use crate::desc::{Part, Parts};
use crate::pool::PktPool;
use crate::ring::{Completions, TxSlot};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use bytes::Bytes;
use smallvec::SmallVec;

mod page;

use page::Page;

/// Memory of the first page of a burst of small writes, bytes: one segment and a little, so that a
/// request-response connection pins no more.
const FIRST_PAGE: usize = 2048;

/// Memory of further pages for small writes, bytes: large enough that a segment rarely spans three.
pub const PAGE: usize = 16 * 1024;

/// Slots for pages that an empty buffer keeps, so that short exchanges don't allocate.
const IDLE_SLOTS: usize = 4;

/// A segment that spans more pages than this is copied, whatever its length, as one of up to
/// [`POOLED`] bytes is that spans more than two.
const MANY: usize = 64;

/// The position of a page for which there is no telling yet.
const LATER: u64 = u64::MAX;

/// A page whose bytes are taken off, and that a device may still be reading.
#[derive(Debug)]
struct Held {
    /// The completion that frees it; [`LATER`]: not known yet.
    position: u64,
    /// Where it starts in the stream.
    start: u64,
    _page: Page,
}

/// How far the consumer of a ring must come before pages may go.
#[derive(Debug)]
struct Pin(Completions, u64);

impl Pin {
    fn is_done(&self) -> bool {
        self.0.done() >= self.1
    }
}

/// Pages without an owner, and what they wait for.
#[derive(Debug)]
pub(crate) struct Left {
    pins: Vec<Pin>,
    _pages: Vec<Page>,
}

impl Left {
    /// Lets go of them, or leaves them with the next ring that is not done.
    pub(crate) fn settle(mut self) {
        while let Some(Pin(to, position)) = self.pins.pop() {
            if to.done() < position {
                to.keep(position, self);
                return;
            }
        }
    }
}

/// A queue of pages, filled at its back and read by reference; what is taken off its front is kept
/// until no descriptor refers to it any more.
///
/// Nothing is counted per segment or per page: all pages together remember the position of the last
/// descriptor that referred to one. An empty queue owns no payload memory and, once it has been
/// used, four slots.
#[derive(Debug, Default)]
pub struct TxPages {
    pages: VecDeque<Page>,
    /// Bytes of the first page that are taken off already.
    head: usize,
    /// The page that the last reference ended in, and where it starts, counted from the start of
    /// the first page: makes sequential reading constant-time.
    cur: usize,
    cur_start: usize,
    memory: usize,
    /// The ring that descriptors were placed in, and the position behind the last of them.
    to: Option<Completions>,
    position: u64,
    /// `position` does not tell all: segments are on their way, or pages are pinned elsewhere too.
    unsure: bool,
    elsewhere: Vec<Pin>,
    hold: Option<Arc<Hold>>,
    /// Another reference to `hold`, for the next lease to have: one that comes back counts nothing.
    spare: Option<Arc<Hold>>,
    /// Leases are out, or were, that took another reference than the spare one.
    several: bool,
    held: VecDeque<Held>,
    /// Stream position up to which pages were taken off to their ends.
    freed: u64,
}

impl TxPages {
    /// Bytes of memory that the pages pin, those included that are held for a device. A shared
    /// page counts with its own length, whatever larger allocation it is a part of.
    #[inline]
    pub fn memory(&self) -> usize {
        // What has left the queue and is not given back is held: pages leave in order.
        let held = (self.freed - self.released()) as usize;
        self.memory + held + self.pages.capacity() * size_of::<Page>()
    }

    /// Whether no page is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Appends a page by reference.
    pub fn push(&mut self, bytes: Bytes) {
        self.memory += bytes.len();
        self.pages.push_back(Page::Shared(bytes));
    }

    /// Appends a copy. Consecutive copies share pages, so the number of pages stays in proportion
    /// to the bytes however small the writes are.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(Page::Owned(tail)) = self.pages.back_mut() {
            let fit = rest.len().min(tail.capacity() - tail.len());
            tail.extend_from_slice(&rest[..fit]);
            rest = &rest[fit..];
        }
        if !rest.is_empty() {
            let usual = if self.memory < FIRST_PAGE {
                FIRST_PAGE
            } else {
                PAGE
            };
            let mut page = Vec::with_capacity(rest.len().max(usual));
            page.extend_from_slice(rest);
            self.memory += page.capacity();
            self.pages.push_back(Page::Owned(page));
        }
    }

    /// Appends bytes in the memory that they are in; later copies may go behind them.
    pub fn adopt(&mut self, bytes: Vec<u8>) {
        self.memory += bytes.capacity();
        self.pages.push_back(Page::Owned(bytes));
    }

    /// Takes the first `n` bytes off, of which there must be as many. Pages that are taken off to
    /// their ends go, as soon as no descriptor refers to them.
    #[inline]
    pub fn take_off(&mut self, n: usize) {
        self.release();
        self.head += n;
        while let Some(front) = self.pages.front() {
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
            let page = self.pages.pop_front();
            let start = self.freed;
            self.freed += len as u64;
            if let Some(page) = page
                && !self.is_done()
            {
                self.held.push_back(Held {
                    position: if self.unsure { LATER } else { self.position },
                    start,
                    _page: page,
                });
            }
        }
        debug_assert_eq!(self.head, 0, "more is taken off than there is");
        self.head = 0;
        self.cur = 0;
        self.cur_start = 0;
        if self.pages.capacity() > IDLE_SLOTS {
            self.pages = VecDeque::new();
        }
    }

    /// Gives back the slots that are empty, for a connection that will send no more data.
    pub fn shrink(&mut self) {
        self.release();
        if self.pages.is_empty() {
            self.pages = VecDeque::new();
        }
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    /// Whether no descriptor refers to any of the pages, for all that is known.
    #[inline]
    fn is_done(&self) -> bool {
        !self.unsure && self.to.as_ref().is_none_or(|to| to.done() >= self.position)
    }

    /// Lets go of pages taken off that the device is done with.
    #[inline]
    pub fn release(&mut self) {
        if self.unsure {
            self.make_sure();
        }
        if !self.held.is_empty() {
            self.release_some();
        }
    }

    fn release_some(&mut self) {
        let done = self.to.as_ref().map_or(0, |to| to.done());
        while self.held.front().is_some_and(|h| h.position <= done) {
            self.held.pop_front();
        }
    }

    /// Stream position up to which memory has been given back: taken off page by page, and done
    /// by the device.
    #[inline]
    pub fn released(&self) -> u64 {
        self.held.front().map_or(self.freed, |h| h.start)
    }

    /// Refers to the `len` bytes that start `off` bytes behind the front, in the descriptor that
    /// was just placed.
    ///
    /// Sequential calls cost constant time. A short segment that spans more than two pages is
    /// copied into a buffer from `pool`, and so is one in very many pieces; a longer one gets as
    /// many references as it has pages.
    ///
    /// # Panics
    /// There are fewer bytes.
    // For the loop that sends: a call for each segment costs as much as what is done.
    #[inline(always)]
    pub fn refer(&mut self, off: usize, len: usize, slot: &mut TxSlot<'_>, pool: &mut PktPool) {
        if len == 0 {
            return;
        }
        // First: from here on the pages are kept for this descriptor.
        match &self.to {
            Some(to) if to.is(slot.to) => self.position = slot.position,
            _ => self.pin(slot.to, slot.position),
        }
        let (parts, owned) = slot.desc.payload_mut();
        if slot.to.hands_on(len) {
            return self.share(off, len, parts);
        }
        self.read(off, len, parts, owned, pool);
    }

    /// As [`TxPages::refer`], for a segment that comes to a ring later, the one that `to` belongs
    /// to: `lease` keeps the pages until then. Returns its number there.
    ///
    /// # Panics
    /// There are fewer bytes.
    #[inline]
    pub fn lend(
        &mut self,
        off: usize,
        len: usize,
        to: &Completions,
        pool: &mut PktPool,
        lease: &mut Lease,
    ) -> u32 {
        let n = lease.payloads.len();
        let payload = self.lend_any(off, len, to, pool, lease);
        lease.payloads.push(payload);
        n as u32
    }

    /// As [`TxPages::lend`], for a segment that the caller places itself, before it asks for the
    /// next.
    ///
    /// # Panics
    /// There are fewer bytes.
    #[inline]
    pub fn lend_here<'a>(
        &mut self,
        off: usize,
        len: usize,
        to: &Completions,
        pool: &mut PktPool,
        lease: &'a mut Lease,
    ) -> Lent<'a> {
        if len > 0
            && !to.hands_on(len)
            && self.keep_for(to, lease)
            && let Some(bytes) = self.in_one(off, len)
        {
            let part = Part::new(bytes);
            return Lent(lease, Shape::One(part));
        }
        let payload = self.lend_any(off, len, to, pool, lease);
        Lent(lease, Shape::Any(Box::new(payload)))
    }

    fn lend_any(
        &mut self,
        off: usize,
        len: usize,
        to: &Completions,
        pool: &mut PktPool,
        lease: &mut Lease,
    ) -> Payload {
        let mut payload = Payload::default();
        if len > 0 {
            let lent = self.keep_for(to, lease);
            match to.hands_on(len) {
                true => self.share(off, len, &mut payload.parts),
                false => self.read(off, len, &mut payload.parts, &mut payload.owned, pool),
            }
            if !lent {
                // SAFETY: the pages are borrowed.
                payload = unsafe { payload.copied() };
            }
        }
        payload
    }

    /// Whether `lease` keeps the pages from here on, for descriptors in that ring; it can't if it
    /// keeps another one's, or the pages are on their way to another ring.
    #[inline]
    fn keep_for(&mut self, to: &Completions, lease: &mut Lease) -> bool {
        if let Some(theirs) = &lease.hold {
            let ours = |h: &Arc<Hold>| Arc::ptr_eq(h, theirs) && h.to.is(to);
            return self.hold.as_ref().is_some_and(ours);
        }
        if !self.hold.as_ref().is_some_and(|h| h.to.is(to)) {
            if self.unsure {
                self.make_sure();
            }
            if self.is_lent() {
                return false;
            }
            let hold = Arc::new(Hold {
                to: to.clone(),
                position: AtomicU64::new(0),
                left: List::new(),
            });
            self.spare = Some(hold.clone());
            self.hold = Some(hold);
        }
        match self.spare.take() {
            Some(hold) => lease.hold = Some(hold),
            None => {
                lease.hold = self.hold.clone();
                self.several = true;
            }
        }
        self.unsure = true;
        true
    }

    /// Whether somebody may have a lease.
    fn is_lent(&self) -> bool {
        let ours = 1 + usize::from(self.spare.is_some());
        let count = |h| Arc::strong_count(h);
        self.hold.as_ref().is_some_and(|h| count(h) > ours)
    }

    /// Takes back a lease on these pages, all of whose payloads have been placed. To drop it does
    /// the same, at the price of counting across threads.
    #[inline]
    pub fn take_back(&mut self, mut lease: Lease) {
        let (Some(hold), Some(theirs)) = (&self.hold, &lease.hold) else {
            return;
        };
        // Of others' pages, or one of several: it is dropped.
        if !Arc::ptr_eq(hold, theirs) || self.spare.is_some() {
            return;
        }
        // As is one for another ring than the last one.
        if !self.to.get_or_insert_with(|| hold.to.clone()).is(&hold.to) {
            return;
        }
        #[cfg(loom)]
        if crate::planted::is(crate::planted::Bug::LeaseForgetsTicket) {
            lease.position = 0;
        }
        self.position = self.position.max(lease.position);
        self.spare = lease.hold.take();
        if self.elsewhere.is_empty() && !self.several {
            self.unsure = false;
            self.date();
        }
    }

    /// What was taken off while the position was not known goes by the one that is.
    fn date(&mut self) {
        for h in self.held.iter_mut().rev() {
            if h.position != LATER {
                break;
            }
            h.position = self.position;
        }
    }

    /// Descriptors refer to pages in another ring than before.
    #[cold]
    fn pin(&mut self, to: &Completions, position: u64) {
        if let Some(before) = self.to.replace(to.clone()) {
            let before = Pin(before, self.position);
            if !before.is_done() {
                self.elsewhere.push(before);
                self.unsure = true;
            }
            for h in &mut self.held {
                h.position = LATER;
                self.unsure = true;
            }
        }
        self.position = position;
    }

    /// Learns the position of what has come to its ring meanwhile.
    #[cold]
    fn make_sure(&mut self) {
        // A look first: to be sure costs more.
        if self.is_lent() {
            return;
        }
        if let Some(shared) = &mut self.hold {
            self.spare = None;
            let Some(hold) = Arc::get_mut(shared) else {
                return;
            };
            let position = hold.position.load(Ordering::Acquire);
            match &self.to {
                Some(to) if to.is(&hold.to) => self.position = self.position.max(position),
                Some(_) if position > 0 => {
                    self.elsewhere.push(Pin(hold.to.clone(), position));
                    // Noted once.
                    hold.position.store(0, Ordering::Relaxed);
                }
                Some(_) => {}
                None => (self.to, self.position) = (Some(hold.to.clone()), position),
            }
            self.several = false;
            self.spare = Some(shared.clone());
        }
        self.elsewhere.retain(|pin| !pin.is_done());
        if self.elsewhere.is_empty() {
            self.unsure = false;
            self.date();
        }
    }

    /// Moves the cursor to the page with the byte `at`, counted from the start of the first.
    #[inline(always)]
    fn seek(&mut self, at: usize) {
        while at < self.cur_start {
            self.cur -= 1;
            self.cur_start -= self.pages[self.cur].len();
        }
        loop {
            let len = self.pages[self.cur].len();
            if at < self.cur_start + len {
                return;
            }
            self.cur_start += len;
            self.cur += 1;
        }
    }

    /// The `len` bytes that start `off` bytes behind the front, if one page has them all.
    #[inline(always)]
    fn in_one(&mut self, off: usize, len: usize) -> Option<&[u8]> {
        let at = self.head + off;
        self.seek(at);
        let skip = at - self.cur_start;
        self.pages[self.cur].bytes()[skip..].get(..len)
    }

    #[inline(always)]
    fn read(
        &mut self,
        off: usize,
        len: usize,
        parts: &mut Parts,
        owned: &mut Option<PktBuf>,
        pool: &mut PktPool,
    ) {
        let at = self.head + off;
        self.seek(at);
        let skip = at - self.cur_start;
        let first = &self.pages[self.cur].bytes()[skip..];
        match first.get(..len) {
            Some(all) => parts.set(0, all),
            None => self.read_on(skip, len, parts, owned, pool),
        }
    }

    /// As [`TxPages::read`], with the pages' memory for a device that hands it on.
    #[inline(never)]
    fn share(&mut self, off: usize, len: usize, parts: &mut Parts) {
        let at = self.head + off;
        self.seek(at);
        let (mut skip, mut left) = (at - self.cur_start, len);
        for page in self.pages.range_mut(self.cur..) {
            let bytes = page.share();
            let n = left.min(bytes.len() - skip);
            parts.share(bytes.slice(skip..skip + n));
            (skip, left) = (0, left - n);
            if left == 0 {
                return;
            }
        }
        panic!("{left} bytes more than there are");
    }

    /// As [`TxPages::read`], of more than one page.
    #[inline(never)]
    fn read_on(
        &self,
        skip: usize,
        len: usize,
        parts: &mut Parts,
        owned: &mut Option<PktBuf>,
        pool: &mut PktPool,
    ) {
        let first = &self.pages[self.cur].bytes()[skip..];
        let rest = len - first.len();
        match self.pages[self.cur + 1].bytes().get(..rest) {
            Some(second) => {
                parts.set(0, first);
                parts.set(1, second);
            }
            None => self.read_many(skip, len, parts, owned, pool),
        }
    }

    #[cold]
    fn read_many(
        &self,
        skip: usize,
        len: usize,
        parts: &mut Parts,
        owned: &mut Option<PktBuf>,
        pool: &mut PktPool,
    ) {
        let mut spans = 0;
        self.spans(skip, len, |_, _| spans += 1);
        if len > POOLED && spans <= MANY {
            return self.spans(skip, len, |_, bytes| parts.add(bytes));
        }
        let mut buf = pool.take(len);
        self.spans(skip, len, |at, bytes| {
            buf.raw_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        });
        buf.set_window(0, len);
        *owned = Some(buf);
    }

    /// The stretches of the `len` bytes that start `skip` bytes behind the cursor's page, each
    /// with its place among them.
    fn spans(&self, skip: usize, len: usize, mut f: impl FnMut(usize, &[u8])) {
        let (mut skip, mut at) = (skip, 0);
        for page in self.pages.iter().skip(self.cur) {
            let bytes = &page.bytes()[skip..];
            let n = bytes.len().min(len - at);
            f(at, &bytes[..n]);
            (skip, at) = (0, at + n);
            if at == len {
                return;
            }
        }
    }

    /// Copies the bytes that start `off` bytes behind the front into `out`; returns how many there
    /// were.
    pub fn copy(&self, off: usize, out: &mut [u8]) -> usize {
        let mut skip = self.head + off;
        let mut filled = 0;
        for page in &self.pages {
            let bytes = page.bytes();
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

    /// Pages that a descriptor refers to are left with its ring.
    #[cold]
    fn leave(&mut self) {
        self.release();
        if self.is_done() {
            return;
        }
        #[cfg(loom)]
        if crate::planted::is(crate::planted::Bug::DropsAtOnce) {
            return;
        }
        let mut pins = core::mem::take(&mut self.elsewhere);
        if let Some(to) = self.to.take() {
            pins.push(Pin(to, self.position));
        }
        let held = self.held.drain(..).map(|h| h._page);
        let left = Left {
            pins,
            _pages: held.chain(self.pages.drain(..)).collect(),
        };
        match &self.hold {
            // If nothing is lent any more it goes with the hold, at once.
            Some(hold) => hold.left.lock().push(left),
            None => left.settle(),
        }
    }
}

impl Drop for TxPages {
    #[inline]
    fn drop(&mut self) {
        if !self.pages.is_empty() || !self.held.is_empty() {
            self.leave();
        }
    }
}

/// What is lent of one send buffer: for as long as a [`Lease`] has it, its pages stay.
#[derive(Debug)]
struct Hold {
    to: Completions,
    /// Behind the last descriptor that a lease was placed in, of those that are gone.
    position: AtomicU64,
    /// Pages whose owner has gone meanwhile.
    left: List<Left>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let position = self.position.load(Ordering::Acquire);
        let left = core::mem::take(&mut *self.left.lock());
        for mut left in left {
            left.pins.push(Pin(self.to.clone(), position));
            left.settle();
        }
    }
}

/// Payload of one segment.
#[derive(Debug, Default)]
struct Payload {
    parts: Parts,
    owned: Option<PktBuf>,
}

impl Payload {
    /// A copy of all of it.
    ///
    /// # Safety
    /// The pages that it refers to must be kept.
    unsafe fn copied(&self) -> Payload {
        let mut all = Vec::new();
        // SAFETY: the caller knows that they are kept.
        unsafe { self.parts.bytes() }.for_each(|b| all.extend_from_slice(b));
        if let Some(owned) = &self.owned {
            all.extend_from_slice(owned.as_slice());
        }
        Payload {
            parts: Parts::default(),
            owned: Some(PktBuf::copy_of(&all)),
        }
    }
}

/// Payload of segments that are on their way to a ring, by reference: the pages stay for as long as
/// the lease does, and what of it has come to the ring until that is completed. It may be passed to
/// another thread, and dropped anywhere.
#[derive(Debug, Default)]
pub struct Lease {
    hold: Option<Arc<Hold>>,
    payloads: SmallVec<[Payload; 1]>,
    /// Behind the last descriptor that one was placed in.
    position: u64,
}

impl Lease {
    /// Nothing is lent.
    pub fn new() -> Lease {
        Lease::default()
    }

    /// Places payload number `n` in the descriptor; each comes to one only. In another ring than
    /// the one that it was lent for, what it refers to is copied.
    #[inline]
    pub fn place(&mut self, n: u32, slot: &mut TxSlot<'_>) {
        let Some(payload) = self.payloads.get_mut(n as usize) else {
            return;
        };
        let payload = core::mem::take(payload);
        if n as usize + 1 == self.payloads.len() {
            // Its number is given out again.
            self.payloads.pop();
        }
        self.place_any(payload, slot);
    }

    fn place_any(&mut self, mut payload: Payload, slot: &mut TxSlot<'_>) {
        if !payload.parts.is_empty() && !self.placed(slot) {
            // SAFETY: the lease, which is borrowed, keeps the pages.
            payload = unsafe { payload.copied() };
        }
        let (parts, owned) = slot.desc.payload_mut();
        (*parts, *owned) = (payload.parts, payload.owned);
    }

    /// Notes that the descriptor refers to the pages; whether it may, being of their ring.
    #[inline]
    fn placed(&mut self, slot: &TxSlot<'_>) -> bool {
        let ours = self.hold.as_ref().is_some_and(|h| h.to.is(slot.to));
        if ours {
            self.position = self.position.max(slot.position);
        }
        ours
    }
}

/// Payload of one segment, by reference: its pages stay for as long as the lease that it borrows.
#[derive(Debug)]
pub struct Lent<'a>(&'a mut Lease, Shape);

/// Nearly every segment is in one page, and then small enough for registers: through memory it
/// would be written in pieces and read whole, which waits for all stores before.
#[derive(Debug)]
enum Shape {
    One(Part),
    Any(Box<Payload>),
}

impl Lent<'_> {
    /// Places it in the descriptor. In another ring than the one that it was lent for, what it
    /// refers to is copied.
    #[inline]
    pub fn place(self, slot: &mut TxSlot<'_>) {
        let Lent(lease, shape) = self;
        match shape {
            // SAFETY: the lease, which is borrowed, keeps the page.
            Shape::One(part) => match unsafe { part.bytes() } {
                bytes if lease.placed(slot) => slot.desc.payload_mut().0.set(0, bytes),
                bytes => slot.owned = Some(PktBuf::copy_of(bytes)),
            },
            Shape::Any(payload) => lease.place_any(*payload, slot),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(hold) = &self.hold
            && self.position > 0
        {
            #[cfg(loom)]
            if crate::planted::is(crate::planted::Bug::LeaseForgetsTicket) {
                return;
            }
            // Released by the reference that goes now.
            hold.position.fetch_max(self.position, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

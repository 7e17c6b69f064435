//! Transmit rings, and the rule by which memory that they refer to comes back.
//!
//! No reference is counted per segment. A ring numbers its descriptors instead, and says how far
//! its consumer has come ([`Completions`]); who owns a page remembers the number behind the last
//! descriptor that refers to it, its position, exactly as a driver does with a DMA engine.

use crate::atomics::{Arc, AtomicU64, AtomicUsize, List, Ordering};
use crate::buf::POOLED;
use crate::desc::{TxDesc, TxHead};
use crate::pages::Left;
use crate::pool::PktPool;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::{Deref, DerefMut};

/// How far the consumer of a ring has come, and what waits for it that nobody owns any more. A
/// handle; on cache lines of its own.
#[derive(Clone, Debug)]
pub struct Completions(Arc<Line>);

#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// The device hands the memory of large payloads on ([`TxRing::take_pages`]).
    hands_on: bool,
    /// Descriptors below this position are read no more. Written by the consumer only.
    done: AtomicU64,
    /// Length of `left`: a hint.
    waiting: AtomicUsize,
    /// Pages that have lost their owner, each with the position that frees them.
    left: List<(u64, Left)>,
}

impl Completions {
    fn new(hands_on: bool) -> Completions {
        Completions(Arc::new(Line {
            hands_on,
            done: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            left: List::new(),
        }))
    }

    /// Whether both are of the same ring.
    #[inline]
    pub(crate) fn is(&self, other: &Completions) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether descriptors for this ring keep the memory of a payload of `len` bytes for the device.
    #[inline(always)]
    pub(crate) fn hands_on(&self, len: usize) -> bool {
        len > POOLED && self.0.hands_on
    }

    /// Descriptors below this position are completed.
    #[inline]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Acquire)
    }

    #[inline]
    fn complete(&self, position: u64) {
        debug_assert!(self.0.done.load(Ordering::Relaxed) <= position);
        #[cfg(loom)]
        if crate::planted::is(crate::planted::Bug::CompletesUnordered) {
            self.0.done.store(position, Ordering::Relaxed);
            return self.sweep();
        }
        self.0.done.store(position, Ordering::Release);
        self.sweep();
    }

    /// Keeps pages until `position` is completed. It isn't yet, or was just now.
    pub(crate) fn keep(&self, position: u64, left: Left) {
        let mut list = self.0.left.lock();
        list.push((position, left));
        self.0.waiting.store(list.len(), Ordering::SeqCst);
        drop(list);
        if self.0.done.load(Ordering::SeqCst) >= position {
            self.sweep_some();
        }
    }

    /// Lets go of pages without an owner that the consumer is done with. It does so itself as it
    /// goes; pages that lost their owner at the moment of its last completion wait for the next
    /// one, or for this.
    pub fn sweep(&self) {
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            self.sweep_some();
        }
    }

    #[cold]
    fn sweep_some(&self) {
        let mut list = self.0.left.lock();
        let done = self.done();
        let (ready, rest): (Vec<_>, Vec<_>) = list.drain(..).partition(|(t, _)| *t <= done);
        *list = rest;
        self.0.waiting.store(list.len(), Ordering::SeqCst);
        drop(list);
        // Not under the lock: an application's page may run code of its own when it goes.
        for (_, left) in ready {
            left.settle();
        }
    }
}

/// A descriptor that was just placed in a ring, to be filled. Headers and what it owns are set
/// here; pages are referred to by [`TxPages::refer`](crate::TxPages::refer) and [`Lease::place`].
///
/// Whatever program in safe code gets hold of, it can't make a descriptor read freed memory.
/// Pages are owned:
///
/// ```
/// # use perimeter_base::{Bytes, PktPool, TxPages, TxRing};
/// let mut ring = TxRing::new(1);
/// let mut pages = TxPages::default();
/// pages.push(Bytes::from(vec![7u8; 64]));
/// pages.refer(0, 64, &mut ring.push().unwrap(), &mut PktPool::new(0));
/// drop(pages); // and now a doorbell: what it reads is still there
/// assert_eq!(ring.pending()[0].payload().next(), Some(&[7u8; 64][..]));
/// ring.clear(); // now it goes
/// ```
///
/// A reference can't be made from a borrow:
///
/// ```compile_fail,E0505
/// # use perimeter_base::{Bytes, PktPool, TxPages, TxRing};
/// # let mut ring = TxRing::new(1);
/// # let mut pages = TxPages::default();
/// let page = vec![7u8; 64];
/// pages.push(Bytes::from(&page[..]));
/// pages.refer(0, 64, &mut ring.push().unwrap(), &mut PktPool::new(0));
/// drop(page); // and now a doorbell
/// ```
///
/// nor can a descriptor leave its ring, when its pages have been referred to:
///
/// ```compile_fail,E0308
/// # use perimeter_base::{TxDesc, TxRing};
/// # let mut ring = TxRing::new(1);
/// let mut mine = TxDesc::empty();
/// core::mem::swap(&mut mine, &mut ring.pending()[0]);
/// ```
///
/// ```compile_fail,E0308
/// # use perimeter_base::{TxDesc, TxRing};
/// # let mut ring = TxRing::new(1);
/// let mut mine = TxDesc::empty();
/// core::mem::swap(&mut mine, &mut *ring.push().unwrap());
/// ```
///
/// nor is it read after the doorbell has completed it:
///
/// ```compile_fail,E0502
/// # use perimeter_base::{TxDesc, TxRing};
/// # let mut ring = TxRing::new(1);
/// let payload = ring.pending()[0].payload();
/// ring.clear();
/// assert_eq!(payload.count(), 0);
/// ```
///
/// [`Lease::place`]: crate::Lease::place
pub struct TxSlot<'a> {
    pub(crate) desc: &'a mut TxDesc,
    pub(crate) to: &'a Completions,
    /// The position behind this descriptor.
    pub(crate) position: u64,
}

impl Deref for TxSlot<'_> {
    type Target = TxHead;

    #[inline(always)]
    fn deref(&self) -> &TxHead {
        self.desc
    }
}

impl DerefMut for TxSlot<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut TxHead {
        self.desc.head_mut()
    }
}

fn slots(capacity: usize) -> Vec<TxDesc> {
    let mut slots = Vec::with_capacity(capacity);
    slots.resize_with(capacity, TxDesc::empty);
    slots
}

/// The end of a transmit queue where the stack places descriptors. They go on to the other end, a
/// [`TxRing`], all at once: so the stack appends while the device reads.
pub struct TxStage {
    slots: Vec<TxDesc>,
    used: usize,
    first_position: u64,
    to: Completions,
}

impl TxStage {
    /// How many descriptors it can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many descriptors wait to be handed over.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether none wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many more fit now.
    #[inline]
    pub fn room(&self) -> usize {
        self.slots.len() - self.used
    }

    /// The next free descriptor, to be filled; `None` when it is full. It counts as placed at
    /// once. Its header bytes are stale, its payload is empty.
    #[inline]
    pub fn push(&mut self) -> Option<TxSlot<'_>> {
        let desc = self.slots.get_mut(self.used)?;
        self.used += 1;
        desc.reset();
        Some(TxSlot {
            desc,
            to: &self.to,
            position: self.first_position + self.used as u64,
        })
    }

    /// As [`TxStage::push`]; a buffer that the descriptor owned before, which is completed, goes to
    /// `pool`.
    #[inline]
    pub fn push_with(&mut self, pool: &mut PktPool) -> Option<TxSlot<'_>> {
        let desc = self.slots.get_mut(self.used)?;
        if let Some(buf) = desc.head_mut().owned.take() {
            pool.put(buf);
        }
        self.push()
    }

    /// The position after the last descriptor placed: what [`Completions::done`] comes to once all
    /// of them are completed.
    #[inline]
    pub fn position(&self) -> u64 {
        self.first_position + self.used as u64
    }

    /// How far the consumer has come.
    pub fn completions(&self) -> &Completions {
        &self.to
    }

    /// The descriptors placed, oldest first.
    pub fn placed(&self) -> &[TxDesc] {
        &self.slots[..self.used]
    }

    /// Hands the descriptors over to the queue's other end, which must be empty.
    ///
    /// # Panics
    /// `ring` is not this queue's other end, or not empty.
    pub fn hand_over(&mut self, ring: &mut TxRing) {
        assert!(self.to.is(&ring.to), "the other end of this");
        assert!(ring.is_empty(), "consumed before");
        ring.used = self.used;
        ring.first_position = self.first_position;
        self.first_position += self.used as u64;
        self.used = 0;
        core::mem::swap(&mut self.slots, &mut ring.slots);
    }
}

/// One transmit queue's descriptors before the device: in order, each with a position that counts
/// from the queue's beginning.
///
/// What the device has consumed is completed, unless it says otherwise ([`TxRing::complete_to`]):
/// its payload is no longer read, and may be freed.
pub struct TxRing {
    slots: Vec<TxDesc>,
    /// The oldest waiting descriptor. Descriptors do not wrap around: a ring that the device
    /// consumes in parts is filled again only when it is empty.
    head: usize,
    used: usize,
    first_position: u64,
    to: Completions,
    /// It is filled by a [`TxStage`] only. Otherwise positions would be given out twice.
    staged: bool,
    /// Nothing from this position on is completed, consumed or not.
    gate: u64,
}

impl TxRing {
    /// A ring of `capacity` descriptors that is filled and consumed in the same place.
    pub fn new(capacity: usize) -> TxRing {
        TxRing {
            slots: slots(capacity),
            head: 0,
            used: 0,
            first_position: 0,
            to: Completions::new(false),
            staged: false,
            gate: u64::MAX,
        }
    }

    /// Both ends of a queue of `capacity` descriptors.
    pub fn staged(capacity: usize) -> (TxStage, TxRing) {
        TxRing::both_ends(capacity, false)
    }

    /// The same for a device that asks for [`TxRing::take_pages`].
    pub fn staged_to_hand_on(capacity: usize) -> (TxStage, TxRing) {
        TxRing::both_ends(capacity, true)
    }

    fn both_ends(capacity: usize, hands_on: bool) -> (TxStage, TxRing) {
        let mut ring = TxRing::new(capacity);
        ring.staged = true;
        ring.to = Completions::new(hands_on);
        let stage = TxStage {
            slots: slots(capacity),
            used: 0,
            first_position: 0,
            to: ring.to.clone(),
        };
        (stage, ring)
    }

    /// How many descriptors it can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many descriptors wait for the device.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether none wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many more fit now.
    pub fn room(&self) -> usize {
        match self.staged {
            true => 0,
            false => self.slots.len() - self.head - self.used,
        }
    }

    /// As [`TxStage::push`]; `None` also where a stage fills this ring.
    pub fn push(&mut self) -> Option<TxSlot<'_>> {
        if self.staged {
            return None;
        }
        let desc = self.slots.get_mut(self.head + self.used)?;
        self.used += 1;
        desc.reset();
        Some(TxSlot {
            desc,
            to: &self.to,
            position: self.first_position + self.used as u64,
        })
    }

    /// The position after the last descriptor.
    pub fn position(&self) -> u64 {
        self.first_position + self.used as u64
    }

    /// How far this ring has been consumed.
    pub fn completions(&self) -> &Completions {
        &self.to
    }

    /// The descriptors that wait, oldest first.
    #[inline]
    pub fn pending(&self) -> &[TxDesc] {
        &self.slots[self.head..self.head + self.used]
    }

    /// The memory that the payload of waiting descriptor `n` is in, piece by piece, for a device that
    /// hands it on to others, who may keep it for as long as they like. Only large payloads (of more
    /// than [`POOLED`] bytes) have theirs kept for that; of others, and when
    /// it was asked for before, there is nothing. The descriptor can be read as before.
    pub fn take_pages(&mut self, n: usize) -> Vec<Bytes> {
        let desc = self.slots[self.head..self.head + self.used].get_mut(n);
        desc.map_or_else(Vec::new, |d| d.payload_mut().0.take_pages())
    }

    /// Removes and completes the first `n` waiting descriptors, keeping the order of the rest.
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.used);
        self.used -= n;
        self.head = if self.used == 0 { 0 } else { self.head + n };
        self.first_position += n as u64;
        self.publish();
    }

    /// From now on what is consumed is completed up to this position only: for a device that reads
    /// after it has consumed (a DMA engine, a ring that is shared with a kernel), and finds out
    /// later how far it has come. Such a device notes addresses, which is unsafe code of its own:
    /// it must keep a handle of [`TxRing::completions`] until it reads no more, so that pages stay
    /// when rings and stack are dropped.
    pub fn complete_to(&mut self, position: u64) {
        self.gate = position;
        self.publish();
    }

    fn publish(&self) {
        self.to.complete(self.first_position.min(self.gate));
    }

    /// Removes and completes all waiting descriptors.
    pub fn clear(&mut self) {
        self.consume(self.used);
    }
}

impl Drop for TxRing {
    /// What nobody will read is completed.
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buf::PktBuf;

    fn place(r: &mut TxRing, tag: u8) {
        let mut d = r.push().expect("room");
        d.hdr[0] = tag;
        d.hdr_len = 1;
    }

    #[test]
    fn positions_count_across_consumption() {
        let mut r = TxRing::new(4);
        for t in 0..3 {
            place(&mut r, t);
        }
        assert_eq!((r.position(), r.room()), (3, 1));
        r.consume(1);
        assert_eq!(r.pending()[0].hdr[0], 1);
        assert_eq!((r.position(), r.len(), r.completions().done()), (3, 2, 1));
        r.clear();
        assert_eq!((r.position(), r.room(), r.completions().done()), (3, 4, 3));
    }

    #[test]
    fn a_stage_hands_over_and_goes_on() {
        let (mut stage, mut ring) = TxRing::staged(2);
        for n in 0..3u64 {
            let slot = stage.push().expect("room");
            assert_eq!(slot.position, n + 1);
            assert_eq!((stage.len(), stage.room(), ring.len()), (1, 1, 0));
            stage.hand_over(&mut ring);
            assert!(stage.is_empty() && stage.position() == n + 1);
            assert_eq!((ring.position(), ring.len()), (n + 1, 1));
            assert!(
                ring.push().is_none() && ring.room() == 0,
                "a stage fills it"
            );
            ring.clear();
        }
    }

    #[test]
    #[should_panic = "the other end"]
    fn a_stage_has_one_other_end() {
        TxRing::staged(2).0.hand_over(&mut TxRing::staged(2).1);
    }

    #[test]
    #[should_panic = "consumed before"]
    fn positions_are_consumed_in_order() {
        let (mut stage, mut ring) = TxRing::staged(2);
        for _ in 0..2 {
            stage.push();
            stage.hand_over(&mut ring);
        }
    }

    #[test]
    fn a_full_ring_refuses() {
        let mut r = TxRing::new(1);
        place(&mut r, 0);
        assert!(r.push().is_none());
    }

    #[test]
    fn a_descriptor_adds_up_what_it_owns() {
        let mut r = TxRing::new(1);
        let mut d = r.push().expect("room");
        d.hdr_len = 54;
        d.owned = Some(PktBuf::copy_of(b"xy"));
        assert_eq!(r.pending()[0].frame_len(), 56);
        r.clear();
        assert!(r.push().is_some_and(|d| d.owned.is_none()));
    }
}

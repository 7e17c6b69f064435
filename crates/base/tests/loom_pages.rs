//! All interleavings of who refers to pages, who consumes the ring, and who drops them: no page goes
//! while a descriptor that can be read refers to it, and all go in the end.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-base --profile models --test loom_pages`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use perimeter_base::planted::{Bug, plant};
use perimeter_base::{Bytes, Lease, PktPool, TxPages, TxRing, TxStage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// The models plant bugs in the whole process: one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A page went while it was read.
static RACED: AtomicBool = AtomicBool::new(false);

/// A page: its only byte is its number. Reading is an access to `used`, and going is a write, so
/// that loom sees them when they are not in order.
struct Page([u8; 1], Arc<[UnsafeCell<bool>; 2]>);

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: loom checks that accesses to the cells are in order.
unsafe impl Send for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        let cell = &self.1[usize::from(self.0[0])];
        // SAFETY: loom checks that no other access is at the same time.
        let mark = || cell.with_mut(|gone| unsafe { *gone = true });
        // Loom panics, and pages go together: nothing may unwind from here.
        if catch_unwind(AssertUnwindSafe(mark)).is_err() {
            RACED.store(true, Ordering::Relaxed);
        }
    }
}

struct Cells(Arc<[UnsafeCell<bool>; 2]>);

// SAFETY: as for `Page`.
unsafe impl Send for Cells {}

impl Cells {
    fn is_gone(&self, n: usize) -> bool {
        // SAFETY: as for `Page`.
        self.0[n].with(|gone| unsafe { *gone })
    }
}

fn consume(ring: &mut TxRing, stage: &Mutex<TxStage>, cells: &Cells) {
    stage.lock().unwrap().hand_over(ring);
    for byte in ring.pending().iter().flat_map(|d| d.payload().flatten()) {
        assert!(
            !cells.is_gone(usize::from(*byte)),
            "read after it was freed"
        );
    }
    ring.clear();
}

fn two_pages() -> (TxPages, Cells) {
    let cells = Arc::new([UnsafeCell::new(false), UnsafeCell::new(false)]);
    let mut pages = TxPages::default();
    for n in 0..2 {
        pages.push(Bytes::from_owner(Page([n], cells.clone())));
    }
    (pages, Cells(cells))
}

/// One refers and acknowledges, one consumes, one drops the pages, in a ring of two descriptors.
fn pages_outlive_their_descriptors() {
    let (stage, mut ring) = TxRing::staged(2);
    let stage = Arc::new(Mutex::new(stage));
    let (pages, cells) = two_pages();
    let pages = Arc::new(Mutex::new(Some(pages)));
    let (theirs, cells_too) = (stage.clone(), Cells(cells.0.clone()));
    let consumer = thread::spawn(move || {
        consume(&mut ring, &theirs, &cells_too);
        ring
    });
    let owned = pages.clone();
    let dropper = thread::spawn(move || drop(owned.lock().unwrap().take()));
    if let Some(p) = &mut *pages.lock().unwrap() {
        for n in 0..2 {
            let mut stage = stage.lock().unwrap();
            let mut slot = stage.push().expect("room");
            p.refer(n, 1, &mut slot, &mut PktPool::new(0));
        }
        p.take_off(1);
    }
    dropper.join().unwrap();
    let mut ring = consumer.join().unwrap();
    consume(&mut ring, &stage, &cells);
    ring.completions().sweep();
    assert!((0..2).all(|n| cells.is_gone(n)), "kept for ever");
}

/// Payload that is lent is placed by another thread than the one that owns the pages, which
/// acknowledges it and drops them meanwhile.
fn what_is_lent_outlives_its_owner() {
    let (stage, mut ring) = TxRing::staged(2);
    let to = stage.completions().clone();
    let stage = Arc::new(Mutex::new(stage));
    let (mut pages, cells) = two_pages();
    let mut lease = Lease::new();
    for n in 0..2 {
        pages.lend(n, 1, &to, &mut PktPool::new(0), &mut lease);
    }
    let theirs = stage.clone();
    let placer = thread::spawn(move || {
        let mut stage = theirs.lock().unwrap();
        for n in 0..2 {
            lease.place(n, &mut stage.push().expect("room"));
        }
        drop(stage);
        drop(lease);
    });
    let (theirs, cells_too) = (stage.clone(), Cells(cells.0.clone()));
    let consumer = thread::spawn(move || {
        consume(&mut ring, &theirs, &cells_too);
        ring
    });
    pages.take_off(1);
    pages.release();
    drop(pages);
    placer.join().unwrap();
    let mut ring = consumer.join().unwrap();
    consume(&mut ring, &stage, &cells);
    ring.completions().sweep();
    assert!((0..2).all(|n| cells.is_gone(n)), "kept for ever");
}

/// As above, in one critical section with the ring; the owner takes the lease back before it
/// acknowledges.
fn a_lease_that_came_back_is_as_good() {
    let (stage, mut ring) = TxRing::staged(2);
    let to = stage.completions().clone();
    let stage = Arc::new(Mutex::new(stage));
    let (mut pages, cells) = two_pages();
    let (theirs, cells_too) = (stage.clone(), Cells(cells.0.clone()));
    let consumer = thread::spawn(move || {
        consume(&mut ring, &theirs, &cells_too);
        ring
    });
    for n in 0..2 {
        let mut lease = Lease::new();
        pages.lend(0, 1, &to, &mut PktPool::new(0), &mut lease);
        lease.place(0, &mut stage.lock().unwrap().push().expect("room"));
        pages.take_back(lease);
        if n == 0 {
            pages.take_off(1);
        }
    }
    drop(pages);
    let mut ring = consumer.join().unwrap();
    consume(&mut ring, &stage, &cells);
    ring.completions().sweep();
    assert!((0..2).all(|n| cells.is_gone(n)), "kept for ever");
}

fn check(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    RACED.store(false, Ordering::Relaxed);
    builder.check(move || {
        model();
        assert!(!RACED.load(Ordering::Relaxed), "freed while it was read");
    });
}

fn holds(model: fn()) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    check(model);
}

fn found(bug: Bug, model: fn()) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    plant(bug);
    let outcome = catch_unwind(AssertUnwindSafe(|| check(model)));
    plant(Bug::None);
    assert!(outcome.is_err(), "{bug:?} was not found");
}

#[test]
fn pages_are_kept() {
    holds(pages_outlive_their_descriptors);
}

#[test]
fn a_buffer_that_frees_at_once_is_found() {
    found(Bug::DropsAtOnce, pages_outlive_their_descriptors);
}

#[test]
fn a_completion_out_of_order_is_found() {
    found(Bug::CompletesUnordered, pages_outlive_their_descriptors);
}

#[test]
fn what_is_lent_is_kept() {
    holds(what_is_lent_outlives_its_owner);
}

#[test]
fn a_lease_that_forgets_is_found() {
    found(Bug::LeaseForgetsTicket, what_is_lent_outlives_its_owner);
}

#[test]
fn what_was_lent_and_came_back_is_kept() {
    holds(a_lease_that_came_back_is_as_good);
}

#[test]
fn a_lease_that_comes_back_and_forgets_is_found() {
    found(Bug::LeaseForgetsTicket, a_lease_that_came_back_is_as_good);
}

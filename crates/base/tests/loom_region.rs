//! All interleavings of a stock that lets frames out and goes, and of who drops them: none is used
//! again before what was done to it is over, and the region goes once, behind the last.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-base --profile models --test loom_region`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use perimeter_base::PktBuf;
use perimeter_base::planted::{Bug, plant};
use perimeter_base::region::{Memory, Stock, divide, size};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// The models plant bugs in the whole process: one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The region went at the same time as something else was done to it, or twice.
static RACED: AtomicBool = AtomicBool::new(false);

const FRAME: usize = 64;

/// Memory of ours, aligned as a region's has to be.
#[repr(align(8192))]
struct Block(#[allow(dead_code)] [u8; 8192]);

/// What loom sees of two frames, and of the region: whether it is there.
#[derive(Clone)]
struct Cells(Arc<[UnsafeCell<u8>; 3]>);

// SAFETY: loom checks that accesses to the cells are in order.
unsafe impl Send for Cells {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cells {}

impl Cells {
    fn new() -> Cells {
        Cells(Arc::new(std::array::from_fn(|_| UnsafeCell::new(0))))
    }

    /// The frame's owner does something to it.
    fn touch(&self, frame: &PktBuf) {
        // SAFETY: loom checks that no other access is at the same time.
        self.0[2].with(|gone| assert_eq!(unsafe { *gone }, 0, "used after the region went"));
        let n = frame.raw().as_ptr().addr() / FRAME % 2;
        // SAFETY: as before.
        self.0[n].with_mut(|frame| unsafe { *frame += 1 });
    }

    /// The region goes.
    fn go(&self) {
        let all = || {
            for cell in self.0.iter() {
                // SAFETY: as before.
                cell.with_mut(|c| unsafe { *c += 1 });
            }
        };
        // Loom panics, and this runs while frames are dropped.
        if catch_unwind(AssertUnwindSafe(all)).is_err() {
            RACED.store(true, Ordering::Relaxed);
        }
    }

    fn is_gone(&self) -> bool {
        // SAFETY: as before.
        self.0[2].with(|gone| unsafe { *gone > 0 })
    }
}

fn stock(cells: &Cells) -> Stock {
    // Not by way of the stack, of which loom's threads have little.
    // SAFETY: the layout has a size.
    let block = unsafe { std::alloc::alloc_zeroed(std::alloc::Layout::new::<Block>()) };
    let block = block.cast::<Block>();
    let at = NonNull::new(block.cast::<u8>()).expect("memory");
    let (cells, owner) = (cells.clone(), block.expose_provenance());
    let release = move || {
        cells.go();
        let block = std::ptr::with_exposed_provenance_mut::<Block>(owner);
        // SAFETY: the box from above, given back once.
        drop(unsafe { Box::from_raw(block) });
    };
    // SAFETY: all of a box, aligned to its length, for this region only until it is released.
    let memory = unsafe { Memory::new(at, size(FRAME, 2), release) };
    divide(memory, FRAME, &[2]).pop().expect("a stock")
}

/// Two frames are out on two threads, while the stock looks for them, uses what came home again,
/// and goes.
fn frames_come_home_while_their_stock_goes() {
    let cells = Cells::new();
    let mut stock = stock(&cells);
    let out = [stock.take(), stock.take()].map(|f| f.expect("a frame"));
    let threads = out.map(|frame| {
        let cells = cells.clone();
        thread::spawn(move || {
            cells.touch(&frame);
            drop(frame);
        })
    });
    stock.reclaim();
    if let Some(frame) = stock.take() {
        cells.touch(&frame);
    }
    drop(stock);
    for t in threads {
        t.join().unwrap();
    }
    assert!(cells.is_gone(), "the region is left for ever");
}

fn explore(model: fn()) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(3);
    RACED.store(false, Ordering::Relaxed);
    b.check(move || {
        model();
        assert!(!RACED.load(Ordering::Relaxed), "freed while it was used");
    });
}

#[test]
fn a_region_goes_behind_its_last_frame() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    plant(Bug::None);
    explore(frames_come_home_while_their_stock_goes);
}

#[test]
fn the_models_can_fail() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for bug in [Bug::FrameReturnsUnordered, Bug::RegionGoesUnordered] {
        plant(bug);
        let found = catch_unwind(|| explore(frames_come_home_while_their_stock_goes));
        plant(Bug::None);
        assert!(found.is_err(), "{bug:?} was not found");
    }
}

//! All interleavings of two threads that leave each other work and try for ownership.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p perimeter-sync --release --test loom_owned`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use perimeter_sync::owned::Core;

/// What an organization does with it: work is left where the owner finds it; who can have
/// ownership does what there is, lets go, and looks once more.
fn leave_and_try(work: &AtomicUsize, cell: &Core<usize>, lane: usize) {
    work.fetch_add(1, Ordering::SeqCst);
    while work.load(Ordering::SeqCst) > 0 && cell.take(lane) {
        let n = work.swap(0, Ordering::SeqCst);
        // SAFETY: this thread is the owner, and the reference ends here.
        unsafe { cell.with(|done| *done += n) };
        cell.give(true);
    }
}

#[test]
fn one_owner_at_a_time_and_no_work_left() {
    loom::model(|| {
        let (work, cell) = (Arc::new(AtomicUsize::new(0)), Arc::new(Core::new(0)));
        let (work2, cell2) = (work.clone(), cell.clone());
        let t = thread::spawn(move || leave_and_try(&work2, &cell2, 1));
        leave_and_try(&work, &cell, 0);
        t.join().unwrap();
        assert_eq!(work.load(Ordering::SeqCst), 0);
        assert!(cell.take(0));
        // SAFETY: as above.
        assert_eq!(unsafe { cell.with(|done| *done) }, 2);
    });
}

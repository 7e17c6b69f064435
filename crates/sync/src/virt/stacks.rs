//! Stacks of virtual threads, kept across simulations.
//!
//! A new stack is an `mmap`, an `mprotect` and page faults (5 µs); one from the pool is a pop.

use corosensei::stack::DefaultStack;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Usable bytes per stack. Only touched pages cost memory; a panic that captures a backtrace
/// needs most of 100 KiB in an unoptimised build.
pub(super) const STACK_BYTES: usize = 256 * 1024;

/// Stacks kept when no simulation uses them.
const KEPT: usize = 1024;

static POOL: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());
static MADE: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);

/// Takes a stack from the pool, or makes one.
///
/// # Panics
/// If the kernel gives no memory for a new stack.
pub(super) fn take() -> DefaultStack {
    if let Some(s) = POOL.lock().pop() {
        return s;
    }
    MADE.fetch_add(1, Ordering::Relaxed);
    DefaultStack::new(STACK_BYTES).expect("no memory for the stack of a virtual thread")
}

/// Puts a stack back.
pub(super) fn give(stack: DefaultStack) {
    let mut pool = POOL.lock();
    if pool.len() < KEPT {
        pool.push(stack);
    } else {
        drop(pool);
        FREED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stacks that exist now, in the pool and in use, in the whole process.
pub fn stacks_alive() -> usize {
    MADE.load(Ordering::Relaxed) - FREED.load(Ordering::Relaxed)
}

//! A simulation that writes a trace of its accesses to memory to standard output, if the compiler
//! has instrumented it (`perimeter_sync::virt::trace`), and says on standard error what is to be
//! found there.

use perimeter_sync::{
    Lock, LockClass, Platform, Thread,
    virt::{Virtual, VirtualConfig, trace},
};
use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

const ROUNDS: u64 = 10;
const CORES: usize = 2;

/// Written by an atomic operation in each round.
static COUNTED: AtomicU64 = AtomicU64::new(0);

fn main() {
    trace::begin(0);
    let config = VirtualConfig::default().with_seed(1).with_cores(CORES);
    let done = Virtual::run(config, |p| {
        let words = Arc::new(p.lock(LockClass::Leaf, [0u64; 64]));
        let writers = (0..CORES).map(|core| {
            let words = words.clone();
            let body = move || {
                for round in 0..ROUNDS {
                    // A copy of 512 bytes.
                    *words.lock() = black_box([round; 64]);
                    COUNTED.fetch_add(1, Ordering::Relaxed);
                }
            };
            p.spawn("writer", Some(core), Box::new(body))
        });
        let writers: Vec<_> = writers.collect();
        trace::accesses(false);
        for writer in writers {
            writer.join().expect("a writer");
        }
        trace::end();
        words.lock()[0]
    });
    let (last, _) = done.expect("a simulation");
    assert_eq!(last, ROUNDS - 1);
    let counted = std::ptr::from_ref(&COUNTED).addr();
    let rounds = COUNTED.load(Ordering::Relaxed);
    eprintln!("{counted:x} {rounds}");
}

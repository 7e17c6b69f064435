//! What writing segments into memory and copying them out takes, by where that memory is.

use crate::host;
use perimeter_sync::Touched;
use std::{
    hint,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// Payload of a segment, the memory that it is in, and segments of a batch, which is timed.
const SEGMENT: usize = 1448;
const BUFFER: usize = 2048;
const BATCH: usize = 16;
/// Lines of a batch's payload.
const LINES: f64 = (BATCH * SEGMENT) as f64 / Touched::LINE as f64;
/// The most memory that is gone through, bytes.
const MOST: usize = 256 << 20;
/// Rounds through all memory of which the first does not count, and batches that do at least.
const ROUNDS: usize = 3;
const LEAST: usize = 200;

/// What a line takes beyond one in the core's own caches, as [written, copied], ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Payload {
    /// In a cache that cores share.
    pub shared: [f64; 2],
    /// In memory.
    pub memory: [f64; 2],
    /// In the caches of the other core; `None` with one.
    pub other: Option<[f64; 2]>,
}

/// Measures it, where a core's own caches and all that it can use have so many bytes; and of how
/// many bytes of those it seems to have the use, as other machines may use them, too.
pub(super) fn measure(private: usize, all: usize) -> (Payload, usize) {
    let base = alone(private / 4);
    let beyond = |both: [f64; 2]| [0, 1].map(|i| (both[i] - base[i]).max(0.0));
    let shared = beyond(alone((4 * private).min(all / 4).max(private / 4)));
    let memory = beyond(alone(4 * all));
    let middle = f64::midpoint(shared[1], memory[1]);
    let sizes = (0..4).map(|i| all >> i);
    let room = sizes.into_iter().find(|s| beyond(alone(*s))[1] < middle);
    let payload = Payload {
        shared,
        memory,
        other: (host::cores() > 1).then(|| beyond(apart(private / 2))),
    };
    (payload, room.unwrap_or(all >> 4))
}

/// Batches of buffers, which go round.
struct Batches {
    memory: Vec<Mutex<Vec<u8>>>,
    /// How many were written, and copied.
    written: AtomicUsize,
    copied: AtomicUsize,
}

impl Batches {
    fn new(bytes: usize) -> Batches {
        let n = (bytes.min(MOST) / (BATCH * BUFFER)).max(4);
        Batches {
            memory: (0..n)
                .map(|_| Mutex::new(vec![1; BATCH * BUFFER]))
                .collect(),
            written: AtomicUsize::new(0),
            copied: AtomicUsize::new(0),
        }
    }

    /// How many batches are written and copied in all.
    fn last(&self) -> usize {
        (ROUNDS * self.memory.len()).max(2 * LEAST)
    }

    /// Does `f` to each buffer of batch `n`; what that takes for a line, ns.
    fn timed(&self, n: usize, mut f: impl FnMut(&mut [u8])) -> f64 {
        let batch = &self.memory[n % self.memory.len()];
        let mut batch = batch.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        for buffer in batch.chunks_exact_mut(BUFFER) {
            f(&mut buffer[..SEGMENT]);
        }
        begun.elapsed().as_nanos() as f64 / LINES
    }

    fn write(&self, n: usize, from: &[u8; SEGMENT]) -> f64 {
        let took = self.timed(n, |buffer| buffer.copy_from_slice(from));
        self.written.store(n + 1, Ordering::Release);
        took
    }

    fn copy(&self, n: usize, to: &mut [u8; SEGMENT]) -> f64 {
        let took = self.timed(n, |buffer| {
            to.copy_from_slice(buffer);
            hint::black_box(&*to);
        });
        self.copied.store(n + 1, Ordering::Release);
        took
    }
}

/// The median of what counts.
fn usual(list: Vec<f64>) -> f64 {
    let counts = list.len() / ROUNDS;
    let mut list = list[counts..].to_vec();
    list.sort_unstable_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(0.0)
}

/// One core writes into so many bytes of memory, and copies from there half a round later.
fn alone(bytes: usize) -> [f64; 2] {
    let work = || {
        host::pin(0);
        let b = Batches::new(bytes);
        let behind = b.memory.len() / 2;
        let (from, mut to) = ([7; SEGMENT], [0; SEGMENT]);
        let (mut writes, mut copies) = (Vec::new(), Vec::new());
        for n in 0..b.last() {
            writes.push(b.write(n, &from));
            if n >= behind {
                copies.push(b.copy(n - behind, &mut to));
            }
        }
        [usual(writes), usual(copies)]
    };
    thread::scope(|t| t.spawn(work).join()).unwrap_or_default()
}

/// One core writes, another copies a quarter of a round later.
fn apart(bytes: usize) -> [f64; 2] {
    let b = Batches::new(bytes);
    let (last, behind) = (b.last(), b.memory.len() / 4);
    let reached = |count: &AtomicUsize, n: usize| {
        while count.load(Ordering::Acquire) < n {
            hint::spin_loop();
        }
    };
    let write = || {
        host::pin(1);
        let from = [7; SEGMENT];
        let one = |n: usize| {
            // Who copies is to have done so before its buffer is written again.
            reached(&b.copied, (n + 1).saturating_sub(2 * behind));
            b.write(n, &from)
        };
        usual((0..last).map(one).collect())
    };
    let copy = || {
        host::pin(0);
        let mut to = [0; SEGMENT];
        let one = |n: usize| {
            reached(&b.written, (n + behind).min(last));
            b.copy(n, &mut to)
        };
        usual((0..last).map(one).collect())
    };
    thread::scope(|t| {
        let (write, copy) = (t.spawn(write), t.spawn(copy));
        [write, copy].map(|h| h.join().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_farther_than_a_cache() {
        let near = alone(1 << 17);
        let far = alone(MOST);
        assert!(far[1] > near[1] && far[0] > near[0], "{near:?} {far:?}");
    }
}

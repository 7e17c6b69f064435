//! Simulations beside each other, one on each core: each is a thread of its own and knows of no
//! other, so the results are the same as one after the other.

use crate::host;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Runs `f` on each job; the results in the order of the jobs.
pub fn each<J: Sync, R: Send>(jobs: &[J], f: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    thread::scope(|s| {
        for _ in 0..host::cores().min(jobs.len()) {
            s.spawn(|| {
                while let Some((i, job)) = take(&next, jobs) {
                    let result = f(job);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, r)| r).collect()
}

fn take<'a, J>(next: &AtomicUsize, jobs: &'a [J]) -> Option<(usize, &'a J)> {
    let i = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(i).map(|job| (i, job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        let jobs: Vec<u32> = (0..100).collect();
        let doubled: Vec<u32> = each(&jobs, |j| 2 * j);
        assert!(doubled.iter().zip(&jobs).all(|(d, j)| *d == 2 * j));
        assert!(each(&[] as &[u32], |j| *j).is_empty());
    }
}

//! Whether one thread is as fast at one moment as at the next.
//!
//! A virtual machine's core may be one of two threads of a physical core, and the other thread
//! another machine's. While both work, each has about half of the physical core. That is no stolen
//! time, and no counter of the guest shows it. On a host where a step took now 0.7 ns, now 1.5,
//! half-second runs of `up` sent 111 to 133 Gb/s where steps were slow before and after (twelve of
//! thirteen), and 164 to 184 where they were fast (four of four).

use super::pin;
use crate::stats::{Spread, median};
use std::{hint::black_box, thread, time::Duration, time::Instant};

/// Looks, each at the next of the first two cores.
const LOOKS: usize = 24;
/// Time between two looks. They are made over half a second in all, as others come and go.
const BETWEEN: Duration = Duration::from_millis(20);
/// Batches of a look, of which the median counts: some are interrupted.
const BATCHES: usize = 15;
/// Steps of a batch, some 15 µs.
const STEPS: u64 = 10_000;
/// How many times as long as in the fastest look a step may take in the slowest. On that host fast
/// steps differed by a fifth (0.72 to 0.87 ns), and slow ones took twice as long.
const STEADY: f64 = 1.25;

/// What a step of work takes that a physical core does for one thread as fast as it can, ns: in
/// each of some looks.
fn looks() -> Vec<f64> {
    // A thread for each, as one that is bound to a core may use no other after that.
    let apart = |n| thread::scope(|scope| scope.spawn(move || look(n)).join().ok().flatten());
    (0..LOOKS).filter_map(apart).collect()
}

/// What is to be said where one thread is not always as fast. Takes half a second.
pub fn sign() -> Option<String> {
    sign_of(&looks())
}

fn sign_of(looks: &[f64]) -> Option<String> {
    let of = Spread::of(looks)?;
    let times = of.max / of.min;
    (times > STEADY).then(|| {
        format!(
            "one thread took {times:.1} times as long for the same work at one moment as at another"
        )
    })
}

fn look(n: usize) -> Option<f64> {
    thread::sleep(BETWEEN);
    pin(n % 2);
    // What has slept is not yet at its core's full speed.
    batch();
    median(&[(); BATCHES].map(|()| batch()))
}

/// ns of a step. Its operations depend on each other so little that what one thread does in a step is
/// bound by how many a core can do.
fn batch() -> f64 {
    let [mut a, mut b, mut c, mut d] = black_box([1u64, 2, 3, 4]);
    let begun = Instant::now();
    for i in 0..STEPS {
        // Different distances, so that no compiler makes vectors of them.
        a = (a.rotate_left(7) ^ i).wrapping_add(b);
        b = (b.rotate_left(13) ^ i).wrapping_add(c);
        c = (c.rotate_left(19) ^ i).wrapping_add(d);
        d = (d.rotate_left(29) ^ i).wrapping_add(3);
    }
    black_box([a, b, c, d]);
    begun.elapsed().as_nanos() as f64 / STEPS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_tells_something() {
        let looks = looks();
        assert_eq!(looks.len(), LOOKS);
        assert!(looks.iter().all(|ns| (0.01..1e5).contains(ns)), "{looks:?}");
    }

    #[test]
    fn what_changes_is_told() {
        for (looks, said) in [
            (vec![], None),
            (vec![1.5; 24], None),
            (vec![1.5, 1.6, 1.85], None),
            (vec![1.5, 1.6, 1.9], Some("took 1.3 times as long")),
            (vec![3.0, 1.5], Some("took 2.0 times as long")),
        ] {
            let sign = sign_of(&looks);
            assert_eq!(sign.is_some(), said.is_some(), "{looks:?}: {sign:?}");
            assert!(sign.unwrap_or_default().contains(said.unwrap_or("")));
        }
    }
}

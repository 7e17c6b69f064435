//! Medians with their spread and their intervals, and what two of them say.
//!
//! Nothing here assumes a distribution: medians, order statistics and the ratios of pairs.

mod compare;
mod interval;
mod order;
mod sizes;

pub use compare::{Comparison, Verdict, compare};
pub use interval::{ENOUGH, Interval, LEAST, WANTED};
pub use order::shuffle;
pub use sizes::Sizes;

use serde::{Deserialize, Serialize};

/// Median, least and greatest of the repeats of one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle value; the mean of the two middle values when their number is even.
    pub median: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there is none, or one is not a number.
    pub fn of(values: &[f64]) -> Option<Spread> {
        if values.is_empty() || values.iter().any(|v| v.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: middle(&sorted),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        })
    }
}

/// Median of sorted, non-empty values.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        sorted[half - 1].midpoint(sorted[half])
    }
}

/// Median of `values` if there are any.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|s| s.median)
}

/// Least and median of integer counts: how evenly connections were served. Zeros when empty.
pub fn least_and_median(counts: &mut [u64]) -> (u64, u64) {
    if counts.is_empty() {
        return (0, 0);
    }
    counts.sort_unstable();
    (counts[0], counts[counts.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_samples() {
        // Values, then their median, least and greatest.
        let table = [
            (vec![5.0], [5.0, 5.0, 5.0]),
            (vec![3.0, 1.0], [2.0, 1.0, 3.0]),
            (vec![9.0, 1.0, 4.0], [4.0, 1.0, 9.0]),
            (vec![2.0, 8.0, 4.0, 100.0], [6.0, 2.0, 100.0]),
        ];
        for (values, [median, min, max]) in table {
            assert_eq!(Spread::of(&values), Some(Spread { median, min, max }));
        }
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert_eq!(least_and_median(&mut [9, 2, 5]), (2, 5));
        assert_eq!(least_and_median(&mut []), (0, 0));
    }

    proptest! {
        #[test]
        fn half_of_the_values_lie_on_each_side(values in prop::collection::vec(-1e12f64..1e12, 1..40)) {
            let s = Spread::of(&values).unwrap();
            let below = values.iter().filter(|v| **v <= s.median).count();
            let above = values.iter().filter(|v| **v >= s.median).count();
            prop_assert!(2 * below >= values.len() && 2 * above >= values.len());
            prop_assert!(values.iter().all(|v| (s.min..=s.max).contains(v)));
        }
    }
}

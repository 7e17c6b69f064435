//! Intervals that hold the median, from order statistics: no assumption on the distribution but
//! that the values are independent draws from one.

use serde::{Deserialize, Serialize};

/// Coverage that is aimed at.
pub const WANTED: f64 = 0.95;
/// Least coverage at which an interval is taken for evidence: what five values give.
pub const LEAST: f64 = 0.93;
/// Values that an interval needs at least to be taken for evidence.
pub const ENOUGH: usize = 5;

/// An interval that holds the median of what the values were drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end, one of the values.
    pub low: f64,
    /// Its upper end, one of the values.
    pub high: f64,
    /// Probability that an interval found in this way holds the median.
    pub coverage: f64,
}

impl Interval {
    /// The narrowest interval between two order statistics, equally far from both ends, whose
    /// coverage is at least [`WANTED`]; the whole range, with the coverage that it has, where the
    /// values are too few for that. `None` with fewer than two values, or one that is no number.
    pub fn of_median(values: &[f64]) -> Option<Interval> {
        let n = values.len();
        if n < 2 || values.iter().any(|v| v.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let k = (1..=n / 2)
            .take_while(|&k| coverage(n, k) >= WANTED)
            .last()
            .unwrap_or(1);
        Some(Interval {
            low: sorted[k - 1],
            high: sorted[n - k],
            coverage: coverage(n, k),
        })
    }

    /// Whether this interval and `other` have a value in common.
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// Whether `value` lies within it, its ends included.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether there were values enough to take it for evidence.
    pub fn is_evidence(&self) -> bool {
        self.coverage >= LEAST
    }
}

/// Probability that the `k`-th least and the `k`-th greatest of `n` values have the median between
/// them: 1 − 2·P(B < k), B binomial with `n` trials of 1/2.
///
/// The sum goes from the least term up, by ratios of neighbouring terms, in logarithms: 2⁻ⁿ alone
/// would be 0 from n = 1075 on.
fn coverage(n: usize, k: usize) -> f64 {
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for i in 0..k {
        below += term.exp();
        term += ((n - i) as f64 / (i + 1) as f64).ln();
    }
    1.0 - 2.0 * below
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranks from the published tables of the sign test's confidence limits for the median at
    /// 95 %, and coverages that are fractions of powers of two.
    #[test]
    fn known_ranks() {
        let table = [
            (6, 1, 1.0 - 2.0 / 64.0),
            (8, 1, 1.0 - 2.0 / 256.0),
            (9, 2, 1.0 - 20.0 / 512.0),
            (12, 3, 1.0 - 2.0 * 79.0 / 4096.0),
            (15, 4, 1.0 - 2.0 * 576.0 / 32768.0),
            (20, 6, 1.0 - 2.0 * 21700.0 / 1048576.0),
            (25, 8, 1.0 - 2.0 * 726206.0 / 33554432.0),
        ];
        for (n, rank, expected) in table {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let interval = Interval::of_median(&values).unwrap();
            assert_eq!(interval.low, f64::from(rank), "n = {n}");
            assert_eq!(interval.high, f64::from(n + 1 - rank), "n = {n}");
            assert!(
                (interval.coverage - expected).abs() < 1e-12,
                "n = {n}: {interval:?}"
            );
            assert!(interval.is_evidence());
        }
        // The next rank in would not do.
        assert!(coverage(20, 7) < WANTED && coverage(25, 9) < WANTED);
    }

    #[test]
    fn few_values_say_what_they_cover() {
        for (n, expected) in [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)] {
            let values: Vec<f64> = (0..n).map(f64::from).collect();
            let interval = Interval::of_median(&values).unwrap();
            assert_eq!((interval.low, interval.high), (0.0, f64::from(n - 1)));
            assert!((interval.coverage - expected).abs() < 1e-12);
            assert_eq!(interval.is_evidence(), n as usize == ENOUGH);
        }
        assert_eq!(Interval::of_median(&[]), None);
        assert_eq!(Interval::of_median(&[1.0]), None);
        assert_eq!(Interval::of_median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn many_values_do_not_run_out_of_range() {
        let values: Vec<f64> = (0..5000).map(f64::from).collect();
        let interval = Interval::of_median(&values).unwrap();
        // The normal approximation: 2500 ± 0.98·√5000.
        assert!((interval.low - 2430.0).abs() < 3.0, "{interval:?}");
        assert!((WANTED..0.96).contains(&interval.coverage));
    }

    /// The promise itself: of many samples of a skewed distribution with a known median, as many
    /// intervals hold it as the coverage says.
    #[test]
    fn it_covers_as_often_as_it_says() {
        let mut rng = perimeter_base::rng::SplitMix64::new(7);
        for n in [5, 9, 20] {
            let (mut held, mut said) = (0, 0.0);
            const SAMPLES: usize = 4000;
            for _ in 0..SAMPLES {
                // Exponential: median ln 2.
                let values: Vec<f64> = (0..n).map(|_| -(1.0 - rng.unit()).ln()).collect();
                let interval = Interval::of_median(&values).unwrap();
                held += usize::from(interval.contains(std::f64::consts::LN_2));
                said = interval.coverage;
            }
            let share = held as f64 / SAMPLES as f64;
            // Four standard errors.
            let slack = 4.0 * (said * (1.0 - said) / SAMPLES as f64).sqrt();
            assert!(
                (share - said).abs() < slack,
                "n = {n}: {share} held, {said} said"
            );
        }
    }

    proptest! {
        #[test]
        fn it_holds_the_samples_median(values in prop::collection::vec(-1e9f64..1e9, 2..60)) {
            let interval = Interval::of_median(&values).unwrap();
            let median = crate::stats::median(&values).unwrap();
            prop_assert!(interval.contains(median));
            prop_assert!(interval.overlaps(&interval));
        }
    }
}

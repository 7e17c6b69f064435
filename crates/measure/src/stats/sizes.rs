//! Durations by size, as runs record them.

use perimeter::profile::Histogram;
use serde::{Deserialize, Serialize};

/// How many durations fell into each bucket of [`Histogram`]: pairs of the bucket's shortest
/// duration in ns and a count, by size; empty buckets are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sizes(Vec<(u64, u64)>);

impl Sizes {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|b| b.1).sum()
    }

    /// Adds those of `other`.
    pub fn add(&mut self, other: &Sizes) {
        for &(from, n) in &other.0 {
            match self.0.binary_search_by_key(&from, |b| b.0) {
                Ok(i) => self.0[i].1 += n,
                Err(i) => self.0.insert(i, (from, n)),
            }
        }
    }

    /// What the share `q` of them, 0 to 1, stays within, ns: between the ends of a bucket by
    /// proportion. `None` if there are none.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let mut left = q * self.count() as f64;
        let last = self.0.last()?;
        for &(from, n) in &self.0 {
            if left <= n as f64 {
                let to = end(from);
                return Some(from as f64 + (to - from) as f64 * left / n as f64);
            }
            left -= n as f64;
        }
        Some(end(last.0) as f64)
    }
}

/// Where the bucket that begins at `from` ends.
fn end(from: u64) -> u64 {
    let bucket = Histogram::bucket(from);
    Histogram::floor(bucket + 1).max(from.saturating_add(1))
}

impl From<&Histogram> for Sizes {
    fn from(h: &Histogram) -> Sizes {
        Sizes(h.iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(durations: impl IntoIterator<Item = u64>) -> Sizes {
        let mut h = Histogram::default();
        durations.into_iter().for_each(|ns| h.add(ns));
        Sizes::from(&h)
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let all = sizes(1..=10_000);
        assert_eq!(all.count(), 10_000);
        for q in [0.01, 0.1, 0.5, 0.9, 0.99, 1.0] {
            let (got, is) = (all.quantile(q).unwrap(), q * 10_000.0);
            assert!((got / is - 1.0).abs() < 0.25, "{q}: {got} for {is}");
        }
        assert_eq!(sizes([]).quantile(0.5), None);
        assert_eq!(sizes([5]).quantile(0.5), Some(5.5));
    }

    #[test]
    fn sums_and_text() {
        let mut a = sizes([3, 100]);
        a.add(&sizes([100, 7, 90_000]));
        assert_eq!(a, sizes([3, 7, 100, 100, 90_000]));
        let text = serde_json::to_string(&a).unwrap();
        assert!(text.starts_with("[[3,1],[7,1],[96,2],"), "{text}");
        assert_eq!(serde_json::from_str::<Sizes>(&text).unwrap(), a);
        // What a file says need not be a bucket's beginning.
        let odd: Sizes = serde_json::from_str("[[18446744073709551615,3]]").unwrap();
        assert!(odd.quantile(0.5).is_some());
    }
}

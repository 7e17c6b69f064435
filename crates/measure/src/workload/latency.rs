//! How long rounds took.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest round trip that is told apart from longer ones, ns.
const LONGEST: u64 = 60_000_000_000;

/// Round trips of requests and responses, or connections from opening to close, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// Nine in ten are at most this.
    pub p90_ns: u64,
    /// 99 in 100.
    pub p99_ns: u64,
    /// 999 in 1000.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// Room for latencies: three digits from 1 ns to a minute, in 200 KB, and no allocation later.
pub(crate) fn latencies() -> Histogram<u64> {
    // Both bounds are constants that it takes.
    Histogram::new_with_bounds(1, LONGEST, 3).unwrap_or_else(|e| unreachable!("{e}"))
}

/// The latencies of several threads together; `None` without rounds.
pub fn summary(histograms: impl Iterator<Item = Histogram<u64>>) -> Option<Latency> {
    let all = histograms.reduce(|mut sum, one| {
        // Of the same bounds, so nothing fails.
        let _ = sum.add(one);
        sum
    })?;
    (!all.is_empty()).then(|| Latency {
        mean_ns: all.mean(),
        p50_ns: all.value_at_quantile(0.5),
        p90_ns: all.value_at_quantile(0.9),
        p99_ns: all.value_at_quantile(0.99),
        p999_ns: all.value_at_quantile(0.999),
        max_ns: all.max(),
    })
}

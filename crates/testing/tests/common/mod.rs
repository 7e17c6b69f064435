//! What a simulation costs.

use perimeter_testing::seeds;
use std::time::Duration;

/// Processor time that this thread has used, where the host tells.
fn used() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

/// As [`seeds::check`]; and a thousand seeds would take one core less than a minute.
pub fn check(count: u64, mut test: impl FnMut(u64) -> Result<(), String>) {
    let (before, mut ran) = (used(), 0);
    seeds::check(count, |seed| {
        ran += 1;
        test(seed)
    });
    if let (Some(before), Some(after)) = (before, used()) {
        let each = (after - before) / ran;
        println!(
            "{each:?} a seed, {} a minute",
            60_000_000 / each.as_micros().max(1)
        );
        assert!(each < Duration::from_millis(60), "{each:?} a seed");
    }
}

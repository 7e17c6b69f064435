//! Many seeds, one after the other.

use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::panic_message;

/// Runs `test` with one seed after the other until it fails: yields the seed with which it did, and
/// what went wrong. A panic is a failure like an error. `None`: all have passed.
pub fn find_failure<E: Display>(
    seeds: Range<u64>,
    mut test: impl FnMut(u64) -> Result<(), E>,
) -> Option<(u64, String)> {
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| test(seed))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some((seed, error.to_string())),
            Err(panic) => return Some((seed, panic_message(&*panic))),
        }
    }
    None
}

/// Holds `test` against the first `count` seeds, for use in a test function. Each may be more or
/// fewer by the environment: `PERIMETER_SEEDS=5000` tries so many, `PERIMETER_SEED=17` only that one,
/// which brings a failure back.
///
/// # Panics
/// If `test` fails with some seed. The message says which, and how to have the same run again.
pub fn check<E: Display>(count: u64, test: impl FnMut(u64) -> Result<(), E>) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        let parsed = text.trim().parse::<u64>();
        Some(parsed.unwrap_or_else(|_| panic!("{name}={text}: not a number")))
    };
    let seeds = match (number("PERIMETER_SEED"), number("PERIMETER_SEEDS")) {
        (Some(one), _) => one..one.saturating_add(1),
        (None, count_by_env) => 0..count_by_env.unwrap_or(count),
    };
    if let Some((seed, what)) = find_failure(seeds, test) {
        let thread = std::thread::current();
        let test = thread.name().filter(|n| *n != "main");
        let test = test.map_or_else(String::new, |name| format!(" -- --exact {name}"));
        panic!(
            "failed with seed {seed}: {what}\nthe same again: PERIMETER_SEED={seed} cargo test{test}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seed_that_fails_is_told() {
        let fails = |from| move |seed| if seed < from { Ok(()) } else { Err("no") };
        assert_eq!(find_failure(0..9, fails(10)), None);
        assert_eq!(find_failure(0..20, fails(10)), Some((10, "no".to_owned())));
        let panics = find_failure(3..9, |seed| -> Result<(), String> { panic!("{seed}") });
        assert_eq!(panics, Some((3, "3".to_owned())));
        let told = catch_unwind(|| check(50, fails(10))).unwrap_err();
        let told = panic_message(&*told);
        assert!(told.starts_with("failed with seed 10: no\n"), "{told}");
        assert!(told.contains("PERIMETER_SEED=10 cargo test"), "{told}");
    }
}

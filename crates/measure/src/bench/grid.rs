//! Which runs, in which order, and for how long.

use crate::{
    organizations::Organization,
    session::Slot,
    workload::{Configuration, settings::Settings},
};
use std::time::Duration;

/// Bound of a whole `--quick` command.
pub const QUICK: Duration = Duration::from_secs(30);
/// Part of [`QUICK`] kept back for starting, tearing down and writing the report.
const RESERVE: Duration = Duration::from_millis(2500);
/// Shortest measurement that means something: hundreds of round trips, and ten times the kernel's
/// 10 ms accounting tick.
pub const SHORTEST: Duration = Duration::from_millis(200);
/// Shortest warm-up: enough for slow start to fill every buffer over a 50 µs round trip.
const SHORTEST_WARM_UP: Duration = Duration::from_millis(100);
/// Longest warm-up, whatever the measured time.
const LONGEST_WARM_UP: Duration = Duration::from_secs(2);

/// The grid, in the order of the report: by connections, then organization, so that rows to be
/// compared are neighbours.
pub fn grid(settings: &Settings) -> Vec<Configuration> {
    let one = |connections, organization: &Organization| Configuration {
        organization: organization.clone(),
        connections,
        threads: settings.threads_of(organization),
    };
    let all = settings.connections.iter();
    all.flat_map(|&n| settings.organizations.iter().map(move |o| one(n, o)))
        .collect()
}

/// Order of the runs as (repeat, index into the grid). Every configuration runs once before any
/// runs again, and each pass goes the other way round than the one before it, so a slow drift of
/// the machine (heat, other guests) falls on all alike.
pub fn interleaved(configurations: usize, repeat: u32) -> Vec<(u32, usize)> {
    let mut order = Vec::with_capacity(configurations * repeat as usize);
    for pass in 0..repeat {
        for i in 0..configurations {
            let index = if pass % 2 == 0 {
                i
            } else {
                configurations - 1 - i
            };
            order.push((pass, index));
        }
    }
    order
}

/// Divides the time of a command among its runs.
#[derive(Debug, Clone)]
pub struct Budget {
    asked: Duration,
    limit: Option<Duration>,
}

impl Budget {
    /// The budget that `settings` ask for.
    pub fn new(settings: &Settings) -> Self {
        Budget {
            asked: settings.seconds,
            limit: settings.quick.then(|| QUICK - RESERVE),
        }
    }

    /// When, from the start of the command, everything has to be over; `None` without a limit.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Slot of the next run, `elapsed` after the start of the command. `set_up` holds the expected
    /// preparation and teardown of that run, then of every other run that should still be made.
    /// `None` when a run of [`SHORTEST`] no longer fits.
    ///
    /// Under a limit, what remains after all preparations is divided evenly. If that is too little
    /// for all, this run still gets the shortest slot, and the last ones don't run.
    pub fn slot(&self, elapsed: Duration, set_up: &[Duration]) -> Option<Slot> {
        let Some(limit) = self.limit else {
            let slot = split(self.asked.mul_f64(1.2), self.asked);
            return Some(slot.until_grown());
        };
        let remaining = limit.checked_sub(elapsed)?;
        let this = set_up.first().copied().unwrap_or_default();
        let shortest = SHORTEST + SHORTEST_WARM_UP;
        if remaining < this + shortest {
            return None;
        }
        let runs = set_up.len().max(1) as u32;
        let share = remaining.saturating_sub(set_up.iter().sum()) / runs;
        Some(split(share.max(shortest), self.asked))
    }

    /// Whether another full pass over the grid fits, given the set-up times of its runs.
    pub fn pass_fits(&self, elapsed: Duration, set_up: &[Duration]) -> bool {
        let Some(limit) = self.limit else { return true };
        let runs = set_up.len() as u32;
        let need: Duration = set_up.iter().sum::<Duration>() + (SHORTEST + SHORTEST_WARM_UP) * runs;
        elapsed + need <= limit
    }
}

/// Divides a run's time into warm-up (a sixth, within bounds) and measurement.
fn split(share: Duration, asked: Duration) -> Slot {
    let warm_up = (share / 6).clamp(SHORTEST_WARM_UP, LONGEST_WARM_UP);
    let measure = share
        .saturating_sub(warm_up)
        .clamp(SHORTEST.min(asked), asked);
    Slot::new(warm_up, measure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn passes_alternate_and_cover() {
        assert_eq!(
            interleaved(3, 2),
            [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
        );
        assert!(interleaved(0, 5).is_empty());
    }

    #[test]
    fn up_has_one_thread_in_the_grid() {
        let settings = Settings {
            threads: 4,
            organizations: ["null", "up", "connp-l:128", "linux"]
                .map(|o| crate::backends::parse(o).unwrap())
                .to_vec(),
            ..Settings::default()
        };
        let grid = grid(&settings);
        assert_eq!(grid.len(), 16);
        for c in grid {
            let expected = if ["up", "null"].contains(&c.organization.to_string().as_str()) {
                1
            } else {
                4
            };
            assert_eq!(c.threads, expected, "{c:?}");
        }
    }

    #[test]
    fn without_a_limit_the_asked_time_is_measured() {
        for seconds in [0.1, 1.0, 5.0, 60.0] {
            let asked = Duration::from_secs_f64(seconds);
            let budget = Budget { asked, limit: None };
            let slot = budget.slot(Duration::from_secs(999), &[]).unwrap();
            let error = slot.measure.abs_diff(asked);
            assert!(error < asked / 20 + Duration::from_millis(1) || slot.measure >= asked);
        }
    }

    proptest! {
        /// A quick command ends in time for any grid, if set-up takes what was expected.
        #[test]
        fn quick_is_bounded(
            set_up in prop::collection::vec(0u64..4_000, 1..200),
            repeat in 1u32..10,
        ) {
            let settings = Settings { quick: true, ..Settings::default() };
            let budget = Budget::new(&settings);
            let set_up: Vec<_> = set_up.into_iter().map(Duration::from_millis).collect();
            let mut elapsed = Duration::ZERO;
            let mut runs = 0;
            for pass in 0..repeat {
                if pass > 0 && !budget.pass_fits(elapsed, &set_up) { break; }
                for i in 0..set_up.len() {
                    let Some(slot) = budget.slot(elapsed, &set_up[i..]) else { continue };
                    prop_assert!(slot.measure >= SHORTEST);
                    elapsed += set_up[i] + slot.warm_up + slot.measure;
                    runs += 1;
                }
            }
            prop_assert!(elapsed <= QUICK, "{elapsed:?}");
            prop_assert!(runs > 0);
        }
    }
}

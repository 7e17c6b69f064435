//! Costs of classes of work from runs of one thread: least squares, none below nothing, drawn a
//! little towards what was believed before, as runs can't tell all classes apart.

/// How much a cost that differs from the one before by its whole size weighs, against a run that
/// is off by its whole time.
const PRIOR: f64 = 0.003;
/// Rounds of descent; each goes through all costs once.
const ROUNDS: usize = 2000;

/// One run: its time, and how many units it had of each cost, both for the same work.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Units of each cost.
    pub units: Vec<f64>,
    /// What they took, ns; the rest of the run's time is known otherwise and taken off.
    pub ns: f64,
    /// What the whole run took, ns: errors count relative to that.
    pub scale: f64,
}

/// Costs that fit the runs, from those believed before.
///
/// Minimizes the sum of squared relative errors of the runs, and of `PRIOR` times the squared
/// relative change of each cost, over costs of 0 and more: coordinate descent, whose steps are
/// exact and whose only minimum is the one, as the function is convex.
pub fn fit(runs: &[Observed], before: &[f64]) -> Vec<f64> {
    let mut costs = before.to_vec();
    let mut errors: Vec<f64> = runs.iter().map(|r| r.ns - dot(&r.units, &costs)).collect();
    for _ in 0..ROUNDS {
        for k in 0..costs.len() {
            // Costs that were nothing can become something, at the price of a nanosecond's change.
            let size = before[k].max(1.0);
            let (mut above, mut below) = (
                PRIOR * (before[k] - costs[k]) / (size * size),
                PRIOR / (size * size),
            );
            for (r, e) in runs.iter().zip(&errors) {
                let u = r.units[k];
                above += u * e / (r.scale * r.scale);
                below += u * u / (r.scale * r.scale);
            }
            let to = (costs[k] + above / below).max(0.0);
            let by = to - costs[k];
            costs[k] = to;
            for (r, e) in runs.iter().zip(&mut errors) {
                *e -= r.units[k] * by;
            }
        }
    }
    costs
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn observed(units: &[f64], truth: &[f64]) -> Observed {
        let ns = dot(units, truth);
        Observed {
            units: units.to_vec(),
            ns,
            scale: ns.max(1.0),
        }
    }

    #[test]
    fn what_runs_tell_apart_is_found() {
        let truth = [40.0, 15.0, 90.0];
        let runs: Vec<Observed> = [
            [1.0, 0.5, 0.1],
            [1.0, 0.1, 0.5],
            [0.2, 1.0, 1.0],
            [0.0, 1.0, 0.2],
        ]
        .iter()
        .map(|u| observed(u, &truth))
        .collect();
        let found = fit(&runs, &[50.0, 20.0, 70.0]);
        for (f, t) in found.iter().zip(&truth) {
            assert!((f / t - 1.0).abs() < 0.1, "{found:?}");
        }
        for r in &runs {
            let error = dot(&r.units, &found) / r.ns - 1.0;
            assert!(error.abs() < 0.03, "{error}");
        }
    }

    #[test]
    fn what_no_run_has_stays_as_it_was() {
        let runs = [observed(&[1.0, 0.0], &[30.0, 5.0])];
        let found = fit(&runs, &[10.0, 7.0]);
        assert!((found[0] - 30.0).abs() < 4.0, "{found:?}");
        assert!((found[1] - 7.0).abs() < 1e-9, "{found:?}");
    }

    proptest! {
        /// Never below nothing, and never worse than what was believed before.
        #[test]
        fn no_cost_is_negative(
            rows in prop::collection::vec((prop::collection::vec(0.0..2.0f64, 3), 0.0..200.0f64), 1..6),
            before in prop::collection::vec(0.0..100.0f64, 3),
        ) {
            let runs: Vec<Observed> = rows
                .iter()
                .map(|(units, ns)| Observed { units: units.clone(), ns: *ns, scale: ns.max(1.0) })
                .collect();
            let found = fit(&runs, &before);
            prop_assert!(found.iter().all(|c| *c >= 0.0 && c.is_finite()));
            let error = |costs: &[f64]| -> f64 {
                runs.iter().map(|r| ((r.ns - dot(&r.units, costs)) / r.scale).powi(2)).sum()
            };
            prop_assert!(error(&found) <= error(&before) + 1e-6);
        }
    }
}

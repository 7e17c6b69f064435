//! One name for each organization, the one that the command line takes, and units for the eye.

use crate::{
    metric::Metric,
    plan::{Mode, Plan},
    published::Experiment,
};

/// The names of a plan's curves, in its order: what runs, as `--org` takes it, with `N` for a number
/// that the axis gives. Where two curves run the same, what the plan's label says besides follows.
pub(super) fn names(plan: &Plan) -> Vec<String> {
    let x = plan.values(Mode::Full).first().copied().unwrap_or(1);
    let bare: Vec<String> = plan
        .series
        .iter()
        .map(|s| match (s.pattern().contains("{}"), s.organization(x)) {
            (false, Ok(organization)) => organization.to_string(),
            _ => s.pattern().replace("{}", "N"),
        })
        .collect();
    let labels = plan.series.iter().map(|s| s.label.as_str());
    let all: Vec<(&str, &str)> = bare.iter().map(String::as_str).zip(labels).collect();
    let one = |&(name, label): &(&str, &str)| {
        let same = || all.iter().filter(|(n, _)| *n == name);
        // Without a remark there is one at most, or labels tell them apart.
        let plain = same().filter(|(_, l)| !l.contains(", ")).count();
        match label.split_once(", ") {
            _ if same().count() == 1 => name.to_string(),
            Some((_, remark)) => format!("{name}, {remark}"),
            None if plain > 1 => format!("{name}, {label}"),
            None => name.to_string(),
        }
    };
    all.iter().map(one).collect()
}

/// A unit that a reader takes in at a glance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unit {
    /// Its name.
    pub name: &'static str,
    /// What a recorded value is multiplied by.
    pub factor: f64,
}

impl Unit {
    /// The unit in which a metric is shown.
    pub(super) fn of(metric: Metric) -> Unit {
        let (name, factor) = match metric {
            Metric::Goodput | Metric::GoodputOwn => ("Gb/s", 1e-3),
            Metric::GoodputPerCpu => ("Gb per CPU s", 1e-3),
            other => (other.unit(), 1.0),
        };
        Unit { name, factor }
    }

    /// The unit in which published values are shown.
    pub(super) fn published(e: &'static Experiment) -> Unit {
        match e.unit.as_str() {
            "Mb/s" => Unit {
                name: "Gb/s",
                factor: 1e-3,
            },
            "misses/KB" => Unit {
                name: "per KB",
                factor: 1.0,
            },
            other => Unit {
                name: other,
                factor: 1.0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::embedded;

    #[test]
    fn every_curve_of_a_plan_has_a_name_of_its_own() {
        for plan in embedded() {
            let mut names = names(&plan);
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{}: {names:?}", plan.name);
        }
    }

    #[test]
    fn what_runs_is_named_and_not_what_a_paper_calls_it() {
        let of = |name: &str| {
            let plan = embedded().into_iter().find(|p| p.name == name).unwrap();
            names(&plan)
        };
        let throughput = of("throughput");
        assert_eq!(throughput[..3], ["up", "up:shared", "msgp"]);
        assert_eq!(of("pef-connections")[1], "squeue:fanout=on");
        assert_eq!(of("groups")[0], "connp-l:N, 6 connections");
        assert_eq!(of("linux")[3..], ["linux", "linux, short"]);
        assert_eq!(of("locks")[4], "connp-l:128");
        assert_eq!(of("locks")[6], "connp-l:128, turnstile locks");
    }
}

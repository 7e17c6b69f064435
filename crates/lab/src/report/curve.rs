//! Points with their intervals, and curves of them.

use crate::{
    metric::Metric,
    organizations::Organization,
    record::Measured,
    stats::{Comparison, Interval, Spread, compare},
};
use std::collections::BTreeMap;

/// One point of a curve.
#[derive(Debug, Clone)]
pub struct Point {
    /// Its place on the x axis.
    pub x: u64,
    /// Measurements by pass.
    pub runs: BTreeMap<u32, Measured>,
    /// Why there is none, if there is none.
    pub missing: Option<String>,
    /// Whether this machine can run it, as far as is known.
    pub possible: bool,
    /// Runs that something disturbed.
    pub disturbed: usize,
    /// Runs whose accounting does not hold.
    pub invalid: usize,
}

impl Point {
    /// A metric's value by pass.
    pub fn values(&self, metric: Metric) -> BTreeMap<u32, f64> {
        let value = |(pass, m): (&u32, &Measured)| Some((*pass, metric.of(m)?));
        self.runs.iter().filter_map(value).collect()
    }

    /// Median, least and greatest.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(&self.values(metric).into_values().collect::<Vec<_>>())
    }

    /// Interval of the median.
    pub fn interval(&self, metric: Metric) -> Option<Interval> {
        Interval::of_median(&self.values(metric).into_values().collect::<Vec<_>>())
    }
}

/// One curve.
#[derive(Debug, Clone)]
pub struct Curve {
    /// What runs, as the command line takes it: its one name in figures, tables and sentences.
    pub name: String,
    /// Its label in the plan and in the rows.
    pub label: String,
    /// Its counterpart in the papers.
    pub published: Option<String>,
    /// Organization at the first point.
    pub organization: Option<Organization>,
    /// Whether it may be compared with the others.
    pub comparable: bool,
    /// By x.
    pub points: Vec<Point>,
}

impl Curve {
    /// The point at `x`.
    pub fn at(&self, x: u64) -> Option<&Point> {
        self.points.iter().find(|p| p.x == x)
    }
}

/// Whether a curve has a value of a metric anywhere.
pub fn has(curve: &Curve, metric: Metric) -> bool {
    curve.points.iter().any(|p| p.spread(metric).is_some())
}

/// What ratios of `curves` are of where values of `metric` are shown: of throughputs without the peer's
/// time wherever all of them tell what that is.
pub fn in_ratios(metric: Metric, curves: &[&Curve]) -> Metric {
    let mut points = curves.iter().flat_map(|c| &c.points);
    let tells = |p: &Point| {
        let mut runs = p.runs.values();
        runs.all(|m| Metric::GoodputOwn.of(m).is_some())
    };
    match metric == Metric::Goodput && points.all(tells) {
        true => Metric::GoodputOwn,
        false => metric,
    }
}

/// Compares two points by a metric, pass by pass.
pub fn compare_points(a: &Point, b: &Point, metric: Metric) -> Option<Comparison> {
    let (a, b) = (a.values(metric), b.values(metric));
    let both = |(pass, a): (&u32, &f64)| Some((*a, *b.get(pass)?));
    compare(&a.iter().filter_map(both).collect::<Vec<_>>())
}

//! Statements of the papers, and what of measured or predicted runs they compare.

use crate::metric::Metric;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Values by run: those of one key were made under the same conditions, and are compared.
pub type Values = BTreeMap<u32, f64>;

/// Differences are counted as this at least: there is no ratio to what has not changed, or has
/// changed the other way.
const LEAST_DIFFERENCE: f64 = 0.01;

/// What a claim is about: a series, at one x or at each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Name of the series; a series may have claims and no numbers.
    pub series: String,
    /// Where; at every x if absent.
    pub x: Option<f64>,
    /// What of it is compared; the claim's metric if absent.
    #[serde(default, deserialize_with = "crate::text::optional_from_str")]
    pub metric: Option<Metric>,
    /// Its value is taken as a multiple of that of another point: what something gains.
    pub over: Option<Other>,
    /// From its value that of another point is subtracted: by how much something falls.
    pub minus: Option<Other>,
}

/// Another point than that of a side.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Other {
    /// Name of the series; the side's if absent.
    pub series: Option<String>,
    /// Where; at the side's x if absent.
    pub x: Option<f64>,
}

impl Side {
    /// The values of a side that stands at `x`, by run, where `of` has those of a series at an x.
    pub fn values(&self, x: u64, of: impl Fn(&str, u64) -> Option<Values>) -> Option<Values> {
        let other = |o: &Other| {
            let series = o.series.as_deref().unwrap_or(&self.series);
            of(series, o.x.map_or(x, |x| x as u64))
        };
        let mut values = of(&self.series, x)?;
        if let Some(over) = &self.over {
            values = each(&values, &other(over)?, |a, b| a / b);
        }
        if let Some(minus) = &self.minus {
            let fall = |a: f64, b: f64| (a - b).max(LEAST_DIFFERENCE);
            values = each(&values, &other(minus)?, fall);
        }
        Some(values)
    }

    /// Whether what is compared is the value of its series, as it is.
    fn is_plain(&self) -> bool {
        self.over.is_none() && self.minus.is_none()
    }

    /// The series that it names.
    fn names(&self) -> impl Iterator<Item = &str> {
        let others = self.over.iter().chain(&self.minus);
        let others = others.filter_map(|o| o.series.as_deref());
        [self.series.as_str()].into_iter().chain(others)
    }
}

/// What is compared at one place of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// x of both sides.
    pub x: (u64, u64),
    /// The values of both, of each run that has both.
    pub values: Vec<(f64, f64)>,
}

/// Both values of each run that has both, as one.
fn each(a: &Values, b: &Values, one: impl Fn(f64, f64) -> f64) -> Values {
    let both = |(run, a): (&u32, &f64)| Some((*run, one(*a, *b.get(run)?)));
    a.iter().filter_map(both).collect()
}

/// How far from 1 a ratio may be that counts as none.
pub const EQUAL: f64 = 0.1;

/// What a paper says of one side against another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Relation {
    /// Greater.
    Greater,
    /// Less.
    Less,
    /// About equal.
    Equal,
}

/// A statement of a paper that measurements can bear out or contradict.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name, unique within its experiment.
    pub id: String,
    /// The statement, in our words.
    pub text: String,
    /// What is compared …
    pub a: Side,
    /// … with what.
    pub b: Side,
    /// How a relates to b.
    pub relation: Relation,
    /// What of them is compared; the plan's metric if absent.
    #[serde(default, deserialize_with = "crate::text::optional_from_str")]
    pub metric: Option<Metric>,
    /// It is about the mean of a/b over all x, and not about each of them.
    #[serde(default)]
    pub on_average: bool,
    /// Published a/b.
    pub ratio: Option<f64>,
    /// Least published a/b, where a range is given.
    pub ratio_low: Option<f64>,
    /// Greatest published a/b.
    pub ratio_high: Option<f64>,
    /// Where the ratio comes from.
    pub note: Option<String>,
}

impl Claim {
    /// What of either side is compared, where the plan's metric is `plan`.
    pub fn metrics(&self, plan: Metric) -> (Metric, Metric) {
        let own = self.metric.unwrap_or(plan);
        let of = |side: &Side| side.metric.unwrap_or(own);
        (of(&self.a), of(&self.b))
    }

    /// Whether values of the plan's metric are what is compared, point by point.
    pub fn is_of(&self, plan: Metric) -> bool {
        let plain = self.a.is_plain() && self.b.is_plain() && !self.on_average;
        plain && self.metrics(plan) == (plan, plan)
    }

    /// The published ratio as a range.
    pub fn range(&self) -> Option<(f64, f64)> {
        match (self.ratio, self.ratio_low, self.ratio_high) {
            (Some(r), _, _) => Some((r, r)),
            (None, Some(low), Some(high)) => Some((low, high)),
            _ => None,
        }
    }

    /// The series that it names; some more than once.
    pub fn series(&self) -> impl Iterator<Item = &str> {
        self.a.names().chain(self.b.names())
    }

    /// Where it is made, as x of both sides, on an axis with points at `xs`: either side names its
    /// x, or both stand at the same.
    pub fn places(&self, xs: &[u64]) -> Vec<(u64, u64)> {
        let fixed = |side: &Side| side.x.map(|x| x as u64);
        let one = |x: u64| match (fixed(&self.a), fixed(&self.b)) {
            (None, None) => Some((x, x)),
            (Some(a), b) if a == x => Some((a, b.unwrap_or(a))),
            (None, Some(b)) => Some((x, b)),
            _ => None,
        };
        xs.iter().filter_map(|x| one(*x)).collect()
    }

    /// What is compared, by place; `of` has the values of a metric of a series at an x. A claim about
    /// the average has one place, from the first x to the last: the mean of a/b, and 1.
    pub fn pairs(
        &self,
        metrics: (Metric, Metric),
        xs: &[u64],
        of: impl Fn(&str, u64, Metric) -> Option<Values>,
    ) -> Vec<Pairs> {
        let one = |x: (u64, u64)| {
            let of_a = self.a.values(x.0, |series, x| of(series, x, metrics.0))?;
            let of_b = self.b.values(x.1, |series, x| of(series, x, metrics.1))?;
            let pair = |(run, a): (&u32, &f64)| Some((*run, (*a, *of_b.get(run)?)));
            Some((x, of_a.iter().filter_map(pair).collect()))
        };
        type Place = ((u64, u64), BTreeMap<u32, (f64, f64)>);
        let places: Vec<Place> = self.places(xs).into_iter().filter_map(one).collect();
        if !self.on_average {
            let pairs = |(x, pairs): Place| Pairs {
                x,
                values: pairs.into_values().collect(),
            };
            return places.into_iter().map(pairs).collect();
        }
        let (Some(first), Some(last)) = (places.first(), places.last()) else {
            return Vec::new();
        };
        let mean = |run: &u32| {
            let there: Option<Vec<_>> = places.iter().map(|p| p.1.get(run)).collect();
            let ratios: Vec<f64> = there?.iter().map(|(a, b)| a / b).collect();
            Some((ratios.iter().sum::<f64>() / ratios.len() as f64, 1.0))
        };
        vec![Pairs {
            x: (first.0.0, last.0.1),
            values: first.1.keys().filter_map(mean).collect(),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> Claim {
        toml::from_str(&format!("id = 'c'\ntext = ''\n{text}")).unwrap()
    }

    /// Series `a` is 10, 20, 40 at 1, 2, 3, series `b` 5, 5, 30; a second run has twice as much.
    fn of(series: &str, x: u64, _: Metric) -> Option<Values> {
        let all = match series {
            "a" => [10.0, 20.0, 40.0],
            "b" => [5.0, 5.0, 30.0],
            _ => return None,
        };
        let value = *all.get(x.checked_sub(1)? as usize)?;
        Some([(0, value), (1, 2.0 * value)].into())
    }

    fn pairs(text: &str) -> Vec<Pairs> {
        let metrics = (Metric::Goodput, Metric::Goodput);
        claim(text).pairs(metrics, &[1, 2, 3], of)
    }

    fn at(x: (u64, u64), values: [(f64, f64); 2]) -> Vec<Pairs> {
        let values = values.into();
        vec![Pairs { x, values }]
    }

    #[test]
    fn sides_stand_where_they_say() {
        let places = |text: &str| claim(text).places(&[1, 2, 3]);
        let sides = |a: &str, b: &str| {
            format!("relation = 'less'\na = {{ series = 'a' {a} }}\nb = {{ series = 'b' {b} }}")
        };
        assert_eq!(places(&sides("", "")), [(1, 1), (2, 2), (3, 3)]);
        assert_eq!(places(&sides(", x = 2", "")), [(2, 2)]);
        assert_eq!(places(&sides(", x = 2", ", x = 3")), [(2, 3)]);
        assert_eq!(places(&sides("", ", x = 3")), [(1, 3), (2, 3), (3, 3)]);
        assert_eq!(places(&sides(", x = 9", "")), []);
    }

    #[test]
    fn gains_are_multiples_of_another_point() {
        let found = pairs(
            "relation = 'equal'\na = { series = 'a', x = 3, over = { x = 1 } }\n\
             b = { series = 'b', x = 3, over = { x = 1 } }",
        );
        assert_eq!(found, at((3, 3), [(4.0, 6.0), (4.0, 6.0)]));
        let of_series = pairs(
            "relation = 'equal'\na = { series = 'a', over = { series = 'b' } }\n\
             b = { series = 'b' }",
        );
        let ratios: Vec<f64> = of_series.iter().map(|p| p.values[0].0).collect();
        assert_eq!(ratios, [2.0, 4.0, 40.0 / 30.0]);
    }

    #[test]
    fn falls_are_differences_and_never_nothing() {
        let found = pairs(
            "relation = 'less'\na = { series = 'b', minus = { series = 'a' } }\n\
             b = { series = 'a', minus = { series = 'b' } }",
        );
        assert_eq!(found[1].values, [(0.01, 15.0), (0.01, 30.0)]);
    }

    #[test]
    fn an_average_is_one_place() {
        let found = pairs(
            "relation = 'greater'\non_average = true\na = { series = 'a' }\nb = { series = 'b' }",
        );
        let mean = (2.0 + 4.0 + 40.0 / 30.0) / 3.0;
        assert_eq!(found, at((1, 3), [(mean, 1.0), (mean, 1.0)]));
    }

    #[test]
    fn a_claim_of_the_plans_metric_compares_values_as_they_are() {
        let plain = "relation = 'less'\na = { series = 'a' }\nb = { series = 'b' }";
        assert!(claim(plain).is_of(Metric::Goodput));
        let gain = plain.replace("'a' }", "'a', over = { x = 1 } }");
        let average = format!("on_average = true\n{plain}");
        let other = format!("metric = 'cpu-own'\n{plain}");
        for text in [gain, average, other] {
            assert!(!claim(&text).is_of(Metric::Goodput), "{text}");
        }
    }
}

//! What the papers published: every number with its source, from one data file.

mod claim;

pub use claim::{Claim, EQUAL, Other, Pairs, Relation, Side, Values};

use serde::Deserialize;
use std::sync::LazyLock;

/// A paper.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Short name.
    pub id: String,
    /// Title.
    pub title: String,
    /// Authors.
    pub authors: String,
    /// Where and when it appeared.
    #[serde(rename = "where")]
    pub venue: String,
}

/// Where in a paper something stands.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// [`Source::id`].
    pub source: String,
    /// Figure, table or section.
    pub place: String,
}

/// How a published number was come by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Printed in the paper.
    #[default]
    Exact,
    /// The paper rounds or hedges it.
    About,
    /// Computed from other printed numbers.
    Derived,
}

/// One published value: at one x, or over a range of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Where it stands, if at one x.
    pub x: Option<f64>,
    /// Where its range begins.
    pub from: Option<f64>,
    /// Where its range ends.
    pub to: Option<f64>,
    /// The value.
    pub y: f64,
    /// How it was come by.
    #[serde(default)]
    pub kind: Kind,
    /// What there is to say about it.
    pub note: Option<String>,
}

impl Point {
    /// First and last x that it holds for.
    pub fn span(&self) -> (f64, f64) {
        let first = self.x.or(self.from).unwrap_or(f64::NAN);
        (first, self.x.or(self.to).unwrap_or(f64::NAN))
    }
}

/// One published curve, or row of a table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name in the paper.
    pub name: String,
    /// Its values, by x.
    pub points: Vec<Point>,
}

impl Series {
    /// The value at `x`, if one was published for it.
    pub fn at(&self, x: f64) -> Option<&Point> {
        self.points.iter().find(|p| {
            let (first, last) = p.span();
            (first..=last).contains(&x)
        })
    }
}

/// A figure, a table or a remark of a paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name, as plans refer to it.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Where it stands.
    pub places: Vec<Place>,
    /// What its x axis counts.
    pub x: String,
    /// Unit of its values.
    pub unit: String,
    /// What it was measured on.
    pub machine: String,
    /// What there is to say about it.
    pub note: Option<String>,
    /// Why no plan repeats it, if none does.
    pub missing: Option<String>,
    /// Its numbers.
    #[serde(default)]
    pub series: Vec<Series>,
    /// What the text says.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

impl Experiment {
    /// The series of that name.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.name == name)
    }

    /// Whether numbers or claims speak of a series of that name.
    pub fn knows(&self, name: &str) -> bool {
        let claimed = |c: &Claim| c.series().any(|s| s == name);
        self.series(name).is_some() || self.claims.iter().any(claimed)
    }
}

/// A published order of locks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Name.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Where it stands.
    pub place: Place,
    /// The organization that it is of.
    pub series: String,
    /// `+class` for taking a lock and `-class` for giving it back.
    pub steps: Vec<String>,
    /// What there is to say about it.
    pub note: Option<String>,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The papers.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
    /// Their experiments.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
    /// Orders of locks.
    #[serde(rename = "order")]
    pub orders: Vec<Order>,
}

impl Published {
    /// The experiment of that name.
    pub fn experiment(&self, id: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|e| e.id == id)
    }

    /// The order of that name.
    pub fn order(&self, id: &str) -> Option<&Order> {
        self.orders.iter().find(|o| o.id == id)
    }

    /// The source of that name.
    pub fn source(&self, id: &str) -> Option<&Source> {
        self.sources.iter().find(|s| s.id == id)
    }
}

/// The data file of this build.
pub fn published() -> &'static Published {
    static ALL: LazyLock<Published> = LazyLock::new(|| {
        toml::from_str(include_str!("published.toml"))
            .unwrap_or_else(|e| panic!("the embedded published.toml: {e}"))
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_file_is_sound() {
        let all = published();
        let mut ids = HashSet::new();
        for e in &all.experiments {
            assert!(ids.insert(&e.id), "{} twice", e.id);
            assert!(!e.places.is_empty(), "{} has no source", e.id);
            for place in &e.places {
                assert!(all.source(&place.source).is_some(), "{}: {place:?}", e.id);
            }
            let mut names = HashSet::new();
            for s in &e.series {
                assert!(names.insert(&s.name), "{}: {} twice", e.id, s.name);
                for p in &s.points {
                    let (first, last) = p.span();
                    assert!(first <= last && p.y > 0.0, "{}: {p:?}", e.id);
                    assert_eq!(p.x.is_some(), p.from.is_none() && p.to.is_none());
                    let derived = p.kind == Kind::Derived;
                    assert!(!derived || p.note.is_some(), "{}: {p:?}", e.id);
                }
            }
            let mut claims = HashSet::new();
            for c in &e.claims {
                assert!(claims.insert(&c.id), "{}: {} twice", e.id, c.id);
                if let Some((low, high)) = c.range() {
                    let agrees = match c.relation {
                        Relation::Greater => low > 1.0,
                        Relation::Less => high < 1.0,
                        Relation::Equal => low <= 1.0 && 1.0 <= high,
                    };
                    assert!(agrees && low <= high, "{}: {c:?}", e.id);
                }
            }
        }
    }

    /// Ratios that the text states must follow from the numbers that it states.
    #[test]
    fn numbers_agree_with_claims() {
        let mut checked = 0;
        for e in &published().experiments {
            for c in &e.claims {
                let value = |s: &Side| e.series(&s.series)?.at(s.x?).map(|p| p.y);
                if let (Some(a), Some(b), Some(ratio)) = (value(&c.a), value(&c.b), c.ratio) {
                    assert!((a / b / ratio - 1.0).abs() < 0.02, "{}: {}", e.id, c.id);
                    checked += 1;
                }
            }
        }
        assert!(checked >= 8, "{checked}");
    }

    #[test]
    fn known_cells() {
        let cell = |e: &str, s: &str, x: f64| {
            let point = published().experiment(e).unwrap().series(s).unwrap().at(x);
            point.map(|p| p.y)
        };
        assert_eq!(cell("contention", "ConnP-L(128)", 16384.0), Some(2.0));
        assert_eq!(cell("contention", "MsgP", 192.0), Some(100.0));
        assert_eq!(cell("cache", "UP", 6.0), Some(1.83));
        assert_eq!(cell("scheduler", "ConnP-T(4)", 16384.0), Some(4535.38));
        assert_eq!(cell("throughput", "ConnP-L(128)", 384.0), Some(5440.0));
        assert_eq!(cell("throughput", "ConnP-L(128)", 6.0), None);
    }
}

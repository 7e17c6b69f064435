//! A chart of sums: a row for each configuration, made of parts, with the published sum beside it.

use super::svg::{Frame, number};
use maud::{Markup, html};
use std::fmt::Write as _;

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    /// What it is of.
    pub name: String,
    /// Its parts, as many as the chart has names.
    pub parts: Vec<f64>,
    /// The published sum.
    pub published: Option<f64>,
}

/// The chart.
#[derive(Debug, Clone)]
pub struct Stacked {
    /// Unique within the page.
    pub id: String,
    /// What stands above it.
    pub title: String,
    /// Label of the axis.
    pub axis: String,
    /// Names of the parts; colours follow their order.
    pub names: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Stacked {
    /// The legend of its parts.
    pub fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for (i, name) in self.names.iter().enumerate() {
                    li {
                        svg class="key" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true" {
                            g class=(format!("c-s{i}")) {
                                rect class="fill" x="0" y="1" width="14" height="12" {}
                            }
                        }
                        (name)
                    }
                }
                @if self.rows.iter().any(|r| r.published.is_some()) {
                    li.quiet { "upright line: published sum" }
                }
            }
        }
    }

    /// The chart as SVG.
    pub fn draw(&self) -> Markup {
        let sum = |r: &Row| r.parts.iter().sum::<f64>().max(r.published.unwrap_or(0.0));
        let frame = Frame {
            id: &self.id,
            title: &self.title,
            axis: &self.axis,
            description: self.description(),
            rows: self.rows.len(),
            most: self.rows.iter().map(sum).fold(0.0, f64::max),
        };
        frame.draw(|i, top, at| {
            let r = &self.rows[i];
            html! {
                text class="tick" x=(at(0.0) + 2.0) y=(top + 14.0) { (r.name) }
                @for (j, (from, to)) in spans(&r.parts).into_iter().enumerate() {
                    g class=(format!("c-s{j}")) {
                        rect class="fill" x=(at(from)) y=(top + 19.0)
                            width=(at(to) - at(from)) height="13" {}
                    }
                }
                @if let Some(v) = r.published {
                    path class="whisker" d=(format!("M{:.1} {:.1}v17", at(v), top + 17.0)) {}
                }
            }
        })
    }

    fn description(&self) -> String {
        let mut text = format!("{}.", self.axis);
        for r in &self.rows {
            let parts: Vec<String> = self
                .names
                .iter()
                .zip(&r.parts)
                .map(|(name, v)| format!("{name} {}", number(*v)))
                .collect();
            let _ = write!(text, " {}: {}", r.name, parts.join(", "));
            if let Some(v) = r.published {
                let _ = write!(text, "; published in all {}", number(v));
            }
            text.push('.');
        }
        text
    }
}

/// Where each part begins and ends.
fn spans(parts: &[f64]) -> Vec<(f64, f64)> {
    parts
        .iter()
        .scan(0.0, |end, part| {
            let from = *end;
            *end += part;
            Some((from, *end))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_end_to_end() {
        assert_eq!(
            spans(&[1.0, 0.0, 2.5]),
            [(0.0, 1.0), (1.0, 1.0), (1.0, 3.5)]
        );
        let chart = Stacked {
            id: "x".into(),
            title: "Modelled".into(),
            axis: "misses".into(),
            names: vec!["stack", "lock"],
            rows: vec![Row {
                name: "UP, 6".into(),
                parts: vec![1.5, 0.25],
                published: Some(1.83),
            }],
        };
        let svg = chart.draw().into_string();
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(
            svg.contains("UP, 6: stack 1.5, lock 0.25; published in all 1.83."),
            "{svg}"
        );
    }
}

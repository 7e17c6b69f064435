//! A line for each point and metric.

use super::{material::Material, table::field};
use crate::metric::Metric;
use std::{collections::HashMap, fmt::Write as _};

const HEADER: &str = "plan,series,organization,x,metric,unit,runs,median,low,high,coverage,min,max,\
                      disturbed,invalid,published,cores";

/// The whole file (RFC 4180, with plain line feeds).
pub(super) fn render(material: &Material<'_>) -> String {
    let mut out = format!("{HEADER}\n");
    for r in &material.results {
        let metrics = std::iter::once(r.plan.metric).chain(r.plan.also.iter().copied());
        for metric in metrics {
            for curve in &r.curves {
                for p in &curve.points {
                    let Some(spread) = p.spread(metric) else {
                        continue;
                    };
                    let interval = p.interval(metric);
                    let of = |f: fn(&crate::stats::Interval) -> f64| {
                        interval
                            .as_ref()
                            .map_or(String::new(), |i| f(i).to_string())
                    };
                    let organization = curve.organization.as_ref();
                    let published = published(r, curve.published.as_deref(), p.x, metric);
                    let fields = [
                        field(&r.plan.name),
                        field(&curve.label),
                        field(&organization.map_or(String::new(), ToString::to_string)),
                        p.x.to_string(),
                        metric.name().into(),
                        field(metric.unit()),
                        p.values(metric).len().to_string(),
                        spread.median.to_string(),
                        of(|i| i.low),
                        of(|i| i.high),
                        of(|i| i.coverage),
                        spread.min.to_string(),
                        spread.max.to_string(),
                        p.disturbed.to_string(),
                        p.invalid.to_string(),
                        published.map_or(String::new(), |y| y.to_string()),
                        r.cores.word().into(),
                    ];
                    let _ = writeln!(out, "{}", fields.join(","));
                }
            }
        }
    }
    out
}

/// The published counterpart of a value in the plan's own metric.
fn published(
    r: &super::analysis::Result,
    name: Option<&str>,
    x: u64,
    metric: Metric,
) -> Option<f64> {
    let experiment = r.plan.published.filter(|_| metric == r.plan.metric)?;
    Some(experiment.series(name?)?.at(x as f64)?.y)
}

/// How many runs a file tells of: those of each point, by the metric that most of them have.
pub(super) fn runs(text: &str) -> u64 {
    let mut points: HashMap<[String; 4], u64> = HashMap::new();
    for line in text.lines().skip(1) {
        let f = fields(line);
        let (Some([plan, series, _, x]), Some(runs)) = (f.first_chunk(), f.get(6)) else {
            continue;
        };
        // Reports of before runs were told apart by it have no such field.
        let cores = f.get(16).cloned().unwrap_or_default();
        let here = points
            .entry([plan.clone(), series.clone(), x.clone(), cores])
            .or_default();
        *here = (*here).max(runs.parse().unwrap_or(0));
    }
    points.values().sum()
}

/// The fields of a line, unquoted.
fn fields(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match (c, out.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => out.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    out
}

//! The report for a terminal or a pull request.

use super::{
    analysis::{Curve, Result},
    material::Material,
    names::Unit,
    svg::number,
    words,
};
use crate::metric::Metric;
use std::fmt::Write as _;

/// The whole report.
pub(super) fn render(material: &Material<'_>) -> String {
    let header = &material.stored.header;
    let mut out = format!(
        "# Perimeter lab\n\n{}, {}. {}. Mode: {}; seed {}.\n",
        words::day(header.started_unix),
        words::machine(&header.host),
        words::program(header),
        header.mode,
        header.seed
    );
    choices(material, &mut out);
    for r in &material.results {
        result(material, r, &mut out);
    }
    if let Some(apart) = &material.apart {
        apart.markdown(&material.results, &mut out);
    }
    for note in &material.stored.notes {
        let _ = writeln!(out, "\nnote: {note}");
    }
    out
}

fn choices(material: &Material<'_>, out: &mut String) {
    if material.choices.is_empty() {
        return;
    }
    out.push_str("\n## Which organization for this machine and this load\n\n");
    for c in &material.choices {
        let r = &material.results[c.result];
        let plan = &r.plan;
        let _ = writeln!(
            out,
            "- **{}, {} {}{}**: {} {}. {}. ({})",
            text(&c.load),
            number(c.x as f64),
            plan.axis.of(c.x),
            r.cores.remark(),
            text(&c.best),
            text(&words::advice(c, plan.metric)),
            c.doubts(),
            plan.name
        );
    }
}

fn result(material: &Material<'_>, r: &Result, out: &mut String) {
    let plan = &r.plan;
    let _ = writeln!(out, "\n## {}\n\n{}\n", text(&r.title()), text(&plan.asks));
    if let Some(e) = plan.published {
        let places: Vec<String> = e
            .places
            .iter()
            .map(|p| format!("{}, {}", p.source, p.place))
            .collect();
        let _ = writeln!(
            out,
            "Published: {} ({}).\n",
            text(&places.join("; ")),
            text(&e.machine)
        );
    }
    table(r, plan.metric, out);
    for c in &r.claims {
        let _ = writeln!(
            out,
            "- **{}**: {} Published: {}.",
            c.finding.words(),
            sentence(&c.claim.text),
            words::claimed(c.claim)
        );
        for line in words::here(c) {
            let _ = writeln!(out, "  - here {}", text(&line));
        }
        if let Some(cost) = &c.cost {
            let _ = writeln!(
                out,
                "  - **{}** in processor time per byte without the ideal peer's. Published: {}.",
                cost.finding.words(),
                words::implied(cost)
            );
            for line in words::cost_here(cost) {
                let _ = writeln!(out, "    - here {}", text(&line));
            }
        }
        if let Some(line) = words::counters(c) {
            let _ = writeln!(out, "  - {}", text(&line));
        }
    }
    for line in words::against(r) {
        let _ = writeln!(out, "- {}", sentence(&line));
    }
    let host = &material.stored.header.host;
    let remarks = [
        plan.note.clone(),
        Some(format!("{}.", words::runs(r))),
        words::cores(r, host),
        words::disturbed(r),
    ];
    for line in remarks.into_iter().flatten().chain(r.notes.iter().cloned()) {
        let _ = writeln!(out, "\n> {}", text(&line));
    }
}

fn table(r: &Result, metric: Metric, out: &mut String) {
    let xs: Vec<u64> = r
        .curves
        .first()
        .into_iter()
        .flat_map(|c| &c.points)
        .map(|p| p.x)
        .collect();
    let _ = write!(out, "| {}, {} |", metric.label(), Unit::of(metric).name);
    for x in &xs {
        let _ = write!(out, " {} |", number(*x as f64));
    }
    let _ = write!(out, "\n|---|{}\n", "--:|".repeat(xs.len()));
    for curve in &r.curves {
        let _ = write!(out, "| {} |", text(&curve.name));
        for p in &curve.points {
            let mut cell = match p.spread(metric) {
                Some(s) => words::value(&s, p.interval(metric), metric),
                None => "–".into(),
            };
            if p.disturbed > 0 {
                cell.push_str(" †");
            }
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
        published(r, curve, &xs, out);
    }
    if r.disturbed > 0 {
        out.push_str("\n† with disturbed runs\n");
    }
    out.push('\n');
    let missing = r
        .curves
        .iter()
        .flat_map(|c| c.points.iter().map(move |p| (c, p)));
    let mut reasons: Vec<&str> = missing.filter_map(|(_, p)| p.missing.as_deref()).collect();
    reasons.dedup();
    for reason in reasons {
        let _ = writeln!(out, "– {}\n", text(reason));
    }
}

fn published(r: &Result, curve: &Curve, xs: &[u64], out: &mut String) {
    let series = r
        .plan
        .published
        .and_then(|e| e.series(curve.published.as_deref()?));
    let Some(series) = series else { return };
    let by = r.plan.published.map_or(1.0, |e| Unit::published(e).factor);
    let unit = r
        .foreign_unit()
        .map_or(String::new(), |unit| format!(" in {unit}"));
    let _ = write!(out, "| *{}, published{unit}* |", text(&curve.name));
    for x in xs {
        let shown = |p| words::published(p, by);
        let cell = series.at(*x as f64).map_or(String::new(), shown);
        let _ = write!(out, " {cell} |");
    }
    out.push('\n');
}

fn sentence(words: &str) -> String {
    format!("{}.", text(words.trim_end_matches('.')))
}

/// Text that can't be taken for markup.
fn text(words: &str) -> String {
    let mut out = String::new();
    for c in words.chars() {
        match c {
            '|' | '*' | '_' | '`' | '<' | '[' | ']' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

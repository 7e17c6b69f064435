//! What is predicted for other machines, beside what was measured here.

use super::{
    analysis::Result,
    choice::two,
    figures,
    names::Unit,
    svg::{Bars, Figure, Line, Look, Mark, Origin},
    table::axis,
};
use crate::predict::{self, Finding, Place, Predictions, Verdict};
use maud::{Markup, html};

/// A folded section for each machine that a plan is predicted for.
pub(super) fn sections(all: &[Predictions], r: &Result, looks: &[Look]) -> Markup {
    let of = all
        .iter()
        .filter_map(|p| Some((p, p.figure(&r.plan.name)?)));
    html! {
        @for (p, figure) in of {
            details.more {
                summary { "Predicted: " (p.machine.title) }
                div.body {
                    @if let Some(otherwise) = &figure.otherwise { p.note { "Predicted " (otherwise) "." } }
                    p.note { (worth(figure)) }
                    (validation(p))
                    div.figures { @for cores in &p.cores { (drawn(p, figure, r, looks, *cores)) } }
                    (claims(figure))
                }
            }
        }
    }
}

/// What a prediction is worth, and how it is drawn.
fn worth(figure: &predict::Figure) -> String {
    let how = match figure.places.iter().any(|place| place.band.is_some()) {
        true => "Dashed: medians. Bands: with each group of costs times and over 1.5.",
        false => "Dashed: medians. Bands: the least and the greatest.",
    };
    match figure.caveats.as_slice() {
        [] => format!("The table of costs holds for such loads. {how}"),
        caveats => format!("Not borne out: {}. {how}", caveats.join("; ")),
    }
}

/// What predictions of a machine came to that were held against runs, by load.
fn validation(p: &Predictions) -> Markup {
    let percent = |e: Option<f64>| e.map_or("–".into(), |e| format!("{:.0} %", 100.0 * e));
    let of = |(all, good): (usize, usize)| format!("{good} of {all}");
    let held = p.validation.verdicts.iter().filter(|v| v.median.is_some());
    let held: Vec<&Verdict> = held.collect();
    html! {
        @if !held.is_empty() {
            p.quiet {
                "What the table of costs of " (p.machine.name) " is worth: predictions against runs "
                "of two threads, to which nothing was fitted."
            }
            div.scroll { table.values {
                thead { tr {
                    th { "load" } th { "holds" } th { "median error" } th { "largest" }
                    th { "pairs in order" } th { "far to near" } th { "contention" }
                } }
                tbody { @for v in held { tr {
                    td { (v.load) }
                    td { (if v.holds() { "yes" } else { "no" }) }
                    td { (percent(v.median)) } td { (percent(v.worst)) }
                    td { (of(v.order)) } td { (of(v.ratios)) } td { (of(v.contended)) }
                } } }
            } }
        }
    }
}

fn mark(place: &Place, factor: f64) -> Option<Mark> {
    let value = place.value?;
    let (low, high) = place.band.unwrap_or((value.min, value.max));
    Some(Mark {
        x: place.x as f64,
        y: value.median * factor,
        bar: Some((low * factor, high * factor)),
        runs: (0, 0),
    })
}

/// The figure for one number of cores, with what was published for as many.
fn drawn(
    p: &Predictions,
    figure: &predict::Figure,
    r: &Result,
    looks: &[Look],
    cores: usize,
) -> Markup {
    let unit = Unit::of(r.plan.metric);
    let curves = r.curves.iter().zip(looks).enumerate();
    let mut lines: Vec<Line> = curves
        .map(|(series, (curve, look))| {
            let of = figure.on(cores).filter(|place| place.series == curve.label);
            Line {
                name: curve.name.clone(),
                look: *look,
                series,
                marks: of.filter_map(|place| mark(place, unit.factor)).collect(),
                origin: Origin::Predicted,
            }
        })
        .filter(|line| !line.marks.is_empty())
        .collect();
    let id = format!("{}-on-{}-{cores}", r.id(), p.machine.name);
    let title = match cores {
        1 => "One core".into(),
        n => format!("{n} cores"),
    };
    if lines.iter().all(|l| l.marks.len() == 1) {
        let rows = lines.iter().map(|l| (l.name.clone(), l.look, l.marks[0]));
        let bars = Bars {
            id,
            title,
            axis: axis(r.plan.metric),
            rows: rows.collect(),
        };
        return html! { @if !bars.rows.is_empty() { figure id=(bars.id) { (bars.draw()) } } };
    }
    let of_papers = r.plan.cores.unwrap_or(p.machine.cores);
    if p.machine.published && cores == of_papers && r.foreign_unit().is_none() {
        lines.extend(figures::papers(r, looks));
    }
    figures::drawn(&Figure {
        id,
        title,
        x: r.plan.axis.label().into(),
        y: unit.name.into(),
        unit: unit.name.into(),
        log_x: r.plan.log,
        log_y: false,
        ends: None,
        rule: None,
        lines,
    })
}

/// What the papers claim, judged by prediction.
fn claims(figure: &predict::Figure) -> Markup {
    let pill = |f: Finding| match f {
        Finding::Holds => "pill good",
        Finding::TurnedRound => "pill turned",
        Finding::Alike => "pill none",
        Finding::NotDecided => "pill not",
    };
    html! {
        @if !figure.claims.is_empty() {
            ul.claims { @for c in &figure.claims { li {
                span class=(pill(c.finding)) { (c.finding.words()) } " " (c.text) ". "
                span.quiet {
                    @if let Some((low, high)) = c.published { "Published " (range(low, high)) ", " }
                    "predicted " (range(c.ratio.1, c.ratio.2)) "."
                }
            } } }
        }
    }
}

fn range(low: f64, high: f64) -> String {
    match two(low) == two(high) {
        true => format!("{} times", two(low)),
        false => format!("{} to {} times", two(low), two(high)),
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        predict::{Machine, Predictions, SCHEMA},
        record::{Outcome, Row, Stored, tests::build},
        report::{render_with, tests::example},
    };
    use serde_json::json;

    /// Two points of two organizations of the example, on four cores of the study's machine.
    fn predictions(caveats: &[&str]) -> Predictions {
        let place = |series: &str, org: &str, x: u64, value: f64| {
            json!({
                "series": series, "org": org, "x": x, "cores": 4,
                "value": { "median": value, "min": value * 0.99, "max": value * 1.01 },
                "band": [value * 0.9, value * 1.2], "also": [], "busy": 0.9,
                "held_up_by": ["waiting for conn_hashtable", 0.25],
            })
        };
        serde_json::from_value(json!({
            "schema": SCHEMA,
            "build": build(),
            "machine": Machine::find("opteron-275").unwrap(),
            "cores": [4],
            "seeds": 1,
            "validation": { "machine": "opteron-275", "rows": [], "ratios": [], "verdicts": [] },
            "figures": [{
                "plan": "throughput", "title": "t", "machine": "opteron-275",
                "metric": ["goodput", "Mb/s"], "caveats": caveats,
                "places": [
                    place("MsgP", "msgp", 6, 3000.0),
                    place("MsgP", "msgp", 192, 4000.0),
                    place("ConnP-L(128)", "connp-l:128", 6, 3000.0),
                    place("ConnP-L(128)", "connp-l:128", 192, 6000.0),
                ],
                "published": [],
                "claims": [{
                    "id": "connp-l-msgp", "text": "connp-l:128 outperforms msgp",
                    "published": null, "x": [192, 192], "ratio": [1.5, 1.2, 1.9],
                    "finding": "holds",
                }],
            }],
        }))
        .unwrap()
    }

    /// The example, as runs of the plan that is predicted.
    fn throughput() -> Stored {
        let mut stored = example();
        stored.plans[0].name = "throughput".into();
        let rows = stored.rows.iter_mut();
        rows.for_each(|r| r.plan = "throughput".into());
        stored
    }

    #[test]
    fn predictions_are_drawn_dashed_with_bands_and_say_what_they_are_worth() {
        let stored = throughput();
        let none = render_with(&stored, Vec::new());
        assert!(!none.html.contains("Predicted") && !none.html.contains(r#"class="band""#));
        for caveats in [&[][..], &["sending: validation fails: the order"]] {
            let drawn = render_with(&stored, vec![predictions(caveats)]);
            // A band and a dashed curve for each of the two.
            assert_eq!(drawn.html.matches(r#"class="band""#).count(), 2);
            assert!(drawn.html.contains("ConnP-L(128)") || drawn.html.contains("connp-l:128"));
            assert!(drawn.html.contains("predicted: holds"));
            assert!(drawn.html.contains("predicted 1.20 to 1.90 times"));
            assert_eq!(drawn.html.contains("Not borne out"), !caveats.is_empty());
            let said = drawn
                .answer
                .lines()
                .find(|l| l.starts_with("Predicted for"));
            let said = said.unwrap();
            assert!(
                said.contains(
                    "4 cores: over 6 connections, msgp and connp-l:128 are as fast; over 192 \
                     connections, connp-l:128 is fastest, 1.50 times msgp"
                ),
                "{said}"
            );
            assert!(
                said.contains("(waiting for conn_hashtable: 25 % of the cores' time)"),
                "{said}"
            );
            assert_eq!(said.contains("Not borne out"), !caveats.is_empty());
        }
    }

    /// Once, beside the runs with near cores; and beside those with far ones where there are no others.
    #[test]
    fn predictions_are_drawn_however_far_the_cores_were() {
        let mut stored = throughput();
        let told = |stored: &Stored| {
            let drawn = render_with(stored, vec![predictions(&[])]);
            let first_page = drawn.answer.matches("Predicted for").count();
            (drawn.html.matches("Predicted: ").count(), first_page)
        };
        let far = |row: &mut Row| {
            if let Outcome::Measured(m) = &mut row.outcome {
                m.raw.core_round_trip_ns = Some(300.0);
            }
        };
        let half = stored.rows.len() / 2;
        stored.rows[..half].iter_mut().for_each(far);
        assert_eq!(told(&stored), (1, 1));
        stored.rows.iter_mut().for_each(far);
        assert_eq!(told(&stored), (1, 1));
    }

    /// What was held against runs is told by load, and nothing where there was none.
    #[test]
    fn the_validation_is_told_by_load() {
        let stored = throughput();
        let mut p = predictions(&[]);
        let table = |p: &Predictions| {
            let drawn = render_with(&stored, vec![p.clone()]).html;
            let begins = drawn.find("What the table of costs of")?;
            let rest = &drawn[begins..];
            Some(rest[..rest.find("</table>").unwrap()].to_string())
        };
        assert_eq!(table(&p), None);
        let verdict = json!({
            "load": "send", "order": [19, 17], "median": 0.12, "worst": 0.51,
            "ratios": [14, 5], "contended": [12, 10],
        });
        p.validation.verdicts = vec![serde_json::from_value(verdict).unwrap()];
        let told = table(&p).unwrap();
        for cell in ["no", "12 %", "51 %", "17 of 19", "5 of 14", "10 of 12"] {
            assert!(told.contains(&format!("<td>{cell}</td>")), "{cell}: {told}");
        }
    }

    #[test]
    fn a_folder_keeps_them() {
        let t = tempfile::tempdir().unwrap();
        let p = predictions(&[]);
        p.keep(t.path()).unwrap();
        // The points' runs are not written.
        assert_eq!(Predictions::of_folder(t.path()).unwrap(), [p]);
        std::fs::write(t.path().join("predicted-other.json"), "{}").unwrap();
        let wrong = Predictions::of_folder(t.path()).unwrap_err().to_string();
        assert!(wrong.contains("predicted-other.json"), "{wrong}");
    }
}

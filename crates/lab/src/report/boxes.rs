//! How long locks were waited for and held, by class: a figure for each organization, and a table
//! with what the papers published of the same locks.

use super::{
    analysis::{Curve, Result},
    svg::{Look, number},
};
use crate::{
    published::{Experiment, published},
    stats::Sizes,
    workload::Locks,
};
use maud::{Markup, html};
use perimeter::LockClass;

/// Classes of a figure at most: those that were held longest in all.
const MOST: usize = 6;
const WIDTH: f64 = 460.0;
const LEFT: f64 = 132.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;
/// Height of a row: a box for holds and one for waits.
const ROW: f64 = 26.0;

/// One class at one place of the x axis, all runs together.
#[derive(Debug)]
struct Timed {
    class: String,
    x: u64,
    sum: Locks,
}

impl Timed {
    fn hold(&self) -> Option<&Sizes> {
        Some(&self.sum.times.as_ref()?.hold)
    }

    fn wait(&self) -> Option<&Sizes> {
        Some(&self.sum.times.as_ref()?.wait)
    }

    fn contended(&self) -> f64 {
        self.sum.contended as f64 * 100.0 / self.sum.acquisitions.max(1) as f64
    }
}

/// What was timed of a curve: by class, the one held longest first, and then by x.
fn timed(curve: &Curve) -> Vec<Timed> {
    let mut all: Vec<Timed> = Vec::new();
    for p in &curve.points {
        for l in p.runs.values().flat_map(|m| &m.locks) {
            let Some(times) = l.times.as_ref().filter(|t| t.hold.count() > 0) else {
                continue;
            };
            let at = all.iter().position(|t| t.class == l.class && t.x == p.x);
            let at = at.unwrap_or_else(|| {
                all.push(Timed {
                    class: l.class.clone(),
                    x: p.x,
                    sum: Locks::default(),
                });
                all.len() - 1
            });
            let sum = &mut all[at].sum;
            sum.acquisitions += l.acquisitions;
            sum.contended += l.contended;
            sum.wait_ns += l.wait_ns;
            sum.hold_ns += l.hold_ns;
            sum.times.get_or_insert_default().add(times);
        }
    }
    let held = |class: &str| -> u64 {
        let of = all.iter().filter(|t| t.class == class);
        of.map(|t| t.sum.hold_ns).sum()
    };
    let mut classes: Vec<(u64, String)> = Vec::new();
    for t in &all {
        if !classes.iter().any(|c| c.1 == t.class) {
            classes.push((held(&t.class), t.class.clone()));
        }
    }
    classes.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    classes.truncate(MOST);
    let rank = |t: &Timed| classes.iter().position(|c| c.1 == t.class);
    all.retain(|t| rank(t).is_some());
    all.sort_by_key(|t| (rank(t), t.x));
    all
}

/// Figures and table of a plan whose runs were timed; nothing for others.
pub(super) fn section(id: &str, r: &Result, looks: &[Look]) -> Markup {
    let curves: Vec<(&Curve, Look, Vec<Timed>)> = r
        .curves
        .iter()
        .zip(looks)
        .map(|(c, look)| (c, *look, timed(c)))
        .filter(|c| !c.2.is_empty())
        .collect();
    // A plan that is about something else has its locks timed on the way.
    if curves.is_empty() || r.plan.order.is_none() {
        return html! {};
    }
    html! {
        details.more { summary { "Waits and holds by class of locks" }
        p { "Of all acquisitions, how long the lock was held (upper, filled) and of those whose first "
            "attempt failed how long they waited (lower, hollow): the box holds the middle half, "
            "the stroke in it is the median, the whisker ends where 99 in 100 stay within." }
        div.figures {
            @for (i, (c, look, rows)) in curves.iter().enumerate() {
                figure { (draw(&format!("{id}-locks-{i}"), r, c, *look, rows)) }
            }
        }
        (table(r, &curves))
        }
    }
}

/// A scale of powers of ten, from 10 ns.
struct Scale {
    decades: u32,
}

impl Scale {
    fn of(rows: &[Timed]) -> Scale {
        let ends = rows.iter().flat_map(|t| [t.hold(), t.wait()]);
        let most = ends.filter_map(|s| s?.quantile(0.99)).fold(100.0, f64::max);
        Scale {
            decades: (most.log10().ceil() as u32).saturating_sub(1).max(1),
        }
    }

    fn x(&self, ns: f64) -> f64 {
        let share = (ns.max(10.0).log10() - 1.0) / f64::from(self.decades);
        LEFT + share.min(1.0) * (WIDTH - LEFT - RIGHT)
    }
}

fn draw(id: &str, r: &Result, c: &Curve, look: Look, rows: &[Timed]) -> Markup {
    let scale = Scale::of(rows);
    let bottom = TOP + ROW * rows.len() as f64;
    let title = format!("{}: holds and waits", c.name);
    let ticks = || (0..=scale.decades).map(|d| 10f64.powi(d as i32 + 1));
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {}", bottom + BOTTOM)) role="img"
            aria-labelledby=(format!("{id}-t {id}-d")) {
            title id=(format!("{id}-t")) { (title) }
            desc id=(format!("{id}-d")) {
                @for t in rows { (t.class) " at " (t.x) ": " (words(t)) ". " }
            }
            text class="ft" x="4" y="15" { (title) }
            text class="tick" x="4" y=(TOP - 8.0) { "class, " (r.plan.axis.label()) }
            g class="grid" {
                @for t in ticks() { line x1=(scale.x(t)) x2=(scale.x(t)) y1=(TOP) y2=(bottom) {} }
            }
            g class="tick" text-anchor="middle" {
                @for t in ticks() { text x=(scale.x(t)) y=(bottom + 17.0) { (short(t)) } }
            }
            @for (i, t) in rows.iter().enumerate() {
                @let y = TOP + ROW * i as f64;
                @if i == 0 || rows[i - 1].class != t.class {
                    text class="tick" x="4" y=(y + 16.0) { (t.class) }
                }
                text class="tick" x=(LEFT - 6.0) y=(y + 16.0) text-anchor="end" { (number(t.x as f64)) }
                g class=(format!("c-{}", look.class)) {
                    (quartiles(&scale, t.hold(), y + 3.0, "fill"))
                    (quartiles(&scale, t.wait(), y + 14.0, "mk hollow"))
                }
            }
            text class="label" x=((LEFT + WIDTH) / 2.0) y=(bottom + 36.0) text-anchor="middle" {
                "time"
            }
        }
    }
}

/// A duration for an axis.
fn short(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.0} µs", n / 1e3),
        n if n < 1e9 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.0} s", n / 1e9),
    }
}

/// A box with its median and its whisker.
fn quartiles(scale: &Scale, of: Option<&Sizes>, y: f64, class: &str) -> Markup {
    let at = |q| Some(scale.x(of?.quantile(q)?));
    let (Some(low), Some(mid), Some(high), Some(end)) = (at(0.25), at(0.5), at(0.75), at(0.99))
    else {
        return html! {};
    };
    html! {
        rect class=(class) x=(format!("{low:.1}")) y=(y) height="8"
            width=(format!("{:.1}", (high - low).max(2.0))) {}
        path class="whisker" d=(format!(
            "M{mid:.1} {y:.1}v8M{high:.1} {0:.1}H{end:.1}M{end:.1} {1:.1}v4", y + 4.0, y + 2.0
        )) {}
    }
}

fn words(t: &Timed) -> String {
    let q = |s: Option<&Sizes>, q| s.and_then(|s| s.quantile(q)).map_or("–".into(), number);
    format!(
        "held {} ns (99 in 100 within {}), {} % contended, waited {} ns (within {})",
        q(t.hold(), 0.5),
        q(t.hold(), 0.99),
        number(t.contended()),
        q(t.wait(), 0.5),
        q(t.wait(), 0.99),
    )
}

fn table(r: &Result, curves: &[(&Curve, Look, Vec<Timed>)]) -> Markup {
    let shares = published().experiment("contention");
    let cell = |s: Option<&Sizes>, q| {
        let value = s.and_then(|s| s.quantile(q));
        html! { td.n { (value.map_or("–".into(), number)) } }
    };
    html! {
        details {
            summary { "The same as a table, with the published contention" }
            div.scroll {
                table.values {
                    caption { "ns; all runs together" }
                    thead { tr {
                        th { "organization, class" } th.n { (r.plan.axis.label()) }
                        th.n { "held, median" } th.n { "90 %" } th.n { "99 %" }
                        th.n { "contended, %" } th.n { "published, %" }
                        th.n { "waited, median" } th.n { "99 %" }
                    } }
                    tbody {
                        @for (c, _, rows) in curves {
                            @for t in rows {
                                tr {
                                    th scope="row" { (c.name) ", " (t.class) }
                                    td.n { (number(t.x as f64)) }
                                    (cell(t.hold(), 0.5)) (cell(t.hold(), 0.9)) (cell(t.hold(), 0.99))
                                    td.n { (number(t.contended())) }
                                    td.n { (share(shares, c, t).map_or("–".into(), number)) }
                                    (cell(t.wait(), 0.5)) (cell(t.wait(), 0.99))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What Table 1 says of the class under that organization: it counts global locks only.
fn share(e: Option<&Experiment>, c: &Curve, t: &Timed) -> Option<f64> {
    let point = e?.series(&c.label)?.at(t.x as f64)?;
    let guards = LockClass::named(&t.class)?.guards()?;
    guards.is_shared().then_some(point.y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::embedded,
        record::{Outcome, Stored, tests as rows},
        report::{analysis, svg},
        workload::LockTimes,
    };

    /// A folder with timed runs of the plan about locks.
    fn stored() -> Stored {
        let plan = embedded().into_iter().find(|p| p.name == "locks").unwrap();
        let mut list = Vec::new();
        for (x, hold) in [(6, "[[64,90],[1024,10]]"), (192, "[[256,100]]")] {
            let mut row = rows::row("locks", "MsgP", "msgp", x, 0, 100.0);
            let Outcome::Measured(m) = &mut row.outcome else {
                unreachable!()
            };
            let lock = |class: &str, hold_ns| Locks {
                class: class.into(),
                acquisitions: 100,
                contended: 25,
                wait_ns: 10,
                hold_ns,
                times: Some(LockTimes {
                    wait: serde_json::from_str("[[4096,25]]").unwrap(),
                    hold: serde_json::from_str(hold).unwrap(),
                }),
            };
            m.locks = vec![lock("connection", 100), lock("conn_hashtable", 9000)];
            list.push(row);
        }
        Stored {
            header: rows::header(&["locks"]),
            plans: vec![plan],
            rows: list,
            sends: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn every_class_is_drawn_and_stands_beside_what_was_published() {
        let results = analysis::results(&stored());
        let looks = svg::looks(&["msgp".into(), "a".into(), "b".into(), "c".into()]);
        let text = section("x", &results[0], &looks).into_string();
        // Two classes at two places, a hold and a wait each; the one held longest comes first.
        assert_eq!(text.matches("class=\"whisker\"").count(), 8, "{text}");
        assert!(
            text.find("conn_hashtable") < text.find(">connection<"),
            "{text}"
        );
        assert!(text.contains("conn_hashtable at 6: held 72.9 ns"), "{text}");
        // Table 1 has 89 % at 6 connections for the table, and nothing for connections.
        let row = |name: &str| {
            let i = text.find(&format!("msgp, {name}</th>")).unwrap();
            text[i..].split("</tr>").next().unwrap().to_string()
        };
        assert!(
            row("conn_hashtable").contains(">89<"),
            "{}",
            row("conn_hashtable")
        );
        assert!(!row("connection").contains(">89<"));
        let untimed = Result {
            curves: Vec::new(),
            ..results[0].clone()
        };
        assert_eq!(section("x", &untimed, &looks).into_string(), "");
    }
}

//! Figures as SVG, written for the page that they stand in: colours come from its style sheet, so
//! that they follow light, dark and print.
//!
//! An organization has one colour and one marker everywhere; variants of one family in a figure
//! differ by dashes. The colours are near those of Okabe and Ito, which the colour-blind can tell
//! apart, and no figure relies on colour alone.

use crate::looks;
use crate::units::thousands;
use maud::{Markup, PreEscaped, html};
use perimeter::families::Marker;
use std::fmt::Write as _;

/// The style sheet of the page and of figures that stand alone.
pub(super) const STYLE: &str = include_str!("style.css");

/// Width of a figure, in its own units, each about a pixel: three stand side by side on a desk, one
/// on a phone, and letters are as large in all of them.
const WIDTH: f64 = 380.0;
/// Height of the plotting area.
const HEIGHT: f64 = 164.0;
const LEFT: f64 = 60.0;
/// Most that neighbouring curves stand apart at the same x, so that error bars do not cover each
/// other.
const DODGE: f64 = 4.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
/// Height of a bar's row in a bar chart.
const ROW: f64 = 39.0;

/// How a curve looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Behind `c-`, the class of the style sheet: the family.
    pub class: &'static str,
    /// Marker.
    pub marker: Marker,
    /// Dash pattern, by number.
    pub dash: usize,
}

/// Dash patterns; the first is a solid line.
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// The look of an organization by its name, before variants are told apart.
pub fn look(organization: &str) -> Look {
    let (class, look) = looks::of(organization);
    Look {
        class,
        marker: look.marker,
        dash: 0,
    }
}

/// Looks for a figure's curves, given their organizations: those of one class get dashes of their
/// own.
pub fn looks(organizations: &[String]) -> Vec<Look> {
    let mut list: Vec<Look> = Vec::new();
    for organization in organizations {
        let mut one = look(organization);
        one.dash = list.iter().filter(|l| l.class == one.class).count();
        list.push(one);
    }
    list
}

/// One point with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Place on the x axis.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Ends of the error bar.
    pub bar: Option<(f64, f64)>,
    /// Runs that it is made of, and those of them that something disturbed; none if published.
    pub runs: (usize, usize),
}

impl Mark {
    /// What a reader who points at it is told.
    fn tip(&self, figure: &Figure, line: &Line) -> String {
        let mut text = format!(
            "{}{}: {}",
            line.name,
            match line.origin {
                Origin::Measured => String::new(),
                other => format!(", {}", other.word()),
            },
            number(self.y)
        );
        if let Some((low, high)) = self.bar.filter(|b| b.0 != b.1) {
            let _ = write!(text, " ({}–{})", number(low), number(high));
        }
        let _ = write!(text, " {} at {} {}", figure.unit, number(self.x), figure.x);
        if self.runs.0 > 0 {
            let runs = crate::units::runs(self.runs.0);
            let _ = write!(text, "; {runs}, {} disturbed", self.runs.1);
        }
        text
    }
}

/// Where a curve comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From runs on this machine.
    Measured,
    /// From a paper: drawn thin, with hollow markers.
    Published,
    /// From a model of some machine: drawn dashed, with a band in place of error bars.
    Predicted,
}

impl Origin {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Published => "published",
            Origin::Predicted => "predicted",
        }
    }

    /// Dash pattern and class of a curve.
    fn drawn(self, look: Look) -> (&'static str, &'static str) {
        match self {
            Origin::Measured => (DASHES[look.dash % DASHES.len()], ""),
            // Between published points nothing is published.
            Origin::Published => ("1 4", " pub"),
            Origin::Predicted => (DASHES[1 + look.dash % (DASHES.len() - 1)], ""),
        }
    }
}

/// One curve.
#[derive(Debug, Clone)]
pub struct Line {
    /// For the alternative text.
    pub name: String,
    /// Colour, marker, dashes.
    pub look: Look,
    /// Number of its series in the legend, which can hide it.
    pub series: usize,
    /// By x.
    pub marks: Vec<Mark>,
    /// Where it comes from.
    pub origin: Origin,
}

/// A figure with an x and a y axis.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Unique within the page.
    pub id: String,
    /// What stands above it.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Unit of the values.
    pub unit: String,
    /// Whether the x axis is logarithmic.
    pub log_x: bool,
    /// Whether the y axis is.
    pub log_y: bool,
    /// Ends of the x axis, where other figures have it too; else those of the marks.
    pub ends: Option<(f64, f64)>,
    /// A horizontal line to compare with.
    pub rule: Option<f64>,
    /// The curves.
    pub lines: Vec<Line>,
}

impl Figure {
    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|l| l.marks.is_empty())
    }

    /// The figure as SVG.
    pub fn draw(&self) -> Markup {
        let scale = Scale::of(self);
        let height = TOP + HEIGHT + BOTTOM;
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
                aria-labelledby=(format!("{0}-t {0}-d", self.id)) {
                title id=(format!("{}-t", self.id)) { (self.title) }
                desc id=(format!("{}-d", self.id)) { (self.description()) }
                text class="ft" x="4" y="15" { (self.title) }
                (self.axes(&scale))
                @for line in &self.lines { (self.line(line, &scale)) }
            }
        }
    }

    /// The alternative text: every curve with its values.
    fn description(&self) -> String {
        let mut text = format!("{} over {}.", self.y, self.x);
        for line in self.lines.iter().filter(|l| !l.marks.is_empty()) {
            let kind = match line.origin {
                Origin::Measured => String::new(),
                other => format!(" ({})", other.word()),
            };
            let _ = write!(text, " {}{kind}:", line.name);
            for (i, m) in line.marks.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                let _ = write!(text, "{comma} {} at {}", number(m.y), number(m.x));
            }
            text.push('.');
        }
        text
    }

    fn axes(&self, scale: &Scale) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, TOP + HEIGHT);
        html! {
            g class="grid" {
                @for y in &scale.ys {
                    line x1=(LEFT) x2=(right) y1=(scale.y(*y)) y2=(scale.y(*y)) {}
                }
            }
            @if let Some(rule) = self.rule {
                line class="rule" x1=(LEFT) x2=(right) y1=(scale.y(rule)) y2=(scale.y(rule)) {}
            }
            g class="axis" {
                line x1=(LEFT) x2=(right) y1=(bottom) y2=(bottom) {}
                @for x in &scale.xs {
                    line x1=(scale.x(*x)) x2=(scale.x(*x)) y1=(bottom) y2=(bottom + 4.0) {}
                }
            }
            g class="tick" text-anchor="end" {
                @for y in &scale.ys {
                    text x=(LEFT - 6.0) y=(scale.y(*y) + 4.0) { (tick(*y)) }
                }
            }
            g class="tick" text-anchor="middle" {
                @for x in scale.labelled() {
                    text x=(scale.x(x)) y=(bottom + 17.0) { (number(x)) }
                }
            }
            text class="label" x=((LEFT + right) / 2.0) y=(bottom + 36.0) text-anchor="middle" {
                (self.x) @if scale.log_x { " (log scale)" }
            }
            text class="label" text-anchor="middle"
                transform=(format!("translate(12 {}) rotate(-90)", TOP + HEIGHT / 2.0)) {
                (self.y) @if scale.log_y { " (log scale)" }
            }
        }
    }

    /// How far a series' marks are moved aside: as far as there is room between neighbours on the x
    /// axis.
    fn aside(&self, series: usize, scale: &Scale) -> f64 {
        let of = self.lines.iter().map(|l| l.series);
        let (least, most) = (of.clone().min().unwrap_or(0), of.max().unwrap_or(0));
        let places: Vec<f64> = scale.xs.iter().map(|x| scale.x(*x)).collect();
        let room = places.windows(2).map(|w| w[1] - w[0]).fold(60.0, f64::min);
        let step = DODGE.min(0.8 * room / (most - least + 1) as f64);
        step * (series as f64 - (least + most) as f64 / 2.0)
    }

    fn line(&self, line: &Line, scale: &Scale) -> Markup {
        let aside = self.aside(line.series, scale);
        let shown: Vec<&Mark> = line.marks.iter().filter(|m| scale.has(m.y)).collect();
        let mut path = String::new();
        for (i, m) in shown.iter().enumerate() {
            let letter = if i == 0 { 'M' } else { 'L' };
            let _ = write!(
                path,
                "{letter}{:.1} {:.1}",
                scale.x(m.x) + aside,
                scale.y(m.y)
            );
        }
        let (dash, kind) = line.origin.drawn(line.look);
        let band = match line.origin == Origin::Predicted && shown.len() > 1 {
            true => band(&shown, |m| scale.x(m.x) + aside, |y| scale.y(y)),
            false => String::new(),
        };
        html! {
            g class=(format!("c-{} s{}{kind}", line.look.class, line.series)) {
                @if !band.is_empty() { path class="band" d=(band) {} }
                @if shown.len() > 1 {
                    path class="curve" d=(path) stroke-dasharray=[(!dash.is_empty()).then_some(dash)] {}
                }
                @for m in shown {
                    @let x = scale.x(m.x) + aside;
                    g class="pt" {
                        title { (m.tip(self, line)) }
                        @if let (true, Some((low, high))) = (band.is_empty(), m.bar) {
                            (error_bar(x, scale.y(low), scale.y(high)))
                        }
                        (marker(line.look.marker, x, scale.y(m.y), line.origin == Origin::Published))
                    }
                }
            }
        }
    }
}

/// The area between the ends of the marks' bars.
fn band(marks: &[&Mark], x: impl Fn(&Mark) -> f64, y: impl Fn(f64) -> f64) -> String {
    let ends = |m: &Mark| m.bar.unwrap_or((m.y, m.y));
    let upper = marks.iter().map(|m| (x(m), y(ends(m).1)));
    let lower = marks.iter().rev().map(|m| (x(m), y(ends(m).0)));
    let mut path = String::new();
    for (i, (x, y)) in upper.chain(lower).enumerate() {
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{x:.1} {y:.1}");
    }
    path + "Z"
}

fn error_bar(x: f64, low: f64, high: f64) -> Markup {
    html! {
        path class="bar" d=(format!(
            "M{x:.1} {low:.1}V{high:.1}M{0:.1} {low:.1}h6M{0:.1} {high:.1}h6", x - 3.0
        )) {}
    }
}

/// A marker around a point.
pub fn marker(shape: Marker, x: f64, y: f64, hollow: bool) -> Markup {
    let class = if hollow { "mk hollow" } else { "mk" };
    let path = |steps: &str| {
        let d = format!("M{x:.1} {y:.1}{steps}");
        html! { path class=(class) d=(d) {} }
    };
    match shape {
        Marker::Circle => {
            let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
            html! { circle class=(class) cx=(x) cy=(y) r="4" {} }
        }
        Marker::Square => path("m-3.7 -3.7h7.4v7.4h-7.4z"),
        Marker::Up => path("m0 -4.8l4.6 8h-9.2z"),
        Marker::Down => path("m0 4.8l4.6 -8h-9.2z"),
        Marker::Diamond => path("m0 -5l5 5l-5 5l-5 -5z"),
        Marker::Cross => path("m-3.6 -3.6l7.2 7.2m0 -7.2l-7.2 7.2"),
        Marker::Plus => path("m-5 0h10m-5 -5v10"),
    }
}

/// A line and a marker for the legend.
pub fn key(look: Look, published: bool) -> Markup {
    let dash = DASHES[look.dash % DASHES.len()];
    let kind = if published { " pub" } else { "" };
    html! {
        svg class="key" viewBox="0 0 34 14" width="34" height="14" aria-hidden="true" {
            g class=(format!("c-{}{kind}", look.class)) {
                path class="curve" d="M1 7H33" stroke-dasharray=[(!dash.is_empty()).then_some(dash)] {}
                (marker(look.marker, 17.0, 7.0, published))
            }
        }
    }
}

/// A chart with a row for each curve, for plans with one place on the x axis.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Unique within the page.
    pub id: String,
    /// What stands above it.
    pub title: String,
    /// Label of the axis.
    pub axis: String,
    /// A name, its look and its value in each row.
    pub rows: Vec<(String, Look, Mark)>,
}

impl Bars {
    /// The chart as SVG.
    pub fn draw(&self) -> Markup {
        let frame = Frame {
            id: &self.id,
            title: &self.title,
            axis: &self.axis,
            description: self.description(),
            rows: self.rows.len(),
            most: self
                .rows
                .iter()
                .map(|r| r.2.bar.map_or(r.2.y, |b| b.1.max(r.2.y)))
                .fold(0.0, f64::max),
        };
        frame.draw(|i, top, at| {
            let (name, look, mark) = &self.rows[i];
            html! {
                text class="tick" x=(at(0.0) + 2.0) y=(top + 14.0) { (name) }
                g class=(format!("c-{}", look.class)) {
                    rect class="fill" x=(at(0.0)) y=(top + 19.0) width=(at(mark.y) - at(0.0))
                        height="13" rx="2" {}
                    @if let Some((low, high)) = mark.bar {
                        path class="whisker" d=(format!(
                            "M{0:.1} {2:.1}H{1:.1}M{0:.1} {3:.1}v7M{1:.1} {3:.1}v7",
                            at(low), at(high), top + 25.5, top + 22.0
                        )) {}
                    }
                }
            }
        })
    }

    fn description(&self) -> String {
        let mut text = format!("{}.", self.axis);
        for (name, _, mark) in &self.rows {
            let _ = write!(text, " {name}: {}.", number(mark.y));
        }
        text
    }
}

/// What charts of horizontal bars have in common: all but what stands in their rows.
pub(super) struct Frame<'a> {
    /// Unique within the page.
    pub id: &'a str,
    /// What stands above it.
    pub title: &'a str,
    /// Label of the axis.
    pub axis: &'a str,
    /// Its values, in words.
    pub description: String,
    /// How many rows it has.
    pub rows: usize,
    /// The largest value.
    pub most: f64,
}

impl Frame<'_> {
    /// The chart; `row` draws one, given its number, its upper end, and where values lie.
    pub fn draw(self, row: impl Fn(usize, f64, &dyn Fn(f64) -> f64) -> Markup) -> Markup {
        let ticks = linear(0.0, self.most);
        let end = ticks.last().copied().unwrap_or(1.0);
        let left = 8.0;
        // Half of the last label stands to the right of its line.
        let at = |v: f64| left + v / end * (WIDTH - 26.0 - left);
        let top = |i: usize| TOP + ROW * i as f64;
        let bottom = top(self.rows);
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {}", bottom + BOTTOM)) role="img"
                aria-labelledby=(format!("{0}-t {0}-d", self.id)) {
                title id=(format!("{}-t", self.id)) { (self.title) }
                desc id=(format!("{}-d", self.id)) { (self.description) }
                text class="ft" x="4" y="15" { (self.title) }
                g class="grid" {
                    @for t in &ticks { line x1=(at(*t)) x2=(at(*t)) y1=(TOP) y2=(bottom) {} }
                }
                g class="tick" text-anchor="middle" {
                    @for t in &ticks { text x=(at(*t)) y=(bottom + 17.0) { (tick(*t)) } }
                }
                @for i in 0..self.rows { (row(i, top(i), &at)) }
                text class="label" x=(WIDTH / 2.0) y=(bottom + 36.0) text-anchor="middle" {
                    (self.axis)
                }
            }
        }
    }
}

/// Where values lie on the paper.
#[derive(Debug, Clone)]
struct Scale {
    log_x: bool,
    log_y: bool,
    x: (f64, f64),
    y: (f64, f64),
    xs: Vec<f64>,
    ys: Vec<f64>,
}

impl Scale {
    fn of(figure: &Figure) -> Scale {
        let marks = || figure.lines.iter().flat_map(|l| &l.marks);
        let mut xs: Vec<f64> = marks().map(|m| m.x).collect();
        xs.extend(figure.ends.iter().flat_map(|e| [e.0, e.1]));
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let first = xs.first().copied().unwrap_or(1.0);
        let last = xs.last().copied().unwrap_or(1.0);
        let values = || {
            let of = |m: &Mark| {
                [
                    m.bar.map_or(m.y, |b| b.0.min(m.y)),
                    m.bar.map_or(m.y, |b| b.1.max(m.y)),
                ]
            };
            marks().flat_map(of).chain(figure.rule)
        };
        let most = values().fold(0.0, f64::max);
        let least = values().filter(|v| *v > 0.0).fold(most, f64::min);
        let log_y = figure.log_y && least > 0.0;
        let ys = match log_y {
            true => powers(least, most),
            false => linear(0.0, most),
        };
        let low = if log_y {
            ys.first().copied().unwrap_or(1.0)
        } else {
            0.0
        };
        Scale {
            log_x: figure.log_x && first > 0.0,
            log_y,
            x: (first, last),
            y: (low, ys.last().copied().unwrap_or(1.0)),
            xs,
            ys,
        }
    }

    /// Whether a value can be drawn.
    fn has(&self, y: f64) -> bool {
        !self.log_y || y > 0.0
    }

    fn x(&self, v: f64) -> f64 {
        let place = |v: f64| if self.log_x { v.ln() } else { v };
        let (first, last) = (place(self.x.0), place(self.x.1));
        let share = match last > first {
            true => (place(v) - first) / (last - first),
            false => 0.5,
        };
        // Room at both ends for markers and error bars.
        LEFT + 16.0 + share * (WIDTH - RIGHT - LEFT - 32.0)
    }

    fn y(&self, v: f64) -> f64 {
        let place = |v: f64| if self.log_y { v.max(self.y.0).ln() } else { v };
        let (low, high) = (place(self.y.0), place(self.y.1));
        TOP + HEIGHT - (place(v) - low) / (high - low) * HEIGHT
    }

    /// The x values whose labels have room, both ends among them.
    fn labelled(&self) -> Vec<f64> {
        let mut list: Vec<f64> = Vec::new();
        let width = |v: f64| 7.0 * number(v).chars().count() as f64 + 6.0;
        let room = |a: f64, b: f64| (self.x(b) - self.x(a)).abs() >= (width(a) + width(b)) / 2.0;
        let Some((&last, rest)) = self.xs.split_last() else {
            return list;
        };
        for &v in rest {
            if list.last().is_none_or(|&before| room(before, v)) && room(v, last) {
                list.push(v);
            }
        }
        list.push(last);
        list
    }
}

/// Round ticks from `from` to at least `to`: steps of 1, 2 or 5 times a power of ten.
fn linear(from: f64, to: f64) -> Vec<f64> {
    let span = match to > from && to.is_finite() {
        true => to - from,
        false => 1.0,
    };
    let power = 10f64.powf((span / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| span / s <= 5.5)
        .unwrap_or(10.0 * power);
    let count = (span / step - 1e-9).ceil() as usize;
    (0..=count).map(|i| from + step * i as f64).collect()
}

/// Ticks of a logarithmic axis around `from` and `to`, both above 0: 1, 2 and 5 times each power of
/// ten, or the powers alone where there are many.
fn powers(from: f64, to: f64) -> Vec<f64> {
    let (first, last) = (
        from.log10().floor(),
        to.log10().ceil().max(from.log10().floor() + 1.0),
    );
    let steps: &[f64] = if (to / from).log10() > 2.2 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let each = (0..=(last - first) as i32).map(|i| 10f64.powf(first + f64::from(i)));
    let mut all: Vec<f64> = each
        .flat_map(|p| steps.iter().map(move |s| s * p))
        .collect();
    // The axis begins at the last tick below all values, and ends at the first above.
    let above = all
        .iter()
        .position(|t| *t >= to * 0.9999)
        .unwrap_or(all.len() - 1);
    all.truncate(above + 1);
    let below = all.iter().rposition(|t| *t <= from * 1.0001).unwrap_or(0);
    all.split_off(below.min(all.len().saturating_sub(2)))
}

/// A number for an axis, where there is little room: thousands as k, millions as M.
fn tick(v: f64) -> String {
    match v.abs() {
        s if s >= 1e6 => format!("{}M", number(v / 1e6)),
        s if s >= 1e4 => format!("{}k", number(v / 1e3)),
        _ => number(v),
    }
}

/// A number to be read at a glance: three digits or so, thousands apart.
pub fn number(v: f64) -> String {
    if !v.is_finite() {
        return "–".into();
    }
    let size = v.abs();
    let text = match size {
        0.0 => "0".into(),
        s if s >= 100.0 || (s >= 10.0 && s.fract() < 0.05) => format!("{v:.0}"),
        s if s >= 10.0 => format!("{v:.1}"),
        s if s >= 1.0 && (s * 10.0).fract() < 0.05 => format!("{v:.1}"),
        s if s >= 1.0 => format!("{v:.2}"),
        s if s >= 0.001 => format!("{v:.3}"),
        _ => format!("{v:.1e}"),
    };
    let text = match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    };
    if size < 1000.0 || text.contains(['.', 'e']) {
        return text;
    }
    let sign = if v < 0.0 { "-" } else { "" };
    format!("{sign}{}", thousands(size))
}

/// Text that is markup already.
pub fn raw(text: &str) -> PreEscaped<&str> {
    PreEscaped(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_for_the_eye() {
        let table = [
            (0.0, "0"),
            (5440.0, "5,440"),
            (16384.0, "16,384"),
            (1234567.0, "1,234,567"),
            (-16384.0, "-16,384"),
            (99.96, "100"),
            (1.83, "1.83"),
            (2.0, "2"),
            (18.49, "18.5"),
            (0.082, "0.082"),
            (0.00001, "1.0e-5"),
            (f64::NAN, "–"),
        ];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn round_ticks() {
        assert_eq!(linear(0.0, 100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(linear(0.0, 5440.0).last(), Some(&6000.0));
        assert_eq!(linear(0.0, 0.0).last(), Some(&1.0));
    }

    fn figure(marks: Vec<Mark>) -> Figure {
        Figure {
            id: "f".into(),
            title: "A <title>".into(),
            x: "connections".into(),
            y: "Mb/s".into(),
            unit: "Mb/s".into(),
            log_x: true,
            log_y: false,
            ends: None,
            rule: None,
            lines: vec![Line {
                name: "UP & co".into(),
                look: look("up"),
                series: 0,
                marks,
                origin: Origin::Measured,
            }],
        }
    }

    #[test]
    fn a_figure_says_its_values_and_escapes_them() {
        let mark = |x, y| Mark {
            x,
            y,
            bar: Some((y - 1.0, y + 1.0)),
            runs: (5, 1),
        };
        let svg = figure(vec![mark(6.0, 10.0), mark(192.0, 20.0)])
            .draw()
            .into_string();
        assert!(svg.contains("UP &amp; co: 10 at 6, 20 at 192."), "{svg}");
        assert!(
            svg.contains("A &lt;title&gt;") && !svg.contains("<title>A <"),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"bar\"").count(), 2);
        let tip = "UP &amp; co: 10 (9–11) Mb/s at 6 connections; 5 runs, 1 disturbed";
        assert!(svg.contains(tip), "{svg}");
        assert!(svg.contains("connections (log scale)"));
        assert!(figure(Vec::new()).is_empty());
    }

    #[test]
    fn organizations_look_the_same_everywhere_and_variants_differ() {
        let names = ["connp-l:4", "connp-l:128", "up", "linux"].map(String::from);
        let looks = looks(&names);
        assert_eq!(looks[0].class, looks[1].class);
        assert_ne!(looks[0].dash, looks[1].dash);
        assert_eq!(looks[2], look("up"));
    }

    #[test]
    fn powers_of_ten() {
        assert_eq!(
            powers(2.1, 175.0),
            [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
        );
        assert_eq!(
            powers(3.0, 40_000.0),
            [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]
        );
        assert_eq!(powers(5.0, 5.0).len(), 2);
        assert_eq!(
            [tick(1.5e6), tick(20_000.0), tick(9000.0)],
            ["1.5M", "20k", "9,000"]
        );
    }

    /// Error bars of the same x stand beside each other, and stay nearer to it than to the next.
    #[test]
    fn curves_stand_apart_at_the_same_x() {
        let mark = |x| Mark {
            x,
            y: 5.0,
            bar: Some((4.0, 6.0)),
            runs: (5, 0),
        };
        let mut f = figure(vec![mark(12_288.0), mark(16_384.0), mark(6.0)]);
        for series in 1..6 {
            let line = Line {
                series,
                ..f.lines[0].clone()
            };
            f.lines.push(line);
        }
        let scale = Scale::of(&f);
        let places: Vec<f64> = (0..6).map(|s| f.aside(s, &scale)).collect();
        assert!(places.windows(2).all(|w| w[1] - w[0] > 0.5), "{places:?}");
        let next = scale.x(16_384.0) - scale.x(12_288.0);
        assert!(places[5] - places[0] < next, "{places:?} in {next}");
    }

    proptest! {
        #[test]
        fn everything_is_drawn_within_the_picture(
            values in prop::collection::vec((1u32..100_000, 0.0f64..1e12), 1..20), log_y: bool
        ) {
            let marks = values.iter().map(|&(x, y)| Mark {
                x: x.into(),
                y,
                bar: Some((y * 0.5, y * 1.5)),
                runs: (5, 1),
            });
            let f = Figure { log_y, ..figure(marks.collect()) };
            let scale = Scale::of(&f);
            for m in &f.lines[0].marks {
                prop_assert!((LEFT..=WIDTH - RIGHT).contains(&scale.x(m.x)));
                let (low, high) = m.bar.unwrap();
                for y in [low, m.y, high] {
                    prop_assert!((TOP - 0.01..=TOP + HEIGHT + 0.01).contains(&scale.y(y)));
                }
            }
            prop_assert!(scale.ys.len() <= 15, "{:?}", scale.ys);
        }
    }
}

//! What the view shows, for any size of terminal.

use perimeter::families::Marker;
use perimeter_measure::{
    live::{Board, Figures, Now},
    looks, units,
    workload::Phase,
};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Paragraph, RenderDirection, Row, Sparkline, SparklineBar, Table},
};
use std::time::Instant;

/// Terminals at least this wide and high have framed charts.
const ROOMY: (u16, u16) = (72, 22);
/// Least height for charts of a line each.
const CHARTS: u16 = 9;
/// Units of a bar's height to one unit of what is drawn, as bars are whole numbers.
const FINE: f64 = 1000.0;

/// How to show it.
#[derive(Debug, Clone)]
pub struct Look {
    /// What is common to all runs.
    pub about: String,
    /// Rounds, or connections that are opened anew, are followed instead of goodput; what they are
    /// called.
    pub rounds: Option<&'static str>,
    /// With colours.
    pub colour: bool,
    /// The runs were asked to end.
    pub stopping: bool,
}

impl Look {
    /// The style of what belongs to an organization: the report's colour of it.
    fn of(&self, organization: &str) -> Style {
        let colour = looks::of(organization).1.colour.terminal;
        let colour = colour.map_or(Color::Reset, Color::Indexed);
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// An organization's marker, the report's: so that nothing relies on colour alone.
fn marker(organization: &str) -> &'static str {
    match looks::of(organization).1.marker {
        Marker::Circle => "●",
        Marker::Square => "■",
        Marker::Up => "▲",
        Marker::Down => "▼",
        Marker::Diamond => "◆",
        Marker::Cross => "✕",
        Marker::Plus => "✚",
    }
}

/// One of the four things that are followed.
struct Chart {
    title: &'static str,
    unit: fn(&Figures) -> String,
    of: fn(&Figures) -> Option<f64>,
    shown: fn(f64) -> String,
}

const GOODPUT: Chart = Chart {
    title: "goodput",
    unit: |_| "Mb/s".into(),
    of: |f| f.goodput_mbps,
    shown: whole,
};

const ROUNDS: Chart = Chart {
    title: "rounds",
    unit: |_| "a second".into(),
    of: |f| f.rounds,
    shown: whole,
};

const OTHERS: [Chart; 3] = [
    Chart {
        title: "CPU",
        unit: |_| "cores".into(),
        of: |f| f.cores,
        shown: two,
    },
    Chart {
        title: "contended",
        unit: |f| match f.hottest() {
            Some(l) if l.contended > 0.0 => format!("% of {}", l.class),
            _ => "%".into(),
        },
        of: |f| f.hottest().map(|l| l.share() * 100.0),
        shown: two,
    },
    Chart {
        title: "within",
        unit: |_| "threads in a perimeter".into(),
        of: |f| f.occupancy,
        shown: two,
    },
];

/// What is followed.
fn charts(look: &Look) -> [Chart; 4] {
    let first = match look.rounds {
        Some(title) => Chart { title, ..ROUNDS },
        None => GOODPUT,
    };
    let [cpu, contended, within] = OTHERS;
    [first, cpu, contended, within]
}

fn whole(v: f64) -> String {
    format!("{v:.0}")
}

fn two(v: f64) -> String {
    format!("{v:.2}")
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, board: &Board, look: &Look, at: Instant) {
    let area = frame.area();
    let roomy = area.width >= ROOMY.0 && area.height >= ROOMY.1;
    let charts = match area.height {
        _ if roomy => charts_height(board, area.height),
        h if h >= CHARTS => 4,
        _ => 0,
    };
    let rows = [
        Constraint::Length(area.height.min(2)),
        Constraint::Length(charts),
        Constraint::Length(u16::from(charts > 0)),
        Constraint::Min(0),
        Constraint::Length(u16::from(area.height >= 6)),
    ];
    let [head, middle, locks, table, foot] = Layout::vertical(rows).areas(area);
    frame.render_widget(Paragraph::new(header(board, look, at)), head);
    match roomy {
        true => framed(frame, board, look, middle),
        false => lines(frame, board, look, middle),
    }
    let last = board.now.as_ref().and_then(|n| n.last.as_ref());
    frame.render_widget(Paragraph::new(locks_line(last)), locks);
    rows_table(frame, board, look, table);
    frame.render_widget(Paragraph::new(footer(board, look)).style(dim()), foot);
}

/// The keys, and what looking costs those who are looked at.
fn footer(board: &Board, look: &Look) -> String {
    let keys = match look.stopping {
        false => "q ends the runs and prints what is complete",
        true => "ending; q again leaves at once",
    };
    let cost = board.now.as_ref().filter(|n| n.last.is_some());
    match cost.map(|n| n.cost * 100.0) {
        Some(cost) => format!("{keys}; looking takes {cost:.2} % of a thread"),
        None => keys.into(),
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Height of two rows of framed charts: what the table leaves, within bounds.
fn charts_height(board: &Board, height: u16) -> u16 {
    let table = u16::try_from(board.rows.len()).unwrap_or(u16::MAX);
    let left = height.saturating_sub(table.saturating_add(6));
    (left / 2).clamp(5, 12) * 2
}

/// What runs, and how far it is.
fn header(board: &Board, look: &Look, at: Instant) -> Vec<Line<'static>> {
    let mut first = vec![Span::styled("perimeter bench", bold())];
    first.push(Span::styled(format!("  {}", look.about), dim()));
    let Some(now) = &board.now else {
        return vec![first.into(), "starting".into()];
    };
    let left = now
        .left
        .saturating_sub(at.saturating_duration_since(now.begun));
    first.push(Span::raw(format!("  run {} of {}", now.number, now.of)));
    first.push(Span::raw(match look.stopping {
        true => "  ending".into(),
        false => format!(", {} left", units::roughly(left)),
    }));
    let c = &board.rows[now.row].configuration;
    let name = c.organization.to_string();
    let second = vec![
        Span::styled(
            format!("{} {name}", marker(&name)),
            look.of(&name).patch(bold()),
        ),
        Span::raw(format!(
            " × {}, {}: {}",
            number(c.connections, "connection"),
            number(c.threads as u64, "thread"),
            phase(now, at)
        )),
    ];
    vec![first.into(), second.into()]
}

/// So many of something.
fn number(n: impl Into<u64>, what: &str) -> String {
    match n.into() {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

fn phase(now: &Now, at: Instant) -> String {
    let done = at.saturating_duration_since(now.since).min(now.takes);
    let of = || {
        format!(
            "{:.1} of {:.1} s",
            done.as_secs_f64(),
            now.takes.as_secs_f64()
        )
    };
    match now.phase {
        Phase::Set => "setting up".into(),
        Phase::Warm => format!("warming up {}", of()),
        Phase::Measure => format!("measuring {}", of()),
        Phase::Stop => "complete".into(),
    }
}

/// The last value of a chart in words, and its unit.
fn value(board: &Board, chart: &Chart) -> (String, String) {
    let last = board.now.as_ref().and_then(|n| n.last.as_ref());
    match last.and_then(|f| Some(((chart.of)(f)?, (chart.unit)(f)))) {
        Some((v, unit)) => ((chart.shown)(v), unit),
        None => ("–".into(), String::new()),
    }
}

/// The newest bars of a chart that fit into `width`, newest first, and the highest value.
fn bars(board: &Board, look: &Look, chart: &Chart, width: u16) -> (Vec<SparklineBar>, f64) {
    let mut top: f64 = 0.0;
    let newest = board.history.iter().rev().take(usize::from(width));
    let bars = newest.map(|entry| {
        let value = entry
            .as_ref()
            .and_then(|(row, f)| Some((row, (chart.of)(f)?)));
        let Some((row, v)) = value else {
            return SparklineBar::from(None);
        };
        top = top.max(v);
        let name = board.rows[*row].configuration.organization.to_string();
        SparklineBar::from((v * FINE) as u64).style(look.of(&name))
    });
    (bars.collect(), top)
}

fn spark(bars: Vec<SparklineBar>, top: f64) -> Sparkline<'static> {
    Sparkline::default()
        .data(bars)
        .direction(RenderDirection::RightToLeft)
        .max((top * FINE) as u64)
}

/// Four framed charts.
fn framed(frame: &mut Frame<'_>, board: &Board, look: &Look, area: Rect) {
    let half = || [Constraint::Fill(1); 2];
    let [above, below] = Layout::vertical(half()).areas(area);
    let [a, b] = Layout::horizontal(half()).areas(above);
    let [c, d] = Layout::horizontal(half()).areas(below);
    for (chart, area) in charts(look).iter().zip([a, b, c, d]) {
        let (bars, top) = bars(board, look, chart, area.width.saturating_sub(2));
        let (number, unit) = value(board, chart);
        let title = Line::from(vec![
            Span::styled(format!(" {} ", chart.title), bold()),
            Span::raw(format!("{number} {unit} ")),
        ]);
        let top_is = format!(" top {} ", (chart.shown)(top));
        let room = usize::from(area.width.saturating_sub(2));
        let both = title.width() + top_is.chars().count() <= room;
        let mut block = Block::bordered().border_style(dim()).title_top(title);
        if both {
            block = block.title_top(Line::from(top_is).right_aligned());
        }
        frame.render_widget(spark(bars, top).block(block), area);
    }
}

/// The charts as a line each.
fn lines(frame: &mut Frame<'_>, board: &Board, look: &Look, area: Rect) {
    let each = Layout::vertical([Constraint::Length(1); 4]).areas::<4>(area);
    for (chart, line) in charts(look).iter().zip(each) {
        let cut = [
            Constraint::Length(10),
            Constraint::Length(9),
            Constraint::Min(0),
        ];
        let [name, number, curve] = Layout::horizontal(cut).areas(line);
        frame.render_widget(Paragraph::new(chart.title).style(bold()), name);
        frame.render_widget(
            Paragraph::new(value(board, chart).0).right_aligned(),
            number,
        );
        let [_, curve] =
            Layout::horizontal([Constraint::Length(1), Constraint::Min(0)]).areas(curve);
        let (bars, top) = bars(board, look, chart, curve.width);
        frame.render_widget(spark(bars, top), curve);
    }
}

/// The classes of locks with the most contention, as far as they fit.
fn locks_line(last: Option<&Figures>) -> Line<'static> {
    let mut spans = vec![Span::styled("locks ", bold())];
    let Some(figures) = last.filter(|f| !f.locks.is_empty()) else {
        return Line::from("locks –").style(dim());
    };
    for l in &figures.locks {
        spans.push(Span::raw(format!(
            "{} {:.2} % ",
            l.class,
            100.0 * l.share()
        )));
        spans.push(Span::styled(format!("of {}/s  ", short(l.taken)), dim()));
    }
    spans.into()
}

/// A number in at most five characters.
fn short(v: f64) -> String {
    match v {
        v if v < 1e3 => format!("{v:.0}"),
        v if v < 1e6 => format!("{:.1}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    }
}

/// A column of the table.
struct Column {
    title: &'static str,
    width: u16,
    /// Those of lower rank stay where there is no room for all.
    rank: usize,
    /// Words stand to the left, numbers to the right.
    words: bool,
    cell: fn(&perimeter_measure::live::Row, &Figures, u32) -> String,
}

/// Least and greatest width of the names.
const NAME: (u16, u16) = (13, 28);

/// In place of goodput where rounds are followed.
const RATE: Column = Column {
    title: "per s",
    width: 7,
    rank: 0,
    words: false,
    cell: |_, f, _| optional(f.rounds, whole),
};

const COLUMNS: [Column; 9] = [
    Column {
        title: "conns",
        width: 7,
        rank: 1,
        words: false,
        cell: |row, _, _| row.configuration.connections.to_string(),
    },
    Column {
        title: "runs",
        width: 7,
        rank: 6,
        words: false,
        cell: |row, _, repeat| format!("{}/{repeat}", row.runs.len()),
    },
    Column {
        title: "Mb/s",
        width: 7,
        rank: 0,
        words: false,
        cell: |_, f, _| optional(f.goodput_mbps, whole),
    },
    Column {
        title: "cores",
        width: 5,
        rank: 5,
        words: false,
        cell: |_, f, _| optional(f.cores, two),
    },
    Column {
        title: "ns/seg",
        width: 7,
        rank: 4,
        words: false,
        cell: |_, f, _| optional(f.ns_per_segment, whole),
    },
    Column {
        title: "contd %",
        width: 7,
        rank: 2,
        words: false,
        cell: |_, f, _| optional(f.hottest().map(|l| l.share() * 100.0), two),
    },
    Column {
        title: "of locks",
        width: 15,
        rank: 8,
        words: true,
        cell: |_, f, _| match f.hottest() {
            Some(l) if l.contended > 0.0 => l.class.clone(),
            _ => "–".into(),
        },
    },
    Column {
        title: "within",
        width: 6,
        rank: 3,
        words: false,
        cell: |_, f, _| optional(f.occupancy, two),
    },
    Column {
        title: "perimeter",
        width: 15,
        rank: 7,
        words: true,
        cell: |row, _, _| row.perimeter().map_or("–".into(), |p| p.name().into()),
    },
];

fn optional(v: Option<f64>, shown: fn(f64) -> String) -> String {
    v.map_or("–".into(), shown)
}

/// The columns that fit beside the name, and the width that is the name's.
fn columns(board: &Board, look: &Look, width: u16) -> (u16, Vec<&'static Column>) {
    let names = board
        .rows
        .iter()
        .map(|r| r.configuration.organization.to_string());
    let longest = names
        .map(|n| n.chars().count() as u16 + 4)
        .max()
        .unwrap_or(0);
    let name = longest.clamp(NAME.0, NAME.1).min(width);
    let mut left = width - name;
    let all = || {
        COLUMNS.iter().map(|c| match look.rounds {
            Some(_) if c.rank == RATE.rank => &RATE,
            _ => c,
        })
    };
    let mut ranked: Vec<&Column> = all().collect();
    ranked.sort_by_key(|c| c.rank);
    let mut chosen = 0;
    for c in ranked {
        match left.checked_sub(c.width + 1) {
            Some(rest) => left = rest,
            None => break,
        }
        chosen += 1;
    }
    (name, all().filter(|c| c.rank < chosen).collect())
}

/// Every configuration: the running one as it is now, others with the medians of their runs.
fn rows_table(frame: &mut Frame<'_>, board: &Board, look: &Look, area: Rect) {
    let (name, columns) = columns(board, look, area.width);
    let running = board.now.as_ref().filter(|n| n.phase != Phase::Stop);
    let running = running.map(|n| n.row);
    // The running one and what ended before it stay in sight.
    let room = usize::from(area.height.saturating_sub(1));
    let around = board.now.as_ref().map_or(0, |n| n.row);
    let skip = (around + 2)
        .saturating_sub(room)
        .min(board.rows.len().saturating_sub(room));
    let beside = |f: &mut dyn FnMut(&Column) -> String| -> Vec<Cell<'static>> {
        let one = |c: &&Column| {
            let line = Line::from(f(c));
            Cell::from(if c.words { line } else { line.right_aligned() })
        };
        columns.iter().map(one).collect()
    };
    let rows = board.rows.iter().enumerate().skip(skip).take(room);
    let rows = rows.map(|(i, row)| {
        let organization = row.configuration.organization.to_string();
        let sign = if running == Some(i) { "▶" } else { " " };
        let label = format!("{sign}{} {organization}", marker(&organization));
        let figures = board.figures(i);
        let mut cells = vec![Cell::from(label).style(look.of(&organization))];
        cells.extend(beside(&mut |c| (c.cell)(row, &figures, board.repeat)));
        Row::new(cells).style(match (running == Some(i), row.runs.len()) {
            (true, _) => bold(),
            (false, 0) => dim(),
            _ => Style::new(),
        })
    });
    let mut titles = vec![Cell::from("organization")];
    titles.extend(beside(&mut |c| c.title.into()));
    let widths = std::iter::once(name).chain(columns.iter().map(|c| c.width));
    let table = Table::new(rows, widths.map(Constraint::Length));
    let header = Row::new(titles).style(dim().add_modifier(Modifier::UNDERLINED));
    frame.render_widget(table.header(header).column_spacing(1), area);
}

#[cfg(test)]
mod tests;

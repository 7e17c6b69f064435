//! A recorded send as a figure: a lane for each lock, steps from the top, the layers that they run
//! in beside them. A is where a lock is acquired and R where it is released, as in the paper's.

use crate::{
    published::Order,
    trace::{Doing, Layer, Trace, compare},
};
use maud::{Markup, PreEscaped, html};

/// Height of a step.
const ROW: f64 = 17.0;
/// Distance of lanes.
const LANE: f64 = 34.0;
/// Where the lanes begin: beside layers and steps.
const LEFT: f64 = 190.0;
/// Room for the name of the last lane, which leans to the right.
const RIGHT: f64 = 44.0;
/// Room for the lanes' names, which stand upright.
const TOP: f64 = 122.0;

/// A time for which a lock is held: lane, first and last step.
type Held = (usize, usize, usize);

fn held(trace: &Trace) -> Vec<Held> {
    let (mut open, mut all): (Vec<Held>, Vec<Held>) = (Vec::new(), Vec::new());
    for (row, step) in trace.steps.iter().enumerate() {
        match step.doing {
            Doing::Take(lane) => open.push((lane, row, row)),
            Doing::Release(lane) => {
                if let Some(i) = open.iter().rposition(|h| h.0 == lane) {
                    let (_, from, _) = open.remove(i);
                    all.push((lane, from, row));
                }
            }
            _ => {}
        }
    }
    all
}

/// Steps in a row that one thread runs in one layer: first and one after the last.
fn bands(trace: &Trace) -> Vec<(usize, usize, Layer, usize)> {
    let mut bands: Vec<(usize, usize, Layer, usize)> = Vec::new();
    for (row, s) in trace.steps.iter().enumerate() {
        match bands.last_mut() {
            Some(b) if b.2 == s.layer && b.3 == s.thread => b.1 = row + 1,
            _ => bands.push((row, row + 1, s.layer, s.thread)),
        }
    }
    bands
}

/// The figure; `id` is unique within its page.
pub fn draw(trace: &Trace, id: &str) -> Markup {
    let x = |lane: usize| LEFT + LANE * (lane as f64 + 0.5);
    let y = |row: usize| TOP + ROW * (row as f64 + 0.5);
    let width = LEFT + LANE * trace.locks.len().max(3) as f64 + RIGHT;
    let height = TOP + ROW * trace.steps.len() as f64 + 6.0;
    let title = format!("A send under {}", trace.org);
    html! {
        svg class="lanes" viewBox=(format!("0 0 {width} {height}")) role="img"
            xmlns="http://www.w3.org/2000/svg" aria-labelledby=(format!("{id}-t {id}-d")) {
            title id=(format!("{id}-t")) { (title) }
            desc id=(format!("{id}-d")) { (trace.text()) }
            text class="ft" x="4" y="15" { (title) }
            @for (i, (from, to, layer, thread)) in bands(trace).into_iter().enumerate() {
                @let top = TOP + ROW * from as f64;
                rect class=(if i % 2 == 0 { "floor" } else { "floor odd" }) x="0" y=(top)
                    width=(width) height=(ROW * (to - from) as f64) {}
                text class="layer" x="4" y=(top + 12.5) { (layer.name()) }
                @if to > from + 1 && trace.threads.len() > 1 {
                    text class="thread" x="4" y=(top + 12.5 + ROW) { (trace.threads[thread]) }
                }
            }
            @for lane in 0..trace.locks.len() {
                line class="lane" x1=(x(lane)) x2=(x(lane)) y1=(TOP) y2=(height - 6.0) {}
                text class="tick" transform=(format!("translate({} {}) rotate(-60)", x(lane) + 3.0, TOP - 6.0)) {
                    (trace.lock(lane))
                }
            }
            @for (lane, from, to) in held(trace) {
                rect class="held" x=(x(lane) - 5.0) y=(y(from)) width="10" height=(y(to) - y(from)) {}
            }
            @for (row, step) in trace.steps.iter().enumerate() {
                @match step.doing {
                    Doing::Take(lane) => (end(x(lane), y(row), "A")),
                    Doing::Release(lane) => (end(x(lane), y(row), "R")),
                    _ => text class="step" x="78" y=(y(row) + 4.0) { (trace.words(step)) },
                }
            }
        }
    }
}

fn end(x: f64, y: f64, letter: &str) -> Markup {
    html! {
        circle class=(if letter == "A" { "end" } else { "end hollow" }) cx=(x) cy=(y) r="7" {}
        text class=(if letter == "A" { "letter" } else { "letter hollow" }) x=(x) y=(y + 3.6)
            text-anchor="middle" { (letter) }
    }
}

/// The figure as a file of its own.
pub fn file(trace: &Trace) -> String {
    let drawn = draw(trace, "send").into_string();
    let style = html! { style { (PreEscaped(super::svg::STYLE)) "svg.lanes { background: var(--page); }" } };
    let begin = drawn.find('>').map_or(0, |i| i + 1);
    let (head, rest) = drawn.split_at(begin);
    format!("{head}{}{rest}\n", style.into_string())
}

/// How a trace agrees with a published order, in a sentence or two.
pub fn agreement(trace: &Trace, order: &Order) -> String {
    let steps = trace.locking();
    let found = compare(&order.steps, &steps);
    let mut text = match found.missing.as_slice() {
        [] => format!(
            "Same order: each of the {} steps that {} lists is taken here, in that order.",
            order.steps.len(),
            order.place.place
        ),
        [first, ..] => format!(
            "Differs at step {} of {} ({}), and lacks {} of its {} steps.",
            first + 1,
            order.place.place,
            order.steps[*first],
            found.missing.len(),
            order.steps.len()
        ),
    };
    let mut besides: Vec<(&str, usize)> = Vec::new();
    for step in found
        .besides
        .iter()
        .filter_map(|i| steps[*i].strip_prefix('+'))
    {
        match besides.iter_mut().find(|b| b.0 == step) {
            Some(b) => b.1 += 1,
            None => besides.push((step, 1)),
        }
    }
    if !besides.is_empty() {
        let list: Vec<String> = besides
            .iter()
            .map(|(class, n)| format!("{class} {n} time{}", if *n == 1 { "" } else { "s" }))
            .collect();
        text.push_str(&format!(" Besides these it takes {}.", list.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{published::published, trace::record};

    #[test]
    fn every_step_is_drawn_and_the_file_stands_alone() {
        for org in ["msgp", "connp-t:1", "up"] {
            let trace = record(&org.parse().unwrap()).unwrap();
            let text = file(&trace);
            let takes = trace
                .locking()
                .iter()
                .filter(|s| s.starts_with('+'))
                .count();
            assert_eq!(text.matches("class=\"held\"").count(), takes, "{org}");
            assert_eq!(text.matches("class=\"end\"").count(), takes, "{org}");
            assert_eq!(text.matches("class=\"end hollow\"").count(), takes, "{org}");
            assert_eq!(text.matches("class=\"lane\"").count(), trace.locks.len());
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(
                text.contains("tcp output") && text.contains("--page"),
                "{text}"
            );
            assert!(!text.contains("href"), "needs nothing else");
        }
    }

    #[test]
    fn agreement_is_computed() {
        let order = published().order("send-locks").unwrap();
        let say = |org: &str| agreement(&record(&org.parse().unwrap()).unwrap(), order);
        let same = say("msgp");
        assert!(
            same.starts_with("Same order: each of the 10 steps"),
            "{same}"
        );
        assert!(same.contains("Besides these it takes sndbuf"), "{same}");
        let differs = say("msgp-modern");
        assert!(
            differs.starts_with("Differs at step 3 of Figure 4 (+conn_hashtable)"),
            "{differs}"
        );
    }
}

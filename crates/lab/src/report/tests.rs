use super::{
    analysis::{Cores, Finding},
    *,
};
use crate::{
    plan::Plan,
    record::{
        Outcome, Row,
        tests::{header, row},
    },
};

/// A plan of two curves of the study's first figure.
const PLAN: &str = r#"
name = "small"
title = "Throughput <of> two"
asks = "Which?"
published = "throughput"
metric = "goodput"
also = ["contended"]
cores = 4
relative-to = "UP"
advice = "sending"
x = { setting = "connections", values = [6, 192, 16384], log = true }
quick = { seconds = 1, repeats = 5 }
normal = { seconds = 1, repeats = 5 }
full = { seconds = 1, repeats = 5 }
series = [
    { org = "up", label = "UP", as = "UP" },
    { org = "msgp", label = "MsgP", as = "MsgP" },
    { org = "connp-l:128", label = "ConnP-L(128)", as = "ConnP-L(128)" },
]
"#;

/// Goodputs at 6, 192 and 16384 connections; run k is (1 + k/100) times as fast.
pub(super) fn stored(series: &[(&str, &str, [f64; 3])]) -> Stored {
    let mut rows: Vec<Row> = Vec::new();
    for (label, org, values) in series {
        for (x, value) in [6, 192, 16384].into_iter().zip(values) {
            for k in 0..5 {
                let goodput = value * (1.0 + f64::from(k) / 100.0);
                rows.push(row("small", label, org, x, k, goodput));
            }
        }
    }
    Stored {
        sends: Vec::new(),
        header: header(&["small"]),
        plans: vec![Plan::parse("small.toml", PLAN).unwrap()],
        rows,
        notes: Vec::new(),
    }
}

pub(super) fn example() -> Stored {
    stored(&[
        ("UP", "up", [4000.0, 4000.0, 2000.0]),
        ("MsgP", "msgp", [3280.0, 5000.0, 1000.0]),
        ("ConnP-L(128)", "connp-l:128", [4010.0, 8000.0, 4520.0]),
    ])
}

/// What is found on a machine that has the cores.
fn finding(stored: &Stored, claim: &str) -> Finding {
    let mut stored = stored.clone();
    stored.header.host.cores = 4;
    finding_here(&stored, claim)
}

fn finding_here(stored: &Stored, claim: &str) -> Finding {
    let results = analysis::results(stored);
    let found = results[0].claims.iter().find(|c| c.claim.id == claim);
    found.unwrap().finding
}

#[test]
fn claims_are_judged_by_the_data() {
    let stored = example();
    // 0.82 is published, and found.
    assert_eq!(finding(&stored, "msgp-6"), Finding::Same);
    assert_eq!(finding(&stored, "msgp-16384"), Finding::Opposite);
    assert_eq!(finding(&stored, "connp-l-16384"), Finding::Same);
    // At 6 connections the intervals overlap.
    assert_eq!(finding(&stored, "connp-l-up"), Finding::Mixed);
    assert_eq!(finding(&stored, "connp-t-steady"), Finding::NotMeasured);
    // 0.52 is published, 0.50 found: within a tenth.
    assert_eq!(finding(&stored, "up-falls"), Finding::Same);
    let mut few = stored;
    few.rows.retain(|r| r.repeat < 3);
    assert_eq!(finding(&few, "msgp-6"), Finding::TooFew);
}

/// That MsgP has 0.82 times UP's throughput is published.
#[test]
fn a_difference_of_another_size_says_so() {
    let table = [
        (3280.0, "same direction and size"),
        (3500.0, "same direction and size"),
        (1400.0, "same direction, larger"),
        (3720.0, "same direction, smaller"),
        (4020.0, "inconclusive"),
        (4800.0, "opposite"),
    ];
    for (msgp, words) in table {
        let stored = stored(&[
            ("UP", "up", [4000.0, 4000.0, 4000.0]),
            ("MsgP", "msgp", [msgp, 4000.0, 4000.0]),
        ]);
        assert_eq!(finding(&stored, "msgp-6").words(), words, "{msgp}");
    }
    // No ratio is published of this one.
    let stored = stored(&[
        ("MsgP", "msgp", [1000.0; 3]),
        ("ConnP-L(128)", "connp-l:128", [4000.0; 3]),
    ]);
    assert_eq!(finding(&stored, "connp-l-msgp").words(), "same direction");
}

#[test]
fn that_no_difference_was_seen_is_not_yet_equality() {
    let steady = |at_16384: f64, spread: f64| {
        let mut stored = stored(&[("ConnP-T(4)", "connp-t:4", [3000.0, 3000.0, at_16384])]);
        let plan = PLAN.replace("ConnP-L(128)", "ConnP-T(4)");
        stored.plans = vec![Plan::parse("steady.toml", &plan).unwrap()];
        for row in stored.rows.iter_mut().filter(|r| r.x == 16384) {
            let sign = if row.repeat % 2 == 0 { 1.0 } else { -1.0 };
            if let Outcome::Measured(m) = &mut row.outcome {
                m.raw.goodput_mbps *= 1.0 + sign * spread;
            }
        }
        finding(&stored, "connp-t-steady")
    };
    assert_eq!(steady(3020.0, 0.0), Finding::Same);
    assert_eq!(steady(3020.0, 0.2), Finding::Inconclusive);
    assert_eq!(steady(2000.0, 0.0), Finding::Opposite);
    // A difference that is seen and is less than a tenth is none, one of about a tenth is neither.
    assert_eq!(steady(2900.0, 0.0), Finding::Same);
    assert_eq!(steady(2700.0, 0.01), Finding::Inconclusive);
}

#[test]
fn claims_of_more_cores_are_not_judged() {
    let stored = example();
    assert_eq!(stored.header.host.cores, 2);
    for claim in ["msgp-6", "msgp-16384", "connp-l-up", "connp-t-steady"] {
        let found = finding_here(&stored, claim);
        let expected = match claim {
            "connp-t-steady" => Finding::NotMeasured,
            _ => Finding::NeedsCores(4),
        };
        assert_eq!(found, expected, "{claim}");
    }
    // One thread needs one core, whatever machine the figure is of.
    assert_eq!(finding_here(&stored, "up-falls"), Finding::Same);
    let rendered = render(&stored);
    for text in [&rendered.markdown, &rendered.html] {
        assert!(text.contains("needs 4 cores"), "{text}");
    }
    let told = rendered.markdown.lines().filter(|l| l.starts_with("- **"));
    let told: Vec<&str> = told.filter(|l| l.contains("Published: ")).collect();
    let judged = |l: &&&str| !l.starts_with("- **needs 4 cores") && !l.contains("not measured");
    let judged: Vec<&&str> = told.iter().filter(judged).collect();
    // Of one thread, or of what a byte costs.
    let any = |l: &&&str| l.contains("of up falls") || l.contains("a byte costs");
    assert_eq!(judged.len(), 3, "{told:#?}");
    assert!(judged.iter().all(any), "{judged:#?}");
    // What was measured is told all the same.
    assert!(
        rendered
            .markdown
            .contains("- here at 6: 0.82 times (0.82–0.82), 5 pairs\n")
    );
}

/// [`example`] with so many times `up`'s processor time for each byte, and a peer that takes as much
/// again as `up` does.
fn costing(msgp: [f64; 3], connp_l: [f64; 3]) -> Stored {
    let mut stored = example();
    for row in &mut stored.rows {
        let place = [6, 192, 16384].iter().position(|x| *x == row.x).unwrap();
        let times = match &*row.org {
            "msgp" => msgp[place],
            "connp-l:128" => connp_l[place],
            _ => 1.0,
        };
        // Each run a little dearer, so that intervals have a width.
        let times = times * (1.0 + f64::from(row.repeat) / 1000.0);
        if let Outcome::Measured(m) = &mut row.outcome {
            let one = m.raw.segments * 100.0;
            m.raw.peer_ns = Some(one as u64);
            m.raw.cpu_ns = (one + one * times) as u64;
        }
    }
    stored
}

/// The study's MsgP needs 4/0.82 and 4/1.62 times the processor time of its UP, its ConnP-L 4/2.26.
#[test]
fn claims_of_more_cores_are_judged_by_processor_time() {
    let cost = |stored: &Stored, claim: &str| {
        let results = analysis::results(stored);
        let found = results[0].claims.iter().find(|c| c.claim.id == claim);
        found.unwrap().cost.as_ref().map(|c| c.finding)
    };
    let found = costing([5.2, 3.0, 4.1], [2.4, 1.6, 1.66]);
    assert_eq!(cost(&found, "msgp-6"), Some(Finding::Same));
    assert_eq!(cost(&found, "msgp-16384"), Some(Finding::Larger));
    assert_eq!(cost(&found, "connp-l-16384"), Some(Finding::Same));
    // More than UP on four cores costs less than four times as much.
    assert_eq!(cost(&found, "connp-l-up"), Some(Finding::Direction));
    // Neither is relative to one thread.
    assert_eq!(cost(&found, "connp-l-msgp"), None);
    assert_eq!(cost(&found, "up-falls"), None);
    let other = costing([1.5, 3.0, 0.8], [4.5, 1.6, 0.9]);
    assert_eq!(cost(&other, "msgp-6"), Some(Finding::Smaller));
    assert_eq!(cost(&other, "msgp-16384"), Some(Finding::Opposite));
    assert_eq!(cost(&other, "connp-l-up"), Some(Finding::Mixed));
    let rendered = render(&found);
    for part in [
        "  - **same direction and size** in processor time per byte without the ideal peer's. \
         Published: at most 4.88 times.\n    - here at 6: 5.20 times",
        "Published: at most 1.77 times.",
        "Published: below 4 times.",
    ] {
        assert!(
            rendered.markdown.contains(part),
            "{part}: {}",
            rendered.markdown
        );
    }
    assert!(
        rendered
            .html
            .contains("at most 2.47 times, here 4.10 times")
    );
    // With the cores, the throughput itself is judged.
    let mut able = found.clone();
    able.header.host.cores = 4;
    assert_eq!(cost(&able, "msgp-6"), None);
    // Where links are the limit, cores idle.
    let mut paced = found.clone();
    let plan = format!("{PLAN}\n[settings]\nlink-gbps = 1.0\n");
    paced.plans = vec![Plan::parse("small.toml", &plan).unwrap()];
    assert_eq!(cost(&paced, "msgp-6"), None);
    // The peer's time was not recorded.
    let mut unknown = found;
    for row in &mut unknown.rows {
        if let Outcome::Measured(m) = &mut row.outcome {
            m.raw.peer_ns = None;
        }
    }
    assert_eq!(cost(&unknown, "msgp-6"), None);
}

/// Of five runs of each configuration two more with far cores, when MsgP is half as fast.
fn with_far_cores() -> Stored {
    let mut stored = example();
    let near = stored.rows.clone();
    for row in &mut stored.rows {
        if let Outcome::Measured(m) = &mut row.outcome {
            m.raw.core_round_trip_ns = Some(60.0);
        }
    }
    for mut row in near {
        row.repeat += 5;
        let slower = if row.series == "MsgP" { 0.5 } else { 1.0 };
        if let Outcome::Measured(m) = &mut row.outcome {
            m.raw.core_round_trip_ns = Some(300.0);
            m.raw.goodput_mbps *= slower;
            m.raw.disturbances = vec!["slow core-to-core transfers (300 ns)".into()];
        }
        stored.rows.push(row);
    }
    stored
}

#[test]
fn near_and_far_cores_are_not_taken_together() {
    let stored = with_far_cores();
    let results = analysis::results(&stored);
    let told: Vec<_> = results
        .iter()
        .map(|r| (r.cores, r.measured, r.disturbed))
        .collect();
    assert_eq!(told, [(Cores::Near, 45, 0), (Cores::Far, 45, 0)]);
    let median = |i: usize, curve: usize| {
        let p: &analysis::Point = &results[i].curves[curve].points[0];
        p.spread(crate::metric::Metric::Goodput).unwrap().median
    };
    assert_eq!((median(0, 1), median(1, 1)), (3280.0 * 1.02, 1640.0 * 1.02));
    assert_eq!(median(0, 0), median(1, 0));
    let rendered = render(&stored);
    let all = [
        (&rendered.markdown, "two, cores near each other"),
        (&rendered.markdown, "two, cores far apart"),
        (&rendered.markdown, "| small | 45 | 45 | 9 of 9 | 9 of 9 |"),
        (
            &rendered.html,
            "<th>here, cores near</th><th>here, cores far</th>",
        ),
        (
            &rendered.html,
            "here 0.82 times (0.82–0.82), with far cores 0.41 times (0.41–0.41).",
        ),
        (
            &rendered.html,
            "45 runs with near cores; 45 runs with far cores.",
        ),
        (&rendered.html, "Of 9 points 9 have the 5 runs"),
    ];
    for (text, part) in all {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(rendered.html.contains("id=\"small-far\""));
    for word in [",near", ",far"] {
        let lines = rendered.csv.lines().filter(|l| l.ends_with(word));
        assert_eq!(lines.count(), 18, "{word}");
    }
    // One run with far cores is told, and claims nothing.
    let mut stored = stored;
    stored
        .rows
        .retain(|r| r.repeat < 5 || (r.repeat == 5 && r.x == 6));
    let results = analysis::results(&stored);
    assert_eq!((results.len(), results[1].measured), (2, 3));
    assert!(results[1].claims.is_empty());
    assert_eq!(choice::choices(&results).len(), 3);
    let missing = results[1].curves[0].points[1].missing.as_deref();
    assert_eq!(missing, Some("no run with cores far apart"));
    assert_eq!((results[0].points(), results[1].points()), ((9, 0), (9, 9)));
    let lacks = "3 runs with far cores, no point with 5.";
    let rendered = render(&stored);
    for text in [&rendered.markdown, &rendered.html] {
        assert!(text.contains(lacks), "{text}");
    }
}

/// What a machine is whose cores are never near is no accident: its claims are judged, and its runs
/// are the answer.
#[test]
fn where_cores_are_always_far_there_is_an_answer() {
    let mut stored = with_far_cores();
    stored.rows.retain(|r| r.repeat >= 5);
    let results = analysis::results(&stored);
    assert_eq!((results.len(), results[0].cores), (1, Cores::Far));
    assert_eq!(finding(&stored, "msgp-16384"), Finding::Opposite);
    let all = results[0].plan.published.unwrap().claims.len();
    assert_eq!(results[0].claims.len(), all);
    let rendered = render(&stored);
    assert!(rendered.html.contains("The cores were far apart in all"));
    assert!(rendered.html.contains("45 runs with far cores."));
    assert!(
        rendered.answer.contains("2.26 × up (sure)"),
        "{}",
        rendered.answer
    );
}

/// What can't be run here is no lack.
#[test]
fn points_that_lack_runs_are_counted() {
    let mut stored = example();
    stored
        .rows
        .retain(|r| r.org != "msgp" && (r.x != 6 || r.repeat < 4));
    let mut gone = row("small", "MsgP", "msgp", 6, 0, 1.0);
    gone.outcome = Outcome::Unavailable("no such device".into());
    stored.rows.push(gone);
    // up and connp-l:128 at 6 have four runs, MsgP at 192 and 16,384 none.
    assert_eq!(analysis::results(&stored)[0].points(), (8, 4));
}

/// A report that tells of more than the record is left as it is.
#[test]
fn a_report_is_not_replaced_by_a_lesser_one() {
    let t = tempfile::tempdir().unwrap();
    let whole = with_far_cores();
    write(t.path(), &whole, false).unwrap();
    let read = |name| std::fs::read_to_string(t.path().join(name)).unwrap();
    let before = [HTML, MARKDOWN, CSV].map(read);
    let mut less = whole.clone();
    less.rows.pop();
    let error = write(t.path(), &less, false).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let line = error.to_string();
    assert!(
        line.contains("report.csv") && line.contains("90 runs"),
        "{line}"
    );
    assert!(line.contains("of 89"), "{line}");
    assert!(line.contains("--replace"), "{line}");
    less.rows.clear();
    write(t.path(), &less, false).unwrap_err();
    assert_eq!([HTML, MARKDOWN, CSV].map(read), before);
    // Where that is what is wanted, it is done.
    less.rows = whole.rows[1..].to_vec();
    write(t.path(), &less, true).unwrap();
    write(t.path(), &less, false).unwrap();
    // As many again, and a report of before there was a field for the distance of cores.
    write(t.path(), &whole, false).unwrap();
    let old: String = read(CSV)
        .lines()
        .map(|l| format!("{}\n", l.rsplit_once(',').unwrap().0))
        .collect();
    std::fs::write(t.path().join(CSV), old).unwrap();
    write(t.path(), &example(), false).unwrap();
}

#[test]
fn the_best_is_named_with_those_that_equal_it() {
    let results = analysis::results(&example());
    let choices = choice::choices(&results);
    let at = |x: u64| choices.iter().find(|c| c.x == x).unwrap();
    assert_eq!(at(6).best, "connp-l:128");
    assert_eq!(at(6).equals.len(), 1, "{:?}", at(6));
    assert_eq!(at(6).equals[0].0, "up");
    assert_eq!(at(6).sure(), Some(choice::Sure::Tie));
    assert_eq!(at(192).best, "connp-l:128");
    assert_eq!(at(192).sure(), Some(choice::Sure::Yes));
    assert_eq!(at(192).behind.len(), 2);
    let text = render(&example()).markdown;
    let said = "connp-l:128 4.09 Gb/s, as up (tie); tied: up 1.00 ×";
    assert!(text.contains(said), "{text}");
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let html = render(&example()).html;
    for part in [
        "Throughput &lt;of&gt; two",
        "is fastest, 4.61 Gb/s",
        "Published for 4 cores; this machine has 2.",
        "3.31*",
        "<svg viewBox",
        "Relative to up",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(html.contains(part), "{part} is missing");
    }
    for part in [
        "http://", "https://", "<script", "<link", "<img", "@import", "url(",
    ] {
        assert!(!html.contains(part), "{part} is there");
    }
    assert!(!html.contains("<of>"));
    // Each picture has its alternative text, under a name of its own.
    let pictures = html.matches("role=\"img\"").count();
    assert_eq!(pictures, 2);
    assert_eq!(html.matches("<desc id=").count(), pictures);
    let mut ids: Vec<&str> = html
        .split(" id=\"")
        .skip(1)
        .filter_map(|s| s.split('"').next())
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id stands twice");
}

#[test]
fn what_is_missing_or_disturbed_says_so() {
    let mut stored = example();
    stored.rows.retain(|r| r.org != "msgp");
    let mut gone = row("small", "MsgP", "msgp", 6, 0, 1.0);
    gone.outcome = Outcome::Unavailable("no such <device>".into());
    stored.rows.push(gone);
    for (row, percent) in stored.rows.iter_mut().zip([5, 12]) {
        if let Outcome::Measured(m) = &mut row.outcome {
            let sign = format!("the hypervisor stole {percent} % of the processor time");
            m.raw.disturbances = vec![sign];
        }
    }
    let rendered = render(&stored);
    assert!(rendered.html.contains("no such &lt;device&gt;"));
    assert!(rendered.html.contains("not run yet"));
    assert!(rendered.html.contains(
        "2 of 30 runs were disturbed: the hypervisor stole 5–12 % of the processor time (2)."
    ));
    assert!(rendered.markdown.contains("†"));
    stored.rows.clear();
    let empty = render(&stored);
    assert!(empty.html.contains("Not measured here yet"));
    assert!(empty.markdown.contains("not measured here"));
    assert_eq!(empty.csv.lines().count(), 1);
}

#[test]
fn csv_has_a_line_for_each_point_and_metric() {
    let csv = render(&example()).csv;
    assert_eq!(csv.lines().count(), 1 + 2 * 9);
    let width = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|l| l.split(',').count() == width), "{csv}");
    assert!(
        csv.contains("small,UP,up,6,goodput,Mb/s,5,4080,4000,4160,0.9375,"),
        "{csv}"
    );
    assert!(
        csv.lines()
            .any(|l| l.starts_with("small,MsgP,msgp,16384,goodput") && l.ends_with(",3403,"))
    );
}

#[test]
fn markdown_has_even_tables() {
    let text = render(&example()).markdown;
    let tables: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
    assert!(tables.len() >= 8, "{text}");
    assert!(tables.iter().all(|l| l.matches('|').count() == 5), "{text}");
    assert!(text.contains("Throughput \\<of> two"), "{text}");
}

/// With three runs, no rule holds, but all pairs may say the same; near runs and far ones of the two
/// that decide are counted.
#[test]
fn how_sure_the_answer_is_and_what_it_rests_on() {
    let mut few = example();
    few.rows.retain(|r| r.repeat < 3);
    let found = choice::choices(&analysis::results(&few));
    let at = |x: u64| found.iter().find(|c| c.x == x).unwrap();
    assert_eq!(at(192).sure(), Some(choice::Sure::Likely(3)));
    // All three pairs say so here as well, but by a quarter of a hundredth.
    assert_eq!(at(6).sure(), Some(choice::Sure::Open(3)));
    let mut far = with_far_cores();
    if let Outcome::Measured(m) = &mut far.rows[0].outcome {
        m.raw.disturbances = vec!["the hypervisor stole 5 %".into()];
    }
    let found = choice::choices(&analysis::results(&far));
    let first = found.first().unwrap();
    assert_eq!((first.runs, first.disturbed, first.far), (10, 1, 10));
    let answer = render(&far).answer;
    assert!(
        answer.contains("6 connections  connp-l:128 4.09 Gb/s, as up (tie)"),
        "{answer}"
    );
    assert!(
        answer.contains("16,384 connections  connp-l:128 4.61 Gb/s, 2.26 × up (sure)"),
        "{answer}"
    );
    assert!(
        answer.contains("1 of the 30 runs that decide this was disturbed"),
        "{answer}"
    );
    assert!(
        answer.contains("9 of 9 points have the 5 near runs of a verdict"),
        "{answer}"
    );
    assert!(answer.lines().all(|l| l.chars().count() <= 100), "{answer}");
}

/// The second is surely behind the best, and the third may be as fast, as its runs differ.
#[test]
fn who_is_tied_with_somebody_leads_nobody() {
    let mut three = stored(&[
        ("UP", "up", [4000.0; 3]),
        ("MsgP", "msgp", [3000.0; 3]),
        ("ConnP-L(128)", "connp-l:128", [2000.0; 3]),
    ]);
    let wild = three.rows.iter_mut().filter(|r| r.org == "connp-l:128");
    for row in wild {
        let Outcome::Measured(m) = &mut row.outcome else {
            panic!("measured");
        };
        m.raw.goodput_mbps *= [0.5, 2.5, 1.0, 2.5, 0.5][row.repeat as usize];
    }
    let found = choice::choices(&analysis::results(&three));
    let choice = found.first().unwrap();
    assert_eq!(choice.best, "up");
    assert_eq!(choice.behind[0].0, "msgp");
    assert_eq!(choice.sure(), Some(choice::Sure::Tie));
    assert_eq!(choice.margin().unwrap(), "as connp-l:128");
}

/// A plan that no load is chosen by ends with its values.
#[test]
fn without_a_choice_the_answer_is_the_values() {
    let mut stored = example();
    let text = PLAN.replace("advice = \"sending\"", "");
    stored.plans = vec![Plan::parse("small.toml", &text).unwrap()];
    let answer = render(&stored).answer;
    assert!(
        answer.starts_with("Throughput <of> two: goodput, Gb/s\n"),
        "{answer}"
    );
    let msgp = "  msgp                 3.35 at 6 connections, 1.02 at 16,384 connections\n";
    assert!(answer.contains(msgp), "{answer}");
}

/// Rendering is a function of the folder: the same page from the same rows.
#[test]
fn rendering_again_gives_the_same() {
    let (a, b) = (render(&example()), render(&example()));
    assert_eq!(a.html, b.html);
    assert_eq!(a.markdown, b.markdown);
}

#[test]
fn without_claims_each_curve_is_held_against_one() {
    let mut stored = example();
    assert!(words::against(&analysis::results(&stored)[0]).is_empty());
    let text = PLAN
        .replace("published = \"throughput\"", "")
        .replace(", as = \"UP\"", "")
        .replace(", as = \"MsgP\"", "")
        .replace(", as = \"ConnP-L(128)\"", "");
    stored.plans = vec![Plan::parse("small.toml", &text).unwrap()];
    let lines = words::against(&analysis::results(&stored)[0]);
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("goodput without the peer's time of msgp vs up: 0.82 times"));
    assert!(
        lines[0].contains("at 6 connections, less; 1.25"),
        "{lines:?}"
    );
    assert!(lines[0].contains("at 192 connections, more"), "{lines:?}");
    assert!(lines[1].contains("at 6 connections, no significant difference"));
    let markdown = render(&stored).markdown;
    assert!(markdown.contains("- goodput without the peer's time of msgp vs up"));
    assert!(markdown.contains("throughput without the time of the ideal peer"));
    // Where one of the two does not tell what its peer takes, both count with it.
    let tells = |r: &&mut Row| r.org == "msgp";
    for row in stored.rows.iter_mut().filter(tells) {
        if let Outcome::Measured(m) = &mut row.outcome {
            m.raw.peer_ns = None;
        }
    }
    let lines = words::against(&analysis::results(&stored)[0]);
    assert!(lines[0].starts_with("goodput of msgp vs up: 0.82 times"));
}

use super::*;
use perimeter_measure::{
    live::{Glance, LockRates, News},
    workload::{Configuration, Locks, Sample},
};
use ratatui::{Terminal, backend::TestBackend};
use std::time::Duration;

const SIZES: [(u16, u16); 4] = [(120, 40), (80, 24), (40, 12), (1, 1)];

fn configuration(name: &str) -> Configuration {
    Configuration {
        organization: perimeter_measure::backends::parse(name).unwrap(),
        connections: 192,
        threads: 2,
    }
}

fn figures(goodput: f64, contended: f64) -> Figures {
    Figures {
        goodput_mbps: Some(goodput),
        rounds: None,
        cores: Some(1.5),
        ns_per_segment: Some(321.0),
        locks: vec![LockRates {
            class: "group".into(),
            taken: 2.5e6,
            contended: 2.5e6 * contended,
        }],
        occupancy: Some(0.87),
    }
}

fn seen(figures: Figures) -> News {
    News::Seen(Glance {
        span: Duration::from_millis(250),
        counts: true,
        cost: Duration::from_micros(500),
        figures,
    })
}

/// One organization complete, one under way, one to come.
fn board() -> Board {
    let mut board = Board::default();
    let names = ["msgp", "connp-l:8", "pef:horizontal"];
    board.hear(News::Planned(names.map(configuration).to_vec(), 3));
    board.hear(started("msgp", 1));
    board.hear(seen(figures(1000.0, 0.5)));
    board.hear(News::Finished(Box::new(Sample {
        elapsed: Duration::from_secs(1),
        goodput: 987e6 / 8.0,
        cpu_ns: 1_900_000_000,
        segments: 1e6,
        locks: vec![Locks {
            class: "conn_hashtable".into(),
            acquisitions: 1000,
            contended: 420,
            ..Locks::default()
        }],
        ..Sample::default()
    })));
    board.hear(started("connp-l:8", 2));
    board.hear(News::Phase(Phase::Measure, Duration::from_secs(5)));
    for n in 0..300 {
        board.hear(seen(figures(f64::from(4000 + n), 0.0123)));
    }
    board
}

fn started(name: &str, number: usize) -> News {
    News::Started {
        number,
        of: 9,
        configuration: configuration(name),
        left: Duration::from_secs(40),
    }
}

fn look() -> Look {
    Look {
        about: "mem, send, nic".into(),
        rounds: None,
        colour: true,
        stopping: false,
    }
}

/// The screen's lines.
fn drawn(
    board: &Board,
    look: &Look,
    (width, height): (u16, u16),
) -> (Vec<String>, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let at = Instant::now();
    terminal.draw(|frame| draw(frame, board, look, at)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    ((0..height).map(line).collect(), terminal)
}

/// The line that contains all of `parts`.
fn line<'a>(lines: &'a [String], parts: &[&str]) -> &'a str {
    let found = lines.iter().find(|l| parts.iter().all(|p| l.contains(p)));
    found.unwrap_or_else(|| panic!("no line with {parts:?} in\n{}", lines.join("\n")))
}

#[test]
fn a_roomy_terminal_has_everything() {
    let (lines, _) = drawn(&board(), &look(), SIZES[0]);
    line(&lines, &["mem, send, nic", "run 2 of 9"]);
    line(
        &lines,
        &[
            "▲ connp-l:8 × 192 connections, 2 threads: measuring",
            "of 5.0 s",
        ],
    );
    line(&lines, &["goodput 4299 Mb/s", "top 4299", "CPU 1.50 cores"]);
    line(
        &lines,
        &["contended 1.23 % of group", "within 0.87 threads"],
    );
    line(&lines, &["locks group 1.23 % of 2.5M/s"]);
    // What ended stands there with its result, not with what was seen in between.
    let ended: Vec<&str> = line(&lines, &["msgp "]).split_whitespace().collect();
    let expected = [
        "■",
        "msgp",
        "192",
        "1/3",
        "987",
        "1.90",
        "1900",
        "42.00",
        "conn_hashtable",
        "0.87",
        "conn_hashtable",
    ];
    assert_eq!(ended, expected);
    line(
        &lines,
        &[
            "▶▲ connp-l:8",
            "0/3",
            "4299",
            "321",
            "1.23",
            "0.87",
            "group",
        ],
    );
    line(&lines, &["◆ pef:horizontal", "0/3", "–", "stack"]);
    line(
        &lines,
        &["q ends the runs", "looking takes 0.20 % of a thread"],
    );
    assert!(lines.iter().filter(|l| l.contains('█')).count() > 4);
}

#[test]
fn smaller_terminals_leave_out_what_matters_least() {
    let (lines, _) = drawn(&board(), &look(), SIZES[1]);
    line(&lines, &["goodput 4299 Mb/s", "CPU 1.50 cores"]);
    line(
        &lines,
        &["▶▲ connp-l:8", "192", "4299", "321", "1.23", "0.87"],
    );
    line(
        &lines,
        &[
            "organization",
            "conns",
            "Mb/s",
            "ns/seg",
            "contd %",
            "within",
        ],
    );
    line(&lines, &["q ends the runs"]);

    let (lines, _) = drawn(&board(), &look(), SIZES[2]);
    line(&lines, &["goodput", "4299", "█"]);
    line(&lines, &["contended", "1.23"]);
    line(&lines, &["within", "0.87"]);
    line(&lines, &["▶▲ connp-l:8", "192", "4299"]);
    assert!(lines.iter().all(|l| !l.contains("ns/seg")), "{lines:?}");
}

/// Every size is drawn, whatever there is to show.
#[test]
fn no_size_is_too_small() {
    let stopping = Look {
        stopping: true,
        ..look()
    };
    for board in [Board::default(), board()] {
        for width in (0..=130).step_by(26).chain([1, 2, 3]) {
            for height in (0..=44).step_by(8).chain([1, 2, 3, 5, 7, 22]) {
                drawn(&board, &stopping, (width, height));
            }
        }
        for size in SIZES {
            drawn(&board, &look(), size);
        }
    }
}

#[test]
fn the_running_one_is_in_sight_among_many() {
    let mut board = Board::default();
    let grid: Vec<Configuration> = (1..=60)
        .map(|n| configuration(&format!("connp-l:{n}")))
        .collect();
    board.hear(News::Planned(grid, 1));
    for (n, name) in [(1, "connp-l:1"), (40, "connp-l:40"), (60, "connp-l:60")] {
        board.hear(started(name, n));
        for size in &SIZES[..3] {
            let (lines, _) = drawn(&board, &look(), *size);
            line(&lines, &["▶", &format!("{name} ")]);
        }
    }
}

#[test]
fn no_colour_is_no_colour() {
    for colour in [true, false] {
        let look = Look { colour, ..look() };
        let (_, terminal) = drawn(&board(), &look, SIZES[0]);
        let cells = terminal.backend().buffer().content();
        let coloured = cells
            .iter()
            .filter(|c| c.fg != Color::Reset || c.bg != Color::Reset);
        assert_eq!(coloured.count() > 0, colour);
    }
}

/// Who asked to end sees that it was heard.
#[test]
fn the_end_is_announced() {
    let look = Look {
        stopping: true,
        ..look()
    };
    let (lines, _) = drawn(&board(), &look, SIZES[1]);
    line(&lines, &["run 2 of 9", "ending"]);
    line(&lines, &["q again leaves at once"]);
}

#[test]
fn rounds_take_the_place_of_goodput() {
    let look = Look {
        rounds: Some("connections"),
        ..look()
    };
    let mut board = board();
    board.hear(seen(Figures {
        rounds: Some(4321.0),
        ..figures(1.0, 0.0)
    }));
    let (lines, _) = drawn(&board, &look, SIZES[0]);
    line(&lines, &["connections 4321 a second"]);
    line(&lines, &["▶▲ connp-l:8", "4321"]);
    assert!(
        !lines
            .iter()
            .any(|l| l.contains("Mb/s") || l.contains("goodput"))
    );
    // Where nobody looks any class of locks is as good as another.
    line(&lines, &["contended 0.00 %"]);
}

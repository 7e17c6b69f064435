use super::*;
use crate::{
    Error,
    bench::{bench, report::Build},
    organizations::Organization,
    workload::{Configuration, Device, Locks, Phase, Sample, Settings, Times},
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

fn settings(organizations: &[&str], seconds: f64) -> Settings {
    let parsed = organizations
        .iter()
        .map(|o| crate::backends::parse(o).unwrap());
    Settings {
        organizations: parsed.collect(),
        connections: vec![6],
        threads: 2,
        nics: 2,
        seconds: Duration::from_secs_f64(seconds),
        repeat: 2,
        ..Settings::default()
    }
}

fn configuration(organization: &str) -> Configuration {
    Configuration {
        organization: crate::backends::parse(organization).unwrap(),
        connections: 6,
        threads: 2,
    }
}

fn locks(class: &str, acquisitions: u64, contended: u64, hold_ns: u64) -> Locks {
    Locks {
        class: class.into(),
        acquisitions,
        contended,
        hold_ns,
        ..Locks::default()
    }
}

/// Two threads for half a second: 100 MB, 1.5 cores, a group lock held for 0.4 s.
fn seen() -> Seen {
    Seen {
        goodput: Some(200e6),
        rounds: Some(7.0),
        times: Some(Times {
            stack: Some(600_000_000),
            ..Times::default()
        }),
        window_ns: 500_000_000,
        protocol_ns: 350_000_000,
        locks: vec![
            locks("tx_ring", 900_000, 90, 0),
            locks("group", 100_000, 2_500, 400_000_000),
        ],
        elsewhere: false,
    }
}

#[test]
fn a_known_feed_gives_known_figures() {
    let half = 5e8;
    let perimeter = Perimeter::of(&configuration("connp-l:8").organization);
    let g = Figures::seen(&seen(), perimeter, 750_000_000, half);
    let near = |v: Option<f64>, wanted: f64| assert!((v.unwrap() - wanted).abs() < 1e-6 * wanted);
    near(g.goodput_mbps, 1600.0);
    near(g.rounds, 7.0);
    near(g.cores, 1.5);
    near(g.ns_per_segment, 1.5e9 / (200e6 / 1448.0));
    near(g.occupancy, 0.8);
    let hottest = g.hottest().unwrap();
    assert_eq!((&*hottest.class, hottest.taken), ("group", 200_000.0));
    near(Some(hottest.share()), 0.025);
    assert_eq!(g.locks[0].class, "group", "the most contended first");

    // Work of a program of its own: its processor time is not this process's.
    let elsewhere = Seen {
        elsewhere: true,
        goodput: None,
        locks: Vec::new(),
        ..seen()
    };
    let g = Figures::seen(&elsewhere, None, 750_000_000, half);
    assert_eq!(
        (g.goodput_mbps, g.cores, g.ns_per_segment),
        (None, None, None)
    );
    assert_eq!((g.occupancy, g.hottest()), (None, None));
    // Nothing flows: no figure for a segment, and nothing is divided by zero.
    let idle = Seen {
        goodput: Some(0.0),
        ..Seen::default()
    };
    let g = Figures::seen(&idle, perimeter, 0, 0.0);
    assert_eq!((g.goodput_mbps, g.ns_per_segment), (Some(0.0), None));
}

#[test]
fn each_organization_has_its_perimeter() {
    let table = [
        ("up", Some("stack"), 1.2),
        ("up:shared", Some("group"), 0.8),
        ("connp-l:8", Some("group"), 0.8),
        ("msgp", Some("conn_hashtable"), 0.6),
        ("msgp-modern", Some("connection"), 0.3),
        ("connp-t:2", Some("protocol thread"), 0.7),
        ("connp-t:2:wait=spin:fold", Some("stack"), 1.2),
        ("squeue:2", Some("stack"), 1.2),
        ("streams", Some("stack"), 1.2),
        ("pef:horizontal", Some("stack"), 1.2),
        ("linux", None, 0.0),
        ("smoltcp", None, 0.0),
    ];
    let mut seen = seen();
    seen.locks.extend([
        locks("conn_hashtable", 1, 0, 300_000_000),
        locks("connection", 1, 0, 150_000_000),
    ]);
    for (organization, name, occupancy) in table {
        let perimeter = Perimeter::of(&configuration(organization).organization);
        assert_eq!(perimeter.map(Perimeter::name), name, "{organization}");
        if let Some(p) = perimeter {
            let within = p.occupancy(&seen).unwrap();
            assert!(
                (within - occupancy).abs() < 1e-9,
                "{organization}: {within}"
            );
        }
    }
    for spec in perimeter::OrgSpec::all() {
        let organization = Organization::Ours(spec);
        assert!(Perimeter::of(&organization).is_some(), "{organization}");
    }
}

#[test]
fn the_board_keeps_results_apart_from_what_was_seen() {
    let mut board = Board::default();
    let grid = ["up", "connp-l:8"].map(configuration);
    board.hear(News::Planned(grid.to_vec(), 2));
    let mut run = |number: usize, organization: &str, goodput: f64, occupancy: [f64; 3]| {
        board.hear(News::Started {
            number,
            of: 4,
            configuration: configuration(organization),
            left: Duration::ZERO,
        });
        board.hear(News::Phase(Phase::Warm, Duration::ZERO));
        for (i, occupancy) in occupancy.into_iter().enumerate() {
            board.hear(News::Seen(Glance {
                span: Duration::from_secs(i as u64 + 1),
                // The first is of the warm-up.
                counts: i > 0,
                cost: Duration::ZERO,
                figures: Figures {
                    occupancy: Some(occupancy),
                    goodput_mbps: Some(1.0),
                    ..Figures::default()
                },
            }));
        }
        let now = board.now.as_ref().unwrap();
        assert_eq!(
            board.figures(now.row).goodput_mbps,
            Some(1.0),
            "as it is now"
        );
        board.hear(News::Finished(Box::new(Sample {
            elapsed: Duration::from_secs(2),
            goodput: goodput * 1e6 / 8.0,
            cpu_ns: 3_000_000_000,
            segments: 1e6,
            rounds: 500,
            locks: vec![locks("group", 1000, 100, 0), locks("leaf", 10, 9, 0)],
            ..Sample::default()
        })));
    };
    run(1, "up", 100.0, [9.0, 0.2, 0.5]);
    run(2, "connp-l:8", 500.0, [9.0, 0.1, 0.1]);
    run(3, "up", 300.0, [9.0, 0.6, 0.9]);
    let up = board.figures(0);
    assert_eq!((up.goodput_mbps, up.rounds), (Some(200.0), Some(250.0)));
    assert_eq!((up.cores, up.ns_per_segment), (Some(1.5), Some(3000.0)));
    // By time: (0.2 × 2 + 0.5 × 3) / 5 and likewise; then the median of the two.
    assert!((up.occupancy.unwrap() - (0.38 + 0.78) / 2.0).abs() < 1e-9);
    let hottest = up.hottest().unwrap();
    assert_eq!((&*hottest.class, hottest.share()), ("group", 0.1));
    assert_eq!((board.rows[0].runs.len(), board.rows[1].runs.len()), (2, 1));
    // Three runs of three glances, told apart.
    assert_eq!(board.history.len(), 3 * 3 + 2);
    assert_eq!(board.history.iter().filter(|h| h.is_none()).count(), 2);
}

/// A run of so many ms: what was seen of it while it was measured, and its result.
fn watched(settings: &Settings, ms: u64) -> (Vec<Glance>, Sample) {
    let configuration = crate::bench::grid::grid(settings).pop().unwrap();
    let (feed, news) = Feed::new();
    let mut backend = crate::backends::backend_for(settings, &configuration);
    let one = std::slice::from_ref(&configuration);
    backend.check(settings, one).unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    let mut session = backend.prepare(settings, &configuration, deadline).unwrap();
    session.watch(Watch::begin(&feed, &configuration).unwrap());
    session.warm_up(Duration::from_millis(200)).unwrap();
    let sample = session.measure(Duration::from_millis(ms)).unwrap();
    drop(feed);
    let news: Vec<News> = news.iter().collect();
    assert!(matches!(news[0], News::Phase(Phase::Warm, _)), "{news:?}");
    let seen = news.into_iter().filter_map(|n| match n {
        News::Seen(g) if g.counts => Some(g),
        _ => None,
    });
    (seen.collect(), sample)
}

/// Whether what was seen, by its mean, is like the result: others may have had the machine for a
/// part of the time.
fn agree(organization: &str, seen: &[Glance], sample: &Sample) -> bool {
    // A thread that gave no answer in time leaves a gap, and no number.
    let mean = |of: fn(&Figures) -> Option<f64>| {
        let sum: Option<f64> = seen.iter().map(|g| of(&g.figures)).sum();
        sum.map_or(f64::NAN, |sum| sum / seen.len() as f64)
    };
    let like = |seen: f64, measured: f64| (0.5..2.0).contains(&(seen / measured));
    let elapsed = sample.elapsed.as_nanos() as f64;
    let held = |class: &str| {
        let lock = sample.locks.iter().find(|l| l.class == class);
        lock.map_or(0.0, |l| l.hold_ns as f64 / elapsed)
    };
    let within = mean(|g| g.occupancy);
    let expected = match organization {
        "connp-l:8" => held("group"),
        "msgp" => held("conn_hashtable"),
        _ => within,
    };
    like(mean(|g| g.goodput_mbps), sample.goodput * 8.0 / 1e6)
        && like(mean(|g| g.cores), sample.cpu_ns as f64 / elapsed)
        && like(within, expected)
        && seen.iter().all(|g| !g.figures.locks.is_empty())
}

/// What is seen of real runs in between agrees with their results.
#[test]
fn glances_agree_with_the_result() {
    for (organization, device) in [
        ("up", Device::Mem),
        ("connp-l:8", Device::Mem),
        ("connp-t:2", Device::Mem),
        ("msgp", Device::Pair),
    ] {
        let settings = Settings {
            device,
            ..settings(&[organization], 1.0)
        };
        let mut last = None;
        // Longer if a busy machine answers late.
        let agreed = [700, 3000, 10_000].into_iter().any(|ms| {
            let (seen, sample) = watched(&settings, ms);
            let agreed = !seen.is_empty() && agree(organization, &seen, &sample);
            last = Some((seen, sample));
            agreed
        });
        assert!(agreed, "{organization}: {last:?}");
    }
}

/// Who looks at the host's sockets sees goodput and processor time, and nothing of a stack.
#[test]
fn the_hosts_sockets_are_seen_from_outside() {
    let flows = |g: &Glance| g.figures.goodput_mbps.is_some_and(|goodput| goodput > 1.0);
    let seen = [700, 3000, 10_000].into_iter().find_map(|ms| {
        let (seen, _) = watched(&settings(&["linux"], 1.0), ms);
        seen.iter().any(flows).then_some(seen)
    });
    for Glance { figures: f, .. } in seen.expect("nothing was seen to flow") {
        assert!(f.cores.unwrap() > 0.0, "{f:?}");
        assert_eq!((f.locks.len(), f.occupancy), (0, None));
    }
}

/// Rounds are seen where there are rounds.
#[test]
fn exchanges_are_seen_by_the_round() {
    let settings = Settings {
        exchange: Some("64".parse().unwrap()),
        coalescing: crate::workload::Coalescing::NoDelay,
        ..settings(&["connp-l:8"], 1.0)
    };
    let seen = [700, 3000, 10_000].into_iter().any(|ms| {
        let (seen, sample) = watched(&settings, ms);
        let rate = sample.rounds as f64 / sample.elapsed.as_secs_f64();
        let near = |g: &Glance| {
            g.figures
                .rounds
                .is_some_and(|r| (0.3..3.0).contains(&(r / rate)))
        };
        !seen.is_empty() && seen.iter().all(near)
    });
    assert!(seen);
}

fn build() -> Build {
    Build {
        version: "0".into(),
        commit: None,
        debug: true,
    }
}

/// The runs end when they are told to; what was complete is reported, and it says so.
#[test]
fn stopping_is_orderly() {
    let settings = settings(&["null", "connp-l:8"], 0.3);
    let (mut feed, news) = Feed::new();
    let stop = feed.stop().clone();
    let stopper = std::thread::spawn(move || {
        for n in news {
            // The first row is the floor.
            if let News::Finished(_) = n {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    let report = bench(&settings, build(), Instant::now(), &mut feed).unwrap();
    drop(feed);
    stopper.join().unwrap();
    assert!((1..4).contains(&report.runs.iter().map(|r| r.samples.len()).sum::<usize>()));
    let note = report
        .notes
        .iter()
        .find(|n| n.starts_with("stopped: "))
        .unwrap();
    assert!(note.contains("of 4 runs were complete"), "{note}");

    let (mut feed, _news) = Feed::new();
    feed.stop().store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let error = bench(&settings, build(), begun, &mut feed).unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

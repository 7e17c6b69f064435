//! Paths that drop what is too big and do not say so (RFC 4821), in virtual time: found and left
//! within seconds, whatever else happens to probes.
#![allow(missing_docs)]

mod common;

use common::{App, Setup, Sim, Wire};
use perimeter_tcp::{Config, Large, Tcb};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// One end sends for a long time over a slow wire.
fn setup(wire: Wire) -> Setup {
    let sends = App {
        send: 8_000_000,
        ..App::default()
    };
    Setup {
        wire: [wire.clone(), wire],
        app: [sends, App::default()],
        ..Setup::default()
    }
}

fn slow() -> Wire {
    Wire {
        mbps: 5,
        ..Wire::default()
    }
}

fn hole(path_mss: u16) -> Wire {
    Wire {
        path_mss: Some(path_mss),
        ..slow()
    }
}

fn until(sim: &mut Sim, ms: u64) {
    let end = perimeter_base::Time::from_millis(1000 + ms);
    while sim.step(end) {}
}

fn after(sim: &mut Sim, ms: u64) {
    let end = sim.now + Duration::from_millis(ms);
    while sim.step(end) {}
}

fn sender(sim: &Sim) -> &Tcb {
    sim.hosts[0].tcb.as_ref().expect("a connection")
}

/// When more than a few full segments had arrived.
fn left(sim: &mut Sim, end: u64) -> Duration {
    let start = sim.now;
    let end = start + Duration::from_secs(end);
    let mut left = None;
    while sim.step(end) {
        if left.is_none() && sim.hosts[1].read > 20_000 {
            left = Some(sim.now.since(start));
        }
    }
    left.expect("data arrives")
}

/// What the path takes (without options), where the family's least is, and what is used in the end
/// (options deducted): within eight octets of all.
const HOLES: [(u16, u16, std::ops::RangeInclusive<u32>); 7] = [
    (1240, 512, 1220..=1228),
    (1220, 1220, 1208..=1208),
    (1400, 512, 1380..=1388),
    (1459, 512, 1439..=1447),
    (1024, 512, 1004..=1012),
    (600, 512, 580..=588),
    (512, 512, 500..=500),
];

#[test]
fn a_black_hole_is_found_and_left() {
    for (path, floor, used) in HOLES {
        for large in [None, Some((65_000, 44))] {
            let mut sim = Sim::new(&setup(hole(path)));
            sim.path_floor = floor;
            sim.large = large.map(|(octets, segs)| Large { octets, segs });
            let left = left(&mut sim, 40);
            let limit = if path < 1024 { 8 } else { 2 };
            assert!(left < Duration::from_secs(limit), "{path}: after {left:?}");
            let info = sim.hosts[0].last.expect("a connection");
            assert!(used.contains(&info.snd_mss), "{path}: {}", info.snd_mss);
            assert_eq!(sim.hosts[1].read, 8_000_000, "{path}");
            assert!((1..=10).contains(&sim.probes), "{path}: {}", sim.probes);
            assert_eq!(sim.joined[0] > 0, large.is_some());
        }
    }
}

/// Jumbo frames at both ends, and an Ethernet between them.
#[test]
fn jumbo_frames_meet_an_ethernet() {
    let mut s = setup(hole(1460));
    let jumbo = Config::default().with_mss(8960);
    s.cfg = [jumbo.clone(), jumbo];
    let mut sim = Sim::new(&s);
    left(&mut sim, 60);
    let info = sim.hosts[0].last.expect("a connection");
    assert!((1440..=1448).contains(&info.snd_mss), "{}", info.snd_mss);
    assert!(sim.probes < 16, "{}", sim.probes);
}

/// Without SACK there are no probes: what passes is kept.
#[test]
fn without_sack_a_black_hole_is_left_too() {
    let mut s = setup(hole(1240));
    s.cfg[0].sack = false;
    let mut sim = Sim::new(&s);
    assert!(left(&mut sim, 60) < Duration::from_secs(2));
    assert_eq!(sim.hosts[0].last.expect("a connection").snd_mss, 1012);
    assert_eq!((sim.hosts[1].read, sim.probes), (8_000_000, 0));
}

/// Losses beside those of the path: what is found is never more than it takes, nor given up for less
/// than half of it.
#[test]
fn a_black_hole_that_also_loses() {
    for seed in 0..12 {
        let wire = Wire {
            loss: 0.01,
            reorder: 0.02,
            mbps: 20,
            ..hole(1300)
        };
        let mut sim = Sim::new(&Setup {
            seed,
            ..setup(wire)
        });
        left(&mut sim, 120);
        assert_eq!(sim.hosts[1].read, 8_000_000, "{seed}");
        let info = sim.hosts[0].last.expect("a connection");
        assert!(
            (500..=1288).contains(&info.snd_mss),
            "{seed}: {}",
            info.snd_mss
        );
        assert!(sim.probes < 40, "{seed}: {}", sim.probes);
    }
}

/// Switched off, full segments are sent again until the connection is given up.
#[test]
fn a_black_hole_without_probing() {
    let mut s = setup(hole(1240));
    s.cfg[0].mtu_probing = false;
    let mut sim = Sim::new(&s);
    until(&mut sim, 100_000);
    assert!(sim.hosts[1].read < 1460, "{}", sim.hosts[1].read);
    assert_eq!(sender(&sim).mss(), 1448);
}

/// Brings a connection to where segments are small, on a path that takes full ones, and lets `eats`
/// decide of what the sender then sends: it is told which segments are probes.
fn after_an_outage(mut eats: impl FnMut(bool) -> bool + 'static) -> Sim {
    let mut s = setup(Wire {
        mbps: 20,
        ..Wire::default()
    });
    s.app[0].send = 80_000_000;
    let mut sim = Sim::new(&s);
    until(&mut sim, 1_000);
    sim.wire[0].loss = 1.0;
    while sender(&sim).mss() != 500 {
        assert!(sim.step(perimeter_base::Time::from_millis(10_000)));
    }
    sim.wire[0].loss = 0.0;
    sim.eats = Some(Box::new(move |from, _, len| from == 0 && eats(len > 500)));
    sim
}

/// The path was down, not narrow: one probe brings full segments back.
#[test]
fn an_outage_is_no_black_hole_for_long() {
    let mut sim = after_an_outage(|_| false);
    until(&mut sim, 15_000);
    assert_eq!((sender(&sim).mss(), sim.probes), (1448, 1));
    let cwnd = sender(&sim).cwnd();
    assert!(cwnd > 20 * 1448, "{cwnd}");
}

/// A probe that is lost alone is too large, and that is no congestion. One that is lost with another
/// segment is, and teaches nothing: the same size is tried again.
#[test]
fn what_a_lost_probe_means() {
    for others in [false, true] {
        let seen = Rc::new(Cell::new(0));
        let n = seen.clone();
        let mut sim = after_an_outage(move |probe| {
            if probe || n.get() > 0 {
                n.set(n.get() + 1);
            }
            n.get() == 1 || others && n.get() == 3
        });
        let mut before = 0;
        while seen.get() == 0 {
            before = sender(&sim).cwnd();
            assert!(sim.step(perimeter_base::Time::from_millis(20_000)));
        }
        after(&mut sim, 500);
        let info = sender(&sim).info(sim.now);
        assert_eq!((sim.probes, info.snd_mss), (1, 500));
        let reduced = info.cwnd_bytes < before;
        assert_eq!(reduced, others, "{} of {before}", info.cwnd_bytes);
        while sim.probes == 1 {
            assert!(sim.step(perimeter_base::Time::from_millis(40_000)));
        }
        after(&mut sim, 200);
        // 512 to 1459, halved; or the first size again, which passes.
        let mss = sender(&sim).mss();
        let fits = if others {
            mss == 1448
        } else {
            (974..1448).contains(&mss)
        };
        assert!(fits, "{mss}");
    }
}

/// Probes that are lost with other segments, again and again: after three the search rests.
#[test]
fn a_search_that_learns_nothing_rests() {
    let mut run = 0;
    let mut sim = after_an_outage(move |probe| {
        run = if probe {
            1
        } else {
            (run + 1) * u32::from(run > 0 && run < 6)
        };
        run == 1 || run == 3
    });
    until(&mut sim, 30_000);
    assert_eq!((sim.probes, sender(&sim).mss()), (3, 500));
}

//! Large segments: planned at once and cut at the ring, merged before TCP. Everything arrives, under
//! every organization, also where frames are lost, doubled, overtaken and damaged.

use crate::common::{Family, Setup, World, content, organizations};
use perimeter::link::fault::FaultConfig;
use perimeter::link::wire::WireConfig;
use perimeter::{Offload, TcpStream};
use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex};

/// So much goes each way, bytes.
const TOTAL: usize = 400_000;

/// One step of sending `data` and of receiving; whether both are done.
fn step(s: &TcpStream, data: &[u8], sent: &mut usize, got: &mut Vec<u8>) -> bool {
    while *sent < data.len() {
        match (&*s).write(&data[*sent..]) {
            Ok(n) => *sent += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    let mut buf = vec![0; 65_536];
    loop {
        match (&*s).read(&mut buf) {
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    *sent == data.len() && got.len() >= data.len()
}

fn both_ways(w: &World) {
    let (ours, theirs) = w.opened();
    let data = content(TOTAL);
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    w.until("all of it, both ways", || {
        let a = step(&ours, &data, &mut sent[0], &mut got[0]);
        let b = step(&theirs, &data, &mut sent[1], &mut got[1]);
        a && b
    });
    for g in got {
        assert!(g == data, "{}: not what was sent", w.s.organization());
    }
}

fn setup(org: perimeter::OrgSpec, faults: &FaultConfig) -> Setup {
    let mut setup = Setup::new(org);
    for c in [&mut setup.config, &mut setup.peer] {
        c.offload = Offload::Software;
    }
    for end in &mut setup.wire.ends {
        end.faults = faults.clone();
    }
    setup
}

#[test]
fn everything_arrives_under_every_organization() {
    let all = organizations().into_iter();
    for (org, family) in all.flat_map(|o| Family::BOTH.map(|f| (o.clone(), f))) {
        // There events want each packet.
        let merges = !org.to_string().contains("events=fine");
        let mut setup = setup(org, &FaultConfig::default());
        setup.family = family;
        setup.run(move |w| {
            both_ways(&w);
            let (name, stats) = (w.s.organization().clone(), w.s.stats());
            let (large, segs) = (stats.count("tx_large"), stats.count("tx_segments"));
            // Without header prediction merged acknowledgments are taken one by one, and each lets
            // out as little as it acknowledges.
            let one_by_one = name.to_string().contains("prediction=off");
            assert!(
                large > 10 || one_by_one,
                "{name}: {large} large segments of {segs}"
            );
            let merged = stats.count("rx_merged");
            assert_eq!(merged > 100, merges, "{name}: {merged} merged");
            // All frames were TCP's but for those about neighbours: merged segments count one by one.
            let (frames, segs) = (stats.count("rx_frames"), stats.count("rx_segments"));
            let others = match family {
                Family::V4 => 2,
                // Also probes for addresses, and which groups are listened to.
                Family::V6 => 8,
            };
            assert!(frames - segs <= others, "{name}: {segs} of {frames}");
            assert_eq!(stats.count("retransmits"), 0, "{name}");
        });
    }
}

#[test]
fn everything_arrives_over_a_bad_wire() {
    let faults = FaultConfig::default()
        .with_seed(7)
        .with_loss(0.01)
        .with_duplicate(0.02)
        .with_reorder(0.05)
        .with_corrupt(0.01);
    for org in organizations() {
        for family in Family::BOTH {
            let mut setup = setup(org.clone(), &faults);
            setup.family = family;
            setup.run(|w| both_ways(&w));
        }
    }
}

/// Octets go one way: how many segments the receiver was sent, in how many frames, and how many it sent
/// itself.
fn one_way(w: &World) -> [u64; 3] {
    let (ours, theirs) = w.opened();
    let data = content(TOTAL);
    let (sent, got) = (&mut 0, &mut Vec::new());
    let counts = || ["rx_segments", "rx_frames", "tx_segments"].map(|name| w.s.stats().count(name));
    let before = counts();
    w.until("all of it, one way", || {
        step(&theirs, &data, sent, &mut Vec::new());
        step(&ours, &[], &mut 0, got);
        got.len() == data.len()
    });
    assert!(*got == data, "{}: not what was sent", w.s.organization());
    let mut counts = counts();
    for (count, before) in counts.iter_mut().zip(before) {
        *count -= before;
    }
    counts
}

/// Every second segment is acknowledged, also where they are taken as one, whoever has merged them,
/// unless the burst's are to be at once.
#[test]
fn stretch_acknowledgments_are_a_setting() {
    let uncut = |hand_on| {
        let wire = Setup::new(organizations().remove(0)).wire;
        Some(wire.with_large(true).with_hand_on(hand_on))
    };
    for wire in [None, uncut(false), uncut(true)] {
        stretch(wire.as_ref());
    }
}

/// `wire`: one that segments cross uncut, as a device would have merged them.
fn stretch(wire: Option<&WireConfig>) {
    for org in organizations() {
        // There events have what a device has merged as it came.
        if wire.is_some() && org.to_string().contains("events=fine") {
            continue;
        }
        let merges = Arc::new(Mutex::new([[0; 3]; 2]));
        for stretch in [false, true] {
            let mut setup = setup(org.clone(), &FaultConfig::default());
            setup.config.stretch_acks = stretch;
            if let Some(wire) = wire {
                setup.peer.offload = Offload::Device;
                setup.wire = wire.clone();
            }
            let counts = merges.clone();
            setup.run(move |w| {
                counts.lock().unwrap()[usize::from(stretch)] = one_way(&w);
            });
        }
        let [[came, frames, each], [_, _, stretched]] = *merges.lock().unwrap();
        let name = org.to_string();
        // The last of what came as one may be acknowledged with what follows.
        let odd = if wire.is_some() { frames } else { 0 };
        // The last one may wait for the delayed acknowledgment.
        assert!(
            each * 2 + 1 + odd >= came,
            "{org}: {each} for {came} segments in {frames} frames"
        );
        // Finer events want each segment, and without header prediction merged segments are taken one
        // by one.
        let merged = !name.contains("events=fine") && !name.contains("prediction=off");
        assert!(
            !merged || stretched * 3 < each * 2,
            "{org}: {stretched} in place of {each}"
        );
    }
}

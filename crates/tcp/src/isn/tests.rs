//! Unpredictability, measured as far as statistics can.

use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::HashSet;

fn key(remote: u32, remote_port: u16, local_port: u16) -> FlowKey {
    FlowKey {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        remote: IpAddr::V4(Ipv4Addr::from(remote)),
        local_port,
        remote_port,
    }
}

fn generator() -> IsnGen {
    IsnGen::new(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908)
}

/// Pearson's χ² of `values` over 256 cells: mean 255, standard deviation 22.6.
fn chi2(values: impl Iterator<Item = u8>) -> f64 {
    let mut cells = [0u32; 256];
    let mut n = 0;
    for v in values {
        cells[usize::from(v)] += 1;
        n += 1;
    }
    let want = f64::from(n) / 256.0;
    cells
        .iter()
        .map(|&c| (f64::from(c) - want).powi(2) / want)
        .sum()
}

#[test]
fn iss_rises_for_one_tuple() {
    let g = generator();
    for k in 0..200u16 {
        let key = key(0x0a00_0002, 80, k);
        let mut last = g.iss(&key, Time::ZERO);
        // From 4 µs to an hour apart: 2³¹ ticks are 2.4 hours.
        for step in [4_000u64, 1_000_000, 1_000_000_000, 3_600_000_000_000] {
            let now = Time(step);
            let iss = g.iss(&key, now);
            assert!(iss.gt(last), "{last} then {iss}");
            assert_eq!(iss.since(g.iss(&key, Time::ZERO)), (step / 4_000) as u32);
            last = iss;
        }
    }
}

#[test]
fn iss_is_unrelated_across_tuples() {
    let g = generator();
    let all: Vec<u32> = (0..20_000u32)
        .map(|i| {
            g.iss(&key(0x0a00_0002 + (i >> 14), 80, i as u16), Time::ZERO)
                .0
        })
        .collect();
    let distinct: HashSet<_> = all.iter().collect();
    assert!(distinct.len() > 19_900);
    for byte in 0..4 {
        let x = chi2(all.iter().map(|v| (v >> (8 * byte)) as u8));
        assert!(x < 400.0, "byte {byte}: {x}");
        let d = chi2(
            all.windows(2)
                .map(|w| (w[1].wrapping_sub(w[0]) >> (8 * byte)) as u8),
        );
        assert!(d < 400.0, "difference byte {byte}: {d}");
    }
}

#[test]
fn secret_purpose_and_every_field_matter() {
    let g = generator();
    let k = key(0x0a00_0002, 80, 1024);
    let v6 = FlowKey {
        local: IpAddr::V6(Ipv6Addr::LOCALHOST),
        remote: IpAddr::V6(Ipv6Addr::from(2)),
        ..k
    };
    let variants = [
        k,
        k.reversed(),
        key(0x0a00_0003, 80, 1024),
        key(0x0a00_0002, 81, 1024),
        key(0x0a00_0002, 80, 1025),
        v6,
        v6.reversed(),
    ];
    let mut seen = HashSet::new();
    for v in variants {
        for g in [generator(), IsnGen::new(1, 2)] {
            assert!(seen.insert(g.iss(&v, Time::ZERO).0));
            assert!(seen.insert(g.ts_offset(&v)));
            assert!(seen.insert(g.bucket(&v) as u32));
            let others = [
                g.iss(&v, Time::ZERO).0,
                g.ts_offset(&v),
                g.bucket(&v) as u32,
            ];
            assert!(others.iter().all(|o| *o as u16 != g.ident(&v)));
        }
    }
    assert_eq!(g.ts_offset(&k), g.ts_offset(&k), "stable for one tuple");
    assert_eq!(format!("{g:?}"), "IsnGen(secret)");
}

#[test]
fn timestamps_tick_in_milliseconds_and_wrap() {
    assert_eq!(ts_clock(Time::from_millis(7), 3), 10);
    assert_eq!(ts_clock(Time::from_millis(7), u32::MAX), 6);
}

/// The port that a free range yields.
fn next(p: &PortPicker, key: &FlowKey) -> u16 {
    p.pick(key, Some).expect("port")
}

#[test]
fn idents_are_unrelated_across_tuples() {
    let g = generator();
    let all: Vec<u16> = (0..20_000u32)
        .map(|i| g.ident(&key(0x0a00_0002 + (i >> 14), 80, i as u16)))
        .collect();
    for byte in 0..2 {
        let x = chi2(all.iter().map(|v| (v >> (8 * byte)) as u8));
        assert!(x < 400.0, "byte {byte}: {x}");
        let d = chi2(
            all.windows(2)
                .map(|w| (w[1].wrapping_sub(w[0]) >> (8 * byte)) as u8),
        );
        assert!(d < 400.0, "difference byte {byte}: {d}");
    }
}

#[test]
fn first_ports_to_many_destinations_are_even() {
    let p = PortPicker::new(generator(), 32_768, 60_999);
    let ports: Vec<u16> = (0..20_000)
        .map(|i| next(&p, &key(0x0a01_0000 + i, 443, 0)))
        .collect();
    assert!(ports.iter().all(|p| (32_768..=60_999).contains(p)));
    let x = chi2(
        ports
            .iter()
            .map(|p| (u32::from(p - 32_768) * 256 / 28_232) as u8),
    );
    assert!(x < 400.0, "{x}");
    // Successive choices say nothing about each other.
    let d = chi2(ports.windows(2).map(|w| {
        let apart = (i64::from(w[1]) - i64::from(w[0])).rem_euclid(28_232);
        (apart * 256 / 28_232) as u8
    }));
    assert!(d < 400.0, "{d}");
}

#[test]
fn the_next_port_to_one_destination_is_a_random_step_away() {
    let p = PortPicker::new(generator(), 1024, 65_535);
    let k = key(0x0a00_0002, 443, 0);
    let ports: Vec<u16> = (0..20_001).map(|_| next(&p, &k)).collect();
    let steps: Vec<i64> = ports
        .windows(2)
        .map(|w| (i64::from(w[1]) - i64::from(w[0])).rem_euclid(64_512))
        .collect();
    assert!(steps.iter().all(|s| (1..=8).contains(s)));
    // Pairs of steps are even: 64 cells, mean 63, standard deviation 11.2.
    let x = {
        let mut cells = [0u32; 64];
        for w in steps.chunks_exact(2) {
            cells[((w[0] - 1) * 8 + w[1] - 1) as usize] += 1;
        }
        let want = steps.len() as f64 / 2.0 / 64.0;
        let off = |c: u32| (f64::from(c) - want).powi(2) / want;
        cells.iter().map(|c| off(*c)).sum::<f64>()
    };
    assert!(x < 130.0, "{x}");
    // A port comes back only after about the whole range divided by the mean step.
    let again = ports[1..].iter().position(|&q| q == ports[0]);
    assert!(again.is_none_or(|n| n > 12_000), "{again:?}");
}

#[test]
fn ports_in_use_are_passed_over() {
    let p = PortPicker::new(generator(), 5003, 5000);
    let k = key(0x0a00_0002, 443, 0);
    assert_eq!(p.pick(&k, |q| (q == 5002).then_some(q)), Some(5002));
    assert_eq!(p.pick(&k, |_| None::<()>), None);
    let mut asked = HashSet::new();
    p.pick(&k, |q| {
        assert!((5000..=5003).contains(&q) && asked.insert(q));
        None::<()>
    });
    assert_eq!(asked.len(), 4, "each port once");
    // What was passed over is passed: the next choice is behind the last.
    let wide = PortPicker::new(generator(), 1024, 65_535);
    let first = next(&wide, &k);
    let skip = wide.pick(&k, |q| (q.wrapping_sub(first) > 500).then_some(q));
    let (skip, after) = (skip.unwrap(), next(&wide, &k));
    assert!(
        (1..=8).contains(&after.wrapping_sub(skip)),
        "{skip} {after}"
    );
    assert_eq!(next(&PortPicker::new(generator(), 0, 0), &k), 1);
    // The whole range of numbers, without overflow.
    let all = PortPicker::new(generator(), 1, u16::MAX);
    let mut n = 0;
    all.pick(&k, |_| {
        n += 1;
        None::<()>
    });
    assert_eq!(n, 65_535);
}

#[test]
fn threads_that_pick_at_once_pick_apart() {
    let p = PortPicker::new(generator(), 1024, 65_535);
    let k = key(0x0a00_0002, 443, 0);
    let all: Vec<u16> = std::thread::scope(|s| {
        let pick = || (0..1_000).map(|_| next(&p, &k)).collect::<Vec<u16>>();
        let threads: Vec<_> = (0..4).map(|_| s.spawn(pick)).collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4_000);
}

//! Two hosts back to back in virtual time: every octet verified, both ends closed.
//! `TCP_SEEDS` sets how many seeds per mixture, `TCP_SEED` runs a single one, `TCP_TRACE`
//! prints every segment.
#![allow(missing_docs)]

mod common;

use common::{App, Rng, Setup, Sim, Wire, random_config};
use perimeter_tcp::{Large, State};

fn seeds(default: u64) -> std::ops::Range<u64> {
    let env = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    if let Some(one) = env("TCP_SEED") {
        return one..one + 1;
    }
    0..env("TCP_SEEDS").unwrap_or(default)
}

fn random_app(rng: &mut Rng) -> App {
    App {
        send: [0, 1, 1000, 30_000, 200_000][rng.below(5) as usize],
        write: [1, 100, 1448, 10_000, 100_000][rng.below(5) as usize].max(1),
        read: [0, 0, 700, 5000][rng.below(4) as usize],
        read_every_us: [0, 0, 3_000, 100_000][rng.below(4) as usize],
        zero_copy: rng.chance(0.5),
        close_last: false,
    }
}

/// One run with everything drawn from the seed but the wire.
fn run(name: &str, seed: u64, wire: &Wire) {
    let mut rng = Rng::new(seed.wrapping_add(0x5eed));
    let mut s = Setup {
        seed,
        cfg: [random_config(&mut rng), random_config(&mut rng)],
        app: [random_app(&mut rng), random_app(&mut rng)],
        wire: [wire.clone(), wire.clone()],
        // Half of the runs cross 2³² somewhere.
        iss: [
            if seed & 1 == 0 { 7 } else { u32::MAX - 5000 },
            if seed & 2 == 0 {
                u32::MAX - 20_000
            } else {
                1 << 31
            },
        ],
        crossing: seed % 10 == 9,
    };
    // Octets one by one through a slow reader would only cost test time.
    for a in &mut s.app {
        if a.write == 1 {
            a.send = a.send.min(2000);
        }
        if a.read_every_us == 100_000 {
            a.send = a.send.min(30_000);
        }
    }
    s.app[(seed % 2) as usize].close_last = rng.chance(0.3);
    eprintln!("{name}: TCP_SEED={seed}");
    Sim::new(&s).run();
}

macro_rules! mixtures {
    ($($name:ident $count:literal: $wire:expr;)*) => {
        $(
            #[test]
            fn $name() {
                for seed in seeds($count) {
                    run(stringify!($name), seed, &$wire);
                }
            }
        )*
    };
}

mixtures! {
    no_fault 200: Wire::default();
    loss_1 200: Wire { loss: 0.01, ..Wire::default() };
    loss_10 200: Wire { loss: 0.10, ..Wire::default() };
    loss_30 100: Wire { loss: 0.30, ..Wire::default() };
    reordering_20 200: Wire { reorder: 0.20, ..Wire::default() };
    duplication 200: Wire { dup: 0.10, ..Wire::default() };
    jitter 200: Wire { jitter_us: 20_000, ..Wire::default() };
    mixed 300: Wire { loss: 0.03, reorder: 0.10, dup: 0.05, jitter_us: 2_000, ..Wire::default() };
    bottleneck 100: Wire { mbps: 10, queue: 20, ..Wire::default() };
    short_path 100: Wire { delay_us: 25, ..Wire::default() };
}

/// Large segments, cut, are to the octet and the nanosecond what is planned segment by segment:
/// sequence numbers, pushes, windows, timestamps, payload.
#[test]
fn large_segments_are_what_single_ones_are() {
    let wires = [
        Wire::default(),
        Wire {
            delay_us: 25,
            ..Wire::default()
        },
        Wire {
            mbps: 50,
            queue: 60,
            ..Wire::default()
        },
        Wire {
            loss: 0.01,
            reorder: 0.02,
            ..Wire::default()
        },
        Wire {
            mbps: 50,
            queue: 25,
            loss: 0.05,
            ..Wire::default()
        },
    ];
    let mut joined = [[0; 4]; 5];
    for seed in seeds(40) {
        let mut rng = Rng::new(seed ^ 0x1a29e);
        for (wire, joined) in wires.iter().zip(&mut joined) {
            let app = |rng: &mut Rng| App {
                send: 100_000 + rng.below(900_000),
                write: [1448, 10_000, 100_000][rng.below(3) as usize],
                zero_copy: rng.chance(0.5),
                ..App::default()
            };
            let setup = Setup {
                seed,
                cfg: [random_config(&mut rng), random_config(&mut rng)],
                app: [app(&mut rng), app(&mut rng)],
                wire: [wire.clone(), wire.clone()],
                ..Setup::default()
            };
            let run = |large| {
                let mut sim = Sim::new(&setup);
                (sim.pushes, sim.large, sim.log) = (true, large, Some(Vec::new()));
                sim.run();
                (sim.log.take().unwrap_or_default(), sim.joined)
            };
            let (single, none) = run(None);
            assert_eq!(none, [0; 4]);
            for most in [(65_000, 44), (65_000, 3), (9_000, 64)] {
                let (octets, segs) = most;
                let (cut, n) = run(Some(Large { octets, segs }));
                joined.iter_mut().zip(n).for_each(|(all, n)| *all += n);
                let differ = single.iter().zip(&cut).find(|(a, b)| a != b);
                assert_eq!(differ, None, "seed {seed}, {wire:?}, {most:?}");
                assert_eq!(single.len(), cut.len());
            }
        }
    }
    let enough = |[all, partial, fin, _]: &[u64; 4]| *all > 10_000 && *partial > 100 && *fin > 10;
    assert!(joined.iter().all(enough), "{joined:?} joined");
    let again = |[.., again]: &[u64; 4]| *again > 50;
    assert!(joined[2..].iter().all(again), "{joined:?} joined");
}

/// Segments around every edge, with whatever flags and options: nothing panics, each makes only
/// so much work, and the variables keep their order. Then the connection, if it still lives,
/// can be aborted.
#[test]
fn hostile_segments() {
    for seed in seeds(300) {
        let mut rng = Rng::new(seed ^ 0xbad);
        let cfg = random_config(&mut rng);
        let mut sim = Sim::new(&Setup {
            seed,
            cfg: [cfg.clone(), random_config(&mut rng)],
            app: [
                App {
                    send: 50_000,
                    ..App::default()
                },
                App {
                    send: 50_000,
                    ..App::default()
                },
            ],
            iss: [u32::MAX - 3000, u32::MAX - 40_000],
            ..Setup::default()
        });
        let end = sim.now.plus(rng.below(200) * 1_000_000);
        sim.run_until(end);
        let Some(mut t) = sim.hosts[0].tcb.take() else {
            continue;
        };
        let mut now = sim.now;
        let mut queued = sim.hosts[0].snd.len();
        for _ in 0..400 {
            now = now.plus(rng.below(20_000_000));
            let hdr = hostile(&mut rng, &t);
            let len = [0, 0, 1, 500, 1448, 60_000][rng.below(6) as usize];
            let data = (len > 0)
                .then(|| perimeter_base::PktBuf::with_capacity(len))
                .map(|mut b| {
                    b.set_window(0, len);
                    b
                });
            let una = t.snd_una();
            let nxt = t.snd_nxt();
            let mut i = perimeter_tcp::Input::default();
            t.input(&hdr, data, now, &mut i);
            assert!(i.acked <= queued, "only what was queued is acknowledged");
            assert!(i.acked <= nxt.since(una));
            queued -= i.acked;
            if i.more {
                while t.next_in_order().is_some() {}
            }
            let mut segs = 0;
            let q = perimeter_tcp::Queued {
                len: queued,
                ..Default::default()
            };
            while let Some(p) = t.plan(q, now) {
                assert!(p.off + p.len <= queued, "planned data is queued");
                assert!(u32::from(t.mss()) >= p.len);
                segs += 1;
                assert!(segs < 300, "bounded output");
            }
            if t.deadline() <= now {
                t.on_timer(now);
            }
            if rng.chance(0.02) {
                let open = matches!(t.state(), State::Established | State::CloseWait);
                queued += 5000 * u32::from(open);
            }
            if rng.chance(0.1) {
                t.app_read(cfg.rcv_buf, cfg.rcv_buf);
            }
            if rng.chance(0.005) {
                t.close(now);
            }
            let info = t.info(now);
            assert!(info.cwnd_bytes >= info.snd_mss || t.state() == State::Closed);
            assert!(t.snd_una().le(t.snd_nxt()));
            assert!(
                info.rcv_wnd <= cfg.rcv_buf.max(65_535) + (1 << 14),
                "{}",
                info.rcv_wnd
            );
            assert!(t.memory() <= 600 * 1024);
        }
        t.abort(now);
        assert_eq!(t.deadline(), perimeter_base::Time::NEVER);
    }
}

fn hostile(rng: &mut Rng, t: &perimeter_tcp::Tcb) -> perimeter_wire::TcpHdr {
    let near = |rng: &mut Rng| -> u32 {
        let d = [
            0,
            1,
            2,
            100,
            1448,
            65_535,
            1 << 20,
            1 << 31,
            rng.next() as u32,
        ][rng.below(9) as usize];
        if rng.chance(0.3) {
            0u32.wrapping_sub(d)
        } else {
            d
        }
    };
    let mut hdr = perimeter_wire::TcpHdr {
        seq: t.rcv_nxt() + if rng.chance(0.6) { 0 } else { near(rng) },
        ack: t.snd_una() + near(rng),
        window: [0, 1, 100, 65_535, rng.next() as u16][rng.below(5) as usize],
        urgent: rng.next() as u16,
        ..Default::default()
    };
    hdr.flags = perimeter_wire::TcpFlags(if rng.chance(0.7) {
        0x10
    } else {
        // Resets that fit exactly would end too many runs.
        rng.next() as u8 & if rng.chance(0.9) { 0xfb } else { 0xff }
    });
    if rng.chance(0.5) {
        hdr.opts.ts = Some((rng.next() as u32 >> rng.below(32), near(rng)));
    }
    for _ in 0..rng.below(5) {
        let left = t.snd_una() + near(rng);
        hdr.opts.sack.push(left, left + near(rng));
    }
    if rng.chance(0.1) {
        hdr.opts.mss = Some(rng.next() as u16);
        hdr.opts.wscale = Some(rng.below(15) as u8);
    }
    hdr
}

#[test]
fn a_path_with_a_smaller_mtu_tells_us() {
    for seed in seeds(20) {
        let narrow = Wire {
            path_mss: Some(1000),
            icmp: true,
            ..Wire::default()
        };
        let s = Setup {
            seed,
            wire: [narrow.clone(), narrow],
            ..Setup::default()
        };
        let mut sim = Sim::new(&s);
        sim.run();
    }
}

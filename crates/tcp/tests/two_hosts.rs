//! Two hosts back to back in virtual time: every octet verified, both ends closed.
//! `TCP_SEEDS` sets how many seeds per mixture, `TCP_SEED` runs a single one, `TCP_TRACE`
//! prints every segment.
#![allow(missing_docs)]

mod common;

use common::{App, Rng, Setup, Sim, Wire, random_config};

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
            if seed & 2 == 0 { u32::MAX - 20_000 } else { 1 << 31 },
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

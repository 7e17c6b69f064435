//! A small generator of pseudo-random numbers, for reproducible faults. Not for secrets.

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014):
/// any seed is as good as any other.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`, or 0 when `bound` is 0. The bias is below `bound`/2^64.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// True with `probability` (clamped to 0..=1).
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits, the precision of the type; always drawn, so that a probability of zero does
        // not shift what follows.
        let draw = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        draw < probability
    }
}

/// The finaliser: a bijection that spreads every bit over all.
pub(crate) const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_come_out() {
        let mut rng = SplitMix64::new(7);
        let hits = (0..100_000).filter(|_| rng.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0)));
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
    }
}

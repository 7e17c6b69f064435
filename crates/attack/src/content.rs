//! What victims send and clients check: a stream without short periods.

use perimeter::link::rng::SplitMix64;
use std::sync::LazyLock;

/// Its period, bytes.
pub const PERIOD: usize = 65_536;

static TWICE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = SplitMix64::new(0x5eed);
    let mut one: Vec<u8> = (0..PERIOD / 8)
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    one.extend_from_within(..);
    one
});

/// Up to `max` bytes of the stream from position `at`, at most a period.
pub fn piece(at: u64, max: u64) -> &'static [u8] {
    let start = (at % PERIOD as u64) as usize;
    &TWICE[start..start + max.min(PERIOD as u64) as usize]
}

/// Whether `bytes` are the stream's at position `at`.
pub fn matches(at: u64, bytes: &[u8]) -> bool {
    let mut at = at;
    bytes.chunks(PERIOD).all(|c| {
        let same = piece(at, c.len() as u64) == c;
        at += c.len() as u64;
        same
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_seen() {
        let mut all: Vec<u8> = piece(5, 1 << 20).to_vec();
        all.extend_from_slice(piece(5 + all.len() as u64, 70_000));
        assert!(matches(5, &all) && !matches(6, &all));
        let last = all.len() - 1;
        all[last] ^= 1;
        assert!(!matches(5, &all));
    }
}

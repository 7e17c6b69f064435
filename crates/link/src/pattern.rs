//! The byte stream that sources send and sinks check: endless, known at every offset.
//!
//! Its period is a prime, so that no misplacement by a number of segments, pages or powers of
//! two shows the right bytes at the wrong place before thousands of them have passed. A file
//! whose length is a multiple of [`PERIOD`] and that is sent again and again is the stream.

use perimeter_wire::checksum;
use std::sync::OnceLock;

use crate::rng::SplitMix64;

/// After how many bytes the stream repeats. Small enough for a first-level cache.
pub const PERIOD: usize = 4093;

/// The longest slice of the stream that [`Pattern::at`] gives: a jumbo frame's payload.
pub const MAX_SLICE: usize = 9216;

/// The stream, laid out so that any short piece is one slice.
pub struct Pattern {
    bytes: Box<[u8]>,
    /// `sums[i]`: sum of the first `i` bytes, those at even places times 256. Below 2^32 for
    /// this length.
    sums: Box<[u32]>,
}

impl Pattern {
    /// The one pattern of the process.
    pub fn get() -> &'static Pattern {
        static PATTERN: OnceLock<Pattern> = OnceLock::new();
        PATTERN.get_or_init(Pattern::build)
    }

    fn build() -> Pattern {
        let mut rng = SplitMix64::new(0x5045_5249_4d45_5445);
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| (rng.next() >> 56) as u8).collect();
        for i in PERIOD..PERIOD + MAX_SLICE {
            bytes.push(bytes[i - PERIOD]);
        }
        let mut sums = Vec::with_capacity(bytes.len() + 1);
        let mut total = 0u32;
        sums.push(0);
        for (i, &b) in bytes.iter().enumerate() {
            total += u32::from(b) << if i % 2 == 0 { 8 } else { 0 };
            sums.push(total);
        }
        Pattern {
            bytes: bytes.into(),
            sums: sums.into(),
        }
    }

    /// The phase of a stream offset: where it falls in the period.
    #[inline]
    pub fn phase(offset: u64) -> usize {
        (offset % PERIOD as u64) as usize
    }

    /// `len` bytes (at most [`MAX_SLICE`]; more is cut) of the stream from `phase` on, which is
    /// taken modulo the period.
    #[inline]
    pub fn at(&self, phase: usize, len: usize) -> &[u8] {
        let phase = phase % PERIOD;
        &self.bytes[phase..phase + len.min(MAX_SLICE)]
    }

    /// The partial Internet checksum of [`Pattern::at`], without looking at the bytes.
    #[inline]
    pub fn sum(&self, phase: usize, len: usize) -> u32 {
        let phase = phase % PERIOD;
        let sum = self.sums[phase + len.min(MAX_SLICE)] - self.sums[phase];
        let folded = checksum::fold(sum);
        u32::from(if phase.is_multiple_of(2) {
            folded
        } else {
            folded.swap_bytes()
        })
    }

    /// Fills `out` with the stream from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut phase = Pattern::phase(offset);
        for chunk in out.chunks_mut(MAX_SLICE) {
            chunk.copy_from_slice(self.at(phase, chunk.len()));
            phase = (phase + chunk.len()) % PERIOD;
        }
    }

    /// Whether `bytes` are the stream from `offset` on.
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut phase = Pattern::phase(offset);
        bytes.chunks(MAX_SLICE).all(|chunk| {
            let same = chunk == self.at(phase, chunk.len());
            phase = (phase + chunk.len()) % PERIOD;
            same
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_the_bytes() {
        let p = Pattern::get();
        for phase in [0, 1, 2, 1447, PERIOD - 1, PERIOD, PERIOD + 7] {
            for len in [0, 1, 2, 3, 100, 1447, 1448, 8960] {
                let want = checksum::fold(checksum::sum(p.at(phase, len), 0));
                assert_eq!(p.sum(phase, len) as u16, want, "phase {phase} len {len}");
            }
        }
    }

    #[test]
    fn misplacement_shows() {
        let p = Pattern::get();
        let mut page = vec![0; 30_000];
        p.fill(123_456_789, &mut page);
        assert!(p.matches(123_456_789, &page));
        for shift in [1u64, 2, 64, 536, 1448, 1460, 4096, 65_536] {
            assert!(!p.matches(123_456_789 + shift, &page[..8]), "shift {shift}");
        }
        page[29_999] ^= 1;
        assert!(!p.matches(123_456_789, &page));
    }
}

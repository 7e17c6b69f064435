//! The file that every thread sends: bytes that are a function of their offset, so that a receiver
//! can tell any misplaced byte.

use perimeter::link::{
    mem::datagrams,
    pattern::{PERIOD, Pattern},
};
use std::sync::Arc;

/// Size of the file. Larger than a core's private caches share of the hot set would need, small
/// enough that 16,384 connections share pages which stay in the last-level cache.
pub const FILE_SIZE: usize = 1 << 20;

/// A file's content. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Content {
    bytes: Arc<[u8]>,
}

impl Content {
    /// The benchmark's file of `size` bytes (a positive multiple of 8).
    pub fn new(size: usize) -> Self {
        assert!(size > 0 && size.is_multiple_of(8));
        let mut bytes = Vec::with_capacity(size);
        for word in 0..(size / 8) as u64 {
            bytes.extend_from_slice(&scramble(word).to_le_bytes());
        }
        Content {
            bytes: bytes.into(),
        }
    }

    /// A file which, sent over and over, is the stream that the ideal peer sends and expects.
    pub fn pattern() -> Self {
        Content::pattern_of(FILE_SIZE)
    }

    /// As [`Content::pattern`], of at most `size` bytes, which are at least [`PERIOD`].
    pub fn pattern_of(size: usize) -> Self {
        let mut bytes = vec![0; size / PERIOD * PERIOD];
        Pattern::get().fill(0, &mut bytes);
        Content {
            bytes: bytes.into(),
        }
    }

    /// Datagrams of `size` bytes (at least 2), one behind the other: as many as make a file. Each
    /// tells itself what its bytes must be.
    pub fn datagrams(size: usize) -> Self {
        let mut bytes = vec![0; (FILE_SIZE / size).max(1) * size];
        for (n, datagram) in (0..).zip(bytes.chunks_mut(size)) {
            datagrams::fill(Pattern::get(), n, datagram);
        }
        Content {
            bytes: bytes.into(),
        }
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Position in the file of stream offset `offset`: the file is sent over and over.
    pub fn position(&self, offset: u64) -> usize {
        (offset % self.bytes.len() as u64) as usize
    }

    /// Stream offset of the first byte of `data` that differs from the stream at `offset`.
    pub fn first_difference(&self, offset: u64, data: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < data.len() {
            let at = self.position(offset + done as u64);
            let n = (self.bytes.len() - at).min(data.len() - done);
            let (got, want) = (&data[done..done + n], &self.bytes[at..at + n]);
            if got != want {
                let i = got.iter().zip(want).position(|(a, b)| a != b)?;
                return Some(offset + (done + i) as u64);
            }
            done += n;
        }
        None
    }
}

/// A bijective mixer (the finaliser of a 64-bit multiplicative hash), so that no two words of a
/// file are equal.
fn scramble(word: u64) -> u64 {
    let mut x = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_every_kind_of_damage() {
        let content = Content::new(4096);
        let file = content.bytes().to_vec();
        let twice: Vec<u8> = [&file[..], &file[..]].concat();
        assert_eq!(
            content.first_difference(4096 * 7 + 100, &twice[100..5000]),
            None
        );
        let mut flipped = twice.clone();
        flipped[4500] ^= 0x10;
        assert_eq!(content.first_difference(0, &flipped), Some(4500));
        // Shifted by a segment or by one word: every position differs somewhere near.
        assert!(content.first_difference(0, &twice[1448..2896]).is_some());
        assert!(content.first_difference(8, &twice[..64]).is_some());
        assert_eq!(content.first_difference(3, &[]), None);
    }

    #[test]
    fn the_pattern_joins_at_its_end() {
        let content = Content::pattern();
        let n = content.bytes().len() as u64;
        let mut piece = vec![0; 20_000];
        Pattern::get().fill(3 * n - 7000, &mut piece);
        assert_eq!(content.first_difference(3 * n - 7000, &piece), None);
    }

    #[test]
    fn words_are_distinct() {
        let content = Content::new(FILE_SIZE);
        let mut words: Vec<_> = content.bytes().chunks_exact(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), FILE_SIZE / 8);
    }
}

//! What streams hold: a function of the stream and the offset, so that any byte that is lost,
//! doubled, moved or taken from another connection shows.

/// The 8 bytes at word `index` of a stream: SplitMix64's finaliser over both, a bijection for
/// each stream, so no two words of a stream are equal.
fn word(stream: u64, index: u64) -> [u8; 8] {
    let z = index.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Calls `f` with each piece of `len` bytes from `offset` on: where it is in the caller's
/// buffer, and what it holds.
fn pieces(stream: u64, offset: u64, len: usize, mut f: impl FnMut(usize, &[u8]) -> bool) -> bool {
    let mut at = 0;
    while at < len {
        let pos = offset + at as u64;
        let within = (pos % 8) as usize;
        let n = (8 - within).min(len - at);
        if !f(at, &word(stream, pos / 8)[within..within + n]) {
            return false;
        }
        at += n;
    }
    true
}

/// Fills `buf` with what `stream` holds from `offset` on.
pub fn fill(stream: u64, offset: u64, buf: &mut [u8]) {
    let len = buf.len();
    pieces(stream, offset, len, |at, bytes| {
        buf[at..at + bytes.len()].copy_from_slice(bytes);
        true
    });
}

/// Where `buf` first differs from what `stream` holds from `offset` on.
pub fn mismatch(stream: u64, offset: u64, buf: &[u8]) -> Option<u64> {
    let mut wrong = None;
    pieces(stream, offset, buf.len(), |at, bytes| {
        let got = &buf[at..at + bytes.len()];
        let bad = got.iter().zip(bytes).position(|(a, b)| a != b);
        wrong = bad.map(|i| offset + (at + i) as u64);
        wrong.is_none()
    });
    wrong
}

/// How often each byte value occurs: what is left to compare when several threads share a
/// direction of a socket and nobody knows which bytes he got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram(Box<[u64; 256]>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Box::new([0; 256]))
    }
}

impl Histogram {
    /// Counts bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0[usize::from(*b)] += 1;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.0.iter_mut().zip(other.0.iter()) {
            *a += b;
        }
    }

    /// Bytes counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The first `len` bytes of a stream.
    pub fn of(stream: u64, len: u64) -> Histogram {
        let mut h = Histogram::default();
        pieces(stream, 0, len as usize, |_, bytes| {
            h.add(bytes);
            true
        });
        h
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_stream_is_the_same_stream() {
        let mut whole = vec![0; 1000];
        fill(7, 0, &mut whole);
        for (at, n) in [(0, 1000), (1, 7), (3, 500), (8, 8), (999, 1)] {
            let mut cut = vec![0; n];
            fill(7, at as u64, &mut cut);
            assert_eq!(cut, whole[at..at + n]);
            assert_eq!(mismatch(7, at as u64, &cut), None);
            cut[n / 2] ^= 1;
            assert_eq!(mismatch(7, at as u64, &cut), Some((at + n / 2) as u64));
        }
        assert!(mismatch(8, 0, &whole).is_some());
        assert!(mismatch(7, 8, &whole).is_some());
        let mut h = Histogram::default();
        h.add(&whole);
        assert_eq!(h, Histogram::of(7, 1000));
        assert_eq!(h.total(), 1000);
    }
}

//! How many frames a thread takes from a device at once.
//!
//! The longer a burst, the less each of its frames costs. But acknowledgments leave only when all of it
//! has been processed, so the peer of a connection hears later of the first segments. Among many
//! connections that does not matter. One that is alone and bound by its window stands still meanwhile:
//! 64 frames are a third of a window of 256 KB. So its bursts are half as long.
//!
//! Frames of a device that does not cut them have up to 64 KB each, and 64 of them 4 MB: more than a
//! core has of cache for itself, so that who reads what they brought reads slower. So a burst of those
//! is about as long as `Config::budget` says.

use perimeter_link::RxFrame;

/// The most frames of a burst.
pub const BURST: usize = 64;

/// The most of one whose flow is alone.
const SHORT: usize = BURST / 2;

/// A flow is alone when so many frames in a row were its own. That is more than a window of 256 KB:
/// several flows may send a whole window each, one after the other.
const ALONE: usize = 8 * BURST;

/// Octets of each frame that are not counted, as they are headers. So acknowledgments use up no budget:
/// the more of them are taken in a row, the more room writers find, and the more they write at once.
const HEADERS: usize = 128;

/// Who has sent what was taken lately. Only devices that tell flows apart let that be seen.
#[derive(Debug, Default)]
pub struct Bursts {
    flow: Option<u32>,
    in_a_row: usize,
    /// Octets of payload in a frame of the last burst, in the mean.
    mean: usize,
}

impl Bursts {
    /// How many frames are to be taken now: if they are as long as the last ones, they have no more
    /// than `budget` octets of payload together, unless that is 0.
    #[inline]
    pub fn most(&self, budget: usize) -> usize {
        let most = if self.in_a_row < ALONE { BURST } else { SHORT };
        match most * self.mean > budget && budget > 0 {
            true => (budget / self.mean).max(1),
            false => most,
        }
    }

    /// These were taken; how many octets of payload they have, of a budget.
    #[inline]
    pub fn took(&mut self, frames: &[RxFrame]) -> usize {
        let Some(first) = frames.first() else {
            return 0;
        };
        let octets = |f: &RxFrame| (f.buf.len() + f.buf.behind_len()).saturating_sub(HEADERS);
        let octets = frames.iter().map(octets).sum();
        self.mean = octets / frames.len();
        if first.hash != self.flow {
            (self.flow, self.in_a_row) = (first.hash, 0);
        }
        let own = |f: &RxFrame| f.hash.is_some() && f.hash == self.flow;
        match frames.iter().all(own) {
            true => self.in_a_row = (self.in_a_row + frames.len()).min(ALONE),
            false => self.in_a_row = 0,
        }
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_base::PktBuf;

    fn burst(hashes: &[Option<u32>]) -> Vec<RxFrame> {
        let frame = |hash: &Option<u32>| RxFrame {
            buf: PktBuf::default(),
            hash: *hash,
            csum_ok: true,
            segment_size: 0,
        };
        hashes.iter().map(frame).collect()
    }

    #[test]
    fn who_is_alone_for_a_while_has_short_bursts() {
        let mut b = Bursts::default();
        let (one, other) = (burst(&[Some(1); BURST]), burst(&[Some(2); BURST]));
        for _ in 0..7 {
            b.took(&one);
            assert_eq!(b.most(0), BURST);
        }
        b.took(&one);
        b.took(&[]);
        assert_eq!(b.most(0), SHORT);
        b.took(&one[..SHORT]);
        assert_eq!(b.most(0), SHORT);
        b.took(&other);
        assert_eq!(b.most(0), BURST);
    }

    #[test]
    fn long_frames_come_in_bursts_of_the_budget() {
        let long = |octets: usize| {
            let mut frames = burst(&[None; 3]);
            for f in &mut frames {
                f.buf = PktBuf::with_capacity(octets);
                f.buf.set_window(0, octets);
            }
            frames
        };
        let mut b = Bursts::default();
        for (octets, budget, most) in [
            (1500, 768 << 10, BURST),
            (65_226, 768 << 10, 12),
            (65_226, 0, BURST),
            (9000, 64 << 10, 7),
            (65_226, 1000, 1),
            (0, 1000, BURST),
        ] {
            b.took(&long(octets));
            assert_eq!(b.most(budget), most, "{octets}, {budget}");
        }
    }

    #[test]
    fn among_others_and_unknown_they_are_long() {
        let mut b = Bursts::default();
        let (mixed, unknown) = (burst(&[Some(1), Some(2)]), burst(&[None; BURST]));
        for _ in 0..1000 {
            b.took(&mixed);
            assert_eq!(b.most(0), BURST);
        }
        for _ in 0..1000 {
            b.took(&unknown);
            assert_eq!(b.most(0), BURST);
        }
        // Flows that send a window each, in turns.
        for flow in 0..100 {
            for _ in 0..3 {
                b.took(&burst(&[Some(flow); BURST]));
                assert_eq!(b.most(0), BURST);
            }
        }
    }
}

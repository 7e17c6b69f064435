//! Leaving slow start before the first loss, as Linux's CUBIC does: HyStart (Ha and Rhee, "Taming
//! the elephants", 2011).
//!
//! Slow start ends when acknowledgments at most 2 ms apart have kept coming for half the minimum
//! RTT, or when the smallest RTT of a round exceeds the minimum by an eighth (4 to 16 ms). In
//! either case only from a window of 16 segments on.

use perimeter_wire::Seq;

/// The window, in segments, below which nothing is done: RTT samples are too few to matter.
pub(super) const LOW_WINDOW: u32 = 16;
/// Samples per round before its minimum is believed.
const MIN_SAMPLES: u8 = 8;
/// Gap, µs, that ends an acknowledgment train.
const ACK_GAP: u32 = 2_000;
/// Bounds of the RTT increase that counts, µs.
const THRESH_MIN: u32 = 4_000;
const THRESH_MAX: u32 = 16_000;
/// Round state. Times are µs; those of the clock wrap.
#[derive(Clone, Debug)]
pub(super) struct HyState {
    /// The round ends when `SND.UNA` passes this.
    round_end: Seq,
    /// Smallest RTT of this round; `u32::MAX` without a sample.
    round_min: u32,
    /// When the round started.
    began: u32,
    /// When the train's latest acknowledgment came.
    latest: u32,
    samples: u8,
    started: bool,
    /// Slow start has ended this way; stays until a timeout.
    pub(super) done: bool,
}

impl Default for HyState {
    fn default() -> HyState {
        HyState {
            round_end: Seq(0),
            round_min: u32::MAX,
            began: u32::MAX,
            latest: u32::MAX,
            samples: 0,
            started: false,
            done: false,
        }
    }
}

/// An acknowledgment as the detector sees it. Times in µs.
pub(super) struct Sample {
    pub(super) rtt: u32,
    pub(super) delay_min: u32,
    pub(super) snd_una: Seq,
    pub(super) snd_nxt: Seq,
    /// Acknowledgments that this one stands for.
    pub(super) segs: u8,
    pub(super) now: u32,
}

impl HyState {
    /// Whether slow start ends with this acknowledgment.
    pub(super) fn ends(&mut self, s: &Sample) -> bool {
        if !self.started || s.snd_una.gt(self.round_end) {
            self.started = true;
            self.round_end = s.snd_nxt;
            self.round_min = u32::MAX;
            self.samples = 0;
            self.began = s.now;
            self.latest = s.now;
        }
        if s.now.wrapping_sub(self.latest) <= ACK_GAP {
            self.latest = s.now;
            // A train as long as the forward path: the pipe is full.
            if s.now.wrapping_sub(self.began) > s.delay_min / 2 {
                self.done = true;
            }
        }
        self.round_min = self.round_min.min(s.rtt);
        if self.samples < MIN_SAMPLES {
            self.samples = self.samples.saturating_add(s.segs);
        } else if self.round_min > s.delay_min.saturating_add(threshold(s.delay_min)) {
            self.done = true;
        }
        self.done
    }
}

/// The RTT increase that counts: an eighth, within 4 to 16 ms.
fn threshold(rtt: u32) -> u32 {
    (rtt / 8).clamp(THRESH_MIN, THRESH_MAX)
}

//! Leaving slow start before the first loss.
//!
//! Two ways: Linux's HyStart (Ha and Rhee, "Taming the elephants", 2011), on by default as
//! it is there, and HyStart++ (RFC 9406).

use perimeter_wire::Seq;

/// How slow start ends early.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum HyStart {
    /// It does not.
    Off,
    /// HyStart as Linux's CUBIC does it: slow start ends when acknowledgments at most 2 ms
    /// apart have kept coming for half the minimum RTT, or when the smallest RTT of a round
    /// exceeds the minimum by an eighth (4 to 16 ms). In either case only from a window of
    /// 16 segments on.
    #[default]
    Classic,
    /// HyStart++ (RFC 9406): a rise of the round's RTT slows growth to a quarter for five
    /// rounds before slow start ends. Only before the first loss.
    PlusPlus,
}

/// Octet threshold, in segments, below which neither variant acts (Linux) or RTT samples are
/// too few to matter.
pub(super) const LOW_WINDOW: u32 = 16;
/// Samples per round before its minimum is believed (both variants).
const MIN_SAMPLES: u8 = 8;
/// Gap, µs, that ends an acknowledgment train.
const ACK_GAP: u32 = 2_000;
/// Bounds of the RTT increase that counts, µs.
const THRESH_MIN: u32 = 4_000;
const THRESH_MAX: u32 = 16_000;
/// RFC 9406: rounds of conservative slow start.
const CSS_ROUNDS: u8 = 5;
/// RFC 9406: divisor of growth in conservative slow start.
const CSS_DIVISOR: u32 = 4;
/// RFC 9406: most segments credited per acknowledgment, without pacing.
const CSS_LIMIT: u32 = 8;

/// Round state. Times are µs; those of the clock wrap.
#[derive(Clone, Debug)]
pub(super) struct HyState {
    /// The round ends when `SND.UNA` passes this.
    round_end: Seq,
    /// Smallest RTT of this round; `u32::MAX` without a sample.
    round_min: u32,
    /// Classic: when the round started. HyStart++: smallest RTT of the last round.
    a: u32,
    /// Classic: when the train's latest acknowledgment came. HyStart++: the RTT that ended
    /// standard slow start (`u32::MAX`: it has not ended).
    b: u32,
    samples: u8,
    /// Rounds of conservative slow start.
    css: u8,
    started: bool,
    /// Slow start has ended this way; stays until a timeout.
    pub(super) done: bool,
}

impl Default for HyState {
    fn default() -> HyState {
        HyState {
            round_end: Seq(0),
            round_min: u32::MAX,
            a: u32::MAX,
            b: u32::MAX,
            samples: 0,
            css: 0,
            started: false,
            done: false,
        }
    }
}

/// An acknowledgment as the detectors see it. Times in µs.
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
    /// Classic: whether slow start ends with this acknowledgment.
    pub(super) fn classic(&mut self, s: &Sample) -> bool {
        if !self.started || s.snd_una.gt(self.round_end) {
            self.started = true;
            self.round_end = s.snd_nxt;
            self.round_min = u32::MAX;
            self.samples = 0;
            self.a = s.now;
            self.b = s.now;
        }
        if s.now.wrapping_sub(self.b) <= ACK_GAP {
            self.b = s.now;
            // A train as long as the forward path: the pipe is full.
            if s.now.wrapping_sub(self.a) > s.delay_min / 2 {
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

    /// HyStart++: whether slow start ends with this acknowledgment (RFC 9406, section 4.2).
    pub(super) fn plus_plus(&mut self, s: &Sample) -> bool {
        if !self.started || s.snd_una.gt(self.round_end) {
            if self.started {
                self.a = self.round_min;
                if self.in_css() {
                    self.css += 1;
                    if self.css >= CSS_ROUNDS {
                        self.done = true;
                        return true;
                    }
                }
            }
            self.started = true;
            self.round_end = s.snd_nxt;
            self.round_min = u32::MAX;
            self.samples = 0;
        }
        self.round_min = self.round_min.min(s.rtt);
        self.samples = self.samples.saturating_add(s.segs);
        if self.samples < MIN_SAMPLES {
            return false;
        }
        if self.in_css() {
            // The rise was jitter: back to standard slow start.
            if self.round_min < self.b {
                self.b = u32::MAX;
                self.css = 0;
            }
        } else if self.a != u32::MAX
            && self.round_min != u32::MAX
            && self.round_min >= self.a.saturating_add(threshold(self.a))
        {
            self.b = self.round_min;
            self.css = 0;
        }
        false
    }

    fn in_css(&self) -> bool {
        self.b != u32::MAX
    }

    /// HyStart++: how much of `acked` octets, by `segs` acknowledgments, slow start may grow by.
    pub(super) fn growth(&self, acked: u32, mss: u32, segs: u32) -> u32 {
        let n = acked.min(CSS_LIMIT.saturating_mul(mss).saturating_mul(segs));
        if self.in_css() { n / CSS_DIVISOR } else { n }
    }
}

/// The RTT increase that counts: an eighth, within 4 to 16 ms.
fn threshold(rtt: u32) -> u32 {
    (rtt / 8).clamp(THRESH_MIN, THRESH_MAX)
}

//! What a search for the path's MTU knows. [`super::path`] has what is done with it.

use perimeter_wire::Seq;

/// The smallest segment that a search falls back to, octets, where the family guarantees no more
/// (RFC 4821, section 7.2).
pub(super) const FLOOR: u16 = 512;

/// A search for the largest segment that the path takes: between what is known to pass and `high`.
/// Sizes are without options.
#[derive(Debug)]
pub(super) struct Search {
    /// The largest that may pass.
    pub high: u16,
    /// `high` itself is the next size to try.
    pub try_high: bool,
    /// The path has been seen to drop what is too large, and nothing else with it.
    pub narrow: bool,
    /// The search has ended; when it is due the next time, it starts over.
    pub over: bool,
    /// Probes in a row that taught nothing.
    pub vain: u8,
    /// The probe that is out.
    pub probe: Option<Probe>,
}

/// A segment that is larger than what is known to pass.
#[derive(Debug)]
pub(super) struct Probe {
    /// Its first octet, and one past its last.
    pub seq: Seq,
    pub end: Seq,
    pub size: u16,
    /// A router has named what it takes instead.
    pub told: Option<u16>,
    /// It was lost, and is sent again in small segments: SND.NXT when that began.
    pub repair: Option<Seq>,
}

impl Search {
    pub fn new(high: u16) -> Search {
        Search {
            high,
            try_high: true,
            narrow: false,
            over: false,
            vain: 0,
            probe: None,
        }
    }

    /// The size of the next probe, above `low`, which passes.
    pub fn next(&self, low: u16) -> u16 {
        match self.try_high {
            true => self.high,
            false => low + (self.high - low).div_ceil(2),
        }
    }
}

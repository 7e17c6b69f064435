//! Leaving slow start before the first loss.

/// How slow start ends early.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum HyStart {
    /// It does not.
    Off,
    /// HyStart as Linux's CUBIC does it: a long train of closely spaced acknowledgments, or
    /// a round whose smallest RTT exceeds the minimum by an eighth.
    #[default]
    Classic,
    /// HyStart++ (RFC 9406).
    PlusPlus,
}

/// Round state.
#[derive(Clone, Debug, Default)]
pub(super) struct HyState {}

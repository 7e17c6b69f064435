//! What TCP hears of its next hop (RFC 4861, section 7.3.1): an acknowledgment of something that
//! was sent by a neighbour shows that this is there, so it need not be asked.
//!
//! Most connections go by a neighbour that was heard not long ago, and nobody waits for a word of
//! theirs. So those of whom one is waited for are guarded, as those that are bound to an interface
//! are: header prediction leaves their segments, and nothing is looked at for any other.

use perimeter_base::Time;
use perimeter_wire::Seq;

/// A word that is waited for.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Hint {
    /// What is acknowledged beyond that was sent by that neighbour.
    pub(crate) beyond: Seq,
    /// Then the neighbour is asked.
    pub(crate) until: Time,
}

impl Hint {
    /// Whether it has come, when everything before `una` is acknowledged; `None`: it is waited for on.
    pub(crate) fn heard(self, una: Seq, now: Time) -> Option<bool> {
        match una.gt(self.beyond) {
            true => Some(true),
            false => (now >= self.until).then_some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_says_nothing() {
        let hint = Hint {
            beyond: Seq(u32::MAX),
            until: Time(7),
        };
        for (una, now, want) in [
            (Seq(u32::MAX - 9), Time(6), None),
            (Seq(u32::MAX), Time(6), None),
            (Seq(0), Time(6), Some(true)),
            (Seq(u32::MAX), Time(7), Some(false)),
            (Seq(9), Time(7), Some(true)),
        ] {
            assert_eq!(hint.heard(una, now), want, "{una:?} {now:?}");
        }
    }
}

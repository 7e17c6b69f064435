//! Doorbells that a thread keeps back while it sends a batch, so that the device is told once of what
//! many calls have sent. Linux does the same where a driver is told that more comes (`xmit_more`).
//!
//! A doorbell takes the transmit ring's lock and moves the ring, the device and what the device knows of
//! the connection to the calling core, which costs most where several threads share a ring.

/// Calls whose doorbells wait for one more at most.
pub const MOST: u32 = 32;

/// What one thread keeps back.
#[derive(Debug, Default)]
pub struct Kept {
    /// How often the thread has said that it sends a batch, and not yet that it has ended.
    pub batches: u32,
    /// Calls since something is kept.
    calls: u32,
    /// The transmit queues.
    queues: Vec<u16>,
}

impl Kept {
    /// Whether nothing is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A call would ring `bells`. If they can wait, takes them and returns true. Otherwise, and where
    /// somebody waits for room in a ring (`full`), adds those that have waited.
    pub fn keep(&mut self, bells: &mut Vec<u16>, full: bool) -> bool {
        if bells.is_empty() {
            return false;
        }
        let waits = self.batches > 0 && self.calls + 1 < MOST && !full;
        let (from, to) = match waits {
            true => (&mut *bells, &mut self.queues),
            false => (&mut self.queues, &mut *bells),
        };
        for q in from.drain(..) {
            if !to.contains(&q) {
                to.push(q);
            }
        }
        self.calls = if waits { self.calls + 1 } else { 0 };
        waits
    }

    /// All that waits, which waits no more.
    pub fn take(&mut self) -> Vec<u16> {
        self.calls = 0;
        core::mem::take(&mut self.queues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a thread that sends a batch.
    fn sending() -> Kept {
        Kept {
            batches: 1,
            ..Kept::default()
        }
    }

    #[test]
    fn nothing_waits_outside_a_batch() {
        let mut kept = Kept::default();
        let mut bells = vec![3];
        assert!(!kept.keep(&mut bells, false));
        assert_eq!(bells, [3]);
        assert!(kept.is_empty());
    }

    #[test]
    fn the_last_of_many_rings_for_all() {
        let mut kept = sending();
        for round in 0..2 {
            for call in 1..MOST {
                let mut bells = vec![(call % 2) as u16];
                assert!(kept.keep(&mut bells, false), "{round}, {call}");
                assert!(bells.is_empty());
            }
            let mut bells = vec![7];
            assert!(!kept.keep(&mut bells, false), "{round}");
            bells.sort_unstable();
            assert_eq!(bells, [0, 1, 7]);
            assert!(kept.is_empty());
        }
    }

    #[test]
    fn a_call_without_a_doorbell_leaves_others_waiting() {
        let mut kept = sending();
        assert!(kept.keep(&mut vec![2], false));
        let mut none = Vec::new();
        assert!(!kept.keep(&mut none, false));
        assert!(none.is_empty());
        assert_eq!(kept.take(), [2]);
        assert!(kept.is_empty());
    }

    #[test]
    fn nothing_waits_where_a_ring_is_full() {
        let mut kept = sending();
        assert!(kept.keep(&mut vec![2], false));
        let mut bells = vec![1];
        assert!(!kept.keep(&mut bells, true));
        assert_eq!(bells, [1, 2]);
    }

    #[test]
    fn what_waited_goes_with_the_first_call_behind_the_batch() {
        let mut kept = sending();
        assert!(kept.keep(&mut vec![2], false));
        kept.batches = 0;
        let mut bells = vec![1];
        assert!(!kept.keep(&mut bells, false));
        assert_eq!(bells, [1, 2]);
    }
}

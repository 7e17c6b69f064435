//! What threads charge to the stack's account, and what connections may pin by it.

use super::*;
use crate::count::Count;
use crate::own::Own;
use crate::shared::SharedState;

impl<K: Kind> SharedState<K> {
    /// Counts what a burst or call has charged, and reports it when it has come to a batch; and how
    /// many segments were predicted.
    #[inline]
    pub fn book(&self, own: &mut Own<K>) {
        if !own.owes() {
            return;
        }
        let predicted = core::mem::take(&mut own.predicted);
        self.count(own.lane, Count::RxFast, u64::from(predicted));
        let n = core::mem::take(&mut own.charged);
        if n > 0 {
            self.count(own.lane, Count::MemCharged, n.unsigned_abs());
        } else {
            self.count(own.lane, Count::MemReleased, n.unsigned_abs());
        }
        own.unreported += n;
        let unreported = own.unreported.unsigned_abs();
        if unreported >= self.memory.batch && (unreported >= own.batch || self.memory_short()) {
            self.report(own);
        }
    }

    #[cold]
    fn report(&self, own: &mut Own<K>) {
        let used = {
            let mut reported = self.memory.reported.lock();
            *reported += core::mem::take(&mut own.unreported);
            *reported
        };
        let used = used.max(0) as u64;
        own.batch = self.memory.batch_at(used);
        self.memory.weigh(used);
    }

    /// Memory that connections pin, and what is set aside for them, bytes: a sum over threads,
    /// not a snapshot.
    pub fn memory(&self) -> u64 {
        let charged = self.counters.sum(Count::MemCharged as usize);
        charged.saturating_sub(self.counters.sum(Count::MemReleased as usize))
    }

    /// Looks how much memory is used. Called by timers.
    pub fn watch_memory(&self) {
        self.memory.weigh(self.memory());
    }

    /// Whether connections are held to their shares.
    #[inline]
    pub fn memory_short(&self) -> bool {
        self.memory.share.load(Ordering::Relaxed) != PLENTY
    }

    /// Whether there is none for new connections.
    #[inline]
    pub fn memory_full(&self) -> bool {
        self.memory.share.load(Ordering::Relaxed) == 0
    }

    /// What one direction of a connection may pin now, bytes. Not less than [`SET_ASIDE`].
    #[inline]
    pub fn share(&self) -> usize {
        (self.memory.share.load(Ordering::Relaxed) as usize).max(SET_ASIDE)
    }

    /// How many bytes a writer may append now to a send side that pins `held` bytes, or nothing
    /// if `empty`, while memory is short: within its share, and within what it is `trusted` with
    /// ([`Trust`]). `chunk` is what appending a little may cost.
    pub fn room_to_write(&self, held: usize, empty: bool, chunk: usize, trusted: usize) -> usize {
        let share = self.share().min(trusted);
        if empty {
            return ONE_SEGMENT.max(share - (SET_ASIDE - ONE_SEGMENT));
        }
        // Short of that, a page for a few bytes would go beyond the share.
        match share.saturating_sub(held) {
            room if room >= chunk.max(ONE_SEGMENT) => room,
            _ => 0,
        }
    }

    /// A connection holds much that is out of order.
    #[cold]
    pub(crate) fn hoards(&self, id: SockId) {
        self.memory.hoards.lock().push_back(id);
    }

    /// Connections that are to drop what they hold out of order, if memory is short, or to say
    /// whether they still do, if there are many: a few at a time. And whether they are to drop it.
    pub fn hoarders(&self) -> (VecDeque<SockId>, bool) {
        let drop = self.memory() >= self.memory.limit / 4 * 3;
        let mut all = self.memory.hoards.lock();
        if !drop && all.len() <= 8 * ASKED {
            return (VecDeque::new(), false);
        }
        let n = all.len().min(ASKED);
        (all.drain(..n).collect(), drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use perimeter_sync::Native;

    #[test]
    fn who_takes_nothing_gets_one_segment() {
        let config = crate::shared::Config::default();
        let m = SharedState::<OneThread>::new(Native::default(), config, Vec::new(), Vec::new());
        for rtt in [1, 100, 300, 600] {
            let mut t = Trust::default();
            let mut at = 10_000;
            let mut room = |after| {
                at += after;
                m.room_to_write(0, true, 0, t.bytes(true, Time::from_millis(at)))
            };
            // The peer takes it in a round trip each time.
            assert_eq!(room(0), ONE_SEGMENT);
            assert_eq!(room(rtt), 2 * ONE_SEGMENT);
            assert_eq!(room(rtt), 3 * ONE_SEGMENT);
            assert_eq!(room(rtt), 5 * ONE_SEGMENT);
            for _ in 0..100 {
                room(rtt);
            }
            assert!(room(rtt) >= 1 << 20);
            // 2,048 bytes in 0.8 s.
            for _ in 0..10 {
                assert_eq!(room(800), ONE_SEGMENT);
            }
            // What is under way counts.
            let trusted = t.bytes(false, Time::from_millis(at + 1));
            assert_eq!(m.room_to_write(1000, false, 0, trusted), 0);
        }
    }

    #[test]
    fn threads_report_less_often_while_little_is_used() {
        let gib = 1 << 30;
        for limit in [1 << 20, 64 << 20, gib, 64 * gib] {
            let m = Memory::<OneThread>::new(&Native::default(), limit);
            let mut last = u64::MAX;
            for used in (0..=limit).step_by(limit as usize / 64) {
                let batch = m.batch_at(used);
                assert!(m.batch <= batch && batch <= last && batch <= 1 << 20);
                // What 64 threads keep to themselves does not hide that memory is short.
                assert!(
                    batch == m.batch || used + 64 * batch <= limit / 4,
                    "{limit} {used}"
                );
                last = batch;
            }
            assert_eq!(last, m.batch);
        }
        let m = Memory::<OneThread>::new(&Native::default(), gib);
        assert_eq!(
            [0, gib / 4].map(|used| m.batch_at(used)),
            [1 << 20, 64 << 10]
        );
    }

    #[test]
    fn shares_shrink_as_memory_fills_and_states_last_a_while() {
        let mib = 1 << 20;
        let m = Memory::<OneThread>::new(&Native::default(), 64 * mib);
        let at = |used| {
            m.weigh(used);
            m.share.load(Ordering::Relaxed)
        };
        assert_eq!(at(0), PLENTY);
        assert_eq!(at(24 * mib - 1), PLENTY);
        let mut last = PLENTY;
        for used in 24..64 {
            let share = at(used * mib);
            assert!(share >= 1 && share <= last, "{used}: {share}");
            assert!(u64::from(share) * 16 <= (56 * mib).saturating_sub(used * mib).max(16));
            last = share;
        }
        assert_eq!(last, 1);
        assert_eq!(at(64 * mib), 0);
        assert_eq!(at(60 * mib), 0, "still full");
        assert_eq!(at(59 * mib), 1);
        assert!(at(23 * mib) < PLENTY, "still short");
        assert_eq!(at(15 * mib), PLENTY);
        assert_eq!(at(u64::MAX), 0);
    }
}

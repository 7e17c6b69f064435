//! `per-connection`: which thread a connection has, where that is not the one that its hash
//! names.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_wire::FlowKey;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Locks that the map is spread over.
const PARTS: usize = 64;

/// Yates' map from connections to threads. A connection whose thread by hash has one already gets
/// another without, as long as there are any.
pub(crate) struct Demux<P: Platform> {
    /// Connections that are not where their hash says.
    moved: Box<[P::Lock<HashMap<FlowKey, usize>>]>,
    /// Connections of each thread, and those on their way to it.
    load: Box<[AtomicU32]>,
    /// The first thread that connections are picked for; those below have none.
    first: usize,
    /// Where the search for a thread without connection begins.
    next: AtomicUsize,
}

impl<P: Platform> Demux<P> {
    /// For so many threads, of which those from `first` on take connections.
    pub(crate) fn new(p: &P, threads: usize, first: usize) -> Demux<P> {
        Demux {
            moved: (0..PARTS)
                .map(|_| p.lock(LockClass::ConnHashtable, HashMap::new()))
                .collect(),
            load: (0..threads).map(|_| AtomicU32::new(0)).collect(),
            first,
            next: AtomicUsize::new(0),
        }
    }

    fn part(&self, key: &FlowKey) -> &P::Lock<HashMap<FlowKey, usize>> {
        let ports = usize::from(key.local_port) * 31 + usize::from(key.remote_port);
        &self.moved[ports % PARTS]
    }

    /// The thread of a flow that has been moved.
    pub(crate) fn find(&self, key: &FlowKey) -> Option<usize> {
        self.part(key).lock().get(key).copied()
    }

    /// Runs `f` with the thread of a flow, `home` unless it has been moved. What `f` leaves there
    /// is there before any [`Demux::claim`] that comes later.
    pub(crate) fn route<R>(&self, key: &FlowKey, home: usize, f: impl FnOnce(usize) -> R) -> R {
        let part = self.part(key).lock();
        f(part.get(key).copied().unwrap_or(home))
    }

    /// From now on the flow's packets go to `thread`; false, if it is claimed already, for that very
    /// thread too: whoever claims it again is another, and is not to release it.
    pub(crate) fn claim(&self, key: FlowKey, thread: usize) -> bool {
        let mut part = self.part(&key).lock();
        match part.entry(key) {
            Entry::Vacant(free) => {
                free.insert(thread);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The flow is no longer on `thread`.
    pub(crate) fn release(&self, key: &FlowKey, thread: usize) {
        let mut part = self.part(key).lock();
        if part.get(key) == Some(&thread) {
            part.remove(key);
        }
    }

    /// A thread for a new connection, with a place on it kept: `home` if it has none, else
    /// another that has none, else `home` all the same.
    pub(crate) fn pick(&self, home: usize) -> usize {
        let n = self.load.len() - self.first;
        let free = |t: &usize| {
            let load = &self.load[*t];
            load.load(Ordering::Relaxed) == 0
                && load
                    .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        };
        let start = self.next.load(Ordering::Relaxed);
        let others = (0..n).map(|i| self.first + (start + i) % n);
        match core::iter::once(home).chain(others).find(free) {
            Some(t) => {
                self.next.store(t + 1 - self.first, Ordering::Relaxed);
                t
            }
            None => {
                self.load[home].fetch_add(1, Ordering::Relaxed);
                home
            }
        }
    }

    /// A connection has come to be on `thread`.
    pub(crate) fn there(&self, thread: usize) {
        self.load[thread].fetch_add(1, Ordering::Relaxed);
    }

    /// It has gone; or the place that was kept for it is not needed any more.
    pub(crate) fn left(&self, thread: usize) {
        self.load[thread].fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for part in &self.moved {
            add(LockClass::ConnHashtable, part.stats());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_sync::Native;

    fn key(remote_port: u16) -> FlowKey {
        FlowKey {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, 2].into(),
            local_port: 1,
            remote_port,
        }
    }

    #[test]
    fn each_connection_has_a_thread_until_there_are_too_many() {
        let d = Demux::new(&Native::new(), 5, 0);
        let mut all: Vec<_> = (0..5).map(|_| d.pick(3)).collect();
        assert_eq!(all[0], 3);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        // Shared beyond.
        assert_eq!((d.pick(3), d.pick(1)), (3, 1));
        d.left(2);
        assert_eq!(d.pick(0), 2);
    }

    #[test]
    fn some_threads_take_no_connections() {
        let d = Demux::new(&Native::new(), 5, 2);
        let mut all: Vec<_> = (0..3).map(|_| d.pick(3)).collect();
        assert_eq!(all[0], 3);
        all.sort_unstable();
        assert_eq!(all, [2, 3, 4]);
        assert_eq!(d.pick(4), 4);
        d.left(2);
        assert_eq!(d.pick(4), 2);
    }

    #[test]
    fn a_flow_belongs_to_one_thread_until_that_lets_it_go() {
        let d = Demux::new(&Native::new(), 5, 0);
        assert_eq!(d.route(&key(1), 2, |t| t), 2);
        assert!(d.claim(key(1), 4));
        assert!(!d.claim(key(1), 3) && !d.claim(key(1), 4));
        assert_eq!(d.route(&key(1), 2, |t| t), 4);
        d.release(&key(1), 3);
        assert_eq!(d.find(&key(1)), Some(4));
        d.release(&key(1), 4);
        assert_eq!(d.find(&key(1)), None);
        assert!(d.claim(key(1), 3) && d.claim(key(2), 4));
    }
}

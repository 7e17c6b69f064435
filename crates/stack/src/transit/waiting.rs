//! Datagrams that wait until a neighbour's station is known.
//!
//! Whoever sends to addresses that nobody has makes datagrams wait, so how many and how much of them
//! is bounded, for each neighbour and in all: the oldest go.

use super::Transit;
use crate::kind::{Kind, Lk, lock};
use crate::neighbour::ASK_AGAIN;
use crate::net::Hop;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass};
use std::collections::VecDeque;

/// How long one waits, ns: three requests.
pub(crate) const LONGEST: u64 = 3 * ASK_AGAIN;
/// The most for one neighbour, and the most for all.
const EACH: usize = 16;
const MOST: usize = 256;
/// The most memory of all, octets.
const OCTETS: usize = 1 << 20;

struct One {
    hop: Hop,
    until: Time,
    t: Transit,
}

#[derive(Default)]
struct List {
    all: VecDeque<One>,
    octets: usize,
    asked: Time,
}

/// What waits.
pub(crate) struct Waiting<K: Kind> {
    list: Lk<K, List>,
    /// When somebody is to look, ns; never, when nothing waits.
    at: AtomicU64,
}

impl List {
    fn remove(&mut self, n: usize) -> Option<One> {
        let one = self.all.remove(n)?;
        self.octets -= one.t.buf.capacity();
        Some(one)
    }

    /// Takes out what `leaves` says.
    fn drain(&mut self, leaves: impl Fn(&One) -> bool) -> Vec<One> {
        let mut out = Vec::new();
        while let Some(n) = self.all.iter().position(&leaves) {
            out.extend(self.remove(n));
        }
        out
    }

    fn due(&self) -> Time {
        let until = self.all.iter().map(|one| one.until).min();
        until.map_or(Time::NEVER, |until| until.min(self.asked.plus(ASK_AGAIN)))
    }
}

impl<K: Kind> Waiting<K> {
    pub(crate) fn new(p: &K::P) -> Waiting<K> {
        Waiting {
            list: lock::<K, _>(p, LockClass::Leaf, List::default()),
            at: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// When [`Waiting::look`] has something to do: not later than that.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        Time(self.at.load(Ordering::Relaxed))
    }

    /// Keeps a datagram until `until`; those that have to go for that.
    pub(crate) fn wait(&self, hop: Hop, until: Time, t: Transit) -> Vec<Transit> {
        let mut lost = Vec::new();
        let mut list = self.list.lock();
        let same = list.all.iter().filter(|one| one.hop == hop).count();
        if same >= EACH {
            let oldest = list.all.iter().position(|one| one.hop == hop);
            lost.extend(oldest.and_then(|n| list.remove(n)));
        }
        if list.all.is_empty() {
            // It was asked for just now.
            list.asked = Time(until.0.saturating_sub(LONGEST));
        }
        list.octets += t.buf.capacity();
        list.all.push_back(One { hop, until, t });
        while list.all.len() > MOST || list.octets > OCTETS {
            let Some(one) = list.remove(0) else { break };
            lost.push(one);
        }
        self.at.store(list.due().0, Ordering::Relaxed);
        drop(list);
        lost.into_iter().map(|one| one.t).collect()
    }

    /// What waits for that neighbour, in order, and until when.
    pub(crate) fn take(&self, (iface, next): (u16, IpAddr)) -> Vec<(Time, Transit)> {
        let hop = Hop { iface, next };
        let mut list = self.list.lock();
        let out = list.drain(|one| one.hop == hop);
        self.at.store(list.due().0, Ordering::Relaxed);
        drop(list);
        out.into_iter().map(|one| (one.until, one.t)).collect()
    }

    /// What has waited long enough; and the neighbours that others wait for, each with a destination
    /// behind it, if it is time to ask again.
    pub(crate) fn look(&self, now: Time) -> (Vec<Transit>, Vec<(Hop, IpAddr)>) {
        let mut list = self.list.lock();
        let lost = list.drain(|one| one.until <= now);
        let mut hops: Vec<(Hop, IpAddr)> = Vec::new();
        if now >= list.asked.plus(ASK_AGAIN) {
            list.asked = now;
            for one in &list.all {
                if hops.iter().all(|(hop, _)| *hop != one.hop) {
                    hops.push((one.hop, one.t.ip.dst));
                }
            }
        }
        self.at.store(list.due().0, Ordering::Relaxed);
        drop(list);
        (lost.into_iter().map(|one| one.t).collect(), hops)
    }
}

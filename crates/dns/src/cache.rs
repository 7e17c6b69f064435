//! What was learnt, for as long as it may be believed (RFC 2308 for what there is not).

use crate::message::Kind;
use perimeter_base::Time;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// What is known of a name, of one kind of address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its addresses, at least one.
    Found(Arc<[IpAddr]>),
    /// It has none.
    NoData,
    /// There is no such name.
    NoName,
}

type Key = (Arc<str>, Kind);

/// An entry's own size with its places in both tables, about.
const OVERHEAD: usize = 160;

fn size(name: &str, known: &Known) -> usize {
    let addrs = match known {
        Known::Found(all) => all.len() * size_of::<IpAddr>(),
        _ => 0,
    };
    OVERHEAD + name.len() + addrs
}

/// Bounded in entries and in octets: what would be forgotten first anyway goes first.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<Key, (Known, Time)>,
    /// In the order in which they are forgotten.
    ends: BTreeSet<(Time, Key)>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Cache {
    /// An empty one.
    pub fn new(max_entries: usize, max_bytes: usize) -> Cache {
        Cache {
            entries: HashMap::new(),
            ends: BTreeSet::new(),
            bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// What is known of `name` at `now`.
    pub fn get(&self, name: &str, kind: Kind, now: Time) -> Option<Known> {
        let (known, until) = self.entries.get(&(Arc::from(name), kind))?;
        (now < *until).then(|| known.clone())
    }

    /// Remembers until `until`, and forgets what is over.
    pub fn insert(&mut self, name: &str, kind: Kind, known: Known, (now, until): (Time, Time)) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            self.forget_first();
        }
        let (key, new) = ((Arc::from(name), kind), size(name, &known));
        self.remove(&key);
        if until <= now || self.max_entries == 0 || new > self.max_bytes {
            return;
        }
        while self.entries.len() >= self.max_entries || self.bytes + new > self.max_bytes {
            self.forget_first();
        }
        self.bytes += new;
        self.ends.insert((until, key.clone()));
        self.entries.insert(key, (known, until));
    }

    fn forget_first(&mut self) {
        if let Some((_, key)) = self.ends.first().cloned() {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some((known, until)) = self.entries.remove(key) {
            self.bytes -= size(&key.0, &known);
            self.ends.remove(&(until, key.clone()));
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Cache::new(self.max_entries, self.max_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(n: u8) -> Known {
        Known::Found([IpAddr::from([10, 0, 0, n])].into())
    }

    fn times(now: u64, until: u64) -> (Time, Time) {
        (Time(now), Time(until))
    }

    #[test]
    fn until_its_time_is_over() {
        let mut c = Cache::new(10, 10_000);
        c.insert("a", Kind::A, found(1), times(0, 10));
        c.insert("a", Kind::Aaaa, Known::NoData, times(0, 20));
        assert_eq!(c.get("a", Kind::A, Time(9)), Some(found(1)));
        assert_eq!(c.get("a", Kind::A, Time(10)), None);
        assert_eq!(c.get("a", Kind::Aaaa, Time(10)), Some(Known::NoData));
        assert_eq!(c.get("b", Kind::A, Time(0)), None);
        // What is over goes with the next that comes.
        c.insert("b", Kind::A, found(2), times(15, 30));
        assert_eq!((c.entries.len(), c.ends.len()), (2, 2));
        // A newer answer takes the place of the older one, also one that is not to be kept.
        c.insert("b", Kind::A, Known::NoName, times(16, 40));
        assert_eq!(c.get("b", Kind::A, Time(35)), Some(Known::NoName));
        c.insert("b", Kind::A, found(3), times(36, 36));
        assert_eq!(c.get("b", Kind::A, Time(36)), None);
    }

    #[test]
    fn bounded_in_entries_and_octets() {
        let mut c = Cache::new(4, 10_000);
        for n in 0..100u8 {
            c.insert(
                &n.to_string(),
                Kind::A,
                found(n),
                times(0, 1_000 - u64::from(n)),
            );
            assert!(c.entries.len() <= 4 && c.ends.len() == c.entries.len());
        }
        // Those that end first went first.
        assert!(c.get("0", Kind::A, Time(1)).is_some());
        let mut c = Cache::new(1_000, 3 * OVERHEAD);
        for n in 0..100u8 {
            c.insert(&n.to_string(), Kind::A, found(n), times(0, 100));
            assert!(c.bytes <= 3 * OVERHEAD && c.entries.len() <= 2);
        }
        let much = Known::Found(vec![IpAddr::from([1, 1, 1, 1]); 100].into());
        c.insert("much", Kind::A, much, times(0, 100));
        assert_eq!(c.get("much", Kind::A, Time(0)), None);
        c.clear();
        assert_eq!((c.bytes, c.entries.len()), (0, 0));
        let mut none = Cache::new(0, 10_000);
        none.insert("a", Kind::A, found(1), times(0, 10));
        assert_eq!(none.get("a", Kind::A, Time(0)), None);
    }
}

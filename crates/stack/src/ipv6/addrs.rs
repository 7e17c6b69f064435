//! The IPv6 addresses of a stack: a table that changes while it lives, read without a lock.

use core::net::Ipv6Addr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// How far an address has come (RFC 4862, section 2).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is being looked at whether somebody else has it: not used yet.
    Tentative = 1,
    /// Used, but not for new connections if there is another one.
    Deprecated = 2,
    /// Used.
    Preferred = 3,
}

/// An address and whose it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The address, with its zone if it is a link-local one.
    pub addr: Ipv6Addr,
    /// The interface.
    pub iface: u16,
    /// Prefix length in bits.
    pub prefix: u8,
    /// How far it has come.
    pub state: State,
}

/// One place. Whoever changes addresses holds the lock over all of them; whoever reads sees an
/// address whole or not at all: `meta` has another number after each change, and says 0, "nobody",
/// while the others change.
#[derive(Default)]
struct Slot {
    high: AtomicU64,
    low: AtomicU64,
    /// From the lowest bit: state, 8; prefix length, 8; interface, 16; number of the change, 32.
    meta: AtomicU64,
}

impl Slot {
    fn read(&self) -> Option<Held> {
        let meta = self.meta.load(Ordering::Acquire);
        let state = state(meta)?;
        let high = self.high.load(Ordering::Relaxed);
        let low = self.low.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // It has changed meanwhile, so it was nobody's for a moment: that moment is what was seen.
        (self.meta.load(Ordering::Relaxed) == meta).then(|| Held {
            addr: Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)),
            iface: (meta >> 16) as u16,
            prefix: (meta >> 8) as u8,
            state,
        })
    }

    /// As [`Slot::read`], if the address is `ip`: at one comparison if it is not.
    #[inline]
    fn is(&self, ip: u128) -> Option<Held> {
        match self.low.load(Ordering::Relaxed) == ip as u64 {
            true => self.read().filter(|held| held.addr.to_bits() == ip),
            false => None,
        }
    }

    fn write(&self, held: Option<Held>) {
        let change = (self.meta.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        self.meta.store(change, Ordering::Relaxed);
        fence(Ordering::Release);
        let Some(h) = held else { return };
        let bits = h.addr.to_bits();
        self.high.store((bits >> 64) as u64, Ordering::Relaxed);
        self.low.store(bits as u64, Ordering::Relaxed);
        let what = h.state as u64 | u64::from(h.prefix) << 8 | u64::from(h.iface) << 16;
        self.meta.store(change | what, Ordering::Release);
    }
}

fn state(meta: u64) -> Option<State> {
    match meta as u8 {
        1 => Some(State::Tentative),
        2 => Some(State::Deprecated),
        3 => Some(State::Preferred),
        _ => None,
    }
}

/// The table.
pub struct Addresses {
    slots: Box<[Slot]>,
    /// Places that were ever used.
    used: AtomicUsize,
}

impl Addresses {
    /// No address; room for so many.
    pub(crate) fn new(room: usize) -> Addresses {
        Addresses {
            slots: (0..room).map(|_| Slot::default()).collect(),
            used: AtomicUsize::new(0),
        }
    }

    #[inline]
    fn used(&self) -> &[Slot] {
        let used = self.used.load(Ordering::Acquire);
        self.slots.get(..used).unwrap_or_default()
    }

    /// The entry of that address, be it tentative.
    #[inline]
    pub fn find(&self, ip: Ipv6Addr) -> Option<Held> {
        let ip = ip.to_bits();
        self.used().iter().find_map(|slot| slot.is(ip))
    }

    /// Whether that address is ours and not tentative.
    #[inline]
    pub fn owns(&self, ip: Ipv6Addr) -> bool {
        self.find(ip).is_some_and(|h| h.state > State::Tentative)
    }

    /// Whether at a glance `local` is ours and not tentative, and `remote` is not ours, nor was it
    /// lately: one way through the table for both. `false` says nothing.
    #[inline(always)]
    pub(crate) fn between(&self, local: Ipv6Addr, remote: Ipv6Addr) -> bool {
        let (local, remote) = (local.to_bits(), remote.to_bits());
        let mut ours = false;
        for slot in self.used() {
            let low = slot.low.load(Ordering::Relaxed);
            if low == remote as u64 && slot.high.load(Ordering::Relaxed) == (remote >> 64) as u64 {
                return false;
            }
            ours |= low == local as u64
                && slot
                    .is(local)
                    .is_some_and(|held| held.state > State::Tentative);
        }
        ours
    }

    /// All addresses, in the order in which they were added.
    pub fn all(&self) -> impl Iterator<Item = Held> + '_ {
        self.used().iter().filter_map(Slot::read)
    }

    /// Those of an interface.
    pub fn of(&self, iface: u16) -> impl Iterator<Item = Held> + '_ {
        self.all().filter(move |h| h.iface == iface)
    }

    /// Adds an address, or changes it; `false`: there is no room. The caller alone does so.
    pub(crate) fn set(&self, held: Held) -> bool {
        let free = |slot: &&Slot| state(slot.meta.load(Ordering::Relaxed)).is_none();
        let own = |slot: &&Slot| slot.is(held.addr.to_bits()).is_some();
        let used = self.used();
        if let Some(slot) = used.iter().find(own).or_else(|| used.iter().find(free)) {
            slot.write(Some(held));
            return true;
        }
        let n = used.len();
        let Some(slot) = self.slots.get(n) else {
            return false;
        };
        slot.write(Some(held));
        self.used.store(n + 1, Ordering::Release);
        true
    }

    /// Removes an address. The caller alone does so.
    pub(crate) fn remove(&self, ip: Ipv6Addr) {
        let found = self.used().iter().find(|s| s.is(ip.to_bits()).is_some());
        if let Some(slot) = found {
            slot.write(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn held(n: u128, state: State) -> Held {
        Held {
            // Both halves tell the number, so that a mixture shows.
            addr: Ipv6Addr::from_bits(n << 64 | n),
            iface: 3,
            prefix: 64,
            state,
        }
    }

    #[test]
    fn places_are_used_again_and_bounded() {
        let table = Addresses::new(2);
        for n in 1..3 {
            assert!(table.set(held(n, State::Tentative)));
        }
        assert!(!table.set(held(3, State::Preferred)));
        assert!(!table.owns(held(1, State::Tentative).addr));
        assert!(table.set(held(1, State::Preferred)) && table.owns(held(1, State::Preferred).addr));
        assert_eq!((table.all().count(), table.of(3).count()), (2, 2));
        table.remove(held(1, State::Preferred).addr);
        assert_eq!(table.find(held(1, State::Preferred).addr), None);
        assert!(table.set(held(3, State::Deprecated)));
        assert_eq!(
            table.find(held(3, State::Preferred).addr),
            Some(held(3, State::Deprecated))
        );
        assert_eq!(table.of(0).count(), 0);
    }

    #[test]
    fn what_is_between_us_and_a_host_is_seen_at_a_glance() {
        let table = Addresses::new(4);
        let ours = held(1, State::Preferred).addr;
        let same_tail = Ipv6Addr::from_bits(7 << 64 | 1);
        assert!(!table.between(ours, same_tail));
        table.set(held(2, State::Tentative));
        table.set(held(1, State::Preferred));
        table.set(held(3, State::Deprecated));
        for (local, remote, plain) in [
            (ours, held(9, State::Preferred).addr, true),
            (held(3, State::Preferred).addr, same_tail, true),
            // Addresses whose lower halves are one are still two.
            (ours, same_tail, true),
            (same_tail, held(9, State::Preferred).addr, false),
            // Tentative, and from ourselves.
            (held(2, State::Preferred).addr, same_tail, false),
            (ours, held(2, State::Preferred).addr, false),
            (ours, held(3, State::Preferred).addr, false),
            (ours, ours, false),
        ] {
            assert_eq!(table.between(local, remote), plain, "{local} {remote}");
        }
        table.remove(ours);
        assert!(!table.between(ours, same_tail));
    }

    #[test]
    fn readers_see_addresses_whole() {
        let (table, end) = (
            Arc::new(Addresses::new(1)),
            Arc::new(AtomicBool::new(false)),
        );
        let (t, e) = (table.clone(), end.clone());
        let reader = std::thread::spawn(move || {
            let mut seen = 0;
            while !e.load(Ordering::Relaxed) {
                for h in t.all() {
                    let bits = h.addr.to_bits();
                    assert_eq!(bits >> 64, bits & u128::from(u64::MAX));
                    seen += 1;
                }
            }
            seen
        });
        for n in 1..200_000 {
            table.set(held(n, State::Preferred));
            table.remove(held(n, State::Preferred).addr);
        }
        table.set(held(1, State::Preferred));
        std::thread::sleep(std::time::Duration::from_millis(5));
        end.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    }
}

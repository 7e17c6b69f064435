//! MTUs of paths, as routers tell them (RFC 1191, RFC 8201): a bounded table by destination, which
//! sockets read when they prepare their headers and connections when they open.
//!
//! A message is believed if what it quotes fits what was sent (RFC 5927, section 7): a segment that a
//! connection has in flight, or a datagram of a flow on which a live socket has sent within 30 s,
//! longer than the MTU that the message names. It only ever lowers an MTU, never below TCP's
//! `MIN_PMTU` or IPv6's least, and is forgotten after ten minutes.

use crate::ipv6::MIN_MTU;
use crate::kind::{Kind, Lk, lock};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use hashbrown::HashMap;
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass};
use perimeter_tcp::config::MIN_PMTU;
use perimeter_wire::{IpHdr, Ipv4Hdr};

/// How long an MTU is believed after a router has named it (RFC 1191, section 6.3).
const AGE: Duration = Duration::from_secs(600);
/// Destinations that are remembered. Beyond it the one that was told longest ago goes: at worst it
/// is told again.
const DESTINATIONS: usize = 1024;
/// The smallest MTU of IPv4 that is believed, octets, as TCP has it. What says less gets this, and
/// routers may cut datagrams further.
const MIN_V4: u32 = MIN_PMTU as u32;
/// Flows of datagrams that are remembered as sent on. A power of two.
const FLOWS: usize = 4096;
/// How long after a datagram an error about it is believed, s. Prepared headers are made anew each
/// second, so a flow in use is always younger.
const RECENT: u32 = 30;

/// What stood on links before RFC 1191, for routers that name no MTU (its section 7, with 576 for
/// what is smaller), octets.
const PLATEAUS: [u32; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 576];

/// The MTU to try after a packet of `len` octets was too big for a link whose MTU was not said.
pub(crate) fn plateau(len: u32) -> u32 {
    let lower = PLATEAUS.into_iter().find(|p| *p < len);
    lower.unwrap_or(MIN_V4)
}

/// What is known of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Its MTU, octets.
    pub mtu: u32,
    /// Until when that is believed.
    pub until: Time,
    /// A router says less than is believed: datagrams of IPv4 must leave it to routers to cut them.
    pub narrow: bool,
}

type Known = HashMap<IpAddr, PathMtu, foldhash::fast::RandomState>;

/// The table, and which flows datagrams were sent on.
pub struct PathMtus<K: Kind> {
    known: Lk<K, Known>,
    len: AtomicUsize,
    /// At the flow's hash: that hash and, in the upper half, the second plus one.
    flows: Box<[AtomicU64]>,
}

impl<K: Kind> PathMtus<K> {
    /// Nothing is known.
    pub(crate) fn new(p: &K::P) -> PathMtus<K> {
        PathMtus {
            known: lock::<K, _>(p, LockClass::Leaf, Known::default()),
            len: AtomicUsize::new(0),
            flows: (0..FLOWS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// What is known of the path to `dst`. Costs one load while nothing is known of any.
    #[inline]
    pub fn get(&self, dst: IpAddr, now: impl FnOnce() -> Time) -> Option<PathMtu> {
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find(dst, now())
    }

    #[cold]
    fn find(&self, dst: IpAddr, now: Time) -> Option<PathMtu> {
        let mut known = self.known.lock();
        let found = *known.get(&dst)?;
        if found.until > now {
            return Some(found);
        }
        known.remove(&dst);
        self.len.store(known.len(), Ordering::Relaxed);
        None
    }

    /// A router says that a link towards `dst` takes `mtu` octets; whether that is less than was
    /// known. The same again keeps it for longer.
    pub(crate) fn learn(&self, dst: IpAddr, mtu: u32, now: Time) -> bool {
        let least = match dst {
            IpAddr::V4(_) => MIN_V4,
            IpAddr::V6(_) => MIN_MTU,
        };
        let new = PathMtu {
            mtu: mtu.max(least),
            until: now + AGE,
            narrow: dst.is_ipv4() && mtu < least,
        };
        let mut known = self.known.lock();
        let old = known.get(&dst).filter(|old| old.until > now);
        if let Some(old) = old {
            let lower = new.mtu < old.mtu || new.narrow && !old.narrow;
            if !lower && (new.mtu, new.narrow) != (old.mtu, old.narrow) {
                return false;
            }
            known.insert(dst, new);
            return lower;
        }
        if known.len() >= DESTINATIONS && !known.contains_key(&dst) {
            let oldest = known.iter().min_by_key(|(ip, p)| (p.until, **ip));
            if let Some(ip) = oldest.map(|(ip, _)| *ip) {
                known.remove(&ip);
            }
        }
        known.insert(dst, new);
        self.len.store(known.len(), Ordering::Relaxed);
        true
    }

    fn second(now: Time) -> u64 {
        (now.nanos() / 1_000_000_000 + 1) << 32
    }

    /// Datagrams are about to be sent on the flow of that hash.
    #[inline]
    pub(crate) fn sends(&self, hash: u32, now: Time) {
        let place = &self.flows[hash as usize % FLOWS];
        place.store(Self::second(now) | u64::from(hash), Ordering::Relaxed);
    }

    /// Whether datagrams were sent on the flow of that hash not long ago.
    pub(crate) fn has_sent(&self, hash: u32, now: Time) -> bool {
        let seen = self.flows[hash as usize % FLOWS].load(Ordering::Relaxed);
        let age = (Self::second(now) >> 32) as u32;
        let age = age.wrapping_sub((seen >> 32) as u32);
        seen >> 32 != 0 && seen as u32 == hash && age <= RECENT
    }
}

/// Octets that the header of IPv6 is longer than IPv4's, if `ip` is one of IPv6. TCP thinks in
/// IPv4's MTUs.
pub(crate) fn longer(ip: IpAddr) -> u16 {
    (IpHdr::len_to(ip) - Ipv4Hdr::LEN) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use perimeter_sync::Native;

    fn table() -> PathMtus<OneThread> {
        PathMtus::new(&Native::default())
    }

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn s(n: u64) -> Time {
        Time(n * 1_000_000_000)
    }

    fn mtu(t: &PathMtus<OneThread>, dst: IpAddr, at: u64) -> Option<(u32, bool)> {
        t.get(dst, || s(at)).map(|p| (p.mtu, p.narrow))
    }

    #[test]
    fn never_raised_and_forgotten_after_ten_minutes() {
        let t = table();
        assert_eq!(mtu(&t, ip(1), 0), None);
        for (at, told, news, believed) in [
            (0, 1400, true, 1400),
            (1, 1450, false, 1400),
            (2, 1280, true, 1280),
            (3, 1400, false, 1280),
            // The same again keeps it.
            (300, 1280, false, 1280),
        ] {
            assert_eq!(t.learn(ip(1), told, s(at)), news, "{told}");
            assert_eq!(mtu(&t, ip(1), at), Some((believed, false)));
        }
        assert_eq!(mtu(&t, ip(2), 300), None);
        assert_eq!(mtu(&t, ip(1), 899), Some((1280, false)));
        assert_eq!(mtu(&t, ip(1), 900), None);
        assert_eq!(t.len.load(Ordering::Relaxed), 0);
        assert!(
            t.learn(ip(1), 1400, s(901)),
            "what was forgotten is no bound"
        );
    }

    #[test]
    fn not_below_the_least() {
        let t = table();
        assert!(t.learn(ip(1), 68, s(0)));
        assert_eq!(mtu(&t, ip(1), 0), Some((552, true)));
        assert!(!t.learn(ip(1), 552, s(0)));
        assert_eq!(mtu(&t, ip(1), 0), Some((552, true)));
        assert!(t.learn(ip(2), 552, s(0)));
        assert_eq!(mtu(&t, ip(2), 0), Some((552, false)));
        assert!(t.learn(ip(2), 500, s(0)), "narrower than was known");
        let six = IpAddr::from(Ipv6Addr::LOCALHOST);
        assert!(t.learn(six, 600, s(0)));
        assert_eq!(mtu(&t, six, 0), Some((1280, false)));
    }

    #[test]
    fn as_many_destinations_as_there_is_room_for() {
        let t = table();
        for n in 0..2 * DESTINATIONS as u32 {
            assert!(t.learn(ip(n), 1400, s(u64::from(n) / 100)));
        }
        assert_eq!(t.known.lock().len(), DESTINATIONS);
        let newest = 2 * DESTINATIONS as u32 - 1;
        assert_eq!(mtu(&t, ip(newest), 30), Some((1400, false)));
        assert_eq!(mtu(&t, ip(0), 30), None);
    }

    #[test]
    fn flows_that_were_sent_on() {
        let t = table();
        assert!(!t.has_sent(0, s(0)));
        t.sends(77, s(5));
        assert!(t.has_sent(77, s(5)) && t.has_sent(77, s(5 + u64::from(RECENT))));
        assert!(!t.has_sent(77, s(6 + u64::from(RECENT))));
        assert!(!t.has_sent(78, s(5)));
        // Another flow in its place.
        t.sends(77 + FLOWS as u32, s(6));
        assert!(!t.has_sent(77, s(6)) && t.has_sent(77 + FLOWS as u32, s(6)));
    }

    #[test]
    fn plateaus() {
        for (len, want) in [
            (65_535, 32_000),
            (1_500, 1_492),
            (1_492, 1_006),
            (1_006, 576),
            (576, 552),
            (68, 552),
        ] {
            assert_eq!(plateau(len), want, "{len}");
        }
    }
}

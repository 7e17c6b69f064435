//! What routers say of a link's hops and times (RFC 4861, sections 6.3.2 and 6.3.4), within bounds.
//!
//! Whoever is on the link can be such a router. Within these bounds none can have the stack ask its
//! neighbours so often that it floods the link, or so rarely that it does not notice who has gone,
//! nor have what it sends end on the way.

use crate::neighbour::{ASK_AGAIN, FRESH, Pace};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_base::rng::SplitMix64;
use perimeter_wire::ndp::RouterAdvert;

/// A hop limit below that is not taken: with it, what goes far would not arrive.
const MIN_HOPS: u8 = 32;
/// How long a neighbour is believed, ns (RFC 4861, section 6.2.1: at most an hour).
const REACHABLE: RangeInclusive<u64> = 10_000_000_000..=3_600_000_000_000;
/// Time between two requests for a neighbour, ns. Eight in vain make it unreachable.
const RETRANSMIT: RangeInclusive<u64> = ASK_AGAIN..=10_000_000_000;
/// What is said is taken not more often than that, ns, as each time everybody may have to make his
/// headers anew. Routers wait for three seconds (RFC 4861, section 10, MIN_DELAY_BETWEEN_RAS).
const ONCE: u64 = 1_000_000_000;
/// The random part of the time that a neighbour is believed is drawn anew after that, ns.
const DRAWN: u64 = 7_200_000_000_000;

/// Of an interface's link; read without a lock.
#[derive(Debug)]
pub struct HostVariables {
    /// CurHopLimit; 0: nobody has said.
    hop_limit: AtomicU8,
    /// ReachableTime, ns.
    reachable: AtomicU64,
    /// RetransTimer, ns.
    retransmit: AtomicU64,
}

impl Default for HostVariables {
    fn default() -> HostVariables {
        HostVariables {
            hop_limit: AtomicU8::new(0),
            reachable: AtomicU64::new(FRESH),
            retransmit: AtomicU64::new(ASK_AGAIN),
        }
    }
}

impl HostVariables {
    /// The hop limit of what is sent without one of its own, if a router has said.
    pub(crate) fn hop_limit(&self) -> Option<u8> {
        Some(self.hop_limit.load(Ordering::Relaxed)).filter(|n| *n > 0)
    }

    pub(crate) fn pace(&self) -> Pace {
        Pace {
            reachable: self.reachable.load(Ordering::Relaxed),
            retransmit: self.retransmit.load(Ordering::Relaxed),
        }
    }
}

/// When and from what an interface's variables were taken.
#[derive(Debug, Default)]
pub(super) struct Taken {
    at: Time,
    /// BaseReachableTime, ns; 0: nobody has said.
    base: u64,
    drawn: Time,
}

impl Taken {
    /// A router says what holds for its link; whether the hop limit is another than before.
    pub(super) fn advertised(
        &mut self,
        v: &HostVariables,
        ra: &RouterAdvert,
        now: Time,
        random: &mut SplitMix64,
    ) -> bool {
        if self.at != Time::ZERO && now.nanos_since(self.at) < ONCE {
            return false;
        }
        self.at = now.max(Time(1));
        let within = |ms: u32, bounds: RangeInclusive<u64>| {
            let ns = u64::from(ms) * 1_000_000;
            (ns > 0).then(|| ns.clamp(*bounds.start(), *bounds.end()))
        };
        if let Some(base) = within(ra.reachable, REACHABLE) {
            let old = now.nanos_since(self.drawn) >= DRAWN;
            if base != self.base || old {
                // From half of it to half as much again, so that hosts do not ask together.
                let time = (base / 2 + random.below(base)).min(*REACHABLE.end());
                v.reachable.store(time, Ordering::Relaxed);
                (self.base, self.drawn) = (base, now);
            }
        }
        if let Some(time) = within(ra.retransmit, RETRANSMIT) {
            v.retransmit.store(time, Ordering::Relaxed);
        }
        let hops = ra.hop_limit;
        hops >= MIN_HOPS && v.hop_limit.swap(hops, Ordering::Relaxed) != hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;
    use perimeter_wire::Ndp;

    /// An advertisement that says so: hop limit, and the times in ms.
    fn ra(hops: u8, reachable: u32, retransmit: u32) -> RouterAdvert {
        let body = [reachable.to_be_bytes(), retransmit.to_be_bytes()].concat();
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let head = (134, 0, u32::from(hops) << 24);
        match Ndp::parse((router, Ipv6Addr::LOCALHOST, 255), head, &body) {
            Ok(Ndp::RouterAdvertisement(ra)) => ra,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_said_is_taken_within_bounds() {
        const S: u64 = 1_000_000_000;
        for (said, hops, reachable, retransmit) in [
            // Not said.
            ((0, 0, 0), None, 60 * S..=60 * S, S),
            ((64, 30_000, 1_000), Some(64), 15 * S..=45 * S, S),
            (
                (255, 120_000, 2_500),
                Some(255),
                60 * S..=180 * S,
                2_500_000_000,
            ),
            ((32, 0, 10_000), Some(32), 60 * S..=60 * S, 10 * S),
            // What would end on the way, flood the link, or go deaf.
            ((31, 1, 1), None, 5 * S..=15 * S, S),
            ((1, 9_999, 999), None, 5 * S..=15 * S, S),
            ((0, u32::MAX, u32::MAX), None, 1_800 * S..=3_600 * S, 10 * S),
            ((0, 3_600_001, 10_001), None, 1_800 * S..=3_600 * S, 10 * S),
        ] {
            for seed in 0..50 {
                let (v, mut taken) = (HostVariables::default(), Taken::default());
                let (hop_limit, r, t) = said;
                let (ra, mut random) = (ra(hop_limit, r, t), SplitMix64::new(seed));
                let moved = taken.advertised(&v, &ra, Time(5), &mut random);
                assert_eq!((v.hop_limit(), moved), (hops, hops.is_some()), "{said:?}");
                let pace = v.pace();
                assert!(reachable.contains(&pace.reachable), "{said:?}: {pace:?}");
                assert_eq!(pace.retransmit, retransmit, "{said:?}");
            }
        }
    }

    #[test]
    fn the_last_word_counts_once_a_second() {
        let (v, mut taken) = (HostVariables::default(), Taken::default());
        let mut random = SplitMix64::new(7);
        let mut says = |ra: RouterAdvert, at| taken.advertised(&v, &ra, Time(at), &mut random);
        assert!(says(ra(64, 30_000, 2_000), 0));
        let pace = v.pace();
        assert!(!says(ra(200, 40_000, 3_000), ONCE - 1));
        assert_eq!((v.hop_limit(), v.pace()), (Some(64), pace), "too soon");
        // The same again: the time is drawn anew after two hours only.
        assert!(!says(ra(64, 30_000, 2_000), 2 * ONCE));
        assert_eq!(v.pace(), pace);
        assert!(says(ra(200, 0, 3_000), 4 * ONCE));
        let (hops, now) = (v.hop_limit(), v.pace());
        assert_eq!((hops, now.retransmit), (Some(200), 3_000_000_000));
        assert_eq!(now.reachable, pace.reachable, "not said");
        assert!(!says(ra(0, 30_000, 0), DRAWN));
        assert_ne!(v.pace().reachable, pace.reachable);
        assert_eq!(v.hop_limit(), Some(200), "not said");
    }
}

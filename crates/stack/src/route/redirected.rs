//! What a router's word of a better first hop does.

use super::redirects::{AGE, Redirect};
use super::{Ask, Routes};
use crate::kind::Kind;
use crate::neighbour::Kin;
use crate::net::Iface;
use core::net::{IpAddr, Ipv6Addr};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_sync::Lock;

/// What became of a redirect.
#[derive(Default)]
pub(crate) struct Redirected {
    /// It is remembered.
    pub(crate) taken: bool,
    /// It is followed from now on.
    pub(crate) moved: bool,
    /// The request for its target, if one is due.
    pub(crate) ask: Option<Ask>,
}

impl<K: Kind> Routes<K> {
    /// The router `router`, heard on interface `iface`, which is number `n`, says that `target` is a
    /// better first hop to `dst`. None of them is an address of ours. That is believed of the first
    /// hop alone (RFC 4861, section 8.1), and followed once `target` has answered.
    pub(crate) fn redirected(
        &self,
        (n, iface): (u16, &Iface),
        router: Ipv6Addr,
        (dst, target): (Ipv6Addr, Ipv6Addr),
        now: Time,
    ) -> Redirected {
        let mut out = Redirected::default();
        let [router, dst, target] = [router, dst, target].map(IpAddr::V6);
        let mut table = self.table.lock();
        let table = &mut *table;
        let to = (dst, Some(n));
        let (Some((_, plain)), Some((_, hop))) = (table.by_routes(to), table.find(to)) else {
            return out;
        };
        // A neighbour has no router that could know better, and a router none of itself.
        let first = hop.next == router && plain.next != dst && target != router;
        let ethernet = iface.caps.medium == Medium::Ethernet;
        if !first || !ethernet || !table.redirects.may_take(now) {
            return out;
        }
        out.taken = true;
        let (at, pace) = ((n, target), iface.pace(target));
        let (mut e, kin) = match table.book.find(at) {
            Some(slot) => (self.enter(table.entry(slot)), table.book.kin(slot)),
            None => self.make(table, at, Kin::Asked),
        };
        let usable = e.is_reachable(now, pace);
        if !usable {
            if e.mac.is_some() {
                e.probe();
            }
            out.ask = self.ask(&mut table.requests, &mut e, (iface, target), now);
        }
        drop(e);
        let r = Redirect {
            target,
            plain: plain.next,
            router,
            until: now.plus(AGE),
            nth: 0,
            usable,
        };
        self.ask_at.fetch_min(r.until.0, Ordering::Relaxed);
        let gone = table.redirects.insert((n, dst), r);
        out.moved = usable;
        if usable
            && kin != Kin::Gateway
            && let Some(slot) = table.book.find(at)
        {
            table.book.touch(slot, Kin::Gateway);
        }
        table.released(gone.map(|target| (n, target)).into_iter().collect());
        table.changes += 1;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::redirects::MOST;
    use super::super::tests::{iface, route};
    use super::*;
    use crate::ipv6::addrs::{Addresses, Held, State};
    use crate::kind::OneThread;
    use crate::neighbour::{ASK_AGAIN, ASK_LIMIT, FRESH};
    use crate::net::L2;
    use perimeter_sync::Native;
    use perimeter_wire::MacAddr;
    use std::sync::Arc;

    const fn link(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 1, 0, 0, 0, 0, 0, n)
    }

    const fn far(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, n)
    }

    const R1: Ipv6Addr = link(1);
    const R2: Ipv6Addr = link(2);
    const R3: Ipv6Addr = link(3);
    const NOW: Time = Time(1_000_000_000);

    struct Lan {
        routes: Routes<OneThread>,
        ifaces: [Iface; 1],
    }

    impl Lan {
        /// The way out is R1, which has answered, as has R2.
        fn new() -> Lan {
            let own = Addresses::new(1);
            own.set(Held {
                addr: link(0x99),
                iface: 0,
                prefix: 64,
                state: State::Preferred,
            });
            let given = vec![
                route("::/0", 0, Some(R1.into())),
                route("2001:db8::/64", 0, None),
            ];
            let own = (Vec::new(), Vec::new(), Arc::new(own));
            let lan = Lan {
                routes: Routes::new(&Native::default(), given, own, 7),
                ifaces: [iface(Medium::Ethernet)],
            };
            lan.answers(R1, NOW);
            lan.answers(R2, NOW);
            lan
        }

        fn answers(&self, who: Ipv6Addr, now: Time) -> bool {
            let at = (0, &self.ifaces[0]);
            let mac = MacAddr([2, 0, 0, 0, 0, who.octets()[15]]);
            self.routes.heard(at, who.into(), mac, true, now).changed
        }

        fn tells(
            &self,
            router: Ipv6Addr,
            dst: Ipv6Addr,
            target: Ipv6Addr,
            now: Time,
        ) -> Redirected {
            let at = (0, &self.ifaces[0]);
            self.routes.redirected(at, router, (dst, target), now)
        }

        fn next(&self, dst: Ipv6Addr) -> IpAddr {
            self.routes.hop(dst.into()).unwrap().next
        }

        fn kin(&self, who: Ipv6Addr) -> Kin {
            let table = self.routes.table.lock();
            let slot = table.book.find((0, who.into())).unwrap();
            table.book.kin(slot)
        }

        /// Asks for who is due until somebody is given up.
        fn nobody_answers(&self, mut now: Time) -> bool {
            let mut moved = false;
            for _ in 0..=ASK_LIMIT {
                now = now.plus(ASK_AGAIN);
                let (mut out, mut failed) = (Vec::new(), Vec::new());
                moved |= self
                    .routes
                    .retry(&self.ifaces, now, &mut out, &mut failed)
                    .1;
            }
            moved
        }
    }

    #[test]
    fn the_first_hop_alone_is_believed() {
        let lan = Lan::new();
        for (router, dst, target) in [
            // Another router, a stranger, the destination itself; and the router of itself.
            (R2, far(1), R3),
            (link(9), far(1), R2),
            (R1, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5), R2),
            (R1, far(1), R1),
        ] {
            assert!(!lan.tells(router, dst, target, NOW).taken, "{router} {dst}");
        }
        assert!(lan.routes.table.lock().redirects.is_empty());
        let done = lan.tells(R1, far(1), R2, NOW);
        assert!(done.taken && done.moved && done.ask.is_none());
        assert_eq!((lan.next(far(1)), lan.next(far(2))), (R2.into(), R1.into()));
        // Now that one is the first hop, and may know a better one still.
        assert!(!lan.tells(R1, far(1), R3, NOW).taken);
        lan.answers(R3, NOW);
        assert!(lan.tells(R2, far(1), R3, NOW).moved);
        assert_eq!(lan.next(far(1)), IpAddr::from(R3));
        assert_eq!((lan.kin(R3), lan.kin(R2)), (Kin::Gateway, Kin::Known));
    }

    #[test]
    fn nothing_goes_there_before_it_has_answered() {
        let lan = Lan::new();
        let done = lan.tells(R1, far(1), R3, NOW);
        assert!(done.taken && !done.moved);
        assert_eq!(done.ask, Some((MacAddr::BROADCAST, R3.into())));
        assert_eq!(lan.next(far(1)), IpAddr::from(R1));
        assert!(lan.answers(R3, NOW), "the way is another one");
        assert_eq!((lan.next(far(1)), lan.kin(R3)), (R3.into(), Kin::Gateway));
        // One that was known once has to answer again.
        let late = NOW.plus(FRESH + 1);
        lan.answers(R1, late);
        let done = lan.tells(R1, far(2), R2, late);
        assert!(!done.moved && done.ask.is_some_and(|(to, _)| !to.is_broadcast()));
        assert_eq!(lan.next(far(2)), IpAddr::from(R1));
        // The destination itself may be the better hop: it is a neighbour then.
        assert!(!lan.routes.on_link(0, far(3).into()));
        lan.tells(R1, far(3), far(3), late);
        assert!(lan.routes.on_link(0, far(3).into()));
        assert!(lan.answers(far(3), late));
        assert_eq!(lan.next(far(3)), IpAddr::from(far(3)));
    }

    #[test]
    fn it_ends_with_the_target_the_router_and_its_time() {
        // The target does not answer any more.
        let lan = Lan::new();
        lan.tells(R1, far(1), R2, NOW);
        let late = NOW.plus(FRESH + 1);
        let r = lan.routes.resolve(&lan.ifaces, far(1).into(), None, late);
        let r = r.unwrap();
        assert_eq!((r.hop.next, r.ask), (R2.into(), None));
        assert!(matches!(r.l2, L2::Stations(..)) && r.delayed.is_some());
        assert!(lan.nobody_answers(r.delayed.unwrap()));
        assert_eq!(lan.next(far(1)), IpAddr::from(R1));
        assert_eq!(lan.kin(R2), Kin::Known);
        // The router that told of it is none any more.
        let lan = Lan::new();
        lan.routes.add(route("::/0", 0, Some(R3.into())));
        lan.tells(R1, far(1), R2, NOW);
        lan.routes.remove(&route("::/0", 0, Some(R1.into())));
        assert!(lan.routes.table.lock().redirects.is_empty());
        assert_eq!(lan.next(far(1)), IpAddr::from(R3));
        // A better route than by that router: the redirect says nothing of that.
        let lan = Lan::new();
        lan.tells(R1, far(1), R2, NOW);
        let better = route("2001:db8:7::/64", 0, Some(R3.into()));
        lan.routes.add(better);
        assert_eq!(lan.next(far(1)), IpAddr::from(R3));
        lan.routes.remove(&better);
        assert_eq!(lan.next(far(1)), IpAddr::from(R2));
        // It is old.
        assert!(lan.routes.ask_at() <= NOW.plus(AGE));
        let retry = |now| {
            let (mut out, mut failed) = (Vec::new(), Vec::new());
            lan.routes.retry(&lan.ifaces, now, &mut out, &mut failed)
        };
        assert_eq!(retry(NOW.plus(AGE - 1)), (0, false));
        assert_eq!(lan.routes.ask_at(), NOW.plus(AGE));
        assert_eq!(retry(NOW.plus(AGE)), (0, true));
        assert_eq!(lan.next(far(1)), IpAddr::from(R1));
        assert_eq!(lan.routes.ask_at(), Time::NEVER);
    }

    #[test]
    fn they_are_bounded_and_the_oldest_goes() {
        let lan = Lan::new();
        let mut now = NOW;
        for n in 0..200 {
            now = now.plus(100_000_000);
            assert!(lan.tells(R1, far(n), R2, now).taken, "{n}");
        }
        let by_r2 = |n: &u16| lan.next(far(*n)) == IpAddr::from(R2);
        assert_eq!((0..200).filter(by_r2).count(), MOST);
        assert!((200 - MOST as u16..200).all(|n| by_r2(&n)), "the newest");
        // As many as that at once, ten a second after.
        let lan = Lan::new();
        let taken = (0..1_000).filter(|n| lan.tells(R1, far(*n), R2, NOW).taken);
        assert_eq!(taken.count(), 64);
        let later = NOW.plus(1_000_000_000);
        let taken = (0..1_000).filter(|n| lan.tells(R1, far(1_000 + *n), R2, later).taken);
        assert_eq!(taken.count(), 10);
    }
}

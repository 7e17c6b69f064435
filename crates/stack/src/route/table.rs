//! Which entry is whose: routes, neighbours, and what routers have told of better first hops.

use super::redirects::{At, Redirect, Redirects};
use crate::limit::Bucket;
use crate::neighbour::{Book, Kin};
use crate::net::{Hop, Route};
use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_wire::NO_ADDRESS;

/// Requests for neighbours that the stack sends, a second and at once: for whole networks that an application
/// looks through, and for stations that somebody lies about.
const REQUESTS: Bucket = Bucket::new(1_000, 1_000);
/// Routes that are learnt from routers, beside those that are given.
const LEARNT: u32 = 256;

/// A destination, and the interface that has to lead there, if one has.
pub type To = (IpAddr, Option<u16>);

/// Which entry is whose.
pub(super) struct Table {
    /// Routes of prefixes, the longest first; their entries have the same numbers.
    pub(super) routes: Vec<Route>,
    /// Which of them lead to a gateway that does not answer.
    pub(super) down: Vec<bool>,
    /// How many routes there may be: entries of neighbours come behind those.
    pub(super) most: u32,
    pub(super) book: Book,
    pub(super) requests: Bucket,
    pub(super) redirects: Redirects,
    /// How often routes have changed, or gateways stopped to answer or begun to.
    pub(super) changes: u64,
    last: Last,
}

/// Where the last segment that was routed by itself went: so may the next.
struct Last {
    to: To,
    entry: u32,
    /// [`Table::changes`] and the book's when it was looked up; it holds until one is another.
    at: (u64, u64),
}

impl Last {
    const NONE: Last = Last {
        to: (NO_ADDRESS, None),
        entry: 0,
        at: (u64::MAX, u64::MAX),
    };
}

impl Table {
    /// No neighbours; the given routes, in any order.
    pub(super) fn new(mut routes: Vec<Route>) -> Table {
        routes.sort_by_key(|r| core::cmp::Reverse(r.dst.prefix));
        Table {
            down: vec![false; routes.len()],
            most: routes.len() as u32 + LEARNT,
            routes,
            book: Book::new(),
            requests: REQUESTS,
            redirects: Redirects::default(),
            changes: 0,
            last: Last::NONE,
        }
    }

    /// The route towards `dst`, of those by interface `by` if one is given, and the next hop, which
    /// may be a better one that a router has told of.
    pub(super) fn find(&self, to: To) -> Option<(u32, Hop)> {
        let (n, hop) = self.by_routes(to)?;
        match self.redirects.is_empty() {
            true => Some((n, hop)),
            false => Some((n, self.redirects.hop(hop, to.0))),
        }
    }

    pub(super) fn by_routes(&self, to: To) -> Option<(u32, Hop)> {
        let (dst, by) = to;
        let leads = |r: &Route| r.dst.contains(dst) && by.is_none_or(|n| r.iface == n);
        let first = self.routes.iter().position(leads)?;
        let n = match self.down[first] {
            true => self.instead(first, to),
            false => first,
        };
        let hop = Hop {
            iface: self.routes[n].iface,
            next: self.routes[n].via.unwrap_or(dst),
        };
        Some((n as u32, hop))
    }

    /// The number of the entry of who is the next hop towards `to`: a neighbour, or a route that has
    /// none.
    pub(super) fn towards(&self, to: To) -> Option<u32> {
        let (n, hop) = self.find(to)?;
        let slot = self.book.find((hop.iface, hop.next));
        Some(slot.map_or(n, |slot| self.entry(slot)))
    }

    /// As [`Table::towards`], for segments one after the other, most of which go where the last
    /// one went.
    #[inline]
    pub(super) fn towards_again(&mut self, to: To) -> Option<u32> {
        let at = (self.changes, self.book.changes());
        if self.last.at != at || self.last.to != to {
            let entry = self.towards(to)?;
            self.last = Last { to, entry, at };
        }
        Some(self.last.entry)
    }

    /// The gateway of route `first` does not answer: another route of as long a prefix whose
    /// gateway does, if there is one.
    #[cold]
    fn instead(&self, first: usize, (dst, by): To) -> usize {
        let prefix = self.routes[first].dst.prefix;
        let alike = |n: &usize| {
            let r = &self.routes[*n];
            let leads = r.dst.contains(dst) && by.is_none_or(|n| r.iface == n);
            r.dst.prefix == prefix && leads && !self.down[*n]
        };
        (first + 1..self.routes.len()).find(alike).unwrap_or(first)
    }

    /// Notes whether a gateway answers; whether that is news.
    pub(super) fn note(&mut self, (iface, gateway): (u16, IpAddr), down: bool) -> bool {
        let mut news = false;
        for (r, was) in self.routes.iter().zip(&mut self.down) {
            if (r.iface, r.via) == (iface, Some(gateway)) && *was != down {
                (*was, news) = (down, true);
            }
        }
        self.changes += u64::from(news);
        news
    }

    /// The number of the entry in a slot of the book.
    pub(super) fn entry(&self, slot: u32) -> u32 {
        self.most + slot
    }

    /// A slot for a neighbour that has none.
    pub(super) fn add(&mut self, at: (u16, IpAddr), kin: Kin) -> (u32, Kin) {
        let kin = match self.is_gateway(at) {
            true => Kin::Gateway,
            false => kin,
        };
        (self.book.add(at, kin), kin)
    }

    /// Nothing goes by these any more because of a redirect.
    pub(super) fn released(&mut self, targets: Vec<At>) {
        self.changes += u64::from(!targets.is_empty());
        for at in targets {
            if let Some(slot) = self.book.find(at)
                && self.book.kin(slot) == Kin::Gateway
                && !self.is_gateway(at)
            {
                self.book.touch(slot, Kin::Known);
            }
        }
    }

    /// Whether something goes by that neighbour: a route, or a redirect that is followed.
    pub(super) fn is_gateway(&self, at: At) -> bool {
        let leads = |r: &Route| (r.iface, r.via) == (at.0, Some(at.1));
        self.routes.iter().any(leads) || self.redirects.by(at)
    }

    /// A neighbour has answered: what was to go by it does so; whether there is such.
    pub(super) fn redirects_answered(&mut self, at: At) -> bool {
        let any = self.redirects.answered(at);
        if any && let Some(slot) = self.book.find(at) {
            self.book.touch(slot, Kin::Gateway);
            self.changes += 1;
        }
        any
    }

    /// That neighbour does not answer any more, or is no router any more: what it has told of, and
    /// what goes by it, goes as routes say; whether there was such.
    pub(super) fn redirects_gone(&mut self, at: At) -> bool {
        self.redirects_end(|of, r| of.0 == at.0 && r.names(at.1))
    }

    /// Ends those that are old; whether there were such.
    pub(super) fn redirects_expire(&mut self, now: Time) -> bool {
        self.redirects_end(|_, r| r.until <= now)
    }

    fn redirects_end(&mut self, goes: impl Fn(&At, &Redirect) -> bool) -> bool {
        if self.redirects.is_empty() {
            return false;
        }
        let targets = self.redirects.drain(goes);
        let any = !targets.is_empty();
        self.released(targets);
        any
    }
}

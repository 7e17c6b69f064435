//! Better first hops that routers have told of (RFC 4861, section 8), where that is asked for.
//!
//! Whoever is on the link can say so in a router's name. So it is believed only of the router that
//! is the first hop now, what is remembered is bounded in number and in time, and nothing goes by
//! the new hop before that has answered: whoever names a hop that is not there has changed nothing.

use crate::limit::Bucket;
use crate::net::Hop;
use core::net::IpAddr;
use perimeter_base::Time;
use std::collections::BTreeMap;

/// The most of one interface; then the one that was told of longest ago goes.
pub(super) const MOST: usize = 64;
/// How long one is followed, ns: after that the router is asked again, which tells again if it is
/// still so.
pub(super) const AGE: u64 = 600_000_000_000;
/// Those that are taken, a second and at once: each has everybody look for the way again.
const TAKEN: Bucket = Bucket::new(10, 64);

/// A neighbour, or a destination, of an interface.
pub(super) type At = (u16, IpAddr);

/// What was told of one destination.
#[derive(Copy, Clone, Debug)]
pub(super) struct Redirect {
    pub(super) target: IpAddr,
    /// The first hop without redirects: while routes lead elsewhere this is not followed.
    pub(super) plain: IpAddr,
    /// Who told of it: that one, or the target of the redirect before.
    pub(super) router: IpAddr,
    pub(super) until: Time,
    /// Which one it is of all that were taken; given when it is remembered.
    pub(super) nth: u64,
    /// The target has answered, and is among the gateways. It stays there, with a station, as long as
    /// this is so.
    pub(super) usable: bool,
}

/// Which destinations have a better first hop.
pub(super) struct Redirects {
    /// In an order of its own, as a simulation must replay.
    all: BTreeMap<At, Redirect>,
    taken: u64,
    limit: Bucket,
}

impl Default for Redirects {
    fn default() -> Redirects {
        Redirects {
            all: BTreeMap::new(),
            taken: 0,
            limit: TAKEN,
        }
    }
}

impl Redirect {
    /// Whether it hangs on that neighbour's being there, and a router.
    pub(super) fn names(&self, ip: IpAddr) -> bool {
        [self.target, self.plain, self.router].contains(&ip)
    }
}

impl Redirects {
    /// Whether one more may be taken now; counted as taken if so.
    pub(super) fn may_take(&mut self, now: Time) -> bool {
        self.limit.take(now)
    }

    /// A neighbour has answered; whether it is the target of one that was not usable before.
    pub(super) fn answered(&mut self, at: At) -> bool {
        let mut any = false;
        for (of, r) in &mut self.all {
            if (of.0, r.target) == at && !r.usable {
                (r.usable, any) = (true, true);
            }
        }
        any
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first hop towards `dst`, where routes alone lead to `plain`.
    #[cold]
    pub(super) fn hop(&self, plain: Hop, dst: IpAddr) -> Hop {
        let told = self.all.get(&(plain.iface, dst));
        let told = told.filter(|r| r.usable && r.plain == plain.next);
        told.map_or(plain, |r| Hop {
            next: r.target,
            ..plain
        })
    }

    /// Whether a router has said that `ip` is a neighbour itself (RFC 4861, section 8.3).
    pub(super) fn on_link(&self, at: At) -> bool {
        self.all.get(&at).is_some_and(|r| r.target == at.1)
    }

    /// Whether something goes by that neighbour.
    pub(super) fn by(&self, at: At) -> bool {
        let is = |(of, r): (&At, &Redirect)| r.usable && (of.0, r.target) == at;
        self.all.iter().any(is)
    }

    /// Remembers one; the target of the one that it replaces, or that makes room for it.
    pub(super) fn insert(&mut self, at: At, mut r: Redirect) -> Option<IpAddr> {
        let here = || self.all.iter().filter(|(of, _)| of.0 == at.0);
        let room = self.all.contains_key(&at) || here().count() < MOST;
        let oldest = here().min_by_key(|(_, r)| r.nth).map(|(of, _)| *of);
        let gone = match room {
            true => None,
            false => oldest.and_then(|of| self.all.remove(&of)),
        };
        self.taken += 1;
        r.nth = self.taken;
        self.all.insert(at, r).or(gone).map(|r| r.target)
    }

    /// Takes out what `goes` says; the targets.
    pub(super) fn drain(&mut self, goes: impl Fn(&At, &Redirect) -> bool) -> Vec<At> {
        let mut out = Vec::new();
        self.all.retain(|of, r| {
            let stays = !goes(of, r);
            if !stays {
                out.push((of.0, r.target));
            }
            stays
        });
        out
    }

    /// When the next one is over.
    pub(super) fn due(&self) -> Time {
        let all = self.all.values().map(|r| r.until);
        all.min().unwrap_or(Time::NEVER)
    }
}

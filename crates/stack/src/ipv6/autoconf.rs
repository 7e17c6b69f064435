//! Addresses that the stack looks after: whether somebody else has them (RFC 4862, section 5.4),
//! and, where that is asked for, those that interfaces find by themselves with the routers that
//! say so (RFC 4861, section 6.3; RFC 4862, section 5.5; RFC 7217).
//!
//! What routers may make a host remember is bounded, whatever they say.

use super::addrs::{Addresses, Held, State};
use super::variables::Taken;
use super::zone_of;
use crate::id::SockId;
use crate::ipv4::client::Client;
use crate::net::{Cidr, Route};
use core::net::{IpAddr, Ipv6Addr};
use perimeter_base::Time;
use perimeter_base::rng::SplitMix64;
use perimeter_tcp::isn::IsnGen;
use perimeter_wire::MacAddr;
use perimeter_wire::ipv6::{is_link_local, with_zone, without_zone};
use perimeter_wire::ndp::PrefixInfo;

/// Time between probes for an address, and behind the last one (RFC 4861, RetransTimer), ns.
const PROBE_EVERY: u64 = 1_000_000_000;
/// The first probe waits for a while at random, so that hosts that start together do not ask
/// together, ns.
const SPREAD: u64 = 100_000_000;
/// Router solicitations, and the time between them, ns (RFC 4861, section 10).
const SOLICITATIONS: u8 = 3;
const SOLICIT_EVERY: u64 = 4_000_000_000;
/// Default routers, prefixes and addresses that one link can make the stack remember.
const ROUTERS: usize = 8;
const PREFIXES: usize = 16;
const FOUND: usize = 8;
/// Addresses of a prefix that are tried when others have them (RFC 7217, IDGEN_RETRIES).
const TRIES: u8 = 3;
/// What an advertisement can't shorten the life of an address below, s (RFC 4862, section 5.5.3).
const TWO_HOURS: u64 = 7_200;
/// Addresses that others turned out to have, of which it is remembered that they were to be ours.
const DUPLICATES: usize = 64;

/// Settings of IPv6.
///
/// ```
/// use perimeter_stack::Ipv6Config;
///
/// // Addresses by the prefixes of routers, the same each time that the stack starts.
/// let config = Ipv6Config::default().with_autoconf(true).with_stable_secret(Some([1, 2]));
/// assert!(config.autoconf && !config.accept_redirects);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ipv6Config {
    /// Solicitations by which it is found out whether somebody else on the link has an address,
    /// before it is used (RFC 4862, DupAddrDetectTransmits); 0: it is used at once. Default 1:
    /// what is sent from the address waits for one second. Where there are no stations (TUN),
    /// nobody is asked.
    pub dad_transmits: u8,
    /// Interfaces of Ethernet make themselves a link-local address and addresses of the prefixes
    /// that routers advertise, and take those routers as default gateways (RFC 4861, section 6.3.4;
    /// RFC 4862). Of the link they take the MTU, the hop limit of what is sent without one of its
    /// own (from 32 on), how long neighbours are believed (10 s to 1 h, drawn from half of it to
    /// half as much again) and the time between requests for them (1 to 10 s). Default `false`:
    /// whoever is on the link can be such a router.
    pub autoconf: bool,
    /// Interfaces of Ethernet follow redirects (RFC 4861, section 8): what a router says is a better
    /// first hop to one destination, if it is the first hop there itself, and once the better one has
    /// answered. At most 64 destinations of an interface, for ten minutes each. Default `false`:
    /// whoever is on the link can say so in the router's name, and draw what is sent. With
    /// [`Config::forwarding`](crate::Config::forwarding) none are followed (section 8.3), and those of
    /// ICMP for IPv4 never are.
    pub accept_redirects: bool,
    /// What the interface identifiers of these addresses are derived from (RFC 7217). The same
    /// secret, interface name and prefix make the same address. Default `None`: another one each
    /// time that a stack starts.
    pub stable_secret: Option<[u64; 2]>,
}

impl Default for Ipv6Config {
    fn default() -> Ipv6Config {
        Ipv6Config {
            dad_transmits: 1,
            autoconf: false,
            accept_redirects: false,
            stable_secret: None,
        }
    }
}

perimeter_base::setters! {
    Ipv6Config {
        with_dad_transmits(dad_transmits: u8),
        with_autoconf(autoconf: bool),
        with_accept_redirects(accept_redirects: bool),
        with_stable_secret(stable_secret: Option<[u64; 2]>),
    }
}

/// An address that is being looked at whether somebody else has it.
pub(super) struct Probe {
    pub(super) held: Held,
    left: u8,
    at: Time,
    nonce: [u8; 6],
    /// How many of this prefix were somebody else's; `None`: the address was given, not made.
    tries: Option<u8>,
    /// Connections that wait to send from it.
    pub(super) waiting: Vec<SockId>,
}

/// An address that was made from a prefix.
struct Found {
    addr: Ipv6Addr,
    prefix: Ipv6Addr,
    preferred: Time,
    valid: Time,
}

/// What is known of the link of an interface.
#[derive(Default)]
pub(super) struct Link {
    /// Addresses are asked for and made there.
    pub(super) autoconf: bool,
    name: String,
    mac: MacAddr,
    pub(super) probes: Vec<Probe>,
    found: Vec<Found>,
    routers: Vec<(Ipv6Addr, Time)>,
    prefixes: Vec<(Cidr, Time)>,
    pub(super) solicitations: u8,
    solicit_at: Time,
    /// What routers have said of its hops and times.
    pub(super) taken: Taken,
}

/// Addresses in the making and what ends with time, of all interfaces.
pub(crate) struct Auto {
    /// Those who ask servers for IPv4 addresses.
    pub(crate) clients: Vec<Client>,
    pub(super) links: Vec<Link>,
    pub(super) duplicates: Vec<(u16, Ipv6Addr)>,
    transmits: u8,
    secret: IsnGen,
    pub(super) random: SplitMix64,
}

/// What is to be done once the lock is let go.
pub(super) enum Act {
    Probe(u16, Ipv6Addr, [u8; 6]),
    Join(u16, Ipv6Addr),
    Leave(u16, Ipv6Addr),
    Solicit(u16, Ipv6Addr, MacAddr),
    Add(Route),
    Remove(Route),
    /// An address has gone, or the hop limit is another: whoever sends looks again.
    Moved,
}

/// What became of connections that waited for an address.
#[derive(Default)]
pub struct Settled {
    /// They can go on.
    pub ready: Vec<SockId>,
    /// They have nothing to send from, or nobody to send to.
    pub failed: Vec<SockId>,
    /// Addresses that are the stack's no more: whoever sends from them fails.
    pub lost: Vec<IpAddr>,
}

fn seconds(now: Time, s: u32) -> Time {
    match s {
        u32::MAX => Time::NEVER,
        s => now.plus(u64::from(s) * 1_000_000_000),
    }
}

fn default_route(iface: u16, router: Ipv6Addr) -> Route {
    let any = Cidr {
        addr: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        prefix: 0,
    };
    Route {
        dst: any,
        iface,
        via: Some(IpAddr::V6(router)),
    }
}

fn link_route(iface: u16, dst: Cidr) -> Route {
    let via = None;
    Route { dst, iface, via }
}

impl Auto {
    /// Looks after the addresses that are in the table, of interfaces with these names and
    /// stations; `None`: without stations. Those addresses are tentative from now on where that
    /// has a meaning.
    pub(crate) fn new(
        config: &Ipv6Config,
        secret: [u64; 2],
        ifaces: &[(String, Option<MacAddr>)],
        (table, now): (&Addresses, Time),
    ) -> Auto {
        let [a, b] = config.stable_secret.unwrap_or(secret);
        let mut auto = Auto {
            clients: Vec::new(),
            links: Vec::new(),
            duplicates: Vec::new(),
            transmits: config.dad_transmits,
            secret: IsnGen::new(a, b),
            random: SplitMix64::new(secret[0] ^ secret[1].rotate_left(7)),
        };
        for (n, (name, mac)) in ifaces.iter().enumerate() {
            auto.links.push(Link {
                autoconf: config.autoconf && mac.is_some(),
                name: name.clone(),
                mac: mac.unwrap_or_default(),
                ..Link::default()
            });
            let given: Vec<Held> = table.of(n as u16).collect();
            if mac.is_some() {
                let at = now.plus(auto.random.below(SPREAD));
                given.iter().for_each(|h| auto.probe(table, *h, at, None));
            }
            let has_link = given.iter().any(|h| is_link_local(h.addr));
            if auto.links[n].autoconf && !has_link {
                let at = now.plus(auto.random.below(SPREAD));
                let fe80 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
                auto.make(table, n as u16, fe80, (0, at));
            }
            auto.solicit_when_ready(table, n as u16, now);
        }
        auto
    }

    /// The address of a prefix of 64 bits on an interface: the same each time, and nothing that
    /// tells of others (RFC 7217, section 5).
    fn address(&self, n: u16, prefix: Ipv6Addr, tries: u8) -> Ipv6Addr {
        let high = prefix.to_bits() >> 64;
        let mut count = u64::from(tries);
        loop {
            let name = &self.links[usize::from(n)].name;
            let id = self
                .secret
                .interface_id(high as u64, name.as_bytes(), count);
            // Those at both ends are routers' and reserved (RFC 5453).
            let reserved = id == 0 || id >= 0xfdff_ffff_ffff_ff00;
            if !reserved {
                let addr = Ipv6Addr::from_bits(high << 64 | u128::from(id));
                return with_zone(addr, zone_of(n));
            }
            count += 0x100;
        }
    }

    /// Makes an address of a prefix, and looks whether somebody else has it.
    fn make(
        &mut self,
        table: &Addresses,
        n: u16,
        prefix: Ipv6Addr,
        (tries, at): (u8, Time),
    ) -> Option<Ipv6Addr> {
        let held = Held {
            addr: self.address(n, prefix, tries),
            iface: n,
            prefix: 64,
            state: State::Tentative,
        };
        if table.find(held.addr).is_some() || !table.set(held) {
            return None;
        }
        self.probe(table, held, at, Some(tries));
        Some(held.addr)
    }

    fn probe(&mut self, table: &Addresses, held: Held, at: Time, tries: Option<u8>) {
        let state = match self.transmits {
            0 => State::Preferred,
            _ => State::Tentative,
        };
        table.set(Held { state, ..held });
        if state == State::Preferred {
            return;
        }
        let [a, b, c, d, e, f, ..] = self.random.next().to_be_bytes();
        self.links[usize::from(held.iface)].probes.push(Probe {
            held,
            left: self.transmits,
            at,
            nonce: [a, b, c, d, e, f],
            tries,
            waiting: Vec::new(),
        });
    }

    /// Starts to look for routers where there is a link-local address to ask from.
    fn solicit_when_ready(&mut self, table: &Addresses, n: u16, now: Time) {
        let link = &mut self.links[usize::from(n)];
        if link.autoconf && link_local(table, n).is_some() && link.solicitations == 0 {
            link.solicitations = SOLICITATIONS;
            link.solicit_at = now.plus(self.random.below(SPREAD));
        }
    }

    /// When something is to be done.
    pub(crate) fn due(&self) -> Time {
        let of = |l: &Link| {
            let probes = l.probes.iter().map(|p| p.at);
            let routers = l.routers.iter().map(|r| r.1);
            let prefixes = l.prefixes.iter().map(|p| p.1);
            let found = l.found.iter().map(|f| match f.preferred == Time::NEVER {
                true => f.valid,
                false => f.valid.min(f.preferred),
            });
            let ask = (l.solicitations > 0).then_some(l.solicit_at);
            let times = probes
                .chain(routers)
                .chain(prefixes)
                .chain(found)
                .chain(ask);
            times.min().unwrap_or(Time::NEVER)
        };
        let links = self.links.iter().map(of);
        let clients = self.clients.iter().map(Client::due);
        links.chain(clients).min().unwrap_or(Time::NEVER)
    }

    /// Does what is due.
    pub(super) fn run(
        &mut self,
        table: &Addresses,
        now: Time,
        settled: &mut Settled,
        acts: &mut Vec<Act>,
    ) {
        for n in 0..self.links.len() as u16 {
            self.probes(table, n, now, settled, acts);
            self.solicit_when_ready_again(table, n, now);
            let link = &mut self.links[usize::from(n)];
            if link.solicitations > 0
                && link.solicit_at <= now
                && let Some(from) = link_local(table, n)
            {
                link.solicitations -= 1;
                link.solicit_at = now.plus(SOLICIT_EVERY);
                acts.push(Act::Solicit(n, from, link.mac));
            }
            link.expire(table, n, now, acts);
        }
    }

    fn probes(
        &mut self,
        table: &Addresses,
        n: u16,
        now: Time,
        settled: &mut Settled,
        acts: &mut Vec<Act>,
    ) {
        let link = &mut self.links[usize::from(n)];
        let transmits = self.transmits;
        link.probes.retain_mut(|p| {
            if p.at > now {
                return true;
            }
            if p.left > 0 {
                if p.left == transmits {
                    acts.push(Act::Join(n, p.held.addr));
                }
                acts.push(Act::Probe(n, p.held.addr, p.nonce));
                p.left -= 1;
                p.at = now.plus(PROBE_EVERY);
                return true;
            }
            // Nobody has it.
            let state = State::Preferred;
            table.set(Held { state, ..p.held });
            settled.ready.append(&mut p.waiting);
            acts.push(Act::Join(n, p.held.addr));
            false
        });
    }

    /// As [`Auto::solicit_when_ready`], when an address has just become one.
    fn solicit_when_ready_again(&mut self, table: &Addresses, n: u16, now: Time) {
        let link = &self.links[usize::from(n)];
        let asked = link.solicit_at != Time::ZERO;
        if !asked {
            self.solicit_when_ready(table, n, now);
        }
    }
}

impl Link {
    /// Ends what is over.
    fn expire(&mut self, table: &Addresses, n: u16, now: Time, acts: &mut Vec<Act>) {
        self.routers.retain(|(router, until)| {
            let over = *until <= now;
            if over {
                acts.push(Act::Remove(default_route(n, *router)));
            }
            !over
        });
        self.prefixes.retain(|(prefix, until)| {
            let over = *until <= now;
            if over {
                acts.push(Act::Remove(link_route(n, *prefix)));
            }
            !over
        });
        self.found.retain_mut(|f| {
            if f.valid <= now {
                table.remove(f.addr);
                acts.extend([Act::Leave(n, f.addr), Act::Moved]);
                return false;
            }
            if f.preferred <= now {
                f.preferred = Time::NEVER;
                if let Some(held) = table.find(f.addr).filter(|h| h.state > State::Tentative) {
                    let state = State::Deprecated;
                    table.set(Held { state, ..held });
                }
            }
            true
        });
    }

    /// A router advertises itself.
    pub(super) fn advertised(
        &mut self,
        n: u16,
        router: Ipv6Addr,
        lifetime: u16,
        now: Time,
    ) -> Option<Act> {
        let known = self.routers.iter().position(|r| r.0 == router);
        let until = now.plus(u64::from(lifetime) * 1_000_000_000);
        match (known, lifetime) {
            (Some(at), 0) => {
                self.routers.remove(at);
                Some(Act::Remove(default_route(n, router)))
            }
            (Some(at), _) => {
                self.routers[at].1 = until;
                None
            }
            (None, 0) => None,
            (None, _) => {
                (self.routers.len() < ROUTERS).then(|| self.routers.push((router, until)))?;
                Some(Act::Add(default_route(n, router)))
            }
        }
    }

    /// A prefix is on the link, or no longer.
    pub(super) fn on_link(&mut self, n: u16, prefix: &PrefixInfo, now: Time) -> Option<Act> {
        let dst = Cidr {
            addr: IpAddr::V6(prefix.prefix),
            prefix: prefix.len,
        };
        let known = self.prefixes.iter().position(|p| p.0 == dst);
        let until = seconds(now, prefix.valid);
        match (known, prefix.valid) {
            (Some(at), 0) => {
                self.prefixes.remove(at);
                Some(Act::Remove(link_route(n, dst)))
            }
            (Some(at), _) => {
                self.prefixes[at].1 = until;
                None
            }
            (None, 0) => None,
            (None, _) => {
                (self.prefixes.len() < PREFIXES).then(|| self.prefixes.push((dst, until)))?;
                Some(Act::Add(link_route(n, dst)))
            }
        }
    }
}

impl Found {
    /// A router says again how long its prefix lasts; nobody can end an address at once (RFC
    /// 4862, section 5.5.3, (e)).
    fn extend(&mut self, table: &Addresses, prefix: &PrefixInfo, now: Time) {
        let said = seconds(now, prefix.valid);
        let two_hours = now.plus(TWO_HOURS * 1_000_000_000);
        if said > two_hours || said > self.valid {
            self.valid = said;
        } else {
            self.valid = self.valid.min(two_hours);
        }
        self.preferred = seconds(now, prefix.preferred);
        if let Some(held) = table.find(self.addr).filter(|h| h.state > State::Tentative) {
            let state = match prefix.preferred {
                0 => State::Deprecated,
                _ => State::Preferred,
            };
            table.set(Held { state, ..held });
        }
    }
}

/// The link-local address of an interface, once it is used.
fn link_local(table: &Addresses, n: u16) -> Option<Ipv6Addr> {
    let mut all = table.of(n).filter(|h| h.state > State::Tentative);
    all.find(|h| is_link_local(h.addr)).map(|h| h.addr)
}

impl Auto {
    /// Hosts may make themselves addresses of `prefix`.
    pub(super) fn autonomous(&mut self, table: &Addresses, n: u16, prefix: &PrefixInfo, now: Time) {
        let link = &mut self.links[usize::from(n)];
        if let Some(f) = link.found.iter_mut().find(|f| f.prefix == prefix.prefix) {
            return f.extend(table, prefix, now);
        }
        if prefix.valid == 0 || link.found.len() >= FOUND {
            return;
        }
        if let Some(addr) = self.make(table, n, prefix.prefix, (0, now)) {
            self.links[usize::from(n)].found.push(Found {
                addr,
                prefix: prefix.prefix,
                preferred: seconds(now, prefix.preferred),
                valid: seconds(now, prefix.valid),
            });
        }
    }

    /// Another has the address: `None` if it was our own probe that came back.
    pub(super) fn duplicate(
        &mut self,
        table: &Addresses,
        ip: Ipv6Addr,
        nonce: Option<[u8; 6]>,
        now: Time,
        acts: &mut Vec<Act>,
    ) -> Option<Vec<SockId>> {
        let find = |l: &Link| l.probes.iter().position(|p| p.held.addr == ip);
        let (n, at) = self
            .links
            .iter()
            .enumerate()
            .find_map(|(n, l)| Some((n, find(l)?)))?;
        if nonce.is_some_and(|nonce| nonce == self.links[n].probes[at].nonce) {
            return None;
        }
        let probe = self.links[n].probes.swap_remove(at);
        table.remove(ip);
        let n = n as u16;
        acts.extend([Act::Leave(n, ip), Act::Moved]);
        if self.duplicates.len() < DUPLICATES {
            self.duplicates.push((n, ip));
        }
        let link = &mut self.links[usize::from(n)];
        let found = link.found.iter().position(|f| f.addr == ip);
        if let Some(tries) = probe.tries {
            let prefix = Ipv6Addr::from_bits(without_zone(ip).to_bits() >> 64 << 64);
            let next = match tries + 1 < TRIES {
                true => self.make(table, n, prefix, (tries + 1, now)),
                false => None,
            };
            let link = &mut self.links[usize::from(n)];
            match (found, next) {
                (Some(at), Some(addr)) => link.found[at].addr = addr,
                (Some(at), None) => drop(link.found.swap_remove(at)),
                (None, _) => {}
            }
        }
        Some(probe.waiting)
    }
}

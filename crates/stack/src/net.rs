//! Interfaces, addresses, routes and neighbours, of either family.

use crate::ipv6::MIN_MTU;
use crate::ipv6::variables::HostVariables;
use crate::neighbour::Pace;
use crate::{ipv4, ipv6};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use perimeter_link::Capabilities;
use perimeter_wire::{IpHdr, MAX_DATAGRAM, MIN_TCP_HEADER, MacAddr};
use std::sync::Arc;

/// An address with its prefix length.
///
/// ```
/// use perimeter_stack::Cidr;
///
/// let net = Cidr { addr: "10.1.2.3".parse()?, prefix: 16 };
/// assert_eq!(net.to_string(), "10.1.2.3/16");
/// assert!(net.contains("10.1.255.1".parse()?) && !net.contains("10.2.0.1".parse()?));
/// assert_eq!(net.broadcast(), Some("10.1.255.255".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub addr: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl Cidr {
    /// Whether `ip` lies in the prefix.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.addr, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = ipv4::mask(self.prefix);
                u32::from(a) & mask == u32::from(b) & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix.min(128)))
                    .unwrap_or(0);
                u128::from(a) & mask == u128::from(b) & mask
            }
            _ => false,
        }
    }

    /// The address that means all hosts of the prefix. IPv4 alone has one, from 31 bits on not
    /// either.
    pub fn broadcast(&self) -> Option<IpAddr> {
        match self.addr {
            IpAddr::V4(a) => ipv4::broadcast(a, self.prefix).map(IpAddr::V4),
            IpAddr::V6(_) => None,
        }
    }
}

/// Whether a host may have this address.
pub(crate) fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ipv4::is_host(ip),
        IpAddr::V6(ip) => ipv6::is_host(ip),
    }
}

/// Whether a packet could be for both of two sockets that are bound to these interfaces (`None`: to
/// none, so that they get what comes by any).
pub fn both_get(a: Option<u16>, b: Option<u16>) -> bool {
    a.is_none() || b.is_none() || a == b
}

/// Whether this is the address of a group, or of all hosts of the link.
pub(crate) fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

impl core::str::FromStr for Cidr {
    type Err = String;

    fn from_str(s: &str) -> Result<Cidr, String> {
        let (addr, prefix) = s.split_once('/').unwrap_or((s, ""));
        let addr: IpAddr = addr
            .parse()
            .map_err(|_| format!("`{s}` is not an address/prefix"))?;
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            "" => bits,
            p => p.parse().ok().filter(|p| *p <= bits).ok_or_else(|| {
                format!("`{p}` is not a prefix length from 0 to {bits}, in `{s}`")
            })?,
        };
        Ok(Cidr { addr, prefix })
    }
}

impl core::fmt::Display for Cidr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// Which destinations an interface takes.
///
/// ```
/// use perimeter_stack::net::Accept;
///
/// // A gateway, which leaves pings to whoever is meant.
/// let gateway = Accept::Any { echo: false };
/// assert!(gateway.is_any());
/// assert!(!Accept::default().is_any(), "a host takes what is for itself");
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accept {
    /// The stack's own addresses.
    #[default]
    Own,
    /// The address of any host: for a gateway, which stands for all of them. Answers come from
    /// that address and take the interface that was asked by, whatever routes say; and behind the
    /// routes that were given, all prefixes lead there. Requests for link-layer addresses are
    /// answered for its own addresses only.
    Any {
        /// Whether echo requests to any address are answered here.
        echo: bool,
    },
}

impl Accept {
    /// Whether it takes any.
    pub fn is_any(self) -> bool {
        self != Accept::Own
    }
}

/// The IPv4 addresses of an interface: those that it was given, and one that a server gives it for a
/// time. Read without a lock; who changes it holds the lock over all addresses.
pub struct Addrs {
    given: Vec<Cidr>,
    /// [`packed`].
    leased: AtomicU64,
    /// The only address, if there is one: so what most packets ask takes one load.
    only: AtomicU64,
}

/// An address of IPv4 and its prefix in a word ([`ipv4::packed`]).
fn packed(a: &Cidr) -> u64 {
    ipv4::packed(a.addr, a.prefix)
}

fn unpacked(word: u64) -> Option<Cidr> {
    ipv4::unpacked(word).map(|(addr, prefix)| Cidr { addr, prefix })
}

impl Addrs {
    /// Those that were given, of IPv4.
    pub fn new(given: Vec<Cidr>) -> Addrs {
        let addrs = Addrs {
            given,
            leased: AtomicU64::new(0),
            only: AtomicU64::new(0),
        };
        addrs.lease(None);
        addrs
    }

    /// The address that a server gives for a time, or that it has gone.
    pub(crate) fn lease(&self, addr: Option<Cidr>) {
        self.leased
            .store(addr.as_ref().map_or(0, packed), Ordering::Release);
        let only = match (&self.given[..], addr) {
            ([only], None) => packed(only),
            ([], Some(only)) => packed(&only),
            _ => 0,
        };
        self.only.store(only, Ordering::Release);
    }

    /// The one that a server gives.
    pub fn leased(&self) -> Option<Cidr> {
        unpacked(self.leased.load(Ordering::Acquire))
    }

    /// All of them, those first that were given.
    pub fn iter(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.given.iter().copied().chain(self.leased())
    }

    /// Whether `f` holds for one of them.
    #[inline]
    pub fn any(&self, f: impl Fn(&Cidr) -> bool) -> bool {
        let leased = || unpacked(self.leased.load(Ordering::Acquire));
        self.given.iter().any(&f) || leased().is_some_and(|a| f(&a))
    }

    /// The preferred one.
    pub fn first(&self) -> Option<Cidr> {
        self.iter().next()
    }
}

/// A network interface. Fixed while the stack lives, but for its IPv6 addresses, which are
/// elsewhere ([`crate::ipv6::addrs`]), an IPv4 address that a server gives it, MTUs that a router or
/// a server says, and that it may go.
pub struct Iface {
    /// What its device can do.
    pub caps: Capabilities,
    /// Its number.
    pub number: u16,
    /// Its IPv4 addresses; the first is the preferred source.
    pub addrs: Arc<Addrs>,
    /// The MTU of its link for IPv4, octets; not above the device's.
    pub mtu4: AtomicU32,
    /// The MTU of its link for IPv6, octets; not above the device's.
    pub mtu6: AtomicU32,
    /// Which other destinations it takes.
    pub accept: Accept,
    /// Its receive queues, as numbers among all the stack's.
    pub rx: core::ops::Range<u16>,
    /// Its transmit queues, likewise.
    pub tx: core::ops::Range<u16>,
    /// Its device has gone for good.
    pub gone: AtomicBool,
    /// What routers have said of its link.
    pub variables: HostVariables,
}

impl Iface {
    /// Whether its device has gone for good.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether `ip` is one of its IPv4 addresses. Whether an address is the stack's, of whichever
    /// family, is said by [`crate::SharedState::is_ours`].
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addrs.any(|a| a.addr == ip)
    }

    /// Whether it takes datagrams to `ip` though that is nobody's address here.
    pub fn takes(&self, ip: IpAddr) -> bool {
        // The link-local addresses of IPv6 are those of its neighbours, not of hosts behind it.
        let near = |ip| matches!(ip, IpAddr::V6(ip) if perimeter_wire::ipv6::is_link_local(ip));
        self.accept.is_any() && is_host(ip) && !near(ip)
    }

    /// Whether, at a glance, `local` is ours and `remote` is a host's address and not ours: so
    /// for nearly every packet where the interface has one address. `false` says nothing.
    #[inline]
    pub fn plain(&self, local: IpAddr, remote: IpAddr) -> bool {
        ipv4::plain(self.addrs.only.load(Ordering::Relaxed), local, remote)
    }

    /// The transmit queue for a flow of that hash.
    pub fn txq(&self, hash: u32) -> u16 {
        self.tx.start + (hash % u32::from(self.tx.end - self.tx.start).max(1)) as u16
    }

    /// The largest segment to `remote` that the MTU allows, octets, without options of either
    /// header (RFC 6691). Not below 88, TCP's own least.
    pub fn mss(&self, remote: IpAddr) -> u16 {
        let headers = IpHdr::len_to(remote) + MIN_TCP_HEADER;
        let mtu = self.mtu(remote).min(MAX_DATAGRAM);
        mtu.saturating_sub(headers as u32).max(88) as u16
    }

    /// The longest datagram to `remote`, octets.
    pub fn mtu(&self, remote: IpAddr) -> u32 {
        match remote {
            IpAddr::V4(_) => self.mtu4.load(Ordering::Relaxed),
            IpAddr::V6(_) => self.mtu6.load(Ordering::Relaxed),
        }
    }

    /// How long its neighbours of that family are believed, and how often they are asked.
    pub(crate) fn pace(&self, ip: IpAddr) -> Pace {
        match ip {
            IpAddr::V4(_) => Pace::default(),
            IpAddr::V6(_) => self.variables.pace(),
        }
    }

    /// The hop limit of what goes to `remote` without one of its own, if a router has said.
    pub(crate) fn hop_limit(&self, remote: IpAddr) -> Option<u8> {
        match remote {
            IpAddr::V4(_) => None,
            IpAddr::V6(_) => self.variables.hop_limit(),
        }
    }

    /// A server says what the link's MTU is for IPv4, or nothing: believed up to the device's.
    pub(crate) fn set_mtu4(&self, mtu: Option<u16>) {
        let mtu = mtu.map_or(self.caps.mtu, |m| u32::from(m).min(self.caps.mtu));
        self.mtu4.store(mtu, Ordering::Relaxed);
    }

    /// A router says that the link's MTU is `mtu`: believed from IPv6's least to the device's.
    pub(crate) fn set_mtu6(&self, mtu: u32) {
        if (MIN_MTU..=self.caps.mtu).contains(&mtu) {
            self.mtu6.store(mtu, Ordering::Relaxed);
        }
    }
}

/// A route: a prefix, the interface that leads there and the next hop.
///
/// ```
/// use perimeter_stack::{Cidr, Route};
///
/// // All that is elsewhere, by the router at the first interface.
/// let default = Route {
///     dst: Cidr { addr: "0.0.0.0".parse()?, prefix: 0 },
///     iface: 0,
///     via: Some("10.0.0.254".parse()?),
/// };
/// assert!(default.dst.contains("192.0.2.1".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations.
    pub dst: Cidr,
    /// Interface.
    pub iface: u16,
    /// Next hop; `None`: the destination itself is a neighbour.
    pub via: Option<IpAddr>,
}

impl Route {
    /// The route with the zone of its interface in link-local addresses.
    pub(crate) fn with_zones(mut self) -> Route {
        let zone = ipv6::zone_of(self.iface);
        let zoned = |ip| match ip {
            IpAddr::V6(ip) => IpAddr::V6(perimeter_wire::ipv6::with_zone(ip, zone)),
            ip => ip,
        };
        self.via = self.via.map(zoned);
        self.dst.addr = zoned(self.dst.addr);
        self
    }
}

/// Where a packet goes next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Interface.
    pub iface: u16,
    /// Neighbour.
    pub next: IpAddr,
}

/// Link-layer destination of a hop.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum L2 {
    /// The device has no link layer.
    None,
    /// Source and destination station.
    Stations(MacAddr, MacAddr),
    /// Not known yet: it has been, or is to be, asked for.
    Unresolved,
}

/// Why a datagram was not sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no route.
    NoRoute,
    /// It is longer than can be sent.
    TooLong,
    /// The neighbour's station is not known yet: it is asked for.
    NoStation,
    /// The transmit queue is full.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_link::Medium;

    fn cidr(s: &str) -> Cidr {
        s.parse().unwrap()
    }

    #[test]
    fn prefixes() {
        for (c, ip, want) in [
            ("10.1.2.3/24", "10.1.2.200", true),
            ("10.1.2.3/24", "10.1.3.1", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("10.0.0.1/32", "10.0.0.1", true),
            ("10.0.0.1/32", "10.0.0.2", false),
            ("fe80::1/64", "fe80::2", true),
            ("fe80::1/64", "10.0.0.1", false),
            ("::/0", "1::", true),
        ] {
            assert_eq!(cidr(c).contains(ip.parse().unwrap()), want, "{c} {ip}");
        }
        assert_eq!(
            cidr("10.1.2.3/24").broadcast(),
            Some("10.1.2.255".parse().unwrap())
        );
        assert_eq!(cidr("10.1.2.3/31").broadcast(), None);
        for bad in ["10.0.0.1/33", "x/3", "10.0.0/8", "::/129", ""] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_glance_never_says_more_than_a_look() {
        let caps = Capabilities::new("", Medium::Ethernet, 1500);
        let iface = |addrs: &[&str]| Iface {
            caps: caps.clone(),
            number: 0,
            mtu6: AtomicU32::new(1500),
            addrs: Arc::new(Addrs::new(addrs.iter().map(|a| cidr(a)).collect())),
            mtu4: AtomicU32::new(1500),
            accept: Accept::Own,
            rx: 0..1,
            tx: 0..1,
            gone: AtomicBool::new(false),
            variables: HostVariables::default(),
        };
        let one = iface(&["10.1.2.3/24"]);
        let two = iface(&["10.1.2.3/24", "10.9.9.9/24"]);
        let none = iface(&[]);
        for (local, remote, want) in [
            ("10.1.2.3", "10.1.2.4", true),
            ("10.1.2.3", "223.255.255.255", true),
            ("10.1.2.4", "10.1.2.5", false),
            ("10.1.2.3", "10.1.2.3", false),
            ("10.1.2.3", "10.1.2.255", false),
            ("10.1.2.3", "0.0.0.0", false),
            ("10.1.2.3", "0.255.0.1", false),
            ("10.1.2.3", "1.0.0.0", true),
            ("10.1.2.3", "127.0.0.1", false),
            ("10.1.2.3", "128.0.0.1", true),
            ("10.1.2.3", "240.0.0.1", false),
            ("10.1.2.3", "224.0.0.1", false),
            ("10.1.2.3", "255.255.255.255", false),
            ("::1", "10.1.2.4", false),
        ] {
            let (l, r) = (local.parse().unwrap(), remote.parse().unwrap());
            assert_eq!(one.plain(l, r), want, "{local} {remote}");
            assert!(!two.plain(l, r) && !none.plain(l, r));
            none.addrs.lease(Some(cidr("10.1.2.3/24")));
            assert_eq!(none.plain(l, r), want, "{local} {remote}");
            none.addrs.lease(None);
        }
        one.addrs.lease(Some(cidr("10.9.9.9/24")));
        assert!(!one.plain("10.1.2.3".parse().unwrap(), "10.1.2.4".parse().unwrap()));
        assert!(one.owns("10.9.9.9".parse().unwrap()) && one.owns("10.1.2.3".parse().unwrap()));
    }
}

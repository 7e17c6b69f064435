//! Interfaces, addresses, routes and neighbours. Family-neutral in its types; IPv4 in what it
//! resolves so far.

use crate::id::SockId;
use core::net::{IpAddr, Ipv4Addr};
use perimeter_base::Time;
use perimeter_link::{Capabilities, Medium};
use perimeter_wire::{ArpOp, ArpPacket, ETHERTYPE_ARP, EtherHdr, MacAddr};
use std::collections::HashMap;

/// An address with its prefix length.
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
                let mask = mask4(self.prefix);
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

    /// The directed broadcast address of an IPv4 prefix shorter than 31 bits.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.addr {
            IpAddr::V4(a) if self.prefix < 31 => {
                Some(Ipv4Addr::from(u32::from(a) | !mask4(self.prefix)))
            }
            _ => None,
        }
    }
}

fn mask4(prefix: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0)
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

/// A network interface. Fixed while the stack lives.
pub struct Iface {
    /// What its device can do.
    pub caps: Capabilities,
    /// Its addresses; the first is the preferred source.
    pub addrs: Vec<Cidr>,
    /// Its receive queues, as numbers among all the stack's.
    pub rx: core::ops::Range<u16>,
    /// Its transmit queues, likewise.
    pub tx: core::ops::Range<u16>,
}

impl Iface {
    /// Whether `ip` is one of its addresses.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addrs.iter().any(|a| a.addr == ip)
    }

    /// Whether, at a glance, `local` is ours and `remote` is a host's address and not ours: so
    /// for nearly every packet where the interface has one address. `false` says nothing.
    #[inline]
    pub fn plain(&self, local: IpAddr, remote: IpAddr) -> bool {
        let ([only], IpAddr::V4(l), IpAddr::V4(r)) = (self.addrs.as_slice(), local, remote) else {
            return false;
        };
        let IpAddr::V4(own) = only.addr else {
            return false;
        };
        let host = !mask4(only.prefix);
        let (l, r, own) = (l.to_bits(), r.to_bits(), own.to_bits());
        // Class D and beyond are multicast, reserved and the limited broadcast; all ones in the
        // host part of our prefix is the directed one.
        l == own && r != own && r != 0 && r >> 28 < 0xe && r != own | host
    }

    /// The transmit queue for a flow of that hash.
    pub fn txq(&self, hash: u32) -> u16 {
        self.tx.start + (hash % u32::from(self.tx.end - self.tx.start).max(1)) as u16
    }

    /// The TTL-independent limits: largest TCP segment without options.
    pub fn mss(&self) -> u16 {
        self.caps.mtu.min(65_535).saturating_sub(40).max(88) as u16
    }
}

/// A route: a prefix, the interface that leads there and the next hop.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations.
    pub dst: Cidr,
    /// Interface.
    pub iface: u16,
    /// Next hop; `None`: the destination itself is a neighbour.
    pub via: Option<IpAddr>,
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

/// How many neighbours are remembered; beyond, the longest unconfirmed goes.
const NEIGHBOURS: usize = 1024;
/// How many connections may wait for one neighbour.
const WAITING: usize = 65_536;
/// How long an answer is believed (RFC 1122, section 2.3.2.1 asks for of the order of a minute;
/// traffic from the neighbour confirms it).
const FRESH: u64 = 60_000_000_000;
/// Time between requests for the same neighbour (RFC 1122, section 2.3.2.1: at most one a
/// second).
pub const ASK_AGAIN: u64 = 1_000_000_000;
/// Unanswered requests after which those who wait are told that the neighbour is not there: as
/// many as a SYN has attempts by default and one more, so that a bad wire alone does not do it.
const ASK_LIMIT: u32 = 8;

struct Neighbour {
    mac: Option<MacAddr>,
    confirmed: Time,
    asked: Time,
    /// Requests since the last answer.
    tries: u32,
    waiting: Vec<SockId>,
}

/// Routes and neighbours. Shared by all, behind one lock of class `route_hashtable`; a
/// connection looks here once and keeps a header template until the generation moves.
pub struct Net {
    /// Routes, longest prefix first.
    routes: Vec<Route>,
    neighbours: HashMap<(u16, IpAddr), Neighbour>,
}

impl Net {
    /// No neighbours; the given routes, longest prefix first.
    pub fn new(mut routes: Vec<Route>) -> Net {
        routes.sort_by_key(|r| core::cmp::Reverse(r.dst.prefix));
        Net {
            routes,
            neighbours: HashMap::new(),
        }
    }

    /// The next hop towards `dst`.
    pub fn hop(&self, dst: IpAddr) -> Option<Hop> {
        let r = self.routes.iter().find(|r| r.dst.contains(dst))?;
        Some(Hop {
            iface: r.iface,
            next: r.via.unwrap_or(dst),
        })
    }

    /// The station behind a hop. When it is not known, `waiter` is remembered, and the ARP
    /// request to send is returned if one is due.
    pub fn resolve(
        &mut self,
        iface: &Iface,
        hop: Hop,
        waiter: Option<SockId>,
        now: Time,
    ) -> (L2, Option<ArpPacket>) {
        if iface.caps.medium == Medium::Ip {
            return (L2::None, None);
        }
        let IpAddr::V4(target_ip) = hop.next else {
            return (L2::Unresolved, None);
        };
        self.bound();
        let n = self
            .neighbours
            .entry((hop.iface, hop.next))
            .or_insert(Neighbour {
                mac: None,
                confirmed: now,
                asked: Time::ZERO,
                tries: 0,
                waiting: Vec::new(),
            });
        let stale = n.mac.is_none() || now.nanos_since(n.confirmed) > FRESH;
        let mut ask = None;
        if stale && (n.asked == Time::ZERO || now.nanos_since(n.asked) >= ASK_AGAIN) {
            n.asked = now.max(Time(1));
            n.tries += 1;
            ask = request(iface, target_ip);
        }
        match n.mac {
            Some(mac) => (L2::Stations(iface.caps.mac, mac), ask),
            None => {
                if let Some(id) = waiter
                    && n.waiting.len() < WAITING
                    && n.waiting.last() != Some(&id)
                {
                    n.waiting.push(id);
                }
                (L2::Unresolved, ask)
            }
        }
    }

    /// A neighbour spoke: remembers its station if it was asked for, or if `learn` says that
    /// it addressed us (RFC 826). Returns who waited for it, and whether the station is new.
    pub fn heard(
        &mut self,
        iface: u16,
        ip: Ipv4Addr,
        mac: MacAddr,
        learn: bool,
        now: Time,
    ) -> (Vec<SockId>, bool) {
        let key = (iface, IpAddr::V4(ip));
        if !self.neighbours.contains_key(&key) {
            if !learn {
                return (Vec::new(), false);
            }
            self.bound();
        }
        let n = self.neighbours.entry(key).or_insert(Neighbour {
            mac: None,
            confirmed: now,
            asked: Time::ZERO,
            tries: 0,
            waiting: Vec::new(),
        });
        let changed = n.mac.is_some_and(|m| m != mac);
        n.mac = Some(mac);
        n.confirmed = now;
        n.tries = 0;
        (core::mem::take(&mut n.waiting), changed)
    }

    /// Keeps the table within [`NEIGHBOURS`]: the entry confirmed longest ago goes, those
    /// without a waiter first.
    fn bound(&mut self) {
        if self.neighbours.len() < NEIGHBOURS {
            return;
        }
        let oldest = self
            .neighbours
            .iter()
            .min_by_key(|(_, n)| (!n.waiting.is_empty(), n.mac.is_some(), n.confirmed))
            .map(|(k, _)| *k);
        if let Some(k) = oldest {
            self.neighbours.remove(&k);
        }
    }

    /// ARP requests that are due again for neighbours that somebody waits for go to `out`, and
    /// who has waited in vain to `failed`; yields when the next is due.
    pub fn retry(
        &mut self,
        ifaces: &[Iface],
        now: Time,
        out: &mut Vec<(u16, ArpPacket)>,
        failed: &mut Vec<SockId>,
    ) -> Time {
        let mut next = Time::NEVER;
        for ((iface, ip), n) in &mut self.neighbours {
            if n.mac.is_some() || n.waiting.is_empty() {
                continue;
            }
            if now.nanos_since(n.asked) >= ASK_AGAIN {
                if n.tries >= ASK_LIMIT {
                    n.tries = 0;
                    failed.append(&mut n.waiting);
                    continue;
                }
                n.asked = now.max(Time(1));
                n.tries += 1;
                if let IpAddr::V4(ip) = ip
                    && let Some(p) = request(&ifaces[usize::from(*iface)], *ip)
                {
                    out.push((*iface, p));
                }
            }
            next = next.min(n.asked.plus(ASK_AGAIN));
        }
        next
    }

    /// Routes, longest prefix first.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

fn request(iface: &Iface, target_ip: Ipv4Addr) -> Option<ArpPacket> {
    let sender_ip = iface.addrs.iter().find_map(|a| match a.addr {
        IpAddr::V4(ip) if a.contains(IpAddr::V4(target_ip)) => Some(ip),
        _ => None,
    });
    let first = iface.addrs.iter().find_map(|a| match a.addr {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    Some(ArpPacket {
        op: ArpOp::Request,
        sender_mac: iface.caps.mac,
        sender_ip: sender_ip.or(first)?,
        target_mac: MacAddr([0; 6]),
        target_ip,
    })
}

/// Writes an ARP packet as a frame to `dst`; returns its length.
pub fn arp_frame(src: MacAddr, dst: MacAddr, p: &ArpPacket, out: &mut [u8]) -> usize {
    let n = EtherHdr {
        dst,
        src,
        ethertype: ETHERTYPE_ARP,
    }
    .emit(out);
    n + p.emit(&mut out[n..])
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_longest_prefix_wins() {
        let gateway = "10.0.0.254".parse().unwrap();
        let via = Some(gateway);
        let net = Net::new(vec![
            Route {
                dst: cidr("0.0.0.0/0"),
                iface: 0,
                via,
            },
            Route {
                dst: cidr("10.0.0.0/24"),
                iface: 0,
                via: None,
            },
            Route {
                dst: cidr("10.0.0.128/25"),
                iface: 1,
                via: None,
            },
        ]);
        let hop = |s: &str| net.hop(s.parse().unwrap()).unwrap();
        assert_eq!(
            hop("10.0.0.1"),
            Hop {
                iface: 0,
                next: "10.0.0.1".parse().unwrap()
            }
        );
        assert_eq!(hop("10.0.0.130").iface, 1);
        assert_eq!(hop("9.9.9.9").next, gateway);
    }

    #[test]
    fn a_glance_never_says_more_than_a_look() {
        let caps = Capabilities {
            name: String::new(),
            medium: Medium::Ethernet,
            mac: MacAddr::UNSPECIFIED,
            mtu: 1500,
            tx_checksum: true,
        };
        let iface = |addrs: &[&str]| Iface {
            caps: caps.clone(),
            addrs: addrs.iter().map(|a| cidr(a)).collect(),
            rx: 0..1,
            tx: 0..1,
        };
        let one = iface(&["10.1.2.3/24"]);
        let two = iface(&["10.1.2.3/24", "10.9.9.9/24"]);
        for (local, remote, want) in [
            ("10.1.2.3", "10.1.2.4", true),
            ("10.1.2.3", "223.255.255.255", true),
            ("10.1.2.4", "10.1.2.5", false),
            ("10.1.2.3", "10.1.2.3", false),
            ("10.1.2.3", "10.1.2.255", false),
            ("10.1.2.3", "0.0.0.0", false),
            ("10.1.2.3", "224.0.0.1", false),
            ("10.1.2.3", "255.255.255.255", false),
            ("::1", "10.1.2.4", false),
        ] {
            let (l, r) = (local.parse().unwrap(), remote.parse().unwrap());
            assert_eq!(one.plain(l, r), want, "{local} {remote}");
            assert!(!two.plain(l, r));
        }
    }
}

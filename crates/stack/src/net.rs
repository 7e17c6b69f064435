//! Interfaces, addresses, routes and neighbours. Family-neutral in its types; IPv4 in what it
//! resolves so far.

use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicBool, Ordering};
use perimeter_link::Capabilities;
use perimeter_wire::{ArpOp, ArpPacket, ETHERTYPE_ARP, EtherHdr, MacAddr};

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

/// A network interface. Fixed while the stack lives, but that it may go.
pub struct Iface {
    /// What its device can do.
    pub caps: Capabilities,
    /// Its addresses; the first is the preferred source.
    pub addrs: Vec<Cidr>,
    /// Its receive queues, as numbers among all the stack's.
    pub rx: core::ops::Range<u16>,
    /// Its transmit queues, likewise.
    pub tx: core::ops::Range<u16>,
    /// Its device has gone for good.
    pub gone: AtomicBool,
}

impl Iface {
    /// Whether its device has gone for good.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

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
        // Networks 0 and 127 and class D and beyond (multicast, reserved, the limited broadcast)
        // have no hosts; all ones in the host part of our prefix is the directed broadcast.
        let net = r >> 24;
        l == own && r != own && net.wrapping_sub(1) < 223 && net != 127 && r != own | host
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

/// Whether a host may have this address: networks 0 and 127 have none, and from class D on all is
/// multicast, reserved or broadcast (RFC 6890).
pub(crate) fn host(ip: Ipv4Addr) -> bool {
    !matches!(ip.octets()[0], 0 | 127 | 224..)
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

/// The request for `target_ip` on `iface`. `None`: the interface has no IPv4 address.
pub(crate) fn request(iface: &Iface, target_ip: Ipv4Addr) -> Option<ArpPacket> {
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

/// Says that `ip` is the station `mac` (RFC 5227, section 2.3).
pub(crate) fn announcement(mac: MacAddr, ip: Ipv4Addr) -> ArpPacket {
    ArpPacket {
        op: ArpOp::Request,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr([0; 6]),
        target_ip: ip,
    }
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
        let caps = Capabilities {
            name: String::new(),
            medium: Medium::Ethernet,
            mac: MacAddr::UNSPECIFIED,
            mtu: 1500,
            tx_checksum: true,
            large: 0,
        };
        let iface = |addrs: &[&str]| Iface {
            caps: caps.clone(),
            addrs: addrs.iter().map(|a| cidr(a)).collect(),
            rx: 0..1,
            tx: 0..1,
            gone: AtomicBool::new(false),
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
            assert!(!two.plain(l, r));
        }
    }
}

//! What the stack does for IPv4 alone: the rules of its addresses, ARP and ICMP.

pub(crate) mod arp;
mod arriving;
pub(crate) mod client;
pub(crate) mod icmp;
mod igmp;
mod leases;

use core::net::{IpAddr, Ipv4Addr};
use perimeter_tcp::Unreachable;

/// The network part of a prefix of so many bits.
pub(crate) fn mask(prefix: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0)
}

/// The directed broadcast address of a prefix shorter than 31 bits.
pub(crate) fn broadcast(addr: Ipv4Addr, prefix: u8) -> Option<Ipv4Addr> {
    (prefix < 31).then(|| Ipv4Addr::from(u32::from(addr) | !mask(prefix)))
}

/// Whether a host may have this address: networks 0 and 127 have none, and from class D on all is
/// multicast, reserved or broadcast (RFC 6890).
pub(crate) fn is_host(ip: Ipv4Addr) -> bool {
    !matches!(ip.octets()[0], 0 | 127 | 224..)
}

/// An address of IPv4 and its prefix in a word; 0: none.
pub(crate) fn packed(addr: IpAddr, prefix: u8) -> u64 {
    match addr {
        IpAddr::V4(ip) => u64::from(ip.to_bits()) << 32 | u64::from(prefix) << 8 | 1,
        IpAddr::V6(_) => 0,
    }
}

/// What [`packed`] has put there.
pub(crate) fn unpacked(word: u64) -> Option<(IpAddr, u8)> {
    let addr = || Ipv4Addr::from_bits((word >> 32) as u32);
    (word & 1 != 0).then(|| (addr().into(), (word >> 8) as u8))
}

/// Whether `local` is our only address, which is [packed] in `only`, and `remote` is a host's that
/// is neither ours nor the broadcast address of our prefix.
#[inline]
pub(crate) fn plain(only: u64, local: IpAddr, remote: IpAddr) -> bool {
    let (IpAddr::V4(local), IpAddr::V4(remote)) = (local, remote) else {
        return false;
    };
    if only == 0 {
        return false;
    }
    let (own, host) = ((only >> 32) as u32, !mask((only >> 8) as u8));
    let (l, r) = (local.to_bits(), remote.to_bits());
    // Networks 0 and 127 and class D and beyond (multicast, reserved, the limited broadcast)
    // have no hosts; all ones in the host part of our prefix is the directed broadcast.
    let net = r >> 24;
    l == own && r != own && net.wrapping_sub(1) < 223 && net != 127 && r != own | host
}

/// The code of an ICMP error that says so (RFC 792).
pub(crate) fn unreachable_code(why: Unreachable) -> u8 {
    match why {
        Unreachable::Net => 0,
        Unreachable::Host => 1,
        Unreachable::Protocol => 2,
        Unreachable::Port => 3,
    }
}

//! What the stack does for IPv6 alone: the rules of its addresses, neighbour discovery and ICMPv6.

pub mod addrs;
mod arriving;
pub mod autoconf;
pub(crate) mod icmp;
pub(crate) mod ndp;
pub(crate) mod source;
mod tend;
pub mod variables;

use core::net::Ipv6Addr;
use perimeter_tcp::Unreachable;

/// The least MTU of a link (RFC 8200, section 5).
pub(crate) const MIN_MTU: u32 = 1280;

/// The zone of the link-local addresses of an interface: its number from 1, which is what
/// `SocketAddrV6::scope_id` says (RFC 4007).
pub const fn zone_of(iface: u16) -> u16 {
    iface + 1
}

/// Whether a host may have this address: groups have none, and in ::/64 are the unspecified and the
/// loopback address and those that stand for IPv4's (RFC 4291, section 2.5).
#[inline]
pub(crate) fn is_host(ip: Ipv6Addr) -> bool {
    let high = (ip.to_bits() >> 64) as u64;
    high != 0 && high >> 56 != 0xff
}

/// The code of an ICMPv6 error that says so (RFC 4443, section 3.1).
pub(crate) fn unreachable_code(why: Unreachable) -> u8 {
    match why {
        Unreachable::Net => 0,
        Unreachable::Host | Unreachable::Protocol => 3,
        Unreachable::Port => 4,
    }
}

//! What was received beside TCP's segments.

use core::net::IpAddr;
use perimeter_base::PktBuf;
use perimeter_tcp::Unreachable;
use perimeter_wire::IpHdr;

/// A whole datagram to an address of ours, of a protocol that is wanted.
#[derive(Debug)]
pub struct Datagram {
    /// IP's header, of either family; link-local addresses carry their zones
    /// ([`perimeter_wire::ipv6::with_zone`]).
    pub ip: IpHdr,
    /// The interface that it came by.
    pub iface: u16,
    /// What follows IP's header, which is still in front of it.
    pub payload: PktBuf,
    /// It went to a group, or to all hosts of a link.
    pub group: bool,
    /// The device has verified the transport checksum.
    pub csum_ok: bool,
    /// The device's flow hash, if it has one.
    pub hash: Option<u32>,
}

/// What ICMP says of a datagram that was sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not delivered.
    Unreachable(Unreachable),
    /// It was too big for a link on the way, and may not be cut there.
    TooBig {
        /// What that link takes, octets, as the router says.
        mtu: u32,
        /// How long it was, header of IP included, octets.
        len: u32,
    },
}

/// A received datagram.
#[derive(Debug)]
pub struct Rx {
    /// The data, in the packet buffer that it came in.
    pub data: PktBuf,
    /// Who sent it.
    pub src: (IpAddr, u16),
    /// The address and port that it was sent to.
    pub dst: (IpAddr, u16),
    /// The interface that it came by.
    pub iface: u16,
    /// DSCP and ECN.
    pub tos: u8,
    /// Hops that it had left.
    pub hop_limit: u8,
}

//! What was received beside TCP's segments.

use crate::id::SockId;
use core::net::IpAddr;
use perimeter_base::PktBuf;
use perimeter_tcp::Unreachable;
use perimeter_wire::{IpHdr, NO_ADDRESS};

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

impl Default for Datagram {
    fn default() -> Datagram {
        Datagram {
            ip: IpHdr {
                src: NO_ADDRESS,
                dst: NO_ADDRESS,
                protocol: 0,
                hop_limit: 0,
                tos: 0,
                header_len: 0,
                total_len: 0,
            },
            iface: 0,
            payload: PktBuf::default(),
            group: false,
            csum_ok: false,
            hash: None,
        }
    }
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

impl Default for Rx {
    fn default() -> Rx {
        Rx {
            data: PktBuf::default(),
            src: (NO_ADDRESS, 0),
            dst: (NO_ADDRESS, 0),
            iface: 0,
            tos: 0,
            hop_limit: 0,
        }
    }
}

/// A received datagram, and the socket that it is for.
// In this order, for the reason that `perimeter_link::RxFrame` is in its own.
#[repr(C)]
#[derive(Debug)]
pub struct Addressed {
    /// The datagram.
    pub rx: Rx,
    /// The socket.
    pub to: SockId,
    /// Its checksum has been verified.
    pub csum_ok: bool,
}

//! Wire formats: parsing and building of Ethernet, ARP, IPv4, IPv6, ICMP of both, neighbour
//! discovery, multicast listener reports, UDP and TCP headers, Internet checksums, TCP sequence
//! arithmetic and the flow hash.
//!
//! The crate holds no state, allocates nothing per packet and depends on no
//! other crate of the project. Every parser takes bytes from the network as
//! they come: it returns a [`WireError`] and never panics, whatever the bytes.
//! Builders take values from this host; they panic only where their
//! documentation says so (an output buffer that is too short).
//!
//! The paths that run once per packet are [`frame::parse_ipv4_tcp_into`] and its sibling of IPv6
//! on receive and [`Template::emit`] on transmit.

//!
//! It needs no std, only an allocator: for the table of the flow hash.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arp;
pub mod checksum;
pub mod dhcp;
pub mod error;
pub mod eth;
pub mod flow;
pub mod frame;
pub mod glance;
pub mod icmp;
pub mod icmp6;
pub mod igmp;
pub mod ip;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod seq;
pub mod tcp;
pub mod template;
pub mod udp;

pub use arp::{ArpOp, ArpPacket};
pub use error::WireError;
pub use eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, EtherHdr, MacAddr};
pub use flow::{FlowKey, Toeplitz};
pub use frame::{
    Csum, Frame, TcpFrame, carries, carries_v6, parse_ipv4_tcp, parse_ipv4_tcp_into,
    parse_ipv6_tcp_into, parse_tcp_into,
};
pub use glance::glance;
pub use icmp::{IcmpQuote, Icmpv4};
pub use icmp6::Icmpv6;
pub use ip::{IpHdr, Ipv4Hdr, MAX_DATAGRAM, NO_ADDRESS, PROTO_ICMP, PROTO_TCP, PROTO_UDP};
pub use ipv6::{Ipv6Fragment, Ipv6Hdr, PROTO_ICMPV6};
pub use ndp::Ndp;
pub use seq::Seq;
pub use tcp::{
    MAX_TCP_HEADER, MIN_TCP_HEADER, ParsedTcp, SackBlocks, TcpFlags, TcpHdr, TcpOptions,
};
pub use template::{
    LARGEST_PAYLOAD, MAX_HEADERS, SegOut, Template, finish_checksum, finish_checksum_in_frame,
};
pub use udp::{UdpHdr, UdpTemplate, finish_udp};

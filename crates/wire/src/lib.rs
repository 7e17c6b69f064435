//! Wire formats: parsing and building of Ethernet, ARP, IPv4, ICMPv4, UDP and
//! TCP headers, Internet checksums, TCP sequence arithmetic and the flow hash.
//!
//! The crate holds no state, allocates nothing per packet and depends on no
//! other crate of the project. Every parser takes bytes from the network as
//! they come: it returns a [`WireError`] and never panics, whatever the bytes.
//! Builders take values from this host; they panic only where their
//! documentation says so (an output buffer that is too short).
//!
//! The two paths that run once per packet are [`frame::parse_ipv4_tcp`] on
//! receive and [`Template::emit`] on transmit.

//!
//! It needs no std, only an allocator: for the table of the flow hash.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arp;
pub mod checksum;
pub mod error;
pub mod eth;
pub mod flow;
pub mod frame;
pub mod icmp;
pub mod ip;
pub mod seq;
pub mod tcp;
pub mod template;
pub mod udp;

pub use arp::{ArpOp, ArpPacket};
pub use error::WireError;
pub use eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, EtherHdr, MacAddr};
pub use flow::{FlowKey, Toeplitz};
pub use frame::{Csum, Frame, TcpFrame, carries, parse_ipv4_tcp, parse_ipv4_tcp_into};
pub use icmp::{IcmpQuote, Icmpv4};
pub use ip::{IpHdr, Ipv4Hdr, MAX_DATAGRAM, PROTO_ICMP, PROTO_TCP, PROTO_UDP};
pub use seq::Seq;
pub use tcp::{
    MAX_TCP_HEADER, MIN_TCP_HEADER, ParsedTcp, SackBlocks, TcpFlags, TcpHdr, TcpOptions,
};
pub use template::{MAX_HEADERS, SegOut, Template, finish_checksum, finish_checksum_in_frame};
pub use udp::{UdpHdr, UdpTemplate, finish_udp};

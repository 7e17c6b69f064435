//! Datagrams as a scripted peer sends them.
#![allow(dead_code, reason = "each test crate uses a part of this")]

use perimeter_wire::checksum::tcp_checksum_v4;
use perimeter_wire::{Ipv4Hdr, PROTO_TCP, Seq, TcpFlags, TcpHdr};
use std::net::Ipv4Addr;

/// The stack's address.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The peer's.
pub const THEM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A datagram from the peer to the stack.
pub fn ipv4(protocol: u8, body: &[u8]) -> Vec<u8> {
    ipv4_between((THEM, US), protocol, body)
}

/// A datagram from the first to the second address.
pub fn ipv4_between(addrs: (Ipv4Addr, Ipv4Addr), protocol: u8, body: &[u8]) -> Vec<u8> {
    let hdr = Ipv4Hdr {
        src: addrs.0,
        dst: addrs.1,
        protocol,
        ttl: 64,
        tos: 0,
        ident: 0,
        total_len: (20 + body.len()) as u16,
        header_len: 20,
        dont_fragment: true,
        more_fragments: false,
        frag_offset: 0,
    };
    let mut out = vec![0; 20];
    hdr.emit(&mut out);
    out.extend_from_slice(body);
    out
}

/// A segment from the peer to the stack.
pub fn tcp(hdr: &TcpHdr, payload: &[u8]) -> Vec<u8> {
    tcp_between((THEM, US), hdr, payload)
}

/// A segment from the first to the second address.
pub fn tcp_between(addrs: (Ipv4Addr, Ipv4Addr), hdr: &TcpHdr, payload: &[u8]) -> Vec<u8> {
    let mut seg = vec![0; hdr.header_len()];
    hdr.emit(&mut seg);
    seg.extend_from_slice(payload);
    seg[16..18].fill(0);
    let sum = tcp_checksum_v4(addrs.0, addrs.1, &seg);
    seg[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4_between(addrs, PROTO_TCP, &seg)
}

/// A header of the peer's, from and to these ports.
pub fn header(ports: (u16, u16), seq: u32, ack: u32) -> TcpHdr {
    TcpHdr {
        src_port: ports.0,
        dst_port: ports.1,
        seq: Seq(seq),
        ack: Seq(ack),
        window: 60_000,
        ..TcpHdr::default()
    }
}

/// The peer's SYN from the first to the second port.
pub fn syn(ports: (u16, u16)) -> TcpHdr {
    TcpHdr {
        flags: TcpFlags::SYN,
        ..header(ports, 1_000, 0)
    }
}

/// The peer's acknowledgment of the SYN-ACK in the stack's answer to its SYN.
pub fn completes(syn: &TcpHdr, answer: &[u8]) -> TcpHdr {
    let (syn_ack, _) = TcpHdr::parse(&answer[20..]).unwrap();
    TcpHdr {
        flags: TcpFlags::ACK,
        ack: syn_ack.seq + 1,
        seq: syn.seq + 1,
        ..*syn
    }
}

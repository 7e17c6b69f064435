//! What one frame is, as far as a filter asks and a line can show.

use crate::device::Medium;
use perimeter_wire::{
    ArpOp, ArpPacket, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EtherHdr, Ipv4Hdr, Ipv6Hdr,
    PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP, TcpHdr,
};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// What a frame is. Of a frame that is cut short, what is left says it; checksums are not looked
/// at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The network layer, as an EtherType; 0: not known.
    pub ethertype: u16,
    /// Source and destination of the datagram, or of the ARP packet.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// The protocol number of what the datagram carries.
    pub protocol: Option<u8>,
    /// Ports of TCP or UDP; none in a fragment but the first.
    pub ports: Option<(u16, u16)>,
    /// A fragment's offset, octets, and whether more follow.
    pub fragment: Option<(u16, bool)>,
    /// TCP's header.
    pub tcp: Option<TcpHdr>,
    /// Type and code of an ICMP message.
    pub icmp: Option<(u8, u8)>,
    /// ARP: a request, else an answer.
    pub arp_request: bool,
    /// Octets of payload: of TCP's segment, UDP's datagram, or the datagram otherwise.
    pub payload: u32,
}

impl Summary {
    /// Reads a frame.
    pub fn of(frame: &[u8], medium: Medium) -> Summary {
        let (ethertype, rest) = match medium {
            Medium::Ethernet => match EtherHdr::parse(frame) {
                Ok(h) => (h.ethertype, &frame[EtherHdr::LEN..]),
                Err(_) => return Summary::default(),
            },
            Medium::Ip => match frame.first().map(|b| b >> 4) {
                Some(4) => (ETHERTYPE_IPV4, frame),
                Some(6) => (ETHERTYPE_IPV6, frame),
                _ => return Summary::default(),
            },
        };
        let mut s = Summary {
            ethertype,
            ..Summary::default()
        };
        match ethertype {
            ETHERTYPE_IPV4 => s.v4(rest),
            ETHERTYPE_IPV6 => s.v6(rest),
            ETHERTYPE_ARP => {
                if let Ok(arp) = ArpPacket::parse(rest) {
                    s.ends = Some((arp.sender_ip.into(), arp.target_ip.into()));
                    s.arp_request = arp.op == ArpOp::Request;
                }
            }
            _ => {}
        }
        s
    }

    fn v4(&mut self, bytes: &[u8]) {
        let Ok(h) = Ipv4Hdr::parse_quoted(bytes) else {
            return;
        };
        self.ends = Some((h.src.into(), h.dst.into()));
        self.protocol = Some(h.protocol);
        let offset = h.frag_offset;
        if h.is_fragment() {
            self.fragment = Some((offset, h.more_fragments));
        }
        let header = usize::from(h.header_len);
        self.payload = u32::from(h.total_len).saturating_sub(header as u32);
        if offset == 0 {
            self.transport(h.protocol, bytes.get(header..).unwrap_or_default());
        }
    }

    fn v6(&mut self, bytes: &[u8]) {
        let Ok(h) = Ipv6Hdr::parse_quoted(bytes) else {
            return;
        };
        self.ends = Some((h.src.into(), h.dst.into()));
        self.protocol = Some(h.protocol);
        self.fragment = h.fragment.map(|f| (f.offset, f.more));
        self.payload = h.total_len.saturating_sub(u32::from(h.header_len));
        if h.fragment.is_none_or(|f| f.offset == 0) {
            let header = usize::from(h.header_len);
            self.transport(h.protocol, bytes.get(header..).unwrap_or_default());
        }
    }

    fn transport(&mut self, protocol: u8, bytes: &[u8]) {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        match protocol {
            PROTO_TCP | PROTO_UDP => {
                self.ports = word(0).zip(word(2));
                let tcp = (protocol == PROTO_TCP).then(|| TcpHdr::parse(bytes).ok());
                match tcp.flatten() {
                    Some((tcp, header)) => {
                        self.payload = self.payload.saturating_sub(header as u32);
                        self.tcp = Some(tcp);
                    }
                    None => self.payload = self.payload.saturating_sub(8),
                }
            }
            PROTO_ICMP | PROTO_ICMPV6 => {
                self.icmp = bytes.first().copied().zip(bytes.get(1).copied());
            }
            _ => {}
        }
    }
}

/// One line, as programs that print packets have it.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((src, dst)) = self.ends else {
            return match self.ethertype {
                0 => f.write_str("not understood"),
                ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => f.write_str("IP, not understood"),
                other => write!(f, "ethertype {other:#06x}"),
            };
        };
        if self.ethertype == ETHERTYPE_ARP {
            return match self.arp_request {
                true => write!(f, "ARP who has {dst}, tell {src}"),
                false => write!(f, "ARP answer of {src} to {dst}"),
            };
        }
        match self.ports {
            Some((a, b)) => write!(
                f,
                "{} > {}",
                SocketAddr::new(src, a),
                SocketAddr::new(dst, b)
            )?,
            None => write!(f, "{src} > {dst}")?,
        }
        match (self.protocol, self.tcp, self.icmp) {
            (_, Some(t), _) => {
                write!(f, " TCP {:?} seq {}", t.flags, t.seq.0)?;
                if t.flags.contains(perimeter_wire::TcpFlags::ACK) {
                    write!(f, " ack {}", t.ack.0)?;
                }
                write!(f, " win {}", t.window)?;
            }
            (Some(PROTO_TCP), ..) => f.write_str(" TCP")?,
            (Some(PROTO_UDP), ..) => f.write_str(" UDP")?,
            (Some(PROTO_ICMP), _, Some((kind, code))) => {
                write!(f, " ICMP type {kind} code {code}")?
            }
            (Some(PROTO_ICMPV6), _, Some((kind, code))) => {
                write!(f, " ICMPv6 type {kind} code {code}")?
            }
            (Some(p), ..) => write!(f, " protocol {p}")?,
            (None, ..) => {}
        }
        write!(f, " len {}", self.payload)?;
        if let Some((offset, more)) = self.fragment {
            let more = if more { "+" } else { "" };
            write!(f, " fragment at {offset}{more}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_told_and_nothing_panics() {
        for medium in [Medium::Ethernet, Medium::Ip] {
            for len in 0..80 {
                for fill in [0u8, 0x45, 0x60, 0xff] {
                    let _ = Summary::of(&vec![fill; len], medium).to_string();
                }
            }
        }
        assert_eq!(Summary::of(&[], Medium::Ip).to_string(), "not understood");
    }
}

//! The subnet that the peer plays, in either family.
//!
//! Within the peer an address is 32 bits. Over IPv6 those are the last ones of addresses that have
//! [`PREFIX6`] before them, so flows and frames under way are one cache line in both families.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use perimeter_base::Time;
use perimeter_wire::{ETHERTYPE_IPV6, EtherHdr, Icmpv6, Ipv6Hdr, MacAddr, Ndp, PROTO_ICMPV6};

use super::NicConfig;
use super::peer::Peer;

/// The first 96 bits of all addresses of a subnet of IPv6 (RFC 4193: of this network alone).
pub const PREFIX6: Ipv6Addr = Ipv6Addr::new(0xfd50, 0x4d00, 0, 0, 0, 0, 0, 0);
/// Their octets.
pub(crate) const PREFIX6_OCTETS: [u8; 12] = [0xfd, 0x50, 0x4d, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// What they add to a pseudo-header's sum, once.
pub(crate) const PREFIX6_SUM: u32 = 0xfd50 + 0x4d00;
/// How many bits that is.
const PREFIX6_LEN: u8 = 96;

impl NicConfig {
    /// The same subnet as one of IPv6: see [`NicConfig::v6`].
    #[must_use]
    pub fn over_ipv6(self) -> NicConfig {
        NicConfig { v6: true, ..self }
    }

    /// The stack's address.
    pub fn address(&self) -> IpAddr {
        self.ip(self.host.to_bits())
    }

    /// The prefix length that goes with it, bits.
    pub fn prefix_len(&self) -> u8 {
        match self.v6 {
            true => PREFIX6_LEN + self.prefix,
            false => self.prefix,
        }
    }

    /// An address of the subnet, by its last 32 bits.
    #[inline]
    pub(crate) fn ip(&self, bits: u32) -> IpAddr {
        match self.v6 {
            true => IpAddr::V6(Ipv6Addr::from_bits(PREFIX6.to_bits() | u128::from(bits))),
            false => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        }
    }

    /// The last 32 bits of an address; `None`: it is of the other family, or has another prefix.
    pub(crate) fn bits(&self, ip: IpAddr) -> Option<u32> {
        match ip {
            IpAddr::V4(ip) => (!self.v6).then(|| ip.to_bits()),
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                let behind = self.v6 && bits >> 32 == PREFIX6.to_bits() >> 32;
                behind.then_some(bits as u32)
            }
        }
    }

    /// Whether the peer plays this address.
    pub(crate) fn plays_ip(&self, ip: IpAddr) -> bool {
        let bits = self.bits(ip);
        bits.is_some_and(|bits| self.plays(Ipv4Addr::from_bits(bits)))
    }

    /// Length of the IP header of the family, octets.
    #[inline]
    pub(crate) fn ip_header(&self) -> usize {
        match self.v6 {
            true => Ipv6Hdr::LEN,
            false => 20,
        }
    }
}

impl Peer {
    /// A message of ICMPv6: who has an address of ours is told, an echo is returned, and the rest
    /// (reports of groups, solicitations of routers) is not for us.
    pub(crate) fn icmp6(&mut self, now: Time, ip: &Ipv6Hdr, msg: Icmpv6, body: &[u8]) {
        let mine = |ip| self.config.plays_ip(IpAddr::V6(ip));
        match msg {
            Icmpv6::EchoRequest { ident, seq } if mine(ip.dst) => {
                self.counts.echo += 1;
                let reply = Icmpv6::EchoReply { ident, seq };
                let mut out = vec![0; Icmpv6::LEN + body.len()];
                reply.emit(ip.dst, ip.src, body, &mut out);
                self.answer6(now, (ip.dst, ip.src), 64, &out);
            }
            Icmpv6::Other { kind, code, word } => {
                let ends = (ip.src, ip.dst, ip.hop_limit);
                match Ndp::parse(ends, (kind, code, word), body) {
                    Ok(Ndp::NeighborSolicitation { target, .. })
                        if mine(target) && !ip.src.is_unspecified() =>
                    {
                        self.counts.arp += 1;
                        let advert = Ndp::NeighborAdvertisement {
                            target,
                            router: false,
                            solicited: true,
                            overrides: true,
                            station: Some(self.config.peer_mac),
                        };
                        let mut out = [0; Ndp::MAX_EMITTED];
                        if let Some(n) = advert.emit(target, ip.src, &mut out) {
                            self.answer6(now, (target, ip.src), 255, &out[..n]);
                        }
                    }
                    _ => self.counts.foreign += 1,
                }
            }
            _ => self.counts.foreign += 1,
        }
    }

    /// Sends a message of ICMPv6 to the stack.
    fn answer6(
        &mut self,
        now: Time,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        hop_limit: u8,
        message: &[u8],
    ) {
        let mut out = vec![0; EtherHdr::LEN + Ipv6Hdr::LEN + message.len()];
        let (to, from): (MacAddr, MacAddr) = (self.config.mac, self.config.peer_mac);
        let mut n = EtherHdr {
            dst: to,
            src: from,
            ethertype: ETHERTYPE_IPV6,
        }
        .emit(&mut out);
        n += Ipv6Hdr {
            src,
            dst,
            protocol: PROTO_ICMPV6,
            hop_limit,
            traffic_class: 0,
            flow_label: 0,
            header_len: Ipv6Hdr::LEN as u16,
            total_len: (Ipv6Hdr::LEN + message.len()) as u32,
            fragment: None,
        }
        .emit(&mut out[n..]);
        out[n..].copy_from_slice(message);
        self.raw(now, 0, None, &out);
    }
}

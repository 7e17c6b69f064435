//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::error::WireError;
use crate::eth::{ETHERTYPE_IPV4, MacAddr};

/// What an ARP packet asks or says.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum ArpOp {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ArpPacket {
    /// The operation.
    pub op: ArpOp,
    /// Link-layer address of the sender.
    pub sender_mac: MacAddr,
    /// Protocol address of the sender; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Link-layer address of the target; of no meaning in a request.
    pub target_mac: MacAddr,
    /// Protocol address of the target.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Length of the packet in bytes, without Ethernet padding.
    pub const LEN: usize = 28;

    /// Hardware type Ethernet, protocol type IPv4, and the address lengths.
    const PREFIX: [u8; 6] = {
        let [p0, p1] = ETHERTYPE_IPV4.to_be_bytes();
        [0, 1, p0, p1, 6, 4]
    };

    /// Reads the packet at the start of `bytes`; more bytes are padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`], or [`WireError::BadArp`] for other address
    /// types and unknown operations.
    pub fn parse(bytes: &[u8]) -> Result<ArpPacket, WireError> {
        let packet = bytes
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        let (prefix, rest) = packet.split_at(Self::PREFIX.len());
        if prefix != Self::PREFIX {
            return Err(WireError::BadArp);
        }
        let mac = |at: usize| MacAddr(core::array::from_fn(|i| rest[at + i]));
        let ip = |at: usize| Ipv4Addr::from_octets(core::array::from_fn(|i| rest[at + i]));
        Ok(ArpPacket {
            op: match [rest[0], rest[1]] {
                [0, 1] => ArpOp::Request,
                [0, 2] => ArpOp::Reply,
                _ => return Err(WireError::BadArp),
            },
            sender_mac: mac(2),
            sender_ip: ip(8),
            target_mac: mac(12),
            target_ip: ip(18),
        })
    }

    /// Writes the packet to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`ArpPacket::LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN];
        out[..6].copy_from_slice(&Self::PREFIX);
        out[6] = 0;
        out[7] = match self.op {
            ArpOp::Request => 1,
            ArpOp::Reply => 2,
        };
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
        Self::LEN
    }

    /// The reply of the station `mac` to this request for its address.
    pub fn reply(&self, mac: MacAddr) -> ArpPacket {
        ArpPacket {
            op: ArpOp::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }
}

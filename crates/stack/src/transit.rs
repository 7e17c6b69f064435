//! A datagram of others, while it is here.

mod waiting;

use crate::net::is_host;
use core::net::IpAddr;
use perimeter_base::desc::HEADERS;
use perimeter_base::{PktBuf, TxHead};
use perimeter_link::{Capabilities, Medium, RxFrame};
use perimeter_wire::checksum::{fold, pseudo_v4, pseudo_v6, sum, update16};
use perimeter_wire::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, EtherHdr, FlowKey, IpHdr, Ipv4Hdr, Ipv6Hdr, MacAddr,
    PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP, UdpHdr,
};

pub(crate) use waiting::{LONGEST, Waiting};

/// Where a checksum is that the device has vouched for, and that may be partial.
#[derive(Copy, Clone)]
struct Vouched {
    /// Where TCP or UDP begins in the datagram, octets.
    start: usize,
    /// Where in that the checksum is.
    at: usize,
}

/// A datagram for another host.
pub(crate) struct Transit {
    /// The datagram, nothing in front of it and nothing behind.
    pub(crate) buf: PktBuf,
    /// Its header, as it came. Of IPv6 the fixed one alone.
    pub(crate) ip: IpHdr,
    /// How it came: the interface, and the station if that has such.
    pub(crate) iface: u16,
    pub(crate) station: Option<MacAddr>,
    /// It is a large segment of TCP that stands for several: octets of each but the last; else 0.
    pub(crate) segment_size: u16,
    /// It is a fragment, and not the first of its datagram.
    later_fragment: bool,
    vouched: Option<Vouched>,
    hash: Option<u32>,
}

impl Transit {
    /// Takes the datagram out of a frame that came by interface `iface` if `goes_on` says so of its
    /// destination.
    #[inline]
    pub(crate) fn of(
        (iface, caps): (u16, &Capabilities),
        f: &mut RxFrame,
        goes_on: impl FnOnce(IpAddr) -> bool,
    ) -> Option<Transit> {
        let bytes = f.buf.as_slice();
        let (l2, station) = match caps.medium {
            Medium::Ip => (0, None),
            Medium::Ethernet => {
                let eth = EtherHdr::parse(bytes).ok()?;
                let known = [ETHERTYPE_IPV4, ETHERTYPE_IPV6].contains(&eth.ethertype);
                (eth.dst == caps.mac && known).then_some((EtherHdr::LEN, Some(eth.src)))?
            }
        };
        let (ip, fragment) = header(bytes.get(l2..)?)?;
        if !goes_on(ip.dst) {
            return None;
        }
        let mut buf = core::mem::take(&mut f.buf);
        buf.trim_front(l2);
        buf.truncate(ip.total_len as usize);
        let mut t = Transit {
            buf,
            ip,
            iface,
            station,
            segment_size: f.segment_size,
            later_fragment: fragment.is_some_and(|at| at > 0),
            vouched: None,
            hash: f.hash,
        };
        if (f.csum_ok || f.segment_size > 0) && fragment.is_none() {
            t.vouched = t.checksum();
        }
        Some(t)
    }

    /// One of several that a datagram was cut into: `vouched` says that its checksum is to be made.
    pub(crate) fn part(&self, buf: PktBuf, vouched: bool) -> Option<Transit> {
        let (ip, fragment) = header(buf.as_slice())?;
        Some(Transit {
            buf,
            ip,
            iface: self.iface,
            station: self.station,
            segment_size: 0,
            later_fragment: fragment.is_some_and(|at| at > 0),
            vouched: self.vouched.filter(|_| vouched),
            hash: self.hash,
        })
    }

    /// Where the checksum of a whole datagram of TCP or UDP is. `None`: it has none.
    fn checksum(&self) -> Option<Vouched> {
        let bytes = self.buf.as_slice();
        let (protocol, start) = match self.ip.dst {
            IpAddr::V4(_) => (self.ip.protocol, self.ip.header_len),
            IpAddr::V6(_) => {
                let hdr = Ipv6Hdr::parse(bytes).ok()?;
                (hdr.protocol, hdr.header_len)
            }
        };
        let at = match protocol {
            PROTO_TCP => 16,
            PROTO_UDP => usize::from(UdpHdr::CHECKSUM_AT),
            _ => return None,
        };
        let start = usize::from(start);
        let field = bytes.get(start + at..start + at + 2)?;
        (protocol != PROTO_UDP || field != [0, 0]).then_some(Vouched { start, at })
    }

    /// Whether its checksum is UDP's, of which 0 says that there is none.
    fn is_udp(v: Vouched) -> bool {
        v.at == usize::from(UdpHdr::CHECKSUM_AT)
    }

    /// One hop fewer is left.
    pub(crate) fn hop(&mut self) {
        let v4 = self.ip.dst.is_ipv4();
        self.ip.hop_limit -= 1;
        let bytes = self.buf.as_mut_slice();
        if !v4 {
            bytes[7] -= 1;
            return;
        }
        let word = |b: &[u8], at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let before = word(bytes, 8);
        bytes[8] -= 1;
        let check = update16(word(bytes, 10), before, word(bytes, 8));
        bytes[10..12].copy_from_slice(&check.to_be_bytes());
    }

    /// Where TCP's header begins and ends in a segment whose checksum the device has vouched for.
    pub(crate) fn tcp(&self) -> Option<(usize, usize)> {
        let v = self.vouched.filter(|v| !Self::is_udp(*v))?;
        let offset = self.buf.as_slice().get(v.start + 12)?;
        let end = v.start + usize::from(offset >> 4) * 4;
        (offset >> 4 >= 5 && end <= self.buf.len()).then_some((v.start, end))
    }

    /// Octets of the longest datagram that it stands for.
    pub(crate) fn longest(&self) -> u32 {
        match (self.segment_size, self.tcp()) {
            (0, _) | (_, None) => self.ip.total_len,
            (size, Some((_, headers))) => self.ip.total_len.min(headers as u32 + u32::from(size)),
        }
    }

    /// Whether a device can be given it as a large segment: there is room for its headers.
    pub(crate) fn headers_fit(&self) -> bool {
        self.tcp()
            .is_some_and(|(_, end)| end <= HEADERS - EtherHdr::LEN)
    }

    /// Whether it may be sent in fragments: of IPv4, and it does not forbid it.
    pub(crate) fn may_be_cut(&self) -> bool {
        const DONT_FRAGMENT: u8 = 0x40;
        let flags = self.buf.as_slice().get(6);
        let allowed = flags.is_some_and(|f| f & DONT_FRAGMENT == 0);
        self.ip.dst.is_ipv4() && self.segment_size == 0 && allowed
    }

    /// The device's hash of its flow, if it has one; of fragments, of addresses alone.
    pub(crate) fn hash(&self) -> Option<u32> {
        self.hash
    }

    /// A flow that all between these hosts are of, and their fragments.
    pub(crate) fn ends(&self) -> FlowKey {
        FlowKey {
            local: self.ip.dst,
            remote: self.ip.src,
            local_port: 0,
            remote_port: 0,
        }
    }

    /// Puts the sum of the pseudo-header where the checksum is, which somebody is then to complete.
    fn prepare_checksum(&mut self) -> Option<Vouched> {
        let v = self.vouched.take()?;
        let protocol = if Self::is_udp(v) {
            PROTO_UDP
        } else {
            PROTO_TCP
        };
        let bytes = self.buf.as_mut_slice();
        let len = bytes.len() - v.start;
        let pseudo = match self.ip.ends() {
            (IpAddr::V4(src), IpAddr::V4(dst)) => pseudo_v4(src, dst, protocol, len as u16),
            (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo_v6(src, dst, protocol, len as u32),
            _ => return None,
        };
        let at = v.start + v.at;
        bytes[at..at + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
        Some(v)
    }

    /// Makes the checksum whole that may be partial.
    pub(crate) fn finish_checksum(&mut self) {
        let Some(v) = self.prepare_checksum() else {
            return;
        };
        let bytes = self.buf.as_mut_slice();
        let mut check = !fold(sum(&bytes[v.start..], 0));
        if check == 0 && Self::is_udp(v) {
            check = 0xffff;
        }
        let at = v.start + v.at;
        bytes[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Writes what the device is to send, behind `l2` octets of a link's header.
    pub(crate) fn describe(mut self, l2: usize, d: &mut TxHead) {
        // Behind long chains of extension headers a descriptor can't say where it is.
        let far = self.vouched.is_some_and(|v| l2 + v.start > 0xff);
        if far {
            self.finish_checksum();
        }
        let tcp = self.tcp();
        if let Some(v) = self.prepare_checksum() {
            d.offload.csum_start = (l2 + v.start) as u8;
            d.offload.csum_offset = v.at as u8;
        }
        let mut n = l2;
        if self.segment_size > 0
            && let Some((_, len)) = tcp
        {
            let head = &self.buf.as_slice()[..len];
            d.hdr[n..n + len].copy_from_slice(head);
            n += len;
            self.buf.trim_front(len);
            d.offload.segment_size = self.segment_size;
        }
        d.hdr_len = n as u8;
        d.owned = Some(self.buf);
    }

    /// Whether its sender may be told of what is wrong: it is no error itself, no later fragment,
    /// and from a host (RFC 1812, section 4.3.2.7; RFC 4443, section 2.4, (e)).
    pub(crate) fn may_tell(&self) -> bool {
        let body = self.buf.as_slice().get(usize::from(self.ip.header_len));
        let error = match self.ip.protocol {
            // All but requests and answers.
            PROTO_ICMP => !matches!(body, Some(0 | 8 | 13..=18)),
            PROTO_ICMPV6 => !matches!(body, Some(128..) if body != Some(&137)),
            _ => false,
        };
        !error && !self.later_fragment && is_host(self.ip.src)
    }
}

/// The header at the start of `bytes`, and where in its datagram it is if it is a fragment. Of IPv6
/// extension headers only the first is looked at, as they are for the destination.
fn header(bytes: &[u8]) -> Option<(IpHdr, Option<u16>)> {
    match bytes.first()? >> 4 {
        4 => {
            let hdr = Ipv4Hdr::parse(bytes, true).ok()?;
            let fragment = hdr.is_fragment().then_some(hdr.frag_offset);
            Some((hdr.into(), fragment))
        }
        _ => {
            const FRAGMENT: u8 = 44;
            let hdr = Ipv6Hdr::fixed(bytes).ok()?;
            let fits = hdr.total_len as usize <= bytes.len();
            let field = bytes.get(Ipv6Hdr::LEN + 2..Ipv6Hdr::LEN + 4);
            let offset = field.map(|b| u16::from_be_bytes([b[0], b[1]]) & !7);
            let fragment = offset.filter(|_| hdr.protocol == FRAGMENT);
            fits.then_some((hdr.into(), fragment))
        }
    }
}

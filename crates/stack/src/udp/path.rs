//! The way of datagrams to a peer: what is prepared for it, what waits for it, and how they get into a
//! ring.

use super::UdpError;
use crate::count::Count;
use crate::ctx::Ctx;
use crate::fragment;
use crate::kind::Kind;
use crate::net::SendError;
use core::net::IpAddr;
use perimeter_base::desc::HEADERS;
use perimeter_base::{Bytes, PktBuf, Time, TxPages};
use perimeter_link::device::MOST_DATAGRAMS;
use perimeter_sync::{Platform, Work};
use perimeter_wire::{FlowKey, IpHdr, MAX_DATAGRAM, MacAddr, UdpHdr, UdpTemplate, finish_udp};

/// Data to send.
#[derive(Debug)]
pub enum Payload {
    /// In a packet buffer, which comes back unless a descriptor keeps it.
    Buf(PktBuf),
    /// In memory that several datagrams may refer to.
    Shared(Bytes),
}

impl Payload {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Buf(b) => b.as_slice(),
            Payload::Shared(b) => b,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Payload::Buf(b) => b.len(),
            Payload::Shared(b) => b.len(),
        }
    }

    /// The packet buffer, if it is one.
    pub(super) fn into_buf(self) -> Option<PktBuf> {
        match self {
            Payload::Buf(b) => Some(b),
            Payload::Shared(_) => None,
        }
    }
}

/// What one call sends to one peer.
#[derive(Debug)]
pub struct Outgoing {
    /// To whom; `None`: the socket's peer.
    pub to: Option<(IpAddr, u16)>,
    /// From which address and port, where not from the socket's own: only a socket that takes
    /// anything may say so.
    pub from: Option<(IpAddr, u16)>,
    /// The data.
    pub data: Payload,
    /// It is several datagrams of so many bytes each, but for the last one; 0: it is one.
    pub segment: u16,
}

impl Outgoing {
    /// Bytes of each datagram, but for the last one.
    pub(super) fn each(&self) -> usize {
        let len = self.data.len();
        match self.segment {
            0 => len,
            n => usize::from(n).min(len),
        }
    }
}

/// A datagram, or several, waiting for the station of a neighbour.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) out: Outgoing,
}

impl Waiting {
    pub(super) fn pins(&self) -> usize {
        let data = match &self.out.data {
            Payload::Buf(b) => b.capacity(),
            Payload::Shared(b) => b.len(),
        };
        data + size_of::<Waiting>()
    }
}

/// The way to a peer, and headers prepared for it.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) iface: u16,
    /// As the call said it.
    pub(super) from: Option<(IpAddr, u16)>,
    pub(super) to: (IpAddr, u16),
    pub(super) generation: u32,
    pub(super) until: Time,
    pub(super) txq: u16,
    pub(super) ip: IpHdr,
    pub(super) ports: (u16, u16),
    pub(super) stations: Option<(MacAddr, MacAddr)>,
    /// The longest datagram that goes in one piece, header of IP included, octets. 0: routers must
    /// be able to cut each further.
    pub(super) mtu: u32,
    /// The longest fragment, likewise.
    pub(super) piece: u32,
    pub(super) template: UdpTemplate,
    /// Nothing is sent in fragments.
    pub(super) whole: bool,
    /// For what goes to a group: its interface, and headers for the way to ourselves.
    pub(super) looped: Option<(u16, u16, UdpTemplate)>,
}

/// What came of it.
#[derive(Debug)]
pub struct Sent {
    /// Bytes that were sent, or put aside until a neighbour is known: of several datagrams those
    /// at the front for which there was room.
    pub taken: Result<usize, UdpError>,
    /// The buffer, if nobody needs it.
    pub back: Option<PktBuf>,
}

impl Sent {
    pub(super) fn not(e: UdpError, out: Outgoing) -> Sent {
        Sent {
            taken: Err(e),
            back: out.data.into_buf(),
        }
    }
}

/// A ring that had no room, and how many places are waited for.
pub(super) type Full = (u16, u16);

impl Path {
    /// Writes `out` into the ring; tells by `full` if that had no room for all.
    // By another way than what it gives, which callers hand on as it is: 23 instructions less.
    #[inline]
    pub(super) fn emit<K: Kind>(
        &self,
        cx: &mut Ctx<K>,
        out: Outgoing,
        full: &mut Option<Full>,
    ) -> Sent {
        let (len, each) = (out.data.len(), out.each());
        if self.looped.is_some() {
            self.loop_back(cx, &out.data, each);
        }
        if each + self.template.ip_len() > self.mtu as usize {
            return self.emit_fragments(cx, out, each, full);
        }
        let (taken, back) = match out.data {
            Payload::Buf(buf) if each == len => self.place_one(cx, buf),
            Payload::Buf(buf) => {
                // Cut, several descriptors refer to it.
                let (all, data) = (Bytes::copy_from_slice(buf.as_slice()), Some(buf));
                let n = self.place_many(cx, &all, each);
                (n, data)
            }
            Payload::Shared(all) => (self.place_many(cx, &all, each), None),
        };
        if taken.is_none_or(|n| n < len) {
            cx.count(Count::TxRingFull, 1);
            *full = Some((self.txq, 1));
        }
        let taken = taken.ok_or(UdpError::WouldBlock);
        Sent { taken, back }
    }

    /// Sends datagrams of `each` octets in fragments.
    #[cold]
    fn emit_fragments<K: Kind>(
        &self,
        cx: &mut Ctx<K>,
        out: Outgoing,
        each: usize,
        full: &mut Option<Full>,
    ) -> Sent {
        let data = out.data.as_slice();
        let fits = each <= MAX_DATAGRAM as usize - UdpHdr::LEN - self.ip_header();
        let mut at = 0;
        let error = loop {
            if !fits || self.whole {
                break Some(SendError::TooLong);
            }
            let here = &data[at..data.len().min(at + each)];
            if let Err(e) = self.fragment(cx, here) {
                break Some(e);
            }
            at += here.len();
            // Nothing at all is a datagram, too.
            if at == data.len() {
                break None;
            }
        };
        let is_full = matches!(error, Some(SendError::Full));
        if is_full {
            let next = data.len().min(at + each) - at;
            *full = Some((self.txq, self.fragments(next)));
        }
        let taken = match error {
            Some(_) if at == 0 && is_full => Err(UdpError::WouldBlock),
            Some(_) if at == 0 => Err(UdpError::TooLong),
            _ => Ok(at),
        };
        Sent {
            taken,
            back: out.data.into_buf(),
        }
    }

    /// The flow.
    pub(super) fn key(&self) -> FlowKey {
        FlowKey {
            local: self.ip.src,
            remote: self.ip.dst,
            local_port: self.ports.0,
            remote_port: self.ports.1,
        }
    }

    /// Octets of IP's header that count towards a datagram's length: IPv6's does not.
    pub(super) fn ip_header(&self) -> usize {
        match self.ip.dst {
            IpAddr::V4(_) => IpHdr::len_to(self.ip.dst),
            IpAddr::V6(_) => 0,
        }
    }

    /// The number of fragments of a datagram with `len` octets of data.
    pub(super) fn fragments(&self, len: usize) -> u16 {
        fragment::number(self.piece, &self.ip, UdpHdr::LEN + len)
            .map_or(1, |n| n.min(u16::MAX.into()) as u16)
    }

    /// Sends one datagram in fragments.
    pub(super) fn fragment<K: Kind>(&self, cx: &mut Ctx<K>, data: &[u8]) -> Result<(), SendError> {
        let mut body = vec![0; UdpHdr::LEN + data.len()];
        UdpHdr {
            src_port: self.ports.0,
            dst_port: self.ports.1,
            len: body.len() as u16,
            check: 0,
        }
        .emit(&mut body);
        body[UdpHdr::LEN..].copy_from_slice(data);
        // Nobody on the way could complete it.
        finish_udp(self.ip.src, self.ip.dst, &mut body);
        let at = (self.piece, self.txq);
        fragment::send(cx, at, self.stations, &self.ip, Bytes::from(body))?;
        cx.count(Count::UdpOut, 1);
        Ok(())
    }

    /// Sends a copy to ourselves of what goes to a group that a socket here has joined, or to all
    /// hosts.
    #[cold]
    pub(super) fn loop_back<K: Kind>(&self, cx: &mut Ctx<K>, data: &Payload, each: usize) {
        let Some((iface, q, template)) = &self.looped else {
            return;
        };
        if self.to.0.is_multicast() && !cx.sh.joined(*iface, self.to.0) {
            return;
        }
        let (sh, own) = cx.split();
        let mut rest = Some(data.as_slice());
        while let Some(data) = rest {
            let (here, after) = data.split_at(each.min(data.len()));
            rest = (!after.is_empty()).then_some(after);
            let mut stage = sh.tx[usize::from(*q)].stage();
            if here.len() + template.ip_len() > MAX_DATAGRAM as usize {
                return;
            }
            let Some(mut d) = stage.push_with(&mut own.pool) else {
                return sh.count(own.lane, Count::TxRingFull, 1);
            };
            d.hdr_len = template.emit(&mut d.hdr, 0, here.len() as u32) as u8;
            d.offload.csum_start = template.udp_start() as u8;
            d.offload.csum_offset = UdpHdr::CHECKSUM_AT;
            d.owned = Some(PktBuf::copy_of(here));
            drop(stage);
            own.deferred.ring(*q);
        }
    }

    /// Places one datagram; how long it was, and the buffer if no descriptor keeps it. Short ones
    /// go into the descriptor with their headers.
    #[inline]
    pub(super) fn place_one<K: Kind>(
        &self,
        cx: &mut Ctx<K>,
        buf: PktBuf,
    ) -> (Option<usize>, Option<PktBuf>) {
        let len = buf.len();
        let (sh, own) = cx.split();
        let mut stage = sh.tx[usize::from(self.txq)].stage();
        let Some(mut d) = stage.push_with(&mut own.pool) else {
            return (None, Some(buf));
        };
        let n = self.template.emit(&mut d.hdr, 0, len as u32);
        d.offload.csum_start = self.template.udp_start() as u8;
        d.offload.csum_offset = UdpHdr::CHECKSUM_AT;
        let back = if n + len <= HEADERS {
            d.hdr[n..n + len].copy_from_slice(buf.as_slice());
            d.hdr_len = (n + len) as u8;
            Some(buf)
        } else {
            d.hdr_len = n as u8;
            d.owned = Some(buf);
            None
        };
        drop(stage);
        sh.p.charge(Work::TcpOutput, 1);
        sh.count(own.lane, Count::UdpOut, 1);
        own.deferred.ring(self.txq);
        (Some(len), back)
    }

    /// Places `all`, cut into datagrams of `each` bytes, as far as there is room; how many bytes
    /// that was. Descriptors refer to the memory as it is, and have several where the device cuts.
    pub(super) fn place_many<K: Kind>(
        &self,
        cx: &mut Ctx<K>,
        all: &Bytes,
        each: usize,
    ) -> Option<usize> {
        let (sh, own) = cx.split();
        let mut pages = TxPages::default();
        pages.push(all.clone());
        let port = &sh.tx[usize::from(self.txq)];
        let most = (port.large_datagrams as usize / each.max(1)).clamp(1, MOST_DATAGRAMS);
        let mut stage = port.stage();
        let (mut at, mut n) = (0, 0);
        // Nothing at all is a datagram, too.
        while at < all.len() || n == 0 {
            let len = (most * each).min(all.len() - at);
            let Some(mut d) = stage.push_with(&mut own.pool) else {
                break;
            };
            d.hdr_len = self.template.emit(&mut d.hdr, 0, len as u32) as u8;
            d.offload.csum_start = self.template.udp_start() as u8;
            d.offload.csum_offset = UdpHdr::CHECKSUM_AT;
            if len > each {
                d.offload.segment_size = each as u16;
            }
            pages.refer(at, len, &mut d, &mut own.pool);
            at += len;
            n += len.div_ceil(each.max(1)).max(1) as u64;
        }
        drop(stage);
        sh.p.charge(Work::TcpOutput, n);
        sh.count(own.lane, Count::UdpOut, n);
        if n == 0 {
            return None;
        }
        own.deferred.ring(self.txq);
        Some(at)
    }
}

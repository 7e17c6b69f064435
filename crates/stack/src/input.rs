//! From the device to the organization: frames are checked and parsed once, what is not TCP is
//! dealt with here, and TCP segments are collected for the organization.

use crate::commons::Commons;
use crate::count::{Count, malformed};
use crate::ctx::Ctx;
use crate::datagram::{self, Datagram};
use crate::id::SockId;
use crate::kind::Kind;
use crate::net::host;
use crate::ops::Icmp;
use crate::own::Own;
use core::net::IpAddr;
use perimeter_base::PktBuf;
use perimeter_link::{Medium, RxFrame};
use perimeter_sync::{Platform, Work};
use perimeter_tcp::Unreachable;
use perimeter_wire::icmp::CODE_FRAGMENTATION_NEEDED;
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, ETHERTYPE_IPV4, EtherHdr, FlowKey, Frame, IcmpQuote, Icmpv4, Ipv4Hdr,
    MacAddr, PROTO_ICMP, PROTO_TCP, WireError, parse_ipv4_tcp_into,
};
use std::vec::Drain;

/// What a burst held beside TCP segments, for the organization to act on.
#[derive(Default)]
pub struct Aside {
    /// ICMP errors and the flows that they are about.
    pub icmp: Vec<(FlowKey, Icmp)>,
    /// Connections whose neighbour was resolved.
    pub resolved: Vec<SockId>,
    /// Whole frames that belong to no connection and that nothing here answers, if they are
    /// wanted: datagrams of other protocols or for other hosts.
    pub unbound: Vec<PktBuf>,
    /// Datagrams of protocols that are wanted.
    pub datagrams: Vec<Datagram>,
    /// Errors about such datagrams of ours: the protocol, the ends, and what is wrong.
    pub errors: Vec<(u8, FlowKey, Unreachable)>,
}

/// What a stack takes beside TCP.
#[derive(Copy, Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Packets that belong to no connection: see [`Aside::unbound`].
    pub unbound: bool,
    /// Protocols, by their numbers in IP's header.
    pub protocols: &'a [u8],
    /// Frames may be large segments.
    pub large: bool,
    /// Segments of TCP that follow each other are merged: see [`crate::merge`].
    pub merged: bool,
}

/// Parses the burst in `cx.frames` of interface `iface` into `cx.segs`, and what else is wanted.
pub fn parse<K: Kind>(cx: &mut Ctx<K>, iface: u16, wanted: Wanted<'_>) -> Aside {
    let mut aside = Aside::default();
    let mut frames = core::mem::take(&mut cx.frames);
    let n = frames.len() as u64;
    cx.count(Count::RxFrames, n);
    cx.sh.p.charge(Work::RxFrame, n);
    drain(cx, iface, frames.drain(..), wanted, &mut aside);
    cx.frames = frames;
    aside
}

fn drain<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    frames: Drain<'_, RxFrame>,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) {
    let (sh, own) = cx.split();
    let caps = &sh.ifaces[usize::from(iface)].caps;
    let (ethernet, mac) = (caps.medium == Medium::Ethernet, caps.mac);
    let before = own.segs.len();
    if wanted.merged {
        own.latest.forget();
    }
    for f in frames {
        let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
        let bytes = f.buf.as_slice();
        let l2_len = if ethernet { EtherHdr::LEN } else { 0 };
        if ethernet && !is_to(bytes, mac) && !stray(&mut Ctx::new(sh, own), bytes) {
            own.pool.put(f.buf);
            continue;
        }
        if carries_tcp(bytes, ethernet) {
            let seg = own.segs.place();
            match parse_ipv4_tcp_into(&bytes[l2_len..], l2_len, csum, &mut seg.frame) {
                Ok(()) => tcp((sh, own), iface, f, wanted, aside),
                Err(e) => drop_malformed(&mut Ctx::new(sh, own), e, f.buf),
            }
            continue;
        }
        let parsed = if ethernet {
            Frame::parse_ethernet(bytes, csum)
        } else {
            Frame::parse_ip(bytes, 0, csum)
        };
        match parsed {
            Ok(Frame::Arp(p)) => arp(&mut Ctx::new(sh, own), iface, &p, aside),
            Ok(Frame::Icmp { ip, msg, body }) => {
                let cx = &mut Ctx::new(sh, own);
                if for_us(cx, iface, &ip) {
                    icmp(cx, iface, &ip, (msg, body), wanted, aside, bytes);
                }
            }
            Ok(Frame::Ipv4 { ip, .. }) if wanted.protocols.contains(&ip.protocol) => {
                if for_us(&mut Ctx::new(sh, own), iface, &ip) {
                    let mut payload = f.buf;
                    payload.trim_front(l2_len + usize::from(ip.header_len));
                    payload.truncate(usize::from(ip.total_len) - usize::from(ip.header_len));
                    aside.datagrams.push(Datagram { ip, iface, payload });
                    continue;
                }
            }
            Ok(_) if wanted.unbound => {
                aside.unbound.push(f.buf);
                continue;
            }
            Ok(_) => sh.count(own.lane, Count::OtherProtocol, 1),
            Err(e) => sh.counters.add(own.lane, malformed(e), 1),
        }
        own.pool.put(f.buf);
    }
    let came = own.segs.len() - before;
    let mut segs = came;
    if wanted.large {
        segs = own
            .segs
            .iter()
            .skip(before)
            .map(|s| usize::from(s.segs))
            .sum();
        sh.count(own.lane, Count::RxMerged, (segs - came) as u64);
    }
    sh.count(own.lane, Count::RxSegs, segs as u64);
}

/// Whether a frame is addressed to that station; two comparisons of whole words.
#[inline(always)]
fn is_to(bytes: &[u8], mac: MacAddr) -> bool {
    let [m0, m1, m2, m3, m4, m5] = mac.0;
    bytes.first_chunk().is_some_and(|&[a, b, c, d, e, f]| {
        let head = u32::from_ne_bytes([a, b, c, d]) ^ u32::from_ne_bytes([m0, m1, m2, m3]);
        let tail = u16::from_ne_bytes([e, f]) ^ u16::from_ne_bytes([m4, m5]);
        head | u32::from(tail) == 0
    })
}

/// What to do with a frame that is not addressed to our station alone: whether it is looked at.
/// Those to a group are, unless they carry TCP or ICMP, which are between two hosts here, whatever
/// their IP addresses say. Frames too short to say where they go are for the parser to count.
#[cold]
fn stray<K: Kind>(cx: &mut Ctx<K>, bytes: &[u8]) -> bool {
    let Ok(eth) = EtherHdr::parse(bytes) else {
        return true;
    };
    let why = if !eth.dst.is_multicast() {
        Count::OtherStation
    } else if carries(bytes, true, PROTO_TCP) || carries(bytes, true, PROTO_ICMP) {
        Count::GroupFrame
    } else {
        return true;
    };
    cx.count(why, 1);
    false
}

/// Whether a frame claims to be TCP over IPv4; the parser checks the claim.
#[inline]
fn carries_tcp(bytes: &[u8], ethernet: bool) -> bool {
    carries(bytes, ethernet, PROTO_TCP)
}

#[inline(always)]
fn carries(bytes: &[u8], ethernet: bool, protocol: u8) -> bool {
    const PROTOCOL: usize = 9;
    if ethernet {
        bytes.len() > EtherHdr::LEN + PROTOCOL
            && bytes[12..14] == ETHERTYPE_IPV4.to_be_bytes()
            && bytes[EtherHdr::LEN + PROTOCOL] == protocol
    } else {
        bytes.len() > PROTOCOL && bytes[0] >> 4 == 4 && bytes[PROTOCOL] == protocol
    }
}

#[cold]
fn drop_malformed<K: Kind>(cx: &mut Ctx<K>, e: WireError, buf: PktBuf) {
    cx.sh.counters.add(cx.lane, malformed(e), 1);
    cx.pool.put(buf);
}

/// Completes the segment whose header was parsed into its place, unless it is to be dropped.
#[inline]
fn tcp<K: Kind>(
    (sh, own): (&Commons<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) {
    let seg = own.segs.place();
    let t = &seg.frame;
    let i = &sh.ifaces[usize::from(iface)];
    if !i.plain(t.key.local, t.key.remote) {
        let mine = sh.ifaces.iter().any(|i| i.owns(t.key.local));
        let why = match mine {
            true => wrong_source(sh, iface, t.key.remote),
            false => Some(Count::NotOurs),
        };
        if let Some(why) = why {
            if !mine && wanted.unbound {
                return aside.unbound.push(f.buf);
            }
            sh.count(own.lane, why, 1);
            return own.pool.put(f.buf);
        }
    }
    if t.bad_options {
        sh.counters
            .add(own.lane, malformed(WireError::BadOption), 1);
    }
    seg.hash = f.hash.unwrap_or_else(|| sh.flow_hash(&t.key));
    seg.iface = iface;
    seg.core = own.core;
    seg.payload = f.buf;
    seg.payload.trim_front(seg.frame.payload_off as usize);
    seg.payload.truncate(seg.frame.payload_len as usize);
    seg.segs = 1;
    if wanted.large {
        seg.is_of(f.segment_size);
    }
    if wanted.merged {
        own.segs.keep_or_merge(&mut own.latest, &mut own.pool);
    } else {
        own.segs.keep();
    }
}

/// Why no host can have sent a datagram from `ip` to us by this interface; `None`: one can. A host
/// has no broadcast or multicast address, none of networks 0, 127 and 240/4, and none of our own:
/// those come by the loopback, and nothing else does.
fn wrong_source<K: Kind>(sh: &Commons<K>, iface: u16, ip: IpAddr) -> Option<Count> {
    let ours = sh.ifaces.iter().any(|i| i.owns(ip));
    if iface == sh.loopback().0 {
        return (!ours).then_some(Count::BadAddress);
    }
    let IpAddr::V4(v4) = ip else {
        return Some(Count::BadAddress);
    };
    let addrs = &sh.ifaces[usize::from(iface)].addrs;
    let directed = || addrs.iter().any(|a| a.broadcast() == Some(v4));
    if ours || v4.is_multicast() || v4.is_broadcast() || directed() {
        return Some(Count::BadAddress);
    }
    (!host(v4)).then_some(Count::Martian)
}

fn arp<K: Kind>(cx: &mut Ctx<K>, iface: u16, p: &ArpPacket, aside: &mut Aside) {
    let i = &cx.sh.ifaces[usize::from(iface)];
    if p.sender_mac == i.caps.mac || p.sender_mac.is_multicast() {
        // Our own packet, come back; or nonsense.
        return;
    }
    let for_us = i.owns(IpAddr::V4(p.target_ip));
    if i.owns(IpAddr::V4(p.sender_ip)) {
        return cx.sh.defend(cx, iface, p.sender_ip);
    }
    // RFC 826: what we know is updated by anybody's packet, what we do not know is learnt only
    // when it is addressed to us. A probe (RFC 5227) comes from no address.
    if !p.sender_ip.is_unspecified() && i.addrs.iter().any(|a| a.contains(IpAddr::V4(p.sender_ip)))
    {
        let who = (p.sender_ip, p.sender_mac);
        aside.resolved.extend(cx.sh.heard(cx, iface, who, for_us));
    }
    if for_us && p.op == ArpOp::Request {
        let reply = p.reply(i.caps.mac);
        cx.sh.send_arp(cx, iface, p.sender_mac, &reply);
    }
}

/// Whether a datagram is for us, from a host; it is counted if not.
fn for_us<K: Kind>(cx: &mut Ctx<K>, iface: u16, ip: &Ipv4Hdr) -> bool {
    let mine = cx.sh.ifaces.iter().any(|i| i.owns(IpAddr::V4(ip.dst)));
    let why = match mine {
        true => wrong_source(cx.sh, iface, IpAddr::V4(ip.src)),
        false => Some(Count::NotOurs),
    };
    if let Some(why) = why {
        cx.count(why, 1);
    }
    why.is_none()
}

fn icmp<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    ip: &Ipv4Hdr,
    (msg, body): (Icmpv4, &[u8]),
    wanted: Wanted<'_>,
    aside: &mut Aside,
    frame: &[u8],
) {
    if let Icmpv4::EchoRequest { ident, seq } = msg {
        return echo(cx, iface, ip, (ident, seq), body, frame);
    }
    let Ok(quote) = IcmpQuote::parse(body) else {
        return;
    };
    let protocol = quote.ip.protocol;
    if protocol != PROTO_TCP {
        if let Icmpv4::Unreachable { code, .. } = msg
            && wanted.protocols.contains(&protocol)
        {
            let error = (protocol, quote.key(), unreachable(code));
            aside.errors.push(error);
        }
        return;
    }
    let what = match msg {
        Icmpv4::Unreachable {
            code: CODE_FRAGMENTATION_NEEDED,
            next_hop_mtu,
        } => Icmp::TooBig(next_hop_mtu, quote.seq),
        Icmpv4::Unreachable { code, .. } => Icmp::Unreachable(unreachable(code), quote.seq),
        _ => return,
    };
    aside.icmp.push((quote.key(), what));
}

/// RFC 1122, section 3.2.2.1.
fn unreachable(code: u8) -> Unreachable {
    match code {
        0 | 6 | 9 | 11 => Unreachable::Net,
        2 => Unreachable::Protocol,
        3 => Unreachable::Port,
        _ => Unreachable::Host,
    }
}

/// Answers an echo request by the way it came.
fn echo<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    ip: &Ipv4Hdr,
    (ident, seq): (u16, u16),
    body: &[u8],
    frame: &[u8],
) {
    let now = cx.now();
    if !cx.limits.echoes.take(now) {
        return cx.count(Count::EchoLimit, 1);
    }
    let i = &cx.sh.ifaces[usize::from(iface)];
    let came = (i.caps.medium == Medium::Ethernet).then(|| EtherHdr::parse(frame).ok());
    let stations = came.flatten().map(|eth| (i.caps.mac, eth.src));
    let hdr = datagram::header(cx, (ip.dst, ip.src), PROTO_ICMP, ip.tos);
    let fill = |out: &mut [u8]| {
        Icmpv4::EchoReply { ident, seq }.emit(body, out);
    };
    let at = (iface, i.tx.start);
    if datagram::place(cx, at, stations, hdr, Icmpv4::LEN + body.len(), fill).is_ok() {
        cx.count(Count::Echoes, 1);
    }
}

//! From the device to the organization: frames are checked and parsed once, what is not TCP is
//! dealt with here, and TCP segments are collected for the organization.

use crate::aside::{Aside, Wanted};
use crate::count::{Count, malformed};
use crate::ctx::Ctx;
use crate::datagram::Datagram;
use crate::forward;
use crate::fragment;
use crate::groups;
use crate::ipv4::arp::arp;
use crate::ipv4::icmp::icmp;
use crate::ipv6;
use crate::kind::Kind;
use crate::late::{self, charge, drop_malformed};
use crate::own::Own;
use crate::pieces;
use crate::segment::{Seg, Turn};
use crate::shared::SharedState;
use core::net::IpAddr;
use perimeter_link::{Medium, RxFrame};
use perimeter_wire::{
    Csum, ETHERTYPE_IPV6, EtherHdr, FlowKey, Frame, IpHdr, Ipv4Hdr, MacAddr, PROTO_ICMP,
    PROTO_ICMPV6, PROTO_TCP, PROTO_UDP, WireError, carries, carries_v6, igmp::PROTO_IGMP,
    parse_ipv4_tcp_into, parse_ipv6_tcp_into, parse_tcp_into,
};
use std::vec::Drain;

/// Parses the burst in `cx.frames` of interface `iface` into `cx.segs`, and what else is wanted.
pub fn parse<K: Kind>(cx: &mut Ctx<K>, iface: u16, wanted: Wanted<'_>) -> Aside {
    let mut aside = Aside {
        datagrams: core::mem::take(&mut cx.datagrams),
        ..Aside::default()
    };
    let mut frames = core::mem::take(&mut cx.frames);
    let n = frames.len() as u64;
    cx.count(Count::RxFrames, n);
    let unchecked = frames.iter().filter(|f| !f.csum_ok);
    let unchecked = unchecked.map(|f| f.buf.len() as u64).sum();
    if !wanted.late {
        charge(&cx.sh.p, (n, unchecked));
    }
    if cx.sh.config.forwarding || wanted.late {
        // Who forwards them, or has events look at them before IP does, has frames as a whole.
        frames.iter_mut().for_each(|f| f.buf.join());
    }
    if cx.sh.config.forwarding {
        forward::sift(cx, iface, &mut frames);
    }
    drain(cx, iface, frames.drain(..), wanted, &mut aside);
    cx.frames = frames;
    if wanted.late {
        let (late, octets) = late::waiting(&cx.segs);
        if n > late {
            charge(&cx.sh.p, (n - late, unchecked - octets));
        }
    }
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
    if wanted.merged > 0 {
        own.latest.forget(wanted.merged);
    }
    let mut whole = Vec::new();
    for mut f in frames {
        if wanted.merged > 0
            && f.csum_ok
            && f.segment_size == 0
            && own
                .segs
                .runs_on(&mut own.latest, f.hash, &mut f.buf, &mut own.pool)
        {
            continue;
        }
        let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
        let bytes = f.buf.as_slice();
        let l2_len = if ethernet { EtherHdr::LEN } else { 0 };
        if ethernet && !is_to(bytes, mac) && !stray(&mut Ctx::new(sh, own), bytes) {
            own.pool.put(f.buf);
            continue;
        }
        if wanted.late
            && let Some(key) = late::plain(sh, iface, bytes)
        {
            match wanted.merged > 0 {
                true => late::put_off_or_merge((sh, own), iface, f, key),
                false => late::put_off(own, iface, f, key),
            }
            continue;
        }
        if carries(bytes, ethernet, PROTO_TCP) {
            let seg = own.segs.place();
            match parse_ipv4_tcp_into(&bytes[l2_len..], l2_len, csum, &mut seg.frame) {
                Ok(()) => {
                    let key = &seg.frame.key;
                    let plain = sh.ifaces[usize::from(iface)].plain(key.local, key.remote);
                    tcp((sh, own), iface, f, plain, wanted, aside);
                }
                Err(WireError::Fragment) => {
                    let cx = &mut Ctx::new(sh, own);
                    whole.extend(reassemble(cx, iface, f, l2_len));
                }
                Err(e) => unread((sh, own), iface, f, (l2_len, e), wanted, aside, &mut whole),
            }
            continue;
        }
        if carries_v6(bytes, ethernet, PROTO_TCP) {
            tcp6((sh, own), iface, f, l2_len, wanted, aside, &mut whole);
            continue;
        }
        whole.extend(beside((sh, own), iface, f, wanted, aside));
    }
    let mut came = own.segs.len() - before;
    // Those that IP has yet to look at it counts itself.
    let looked_at = || own.segs.iter().skip(before).filter(|s| s.ip == Turn::Done);
    if wanted.late {
        came = looked_at().count();
    }
    let mut segs = came;
    if wanted.large {
        segs = looked_at().map(|s| usize::from(s.segs)).sum();
        sh.count(own.lane, Count::RxMerged, (segs - came) as u64);
    }
    sh.count(own.lane, Count::RxSegs, segs as u64);
    if !whole.is_empty() {
        drain(cx, iface, whole.drain(..), wanted, aside);
    }
}

/// Gives a fragment to its datagram, which is a frame again when it is whole. Then it is none of
/// fragments any more, so it comes here once.
#[cold]
fn reassemble<K: Kind>(cx: &mut Ctx<K>, iface: u16, f: RxFrame, l2: usize) -> Option<RxFrame> {
    let welcome = |cx: &mut Ctx<K>, ends| for_sockets(cx, iface, ends, false).is_some();
    let buf = fragment::arrived(cx, iface, f.buf, l2, welcome)?;
    Some(RxFrame {
        buf,
        hash: None,
        csum_ok: false,
        segment_size: 0,
    })
}

/// As [`drain`], for a frame that carries TCP over IPv6 directly behind its header, so it is no
/// fragment. Apart, to keep that short, and whole, so that nothing else is called for a segment.
#[inline(never)]
fn tcp6<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    l2_len: usize,
    wanted: Wanted<'_>,
    aside: &mut Aside,
    whole: &mut Vec<RxFrame>,
) {
    let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
    let seg = own.segs.place();
    let packet = &f.buf.as_slice()[l2_len..];
    match parse_ipv6_tcp_into(packet, l2_len, csum, &mut seg.frame) {
        Ok(()) => {
            let plain = sh.plain6(iface, &seg.frame.key);
            tcp((sh, own), iface, f, plain, wanted, aside);
        }
        Err(e) => unread((sh, own), iface, f, (l2_len, e), wanted, aside, whole),
    }
}

/// A frame that should carry TCP can't be read: it is dropped, unless its payload is in pieces
/// behind its headers. Then it is taken as it is, if that is all that is special about it and the
/// organization takes merged segments; else in one piece. What comes behind it in the burst may be of
/// its flow, so it is taken now; only what is no segment even then comes again.
#[cold]
fn unread<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    mut f: RxFrame,
    (l2_len, e): (usize, WireError),
    wanted: Wanted<'_>,
    aside: &mut Aside,
    whole: &mut Vec<RxFrame>,
) {
    if f.buf.behind().is_empty() {
        return drop_malformed(&mut Ctx::new(sh, own), e, f.buf);
    }
    let seg = own.segs.place();
    match pieces::read(seg, &f.buf, l2_len) {
        Ok(octets)
            if wanted.merged > 0
                && f.csum_ok
                && f.segment_size > 0
                && octets > f.segment_size.into()
                && late::welcome(sh, iface, &seg.frame.key) =>
        {
            came(sh, (own.lane, own.core), seg, (iface, f.hash));
            own.segs.keep_pieces(&mut f.buf, f.segment_size);
        }
        _ => {
            f.buf.join();
            let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
            let packet = &f.buf.as_slice()[l2_len..];
            match parse_tcp_into(packet, l2_len, csum, &mut seg.frame) {
                Ok(()) => tcp((sh, own), iface, f, false, wanted, aside),
                Err(_) => whole.push(f),
            }
        }
    }
}

/// Takes a whole datagram of UDP over IPv4 for our station that at a glance is from a host to an
/// address of ours, as nearly all are. `false`: it is another, and still there.
#[inline(always)]
fn plain_udp<K: Kind>(sh: &SharedState<K>, iface: u16, f: &mut RxFrame, aside: &mut Aside) -> bool {
    let bytes = f.buf.as_slice();
    let i = &sh.ifaces[usize::from(iface)];
    let ethernet = i.caps.medium == Medium::Ethernet;
    let l2_len = if ethernet { EtherHdr::LEN } else { 0 };
    if !carries(bytes, ethernet, PROTO_UDP) || ethernet && !is_to(bytes, i.caps.mac) {
        return false;
    }
    let Ok(ip) = Ipv4Hdr::parse(&bytes[l2_len..], !f.csum_ok) else {
        return false;
    };
    if ip.is_fragment() || !i.plain(IpAddr::V4(ip.dst), IpAddr::V4(ip.src)) {
        return false;
    }
    // Filled in where it is: moved as a whole, it would be read before it is there.
    aside.datagrams.push(Datagram::default());
    if let Some(d) = aside.datagrams.last_mut() {
        d.payload = core::mem::take(&mut f.buf);
        d.payload.trim_front(l2_len + usize::from(ip.header_len));
        d.payload
            .truncate(usize::from(ip.total_len - u16::from(ip.header_len)));
        d.ip = ip.into();
        d.iface = iface;
        d.csum_ok = f.csum_ok;
        d.hash = f.hash;
    }
    true
}

/// As [`drain`], for a frame that does not carry TCP, unless over IPv6 behind extension headers.
/// Apart, to keep that short; datagrams of UDP over IPv4, which come often, go no further. Yields
/// the frame that fragments have made, if this was the last of them.
#[inline(never)]
fn beside<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    mut f: RxFrame,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) -> Option<RxFrame> {
    match wanted.protocols.contains(&PROTO_UDP) && plain_udp(sh, iface, &mut f, aside) {
        true => None,
        false => rare((sh, own), iface, f, wanted, aside),
    }
}

/// As [`beside`], for what is no plain datagram.
#[inline(never)]
fn rare<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) -> Option<RxFrame> {
    let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
    let bytes = f.buf.as_slice();
    let ethernet = sh.ifaces[usize::from(iface)].caps.medium == Medium::Ethernet;
    let l2_len = if ethernet { EtherHdr::LEN } else { 0 };
    let parsed = if ethernet {
        Frame::parse_ethernet(bytes, csum)
    } else {
        Frame::parse_ip(bytes, 0, csum)
    };
    match parsed {
        Ok(Frame::Arp(p)) => arp(&mut Ctx::new(sh, own), iface, &p, aside),
        Ok(Frame::Icmp { ip, msg, body }) => {
            let cx = &mut Ctx::new(sh, own);
            if for_us(cx, iface, IpHdr::from(ip).ends()).is_some() {
                icmp(cx, iface, &ip, (msg, body), wanted, aside, bytes);
            }
        }
        Ok(Frame::Icmp6 { ip, msg, body }) => {
            let cx = &mut Ctx::new(sh, own);
            ipv6::icmp::icmp(cx, iface, &ip, (msg, body), wanted, aside, bytes);
        }
        // Behind extension headers of IPv6.
        Ok(Frame::Tcp(t)) => {
            own.segs.place().frame = t;
            extended_tcp((sh, own), iface, f, wanted, aside);
            return None;
        }
        Ok(Frame::Ip { ip, payload }) if ip.protocol == PROTO_IGMP && sh.has_groups() => {
            groups::query_v4(&mut Ctx::new(sh, own), iface, &ip, payload);
        }
        Ok(Frame::Ip { mut ip, .. }) if wanted.protocols.contains(&ip.protocol) => {
            let to_all = ethernet && !is_to(bytes, sh.ifaces[usize::from(iface)].caps.mac);
            let found = for_sockets(&mut Ctx::new(sh, own), iface, ip.ends(), to_all);
            if let Some((ends, group)) = found {
                (ip.src, ip.dst) = ends;
                aside.datagrams.push(datagram(ip, iface, f, l2_len, group));
                return None;
            }
        }
        Ok(_) if wanted.unbound => {
            aside.unbound.push(f.buf);
            return None;
        }
        Ok(_) => sh.count(own.lane, Count::OtherProtocol, 1),
        Err(WireError::Fragment) => return reassemble(&mut Ctx::new(sh, own), iface, f, l2_len),
        Err(e) => {
            sh.counters.add(own.lane, malformed(e), 1);
            if matches!(
                e,
                WireError::UnknownOption | WireError::BadExtension | WireError::SourceRoute
            ) {
                ipv6::icmp::problem(&mut Ctx::new(sh, own), iface, bytes);
            }
        }
    }
    own.pool.put(f.buf);
    None
}

/// A datagram for a protocol beside TCP.
#[inline]
fn datagram(ip: IpHdr, iface: u16, f: RxFrame, l2_len: usize, group: bool) -> Datagram {
    let mut payload = f.buf;
    payload.trim_front(l2_len + usize::from(ip.header_len));
    payload.truncate(ip.total_len as usize - usize::from(ip.header_len));
    Datagram {
        ip,
        iface,
        payload,
        group,
        csum_ok: f.csum_ok,
        hash: f.hash,
    }
}

/// As [`tcp`], for a segment behind extension headers.
#[cold]
fn extended_tcp<K: Kind>(
    all: (&SharedState<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) {
    tcp(all, iface, f, false, wanted, aside);
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
/// their IP addresses say; ICMPv6 to a group of hosts is how neighbours are found. Frames too short to say where they go are for the parser to count.
#[cold]
fn stray<K: Kind>(cx: &mut Ctx<K>, bytes: &[u8]) -> bool {
    let Ok(eth) = EtherHdr::parse(bytes) else {
        return true;
    };
    let why = if !eth.dst.is_multicast() {
        Count::OtherStation
    } else if carries(bytes, true, PROTO_TCP)
        || carries(bytes, true, PROTO_ICMP)
        || carries_v6(bytes, true, PROTO_TCP)
        || (carries_v6(bytes, true, PROTO_ICMPV6) && !is_to_group6(&eth, bytes))
    {
        Count::GroupFrame
    } else {
        return true;
    };
    cx.count(why, 1);
    false
}

/// Whether a frame is one of IPv6 whose destination is a group.
fn is_to_group6(eth: &EtherHdr, bytes: &[u8]) -> bool {
    const DST: usize = EtherHdr::LEN + 24;
    eth.ethertype == ETHERTYPE_IPV6 && bytes.get(DST) == Some(&0xff)
}

/// Notes where a segment came in whose header was parsed, and its flow's hash, which the device may
/// know.
#[inline(always)]
fn came<K: Kind>(
    sh: &SharedState<K>,
    (lane, core): (usize, u16),
    seg: &mut Seg,
    (iface, hash): (u16, Option<u32>),
) {
    if seg.frame.bad_options {
        sh.counters.add(lane, malformed(WireError::BadOption), 1);
    }
    seg.hash = hash.unwrap_or_else(|| sh.flow_hash(&seg.frame.key));
    seg.iface = iface;
    seg.core = core;
}

/// Completes the segment whose header was parsed into its place, unless it is to be dropped;
/// `plain`: its addresses are good at a glance.
#[inline(always)]
fn tcp<K: Kind>(
    (sh, own): (&SharedState<K>, &mut Own<K>),
    iface: u16,
    f: RxFrame,
    plain: bool,
    wanted: Wanted<'_>,
    aside: &mut Aside,
) {
    let seg = own.segs.place();
    if !plain && let Some(why) = unwelcome(sh, iface, &mut seg.frame.key) {
        if why == Count::NotOurs && wanted.unbound {
            return aside.unbound.push(f.buf);
        }
        sh.count(own.lane, why, 1);
        return own.pool.put(f.buf);
    }
    came(sh, (own.lane, own.core), seg, (iface, f.hash));
    seg.payload = f.buf;
    seg.narrow();
    seg.segs = 1;
    if wanted.large {
        seg.is_of(f.segment_size);
    }
    if wanted.merged > 0 {
        own.segs.keep_or_merge(&mut own.latest, &mut own.pool);
    } else {
        own.segs.keep();
    }
}

/// Gives the addresses of a flow that came by interface `iface` their zones. Why it is to be
/// dropped: it is not for us, or from no host.
#[inline(never)]
fn unwelcome<K: Kind>(sh: &SharedState<K>, iface: u16, key: &mut FlowKey) -> Option<Count> {
    match key.local {
        IpAddr::V6(_) => sh.unwelcome6(iface, key),
        local if !sh.takes(iface, local) => Some(Count::NotOurs),
        _ => sh.wrong_source4(iface, key.remote),
    }
}

/// As [`for_us`], also to all hosts of a link and to groups that sockets have joined; and whether it
/// is one of those. `to_all` says that its frame went to a group of stations: then nothing that is
/// for one host may be in it (RFC 1122, section 3.3.6).
fn for_sockets<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    (src, dst): (IpAddr, IpAddr),
    to_all: bool,
) -> Option<((IpAddr, IpAddr), bool)> {
    let found = match dst {
        IpAddr::V4(_) if cx.sh.is_broadcast(iface, dst) || cx.sh.joined(iface, dst) => {
            match cx.sh.wrong_source4(iface, src) {
                Some(why) => Err(why),
                None => Ok(((src, dst), true)),
            }
        }
        _ => {
            return for_us(cx, iface, (src, dst)).and_then(|ends| {
                let group = ends.1.is_multicast();
                if to_all && !group {
                    cx.count(Count::GroupFrame, 1);
                }
                (group || !to_all).then_some((ends, group))
            });
        }
    };
    found.map_err(|why| cx.count(why, 1)).ok()
}

/// Whether a datagram from `src` to `dst` is for us, from a host; it is counted if not. Its ends,
/// which have their zones then.
fn for_us<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    (src, dst): (IpAddr, IpAddr),
) -> Option<(IpAddr, IpAddr)> {
    let found = match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => cx
            .sh
            .arrived6(iface, (src, dst))
            .map(|(src, dst)| (IpAddr::V6(src), IpAddr::V6(dst))),
        _ if !cx.sh.takes(iface, dst) => Err(Count::NotOurs),
        _ => match cx.sh.wrong_source4(iface, src) {
            Some(why) => Err(why),
            None => Ok((src, dst)),
        },
    };
    found.map_err(|why| cx.count(why, 1)).ok()
}

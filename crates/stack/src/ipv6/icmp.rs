//! ICMPv6 (RFC 4443): errors about datagrams of ours are for their sockets, echo requests are
//! answered, and who sends what can't be read is told, where that is due.

use super::MIN_MTU;
use crate::aside::{Aside, Trouble, Wanted};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::datagram;
use crate::kind::Kind;
use crate::ops::Icmp;
use core::net::IpAddr;
use perimeter_link::Medium;
use perimeter_tcp::Unreachable;
use perimeter_wire::{
    EtherHdr, FlowKey, IcmpQuote, Icmpv6, Ipv4Hdr, Ipv6Hdr, Ndp, PROTO_ICMPV6, PROTO_TCP, mld,
};

/// A message that came by interface `iface` in `frame`.
pub(crate) fn icmp<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    ip: &Ipv6Hdr,
    (msg, body): (Icmpv6, &[u8]),
    wanted: Wanted<'_>,
    aside: &mut Aside,
    frame: &[u8],
) {
    if let Icmpv6::Other { kind, code, word } = msg {
        if Ndp::is(kind) {
            super::ndp::input(cx, iface, ip, ((kind, code, word), body), aside, frame);
        } else if mld::is_query(kind) {
            cx.sh.report_groups(cx, iface, ip, mld::Record::Listens);
        }
        return;
    }
    let ends = match cx.sh.arrived6(iface, (ip.src, ip.dst)) {
        Ok(ends) => ends,
        Err(why) => return cx.count(why, 1),
    };
    if let Icmpv6::EchoRequest { ident, seq } = msg {
        // An answer to a group would be one of many (smurf).
        return match ip.dst.is_multicast() {
            true => cx.count(Count::GroupFrame, 1),
            false => echo(cx, iface, ends, ip.traffic_class, (ident, seq), body, frame),
        };
    }
    let Ok(quote) = IcmpQuote::parse(body) else {
        return;
    };
    let Some(key) = quoted(cx, iface, &quote) else {
        return;
    };
    let protocol = quote.ip.protocol;
    if protocol != PROTO_TCP {
        let what = match msg {
            Icmpv6::TooBig { mtu } => Some(Trouble::TooBig {
                mtu,
                len: quote.ip.total_len,
            }),
            msg => unreachable(msg).map(Trouble::Unreachable),
        };
        if let Some(what) = what
            && wanted.protocols.contains(&protocol)
        {
            aside.errors.push((protocol, key, what));
        }
        return;
    }
    let what = match msg {
        Icmpv6::TooBig { mtu } => {
            // No link has less, whatever somebody says (RFC 8201, section 4). TCP thinks in IPv4's
            // MTUs, whose header is shorter.
            let longer = Ipv6Hdr::LEN - Ipv4Hdr::LEN;
            let mtu = mtu.max(MIN_MTU).min(u16::MAX.into()) as u16;
            Icmp::TooBig(mtu - longer as u16, quote.seq)
        }
        _ => match unreachable(msg) {
            Some(what) => Icmp::Unreachable(what, quote.seq),
            None => return,
        },
    };
    aside.icmp.push((key, what));
}

/// The flow of a quoted datagram, with zones; `None`: it can't have been ours.
fn quoted<K: Kind>(cx: &Ctx<K>, iface: u16, quote: &IcmpQuote) -> Option<FlowKey> {
    let mut key = quote.key();
    let (IpAddr::V6(local), IpAddr::V6(remote)) = (key.local, key.remote) else {
        return None;
    };
    key.local = IpAddr::V6(cx.sh.arrived(iface, local)?);
    key.remote = IpAddr::V6(cx.sh.arrived(iface, remote)?);
    Some(key)
}

/// What an error says of the destination; `None`: nothing.
fn unreachable(msg: Icmpv6) -> Option<Unreachable> {
    match msg {
        Icmpv6::Unreachable { code } => Some(match code {
            0 => Unreachable::Net,
            4 => Unreachable::Port,
            _ => Unreachable::Host,
        }),
        // An unknown next header.
        Icmpv6::ParameterProblem { code: 1, .. } => Some(Unreachable::Protocol),
        _ => None,
    }
}

/// Answers an echo request by the way it came.
fn echo<K: Kind>(
    cx: &mut Ctx<K>,
    iface: u16,
    (src, dst): (core::net::Ipv6Addr, core::net::Ipv6Addr),
    class: u8,
    (ident, seq): (u16, u16),
    body: &[u8],
    frame: &[u8],
) {
    if !cx.sh.echoes(iface, dst.into()) {
        return cx.count(Count::NotOurs, 1);
    }
    let now = cx.now();
    if !cx.limits.echoes.take(now) {
        return cx.count(Count::EchoLimit, 1);
    }
    let i = &cx.sh.ifaces[usize::from(iface)];
    let came = (i.caps.medium == Medium::Ethernet).then(|| EtherHdr::parse(frame).ok());
    let stations = came.flatten().map(|eth| (i.caps.mac, eth.src));
    let ends = (IpAddr::V6(dst), IpAddr::V6(src));
    let hdr = datagram::header(cx, iface, ends, PROTO_ICMPV6, class);
    let fill = |out: &mut [u8]| {
        Icmpv6::EchoReply { ident, seq }.emit(dst, src, body, out);
    };
    let at = (iface, i.tx.start);
    if datagram::place(cx, at, stations, hdr, Icmpv6::LEN + body.len(), fill).is_ok() {
        cx.count(Count::Echoes, 1);
    }
}

/// A datagram in `frame` was refused for its extension headers: its sender is told, if that is
/// due, and not too often.
#[cold]
pub(crate) fn problem<K: Kind>(cx: &mut Ctx<K>, iface: u16, frame: &[u8]) {
    let ethernet = cx.sh.ifaces[usize::from(iface)].caps.medium == Medium::Ethernet;
    let l2_len = if ethernet { EtherHdr::LEN } else { 0 };
    let Some(whole) = frame.get(l2_len..) else {
        return;
    };
    let (Some(problem), Some(ends)) = (Ipv6Hdr::problem(whole), Ipv6Hdr::ends(whole)) else {
        return;
    };
    let Ok((src, dst)) = cx.sh.arrived6(iface, ends) else {
        return;
    };
    // A group is no source; what the option asks for, it asks of each of us.
    let from = match dst.is_multicast() {
        true => super::source::select(&cx.sh.v6, iface, src).map(|h| h.addr),
        false => Some(dst),
    };
    let Some(from) = from else { return };
    let station = ethernet.then(|| EtherHdr::parse(frame).ok().map(|eth| eth.src));
    let msg = Icmpv6::ParameterProblem {
        code: problem.code,
        pointer: problem.pointer,
    };
    let came = (iface, station.flatten());
    if datagram::tell6(cx, came, (from, src), msg, whole) {
        cx.count(Count::Problems, 1);
    }
}

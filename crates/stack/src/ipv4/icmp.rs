//! ICMP (RFC 792): errors about datagrams of ours are for their sockets, echo requests are answered.

use crate::aside::{Aside, Trouble, Wanted};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::datagram;
use crate::kind::Kind;
use crate::ops::Icmp;
use crate::pmtu::plateau;
use core::net::IpAddr;
use perimeter_link::Medium;
use perimeter_tcp::Unreachable;
use perimeter_wire::icmp::CODE_FRAGMENTATION_NEEDED;
use perimeter_wire::{EtherHdr, IcmpQuote, Icmpv4, Ipv4Hdr, PROTO_ICMP, PROTO_TCP};

/// A message about datagrams of ours, or an echo request.
pub(crate) fn icmp<K: Kind>(
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
        if let Icmpv4::Unreachable { code, next_hop_mtu } = msg
            && wanted.protocols.contains(&protocol)
        {
            let what = match code {
                CODE_FRAGMENTATION_NEEDED => Trouble::TooBig {
                    mtu: mtu(next_hop_mtu, &quote),
                    len: quote.ip.total_len,
                },
                _ => Trouble::Unreachable(unreachable(code)),
            };
            aside.errors.push((protocol, quote.key(), what));
        }
        return;
    }
    let what = match msg {
        Icmpv4::Unreachable {
            code: CODE_FRAGMENTATION_NEEDED,
            next_hop_mtu,
        } => Icmp::TooBig(mtu(next_hop_mtu, &quote) as u16, quote.seq),
        Icmpv4::Unreachable { code, .. } => Icmp::Unreachable(unreachable(code), quote.seq),
        // Redirects among them, which a host should follow (RFC 1122, section 3.2.2.2) and this one
        // never does: nothing in them shows that the first hop has sent them.
        _ => return,
    };
    aside.icmp.push((quote.key(), what));
}

/// The MTU that a router names, or one to try if it names none.
fn mtu(named: u16, quote: &IcmpQuote) -> u32 {
    match named {
        0 => plateau(quote.ip.total_len),
        mtu => mtu.into(),
    }
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
    if !cx.sh.echoes(iface, ip.dst.into()) {
        return cx.count(Count::NotOurs, 1);
    }
    if !cx.limits.echoes.take(now) {
        return cx.count(Count::EchoLimit, 1);
    }
    let i = &cx.sh.ifaces[usize::from(iface)];
    let came = (i.caps.medium == Medium::Ethernet).then(|| EtherHdr::parse(frame).ok());
    let stations = came.flatten().map(|eth| (i.caps.mac, eth.src));
    let ends = (IpAddr::V4(ip.dst), IpAddr::V4(ip.src));
    let hdr = datagram::header(cx, iface, ends, PROTO_ICMP, ip.tos);
    let fill = |out: &mut [u8]| {
        Icmpv4::EchoReply { ident, seq }.emit(body, out);
    };
    let at = (iface, i.tx.start);
    if datagram::place(cx, at, stations, hdr, Icmpv4::LEN + body.len(), fill).is_ok() {
        cx.count(Count::Echoes, 1);
    }
}

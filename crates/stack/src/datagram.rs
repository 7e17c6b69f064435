//! Datagrams over IP beside TCP's segments: sending them, and saying that nobody wants one.

use crate::count::Count;
use crate::ctx::Ctx;
use crate::fragment;
use crate::kind::Kind;
pub use crate::net::SendError;
use crate::net::{L2, is_group, is_host};
pub use crate::received::Datagram;
use core::net::{IpAddr, Ipv6Addr};
use perimeter_base::Bytes;
use perimeter_link::Medium;
use perimeter_tcp::Unreachable;
use perimeter_wire::icmp::CODE_FRAGMENTATION_NEEDED;
use perimeter_wire::{EtherHdr, Icmpv4, Icmpv6, IpHdr, Ipv6Hdr, MacAddr, PROTO_ICMP, PROTO_ICMPV6};

/// The quoted part of a datagram that nobody wants: as much as keeps the error at 576 bytes (RFC
/// 1812, section 4.3.2.3).
const QUOTE: usize = 576 - perimeter_wire::Ipv4Hdr::LEN - Icmpv4::LEN;
/// The same over IPv6: as much as fits the least MTU (RFC 4443, section 2.4, (c)).
const QUOTE6: usize = crate::ipv6::MIN_MTU as usize - Ipv6Hdr::LEN - Icmpv6::LEN;

/// Sends `payload` from `local`, an address of ours, to `remote`. What has the same `hash` stays in
/// order.
///
/// # Errors
/// It is not sent.
pub fn send<K: Kind>(
    cx: &mut Ctx<K>,
    protocol: u8,
    (local, remote): (IpAddr, IpAddr),
    hash: u32,
    payload: &[u8],
) -> Result<(), SendError> {
    let now = cx.now();
    let found = cx.sh.routes.resolve(&cx.sh.ifaces, remote, None, now);
    let found = found.ok_or(SendError::NoRoute)?;
    let iface = found.hop.iface;
    if let Some(ask) = found.ask {
        cx.sh.ask(cx, iface, ask);
    }
    let stations = match found.l2 {
        L2::Unresolved => return Err(SendError::NoStation),
        L2::None => None,
        L2::Stations(ours, theirs) => Some((ours, theirs)),
    };
    let q = cx.sh.ifaces[usize::from(iface)].txq(hash);
    let hdr = header(cx, iface, (local, remote), protocol, 0);
    let fill = |out: &mut [u8]| out.copy_from_slice(payload);
    place(cx, (iface, q), stations, hdr, payload.len(), fill)
}

/// What the sender of a datagram is told of it.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Fault {
    Unreachable(Unreachable),
    /// Its source is an address that means nobody there.
    Scope,
    /// It has made as many hops as it may.
    Expired,
    /// Not all of its fragments came in time.
    Incomplete,
    /// It is longer than the next link takes, which is said.
    TooBig(u32),
}

impl Fault {
    fn v4(self) -> Icmpv4 {
        let unreachable = |code, next_hop_mtu| Icmpv4::Unreachable { code, next_hop_mtu };
        match self {
            Fault::Unreachable(why) => unreachable(crate::ipv4::unreachable_code(why), 0),
            Fault::Scope => unreachable(crate::ipv4::unreachable_code(Unreachable::Host), 0),
            Fault::Expired => Icmpv4::TimeExceeded { code: 0 },
            Fault::Incomplete => Icmpv4::TimeExceeded { code: 1 },
            Fault::TooBig(mtu) => {
                let mtu = mtu.min(u16::MAX.into()) as u16;
                unreachable(CODE_FRAGMENTATION_NEEDED, mtu)
            }
        }
    }

    fn v6(self) -> Icmpv6 {
        match self {
            Fault::Unreachable(why) => Icmpv6::Unreachable {
                code: crate::ipv6::unreachable_code(why),
            },
            Fault::Scope => Icmpv6::Unreachable { code: 2 },
            Fault::Expired => Icmpv6::TimeExceeded { code: 0 },
            Fault::Incomplete => Icmpv6::TimeExceeded { code: 1 },
            Fault::TooBig(mtu) => Icmpv6::TooBig { mtu },
        }
    }
}

/// Tells the sender of a datagram why it was not delivered (RFC 792, RFC 4443), unless it was sent
/// to a group.
pub fn refuse<K: Kind>(cx: &mut Ctx<K>, d: &Datagram, why: Unreachable) {
    let inside = d.iface == cx.sh.loopback().0;
    if is_group(d.ip.dst) || !(inside || is_host(d.ip.src)) {
        return;
    }
    let header_len = usize::from(d.ip.header_len);
    let whole = d.payload.onward(header_len);
    let Some(whole) = whole.and_then(|w| w.get(..header_len + d.payload.len())) else {
        return;
    };
    let frame = d.payload.before(EtherHdr::LEN + header_len);
    let came = frame.and_then(|f| Some(EtherHdr::parse(f).ok()?.src));
    let ends = (d.ip.dst, d.ip.src);
    tell(cx, (d.iface, came), ends, Fault::Unreachable(why), whole);
}

/// Sends an error about the datagram `whole`, as much of it as fits, from the first of `ends`, an
/// address that we speak from, to the second. Nobody is told too often, and strangers are not asked
/// for: where the next hop's station is not known, the error goes to that which the frame came from,
/// `came`.
pub(crate) fn tell<K: Kind>(
    cx: &mut Ctx<K>,
    came: (u16, Option<MacAddr>),
    ends: (IpAddr, IpAddr),
    fault: Fault,
    whole: &[u8],
) {
    let told = match ends {
        (IpAddr::V6(from), IpAddr::V6(to)) => tell6(cx, came, (from, to), fault.v6(), whole),
        _ => {
            let quote = &whole[..whole.len().min(QUOTE)];
            let fill = |out: &mut [u8]| {
                fault.v4().emit(quote, out);
            };
            error(cx, came, ends, PROTO_ICMP, Icmpv4::LEN + quote.len(), fill)
        }
    };
    if told && matches!(fault, Fault::Unreachable(_)) {
        cx.count(Count::Unreachables, 1);
    }
}

/// Sends an ICMPv6 error about the datagram `whole`, as much of it as fits, from `src`, an address
/// of ours, to `dst`; whether it was sent. The frame came by an interface from a station.
pub(crate) fn tell6<K: Kind>(
    cx: &mut Ctx<K>,
    came: (u16, Option<MacAddr>),
    (src, dst): (Ipv6Addr, Ipv6Addr),
    msg: Icmpv6,
    whole: &[u8],
) -> bool {
    let quote = &whole[..whole.len().min(QUOTE6)];
    let fill = |out: &mut [u8]| {
        msg.emit(src, dst, quote, out);
    };
    let (ends, len) = (
        (IpAddr::V6(src), IpAddr::V6(dst)),
        Icmpv6::LEN + quote.len(),
    );
    error(cx, came, ends, PROTO_ICMPV6, len, fill)
}

/// Sends an ICMP error of `len` octets, unless there were too many.
fn error<K: Kind>(
    cx: &mut Ctx<K>,
    (iface, came): (u16, Option<MacAddr>),
    ends: (IpAddr, IpAddr),
    protocol: u8,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> bool {
    let now = cx.now();
    if !cx.limits.errors.take(now) {
        cx.count(Count::ErrorLimit, 1);
        return false;
    }
    let Some((hop, known)) = cx.sh.routes.known(ends.1) else {
        return false;
    };
    let i = &cx.sh.ifaces[usize::from(hop.iface)];
    let stations = if i.caps.medium == Medium::Ethernet {
        let came = came.filter(|mac| hop.iface == iface && !mac.is_multicast());
        let Some(station) = known.or(came) else {
            cx.count(Count::NoStation, 1);
            return false;
        };
        Some((i.caps.mac, station))
    } else {
        None
    };
    let hdr = header(cx, hop.iface, ends, protocol, 0);
    let at = (hop.iface, i.tx.start);
    place(cx, at, stations, hdr, len, fill).is_ok()
}

/// The header of a datagram of ours that leaves by interface `iface`; its length is not known yet.
pub(crate) fn header<K: Kind>(
    cx: &Ctx<K>,
    iface: u16,
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    tos: u8,
) -> IpHdr {
    IpHdr {
        src,
        dst,
        protocol,
        hop_limit: cx.sh.hops(iface, dst),
        tos,
        header_len: IpHdr::len_to(dst) as u16,
        total_len: 0,
    }
}

/// Places a datagram of `len` bytes behind its header, which `fill` writes, in the ring of queue
/// `q` of an interface; in fragments if it is longer than the path's MTU.
///
/// # Errors
/// [`SendError::TooLong`] and [`SendError::Full`].
pub(crate) fn place<K: Kind>(
    cx: &mut Ctx<K>,
    (iface, q): (u16, u16),
    stations: Option<(MacAddr, MacAddr)>,
    mut hdr: IpHdr,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), SendError> {
    let now = cx.now();
    let (mtu, narrow) = cx.sh.path_mtu(iface, hdr.dst, now);
    if narrow || usize::from(hdr.header_len) + len > mtu as usize {
        let mut body = vec![0; len];
        fill(&mut body);
        return fragment::send(cx, (mtu, q), stations, &hdr, Bytes::from(body));
    }
    let len = usize::from(hdr.header_len) + len;
    // Both families' length fields hold that, IPv6's 40 octets more.
    hdr.total_len = u32::from(u16::try_from(len).map_err(|_| SendError::TooLong)?);
    let mut out = cx.pool.take(len);
    out.set_window(0, len);
    let bytes = out.as_mut_slice();
    let n = hdr.emit(bytes);
    fill(&mut bytes[n..]);
    let mut stage = cx.sh.tx[usize::from(q)].stage();
    let Some(mut d) = stage.push() else {
        cx.count(Count::TxRingFull, 1);
        return Err(SendError::Full);
    };
    d.hdr_len = stations.map_or(0, |(src, dst)| {
        let eth = EtherHdr {
            dst,
            src,
            ethertype: hdr.ethertype(),
        };
        eth.emit(&mut d.hdr) as u8
    });
    d.owned = Some(out);
    cx.deferred.ring(q);
    Ok(())
}

//! Datagrams that are longer than the way takes, cut into fragments.

use super::reassembly::{FRAGMENT_HEADER, NEXT_FRAGMENT};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::net::SendError;
use core::net::IpAddr;
use perimeter_base::{Bytes, TxPages};
use perimeter_wire::{EtherHdr, IpHdr, Ipv4Hdr, Ipv6Hdr, MAX_DATAGRAM, MacAddr};

/// Sends a datagram with the header `ip` and the payload `body`, which is longer than `mtu`, or
/// may have to be cut further on the way, in fragments; all of them, or none.
///
/// # Errors
/// [`SendError::Full`]; [`SendError::TooLong`]: it is longer than a datagram can be, or has more
/// fragments than the ring has places.
pub(crate) fn send<K: Kind>(
    cx: &mut Ctx<K>,
    (mtu, q): (u32, u16),
    stations: Option<(MacAddr, MacAddr)>,
    ip: &IpHdr,
    body: Bytes,
) -> Result<(), SendError> {
    let v6 = ip.dst.is_ipv6();
    let most = MAX_DATAGRAM as usize - if v6 { 0 } else { IpHdr::len_to(ip.dst) };
    let n = match number(mtu, ip, body.len()) {
        Some(n) if body.len() <= most => n,
        _ => return Err(SendError::TooLong),
    };
    let each = each(mtu, ip);
    let ident = cx.sh.fragment_ident(ip);
    let (sh, own) = cx.split();
    let mut pages = TxPages::default();
    pages.push(body.clone());
    let mut stage = sh.tx[usize::from(q)].stage();
    if stage.room() < n {
        let error = match stage.capacity() < n {
            true => SendError::TooLong,
            false => SendError::Full,
        };
        drop(stage);
        sh.count(own.lane, Count::TxRingFull, 1);
        return Err(error);
    }
    let mut at = 0;
    while at < body.len() {
        let len = each.min(body.len() - at);
        let more = at + len < body.len();
        let Some(mut d) = stage.push_with(&mut own.pool) else {
            break;
        };
        let l2 = stations.map_or(0, |(src, dst)| {
            let ethertype = ip.ethertype();
            EtherHdr {
                dst,
                src,
                ethertype,
            }
            .emit(&mut d.hdr)
        });
        let part = (at as u32, len as u32, more);
        d.hdr_len = (l2 + header_of(ip, ident, part, &mut d.hdr[l2..])) as u8;
        pages.refer(at, len, &mut d, &mut own.pool);
        at += len;
    }
    drop(stage);
    sh.count(own.lane, Count::FragmentsSent, n as u64);
    own.deferred.ring(q);
    Ok(())
}

/// Octets of a datagram that each of its fragments takes but the last.
fn each(mtu: u32, ip: &IpHdr) -> usize {
    let header = IpHdr::len_to(ip.dst);
    let overhead = header + if ip.dst.is_ipv6() { FRAGMENT_HEADER } else { 0 };
    (mtu as usize).saturating_sub(overhead) / 8 * 8
}

/// The number of fragments of a datagram with a payload of `len` octets; `None`: `mtu` has room for none.
pub(crate) fn number(mtu: u32, ip: &IpHdr, len: usize) -> Option<usize> {
    match each(mtu, ip) {
        0 => None,
        each => Some(len.div_ceil(each)),
    }
}

/// Writes the header of a fragment; its length.
fn header_of(ip: &IpHdr, ident: u32, (at, len, more): (u32, u32, bool), out: &mut [u8]) -> usize {
    match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Hdr {
            src,
            dst,
            protocol: ip.protocol,
            ttl: ip.hop_limit,
            tos: ip.tos,
            ident: ident as u16,
            total_len: (Ipv4Hdr::LEN as u32 + len) as u16,
            header_len: Ipv4Hdr::LEN as u8,
            dont_fragment: false,
            more_fragments: more,
            frag_offset: at as u16,
        }
        .emit(out),
        _ => {
            let mut hdr = *ip;
            hdr.protocol = NEXT_FRAGMENT;
            hdr.total_len = (Ipv6Hdr::LEN + FRAGMENT_HEADER) as u32 + len;
            let n = hdr.emit(out);
            let field = at as u16 | u16::from(more);
            out[n..n + 2].copy_from_slice(&[ip.protocol, 0]);
            out[n + 2..n + 4].copy_from_slice(&field.to_be_bytes());
            out[n + 4..n + 8].copy_from_slice(&ident.to_be_bytes());
            n + FRAGMENT_HEADER
        }
    }
}

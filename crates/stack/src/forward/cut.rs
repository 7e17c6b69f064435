//! Cutting what is longer than the next link takes.

use crate::transit::Transit;
use core::net::IpAddr;
use perimeter_base::{PktBuf, PktPool};
use perimeter_wire::{Ipv4Hdr, Ipv6Hdr, TcpFlags, checksum};

/// A buffer with `head` and `body` in it.
fn joined(head: &[u8], body: &[u8], pool: &mut PktPool) -> PktBuf {
    let mut buf = pool.take(head.len() + body.len());
    buf.set_window(0, head.len());
    buf.as_mut_slice().copy_from_slice(head);
    buf.append(body);
    buf
}

fn set(buf: &mut [u8], at: usize, value: u16) {
    buf[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn get(buf: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([buf[at], buf[at + 1]])
}

/// Makes the checksum of an IPv4 header of `len` octets.
fn sum_header(buf: &mut [u8], len: usize) {
    set(buf, 10, 0);
    let check = checksum::checksum(&buf[..len]);
    set(buf, 10, check);
}

/// The segments that a large one stands for: as if each had been sent by itself. Their checksums are
/// to be made.
pub(super) fn segments(t: &Transit, pool: &mut PktPool) -> Vec<Transit> {
    const SEQ: usize = 4;
    const FLAGS: usize = 13;
    /// Congestion window reduced (RFC 3168).
    const CWR: u8 = 0x80;
    let (bytes, size) = (t.buf.as_slice(), usize::from(t.segment_size));
    let Some((tcp, end)) = t.tcp() else {
        return Vec::new();
    };
    let (head, body) = bytes.split_at(end);
    let seq = u32::from_be_bytes([head[tcp + SEQ], head[tcp + 5], head[tcp + 6], head[tcp + 7]]);
    let last = body.len().div_ceil(size.max(1)).saturating_sub(1);
    let mut out = Vec::with_capacity(last + 1);
    for (n, part) in body.chunks(size.max(1)).enumerate() {
        let mut buf = joined(head, part, pool);
        let b = buf.as_mut_slice();
        let len = b.len();
        match t.ip.dst {
            IpAddr::V4(_) => {
                set(b, 2, len as u16);
                let ident = get(b, 4).wrapping_add(n as u16);
                set(b, 4, ident);
                sum_header(b, usize::from(t.ip.header_len));
            }
            IpAddr::V6(_) => set(b, 4, (len - Ipv6Hdr::LEN) as u16),
        }
        let at = seq.wrapping_add((n * size) as u32);
        b[tcp + SEQ..tcp + SEQ + 4].copy_from_slice(&at.to_be_bytes());
        if n < last {
            b[tcp + FLAGS] &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
        }
        if n > 0 {
            b[tcp + FLAGS] &= !CWR;
        }
        out.extend(t.part(buf, true));
    }
    out
}

/// The fragments of a datagram of IPv4 for a link of that MTU (RFC 791, section 3.2); it may be one
/// itself. Its checksum is whole.
pub(super) fn fragments(t: &Transit, mtu: u32, pool: &mut PktPool) -> Vec<Transit> {
    const MORE: u16 = 0x2000;
    let bytes = t.buf.as_slice();
    let Some((first, body)) = bytes.split_at_checked(usize::from(t.ip.header_len)) else {
        return Vec::new();
    };
    let later = later_header(first);
    // A link that takes less than a header and eight octets takes no datagram.
    let each = (mtu as usize).saturating_sub(first.len()) / 8 * 8;
    if each == 0 {
        return Vec::new();
    }
    let field = get(first, 6);
    let mut out = Vec::new();
    for (n, part) in body.chunks(each).enumerate() {
        let head = if n == 0 { first } else { &later };
        let mut buf = joined(head, part, pool);
        let b = buf.as_mut_slice();
        let more = (n + 1) * each < body.len() || field & MORE != 0;
        let offset = (field & 0x1fff).wrapping_add((n * each / 8) as u16);
        set(b, 2, (head.len() + part.len()) as u16);
        set(b, 6, offset & 0x1fff | if more { MORE } else { 0 });
        sum_header(b, head.len());
        out.extend(t.part(buf, false));
    }
    out
}

/// The header of all fragments but the first: of its options those alone that say so.
fn later_header(first: &[u8]) -> Vec<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const COPIED: u8 = 0x80;
    let (fixed, mut options) = first.split_at(Ipv4Hdr::LEN.min(first.len()));
    let mut out = fixed.to_vec();
    while let Some(&kind) = options.first() {
        let len = match kind {
            END => break,
            NOTHING => 1,
            _ => usize::from(options.get(1).copied().unwrap_or(0)).max(2),
        };
        let Some((option, rest)) = options.split_at_checked(len) else {
            break;
        };
        if kind & COPIED != 0 {
            out.extend_from_slice(option);
        }
        options = rest;
    }
    out.resize(out.len().next_multiple_of(4), END);
    out[0] = 0x40 | (out.len() / 4) as u8;
    out
}

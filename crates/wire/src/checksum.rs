//! Internet checksums: RFC 1071 (definition and method), RFC 1624
//! (incremental update), RFC 9293 section 3.1 (TCP's pseudo-header).
//!
//! A *partial* is a `u32` congruent, modulo 65535, to the one's complement sum
//! of the 16-bit big-endian words summed so far. Functions here return partials
//! of at most 65535, so up to 65537 of them can be added with a plain `+`
//! before [`fold`]. A partial is 0 only if every word summed was 0.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::PROTO_TCP;
use crate::ipv6::without_zone;

/// Bytes of one step of the wide loop, 16 lanes of 32 bits.
const STEP: usize = 64;

/// Adds the words of `bytes`, which start at an even offset of the checksummed
/// range, to the partial `init`. A last odd byte is padded with a zero byte.
/// The result is at most 65535.
#[inline(never)]
pub fn sum(bytes: &[u8], init: u32) -> u32 {
    // RFC 1071, section 2(B): the sum may be taken in the machine's own byte
    // order and swapped once at the end; section 2(C): in words of any width.
    let mut wide = 0u64;
    let mut rest = bytes;
    if rest.len() >= 2 * STEP {
        let (body, tail) = rest.split_at(rest.len() - rest.len() % STEP);
        wide = sum_steps(body);
        rest = tail;
    }
    while let Some((word, tail)) = rest.split_first_chunk::<4>() {
        wide += u64::from(u32::from_ne_bytes(*word));
        rest = tail;
    }
    if let Some((word, tail)) = rest.split_first_chunk::<2>() {
        wide += u64::from(u16::from_ne_bytes(*word));
        rest = tail;
    }
    if let [last] = *rest {
        wide += u64::from(u16::from_ne_bytes([last, 0]));
    }
    let native = fold64(wide);
    u32::from(fold64(u64::from(u16::from_be(native)) + u64::from(init)))
}

/// [`sum`] for a few bytes, a multiple of 4 known at compile time: headers.
#[inline]
pub(crate) fn sum_fixed<const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(N.is_multiple_of(4)) };
    let (words, _) = bytes.as_chunks::<4>();
    let wide = words
        .iter()
        .map(|w| u64::from(u32::from_ne_bytes(*w)))
        .sum();
    u32::from(u16::from_be(fold64(wide)))
}

/// Sum of the 32-bit words of whole steps, in native byte order. The lanes are
/// independent so that the loop compiles to vector adds; a lane overflows only
/// after 2³² steps.
fn sum_steps(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; STEP / 4];
    let (steps, _) = bytes.as_chunks::<STEP>();
    for step in steps {
        let (words, _) = step.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    // Below 2⁶⁴ for any slice: fewer than 2³² words of 32 bits.
    lanes.iter().map(|&l| (l >> 32) + (l & 0xffff_ffff)).sum()
}

/// Folds 64 bits to 16 by end-around carry.
#[inline]
const fn fold64(v: u64) -> u16 {
    // 2³²-1 is a multiple of 65535, so halves may be added.
    let v = (v >> 32) + (v & 0xffff_ffff);
    let v = (v >> 16) + (v & 0xffff);
    let v = (v >> 16) + (v & 0xffff);
    ((v >> 16) + (v & 0xffff)) as u16
}

/// Folds a partial to 16 bits by end-around carry; not complemented.
#[inline]
pub const fn fold(partial: u32) -> u16 {
    let v = (partial >> 16) + (partial & 0xffff);
    ((v >> 16) + (v & 0xffff)) as u16
}

/// The Internet checksum of `bytes`, as it is stored in a header. Zero over
/// bytes that include a correct checksum field.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes, 0))
}

/// Adds the concatenation of `parts` to the partial `init`. Parts may have odd
/// lengths: a part that starts at an odd offset is summed with its bytes
/// swapped (RFC 1071, section 2(B)).
pub fn sum_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>, init: u32) -> u32 {
    let mut total = u32::from(fold(init));
    let mut odd = false;
    for part in parts {
        total = combine(total, odd, sum(part, 0));
        odd ^= part.len() % 2 == 1;
    }
    total
}

/// Appends the partial `next`, of bytes summed on their own, to `partial`.
/// `odd` says that an odd number of bytes precedes them. The result is at most
/// 65535.
#[inline]
pub const fn combine(partial: u32, odd: bool, next: u32) -> u32 {
    let next = fold(next);
    let next = if odd { next.swap_bytes() } else { next };
    fold(fold(partial) as u32 + next as u32) as u32
}

/// Partial of the IPv4 pseudo-header; `len` is the length in bytes of the
/// transport header and its payload.
#[inline]
pub const fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, len: u16) -> u32 {
    let (s, d) = (src.to_bits(), dst.to_bits());
    let v = (s >> 16) + (s & 0xffff) + (d >> 16) + (d & 0xffff) + proto as u32 + len as u32;
    fold(v) as u32
}

/// Partial of the IPv6 pseudo-header (RFC 8200, section 8.1); `len` as for
/// [`pseudo_v4`]. Zones of link-local addresses are left out.
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, len: u32) -> u32 {
    let sum = |ip| sum_fixed(&without_zone(ip).octets());
    let v = sum(src) + sum(dst) + u32::from(next_header) + (len >> 16) + (len & 0xffff);
    u32::from(fold(v))
}

/// The checksum `check` after one 16-bit word that it covers changed from `old`
/// to `new` (RFC 1624, equation 3). All are values of the big-endian fields.
#[inline]
pub const fn update16(check: u16, old: u16, new: u16) -> u16 {
    !fold(!check as u32 + !old as u32 + new as u32)
}

/// Offset of the checksum field in the TCP header.
const TCP_CHECK: usize = 16;

/// Checksum of a TCP segment over IPv4, for the checksum field of `tcp`. What
/// the field holds now does not matter. Lengths beyond 65535, impossible in
/// IPv4, give a wrong checksum and no panic.
pub fn tcp_checksum_v4(src: Ipv4Addr, dst: Ipv4Addr, tcp: &[u8]) -> u16 {
    let pseudo = pseudo_v4(src, dst, PROTO_TCP, tcp.len() as u16);
    let mut partial = sum(tcp, pseudo);
    if let Some(field) = tcp.get(TCP_CHECK..TCP_CHECK + 2) {
        // Adding the complement takes the field out. The pseudo-header holds
        // the protocol number, so the sum is not the ambiguous zero.
        partial += u32::from(!u16::from_be_bytes([field[0], field[1]]));
    }
    !fold(partial)
}

/// Whether the checksum of a TCP segment is right. `tcp` is the whole segment;
/// `false` for addresses of different families or a segment without the field.
pub fn verify_tcp(src: IpAddr, dst: IpAddr, tcp: &[u8]) -> bool {
    if tcp.len() < TCP_CHECK + 2 {
        return false;
    }
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => verify_tcp_v4(s, d, tcp),
        (IpAddr::V6(s), IpAddr::V6(d)) => verify_tcp_v6(s, d, tcp),
        _ => false,
    }
}

/// As [`verify_tcp_v4`].
#[inline]
pub(crate) fn verify_tcp_v6(src: Ipv6Addr, dst: Ipv6Addr, tcp: &[u8]) -> bool {
    let Ok(len) = u32::try_from(tcp.len()) else {
        return false;
    };
    fold(sum(tcp, pseudo_v6(src, dst, PROTO_TCP, len))) == 0xffff
}

/// [`verify_tcp`] for a segment whose length the caller has checked.
#[inline]
pub(crate) fn verify_tcp_v4(src: Ipv4Addr, dst: Ipv4Addr, tcp: &[u8]) -> bool {
    let Ok(len) = u16::try_from(tcp.len()) else {
        return false;
    };
    fold(sum(tcp, pseudo_v4(src, dst, PROTO_TCP, len))) == 0xffff
}

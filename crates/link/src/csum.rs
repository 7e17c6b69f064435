//! Completing offloaded checksums, for whatever is not a checksumming NIC.

use core::net::IpAddr;
use perimeter_base::{TxDesc, desc::Offload};
use perimeter_wire::{UdpHdr, checksum};

use crate::device::Medium;

/// Appends the whole frame of a descriptor to `out`, as it stands.
pub(crate) fn gather(d: &TxDesc, out: &mut Vec<u8>) {
    out.extend_from_slice(d.headers());
    gather_payload(d, out);
}

/// Appends the payload of a descriptor to `out`.
pub(crate) fn gather_payload(d: &TxDesc, out: &mut Vec<u8>) {
    for span in d.payload() {
        out.extend_from_slice(span);
    }
}

/// Copies the whole frame of a descriptor to the start of `out`; its length, or
/// `None` if it does not fit.
pub(crate) fn copy_out(d: &TxDesc, out: &mut [u8]) -> Option<usize> {
    let out = out.get_mut(..d.frame_len())?;
    let (head, mut rest) = out.split_at_mut(usize::from(d.hdr_len));
    head.copy_from_slice(d.headers());
    for span in d.payload() {
        let (here, after) = rest.split_at_mut(span.len());
        here.copy_from_slice(span);
        rest = after;
    }
    Some(d.frame_len())
}

/// Completes the checksum that `offload` leaves to the device. Nonsense (a field outside the
/// frame) is left alone: the receiver will drop the frame.
pub(crate) fn complete(frame: &mut [u8], offload: Offload) {
    if offload.csum_start == 0 {
        return;
    }
    let start = usize::from(offload.csum_start);
    let at = start + usize::from(offload.csum_offset);
    if at + 2 > frame.len() {
        return;
    }
    // The field holds the pseudo-header's sum, so it takes part as it is.
    let mut check = !checksum::fold(checksum::sum(&frame[start..], 0));
    // Of UDP, where 0 says that there is none.
    if check == 0 && offload.csum_offset == UdpHdr::CHECKSUM_AT {
        check = 0xffff;
    }
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// Makes the transport checksum of a received frame right that the device vouched for
/// (`csum_ok`): such frames may hold a partial one. TCP and UDP of whole datagrams only; others
/// are left alone.
pub(crate) fn renew(frame: &mut [u8], medium: Medium) {
    let ip = match medium {
        Medium::Ip => 0,
        Medium::Ethernet if matches!(frame.get(12..14), Some(&[8, 0] | &[0x86, 0xdd])) => 14,
        Medium::Ethernet => return,
    };
    let Some((hdr, whole)) = header(&frame[ip..]) else {
        return;
    };
    let field = match hdr.protocol {
        6 => 16,
        17 => 6,
        _ => return,
    };
    let start = ip + usize::from(hdr.header_len);
    let end = ip + hdr.total_len as usize;
    if !whole || start + field + 2 > end {
        return;
    }
    let segment = &mut frame[start..end];
    segment[field..field + 2].fill(0);
    let pseudo = match (hdr.src, hdr.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_v4(src, dst, hdr.protocol, segment.len() as u16)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_v6(src, dst, hdr.protocol, segment.len() as u32)
        }
        _ => return,
    };
    let mut check = !checksum::fold(checksum::sum(segment, pseudo));
    if check == 0 && hdr.protocol == 17 {
        check = 0xffff;
    }
    segment[field..field + 2].copy_from_slice(&check.to_be_bytes());
}

/// IP's header of whichever family at the start of `ip`, and whether its datagram is whole.
pub(crate) fn header(ip: &[u8]) -> Option<(perimeter_wire::IpHdr, bool)> {
    match ip.first()? >> 4 {
        6 => {
            let hdr = perimeter_wire::Ipv6Hdr::parse(ip).ok()?;
            Some((hdr.into(), hdr.fragment.is_none()))
        }
        _ => {
            let hdr = perimeter_wire::Ipv4Hdr::parse(ip, false).ok()?;
            Some((hdr.into(), !hdr.is_fragment()))
        }
    }
}

/// Whether a frame of Ethernet carries a partial checksum of TCP or UDP: the sum of the
/// pseudo-header, which whoever has the frame next is to complete, as with an interface that
/// completes checksums. By chance that of another frame is so once in 65,536.
pub(crate) fn is_partial(frame: &[u8]) -> bool {
    const IPV4: usize = 14;
    let word = |at: usize| {
        frame
            .get(at..at + 2)
            .map(|b| u16::from_be_bytes([b[0], b[1]]))
    };
    let (addresses, protocol, start, len) = match word(12) {
        Some(0x0800) => {
            let (Some(total), Some(fragment)) = (word(IPV4 + 2), word(IPV4 + 6)) else {
                return false;
            };
            let header = usize::from(frame[IPV4] & 15) * 4;
            if fragment & 0x3fff != 0 || usize::from(total) < header {
                return false;
            }
            let len = usize::from(total) - header;
            (
                IPV4 + 12..IPV4 + 20,
                frame.get(IPV4 + 9),
                IPV4 + header,
                len,
            )
        }
        Some(0x86dd) => {
            let len = usize::from(word(18).unwrap_or(0));
            (22..54, frame.get(20), 54, len)
        }
        _ => return false,
    };
    let field = match protocol {
        Some(6) => 16,
        Some(17) => 6,
        _ => return false,
    };
    let (Some(addresses), Some(found)) = (frame.get(addresses), word(start + field)) else {
        return false;
    };
    let more = len as u32 + u32::from(protocol.copied().unwrap_or(0));
    found == checksum::fold(checksum::sum(addresses, more))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of IPv4 with a header of that many octets more than 20, or of IPv6.
    fn frame(v6: bool, protocol: u8, options: usize) -> (Vec<u8>, usize) {
        let payload = 60;
        let mut f = vec![0u8; 14];
        let start = if v6 {
            f[12..].copy_from_slice(&[0x86, 0xdd]);
            f.extend([0x60, 0, 0, 0, 0, payload, protocol, 64]);
            f.extend((0..32u8).map(|i| i.wrapping_mul(37)));
            54
        } else {
            f[12..].copy_from_slice(&[8, 0]);
            let header = 20 + options;
            f.extend([0x40 | (header / 4) as u8, 0, 0, header as u8 + payload]);
            f.extend([
                0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2,
            ]);
            f.extend(vec![1; options]);
            14 + header
        };
        f.extend((0..payload).map(|i| i ^ 0x5a));
        (f, start)
    }

    #[test]
    fn a_partial_checksum_is_told_from_a_whole_one() {
        for (v6, protocol, options) in [
            (false, 6, 0),
            (false, 17, 8),
            (false, 6, 40),
            (true, 6, 0),
            (true, 17, 0),
        ] {
            let (mut f, start) = frame(v6, protocol, options);
            let field = start + if protocol == 6 { 16 } else { 6 };
            let addresses = if v6 { 22..54 } else { 26..34 };
            let more = 60 + u32::from(protocol);
            let sum = checksum::fold(checksum::sum(&f[addresses], more));
            f[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            assert!(is_partial(&f), "{v6} {protocol} {options}");
            let offload = Offload {
                csum_start: start as u8,
                csum_offset: (field - start) as u8,
                segment_size: 0,
            };
            complete(&mut f, offload);
            assert!(!is_partial(&f), "{v6} {protocol} {options}");
            // Nothing short, strange or in fragments is; nor does it panic.
            f[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            for n in 0..field + 2 {
                assert!(!is_partial(&f[..n]), "{n} octets");
            }
            if !v6 {
                f[20] |= 0x20;
                assert!(!is_partial(&f), "a fragment");
            }
        }
        assert!(!is_partial(&[0; 64]));
    }
}

//! Completing offloaded checksums, for whatever is not a checksumming NIC.

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
/// (`csum_ok`): such frames may hold a partial one. TCP and UDP over IPv4 only; others are left
/// alone.
pub(crate) fn renew(frame: &mut [u8], medium: Medium) {
    let ip = match medium {
        Medium::Ip => 0,
        Medium::Ethernet if frame.get(12..14) == Some(&[8, 0]) => 14,
        Medium::Ethernet => return,
    };
    let Ok(hdr) = perimeter_wire::Ipv4Hdr::parse(&frame[ip..], false) else {
        return;
    };
    let field = match hdr.protocol {
        6 => 16,
        17 => 6,
        _ => return,
    };
    let start = ip + usize::from(hdr.header_len);
    let end = ip + usize::from(hdr.total_len);
    if hdr.is_fragment() || start + field + 2 > end {
        return;
    }
    let segment = &mut frame[start..end];
    segment[field..field + 2].fill(0);
    let pseudo = checksum::pseudo_v4(hdr.src, hdr.dst, hdr.protocol, segment.len() as u16);
    let mut check = !checksum::fold(checksum::sum(segment, pseudo));
    if check == 0 && hdr.protocol == 17 {
        check = 0xffff;
    }
    segment[field..field + 2].copy_from_slice(&check.to_be_bytes());
}

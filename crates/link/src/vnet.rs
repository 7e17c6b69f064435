//! The header in front of each frame that is exchanged with the host's kernel: what is left to do
//! to the frame, by whoever takes it (checksum, cutting).

use perimeter_base::{PktBuf, TxDesc};

/// `struct virtio_net_hdr` without the number of buffers, in the machine's byte order (VIRTIO
/// 1.2, section 5.1.6): flags, GSO type, header length, GSO size, checksum start and offset.
pub(crate) const VNET: usize = 10;

/// The longest frame that is not cut, with this header and an Ethernet header with a VLAN tag.
pub(crate) const LONGEST: usize = VNET + 18 + 65_535;

/// The checksum is partial: complete it from `csum_start`.
const NEEDS_CSUM: u8 = 1;
/// The checksum has been verified.
const DATA_VALID: u8 = 2;

/// How the kernel is to cut a frame, or has not cut it: not at all, as TCP over IPv4, over IPv6.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// Flag among the types: the segments carry ECN's marks as RFC 3168 has it.
const GSO_ECN: u8 = 0x80;

/// What the kernel says of a received frame.
pub(crate) struct Received {
    /// The transport checksum is right, or partial and the frame has been on no wire.
    pub csum_ok: bool,
    /// Octets of TCP in each segment but the last; 0: the frame is one segment.
    pub segment_size: u16,
    /// The frame stands for several that are not segments of TCP (datagrams of UDP that were sent
    /// in one call).
    pub other_merged: bool,
}

/// Reads the header.
pub(crate) fn read(vnet: &[u8; VNET]) -> Received {
    let size = u16::from_ne_bytes([vnet[4], vnet[5]]);
    let kind = vnet[1] & !GSO_ECN;
    let tcp = matches!(kind, GSO_TCPV4 | GSO_TCPV6);
    Received {
        csum_ok: vnet[0] & (NEEDS_CSUM | DATA_VALID) != 0,
        segment_size: if tcp { size } else { 0 },
        other_merged: !tcp && kind != GSO_NONE,
    }
}

/// The header for a frame to send.
pub(crate) fn of(d: &TxDesc) -> [u8; VNET] {
    let mut vnet = [0u8; VNET];
    if d.offload.csum_start != 0 {
        vnet[0] = NEEDS_CSUM;
        vnet[6..8].copy_from_slice(&u16::from(d.offload.csum_start).to_ne_bytes());
        vnet[8..10].copy_from_slice(&u16::from(d.offload.csum_offset).to_ne_bytes());
    }
    if d.offload.segment_size != 0 {
        vnet[1] = GSO_TCPV4;
        vnet[2..4].copy_from_slice(&u16::from(d.hdr_len).to_ne_bytes());
        vnet[4..6].copy_from_slice(&d.offload.segment_size.to_ne_bytes());
    }
    vnet
}

/// Memory for what a buffer has no room for.
pub(crate) fn spare() -> Vec<u8> {
    Vec::with_capacity(LONGEST)
}

/// A frame of `n` octets, header included, of which `head` has the first and `large` the others,
/// each where it belongs. `large` is new afterwards.
///
/// # Safety
/// `large` is of [`spare`], and its octets from `head.len()` up to the `n`th are initialised.
pub(crate) unsafe fn long(large: &mut Vec<u8>, head: &[u8], n: usize) -> PktBuf {
    let mut whole = core::mem::replace(large, spare());
    for (to, from) in whole.spare_capacity_mut().iter_mut().zip(head) {
        to.write(*from);
    }
    // SAFETY: the first octets were written here, as many as `head` has; the caller has seen to
    // those behind them. No more than the capacity, which is at least `LONGEST`.
    unsafe { whole.set_len(n.min(LONGEST)) };
    PktBuf::from_vec(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_merged_is_told_apart() {
        let header = |flags, kind, size: u16| {
            let [a, b] = size.to_ne_bytes();
            read(&[flags, kind, 0, 0, a, b, 0, 0, 0, 0])
        };
        let plain = header(0, GSO_NONE, 7);
        assert!(!plain.csum_ok && plain.segment_size == 0 && !plain.other_merged);
        for kind in [GSO_TCPV4, GSO_TCPV6, GSO_TCPV4 | GSO_ECN] {
            let tcp = header(NEEDS_CSUM, kind, 1448);
            assert!(tcp.csum_ok && tcp.segment_size == 1448 && !tcp.other_merged);
        }
        // UDP, cut into fragments (3) or datagrams (5).
        for kind in [3, 5] {
            let udp = header(DATA_VALID, kind, 1400);
            assert!(udp.csum_ok && udp.segment_size == 0 && udp.other_merged);
        }
    }

    #[test]
    fn a_long_frame_is_put_together() {
        let mut large = spare();
        let all: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
        for (to, from) in large.spare_capacity_mut().iter_mut().zip(&all).skip(2048) {
            to.write(*from);
        }
        // SAFETY: written just now.
        let whole = unsafe { long(&mut large, &all[..2048], all.len()) };
        assert_eq!(whole.as_slice(), all);
        assert!(large.is_empty() && large.capacity() >= LONGEST);
    }
}

//! Received frames whose payload is in pieces behind their headers
//! ([`PktBuf::behind`]), memory that a device has handed on; and what a device has merged taken apart.

use crate::segment::Seg;
use perimeter_base::PktBuf;
use perimeter_wire::{Csum, MAX_HEADERS, TcpFlags, WireError, parse_tcp_into};
use std::collections::VecDeque;

/// Reads the headers, which must be all of the frame's front. How many octets are behind them.
///
/// # Errors
/// What [`parse_tcp_into`] returns.
pub(crate) fn read(seg: &mut Seg, frame: &PktBuf, l2: usize) -> Result<u32, WireError> {
    let octets = frame.behind_len();
    let mut room = [0; MAX_HEADERS];
    let bytes = frame.as_slice();
    let head = room.get_mut(..bytes.len()).ok_or(WireError::Truncated)?;
    head.copy_from_slice(bytes);
    // Whoever parses wants a whole datagram: this one ends with its headers.
    let v6 = head.get(l2).is_some_and(|b| b >> 4 == 6);
    let length = l2 + if v6 { 4 } else { 2 };
    let field = head.get_mut(length..).and_then(|b| b.first_chunk_mut());
    let field = field.ok_or(WireError::Truncated)?;
    let left = usize::from(u16::from_be_bytes(*field)).checked_sub(octets);
    let left = left.ok_or(WireError::Truncated)? as u16;
    *field = left.to_be_bytes();
    parse_tcp_into(&head[l2..], l2, Csum::Trust, &mut seg.frame)?;
    match seg.frame.payload_len {
        0 => Ok(octets as u32),
        _ => Err(WireError::Truncated),
    }
}

impl Seg {
    /// Takes the pieces behind a frame whose headers were read into this place. It is made of
    /// segments of `size` octets, of which there are several.
    pub(crate) fn adopt(&mut self, frame: &mut PktBuf, size: u16) {
        let pieces = frame.take_behind().into_iter();
        let mut pieces = pieces
            .filter(|b| !b.is_empty())
            .map(|b| PktBuf::shared(b, Vec::new()));
        self.payload = pieces.next().unwrap_or_default();
        self.frame.payload_len = self.payload.len() as u32;
        self.rest.clear();
        self.rest.extend(pieces);
        self.behind = self.rest.iter().map(|b| b.len() as u32).sum();
        self.size = size.into();
        self.segs = self.octets().div_ceil(self.size.max(1)) as u16;
    }

    /// Takes what a device has merged apart into runs of at most `n` segments, whatever pieces of memory
    /// it is in, and gives them to `f` one after the other; a single segment piece by piece. Octets are
    /// copied unless their memory is shared.
    pub(crate) fn in_runs(&mut self, n: u16, mut f: impl FnMut(&mut Seg)) {
        let size = self.size.max(1);
        let most = u32::from(n.max(1)) * size;
        let (mut seq, flags) = (self.frame.hdr.seq, self.frame.hdr.flags);
        let mut left = self.octets();
        let mut pieces = VecDeque::from(core::mem::take(&mut self.rest));
        pieces.push_front(core::mem::take(&mut self.payload));
        while left > 0 {
            let octets = left.min(most);
            left -= octets;
            self.segs = octets.div_ceil(size) as u16;
            (self.frame.payload_len, self.behind) = (0, 0);
            self.rest.clear();
            while let missing = octets - self.octets()
                && missing > 0
                && let Some(mut piece) = pieces.pop_front()
            {
                if piece.len() > missing as usize {
                    let part = piece.split_to(missing as usize);
                    pieces.push_front(core::mem::replace(&mut piece, part));
                }
                match self.frame.payload_len {
                    0 => {
                        self.frame.payload_len = piece.len() as u32;
                        self.payload = piece;
                    }
                    _ => {
                        self.behind += piece.len() as u32;
                        self.rest.push(piece);
                    }
                }
            }
            let hdr = &mut self.frame.hdr;
            hdr.seq = seq;
            hdr.flags = if left == 0 { flags } else { TcpFlags::ACK };
            match self.segs {
                // Nobody looks for more of a single segment behind its payload.
                1 => self.apart(&mut f),
                _ => f(self),
            }
            seq += octets;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use perimeter_base::rng::SplitMix64;
    use perimeter_wire::Seq;

    /// Whatever pieces the octets are in, and whether those share memory: runs of at most `n` segments
    /// follow each other, say the same but for sequence number and the last one's flags, and have the
    /// octets in order.
    #[test]
    fn what_a_device_has_merged_is_taken_apart_into_runs() {
        for seed in 0..500 {
            let rng = &mut SplitMix64::new(seed);
            let octets: Vec<u8> = (0..2 + rng.below(3_000)).map(|i| (i % 251) as u8).collect();
            let (n, size) = (1 + rng.below(4) as u16, 1 + rng.below(400) as u32);
            let mut left = &octets[..];
            let mut pieces = Vec::new();
            while !left.is_empty() {
                let (piece, rest) = left.split_at(1 + rng.below(left.len() as u64) as usize);
                pieces.push(match rng.chance(0.5) {
                    true => PktBuf::shared(piece.to_vec().into(), Vec::new()),
                    false => PktBuf::copy_of(piece),
                });
                left = rest;
            }
            let cuts = pieces.len() - 1;
            let mut seg = Seg::default();
            let last = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN;
            (seg.frame.hdr.seq, seg.frame.hdr.flags) = (Seq(u32::MAX - 9), last);
            seg.payload = pieces.remove(0);
            seg.frame.payload_len = seg.payload.len() as u32;
            seg.behind = octets.len() as u32 - seg.frame.payload_len;
            (seg.rest, seg.size) = (pieces, size);
            let (mut got, mut runs): (Vec<u8>, _) = (Vec::new(), 0);
            seg.in_runs(n, |run| {
                assert_eq!(run.frame.hdr.seq, Seq(u32::MAX - 9) + got.len() as u32);
                let rest = run.rest.iter().flat_map(|b| b.as_slice());
                let before = got.len();
                got.extend(run.payload.as_slice().iter().chain(rest));
                let len = (got.len() - before) as u32;
                assert_eq!((run.octets(), run.segs), (len, len.div_ceil(size) as u16));
                assert!(run.segs <= n && (run.segs > 1 || run.rest.is_empty()));
                runs += 1;
                let flags = match got.len() == octets.len() {
                    true => last,
                    false => TcpFlags::ACK,
                };
                assert_eq!(run.frame.hdr.flags, flags);
                // Who takes it may leave anything behind.
                run.frame.hdr.seq = Seq(1);
            });
            assert!(got == octets, "seed {seed}");
            let least = octets.len().div_ceil(usize::from(n) * size as usize);
            assert!(
                (least..=least + cuts).contains(&runs),
                "seed {seed}: {runs} runs"
            );
        }
    }
}

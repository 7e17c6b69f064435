//! Received frames whose payload is in pieces behind their headers
//! ([`PktBuf::behind`]): memory that a device has handed on.

use crate::segment::Seg;
use perimeter_base::PktBuf;
use perimeter_wire::{Csum, MAX_HEADERS, WireError, parse_tcp_into};

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
}

//! TCP headers and options (RFC 9293, section 3.1; RFC 7323; RFC 2018).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use crate::error::WireError;
use crate::seq::Seq;

/// Length of the longest TCP header in bytes: a data offset of 15 words.
pub const MAX_TCP_HEADER: usize = 60;

/// Length in bytes of a header without options.
pub const MIN_TCP_HEADER: usize = 20;

/// Bytes available for options.
const MAX_OPTIONS: usize = MAX_TCP_HEADER - MIN_TCP_HEADER;

/// Length of a header whose only option is the timestamp, aligned by two NOPs.
pub(crate) const TS_TCP_HEADER: usize = 32;

const OPT_END: u8 = 0;
const OPT_NOP: u8 = 1;
const OPT_MSS: u8 = 2;
const OPT_WSCALE: u8 = 3;
const OPT_SACK_PERMITTED: u8 = 4;
const OPT_SACK: u8 = 5;
const OPT_TS: u8 = 8;

/// NOP, NOP, timestamp kind and length: how nearly every segment of a
/// connection with timestamps starts its options (RFC 7323, appendix A).
pub(crate) const TS_PREFIX: [u8; 4] = [OPT_NOP, OPT_NOP, OPT_TS, 10];

/// The largest window scale (RFC 7323, section 2.3).
pub const MAX_WSCALE: u8 = 14;

/// Control bits of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No flag at all.
    pub const NONE: TcpFlags = TcpFlags(0);
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push function.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer field is significant.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Whether all flags of `other` are set.
    #[inline]
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// The flags of either; [`BitOr`] for constants.
    #[inline]
    pub const fn union(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[inline]
    pub const fn without(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !other.0)
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    #[inline]
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        self.union(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: TcpFlags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for TcpFlags {
    /// One letter for each flag, as in `SA` for SYN and ACK; `-` for none. `E`
    /// is ECE and `C` is CWR.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        for (bit, letter) in "FSRPAUEC".chars().enumerate() {
            if self.0 >> bit & 1 != 0 {
                fmt::Write::write_char(f, letter)?;
            }
        }
        Ok(())
    }
}

/// The blocks of a SACK option (RFC 2018): at most four pairs of the first
/// sequence number of a block and the one just after it.
#[derive(Copy, Clone, Default)]
#[repr(C)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); Self::MAX],
    len: u8,
}

impl SackBlocks {
    /// The most blocks that fit: three if the segment carries a timestamp.
    pub const MAX: usize = 4;

    /// The blocks in the order of the option.
    #[inline]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        // `len` never exceeds MAX; `min` lets the compiler see it.
        &self.blocks[..usize::from(self.len).min(Self::MAX)]
    }

    /// Appends a block from `left` up to but not including `right`; `false` if
    /// there is no room.
    #[inline]
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether there is no block, so no SACK option.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all blocks.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.as_slice().iter().map(|(l, r)| l.0..r.0))
            .finish()
    }
}

/// The options of a segment. Unknown options are skipped on parsing.
///
/// MSS, window scale and SACK-permitted exist only on segments with SYN, SACK
/// only on those without (RFC 9293, section 3.7.1; RFC 7323, section 2.2; RFC
/// 2018, sections 2 and 3): elsewhere they are neither parsed nor emitted.
//
// The C layout keeps each field's stores from being merged with its neighbours'
// into a copy through the stack, which stalls store forwarding (measured: 3 ns
// of a parse).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TcpOptions {
    /// Maximum segment size in bytes, never 0 as parsed (a zero says nothing).
    pub mss: Option<u16>,
    /// Window scale as a shift count. At most [`MAX_WSCALE`] as parsed: larger
    /// ones count as that (RFC 7323, section 2.3).
    pub wscale: Option<u8>,
    /// The sender can process SACK options.
    pub sack_permitted: bool,
    /// Timestamps: TSval and TSecr.
    pub ts: Option<(u32, u32)>,
    /// Selective acknowledgments.
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// Reads an option area. The flag says that an option had an impossible
    /// length, below 2 or beyond the area: it and what follows it are ignored,
    /// as Linux does. A known option of a wrong but possible length is skipped
    /// (RFC 9293, MUST-7, asks for handling of illegal lengths and leaves it
    /// open). Of options given twice the last counts.
    pub fn parse(area: &[u8], syn: bool) -> (TcpOptions, bool) {
        let mut opts = TcpOptions::default();
        let bad = opts.read_area(area, syn);
        (opts, bad)
    }

    /// [`TcpOptions::parse`] in place; returns its flag.
    pub(crate) fn read_area(&mut self, area: &[u8], syn: bool) -> bool {
        self.set_only_ts(None);
        let mut rest = area;
        while let [kind, tail @ ..] = rest {
            match *kind {
                OPT_END => break,
                OPT_NOP => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            let Some(len) = tail.first().map(|&len| usize::from(len)) else {
                return true;
            };
            if len < 2 || len > rest.len() {
                return true;
            }
            let (option, tail) = rest.split_at(len);
            self.read(option, syn);
            rest = tail;
        }
        false
    }

    /// The light path of [`TcpOptions::parse`]: the timestamp, if any, of an
    /// area that is empty or holds only the aligned timestamp of an established
    /// connection's segments. `None` for any other area.
    #[inline(always)]
    pub(crate) fn parse_light(area: &[u8]) -> Option<Option<(u32, u32)>> {
        match *area {
            [] => Some(None),
            [p, q, r, s, a, b, c, d, e, f, g, h] if [p, q, r, s] == TS_PREFIX => {
                let tsval = u32::from_be_bytes([a, b, c, d]);
                let tsecr = u32::from_be_bytes([e, f, g, h]);
                Some(Some((tsval, tsecr)))
            }
            _ => None,
        }
    }

    /// Leaves no option but this timestamp. The blocks of a SACK option stay in
    /// memory, beyond its length: clearing them would cost two wide stores.
    #[inline(always)]
    pub(crate) fn set_only_ts(&mut self, ts: Option<(u32, u32)>) {
        self.mss = None;
        self.wscale = None;
        self.sack_permitted = false;
        self.ts = ts;
        self.sack.clear();
    }

    /// Takes in one option: kind, length and data.
    fn read(&mut self, option: &[u8], syn: bool) {
        match *option {
            [OPT_TS, 10, a, b, c, d, e, f, g, h] => {
                let tsval = u32::from_be_bytes([a, b, c, d]);
                let tsecr = u32::from_be_bytes([e, f, g, h]);
                self.ts = Some((tsval, tsecr));
            }
            [OPT_SACK, _, ref blocks @ ..] if !syn => {
                let (blocks, partial) = blocks.as_chunks::<8>();
                if blocks.is_empty() || !partial.is_empty() {
                    return;
                }
                self.sack.clear();
                for &[a, b, c, d, e, f, g, h] in blocks {
                    let left = Seq(u32::from_be_bytes([a, b, c, d]));
                    let right = Seq(u32::from_be_bytes([e, f, g, h]));
                    self.sack.push(left, right);
                }
            }
            [OPT_MSS, 4, a, b] if syn => {
                let mss = u16::from_be_bytes([a, b]);
                if mss != 0 {
                    self.mss = Some(mss);
                }
            }
            [OPT_WSCALE, 3, shift] if syn => self.wscale = Some(shift.min(MAX_WSCALE)),
            [OPT_SACK_PERMITTED, 2] if syn => self.sack_permitted = true,
            _ => {}
        }
    }

    /// Number of SACK blocks that fit beside the timestamp.
    #[inline]
    fn sack_fit(&self) -> usize {
        let room = SackBlocks::MAX - usize::from(self.ts.is_some());
        self.sack.len().min(room)
    }

    /// Length in bytes of the options as emitted, a multiple of 4, at most 40.
    #[inline]
    pub fn wire_len(&self, syn: bool) -> usize {
        let ts = if self.ts.is_some() { 12 } else { 0 };
        if syn {
            let mss = if self.mss.is_some() { 4 } else { 0 };
            let wscale = if self.wscale.is_some() { 4 } else { 0 };
            // Beside a timestamp SACK-permitted takes the place of two NOPs.
            let sack = if self.sack_permitted && self.ts.is_none() {
                4
            } else {
                0
            };
            mss + ts + sack + wscale
        } else {
            let blocks = self.sack_fit();
            ts + if blocks > 0 { 4 + 8 * blocks } else { 0 }
        }
    }

    /// Whether the options are a timestamp and nothing else that a segment
    /// without SYN carries.
    #[inline]
    pub(crate) fn plain_ts(&self, syn: bool) -> Option<(u32, u32)> {
        if syn || !self.sack.is_empty() {
            None
        } else {
            self.ts
        }
    }

    /// Writes the options to the start of `out` and returns their length, which
    /// is [`wire_len`](TcpOptions::wire_len). The order is Linux's, which
    /// middleboxes know best: MSS, SACK-permitted, timestamps, window scale on
    /// a SYN; timestamps, SACK on others. Every option starts such that its
    /// 32-bit fields are aligned.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, syn: bool, out: &mut [u8]) -> usize {
        let mut w = Writer { out, at: 0 };
        if syn {
            if let Some(mss) = self.mss {
                let [a, b] = mss.to_be_bytes();
                w.word([OPT_MSS, 4, a, b]);
            }
            match (self.sack_permitted, self.ts) {
                (true, Some(ts)) => w.timestamp([OPT_SACK_PERMITTED, 2, OPT_TS, 10], ts),
                (false, Some(ts)) => w.timestamp(TS_PREFIX, ts),
                (true, None) => w.word([OPT_NOP, OPT_NOP, OPT_SACK_PERMITTED, 2]),
                (false, None) => {}
            }
            if let Some(shift) = self.wscale {
                w.word([OPT_NOP, OPT_WSCALE, 3, shift]);
            }
        } else {
            if let Some(ts) = self.ts {
                w.timestamp(TS_PREFIX, ts);
            }
            let blocks = self.sack_fit();
            if blocks > 0 {
                w.word([OPT_NOP, OPT_NOP, OPT_SACK, 2 + 8 * blocks as u8]);
                for (left, right) in &self.sack.as_slice()[..blocks] {
                    w.word(left.0.to_be_bytes());
                    w.word(right.0.to_be_bytes());
                }
            }
        }
        w.at
    }
}

/// Writes options word by word.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline]
    fn word(&mut self, word: [u8; 4]) {
        self.out[self.at..self.at + 4].copy_from_slice(&word);
        self.at += 4;
    }

    #[inline]
    fn timestamp(&mut self, prefix: [u8; 4], (tsval, tsecr): (u32, u32)) {
        self.word(prefix);
        self.word(tsval.to_be_bytes());
        self.word(tsecr.to_be_bytes());
    }
}

/// A TCP header. The checksum and the data offset are not part of it: they
/// follow from the segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpHdr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// SEG.SEQ: sequence number of the first octet, or of the SYN.
    pub seq: Seq,
    /// SEG.ACK: the next sequence number expected; of meaning with ACK.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// SEG.WND as in the header, not scaled.
    pub window: u16,
    /// SEG.UP: the urgent pointer; of meaning with URG.
    pub urgent: u16,
    /// Options.
    pub opts: TcpOptions,
}

/// What [`TcpHdr::parse_noting`] found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ParsedTcp {
    /// The header.
    pub hdr: TcpHdr,
    /// Data offset in bytes, 20 to 60.
    pub header_len: u8,
    /// Options were cut off at an impossible length: to be counted as
    /// [`WireError::BadOption`], the segment is valid nevertheless.
    pub bad_options: bool,
}

impl TcpHdr {
    /// Reads the header and options of a segment. `bytes` runs from the TCP
    /// header to the end of the IP payload. Returns the header and the offset
    /// of the data, `20..=60` and at most `bytes.len()`. The checksum is not
    /// looked at. An option of impossible length ends the options, see
    /// [`TcpOptions::parse`].
    ///
    /// # Errors
    /// [`WireError::Truncated`] or [`WireError::BadDataOffset`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(TcpHdr, usize), WireError> {
        let parsed = Self::parse_noting(bytes)?;
        Ok((parsed.hdr, usize::from(parsed.header_len)))
    }

    /// As [`TcpHdr::parse`], saying also whether options were malformed.
    ///
    /// # Errors
    /// [`WireError::Truncated`] or [`WireError::BadDataOffset`].
    #[inline]
    pub fn parse_noting(bytes: &[u8]) -> Result<ParsedTcp, WireError> {
        let (fixed, area) = split(bytes)?;
        let mut hdr = TcpHdr::default();
        hdr.read_fixed(fixed);
        let bad_options = match TcpOptions::parse_light(area) {
            Some(ts) => {
                hdr.opts.set_only_ts(ts);
                false
            }
            None => hdr.opts.read_area(area, is_syn(fixed)),
        };
        Ok(ParsedTcp {
            hdr,
            header_len: (fixed.len() + area.len()) as u8,
            bad_options,
        })
    }

    /// Sets all but the options from the fixed part `h` of a header.
    #[inline(always)]
    pub(crate) fn read_fixed(&mut self, h: &[u8; MIN_TCP_HEADER]) {
        self.src_port = u16::from_be_bytes([h[0], h[1]]);
        self.dst_port = u16::from_be_bytes([h[2], h[3]]);
        self.seq = Seq(u32::from_be_bytes([h[4], h[5], h[6], h[7]]));
        self.ack = Seq(u32::from_be_bytes([h[8], h[9], h[10], h[11]]));
        self.flags = TcpFlags(h[13]);
        self.window = u16::from_be_bytes([h[14], h[15]]);
        self.urgent = u16::from_be_bytes([h[18], h[19]]);
    }

    /// Length in bytes of the header as emitted, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        MIN_TCP_HEADER + self.opts.wire_len(self.flags.contains(TcpFlags::SYN))
    }

    /// Writes the header to the start of `out` and returns its length. The
    /// checksum field is zero. For the layout of options see
    /// [`TcpOptions::emit`].
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpHdr::header_len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let syn = self.flags.contains(TcpFlags::SYN);
        let (fixed, area) = out.split_at_mut(MIN_TCP_HEADER);
        let len = MIN_TCP_HEADER + self.opts.emit(syn, area);
        fixed[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        fixed[12] = data_offset(len);
        fixed[13] = self.flags.0;
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..18].fill(0);
        fixed[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        len
    }
}

/// Splits off the fixed part of the header and the option area, having checked
/// the data offset.
#[inline(always)]
pub(crate) fn split(bytes: &[u8]) -> Result<(&[u8; MIN_TCP_HEADER], &[u8]), WireError> {
    let (fixed, rest) = bytes
        .split_first_chunk::<MIN_TCP_HEADER>()
        .ok_or(WireError::Truncated)?;
    let header_len = usize::from(fixed[12] >> 4) * 4;
    header_len
        .checked_sub(MIN_TCP_HEADER)
        .and_then(|len| rest.get(..len))
        .map(|area| (fixed, area))
        .ok_or(WireError::BadDataOffset)
}

/// Whether the fixed part of a header has SYN set.
#[inline(always)]
pub(crate) fn is_syn(fixed: &[u8; MIN_TCP_HEADER]) -> bool {
    TcpFlags(fixed[13]).contains(TcpFlags::SYN)
}

/// The byte of the header that holds the data offset, for a header of `len`
/// bytes, a multiple of 4 up to 60. The reserved bits are zero.
#[inline]
pub(crate) const fn data_offset(len: usize) -> u8 {
    debug_assert!(len.is_multiple_of(4) && len >= MIN_TCP_HEADER && len <= MAX_TCP_HEADER);
    ((len / 4) << 4) as u8
}

const _: () = assert!(4 + 8 * SackBlocks::MAX <= MAX_OPTIONS);
const _: () = assert!(12 + 4 + 8 * (SackBlocks::MAX - 1) <= MAX_OPTIONS);

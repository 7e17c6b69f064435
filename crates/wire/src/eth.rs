//! Ethernet II headers.

use core::fmt;
use core::str::FromStr;

use crate::error::WireError;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an IEEE 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// A 48-bit link-layer address.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The address of every station on the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// The all-zero address, which names no station.
    pub const UNSPECIFIED: MacAddr = MacAddr([0; 6]);

    /// Whether the address names a group of stations; true of the broadcast
    /// address too.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this is [`MacAddr::BROADCAST`].
    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a link-layer address of six hexadecimal pairs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address: six hexadecimal pairs separated by ':' are expected")
    }
}

impl core::error::Error for ParseMacError {}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Reads six pairs of hexadecimal digits, all separated by `:` or all by
    /// `-`.
    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let text = text.as_bytes();
        if text.len() != 17 || !matches!(text[2], b':' | b'-') {
            return Err(ParseMacError);
        }
        let digit = |c: u8| (c as char).to_digit(16).ok_or(ParseMacError);
        let mut mac = [0; 6];
        for (i, octet) in mac.iter_mut().enumerate() {
            if i > 0 && text[3 * i - 1] != text[2] {
                return Err(ParseMacError);
            }
            *octet = (digit(text[3 * i])? << 4 | digit(text[3 * i + 1])?) as u8;
        }
        Ok(MacAddr(mac))
    }
}

/// An Ethernet II header, without tags.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct EtherHdr {
    /// Destination station or group.
    pub dst: MacAddr,
    /// Source station.
    pub src: MacAddr,
    /// What the frame carries; values below 1536 are IEEE 802.3 lengths.
    pub ethertype: u16,
}

impl EtherHdr {
    /// Length of the header in bytes.
    pub const LEN: usize = 14;

    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `bytes` is shorter than the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<EtherHdr, WireError> {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *bytes
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::Truncated)?;
        Ok(EtherHdr {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]),
        })
    }

    /// Writes the header to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`EtherHdr::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = &mut out[..Self::LEN];
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        out[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        Self::LEN
    }
}
